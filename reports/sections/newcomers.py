"""Newcomers: what a client is worth that comes after the run, by what it starts from, beside DP2FL's Tables 3 and 4."""

from __future__ import annotations

import functools
from statistics import mean

from audits.utility import mean_interval
from reports.formats import signed
from reports.section import Page, Row, Section
from reports.sections.personal import averages

ORDER = 23
PLACES = (("before", "new"), ("after", "new"), ("after", "local"), ("after", "all"))
STARTS = {
    "global": "global model",
    "init_glo": "global task prompt, public data prompt (InitGlo)",
    "init": "public start (Init)",
    "personal": "old clients' models, mean",
    "global-init_glo": "global model − InitGlo",
    "init_glo-init": "InitGlo − Init",
}
PRINTED = {"global": "global_model", "init_glo": "init_glo", "init": "init", "personal": "local_average"}


def section(page: Page) -> Section | None:
    """Where somebody came."""
    found = {}
    for method in page.runs:
        if any(len(e.tables.get("newcomers", ())) for e in method.evidence):
            label = method.evidence[0].method
            found[method.title] = [_row(page, label, start) for start in STARTS]
    if not found:
        return None
    seeds = max(len(method.evidence) for method in page.runs)
    links = [("newcomers", "Newcomers")]
    return Section(links, {"newcomers": found, "newcomers_seeds": seeds}, tables=page.files("newcomers"))


def _row(page: Page, label: str, start: str) -> Row:
    """Of a start its number in every place, with an interval over several seeds or that of one, and the paper's."""
    cells: list[Row | None] = []
    for place in PLACES:
        metric = "/".join(("newcomers", *place, start))
        own = [f for f in page.findings if f["method"] == label and f["metric"] == metric]
        if not own:
            cells.append(None)
            continue
        values = [f["value"] for f in own]
        low, high = mean_interval(values, own[0]["confidence"], least=-100.0 if "-" in start else 0.0)
        if len(own) == 1:
            low, high = own[0]["low"], own[0]["high"]
        cells.append({"value": mean(values), "low": low, "high": high, "difference": "-" in start})
    return {"name": STARTS[start], "cells": cells, "paper": [paper(*place, start) for place in PLACES]}


def paper(when: str, test: str, start: str) -> str:
    """The paper's mean over eight data sets; of a difference, that of its means."""
    if "-" not in start:
        return printed().get((when, test, PRINTED[start]), "")
    better, worse = (printed()[when, test, PRINTED[one]] for one in start.split("-"))
    return signed(float(better) - float(worse), 2)


@functools.cache
def printed() -> dict[tuple[str, str, str], str]:
    """The averages of Tables 3 and 4 by when, test set and model."""
    before = {("before", "new", row["model"]): row["value"] for row in averages(3)}
    return before | {("after", row["test_set"], row["initialization"]): row["value"] for row in averages(4)}
