"""What belongs to a report and not to a run: corrected p-values, verdicts, and the families that its page names."""

import dataclasses
import io
import json

import pandas as pd
import pytest

from audits.by_coin import by_coin
from audits.membership import Params, cells, findings
from audits.verdicts import SHARES
from reports.inputs import Evidence
from reports.report import build
from tests.test_membership import NAMES, claims, made_up


def evidence(run, seed=0):
    names = NAMES | {"seed": seed, "run": f"r{seed}"}
    found = findings(run, Params(), names=names, epsilon=claims)
    tables = {"cells": cells(run, 0.95), "permutations": by_coin(run).largest}
    return Evidence("m", seed, "a", "t", [dataclasses.asdict(f) for f in found], tables, {}, [])


def report(*given):
    files = {}
    build(given, lambda name, data: files.update({name: data}))
    return json.loads(files["findings.json"]), pd.read_csv(io.BytesIO(files["cells.csv"])), files["index.html"].decode()


@pytest.fixture(scope="module")
def two():
    return evidence(made_up(0, leak=0.6)), evidence(made_up(1), seed=1)


def test_a_report_says_the_words(two):
    """By the largest of all rows of a family in all runs, exchange by exchange; a slow loop over exchanges."""
    found, table, _ = report(*two)
    largest = [e.tables["permutations"] for e in two]
    coins = [f for f in found if f["z"] is not None]
    assert coins
    assert all(f["verdict"] is None for e in two for f in e.findings if f["z"] is not None)
    for f in coins:
        reach = 1
        for t in range(1, len(largest[0])):
            reach += max(one[f["family"]][t] for one in largest) >= abs(f["z"]) - 1e-9
        p = min(1.0, reach / len(largest[0]) / SHARES[f["family"]])
        assert f["p_adjusted"] == pytest.approx(p)
        assert f["verdict"] == ("leak" if p <= 0.05 and f["z"] > 0 else "no leak found" if p > 0.05 else f["verdict"])
        assert f["sentence"].lower().startswith(f["verdict"])
    assert {f["verdict"] for f in coins} >= {"leak", "no leak found"}
    shown = table.merge(pd.DataFrame(coins), on=["seed", "threat_model", "way", "population", "nonmembers", "signal"])
    assert len(shown) == len(coins)
    assert shown.p_adjusted_x.tolist() == pytest.approx(shown.p_adjusted_y.tolist())


def test_a_run_among_others_is_corrected_for_them(two):
    alone, together = (
        {(f["signal"], f["threat_model"], f["way"], f["population"]): f["p_adjusted"]
         for f in found if f["seed"] == 0 and f["z"] is not None}
        for found in (report(two[0])[0], report(*two)[0])
    )  # fmt: skip
    assert all(together[row] >= p for row, p in alone.items())
    assert any(together[row] > p for row, p in alone.items())


def test_the_page_names_its_families(two):
    text = " ".join(report(*two)[2].split())
    assert "exact permutation tests: p is the share of 2,000 exchanges" in text
    assert "over all 2 runs of this page" in text
    assert (
        "the 12 headline rows, named beforehand: of each adversary the first two scores in the order of the attacks, which of <code>--attack all</code> is the strength known beforehand (released-model "
        in text
    )
    assert "with 80 % of the error, the other all 12 other scores, with 20 %" in text
    assert "at most 5 %" in text


def test_a_control_that_is_off_is_said_on_the_card():
    off, calm = (report(evidence(made_up(4, **planted)))[2] for planted in ({"blind_leak": 2.0}, {}))
    assert "Control off: check the pipeline" in off
    assert "Control off" not in calm


def test_without_coins_of_ours_nothing_is_corrected():
    run = dataclasses.replace(made_up(0, leak=2.0), coins={})
    found, _, page = report(evidence(run))
    aurocs = [f for f in found if f["metric"] == "auroc"]
    assert all(f["p_adjusted"] is None and f["verdict"] for f in aurocs)
    assert "exact permutation tests" not in page
