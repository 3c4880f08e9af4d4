"""Words of the product: docstrings say first what is returned or done, functions begin with a verb or are the noun that they return, and variables say what they hold.

It counts what makes a reader read twice, as far as a program can see it. A synonym is no mend.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = ("trainers", "attacks", "audits", "reports", "fedaudit", "recipes")
WRITTEN = ROOT / "fedaudit" / "options.py"  # by a program, from the fields of other files
FILES = sorted(path for room in PRODUCT for path in (ROOT / room).rglob("*.py") if path != WRITTEN)
SILENT = {  # they name no thing: of a model, a list of records or a message all could be said
    "asked", "came", "crowd", "earlier", "exam", "found", "given", "held", "known", "located", "own", "pseudo", "said",
    "seen", "shown", "spent", "told", "vain", "way", "ways", "whose",
}  # fmt: skip
PARTICIPLES = (SILENT - {"own", "way", "ways"}) | {
    "began",
    "drawn",
    "having",
    "heard",
    "left",
    "moved",
    "put",
    "stepped",
    "taken",
}
BACKWARDS = re.compile(r"(Of|What|The same|Whose|Who|That)\b")
MOST = 40  # silent names: columns of files that users load, and fields that become them, are among these
LINES = 400


def silent_names(tree: ast.AST) -> list[str]:
    """Names that are given a value, and tell nothing of it."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return [name.id for name in names if name.id in SILENT]


def complaints(tree: ast.AST) -> Iterator[str]:
    """Docstrings that begin with their object, and functions called by a bare participle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if BACKWARDS.match(doc := ast.get_docstring(node) or ""):
                yield doc.partition("\n")[0]
            if isinstance(node, ast.FunctionDef) and node.name in PARTICIPLES:
                yield f"{node.name}()"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_short_and_says_first_what_is_done(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LINES
    assert [*complaints(ast.parse(text))] == []


def test_variables_say_what_they_hold() -> None:
    names = Counter(name for path in FILES for name in silent_names(ast.parse(path.read_text(encoding="utf-8"))))
    assert names.total() <= MOST, names


def test_what_is_counted() -> None:
    bad = '"""Of a run."""\ndef held(x):\n    """What it holds."""\n    found: int = x\n    for own in x: pass\n'
    assert [*complaints(ast.parse(bad))] == ["Of a run.", "What it holds.", "held()"]
    assert silent_names(ast.parse(bad)) == ["found", "own"]
    assert [*complaints(ast.parse('"""Offers, and Whatever."""\ndef hold(): pass\n'))] == []
