"""What an audit says of itself in Python is what its page says: sentences, strips, verdicts."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fedaudit.reports import notebook
from fedaudit.reports.report import Evidence
from fedaudit.reports.section import Page
from fedaudit.terms.verdicts import LEAKS, VERDICTS
from tests.evidence import built, evidence
from tests.pages import HOSTILE, Reader
from tests.prompt_evidence import attacked, prompt_evidence
from tests.unprinted import nothing_drawn

KINDS: dict[str, Callable[[], list[Evidence]]] = {
    "one run": lambda: [evidence("fedavg", 0)],
    "two methods, two seeds each": lambda: [evidence(method, seed) for method in ("fedavg", "fedrand") for seed in (0, 1)],
    "attacks on prompts, with noise and without": lambda: [
        attacked(prompt_evidence("promptfl", epsilon), "lira", "loss") for epsilon in (math.inf, 0.4)
    ],
    "many runs": lambda: [attacked(prompt_evidence("promptfl", epsilon), "loss") for epsilon in (math.inf, 8, 4, 2, 1)],
    "nothing attacked": lambda: [prompt_evidence("promptfl", 0.4)],
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def report(kind: str) -> dict[str, bytes]:
    with nothing_drawn():
        return built([replace(e, tables={}) for e in KINDS[kind]()])


@cache
def page(kind: str) -> Page:
    return notebook.page_of(*(json.loads(report(kind)[f"{name}.json"]) for name in ("findings", "runs")))


def strips_of(html: str) -> list[str]:
    ends = r'(?=<h3>|<div class="strip |<div class="legend)'
    return [Reader(strip.encode()).text for strip in re.findall(rf'<div class="strip .*?{ends}', html, re.DOTALL)]


@every_kind
def test_the_summary_is_what_the_page_says_first(kind: str) -> None:
    index = report(kind)["index.html"].decode()
    (first,) = re.findall(r"<h1>(.*?)</h1>", index)
    sentence, *rest = notebook.summary(page(kind))
    if kind == "nothing attacked":
        assert [sentence, *rest] == ["Nothing was attacked."]
    else:
        assert Reader(first.encode()).text == sentence
    if kind == "many runs":  # whose page has these sentences in place of strips
        assert [Reader(line.encode()).text for line in re.findall(r'<p class="rest">(.*?)</p>', index)] == rest


@every_kind
def test_the_picture_has_the_strips_of_the_page_or_a_table(kind: str) -> None:
    picture = notebook.picture(page(kind), Path("a & b/index.html"))
    assert strips_of(picture) == strips_of(report(kind)["index.html"].decode())
    assert bool(strips_of(picture)) == (kind not in ("many runs", "nothing attacked"))
    assert ("<table" in picture) == (kind == "many runs")
    assert "<code>a &amp; b/index.html</code>" in picture
    assert notebook.summary(page(kind))[0] in Reader(picture.encode()).text


@every_kind
def test_verdicts_have_a_row_per_run_and_adversary(kind: str) -> None:
    table = notebook.verdicts(page(kind))
    assert [*table] == [*notebook.VERDICTS]
    findings = [f for f in json.loads(report(kind)["findings.json"]) if f["metric"] == "auroc"]
    assert {*zip(table.run, table.threat_model, strict=True)} == {(f["run"], f["threat_model"]) for f in findings}
    assert not table.duplicated(["run", "method", "threat_model"]).any()
    for row in table[table.verdict.isin(VERDICTS)].to_dict("records"):
        names = ("run", "method", "seed", "threat_model", "verdict", "signal", "value", "low", "high")
        assert any(all(f[name] == row[name] for name in names) for f in findings), row
    if len(table):
        assert table.verdict.isin(LEAKS).any()
        assert (table.reading.str.len() > 10).all()


def test_names_of_users_are_escaped_and_rules_hold_within_their_scope_only() -> None:
    files = report("many runs")
    findings = [f | {"method": f"{HOSTILE} {f['method']}"} for f in json.loads(files["findings.json"])]
    shown = notebook.picture(notebook.page_of(findings, json.loads(files["runs.json"])), Path("index.html"))
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown
    style = "<style>\n/* of a, b { } */\n:root { --a: 1; } .a, .b > p { color: red; }\n@media print { .a { margin: 0; } td { top: 0; } }\n</style>"
    assert re.sub(r"(?<=[{}])(?=\S)", " ", " ".join(notebook.scoped(style, ".x").split())) == (
        ".x { --a: 1; } .x .a, .x .b > p { color: red; } @media print { .x .a { margin: 0; } .x td { top: 0; } }"
    )
