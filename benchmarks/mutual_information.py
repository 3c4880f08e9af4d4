"""Estimates of mutual information beside what is known exactly, and what they cost.

    python -m benchmarks.mutual_information [PART ...]

`bias`      correlated Gaussians, d coordinates each, 1,000 points: mean estimate less the closed form, in nats, by rho; 100 draws (d 8: 10)
`coverage`  how often of 200 the 95 % interval of the audit's own estimators holds the truth (a correct one: at least 179), and what it is wide
`channel`   a membership bit through noisy channels of known information: the audit's estimator, its interval, its null
`theorem`   SecFPP, Theorem 1: printed, exact, simulated, KSG on (|P|², D²), KSG on (P, D²), n users and d coordinates
`figure2`   SecFPP, Figure 2, both panels in nats: exact, and KSG with 1,000 draws as the paper measures; --csv FILE writes them
`speed`     seconds of both engines and of a vectorised brute force, by points and coordinates
`switch`    where blocks become faster than the tree

By default all. Seconds are of the processor, on one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import digamma

from fedaudit.audits.mutual_information import Params
from fedaudit.audits.statistics import mutual_information as mi
from fedaudit.audits.statistics import secfpp_distance as distance
from fedaudit.machinery.executor import one_thread
from fedaudit.reports.papers import secfpp_figure2
from fedaudit.reports.templates import csv
from tests import closed_information as closed

Floats = NDArray[np.float64]
K = Params().neighbours  # of the audit
RHOS = (0.0, 0.3, 0.6, 0.9, 0.95)


def correlated(n: int, d: int, rho: float, seed: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Gaussian x, y [n, d], coordinates correlated by rho pair by pair."""
    x, noise = np.random.default_rng(seed).normal(size=(2, n, d))
    return x, rho * x + math.sqrt(1 - rho**2) * noise


def shifted(n: int, shift: float, seed: tuple[int, ...]) -> tuple[NDArray[np.bool_], Floats]:
    """A fair bit, and N(0, 1) shifted by it."""
    rng = np.random.default_rng(seed)
    bit = rng.random(n) < 0.5
    return bit, bit * shift + rng.normal(size=n)


def bias() -> None:
    print(f"{'estimator':<14}{'d':>3}" + "".join(f"{f'rho {rho:g}':>20}" for rho in RHOS))
    for d, times in ((1, 100), (2, 100), (8, 10)):
        print(f"{'exact':<14}{d:>3}" + "".join(f"{closed.gaussian_information(rho, d):>20.3f}" for rho in RHOS))
        for name, estimate in {
            "KSG 1": mi.ksg,
            "KSG 2": lambda x, y: mi.ksg(x, y, estimator=2),
            "mixed": mi.mixed,
        }.items():
            cells = []
            for rho in RHOS:
                found = [estimate(*correlated(1000, d, rho, (s, d))) for s in range(times)]
                error = np.mean(found) - closed.gaussian_information(rho, d)
                cells.append(f"{f'{error:+.4f} ± {np.std(found, ddof=1) / math.sqrt(times):.4f}':>20}")
            print(f"{name:<14}{d:>3}" + "".join(cells), flush=True)


def coverage() -> None:
    print(f"{'':<26}{'points':>7}{'exact':>8}{'mean':>8}{'sd':>8}{'half width':>12}{'covered of 200':>16}")
    for n in (100, 200, 1000):
        for rho in (0.0, 0.5, 0.95):

            def pair(seed: int, n: int = n, rho: float = rho) -> mi.Information:
                x, y = correlated(n, 1, rho, (seed, n))
                return mi.interval(lambda rows: mi.ksg(x[rows], y[rows]), n, seed=seed)

            _covered(f"KSG 1, rho {rho:g}", n, closed.gaussian_information(rho), pair)
        for shift in (0.0, 1.0, 3.0):
            _covered(f"Ross, bit shifts {shift:g}", n, closed.shifted_gaussian(shift), _of_bit(n, shift))


def _of_bit(n: int, shift: float) -> Callable[[int], mi.Information]:
    def found(seed: int) -> mi.Information:
        bit, score = shifted(n, shift, (seed, n))
        return mi.interval(lambda rows: mi.ross(bit[rows], score[rows], k=K), n, stratum=bit, seed=seed)

    return found


