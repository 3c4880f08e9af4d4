"""The first screen of a page: strips on findings of every kind, cards of epsilon, utility, the paragraph, and budgets."""

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedaudit.reports.assessment import paragraphs
from fedaudit.reports.epsilon_cards import cards
from fedaudit.reports.headline import FURTHER
from fedaudit.reports.section import Page
from fedaudit.reports.strips import place, strips
from fedaudit.reports.use import before_and_after
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.verdicts import LEAKS, NO_LEAK_FOUND
from tests.evidence import built, evidence, plain_page
from tests.pages import Reader
from tests.prompt_evidence import prompt_evidence
from tests.test_headline import ONE, auroc

WORDS, PIXELS = 1500, 8000  # of LoRA's default page, without opening anything
POWER = " would have been found with a power of 80 %"
READINGS = {  # of every adversary, by case of the headline's tests; None: what hinders stands in FURTHER
    "a leak": ["73 times in 100"],
    "two adversaries": ["64 times in 100", "73 times in 100"],
    "a leak to one of two": ["an AUROC of 0.67 or 8 named records" + POWER, "73 times in 100"],
    "the owner beside others": ["60 times in 100", "94 times in 100"],
    "the owner alone": ["an AUROC of 0.67 or 8 named records" + POWER, "94 times in 100"],
    "named beforehand before what was picked": ["70 times in 100"],
    "picked scores alone": ["90 times in 100"],
    "named records": ["of the 8 highest within clients, 8 were members, where 4.0 are expected"],
    "named records and a ranking": ["of the 8 highest within clients, 8 were members", "60 times in 100"],
    "highest scores and the ranking": ["94 times in 100"],
    "a reversed score": ["80 times in 100, by the lower score"],
    "none": ["an AUROC of 0.67 or 8 named records" + POWER] * 2,
    "none, the weakest test counts": ["an AUROC of 0.67 or 8 named records" + POWER, "an AUROC of 0.81" + POWER],
    "none, trained elsewhere": ["an AUROC of 0.57 would just have been told from guessing"],
    "a leak elsewhere, of several attacks": ["80 times in 100"],
    "confounded": [None],
    "confounded beside none": [None, "an AUROC of 0.67 or 8 named records" + POWER],
    "inconclusive": [None],
    "not measurable": [None],
    "not measured beside a leak": ["over 99 times in 100", None],
}
WHOLE = {"low": 0.6, "high": 0.8, "base_value": 0.52, "confidence": 0.95, "clients": 7}


def drawn(case: str) -> list[dict[str, Any]]:
    """The strips of a case, each finding with what a strip needs beside the headline."""
    threats = {name.replace("_", "-"): [WHOLE | row for row in rows] for name, rows in ONE[case][0].items()}
    return strips({"FedAvg": threats}, {"FedAvg": 12})


@pytest.mark.parametrize("case", ONE)
def test_a_strip_says_what_the_verdict_says_and_never_no_leak_alone(case: str) -> None:
    found = drawn(case)
    assert len(found) == len(READINGS[case])
    for strip, reading in zip(found, READINGS[case], strict=True):
        assert (reading or FURTHER[strip["verdict"]]) in strip["reading"]
        assert strip["who"].lower() == SENTENCES[strip["threat"]].short
        if strip["verdict"] == NO_LEAK_FOUND:
            assert "would" in strip["reading"]
            assert strip["at"]["detectable"] is not None
        elif strip["at"]:
            assert strip["at"]["detectable"] is None
        if strip["at"]:
            assert strip["clients"] == "7 of 12 clients"


def test_what_could_have_been_shown_and_the_number_of_clients_may_be_unknown() -> None:
    quiet = WHOLE | auroc(0.5, NO_LEAK_FOUND, detectable=None)
    (strip,) = strips({"A": {"server": [quiet]}}, {"A": None})
    assert (strip["reading"], strip["clients"]) == ("what could have been shown is not known", "7 clients")


def test_marks_stand_on_the_scale_and_need_no_colour() -> None:
    assert [place(x) for x in (0.4, 0.7, 1.0, 0.1)] == [2.0, 50.0, 98.0, 2.0]
    (strip,) = drawn("a leak")
    at = strip["at"]
    assert (at["value"], at["low"], at["high"], at["base"]) == (place(0.731), place(0.6), place(0.8), place(0.52))
    said = "Leak: AUROC 0.73, 95 % interval 0.60 to 0.80; on the untrained model 0.52; guessing is 0.50, certain 1.00"
    assert strip["label"] == said
    (turned,) = drawn("a reversed score")
    assert (turned["at"]["value"], turned["at"]["low"]) == (place(0.8), place(1 - WHOLE["high"]))
    page = plain_page([replace(evidence("fedrand", 0), tables={})]).decode()
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert 'role="img" aria-label="' in svg
        assert not re.search(r"#[0-9a-f]{3,6}\b|rgb|style=|fill=|stroke=", svg)
    rows = re.findall(r'<span class="word"><span aria-hidden="true">(.)</span> ([\w ]+)</span>', page)
    assert len(rows) == 3
    assert {word.lower() for _, word in rows} <= {*LEAKS, NO_LEAK_FOUND, "confounded", "inconclusive"}


