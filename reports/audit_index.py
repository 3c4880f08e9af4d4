"""The index page of all audits under an --out folder."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.reports.section import Row
from fedaudit.reports.templates import render
from fedaudit.reports.verdict_cards import SYMBOLS


def render_page(rows: Sequence[Row], others: Sequence[str], state: str) -> bytes:
    """The page of `rows`, one per report (`fedaudit.pipeline.index`), the latest first, and links to `others`, pages by
    their relative paths; it names its `state`."""
    finished = [{"made": row.get("finished", row.get("written")), **row} for row in rows if row["done"]]
    done = sorted(finished, key=lambda row: (row["made"], row["name"]), reverse=True)
    parts = {
        "done": done,
        "open": [{"started": "", "command": "", **row} for row in rows if not row["done"]],
        "others": [{"path": path, "name": path.removesuffix("/index.html").removesuffix(".html")} for path in others],
        "state": state,
        "symbols": SYMBOLS,
    }
    return render("audit_index.html", parts)
