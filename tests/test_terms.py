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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda term: pickle.loads(pickle.dumps(term))])
def test_a_copy_of_a_word_knows_the_same(copied):
    assert (copied(SERVER), copied(SERVER).sees, copied(SERVER).name) == (SERVER, SERVER.sees, "server")


def test_a_word_stays_as_it_is():
    with pytest.raises(AttributeError, match="sees of server stays as it is"):
        SERVER.sees = frozenset()


def test_a_word_is_found_by_its_text():
    assert find(THREAT_MODELS, "server", "threat model").sees == SERVER.sees
    with pytest.raises(ValueError, match=r"threat model must be one of prompt-user, .*, owner, not hacker"):
        find(THREAT_MODELS, "hacker", "threat model")


def test_every_threat_model_has_its_sentences_and_its_places():
    assert [*SENTENCES] == [*THREAT_MODELS]
    assert sorted(STRONGEST) == sorted(THREAT_MODELS)
    assert all(model.attacks in SENTENCES[model].who for model in THREAT_MODELS)


def test_every_model_of_the_end_of_training_has_its_freshness():
    assert sorted(FRESHEST) == sorted(AT_THE_END)


ROOT = Path(__file__).parents[1]
HERE = "fedaudit/terms"
SOURCES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for top in ("fedaudit", *ROOMS, "audit.py")
    for path in ([ROOT / top] if top.endswith(".py") else sorted((ROOT / top).rglob("*.py")))
    if not path.is_relative_to(ROOT / HERE)
}
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


def texts(tree):
    """The texts of a source, the documentation of definitions left out."""
    parts = [*ast.walk(tree)]
    said = {id(part.value) for part in parts if isinstance(part, ast.Expr)}
    return [
        part
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in said
    ]


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


def loose(source):
    """The words of the vocabulary that a source writes out, each with its line."""
    tree = ast.parse(source)
    plain = [
        t for t in texts(tree) if t.value in WORDS - ELSEWHERE.keys() or NO_ENGLISH & {*re.findall(r"[\w-]+", t.value)}
    ]
    meant = [text for node in ast.walk(tree) for text in given_as_words(node) if text.value in ELSEWHERE]
    return [(text.lineno, text.value) for text in plain + meant]


@pytest.mark.parametrize("file", SOURCES)
def test_a_word_is_written_out_in_the_vocabulary_alone(file):
    assert loose(SOURCES[file]) == []


@pytest.mark.parametrize(
    "source",
    [
        "THREATS = ('prompt-user', 'x')",
        "TABLES = 'utility_own_test own_test'.split()",
        "found = {'held-out': 1}",
        "if model.way == 'round': pass",
        "if f['verdict'] in ('leak', 'x'): pass",
        "if 'server' == threat_model: pass",
        "table.kind.isin(('member', 'x'))",
        "Model(view, 'base', None)",
        "frame.assign(kind='novel')",
    ],
)
def test_a_word_that_is_written_out_is_seen(source):
    assert len(loose(source)) == 1


@pytest.mark.parametrize("source", ["'''prompt-user'''", "table['round'] > 2", "print('server')", "'held-out records'"])
def test_a_text_that_is_no_word_is_none(source):
    assert loose(source) == []


def test_words_with_other_meanings_are_words_that_occur():
    assert ELSEWHERE.keys() <= WORDS
    assert {text.value for source in SOURCES.values() for text in texts(ast.parse(source))} >= ELSEWHERE.keys()
