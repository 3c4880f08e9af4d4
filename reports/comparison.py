"""A page of its own for audits that compare runs, over all that are on disk: their sections, as a report has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from audits.run_comparison import Compared
from reports.section import Page, sections
from reports.templates import Write, csv, render, write_drawings


def build(found: Mapping[str, Compared], write: Write, *, runs: int, asked: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the page through `write(name, bytes)`; it comes last. `asked` are the audits' parameters."""
    page = Page([], map, found)
    shown = sections(page, only=found)
    for section in shown.values():
        for name, table in section.tables.items():
            write(f"{name}.csv", csv(table))
            write(f"{name}.json", (table.to_json(orient="records", indent=1) + "\n").encode())
        write_drawings(section.drawn.values(), write)
    parts: dict[str, Any] = {
        "runs": runs,
        "asked": json.dumps(asked),
        "links": [link for section in shown.values() for link in section.links],
        "data": [f"{name}.{end}" for s in shown.values() for name in s.tables for end in ("csv", "json")],
        "drawn": {name: figure for section in shown.values() for name, figure in section.drawn.items()},
        "shown": list(shown),
    }
    for section in shown.values():
        parts |= section.context
    write("index.html", render("comparison.html", parts))
