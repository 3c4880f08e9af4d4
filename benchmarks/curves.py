"""Curves of leakage against utility: how often their intervals hold the truth, and how long pages of 10,000 findings take.

    python -m benchmarks.curves [coverage | page]

coverage: 20,000 draws of trainings on the same records, by how many there are and how much more they spread than
records do; beside square-and-add stand Satterthwaite's degrees of freedom. page: seconds on this machine.
"""

from __future__ import annotations

import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from scipy.stats import norm, t

from fedaudit.audits.curves import Params, curves
from fedaudit.pipeline.page import audited_run
from fedaudit.reports import comparison, report
from tests.prompt_evidence import attacked, prompt_evidence

DRAWS = 20_000
FINDINGS = 10_000
EPSILONS = (math.inf, 0.4, 0.2, 0.1, 0.05, 0.01)


def coverage() -> None:
    z, rng = norm.ppf(0.975), np.random.default_rng(0)
    print("seeds  spread  square-and-add (half-width)  Satterthwaite (half-width)")
    for seeds in (2, 3, 5):
        for ratio in (0.1, 0.3, 1, 3, 10):
            values = rng.standard_normal((DRAWS, 1)) + ratio * rng.standard_normal((DRAWS, seeds))
            between = values.var(axis=1, ddof=1) / seeds
            joined = np.hypot(t.ppf(0.975, seeds - 1) * np.sqrt(between), z)
            dof = np.minimum((seeds - 1) * ((between + 1) / between) ** 2, 1e6)
            estimated = t.ppf(0.975, dof) * np.sqrt(between + 1)
            cells = [f"{(abs(values.mean(axis=1)) <= h).mean():.3f} ({np.median(h):.2f})" for h in (joined, estimated)]
            print(f"{seeds:<7}{ratio:<8}{cells[0]:<29}{cells[1]}")


def page() -> None:
    evidence, seed = [], 0
    while sum(len(e.findings) for e in evidence) < FINDINGS:
        evidence += [attacked(prompt_evidence("dpfpl", e, seed), pictures=False) for e in EPSILONS]
        seed += 1
    runs, count = [audited_run(e) for e in evidence], sum(len(e.findings) for e in evidence)
    started = time.perf_counter()
    found = {"curves": curves(runs, Params())}
    compared = time.perf_counter()
    comparison.build(found, lambda name, data: None, runs=len(runs), asked={})
    drawn = time.perf_counter()
    report.build(evidence, lambda name, data: None)
    done = time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(abs, range(4)))
        started_pool = time.perf_counter()
        report.build(evidence, lambda name, data: None, each=pool.map)
        together = time.perf_counter() - started_pool
    print(
        f"{count} findings of {len(runs)} runs: curves {compared - started:.1f} s, their page {drawn - compared:.1f} s"
    )
    print(f"a report of all of them, every section and figure: {done - drawn:.1f} s, by two processes {together:.1f} s")


if __name__ == "__main__":
    for part in sys.argv[1:] or ["coverage", "page"]:
        {"coverage": coverage, "page": page}[part]()
