"""SecFPP: what secret sharing costs, and whether its clusters are the domains.

    python -m benchmarks.secfpp speed                          a user's work and the server's decoding, in seconds of the processor on one thread
    python -m benchmarks.secfpp clusters [--seeds N] [--out FOLDER] [--tasks one,two,three] [flags]    the preset's clusters against the domains

Speed: a user deals its shares and computes shares of the distances of all users to three centres; the server decodes those while t / 6 users are
wrong. The paper's own table (Figure 3, its machine) has 0.4 s for a user at d = 4000. Purity is the share of users whose cluster's most frequent domain
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
from scipy.stats import binomtest

from fedaudit.command import cli
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from fedaudit.privacy.secpc import Protocol
from fedaudit.privacy.sharing import Tolerance, quantised

CENTRES = 3
SIZES = ((20, 150), (20, 1000), (20, 4000), (50, 150), (100, 150), (100, 4000))  # users, entries
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
    chosen, more = parser.parse_known_args(sys.argv[1:] if words is None else words)
    print(f"load {os.getloadavg()[0]:.1f}")
    if chosen.part == "speed":
        speed()
    else:
        clusters(chosen.tasks.split(","), chosen.seeds, chosen.out, more)


def speed() -> None:
    print(
        f"{'users':>5} {'d':>5} {'t':>3} {'ell':>3} {'bits':>4} {'share':>8} {'distances':>9} {'user':>8} {'decode':>8}"
    )
    for users, entries in SIZES:
        print(row(users, entries), flush=True)


def row(users: int, entries: int) -> str:
    t = 3 * users // 10
    wrong = t // 6
    protocol = Protocol(users, Tolerance(t, 0, wrong), 10**4, entries)
    sharing, rng = protocol.of_distances, np.random.default_rng(0)
    vector = quantised(rng.uniform(-1, 1, entries) / entries**0.5, protocol.steps, 1.0)
    held = sharing.field.uniform((users, sharing.length(entries)), rng)
    centres, sizes = held[:CENTRES], np.full(CENTRES, users // CENTRES)
    sharing.share(vector, rng)  # the matrices are made once for all rounds
    answers = sharing.zero_sums(users * CENTRES, rng)
    answers[:wrong] = sharing.field.uniform(answers[:wrong].shape, rng)
    dealing = seconds(lambda: sharing.share(vector, rng))
    adding = seconds(lambda: sharing.squared_distances(held, centres, sizes))
    decoding = seconds(lambda: sharing.opened(range(users), answers))
    bits = sharing.field.q.bit_length()
    return (
        f"{users:5} {entries:5} {t:3} {sharing.slices:3} {bits:4} {dealing:8.4f} {adding:9.4f} {dealing + adding:8.4f} "
        f"{decoding:8.4f}"
    )


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
