"""The tables of the page about membership inference: exposed records, scores of every attack, agreement, and what was
not run."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from reports.figures import membership as figures
from reports.inputs import Evidence, joined
from reports.rows import MethodRow
from reports.verdict_cards import PLACE, tint

LISTED = 20  # records whose scores the page lists
DATA = ("cells", "records", "classes", "agreement", "attribution", "canaries", "refused")  # tables that become files
ABOUT = frozenset("method seed threat_model way client record label kind member rank percentile".split())  # not scores

Row = dict[str, Any]


def data(evidence: Sequence[Evidence]) -> dict[str, pd.DataFrame]:
    """The tables that stand beside the page as files; those without a row are left out."""
    return {name: table for name in DATA if len(table := joined(evidence, name))}


def record_by_record(shown: Sequence[MethodRow]) -> dict[str, list[Row]]:
    """The parts that some runs show: a list by name of what each run has."""
    show: dict[str, Callable[[pd.DataFrame], Any]] = {
        "exposed": _shots,
        "records": _listed,
        "agreement": _agreement,
        "attribution": _rows,
        "cells": _cells,
    }
    return {name: _each(shown, name, made) for name, made in show.items()}


def alike(found: Sequence[MethodRow], name: str) -> list[Row]:
    """The rows of a table; runs whose rows are the same share them, and are named only where not all are."""
    parts: list[Row] = []
    for part in _each(found, name, _rows):
        same = next((other for other in parts if other["shown"] == part["shown"]), None)
        if same is None:
            parts.append({"names": [part["name"]], "shown": part["shown"]})
        else:
            same["names"].append(part["name"])
    return [part | {"names": [] if len(part["names"]) == len(found) else part["names"]} for part in parts]


def _each(found: Sequence[MethodRow], name: str, show: Callable[[pd.DataFrame], Any]) -> list[Row]:
    """What `show` makes of a table of the first seed, for every run that has it."""
    given = {v.title: v.evidence[0].tables.get(name, ()) for v in found}
    return [{"name": title, "shown": show(table)} for title, table in given.items() if len(table)]


def _rows(table: pd.DataFrame) -> list[Row]:
    return table.to_dict("records")


def _shots(table: pd.DataFrame) -> list[Row]:
    """The most exposed records, pictures as data."""
    return [row | {"png": base64.b64encode(row["png"]).decode()} for row in _rows(table)]


def _by_place(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """The parts of a table about one model each, in the order of the threat models."""
    parts = [
        (str(threat), str(way), part) for (threat, way), part in table.groupby(["threat_model", "way"], sort=False)
    ]
    order = figures.ordered([threat for threat, _, _ in parts], figures.THREATS)
    return sorted(parts, key=lambda part: order.index(part[0]))


def _listed(table: pd.DataFrame) -> Row:
    """The scores of the highest ranked records under the first threat model."""
    threat, way, part = _by_place(table)[0]
    scores = [name for name in part if name not in ABOUT and part[name].notna().any()]
    rows = _rows(part.sort_values(["rank", "record"]).head(LISTED))
    return {"threat": threat, "way": way, "scores": scores, "rows": rows, "total": len(part)}


def _agreement(table: pd.DataFrame) -> list[Row]:
    """For each model a square of all pairs of scores, with the share of records that chance alone puts on both
    lists."""
    found = []
    for threat, way, part in _by_place(table):
        names = list(dict.fromkeys([*part.signal_a, *part.signal_b]))
        pairs = {frozenset((row["signal_a"], row["signal_b"])): _shaded(row) for row in _rows(part)}
        lines = [(a, [pairs.get(frozenset((a, b))) if a != b else None for b in names]) for a in names]
        chances = sorted({round(float(x), 3) for x in part.chance if math.isfinite(x)})
        found.append({"threat": threat, "way": way, "names": names, "chances": chances, "lines": lines})
    return found


def _shaded(row: Mapping[str, Any]) -> Row:
    """A correlation from -1 to 1 has the colour of an AUROC from 0 to 1."""
    return {**row, "shade": tint(0.5 + row["spearman"] / 2)}


def _cells(table: pd.DataFrame) -> list[Row]:
    """Every score against every kind of non-members."""
    places = table.groupby(list(PLACE), sort=False)
    return [
        {"place": place, "rows": [row | {"shade": tint(row["auroc"])} for row in _rows(part)]} for place, part in places
    ]
