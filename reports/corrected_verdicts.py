"""Verdicts of a report: p-values of permutation tests corrected for all scores of their family in all of its runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from fedaudit.audits.verdicts import SHARES, corrected, judged, together
from fedaudit.reports.evidence import Evidence


def with_verdicts(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence with corrected p-values, verdicts, sentences and alarms, where coins decided who is a member.
    Without any table `permutations` the evidence is returned as it is."""
    largest = together([e.tables["permutations"] for e in evidence if "permutations" in e.tables])
    if not largest:
        return list(evidence)
    findings = iter(judged([f for e in evidence for f in e.findings], largest, family_sizes(evidence)))
    return [
        replace(e, findings=[*itertools.islice(findings, len(e.findings))], tables=_with_corrected_p(e.tables, largest))
        for e in evidence
    ]


def family_sizes(evidence: Sequence[Evidence]) -> dict[str, int]:
    """Number of scores of each family of `SHARES` in all runs, for which p-values are corrected."""
    every = [e.tables["cells"] for e in evidence if "family" in e.tables.get("cells", ())]
    return {family: sum(int((cells.family == family).sum()) for cells in every) for family in SHARES}


def _with_corrected_p(tables: Mapping[str, pd.DataFrame], largest: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """A copy of the tables, in whose table `cells` the column p_adjusted is filled in for scores that coins decided;
    `largest` are the families' largest statistics over all runs."""
    if "family" not in tables.get("cells", ()):
        return dict(tables)
    cells = tables["cells"].copy()
    for family in SHARES:
        rows = (cells.family == family) & cells.t.notna()  # a score that is not measurable has no p-value
        cells.loc[rows, "p_adjusted"] = corrected(cells.t[rows], family, largest)
    return {**tables, "cells": cells}
