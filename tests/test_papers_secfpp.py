"""SecFPP's Tables 1 to 3: printed numbers unchanged, means over tasks within seeds, orders, exponents, what is refused."""

import math
from dataclasses import replace
from itertools import combinations
from statistics import mean, stdev

import pandas as pd
import pytest

from fedaudit.command.cli import read_command
from fedaudit.reports import paper_items
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.papers import secfpp, secfpp_figure3, secfpp_table3
from fedaudit.reports.printed_table import EVERY, Table, printed
from tests.prompt_evidence import of_a_dirichlet_split, prompt_evidence

STUDENT = 4.302653  # of two degrees of freedom, 95 %
CLEAR = ("zeroshot", "promptfl", "fedotp", "fedpgp", "dpfpl")
SEEDS = (0, 1, 4)  # the made-up accuracies of a seed are its number above those of seed 0


def cells(seeds: tuple[int, ...] = SEEDS, more: float = 0.0) -> list[Evidence]:
    """`more` is added to every accuracy of a seed, times one more than the seed."""
    given = [(method, math.inf) for method in CLEAR] + [("dpfpl", 0.1), ("dpfpl", 0.01)]

    def raised(e: Evidence) -> Evidence:
        moved = [f | {"value": f["value"] + more * (1 + e.seed)} if "before" in f else f for f in e.findings]
        return replace(e, findings=moved)

    return [raised(of_a_dirichlet_split(prompt_evidence(*pair, seed))) for pair in given for seed in seeds]


def value(table: Table, column: str, row: str, level: str = "") -> float:
    return table.ours[column].cells[row, level].value


def own(e: Evidence, metric: str = "accuracy/own_test") -> float:
    (found,) = (f["value"] for f in e.findings if f["metric"] == metric)
    return float(found)


def test_table_1_is_of_means_over_tasks_within_seeds() -> None:
    """Two singles that differ by 2 points a seed and one: their means by a point."""
    given = {"print": cells(), "neon": cells(more=2.0), "print+neon": cells()}
    table = secfpp.evolution(given)
    by_seed = [own(e) + 1 + e.seed for e in given["print"] if e.setting["method"]["name"] == "fedotp"]
    cell = table.ours["single"].cells["FPP", ""]
    assert (cell.value, cell.seeds) == (pytest.approx(mean(by_seed)), 3)
    assert cell.high == pytest.approx(mean(by_seed) + STUDENT * stdev(by_seed) / math.sqrt(3))
    assert value(table, "multi", "FPP") == pytest.approx(cell.value - mean(1 + seed for seed in SEEDS))
    hard = next(own(e) for e in given["print"] if e.setting["method"]["name"] == "zeroshot")
    assert value(table, "multi", "Hard Prompt") == pytest.approx(hard)


def test_table_1_mixes_budgets_as_the_printed_row_does() -> None:
    table = secfpp.evolution({"print": cells((0,)), "print+neon": cells((0,))})
    at = {e.setting["privacy"]["epsilon"]: own(e) for e in cells((0,)) if e.setting["method"]["name"] == "dpfpl"}
    assert (value(table, "single", "DP-FPL"), value(table, "multi", "DP-FPL")) == (at[0.1], at[0.01])
    other = secfpp.OTHER_BUDGET
    assert (value(table, "single", other), value(table, "multi", other)) == (at[0.01], at[0.1])
    assert table.printed_value(table.ours["multi"], ("DP-FPL", "")) == 65.7
    assert table.printed_value(table.ours["multi"], (other, "")) is None
    assert table.agreements["single"][EVERY].n == 4  # no SecFPP in what is made up


