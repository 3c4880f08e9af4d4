"""What a plan would run, how long and how much disk: `--dry-run`. Times are measured here, on the plan's own model.

Trainings of one method cost the same here if both are private or none is and their parameters in words are the same:
numbers (rank, epsilon, rates) do not count, and the first variant is timed for all. Nor are the tasks of a paper's item
timed again where their federations are as large (`_world`).
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Collection, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery.progress import Progress, nothing
from fedaudit.pipeline.finished import COMPLETE
from fedaudit.pipeline.plan import Cell, Plan

if TYPE_CHECKING:
    from fedaudit.machinery.executor import Executor
    from fedaudit.tasks.base import Federation
    from trainers.protocols import Bench, Evaluation

TRIAL_ROUNDS = 3
LONG = 1.0  # seconds: a first round that takes longer is measured already, a shorter one is spent on first times
SHOWN = 12  # audits that are named


@dataclass(frozen=True)
class Pace:
    """A round of a training on this machine: seconds, seconds of the clients' work alone, and bytes."""

    seconds: float
    bare: float
    size: float


Known = MutableMapping[Hashable, Any]  # paces of trainings and works of attacks, by what they depend on


def estimate(plan: Plan, progress: Progress, known: Known | None = None) -> str:
    """A few lines for the terminal, by a few rounds of every kind of training and one question of each kind that
    attacks put; nothing is written but the cached image embeddings. What is `known` is not timed again."""
    from fedaudit.command import attack_times
    from fedaudit.pipeline.compute import check
    from fedaudit.pipeline.shadow_models import sequence_rounds
    from fedaudit.pipeline.shadow_trainings import untrained
    from fedaudit.pipeline.workers import federation_of

    federation = federation_of(plan)
    check(plan, federation)
    missing = [cell for cell in plan.cells if not _on_disk(cell.analysis_folder)]
    cells = {c.training_key: c for c in missing if c.variant and not _on_disk(c.training_folder)}.values()
    federations, clients = untrained(missing, federation, _on_disk)
    of_bank = {cell.bank_folder: cell for cell in missing if cell.needs_shadows}
    simulated = [of_bank[recipe.folder] for recipe, _ in federations]
    shadows = [(of_bank[recipe.folder], len(some)) for recipe, _, some in clients]
    alone = {_kind(cell) for cell in (*simulated, *(cell for cell, _ in shadows))}
    kinds = {_kind(cell): cell for cell in (*cells, *simulated, *(cell for cell, _ in shadows))}
    attacked = [c for c in missing if plan.attacks and (c.variant is None or c.variant.plugin.facts.trains)]
    asked = [(cell, attack_times.work(cell, federation)) for cell in attacked]
    pace, each = _measured(kinds, alone, asked, federation, progress, {} if known is None else known)
    rounds = plan.rounds
    work = [
        [rounds * pace[_kind(cell)].seconds for cell in cells],
        [rounds * pace[_kind(cell)].bare for cell in simulated],
        # one of these clients in every federation of as many: a shadow plays the part of one client
        [rounds * some / plan.clients * pace[_kind(cell)].bare for cell, some in shadows],
        [attack_times.seconds(often, each) / len(cell.targets) for cell, often in asked for _ in cell.targets],
    ]
    disk = sum(rounds * pace[_kind(cell)].size for cell in (*cells, *simulated))
    kept = 1 + (len(sequence_rounds(rounds)) if plan.trained.records == "classes" else 0)  # states of a shadow
    disk += sum(kept * some / plan.per_round * pace[_kind(cell)].size for cell, some in shadows)
    lines = _head(plan, len(missing), len(cells))
    if cells:
        lines[-1] += f": {rounds} rounds, {plan.per_round} of {plan.clients} clients a round"
        lines.append(f"{max(pace[_kind(cell)].seconds for cell in cells):.2g} s a round, measured")
    lines += _shadow_lines(len(simulated), sum(some for _, some in shadows), plan.adversary.shadows)
    seconds = sum(sum(part) / min(_beside(plan, part is work[0]), len(part)) for part in work if part)
    minutes = _count(max(1, math.ceil(seconds / 60)), "minute")
    unknown = ", newcomers not counted" if plan.newcomers else ""
    lines.append(f"about {minutes} with {_count(plan.workers, 'worker')}{unknown}")
    lines += [f"up to {disk / 1e6:.0f} MB in {plan.out}", f"report: {plan.report_folder / 'index.html'}"]
    return "\n".join(lines)


def _on_disk(folder: Path) -> bool:
    return (folder / COMPLETE).exists()


def _beside(plan: Plan, trainings: bool) -> int:
    """How many jobs run side by side: the workers share the clients of trainings that come one after the other."""
    return 1 if trainings and not plan.trained.together else plan.workers


def _shadow_lines(simulated: int, shadows: int, each: int) -> list[str]:
    """What the adversary trains: shadow clients along simulated federations, or whole federations."""
    if shadows:
        along = f", along {_count(simulated, 'simulated federation')}" if simulated else ""
        return [f"{shadows} shadow models to train, {each} for each target client and method{along}"]
    return [f"{_count(simulated, 'shadow federation')} to train"] if simulated else []


