"""The report on synthetic evidence: every number arrives, nothing else does, and the same evidence gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from audits.findings import Finding
from reports.figures import drawing
from reports.figures import membership as figures
from reports.figures import tokens as heatmap
from reports.formats import number, plain
from reports.report import TABLES, Evidence, build
from tests.unprinted import nothing_printed

ATTACK, SIBLING, LOSS = "renyi/2/10/caption", "loss/base", "loss"
CLIENTS = [f"client-{k:02d}" for k in range(6)]
WAYS = {"fedavg": {"server": ["exact"]}, "fedrand": {"server": ["literal", "newest", "server-fill"]}}
THRESHOLDS = ["balanced_accuracy", "tpr@10%", "tpr@1%", "tpr@0.1%"]
STALE = {"exact": (0, 0, 0.0), "literal": (3, 1, 0.43), "newest": (2, 1, 0.31), "server-fill": (None, None, 0.87)}
STRENGTH = {"released-model": 0.5, "server": 1.2, "owner": 1.6}
WORDS = "a large red star on pink background . anna likes the quiet garden near tower today".split()


def places(method: str) -> list[tuple[str, str, str, str]]:
    """Threat model, way, population and non-members of every row of the leakage table."""
    released = [("all members", "held-out"), ("last-round members", "held-out"), ("all members", "novel objects")]
    found = [("released-model", "final", *pair) for pair in released]
    for threat, ways in (WAYS[method] | {"owner": ["true state"]}).items():
        found += [(threat, way, "own members", others) for way in ways for others in ("held-out", "novel objects")]
    return found


def held_out(method: str) -> list[tuple[str, str, str, str]]:
    return [place for place in places(method) if place[3] == "held-out"]


def strength(method: str, threat: str) -> float:
    return STRENGTH[threat] * (0.4 if method == "fedrand" else 1)


def finding(
    method: str, seed: int, place: tuple[str, ...], signal: str, metric: str, rng: np.random.Generator
) -> Finding:
    threat, way, population, others = place
    value = 0.5 + 0.19 * strength(method, threat) * (0.4 if signal == ATTACK else 1) + 0.02 * rng.normal()
    common = Finding(
        run=f"{method}-{seed}", method=method, attack="maxrenyi", task="captions", seed=seed, threat_model=threat, way=way, population=population,
        nonmembers=others, signal=signal, headline=signal != LOSS, metric=metric, value=value, low=value - 0.061,
        high=value + 0.061, confidence=0.95, members=168, nonmembers_n=171, clients=6, interval=f"clustered {metric}",
    )  # fmt: skip
    if metric == "balanced_accuracy":
        return common
    if metric == "tpr@0.1%":
        return replace(common, value=None, low=None, high=None, status="not measurable (75)")
    if metric != "auroc":
        realised: dict[str, Any] = {"realised_fpr": 0.0987, "realised_low": 0.05, "realised_high": 0.17}
        return replace(common, status="coarse" if metric == "tpr@1%" else "ok", **realised)
    verdict = "confounded" if others != "held-out" else "leak" if value > 0.58 else "no leak found"
    sentence = f"{verdict.capitalize()}: an adversary with {threat} ({way}): AUROC {value:.3f} by {signal}."
    base: dict[str, Any] = {"base_value": 0.511, "base_low": 0.455, "base_high": 0.567}
    controls: dict[str, Any] = {"base_note": "n/a: constant on the base"} if signal == SIBLING else base
    blind: dict[str, Any] = {"blind_value": 0.497, "blind_low": 0.44, "blind_high": 0.554, "detectable": 0.566}
    said: dict[str, Any] = {"verdict": verdict, "sentence": sentence, "claimed": "none", "provable": "infinity"}
    return replace(common, **controls, **blind, **said)


def findings(method: str, seed: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    return [
        asdict(finding(method, seed, place, signal, metric, rng))
        for place in places(method)
        for signal in (ATTACK, SIBLING, LOSS)
        for metric in ["auroc", *(THRESHOLDS if place[3] == "held-out" else [])]
    ]


def picture(rng: np.random.Generator) -> bytes:
    image = np.full((40, 40, 3), rng.integers(90, 255, 3), dtype=np.uint8)
    x, y = rng.integers(3, 22, 2)
    image[y : y + 15, x : x + 15] = rng.integers(0, 255, 3)
    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG")
    return png.getvalue()


def curves(method: str) -> pd.DataFrame:
    frames = []
    for place in held_out(method):
        grid = np.geomspace(1 / 170 if place[1] == "final" else 1 / 28, 1, 40)
        for signal in (ATTACK, SIBLING):
            tpr = grid ** (1 / (1 + strength(method, place[0]) * (0.5 if signal == ATTACK else 1)))
            band = {"fpr": grid, "tpr": tpr, "low": 0.7 * tpr, "high": np.minimum(1.0, 1.25 * tpr), "floor": grid[0]}
            frames.append(pd.DataFrame(dict(zip(TABLES["curves"].split(), (*place, signal), strict=False)) | band))
    return pd.concat(frames, ignore_index=True)


def scores(method: str, rng: np.random.Generator) -> pd.DataFrame:
    frames, n = [], 28 * len(CLIENTS)
    for threat, way, population, _ in held_out(method):
        for kind, shift in (("member", strength(method, threat)), ("held-out", 0.0), ("novel", 2.0)):
            drawn = {signal: -2 + 0.6 * rng.normal(size=n) + 0.6 * shift for signal in (ATTACK, SIBLING, LOSS)}
            who = {"client": np.repeat(CLIENTS, 28), "record": [f"{kind}-{i}" for i in range(n)], "kind": kind}
            if population != "last-round members":
                frames.append(pd.DataFrame({"threat_model": threat, "way": way} | who | drawn))
    return pd.concat(frames, ignore_index=True)


def tokens(method: str, rng: np.random.Generator) -> pd.DataFrame:
    frames = []
    words = ["<image>"] * 25 + "USER : a short image description : ASSISTANT :".split() + WORDS
    part = np.repeat(["image", "instruction", "caption"], [25, 9, len(WORDS)])
    for panel in ("member", "non-member"):
        base = np.where(part == "caption", rng.gamma(4, 0.6, len(words)), rng.gamma(1, 0.3, len(words)))
        memorised = (0.15 if method == "fedavg" else 0.5) if panel == "member" else 0.9
        entropy = base * np.where(part == "caption", memorised, 1)
        columns = [panel, f"client-02-{len(panel):03d}", range(len(words)), words, part, entropy, base, -entropy]
        frames.append(pd.DataFrame(dict(zip(TABLES["tokens"].split(), columns, strict=True))))
    return pd.concat(frames, ignore_index=True)


def tables(method: str, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    slow = 0.4 if method == "fedrand" else 1.0
    whole, fewer = 4 * 1_310_720, 2 if method == "fedrand" else 1
    rows = {
        "rounds": [
            (r, population, signal, a := 0.5 + slow * gain * r / 10, a - 0.06, a + 0.06, 168)
            for r in range(1, 11)
            for population, more in (("all members", 0.0), ("last-round members", 0.12))
            for signal, gain in ((ATTACK, 0.1 + more), (SIBLING, 0.25 + more), (LOSS, 0.2 + more))
        ],
        "clients": [
            (threat, way, client, signal, 0.5 + 0.1 * strength(method, threat) + 0.05 * rng.normal(), 28, 28)
            for threat, way, population, _ in held_out(method)
            if population != "last-round members"
            for client in CLIENTS
            for signal in (ATTACK, SIBLING, LOSS)
        ],
        "exposed": [
            ("server", "newest", i + 1, f"client-02-{i:03d}", "client-02", score, 99.4 - i, ASKED, text, "Why.", png)
            for i, score in enumerate(np.linspace(0.99, 0.5, 8))
            for text, png in [(" ".join(WORDS), picture(rng))]
        ],
        "cost": [(r, whole, whole // fewer, 2 * whole, 4, 4 if fewer == 1 else 0) for r in range(10)],
        "coverage": [
            (way, client, can, "" if can else "took part once", *(STALE[way] if can else (None, None, None)))
            for way in WAYS[method]["server"]
            for i, client in enumerate(CLIENTS)
            for can in [i > 1 or way in ("exact", "server-fill")]
        ],
        "cells": [
            (*place, signal, a := 0.5 + 0.1 * rng.normal(), a - 0.06, a + 0.06, 0.03, 0.03 if a > 0.6 else 1.0)
            for place in held_out(method)
            for signal in CELLS
        ],
    }
    found = {name: pd.DataFrame(row, columns=TABLES[name].split()) for name, row in rows.items()}
    r = found["rounds"]["round"]
    found["rounds"]["heldout_loss"] = 2.2 + slow * r * (r - 8) / 100
    return found | {
        "scores": scores(method, rng),
        "curves": curves(method),
        "tokens": tokens(method, rng),
        "utility": utility(slow),
    }


def utility(slow: float) -> pd.DataFrame:
    models = [(-1, "global"), *((r, model) for r in range(10) for model in ("global", "clients"))]
    rows = [
        (r, m, 2.4 - slow * r / 20, 0.5, 0.4, 0.3, slow * r / 50, 0.4 + r / 90, 0.9 + slow * r / 20) for r, m in models
    ]
    return pd.DataFrame(rows, columns="round model loss bleu1 bleu2 bleu3 bleu4 rouge_l cider".split())


ASKED = "Question: what colour is it? Options: (A) red (B) blue. Answer:"


K = range(0, 101, 10)
SLICES = ("image", "instruction", "caption")
CELLS = [f"renyi/{order}/{k}/{part}" for part in SLICES for order in ("0.5", "1", "2", "inf") for k in K]
CELLS += [f"{name}/{k}/caption" for name in ("mink", "minkpp") for k in K[1:]]
CELLS += [LOSS, SIBLING, "modrenyi/0.5/caption", "modrenyi/2/caption", "gap/caption", "zlib/caption"]


def evidence(method: str, seed: int) -> Evidence:
    """What an audit of a small run could have found; FedAvg leaks more than FedRand, the attack's own score less than its sibling."""
    rng = np.random.default_rng([seed, len(method)])
    setting = {
        "task": {"name": "captions", "records": 28, "dirichlet": 0.5},
        "backbone": {"name": "scenes-llava", "sha256": "0f" * 32},
        "method": {"name": method, "rho": 0.5 if method == "fedrand" else None, "past": True},
        "keys": {"training": f"{seed:016x}", "analysis": f"{seed + 1:016x}"},
        "versions": {"torch": "2.7.0", "numpy": "2.0.0"},
    }
    notes = ["The embedded model and task are small.", "Intervals are over records and clients of one training."]
    found = findings(method, seed, rng)
    return Evidence(method, seed, "maxrenyi", "captions", found, tables(method, rng), setting, notes)


