"""Write the page that compares all runs on disk: the sections of those audits that compare runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedaudit.audits.run_comparison import Compared
from fedaudit.reports.archive import self_contained
from fedaudit.reports.section import Page, sections, template_parts
from fedaudit.reports.templates import Write, csv, render, write_drawings


def build(results: Mapping[str, Compared], write: Write, *, runs: int, asked: Mapping[str, Mapping[str, Any]]) -> None:
    """Write tables, figures and, last, index.html through `write(name, bytes)`. `results` are by audit, `runs` is the
    number of runs compared, `asked` holds the audits' parameters, which the page quotes as JSON."""
    filled = sections(Page([], map, results), only=results)
    write = self_contained(write)
    for section in filled.values():
        for name, table in section.tables.items():
            write(f"{name}.csv", csv(table))
            write(f"{name}.json", (table.to_json(orient="records", indent=1) + "\n").encode())
        write_drawings(section.drawn.values(), write)
    parts: dict[str, Any] = {
        "runs": runs,
        "asked": json.dumps(asked),
    }
    write("index.html", render("comparison.html", parts | template_parts(filled)))
