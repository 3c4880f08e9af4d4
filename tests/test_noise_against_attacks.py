"""What noise takes from attacks, as the page of DP-FPL's Figure 3 says it: the difference of two trainings on the same records."""

from dataclasses import replace
from statistics import stdev
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedaudit.reports.attack_success import fall, with_leakage
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.papers import dpfpl_figure3
from fedaudit.reports.rows import MethodRow, Score, variants
from tests.pages import Reader
from tests.prompt_evidence import attacked, prompt_evidence
from tests.test_inference_report import INF, bare, drawn


def scored(e: Evidence, shift: float, rng: np.random.Generator, common: np.ndarray[Any, Any]) -> Evidence:
    """The cell with shadow scores that share a part with those of another training, members `shift` higher; rows in an order of their own."""
    table = e.tables["records"]
    values = common + rng.normal(size=len(table)) + shift * table.member
    return replace(e, tables=e.tables | {"records": table.assign(shadow=values).sample(frac=1, random_state=rng)})


def shadowed(epsilon: float, seed: int = 0) -> Evidence:
    return bare(attacked(prompt_evidence("dpfpl", epsilon, seed), "shadow"), "records", "classes")


def fallen(clear: list[Evidence], noised: list[Evidence]) -> Score | None:
    (one,), (other,) = variants(clear), variants(noised)
    return fall(one, other, "shadow")


def test_the_interval_of_a_fall_holds_the_truth() -> None:
    """Records are hard or easy in both trainings alike. AUROC is Phi(shift / 2) by construction; of 100 intervals 95 % hold the difference."""
    rng, clear, noised = np.random.default_rng(0), shadowed(INF), shadowed(0.1)
    truth, held = float(norm.cdf(0.6) - norm.cdf(0.1)), 0
    for _ in range(100):
        common = rng.normal(size=len(clear.tables["records"]))
        found: Any = fallen([scored(clear, 1.2, rng, common)], [scored(noised, 0.2, rng, common)])
        held += found.low <= truth <= found.high
    assert binom.ppf(0.0005, 100, 0.95) <= held <= binom.ppf(0.9995, 100, 0.95)


def test_a_fall_is_of_what_both_trainings_have_in_common() -> None:
    clear, noised = [shadowed(INF, s) for s in (0, 1)], [shadowed(0.1, s) for s in (0, 1)]
    found: Any = fallen(clear, noised)
    assert set(found.seeds) == {0, 1}
    assert found.sd == pytest.approx(stdev(found.seeds.values()))
    table = noised[0].tables["records"]
    others = table.assign(shadow=np.where(table.kind == "reference", 99.0, table.shadow))  # nobody's members
    others.loc[others.threat_model != "prompt-user", "shadow"] = 99.0
    again = fallen(clear, [replace(noised[0], tables={"records": others}), noised[1]])
    assert again == found
    assert fallen([clear[0]], [noised[1]]) is None, "no seed in common"
    assert fallen([clear[0]], [bare(noised[0])]) is None, "no scores"
    assert fallen([replace(clear[0], findings=[])], [noised[0]]) is None, "no AUROC"
    alone = table[table.member]
    assert fallen([clear[0]], [replace(noised[0], tables={"records": alone})]) is None, "nothing to compare with"


def test_what_noise_takes_is_computed_and_said() -> None:
    """From no noise to the least epsilon, of every attack that ran."""
    rng, cells = np.random.default_rng(0), {e: shadowed(e) for e in (INF, 0.4, 0.1)}
    common = rng.normal(size=len(cells[INF].tables["records"]))

    def line(noised: float) -> list[MethodRow]:
        shifts = {INF: 2.0, 0.4: 9.0, 0.1: noised}
        found = [scored(e, shifts[epsilon], rng, common) for epsilon, e in cells.items()]
        return [with_leakage(v, "shadow") for v in variants(found)]

    (one,) = dpfpl_figure3.falls(line(0.0))
    assert (one.attack, one.noise, one.reading) == ("shadow models", "ε 0.1", "above 0")
    assert one.fall.value == pytest.approx(norm.cdf(1.0) - 0.5, abs=0.12)
    assert "Noise lowers leakage as measured by shadow models." in dpfpl_figure3.reading(line(0.0))
    (none,) = dpfpl_figure3.falls(line(2.0))
    assert none.reading == "not told from 0"
    assert "No attack shows that noise lowers leakage." in dpfpl_figure3.reading(line(2.0))
    assert dpfpl_figure3.falls(line(0.0)[1:]) == [], "nothing without noise"
    files = drawn({"task": [e for v in line(0.0) for e in v.evidence]})
    row = next(row for row in Reader(files["index.html"]).rows if row[1:2] == ["shadow models"])
    assert [row[0], row[3], row[-1]] == ["task", "ε 0.1", "above 0"]
