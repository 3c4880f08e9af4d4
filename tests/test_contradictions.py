"""Footnotes of printed tables: the numbers that they quote are printed, and what they count is counted here again."""

import csv
import itertools
import re
from functools import cache

import pandas as pd
import pytest

from fedaudit.machinery import plugins
from fedaudit.reports import paper_items
from fedaudit.reports.printed_table import printed
from fedaudit.reports.templates import contradictions

FOLDER = plugins.package_folder("fedaudit.reports.papers")
NOTES = [
    (path.stem.partition("_")[0], row["items"].split(), row["text"])
    for path in sorted(FOLDER.glob("*_contradictions.csv"))
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
]
TITLES = {name.partition(":")[0]: item.paper for name, item in paper_items.items().items()}
EPSILONS = ["none", "0.4", "0.2", "0.1", "0.05", "0.01"]
SETTINGS = {  # stated in the text of a paper: learning rates, densities, budgets, thresholds
    "0.0001", "0.001", "0.0", "0.3", "0.4", "0.2", "0.1", "0.05", "0.01", "0.7",
}  # fmt: skip


@cache
def numbers(paper: str) -> set[str]:
    """Whatever a paper's tables print, as it is printed."""
    tables = [printed(path.stem) for path in FOLDER.glob(f"{paper}_table*.csv")]
    return {value for table in tables for name in ("mean", "std", "value") if name in table for value in table[name]}


@cache
def dpfpl(*tables: int) -> pd.DataFrame:
    """Tables of DP-FPL under each other, means as numbers."""
    found = pd.concat([printed(f"dpfpl_table{i}").assign(table=i) for i in tables], ignore_index=True)
    return found.assign(mean=found["mean"].astype(float))


def drop(dataset: str) -> float:
    """What ε 0.1 costs DP-FPL on clients' own classes."""
    own = dpfpl(2)
    at = own[(own.dataset == dataset) & (own.method == "DP-FPL")].set_index("epsilon")["mean"]
    return float(at["none"] - at["0.1"])


def spreads_that_differ() -> tuple[int, int]:
    """How many results at rank 8 have another spread in Tables 6 to 11 than in Tables 2 and 3, and of how many."""
    place = ["dataset", "epsilon", "split"]
    main = dpfpl(2, 3)
    main = main[main.method == "DP-FPL"].set_index(place)["std"]
    ablation = dpfpl(*range(6, 12))
    ablation = ablation[(ablation["rank"] == "8") & (ablation.residual == "yes")].set_index(place)["std"]
    assert set(main.index) == set(ablation.index)
    return sum(main[i] != ablation[i] for i in main.index), len(main)


def rises() -> tuple[int, int]:
    """Steps to the next smaller epsilon that raise accuracy in Tables 6 to 11, and all steps."""
    steps = [
        later > earlier
        for _, own in dpfpl(*range(6, 12)).groupby(["dataset", "rank", "residual", "split"])
        for earlier, later in itertools.pairwise(own.set_index("epsilon")["mean"][EPSILONS])
    ]
    return sum(steps), len(steps)


def where_the_residual_costs() -> list[tuple[int, str, str, str]]:
    found = []
    for place, own in dpfpl(*range(6, 12)).groupby(["table", "dataset", "split", "rank"]):
        at = own.set_index("residual")["mean"]
        if at["yes"] < at["no"]:
            found.append(place)
    return found


def largest_fall_of_secfpp() -> float:
    """From no noise to the strict budget of DP-FPL, over the data sets of Table 2."""
    own = printed("secfpp_table2")
    at = own[own.method == "DP-FPL"].assign(value=lambda t: t.value.astype(float))
    pivot = at.pivot(index="dataset", columns="epsilon", values="value")
    return float((pivot["none"] - pivot["0.01"]).max())


def furthest_below_fedrand() -> float:
    """On NoCaps, over methods and metrics."""
    own = printed("fedrand_table2").assign(value=lambda t: t.value.astype(float))
    at = own.pivot(index="metric", columns="method", values="value")
    baselines = at.drop(columns=["FedRand", "FedAvg"])
    return float((at["FedRand"] - baselines.min(axis=1)).max())


def mean_of_local_initglo() -> float:
    own = printed("dp2fl_table4")
    at = own[(own.test_set == "local") & (own.initialization == "init_glo") & (own.dataset != "AVG")]
    return float(at.value.astype(float).mean())


COUNTED = {  # numbers of footnotes that no table prints
    ("dpfpl", "11.66"): lambda: f"{drop('OxfordPets'):.2f}",
    ("dpfpl", "13.64"): lambda: f"{drop('OxfordFlowers'):.2f}",
    ("fedrand", "3.6"): lambda: f"{0.3 * 12:.1f}",
    ("fedrand", "2.52"): lambda: f"{furthest_below_fedrand():.2f}",
    ("secfpp", "45.4"): lambda: f"{largest_fall_of_secfpp():.1f}",
    ("secfpp", "5.7"): lambda: f"{20 * 19 * 150 / 10**4:.1f}",  # n² |x − mean|², of n = 20 and d = 150, times 10⁴
    ("secfpp", "1.1"): lambda: f"{2 * 1000**2 * 20 * 19 * 150 / 10**11:.1f}",  # 2λ²D, λ = 10³, times 10¹¹
    ("dp2fl", "82.03"): lambda: f"{mean_of_local_initglo():.2f}",
}


@pytest.mark.parametrize(("paper", "text"), [(paper, text) for paper, _, text in NOTES])
def test_every_number_is_printed_or_counted(paper: str, text: str) -> None:
    quoted = set(re.findall(r"\d+\.\d+", text)) - SETTINGS
    others = [numbers(name) for name, title in TITLES.items() if title in text]
    for number in quoted.difference(numbers(paper), *others):
        assert (paper, number) in COUNTED, f"in no table of {paper}: say in COUNTED how it is counted"
        assert COUNTED[paper, number]() == number


def test_what_is_counted() -> None:
    assert spreads_that_differ() == (43, 48)
    assert rises() == (71, 320)
    assert where_the_residual_costs() == [
        (6, "OxfordPets", "neighbor", "4"), (6, "OxfordPets", "neighbor", "8"),
        (9, "OxfordFlowers", "neighbor", "2"), (9, "OxfordFlowers", "neighbor", "4"),
        (9, "OxfordFlowers", "neighbor", "8"), (10, "Caltech101", "neighbor", "2"),
    ]  # fmt: skip


def test_each_is_a_footnote_of_items_that_there_are() -> None:
    for name, text in ((f"{paper}:{item}", text) for paper, items, text in NOTES for item in items):
        assert name in paper_items.items()
        assert text in contradictions(name), name
