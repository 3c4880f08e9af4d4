"""Contracts of the sections of a page; found by looking into their folder, so a new file is tested at once."""

import dataclasses
import importlib
import inspect
import re

import pandas as pd
import pytest

from fedaudit.command import listing
from fedaudit.command.cli import read_command
from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.run import run
from fedaudit.reports.section import Page, Section, sections
from fedaudit.reports.section_files import PACKAGE, section_files
from fedaudit.reports.sections import batches
from fedaudit.reports.sections.communication import section
from tests.evidence import table
from tests.pages import Reader
from tests.prompt_evidence import attacked, prompt_evidence
from tests.test_report import ONE
from tests.unprinted import nothing_printed


def test_each_has_a_line_an_order_and_a_template():
    listed = listing.listing()
    for name, path in section_files().items():
        assert plugins.summary(path).endswith("."), name
        assert isinstance(plugins.literal(path, "ORDER"), int), name
        assert (path.parent.parent / f"{name}.html").is_file(), name
        assert re.search(rf"^  {name} +{re.escape(plugins.summary(path))}$", listed, re.MULTILINE), name
    orders = [plugins.literal(path, "ORDER") for path in section_files().values()]
    assert orders == sorted(orders)
    assert len(orders) >= 5


@pytest.mark.parametrize("name", section_files())
def test_is_a_function_of_the_page_that_gives_a_section_or_nothing(name):
    function = importlib.import_module(f"{PACKAGE}.{name}").section
    assert list(inspect.signature(function).parameters) == ["page"]
    with nothing_printed():
        made = function(Page([ONE], map))
    assert made is None or isinstance(made, Section)
    for anchor, words in made.links if made else ():
        assert anchor.replace("-", "").isalnum()
        assert words


def test_communication_is_of_every_method_that_sent_anything():
    columns = ["round", "bytes_down", "bytes_up", "fedavg_bytes", "messages", "complete"]
    rounds = pd.DataFrame([(0, 4000, 2000, 8000, 2, 0), (1, 2000, 2000, 8000, 1, 0)], columns=columns)
    pages = [Page([dataclasses.replace(ONE, tables={"cost": rounds[:n]})], map) for n in (2, 1, 0)]
    both, one, none = map(section, pages)
    expected = {"name": "FedRand", "down": 2000, "up": 4000 / 3, "share": 10_000 / 16_000, "even": False}
    assert both.context["communication"] == [expected]
    assert one.context["communication"][0]["even"]
    assert none is None


def test_a_table_that_no_page_knows_becomes_a_file():
    own = pd.DataFrame({"client": ["client-00"], "records": [3]})
    page = Page([dataclasses.replace(ONE, tables={"top": own})], map)
    assert page.files("top")["top"][["client", "records"]].equals(own)
    assert page.table("top").records.tolist() == [3]
    assert page.files("nobody's") == {}
    assert page.table("nobody's").empty


SOLVED = [
    ("client-00", 0, 1e-7, 0.01, 1e-3, 2), ("client-01", 0, 3e-7, 0.02, 2e-3, 1), ("client-00", 1, 0.5, 0.01, 300.0, 0),
]  # fmt: skip
BATCHES = pd.DataFrame(SOLVED, columns=["client", "round", "residual", "least", "error", "skipped"])
CLASSES = attacked(prompt_evidence("fedotp"), "loss", "entropy", "fedmia")
LOSS = table("beside_loss", [("server", "exact", "lira", 0.7, 0.6, 0.8, 0.1, 0.02, 0.18)])
CLASSES = dataclasses.replace(CLASSES, tables=CLASSES.tables | {"batches": BATCHES, "beside_loss": LOSS})
KINDS = {"texts": ONE, "classes": CLASSES}
TABLE_OF = {  # the table without which a section is not there
    "tokens": "tokens", "reconstruction": "coverage", "agreement": "agreement", "attribution": "attribution",
    "canaries": "canaries", "cells": "cells", "refused": "refused", "communication": "cost", "batches": "batches",
    "beside_loss": "beside_loss",
}  # fmt: skip


def names(e, **tables):
    with nothing_printed():
        return set(sections(Page([dataclasses.replace(e, tables=tables)], map)))


def test_texts_and_classes_with_the_same_tables_have_the_same_sections():
    texts, classes = KINDS.values()
    found = [names(e, **other.tables | e.tables) for e, other in ((texts, classes), (classes, texts))]
    assert found[0] == {"membership", "utility", "exposed", *TABLE_OF}
    assert found[1] == found[0] | {"privacy"}  # whose findings texts do not have


@pytest.mark.parametrize("kind", KINDS)
def test_a_section_is_there_where_its_table_is(kind):
    bare = names(KINDS[kind])
    for name, of in TABLE_OF.items():
        rows = next(e.tables[of] for e in KINDS.values() if of in e.tables)
        assert name in names(KINDS[kind], **{of: rows})
        assert name not in bare | names(KINDS[kind], **{of: rows.head(0)})


def test_how_well_messages_are_explained_is_said_round_by_round():
    """Medians over the clients that sent something then; rounds are counted from 1."""
    first, second = batches.by_round(BATCHES)
    assert (first["round"], first["clients"], first["residual"], first["least"]) == (1, 2, pytest.approx(2e-7), 0.015)
    assert (second["round"], second["clients"], second["error"]) == (2, 1, 300.0)
    assert (first["skipped"], second["skipped"]) == (3, 0)


SMALL = {
    "texts": "--method fedavg --rounds 2 --clients 2 --per-round 2 --records 6 --reference 8 --novel 8 --test 4 "
    "--local-steps 2",
    "classes": "--method fedotp --rounds 2 --clients 2 --per-round 2 --train 16 --test 4",
}


@pytest.mark.slow  # whole runs; quick: pages of made-up findings
def test_pages_of_both_kinds_under_the_same_attacks_have_the_same_sections(tmp_path):
    found = {}
    for kind, words in SMALL.items():
        plan = read_command([*words.split(), "--attack", "loss,entropy,maxrenyi", "--out", str(tmp_path)]).plan
        page = Reader(run(plan, Progress(quiet=True)).report.read_bytes())
        found[kind] = {a["id"] for tag, a in page.elements if tag in ("section", "h2", "h3") and "id" in a}
    assert found["texts"] - {"tokens"} == found["classes"] - {"accuracy", "noise", "against", "differences"}
