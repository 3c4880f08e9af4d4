"""SecFPP: what secret sharing costs, and whether its clusters are the domains.

    python -m benchmarks.secfpp speed [--csv FILE]             every phase of a round, in seconds of the processor on one thread, and bytes
    python -m benchmarks.secfpp clusters [--seeds N] [--out FOLDER] [--tasks STYLES:USERS:T,..] [flags]    the preset's clusters against the domains

Speed: what `audit.py --paper secfpp:figure3` draws (`reports/papers/secfpp_figure3.py` says what is timed). Purity is the share of users whose cluster's most frequent domain
is theirs. A federation is right where there are as many clusters as domains and purity is at least 0.95 in the end; of N seeds the interval is Clopper and Pearson's at 95
percent. T is the number of colluders, by default three of ten. Nothing is trained: users are clustered by gradients at the public start, which are kept below --out.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.stats import binomtest

from fedaudit.command import cli
from fedaudit.pipeline.methods import method_of, schedule_of
from fedaudit.pipeline.workers import federation_of, make_bench
from fedaudit.privacy.clustering import Clusters, Floats, Rule
from fedaudit.reports.papers.secfpp_figure3 import measured
from fedaudit.reports.templates import csv
from fedaudit.trainers.base import Participation, generator
from fedaudit.trainers.secfpp import _inverse_root, _measured

SIZES = (
    (20, 150),
    (20, 1000),
    (20, 2000),
    (20, 4000),
    (40, 150),
    (60, 150),
    (80, 150),
    (100, 150),
    (100, 4000),
)  # users, entries
WIDTHS = {"users": 6, "d": 6, "t": 4, "ell": 4, "bits": 5, "share sum": 11, "decode sum": 12}
PAIRS = ("print+neon", "print+dots", "neon+dots", "print+chalk", "neon+chalk", "print+outline")
TASKS = (
    *(f"neon:{users}" for users in (10, 20, 40, 100)),
    *(f"print+neon:{users}" for users in (20, 40, 100)),
    *(f"{pair}:20" for pair in PAIRS[1:]),
    "print+neon+dots:24:4",
)
# none may be absent or wrong, so that any number of users can decode
PRESET = ("--preset=secfpp", "--absent=0", "--wrong=0")
LOOKS = 14  # of the preset's rounds
PURE = 0.95


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "clusters"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--out", type=Path, default=Path("fedaudit-runs"))
    parser.add_argument("--csv", metavar="FILE", default="", help="the table of speed, with all digits")
    chosen, more = parser.parse_known_args(sys.argv[1:] if words is None else words)
    print(f"load {os.getloadavg()[0]:.1f}")
    if chosen.part == "speed":
        speed(chosen.csv)
    else:
        clusters(chosen.tasks.split(","), chosen.seeds, chosen.out, more)


def speed(table: str) -> None:
    """Figure 3 and Table 3 of the paper, measured."""
    rows = []
    for users, entries in SIZES:
        rows.append(measured(users, entries))
        if len(rows) == 1:
            print("".join(f"{name:>{WIDTHS.get(name, 10)}}" for name in rows[0]))
        print("".join(f"{value:>{WIDTHS.get(name, 10)}.4g}" for name, value in rows[-1].items()), flush=True)
    if table:
        Path(table).write_bytes(csv(pd.DataFrame(rows)))


def clusters(tasks: Sequence[str], seeds: int, out: Path, more: Sequence[str]) -> None:
    """Domains found by `LOOKS` looks at vectors that stand still, as class gradients do. Shares change nothing of it
    (tests/test_secpc.py)."""
    for task in tasks:
        domain, users, colluders = (*task.split(":"), "0")[:3]
        words = [*PRESET, f"--domain={domain}", f"--clients={users}", f"--colluders={colluders}", f"--out={out}", *more]
        right, falsely, told = 0, 0, []
        for seed in range(seeds):
            vectors, domains, least = marks([*words, f"--seed={seed}"])
            found = looked(vectors, Rule(least), seed).cluster.tolist()
            count, domain_count, pure = len(set(found)), len(set(domains)), purity(found, domains)
            right += count == domain_count and pure >= PURE
            falsely += count > domain_count
            told.append(f"{count} ({pure:.2f})")
        low, high = binomtest(right, seeds).proportion_ci()
        print(
            f"{task}: {right} of {seeds} right [{low:.2f}, {high:.2f}], {falsely} with too many clusters; clusters (purity): {' '.join(told)}",
            flush=True,
        )


def marks(words: Sequence[str]) -> tuple[Floats, list[str], int]:
    """The vectors [n, D] of a training's users from the third round on, their domains, and t + 2. Users' gradients of
    classes are computed once and kept below --out."""
    plan = cli.read_command([*words, "--threads=1"]).plan
    (cell,) = plan.cells
    kept = plan.out / "secfpp-marks" / f"{plan.task_params.domain}-{plan.clients}-{plan.seed}.npz"
    if not kept.exists():
        federation = federation_of(plan)
        bench, method, schedule = make_bench(plan, federation), method_of(cell, federation.sizes), schedule_of(cell)
        start = method.start(bench.learner.initial(generator(schedule.public_seed, "initial")))
        users = [Participation(k, 0, plan.seed, ids, bench.learner) for k, ids in enumerate(bench.training)]
        mean, classes, _ = method._marks(bench.learner.cohort(users, method), start["p_0"][None])
        scatter = np.einsum("ncd,nce->de", classes.double().numpy(), classes.double().numpy())
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, m=mean.numpy(), W=scatter, doms=[client.records[0].domain for client in federation.clients])
    told, method = np.load(kept), method_of(cell, [1] * plan.clients)
    tolerance = method.protocol(plan.clients, entries=1).tolerance
    std = method.noise * (plan.clients / (plan.clients - tolerance.colluders)) ** 0.5  # of all users' noise
    noise = np.triu(np.random.default_rng(plan.seed).normal(0, std, told["W"].shape))
    metric = _inverse_root(torch.from_numpy(told["W"] + noise + np.triu(noise, 1).T))
    vectors = _measured(torch.from_numpy(told["m"]), metric.expand(plan.clients, -1, -1))
    return vectors.double().numpy(), told["doms"].tolist(), tolerance.colluders + 2


def looked(vectors: Floats, rule: Rule, seed: int) -> Clusters:
    """The clusters after so many looks as the preset takes."""
    rng = np.random.default_rng(seed)
    found = rule.first(len(vectors), rng)
    for _ in range(LOOKS):
        means = [vectors[group].mean(0) for group in found.groups(rule.least)]
        distances = np.stack([((vectors - mean) ** 2).sum(1) for mean in means], axis=1)
        found = rule.revise(found, distances, rng)
    return found


def purity(groups: Sequence[int], domains: Sequence[str]) -> float:
    pairs = list(zip(groups, domains, strict=True))
    return sum(max(Counter(d for g, d in pairs if g == group).values()) for group in set(groups)) / len(domains)


if __name__ == "__main__":
    main()
