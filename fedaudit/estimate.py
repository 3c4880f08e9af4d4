"""What a plan would run, how long and how much disk: `--dry-run`. Times are measured here, on the plan's own model."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaudit.plan import Cell, Plan
from fedaudit.progress import Progress, nothing
from fedaudit.training import COMPLETE

TRIAL_RECORDS = 32
TRIAL_STEPS = 8
TRIAL_ROUNDS = 4  # the first is not counted
SHOWN = 12  # audits that are named
SCORED = 6  # forward passes per record: twice by the released models, four times by those of clients


def estimate(plan: Plan, progress: Progress) -> str:
    """A few lines for the terminal; nothing is written but the cached image embeddings."""
    return _estimate_prompts(plan, progress) if plan.learner == "prompts" else _estimate_adapters(plan, progress)


def _estimate_prompts(plan: Plan, progress: Progress) -> str:
    """By a few rounds of every kind of training, in folders that are thrown away."""
    missing = [cell for cell in plan.cells if not (cell.analysis_folder / COMPLETE).exists()]
    untrained = {c.training_key: c for c in missing if not (c.training_folder / COMPLETE).exists()}
    kinds: dict[Any, list[Cell]] = {}
    for cell in untrained.values():
        kinds.setdefault(_kind(cell), []).append(cell)
    trials = _trials([cells[0] for cells in kinds.values()], plan, progress) if kinds else []
    seconds, disk = (
        sum(len(c) * plan.rounds * t[i] for c, t in zip(kinds.values(), trials, strict=True)) for i in (0, 1)
    )
    workers = min(plan.threads, max(1, len(untrained)))
    lines = _head(plan, len(missing), len(untrained))
    if untrained:
        lines[-1] += f": {plan.rounds} rounds, {plan.per_round} of {plan.clients} clients a round"
    minutes = _count(max(1, math.ceil(seconds / workers / 60)), "minute")
    return "\n".join([*lines, f"about {minutes} with {_count(workers, 'worker')}", *_tail(plan, disk)])


def _kind(cell: Cell) -> Any:
    """What decides how long a training takes: the method, and whether it is private."""
    assert cell.variant is not None
    return cell.variant.method, cell.variant.params, math.isinf(cell.variant.privacy.epsilon)


def _trials(cells: Sequence[Cell], plan: Plan, progress: Progress) -> list[tuple[float, float]]:
    """Seconds and bytes of a round of each training."""
    import tempfile

    from fedaudit.bench import federation_of, make_bench, make_exam
    from fedaudit.executor import Executor
    from fedaudit.store import claim
    from fedaudit.training import method_of, schedule_of
    from trainers.base import train

    federation = federation_of(plan)
    sizes = [len(client.training_records) for client in federation.clients]
    bench, exam = make_bench(plan, federation, quiet=progress.quiet), make_exam(plan, federation)
    found = []
    label = "timing a few rounds of each method on this machine"
    with progress.stage(label, len(cells)) as advance, Executor(lambda: bench) as executor:
        for cell in cells:
            with tempfile.TemporaryDirectory() as folder:
                rounds = functools.partial(
                    train, method_of(cell, sizes), schedule_of(cell), exam, folder=claim(Path(folder)), executor=executor,
                    say=progress.say, advance=nothing, crowd=plan.settings.crowd,
                )  # fmt: skip
                rounds(until=1)
                started = time.perf_counter()
                rounds(until=min(TRIAL_ROUNDS, plan.rounds))
                timed = max(1, min(TRIAL_ROUNDS, plan.rounds) - 1)
                files = list(Path(folder).glob("round-*"))
                size = sum(file.stat().st_size for file in files) / (len(files) / 2)
                found.append(((time.perf_counter() - started) / timed, size))
            advance()
    return found


def _head(plan: Plan, missing: int, untrained: int) -> list[str]:
    cells = ", ".join(f"{cell.method} (seed {cell.seed})" for cell in plan.cells[:SHOWN])
    more = f" and {len(plan.cells) - SHOWN} more" if len(plan.cells) > SHOWN else ""
    attack = f"attack {plan.attack}" if plan.attack else "no attack"
    lines = [f"{_count(len(plan.cells), 'audit')}: {cells}{more}, {attack}"]
    return [*lines, f"{len(plan.cells) - missing} on disk; {_count(untrained, 'training')} to run"]


def _tail(plan: Plan, disk: float) -> list[str]:
    return [f"up to {disk / 1e6:.0f} MB in {plan.out}", f"report: {plan.report_folder / 'index.html'}"]


def _estimate_adapters(plan: Plan, progress: Progress) -> str:
    from fedaudit.bench import federation_of, make_bench
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
