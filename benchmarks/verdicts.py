"""Verdicts by the coin: their level where nothing leaks, their power where something does, and their cost.

    python -m benchmarks.verdicts          all four tables, about ten minutes on one core
    python -m benchmarks.verdicts cost     what they cost alone

Scores are those of the main job, as the pictures of the README keep them (`docs/pictures/report`): how its models answer
about 12 clients of 56 candidates, records of a client resembling each other. Nulls draw the coins anew and leave the
scores as they are, so that nothing can leak. Leaks are planted on the base model's scores, which know nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtri
from scipy.stats import rankdata

from benchmarks.named_records import statistics
from fedaudit.audits.statistics.permutation import exchanged, p_value
from fedaudit.audits.statistics.ranking import auroc, auroc_difference, client_auroc
from fedaudit.audits.verdicts import by_controls, control_p_value, corrected

KEPT = Path(__file__).parent.parent / "docs" / "pictures" / "report"
LEVEL = 0.05
NULLS, TRIALS, EXCHANGES = 2000, 200, 500
CELLS, PRIMARY, ROWS = 159, 8, 30
MEAN = 0.60  # AUROC over clients of what is planted
APART = 1.0  # standard deviation of clients' offsets, and of the logarithms of their scales
SIZES = np.r_[6, 8, 10, 14, 18, 22, 28, 34, 40, 46, 52, 56]  # candidates of unequal clients

Floats = np.ndarray


@dataclass(frozen=True)
class Kept:
    """Candidates of the main job [n]: client, and the scores of the released model and of the base [n, signals]."""

    client: np.ndarray
    names: list[str]
    final: Floats
    base: Floats

    @property
    def n(self) -> int:
        return len(self.client)

    def some(self, kept: np.ndarray) -> Kept:
        return Kept(self.client[kept], self.names, self.final[kept], self.base[kept])


def main_job() -> Kept:
    scores, records = (pd.read_parquet(KEPT / f"0-{name}.parquet") for name in ("scores", "records"))
    candidates = records[records.kind == "candidate"].set_index("record")
    names = [name for name in scores if name not in ("record", "threat_model", "way", "client", "round")]
    tables = [scores[scores.way == way].set_index("record").loc[candidates.index, names] for way in ("final", "base")]
    final, base = (table.to_numpy(dtype=float) for table in tables)
    return Kept(candidates.client.to_numpy(), names, final, base)


def tested(members: np.ndarray, values: Floats, client: np.ndarray) -> Floats:
    """Statistics [1 + exchanges, scores] of scores of all records."""
    return statistics(members, values, client)[1]


def words(z: Floats, primary: int) -> np.ndarray:
    """Whether each row is called a leak on a page whose first row is named, and so many beside it are primary."""
    families = {"named": z[:, :1], "primary": z[:, 1 : 1 + primary], "secondary": z[:, 1 + primary :]}
    called = []
    for name, part in families.items():
        if part.shape[1]:
            called.append(corrected(part[0], name, {name: part.max(axis=1)}) <= LEVEL)
    return np.concatenate(called)


def coins(client: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.random(len(client)) < 0.5


def level(job: Kept, rng: np.random.Generator) -> dict[str, int]:
    """Of NULLS draws of the coins how often each score alone, and any score of a page, is called a leak."""
    found = dict.fromkeys([*job.names, "any of the page"], 0)
    blocks = np.concatenate([job.final, job.final - job.base], axis=1)  # six scores, most of them correlated
    for n in range(NULLS):
        z = tested(exchanged(coins(job.client, rng), job.client, seed=(n,), times=199), blocks, job.client)
        for i, name in enumerate(job.names):
            found[name] += bool(p_value(z[0, i], z[:, i]) <= LEVEL)
        found["any of the page"] += bool(words(z, 2).any())
    return found


def planted(job: Kept, member: np.ndarray, rng: np.random.Generator, *, apart: bool) -> Floats:
    """The base's first score as normal scores within clients, moved for members so that clients' expected AUROCs have the
    mean MEAN, most of it in a few clients [n, 1]; if `apart`, each client's on a scale of its own and with an offset of its
    own, as the scores of clients with other records are: between clients nothing is told, pooled less."""
    score = job.base[:, 0] + 1e-9 * rng.normal(size=job.n)
    score = np.where(rng.random(job.n) < 0.5, score, rng.permutation(score))  # another federation's records
    score = within(score, job.client)
    share = rng.dirichlet(np.full(12, 1.5))
    aurocs = np.minimum(0.5 + 12 * (MEAN - 0.5) * share, 0.97)
    aurocs += (MEAN - aurocs.mean()) * (aurocs < 0.9) / max(1, (aurocs < 0.9).mean())
    moved = score + np.sqrt(2) * ndtri(aurocs)[job.client] * member
    scale, offset = np.exp(APART * rng.normal(size=12)), APART * rng.normal(size=12)
    return np.asarray(scale[job.client] * moved + offset[job.client])[:, None] if apart else np.asarray(moved)[:, None]


def within(score: Floats, client: np.ndarray) -> Floats:
    """Normal scores: the quantiles of a normal number at the ranks of a client's."""
    found = np.empty_like(score)
    for k in np.unique(client):
        own = client == k
        found[own] = ndtri((rankdata(score[own]) - 0.5) / own.sum())
    return found


