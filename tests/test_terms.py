"""The vocabulary: every word has what its readers ask for, and is the text itself."""

import ast
import copy
import importlib
import json
import pickle
import re
from pathlib import Path

import pandas as pd
import pytest

from fedaudit.terms.held_models import AT_THE_END, FRESHEST
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.term import Term, find
from fedaudit.terms.threat_models import SERVER, STRONGEST, THREAT_MODELS
from tests.test_rooms import ROOMS


def test_a_word_is_the_text_that_files_hold(tmp_path):
    assert (SERVER, f"{SERVER}", json.dumps([SERVER]), {"server": 1}[SERVER]) == ("server", "server", '["server"]', 1)
    table = pd.DataFrame({"threat_model": [SERVER, "owner"]})
    assert table.threat_model.eq("server").tolist() == table.threat_model.eq(SERVER).tolist() == [True, False]
    table.to_parquet(tmp_path / "table")
    assert pd.read_parquet(tmp_path / "table").threat_model.tolist() == ["server", "owner"]


def test_a_word_stays_as_it_is_and_its_copies_know_the_same():
    with pytest.raises(AttributeError, match="sees of server stays as it is"):
        SERVER.sees = frozenset()
    for copied in (copy.deepcopy(SERVER), pickle.loads(pickle.dumps(SERVER))):
        assert (copied, copied.sees, copied.name) == (SERVER, SERVER.sees, "server")


def test_a_word_is_found_by_its_text():
    assert find(THREAT_MODELS, "server", "threat model").sees == SERVER.sees
    with pytest.raises(ValueError, match=r"threat model must be one of prompt-user, .*, owner, not hacker"):
        find(THREAT_MODELS, "hacker", "threat model")


def test_every_threat_model_has_its_sentences_and_its_places():
    assert [*SENTENCES] == [*THREAT_MODELS]
    assert (sorted(STRONGEST), sorted(FRESHEST)) == (sorted(THREAT_MODELS), sorted(AT_THE_END))
    assert all(model.attacks in SENTENCES[model].who for model in THREAT_MODELS)


ROOT = Path(__file__).parents[1]
HERE = "fedaudit/terms"
WORDS = {
    str(word)
    for path in (ROOT / HERE).glob("*.py")
    for word in vars(importlib.import_module(f"fedaudit.terms.{path.stem}")).values()
    if isinstance(word, Term)
}
ELSEWHERE = {  # words that mean something else too, in code that is not about findings
    "base": "controls, the part of a matrix of nights",
    "canaries": "a table, a group of flags",
    "exact": "an arithmetic of attacks, an exact value",
    "leak": "whether a series of nights leaks",
    "local": "releases, the printed name of a method, test sets of newcomers",
    "member": "the column that says who is one",
    "novel": "a list of a task",
    "owner": "whose record it is, what a picture is asked about",
    "prompt": "the tensor, the text of a question",
    "reference": "a list of a task",
    "round": "the column",
    "server": "who adds noise, whose seconds they are, the papers' role",
}
COLUMNS = {"threat_model", "threat", "way", "nonmembers", "population", "kind", "verdict", "split"}
MAKERS = {"View", "Model", "ScoredModel", "Comparison", "Rebuilt"}  # their arguments are words
NO_ENGLISH = {word for word in WORDS if re.fullmatch("[a-z]+[-_][a-z]+", word)} - {"held-out"}


@pytest.fixture(scope="module")
def sources():
    """The syntax of every file but the vocabulary's own, parsed once."""
    rooms = (path for top in ("fedaudit", *ROOMS) for path in sorted((ROOT / top).rglob("*.py")))
    paths = [path for path in (ROOT / "audit.py", *rooms) if not path.is_relative_to(ROOT / HERE)]
    return {path.relative_to(ROOT).as_posix(): [*ast.walk(ast.parse(path.read_bytes()))] for path in paths}


def texts(nodes):
    """The texts of a source, the documentation of definitions left out."""
    said = {id(part.value) for part in nodes if isinstance(part, ast.Expr)}
    constants = (part for part in nodes if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return [part for part in constants if id(part) not in said]


def column(node):
    """The column that an expression reads, as far as its name says so."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value
    return getattr(node, "attr", getattr(node, "id", None))


def given_as_words(node):
    """The expressions that an expression takes for words of the vocabulary."""
    found = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        found = [side for side in sides if any(column(other) in COLUMNS for other in sides if other is not side)]
    if isinstance(node, ast.Call):
        listed = column(node.func) in MAKERS or (column(node.func) == "isin" and column(node.func.value) in COLUMNS)
        found = [*(node.args if listed else ()), *(one.value for one in node.keywords if one.arg in COLUMNS)]
    return [part for one in found for part in getattr(one, "elts", [one]) if isinstance(part, ast.Constant)]


def loose(nodes):
    """The words of the vocabulary that a source writes out, each with its line."""
    plain = [
        t for t in texts(nodes) if t.value in WORDS - ELSEWHERE.keys() or NO_ENGLISH & {*re.findall(r"[\w-]+", t.value)}
    ]
    meant = [text for node in nodes for text in given_as_words(node) if text.value in ELSEWHERE]
    return [(text.lineno, text.value) for text in plain + meant]


def test_a_word_is_written_out_in_the_vocabulary_alone(sources):
    found = {file: loose(nodes) for file, nodes in sources.items()}
    assert {file: words for file, words in found.items() if words} == {}


def test_a_word_that_is_written_out_is_seen_and_a_text_that_is_no_word_is_none():
    for source in (
        "THREATS = ('prompt-user', 'x')",
        "TABLES = 'utility_own_test own_test'.split()",
        "found = {'held-out': 1}",
        "if model.way == 'round': pass",
        "if f['verdict'] in ('leak', 'x'): pass",
        "if 'server' == threat_model: pass",
        "table.kind.isin(('member', 'x'))",
        "Model(view, 'base', None)",
        "frame.assign(kind='novel')",
    ):
        assert len(loose([*ast.walk(ast.parse(source))])) == 1, source
    for source in ("'''prompt-user'''", "table['round'] > 2", "print('server')", "'held-out records'"):
        assert loose([*ast.walk(ast.parse(source))]) == [], source


def test_words_with_other_meanings_are_words_that_occur(sources):
    assert ELSEWHERE.keys() <= WORDS
    assert {text.value for nodes in sources.values() for text in texts(nodes)} >= ELSEWHERE.keys()
