"""Canaries: how many were inserted, and what they could show at most."""

from __future__ import annotations

from fedaudit.reports.section import Page, Section

ORDER = 85


def section(page: Page) -> Section | None:
    """Numbers of canaries and the largest epsilon that they could show; None if none were inserted."""
    rows = page.shared_rows("canaries")
    return Section([("canaries", "Canaries")], {"canaries": rows}, tables=page.files("canaries")) if rows else None
