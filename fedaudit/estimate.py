"""What a plan would run, how long and how much disk: `--dry-run`. Times are measured here, on the plan's own model."""

from __future__ import annotations

import math
import time

from fedaudit.plan import Plan
from fedaudit.progress import Progress

TRIAL_RECORDS = 32
TRIAL_STEPS = 8
SCORED = 6  # forward passes per record: twice by the released models, four times by those of clients


def estimate(plan: Plan, progress: Progress) -> str:
    """A few lines for the terminal; nothing is written but the cached image embeddings."""
    from fedaudit.bench import federation_of, make_bench
    from trainers.base import generator, size

    missing = [cell for cell in plan.cells if not (cell.analysis_folder / "complete.json").exists()]
    untrained = [cell for cell in missing if cell.variant and not (cell.training_folder / "complete.json").exists()]
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
    cells = ", ".join(f"{cell.method} (seed {cell.seed})" for cell in plan.cells)
    lines = [f"{_count(len(plan.cells), 'audit')}: {cells}, attack {plan.attack}"]
    lines.append(f"{len(plan.cells) - len(missing)} on disk; {_count(len(untrained), 'training')} to run")
    if untrained:
        lines[-1] += (
            f": {plan.rounds} rounds, {plan.per_round} of {plan.clients} clients a round, up to {steps} steps each"
        )
        lines.append(f"{1000 * step:.0f} ms a step, measured")
    minutes = _count(max(1, math.ceil(seconds / 60)), "minute")
    lines.append(f"about {minutes} with {_count(plan.threads, 'worker')}")
    lines.append(f"up to {disk / 1e6:.0f} MB in {plan.out}")
    lines.append(f"report: {plan.report_folder / 'index.html'}")
    return "\n".join(lines)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
