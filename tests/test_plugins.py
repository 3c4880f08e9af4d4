"""Contracts that every method, attack, audit and task keeps; found by looking into the folders, so a new file is tested at once."""

import ast
import importlib
import inspect
import itertools
import re
import shutil
import string
from typing import get_type_hints
from unittest import mock

import pytest

from fedaudit.attacks import score_names
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.threats import LacksCapability, lacks, refusal, require
from fedaudit.attacks.tokens.scores import cell_names
from fedaudit.command import cli, listing
from fedaudit.command.listing import KINDS
from fedaudit.contracts import files
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError
from fedaudit.reports import paper_items
from fedaudit.reports.rows import method_name
from fedaudit.terms.threat_models import THREAT_MODELS, ThreatModel
from fedaudit.trainers.learners import METHODS, LearnerFacts, every_learner, facts

EVERY = [plugin for kind in KINDS.values() for plugin in kind.values()]


@pytest.mark.parametrize("contract", files.CONTRACTS, ids=lambda contract: contract.__name__)
def test_every_file_keeps_its_contracts(contract):
    for plugin in EVERY:
        contract(plugin)


def test_of_a_class_and_a_function_of_one_name_the_one_of_the_file_is_meant(tmp_path, monkeypatch):
    path = tmp_path / "quarters_of.py"
    path.write_text("class QuartersOf: ...\n\n\ndef quarters_of(subject, params): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert inspect.isfunction(plugins.Plugin("audit", path.stem, path, path.stem, None).load())


def test_every_file_is_listed():
    said = listing.listing()
    assert [plugin.name for plugin in EVERY if not re.search(rf"^ +{plugin.name}\b", said, re.MULTILINE)] == []


# --- what a file says of itself -------------------------------------------------------------------------------------

BASES = {"learner": LearnerFacts} | {kind: known.usual for kind, known in KINDS.items()}
TRIPLES = tuple[tuple[str, str, str], ...]
RIGHT = {bool: "True", int: "2", str: "'prompts'", int | None: "None", tuple[str, ...]: "('uploads',)"}
RIGHT |= {tuple[ThreatModel, ...]: "()", TRIPLES: "(('mine', 'mine', 'my score'),)"}
WRONG = {
    bool: ("1", "'yes'", "None"),
    int: ("True", "'1'", "1.0", "None"),
    str: ("('prompts',)", "1", "None"),
    int | None: ("True", "'1'"),
    tuple[str, ...]: ("'uploads'", "['uploads']", "(1,)", "None"),
    tuple[ThreatModel, ...]: ("'server'", "('server',)", "None"),
    TRIPLES: ("('mine',)", "{'mine': ('mine', 'my score')}", "(('mine', 'my score'),)", "(('mine', 'mine', 1),)"),
}
each_kind = pytest.mark.parametrize("kind", BASES)


def read(folder, kind, text):
    """The facts of a file that holds `text`, with BASE for the kind's class of facts."""
    usual, file = BASES[kind], folder / "mine.py"
    file.write_text(f"from {usual.__module__} import {usual.__name__}\n{text.replace('BASE', usual.__name__)}\n")
    plugins._text.cache_clear()
    return plugins.facts_of(file, usual)


def said(kind, **values):
    """A class of facts; of a learner, with all that must be said."""
    needed = {n: RIGHT[h] for n, h in get_type_hints(BASES[kind]).items() if not hasattr(BASES[kind], n)}
    return "\n    ".join(["class Facts(BASE):", *(f"{n} = {v}" for n, v in (needed | values).items()), "pass"])


@each_kind
def test_a_fact_is_of_its_type(tmp_path, kind):
    for name, hint in get_type_hints(BASES[kind]).items():
        found = getattr(read(tmp_path, kind, said(kind, **{name: RIGHT[hint]})), name)
        assert found == ast.literal_eval(RIGHT[hint]), name
        for wrong in WRONG[hint]:
            with pytest.raises(InputError, match=rf"mine\.py: {name} must be .+, not {re.escape(wrong)}$"):
                read(tmp_path, kind, said(kind, **{name: wrong}))


@each_kind
def test_a_misspelt_fact_is_refused(tmp_path, kind):
    """A letter too few, one twice, two swapped, and capitals."""
    known = get_type_hints(BASES[kind])
    for name, hint in known.items():
        for wrong in {name[:-1], name + name[-1], name[1] + name[0] + name[2:], name.upper()} - known.keys():
            said_of_it = rf"mine\.py: Facts has no {wrong} \(did you mean '\w+'\?\); there are "
            with pytest.raises(InputError, match=said_of_it):
                read(tmp_path, kind, said(kind, **{wrong: RIGHT[hint]}))


@each_kind
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "class Facts(BASE):\n    title = prompts",
            "Facts must stand alone, without the rest of the file (.*prompts.*)",
        ),
        ("class Facts:\n    pass", r"Facts must have the base \w+Facts"),
        ("class Fact(BASE):\n    pass", "Fact must be called Facts"),
        ("class Facts(BASE):\n    salt = 1", "Facts has no salt; there are "),
    ],
)
def test_a_class_of_facts_is_known_by_its_name_and_base(tmp_path, kind, text, message):
    with pytest.raises(InputError, match=rf"mine\.py: {message}"):
        read(tmp_path, kind, text)


