"""Measured above provable, end to end: how often DP-FPL with calibrated noise is, over seeds with data, coins and trainings
of their own.

    python benchmarks/measured_seeds.py [--seeds 20] [--first 0] [words of audit.py ...]

Four clients with 200 strange canaries, 10 rounds, epsilon 8, the calibrated loss. Every bound holds at 95 %: of 20 seeds at
most 5 may lie above what is proven (the binomial's 0.9997), for each adversary and each of the two bounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fedaudit.audits.epsilon import Params, epsilon
from fedaudit.audits.findings import MeasuredEpsilon
from fedaudit.command.cli import read_command
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.analysis import subject_of
from fedaudit.pipeline.attacks import attack_training
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop

SETTING = (
    "--method=dpfpl --clients=4 --rounds=10 --epsilon=8 --sigma=calibrated --clip-norm=1 --no-twin --canaries=200 "
    "--canary-kind=ood --attack=loss --train=16 --test=1 --threads=1 --quiet"
).split()


def bounds(seed: int, words: Sequence[str], out: str) -> list[MeasuredEpsilon]:
    """Trained, attacked, and measured beside what the ledger proves; the other audits and the page are left out."""
    plan, progress = read_command([*SETTING, *words, f"--seed={seed}", f"--out={out}"]).plan, Progress(quiet=True)
    (cell,) = plan.cells
    with Workshop(plan, progress) as workshop:
        train_all([cell], workshop, progress)
        run = attack_training(cell, workshop, progress).run
        found = epsilon(subject_of(cell, run, workshop), Params()).findings
    return [f for f in found if isinstance(f, MeasuredEpsilon)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    asked, words = parser.parse_known_args()
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as out:
        for seed in range(asked.first, asked.first + asked.seeds):
            for f in bounds(seed, words, out):
                found[f.threat_model, f.metric].append(f)
            print(f"seed {seed}: {time.process_time():.0f} CPU s", file=sys.stderr, flush=True)
    print(f"{'adversary':<16}{'bound':<20}{'right':>16}{'mean':>7}{'largest':>9}{'provable':>18}{'above provable':>16}")
    for (threat, metric), own in found.items():
        values, proven = [f.value for f in own], [float(f.provable) for f in own]
        right = f"{np.mean([f.correct for f in own]):.1f} of {own[0].guesses}"
        above = f"{sum(v > p for v, p in zip(values, proven, strict=True))} of {len(own)}"
        print(f"{threat:<16}{metric:<20}{right:>16}{np.mean(values):>7.2f}{max(values):>9.2f}"
              f"{f'{min(proven):.3g} to {max(proven):.3g}':>18}{above:>16}")  # fmt: skip


if __name__ == "__main__":
    main()
