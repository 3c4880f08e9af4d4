"""The recipe of the embedded vision-language model: a small LLaVA, pre-trained on procedural scenes.

    python -m recipes.vlm --out FOLDER

It runs for about 100 minutes on one core and writes a folder that `transformers` loads like any other model, with
`training.json` beside it: the recipe, fingerprints of the data and of the first steps, and the held-out quality of the
weights as shipped.

Three stages. A *dense warm-up* teaches the vision tower alone to name what covers each patch; without it the language
model learns the grammar of captions and never looks at the picture. Then vision tower, connector and language model are
trained together on image captioning, the dense loss kept on the side. What comes out, the *captioner*, is rounded to
half precision; its vocabulary grows by the words of questions, and a last stage mixes captions with visual questions
(`--captioner FOLDER` starts there).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlavaForConditionalGeneration

from recipes.vlm_model import VLMRecipe, build_processor
from recipes.vlm_quality import evaluate, evaluate_questions
from recipes.vlm_scenes import SceneStream
from recipes.vlm_training import Step, teach_questions, train_captioner


def data_fingerprint(recipe: VLMRecipe) -> str:
    """SHA-256 of the first 256 captions and 256 questions as the model gets them: pixels, ids and patch targets."""
    digest = hashlib.sha256()
    for batch in (
        SceneStream(recipe, np.random.default_rng((recipe.seed, 0))).batch(256, recipe.story_rate),
        SceneStream(recipe, np.random.default_rng((recipe.seed, 2))).question_batch(256),
    ):
        for tensor in (batch.pixels, batch.ids, batch.colour, batch.form):
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train the embedded vision-language model (about 100 minutes).")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--captioner", type=Path, help="start with the last stage, from the model in this folder")
    for field in dataclasses.fields(VLMRecipe):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    out: Path = arguments.pop("out")
    folder: Path | None = arguments.pop("captioner")
    recipe = VLMRecipe(**arguments)
    before: dict[str, Any] = {"cpu_seconds": 0}
    if folder is None:
        captioner, losses = _follow(train_captioner(recipe), recipe.warm_up_steps + recipe.steps)
        before["first_losses"] = [round(loss, 4) for loss in losses[:3]]
    else:
        captioner = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        before = json.loads((folder / "training.json").read_text())
    model, losses = _follow(teach_questions(recipe, captioner), recipe.question_steps)
    save(model, recipe, before["first_losses"], losses, out, before["cpu_seconds"] + round(time.process_time()))


def _follow(steps: Iterator[Step], total: int) -> tuple[LlavaForConditionalGeneration, list[float]]:
    """Run a stage (`steps`, `total` of them) to its end, print a line every 50 steps, and return the model and the loss
    of every step."""
    losses: list[float] = []
    model: LlavaForConditionalGeneration | None = None
    for loss, trained in steps:
        model = trained
        losses.append(loss)
        if len(losses) % 50 == 0:
            print(f"step {len(losses)}/{total}  loss {np.mean(losses[-50:]):.3f}", flush=True)
    assert model is not None
    return model, losses


def save(
    model: LlavaForConditionalGeneration,
    recipe: VLMRecipe,
    first_losses: Sequence[float],
    losses: Sequence[float],
    out: Path,
    cpu_seconds: int,
) -> None:
    """Write into `out` the weights in half precision, processor and `training.json`, the record of the training with
    the quality after rounding."""
    model.half().save_pretrained(out)
    build_processor(recipe).save_pretrained(out)
    shipped = LlavaForConditionalGeneration.from_pretrained(out, dtype=torch.float32)
    record = {
        "recipe": dataclasses.asdict(recipe),
        "data_sha256": data_fingerprint(recipe),
        "first_losses": list(first_losses),
        "last_loss": round(float(np.mean(losses[-50:])), 4),
        "weights_sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "held_out": evaluate(shipped, recipe),
        "questions": evaluate_questions(shipped, recipe),
        "cpu_seconds": cpu_seconds,
        "versions": {"torch": torch.__version__.split("+")[0]},
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
