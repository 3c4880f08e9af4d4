"""The first screen of a page for Python: its sentences, its verdicts as a table, and its strips as a notebook shows
them. It is made of the findings and runs of a report, as they lie on disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedaudit.reports import doubts
from fedaudit.reports.evidence import Evidence, Finding
from fedaudit.reports.headline import outcomes
from fedaudit.reports.section import Page, sections
from fedaudit.reports.sections.membership import quotable_by_threat
from fedaudit.reports.strips import reading
from fedaudit.reports.templates import render
from fedaudit.reports.verdict_cards import SYMBOLS

VERDICTS = (  # columns of the table, those of findings in the middle
    *("run", "method", "seed", "threat_model", "verdict"),
    *("signal", "value", "low", "high", "confidence", "p_adjusted", "detectable", "detectable_named"),
    *("clients", "reading"),
)
SCOPE = ".fedaudit"
STYLE = Path(__file__).parent / "first_screen_style.html"
_SELECTORS = re.compile(r"(?<=[{}])\s*([^{}@]+)(?=\{)")


def page_of(findings: Sequence[Finding], runs: Sequence[Mapping[str, Any]]) -> Page:
    """The page of a report's findings and of the rows of its runs, without its tables."""
    rows = {row["run"]: row for row in runs}
    groups: dict[tuple[str, int], list[Finding]] = {}
    for f in findings:
        groups.setdefault((f["method"], f["seed"]), []).append(f)
    return Page([_evidence(of_run, rows[of_run[0]["run"]]) for of_run in groups.values()], map)


def _evidence(findings: list[Finding], row: Mapping[str, Any]) -> Evidence:
    first = findings[0]
    return Evidence(first["method"], first["seed"], row["attacks"], first["task"], findings, {}, _nested(row), [])


def _nested(row: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in a run's row, with a dictionary for all paths that begin alike: {"method": {"rho": 0.5}}."""
    nested: dict[str, Any] = {}
    for path, value in row.items():
        *above, last = path.split(".")
        place = nested
        for name in above:
            place = place.setdefault(name, {})
        if above:
            place[last] = value
    return nested


def summary(page: Page) -> list[str]:
    """The page's first sentences: who can tell members, and how well."""
    if membership := _membership(page):
        return [membership["headline"].sentence, *membership["headline"].rest]
    return [*filter(None, [doubts.headline(page.findings)]), "Nothing was attacked."]


def verdicts(page: Page) -> pd.DataFrame:
    """A row per run and adversary with the columns `VERDICTS`, from the score that the run's strip shows: the strongest
    with that verdict, one named beforehand where there is any. `detectable` (an AUROC) and `detectable_named` (records)
    are what would have been found, `reading` is the verdict in words. What there is not is missing."""
    rows = []
    for e in page.evidence:
        for o in outcomes({e.run: quotable_by_threat(e)}):
            about = {"run": e.key, "method": e.method, "seed": e.seed, "threat_model": o.threat, "verdict": o.verdict}
            rows.append({**(o.quoted or {}), **about, "reading": reading(o)})
    return pd.DataFrame(rows, columns=list(VERDICTS))


def picture(page: Page, report: Path) -> str:
    """HTML of the page's sentences and strips, or of many runs the table of verdicts; nothing outside of it is
    needed or changed."""
    membership = _membership(page)
    strips = membership if membership and membership["in_strips"] else None
    table = verdicts(page).drop(columns="run").to_html(index=False, na_rep="") if membership and not strips else ""
    parts = {"sentences": summary(page), "membership": strips, "table": table, "report": report, "symbols": SYMBOLS}
    return render("notebook.html", parts | {"style": scoped(STYLE.read_text("utf-8"), SCOPE)}).decode()


def _membership(page: Page) -> dict[str, Any] | None:
    """The template variables of the section on membership; None if nothing was attacked."""
    section = sections(page, only=("membership",)).get("membership")
    return section.context["membership"] if section else None


def scoped(style: str, scope: str) -> str:
    """The rules of a <style> for what lies within elements of the selector `scope` only."""
    rules = re.sub(r"/\*.*?\*/|</?style>", "", style, flags=re.DOTALL)

    def within(found: re.Match[str]) -> str:
        names = (name.strip() for name in found[1].split(","))
        return ", ".join(scope if name == ":root" else f"{scope} {name}" for name in names) + " "

    return _SELECTORS.sub(within, f"}}{rules}")[1:].strip()
