"""Attacks on prompts, measured at the embedded scale: their cost, their calibration where nothing leaks, and their power where much does.

    python -m benchmarks.membership cost       50 shadow models against one federation of ten clients
    python -m benchmarks.membership null       200 repetitions without a leak: shadows take the target's place, labels are drawn anew
    python -m benchmarks.membership positive   mislabelled canaries learnt by heart, without noise

`null` and `positive` train what is not on disk yet (--out). A correct 95 % interval covers 0.5 in at least 179 of 200 repetitions, and at
most 13 of them claim a leak (interval above 0.5).
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import Attack, Knowledge, Shadows
from fedaudit.audits.statistics.stratified import stratified_auroc
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.shadow_trainings import recipe_of, simulate, train_banks
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.tasks.base import Federation

REPETITIONS = 200
NULL = "--method=dpfpl --epsilon=none --attack=all"
POSITIVE = "--method=fedotp --epsilon=none --attack=all --train=16 --rounds=600 --local-rate=1 --canaries=300 --canary-kind=mislabelled"


@dataclass(frozen=True)
class Setting:
    """A trained cell with the shadows of its targets, and what the server sees of each."""

    federation: Federation
    seen: dict[int, Knowledge]
    attacks: list[tuple[Plugin, Attack]]


def prepare(words: str, out: str) -> Setting:
    """Train what is missing, and compute what the server's attacks are functions of."""
    progress, plan = Progress(), read_command([*words.split(), f"--out={out}"]).plan
    (cell,) = plan.cells
    with Workshop(plan, progress) as workshop:
        train_all([cell], workshop, progress)
        train_banks([cell], workshop, progress)
        federation = workshop.federation
        asking = replace(QuestionPlan.of(cell, federation), stand_ins=plan.adversary.shadows)
        question_sets = asking.answer_all(lambda: workshop.attackers, progress)
    seen = {one.target.client: one.knowledge() for one in question_sets if one.threat_model == "server"}
    made = [(ATTACKS[name], own) for name, own in asking.attacks["server"].items()]
    return Setting(federation, seen, [(plugin, plugin.make(own)) for plugin, own in made])


