"""How a page was made, as the last lines of its header: date, version, commit, command, duration and machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedaudit.reports.templates import Write, render

HEADER_ENDS = b"</header>"


def noting(write: Write, note: Mapping[str, Any], remark: str = "") -> Write:
    """As `write(name, bytes)`, but the header of every HTML page says how it was made: the `note`
    (`fedaudit.pipeline.provenance`) and a sentence more."""

    def with_note(name: str, data: bytes) -> None:
        if name.endswith(".html"):
            made = render("made.html", {"note": note, "remark": remark})
            data = data.replace(HEADER_ENDS, made + HEADER_ENDS, 1)
        write(name, data)

    return with_note
