"""What beats the calibrated loss: the table against hand calculations, on attacks that find the same, more and less, and as a section."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.beats import mean_over
from fedaudit.audits.tables.beside_loss import COLUMNS, beside_loss_table
from fedaudit.reports.section import Page
from fedaudit.reports.sections.beside_loss import section
from tests.prompt_scores import changed, first_scores, made_up, with_scores
from tests.test_report import ONE

SIGNALS = {"lira/online": "lira", "gradnorm": "gradnorm", "loss/base": "loss"}
SERVER = (("server", "rebuilt"),)


def table(seed, more=0.0, less=0.0, leak=0.5, **fields):
    """LiRA told more than the loss by `more`, the gradient norm less by `less`."""
    run = made_up(seed, leak=leak, signals=SIGNALS, held=SERVER, classes=0.0, shadows=0, others=0, **fields)
    used = pd.Series(run.truth, dtype=float)

    def change(scores):
        moved = used.reindex(scores.index).fillna(0)
        told = {"lira/online": scores["lira/online"] + more * moved, "gradnorm": scores.gradnorm - less * moved}
        return scores.assign(**told)

    return with_scores(run, change)


def test_the_difference_is_that_of_the_means_over_clients():
    run = table(0, more=1.0)
    found = beside_loss_table(run, 0.95).set_index("signal")
    assert list(found.reset_index()[COLUMNS].columns) == COLUMNS
    for signal, row in found.iterrows():
        own = [(model, run.records[model.client]) for model in run.models]
        # the mean over clients, weighted by their pairs, which here are equally many
        mine, loss = (
            np.mean([roc_auc_score([run.truth[r] for r in ids], model.scores.loc[ids, s]) for model, ids in own])
            for s in (signal, "loss/base")
        )
        assert (row.auroc, row.loss_auroc) == pytest.approx((mine, loss))
        if signal == "loss/base":
            assert np.isnan([row.gain, row.gain_low, row.gain_high]).all()
        else:
            assert row.gain == pytest.approx(mine - loss)
            assert row.gain_low < row.gain < row.gain_high


def test_an_attack_is_above_or_below_where_it_should_be_and_the_section_says_so():
    found = beside_loss_table(table(1, more=2.0, less=2.0), 0.95)
    assert found.gain_low[found.signal == "lira/online"].item() > 0 > found.gain_high[found.signal == "gradnorm"].item()
    made = section(Page([dataclasses.replace(ONE, tables={"beside_loss": found})], map))
    (part,) = made.context["beside_loss"]
    words = {name: cells[0]["word"] for name, cells in part["shown"]["lines"]}
    assert words == {"lira/online": "above", "gradnorm": "below", "loss/base": ""}
    assert part["shown"]["columns"] == [("server", "rebuilt")]
    assert section(Page([dataclasses.replace(ONE, tables={})], map)) is None


def test_attacks_that_find_as_much_as_the_loss_are_seldom_above_or_below_it():
    """Of 80 runs with two attacks that leak as much as the loss, at most 11 say anything (a correct 5 % rule, 99.9 %)."""
    off = [beside_loss_table(table(seed, leak=0.7, each=40, known=4), 0.95) for seed in range(80)]
    assert sum(((t.gain_low > 0) | (t.gain_high < 0)).any() for t in off) <= 11


def test_a_score_without_a_loss_of_its_own_stands_beside_that_of_the_freshest_models():
    run = table(2)
    ways = {"newest": ["loss/base"], "literal": ["loss/base"], "exact": ["gradnorm", "lira/online"]}
    twins = [dataclasses.replace(m, way=way, scores=m.scores[ways[way]]) for m in run.models for way in ways]
    shifted = [dataclasses.replace(m, scores=-m.scores) if m.way == "literal" else m for m in twins]
    found = beside_loss_table(changed(run, models=shifted), 0.95)
    assert set(found.loss_way[found.way == "exact"]) == {"newest"}
    expected = beside_loss_table(run, 0.95).set_index("signal").gain
    got = found[found.way == "exact"].set_index("signal").gain
    pd.testing.assert_series_equal(got.sort_index(), expected.dropna().sort_index())


def test_records_that_lack_a_score_and_runs_without_a_loss_are_left_out():
    def change(scores):
        loss = scores["loss/base"].drop(scores.index[10:30])
        return scores.assign(**{"lira/online": scores["lira/online"][20:], "loss/base": loss})

    found = beside_loss_table(with_scores(table(3), change), 0.95).set_index("signal")
    assert found.members["gradnorm"] + found.nonmembers["gradnorm"] == 2 * (144 - 20)
    assert found.members["lira/online"] + found.nonmembers["lira/online"] == 2 * (144 - 30)
    run = table(4)
    for kept in (["lira/online", "gradnorm"], ["loss/base"]):
        signals = {s: SIGNALS[s] for s in kept}
        alone = changed(run, signals=signals, headlines=first_scores(signals))
        assert beside_loss_table(with_scores(alone, lambda t, kept=kept: t[kept]), 0.95).empty


def test_the_mean_of_independent_runs_has_the_error_of_a_mean():
    one, other = (beside_loss_table(table(seed, more=0.5), 0.95).assign(method="m", seed=seed) for seed in (5, 6))
    rows = ["auroc", "low", "high", "gain", "gain_low", "gain_high"]
    np.testing.assert_allclose(mean_over([one])[rows], one[rows])
    # by hand, of a row: the mean, and of each side the root of the summed squares over two
    both, row = mean_over([one, other]), 0
    a, b = one.iloc[row], other.set_index("signal").loc[one.signal[row]]
    assert both.auroc[row] == pytest.approx((a.auroc + b.auroc) / 2)
    assert both.auroc[row] - both.low[row] == pytest.approx(np.hypot(a.auroc - a.low, b.auroc - b.low) / 2)
    reach = np.hypot(a.gain_high - a.gain, b.gain_high - b.gain) / 2
    assert both.gain_high[row] - both.gain[row] == pytest.approx(reach)
    # a row of one run only keeps that run's interval
    fewer = mean_over([one, other[1:]])
    assert fewer.runs.tolist() == [1, *[2] * (len(one) - 1)]
    np.testing.assert_allclose(fewer[rows].iloc[0], one[rows].iloc[0])
