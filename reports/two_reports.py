"""Write the page of two reports beside each other: what each says, verdicts, epsilon, utility, and their differences.

Verdicts are those of the reports, each corrected for its own scores; only differences are corrected on this page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaudit.audits.differences import quantity, sentences
from fedaudit.audits.run_comparison import UTILITIES, AuditedRun, Compared, utilities
from fedaudit.reports.archive import self_contained
from fedaudit.reports.epsilon_cards import cards
from fedaudit.reports.notebook import summary
from fedaudit.reports.section import Page, Row
from fedaudit.reports.sections.differences import digits, parts
from fedaudit.reports.sections.membership import quotable_by_threat
from fedaudit.reports.strips import strips
from fedaudit.reports.templates import Write, csv, render
from fedaudit.reports.verdict_cards import SYMBOLS
from fedaudit.terms.threat_models import THREAT_MODELS


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two reports: its `name` on this page, the name of its folder (`report`), the trainings of each setting
    by the setting's name, the report's own `page` without its tables, and the note on how it was made ({}: not
    known)."""

    name: str
    report: str
    settings: Mapping[str, Sequence[AuditedRun]]
    page: Page
    note: Mapping[str, Any]

    @property
    def runs(self) -> list[AuditedRun]:
        """All trainings."""
        return [run for runs in self.settings.values() for run in runs]

    @property
    def titles(self) -> dict[str, str]:
        """By setting its name for readers."""
        return {v.label: v.title for v in self.page.runs}


def build(sides: Sequence[Side], compared: Compared, write: Write) -> None:
    """Write differences.csv and, last, index.html through `write(name, bytes)`. `compared` has the table `differences`,
    whose settings are called "A: LABEL" by the side's name."""
    names = {f"{s.name}: {label}": f"{title} in {s.name}" for s in sides for label, title in s.titles.items()}
    table = compared.tables["differences"]
    lines = sentences(table.replace({"a": names, "b": names}), float(table.confidence.iloc[0]))
    write = self_contained(write)
    write("differences.csv", csv(table))
    context = {
        "title": lines[0] if lines else "Two reports beside each other",
        "sides": [_side(side) for side in sides],
        "threats": [*_verdicts(sides)],
        "epsilon": any(card["lines"] for side in sides for card in cards(side.page.runs)),
        "utility": _utility(sides),
        "differences": parts(compared, names) | {"sentences": lines[1:]},
        "task": sides[0].runs[0].setting["task"],
        "symbols": SYMBOLS,
    }
    write("index.html", render("two_reports.html", context))


def _side(side: Side) -> Row:
    """The template variables of one report: what it says first, of what, when it was made, and its cards of epsilon."""
    first, *rest = summary(side.page)
    return {
        "name": side.name,
        "report": side.report,
        "sentence": first,
        "rest": rest,
        "settings": [*side.titles.values()],
        "attack": side.page.evidence[0].attack,
        "seeds": sorted({run.seed for run in side.runs}),
        "note": side.note if "finished" in side.note else None,
        "cards": cards(side.page.runs),
    }


def _verdicts(sides: Sequence[Side]) -> Iterator[Row]:
    """Yield a block per adversary with the strips of all settings of both reports, as each report draws them."""
    quoted = {f"{v.title} in {side.name}": quotable_by_threat(v.evidence[0]) for side in sides for v in side.page.runs}
    drawn = strips(quoted, {})
    for threat in THREAT_MODELS:
        if of_threat := [strip for strip in drawn if strip["threat"] == threat]:
            yield {"who": of_threat[0]["who"], "strips": of_threat}


def _utility(sides: Sequence[Side]) -> Row:
    """Rows of settings with the utility of their first training, and the utilities that any of them has."""
    rows = [
        {"setting": f"{side.titles[label]} in {side.name}", "by": utilities(runs[0])}
        for side in sides
        for label, runs in side.settings.items()
    ]
    names = [name for name in UTILITIES if any(name in row["by"] for row in rows)]
    return {"rows": rows, "names": [(name, quantity(name), digits(name)) for name in names]}
