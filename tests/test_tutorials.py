"""Tutorials that are notebooks, as jupytext makes them: every cell parses, and, slow, each runs from its first cell to its last."""

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doc_blocks import BLOCKS, PAGES, ROOT

NOTEBOOKS = [page for page, text in PAGES.items() if text.startswith("---\njupyter:")]
MADE = {
    "docs/tutorials/first-notebook.md": "first-audit.png",
    "docs/tutorials/own-lora.md": "my-run-auroc.png",
    "docs/tutorials/own-prompts.md": "measured-epsilon.png",
    "docs/tutorials/own-method.md": "over-epsilon.png",
    "docs/tutorials/nightly-gate.md": "nights.png",
}  # the picture that each leaves in its folder


def notebook(page: str) -> Any:
    jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed: pip install -e '.[test]'")
    return jupytext.read(ROOT / page)


def printed(book: Any) -> str:
    """What its cells print to stdout."""
    return "".join(out.text for cell in book.cells for out in cell.get("outputs", ()) if out.get("name") == "stdout")


@pytest.mark.parametrize("page", MADE)
def test_every_block_is_a_cell_that_parses(page: str) -> None:
    assert {*MADE} == {*NOTEBOOKS}
    made = [cell.source for cell in notebook(page).cells if cell.cell_type == "code"]
    assert len(made) == sum(block.page == page for block in BLOCKS)
    for text in made:
        if not text.startswith("%%bash\n"):
            ast.parse(text)


@pytest.mark.slow  # minutes a page; quick: every cell parses, and its commands are read (test_doc_commands)
@pytest.mark.parametrize("page", MADE)
def test_it_runs_to_its_picture(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[test]'")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    book = notebook(page)
    nbclient.NotebookClient(book, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / MADE[page]).stat().st_size > 5000
    said = printed(book)
    if page == "docs/tutorials/own-prompts.md":
        assert "the claim does not hold" in said
    if page == "docs/tutorials/nightly-gate.md":
        codes = [line for line in said.splitlines() if line.startswith("exit code")]
        assert codes == ["exit code 0", "exit code 0", "exit code 1", "exit code 0"]
