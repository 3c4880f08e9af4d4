"""Attribution: whether the server can tell whose record it is."""

from __future__ import annotations

from fedaudit.reports.section import Page, Section

ORDER = 80


def section(page: Page) -> Section | None:
    """The section of accuracies of source inference (whose record it is); None if the attack was not run."""
    rows = page.shared_rows("attribution")
    links = [("attribution", "Whose record")]
    return Section(links, {"attribution": rows}, tables=page.files("attribution")) if rows else None
