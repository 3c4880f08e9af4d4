"""Attacks by vectorised programs beside the same attacks record by record.

    python -m benchmarks.inference [--quick]

LiRA on 2,000 records and 50 shadow models, RMIA on 10,000 records and as many known non-members (the double loop on a part of the records, its
seconds multiplied), the shadow attack's networks of 4 and of 40 classes together and one by one (144 candidates, 50 shadow models, 40 classes).
What is computed is compared first. Seconds are the processor's on one thread, the least of trials in which the two take turns.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedaudit.attacks import rmia, shadow
from fedaudit.attacks.answers import ClassAnswers
from fedaudit.attacks.knowledge import Shadows
from fedaudit.attacks.likelihood import likelihood_ratios
from fedaudit.machinery.executor import one_thread
from tests import inference_oracle as oracle

TRIALS = 5
SHADOWS, CANDIDATES, CLASSES = 50, 144, 40
GAMMA = 2.0


@dataclass(frozen=True)
class Case:
    name: str
    slow: Callable[[], object]
    fast: Callable[[], object]
    scale: float = 1.0  # of the slow one's seconds: how much more work the fast one does


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a look at the table: small sizes, one trial")
    quick = parser.parse_args().quick
    one_thread()
    rng = np.random.default_rng(0)
    records, many = (200, 1000) if quick else (2000, 10_000)
    cases = [of_lira(rng, records), of_rmia(rng, many), of_networks(rng, 4), of_networks(rng, CLASSES)]
    print(f"{'':<44}{'one by one, ms':>16}{'together, ms':>14}{'times':>9}{'peak MB':>9}")
    for case in cases:
        slow, fast = least(case, 1 if quick else TRIALS)
        slow *= case.scale
        print(f"{case.name:<44}{1e3 * slow:>16.1f}{1e3 * fast:>14.2f}{slow / fast:>9.0f}{peak(case.fast):>9.2f}")
    print("peak: of what Python's allocators gave the vectorised program (networks: without torch's own).")


def of_lira(rng: np.random.Generator, n: int) -> Case:
    target, shadows, member = rng.standard_normal(n), rng.standard_normal((SHADOWS, n)), coins(rng, n)

    def fast() -> tuple[NDArray[np.float64], ...]:
        return likelihood_ratios(target, shadows, member)

    def slow() -> tuple[NDArray[np.float64], ...]:
        return oracle.lira(target, shadows, member, variance="prior")

    np.testing.assert_allclose(fast(), slow(), rtol=1e-10, atol=1e-10)
    return Case(f"LiRA, {n:,} records x {SHADOWS} shadows", slow, fast)


def of_rmia(rng: np.random.Generator, n: int) -> Case:
    part = n // 100
    x, z = rng.standard_normal((2, n))

    def fast() -> NDArray[np.float64]:
        return rmia.share_dominated(x, z, GAMMA)

    def slow() -> NDArray[np.float64]:
        return oracle.share_dominated(x[:part], z, GAMMA)

    np.testing.assert_allclose(fast()[:part], slow(), rtol=0, atol=1e-10)
    return Case(f"RMIA, {n:,} x {n:,} ratios (loop: {part} x)", slow, fast, n / part)


def of_networks(rng: np.random.Generator, taught: int) -> Case:
    """As many pairs in every case: the candidates spread over more or fewer classes."""
    labels = np.arange(CANDIDATES) % taught
    logits = 2 * rng.standard_normal((SHADOWS, CANDIDATES, CLASSES))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    member = coins(rng, CANDIDATES)
    groups = [np.flatnonzero(labels == c) for c in range(taught)]

    def shadows_of(group: NDArray[np.int64]) -> Shadows:
        return Shadows(member[:, group], [ClassAnswers(found[group], labels[group]) for found in log_probs])

    shadows, start = shadows_of(np.arange(CANDIDATES)), ClassAnswers(log_probs[0], labels)
    alone = [(shadows_of(group), tuple(labels[group].tolist())) for group in groups]
    params = shadow.Params()

    def fast() -> shadow.Networks:
        return shadow.fit.__wrapped__(shadows, start, tuple(labels.tolist()), params)

    def slow() -> list[shadow.Networks]:
        return [shadow.fit.__wrapped__(one, start, names, params) for one, names in alone]

    together = fast()
    for k, network in enumerate(slow()):  # the last digits of float32 grow in training
        np.testing.assert_allclose(together.mean[k], network.mean[0], atol=1e-5)
        np.testing.assert_allclose(together.weights[0][k], network.weights[0][0], atol=0.05)
    return Case(f"networks of {taught} classes", slow, fast)


def coins(rng: np.random.Generator, n: int) -> NDArray[np.bool_]:
    return rng.random((SHADOWS, n)) < 0.5


def least(case: Case, trials: int) -> tuple[float, float]:
    """CPU seconds of the slow and the fast one."""
    found = [(seconds(case.slow), seconds(case.fast)) for _ in range(trials)]
    return min(slow for slow, _ in found), min(fast for _, fast in found)


def seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def peak(run: Callable[[], object]) -> float:
    tracemalloc.start()
    run()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found / 1e6


if __name__ == "__main__":
    main()
