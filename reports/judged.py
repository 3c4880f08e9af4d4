"""The words that belong to a report: what coins decided is corrected for all scores of its family in all its runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from audits.verdicts import SHARES, corrected, judged, together
from reports.evidence import Evidence


def with_verdicts(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The evidence of a report with corrected p-values, verdicts, sentences and alarms wherever coins decided."""
    largest = together([e.tables["permutations"] for e in evidence if "permutations" in e.tables])
    if not largest:
        return list(evidence)
    said = iter(judged([f for e in evidence for f in e.findings], largest, family_sizes(evidence)))
    return [
        replace(e, findings=[*itertools.islice(said, len(e.findings))], tables=_corrected(e.tables, largest))
        for e in evidence
    ]


def family_sizes(evidence: Sequence[Evidence]) -> dict[str, int]:
    """By family the number of scores in all runs of a report: of so many the largest statistic corrects each."""
    every = [e.tables["cells"] for e in evidence if "family" in e.tables.get("cells", ())]
    return {family: sum(int((cells.family == family).sum()) for cells in every) for family in SHARES}


def _corrected(tables: Mapping[str, pd.DataFrame], largest: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables, the cells with their corrected p-values."""
    if "family" not in tables.get("cells", ()):
        return dict(tables)
    cells = tables["cells"].copy()
    for family in SHARES:
        rows = (cells.family == family) & cells.z.notna()  # one that is not measurable has no p-value
        cells.loc[rows, "p_adjusted"] = corrected(cells.z[rows], family, largest)
    return {**tables, "cells": cells}