def power(job: Kept, rng: np.random.Generator, *, apart: bool) -> dict[str, float]:
    """Of TRIALS how often a planted row is called a leak: alone, as one of eight primary scores beside others, and by the
    rule of intervals and controls."""
    found = {
        "alone": 0.0,
        "named": 0.0,
        f"one of {PRIMARY} primary": 0.0,
        "intervals and controls": 0.0,
        "(its mean AUROC within clients)": 0.0,
        "(its pooled AUROC)": 0.0,
    }
    for n in range(TRIALS):
        member = coins(job.client, rng)
        row = planted(job, member, rng, apart=apart)
        nothing = rng.normal(size=(job.n, CELLS - 1))
        z = tested(exchanged(member, job.client, seed=(n, 1), times=EXCHANGES), np.hstack([row, nothing]), job.client)
        found["alone"] += bool(p_value(z[0, 0], z[:, 0]) <= LEVEL)
        found["named"] += bool(words(z, PRIMARY)[0])
        found[f"one of {PRIMARY} primary"] += bool(words(np.roll(z, 1, axis=1), PRIMARY)[1])
        base, blind = job.base[:, 0], rng.normal(size=job.n)
        controls = [auroc(c, member, job.client) for c in (base, blind)]
        off = ["control" for c in controls if control_p_value(c) < 0.01]
        apart = [auroc_difference(row[:, 0], c, member, job.client) for c in (base, blind)]
        own = auroc(row[:, 0], member, job.client)
        found["intervals and controls"] += by_controls(own, off, apart, exchangeable=True) == "leak"
        found["(its mean AUROC within clients)"] += client_auroc(row[:, 0], member, job.client)[0].value / TRIALS
        found["(its pooled AUROC)"] += own.value / TRIALS
    return found


def others(job: Kept, rng: np.random.Generator) -> dict[str, int]:
    """Of TRIALS with one leaking row among thirty: how often it is found, and how often any other is called a leak."""
    found = {"the leaking row": 0, "any other": 0}
    for n in range(TRIALS):
        member = coins(job.client, rng)
        row = planted(job, member, rng, apart=False)
        nothing = rng.normal(size=(job.n, 1)) + rng.normal(size=(job.n, ROWS - 1))  # they share half of their noise
        z = tested(exchanged(member, job.client, seed=(n, 2), times=EXCHANGES), np.hstack([row, nothing]), job.client)
        called = words(z, PRIMARY)
        found["the leaking row"] += bool(called[0])
        found["any other"] += bool(called[1:].any())
    return found


def cost(job: Kept, rng: np.random.Generator) -> dict[str, float]:
    """CPU seconds for all cells of the main job and 2,000 exchanges, the best of three; at most 2 are promised."""

    def best(work: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            started = time.process_time()
            work()
            times.append(time.process_time() - started)
        return min(times)

    members = exchanged(coins(job.client, rng), job.client, seed=(0,))
    values = rng.normal(size=(job.n, CELLS))
    return {
        "exchanges": best(lambda: exchanged(members[0], job.client, seed=(0,))),
        "all statistics": best(lambda: tested(members, values, job.client)),
    }


def main() -> None:
    job, rng = main_job(), np.random.default_rng(0)
    every = sys.argv[1:] != ["cost"]
    print(f"cost, CPU seconds: {CELLS} cells x {job.n} records x 2,000 exchanges")
    for name, seconds in cost(job, rng).items():
        print(f"  {name:<40}{seconds:8.2f}")
    if not every:
        return
    place = np.concatenate([np.flatnonzero(job.client == k)[:size] for k, size in enumerate(SIZES)])
    for what, some in (("equal clients", job), (f"clients of {SIZES.min()} to {SIZES.max()}", job.some(place))):
        print(f"coins drawn anew, {what}: called a leak, of {NULLS} (a correct 5 % rule: at most 131)")
        for name, times in level(some, rng).items():
            print(f"  {name:<40}{times:8d}", flush=True)
    for what, apart in (("one scale", False), ("each on a scale of its own", True)):
        print(f"one row of mean AUROC {MEAN}, spread unevenly over 12 clients, {what}: called a leak, of {TRIALS}")
        for name, times in power(job, rng, apart=apart).items():
            print(f"  {name:<40}{times:8.3g}", flush=True)
    print(f"one leaking row among {ROWS}: called a leak, of {TRIALS} (any other: at most 21)")
    for name, times in others(job, rng).items():
        print(f"  {name:<40}{times:8d}", flush=True)


if __name__ == "__main__":
    main()
