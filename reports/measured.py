"""Lower bounds on epsilon measured with canaries, and those that contradict the claimed or the proven epsilon.

Each bound holds by itself at 95 %. To say "measured above provable" or "above claimed" of any of many bounds, the 5 %
are divided among all bounds of the report of which either could be said (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedaudit.audits.findings import MEASURED, MEASURED_GAUSSIAN, MEASURED_SCORES, MEASURED_WEIGHT

if TYPE_CHECKING:
    from fedaudit.reports.evidence import Finding

METRICS = {MEASURED: "any", MEASURED_GAUSSIAN: "gaussian", MEASURED_SCORES: "messages"}  # and the field of a row
FIELDS = METRICS | {MEASURED_WEIGHT: "weight"}
ERROR = 0.05  # chance that any contradiction in a report is false
P_VALUES = {"provable": "p_provable", "claimed": "p_claimed"}  # field of a finding with the p-value of each epsilon


def rows(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """One row {"any", "gaussian", "messages", "weight"} per run and adversary: the whole findings that rest on the same
    coins, bounds from guesses for any mechanism and for a Gaussian one, and from messages, and how much of a record is
    in these; None where there is no such one."""
    pairs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for f in (f for f in findings if f["metric"] in FIELDS):
        pair = pairs.setdefault((f["method"], f["seed"], f["threat_model"]), dict.fromkeys(FIELDS.values()))
        pair[FIELDS[f["metric"]]] = f
    return list(pairs.values())


def count_testable(findings: Sequence[Finding]) -> int:
    """Number of measured bounds that have a proven or claimed epsilon to contradict."""
    return sum(any(f[p] is not None for p in P_VALUES.values()) for f in findings if f["metric"] in METRICS)


def can_refute(f: Finding, name: str) -> bool:
    """Whether `f` would exceed its "provable" or "claimed" epsilon (`name`) if every guess were right; False if that
    epsilon is infinite or not compared."""
    return f[P_VALUES[name]] is not None and bool(f["ceiling"] > float(f[name]))


def out_of_reach(findings: Sequence[Finding]) -> float | None:
    """The largest epsilon that any bound of a report could show, if that contradicts nothing that is proven or claimed:
    then no guesses could. None if one could, or there is nothing to contradict."""
    bounds = [f for f in findings if f["metric"] in METRICS and any(f[p] is not None for p in P_VALUES.values())]
    if any(can_refute(f, name) for f in bounds for name in P_VALUES):
        return None
    return max((float(f["ceiling"]) for f in bounds), default=None)


def contradictions(findings: Sequence[Finding]) -> list[str]:
    """A sentence for every bound that refutes the proven epsilon, or else the claimed one, by `refutes`."""
    among = count_testable(findings)
    refuted = ((f, next((name for name in P_VALUES if refutes(f, name, among)), None))
               for f in findings if f["metric"] in METRICS)  # fmt: skip
    return [sentence(f, name, among) for f, name in refuted if name is not None]


def refutes(f: Finding, name: str, among: int) -> bool:
    """Whether `f` refutes its "provable" or "claimed" epsilon (`name`), with `ERROR` divided by `among` bounds; False
    if that epsilon is infinite."""
    p = f[P_VALUES[name]]
    return p is not None and bool(p <= ERROR / among)


def sentence(f: Finding, name: str, among: int) -> str:
    """A sentence that says that the finding `f` refutes its epsilon `name` ("provable" or "claimed"); `among` is the
    number of bounds to correct for."""
    status, means = {
        "provable": ("proven", "the code, the ledger or the proof is wrong"),
        "claimed": ("claimed", "the claim does not hold"),
    }[name]
    event = "coins as plain in messages" if f["guesses"] is None else f"{f['correct']} of {f['guesses']} right guesses"
    mechanism = f"a mechanism that is {f['mechanism']}" if f["mechanism"] else "any mechanism"
    return (
        f"{f['method']} (seed {f['seed']}), {f['threat_model']}: measured above {name}: {means}. Of {mechanism} with "
        f"epsilon {float(f[name]):.3g}, as is {status}, {event} have a "
        f"probability of at most {f[P_VALUES[name]]:.2g}; {100 * ERROR:g} % divided among {among} bounds are "
        f"{ERROR / among:.2g}."
    )
