"""Clients that join after a run (`--newcomers`): accuracy of their models before they train, and of everybody's after
one round with them. Each start (model that newcomers begin with) is one job, and its table stays in the analysis."""

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
from fedaudit.trainers.base import Method, State
from fedaudit.trainers.evaluations import Personalisation
from fedaudit.trainers.newcomers import after_a_round, arrivals
from fedaudit.trainers.protocols import Bench, Naming
from fedaudit.trainers.transcript import Transcript

COLUMNS = ["start", "when", "test", "client", "accuracy"]
PERSONAL = "personal"  # instead of a start: the old clients' models on the newcomers' test sets
Job = tuple[Method[Any], Transcript, str, NDArray[np.float64]]


def newcomer_accuracies(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> pd.DataFrame | None:
    """Accuracies in percent with newcomers, a row per start, time, test set and client (columns start, when, test,
    client, accuracy); None without newcomers, or if the method does not take any. Tables in `folder` are not computed
    again.

    `start` is the model that newcomers begin with, or "personal": old clients' own models. `when` is "before" or
    "after" the round with newcomers. `test` is "local" (the client's own test set), "all" (mean over all clients' own)
    or "new": a newcomer's own; for "personal", the mean over newcomers.
    """
    if not cell.plan.newcomers or cell.variant is None or not cell.variant.plugin.facts.newcomers:
        return None
    method, transcript = method_of(cell, workshop.federation.sizes), transcript_of(cell)
    evaluation = workshop.evaluation
    assert isinstance(evaluation, Personalisation)
    weights = np.stack([evaluation.weights(k) for k in range(cell.plan.clients)])
    names = [PERSONAL, *arrivals(method, transcript)]
    todo = [name for name in names if not folder.usable(_file(name), progress.say)]
    if todo:
        executor, jobs = workshop.executor, [(method, transcript, name, weights) for name in todo]
        with progress.stage(f"newcomers join {cell.method}", len(todo), "way of joining") as advance:
            for name, rows in zip(todo, executor.map(measure, jobs), strict=True):
                folder.write_table(_file(name), pd.DataFrame(rows, columns=COLUMNS))
                advance()
    return pd.concat([folder.read_table(_file(name)) for name in names], ignore_index=True)


def _file(name: str) -> str:
    return f"newcomers-{name}.parquet"


def measure(bench: Bench, job: Job) -> list[tuple[str, str, str, str, float]]:
    """The accuracies in percent for one start, as tuples (start, when, test, client, accuracy). Runs in a worker; a job
    is (method, transcript, start, weights [clients, test records])."""
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
        tests = [("local", weights[k]), ("all", weights.mean(0)), *([("new", weights[k])] if k >= present else [])]
        rows += [(name, "after", test, clients[k], float(hit @ weight)) for test, weight in tests]
    return rows


def _hits(bench: Bench, method: Method[Any], models: Sequence[State]) -> NDArray[np.float64]:
    """100 where a model classifies a test record correctly, else 0, [models, test records]."""
    assert isinstance(bench.learner, Naming)
    labels = bench.learner.labels(bench.test).numpy()
    return 100.0 * (bench.learner.predicted(models, bench.test, method) == labels)