def built(*given: Evidence, printing: bool = False) -> dict[str, bytes]:
    """The files of a report. `printing`: of its figures, not only their data."""
    files: dict[str, bytes] = {}

    def write(name: str, data: bytes) -> None:
        assert name not in files
        files[name] = data

    with nothing_printed(but=printing):
        build(given, write)
    return files


ONE = evidence("fedrand", 0)
TWO = [evidence(method, seed) for method in ("fedavg", "fedrand") for seed in (0, 1)]


@pytest.fixture(scope="module")
def one() -> dict[str, bytes]:
    """One method with one seed, and hardly a figure: those take the time."""
    return built(replace(ONE, tables={name: ONE.tables[name] for name in ("tokens", "coverage", "cells")}))


@pytest.fixture(scope="module")
def two() -> dict[str, bytes]:
    """Two methods with two seeds, and everything."""
    return built(*TWO, printing=True)


class Reader(HTMLParser):
    """What a browser would make of a page: its text, the rows of its tables, its elements with their attributes."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.pieces: list[str] = []
        self.inside = False  # a cell
        self.feed(page.decode())
        self.rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        self.text = " ".join("".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.handle_data(" ")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)
        if self.inside:
            self.rows[-1][-1] += data


def test_files_and_their_order(two: dict[str, bytes]) -> None:
    names = list(two)
    assert names[:5] == ["findings.json", "runs.json", "findings.csv", "runs.csv", "cells.csv"]
    assert names[-1] == "index.html"  # last: whoever finds the page finds what it names
    drawn = {
        "roc",
        "scores-renyi-2-10-caption",
        "scores-loss-base",
        "tokens",
        "rounds",
        "tradeoff",
        "clients",
        "utility",
        "cost",
    }
    assert set(names[5:-1]) == {f"figures/{name}.{kind}" for name in drawn for kind in ("svg", "pdf", "csv")} | {
        "figures/exposed.csv"
    }
    links = {
        a["href"]
        for tag, a in Reader(two["index.html"]).elements
        if tag == "a" and not (a["href"] or "").startswith("#")
    }
    assert links == set(names) - {"index.html"}


def test_same_bytes_in_another_process_with_other_settings(two: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\n")
    script = (
        "import hashlib, json; from tests.test_report import TWO, built\n"
        "print(json.dumps({n: hashlib.sha256(d).hexdigest() for n, d in built(*TWO, printing=True).items()}))"
    )
    root = Path(__file__).parents[1]
    env = os.environ | {
        "PYTHONHASHSEED": "7",
        "MATPLOTLIBRC": str(tmp_path),
        "TZ": "Asia/Tokyo",
        "PYTHONPATH": str(root),
    }
    again = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout) == {name: hashlib.sha256(data).hexdigest() for name, data in two.items()}


def with_interval(value: float | None, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def test_every_number_stands_in_its_row(one: dict[str, bytes]) -> None:
    found = ONE.findings
    rows = Reader(one["index.html"]).rows
    for f in (f for f in found if f["metric"] == "auroc"):
        same = {
            g["metric"]: g
            for g in found
            if all(g[k] == f[k] for k in ("threat_model", "way", "population", "nonmembers", "signal"))
        }
        base = (
            "n/a: constant on the base"
            if f["base_note"]
            else with_interval(f["base_value"], f["base_low"], f["base_high"])
        )
        symbol = {"leak": "●", "confounded": "◐", "no leak found": "○"}[f["verdict"]]
        expected = [
            with_interval(f["value"], f["low"], f["high"]),
            base,
            "0.497 [0.440, 0.554]",
            "0.566",
            f"{symbol} {f['verdict']}",
        ]
        if f["nonmembers"] == "held-out":
            accuracy, ten, one_percent = (
                with_interval(same[m]["value"], same[m]["low"], same[m]["high"]) for m in THRESHOLDS[:3]
            )
            realised = "9.9 % [5.0, 17.0]"
            expected += [accuracy, f"{ten} {realised}", f"coarse {one_percent} {realised}", "not measurable (75)"]
        else:
            expected += ["n/a"] * 4
        assert expected in [row[1:] for row in rows]


def test_novel_rows_say_whose_split_they_are(one: dict[str, bytes]) -> None:
    blocks = [row[0] for row in Reader(one["index.html"]).rows if len(row) == 1 and "against" in row[0]]
    novel = [block for block in blocks if "novel objects" in block]
    assert len(novel) == 2 * 5  # headline and sibling table; released, three ways of the server, owner
    assert all("the papers' own split" in block and "read its controls" in block for block in novel)
    assert not any("split" in block for block in blocks if block not in novel)
    assert "released-model, final: all members (168, 6 clients) against held-out records (171)" in blocks


def test_data_files_hold_the_input(two: dict[str, bytes]) -> None:
    findings = [f for e in TWO for f in e.findings]
    assert json.loads(two["findings.json"]) == findings
    table = pd.read_csv(io.BytesIO(two["findings.csv"]))
    assert list(table.columns) == list(findings[0])
    assert table.value.isna().equals(pd.Series([f["value"] is None for f in findings]))
    np.testing.assert_array_equal(table.value.dropna(), [f["value"] for f in findings if f["value"] is not None])
    cells = pd.read_csv(io.BytesIO(two["cells.csv"]))
    assert list(cells.columns) == ["method", "seed", *TABLES["cells"].split()]
    np.testing.assert_array_equal(cells.auroc, np.concatenate([e.tables["cells"].auroc for e in TWO]))


def test_exposed_records_show_what_was_asked(two: dict[str, bytes]) -> None:
    assert ASKED in two["index.html"].decode()


def test_page_needs_nothing_and_shows_no_python(two: dict[str, bytes]) -> None:
    page = re.sub(r"base64,[A-Za-z0-9+/=]+", "", two["index.html"].decode())
    assert not re.search(r"\bnan\b|None|https?:|\{\{|\bTrue\b|NaT", page)
    elements = Reader(two["index.html"]).elements
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in elements}
    assert all((a.get("src") or "").startswith("data:image/png;base64,") for tag, a in elements if tag == "img")
    assert all("" not in row for row in Reader(two["index.html"]).rows)  # no empty cell


def test_inlined_figures_do_not_share_ids(two: dict[str, bytes]) -> None:
    page = two["index.html"].decode()
    ids = [a["id"] for _, a in Reader(two["index.html"]).elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)
    drawings = [a for tag, a in Reader(two["index.html"]).elements if tag == "svg"]
    assert len(drawings) == 8  # all but the tokens, which are cells
    assert all(a["role"] == "img" and a["aria-label"] for a in drawings)


def test_seeds_are_averaged_beside_the_first(one: dict[str, bytes], two: dict[str, bytes]) -> None:
    first, second = (e.findings for e in TWO[2:])
    rows = [row[1:3] for row in Reader(two["index.html"]).rows]
    for f, g in zip(first, second, strict=True):
        if f["metric"] == "auroc":
            values = [f["value"], g["value"]]
            assert [
                with_interval(f["value"], f["low"], f["high"]),
                f"{mean(values):.3f} ± {stdev(values):.3f} 2 seeds",
            ] in rows
    assert "over seeds" not in Reader(one["index.html"]).text


CARD = {"signal": ATTACK, "headline": True, "metric": "auroc", "nonmembers": "held-out"}


def cards(found: list[dict[str, Any]]) -> str:
    """The text between a method's heading and its epsilon line."""
    bare = replace(TWO[0], findings=found, tables={})
    return Reader(built(bare)["index.html"]).text.split("Limitations", 1)[1].split("ε", 1)[0]


