"""The whole pipeline: of what was learnt by heart a report says that it leaks, of a second coin's members nothing.

The quick version, up to the findings, is TestPlantedLeak of `tests/test_inference.py`; the null over many seeds
`benchmarks/whole_nulls.py`.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.whole_nulls import LEVEL, Null, report
from fedaudit.command.cli import read_command
from fedaudit.pipeline.workers import Workshop

BY_HEART = {
    "dp2fl": "--method dp2fl --shots 12 --train 18 --test 1 --clients 3 --rounds 1 --local-epochs 20 --rate 0.1"
    " --targets 2 --canaries 6 --attack loss,lira --shadows 8 --seed 200 --threads 1",
}


def leaking(words: str, out: Path, made_by: type[Workshop]) -> pd.DataFrame:
    """The scores that a report calls a leak where coins decided."""
    (found,) = report(read_command([*words.split(), "--out", str(out)]).plan, made_by)
    cells = found.tables["cells"]
    assert cells.z.notna().any()
    leaks: pd.DataFrame = cells[cells.z.notna() & (cells.p_adjusted <= LEVEL)]
    return leaks


@pytest.mark.slow
@pytest.mark.parametrize("method", BY_HEART)
def test_what_is_learnt_by_heart_is_found_and_a_second_coin_is_not(method: str, tmp_path: Path) -> None:
    """By everybody who holds a client's model as it was trained."""
    found = leaking(BY_HEART[method], tmp_path / "planted", Workshop)
    assert set(found.threat_model) == {"peer", "server", "owner"}
    assert len(leaking(BY_HEART[method], tmp_path / "null", Null)) == 0