def _covered(name: str, n: int, exact: float, measure: Callable[[int], mi.Information]) -> None:
    found = [measure(seed) for seed in range(200)]
    values = [i.value for i in found]
    inside = sum(i.low <= exact <= i.high for i in found)
    wide = np.mean([i.high - i.low for i in found]) / 2
    print(
        f"{name:<26}{n:>7}{exact:>8.3f}{np.mean(values):>8.3f}{np.std(values):>8.3f}{wide:>12.3f}{inside:>16}",
        flush=True,
    )


def channel() -> None:
    print(f"{'bits, 600 records':<26}{'exact':>8}{'found':>8}{'low':>8}{'high':>8}{'null 95 %':>20}{'p':>8}")
    for name, exact, seen in (
        ("shift 0", 0.0, shifted(600, 0.0, (1,))),
        ("shift 0.5", closed.shifted_gaussian(0.5), shifted(600, 0.5, (1,))),
        ("shift 1", closed.shifted_gaussian(1.0), shifted(600, 1.0, (1,))),
        ("shift 3", closed.shifted_gaussian(3.0), shifted(600, 3.0, (1,))),
        ("bit, 10 % flipped", closed.flipped_bit(0.1), _flipped(600, 0.1)),
    ):
        for permuted in (False, True):
            bit, score = seen
            bit = np.random.default_rng(2).permutation(bit) if permuted else bit
            i = mi.interval(lambda rows, bit=bit, score=score: mi.ross(bit[rows], score[rows], k=K), 600, stratum=bit)
            coins = np.array([np.random.default_rng((3, p)).permutation(bit) for p in range(500)])
            null = mi.ross_of_coins(coins, score, k=K) * mi.BITS
            p = (1 + (null >= i.value * mi.BITS).sum()) / (1 + len(null))
            low, high = np.quantile(null, [0.025, 0.975])
            label, known = (f"{name}, permuted", 0.0) if permuted else (name, exact)
            print(
                f"{label:<26}{known * mi.BITS:>8.3f}{i.value * mi.BITS:>8.3f}{i.low * mi.BITS:>8.3f}"
                f"{i.high * mi.BITS:>8.3f}{f'[{low:+.3f}, {high:+.3f}]':>20}{p:>8.3f}"
            )


def _flipped(n: int, flip: float) -> tuple[NDArray[np.bool_], Floats]:
    rng = np.random.default_rng(4)
    bit = rng.random(n) < 0.5
    return bit, (bit ^ (rng.random(n) < flip)).astype(float)


def theorem() -> None:
    print("nats; inside: the prompt is one of the n; 1,000 draws for KSG, 100,000 for the simulation")
    print(
        f"{'n':>5}{'d':>5}{'printed':>9}{'exact':>8}{'simulated':>18}{'KSG (|P|², D²)':>26}{'KSG (P, D²)':>13}"
        f"{'outside':>9}{'centre':>8}{'h(P)':>8}"
    )
    for n, d in ((20, 1), (20, 2), (20, 8), (20, 32), (20, 120), (5, 8), (10, 8), (50, 8), (100, 8)):
        rng = np.random.default_rng((n, d))
        drawn = distance.draws(n, d, 1000, rng)
        lengths = (drawn.prompts**2).sum(axis=1)
        found = mi.interval(lambda rows, a=lengths, b=drawn.squared: mi.ksg(a[rows], b[rows]), 1000)
        value, error = closed.by_simulation(n, d, 100_000, rng)
        ksg = f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
        print(
            f"{n:>5}{d:>5}{distance.printed(n, d):>9.3f}{distance.exact(n, d):>8.3f}{f'{value:.3f} ± {1.96 * error:.3f}':>18}"
            f"{ksg:>26}{mi.ksg(drawn.prompts, drawn.squared):>13.3f}{distance.exact(n, d, inside=False):>9.3f}"
            f"{distance.centre(n, d):>8.3f}{closed.gaussian_entropy(d):>8.2f}",
            flush=True,
        )


