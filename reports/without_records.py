"""Takes out of a page about somebody's own data what should not be sent on: records' ids, texts, pictures, scores.

Whoever has the model could find a record by its score. So each record is a running number, and each score a rank, from
which every AUROC, interval, scan and permutation p-value follows. The rest stays in the folder: `records_page`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.reports.evidence import TABLES, Evidence
from fedaudit.reports.templates import csv

LEFT_OUT = ("exposed", "tokens", "contents_shown")  # tables that show records
IN_CLIENT = "/in client"  # end of a column with the rank of a score among those of the record's client
MEAN = "mean"  # in the place of a record, or of a class: the mean over all
_SEEN_FROM = ["threat_model", "way"]  # whose scores are ranked among each other


def without_records(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence for a page that is sent on. Equal evidence gives equal numbers, in an order that nobody can tell who
    has not the records' scores."""
    numbers, codes = numbers_of(evidence), _codes(evidence)
    return [
        replace(
            e,
            tables={name: _hidden(name, t, numbers, codes) for name, t in e.tables.items() if name not in LEFT_OUT},
            setting=_without_paths(e.setting),
        )
        for e in evidence
    ]


def numbers_of(evidence: Sequence[Evidence]) -> dict[str, int]:
    """The running number of each record, in an order that is drawn by a hash of all scores."""
    tables = [table for e in evidence if len(table := e.tables.get("records", pd.DataFrame()))]
    records = sorted({str(record) for table in tables for record in table.record})
    digest = hashlib.sha256(b"order")
    for table in tables:
        digest.update(csv(table))
    order = np.random.default_rng(int.from_bytes(digest.digest())).permutation(len(records))
    return {record: int(place) for record, place in zip(records, order, strict=True)}


def _codes(evidence: Sequence[Evidence]) -> dict[str, str]:
    """A code for each class."""
    names = {str(name) for e in evidence for name in getattr(e.tables.get("classes"), "label", ())} - {MEAN}
    return {name: f"class-{i:02d}" for i, name in enumerate(sorted(names))} | {MEAN: MEAN}


def _hidden(name: str, table: pd.DataFrame, numbers: Mapping[str, int], codes: Mapping[str, str]) -> pd.DataFrame:
    """A table as the page may show it."""
    if not len(table):
        return table
    if name == "records":
        return _ranked(table, numbers)
    if name == "scores":
        return _percentiles(table, numbers)
    if name == "trajectories":
        return table[table.record == MEAN]
    if name == "contents":
        averaged = table.assign(cosine=table.cosine.mean()) if "cosine" in table else table
        return averaged.drop(columns=[column for column in averaged if column in ("record", "label", "nearest")])
    if name == "classes":
        return table.assign(label=table.label.map(codes))
    return table.drop(columns=[column for column in ("record", "text", "label", "asked", "png") if column in table])


def _ranked(table: pd.DataFrame, numbers: Mapping[str, int]) -> pd.DataFrame:
    """The table `records` by running numbers, in their order, with a rank among all records that the adversary attacks
    in place of each score (1 is the lowest score, equal ones share the mean), and one among those of its client."""
    scores = [column for column in table if column not in (*TABLES["records"].split(), "label")]
    ranks: dict[str, Any] = {}
    for score in scores:
        ranks[score] = table.groupby(_SEEN_FROM)[score].rank()
        ranks[f"{score}{IN_CLIENT}"] = table.groupby([*_SEEN_FROM, "client"])[score].rank()
    hidden = table.drop(columns=[*scores, "label"], errors="ignore")
    hidden = hidden.assign(record=table.record.astype(str).map(numbers))
    return hidden.assign(**ranks).sort_values([*_SEEN_FROM, "record"], kind="stable", ignore_index=True)


def _percentiles(table: pd.DataFrame, numbers: Mapping[str, int]) -> pd.DataFrame:
    """The table `scores` with the percentile of each among those of its adversary, as figures draw them."""
    others = (*TABLES["scores"].split(), "label", "member")
    percentiles = {
        score: table.groupby(_SEEN_FROM)[score].rank(pct=True).mul(100) for score in table if score not in others
    }
    return table.assign(record=table.record.astype(str).map(numbers), unit="percentile", **percentiles)


def _without_paths(value: Any) -> Any:
    """A configuration in which of paths only the last name is left."""
    if isinstance(value, Mapping):
        return {key: _without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(entry) for entry in value]
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "~", "./", "../")) else value
