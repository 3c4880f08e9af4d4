"""Mutual information: how many bits scores hold about membership, and released prompts about the clients' classes."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedaudit.reports.evidence import ordered
from fedaudit.reports.section import Page, Row, Section
from fedaudit.reports.verdict_cards import freshest
from fedaudit.terms.nonmembers import HELD_OUT
from fedaudit.terms.populations import LAST_ROUND_MEMBERS
from fedaudit.terms.threat_models import THREAT_MODELS

ORDER = 76
LEVEL = 0.05  # of corrected p-values: a filled dot is at most so much


def section(page: Page) -> Section | None:
    """The section of bits about membership and about classes; None if the audit `mutual_information` was not run."""
    membership = page.parts("information", _shown)
    prompts = page.parts("prompt_information", lambda table: table.to_dict("records"))
    if not membership and not prompts:
        return None
    links = [("mutual-information", "Mutual information")]
    context = {"information": membership, "prompt_information": prompts}
    return Section(links, context, tables=page.files("information", "prompt_information"))


def _shown(table: pd.DataFrame) -> Row:
    """All `rows`, and the `dots` of the adversaries' freshest models against held-out records."""
    rows = _rows(table)
    return {"rows": rows, "dots": _dots([row for row in rows if row["nonmembers"] == HELD_OUT])}


def _dots(rows: Sequence[Row]) -> Row | None:
    """A dot plot: `threats`, and `lines`, pairs of a score and its marks by adversary (None: not measured), each with
    `at`, percent of the panel's width by name, and whether it is `significant`. `zero` is the percent of 0 bits,
    `ends` the bits at both ends. None without rows."""
    by_threat = {threat: [row for row in rows if row["threat_model"] == threat] for threat in _threats(rows)}
    models = {threat: (first := freshest(some)) and first["way"] for threat, some in by_threat.items()}
    drawn = [
        row for row in rows if row["way"] == models[row["threat_model"]] and row["population"] != LAST_ROUND_MEMBERS
    ]
    if not drawn:
        return None
    names = ("bits", "low", "high", "null_low", "null_high")
    least, most = (end(row[name] for row in drawn for name in names) for end in (min, max))
    scale = 96 / ((most - least) or 1.0)
    cells = {
        (row["signal"], row["threat_model"]): row
        | {
            "at": {name: round(2 + (row[name] - least) * scale, 1) for name in names},
            "significant": row["p_adjusted"] <= LEVEL,
        }
        for row in drawn
    }
    signals = dict.fromkeys(row["signal"] for row in sorted(drawn, key=lambda row: -row["bits"]))
    return {
        "threats": list(by_threat),
        "lines": [(signal, [cells.get((signal, threat)) for threat in by_threat]) for signal in signals],
        "zero": round(2 + (0 - least) * scale, 1),
        "ends": (least, most),
    }


def _threats(rows: Sequence[Row]) -> list[str]:
    return ordered((row["threat_model"] for row in rows), THREAT_MODELS)


def _rows(table: pd.DataFrame) -> list[Row]:
    """The table's rows, sorted by adversary as in the membership tables."""
    order = ordered(table.threat_model, THREAT_MODELS)
    rows: list[Row] = table.to_dict("records")
    return sorted(rows, key=lambda row: order.index(row["threat_model"]))
