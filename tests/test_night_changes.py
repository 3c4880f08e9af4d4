"""What nights say of numbers: against hand calculations, over nights without a change, and with one."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, norm, ttest_ind
from scipy.stats import t as student

from benchmarks.nights import JUMP, made_up
from fedaudit.audits.statistics.nights import (
    BASE,
    BLIND,
    CHANGED,
    DRIFT,
    FIRST,
    HEALED,
    LEAST,
    LEVEL,
    NEW_LEAK,
    PRIOR,
    SAME,
    SHOWN,
    UNTESTED,
    USED_SHARE,
    VALUE,
    WINDOW,
    WITHIN,
    Measured,
    band,
    difference,
    judged,
    shared_ratio,
    spread,
    stouffer,
)
from fedaudit.audits.statistics.over_seeds import OfTraining

Z = float(norm.ppf(0.975))


def row(
    night: int, value: float, *, run: str = "", error: float = 0.03, z: float | None = None, **more: object
) -> dict:
    """A primary AUROC of a night, on data of its own unless `data` says otherwise."""
    own = {
        "night": night, "cell": "c", "method": "m", "threat_model": "server", "way": "exact", "population": "all members",
        "nonmembers": "held-out", "signal": "loss", "metric": "auroc", "family": "primary", "value": value,
        "low": value - Z * error, "high": value + Z * error, "confidence": 0.95, "z": z, "run": run or f"run {night}",
        "data": run or f"data {night}", "base_value": None, "base_low": None, "base_high": None, "blind_value": None,
        "blind_low": None, "blind_high": None,
    }  # fmt: skip
    return own | more


def told(*rows: dict) -> pd.DataFrame:
    return judged(pd.DataFrame(rows))


def measured(value: float, error: float, data: str = "", z: float | None = None) -> Measured:
    number = OfTraining(value, value - Z * error, value + Z * error, 0.95, data or f"d{value}")
    return Measured(f"r{value}", number, z)


class TestByHand:
    def test_a_difference_of_independent_means(self) -> None:
        found = difference([measured(0.7, 0.03), measured(0.6, 0.04)], [measured(0.5, 0.02)], grain=0.005)
        assert (found.now, found.before) == (pytest.approx(0.65), 0.5)
        assert found.error == pytest.approx(math.hypot(math.hypot(0.03, 0.04) / 2, 0.02))
        assert found.squares == pytest.approx((0.05 / 0.03) ** 2 + (0.05 / 0.04) ** 2)
        assert found.degrees == 1

    def test_runs_on_the_same_data_share_their_error(self) -> None:
        one, other = measured(0.7, 0.03, "same"), measured(0.6, 0.03, "same")
        assert difference([one, other], [measured(0.5, 0.04)], grain=0.005).error == pytest.approx(0.05)

    def test_the_side_towards_the_other_mean_counts(self) -> None:
        lopsided = Measured("r", OfTraining(0.9, 0.9 - Z * 0.04, 0.9 + Z * 0.01, 0.95, "d"), None)
        assert difference([lopsided], [measured(0.5, 0.03)], grain=0.005).error == pytest.approx(0.05)
        assert difference([measured(0.5, 0.03)], [lopsided], grain=0.005).error == pytest.approx(0.05)

    def test_an_interval_without_width_has_the_least_error(self) -> None:
        assert difference([measured(1.0, 0.0)], [measured(1.0, 0.0)], grain=0.005).error == pytest.approx(
            math.hypot(0.005, 0.005)
        )

    def test_a_band_is_students_with_the_moderated_variance(self) -> None:
        found = difference([measured(0.7, 0.03)], [measured(0.5, 0.03), measured(0.56, 0.03)], grain=0.005)
        ratio = 1.4
        variance = (PRIOR * ratio + found.squares) / (PRIOR + 1)
        scale = found.error * math.sqrt(variance)
        said = band(found, ratio, 0.01, 1.0)
        assert said["p"] == pytest.approx(2 * student.sf((0.7 - 0.53) / scale, PRIOR + 1))
        assert said["band_high"] - 0.53 == pytest.approx(student.isf(0.005, PRIOR + 1) * scale)
        assert said["band_low"] == pytest.approx(2 * 0.53 - said["band_high"])

    def test_ends_of_a_band_are_possible_numbers(self) -> None:
        found = difference([measured(0.9, 0.2)], [measured(0.95, 0.2)], grain=0.005)
        assert band(found, 1.0, 0.001, 1.0)["band_high"] == 1.0

    def test_the_shared_ratio_counts_equal_series_once_and_is_no_less_than_one(self) -> None:
        far = difference([measured(0.5, 0.01), measured(0.6, 0.01)], [measured(0.5, 0.01)], grain=0.005)
        assert shared_ratio([far, far]) == pytest.approx((PRIOR + far.squares) / (PRIOR + 1))
        near = difference([measured(0.5, 0.1), measured(0.51, 0.1)], [measured(0.5, 0.1)], grain=0.005)
        assert shared_ratio([near]) == 1.0

    def test_statistics_of_the_same_data_count_once(self) -> None:
        assert stouffer([measured(0.6, 0.1, "a", 2.0), measured(0.7, 0.1, "b", 3.0)]) == pytest.approx(5 / math.sqrt(2))
        assert stouffer([measured(0.6, 0.1, "a", 2.0), measured(0.7, 0.1, "a", 3.0)]) == pytest.approx(2.5)
        assert stouffer([measured(0.6, 0.1)]) is None


class TestNights:
    def test_the_first_night_compares_nothing(self) -> None:
        found = told(row(1, 0.99, z=9.0))
        assert found.status.tolist() == [FIRST]
        assert found.event.tolist() == [""]
        assert found.leaking.tolist() == [True]

    def test_the_same_runs_are_not_tested_again(self) -> None:
        found = told(row(1, 0.5), row(2, 0.5, run="run 1"), row(3, 0.5, run="run 1"))
        assert found.status.tolist() == [FIRST, SAME, SAME]
        assert found.p.isna().all()

    def test_runs_of_any_earlier_night_are_known(self) -> None:
        found = told(row(1, 0.5), row(2, 0.52), row(3, 0.5, run="run 1"))
        assert found.status.tolist() == [FIRST, WITHIN, SAME]

    def test_a_jump_is_a_change_and_then_the_new_level(self) -> None:
        found = told(row(1, 0.5), row(2, 0.5), row(3, 0.8), row(4, 0.8), row(5, 0.5))
        assert found.status.tolist() == [FIRST, WITHIN, CHANGED, WITHIN, CHANGED]
        assert found.before.tolist()[1:] == pytest.approx([0.5, 0.5, 0.8, 0.8])

    def test_the_tail_is_corrected_for_all_distinct_numbers(self) -> None:
        many = [row(n, v, cell=f"c{i}", threat_model=t) for i in range(40) for n, v in ((1, 0.5), (2, 0.66 if i == 0 else 0.5 + i / 1e6))
                for t in ("server", "owner")]  # fmt: skip
        alone = told(row(1, 0.5), row(2, 0.66)).iloc[-1]
        among = told(*many)
        same = among[(among.cell == "c0") & (among.night == 2)]
        assert alone.p == pytest.approx(same.p.iloc[0], rel=1e-3)
        assert same.p_adjusted.tolist() == pytest.approx(
            [40 * same.p.iloc[0] / USED_SHARE] * 2
        )  # owner's and server's are one test
        assert alone.event == CHANGED
        assert (same.event == "").all()

    def test_only_the_last_nights_count(self) -> None:
        old = [row(n, 0.5) for n in range(1, 4)]
        found = told(*old, row(4 + WINDOW, 0.9, error=0.2))
        assert math.isnan(found.before.iloc[-1])

    def test_a_leak_is_new_once_and_heals_by_a_change_alone(self) -> None:
        nights = [row(1, 0.5, z=0.1), row(2, 0.62, z=5.0, error=0.06), row(3, 0.6, z=1.0, error=0.06),
                  row(4, 0.63, z=5.0, error=0.06), row(5, 0.55, z=0.2, error=0.06)]  # fmt: skip
        assert told(*nights).event.tolist() == ["", SHOWN, "", "", ""]
        assert not told(*nights).alarm.any()
        assert told(*nights).leaking.tolist() == [False, False, False, False, False]
        assert told(*nights[:2], row(3, 0.6, z=5.0, error=0.06)).leaking.tolist() == [False, False, True]
        healed = [row(1, 0.5, z=0.1), row(2, 0.9, z=9.0), row(3, 0.9, z=9.0), row(4, 0.5, z=0.1)]
        assert told(*healed).event.tolist() == ["", NEW_LEAK, "", HEALED]
        assert told(*healed).leaking.tolist() == [False, True, True, False]
        assert told(*healed).alarm.tolist() == [False, True, False, True]

    def test_a_leak_that_was_chance_does_not_hide_a_new_one(self) -> None:
        found = told(row(1, 0.5, z=0.1), row(2, 0.42, z=-4.0, error=0.06), row(3, 0.5, z=0.1), row(4, 0.95, z=9.0))
        assert found.event.tolist() == ["", SHOWN, "", NEW_LEAK]

    def test_a_leak_that_grows_is_a_change(self) -> None:
        found = told(row(1, 0.7, z=6.0), row(2, 0.7, z=6.0), row(3, 0.95, z=9.0))
        assert found.event.tolist() == ["", "", CHANGED]
        assert found.leaking.all()

    def test_scores_that_are_reversed_leak_too(self) -> None:
        assert told(row(1, 0.5, z=0.1), row(2, 0.1, z=-9.0)).event.tolist() == ["", NEW_LEAK]

    def test_controls_drift(self) -> None:
        control = {"base_low": 0.45, "base_high": 0.55, "blind_low": 0.45, "blind_high": 0.55, "blind_value": 0.5}
        rows = [row(1, 0.5, base_value=0.5, **control), row(2, 0.5, base_value=0.5, **control)]
        drifted = row(3, 0.5, base_value=0.9, **control | {"base_low": 0.87, "base_high": 0.93})
        found = told(*rows, drifted)
        assert found[found.event != ""][["quantity", "event"]].to_numpy().tolist() == [[BASE, DRIFT]]

    def test_a_control_is_one_series_for_all_adversaries(self) -> None:
        control = {
            "base_value": 0.5,
            "base_low": 0.45,
            "base_high": 0.55,
            "blind_value": 0.5,
            "blind_low": 0.4,
            "blind_high": 0.6,
        }
        found = told(row(1, 0.5, **control), row(1, 0.6, threat_model="owner", **control))
        assert sorted(found.quantity) == [BASE, BLIND, VALUE, VALUE]

    def test_accuracies_are_compared_by_the_spread_of_runs_alone(self) -> None:
        values = [70.0, 71.5, 69.0, 72.0, 40.0]
        nights = [
            row(n, v, error=0.01, metric="accuracy/local", family=None, threat_model=None) for n, v in enumerate(values)
        ]
        found = told(*nights)
        assert found.status.tolist() == [FIRST, *[UNTESTED] * LEAST, CHANGED]
        assert found.p.iloc[-1] == pytest.approx(ttest_ind([40.0], values[:4]).pvalue)
        assert found.threat_model.tolist() == [""] * 5

    def test_two_samples_are_students(self) -> None:
        new, before = [70.0, 75.0, 71.0], [60.0, 66.0, 65.0, 61.0]
        found = spread([measured(v, 1.0) for v in new], [measured(v, 1.0) for v in before])
        assert band(found, 5.0, 0.05, 100.0)["p"] == pytest.approx(ttest_ind(new, before).pvalue)

    def test_equal_accuracies_have_the_least_error(self) -> None:
        same = spread(
            [measured(50.0, 1.0, f"a{i}") for i in range(3)], [measured(50.0, 1.0, f"b{i}") for i in range(3)]
        )
        assert band(same, 1.0, 0.05, 100.0)["p"] == 1.0

    def test_what_has_no_interval_is_said_not_to_be_tested(self) -> None:
        bare = [row(n, 0.5 + n / 10, low=None, high=None) for n in (1, 2)]
        assert told(*bare).status.tolist() == [FIRST, UNTESTED]

    def test_scores_that_are_not_primary_are_not_followed(self) -> None:
        assert told(row(1, 0.5, family="secondary"), row(1, 0.5, metric="tpr@1%", family=None)).empty

    def test_no_night_at_all(self) -> None:
        assert judged(pd.DataFrame()).empty

    def test_tonights_interval_is_by_the_errors_of_its_runs(self) -> None:
        found = told(row(1, 0.5, run="a"), row(1, 0.7, run="b", error=0.04)).iloc[0]
        assert found.value == pytest.approx(0.6)
        assert found.high - 0.6 == pytest.approx(Z * math.hypot(0.03, 0.04) / 2)
        assert 0.6 - found.low == pytest.approx(found.high - 0.6)

    def test_order_of_lines_does_not_matter(self) -> None:
        history = made_up(np.random.default_rng(0), nights=4, seeds=2, ratio=1.5)
        shuffled = history.sample(frac=1.0, random_state=1)
        keys = ["night", "cell", "threat_model"]
        one, other = (judged(h).sort_values(keys).reset_index(drop=True) for h in (history, shuffled))
        pd.testing.assert_frame_equal(one, other)


NIGHTS, HISTORIES = 9, 24


@pytest.mark.parametrize(("seeds", "ratio", "leak"), [(1, 1.0, 0.0), (1, 2.5, 0.0), (2, 1.5, 0.0), (1, 1.5, 0.08)])
def test_nights_without_a_change_say_so_at_most_once_in_twenty(seeds: int, ratio: float, leak: float) -> None:
    alarms = 0
    for i in range(HISTORIES):
        found = judged(made_up(np.random.default_rng((7, i)), nights=NIGHTS, seeds=seeds, ratio=ratio, leak=leak))
        alarms += found[found.alarm].night.nunique()
    n = HISTORIES * (NIGHTS - 1)
    assert alarms <= binom.isf(0.001, n, LEVEL)  # of 192 nights 20


def test_a_jump_is_found_the_same_night() -> None:
    found = 0
    for i in range(HISTORIES):
        rng = np.random.default_rng((8, i))
        history = made_up(rng, nights=JUMP + 1, seeds=1, ratio=1.0, jump=0.3)
        history = history[history.night >= JUMP - 4]
        told_ = judged(history)
        found += bool(((told_.night == JUMP) & (told_.cell == "cell 0") & told_.event.isin([CHANGED, NEW_LEAK])).any())
    assert found >= 0.9 * HISTORIES
