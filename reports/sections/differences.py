"""Differences between methods on the same records and coins, of leakage and of utility, with corrected p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from fedaudit.attacks.score_names import signal_name
from fedaudit.audits.differences import quantity, sentences
from fedaudit.audits.run_comparison import METRICS, Compared
from fedaudit.audits.two_settings import UTILITY
from fedaudit.reports.formats import join_words
from fedaudit.reports.rows import as_rows
from fedaudit.reports.section import Page, Row, Section
from fedaudit.terms.sentences import SENTENCES

ORDER = 25
DIGITS = {"accuracy": 1, "named": 1}  # decimals of a quantity; 3 of all others


def section(page: Page) -> Section | None:
    """The section of differences between the page's runs; None if the audit `differences` was not run."""
    audit = page.across.get("differences")
    if audit is None or audit.empty:
        return None
    context = {"differences": parts(audit, {v.label: v.title for v in page.runs})}
    return Section([("differences", "Differences")], context, tables={"differences": audit.tables["differences"]})


def parts(audit: Compared, titles: Mapping[str, str]) -> Row:
    """Template variables of a table of differences, whose settings are called by `titles` where these have them."""
    table = audit.tables["differences"].replace({"a": dict(titles), "b": dict(titles)})
    confidence = float(table.confidence.iloc[0])
    scale = {kind: _longest(part) for kind, part in table.groupby(table.metric.map(_kind))}
    blocks = [
        {
            "a": a,
            "b": b,
            "rows": [_row(row, scale[_kind(row["metric"])]) for row in as_rows(part)],
            "unpaired": why(part),
        }
        for (a, b), part in table.groupby(["a", "b"], sort=False)
    ]
    return {
        "sentences": sentences(table, confidence),
        "blocks": blocks,
        "confidence": f"{100 * confidence:g}",
        "tested": int(table.p.notna().sum()),
        "level": 1 - confidence,
        "seeds": int(table.seeds.max()),
    }


def why(part: pd.DataFrame) -> str:
    """Why rows are not compared pair by pair, in words; "" if all are."""
    return join_words(list(dict.fromkeys(part.why[~part.paired.astype(bool)])))


def _row(row: Row, longest: float) -> Row:
    """A row as the page shows it: `what` and by `whom`, numbers with `digits` decimals, and the `mark`: the places of
    0, the interval's ends and the difference from left to right, in percent of its width."""
    whom = "utility" if row["part"] == UTILITY else SENTENCES[row["threat_model"]].short
    score = f"by {signal_name(row['signal'])}" if row["signal"] else ""
    ends = [row["low"], row["high"], row["difference"]]
    mark = None if row["low"] is None else [round(50 + 50 * x / longest, 1) for x in ends]
    return row | {
        "what": quantity(row["metric"]), "whom": whom, "score": score, "mark": mark, "digits": digits(row["metric"]),
    }  # fmt: skip


def _longest(part: pd.DataFrame) -> float:
    """The largest end of an interval, or difference, of quantities that share a scale."""
    ends = part[["low", "high", "difference"]].astype(float).abs().max().max()
    return float(ends) if ends and not math.isnan(ends) else 1.0


def _kind(metric: str) -> str:
    """Quantities of one kind share a scale."""
    name = metric.partition("@")[0]
    return {"auroc": "rate", "tpr": "rate", "named": "named"}.get(name, name if name in METRICS else "accuracy")


def digits(metric: str) -> int:
    """Decimals of a quantity."""
    return DIGITS.get(_kind(metric), 3)
