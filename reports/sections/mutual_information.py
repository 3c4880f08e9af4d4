"""Mutual information: how many bits scores hold about membership, and released prompts about the clients' classes."""

from __future__ import annotations

import pandas as pd

from fedaudit.terms.threat_models import THREAT_MODELS
from reports.evidence import ordered
from reports.section import Page, Row, Section

ORDER = 76


def section(page: Page) -> Section | None:
    """The section of bits about membership and about classes; None if the audit `mutual_information` was not run."""
    membership = page.parts("information", _rows)
    prompts = page.parts("prompt_information", lambda table: table.to_dict("records"))
    if not membership and not prompts:
        return None
    links = [("mutual-information", "Mutual information")]
    context = {"information": membership, "prompt_information": prompts}
    return Section(links, context, tables=page.files("information", "prompt_information"))


def _rows(table: pd.DataFrame) -> list[Row]:
    """The table's rows, sorted by adversary as in the membership tables."""
    order = ordered(table.threat_model, THREAT_MODELS)
    rows: list[Row] = table.to_dict("records")
    return sorted(rows, key=lambda row: order.index(row["threat_model"]))
