"""What a plan would run, how long and how much disk: `--dry-run`. Times are measured here, on the plan's own model."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery.progress import Progress, nothing
from fedaudit.pipeline.finished import COMPLETE
from fedaudit.pipeline.plan import Cell, Plan

if TYPE_CHECKING:
    from fedaudit.machinery.executor import Executor
    from fedaudit.tasks.base import Federation
    from trainers.base import Bench, Exam

TRIAL_RECORDS = 32
TRIAL_STEPS = 8
TRIAL_ROUNDS = 3
SHOWN = 12  # audits that are named
SCORED = 6  # forward passes per record: twice by the released models, four times by those of clients


def estimate(plan: Plan, progress: Progress) -> str:
    """A few lines for the terminal; nothing is written but the cached image embeddings."""
    from fedaudit.pipeline.compute import check
    from fedaudit.pipeline.workers import federation_of

    check(plan, federation_of(plan))
    return _estimate_whole(plan, progress) if plan.trained.together else _estimate_steps(plan, progress)


@dataclass(frozen=True)
class Pace:
    """A round of a training on this machine: seconds, seconds without evaluation, and bytes."""

    seconds: float
    bare: float
    size: float


def _estimate_whole(plan: Plan, progress: Progress) -> str:
    """By a few rounds of every kind of training, in folders that are thrown away."""
    from fedaudit.pipeline.shadow_trainings import untrained
    from fedaudit.pipeline.workers import federation_of

    missing = [cell for cell in plan.cells if not _on_disk(cell.analysis_folder)]
    cells = {c.training_key: c for c in missing if not _on_disk(c.training_folder)}.values()
    federation = federation_of(plan)
    federations, clients = untrained(missing, federation, _on_disk)
    of_bank = {cell.bank_folder: cell for cell in missing}
    simulated, targets = ([of_bank[recipe.folder] for recipe, _ in part] for part in (federations, clients))
    kinds = {_kind(cell): cell for cell in (*cells, *simulated, *targets)}
    paces = dict(zip(kinds, _trials([*kinds.values()], plan, federation, progress), strict=True)) if kinds else {}
    rounds, shadows = plan.rounds, plan.adversary.shadows
    work = [
        [rounds * paces[_kind(cell)].seconds for cell in cells],
        [rounds * paces[_kind(cell)].bare for cell in simulated],
        # one of these clients in every federation of as many: a shadow plays the part of one client
        [rounds * shadows / plan.clients * paces[_kind(cell)].bare for cell in targets],
    ]
    disk = sum(rounds * paces[_kind(cell)].size for cell in (*cells, *simulated))
    disk += sum(shadows / plan.per_round * paces[_kind(cell)].size for cell in targets)
    lines = _head(plan, len(missing), len(cells))
    if cells:
        lines[-1] += f": {rounds} rounds, {plan.per_round} of {plan.clients} clients a round"
    lines += _shadow_lines(len(simulated), len(targets), shadows)
    workers = min(plan.threads, max(1, *map(len, work)))
    seconds = sum(sum(part) / min(plan.threads, len(part)) for part in work if part)
    minutes = _count(max(1, math.ceil(seconds / 60)), "minute")
    attacks = ", attacks not counted" if plan.attacks and missing else ""
    lines.append(f"about {minutes} with {_count(workers, 'worker')}{attacks}")
    return "\n".join([*lines, *_tail(plan, disk)])


def _on_disk(folder: Path) -> bool:
    return (folder / COMPLETE).exists()


def _shadow_lines(simulated: int, targets: int, shadows: int) -> list[str]:
    """What the adversary trains: shadow clients along simulated federations, or whole federations."""
    if targets:
        along = f", along {_count(simulated, 'simulated federation')}" if simulated else ""
        return [f"{targets * shadows} shadow models to train, {shadows} for each target client and method{along}"]
    return [f"{_count(simulated, 'shadow federation')} to train"] if simulated else []


def _kind(cell: Cell) -> Any:
    """What decides how long a training takes: the method, and whether it is private."""
    assert cell.variant is not None
    return cell.variant.method, cell.variant.params, math.isinf(cell.variant.privacy.epsilon)


def _trials(cells: Sequence[Cell], plan: Plan, federation: Federation, progress: Progress) -> list[Pace]:
    """The pace of each training."""
    from fedaudit.machinery.executor import Executor
    from fedaudit.pipeline.workers import make_bench, make_exam

    bench, exam = make_bench(plan, federation, quiet=progress.quiet), make_exam(plan, federation)
    sizes = [len(client.training_records) for client in federation.clients]
    found = []
    label = "timing a few rounds of each method on this machine"
    with progress.stage(label, len(cells)) as advance, Executor(lambda: bench) as executor:
        for cell in cells:
            found.append(_trial(cell, sizes, exam, executor, progress))
            advance()
    return found


def _trial(cell: Cell, sizes: Sequence[int], exam: Exam, executor: Executor[Bench], progress: Progress) -> Pace:
    import tempfile

    from fedaudit.machinery.store import claim
    from fedaudit.pipeline.bank import NoExam
    from fedaudit.pipeline.methods import method_of, schedule_of
    from trainers.base import train

    with tempfile.TemporaryDirectory() as folder:
        rounds = functools.partial(
            train, method_of(cell, sizes), schedule_of(cell), folder=claim(Path(folder)), executor=executor,
            say=progress.say, advance=nothing, crowd=cell.plan.settings.crowd,
        )  # fmt: skip
        rounds(exam, until=1)  # is not counted: everything is computed for the first time
        clock = [time.perf_counter()]
        for judged, until in ((exam, 1 + TRIAL_ROUNDS), (NoExam(), 1 + 2 * TRIAL_ROUNDS)):
            rounds(judged, until=until)
            clock.append(time.perf_counter())
        files = list(Path(folder).glob("round-*"))
        seconds, bare = ((after - before) / TRIAL_ROUNDS for before, after in itertools.pairwise(clock))
        return Pace(seconds, bare, sum(file.stat().st_size for file in files) / (len(files) / 2))


def _head(plan: Plan, missing: int, untrained: int) -> list[str]:
    cells = ", ".join(f"{cell.method} (seed {cell.seed})" for cell in plan.cells[:SHOWN])
    more = f" and {len(plan.cells) - SHOWN} more" if len(plan.cells) > SHOWN else ""
    attack = f"attack {plan.attack}" if plan.attack else "no attack"
    lines = [f"{_count(len(plan.cells), 'audit')}: {cells}{more}, {attack}"]
    return [*lines, f"{len(plan.cells) - missing} on disk; {_count(untrained, 'training')} to run"]


def _tail(plan: Plan, disk: float) -> list[str]:
    return [f"up to {disk / 1e6:.0f} MB in {plan.out}", f"report: {plan.report_folder / 'index.html'}"]


def _estimate_steps(plan: Plan, progress: Progress) -> str:
    from fedaudit.pipeline.workers import federation_of, make_bench
    from trainers.base import generator, size

    missing = [cell for cell in plan.cells if not (cell.analysis_folder / COMPLETE).exists()]
    untrained = [cell for cell in missing if cell.variant and not (cell.training_folder / COMPLETE).exists()]
    bench = make_bench(plan, federation_of(plan), quiet=progress.quiet)
    with progress.stage("timing a step on this machine", 1) as advance:
        learner, state = bench.learner, bench.learner.initial(generator(0, "estimate"))
        some = list(learner.data)[:TRIAL_RECORDS]
        started = time.perf_counter()
        learner.logits(state, some)
        score = (time.perf_counter() - started) / len(some)
        seconds = SCORED * score * len(learner.data) / plan.threads * len(missing)
        if untrained:
            started = time.perf_counter()
            for _ in range(TRIAL_STEPS):
                learner.loss({n: t.requires_grad_() for n, t in state.items()}, some[: plan.settings.batch]).backward()
            step = (time.perf_counter() - started) / TRIAL_STEPS
            started = time.perf_counter()
            learner.evaluate(state, bench.test)
            utility = time.perf_counter() - started
        advance()
    if untrained:
        steps = learner.steps(max(map(len, bench.training)))
        waves = math.ceil(plan.per_round / plan.threads)
        seconds += len(untrained) * plan.rounds * (waves * (step * steps + utility) + utility)
    disk = len(untrained) * plan.rounds * (1 + plan.per_round * 2) * size(state)
    lines = _head(plan, len(missing), len(untrained))
    if untrained:
        lines[-1] += (
            f": {plan.rounds} rounds, {plan.per_round} of {plan.clients} clients a round, up to {steps} steps each"
        )
        lines.append(f"{1000 * step:.0f} ms a step, measured")
    minutes = _count(max(1, math.ceil(seconds / 60)), "minute")
    lines.append(f"about {minutes} with {_count(plan.threads, 'worker')}")
    return "\n".join([*lines, *_tail(plan, disk)])


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
