"""What all signals of a record cost beside a plain NumPy loop that computes one entropy.

    python benchmarks/signals.py [tokens] [words]

600 tokens and 32,000 words unless told otherwise, one thread, normal logits of standard deviation 1 (flat) and 3 (spread).
Times are CPU seconds (other processes disturb them less than the clock); the passes take turns, so that a ratio compares
neighbours, and both the fastest and the median are shown.
"""

import os
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
if not ONE_THREAD.items() <= os.environ.items():  # NumPy reads them when it is imported
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})

import numpy as np  # noqa: E402
import torch  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent.parent))
from fedaudit.attacks.tokens.signals import row_signals  # noqa: E402

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


def compare(logits: np.ndarray, targets: np.ndarray) -> None:
    tensor, half = torch.from_numpy(logits), torch.from_numpy(logits).bfloat16()
    runs: dict[str, Callable[[], object]] = {
        "row loop, order 2 only": lambda: row_loop(logits),
        "all signals": lambda: row_signals(tensor, targets),
        "all signals, bfloat16": lambda: row_signals(half, targets),
        "all signals, vlmia": lambda: row_signals(tensor, targets, compat="vlmia"),
    }
    memory = {name: growth(run) for name, run in runs.items()}
    np.testing.assert_allclose(row_signals(tensor, targets).renyi[2], row_loop(logits), rtol=0, atol=1e-10)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    loop, *_ = (np.array(taken) for taken in seconds.values())
    for name, taken in seconds.items():
        fastest, median = min(taken), float(np.median(taken))
        print(f"{name:<24}{fastest * 1e3:>8.1f} ms{fastest / loop.min():>7.2f}", end="")
        print(f"{median * 1e3:>8.1f} ms{np.median(np.array(taken) / loop):>7.2f}", end="")
        print("{:>10.1f} MB{:>8.1f} MB".format(*memory[name]))


def main() -> None:
    torch.set_num_threads(1)
    tokens, words = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 600), (2, 32_000)))
    rng = np.random.default_rng(0)
    targets = rng.integers(0, words, tokens)
    row_signals(np.zeros((2, 2)), [0, 1])
    print(f"{tokens} tokens x {words} words, {TURNS} turns, numpy {np.__version__}, torch {torch.__version__}")
    for deviation in (1, 3):
        print(
            f"standard deviation {deviation:<5}{'fastest':>11}{'ratio':>7}{'median':>11}{'ratio':>7}{'RSS growth':>13}{'traced':>11}"
        )
        compare(rng.standard_normal((tokens, words), dtype=np.float32) * np.float32(deviation), targets)


if __name__ == "__main__":
    main()