def test_card_quotes_the_gravest_row_of_a_headline_score() -> None:
    base = [f for f in TWO[0].findings if all(f[k] == v for k, v in CARD.items())]
    released = [f for f in base if f["threat_model"] == "released-model"]
    quiet = released[0] | {"verdict": "no leak found", "value": 0.55, "sentence": "No leak found: quiet 0.55."}
    unclear = quiet | {"way": "a", "verdict": "confounded", "value": 0.9, "sentence": "Confounded: unclear 0.9."}
    weak = quiet | {"way": "b", "verdict": "leak", "value": 0.6, "sentence": "Leak: weak 0.6."}
    reverse = quiet | {"way": "c", "verdict": "leak", "value": 0.2, "sentence": "Leak: reverse 0.2."}
    other = {"sentence": "Leak: not a headline.", "verdict": "leak", "value": 0.99, "way": "d"}
    text = cards(
        [
            quiet,
            unclear,
            weak,
            reverse,
            quiet | other | {"headline": False},
            quiet | other | {"nonmembers": "novel objects"},
        ]
    )
    assert "● Leak: reverse 0.2. Gravest of 4 rows of headline scores: 2 leak, 1 confounded, 1 no leak found." in text
    assert "weak 0.6" not in text
    assert "not a headline" not in text
    assert "◐ Confounded: unclear 0.9." in cards([quiet, unclear])
    assert "○ No leak found: quiet 0.55." in cards([quiet])
    assert "Not measured:" in cards([quiet | {"headline": False}])


