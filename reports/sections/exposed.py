"""Exposed clients and records: ROC curves, clients, classes and rounds, and records one by one."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pandas as pd

from fedaudit.reports.attack_success import headline_signal
from fedaudit.reports.evidence import TABLES
from fedaudit.reports.figures import membership
from fedaudit.reports.figures.drawing import draw
from fedaudit.reports.rows import MethodRow
from fedaudit.reports.section import Page, Row, Section
from fedaudit.reports.without_records import IN_CLIENT

ORDER = 60
LISTED = 20  # records of a run whose scores the page lists
FIRST = ("roc", "scores", "classes", "rounds")  # kinds of figures of which the first is in sight, others are folded
FEW = 3  # signals that are drawn below each other; if there are more, the first alone
NO_SCORES = {"method", "seed", "label", *TABLES["records"].split()}  # all other columns of the table are scores


def section(page: Page) -> Section | None:
    """The section of figures, exposed records and their scores; None without rows about single clients, classes, rounds
    or records."""
    names = [f["signal"] for f in page.findings if f.get("headline")]
    lead = headline_signal(page.runs)
    signals = sorted(dict.fromkeys(names), key=lambda name: name != lead)
    tables = {name: page.table(name) for name in ("curves", "scores", "clients", "classes", "trajectories", "rounds")}
    sketches = membership.sketches(tables, page.titles, signals if len(signals) <= FEW else signals[:1])
    drawn = draw(sketches, page.each)
    shots = page.parts("exposed", _shots)
    scores = [_top_records(v) for v in page.detailed if len(v.table("records"))]
    if not (drawn or shots or scores):
        return None
    return Section(
        links=[("figures", "Who is exposed"), *([("exposed", "Exposed records")] if shots else [])],
        context={
            "exposed": {
                "drawn": list(drawn),
                "first": _first(list(drawn)),
                "shots": shots,
                "scores": scores,
                "ranks": any(name.endswith(IN_CLIENT) for v in page.detailed for name in v.table("records")),
            }
        },
        drawn=drawn,
        tables=page.files("records", "classes"),
        figure_tables={name: table.drop(columns="png") for name, table in page.files("exposed").items()},
    )


def _first(drawn: Sequence[str]) -> list[str]:
    """The figures in sight: one of each kind in `FIRST`."""
    kinds = {kind: next((name for name in drawn if name == kind or name.startswith(f"{kind}-")), "") for kind in FIRST}
    return list(filter(None, kinds.values()))


def _shots(table: pd.DataFrame) -> list[Row]:
    """The rows of the table `exposed`, with pictures as base64 text."""
    return [row | {"png": base64.b64encode(row["png"]).decode()} for row in table.to_dict("records")]


def _top_records(v: MethodRow) -> Row:
    """Template variables of a run: the `LISTED` highest ranked records (`rows`, of `total`) and the names of their
    `scores`, under the adversary (`threat`) and `model` of the exposed records, or the first ones of the table if no
    record is exposed; `name` is the run's title."""
    table, shots = v.table("records"), v.table("exposed")
    threat, model = (shots if len(shots) else table)[["threat_model", "way"]].iloc[0]
    part = table[(table.threat_model == threat) & (table.way == model)]
    names = (name for name in part if name not in NO_SCORES and not name.endswith(IN_CLIENT))
    scores = [name for name in names if part[name].notna().any()]
    rows = part.sort_values(["rank", "record"]).head(LISTED).to_dict("records")
    return {"name": v.title, "threat": threat, "model": model, "scores": scores, "rows": rows, "total": len(part)}
