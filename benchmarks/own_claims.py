"""Is a claim of DP-SGD elsewhere checked? `python -m benchmarks.own_claims [--seeds N]`.

A loop written here trains LoRA by DP-SGD on the members of a split, most of whose candidates are canaries with another
record's caption, and claims epsilon 1. Once it forgets its noise: the bound from losses is printed beside the largest
one that so many canaries could have shown. Then its noise is right, with each of N seeds: its measured bound may lie
above the claim in at most a binomial limit of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from scipy.optimize import brentq
from scipy.stats import binom

import fedaudit
from fedaudit.machinery.executor import one_thread
from fedaudit.privacy.accountant import PoissonRun
from fedaudit.tasks.captions import Params, captions

BACKBONE = Path(fedaudit.__file__).parent / "backbones/scenes-llava"
PROJECTIONS = r".*language_model.*\.(q_proj|v_proj)"
RANK, CLIP, LEARNING_RATE, BATCH = 8, 1.0, 1e-2, 32
EPSILON, DELTA = 1.0, 1e-5
SPARE = 1.1  # candidates for each canary: some become reference records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="trainings whose noise is right")
    parser.add_argument("--steps", type=int, default=150, help="of the one that forgot it")
    parser.add_argument("--short", type=int, default=20, help="steps of those whose noise is right")
    parser.add_argument("--canaries", type=int, default=1000)
    options = parser.parse_args()
    one_thread()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source = written(place / "records", round(SPARE * options.canaries))
        found = trained_and_audited(place / "forgotten", source, options.canaries, options.steps, noise=False, seed=0)
        print("noise forgotten", *found, sep=" · ", flush=True)
        above = 0
        for seed in range(options.seeds):
            run = place / f"right-{seed}"
            found = trained_and_audited(run, source, options.canaries, options.short, noise=True, seed=seed)
            print(f"noise as claimed, seed {seed}", *found, sep=" · ", flush=True)
            above += found[0] > EPSILON
        limit = int(binom.ppf(0.999, options.seeds, 0.05))
        print(f"noise as claimed · {above} of {options.seeds} above the claim, at most {limit} may", flush=True)


def written(place: Path, records: int) -> Path:
    """Write captioned pictures and their list, and return the list."""
    place.mkdir()
    client = captions(Params(records=records), clients=1, seed=0).clients[0]
    lines = []
    for record in client.records[:records]:
        Image.fromarray(record.picture).save(place / f"{record.id}.png")
        lines.append(json.dumps({"image": f"{record.id}.png", "text": record.text, "prompt": record.prompt}))
    (place / "records.jsonl").write_text("\n".join(lines))
    return place / "records.jsonl"


def trained_and_audited(
    run: Path, source: Path, canaries: int, steps: int, *, noise: bool, seed: int
) -> tuple[float, float, str]:
    """The measured epsilon of one training, the probability of its guesses if the claim is true, and the sentence."""
    fedaudit.split(source, run, canaries=canaries, reference_share=0.05)
    members = [json.loads(line) for line in (run / "members.jsonl").read_text().splitlines()]
    rate = BATCH / len(members)
    multiplier = noise_multiplier(steps, rate) if noise else 0.0
    train(run, members, steps, rate, multiplier, seed)
    found = fedaudit.audit(run=str(run), attack="loss", out=str(run.parent / "out"), quiet=True)
    bound = found.findings.query("metric == 'measured' and threat_model == 'released-model'").iloc[0]
    return float(bound["value"]), float(bound.p_claimed), bound.sentence


def noise_multiplier(steps: int, rate: float) -> float:
    """The noise, in clip norms, at which so many Poisson steps are (EPSILON, DELTA)-DP."""
    return brentq(lambda z: PoissonRun(((((1 / z, steps),), rate),)).epsilon(DELTA) - EPSILON, 0.3, 50, xtol=1e-3)


def train(run: Path, members: Sequence[Mapping[str, Any]], steps: int, rate: float, noise: float, seed: int) -> None:
    """DP-SGD by Adam on Poisson samples of the members, recorded as a run of one client and one round."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForImageTextToText, AutoProcessor

    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    processor = AutoProcessor.from_pretrained(BACKBONE)
    frozen = AutoModelForImageTextToText.from_pretrained(BACKBONE, dtype=torch.float32)
    model = get_peft_model(frozen, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=PROJECTIONS))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE)
    recorder = fedaudit.Recorder(
        run, method="dp-lora", task="photos", backbone="embedded",
        claim={"epsilon": EPSILON, "delta": DELTA, "unit": "record", "neighbours": "add or remove"},
    )  # fmt: skip
    model.peft_config["default"].save_pretrained(run)
    recorder.broadcast(0, get_peft_model_state_dict(model))
    for _ in range(steps):
        batch = [one for one in members if torch.rand((), generator=rng) < rate]
        for weight, total in zip(weights, clipped_sum(model, weights, inputs(processor, run, batch)), strict=True):
            weight.grad = (total + noise * CLIP * torch.randn(total.shape, generator=rng)) / BATCH
        optimizer.step()
    recorder.upload(0, 0, get_peft_model_state_dict(model), records=len(members))
    recorder.close(get_peft_model_state_dict(model))


def inputs(processor: Any, run: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """The records as the model reads them; only texts are learnt, not the prompts before them."""
    images = [Image.open(run / one["image"]).convert("RGB") for one in records]
    texts = [f"{one['prompt']} {one['text']}{processor.tokenizer.eos_token}" for one in records]
    batch = dict(processor(text=texts, images=images, padding=True, padding_side="right", return_tensors="pt"))
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for row, ids in zip(
        labels, processor(text=[one["prompt"] for one in records], images=images)["input_ids"], strict=True
    ):
        row[: len(ids)] = -100
    return batch | {"labels": labels}


def clipped_sum(
    model: Any, weights: Sequence[torch.nn.Parameter], batch: dict[str, torch.Tensor]
) -> list[torch.Tensor]:
    """The sum over records of the gradients of their mean token losses, each clipped to CLIP over all weights."""
    labels = batch.pop("labels")
    with kept(model) as layers:
        logits = model(**batch).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
        (losses.sum(1) / (labels[:, 1:] != -100).sum(1)).sum().backward()
    each = {layer.weight: torch.einsum("rto,rti->roi", back, seen) for layer, (seen, back) in layers.items()}
    norms = torch.stack([of_records.flatten(1).norm(dim=1) for of_records in each.values()]).norm(dim=0)
    shares = (CLIP / norms).clamp(max=1)
    return [torch.einsum("r,roi->oi", shares, each[weight]) for weight in weights]


@contextmanager
def kept(model: Any) -> Iterator[dict[Any, tuple[torch.Tensor, torch.Tensor]]]:
    """Inputs and output gradients [R, T, ..] of each linear layer of the adapters, once the loss went back."""
    seen: dict[Any, torch.Tensor] = {}
    layers: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(layer: Any, inputs: tuple[torch.Tensor], outputs: torch.Tensor) -> None:
        seen[layer] = inputs[0].detach()
        outputs.register_hook(lambda back: layers.update({layer: (seen[layer], back)}))

    linear = [layer for name, layer in model.named_modules() if name.endswith((".lora_A.default", ".lora_B.default"))]
    handles = [layer.register_forward_hook(forward) for layer in linear]
    try:
        yield layers
    finally:
        for handle in handles:
            handle.remove()


if __name__ == "__main__":
    main()
