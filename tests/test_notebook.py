"""A notebook, executed: progress below the cell, the picture of a finished audit and its tables. Whole audits: test_tutorials."""

import re
import subprocess
import sys
from typing import Any

import pytest

from tests.pages import Reader

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[test]'")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

CELLS = {
    "audit": (
        "import pathlib, fedaudit\n(report,) = pathlib.Path('runs').glob('reports/promptfl-loss-*/index.html')\n"
        "found = fedaudit.Audit(fedaudit.findings('runs'), report, ())"
    ),
    "stages": (
        "from fedaudit.machinery import progress\nshown = progress.Progress()\nfor total in (1, 2, 3):\n"
        "    with shown.stage('work', total) as advance:\n        for _ in range(total):\n            advance()"
    ),
    "picture": "found",
    "text": "print(found)",
    "verdicts": "found.verdicts",
    "summary": "print(found.summary)",
    "slow": (
        "import time\nprogress.SILENT_SECONDS = 0.05\n"
        "with shown.stage('<thinking>', 2, 'thought') as advance:\n"
        "    time.sleep(0.6)\n    advance()\n    time.sleep(0.6)\n"
    ),
    "quiet": "with progress.Progress(quiet=True).stage('work', 1) as advance:\n    advance()",
    "error": "try:\n    fedaudit.audit(rnak=3)\nexcept fedaudit.InputError as error:\n    print(error)",
    "alone": "import shutil\nshutil.rmtree('runs')\nfedaudit.Audit(found.findings, report, ())",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, kept: Any) -> dict[str, list[Any]]:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS.values()])
    folder = tmp_path_factory.mktemp("book")
    kept.copied(folder / "runs")
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return {name: cell.outputs for name, cell in zip(CELLS, book.cells, strict=True)}


def html(outputs: list[Any]) -> list[str]:
    return [out.data["text/html"] for out in outputs if "text/html" in out.get("data", {})]


def printed(outputs: list[Any]) -> str:
    return "".join(out.text for out in outputs if out.output_type == "stream" and out.name == "stdout")


def test_each_stage_is_one_output_that_is_overwritten(outputs: dict[str, list[Any]]) -> None:
    bars = html(outputs["stages"])
    assert [re.findall(r"\d+", bar) for bar in bars] == [[n, n, "0"] for n in "123"]
    assert all("</progress> work: done in " in bar for bar in bars)


def test_a_long_step_goes_on_saying_so(outputs: dict[str, list[Any]]) -> None:
    (bar,) = html(outputs["slow"])
    start = '<progress value="1" max="2"></progress> &lt;thinking&gt;: thought 2 of 2, '
    assert re.fullmatch(f"{start}[12] s elapsed.*", bar)
    assert outputs["quiet"] == []


def test_the_picture_is_the_first_screen_and_harms_nothing_beside_it(outputs: dict[str, list[Any]]) -> None:
    (picture,) = html(outputs["picture"])
    page = Reader(picture.encode())
    sentence, *_ = printed(outputs["summary"]).splitlines()
    assert sentence in page.text
    assert {"svg", "circle"} <= {tag for tag, _ in page.elements}
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.elements}
    (style,) = re.findall(r"<style>(.*?)</style>", picture, re.DOTALL)
    selectors = [part.strip() for names in re.findall(r"([^{}]+)\{", style) for part in names.split(",")]
    assert all(name.startswith((".fedaudit", "@media")) for name in selectors), selectors


def test_tables_and_texts(outputs: dict[str, list[Any]]) -> None:
    (table,) = html(outputs["verdicts"])
    rows = Reader(table.encode()).rows
    assert {"threat_model", "verdict", "value", "low", "high", "detectable"} <= {*rows[0]}
    assert len(rows) > 2
    sentence, *_ = printed(outputs["summary"]).splitlines()
    words = rf"Audit: {re.escape(sentence)} Report: runs/reports/.*/index.html\n"
    assert re.fullmatch(words, printed(outputs["text"]))
    assert re.fullmatch(r"rnak=3: no such option .*\(did you mean rank=...\?\)\n", printed(outputs["error"]))


def test_an_audit_whose_report_has_gone_is_still_shown(outputs: dict[str, list[Any]]) -> None:
    (shown,) = outputs["alone"]
    assert "text/html" not in shown.data
    assert "no such folder" in shown.data["text/plain"]


def test_without_ipython_there_are_lines(tmp_path: Any) -> None:
    text = "import sys; sys.modules['IPython'] = None; from fedaudit.machinery.progress import Progress\n"
    text += "with Progress().stage('work', 1) as advance: advance()"
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.splitlines() == ["work", "work: done in 0 s"]
