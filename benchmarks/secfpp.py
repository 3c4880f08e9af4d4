"""SecFPP: what secret sharing costs, and whether its clusters are the domains.

    python -m benchmarks.secfpp speed [--csv FILE]             every phase of a round, in seconds of the processor on one thread, and bytes
    python -m benchmarks.secfpp clusters [--seeds N] [--out FOLDER] [--tasks one,two,three] [flags]    the preset's clusters against the domains

Speed: what the paper's Figure 3 and Table 3 are about. A user deals shares of a vector of d entries and, if it is one of t + 1, masks; it adds shares of groups
and computes shares of the distances of all users to three centres, which the server decodes while t / 6 users are wrong; then the same for a sum. The
paper's figure (its machine) has 0.4 s for a user at d = 4000. Purity is the share of users whose cluster's most frequent domain
is theirs. A task is right where there are as many clusters as domains and purity is at least 0.95 in the last round; of N seeds the interval is Clopper and
Pearson's at 95 percent. What --out holds already is not trained again. Further flags are the command's, as --clustered=prompt.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from fedaudit.command import cli
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from fedaudit.privacy.secpc import WIDTH, Protocol
from fedaudit.privacy.sharing import Tolerance, quantised
from reports.templates import csv

CENTRES = 3
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
TRIALS = 5
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
        rows.append(row(users, entries))
        if len(rows) == 1:
            print("".join(f"{name:>{WIDTHS.get(name, 10)}}" for name in rows[0]))
        print("".join(f"{value:>{WIDTHS.get(name, 10)}.4g}" for name, value in rows[-1].items()), flush=True)
    if table:
        Path(table).write_bytes(csv(pd.DataFrame(rows)))


def row(users: int, entries: int) -> dict[str, float]:
    """What one round costs a user and the server: seconds of every phase, and bytes that a user sends for it.

    A user deals its vector, deals masks (t + 1 users do), adds and computes distances to the centres; and deals and adds for a sum of
    the same length.
    """
    t = 3 * users // 10
    wrong = t // 6
    protocol = Protocol(users, Tolerance(t, 0, wrong), 10**4, entries)
    sharing, sums, rng = protocol.of_distances, protocol.of_sums, np.random.default_rng(0)
    vector = quantised(rng.uniform(-1, 1, entries) / entries**0.5, protocol.steps, 1.0)
    held = sharing.field.uniform((users, sharing.length(entries)), rng)
    added = sums.field.uniform((users, sums.length(entries)), rng)
    sizes = np.full(CENTRES, users // CENTRES)

    def distances() -> object:
        centres = np.stack([sharing.field.sum(held[i::CENTRES], axis=0) for i in range(CENTRES)])
        return sharing.squared_distances(held, centres, sizes)

    sharing.share(vector, rng), sums.share(vector, rng)  # the matrices are made once for all rounds
    answers = sharing.zero_sums(users * CENTRES, rng)
    answers[:wrong] = sharing.field.uniform(answers[:wrong].shape, rng)
    summed = sums.share(vector, rng)
    summed[:wrong] = sums.field.uniform(summed[:wrong].shape, rng)
    work = {
        "share": lambda: sharing.share(vector, rng),
        "masks": lambda: sharing.zero_sums(users * CENTRES, rng),
        "distances": distances,
        "decode": lambda: sharing.opened(range(users), answers),
        "share sum": lambda: sums.share(vector, rng),
        "add": lambda: sums.field.sum(added, axis=0),
        "decode sum": lambda: sums.opened(range(users), summed),
    }
    took = {name: seconds(one) for name, one in work.items()}
    user = sum(s for name, s in took.items() if not name.startswith("decode"))
    sent = WIDTH * users * (sharing.length(entries) + CENTRES + users * CENTRES)  # shares, answers and, of t + 1, masks
    about = {"users": users, "d": entries, "t": t, "ell": sharing.slices, "bits": sharing.field.q.bit_length()}
    return {**about, **took, "user": user, "bytes": sent}


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, the least of some trials."""
    found = []
    for _ in range(TRIALS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


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