def test_table_2_has_both_kinds_of_test_set() -> None:
    table = secfpp.methods({"print": cells(), "print+neon": cells()})
    kinds = ("own tests", "all records")
    assert list(table.ours) == [f"{task}, {tests}" for tests in kinds for task in ("print", "print+neon")]
    values = [own(e) for e in cells() if e.method.startswith("dpfpl") and e.setting["privacy"]["epsilon"] == 0.1]
    cell = table.ours["print, own tests"].cells["DP-FPL", "ε 0.1 (default)"]
    assert cell.value == pytest.approx(mean(values))
    assert cell.high == pytest.approx(mean(values) + STUDENT * stdev(values) / math.sqrt(3))
    of_tests, of_all = (value(table, f"print, {tests}", "FedOTP", "no noise") for tests in kinds)
    assert of_all == pytest.approx(of_tests - 0.5)
    for task, pair in (("print", False), ("print+neon", True)):
        rows = printed("secfpp_table2")
        theirs = rows[(rows.dataset.str.contains("+", regex=False) == pair) & (rows.method == "SecFPP")].value
        against = table.printed_value(table.ours[f"{task}, own tests"], ("SecFPP", "no noise"))
        assert against == pytest.approx(theirs.astype(float).mean())


def test_of_several_settings_the_one_closest_to_the_papers_stands() -> None:
    ranks = [of_a_dirichlet_split(prompt_evidence("dpfpl", rank=rank)) for rank in (8, 4)]
    table = secfpp.methods({"print": ranks})
    assert value(table, "print, own tests", "DP-FPL", "no noise") == own(ranks[0]) != own(ranks[1])


def test_table_2_compares_the_order_of_methods_without_noise() -> None:
    """Budgets of DP-FPL alone have no order of methods. In the made-up accuracies, as in the paper's singles, FedOTP is
    first of four."""
    table = secfpp.methods({"print": cells((0,))})
    (found,) = table.agreements["print, own tests"].values()
    column = table.ours["print, own tests"]
    clear = {row: c.value for row, c in column.cells.items() if row[1] == "no noise"}
    theirs = {row: table.printed_value(column, row) or 0.0 for row in clear}
    signs = [math.copysign(1, (clear[a] - clear[b]) * (theirs[a] - theirs[b])) for a, b in combinations(clear, 2)]
    assert (found.n, found.methods) == (4, 4)
    assert found.tau == pytest.approx(mean(signs))
    assert found.p is not None


def test_both_tables_are_of_the_same_runs_which_have_every_row() -> None:
    one, two = (paper_items.find(f"secfpp:table{number}") for number in (1, 2))
    assert (one.preset, one.tasks) == (two.preset, two.tasks)
    names, table = {name: key for key, name in secfpp.METHODS.items()}, printed("secfpp_table2")
    levels = table.epsilon.replace("none", "inf").astype(float)
    rows = {*zip(table.method.map(names), levels, strict=True), secfpp.HARD}
    for words in two.tasks.values():
        plan = read_command(["--preset", two.preset or "", *words, "--dry-run"]).plan
        planned = filter(None, plan.methods.values())
        assert {(v.method, math.inf if v.privacy is None else v.privacy.epsilon) for v in planned} == rows
        assert (plan.clients, plan.seeds) == (20, 3)
    assert all(one in rows for pair in secfpp.ROWS.values() for one in pair)


def test_table_3_has_exponents_beside_the_printed_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of costs that grow as n² and d the exponents are 2 and 1, and those of the orders are their formulas'."""
    sizes = [(20, 150), (100, 150), (20, 4000)]
    rows = [{"users": n, "d": d, "ell": 2.0, "user": n * n * d, "server": n, "bytes": 7 * d} for n, d in sizes]
    monkeypatch.setattr(secfpp_figure3, "ours", lambda: pd.DataFrame(rows))
    files: dict[str, bytes] = {}
    said = paper_items.find("secfpp:table3").build({}, files.__setitem__)
    assert list(files) == ["table3.csv", "table3.tex", "index.html"]
    assert "computation of a user grows as n^2.0, d^1.0; computation of the server grows as n^1.0, d^0.0" in said
    table = secfpp_table3.table(pd.DataFrame(rows))
    assert value(table, "in n, measured", "computation of a user") == pytest.approx(2)
    assert value(table, "in d, measured", "communication of a user") == pytest.approx(1)
    expected = 2 + 2 * math.log(math.log(100) / math.log(20)) / math.log(5)
    assert value(table, "in n, of the printed order", "computation of the server") == pytest.approx(expected)
    page = files["index.html"].decode()
    assert all(order in page for order in secfpp_table3.PRINTED.values())
    assert "decoding needs 2(ℓ + t − 1) + 1 shares" in page
    assert "same order?" not in page
    assert paper_items.find("secfpp:table3").preset is None
