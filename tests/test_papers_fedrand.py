"""FedRand's Tables 1 to 4 from made-up findings: cells by hand, the untrained model beside them, the sentence of Table 4."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import mean, stdev

import pandas as pd
import pytest

from fedaudit.command.cli import read_command
from fedaudit.reports import paper_items, printed_table
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.papers import fedrand
from fedaudit.reports.printed_table import Table
from tests.test_report import TWO

STUDENT = 12.706205  # of one degree of freedom, 95 %
KEY = "renyi/2/10/caption"
BASE = {0: (0.70, 0.65, 0.75), 1: (0.72, 0.67, 0.77)}  # of the untrained model by seed, against novel objects


def with_base(e: Evidence) -> Evidence:
    """The untrained model's AUROC against novel objects is that of its seed, whatever was trained; trained ones have 0.1
    more against them than against held-out records."""
    value, low, high = BASE[e.seed]
    novel = {"base_value": value, "base_low": low, "base_high": high}
    found = [f | novel if (f["metric"], f["nonmembers"]) == ("auroc", "novel objects") else f for f in e.findings]
    cells = e.tables["cells"]
    easier = cells[cells.nonmembers == "held-out"].assign(nonmembers="novel objects", auroc=lambda t: t.auroc + 0.1)
    both = pd.concat([cells[cells.nonmembers == "held-out"], easier], ignore_index=True)
    return replace(e, findings=found, tables=e.tables | {"cells": both})


CELLS = [with_base(e) for e in TWO]


@pytest.fixture(scope="module")
def tables() -> Iterator[dict[int, Table]]:
    """What each file gives to be built, by its number."""
    found: dict[int, Table] = {}

    def build(table: Table, _: object) -> str:
        found[int(table.file.removeprefix("table"))] = table
        return "agreed"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printed_table, "build", build)
        for number in (1, 2, 3, 4):
            paper_items.find(f"fedrand:table{number}").build({"captions": CELLS}, {}.__setitem__)
        yield found


def auroc_of(e: Evidence, place: Mapping[str, str]) -> float:
    rows = e.tables["cells"]
    for name, value in place.items():
        rows = rows[rows[name] == value]
    (value,) = rows.auroc
    return float(value)


def test_utility_is_that_of_the_last_round_over_seeds(tables: dict[int, Table]) -> None:
    column = tables[1].ours["CIDEr"]
    rows = (("aggregated model", "global"), ("clients' models", "clients"))
    for level, model in rows:
        last = [t[t.model == model].cider.iloc[-1] for t in (e.tables["utility"] for e in CELLS[:2])]
        cell = column.cells["FedAvg", level]
        assert (cell.value, cell.seeds) == (pytest.approx(mean(last)), 2)
        assert tables[1].paper["CIDEr"]["FedAvg", level]
    assert {row for row, _ in column.cells} == {"FedAvg", "FedRand"}
    assert tables[2].ours == {}  # nobody was asked about novel objects here


@pytest.mark.parametrize(
    ("level", "place"),
    [
        ("aggregated model", {"threat_model": "released-model", "way": "final", "population": "all members"}),
        ("reconstructed client", {"threat_model": "server", "way": "exact"}),
    ],
)
@pytest.mark.parametrize(("words", "split"), [("", "novel objects"), (", held-out", "held-out")])
def test_aurocs_by_hand(tables: dict[int, Table], level: str, place: dict[str, str], words: str, split: str) -> None:
    """Of two seeds the mean; Student's interval over them and that of the records, which are the same, squared and added."""
    cell = tables[4].ours[f"caption, K 10 %{words}"].cells["FedAvg", level]
    values = [100 * auroc_of(e, place | {"nonmembers": split, "signal": KEY}) for e in CELLS[:2]]
    assert (cell.value, cell.seeds) == (pytest.approx(mean(values)), 2)
    over_seeds = STUDENT * stdev(values) / math.sqrt(2)
    half = math.hypot(over_seeds, 6)
    assert (cell.low, cell.high) == pytest.approx((max(0, cell.value - half), min(100, cell.value + half)), rel=1e-5)


def test_the_untrained_model_has_an_interval_over_its_seeds(tables: dict[int, Table]) -> None:
    cell = tables[4].ours["caption, K 10 %"].cells[fedrand.UNTRAINED]
    over_seeds = STUDENT * stdev([70, 72]) / math.sqrt(2)
    assert (cell.value, cell.seeds) == (pytest.approx(71), 2)
    assert cell.low == pytest.approx(71 - math.hypot(over_seeds, 5), rel=1e-5)
    assert tables[4].printed_value(tables[4].ours["caption, K 10 %"], fedrand.UNTRAINED) is None


def test_what_table_4_says_of_the_printed_aurocs(tables: dict[int, Table]) -> None:
    """The printed range is that of the paper's CSV, and ours are the least and most of our own columns."""
    theirs, here = tables[4].sentences
    rows = printed_table.printed("fedrand_table4")
    own = rows.query("mia_input == 'caption' and max_renyi_k_percent == '10'")["mean"].astype(float) / 100
    assert f"{own.min():.2f} to {own.max():.2f}" == "0.67 to 0.71"
    assert theirs.startswith("The paper's 0.67 to 0.71 on captions are against records of another")
    trained, held = (
        [c.value / 100 for row, c in tables[4].ours[name].cells.items() if row != fedrand.UNTRAINED]
        for name in ("caption, K 10 %", "caption, K 10 %, held-out")
    )
    assert here == (
        f"Here the untrained model has 0.71 on such a split, trained ones {min(trained):.2f} to {max(trained):.2f}, and "
        f"against held-out records {min(held):.2f} to {max(held):.2f}."
    )
    assert fedrand.table4({"captions": CELLS}, {}.__setitem__) == f"agreed. {here}"


def test_table_3_is_of_variants(tables: dict[int, Table]) -> None:
    assert {row for row, _ in tables[3].ours["AUROC, caption"].cells} == {"FedRand"}
    theirs = {row for cells in tables[3].paper.values() for row, _ in cells}
    assert theirs == {name for name, _ in fedrand.VARIANTS.values()}
    assert tables[3].ours["AUROC, caption, held-out"].against == ()


def test_a_preset_runs_every_row() -> None:
    for number in range(1, 5):
        item = paper_items.find(f"fedrand:table{number}")
        for words in item.tasks.values():
            plan = read_command([f"--preset={item.preset}", *words]).plan
            assert {*fedrand.METHODS.values()} <= {*plan.methods}
            assert {label for _, label in fedrand.VARIANTS.values()} <= {*plan.methods}
