"""A paper's table beside ours: agreement within levels against a slow loop, page, CSV and LaTeX of made-up numbers."""

from __future__ import annotations

import io
import itertools
import math
import re
import shutil
import subprocess
from statistics import mean

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from fedaudit.reports import printed_table
from fedaudit.reports.printed_table import EVERY, Column, OurNumber, Table
from fedaudit.reports.rows import Score

ROWS = ["a", "b", "c"]
PAPER = {
    "one": {("a", "x"): "9.10", ("b", "x"): "8.20", ("c", "x"): "7", ("a", "y"): "3", ("b", "y"): "2", ("c", "y"): "1"},
    "two": {("a", "x"): "1", ("b", "x"): "2"},
}


def column(values: dict[tuple[str, str], float], *against: str) -> Column:
    return Column({row: OurNumber(value, value - 1, value + 1) for row, value in values.items()}, against)


def table(**changed: object) -> Table:
    ours = {
        "mine": column({(r, level): 10.0 * i + j for i, r in enumerate(ROWS) for j, level in enumerate("xy")}, "one"),
        "other": Column({("a", "x"): OurNumber(5.0)}, (), "another quantity than the paper's"),
    }
    return Table(**{"name": "dpfpl:table2", "ours": ours, "paper": PAPER, "scale": "Small."} | changed)  # type: ignore[arg-type]


def built(given: Table) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    printed_table.build(given, files.__setitem__)
    assert list(files) == ["table2.csv", "table2.tex", "index.html"]
    return files


class TestAgreement:
    @pytest.mark.parametrize("seed", range(6))
    def test_within_levels_is_a_slow_loop(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows, levels = "abcd"[: 2 + seed % 3], "xyz"[: 1 + seed % 3]
        ours, paper = ({(r, v): float(rng.integers(4)) for r in rows for v in levels} for _ in range(2))

        def middle(names: dict[str, str]) -> float:
            taus = []
            for v in levels:
                x, y = [ours[names[r], v] for r in rows], [paper[r, v] for r in rows]
                if len(set(x)) > 1 and len(set(y)) > 1:
                    taus.append(kendalltau(x, y).statistic)
            return mean(taus) if taus else math.nan

        every = [middle(dict(zip(rows, names, strict=True))) for names in itertools.permutations(rows)]
        found = printed_table.within_levels(ours, paper)
        if math.isnan(every[0]):
            assert found.tau is None
            return
        assert found.tau == pytest.approx(every[0])
        assert found.p == pytest.approx(sum(t >= every[0] - 1e-9 for t in every) / len(every))

    def test_that_all_rows_fall_with_the_level_is_no_agreement_and_levels_that_lack_rows_have_no_p(self) -> None:
        ours, paper = ({(r, v): 100.0 * (v == "x") + s * i for i, r in enumerate(ROWS) for v in "xy"} for s in (1, -1))
        assert printed_table.within_levels(ours, paper).tau == -1
        fewer = {("a", "x"): 1.0, ("b", "x"): 2.0, ("a", "y"): 1.0}
        found = printed_table.within_levels(fewer, fewer)
        assert (found.tau, found.p) == (1.0, None)

    def test_of_a_table_and_in_words(self) -> None:
        found = table().agreements
        assert list(found) == ["mine"]  # what is held against nothing is not compared
        assert {level: a.tau for level, a in found["mine"].items()} == {EVERY: -1, "x": -1, "y": -1}
        one = found["mine"][EVERY]
        assert one.p == 1
        assert printed_table.agreed_in_words({"mine": one}) == "τ −1.00 (mine, p 1)"
        said = printed_table.agreed_in_words({str(i): one for i in range(4)})
        assert said == "τ −1.00 to −1.00 over 4 columns, 0 of them with p ≤ 0.05"
        assert printed_table.agreed_in_words({}) == "no order to compare"


class TestPage:
    def test_it_says_what_it_is_of_and_ours_has_an_interval_and_the_papers_number_beside_it(self) -> None:
        page = built(table())["index.html"].decode()
        assert "<title>DP-FPL, Table 2: " in page
        assert "another quantity than the paper&#39;s" in page
        assert re.search(r"20\.0\s+7\.0\s+\[19\.0, 21\.0\]", re.sub(r"<[^>]+>", " ", page))

    def test_the_mean_of_several_columns_and_no_column_of_ours(self) -> None:
        given = table()
        several = Column(given.ours["mine"].cells, ("one", "two"))
        assert given.printed_value(several, ("a", "x")) == pytest.approx((9.1 + 1) / 2)
        assert given.printed_value(several, ("c", "x")) is None  # one of them lacks it
        with pytest.raises(ValueError, match="dpfpl:table2 must have numbers of ours"):
            printed_table.build(table(ours={"mine": Column({})}), {}.__setitem__)

    def test_csv_holds_both_sides(self) -> None:
        long = pd.read_csv(io.BytesIO(built(table())["table2.csv"]))
        assert (long.whose == "ours").sum() == 7
        assert (long.whose == "the paper").sum() == sum(map(len, PAPER.values()))
        (row,) = long.query("whose == 'ours' and column == 'mine' and row == 'c' and level == 'y'").to_dict("records")
        assert (row["value"], row["low"], row["high"]) == (21.0, 20.0, 22.0)


class TestLatex:
    def test_two_tabulars_that_hold_the_numbers_and_what_latex_would_read_is_escaped(self) -> None:
        text = built(table())["table2.tex"].decode()
        assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
        assert r"x & c & 20.0 [19.0, 21.0] &  \\" in text
        assert r"x & a & 9.10 & 1 \\" in text
        text = built(table(ours={"50 % ε": column({("a_b", "ε 0.1"): 1.0})}, paper={}))["table2.tex"].decode()
        assert r"50 \% $\varepsilon$" in text
        assert r"a\_b" in text

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
    def test_it_compiles(self, tmp_path) -> None:
        head = r"\documentclass{article}\usepackage[utf8]{inputenc}\usepackage{booktabs}\begin{document}"
        body = built(table())["table2.tex"].decode()
        (tmp_path / "t.tex").write_text(f"{head}\n{body}\n\\end{{document}}\n")
        subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_several_seeds_have_students_interval() -> None:
    cell = printed_table.over_seeds(Score(2.0, 1.0, 0.0, 9.0, None, {0: 1.0, 1: 2.0, 2: 3.0}))
    assert cell.high - 2 == pytest.approx(4.302652729696142 / math.sqrt(3))
    assert printed_table.over_seeds(Score(2.0, None, 0.0, 9.0, None, {0: 2.0})) == OurNumber(2.0, 0.0, 9.0, 1)
