"""Not run: the attacks that could not be, and why."""

from __future__ import annotations

from fedaudit.reports.section import Page, Section

ORDER = 95


def section(page: Page) -> Section | None:
    """Attacks that were not run, with the reason; None if all were."""
    rows = page.shared_rows("refused")
    return Section([("refused", "Not run")], {"refused": rows}, tables=page.files("refused")) if rows else None