def test_a_file_that_says_nothing_has_the_usual_facts_and_a_learner_says_what_has_no_default(tmp_path):
    """Constants of its own are no facts."""
    for kind in KINDS:
        assert type(read(tmp_path, kind, "SHADOWS = True\nseed = 0")) is BASES[kind]
    with pytest.raises(InputError, match=r"mine\.py: Facts must say title"):
        read(tmp_path, "learner", "class Facts(BASE):\n    noun = 'heads'")


@pytest.mark.parametrize("words", [["--list"], ["--help"], ["--method", "promptfl", "--attack", "lira", "--dry-run"]])
def test_the_command_refuses_a_misspelt_fact(tmp_path, monkeypatch, capsys, words):
    folder, places = tmp_path / "attacks", plugins.package_folder
    shutil.copytree(places("fedaudit.attacks"), folder)
    lira = folder / "lira.py"
    lira.write_text(lira.read_text().replace("shadows = True", "shadow = True"))
    found = {"fedaudit.attacks": folder}
    monkeypatch.setattr(plugins, "package_folder", lambda package: found.get(package) or places(package))
    monkeypatch.delitem(vars(ATTACKS), "_plugins", raising=False)
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {lira}: Facts has no shadow (did you mean 'shadows'?); there are records, ")
    assert told.out == ""
    assert [*tmp_path.iterdir()] == [folder]


def test_an_attacks_words_for_readers_stand_in_its_file():
    """Or, of scores of tokens, which several attacks share, in the file that makes these. Each score is named once: what is
    said of it depends on no other attack's file."""
    assert all(attack.facts.signals for attack in ATTACKS.values())
    signals = [signal for attack in ATTACKS.values() for signal in attack.facts.names()]
    assert len(signals) == len(set(signals))
    for name in map(score_names.name_of, signals):
        assert name.in_tables.strip()
        assert name.in_sentences.strip()
        assert "{" not in name.in_tables + name.in_sentences
    for signal in [*signals, *cell_names(("image", "instruction", "caption"))]:
        assert sum(bool(pattern.fullmatch(signal)) for pattern, _ in score_names._declared()) == 1, signal


def test_a_methods_name_for_readers_stands_in_its_file():
    """By default it is the key, as of a training done elsewhere."""
    assert [METHODS[name].facts.title for name in ("dpfpl", "local", "fedavg")] == ["DP-FPL", "Local prompts", "FedAvg"]
    assert [method_name(name) for name in METHODS] == [plugin.facts.title for plugin in METHODS.values()]
    assert method_name("of a folder") == "of a folder"


@pytest.mark.parametrize(
    ("signal", "parts", "in_sentences"),
    [
        ("renyi/2/10/caption", ("MaxRényi, order 2", 10, "caption"), "MaxRényi-10% of order 2 on the caption"),
        ("loss", ("loss", None, ""), "the loss"),
        ("loss/base", ("calibrated loss", None, ""), "the loss calibrated by the untrained model"),
        ("fedmia/2", ("FedMIA-II", None, ""), "FedMIA-II"),
        ("custom/x", ("custom", None, "x"), "custom/x"),
    ],
)
def test_names_of_scores(signal, parts, in_sentences):
    name, percent, piece = parts
    share = [] if percent is None else [f"K {percent} %"]
    assert score_names.parts(signal) == parts
    assert score_names.signal_name(signal) == ", ".join([name, *share, *filter(None, [piece])])
    assert score_names.name_of(signal).in_sentences == in_sentences


def test_a_cell_of_the_matrix_runs_or_names_what_is_missing():
    """For every attack and threat model: refused exactly where a capability is missing, and by its name; `--list` prints the same, with the threat model above the column."""
    matrix = listing.matrix()
    lines = [line.split() for line in matrix if line]
    assert [*THREAT_MODELS] in lines
    rows = {words[0]: words[1:] for words in reversed(lines)}  # the table is above the notes
    for attack, threat_model in itertools.product(ATTACKS.values(), THREAT_MODELS):
        why = refusal(attack, threat_model)
        check_refusal(attack, threat_model, why)
        cell = rows[attack.name][list(THREAT_MODELS).index(threat_model)]
        assert (cell == "yes") == (why is None)
        if why:
            assert f"  {cell}: {why.removeprefix(f'the threat model {threat_model} ')}" in matrix