def lines(name: str, of: Page) -> list[tuple[str | None, str, str]]:
    (card,) = (card for card in cards(of.runs) if card["name"] == name)
    return [(line["run"], line["value"], line["note"]) for line in card["lines"]]


def test_cards_say_against_whom_an_epsilon_holds_and_what_would_fill_an_empty_one() -> None:
    elsewhere = Page([evidence("fedrand", 0)], map)
    assert lines("Claimed", elsewhere) == [(None, "none", "by the run's own word")]
    assert lines("Provable", elsewhere) == [(None, "∞", "by the run's own word")]
    ((_, value, note),) = lines("Measured", elsewhere)
    assert (value, note.startswith("not measured: coins")) == ("–", True)
    prompts = Page([prompt_evidence("fedotp")], map)
    own = [claim.provable for claim in prompts.runs[0].claims if claim.whose == "own"]
    assert own
    assert {line[1] for line in lines("Provable", prompts)} == {"∞" if np.isinf(x) else f"{x:.3g}" for x in own}


@pytest.mark.parametrize(("after", "worse"), [(3.0, ""), (1.0, "the trained model is worse than untrained in CIDEr")])
def test_utility_before_and_after_and_in_words_where_it_fell(after: float, worse: str) -> None:
    rows = [(-1, "global", 2.0, 1.0), (0, "global", 2.0, 0.9), (9, "global", after, 0.8)]
    utility = pd.DataFrame(rows, columns="round model cider loss".split())
    some, none = (Page([replace(evidence("fedrand", 0), tables=t)], map).runs[0] for t in ({"utility": utility}, {}))
    text = f"CIDEr 2.0 before training, {after:.1f} after; loss 1.00 before training, 0.80 after"
    assert before_and_after(some) == {"text": text, "worse": worse}
    assert before_and_after(none) is None


def test_the_paragraph_says_what_was_found_and_what_not() -> None:
    page = Page([evidence("fedrand", 0)], map)
    membership = {"strips": drawn("a leak to one of two"), "families": {"error": "5"}, "headline": None}
    told = dict(paragraphs(page, membership, cards(page.runs), ["Small."]))
    assert list(told) == [
        "What was tested", "Who could do it", "What was found", "What was not found", "Differential privacy", "Limits",
    ]  # fmt: skip
    assert told["What was found"].startswith("The server: leak, picks the member out of a pair 73 times in 100 (AUROC")
    assert "At most 5 % of such audits" in told["What was found"]
    assert told["What was not found"].startswith("Anyone with the released model: no leak found, an AUROC of 0.67")
    assert told["Differential privacy"] == "Claimed ε: none. Provable ε: ∞. Measured ε: –."
    assert "Nothing was attacked" in dict(paragraphs(page, None, [], []))["What was tested"]


class Visible(HTMLParser):
    """`words` of a page's body outside of closed details; of these the summary counts, and of figures the labels."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.words: list[str] = []
        self._path: list[tuple[str, bool]] = []  # open elements, and whether what is inside is hidden
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "link", "img", "br", "hr", "input", "wbr", "col"):  # which are never closed
            return
        closed = tag == "details" and "open" not in dict(attrs)
        self._path.append((tag, closed or tag in ("head", "style", "script", "title", "metadata")))

    def handle_endtag(self, tag: str) -> None:
        while self._path and self._path.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        hidden = [i for i, (_, inside) in enumerate(self._path) if inside]
        in_summary = len(hidden) == 1 and [tag for tag, _ in self._path[hidden[0] + 1 :]][:1] == ["summary"]
        if not hidden or in_summary:
            self.words += data.split()


def test_the_page_keeps_its_budget_of_words(tmp_path: Path) -> None:
    """Of made-up evidence with every part of LoRA's page; figures with their labels."""
    page = built([evidence("fedavg", 0)], printing=True)["index.html"]
    assert WORDS / 2 < len(Visible(page).words) <= WORDS
    assert "impact assessment" in Reader(page).text
    if chromium := shutil.which("chromium") or shutil.which("chromium-browser"):
        (tmp_path / "index.html").write_bytes(page)
        assert height(chromium, tmp_path / "index.html", tmp_path / "page.png") <= PIXELS


def height(chromium: str, page: Path, picture: Path) -> int:
    """Pixels of a page at a width of 1,280: down to the last row that differs from the empty ones below."""
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,16000".split()
    command = [chromium, *options, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    with Image.open(picture) as shot:
        rows = np.asarray(shot.convert("L"))
    return int(np.flatnonzero((rows != rows[-1, 0]).any(axis=1))[-1]) + 1
