"""SecFPP: what secret sharing costs, and whether its clusters are the domains.

    python -m benchmarks.secfpp speed [--csv FILE]             every phase of a round, in seconds of the processor on one thread, and bytes
    python -m benchmarks.secfpp clusters [--seeds N] [--out FOLDER] [--tasks one,two,three] [flags]    the preset's clusters against the domains

Speed: what `audit.py --paper secfpp:figure3` draws (`reports/papers/secfpp_figure3.py` says what is timed). Purity is the share of users whose cluster's most frequent domain
is theirs. A task is right where there are as many clusters as domains and purity is at least 0.95 in the last round; of N seeds the interval is Clopper and
Pearson's at 95 percent. What --out holds already is not trained again. Further flags are the command's, as --clustered=prompt.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import binomtest

from fedaudit.command import cli
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from reports.papers.secfpp_figure3 import measured
from reports.templates import csv

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
TASKS = {
    "one": ("--domain=neon", "--clients=20", "--colluders=6"),
    "two": ("--domain=print+neon", "--clients=20", "--colluders=6"),
    "three": ("--domain=print+neon+dots", "--clients=24", "--colluders=4"),
}
# one local step a round for an epoch: users are clustered by what they see at the public start
PRESET = ("--preset=secfpp", "--local-epochs=0", "--batch=8")
PURE = 0.95


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "clusters"))
    parser.add_argument("--seeds", type=int, default=10)
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
    for task in tasks:
        domains, right = TASKS[task][0].count("+") + 1, 0
        print(f"{task}: {' '.join(TASKS[task])}", flush=True)
        for seed in range(seeds):
            count, pure, first = found([*PRESET, *TASKS[task], f"--seed={seed}", f"--out={out}", *more])
            right += count == domains and pure >= PURE
            print(f"seed {seed}: {count} clusters, purity {pure:.2f}, unchanged since round {first}", flush=True)
        low, high = binomtest(right, seeds).proportion_ci()
        print(f"{task}: {right} of {seeds} right, that is {right / seeds:.2f} [{low:.2f}, {high:.2f}]", flush=True)


def found(words: Sequence[str]) -> tuple[int, float, int]:
    """Of a training how many clusters it ends with, their purity, and the round from which they are these."""
    plan, progress = cli.read_command([*words, "--threads=1"]).plan, Progress(quiet=True)
    (cell,) = plan.cells
    with Workshop(plan, progress) as workshop:
        train_all([cell], workshop, progress)
        domains = [client.records[0].domain for client in workshop.federation.clients]
    transcript = transcript_of(cell)
    rounds = [transcript.broadcast(r + 1)["cluster"].tolist() for r in range(plan.rounds)]
    other = [r for r, one in enumerate(rounds) if partition(one) != partition(rounds[-1])]
    return len(set(rounds[-1])), purity(rounds[-1], domains), max(other, default=-1) + 2


def partition(clusters: Sequence[int]) -> set[frozenset[int]]:
    return {frozenset(user for user, own in enumerate(clusters) if own == s) for s in set(clusters)}


def purity(groups: Sequence[int], domains: Sequence[str]) -> float:
    pairs = list(zip(groups, domains, strict=True))
    return sum(max(Counter(d for g, d in pairs if g == group).values()) for group in set(groups)) / len(domains)


if __name__ == "__main__":
    main()
