"""A training elsewhere with coins, through the whole door: `python -m benchmarks.own_coins [--nulls N]`.

A context of the embedded CLIP is learned by heart on the members of a split, in a loop written here, recorded, and
audited: a leak must be found. Then the same models are audited with second coins, which decided nothing: of N such runs
at most the binomial limit may say "leak".
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from scipy.stats import binom

import fedaudit
from fedaudit.backbones.clip import FrozenCLIP, load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.machinery.progress import unseen
from fedaudit.machinery.store import claim as claimed_folder
from fedaudit.tasks.base import Record
from fedaudit.tasks.facts import TASKS

LENGTH = 16  # vectors of the context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nulls", type=int, default=100)
    parser.add_argument("--records", type=int, default=240)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source = written(place / "records", options.records)
        run = place / "run"
        fedaudit.split(source, run)
        model = trained(run, place / "cache", options.steps)
        record(run, model)
        print("own coins", *audited(run, place / "out"), sep=" · ", flush=True)
        verdicts = []
        for i in range(options.nulls):
            other = place / f"second-{i}"
            fedaudit.split(source, other)
            record(other, model)
            verdicts.append(audited(other, place / "out")[1])
            shutil.rmtree(other)
        leaks = sum(verdict.startswith("leak") for verdict in verdicts)
        limit = int(binom.ppf(0.999, options.nulls, 0.05))
        print(f"second coins · {leaks} of {options.nulls} say leak, at most {limit} may", flush=True)


def written(place: Path, records: int) -> Path:
    """Write pictures of drawn symbols and their list, and return the list."""
    place.mkdir()
    task = TASKS["glyphs"]
    federation = task.make(task.params(train=records), clients=1, seed=0)
    lines = []
    for i, one in enumerate(federation.clients[0].records[:records]):
        Image.fromarray(one.image).save(place / f"{i}.png")
        lines.append(json.dumps({"image": f"{i}.png", "class": one.group}))
    (place / "records.jsonl").write_text("\n".join(lines))
    return place / "records.jsonl"


def lines_of(run: Path, *names: str) -> list[dict[str, str]]:
    return [json.loads(line) for name in names for line in (run / f"{name}.jsonl").read_text().splitlines()]


def classes_of(run: Path) -> list[str]:
    return sorted({line["class"] for line in lines_of(run, "members", "nonmembers", "reference")})


def features(clip: FrozenCLIP, run: Path, cache: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Image features and labels of the members."""
    names = classes_of(run)
    lines = lines_of(run, "members")
    records = [Record(one["id"], one["class"], run / one["image"], "<image>", one["class"]) for one in lines]
    encoded = clip.encode(records, claimed_folder(cache), say=lambda text: None, stage=unseen)
    return encoded.rows([one.id for one in records]), torch.tensor([names.index(one.group) for one in records])


def trained(run: Path, cache: Path, steps: int) -> torch.Tensor:
    """The context after so many steps of Adam on all members."""
    clip = load(resolve_clip("", ""), "cpu")
    images, labels = features(clip, run, cache)
    texts = clip.classes(classes_of(run), LENGTH)
    context = 0.02 * torch.randn(LENGTH, clip.width, generator=torch.Generator().manual_seed(0))
    context.requires_grad_()
    optimizer = torch.optim.Adam([context], lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(clip.scale * (images @ clip.text(context, texts).T), labels).backward()
        optimizer.step()
    return context.detach()


def record(run: Path, context: torch.Tensor) -> None:
    """Record a run of one client that keeps its context."""
    for name in ("models", "private/round-000"):
        (run / name).mkdir(parents=True)
    for r in range(2):
        save_file({"p_L": torch.zeros_like(context)}, run / f"models/round-{r:03d}.safetensors")
    save_file({"ctx": context}, run / "private/round-000/client-00.safetensors")
    about = {
        "format": 2,
        "kind": "prompts",
        "method": "loop",
        "task": "symbols",
        "backbone": "vit",
        "classes": classes_of(run),
    }
    (run / "run.json").write_text(json.dumps(about))


def audited(run: Path, out: Path) -> Sequence[object]:
    """AUROC and verdict of whoever uses the context, and the measured epsilon."""
    found = fedaudit.audit(run=str(run), attack="loss", out=str(out), quiet=True).findings
    rows = found[(found.metric == "auroc") & (found.threat_model == "prompt-user") & (found.nonmembers == "held-out")]
    row = rows[rows.population == "own members"].iloc[0]
    bound = found[(found.metric == "measured") & (found.threat_model == "prompt-user")].iloc[0]
    return round(row["value"], 3), row.verdict, bound.sentence


if __name__ == "__main__":
    main()
