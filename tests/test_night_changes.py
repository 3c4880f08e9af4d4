"""What nights say of numbers: against hand calculations, over nights without a change, and with one."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, norm, ttest_ind
from scipy.stats import t as student

from benchmarks.nights import JUMP, made_up
from fedaudit.audits.statistics import nights as audit
from fedaudit.audits.statistics.over_seeds import OfTraining

Z = float(norm.ppf(0.975))


def row(night: int, value: float, *, run: str = "", error: float = 0.03, z: float | None = None, **more: Any) -> dict:
    """A primary AUROC of a night, on data of its own unless `data` says otherwise."""
    own = {
        "night": night, "cell": "c", "method": "m", "threat_model": "server", "way": "exact", "population": "all members",
        "nonmembers": "held-out", "signal": "loss", "metric": "auroc", "family": "primary", "value": value,
        "low": value - Z * error, "high": value + Z * error, "confidence": 0.95, "z": z, "run": run or f"run {night}",
        "data": run or f"data {night}", "base_value": None, "base_low": None, "base_high": None, "blind_value": None,
        "blind_low": None, "blind_high": None,
    }  # fmt: skip
    return own | more


def difference(now: list[audit.Measured], before: list[audit.Measured]) -> audit.Difference:
    return audit.difference(now, before, grain=0.005)


def told(*rows: dict) -> pd.DataFrame:
    return audit.judged(pd.DataFrame(rows))


def measured(value: float, error: float, data: str = "", z: float | None = None) -> audit.Measured:
    number = OfTraining(value, value - Z * error, value + Z * error, 0.95, data or f"d{value}")
    return audit.Measured(f"r{value}", number, z)


class TestByHand:
    def test_a_difference_of_independent_means_and_of_runs_on_the_same_data(self) -> None:
        found = difference([measured(0.7, 0.03), measured(0.6, 0.04)], [measured(0.5, 0.02)])
        assert (found.now, found.before) == (pytest.approx(0.65), 0.5)
        assert found.error == pytest.approx(math.hypot(math.hypot(0.03, 0.04) / 2, 0.02))
        assert found.squares == pytest.approx((0.05 / 0.03) ** 2 + (0.05 / 0.04) ** 2)
        assert found.degrees == 1
        one, other = measured(0.7, 0.03, "same"), measured(0.6, 0.03, "same")
        assert difference([one, other], [measured(0.5, 0.04)]).error == pytest.approx(0.05)
        lopsided = audit.Measured("r", OfTraining(0.9, 0.9 - Z * 0.04, 0.9 + Z * 0.01, 0.95, "d"), None)
        assert difference([lopsided], [measured(0.5, 0.03)]).error == pytest.approx(0.05)
        assert difference([measured(0.5, 0.03)], [lopsided]).error == pytest.approx(0.05)
        exact = difference([measured(1.0, 0.0)], [measured(1.0, 0.0)])
        assert exact.error == pytest.approx(math.hypot(0.005, 0.005)), "the grain"

    def test_a_band_is_students_with_the_moderated_variance(self) -> None:
        found = difference([measured(0.7, 0.03)], [measured(0.5, 0.03), measured(0.56, 0.03)])
        ratio = 1.4
        variance = (audit.PRIOR * ratio + found.squares) / (audit.PRIOR + 1)
        scale = found.error * math.sqrt(variance)
        said = audit.band(found, ratio, 0.01, 1.0)
        assert said["p"] == pytest.approx(2 * student.sf((0.7 - 0.53) / scale, audit.PRIOR + 1))
        assert said["band_high"] - 0.53 == pytest.approx(student.isf(0.005, audit.PRIOR + 1) * scale)
        assert said["band_low"] == pytest.approx(2 * 0.53 - said["band_high"])
        found = difference([measured(0.9, 0.2)], [measured(0.95, 0.2)])
        assert audit.band(found, 1.0, 0.001, 1.0)["band_high"] == 1.0

    def test_equal_series_and_statistics_of_the_same_data_count_once(self) -> None:
        far = difference([measured(0.5, 0.01), measured(0.6, 0.01)], [measured(0.5, 0.01)])
        assert audit.shared_ratio([far, far]) == pytest.approx((audit.PRIOR + far.squares) / (audit.PRIOR + 1))
        near = difference([measured(0.5, 0.1), measured(0.51, 0.1)], [measured(0.5, 0.1)])
        assert audit.shared_ratio([near]) == 1.0
        for other, expected in (("b", 5 / math.sqrt(2)), ("a", 2.5)):
            found = audit.stouffer([measured(0.6, 0.1, "a", 2.0), measured(0.7, 0.1, other, 3.0)])
            assert found == pytest.approx(expected), other
        assert audit.stouffer([measured(0.6, 0.1)]) is None


class TestNights:
    def test_the_same_runs_are_not_tested_again(self) -> None:
        found = told(row(1, 0.99, z=9.0))
        assert found.status.tolist() == [audit.FIRST]
        assert found.event.tolist() == [""]
        assert found.leaking.tolist() == [True]
        found = told(row(1, 0.5), row(2, 0.5, run="run 1"), row(3, 0.5, run="run 1"))
        assert found.status.tolist() == [audit.FIRST, audit.SAME, audit.SAME]
        assert found.p.isna().all()
        found = told(row(1, 0.5), row(2, 0.52), row(3, 0.5, run="run 1"))
        assert found.status.tolist() == [audit.FIRST, audit.WITHIN, audit.SAME]

    def test_a_jump_is_a_change_and_then_the_new_level_and_only_the_last_nights_count(self) -> None:
        found = told(row(1, 0.5), row(2, 0.5), row(3, 0.8), row(4, 0.8), row(5, 0.5))
        assert found.status.tolist() == [audit.FIRST, audit.WITHIN, audit.CHANGED, audit.WITHIN, audit.CHANGED]
        assert found.before.tolist()[1:] == pytest.approx([0.5, 0.5, 0.8, 0.8])
        old = [row(n, 0.5) for n in range(1, 4)]
        found = told(*old, row(4 + audit.WINDOW, 0.9, error=0.2))
        assert math.isnan(found.before.iloc[-1])

    def test_the_window_ends_with_its_last_night(self) -> None:
        one = audit.Measured("a", OfTraining(0.5), None)
        followed = audit.Followed(past={1: [one]})
        assert followed.before(1 + audit.WINDOW) == [one]
        assert followed.before(2 + audit.WINDOW) == []

    def test_the_tail_is_corrected_for_all_distinct_numbers(self) -> None:
        many = [row(n, v, cell=f"c{i}", threat_model=t) for i in range(40) for n, v in ((1, 0.5), (2, 0.66 if i == 0 else 0.5 + i / 1e6))
                for t in ("server", "owner")]  # fmt: skip
        alone = told(row(1, 0.5), row(2, 0.66)).iloc[-1]
        among = told(*many)
        same = among[(among.cell == "c0") & (among.night == 2)]
        assert alone.p == pytest.approx(same.p.iloc[0], rel=1e-3)
        corrected = 40 * same.p.iloc[0] / audit.USED_SHARE
        assert same.p_adjusted.tolist() == pytest.approx([corrected] * 2), "owner's and server's are one test"
        assert alone.event == audit.CHANGED
        assert (same.event == "").all()

    def test_a_leak_is_new_once_and_heals_by_a_change_alone(self) -> None:
        nights = [row(1, 0.5, z=0.1), row(2, 0.62, z=5.0, error=0.06), row(3, 0.6, z=1.0, error=0.06),
                  row(4, 0.63, z=5.0, error=0.06), row(5, 0.55, z=0.2, error=0.06)]  # fmt: skip
        assert told(*nights).event.tolist() == ["", audit.SHOWN, "", "", ""]
        assert not told(*nights).alarm.any()
        assert told(*nights).leaking.tolist() == [False, False, False, False, False]
        assert told(*nights[:2], row(3, 0.6, z=5.0, error=0.06)).leaking.tolist() == [False, False, True]
        healed = [row(1, 0.5, z=0.1), row(2, 0.9, z=9.0), row(3, 0.9, z=9.0), row(4, 0.5, z=0.1)]
        assert told(*healed).event.tolist() == ["", audit.NEW_LEAK, "", audit.HEALED]
        assert told(*healed).leaking.tolist() == [False, True, True, False]
        assert told(*healed).alarm.tolist() == [False, True, False, True]

    def test_new_growing_and_reversed_leaks(self) -> None:
        found = told(row(1, 0.5, z=0.1), row(2, 0.42, z=-4.0, error=0.06), row(3, 0.5, z=0.1), row(4, 0.95, z=9.0))
        assert found.event.tolist() == ["", audit.SHOWN, "", audit.NEW_LEAK]
        found = told(row(1, 0.7, z=6.0), row(2, 0.7, z=6.0), row(3, 0.95, z=9.0))
        assert found.event.tolist() == ["", "", audit.CHANGED]
        assert found.leaking.all()
        assert told(row(1, 0.5, z=0.1), row(2, 0.1, z=-9.0)).event.tolist() == ["", audit.NEW_LEAK]

    def test_controls_drift_and_are_one_series_for_all_adversaries(self) -> None:
        control = {"base_low": 0.45, "base_high": 0.55, "blind_low": 0.45, "blind_high": 0.55, "blind_value": 0.5}
        rows = [row(1, 0.5, base_value=0.5, **control), row(2, 0.5, base_value=0.5, **control)]
        drifted = row(3, 0.5, base_value=0.9, **control | {"base_low": 0.87, "base_high": 0.93})
        found = told(*rows, drifted)
        assert found[found.event != ""][["quantity", "event"]].to_numpy().tolist() == [[audit.BASE, audit.DRIFT]]
        control |= {"base_value": 0.5}
        found = told(row(1, 0.5, **control), row(1, 0.6, threat_model="owner", **control))
        assert sorted(found.quantity) == [audit.BASE, audit.BLIND, audit.VALUE, audit.VALUE]

    def test_accuracies_are_compared_by_the_spread_of_runs_alone(self) -> None:
        values = [70.0, 71.5, 69.0, 72.0, 40.0]
        more = {"metric": "accuracy/local", "family": None, "threat_model": None}
        found = told(*(row(n, value, error=0.01, **more) for n, value in enumerate(values)))
        assert found.status.tolist() == [audit.FIRST, *[audit.UNTESTED] * audit.LEAST, audit.CHANGED]
        assert found.p.iloc[-1] == pytest.approx(ttest_ind([40.0], values[:4]).pvalue)
        assert found.threat_model.tolist() == [""] * 5

    def test_two_samples_are_students_and_equal_accuracies_have_the_least_error(self) -> None:
        new, before = [70.0, 75.0, 71.0], [60.0, 66.0, 65.0, 61.0]
        found = audit.spread([measured(v, 1.0) for v in new], [measured(v, 1.0) for v in before])
        assert audit.band(found, 5.0, 0.05, 100.0)["p"] == pytest.approx(ttest_ind(new, before).pvalue)
        same = audit.spread(*([measured(50.0, 1.0, f"{side}{i}") for i in range(3)] for side in "ab"))
        assert audit.band(same, 1.0, 0.05, 100.0)["p"] == 1.0

    def test_what_is_not_tested_or_followed_and_the_interval_of_tonight(self) -> None:
        bare = [row(n, 0.5 + n / 10, low=None, high=None) for n in (1, 2)]
        assert told(*bare).status.tolist() == [audit.FIRST, audit.UNTESTED]
        assert told(row(1, 0.5, family="secondary"), row(1, 0.5, metric="tpr@1%", family=None)).empty
        assert audit.judged(pd.DataFrame()).empty
        found = told(row(1, 0.5, run="a"), row(1, 0.7, run="b", error=0.04)).iloc[0]
        assert found.value == pytest.approx(0.6)
        assert found.high - 0.6 == pytest.approx(Z * math.hypot(0.03, 0.04) / 2)
        assert 0.6 - found.low == pytest.approx(found.high - 0.6)

    def test_order_of_lines_does_not_matter(self) -> None:
        history = made_up(np.random.default_rng(0), nights=4, seeds=2, ratio=1.5)
        shuffled = history.sample(frac=1.0, random_state=1)
        keys = ["night", "cell", "threat_model"]
        one, other = (audit.judged(h).sort_values(keys).reset_index(drop=True) for h in (history, shuffled))
        pd.testing.assert_frame_equal(one, other)


NIGHTS, HISTORIES = 9, 10


@pytest.mark.parametrize(("seeds", "ratio", "leak"), [(1, 1.0, 0.0), (1, 2.5, 0.0), (2, 1.5, 0.0), (1, 1.5, 0.08)])
def test_nights_without_a_change_say_so_at_most_once_in_twenty(seeds: int, ratio: float, leak: float) -> None:
    alarms = 0
    for i in range(HISTORIES):
        found = audit.judged(made_up(np.random.default_rng((7, i)), nights=NIGHTS, seeds=seeds, ratio=ratio, leak=leak))
        alarms += found[found.alarm].night.nunique()
    n = HISTORIES * (NIGHTS - 1)
    assert alarms <= binom.isf(0.001, n, audit.LEVEL)  # of 80 nights 11


def test_a_jump_is_found_the_same_night() -> None:
    found = 0
    for i in range(HISTORIES):
        history = made_up(np.random.default_rng((8, i)), nights=JUMP + 1, seeds=1, ratio=1.0, jump=0.3)
        rows = audit.judged(history[history.night >= JUMP - 4])
        jumped = rows[(rows.night == JUMP) & (rows.cell == "cell 0")]
        found += jumped.event.isin([audit.CHANGED, audit.NEW_LEAK]).any()
    assert found >= 0.9 * HISTORIES
