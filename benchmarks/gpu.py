"""What training and scoring cost on a GPU: seconds, and the card's memory.

    python -m benchmarks.gpu [pictures|prompts|lora|rounds|shadows|scores] [--clients 100] [--classes 100] [--quick]

pictures: encoding JPEG files by a ViT-B/16 with random weights, prepared by one thread and by all.
prompts: rounds of DP-FPL on a ViT-B/16 with random weights, evaluated, in each precision of products.
lora: a local step of FedRand and how often it waits for the card, and scoring by MaxRenyi-K%'s signals, on a model shaped as LLaVA-1.5-7B with
random weights in bfloat16.
rounds: two rounds of FedRand on that model with their attack, by the command.
shadows: an audit with shadow models on the embedded CLIP, on the card and on the processor.
scores: the quick start on the card, its scores computed by one process and by all.

Seconds are by the clock, after the card has finished; the smallest of some trials. `--quick` takes small models and runs without a GPU too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.prompts import Rounds, world
from fedaudit.attacks.questions.texts import _signals
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clip import load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.backbones.vlm import FrozenVLM
from fedaudit.command import cli
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.store import claim
from fedaudit.pipeline.workers import federation_of, make_bench
from fedaudit.tasks.base import IMAGE, Record
from fedaudit.trainers.base import generator, plain
from fedaudit.trainers.lora import Learner

ROOT = Path(__file__).parent.parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = {"float32": "highest", "tf32": "high", "bf16": "medium"}  # as torch calls them
TRIALS = 3
TESTS = 10  # test pictures of a class
SCORED = 16  # records
BATCH = 8  # records of a local step
SMALL = "--clients 2 --per-round 2 --records 8 --reference 8 --novel 4 --test 4"
PICTURES = 4000
ROUNDS = "--rounds 2 --clients 4 --per-round 4 --records 60 --reference 30 --novel 30 --test 8 --dtype bfloat16"
QUICK = "--rounds 2 " + SMALL
SHADOWS = "--method promptfl --attack lira,loss --shadows 50 --quiet"
QUICK_SHADOWS = "--method promptfl --attack lira,loss --shadows 4 --rounds 2 --clients 2 --train 6 --test 1 --quiet"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="this part only")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="a look at the tables: small models, few clients")
    options = parser.parse_args(words)
    if DEVICE == "cpu" and not options.quick:
        sys.exit("torch finds no CUDA device here; --quick runs without one")
    one_thread()
    print(f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'no GPU'}, torch {torch.__version__}", flush=True)
    for name in [options.part] if options.part else PARTS:
        print(f"\n{name}", flush=True)
        PARTS[name](options)


def measured(compute: Callable[[], Any]) -> tuple[float, float]:
    """Seconds until the card has finished, and the peak of its allocated memory in GB."""
    if DEVICE == "cpu":
        began = time.perf_counter()
        compute()
        return time.perf_counter() - began, 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    compute()
    torch.cuda.synchronize()
    return time.perf_counter() - began, torch.cuda.max_memory_allocated() / 1e9


def show(name: str, compute: Callable[[], Any], trials: int = TRIALS) -> None:
    """Print a row; the first of the trials warms up, unless it is the only one."""
    measurements = [measured(compute) for _ in range(trials)]
    print(f"{name:<56}{min(s for s, _ in measurements):>9.2f} s{max(m for _, m in measurements):>8.1f} GB", flush=True)


@contextmanager
def products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# --- pictures -------------------------------------------------------------------------------------------------------


def pictures(options: argparse.Namespace) -> None:
    clip = load(resolve_clip("", "") if options.quick else resolve_clip("ViT-B-16", "random"), DEVICE)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as path:
        folder, records, rows = Path(path), [], []
        for i in range(64 if options.quick else PICTURES):
            small = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8))
            small.resize((300, 200)).save(folder / f"{i}.jpg")
            records.append(Record(f"{i}", "", folder / f"{i}.jpg", IMAGE, "a picture"))
        clip.encode(records[:BATCH], claim(folder / "warm"), say=print)
        for threads in dict.fromkeys((1, os.cpu_count() or 1)):
            began = time.perf_counter()
            features = clip.encode(records, claim(folder / f"cache-{threads}"), say=print, threads=threads)
            seconds = time.perf_counter() - began
            print(
                f"{len(records)} pictures by {threads} threads: {seconds:.1f} s, {len(records) / seconds:.0f} a second",
                flush=True,
            )
            rows.append(features.rows([record.id for record in records]))
        print(f"the same features: {torch.equal(rows[0], rows[-1])}", flush=True)


# --- prompts --------------------------------------------------------------------------------------------------------


def prompts(options: argparse.Namespace) -> None:
    source = resolve_clip("", "") if options.quick else resolve_clip("ViT-B-16", "random")
    clients, classes = (2, 4) if options.quick else (options.clients, options.classes)
    names = [f"{name} {i}" for i in range(-(-classes // 20)) for name in NAMES][:classes]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        made = world(load(source, DEVICE), names, clients, TESTS, claim(Path(folder)))
        pictures, seconds = len(made.pixels), time.perf_counter() - began
        print(f"loading, and features of {pictures} pictures, prepared twice: {seconds:.1f} s", flush=True)
        for title, precision in PRECISIONS.items():
            with products(precision), Rounds(made, TRIALS) as rounds:
                for kind in ("step", "private step"):
                    row = f"a round, {clients} clients, {classes} classes, {kind}, {title}"
                    show(row, lambda kind=kind, rounds=rounds: rounds.next(kind))


NAMES = [f"digit {c}" for c in "0123456789"] + [f"capital letter {c}" for c in "ABCDEFGHIJ"]


# --- LoRA -----------------------------------------------------------------------------------------------------------


class Backbone(FrozenVLM):
    """A model shaped as LLaVA-1.5-7B with random weights, with the built-in model's words."""

    def open(self) -> tuple[Any, Any]:
        import transformers as t

        vision = t.CLIPVisionConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=336,
            patch_size=14,
        )  # fmt: skip
        tokenizer = t.AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        text = t.LlamaConfig(vocab_size=32064, max_position_embeddings=4096)
        config = t.LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            tie_word_embeddings=False,
        )
        size = {"height": 336, "width": 336}
        images = t.CLIPImageProcessor(size={"shortest_edge": 336}, crop_size=size)
        processor = t.LlavaProcessor(
            images, tokenizer, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1
        )
        with torch.device(self.device):
            return t.LlavaForConditionalGeneration._from_config(config, dtype=self.dtype), processor


