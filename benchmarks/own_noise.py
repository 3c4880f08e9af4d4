"""A claim of differential privacy of prompts trained elsewhere, through the whole door: `python -m benchmarks.own_noise`.

A context of the embedded CLIP is trained in a loop written here, two rounds of one step of SGD on all members of a split,
each record's gradient clipped, with Gaussian noise that proves epsilon 8, which the run claims; then with a tenth of it.
The bound from messages is printed, with the probability of coins so plain if the claim is true.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import fedaudit
from benchmarks.own_coins import LENGTH, classes_of, features, lines_of, written
from fedaudit.audits.statistics.trade_off import GAUSSIAN
from fedaudit.backbones.clip import load
from fedaudit.backbones.clip_source import resolve_clip

EPSILON, DELTA, CLIP, RATE, ROUNDS = 8.0, 1e-5, 0.1, 0.1, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source = written(place / "records", options.records)
        for factor in (1.0, 0.1):
            run = place / f"noise-{factor:g}"
            fedaudit.split(source, run)
            train(run, place / "cache", factor)
            found = fedaudit.audit(
                run=str(run), attack="whitebox", solved_rounds=ROUNDS, out=str(place / "out"), quiet=True
            ).findings
            for bound in found[found.metric.str.startswith("measured")].itertuples():
                print(
                    f"{factor:g} of the noise · {bound.metric} · {bound.sentence} p if the claim holds {bound.p_claimed:.2g}"
                )


def train(run: Path, cache: Path, factor: float) -> None:
    """Train, and record models, uploads and how it was done."""
    clip = load(resolve_clip("", ""), "cpu")
    images, labels = features(clip, run, cache)
    texts, batch = clip.classes(classes_of(run), LENGTH), len(labels)
    std = factor * ROUNDS**0.5 * CLIP / batch / GAUSSIAN.mu(EPSILON, DELTA)
    rng = torch.Generator().manual_seed(1)
    context = 0.02 * torch.randn(LENGTH, clip.width, generator=rng)
    for name in ("models", *(f"uploads/round-{r:03d}" for r in range(ROUNDS))):
        (run / name).mkdir(parents=True)
    save_file({"ctx": context}, run / "models/round-000.safetensors")
    for r in range(ROUNDS):
        total = torch.zeros_like(context)
        for image, label in zip(images, labels, strict=True):
            leaf = context.clone().requires_grad_()
            F.cross_entropy(clip.scale * (image @ clip.text(leaf, texts).T)[None], label[None]).backward()
            assert leaf.grad is not None
            total += leaf.grad * min(1.0, CLIP / float(leaf.grad.norm()))
        context = context - RATE * (total / batch + std * torch.randn(context.shape, generator=rng))
        save_file({"ctx": context}, run / f"uploads/round-{r:03d}/client-00.safetensors")
        save_file({"ctx": context}, run / f"models/round-{r + 1:03d}.safetensors")
    about = {
        "format": 2, "kind": "prompts", "method": "loop", "task": "symbols", "backbone": "vit", "classes": classes_of(run),
        "rule": {"method": "promptfl"},
        "recipe": {"optimizer": "sgd", "batch": batch, "local_steps": 1, "global_rate": RATE},
        "privacy": {"epsilon": EPSILON, "delta": DELTA, "clip_norm": CLIP, "sigma": "calibrated"},
        "claim": {"epsilon": EPSILON, "delta": DELTA, "unit": "record", "neighbours": "zero-out"},
    }  # fmt: skip
    (run / "run.json").write_text(json.dumps(about))
    assert len(lines_of(run, "members")) == batch


if __name__ == "__main__":
    main()