def test_claims_stand_under_the_cards(one: dict[str, bytes]) -> None:
    line = "ε against released-model, server, owner: claimed none · provable infinity · measured n/a"
    assert line in Reader(one["index.html"]).text


HOSTILE = "<script>alert(1)</script>\"'&amp; $\\frac{a}{$ \x07"


def test_hostile_text_stays_text() -> None:
    given = TWO[0]
    changed = {name: given.tables[name].copy() for name in ("tokens", "exposed", "clients", "coverage")}
    changed["tokens"]["token"] = HOSTILE
    changed["exposed"]["label"] = HOSTILE
    changed["exposed"]["asked"] = HOSTILE
    changed["exposed"]["record"] = HOSTILE
    changed["clients"]["client"] = changed["clients"].client.replace("client-00", HOSTILE)
    changed["coverage"]["client"] = changed["coverage"].client.replace("client-00", HOSTILE)
    hostile = replace(given, task=HOSTILE, tables=changed, notes=[HOSTILE], setting={HOSTILE: {"a": HOSTILE}})
    files = built(hostile, printing=True)
    page = Reader(files["index.html"])
    assert not {"script", "frac"} & {tag for tag, _ in page.elements}
    assert page.text.count("<script>alert(1)</script>\"'&amp; $\\frac{a}{$") >= 8 + len(given.tables["tokens"]) - 50
    assert HOSTILE in [(a["alt"] or "").removeprefix("Record ") for tag, a in page.elements if tag == "img"]
    for name in ("clients", "tokens"):
        svg = ElementTree.fromstring(files[f"figures/{name}.svg"])
        words = [element.text for element in svg.iter() if element.tag.endswith("text")]
        assert any((word or "").startswith("<script>") for word in words)


