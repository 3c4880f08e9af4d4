"""Reconstruction: what the server can rebuild of every client's model from its messages."""

from __future__ import annotations

from typing import Any

import pandas as pd

from reports.section import Page, Section

ORDER = 70


def section(page: Page) -> Section | None:
    """Where the server rebuilt clients."""
    found = page.parts("coverage", _coverage)
    whole = page.parts("cost", _complete)
    links = [("reconstruction", "Reconstruction")]
    return Section(links, {"reconstruction": {"parts": found, "whole": whole}}) if found else None


def _complete(cost: pd.DataFrame) -> dict[str, Any]:
    """How many messages held a client's whole model, of how many, and in which rounds (from 1)."""
    rounds = (cost["round"][cost.complete > 0] + 1).tolist()
    return {"messages": int(cost.messages.sum()), "whole": int(cost.complete.sum()), "rounds": rounds}


def _coverage(coverage: pd.DataFrame) -> dict[str, Any]:
    """The ways, how many clients each rebuilds, and client by way what was rebuilt (None where the way does not
    apply)."""
    ways, clients = list(dict.fromkeys(coverage.way)), sorted(set(coverage.client))
    rows = {(r["client"], r["way"]): r for r in coverage.to_dict("records")}
    return {
        "ways": [(way, int(coverage.reconstructable[coverage.way == way].astype(bool).sum())) for way in ways],
        "clients": [(client, [rows.get((client, way)) for way in ways]) for client in clients],
    }
