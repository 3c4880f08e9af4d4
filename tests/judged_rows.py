"""Findings of a report that contradict themselves: what a row says of its p-values, its family and its headline."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.audits.findings import BEFOREHAND, WHOLE_RANKING
from fedaudit.audits.verdicts import SHARES

OF_COINS = ("z", "t", "p", "part", "p_adjusted", "family", "family_n")


def contradictory(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The AUROCs whose columns cannot all be true."""
    return [f for f in findings if f["metric"] == "auroc" and not _consistent(f)]


def _consistent(f: Mapping[str, Any]) -> bool:
    if len({f[name] is None for name in OF_COINS}) > 1:
        return False
    if f["z"] is None:
        return True
    primary = f["family"] in BEFOREHAND
    return (
        f["family"] in SHARES
        and f["family_n"] >= 1
        and (f["t"] == f["z"] if f["part"] == WHOLE_RANKING else f["t"] > abs(f["z"]))
        and f["p"] <= f["p_adjusted"] <= 1
        and f["verdict"] is not None
        and bool(f["headline"] or f["best_of"] or not primary)
        and (f["nonmembers"] == "held-out" or not primary)
    )