def figure2() -> pd.DataFrame:
    """Both panels of the figure, as `audit.py --paper secfpp:figure2` draws them."""
    table = secfpp_figure2.ours()
    for panel, part in table.groupby("panel", sort=False):
        by = "n" if panel == "users" else "d"
        print(f"against {panel}, {'d' if by == 'n' else 'n'} = {part['d' if by == 'n' else 'n'].iloc[0]}: exact (KSG)")
        print(f"{by:>26}" + "".join(f"{value:>18}" for value in part[by].unique()))
        for quantity, own in part.groupby("quantity", sort=False):
            cells = "".join(f"{f'{e:.3f} ({k:.3f})':>18}" for e, k in zip(own.exact, own.ksg, strict=True))
            print(f"{quantity:>26}" + cells.replace("(nan)", "     "))
    return table


def brute(x: Floats, y: Floats, k: int = mi.NEIGHBOURS) -> float:
    """Kraskov's estimator 1 as numpy writes it: every difference of every pair, a hundred points at a time."""
    a, b = ((v - v.mean(axis=0)) / v.std(axis=0) for v in (x, y))
    total = 0.0
    for start in range(0, len(a), 100):
        rows = slice(start, start + 100)
        in_x, in_y = (np.abs(v[rows, None] - v).max(axis=2) for v in (a, b))
        reach = np.partition(np.maximum(in_x, in_y), k, axis=1)[:, k : k + 1]
        total += digamma((in_x < reach).sum(axis=1)).sum() + digamma((in_y < reach).sum(axis=1)).sum()
    return float(digamma(k) + digamma(len(a)) - total / len(a))


def _seconds(estimate: Callable[[], float]) -> tuple[float, float]:
    began = time.process_time()
    value = estimate()
    return time.process_time() - began, value


def speed() -> None:
    print(
        f"{'points':>8}{'d each':>8}{'ksg s':>9}{'tree s':>9}{'blocks s':>10}{'brute s':>9}{'brute / ksg':>13}{'differ by':>11}"
    )
    for n, d in ((1000, 1), (10_000, 1), (10_000, 2), (10_000, 3), (5000, 32), (100_000, 1), (100_000, 4)):
        x, y = correlated(n, d, 0.6, (n, d))
        ours, value = _seconds(lambda x=x, y=y: mi.ksg(x, y))
        cells = [f"{ours:>9.2f}"]
        for engine, width in (("tree", 9), ("blocks", 10)):
            small = n <= 10_000
            cells.append(
                f"{_seconds(lambda x=x, y=y, e=engine: mi.ksg(x, y, engine=e))[0]:>{width}.2f}"
                if small
                else f"{'':>{width}}"
            )
        if n <= 10_000:
            slow, other = _seconds(lambda x=x, y=y: brute(x, y))
            cells.append(f"{slow:>9.2f}{slow / ours:>13.0f}{abs(value - other):>11.1e}")
        print(f"{n:>8}{d:>8}" + "".join(cells), flush=True)


def switch() -> None:
    print("seconds of the tree over those of blocks; below 1 the tree is faster")
    sizes = (1000, 5000, 10_000)
    print(f"{'coordinates of both':>20}" + "".join(f"{n:>9}" for n in sizes))
    for both in (4, 6, 8, 10, 12, 16, 24):
        cells = []
        for n in sizes:
            x, y = correlated(n, both // 2, 0.6, (n, both))
            tree, blocks = (_seconds(lambda e=e, x=x, y=y: mi.ksg(x, y, engine=e))[0] for e in ("tree", "blocks"))
            cells.append(f"{tree / blocks:>9.2f}")
        print(f"{both:>20}" + "".join(cells), flush=True)


PARTS = {part.__name__: part for part in (bias, coverage, channel, theorem, figure2, speed, switch)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--csv", metavar="FILE", help="of the rows of figure2")
    options = parser.parse_args()
    chosen = options.parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    one_thread()
    for part in chosen:
        print(f"\n{part}")
        table = PARTS[part]()
        if table is not None and options.csv:
            Path(options.csv).write_bytes(csv(table))


if __name__ == "__main__":
    main()