def _kind(cell: Cell) -> Hashable:
    """What decides how long a training takes here: the method, its parameters in words, and whether it is private."""
    assert cell.variant is not None
    privacy, params = cell.variant.privacy, vars(cell.variant.params)
    words = tuple((name, value) for name, value in params.items() if isinstance(value, (str, bool)))
    return cell.variant.method, words, privacy is not None and math.isfinite(privacy.epsilon)


def _world(plan: Plan, federation: Federation) -> Hashable:
    """What else decides it: the frozen model, how training is done, and how many records there are of which kind."""
    model = plan.learner, plan.settings, plan.backbone, plan.dtype, plan.device, plan.workers
    asked = [len(part) for part in (federation.test, federation.novel_test, federation.novel, federation.classes)]
    held = [len(client.candidates) + len(client.reference) + len(client.background) for client in federation.clients]
    return *model, plan.per_round, tuple(asked), len(held), sum(held)


def _measured(
    kinds: Mapping[Hashable, Cell], alone: Collection[Hashable], asked: Sequence[tuple[Cell, Mapping[str, float]]],
    federation: Federation, progress: Progress, known: Known,
) -> tuple[dict[Hashable, Pace], dict[str, float]]:  # fmt: skip
    """The pace of each kind of training, of those in `alone` without evaluations too; and the seconds of each question
    that is asked about a target, of the cell that is asked the most."""
    from fedaudit.command import attack_times
    from fedaudit.machinery.executor import Executor
    from fedaudit.pipeline.workers import make_bench, make_evaluation

    if not kinds and not asked:
        return {}, {}
    most = max(asked, key=lambda pair: [pair[1][kind] for kind in attack_times.KINDS_OF_WORK], default=None)
    plan = next(iter(kinds.values())).plan if kinds else asked[0][0].plan
    world = _world(plan, federation)
    paces = {kind: (world, kind, kind in alone) for kind in kinds}
    attack = world, _kind(most[0]) if most and most[0].variant else None, most and tuple(most[1].items())
    todo: list[Hashable] = [key for key in (*paces.values(), *([attack] if most else [])) if key not in known]
    if todo:
        bench, evaluation = make_bench(plan, federation, quiet=progress.quiet), make_evaluation(plan, federation)
        label = "timing a few rounds of each method on this machine"
        with progress.stage(label, len(todo)) as advance, Executor(lambda: bench) as executor:
            for kind, key in paces.items():
                if key in todo:
                    known[key] = _trial(
                        kinds[kind], federation, evaluation, bench, executor, progress, alone=kind in alone
                    )
                    advance()
            if most and attack in todo:
                known[attack] = attack_times.timed(most[0], federation, bench, most[1], progress)
                advance()
    return {kind: known[key] for kind, key in paces.items()}, known[attack] if most else {}


def _trial(
    cell: Cell, federation: Federation, evaluation: Evaluation, bench: Bench, executor: Executor[Bench],
    progress: Progress, *, alone: bool,
) -> Pace:  # fmt: skip
    """By rounds of one job each, in a folder that is thrown away; without evaluations too if it is to be known
    `alone`."""
    from fedaudit.machinery.store import claim
    from fedaudit.pipeline.methods import method_of, schedule_of
    from fedaudit.pipeline.shadow_models import NoEvaluation
    from trainers.rounds import train

    plan, clients_per_batch = cell.plan, bench.learner.clients_per_batch
    jobs = math.ceil(plan.per_round / clients_per_batch)
    waves = jobs if plan.trained.together else math.ceil(jobs / plan.workers)
    method = method_of(cell, federation.sizes)
    # of no rounds: none is the last, which is judged at length
    schedule = dataclasses.replace(schedule_of(cell), rounds=0, per_round=min(plan.per_round, clients_per_batch))
    with tempfile.TemporaryDirectory() as folder:

        def seconds(judged: Evaluation, done: int, more: int) -> float:
            """Of one of some more rounds."""
            started = time.perf_counter()
            train(
                method, schedule, judged, folder=claim(Path(folder)), executor=executor, say=progress.say,
                advance=nothing, until=done + more,
            )  # fmt: skip
            return (time.perf_counter() - started) / max(1, more)

        seconds(NoEvaluation(), 0, 0)
        judged, done = seconds(evaluation, 0, 1), 1
        more = TRIAL_ROUNDS if judged < LONG else 1
        if judged < LONG:
            judged, done = seconds(evaluation, done, more), done + more
        bare = seconds(NoEvaluation(), done, more) if alone else judged
        files = list(Path(folder).glob("round-*"))
        size = sum(file.stat().st_size for file in files) / (len(files) / 2)
        return Pace(judged * waves, bare * jobs, size * jobs)


def _head(plan: Plan, missing: int, untrained: int) -> list[str]:
    cells = ", ".join(f"{cell.method} (seed {cell.seed})" for cell in plan.cells[:SHOWN])
    more = f" and {len(plan.cells) - SHOWN} more" if len(plan.cells) > SHOWN else ""
    attack = f"attack {plan.attack}" if plan.attack else "no attack"
    lines = [f"{_count(len(plan.cells), 'audit')}: {cells}{more}, {attack}"]
    return [*lines, f"{len(plan.cells) - missing} on disk; {_count(untrained, 'training')} to run"]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