def check_refusal(attack, threat_model, why):
    """By the threat model of learners that have none such, else by the first capability that is missing."""
    fitting = [learner for learner in map(facts, every_learner()) if lacks(attack, learner) is None]
    able = [learner for learner in fitting if threat_model in (*learner.threat_models, *learner.on_shares)]
    needed = (attack.facts.needed(learner.records) for learner in able)
    missing = min(([one for one in some if one not in threat_model.sees] for some in needed), default=[])
    if not able:
        absent = {
            "prompt-user": "release no personal prompt", "peer": "pass no part of a client on to others",
            "active-server": "are not attacked by a server that acts",
        }  # fmt: skip
        assert why == f"{fitting[0].title} methods {absent.get(threat_model, 'compute nothing on secret shares')}"
    elif missing:
        assert f"the threat model {threat_model} does not see {missing[0]}" in why
        with pytest.raises(LacksCapability, match=f"{threat_model} does not see {missing[0]}"):
            require(threat_model, missing[0])
    else:
        assert why is None


def test_a_misspelt_name_is_answered_with_the_nearest():
    """The name with another last letter."""
    for plugin in EVERY:
        known = KINDS[plugin.kind]
        wrong = min({plugin.name[:-1] + letter for letter in string.ascii_lowercase} - {*known})
        said = rf"--{plugin.kind} {wrong}: no such {plugin.kind} \(did you mean '\w+'\?\);.*\b{plugin.name}\b"
        with pytest.raises(InputError, match=said):
            known.find(wrong, flag=f"--{plugin.kind}")


FIGURES = paper_items.items()


def test_a_figure_of_a_paper_is_a_file_that_can_be_asked_for():
    listed = listing.listing()
    for name, figure in FIGURES.items():
        paper, _, item = name.partition(":")
        assert 20 <= len(figure.summary) <= 160
        assert re.fullmatch(r"(Table|Figure) \d+", number := figure.title.removeprefix(f"{figure.paper}, "))
        assert number.replace(" ", "").lower() == item
        assert {FIGURES[other].paper for other in paper_items.matching(paper)} == {figure.paper}
        assert re.search(rf"^  {name} +{re.escape(figure.summary)}$", listed, re.MULTILINE)
        assert (figure.preset is None) == (not figure.tasks)
        assert (figure.real is None) == (figure.scale is None)
        assert figure.scale is None or figure.preset is not None
        assert all(cli.read_command([f"--preset={figure.preset}", *words]).plan for words in figure.tasks.values())
        assert callable(getattr(importlib.import_module(f"fedaudit.reports.papers.{figure.module}"), item))


@pytest.mark.parametrize(
    "text",
    [
        '"""Says:\nclass Params:\nas a class."""\nclass Params:\n    a: int = 1\nb = (\n',
        "class Params(\n    object,\n):\n    a: int = 1\n",
        'class Params:\n    """Has\nno indent."""\n    a: int = 1\nb = 2\n',
        "class Params:\n    a: int = 1",
    ],
)
def test_a_class_is_read_without_the_rest_of_its_file(tmp_path, text):
    path = tmp_path / "one.py"
    path.write_text(text)
    assert plugins.class_of(path, "Params").a == 1
    assert plugins.class_of(path, "Para") is None


def test_help_parses_no_file_to_its_end(monkeypatch):
    monkeypatch.setattr(plugins, "_parse", mock.Mock(side_effect=AssertionError))
    assert cli.main(["--method", "dpfpl", "--attack", "all", "--help"]) == 0
    assert not plugins._parse.called


def test_a_new_figure_is_found_without_a_line_elsewhere(tmp_path, monkeypatch):
    lists = "from fedaudit.reports.paper_items import PaperItem\nimport missing\n\nclass Items:\n    figure2 = PaperItem(preset='p')\n"
    (tmp_path / "fedrand_figure2.py").write_text(f'"""FedRand, Figure 2: what leaks."""\n{lists}')
    (tmp_path / "helper.py").write_text('"""No figure."""\n')
    monkeypatch.setattr(plugins, "package_folder", lambda package: tmp_path)
    found = paper_items.items.__wrapped__()
    item = paper_items.PaperItem("what leaks", "p", title="FedRand, Figure 2", module="fedrand_figure2")
    assert found == {"fedrand:figure2": item}
    assert item.summary == "FedRand, Figure 2: what leaks."
