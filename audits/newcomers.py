"""Newcomers: accuracy of the models that a client which joins after the run may start from (`--newcomers`).

For methods that say what these starts are (DP2FL's Tables 3 and 4): before the newcomer trains, on its own test set;
after one round of all clients, on the newcomer's, each client's own, and everybody's test set. The metric of a finding
is `newcomers/WHEN/TEST/START`; START is also BETTER-WORSE, the difference between a start and the next one. Means over
clients with Student's interval over these; a single newcomer has none (the page then shows one over seeds).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.settings import Confident
from fedaudit.audits.subject import Result, Subject
from fedaudit.audits.utility import columns_over_clients


class Facts(AuditFacts):
    needs = ("classes",)


@dataclass(frozen=True)
class Params(Confident):
    """`confidence` is that of all intervals."""


def newcomers(subject: Subject, params: Params) -> Result:
    """Findings of clients that joined after the run, by when they are tested and on what: the mean accuracy of every
    start, and its difference to the next start, of those that were tested after training too; and the table
    `newcomers`. Empty if no client joined."""
    table = subject.newcomers
    if table is None:
        return Result()
    starts = [start for start in dict.fromkeys(table.start) if start in set(table.start[table.when == "after"])]
    findings = []
    for (when, test), rows in table.groupby(["when", "test"], sort=False):
        accuracies = rows.pivot(index="client", columns="start", values="accuracy")
        for better, worse in itertools.pairwise(starts):
            accuracies[f"{better}-{worse}"] = accuracies[better] - accuracies[worse]
        prefix, differences = f"newcomers/{when}/{test}/", [start for start in accuracies if "-" in start]
        findings += columns_over_clients(subject, accuracies, differences, params.confidence, prefix)
    return Result(findings, {"newcomers": table})
