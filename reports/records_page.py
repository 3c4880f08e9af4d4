"""The page `records.html` of a report on somebody's own data: the single records that its main page does not show. It
stays in the report's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from fedaudit.reports.doubts import with_doubts
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.figures.drawing import Each
from fedaudit.reports.section import Page, sections, template_parts
from fedaudit.reports.templates import Write, csv, render
from fedaudit.reports.without_records import numbers_of

NAME = "records.html"
FOLDER = "private"  # of tables with ids, texts and scores
SECTIONS = ("exposed", "tokens", "contents")


def write_records(evidence: Sequence[Evidence], write: Write, *, each: Each = map) -> str:
    """Write the page and the tables behind it through `write(name, bytes)`; returns the SHA-256 of the records' table,
    or "" if there are none."""
    numbers = numbers_of(evidence)
    page = Page(with_doubts(evidence), each)
    filled = sections(page, only=SECTIONS)
    digest = ""
    for name, table in {name: table for section in filled.values() for name, table in section.tables.items()}.items():
        if "record" in table:
            table.insert(0, "number", table.record.astype(str).map(numbers))
        write(f"{FOLDER}/{name}.csv", data := csv(table))
        digest = hashlib.sha256(data).hexdigest() if name == "records" else digest
    for section in filled.values():
        for name, table in section.figure_tables.items():
            write(f"{FOLDER}/{name}.csv", csv(table))
    variables = dict.fromkeys(SECTIONS) | template_parts(filled)
    write(
        NAME,
        render("records.html", variables | {"task": page.evidence[0].task, "digest": digest, "folder": f"{FOLDER}/"}),
    )
    return digest
