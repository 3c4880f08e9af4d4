"""Personal audit: accuracy and macro-F1 of clients' models after the last round, beside the global model's.

Where a learner's evaluation measures them (DP2FL's Tables 1 and 2): both models on each client's own test set, and the
difference global less personal. Means over clients; the interval is Student's over these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from audits.facts import AuditFacts
from audits.findings import OfRun
from audits.settings import Confident
from audits.subject import Result, Subject
from audits.utility import over_clients

COLUMNS = ("personal/accuracy", "personal/f1", "global/accuracy", "global/f1")
GAINS = {"global-personal/accuracy": COLUMNS[::2], "global-personal/f1": COLUMNS[1::2]}


class Facts(AuditFacts):
    needs = ("classes",)


@dataclass(frozen=True)
class Params(Confident):
    """`confidence` is that of all intervals."""


def personal(subject: Subject, params: Params) -> Result:
    """How good a training's personal models are, and its global one for the same clients."""
    last = subject.transcript.round(subject.transcript.schedule.rounds - 1)["utility"]
    rows = {k: splits for k, splits in last.items() if COLUMNS[0] in splits}
    if not rows:
        return Result()
    table = pd.DataFrame([{"client": k} | {c: own.get(c, np.nan) for c in COLUMNS} for k, own in rows.items()])
    for gain, (without, against) in GAINS.items():
        table[gain] = table[against] - table[without]
    spent = subject.privacy.epsilon if subject.privacy else float("inf")
    found: list[OfRun] = []
    for metric in table.columns[1:]:
        values = table[metric].dropna().to_numpy()
        if not len(values):
            continue
        found.append(
            over_clients(
                subject.names,
                metric,
                values,
                confidence=params.confidence,
                epsilon=spent,
                least=-100.0 if metric in GAINS else 0.0,
            )
        )
    return Result(found, {"personal": table})