@pytest.mark.parametrize(
    "tables", [{}, {name: pd.DataFrame(columns=columns.split()) for name, columns in TABLES.items()}]
)
def test_a_section_without_rows_is_not_there(tables: dict[str, pd.DataFrame]) -> None:
    files = built(replace(ONE, tables=tables, notes=[], setting={}))
    reader = Reader(files["index.html"])
    assert [a["id"] for _, a in reader.elements if "id" in a] == ["verdicts", "leakage", "setting", "made", "limits"]
    assert "Nothing is shared" in reader.text
    assert "None were stated" in reader.text
    records = {f"{name}.{kind}" for name in ("findings", "runs") for kind in ("json", "csv")}
    assert set(files) == records | {"index.html"}


def test_one_method_may_lack_what_another_has() -> None:
    full = replace(TWO[0], tables={name: TWO[0].tables[name] for name in ("utility", "cost")})
    released = [f for f in ONE.findings if f["threat_model"] == "released-model"]
    bare = replace(ONE, tables={"utility": ONE.tables["utility"]}, findings=released)
    text = Reader(built(full, bare)["index.html"]).text
    assert (
        text.count("Not measured: no headline score has a row for this adversary.") == 2
    )  # FedRand's server and owner


def test_a_client_that_cannot_be_rebuilt_has_no_number(one: dict[str, bytes]) -> None:
    rows = [row for row in Reader(one["index.html"]).rows if row and row[0] in CLIENTS]
    filled = "distance 0.87 age n/a: not a message of the client"
    assert rows[0] == ["client-00", "not reconstructable took part once", "not reconstructable took part once", filled]
    fresh = "distance 0.31 stale by 1 participation, 2 rounds"
    assert rows[5] == ["client-05", "distance 0.43 stale by 1 participation, 3 rounds", fresh, filled]
    assert (
        "literal: 4 of 6 clients, newest: 4 of 6 clients, server-fill: 6 of 6 clients."
        in Reader(one["index.html"]).text
    )


