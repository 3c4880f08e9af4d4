"""Newcomers: how good the models are that a client may start from that comes after the run (`--newcomers`).

Where a method says what these are (DP2FL's Tables 3 and 4): before it trains, on its own test set; after one round of
all, on the newcomer's, each client's own, and everybody's. In `findings` the metric is `newcomers/WHEN/TEST/START`, and
START also the difference of a start and the supposedly next best. Means over clients; the interval is Student's over
these, and there is none of a single newcomer: that is over several seeds, on the page.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from audits.facts import AuditFacts
from audits.findings import OfRun
from audits.settings import Confident
from audits.subject import Result, Subject
from audits.utility import over_clients


class Facts(AuditFacts):
    needs = ("classes",)


@dataclass(frozen=True)
class Params(Confident):
    """`confidence` is that of all intervals."""


def newcomers(subject: Subject, params: Params) -> Result:
    """What every start is worth, and how much more than the next."""
    table = subject.newcomers
    if table is None:
        return Result()
    starts = [start for start in dict.fromkeys(table.start) if start in set(table.start[table.when == "after"])]
    spent = subject.privacy.epsilon if subject.privacy else float("inf")
    found: list[OfRun] = []
    for (when, test), rows in table.groupby(["when", "test"], sort=False):
        of_clients = rows.pivot(index="client", columns="start", values="accuracy")
        for better, worse in itertools.pairwise(starts):
            of_clients[f"{better}-{worse}"] = of_clients[better] - of_clients[worse]
        for start in of_clients:
            values = of_clients[start].dropna().to_numpy()
            found.append(
                over_clients(
                    subject.names,
                    f"newcomers/{when}/{test}/{start}",
                    values,
                    confidence=params.confidence,
                    epsilon=spent,
                    least=-100.0 if "-" in start else 0.0,
                )
            )
    return Result(found, {"newcomers": table})