def null(setting: Setting) -> dict[str, tuple[int, int, list[float]]]:
    """By signal: how many intervals cover 0.5, how many claim a leak, and all AUROCs. Membership is drawn anew: nothing can leak."""
    shadows = len(_shadows(next(iter(setting.seen.values()))).member)
    found: dict[str, tuple[int, int, list[float]]] = defaultdict(lambda: (0, 0, []))
    for plugin, attack in setting.attacks:
        for s in range(shadows):
            scores = {
                k: attack.score(seen.leave_out(s) if _alone(plugin) else seen) for k, seen in setting.seen.items()
            }
            for n in range(REPETITIONS // shadows):
                for signal in next(iter(scores.values())):
                    parts = []
                    for k, seen in setting.seen.items():
                        values = scores[k][signal]
                        coins = np.random.default_rng((k, s, n)).random(len(values)) < 0.5
                        parts.append((values, coins, ~seen.known & _own(setting, k, seen)))
                    covers, claims, all_of = found[signal]
                    interval = _auroc(parts)
                    found[signal] = (
                        covers + (interval.low <= 0.5 <= interval.high),
                        claims + (interval.low > 0.5),
                        [*all_of, interval.value],
                    )
    return found


def _shadows(seen: Knowledge) -> Shadows:
    assert seen.shadows is not None
    return seen.shadows


def _alone(plugin: Plugin) -> bool:
    """Whether a shadow can take the attacked model's place: messages there are of the attacked one only."""
    return plugin.facts.shadows or not plugin.facts.needs


def _own(setting: Setting, client: int, seen: Knowledge) -> Any:
    """Which records are the target's candidates."""
    own = {r.id for r in (*setting.federation.clients[client].records, *setting.federation.clients[client].canaries)}
    return np.isin(seen.records, list(own))


def _auroc(parts: Sequence[tuple[Any, Any, Any]]) -> Any:
    """Of scores, members and which records count, by target; those without a score do not."""
    parts = [(scores, member, chosen & ~np.isnan(scores)) for scores, member, chosen in parts]
    scores = np.concatenate([values[kept] for values, _, kept in parts])
    member = np.concatenate([coins[kept] for _, coins, kept in parts])
    client = np.concatenate([np.full(kept.sum(), i) for i, (*_, kept) in enumerate(parts)])
    return stratified_auroc(scores, member, client)


def positive(setting: Setting) -> Iterator[tuple[str, Any, float]]:
    """By signal: AUROC on the inserted against the left-out canaries of the targets, and the mean over shadows in the target's place."""
    truth = setting.federation.truth
    canaries = {
        k: np.isin(seen.records, [r.id for r in setting.federation.clients[k].canaries])
        for k, seen in setting.seen.items()
    }
    for plugin, attack in setting.attacks:
        of_targets = {
            k: (attack.score(seen), np.array([truth.get(r, False) for r in seen.records]))
            for k, seen in setting.seen.items()
        }
        again = [
            (k, attack.score(seen.leave_out(s)), member)
            for k, seen in setting.seen.items()
            for s, member in enumerate(_shadows(seen).member[:10])
            if _alone(plugin)
        ]
        for signal in next(iter(of_targets.values()))[0]:
            own = _auroc([(each[signal], member, canaries[k]) for k, (each, member) in of_targets.items()])
            # what is seen of rounds of the attacked model only, a shadow has no score of
            beside = [
                _auroc([(each[signal], member, canaries[k])]).value for k, each, member in again if signal in each
            ]
            yield signal, own, float(np.mean(beside)) if beside else float("nan")


def cost(words: str) -> Iterator[tuple[str, float]]:
    """CPU seconds of one federation as it is trained and scored, of the simulated one, and of the shadow clients of one target in it."""
    with tempfile.TemporaryDirectory() as out:
        plan, progress = read_command([*words.split(), "--threads=1", f"--out={out}"]).plan, Progress(quiet=True)
        one_thread()
        with Workshop(plan, progress) as workshop:
            _ = workshop.executor
            bench = make_bench(plan, workshop.federation)
            for cell in plan.cells:
                times = _cost(cell, workshop, bench)
                yield from ((f"{cell.method}: {name}", value) for name, value in times.items())


def _cost(cell: Cell, workshop: Workshop, bench: Any) -> dict[str, float]:
    federation = cpu_seconds(lambda: train_all([cell], workshop, Progress(quiet=True)))
    simulated, trained, shadows = shadow_seconds(cell, workshop, bench)
    return {
        f"a federation of {cell.plan.clients}, scored every round": federation,
        "the simulated ones, not scored": simulated,
        f"{shadows} shadow clients": trained,
        "shadow models over federation": (simulated + trained) / federation,
    }


def shadow_seconds(cell: Cell, workshop: Workshop, bench: Any) -> tuple[float, float, int]:
    """CPU seconds of the federations that the shadow models of one target lie along, and of its shadow clients; and how many clients these are."""
    recipe = recipe_of(cell, workshop.federation)
    assert recipe is not None
    rounds, client = recipe.schedule.rounds, cell.targets[0]
    simulated = sum(
        cpu_seconds(functools.partial(simulate, bench, (recipe, s, rounds, True))) for s in recipe.federations
    )
    about: dict[str, Any] = {"seed": recipe.seed, "until": rounds, "say": Progress(quiet=True).say}

    def train(some: range) -> None:
        folder = claim(recipe.client(client, some))
        shadow_models.train_shadows(bench, recipe.method, recipe.others, client, folder, shadows=some, **about)

    trained = sum(cpu_seconds(functools.partial(train, some)) for some in recipe.parts)
    return simulated, trained, recipe.shadows


def cpu_seconds(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "null", "positive"))
    parser.add_argument("--out", default="fedaudit-runs", help="where trainings and shadow models are kept")
    chosen = parser.parse_args()
    if chosen.part == "cost":
        for name, value in cost("--method=dpfpl --attack=shadow"):
            print(f"{name:<70}{value:10.1f}", flush=True)
    elif chosen.part == "null":
        print(f"{'signal':<24}{'covers 0.5':>12}{'claims a leak':>15}{'mean AUROC':>12}{'sd':>8}   of {REPETITIONS}")
        for signal, (covers, claims, values) in null(prepare(NULL, chosen.out)).items():
            print(f"{signal:<24}{covers:>12}{claims:>15}{np.mean(values):>12.4f}{np.std(values):>8.4f}", flush=True)
    else:
        print(f"{'signal':<24}{'AUROC on canaries':>26}{'10 shadows each':>18}")
        for signal, i, again in positive(prepare(POSITIVE, chosen.out)):
            print(f"{signal:<24}{i.value:>10.3f} [{i.low:.3f}, {i.high:.3f}]{again:>18.3f}", flush=True)


if __name__ == "__main__":
    main()
