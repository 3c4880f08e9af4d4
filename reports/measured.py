"""Measured epsilon on a page and in the terminal: the bounds of all runs, and where one of them contradicts what is
claimed or proven.

A bound holds by itself at 95 %. "Measured above provable" and "above claimed" are said of many bounds, so the 5 % are
divided among all in the report about which either could be said (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from audits.findings import MEASURED, MEASURED_GAUSSIAN

if TYPE_CHECKING:
    from reports.evidence import Finding

METRICS = (MEASURED, MEASURED_GAUSSIAN)
ERROR = 0.05  # of all sentences of a report together
P_VALUES = {"provable": "p_provable", "claimed": "p_claimed"}


def rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """A row for every run and adversary: the finding whatever the mechanism is (`any`) and, where there is one, that of
    a Gaussian mechanism (`gaussian`), from the same guesses."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for f in findings:
        if f["metric"] in METRICS:
            place = f["method"], f["seed"], f["threat_model"]
            found.setdefault(place, {"any": None, "gaussian": None})[
                "any" if f["metric"] == MEASURED else "gaussian"
            ] = f
    return list(found.values())


def compared(findings: Sequence[Finding]) -> int:
    """Number of bounds about which "above provable" or "above claimed" could be said."""
    return sum(any(f[p] is not None for p in P_VALUES.values()) for f in findings if f["metric"] in METRICS)


def contradictions(findings: Sequence[Finding]) -> list[str]:
    """A sentence for every bound that refutes what is proven, or else what is claimed, the error divided among all."""
    among = compared(findings)
    found = []
    for f in (f for f in findings if f["metric"] in METRICS):
        name = next((name for name in P_VALUES if refutes(f, name, among)), None)
        if name is not None:
            found.append(sentence(f, name, among))
    return found


def refutes(f: Finding, name: str, among: int) -> bool:
    """Whether a bound refutes what is said ("provable" or "claimed"), the error divided among so many."""
    p = f[P_VALUES[name]]
    return p is not None and bool(p <= ERROR / among)


def sentence(f: Finding, name: str, among: int) -> str:
    """That a bound refutes what is said."""
    said, means = {
        "provable": ("proven", "the code, the ledger or the proof is wrong"),
        "claimed": ("claimed", "the claim does not hold"),
    }[name]
    mechanism = f"a mechanism that is {f['mechanism']}" if f["mechanism"] else "any mechanism"
    return (
        f"{f['method']} (seed {f['seed']}), {f['threat_model']}: measured above {name}: {means}. Of {mechanism} with "
        f"epsilon {float(f[name]):.3g}, as is {said}, {f['correct']} of {f['guesses']} right guesses have a "
        f"probability of at most {f[P_VALUES[name]]:.2g}; {100 * ERROR:g} % divided among {among} bounds are "
        f"{ERROR / among:.2g}."
    )
