"""Clients that come after a run (`--newcomers`): how good their models are before they train, and everybody's after one
round with them. A job for each way to start, whose table stays in the analysis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.workers import Workshop
from fedaudit.tasks.base import client_name
from trainers.base import Method, State
from trainers.evaluations import Personalisation
from trainers.newcomers import after_a_round, arrivals
from trainers.protocols import Bench, Naming
from trainers.transcript import Transcript

COLUMNS = ["start", "when", "test", "client", "accuracy"]
PERSONAL = "personal"  # no start, but what old clients' models say of a newcomer's test set
Job = tuple[Method[Any], Transcript, str, NDArray[np.float64]]


def newcomers(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> pd.DataFrame | None:
    """Accuracy (percent) by start, test set and client, as far as it is not in `folder`; None where nobody comes.

    `test`: "new" is the test set of a newcomer (before: the mean over these, where there are several), "local" each
    client's own, "all" the mean over all clients' own.
    """
    if not cell.plan.newcomers or cell.variant is None or not cell.variant.plugin.facts.newcomers:
        return None
    method, transcript, evaluation = (
        method_of(cell, workshop.federation.sizes),
        transcript_of(cell),
        workshop.evaluation,
    )
    assert isinstance(evaluation, Personalisation)
    weights = np.stack([evaluation.weights(k) for k in range(cell.plan.clients)])
    names = [PERSONAL, *arrivals(method, transcript)]
    todo = [name for name in names if not folder.usable(_file(name), progress.say)]
    if todo:
        executor, jobs = workshop.executor, [(method, transcript, name, weights) for name in todo]
        with progress.stage(f"newcomers of {cell.method}", len(todo)) as advance:
            for name, rows in zip(todo, executor.map(measured, jobs), strict=True):
                folder.write_table(_file(name), pd.DataFrame(rows, columns=COLUMNS))
                advance()
    return pd.concat([folder.read_table(_file(name)) for name in names], ignore_index=True)


def _file(name: str) -> str:
    return f"newcomers-{name}.parquet"


def measured(bench: Bench, job: Job) -> list[tuple[str, str, str, str, float]]:
    """The rows of one way to start."""
    method, transcript, name, weights = job
    present, clients = transcript.schedule.present, [client_name(k) for k in range(len(weights))]
    new = weights[present:].mean(0)
    if name == PERSONAL:
        hits = _hits(bench, method, [transcript.released(k) for k in range(present)])
        return [(name, "before", "new", clients[k], float(hit @ new)) for k, hit in enumerate(hits)]
    arrival = arrivals(method, transcript)[name]
    (start,) = _hits(bench, method, [method.model(arrival.start)])
    rows = [(name, "before", "new", clients[k], float(start @ weights[k])) for k in range(present, len(weights))]
    models = after_a_round(method, bench.learner, transcript, bench.training, arrival, bench.left_out)
    for k, hit in enumerate(_hits(bench, method, models)):
        own = [("local", weights[k]), ("all", weights.mean(0)), *([("new", weights[k])] if k >= present else [])]
        rows += [(name, "after", test, clients[k], float(hit @ weight)) for test, weight in own]
    return rows


def _hits(bench: Bench, method: Method[Any], models: Sequence[State]) -> NDArray[np.float64]:
    """100 where a model recognises a test image, else 0, [M, test]."""
    assert isinstance(bench.learner, Naming)
    right = bench.learner.labels(bench.test).numpy()
    found: NDArray[np.float64] = 100.0 * (bench.learner.predicted(models, bench.test, method) == right)
    return found
