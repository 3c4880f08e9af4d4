"""Do thresholds transfer: the realised false positive rate of thresholds that come from shadow models alone.

    python -m benchmarks.transfer            50 shadow models of each of 10 targets, along 1 and along 5 trajectories, 3 seeds
    python -m benchmarks.transfer --words "--rounds=20 --shadows=20"        the same in a tenth of the time
    python -m benchmarks.transfer cost       CPU seconds of the shadow models of one target

Every seed has its own data, training and shadow models. Of each target the threshold is that of the nominal rate among non-members of the
adversary's own models; it is held against the target's held-out records. Printed: the mean over the targets of all seeds, two standard
errors of it by its own spread (targets of a seed share their federation: the second number goes by the means of the seeds), that spread,
and the least and the largest rate. Trains what is not on disk yet (--out).
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd

from benchmarks.membership import shadow_seconds
from fedaudit.audits.statistics.classification import tpr_at_fpr
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.attacks import scoring_jobs
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.scoring import score
from fedaudit.pipeline.shadow_trainings import train_banks
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench

SETTING = "--epsilon=none --targets=10 --quiet"
NOMINAL = (0.1, 0.01)
Rates = dict[tuple[str, str, float], float]  # by threat model, score and nominal rate


def rates(method: str, attacks: str, trajectories: int, seed: int, more: str) -> Iterator[Rates]:
    """The realised rates of every target of a seed."""
    words = f"--method={method} --attack={attacks} --shadow-trajectories={trajectories} --seed={seed} {SETTING} {more}"
    plan, progress = read_command(words.split()).plan, Progress(quiet=True)
    (cell,) = plan.cells
    with Workshop(plan, progress) as workshop:
        train_all([cell], workshop, progress)
        train_banks([cell], workshop, progress)
        federation, asking = workshop.federation, QuestionPlan.of(cell, workshop.federation)
        jobs = scoring_jobs(asking, asking.answer_all(lambda: workshop.attackers, progress))
    for k, job in zip(cell.targets, jobs, strict=True):
        heldout = [r.id for r in federation.clients[k].records if not federation.truth[r.id]]
        yield {
            (threat_model, name, nominal): _realised(found, name, nominal, heldout)
            for (threat_model, *_), found in score(job)
            for name in found["scores"]
            for nominal in NOMINAL
        }


def _realised(tables: dict[str, pd.DataFrame], name: str, nominal: float, heldout: list[str]) -> float:
    """Share of the held-out records above the threshold of the adversary's own models."""
    scores, shadow_targets = tables["scores"][name], tables["shadow_targets"]
    known = shadow_targets[name][~shadow_targets.member.astype(bool)].dropna().to_numpy()
    own = scores[heldout].dropna().to_numpy()
    member = np.append(np.zeros(len(own), bool), True)  # one that nothing is said about
    return tpr_at_fpr(np.append(own, 0.0), member, np.zeros(len(member)), nominal, reference=known).realised_fpr


def table(method: str, attacks: str, trajectories: int, seeds: int, more: str) -> Iterator[str]:
    """A line per score: what came of a nominal rate."""
    found: dict[tuple[str, str, float], list[list[float]]] = defaultdict(list)
    for seed in range(seeds):
        of_seed = list(rates(method, attacks, trajectories, seed, more))
        for key in of_seed[0]:
            found[key].append([each[key] for each in of_seed])
    for (view, name, nominal), values in found.items():
        every, means = np.concatenate(values), np.mean(values, axis=1)
        error, of_seeds = (f"{2 * x.std(ddof=1) / np.sqrt(len(x)):.1%}" if len(x) > 1 else "?" for x in (every, means))
        yield (
            f"{method:<10}{trajectories:>3}  {view:<16}{name:<21}{nominal:>6.0%}{every.mean():>9.1%} ± {error} ({of_seeds})"
            f"{every.std(ddof=1):>9.1%}{every.min():>8.1%}{every.max():>8.1%}"
        )


def cost(words: str, along: list[int]) -> Iterator[str]:
    """CPU seconds of the shadow models of one target."""
    for trajectories in along:
        with tempfile.TemporaryDirectory() as out:
            more = f"--threads=1 --quiet --shadow-trajectories={trajectories} --out={out}"
            plan, progress = read_command([*words.split(), *more.split()]).plan, Progress(quiet=True)
            one_thread()
            with Workshop(plan, progress) as workshop:
                _ = workshop.executor
                simulated, trained, shadows = shadow_seconds(
                    plan.cells[0], workshop, make_bench(plan, workshop.federation)
                )
        yield f"{trajectories:>12}{simulated:>24.1f}{trained:>20.1f}{shadows:>10}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("rates", "cost"), default="rates")
    parser.add_argument("--methods", default="dpfpl", help="prompt methods, by commas")
    parser.add_argument("--attacks", default="lira,rmia,quantile", help="attacks that need shadow models, by commas")
    parser.add_argument("--trajectories", default="1,5", help="simulated federations, by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--words", default="", help="further words of the command")
    parser.add_argument("--out", default="fedaudit-runs", help="where trainings and shadow models are kept")
    chosen = parser.parse_args()
    trajectories = [int(number) for number in chosen.trajectories.split(",")]
    if chosen.part == "cost":
        print(f"{'trajectories':>12}{'simulated federations':>24}{'shadow clients':>20}{'of them':>10}   CPU seconds")
        for line in cost(f"--method=dpfpl --epsilon=none --attack=lira {chosen.words}", trajectories):
            print(line, flush=True)
        return
    print(f"{'':<15}{'':<16}{'':<21}{'nominal':>6}{'mean':>8} ± 2 s.e. (seeds){'spread':>6}{'least':>8}{'most':>8}")
    for method in chosen.methods.split(","):
        for along in trajectories:
            for line in table(method, chosen.attacks, along, chosen.seeds, f"{chosen.words} --out={chosen.out}"):
                print(line, flush=True)


if __name__ == "__main__":
    main()
