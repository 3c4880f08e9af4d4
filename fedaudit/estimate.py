"""What a plan would run, how long and how much disk: `--dry-run`. Times are measured here, on the plan's own model."""

from __future__ import annotations

import math
import time

from fedaudit.plan import Plan
from fedaudit.progress import Progress

TRIAL_RECORDS = 32


def estimate(plan: Plan, progress: Progress) -> str:
    """A few lines for the terminal; nothing is written but the cached image embeddings."""
    from fedaudit.run import make_bench
    from trainers.base import generator, size

    missing = [cell for cell in plan.cells if not (cell.analysis_folder / "complete.json").exists()]
    untrained = [cell for cell in missing if not (cell.training_folder / "complete.json").exists()]
    with progress.stage("timing a step on this machine", 1) as advance:
        bench = make_bench(plan)
        state = bench.learner.initial(generator(0, "estimate"))
        steps = plan.settings.local_steps
        started = time.perf_counter()
        bench.learner.train(state, bench.training[0], generator(0, "estimate"))
        step = (time.perf_counter() - started) / steps
        started = time.perf_counter()
        bench.learner.evaluate(state, bench.test)
        utility = time.perf_counter() - started
        some = list(bench.learner.data)[:TRIAL_RECORDS]
        started = time.perf_counter()
        bench.learner.logits(state, some)
        score = (time.perf_counter() - started) / len(some)
        advance()
    waves = math.ceil(plan.per_round / plan.threads)
    training = plan.rounds * (waves * (step * steps + utility) + utility)
    everything = len(bench.learner.data)
    per_client = len(bench.learner.data) / plan.clients
    scoring = score * (2 * everything + 4 * plan.clients * per_client) / plan.threads
    seconds = len(untrained) * training + len(missing) * scoring
    disk = len(untrained) * plan.rounds * (1 + plan.per_round * 2) * size(state)
    cells = ", ".join(f"{cell.method} (seed {cell.seed})" for cell in plan.cells)
    return "\n".join(
        [
            f"{len(plan.cells)} audits: {cells}, attack {plan.attack}",
            f"{len(plan.cells) - len(missing)} of them are on disk; {len(untrained)} trainings are to run: "
            f"{plan.rounds} rounds, {plan.per_round} of {plan.clients} clients a round, {steps} steps each",
            f"about {max(1, math.ceil(seconds / 60))} minutes with {plan.threads} workers "
            f"({1000 * step:.0f} ms a step, measured)",
            f"up to {disk / 1e6:.0f} MB in {plan.out}",
            f"report: {plan.report_folder / 'index.html'}",
        ]
    )
