"""What holds for the page of any report, and what a browser would make of it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from fedaudit.reports.report import Evidence
from fedaudit.reports.verdict_cards import SYMBOLS

HOSTILE = "<script>alert(1)</script>\"'&amp; $\\frac{a}{$ \x07"
THRESHOLDS = ("balanced_accuracy", "tpr@10%", "tpr@1%")
ARCHIVE = "data:application/zip;base64,"
PLACE = ("threat_model", "way", "population", "nonmembers", "attack", "signal")


class Reader(HTMLParser):
    """A page's text, the rows of its tables, its elements with their attributes."""

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


def check_page(files: Mapping[str, bytes]) -> None:
    """It needs nothing beside it, holds all files, is written last, and shows neither Python nor empty cells."""
    assert list(files)[-1] == "index.html"  # whoever finds the page finds what it names
    page, reader = re.sub(r"base64,[A-Za-z0-9+/=]+", "", files["index.html"].decode()), Reader(files["index.html"])
    python = r"\bnan\b|None|NaT|https?:|\{\{|\bTrue\b|\bFalse\b|(?<!order )\binf\b|No data for the figure"
    assert not re.search(python, page)
    assert all("" not in row for row in reader.rows)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in reader.elements}
    assert all((a.get("src") or "").startswith("data:image/png;base64,") for tag, a in reader.elements if tag == "img")
    assert all(a["role"] == "img" and a["aria-label"] for tag, a in reader.elements if tag == "svg")
    ids = [a["id"] for _, a in reader.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)
    links = [a["href"] or "" for tag, a in reader.elements if tag == "a"]
    assert all(link.startswith(("#", ARCHIVE)) for link in links)
    assert list(held(files["index.html"]).items()) == list(files.items())[:-1]


def held(page: bytes) -> dict[str, bytes]:
    """The files that a page holds, in their order."""
    (link,) = (a["href"] or "" for tag, a in Reader(page).elements if tag == "a" and "download" in a)
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(link.removeprefix(ARCHIVE)))) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def check_files(files: Mapping[str, bytes], evidence: Sequence[Evidence], tables: str, figures: str) -> None:
    """Findings and runs, then these tables as they were given, then these figures."""
    names = tables.split()
    listed = ["findings.json", "runs.json", *(f"{name}.csv" for name in ("findings", "runs", *names))]
    assert list(files)[: len(listed)] == listed
    drawn = {f"figures/{name}.{kind}" for name in figures.split() for kind in ("svg", "pdf", "csv")}
    drawn |= {"figures/exposed.csv"} if any("exposed" in e.tables for e in evidence) else set()
    assert set(files) - {*listed, "index.html"} == drawn
    findings = [f for e in evidence for f in e.findings]
    assert json.loads(files["findings.json"]) == findings
    given = {"findings": [pd.DataFrame(findings)]}
    for name in names:
        given[name] = [e.tables[name].assign(method=e.method, seed=e.seed) for e in evidence if len(e.tables[name])]
    for name, frames in given.items():
        found = pd.read_csv(io.BytesIO(files[f"{name}.csv"]))
        same = pd.read_csv(io.StringIO(pd.concat(frames).to_csv(index=False)))
        pd.testing.assert_frame_equal(found, same[list(found)], check_exact=True)
        assert set(found) == set(same)


def check_same_bytes(files: Mapping[str, bytes], imported: str, expression: str, folder: Path) -> None:
    """Another process with another hash seed, time zone, place and settings of figures evaluates to the same files."""
    (folder / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 9\n")
    script = (
        f"import hashlib, json; {imported}\n"
        f"print(json.dumps({{name: hashlib.sha256(data).hexdigest() for name, data in {expression}.items()}}))"
    )
    root = str(Path(__file__).parents[1])
    env = os.environ | {"PYTHONHASHSEED": "7", "MATPLOTLIBRC": str(folder), "TZ": "Asia/Tokyo", "PYTHONPATH": root}
    again = subprocess.check_output([sys.executable, "-c", script], cwd=folder, env=env)
    assert json.loads(again) == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def check_leakage(page: bytes, findings: Sequence[dict[str, Any]]) -> None:
    """Every AUROC stands beside its controls, its verdict and what was found at thresholds."""
    rows = [row[1:] for row in Reader(page).rows]
    for f in (f for f in findings if f["metric"] == "auroc" and not f["best_of"]):
        same = {g["metric"]: g for g in findings if all(g.get(name) == f[name] for name in PLACE) and not g["best_of"]}
        base = f["base_note"] or with_interval(*(f[f"base_{end}"] for end in ("value", "low", "high")))
        expected = [shown(f), base, "0.497 [0.440, 0.554]", "0.566", f"{SYMBOLS[f['verdict']]} {f['verdict']}"]
        if f["nonmembers"] in ("held-out", "left-out canaries"):
            accuracy, ten, one = (shown(same[metric]) for metric in THRESHOLDS)
            realised = "9.9 % [5.0, 17.0]"
            expected += [accuracy, f"{ten} {realised}", f"coarse {one} {realised}", "not measurable (75)"]
        else:
            expected += ["n/a"] * 4
        assert expected in rows


def shown(f: Mapping[str, Any]) -> str:
    return with_interval(f["value"], f["low"], f["high"])


def with_interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def figure(files: Mapping[str, bytes], name: str) -> pd.DataFrame:
    """The numbers of a figure, whose picture is well-formed."""
    ElementTree.fromstring(files[f"figures/{name}.svg"])
    return pd.read_csv(io.BytesIO(files[f"figures/{name}.csv"]), keep_default_na=False)


def words_of(files: Mapping[str, bytes], name: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(files[f"figures/{name}.svg"]).iter() if e.tag.endswith("text")]


def check_drawn(files: Mapping[str, bytes]) -> None:
    """Every picture is well-formed and has no number that is none."""
    for name in (name for name in files if name.endswith(".svg")):
        assert b"nan" not in files[name].lower()
        ElementTree.fromstring(files[name])