def lora(options: argparse.Namespace) -> None:
    words = "--method fedrand --attack maxrenyi --target-modules attention --device " + DEVICE
    if not options.quick:
        words += f" --backbone {EMBEDDED} --backbone-code {Path(__file__)} --dtype bfloat16"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plan = cli.read_command([*words.split(), *SMALL.split(), f"--out={folder}"]).plan
        bench = make_bench(plan, federation_of(plan))
    learner = bench.learner
    assert isinstance(learner, Learner)
    print(f"loading, and the embeddings of the pictures: {time.perf_counter() - began:.1f} s", flush=True)
    records = [*bench.training[0], *bench.training[1]]
    tokens = max(len(learner.data[record].ids) for record in records)
    start = learner.initial(generator(0, "initial"))
    parts = learner._parts(records[:BATCH])
    print(f"{BATCH} records of at most {tokens} tokens, {len(parts)} parts a step", flush=True)

    def step(size: int = 0) -> None:
        leaves = {n: t.to(learner.vlm.device, copy=True).requires_grad_() for n, t in start.items()}
        batch = records[:BATCH]
        for part in [batch[i : i + size] for i in range(0, BATCH, size)] if size else learner._parts(batch):
            (learner.loss(plain(leaves), part) / BATCH * len(part)).backward()

    show("a local step, as it is divided", step)
    print(f"it waits for the card {waits(step)} times in {len(parts)} parts", flush=True)
    for size in (1, 2, 4, 8):
        show(f"a local step, {size} records at once", lambda size=size: step(size))
    show(f"logits of {SCORED} records", lambda: list(learner.chunks(start, records[:SCORED])))
    show(f"signals of {SCORED} records", lambda: _signals(learner, start, records[:SCORED], ["exact"]))


def rounds(options: argparse.Namespace) -> None:
    whole = f"--target-modules attention --backbone {EMBEDDED} --backbone-code {Path(__file__)} {ROUNDS}"
    audited(f"--method fedrand --attack maxrenyi --device {DEVICE} {QUICK if options.quick else whole}")


def waits(compute: Callable[[], Any]) -> int:
    """How often the host waits for a number of the card."""
    if DEVICE == "cpu":
        return 0
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compute()
    torch.cuda.set_sync_debug_mode("default")
    places = Counter(f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchronizing" in str(w.message))
    print(", ".join(f"{place} {n}" for place, n in places.most_common()), flush=True)
    return sum(places.values())


# --- shadows --------------------------------------------------------------------------------------------------------


def shadows(options: argparse.Namespace) -> None:
    for device in dict.fromkeys((DEVICE, "cpu")):
        audited(f"{QUICK_SHADOWS if options.quick else SHADOWS} --device {device}")


def scores(options: argparse.Namespace) -> None:
    for threads in dict.fromkeys((1, os.cpu_count() or 1)):
        audited(f"{QUICK if options.quick else ''} --quiet --device {DEVICE} --threads {threads}")


def audited(words: str) -> None:
    """Run a command in a folder of its own, and print its seconds."""
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        command = [sys.executable, str(ROOT / "audit.py"), *words.split(), "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(f"{words}: {time.perf_counter() - began:.1f} s, exit {done.returncode}")
        print(done.stdout[-1500:], done.stderr[-3000:], flush=True)


PARTS = {"pictures": pictures, "prompts": prompts, "lora": lora, "rounds": rounds, "shadows": shadows, "scores": scores}

if __name__ == "__main__":
    main()
