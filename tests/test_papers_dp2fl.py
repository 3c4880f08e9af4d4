"""DP²FL's Tables 1 to 4: printed numbers unchanged, ours from made-up findings by hand, differences, what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import mean, stdev

import pytest

from fedaudit.audits.findings import Accuracy
from fedaudit.command.cli import read_command
from fedaudit.reports import paper_items
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.papers import dp2fl
from fedaudit.reports.printed_table import EVERY
from tests.prompt_evidence import prompt_evidence

STUDENT = 4.302653  # of two degrees of freedom, 95 %
SEEDS = (0, 1, 4)
LEVELS = {"local": 50.0, "fedprox": 62.0, "pfedme": 61.0, "dp2fl": 63.0}  # in the order of the paper's averages


def cell(method: str, seed: int, values: Mapping[str, float]) -> Evidence:
    """Made-up findings; a seed's are its number above those of seed 0."""
    base = prompt_evidence("promptfl", seed=seed)
    found = [
        Accuracy(
            run=f"{method}-{seed}", method=method, task="fewshots", seed=seed, metric=metric, value=value + seed,
            low=value - 2, high=value + 2, confidence=0.95, before=None, clients=4, rounds=1, epsilon="inf",
            noise_ratio=None, clipped=None, interval="Student's t over clients",
        )
        for metric, value in values.items()
    ]  # fmt: skip
    setting = base.setting | {"method": {"name": method}} | {"privacy": {}}
    return replace(base, method=method, task="fewshots", findings=[*map(asdict, found)], tables={}, setting=setting)


def personal(seeds: tuple[int, ...] = SEEDS) -> list[Evidence]:
    found = []
    for method, level in LEVELS.items():
        values = {"personal/accuracy": level, "personal/f1": 100 - level}
        if method == "dp2fl":
            values |= {"global/accuracy": level + 1.5, "global-personal/accuracy": 1.5}
        found += [cell(method, seed, values) for seed in seeds]
    return found


def newcomers(seeds: tuple[int, ...] = SEEDS) -> list[Evidence]:
    values = {"newcomers/before/new/personal": 70.0}
    for place, shift in (("before/new", 0.0), ("after/new", 1.0), ("after/local", 2.0), ("after/all", 3.0)):
        starts = {"global": 72.0, "init_glo": 69.0, "init": 58.0, "global-init_glo": 3.0, "init_glo-init": 11.0}
        values |= {f"newcomers/{place}/{start}": value + shift for start, value in starts.items()}
    return [cell("dp2fl", seed, values) for seed in seeds]


def test_table_1_by_hand() -> None:
    table = dp2fl.methods({"few shots": personal()})
    accuracy, f1 = table.ours.values()
    one = accuracy.cells["FP+P", ""]
    values = [62.0 + seed for seed in SEEDS]
    assert (one.value, one.seeds) == (pytest.approx(mean(values)), 3)
    assert one.high == pytest.approx(mean(values) + STUDENT * stdev(values) / math.sqrt(3))
    assert table.printed_value(accuracy, ("FP+P", "")) == 81.90
    assert table.printed_value(f1, ("DP²FL", "")) == 80.59
    assert "micro-F1" in f1.quantity
    assert table.agreements["few shots, accuracy"][EVERY].tau == 1
    assert table.agreements["few shots, accuracy"][EVERY].p == pytest.approx(1 / 24)
    assert table.agreements["few shots, macro-F1"][EVERY].tau == pytest.approx(-1)
    (accuracy, _) = dp2fl.methods({"few shots": personal((0,))}).ours.values()
    alone = accuracy.cells["Local", ""]
    assert (alone.value, alone.low, alone.high, alone.seeds) == (50, 48, 52, 1), "of one seed it is over clients"


def test_table_2_has_the_difference_apart() -> None:
    table = dp2fl.models({"few shots": personal()})
    (column,) = table.ours.values()
    assert {row: c.value for (row, _), c in column.cells.items()} == pytest.approx(
        {"clients' own models": 63 + 5 / 3, "global model": 64.5 + 5 / 3, "global − own": 1.5 + 5 / 3}
    )
    own = table.agreements["few shots"][EVERY]
    assert (own.tau, own.n) == (-1, 2)  # the paper's global model is below
    assert table.sentences[0].startswith("Global model less clients' own: +3.2 [")
    assert table.sentences[0].endswith("the paper's averages −0.33.")


def test_table_3_and_4_by_hand() -> None:
    before, after = (make({"few shots": newcomers((0,))}) for make in (dp2fl.before, dp2fl.after))
    assert before.ours["few shots"].cells["old clients' models, mean", ""].value == 70
    assert before.agreements["few shots"][EVERY].tau == 1
    assert before.sentences[1].endswith("points; the paper's averages +1.96.")
    cells = after.ours["few shots"].cells
    assert cells["InitGlo", "Local"].value == 71
    assert after.printed_value(after.ours["few shots"], ("InitGlo", "Local")) == 82.04
    assert {level: len(after.rows) for _, level in after.rows} == dict.fromkeys(("New", "Local", "All"), 9)
    assert list(after.agreements["few shots"]) == [EVERY, "New", "Local", "All"]
    assert any(s.startswith("All, global model − InitGlo: +6.0 [") for s in after.sentences)


def test_presets_run_what_tables_show() -> None:
    plans = {}
    for number in (1, 2, 3, 4):
        item = paper_items.find(f"dp2fl:table{number}")
        plans[number] = read_command([f"--preset={item.preset}", *item.tasks["few shots"]]).plan
    assert list(plans[1].methods) == ["dp2fl", "local", "fedprox", "pfedme"]
    assert {number: (plan.clients, plan.newcomers, plan.seeds) for number, plan in plans.items()} == {
        1: (10, 0, 3), 2: (10, 0, 3), 3: (11, 1, 3), 4: (11, 1, 3),
    }  # fmt: skip
    for first, second in ((1, 2), (3, 4)):
        assert [c.analysis_key for c in plans[first].cells] == [c.analysis_key for c in plans[second].cells]
