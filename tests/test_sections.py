"""Contracts of the sections of a page; found by looking into their folder, so a new file is tested at once."""

import dataclasses
import importlib
import inspect

import pandas as pd
import pytest

from fedaudit.command import listing
from fedaudit.machinery import plugins
from reports.section import PACKAGE, Page, Section, places
from reports.sections.communication import section
from tests.test_report import ONE

each = pytest.mark.parametrize("name", places())


@each
def test_has_a_line_an_order_and_a_template(name):
    path = places()[name]
    assert plugins.summary(path).endswith(".")
    assert isinstance(plugins.literal(path, "ORDER"), int)
    assert (path.parent.parent / f"{name}.html").is_file()
    assert f"  {name:<14}{plugins.summary(path)}" in listing.listing().splitlines()


@each
def test_is_a_function_of_the_page(name):
    made = importlib.import_module(f"{PACKAGE}.{name}").section
    assert list(inspect.signature(made).parameters) == ["page"]


def test_their_order_is_what_their_files_say():
    orders = [plugins.literal(path, "ORDER") for path in places().values()]
    assert orders == sorted(orders)
    assert len(places()) >= 5


@each
def test_is_a_section_of_a_page_or_nothing(name):
    made = importlib.import_module(f"{PACKAGE}.{name}").section(Page([ONE], map))
    assert made is None or isinstance(made, Section)
    for anchor, words in made.links if made else ():
        assert anchor.replace("-", "").isalnum()
        assert words


def test_communication_is_of_every_method_that_sent_anything():
    rounds = pd.DataFrame(
        {"round": [0, 1], "bytes_down": [4000, 2000], "bytes_up": [2000, 2000], "fedavg_bytes": [8000, 8000],
         "messages": [2, 1], "complete": [0, 0]}
    )  # fmt: skip
    (row,) = section(Page([_with(rounds)], map)).context["communication"]
    assert row == {"name": "fedrand", "down": 2000, "up": 4000 / 3, "share": 10_000 / 16_000}
    assert section(Page([_with(rounds[:0])], map)) is None


def _with(cost):
    return dataclasses.replace(ONE, tables={"cost": cost})