def test_cells_stand_under_their_k(one: dict[str, bytes]) -> None:
    cells = ONE.tables["cells"]
    cells = cells[(cells.threat_model == "owner")]
    shown = {
        signal: f"{auroc:.3f}" + "*" * (p < 0.05)
        for signal, auroc, p in zip(cells.signal, cells.auroc, cells.p_adjusted, strict=True)
    }
    rows = Reader(one["index.html"]).rows
    assert ["MaxRényi, order inf", *(shown[f"renyi/inf/{k}/image"] for k in range(0, 101, 10))] in rows
    assert ["Min-K++", "n/a", *(shown[f"minkpp/{k}/caption"] for k in range(10, 101, 10))] in rows
    assert ["probability gap, caption", shown["gap/caption"]] in [row[:2] for row in rows]


def test_configuration_is_shared_or_differs(two: dict[str, bytes]) -> None:
    rows = Reader(two["index.html"]).rows
    assert ["task.dirichlet", "0.5"] in rows
    assert ["method.past", "yes"] in rows
    assert ["Entry", "fedavg, seed 0", "fedavg, seed 1", "fedrand, seed 0", "fedrand, seed 1"] in rows
    assert ["method.rho", "none", "none", "0.5", "0.5"] in rows


def test_tokens_stand_with_their_entropies(one: dict[str, bytes]) -> None:
    page, tokens = Reader(one["index.html"]).text, ONE.tables["tokens"]
    caption = tokens[(tokens.panel == "member") & (tokens["slice"] == "caption")]
    expected = " ".join(f"{t.token} {t.entropy:.2f} {t.base_entropy:.2f}" for t in caption.itertuples())
    assert f"caption {expected}" in page
    assert "<image>" not in page  # image tokens have no word


def test_histogram_counts_what_is_shown(two: dict[str, bytes]) -> None:
    data = pd.read_csv(io.BytesIO(two["figures/scores-loss-base.csv"]))
    scores = ONE.tables["scores"]
    for (threat, kind), part in data[data.method == "fedrand"].groupby(["threat_model", "kind"]):
        way = {"released-model": "final", "server": "newest", "owner": "true state"}[threat]
        values = scores[(scores.threat_model == threat) & (scores.way == way) & (scores.kind == kind)][
            SIBLING
        ].to_numpy()
        edges = np.append(part.low, part.high.iloc[-1])
        inside = np.minimum(np.maximum(values, edges[0]), edges[-1])
        counts = [np.sum((inside >= a) & ((inside < b) | (b == edges[-1]))) for a, b in pairwise(edges)]
        np.testing.assert_allclose(part.density * np.diff(edges) * len(values), counts, atol=1e-9)
        assert set(part.n) == {len(values)}


