"""What a page is made of: sections, each a file of reports/sections/ that defines `section`; each is there when what it
shows is.

A section's file says in its docstring what it shows, and in the literal `ORDER` where on the page it stands. Its
template has its name. Imports nothing heavy.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery import plugins

if TYPE_CHECKING:
    import pandas as pd

    from reports.figures.drawing import Each, PrintedFigure
    from reports.inputs import Evidence, Finding

PACKAGE = "reports.sections"


@dataclass(frozen=True)
class Section:
    """One part of a page: `links` are its headings (anchor, words), `context` what templates call by name."""

    links: Sequence[tuple[str, str]] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, PrintedFigure | None] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # which become CSV files beside the page
    beside: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # the same among the figures' data


@dataclass(frozen=True, eq=False)
class Page:
    """What a section is made of."""

    evidence: Sequence[Evidence]
    each: Each
    above: Mapping[str, Section]  # the sections that stand above, by name

    @functools.cached_property
    def findings(self) -> list[Finding]:
        return [finding for e in self.evidence for finding in e.findings]

    @property
    def attacked(self) -> bool:
        """Whether anything is said about membership."""
        from reports.inputs import about_membership

        return bool(about_membership(self.findings))

    @property
    def first(self) -> list[Evidence]:
        """Of every method the first seed: what tables and figures show."""
        methods = dict.fromkeys(e.method for e in self.evidence)
        return [next(e for e in self.evidence if e.method == method) for method in methods]


def places() -> dict[str, Path]:
    """The files of sections by name, in the order in which they stand on a page."""
    files = plugins.package_folder(PACKAGE).glob("*.py")
    found = {path: place for path in files if (place := plugins.literal(path, "ORDER")) is not None}
    return {path.stem: path for path in sorted(found, key=lambda path: (found[path], path.stem))}


def sections(evidence: Sequence[Evidence], each: Each) -> dict[str, Section]:
    """The sections that the evidence fills, by name, in order."""
    found: dict[str, Section] = {}
    for name in places():
        make: Callable[[Page], Section | None] = importlib.import_module(f"{PACKAGE}.{name}").section
        if (section := make(Page(evidence, each, found))) is not None:
            found = {**found, name: section}
    return found
