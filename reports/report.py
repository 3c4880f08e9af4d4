"""One self-contained page per audit, with its findings, figures and data as files beside it.

The same evidence gives the same bytes: no times, no paths, no random identifiers. Numbers are shown as they come; nothing is
computed here but means over seeds, differences and the choice of the rows that a card quotes. A part of the page is there when the evidence has
findings or tables for it: membership where something was attacked, utility and privacy where prompts were trained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports.figures import membership as figures
from reports.figures.drawing import Each, PrintedFigure
from reports.formats import plain
from reports.inputs import TABLES, Evidence, Finding, about_membership, check, joined
from reports.runs import entries, runs
from reports.sections import inference, leakage, prompts
from reports.sections import inference_tables as inferencetables
from reports.templates import Write, csv, render, write_drawings

__all__ = ["TABLES", "Evidence", "build"]

MANY = 6  # runs that fit beside each other as columns


def build(evidence: Sequence[Evidence], write: Write, *, each: Each = map) -> None:
    """Write the report of one task and attack, of one or more methods and seeds, through `write(name, bytes)`; `each` may draw in parallel.

    The page `index.html` comes last, when all that it names is there. ValueError as of `check`, before anything is written.
    """
    check(evidence)
    findings = [finding for e in evidence for finding in e.findings]
    records = {"findings": findings, "runs": runs(evidence)}
    for name, rows in records.items():
        write(f"{name}.json", (json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    attacked = inference.page(evidence)
    tables = {name: pd.DataFrame(rows) for name, rows in records.items()}
    tables |= _tables(evidence, findings, prompts=attacked is not None)
    for name, table in tables.items():
        write(f"{name}.csv", csv(table))
    data = [*(f"{name}.json" for name in records), *(f"{name}.csv" for name in tables)]
    parts: dict[str, Any] = {"data": data, "membership": bool(about_membership(findings))}
    drawn: dict[str, PrintedFigure | None] = {}
    if attacked:
        drawn |= attacked.drawn
        if len(exposed := joined(evidence, "exposed")):
            write("figures/exposed.csv", csv(exposed.drop(columns="png")))
    elif parts["membership"]:
        methods, first = list(dict.fromkeys(e.method for e in evidence)), _first(evidence)
        shown = {name: joined(first, name) for name in TABLES}
        drawn |= figures.draw(shown, methods, leakage.signals(findings), each=each)
        write("figures/exposed.csv", csv(shown["exposed"].drop(columns="png")))
        parts |= leakage.context(evidence, first, shown)
    page = prompts.page(evidence, tables, drawn)
    drawn |= page.drawn if page else {}
    write_drawings(drawn.values(), write)
    write("index.html", _page(evidence, findings, parts | {"drawn": drawn, "prompts": page, "inference": attacked}))


def _tables(evidence: Sequence[Evidence], findings: Sequence[Finding], *, prompts: bool) -> dict[str, pd.DataFrame]:
    """What stands beside the findings as CSV."""
    tables = {}
    if prompts:
        tables = inferencetables.data(evidence)
    elif about_membership(findings):
        tables = {"cells": joined(evidence, "cells")}
    return tables | {n: t for n in ("accuracy", "privacy", "noise") if len(t := joined(evidence, n))}


def _first(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Of every method the first seed: what the tables and figures about membership show."""
    methods = dict.fromkeys(e.method for e in evidence)
    return [next(e for e in evidence if e.method == method) for method in methods]


def _page(evidence: Sequence[Evidence], findings: Sequence[Finding], parts: dict[str, Any]) -> bytes:
    page = parts["prompts"]
    about = {
        "task": evidence[0].task,
        "attack": evidence[0].attack,
        "seeds": sorted({e.seed for e in evidence}),
        "names": page.methods if page else list(dict.fromkeys(e.method for e in evidence)),
        "setting": _setting(evidence),
        "intervals": _intervals(findings),
        "notes": list(dict.fromkeys(note for e in evidence for note in e.notes)),
    }
    if parts["inference"]:
        about |= {name: getattr(parts["inference"], name) for name in ("symbols", "several", "metrics")}
    return render("report.html", parts | about)


def _setting(evidence: Sequence[Evidence]) -> dict[str, Any]:
    """The configuration flattened: one value where all runs share it, else a row per entry, or per run if those are many."""
    flat = [flattened(e.setting) for e in evidence]
    names = list(dict.fromkeys(name for one in flat for name in one))
    rows = [(name, [one.get(name, "n/a") for one in flat]) for name in names]
    differing = [(name, values) for name, values in rows if len(set(values)) > 1]
    runs, head, body = [e.run for e in evidence], ["Entry"], differing
    if len(runs) > MANY:
        head += [name for name, _ in differing]
        body = [(run, [values[i] for _, values in differing]) for i, run in enumerate(runs)]
        head[0] = "Run"
    else:
        head += runs
    shared = [(name, values[0]) for name, values in rows if len(set(values)) == 1]
    return {"shared": shared, "head": head, "differing": body if differing else []}


def flattened(value: dict[str, Any]) -> dict[str, str]:
    """The entries of a nested configuration as they are shown, by their path."""
    return {path: plain(entry) for path, entry in entries(value).items()}


def _intervals(findings: Sequence[Finding]) -> list[tuple[str, list[str]]]:
    """How the intervals of each metric were made."""
    made: dict[str, list[str]] = {}
    for f in (f for f in findings if "interval" in f):
        if f["interval"] not in made.setdefault(f["metric"], []):
            made[f["metric"]].append(f["interval"])
    return list(made.items())
