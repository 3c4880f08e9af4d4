"""What a plan would run, how long and how much disk: `--dry-run`. Times are measured here, on the plan's own model."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress, nothing
from fedaudit.pipeline.finished import COMPLETE
from fedaudit.pipeline.plan import Cell, Plan

if TYPE_CHECKING:
    from fedaudit.machinery.executor import Executor
    from fedaudit.tasks.base import Federation
    from trainers.base import Bench, Exam

TRIAL_ROUNDS = 3
LONG = 1.0  # seconds: a first round that takes longer is measured already, a shorter one is spent on first times
ASKED = 6  # models that are asked about a target's records, at most: two released ones, and four of the target
SHOWN = 12  # audits that are named


@dataclass(frozen=True)
class Pace:
    """A round of a training on this machine: seconds, seconds of the clients' work alone, and bytes."""

    seconds: float
    bare: float
    size: float


def estimate(plan: Plan, progress: Progress) -> str:
    """A few lines for the terminal, by a few rounds of every kind of training and an answer to an attack; nothing is
    written but the cached image embeddings."""
    from fedaudit.pipeline.bank import sequence_rounds
    from fedaudit.pipeline.compute import check
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
    kinds = {_kind(cell): cell for cell in (*cells, *simulated, *(cell for cell, _ in shadows))}
    attacked = [c for c in missing if plan.attacks and (c.variant is None or c.variant.plugin.trains)]
    measured, answer = _measured([*kinds.values()], attacked[:1], federation, progress)
    pace = dict(zip(kinds, measured, strict=True))
    rounds = plan.rounds
    work = [
        [rounds * pace[_kind(cell)].seconds for cell in cells],
        [rounds * pace[_kind(cell)].bare for cell in simulated],
        # one of these clients in every federation of as many: a shadow plays the part of one client
        [rounds * some / plan.clients * pace[_kind(cell)].bare for cell, some in shadows],
        [answer * (ASKED + 2 * plan.adversary.shadows * c.needs_shadows) for c in attacked for _ in c.targets],
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
    wanted = [plugins.plugins("attack")[name] for name in plan.attacks] if attacked else []
    looking = any(plugin.gradients or plugin.vectors or plugin.needs for plugin in wanted)
    uncounted = ["attacks by gradients and messages"] * looking + ["newcomers"] * (plan.newcomers > 0)
    unknown = f", {' and '.join(uncounted)} not counted" if uncounted else ""
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
    """What decides how long a training takes: the method, and whether it is private."""
    assert cell.variant is not None
    privacy = cell.variant.privacy
    return cell.variant.method, cell.variant.params, privacy is not None and math.isfinite(privacy.epsilon)


def _measured(
    cells: Sequence[Cell], attacked: Sequence[Cell], federation: Federation, progress: Progress
) -> tuple[list[Pace], float]:
    """The pace of each training, and the seconds that a model of an attacked cell takes for a target's records."""
    from fedaudit.machinery.executor import Executor
    from fedaudit.pipeline.workers import make_bench, make_exam

    if not (some := [*cells, *attacked]):
        return [], 0.0
    plan, found, answer = some[0].plan, [], 0.0
    bench, exam = make_bench(plan, federation, quiet=progress.quiet), make_exam(plan, federation)
    label = "timing a few rounds of each method on this machine"
    with progress.stage(label, len(some)) as advance, Executor(lambda: bench) as executor:
        for cell in cells:
            found.append(_trial(cell, federation, exam, bench.learner.crowd, executor, progress))
            advance()
        for cell in attacked:
            answer = _answer(cell, federation, bench)
            advance()
    return found, answer


def _trial(
    cell: Cell, federation: Federation, exam: Exam, crowd: int, executor: Executor[Bench], progress: Progress
) -> Pace:
    """By rounds of one job each, in a folder that is thrown away."""
    from fedaudit.machinery.store import claim
    from fedaudit.pipeline.bank import NoExam
    from fedaudit.pipeline.methods import method_of, schedule_of
    from trainers.base import train

    plan = cell.plan
    jobs = math.ceil(plan.per_round / crowd)
    waves = jobs if plan.trained.together else math.ceil(jobs / plan.workers)
    method = method_of(cell, federation.sizes)
    # of no rounds: none is the last, which is judged at length
    schedule = dataclasses.replace(schedule_of(cell), rounds=0, per_round=min(plan.per_round, crowd))
    with tempfile.TemporaryDirectory() as folder:

        def seconds(judged: Exam, done: int, more: int) -> float:
            """Of one of some more rounds."""
            started = time.perf_counter()
            train(
                method, schedule, judged, folder=claim(Path(folder)), executor=executor, say=progress.say,
                advance=nothing, until=done + more,
            )  # fmt: skip
            return (time.perf_counter() - started) / max(1, more)

        seconds(NoExam(), 0, 0)
        judged, done = seconds(exam, 0, 1), 1
        if judged < LONG:
            judged, done = seconds(exam, 1, TRIAL_ROUNDS), 1 + TRIAL_ROUNDS
        bare = seconds(NoExam(), done, TRIAL_ROUNDS) if plan.trained.shadows else judged
        files = list(Path(folder).glob("round-*"))
        size = sum(file.stat().st_size for file in files) / (len(files) / 2)
        return Pace(judged * waves, bare * jobs, size * jobs)


def _answer(cell: Cell, federation: Federation, bench: Bench) -> float:
    """Seconds that a model takes for the records of a target."""
    from fedaudit.pipeline.methods import method_of
    from trainers.base import Classifier, generator
    from trainers.exams import Answering

    client = federation.clients[0]
    records = [record.id for record in (*client.records, *client.canaries, *client.reference)]
    state = bench.learner.initial(generator(0, "estimate"))
    method = method_of(cell) if cell.variant else None
    model = method.model(method.start(state)) if method else state
    started = time.perf_counter()
    if method is None or cell.plan.trained.records == "texts":
        assert isinstance(bench.learner, Answering)
        bench.learner.losses(model, records)
    else:
        assert isinstance(bench.learner, Classifier)
        bench.learner.log_probs(method, [model], records)
    return time.perf_counter() - started


def _head(plan: Plan, missing: int, untrained: int) -> list[str]:
    cells = ", ".join(f"{cell.method} (seed {cell.seed})" for cell in plan.cells[:SHOWN])
    more = f" and {len(plan.cells) - SHOWN} more" if len(plan.cells) > SHOWN else ""
    attack = f"attack {plan.attack}" if plan.attack else "no attack"
    lines = [f"{_count(len(plan.cells), 'audit')}: {cells}{more}, {attack}"]
    return [*lines, f"{len(plan.cells) - missing} on disk; {_count(untrained, 'training')} to run"]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
