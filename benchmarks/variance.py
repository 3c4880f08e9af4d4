"""LiRA's variance: a prior fitted to all records, against one variance for all records and one for each.

    python -m benchmarks.variance synthetic     normal values with planted variances, half a minute
    python -m benchmarks.variance embedded      shadow models of one target of the embedded task, each shadow attacked in turn

AUROC of the online and of the offline score by the number of shadow models, with two standard errors of the difference to the better one of
the other two. Synthetic: variances with d degrees of freedom (inf: all alike), shifts of members 1 +- `vary`, 1,000 records, 20 repetitions. Embedded: of
320 shadow models some are attacked, the others of other trajectories are the shadow models. Trains what is not on disk yet (--out).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import numpy as np
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.knowledge import Floats, Knowledge
from fedaudit.attacks.likelihood import likelihood_ratios
from fedaudit.command.cli import read_command
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.shadow_trainings import train_banks
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop

HOW = ("prior", "fixed", "per-record")
SHADOWS = (4, 8, 16, 64, 256)
RECORDS, REPETITIONS, ATTACKED = 1000, 20, 24
SETTING = "--method=fedotp --epsilon=none --attack=lira --targets=1"


def aurocs(target: Floats, member: Floats, shadows: Floats, had: Floats) -> list[tuple[float, float]]:
    """By `HOW` of values [n] whose membership is known, beside shadows [S, n] of which some had the record."""
    found = []
    for how in HOW:
        scores = likelihood_ratios(target, shadows, had, variance=how)
        said = ~np.isnan(scores[0] + scores[1])
        online, offline = (float(roc_auc_score(member[said], score[said])) for score in scores)
        found.append((online, offline))
    return found


def synthetic() -> Iterator[str]:
    rng = np.random.default_rng(0)
    for freedom in (math.inf, 16.0, 4.0, 2.0):
        for vary in (0.0, 1.0):
            for shadows in SHADOWS:
                found = []
                for _ in range(REPETITIONS):
                    variance = np.ones(RECORDS) if math.isinf(freedom) else freedom / rng.chisquare(freedom, RECORDS)
                    member = rng.random((shadows + 1, RECORDS)) < 0.5
                    shift = 1 + vary * rng.standard_normal(RECORDS)
                    noise = np.sqrt(variance) * rng.standard_normal((shadows + 1, RECORDS))
                    values = 3 * rng.standard_normal(RECORDS) + shift * member + noise
                    found.append(aurocs(values[0], member[0], values[1:], member[1:]))
                yield line(f"d {freedom:g}, vary {vary:g}", shadows, np.array(found))


def line(label: str, shadows: int, found: Floats) -> str:
    """Of AUROCs [repetitions, 3, 2] the means, and how far the prior is above the better of the others."""
    cells = [f"{label:<18}{shadows:>8}"]
    for score in range(2):
        means = found[:, :, score].mean(0)
        better = 1 + int(means[1:].argmax())
        apart = found[:, 0, score] - found[:, better, score]
        error = 2 * apart.std(ddof=1) / math.sqrt(len(apart))
        cells.append("".join(f"{mean:>11.3f}" for mean in means) + f"{apart.mean():>+9.4f} ± {error:.4f}")
    return "  ".join(cells)


def embedded(words: str) -> Iterator[str]:
    seen = knowledge(words)
    shadows = seen.shadows
    assert shadows is not None
    assert shadows.trajectory is not None
    asked = shadows.member.any(0)  # the candidates
    member, values = shadows.member[:, asked], np.clip(shadows.confidence[:, asked], -100, 100)
    most = len(member)
    for count in (s for s in SHADOWS if s < most):
        found = []
        for s in np.linspace(0, most - 1, ATTACKED).astype(int):
            others = np.flatnonzero(shadows.trajectory != shadows.trajectory[s])
            chosen = np.random.default_rng((count, int(s))).permutation(others)[:count]
            found.append(aurocs(values[s], member[s], values[chosen], member[chosen]))
        yield line("embedded", len(chosen), np.array(found))


def knowledge(words: str) -> Knowledge:
    """What the owner knows of the first target."""
    plan, progress = read_command(words.split()).plan, Progress(quiet=True)
    (cell,) = plan.cells
    with Workshop(plan, progress) as workshop:
        train_all([cell], workshop, progress)
        train_banks([cell], workshop, progress)
        question_sets = QuestionPlan.of(cell, workshop.federation).answer_all(lambda: workshop.attackers, progress)
    return next(one for one in question_sets if one.threat_model == "owner").knowledge()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("synthetic", "embedded"))
    parser.add_argument("--words", default="--shadows=320", help="further words of the command of `embedded`")
    parser.add_argument("--out", default="fedaudit-runs", help="where trainings and shadow models are kept")
    chosen = parser.parse_args()
    heads = "".join(f"{how:>11}" for how in HOW) + f"{'apart':>9}{'':9}"
    print(f"{'':<18}{'shadows':>8}  {'online':<{len(heads)}}  offline\n{'':<26}  {heads}  {heads}")
    lines = (
        synthetic() if chosen.part == "synthetic" else embedded(f"{SETTING} {chosen.words} --quiet --out={chosen.out}")
    )
    for text in lines:
        print(text, flush=True)


if __name__ == "__main__":
    main()
