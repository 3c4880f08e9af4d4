"""`--dry-run`: what a plan would run, how long it would take, and how much disk. Times are measured on the plan's
model.

Variants of a method that differ only in numbers (rank, finite epsilon, rates) are taken to cost the same: the first is
timed for all. Tasks of a paper's item are timed once if their federations have the same size (`_world`).
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery.progress import ENCODING, Advance, Progress, in_words, nothing
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.finished import COMPLETE
from fedaudit.pipeline.kept_rounds import rounds_left
from fedaudit.pipeline.plan import Cell, Plan

if TYPE_CHECKING:
    from fedaudit.machinery.executor import Executor
    from fedaudit.tasks.base import Federation
    from fedaudit.trainers.protocols import Bench, Evaluation

TRIAL_ROUNDS = 3
LONG = 1.0  # seconds: if the first round takes longer, it is the measurement; a shorter one counts as warm-up
SILENT = 30.0  # seconds of encoding pictures below which they get no line of their own
SHOWN = 12  # audits that are listed by name


@dataclass(frozen=True)
class Pace:
    """Cost of a round of training here: seconds, seconds without evaluation (`bare`), and bytes on disk (`size`)."""

    seconds: float
    bare: float
    size: float


class Clock(Progress):
    """A progress that also measures how long all missing pictures take to encode, from the one batch that is."""

    alone = 0.0  # seconds on one thread

    def encoding(self, threads: int) -> float:
        """Seconds that all batches take with so many threads."""
        return self.alone / threads

    @contextmanager
    def stage(self, what: str, total: int, step: str = "step", parts: int = 1) -> Iterator[Advance]:
        with super().stage(what, total, step, parts) as advance:
            began = time.perf_counter()
            yield advance
            if what == ENCODING:  # twice for dual prompts: features, and tokens
                self.alone += total * (time.perf_counter() - began)


Timings = MutableMapping[Hashable, Any]  # paces of trainings and seconds of questions, by what they depend on


def estimate(
    plan: Plan, progress: Progress, timings: Timings | None = None, before: Collection[Path] = frozenset()
) -> str:
    """The text of `--dry-run` about what the plan would compute: trainings, time, disk space. It is based on a few
    rounds of each kind of training, one question of each kind of attack, and one batch of pictures. `timings` is a
    cache, read and filled; `before` are folders that the same command will have made by then. Nothing is written to
    disk but that batch's image embeddings. Pictures that no run has decoded are not compared: the report's folder,
    whose name depends on the records, is not named then."""
    from fedaudit.command import attack_times
    from fedaudit.pipeline.compute import check
    from fedaudit.pipeline.shadow_models import sequence_rounds
    from fedaudit.pipeline.shadow_trainings import untrained
    from fedaudit.pipeline.workers import federation_of
    from fedaudit.tasks.duplicates import undecoded

    with undecoded() as pictures:  # a run decodes them all, which takes longer than the rest of the dry run
        federation = federation_of(plan)
    check(plan, federation, progress)
    missing = [cell for cell in plan.cells if not _on_disk(cell.analysis_folder)]
    new = [c for c in missing if c.trained_here and not _on_disk(c.training_folder) and c.training_folder not in before]
    cells = {c.training_key: c for c in new}.values()
    federations, clients = untrained(missing, federation, _on_disk)
    of_bank = {cell.bank_folder: cell for cell in missing if cell.needs_shadows}
    simulated = [of_bank[recipe.folder] for recipe, _ in federations]
    shadows = [(of_bank[recipe.folder], len(some)) for recipe, _, some in clients]
    alone = {_kind(cell) for cell in (*simulated, *(cell for cell, _ in shadows))}
    kinds = {_kind(cell): cell for cell in (*cells, *simulated, *(cell for cell, _ in shadows))}
    attacked = [c for c in missing if plan.attacks and (c.variant is None or c.variant.plugin.facts.trains)]
    work = [(cell, attack_times.work(cell, federation)) for cell in attacked]
    clock = Clock(quiet=progress.quiet)
    pace, each = _measured(kinds, alone, work, federation, clock, {} if timings is None else timings)
    rounds = plan.rounds
    parts = [
        [rounds * pace[_kind(cell)].seconds for cell in cells],
        [rounds * pace[_kind(cell)].bare for cell in simulated],
        # a shadow model trains one client of a federation
        [rounds * some / plan.clients * pace[_kind(cell)].bare for cell, some in shadows],
        [attack_times.seconds(counts, each) / len(cell.targets) for cell, counts in work for _ in cell.targets],
    ]
    disk = sum(rounds * pace[_kind(cell)].size for cell in (*cells, *simulated))
    kept = 1 + (len(sequence_rounds(rounds)) if plan.trained.records == "classes" else 0)  # states of a shadow model
    disk += sum(kept * some / plan.per_round * pace[_kind(cell)].size for cell, some in shadows)
    lines = _head(plan, len(missing), len(cells))
    if cells:
        lines[-1] += f": {rounds} rounds, {plan.per_round} of {plan.clients} clients a round"
        lines.append(f"{max(pace[_kind(cell)].seconds for cell in cells):.2g} s a round, measured")
    thinned = sum(rounds_left(Folder(c.training_folder)) is not None for c in missing if c.training_folder.is_dir())
    if thinned:
        lines.append(f"{_count(thinned, 'training')} on disk without all rounds: what needs them trains them again")
    lines += _shadow_lines(len(simulated), sum(some for _, some in shadows), plan.adversary.shadows)
    parallel = [plan.workers if plan.trained.together else 1, *[plan.workers] * 3]  # else its clients are spread
    seconds = sum(sum(part) / min(jobs, len(part)) for jobs, part in zip(parallel, parts, strict=True) if part)
    seconds += clock.encoding(plan.threads)
    minutes = _count(max(1, math.ceil(seconds / 60)), "minute")
    unknown = ", newcomers not counted" if plan.newcomers else ""
    lines.append(f"about {minutes} with {_count(plan.workers, 'worker')}{unknown}")
    if clock.encoding(plan.threads) >= SILENT:
        lines.append(f"{in_words(clock.encoding(plan.threads))} of it for {ENCODING}")
    lines.append(f"up to {disk / 1e6:.0f} MB in {plan.out}")
    if pictures:
        lines.append(f"{_count(len(pictures), 'picture')} not compared: a run leaves out copies")
    else:
        lines.append(f"report: {plan.report_folder / 'index.html'}")
    return "\n".join(lines)


def _on_disk(folder: Path) -> bool:
    return (folder / COMPLETE).exists()


def _shadow_lines(simulated: int, shadows: int, each: int) -> list[str]:
    """A line, in a list, on the shadow models or shadow federations to train, `each` per target; [] if there are
    none."""
    if shadows:
        along = f", along {_count(simulated, 'simulated federation')}" if simulated else ""
        return [f"{shadows} shadow models to train, {each} for each target client and method{along}"]
    return [f"{_count(simulated, 'shadow federation')} to train"] if simulated else []


def _kind(cell: Cell) -> Hashable:
    """Key of trainings that cost the same per round: method, its text and boolean parameters, private or not."""
    assert cell.variant is not None
    privacy, params = cell.variant.privacy, vars(cell.variant.params)
    words = tuple((name, value) for name, value in params.items() if isinstance(value, (str, bool)))
    return cell.variant.method, words, privacy is not None and math.isfinite(privacy.epsilon)


def _world(plan: Plan, federation: Federation) -> Hashable:
    """Key of plans in which trainings of equal `_kind` cost the same: frozen model, local training, machine, and sizes
    of the federation."""
    frozen = plan.backbone, plan.dtype, plan.precision
    model = plan.learner, plan.settings, frozen, plan.device, plan.workers, plan.memory
    shared = [len(part) for part in (federation.test, federation.novel_test, federation.novel, federation.classes)]
    sizes = [len(client.candidates) + len(client.reference) + len(client.background) for client in federation.clients]
    return *model, plan.per_round, tuple(shared), len(sizes), sum(sizes)


def _measured(
    kinds: Mapping[Hashable, Cell], alone: Collection[Hashable], work: Sequence[tuple[Cell, Mapping[str, float]]],
    federation: Federation, progress: Clock, timings: Timings,
) -> tuple[dict[Hashable, Pace], dict[str, float]]:  # fmt: skip
    """({kind of training: pace}, {kind of work: seconds of one question}), measured here.

    Kinds in `alone` are also timed without evaluation. `work` holds the numbers of questions per cell; the cell with
    the most is timed for all. Results are read from and added to `timings`.
    """
    from fedaudit.command import attack_times
    from fedaudit.machinery.executor import Executor
    from fedaudit.pipeline.workers import make_bench, make_evaluation

    if not kinds and not work:
        return {}, {}
    most = max(work, key=lambda pair: [pair[1][kind] for kind in attack_times.KINDS_OF_WORK], default=None)
    plan = next(iter(kinds.values())).plan if kinds else work[0][0].plan
    world = _world(plan, federation)
    paces = {kind: (world, kind, kind in alone) for kind in kinds}
    attack = world, _kind(most[0]) if most and most[0].variant else None, most and tuple(most[1].items())
    todo: list[Hashable] = [key for key in (*paces.values(), *([attack] if most else [])) if key not in timings]
    if todo:
        bench, evaluation = make_bench(plan, federation, progress, sample=True), make_evaluation(plan, federation)
        if (seconds := progress.encoding(plan.threads)) >= SILENT:
            progress.say(f"{ENCODING}: about {in_words(seconds)}, of which the dry run did one batch")
        label = "timing a few rounds of each method on this machine"
        with progress.stage(label, len(todo), "measurement") as advance, Executor(lambda: bench) as executor:
            for kind, key in paces.items():
                if key in todo:
                    timings[key] = _trial(
                        kinds[kind], federation, evaluation, bench, executor, progress, alone=kind in alone
                    )
                    advance()
            if most and attack in todo:
                timings[attack] = attack_times.timed(most[0], federation, bench, most[1], progress)
                advance()
    return {kind: timings[key] for kind, key in paces.items()}, timings[attack] if most else {}


def _trial(
    cell: Cell, federation: Federation, evaluation: Evaluation, bench: Bench, executor: Executor[Bench],
    progress: Progress, *, alone: bool,
) -> Pace:  # fmt: skip
    """The pace of a training, scaled to whole rounds, measured by a few rounds of one job each in a temporary folder;
    with `alone` also without evaluation."""
    from fedaudit.machinery.store import claim
    from fedaudit.pipeline.methods import method_of, schedule_of
    from fedaudit.pipeline.shadow_models import NoEvaluation
    from fedaudit.trainers.rounds import train

    plan, method = cell.plan, method_of(cell, federation.sizes)
    clients_per_batch = bench.learner.clients_per_batch(method)
    jobs = math.ceil(plan.per_round / clients_per_batch)
    waves = jobs if plan.trained.together else math.ceil(jobs / plan.workers)
    # 0 rounds, so that no round counts as the last one, whose evaluation is longer
    schedule = dataclasses.replace(schedule_of(cell), rounds=0, per_round=min(plan.per_round, clients_per_batch))
    with tempfile.TemporaryDirectory() as folder:

        def seconds(judged: Evaluation, done: int, more: int) -> float:
            """Seconds per round of `more` rounds after `done` ones; prepares the training if `more` is 0."""
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
    """Lines of text on the audits of a plan: which, how many are on disk, how many trainings they need."""
    cells = ", ".join(f"{cell.method} (seed {cell.seed})" for cell in plan.cells[:SHOWN])
    more = f" and {len(plan.cells) - SHOWN} more" if len(plan.cells) > SHOWN else ""
    attack = f"attack {plan.attack}" if plan.attack else "no attack"
    lines = [f"{_count(len(plan.cells), 'audit')}: {cells}{more}, {attack}"]
    return [*lines, f"{len(plan.cells) - missing} on disk; {_count(untrained, 'training')} to run"]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
