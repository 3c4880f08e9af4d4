"""The sections of a page: each is a file of reports/sections/ with a function `section(page)`, which returns a
`Section` or None where the evidence has nothing for it, whatever was trained.

The file's docstring says what the section shows, its literal `ORDER` gives the position on the page, and the template
reports/NAME.html has its name. Imports nothing heavy.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedaudit.reports.section_files import PACKAGE, section_files

if TYPE_CHECKING:
    import pandas as pd

    from fedaudit.audits.run_comparison import Compared
    from fedaudit.reports.evidence import Evidence, Finding
    from fedaudit.reports.figures.drawing import Each, PrintedFigure
    from fedaudit.reports.rows import MethodRow

Row = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """One part of a page: `links` are its headings (anchor, title), `context` holds template variables by name."""

    links: Sequence[tuple[str, str]] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, PrintedFigure] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # written as NAME.csv beside the page
    figure_tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # written as figures/NAME.csv


@dataclass(frozen=True, eq=False)
class Page:
    """The evidence as sections ask for it. A run here is a method with one setting and all its seeds; its tables and
    figures are those of the first seed."""

    evidence: Sequence[Evidence]
    each: Each  # works as `map`, maybe in parallel
    across: Mapping[str, Compared] = field(default_factory=dict)  # results of audits that compare runs, by audit

    @functools.cached_property
    def findings(self) -> list[Finding]:
        return [finding for e in self.evidence for finding in e.findings]

    @functools.cached_property
    def runs(self) -> list[MethodRow]:
        from fedaudit.reports.rows import variants

        return variants(self.evidence)

    @functools.cached_property
    def _selection(self) -> tuple[list[MethodRow], str]:
        from fedaudit.reports.rows import select_detailed

        return select_detailed(self.runs)

    @property
    def detailed(self) -> list[MethodRow]:
        """The runs that figures and tables of single records show: all, or some of many (`rows.select_detailed`)."""
        return self._selection[0]

    @property
    def left_out(self) -> str:
        """A sentence about the runs that are not among `detailed`; empty if all are."""
        return self._selection[1]

    @property
    def titles(self) -> list[str]:
        """The names of the detailed runs, as figures and tables call them."""
        return [v.title for v in self.detailed]

    @functools.cached_property
    def looks(self) -> list[Row]:
        """`name`, `symbol` and `colour` of every run, as figures draw it; an empty symbol for runs left out of them."""
        from fedaudit.reports.figures.drawing import INK, mark

        titles = self.titles
        none = {"symbol": "", "colour": INK}
        return [{"name": v.title} | (mark(titles, v.title) if v.title in titles else none) for v in self.runs]

    def table(self, name: str, *, seeds: int | None = 1) -> pd.DataFrame:
        """The table `name` of detailed runs, of the first `seeds` seeds of each (None: of all); its column `method`
        holds a run's title."""
        from fedaudit.reports.evidence import concat_table

        return concat_table([replace(e, method=v.title) for v in self.detailed for e in v.evidence[:seeds]], name)

    def files(self, *names: str) -> dict[str, pd.DataFrame]:
        """Tables of all runs and seeds by name, to be written as CSV; those without rows are left out."""
        from fedaudit.reports.evidence import concat_table

        return {name: table for name in names if len(table := concat_table(self.evidence, name))}

    def parts(self, name: str, show: Callable[[pd.DataFrame], Any]) -> list[Row]:
        """`name` (the title) and `shown`, the result of `show(table)`, for detailed runs with rows in the table."""
        tables = {v.title: v.evidence[0].tables.get(name, ()) for v in self.detailed}
        return [{"name": title, "shown": show(table)} for title, table in tables.items() if len(table)]

    def shared_rows(self, name: str) -> list[Row]:
        """The first seed's `rows` of the table `name`, once for all runs that have the same rows, with the `names` of
        these runs; names are empty where it is all of the page's runs. Runs without rows are left out."""
        parts: list[Row] = []
        tables = {v.title: v.evidence[0].tables.get(name, ()) for v in self.runs}
        for title, rows in ((title, table.to_dict("records")) for title, table in tables.items() if len(table)):
            same = next((part for part in parts if part["rows"] == rows), None)
            if same is None:
                parts.append({"names": [title], "rows": rows})
            else:
                same["names"].append(title)
        return [part | {"names": [] if len(part["names"]) == len(self.runs) else part["names"]} for part in parts]


def sections(page: Page, only: Container[str] | None = None) -> dict[str, Section]:
    """The sections for which the page has something to show, by name in page order; `only` restricts them by name."""
    names = [name for name in section_files() if only is None or name in only]
    results = {name: importlib.import_module(f"{PACKAGE}.{name}").section(page) for name in names}
    return {name: section for name, section in results.items() if section is not None}


def template_parts(filled: Mapping[str, Section]) -> dict[str, Any]:
    """Template variables of a page with these sections: `shown` (the sections' names), `links`, `drawn` (all figures by
    name) and every section's own context."""
    parts: dict[str, Any] = {
        "shown": list(filled),
        "links": [link for section in filled.values() for link in section.links],
        "drawn": {name: figure for section in filled.values() for name, figure in section.drawn.items()},
    }
    for section in filled.values():
        parts |= section.context
    return parts
