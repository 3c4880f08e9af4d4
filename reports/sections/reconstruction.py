"""Reconstruction: what the server can rebuild of every client's model from its messages."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedaudit.reports.section import Page, Section

ORDER = 70


def section(page: Page) -> Section | None:
    """The section on how well the server rebuilds clients' models; None if it was not tried."""
    parts = page.parts("coverage", _coverage_by_client)
    whole = page.parts("cost", _whole_messages)
    links = [("reconstruction", "Reconstruction")]
    return Section(links, {"reconstruction": {"parts": parts, "whole": whole}}) if parts else None


def _whole_messages(cost: pd.DataFrame) -> dict[str, Any]:
    """Number of `messages`, how many held a client's `whole` model, and the `rounds` (from 1) with such messages."""
    rounds = (cost["round"][cost.complete > 0] + 1).tolist()
    return {"messages": int(cost.messages.sum()), "whole": int(cost.complete.sum()), "rounds": rounds}


def _coverage_by_client(coverage: pd.DataFrame) -> dict[str, Any]:
    """`kinds`, pairs of a kind of reconstruction and the number of clients that it rebuilds; `clients`, pairs of a
    client and its rows by kind (None for a kind that does not apply)."""
    kinds, clients = list(dict.fromkeys(coverage.way)), sorted(set(coverage.client))
    rows = {(r["client"], r["way"]): r for r in coverage.to_dict("records")}
    return {
        "kinds": [(kind, int(coverage.reconstructable[coverage.way == kind].astype(bool).sum())) for kind in kinds],
        "clients": [(client, [rows.get((client, kind)) for kind in kinds]) for client in clients],
    }
