"""Personal and global: clients' own models beside the global one, and what DP2FL prints of both."""

from __future__ import annotations

import functools
from statistics import mean, stdev
from typing import Any

from fedaudit.reports import printed_table
from fedaudit.reports.section import Page, Section

ORDER = 22
SHOWN = ("personal/accuracy", "personal/f1", "global/accuracy", "global-personal/accuracy")
OF_PAPER = ("accuracy", "micro_f1", "difference")
PRINTED = {"local": "Local", "fedprox": "FP+P", "pfedme": "pF+P", "dp2fl": "DP2FL"}  # as Table 1 calls them


def section(page: Page) -> Section | None:
    """The section of accuracies of personal and global models; None if they were not measured."""
    measured = dict.fromkeys(f["method"] for f in page.findings if f["metric"] == SHOWN[0])
    if not measured:
        return None
    titles = {e.method: v.title for v in page.runs for e in v.evidence}
    rows = [_row(page, label) | {"name": titles[label]} for label in measured]
    links = [("personal", "Personal and global")]
    return Section(links, {"personal": rows}, tables=page.files("personal"))


def _row(page: Page, label: str) -> dict[str, Any]:
    """A row of the run `label`: `cells` with the mean over seeds of each metric in `SHOWN` (None if not measured), with
    the standard deviation of several seeds or the interval of one; and the `paper`'s numbers."""
    cells = []
    for metric in SHOWN:
        findings = [f for f in page.findings if f["method"] == label and f["metric"] == metric]
        values = [f["value"] for f in findings]
        single = len(findings) == 1 and findings[0]["low"] is not None
        bounds = (findings[0]["low"], findings[0]["high"]) if single else None
        spread = stdev(values) if len(values) > 1 else None
        cells.append({"value": mean(values), "bounds": bounds, "sd": spread} if values else None)
    paper = printed().get(label.partition(":")[0], {})
    return {"cells": cells, "paper": [paper.get(name, "") for name in OF_PAPER]}


@functools.cache
def printed() -> dict[str, dict[str, str]]:
    """The paper's averages over eight data sets as printed, {method: {metric: number}}, with accuracy and micro_f1; for
    dp2fl also Table 2's global and difference (global minus local)."""
    by_method: dict[str, dict[str, str]] = {}
    names = {theirs: ours for ours, theirs in PRINTED.items()}
    for row in averages(1):
        by_method.setdefault(names[row["method"]], {})[row["metric"]] = row["value"]
    means = {row["model"]: row["value"] for row in averages(2)}
    by_method["dp2fl"] |= {"global": means["global_model"], "difference": means["global_minus_local"]}
    return by_method


def averages(number: int) -> list[dict[str, str]]:
    """The rows of DP2FL's Table `number` that the paper prints as averages over its data sets."""
    table = printed_table.printed(f"dp2fl_table{number}")
    rows: list[dict[str, str]] = table[table.dataset == "AVG"].to_dict("records")
    return rows
