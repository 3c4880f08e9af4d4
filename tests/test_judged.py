"""What belongs to a report and not to a run: corrected p-values, verdicts, and the families that its page names."""

import dataclasses
import io
import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from docs.pictures.evidence import evidence as kept_evidence
from docs.pictures.picture import PICTURES
from fedaudit.audits.membership import Params, cells, findings
from fedaudit.audits.permutation_test import by_coin
from fedaudit.audits.verdicts import SHARES
from fedaudit.reports.corrected_verdicts import with_verdicts
from fedaudit.reports.evidence import Evidence
from tests.evidence import built
from tests.judged_rows import contradictory
from tests.test_membership import NAMES, SIGNALS, claims, made_up
from tests.unprinted import nothing_drawn


def evidence(run, seed=0):
    names = NAMES | {"seed": seed, "run": f"r{seed}"}
    found = findings(run, Params(), names=names, epsilon=claims)
    tables = {"cells": cells(run, 0.95), "permutations": by_coin(run).largest}
    return Evidence("m", seed, "a", "t", [dataclasses.asdict(f) for f in found], tables, {}, [])


def report(*given):
    with nothing_drawn():
        files = built([*given])
    return json.loads(files["findings.json"]), pd.read_csv(io.BytesIO(files["cells.csv"])), files["index.html"].decode()


@pytest.fixture(scope="module")
def two():
    return evidence(made_up(0, leak=0.6)), evidence(made_up(1), seed=1)


@pytest.fixture(scope="module")
def of_two(two):
    return report(*two)


def test_a_report_says_the_words(two, of_two):
    """By the largest of all rows of a family in all runs, exchange by exchange; a slow loop over exchanges."""
    found, table, _ = of_two
    largest = [e.tables["permutations"] for e in two]
    coins = [f for f in found if f["z"] is not None]
    assert coins
    assert all(f["verdict"] is None for e in two for f in e.findings if f["z"] is not None)
    for f in coins:
        both = zip(*(one[f["family"]] for one in largest), strict=True)
        reach = 1 + sum(max(statistics) >= abs(f["t"]) - 1e-9 for t, statistics in enumerate(both) if t)
        p = min(1.0, reach / len(largest[0]) / SHARES[f["family"]])
        assert f["p_adjusted"] == pytest.approx(p)
        assert (f["verdict"] in ("no leak found", "inconclusive")) == (p > 0.05)
        assert f["verdict"] != "leak" or f["t"] > 0
        assert f["sentence"].lower().startswith(f["verdict"])
    assert {f["verdict"] for f in coins} >= {"leak", "no leak found"}
    shown = table.merge(pd.DataFrame(coins), on=["seed", "threat_model", "way", "population", "nonmembers", "signal"])
    assert len(shown) == len(coins)
    assert shown.p_adjusted_x.tolist() == pytest.approx(shown.p_adjusted_y.tolist())


def test_a_run_among_others_is_corrected_for_them(two, of_two):
    alone, together = ([f for f in found if f["seed"] == 0] for found in (report(two[0])[0], of_two[0]))
    more = [one["p_adjusted"] - f["p_adjusted"] for f, one in zip(alone, together, strict=True) if f["z"] is not None]
    assert min(more) >= 0
    assert max(more) > 0


def test_the_page_names_its_families_and_controls_that_are_off(of_two):
    text = " ".join(of_two[2].split())
    assert "<i>p alone</i> is the share of 2,000 exchanges" in text
    assert "over all 2 runs of this page" in text
    named = "of each adversary's freshest model the first two in the order of the attacks, which of <code>--attack all"
    named += "</code> is the strength known beforehand (released-model "
    assert f"The 10 primary scores were named beforehand, too: {named}" in text
    assert "They have 40 % of the error. The 12 secondary scores, all others, have 10 %." in text
    assert "at most 5 %" in text
    assert "One score a run has half of the error for itself (server calibrated loss)." in text
    off, calm = (report(evidence(made_up(4, **planted)))[2] for planted in ({"blind_leak": 2.0}, {}))
    assert "Control off: check the pipeline" in off
    assert "Control off" not in calm
    run = dataclasses.replace(made_up(0, leak=2.0), coins={})
    found, _, page = report(evidence(run))
    aurocs = [f for f in found if f["metric"] == "auroc"]
    assert all(f["p_adjusted"] is None and f["verdict"] for f in aurocs)
    assert "exact permutation tests" not in page


def of_two_attacks(seed, **planted):
    headlines, signals = {"a": SIGNALS[:1], "b": SIGNALS[1:2]}, dict(zip(SIGNALS, "aba", strict=True))
    return dataclasses.replace(made_up(seed, **planted), headlines=headlines, signals=signals)


@pytest.mark.parametrize(
    "made",
    [
        lambda: (evidence(of_two_attacks(0, leak=0.6)), evidence(of_two_attacks(1), seed=1)),
        lambda: with_verdicts(kept_evidence(PICTURES[0].plan(), PICTURES[0].kept)),  # of a whole run
    ],
    ids=["two attacks", "a whole run"],
)
def test_no_finding_contradicts_itself(made):
    """`headline` says that a score stands for its attack, `family` what its p is corrected for: a primary score is a
    headline score, and a headline score of another model than an adversary's freshest is secondary."""
    given = made()
    found = report(*given)[0]
    assert contradictory(found) == []
    coins = [f for f in found if f.get("z") is not None]
    pairs = {(f["headline"], f["family"]) for f in coins if not f["best_of"]}
    assert {(True, "named"), (True, "primary"), (True, "secondary")} <= pairs
    assert not {(False, "named"), (False, "primary")} & pairs
    by_family = Counter(family for e in given for family in e.tables["cells"].family if isinstance(family, str))
    assert {f["family"]: f["family_n"] for f in coins} == by_family


def test_both_p_values_stand_where_a_verdict_does(of_two):
    found, table, page = of_two
    text = " ".join(page.split())
    sizes = Counter(test.family for one in (made_up(0, leak=0.6), made_up(1)) for test in by_coin(one).scores.values())
    assert table.family.value_counts().to_dict() == sizes
    for f in (f for f in found if f["z"] is not None):
        alone, among = f"p {f['p']:.2g} alone", f"{f['p_adjusted']:.2g} among {sizes[f['family']]} {f['family']} scores"
        assert f"{alone}, {among}" in f["sentence"]
        if f["seed"] == 0 and f["headline"]:
            assert f"<small>{alone}</small><small>{among}</small>" in text


def test_a_score_without_numbers_counts_in_its_family():
    """One member alone has no AUROC, but its statistic is among those whose largest corrects the others."""
    run = made_up(0)
    few = [*sorted(run.records[0], key=run.truth.get)[:5], next(r for r in run.records[0] if run.truth[r])]
    for model in run.models:
        model.scores["loss"] = model.scores.loss.where(model.scores.index.isin(few), np.nan)
    table = cells(run, 0.95)
    tested = by_coin(run).scores
    assert table.family.value_counts().to_dict() == Counter(test.family for test in tested.values())
    bare = table[table.auroc.isna() & table.family.notna()]
    assert len(bare)
    assert set(bare.signal) == {"loss"}
    of_report = with_verdicts([evidence(run)])[0].tables["cells"]
    assert of_report[of_report.auroc.isna()].p_adjusted.isna().all()
