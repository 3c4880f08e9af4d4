"""Personal audit: accuracy and macro-F1 of clients' models after the last round, beside the global model's.

For learners whose evaluation measures them (DP2FL's Tables 1 and 2): both models on each client's own test set, and the
difference global less personal. Means over clients with Student's interval over these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.settings import Confident
from fedaudit.audits.subject import Result, Subject
from fedaudit.audits.utility import columns_over_clients

COLUMNS = ("personal/accuracy", "personal/f1", "global/accuracy", "global/f1")
GAINS = {"global-personal/accuracy": COLUMNS[::2], "global-personal/f1": COLUMNS[1::2]}


class Facts(AuditFacts):
    needs = ("classes",)


@dataclass(frozen=True)
class Params(Confident):
    """`confidence` is that of all intervals."""


def personal(subject: Subject, params: Params) -> Result:
    """Findings of the mean accuracy and F1 of personal models, of the global one, and of the global one's gains; the
    table `personal` in percent, a row per client. Empty if the evaluation does not measure them."""
    last = subject.transcript.round(subject.transcript.schedule.rounds - 1)["utility"]
    rows = {k: splits for k, splits in last.items() if COLUMNS[0] in splits}
    if not rows:
        return Result()
    table = pd.DataFrame([{"client": k} | {c: splits.get(c, np.nan) for c in COLUMNS} for k, splits in rows.items()])
    for gain, (personal_column, global_column) in GAINS.items():
        table[gain] = table[global_column] - table[personal_column]
    findings = columns_over_clients(subject, table.drop(columns="client"), GAINS, params.confidence)
    return Result(findings, {"personal": table})
