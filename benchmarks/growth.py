"""How CPU seconds and peak memory grow with what an audit is given.

    python -m benchmarks.growth [files|tensors|permutations|candidates|words|clients|classes] [--sizes 100,400] [--small]

files: a folder of results, written and then read under its lock.
tensors: a file of a round by its megabytes.
permutations: the permutation test of a run by its candidates, of ten clients and six scores.
candidates, words: scores of texts by every attack that needs one model only, and the signals of 600 tokens by their vocabulary.
clients, classes: a private round of DP-FPL on the built-in model, evaluated and written (20 classes; 10 clients).

Every size runs in a fresh process on one thread. Memory is the peak during the work beyond what was held before. A slope is that of the
logarithm of seconds, or of megabytes, from the size above to this one: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TOKENS = 600  # of `words`
LENGTH = 20  # tokens of a text of `candidates`
CLIENTS, CLASSES = 10, 20  # where the other one grows

Work = Iterator[tuple[str, Callable[[], object]]]  # rows, each with what is measured; what comes before it is not


def files(count: int, folder: Path) -> Work:
    from fedaudit.machinery.store import claim

    store, names = claim(folder), [f"round-{i:05d}.bin" for i in range(count)]

    def write() -> None:
        with store.lock(print):
            for name in names:
                store.write(name, name.encode())

    def read() -> None:
        with store.lock(print):
            assert all(store.usable(name, print) for name in names)
            assert all(store.read(name) == name.encode() for name in names)

    yield "written", write
    yield "read", read


def tensors(megabytes: int, folder: Path) -> Work:
    import torch

    from fedaudit.machinery.store import claim

    store, states = claim(folder), {f"upload/{k}/A": torch.rand(1 << 18) for k in range(megabytes)}
    yield "a round", lambda: store.write_tensors("round-000.safetensors", states)


def permutations(candidates: int, folder: Path) -> Work:
    import numpy as np
    import pandas as pd

    from fedaudit.audits.comparisons import ScoredModel, ScoredRun
    from fedaudit.audits.permutation_test import by_coin
    from fedaudit.terms.held_models import FINAL
    from fedaudit.terms.nonmembers import HELD_OUT
    from fedaudit.terms.threat_models import RELEASED_MODEL

    rng, signals = np.random.default_rng(0), [f"s{i}" for i in range(6)]
    names = [f"r{i}" for i in range(candidates)]
    records = {k: names[k::CLIENTS] for k in range(CLIENTS)}
    scores, base = (
        pd.DataFrame({"record": names} | {s: rng.normal(size=candidates) for s in signals}).set_index(
            "record", drop=False
        )
        for _ in range(2)
    )
    run = ScoredRun(
        models=[ScoredModel(RELEASED_MODEL, FINAL, None, 1, scores, base)], headlines={"a": signals[:1]},
        signals=dict.fromkeys(signals, "a"), blind={(None, HELD_OUT): dict(zip(names, rng.random(candidates), strict=True))},
        records=records, reference={k: [] for k in records},
        truth=dict(zip(names, (rng.random(candidates) < 0.5).tolist(), strict=True)), cohorts=[list(records)],
        coins={r: (r, f"c{k}") for k in records for r in records[k]},
    )  # fmt: skip
    yield "tested", lambda: by_coin(run)


def candidates(count: int, folder: Path) -> Work:
    import numpy as np

    from fedaudit.attacks.answers import TextAnswers
    from fedaudit.attacks.facts import ATTACKS
    from fedaudit.attacks.knowledge import Knowledge
    from fedaudit.attacks.tokens.signals import row_signals, stacked, unstacked

    rng, sizes = np.random.default_rng(0), np.full(count, LENGTH)
    spans = [{"image": slice(0, 1), "instruction": slice(1, 2), "caption": slice(2, LENGTH)}] * count
    captions = [f"caption {i}" for i in range(count)]
    few = stacked(row_signals(rng.normal(size=(1000, 50)), rng.integers(0, 50, 1000)))
    answers, base = (
        TextAnswers({"exact": unstacked(few[:, rng.integers(0, 1000, count * LENGTH)])}, sizes, spans, captions)
        for _ in range(2)
    )
    known = Knowledge(tuple(f"r{i}" for i in range(count)), np.zeros(count, bool), answers, base)
    alone = [p for p in ATTACKS.values() if "texts" in p.facts.records and not (p.facts.needs or p.facts.shadows)]
    attacks = [p.make(p.params()) for p in alone if not p.facts.needs_on_texts]
    yield "scored", lambda: [attack.score(known) for attack in attacks]


def words(count: int, folder: Path) -> Work:
    import numpy as np

    from fedaudit.attacks.tokens.signals import row_signals

    rng = np.random.default_rng(0)
    logits = rng.standard_normal((TOKENS, count), dtype=np.float32)
    yield "signals", lambda: row_signals(logits, rng.integers(0, count, TOKENS))


def clients(count: int, folder: Path) -> Work:
    yield from rounds(count, CLASSES, folder)


def classes(count: int, folder: Path) -> Work:
    yield from rounds(CLIENTS, count, folder)


def rounds(clients: int, classes: int, folder: Path) -> Work:
    from benchmarks.prompts import Rounds, world
    from fedaudit.backbones.clip import load
    from fedaudit.backbones.clip_source import resolve_clip
    from fedaudit.machinery.store import claim

    names = [f"thing {c:04d}" for c in range(classes)]  # of equally many tokens
    with Rounds(world(load(resolve_clip("", "")), names, clients, 1, claim(folder)), 2) as run:
        run.next("private step")  # what is computed once only
        yield "a round", lambda: run.next("private step")


@dataclass(frozen=True)
class Part:
    """One table of the benchmark: the work that grows, and its sizes; `small` ones are for a look."""

    make: Callable[[int, Path], Work]
    sizes: tuple[int, ...]
    small: tuple[int, ...]


PARTS = {
    "files": Part(files, (100, 400, 1_600, 6_400, 20_000), (20, 40)),
    "tensors": Part(tensors, (16, 64, 256), (1, 2)),
    "permutations": Part(permutations, (600, 5_000, 50_000), (40, 80)),
    "candidates": Part(candidates, (600, 5_000, 50_000), (10, 20)),
    "words": Part(words, (32_000, 152_000), (50, 100)),
    "clients": Part(clients, (5, 20, 100), (1, 2)),
    "classes": Part(classes, (10, 100, 1_000), (2, 4)),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="this part only")
    parser.add_argument("--sizes", help="these sizes, with commas between them")
    parser.add_argument("--small", action="store_true", help="a look at the tables: small sizes")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)  # in a fresh process
    options = parser.parse_args(arguments)
    if options.measure is not None:
        print(json.dumps(measure(PARTS[options.part], options.measure)))
        return
    print(f"{'':<14}{'':<12}{'size':>9}{'CPU s':>10}{'slope':>7}{'peak MB':>10}{'slope':>7}")
    for name in [options.part] if options.part else PARTS:
        part = PARTS[name]
        sizes = (
            [int(size) for size in options.sizes.split(",")]
            if options.sizes
            else part.small
            if options.small
            else part.sizes
        )
        show(name, {size: in_fresh_process(name, size) for size in sizes})


def measure(part: Part, size: int) -> dict[str, tuple[float, int]]:
    """CPU seconds and peak bytes, {row: (seconds, bytes)}."""
    from fedaudit.machinery.executor import one_thread
    from fedaudit.machinery.resource_usage import forget_peak, peak_memory

    one_thread()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for row, work in part.make(size, Path(folder)):
            forget_peak()
            before, began = peak_memory(), time.process_time()
            work()
            found[row] = (time.process_time() - began, peak_memory() - before)
    return found


def in_fresh_process(name: str, size: int) -> dict[str, tuple[float, int]]:
    """`measure` of a part in a new process."""
    command = [sys.executable, "-m", "benchmarks.growth", name, "--measure", str(size)]
    environment, root = {**os.environ, "OMP_NUM_THREADS": "1"}, Path(__file__).parent.parent
    done = subprocess.run(command, check=True, env=environment, cwd=root, stdout=subprocess.PIPE, text=True)
    found: dict[str, tuple[float, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(name: str, measured: dict[int, dict[str, tuple[float, int]]]) -> None:
    """Print a row for each size, with the slopes from the size before."""
    for row in next(iter(measured.values())):
        before: tuple[float, ...] = ()
        for size, found in measured.items():
            now = (size, *found[row])
            slopes = [slope(now, before, i) if before else "" for i in (1, 2)]
            print(
                f"{name:<14}{row:<12}{size:>9,}{now[1]:>10.2f}{slopes[0]:>7}{now[2] / 1e6:>10.0f}{slopes[1]:>7}",
                flush=True,
            )
            before = now


def slope(now: Sequence[float], before: Sequence[float], i: int) -> str:
    """The slope of logarithms from `before` to `now`, (size, seconds, bytes), of their entry i."""
    if now[i] <= 0 or before[i] <= 0:
        return "-"
    return f"{math.log(now[i] / before[i]) / math.log(now[0] / before[0]):.2f}"


if __name__ == "__main__":
    main()
