"""Newcomers: what a client is worth that comes after the run, by what it starts from, beside DP2FL's Tables 3 and 4."""

from __future__ import annotations

import functools
from statistics import mean

from fedaudit.audits.utility import mean_interval
from fedaudit.reports.formats import signed
from fedaudit.reports.section import Page, Row, Section
from fedaudit.reports.sections.personal import averages

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
    """The section of accuracies of clients that join after the run; None if none joined."""
    rows = {
        method.title: [_row(page, method.label, start) for start in STARTS]
        for method in page.runs
        if any(len(e.tables.get("newcomers", ())) for e in method.evidence)
    }
    if not rows:
        return None
    seeds = max(len(method.evidence) for method in page.runs)
    links = [("newcomers", "Newcomers")]
    return Section(links, {"newcomers": rows, "newcomers_seeds": seeds}, tables=page.files("newcomers"))


def _row(page: Page, label: str, start: str) -> Row:
    """A row of the run `label` for one start (a key of `STARTS`): its `name`, `cells`, one per time and test set in
    `PLACES` (None if not measured), each the mean over seeds with the interval over seeds, or that of a single seed;
    and the `paper`'s numbers."""
    cells: list[Row | None] = []
    for place in PLACES:
        metric = "/".join(("newcomers", *place, start))
        findings = [f for f in page.findings if f["method"] == label and f["metric"] == metric]
        if not findings:
            cells.append(None)
            continue
        values = [f["value"] for f in findings]
        low, high = mean_interval(values, findings[0]["confidence"], least=-100.0 if "-" in start else 0.0)
        if len(findings) == 1:
            low, high = findings[0]["low"], findings[0]["high"]
        cells.append({"value": mean(values), "low": low, "high": high, "difference": "-" in start})
    return {"name": STARTS[start], "cells": cells, "paper": [paper(*place, start) for place in PLACES]}


def paper(when: str, test: str, start: str) -> str:
    """The paper's mean over eight data sets as printed, in percent ("" if none), by time ("before", "after"), test set
    and start; for a start "a-b" the difference of two."""
    if "-" not in start:
        return printed().get((when, test, PRINTED[start]), "")
    better, worse = (printed()[when, test, PRINTED[one]] for one in start.split("-"))
    return signed(float(better) - float(worse), 2)


@functools.cache
def printed() -> dict[tuple[str, str, str], str]:
    """The averages of Tables 3 and 4, as printed, by time, test set and model or initialization."""
    before = {("before", "new", row["model"]): row["value"] for row in averages(3)}
    return before | {("after", row["test_set"], row["initialization"]): row["value"] for row in averages(4)}
