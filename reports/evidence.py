"""The input of a report: findings and tables of each method and seed, and the check that they are complete."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

Finding = dict[str, Any]
TABLES = {  # columns that pages rely on even in an empty table; a table not listed here has what its audit writes
    "rounds": "round population signal auroc low high members",
    "clients": "threat_model way client signal auroc members nonmembers",
    "curves": "threat_model way population nonmembers signal fpr tpr low high floor",
    "scores": "threat_model way client record kind",
    "tokens": "panel record position token slice entropy base_entropy log_prob",
    "exposed": "threat_model way rank record client score percentile asked label reason png",
    "utility": "round model",
    "cost": "round bytes_down bytes_up fedavg_bytes messages complete",
    "coverage": "way client reconstructable why stale_rounds stale_participations distance",
    "cells": "threat_model way population nonmembers signal auroc low high p p_adjusted",
    "permutations": "primary secondary controls",  # largest statistic of each family under every exchange of coins
    "accuracy": "round client split accuracy",
    "personal": "client personal/accuracy personal/f1 global/accuracy global/f1",
    "newcomers": "start when test client accuracy",
    "privacy": "threat_model whose claimed provable every_step replace_one delta why",
    "noise": "release party std dimension sensitivity clip clip_norm sampler batch steps noise signal ratio clipped",
    "records": "threat_model way client record kind member rank percentile",  # plus a label, and one column per score
    # label "mean": the mean over a client's classes
    "classes": "threat_model way client label signal success low high members nonmembers",
    "agreement": "threat_model way signal_a signal_b spearman overlap chance",
    "beside_loss": "threat_model way signal auroc low high gain gain_low gain_high",  # NaN gain: the loss itself
    "information": "threat_model way population nonmembers signal bits low high null_low null_high p p_adjusted",
    "prompt_information": "directions spread clients bits low high null_low null_high p",
    "trajectories": "record client kind round loss",  # record "mean": mean over all records of the kind
    "attribution": "way client kind accuracy low high n chance",
    "batches": "client round residual least error skipped",
    # clients that compute on secret shares; errors are squared and relative to the squared true value
    "revealed": "round centres distances polynomials sums decoded absent wrong",
    "class_scatter": "rank directions revealed noise epsilon",
    "sent": "round client shares masks answers",  # bytes
    "located": "round centres rank pairs pairs_error slices slices_error public_error colluding colluding_error",
    "distance_information": "centre points users d bits low high null_low null_high p theory",
    "colluding": "what colluders equations slices right error",
    "refused": "attack threat_model why",
    "canaries": "kind inserted left_out number guesses ceiling gaussian_ceiling delta needed",
}
METRICS = ("balanced_accuracy", "tpr@10%", "tpr@1%", "tpr@0.1%")  # metrics of membership besides the AUROC


@dataclass(frozen=True)
class Evidence:
    """The results of auditing one method with one training seed.

    `method` is the label of the run. `attack` is None where nothing was attacked. `findings` are dictionaries with the
    fields of the classes in `audits.findings`; their `metric` tells the class. `tables` are by name, those in `TABLES`
    with at least these columns; a missing table counts as empty. `setting` is the nested configuration, `notes` are
    limitations in plain sentences, `accepted` the checks of a recording whose doubts void nothing.
    """

    method: str
    seed: int
    attack: str | None
    task: str
    findings: list[Finding]
    tables: dict[str, pd.DataFrame]
    setting: dict[str, Any]
    notes: list[str]
    accepted: Sequence[str] = ()

    @property
    def run(self) -> str:
        """The run as error messages call it."""
        return f"{self.method}, seed {self.seed}"

    @property
    def key(self) -> str:
        """The key (a hash) of the run that the findings belong to."""
        return str(self.findings[0]["run"])


def membership_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The findings of the membership audit: AUROC and `METRICS`."""
    return [f for f in findings if f["metric"] in ("auroc", *METRICS)]


def ordered(present: Iterable[str], order: Sequence[str]) -> list[str]:
    """The distinct values of `present` in the order of `order`; values that are not in it come last."""
    distinct = list(dict.fromkeys(present))
    return sorted(distinct, key=lambda value: order.index(value) if value in order else len(order))


def check(evidence: Sequence[Evidence]) -> None:
    """Raise ValueError if there is no evidence, more than one task or attack, a method and seed twice, evidence without
    findings or with findings of several runs or schemas, a finding with NaN or infinity, or a table that has rows but
    lacks a column of `TABLES`."""
    if not evidence:
        raise ValueError("evidence is empty; a report needs at least one audited method")
    for name in ("task", "attack"):
        if len(values := sorted({getattr(e, name) or "none" for e in evidence})) > 1:
            raise ValueError(
                f"evidence mixes {name}s ({', '.join(values)}); a report compares methods under one {name}"
            )
    runs = [(e.method, e.seed) for e in evidence]
    for method, seed in runs:
        if runs.count((method, seed)) > 1:
            raise ValueError(f"evidence holds {method} with seed {seed} more than once; give each method and seed once")
    for e in evidence:
        _check_one(e)


def _check_one(e: Evidence) -> None:
    if not e.findings:
        raise ValueError(f"{e.run} has no findings; a failed audit cannot be reported")
    if len({(f["run"], f["schema"]) for f in e.findings}) > 1:
        raise ValueError(f"the findings of {e.run} are of several runs or schemas; give each run's own")
    for f in e.findings:
        if odd := [name for name, value in f.items() if isinstance(value, float) and not math.isfinite(value)]:
            raise ValueError(f"a finding of {e.run} has {odd[0]} = {f[odd[0]]}; numbers are finite or None")
    for name, columns in TABLES.items():
        table = e.tables.get(name, ())
        if len(table) and (missing := [column for column in columns.split() if column not in table]):
            raise ValueError(f"table {name!r} of {e.run} lacks the column {missing[0]!r}; it needs: {columns}")


def concat_table(evidence: Iterable[Evidence], name: str) -> pd.DataFrame:
    """The table `name` of all evidence, `method` and `seed` first; if empty, with the columns of `TABLES`."""
    frames = [pd.DataFrame(columns=["method", "seed", *TABLES.get(name, "").split()])]
    for e in evidence:
        if len(table := e.tables.get(name, ())):
            labelled = table.assign(method=e.method, seed=e.seed)
            frames.append(labelled[["method", "seed", *(c for c in table if c not in ("method", "seed"))]])
    return pd.concat(frames[1:] or frames, ignore_index=True)
