"""Words of the product: docstrings say first what is returned or done, functions begin with a verb or are the noun that they return, and variables say what they hold.

It counts what makes a reader read twice, as far as a program can see it. A synonym is no mend.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
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
    "began", "drawn", "having", "heard", "left", "moved", "put", "stepped", "taken",
}  # fmt: skip
BACKWARDS = re.compile(r"(Of|What|The same|Whose|Who|That)\b")
MOST = 40  # silent names: columns of files that users load, and fields that become them, are among these
LINES = 400


@pytest.fixture(scope="module")
def nodes() -> dict[str, list[ast.AST]]:
    """The syntax of every file, parsed once."""
    return {path.relative_to(ROOT).as_posix(): nodes_of(path.read_text(encoding="utf-8")) for path in FILES}


def nodes_of(source: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(source))]


def silent_names(nodes: Iterable[ast.AST]) -> list[str]:
    """Names that are given a value, and tell nothing of it."""
    names = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return [name.id for name in names if name.id in SILENT]


def complaints(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Docstrings that begin with their object, and functions called by a bare participle."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if BACKWARDS.match(doc := ast.get_docstring(node) or ""):
                yield doc.partition("\n")[0]
            if isinstance(node, ast.FunctionDef) and node.name in PARTICIPLES:
                yield f"{node.name}()"


def test_a_file_is_short() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): path.read_bytes().count(b"\n") for path in FILES}
    assert {file: lines for file, lines in lengths.items() if lines > LINES} == {}


def test_a_file_says_first_what_is_done(nodes: dict[str, list[ast.AST]]) -> None:
    found = {file: [*complaints(own)] for file, own in nodes.items()}
    assert {file: some for file, some in found.items() if some} == {}


def test_variables_say_what_they_hold(nodes: dict[str, list[ast.AST]]) -> None:
    names = Counter(name for own in nodes.values() for name in silent_names(own))
    assert names.total() <= MOST, names


def test_what_is_counted() -> None:
    bad = nodes_of('"""Of a run."""\ndef held(x):\n  """What it holds."""\n  found: int = x\n  for own in x: pass\n')
    assert [*complaints(bad)] == ["Of a run.", "What it holds.", "held()"]
    assert silent_names(bad) == ["found", "own"]
    assert [*complaints(nodes_of('"""Offers, and Whatever."""\ndef hold(): pass\n'))] == []
