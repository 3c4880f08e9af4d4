"""One self-contained page per audit, with its findings, figures and data as files beside it.

The same evidence gives the same bytes: no times, no paths, no random identifiers. Numbers are shown as they come;
nothing is computed here but corrected p-values and the verdicts that follow from them, means over seeds, differences
and the choice of the rows that a card quotes. The page is a list of sections (`reports.section`), each there when the
evidence has findings or tables for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from audits.run_comparison import Compared
from reports.evidence import METRICS, TABLES, Evidence, Finding, check
from reports.figures.drawing import Each
from reports.formats import listed, plain
from reports.judged import with_verdicts
from reports.places import places
from reports.runs import entries, runs
from reports.section import Page, Section, sections
from reports.templates import Write, csv, render, write_drawings
from reports.verdict_cards import SYMBOLS

__all__ = ["TABLES", "Evidence", "build"]

MANY = 6  # runs that fit beside each other as columns


def build(
    evidence: Sequence[Evidence],
    write: Write,
    *,
    each: Each = map,
    across: Mapping[str, Compared] = MappingProxyType({}),
) -> None:
    """Write the report of one task and attack, of one or more methods and seeds, through `write(name, bytes)`; `each`
    may draw in parallel, `across` is what audits say that compare all runs.

    The page `index.html` comes last, when all that it names is there. ValueError as of `check`, before anything is
    written.
    """
    check(evidence)
    evidence = with_verdicts(evidence)
    findings = [finding for e in evidence for finding in e.findings]
    records = {"findings": findings, "runs": runs(evidence)}
    for name, rows in records.items():
        write(f"{name}.json", (json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    page = Page(evidence, each, across)
    shown = sections(page)
    tables = {name: pd.DataFrame(rows) for name, rows in records.items()}
    for section in shown.values():
        tables |= section.tables
    for name, table in tables.items():
        write(f"{name}.csv", csv(table))
    for section in shown.values():
        for name, table in section.beside.items():
            write(f"figures/{name}.csv", csv(table))
        write_drawings(section.drawn.values(), write)
    data = [*(f"{name}.json" for name in records), *(f"{name}.csv" for name in tables)]
    write("index.html", _rendered(page, shown, data))


def _rendered(page: Page, shown: Mapping[str, Section], data: Sequence[str]) -> bytes:
    evidence = page.evidence
    said = {"membership": "membership leakage", "utility": "utility", "privacy": "privacy"}
    about = listed([words for name, words in said.items() if name in shown])
    parts: dict[str, Any] = {
        "task": evidence[0].task,
        "attack": evidence[0].attack,
        "seeds": sorted({e.seed for e in evidence}),
        "about": about[:1].upper() + about[1:],
        "names": list(dict.fromkeys(v.name for v in page.runs)),
        "setting": _setting(evidence),
        "intervals": _intervals(page.findings),
        "notes": list(dict.fromkeys(note for e in evidence for note in e.notes)),
        "data": data,
        "left_out": page.few[1],
        "several": any(len(v.evidence) > 1 for v in page.runs),
        "symbols": SYMBOLS,
        "metrics": METRICS,
        "shown": list(shown),
        "links": [link for section in shown.values() for link in section.links],
        "drawn": {name: figure for section in shown.values() for name, figure in section.drawn.items()},
        **dict.fromkeys(places()),  # so that templates can ask for a section that is not there
    }
    for section in shown.values():
        parts |= section.context
    return render("report.html", parts)


def _setting(evidence: Sequence[Evidence]) -> dict[str, Any]:
    """The configuration flattened: one value where all runs share it, else a row per entry, or per run if those are
    many."""
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
