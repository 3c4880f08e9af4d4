"""What a page is made of: sections, each a file of reports/sections/ that defines `section`; each is there when what it
shows is, whatever was trained.

A section's file says in its docstring what it shows, and in the literal `ORDER` where on the page it stands. Its
template has its name. Imports nothing heavy.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from reports.places import PACKAGE, places

if TYPE_CHECKING:
    import pandas as pd

    from audits.run_comparison import Compared
    from reports.evidence import Evidence, Finding
    from reports.figures.drawing import Each, PrintedFigure
    from reports.rows import MethodRow

Row = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """One part of a page: `links` are its headings (anchor, words), `context` what templates call by name."""

    links: Sequence[tuple[str, str]] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, PrintedFigure] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # which become CSV files beside the page
    beside: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # the same among the figures' data


@dataclass(frozen=True, eq=False)
class Page:
    """What a section is made of: runs, each a method with one setting, whose tables and figures are those of its first
    seed."""

    evidence: Sequence[Evidence]
    each: Each  # as `map`, maybe in parallel
    across: Mapping[str, Compared] = field(default_factory=dict)  # what audits say that compare all runs

    @functools.cached_property
    def findings(self) -> list[Finding]:
        return [finding for e in self.evidence for finding in e.findings]

    @functools.cached_property
    def runs(self) -> list[MethodRow]:
        from reports.rows import variants

        return variants(self.evidence)

    @functools.cached_property
    def few(self) -> tuple[list[MethodRow], str]:
        """The runs that are shown record by record, and in words which were left out."""
        from reports.rows import few

        return few(self.runs)

    @property
    def shown(self) -> list[MethodRow]:
        return self.few[0]

    @property
    def titles(self) -> list[str]:
        return [v.title for v in self.shown]

    @functools.cached_property
    def looks(self) -> list[Row]:
        """Name, symbol and colour of every run, as figures draw it; no symbol for those that they leave out."""
        from reports.figures.drawing import INK, mark

        place = {title: i for i, title in enumerate(self.titles)}
        none = {"symbol": "", "colour": INK}
        return [{"name": v.title} | (mark(place[v.title]) if v.title in place else none) for v in self.runs]

    def table(self, name: str, *, seeds: int | None = 1) -> pd.DataFrame:
        """A table of the runs that are shown under each other, `method` being what they are called; of the first, of so
        many or of all (None) seeds."""
        from reports.evidence import joined

        return joined([replace(e, method=v.title) for v in self.shown for e in v.evidence[:seeds]], name)

    def files(self, *names: str) -> dict[str, pd.DataFrame]:
        """The whole tables, of all runs and seeds, as they become files; those without a row are left out."""
        from reports.evidence import joined

        return {name: table for name in names if len(table := joined(self.evidence, name))}

    def parts(self, name: str, show: Callable[[pd.DataFrame], Any]) -> list[Row]:
        """What `show` makes of a table, for every shown run that has it."""
        given = {v.title: v.evidence[0].tables.get(name, ()) for v in self.shown}
        return [{"name": title, "shown": show(table)} for title, table in given.items() if len(table)]

    def alike(self, name: str) -> list[Row]:
        """The rows of a table of all runs; those whose rows are the same share them, and are named only where not all
        are."""
        parts: list[Row] = []
        given = {v.title: v.evidence[0].tables.get(name, ()) for v in self.runs}
        held = {title: table.to_dict("records") for title, table in given.items() if len(table)}
        for title, rows in held.items():
            same = next((other for other in parts if other["rows"] == rows), None)
            if same is None:
                parts.append({"names": [title], "rows": rows})
            else:
                same["names"].append(title)
        return [part | {"names": [] if len(part["names"]) == len(self.runs) else part["names"]} for part in parts]


def sections(page: Page, only: Container[str] | None = None) -> dict[str, Section]:
    """The sections that the evidence fills, by name, in order; of all, or `only` of these."""
    found: dict[str, Section | None] = {
        name: importlib.import_module(f"{PACKAGE}.{name}").section(page)
        for name in places()
        if only is None or name in only
    }
    return {name: section for name, section in found.items() if section is not None}
