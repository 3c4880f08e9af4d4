"""Nulls through the whole pipeline: how often a report says *leak* of members that are not those who were trained on.

    python -m benchmarks.whole_nulls run 100         seeds 0 to 99 of LoRA, of prompts, of dual prompts and of SecFPP, a row
                                                     each in whole_nulls.jsonl; goes on where it stopped, and takes 10 to
                                                     35 s of one core a row
    python -m benchmarks.whole_nulls run 100 dual    of these learners alone
    python -m benchmarks.whole_nulls                 what the table comes to

A run is that of `audit.py --attack all` with a few canaries, but for one thing: whoever trains is told a second coin,
dealt anew within each client, and among its canaries, with the counts of the first. All else knows the first: attacks
their candidates, audits their truth, blind classifiers their members. Given the counts the coins are independent, so
that nothing in a report's scores is a leak of the first. At most 5 of 100 correct reports say *leak* anywhere, in a
sentence or among all scores. By the binomial, `chance` is the probability that as many of so many correct reports do, or
more, and `at most` the count that they exceed with a probability of 0.0005 at most.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom

from fedaudit.audits.findings import BEFOREHAND
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import analysis, compute
from fedaudit.pipeline.page import read_evidence
from fedaudit.pipeline.plan import Plan
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.reports.corrected_verdicts import with_verdicts
from fedaudit.reports.evidence import Evidence
from fedaudit.tasks.base import Federation
from fedaudit.terms.verdicts import INCONCLUSIVE, LEAKS
from fedaudit.trainers.protocols import Bench

TABLE = Path(__file__).with_suffix(".jsonl")
SMALL = {
    "lora": "--attack all --method fedrand --rounds 3 --clients 4 --per-round 2 --records 6 --reference 4 --novel 2 --test 1"
    " --local-steps 2 --canaries 4 --shadows 4",
    "prompts": "--attack all --method fedotp --epsilon none --task digits --shots 10 --rounds 4 --clients 3 --prompt-length 4"
    " --targets 2 --shadows 4 --canaries 6",
    "dual": "--attack all --method dp2fl --task digits --shots 10 --rounds 2 --clients 3 --local-epochs 1 --targets 2"
    " --shadows 4 --canaries 6",
    # few directions, so that the scatter of classes is revealed
    "secfpp": "--method secfpp --task digits --partition dirichlet --dirichlet 1 --rounds 3 --clients 6 --local-epochs 1"
    " --directions 24 --canaries 6 --attack scatter,loss",
}
LEVEL = 0.05
SURPRISING = 0.0005
SECOND = 31  # of the generator (seed, SECOND) of the second coin


class Null(Workshop):
    """Workers that train on members of a second coin; what attacks and audits are told is the first."""

    @property
    def executor(self) -> Executor[Bench]:
        if self._executor is None:
            trained = second_coin(self.federation, self.plan.seed)
            self._executor = Executor(functools.partial(make_bench, self.plan, trained))
        return self._executor


def second_coin(federation: Federation, seed: int) -> Federation:
    """The federation with the coins of each client's candidates, and of its canaries, dealt anew: the same counts."""
    rng = np.random.default_rng((seed, SECOND))
    clients = (
        dataclasses.replace(c, member=rng.permutation(c.member), canary_included=rng.permutation(c.canary_included))
        for c in federation.clients
    )
    return dataclasses.replace(federation, clients=tuple(clients))


def report(plan: Plan, made_by: type[Workshop] = Null) -> list[Evidence]:
    """What a plan's report says in words and corrected p-values; its page is not drawn. `made_by` tells who trains on
    what."""
    quiet = Progress(quiet=True)
    with made_by(plan, quiet) as workshop:
        compute.check(plan, workshop.federation, quiet)
        compute._train(plan, workshop, quiet)
        for cell in plan.cells:
            analysis.ensure_analysis(cell, workshop, quiet)
    return with_verdicts([read_evidence(cell) for cell in plan.cells])


def row(learner: str, seed: int) -> dict[str, object]:
    """A row of the table: the scores of a null that coins decided, those among them that are called a leak, and rows
    without a coin that are; and the scores named before the training, or primary, that are inconclusive."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        words = f"{SMALL[learner]} --seed {seed} --threads 1 --out {out}"
        (found,) = report(read_command(words.split()).plan)
    cells = found.tables["cells"]
    tested = cells[cells.z.notna()]
    leaks = tested[tested.p_adjusted <= LEVEL]
    judged = [f for f in found.findings if f.get("verdict")]
    assert all(f["p_adjusted"] > LEVEL or len(leaks) for f in found.findings if f.get("z") is not None)
    return {
        "learner": learner,
        "seed": seed,
        "primary": int((tested.family == "primary").sum()),
        "secondary": int((tested.family == "secondary").sum()),
        "leaks": len(leaks),
        "without_coins": sum(f["verdict"] in LEAKS and f["z"] is None for f in judged),
        "inconclusive": sum(f["verdict"] == INCONCLUSIVE and f["family"] in BEFOREHAND for f in judged),
        "least_p": f"{tested.p_adjusted.min():.4g}",
        "alarms": len({f["alarm"] for f in found.findings if f.get("alarm")}),
        "leaking": "; ".join(
            f"{c.family} {c.threat_model} {c.way} {c.nonmembers} {c.signal}" for c in leaks.itertuples()
        ),
        "seconds": round(time.process_time() - started, 1),
    }


def run(seeds: int, learners: Sequence[str]) -> None:
    """Add to the table what it lacks, the learners in turn."""
    known = (
        pd.read_json(TABLE, lines=True)[["learner", "seed"]].to_numpy().tolist()
        if TABLE.exists() and TABLE.stat().st_size
        else []
    )
    with TABLE.open("a") as file:
        for learner, seed in ((learner, seed) for seed in range(seeds) for learner in learners):
            if [learner, seed] not in known:
                print(json.dumps(row(learner, seed)), file=file, flush=True)
                print(learner, seed, f"load {os.getloadavg()[0]:.1f}", flush=True)


def limit(reports: int) -> int:
    """How many of some correct reports say *leak* at most, but for a surprise."""
    return int(binom.isf(SURPRISING, reports, LEVEL))


def _some(counts: pd.Series) -> str:
    """In how many reports there is one, where that was counted."""
    return "n/a" if counts.isna().any() else str((counts > 0).sum())


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        run(int(sys.argv[2]), sys.argv[3:] or list(SMALL))
    table = pd.read_json(TABLE, lines=True)
    heads = f"{'learner':<10}{'reports':>8}{'scores':>8}{'say leak':>10}{'chance':>8}{'at most':>9}{'of a primary score':>20}"
    print(f"{heads}{'without coins':>15}{'inconclusive':>14}{'alarm':>7}{'CPU s':>7}")
    for learner, own in table.groupby("learner"):
        leaks, primary = (own.leaks > 0).sum(), own.leaking.str.contains("primary ").sum()
        scores = int((own.primary + own.secondary).median())
        counts = f"{learner:<10}{len(own):>8}{scores:>8}{leaks:>10}{binom.sf(leaks - 1, len(own), LEVEL):>8.2f}{limit(len(own)):>9}{primary:>20}"
        print(
            f"{counts}{_some(own.without_coins):>15}{_some(own.inconclusive):>14}{(own.alarms > 0).sum():>7}{own.seconds.mean():>7.1f}"
        )


if __name__ == "__main__":
    main()
