"""Peak memory of an audit's steps on a mid-size model, against the size of the model.

    python -m benchmarks.memory [--layers 12] [--dtype float32] [--batch 8]

A LLaVA with random weights (about 220 million parameters) is written to a temporary folder and loaded in a fresh process, which encodes records,
puts adapters on, makes one local step, scores once and generates. What an audit holds must stay near one model: no second copy of the weights.
A local step keeps activations besides, of at most 2 GB. Weights whose file has the asked-for dtype are mapped, not read: they count as a mapped file.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORDS = "describe the picture USER ASSISTANT : a small red cat on table".split()
VOCABULARY = 32_000
STEPS = ("imports", "load", "encode", "adapters", "one step", "score", "generate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch", type=int, default=8, help="records of the local step")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # in the fresh process: the model's folder
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.dtype, arguments.batch)))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.memory",
            "--dtype",
            arguments.dtype,
            "--batch",
            str(arguments.batch),
        ]
        in_fresh_process = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-c", f"from benchmarks.memory import build; build({folder!r}, {arguments.layers})"],
            check=True, env=in_fresh_process,
        )  # fmt: skip
        done = subprocess.run(
            [*command, "--measure", folder], check=True, env=in_fresh_process, stdout=subprocess.PIPE, text=True
        )
        report(json.loads(done.stdout.splitlines()[-1]))


def build(folder: str, layers: int) -> None:
    """Write the model and its processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )

    vision = CLIPVisionConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, image_size=224, patch_size=14
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=4, tie_word_embeddings=False)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<image>"]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*special, *WORDS])}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        extra_special_tokens=["<image>"],
    )  # fmt: skip
    size = {"height": 224, "width": 224}
    images = CLIPImageProcessor(size={"shortest_edge": 224}, crop_size=size)
    LlavaProcessor(
        images, tokenizer, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1
    ).save_pretrained(folder)


def measure(folder: Path, dtype: str, batch: int) -> dict[str, Any]:
    """Bytes of the model, and after every step the highest resident memory so far and what is not a mapped file."""
    import numpy as np
    import torch

    from fedaudit.backbones.vlm import load
    from fedaudit.machinery.store import claim
    from fedaudit.tasks.base import Record
    from fedaudit.trainers.lora import Learner, Settings

    torch.set_num_threads(1)
    marks = [memory()]
    vlm = load(folder, dtype=dtype)
    size = sum(p.nbytes for p in vlm.model.parameters())
    marks.append(memory())
    rng = np.random.default_rng(0)
    records = [
        Record(
            f"r{i}",
            "g",
            rng.integers(0, 255, (240, 320, 3), dtype=np.uint8),
            "USER : <image> describe the picture ASSISTANT :",
            "a small red cat",
        )
        for i in range(8)
    ]
    data = vlm.encode(records, claim(folder / "cache"), say=print)
    marks.append(memory())
    learner = Learner(vlm, data, Settings(local_steps=1, batch=batch))
    marks.append(memory())
    names = [record.id for record in records]
    state = learner.initial(torch.Generator().manual_seed(0))
    state = learner.train(state, names, torch.Generator().manual_seed(1), lambda leaves: leaves)
    marks.append(memory())
    for _ in learner.chunks(state, names):
        pass
    marks.append(memory())
    vlm.generate(learner.model, [data[name] for name in names], 4)
    marks.append(memory())
    return {"model": size, "marks": marks}


def memory() -> tuple[int, int]:
    """Highest resident memory and present memory that is no mapped file, in bytes (Linux with glibc)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is freed but not given back is not held
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024, int(lines["RssAnon"].split()[0]) * 1024


def report(found: dict[str, Any]) -> None:
    """The table; ratios leave out what the libraries take."""
    model, start = found["model"], found["marks"][0][0]
    print(f"model {model / 1e6:.0f} MB, libraries {start / 1e6:.0f} MB\n")
    print(f"{'after':<10} {'peak MB':>8} {'held MB':>8} {'(peak - libraries) / model':>28}")
    for step, (peak, held) in zip(STEPS, found["marks"], strict=True):
        print(f"{step:<10} {peak / 1e6:8.0f} {held / 1e6:8.0f} {(peak - start) / model:28.2f}")


if __name__ == "__main__":
    main()
