"""Contracts that every method, attack, audit and task keeps; found by looking into the folders, so a new file is tested at once."""

import ast
import importlib
import inspect
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
each = pytest.mark.parametrize("plugin", EVERY, ids=lambda p: f"{p.kind}-{p.name}")


@each
@pytest.mark.parametrize("contract", files.CONTRACTS, ids=lambda contract: contract.__name__)
def test_every_file_keeps_its_contracts(plugin, contract):
    contract(plugin)


@each
def test_is_listed(plugin):
    assert re.search(rf"^ +{plugin.name}\b", listing.listing(), re.MULTILINE)


def test_of_a_class_and_a_function_of_one_name_the_one_of_the_file_is_meant(tmp_path, monkeypatch):
    path = tmp_path / "quarters_of.py"
    path.write_text("class QuartersOf: ...\n\n\ndef quarters_of(subject, params): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert inspect.isfunction(plugins.Plugin("audit", path.stem, path, path.stem, None).load())


# --- what a file says of itself -------------------------------------------------------------------------------------

BASES = {"learner": LearnerFacts} | {kind: known.usual for kind, known in KINDS.items()}
FIELDS = [(kind, name, hint) for kind, usual in BASES.items() for name, hint in get_type_hints(usual).items()]
TRIPLES = tuple[tuple[str, str, str], ...]
RIGHT = {bool: "True", int: "2", str: "'prompts'", int | None: "None", tuple[str, ...]: "('uploads',)"}
RIGHT |= {tuple[ThreatModel, ...]: "()"}
RIGHT |= {TRIPLES: "(('mine', 'mine', 'my score'),)"}
WRONG = {
    bool: ("1", "'yes'", "None"),
    int: ("True", "'1'", "1.0", "None"),
    str: ("('prompts',)", "1", "None"),
    int | None: ("True", "'1'"),
    tuple[str, ...]: ("'uploads'", "['uploads']", "(1,)", "None"),
    tuple[ThreatModel, ...]: ("'server'", "('server',)", "None"),
    TRIPLES: ("('mine',)", "{'mine': ('mine', 'my score')}", "(('mine', 'my score'),)", "(('mine', 'mine', 1),)"),
}
each_field = pytest.mark.parametrize(("kind", "name", "hint"), FIELDS)


def typos(name):
    """A letter too few, twice or swapped at every place, and other cases."""
    around = [(name[:i], name[i:]) for i in range(1, len(name) + 1)]
    swapped = {head[:-1] + tail[0] + head[-1] + tail[1:] for head, tail in around if tail}
    changed = {*swapped, *(h[:-1] + t for h, t in around), *(h + h[-1] + t for h, t in around)}
    return sorted(changed | {name.upper(), name.title()} - {*get_type_hints(LearnerFacts), name})


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


@each_field
def test_a_fact_is_of_its_type(tmp_path, kind, name, hint):
    assert getattr(read(tmp_path, kind, said(kind, **{name: RIGHT[hint]})), name) == ast.literal_eval(RIGHT[hint])
    for wrong in WRONG[hint]:
        with pytest.raises(InputError, match=rf"mine\.py: {name} must be .+, not {re.escape(wrong)}$"):
            read(tmp_path, kind, said(kind, **{name: wrong}))


@each_field
def test_a_misspelt_fact_is_refused(tmp_path, kind, name, hint):
    known = get_type_hints(BASES[kind])
    for wrong in {*typos(name)} - {*known}:
        with pytest.raises(InputError, match=rf"mine\.py: Facts has no {wrong} \(did you mean '\w+'\?\); there are "):
            read(tmp_path, kind, said(kind, **{wrong: RIGHT[hint]}))


@pytest.mark.parametrize("kind", BASES)
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


def test_a_learner_says_what_has_no_default(tmp_path):
    with pytest.raises(InputError, match=r"mine\.py: Facts must say title"):
        read(tmp_path, "learner", "class Facts(BASE):\n    noun = 'heads'")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_says_nothing_has_the_usual_facts(tmp_path, kind):
    """Constants of its own are no facts."""
    found = read(tmp_path, kind, "SHADOWS = True\nseed = 0")
    assert type(found) is BASES[kind]


@pytest.mark.parametrize("words", [["--list"], ["--help"], ["--method", "promptfl", "--attack", "lira", "--dry-run"]])
def test_the_command_refuses_a_misspelt_fact(tmp_path, monkeypatch, capsys, words):
    folder, places = tmp_path / "attacks", plugins.package_folder
    shutil.copytree(places("fedaudit.attacks"), folder)
    lira = folder / "lira.py"
    lira.write_text(lira.read_text().replace("shadows = True", "shadow = True"))
    monkeypatch.setattr(
        plugins, "package_folder", lambda package: folder if package == "fedaudit.attacks" else places(package)
    )
    monkeypatch.delitem(vars(ATTACKS), "_plugins", raising=False)
    out = tmp_path / "out"
    assert cli.main([*words, *([] if words[0].startswith(("--list", "--help")) else ["--out", str(out)])]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {lira}: Facts has no shadow (did you mean 'shadows'?); there are records, ")
    assert told.out == ""
    assert not out.exists()


# --- what readers call the scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [*ATTACKS.values()], ids=lambda p: p.name)
def test_an_attacks_words_for_readers_stand_in_its_file(attack):
    """Or, of scores of tokens, which several attacks share, in the file that makes these."""
    assert attack.facts.signals
    for signal in attack.facts.names():
        name = score_names.name_of(signal)
        assert name.in_tables.strip()
        assert name.in_sentences.strip()
        assert "{" not in name.in_tables + name.in_sentences
        assert any(pattern.fullmatch(signal) for pattern, _ in score_names._declared()), f"{signal} has no words"


def test_no_score_is_named_twice():
    """And an attack's words are of its own scores: what they say depends on no other attack's file."""
    signals = [s for p in ATTACKS.values() for s in p.facts.names()]
    assert len(signals) == len(set(signals))
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
        ("renyi/inf/0/image", ("MaxRényi, order inf", 0, "image"), "MaxRényi-0% of order inf on the image"),
        ("gap/caption", ("probability gap", None, "caption"), "gap/caption"),
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


# --- the matrix, imports, the listing -------------------------------------------------------------------------------


@pytest.mark.parametrize("threat_model", THREAT_MODELS)
@pytest.mark.parametrize("attack", [*ATTACKS.values()], ids=lambda p: p.name)
def test_a_cell_of_the_matrix_runs_or_names_what_is_missing(attack, threat_model):
    """For every attack and threat model: refused exactly where a capability is missing, and by its name; `--list` prints the same, with the threat model above the column."""
    why = refusal(attack, threat_model)
    fitting = [learner for learner in map(facts, every_learner()) if lacks(attack, learner) is None]
    able = [learner for learner in fitting if threat_model in (*learner.threat_models, *learner.on_shares)]
    lacking = [
        [capability for capability in attack.facts.needed(learner.records) if capability not in threat_model.sees]
        for learner in able
    ]
    missing = min(lacking, default=[])
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
    assert [*THREAT_MODELS] in [line.split() for line in listing.matrix()]
    row = next(line for line in listing.matrix() if line.split()[:1] == [attack.name]).split()
    cell = row[1 + list(THREAT_MODELS).index(threat_model)]
    assert (cell == "yes") == (why is None)
    if why:
        said = why.removeprefix(f"the threat model {threat_model} ")
        assert f"  {cell}: {said}" in listing.matrix()


def misspelt(name, known):
    """The name with another last letter: no other name, whatever letter it ends in."""
    return next(wrong for letter in string.ascii_lowercase if (wrong := name[:-1] + letter) not in known)


@each
def test_a_misspelt_name_is_answered_with_the_nearest(plugin):
    wrong = misspelt(plugin.name, KINDS[plugin.kind])
    with pytest.raises(
        InputError,
        match=rf"--{plugin.kind} {wrong}: no such {plugin.kind} \(did you mean '\w+'\?\);.*\b{plugin.name}\b",
    ):
        KINDS[plugin.kind].find(wrong, flag=f"--{plugin.kind}")


FIGURES = paper_items.items()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_a_paper_is_a_file_that_can_be_asked_for(name):
    figure = FIGURES[name]
    assert 20 <= len(figure.summary) <= 160
    assert re.fullmatch(r"(Table|Figure) \d+", number := figure.title.removeprefix(f"{figure.paper}, "))
    assert number.replace(" ", "").lower() == name.partition(":")[2]
    assert {FIGURES[other].paper for other in paper_items.matching(name.partition(":")[0])} == {figure.paper}
    assert re.search(rf"^  {name} +{re.escape(figure.summary)}$", listing.listing(), re.MULTILINE)
    assert (figure.preset is None) == (not figure.tasks)
    assert all(cli.read_command([f"--preset={figure.preset}", *words]).plan for words in figure.tasks.values())
    assert callable(
        getattr(importlib.import_module(f"fedaudit.reports.papers.{figure.module}"), name.partition(":")[2])
    )


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


def test_help_parses_no_file_to_its_end(monkeypatch, capsys):
    parse = mock.Mock(side_effect=AssertionError)
    monkeypatch.setattr(plugins, "_parse", parse)
    assert cli.main(["--method", "dpfpl", "--attack", "all", "--help"]) == 0
    assert not parse.called


def test_a_new_figure_is_found_without_a_line_elsewhere(tmp_path, monkeypatch):
    lists = "from fedaudit.reports.paper_items import PaperItem\nimport missing\n\nclass Items:\n    figure2 = PaperItem(preset='p')\n"
    (tmp_path / "fedrand_figure2.py").write_text(f'"""FedRand, Figure 2: what leaks."""\n{lists}')
    (tmp_path / "helper.py").write_text('"""No figure."""\n')
    monkeypatch.setattr(plugins, "package_folder", lambda package: tmp_path)
    found = paper_items.items.__wrapped__()
    item = paper_items.PaperItem("what leaks", "p", title="FedRand, Figure 2", module="fedrand_figure2")
    assert found == {"fedrand:figure2": item}
    assert item.summary == "FedRand, Figure 2: what leaks."
