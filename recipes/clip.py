"""The recipe of the embedded CLIP models: a small ViT and a small ResNet, pre-trained on a procedural world of symbols.

    python -m recipes.clip --out FOLDER --tower vit|resnet
    python -m recipes.clip --evaluate FOLDER

The first runs for 10 to 30 minutes on one core and writes a folder that open_clip reads
(`open_clip.create_model("local-dir:FOLDER")`), with `training.json` beside it: the recipe, a fingerprint of the data,
losses and the quality of the weights as shipped. The second prints that quality.

Two stages on the world of `recipes.symbols`. First both towers are trained on batches of two kinds.
In *naming* batches a caption says which symbol it is and little else, and every picture that the caption is true of is
a positive. In *describing* batches captions name font, size, style, colours and ground, with CLIP's own loss. Without
the first, colours are learned at once and symbols never; without the second, captions know no style. Looks start mild
and widen; a linear head that names symbols helps the image tower and is thrown away.

Then the image tower is locked and the text tower learns that names have several senses, wherever in a text they stand.
This is what leaves prompt learning something to find: before it, no context changes what a name means.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from safetensors.torch import save_file

from fedaudit.tasks import drawings
from recipes.clip_model import MEAN, SHIPPED, STD, TOWERS, CLIPRecipe, model_config, tokenize
from recipes.clip_quality import PROMPT, evaluate, table
from recipes.clip_training import Step, teach_senses, train
from recipes.symbol_captions import build_tokenizer, describing_caption, naming_caption
from recipes.symbol_pictures import draw_chunk
from recipes.symbols import FIRST, SECOND, SYMBOLS

WEIGHTS = "open_clip_model.safetensors"


@dataclass
class Log:
    """Losses of a run by stage and kind of batch."""

    first: list[float] = dataclasses.field(default_factory=list)
    losses: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def follow(self, stage: str, steps: Iterator[Step], total: int) -> open_clip.CLIP:
        """Run a stage (`steps`) to its end, note its losses, print a line every 100 steps, and return the model."""
        model = None
        for step, (kind, loss, trained) in enumerate(steps, 1):
            model = trained
            self.losses.setdefault(f"{stage} {kind}", []).append(loss)
            if len(self.first) < 3:
                self.first.append(round(loss, 4))
            if step % 100 == 0:
                print(f"{stage} stage, step {step}/{total}  {self.last()}", flush=True)
        assert model is not None
        return model

    def last(self) -> dict[str, float]:
        """Mean of the last 60 losses by stage and kind of batch."""
        return {name: round(float(np.mean(values[-60:])), 4) for name, values in self.losses.items()}


def save(
    model: open_clip.CLIP, recipe: CLIPRecipe, first: Sequence[float], last: dict[str, float], out: Path, seconds: int
) -> None:
    """Write into `out` the weights in half precision, configuration, tokenizer and `training.json`, the record of the
    training with the quality after rounding."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: t.half().contiguous() if t.is_floating_point() else t for name, t in model.state_dict().items()}
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    (out / WEIGHTS).chmod(0o644)
    config = {"model_cfg": model_config(recipe), "preprocess_cfg": preprocessing()}
    (out / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    build_tokenizer().save_pretrained(out)
    record = {
        "recipe": dataclasses.asdict(recipe),
        "data": data_fingerprint(recipe),
        "first_losses": list(first),
        "last_losses": last,
        "weights_sha256": hashlib.sha256((out / WEIGHTS).read_bytes()).hexdigest(),
        "accuracy": evaluate(read(out)),
        "cpu_seconds": seconds,
        "versions": {"torch": torch.__version__.split("+")[0], "open_clip": open_clip.__version__},
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


def read(folder: Path) -> open_clip.CLIP:
    """The model in a folder, in single precision."""
    return open_clip.create_model(f"local-dir:{folder}").float()


def preprocessing() -> dict[str, Any]:
    """How pictures are prepared for the models, as open_clip's preprocess_cfg."""
    return {
        "size": [drawings.SIZE, drawings.SIZE],
        "mode": "RGB",
        "mean": [MEAN] * 3,
        "std": [STD] * 3,
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }


def data_fingerprint(recipe: CLIPRecipe) -> dict[str, Any]:
    """{"sha256": hash of 256 drawings' words and captions per stage, "brightness": mean (0-255) of 16 pictures of
    each}.

    Pictures count by brightness only, because font rasterisers and interpolation differ in the last bits between
    versions.
    """
    lines, brightness = [], []
    for stage, language in enumerate((FIRST, SECOND)):
        pictures, drawn = draw_chunk(256, 0.5, np.random.default_rng((recipe.seed, stage)), recipe.seed, language)
        rng = np.random.default_rng((recipe.seed, stage, 1))
        for drawing in drawn:
            caption, (name, kinds) = naming_caption(drawing, rng, language)
            lines += [str(drawing), caption, name, *sorted(kinds), describing_caption(drawing, rng, language)]
        brightness += pictures[:16].float().mean((1, 2, 3)).round().int().tolist()
    lines.append(str(tokenize(build_tokenizer(), [PROMPT.format(symbol.name) for symbol in SYMBOLS]).tolist()))
    return {"sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(), "brightness": brightness}


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train an embedded CLIP model, or measure one.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="folder for the model")
    task.add_argument(
        "--evaluate", type=Path, metavar="FOLDER", help="print the accuracies of the model in this folder"
    )
    parser.add_argument("--tower", choices=list(TOWERS), default="vit")
    arguments = parser.parse_args()
    if arguments.evaluate is None:
        run(SHIPPED[arguments.tower], arguments.out)
    print(table(evaluate(read(arguments.evaluate or arguments.out))))


def run(recipe: CLIPRecipe, out: Path) -> None:
    """Train both stages of the recipe, printing losses, and write model, tokenizer and `training.json` into `out`."""
    log = Log()
    model = log.follow("first", train(recipe), recipe.steps)
    model = log.follow("second", teach_senses(recipe, model), recipe.sense_steps)
    save(model, recipe, log.first, log.last(), out, round(time.process_time()))


if __name__ == "__main__":
    main()