def test_figures_take_degenerate_tables() -> None:
    given = ONE
    constant = given.tables["scores"].assign(**{ATTACK: -1.0, SIBLING: -np.inf})
    single = given.tables["rounds"].iloc[:2].assign(low=np.nan, high=np.nan)
    flat = given.tables["curves"].assign(tpr=0.0, low=np.nan, high=np.nan)
    unknown = given.tables["tokens"].assign(entropy=None, base_entropy=np.nan)
    free = given.tables["cost"].assign(bytes_down=0, bytes_up=0, fedavg_bytes=0)
    odd = {"scores": constant, "rounds": single, "curves": flat, "tokens": unknown, "cost": free}
    files = built(replace(given, tables=odd), printing=True)
    assert "figures/scores-renyi-2-10-caption.svg" in files
    assert "figures/scores-loss-base.svg" not in files  # no finite score
    for name in (n for n in files if n.endswith(".svg")):
        assert b"nan" not in files[name].lower()
        ElementTree.fromstring(files[name])


def broken(change: Callable[[Evidence], Evidence]) -> list[Evidence]:
    return [TWO[0], change(ONE)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "evidence is empty"),
        (broken(lambda e: TWO[0]), "holds fedavg with seed 0 more than once"),
        (broken(lambda e: replace(e, task="other")), r"mixes tasks \(captions, other\)"),
        (broken(lambda e: replace(e, attack="other")), r"mixes attacks \(maxrenyi, other\)"),
        (broken(lambda e: replace(e, findings=[])), "fedrand, seed 0 has no findings"),
        (broken(lambda e: replace(e, findings=[e.findings[0] | {"low": np.nan}])), "fedrand, seed 0 has low = nan"),
        (
            broken(lambda e: replace(e, tables={"cost": e.tables["cost"].drop(columns="round")})),
            "'cost' of fedrand, seed 0 lacks the column 'round'",
        ),
    ],
)
def test_bad_evidence_is_refused_before_anything_is_written(given: list[Evidence], message: str) -> None:
    written: list[str] = []
    with pytest.raises(ValueError, match=message):
        build(given, lambda name, data: written.append(name))
    assert written == []


def test_figures_show_the_freshest_model() -> None:
    ways = pd.DataFrame(
        {
            "method": ["a", "a", "a", "b", "b"],
            "threat_model": ["server", "server", "owner", "server", "server"],
            "way": ["literal", "newest", "true state", "server-fill", "literal"],
            "client": "client-00",
        }
    )
    assert list(figures.primary(ways).way) == ["newest", "true state", "server-fill"]


def test_figures_show_a_model_of_most_clients() -> None:
    """`exact` reaches one client of four, `newest` two: half is enough."""
    clients = [("exact", "0"), *(("newest", str(k)) for k in range(2)), *(("server-fill", str(k)) for k in range(4))]
    table = pd.DataFrame(clients, columns=["way", "client"]).assign(method="fedper", threat_model="server")
    assert set(figures.primary(table).way) == {"newest"}
    assert set(figures.primary(table.drop(index=2)).way) == {"server-fill"}


def test_shades_run_from_confident_to_uncertain() -> None:
    assert heatmap.shade(0.0, 2.0) == (heatmap.CONFIDENT, "#ffffff")
    assert heatmap.shade(2.0, 2.0) == heatmap.shade(9.0, 2.0) == (heatmap.UNCERTAIN, drawing.INK)
    assert heatmap.shade(1.0, 2.0)[0] == "#7f99ab"  # (0b + f3) / 2, (3c + f6) / 2, (5d + f9) / 2
    assert heatmap.shade(np.nan, 2.0)[0] == "#ffffff"


def test_small_words() -> None:
    assert [number(x) for x in (0.6125, 1.0, None, np.nan, np.inf)] == ["0.613", "1.000", "n/a", "n/a", "n/a"]
    assert [plain(x) for x in (None, True, False, [1, None], [], 0.5, "x", "inf")] == [
        "none",
        "yes",
        "no",
        "1, none",
        "empty",
        "0.5",
        "x",
        "∞",
    ]
