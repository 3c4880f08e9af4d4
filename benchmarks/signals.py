"""What all signals of a record cost beside a plain NumPy loop that computes one entropy.

    python benchmarks/signals.py [tokens] [words]

600 tokens and 32,000 words unless told otherwise, one thread. Times are CPU seconds (other processes disturb them less than
the clock); the passes take turns, so that a ratio compares neighbours, and both the fastest and the median are shown.
"""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy and torch are imported

import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from attacks.signals import row_signals  # noqa: E402

TURNS = 20


def row_loop(logits: np.ndarray) -> np.ndarray:
    """Rényi entropy of order 2, row by row."""
    entropies = []
    for row in logits:
        x = row.astype(np.float64)
        log_p = x - x.max()
        log_p -= np.log(np.exp(log_p).sum())
        p = np.exp(log_p)
        entropies.append(-np.log((p**2).sum()))
    return np.array(entropies)


def growth(run: Callable[[], object]) -> tuple[float, float]:
    """MB by which a first run raised the process's peak memory, and the peak of what Python's allocators gave it."""
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (after - before) / 1024, traced / 2**20


def main() -> None:
    torch.set_num_threads(1)
    tokens, words = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 600), (2, 32_000)))
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((tokens, words), dtype=np.float32) * 3
    targets = rng.integers(0, words, tokens)
    tensor, half = torch.from_numpy(logits), torch.from_numpy(logits).bfloat16()
    row_signals(tensor[:2], targets[:2])
    runs: dict[str, Callable[[], object]] = {
        "row loop, order 2 only": lambda: row_loop(logits),
        "all signals, exact": lambda: row_signals(tensor, targets),
        "all signals, exact, bfloat16": lambda: row_signals(half, targets),
        "all signals, vlmia": lambda: row_signals(tensor, targets, compat="vlmia"),
    }
    np.testing.assert_allclose(row_signals(tensor, targets).renyi[2], row_loop(logits), rtol=0, atol=1e-10)
    memory = {name: growth(run) for name, run in list(runs.items())[1:]}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    loop = np.array(times["row loop, order 2 only"])
    print(f"{tokens} tokens x {words} words, {TURNS} turns, numpy {np.__version__}, torch {torch.__version__}")
    print(f"{'':<30}{'fastest':>10}{'ratio':>8}{'median':>10}{'ratio':>8}{'peak RSS':>11}{'traced':>9}")
    for name, taken in times.items():
        ratios = f"{min(taken) / loop.min():>8.2f}", f"{np.median(np.array(taken) / loop):>8.2f}"
        cells = f"{min(taken) * 1e3:>7.1f} ms{ratios[0]}{np.median(taken) * 1e3:>7.1f} ms{ratios[1]}"
        grown = "{:>+8.1f} MB{:>6.1f} MB".format(*memory[name]) if name in memory else ""
        print(f"{name:<30}{cells}{grown}")


if __name__ == "__main__":
    main()
