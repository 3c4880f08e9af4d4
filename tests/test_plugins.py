"""Contracts that every method, attack, audit and task keeps; found by looking into the folders, so a new file is tested at once."""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import shutil
import string
import subprocess
import sys

import pytest

from attacks.threats import LacksCapability, refusal, require
from attacks.tokens.scores import cell_names
from fedaudit.command import cli, listing
from fedaudit.command.flags import Parser, add_backbone, add_choices, add_general_options, add_schedule
from fedaudit.machinery import plugins, score_names
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline import papers
from fedaudit.terms.threat_models import THREAT_MODELS
from reports.rows import method_name
from trainers.learners import every_learner, facts

EVERY = [plugin for kind in plugins.PACKAGES for plugin in plugins.plugins(kind).values()]
each = pytest.mark.parametrize("plugin", EVERY, ids=lambda p: f"{p.kind}-{p.name}")


@each
def test_says_what_it_is_in_one_line(plugin):
    assert plugin.summary.endswith(".")
    assert 20 <= len(plugin.summary) <= 160


@each
def test_parameters_are_frozen_documented_and_valid_by_default(plugin):
    params = plugin.params()
    assert dataclasses.fields(params) is not None
    assert type(params).__dataclass_params__.frozen
    for field in dataclasses.fields(params):
        assert isinstance(field.default, (bool, int, float, str)), field.name
        assert field.metadata.get("help"), f"{field.name} has no help"


@each
def test_parameters_read_from_the_source_equal_the_modules_own(plugin):
    own = sys.modules.get(plugin.module) or __import__(plugin.module, fromlist=["Params"])
    assert dataclasses.asdict(plugin.params()) == dataclasses.asdict(own.Params())


@each
def test_parameters_do_not_clash_with_the_commands_own_flags(plugin):
    parser = Parser(add_help=False)
    add_choices(parser)
    learner = next(name for name in every_learner() if plugin.kind not in ("method", "task") or plugin.learner == name)
    add_schedule(parser, learner)
    add_backbone(parser, learner)
    add_general_options(parser)
    taken = {action.dest for action in parser._actions}
    assert not taken & {field.name for field in dataclasses.fields(plugin.params)}


@each
def test_has_the_public_name_of_its_file(plugin):
    thing = plugin.load()
    assert inspect.isclass(thing) or inspect.isfunction(thing)


@each
def test_keeps_the_contract_of_its_kind(plugin):
    thing = plugin.load()
    if plugin.kind in ("method", "task"):
        assert (plugins.package_folder("trainers") / f"{plugin.learner}.py").is_file()
    if plugin.kind == "audit":
        assert list(inspect.signature(thing).parameters) == ["runs" if plugin.across else "subject", "params"]
        assert plugin.on_request or not plugin.across
        assert {*plugin.after} <= plugins.plugins("audit").keys()
    if plugin.kind == "attack":
        assert {*plugin.records} <= {facts(learner).records for learner in every_learner()}
        made = plugin.make(plugin.params())
        assert made.signals
        assert made.signals == plugin.signals
        assert all(signal.partition("/")[0] == plugin.name for signal in made.signals)
        assert list(inspect.signature(made.score).parameters) == ["seen"]
        assert {*plugin.needs} <= frozenset().union(*(one.sees for one in THREAT_MODELS))
        declared = {s for p in EVERY if p.kind == "attack" for s in p.signals}
        filled = [signal.format(**vars(plugin.params())) for signal in plugin.on_texts]
        assert {*filled} <= {*cell_names(["caption"]), *declared}
    if plugin.kind == "task":
        assert list(inspect.signature(thing).parameters) == ["params", "clients", "seed"]


# --- what a file declares -------------------------------------------------------------------------------------------

RIGHT = {bool: "True", int: "2", str: "'prompts'", tuple: "('uploads',)", dict: "{'mine': ('mine', 'my score')}"}
WRONG = {
    bool: ("1", "'yes'", "not False"),
    int: ("True", "'1'", "1.0"),
    str: ("prompts", "('prompts',)", "1"),
    tuple: ("'uploads'", "['uploads']", "(1,)"),
    dict: (
        "('mine',)",
        "{'mine': 'my score'}",
        "{'mine': ('mine', 'my', 'score')}",
        "{1: ('mine', 'my score')}",
        "{['mine']: 1}",
    ),
}
DECLARED = [(kind, name) for kind, names in plugins.DECLARATIONS.items() for name in names]
each_declaration = pytest.mark.parametrize(("kind", "name"), DECLARED)


def typos(name):
    """A letter too few, twice or swapped at every place, and other cases."""
    around = [(name[:i], name[i:]) for i in range(1, len(name) + 1)]
    swapped = {head[:-1] + tail[0] + head[-1] + tail[1:] for head, tail in around if tail}
    return sorted(
        {*swapped, *(h[:-1] + t for h, t in around), *(h + h[-1] + t for h, t in around), name.lower(), name.title()}
        - set().union(*plugins.DECLARATIONS.values())
    )


def plugin_of(path, text, kind="attack"):
    """A plugin whose file holds a docstring, `Params` and `text`."""
    file = path / "mine.py"
    file.write_text(f'"""Mine."""\nclass Params:\n    """None."""\n{text}\n')
    plugins._parse.cache_clear()
    return plugins.Plugin(kind, "mine", file)


def test_the_params_of_a_file_may_use_what_it_imports_from_light_modules(tmp_path):
    lines = (
        "import a_heavy_module",
        "from dataclasses import dataclass",
        "from another_heavy_module import Anything",
        "from fedaudit.terms.threat_models import OWNER, SERVER",
        "@dataclass(frozen=True)",
        "class Params:",
        "    against: tuple[str, ...] = (SERVER, OWNER)",
    )
    (tmp_path / "mine.py").write_text("\n".join(lines))
    assert plugins.dataclass_of(tmp_path / "mine.py", "Params")().against == ("server", "owner")


@each_declaration
def test_a_declaration_is_a_literal_of_its_type(tmp_path, kind, name):
    default = plugins.DECLARATIONS[kind][name]
    for assigned in (f"{name} = ", f"{name}: object = "):
        plugin = plugin_of(tmp_path, assigned + RIGHT[type(default)], kind)
        plugins.check_declarations(plugin)
        assert plugins.declared(plugin.path, name, default) == ast.literal_eval(RIGHT[type(default)])
    for wrong in (*WRONG[type(default)], "None", f"{RIGHT[type(default)]}, 1"):
        with pytest.raises(InputError, match=rf"mine\.py: {name} must be .+ written out, not "):
            plugins.check_declarations(plugin_of(tmp_path, f"{name} = {wrong}", kind))


@each_declaration
def test_a_misspelt_declaration_is_refused(tmp_path, kind, name):
    right = RIGHT[type(plugins.DECLARATIONS[kind][name])]
    for wrong in typos(name):
        for text in (f"{wrong} = {right}", f"{wrong}: object = {right}", f"{wrong} = 1", f"x = {right}\n{wrong} = x",
                     f"{wrong} = {right}\nx = {wrong}", f"x, {wrong} = 1, 2"):  # fmt: skip
            with pytest.raises(
                InputError, match=rf"mine\.py: {wrong} is nothing .* \(did you mean '{name}'\?\); there are "
            ):
                plugins.check_declarations(plugin_of(tmp_path, text, kind))


def test_a_declaration_of_another_kind_is_refused(tmp_path):
    with pytest.raises(
        InputError,
        match=r"SHADOWS is nothing that files of methods declare; there are LEARNER, TRAINS, TITLE, PRIVATE, ON_SHARES, NEWCOMERS$",
    ):
        plugins.check_declarations(plugin_of(tmp_path, "SHADOWS = True", "method"))


@pytest.mark.parametrize("kind", plugins.DECLARATIONS)
def test_constants_are_no_misspelt_declarations(tmp_path, kind):
    """Near a declaration only what the file itself does not read is refused; far from all, nothing."""
    constants = (
        "SEED = 0\nLEARNING_RATE, GAMMA = 0.1, 2\nLARGEST: float = 100.0\nWAYS = ('a',)\nSOURCE = 'x'\nVERBOSE = True"
    )
    plugins.check_declarations(plugin_of(tmp_path, constants, kind))
    near = "SIGNAL = 0.5\nNEED = 3\nGRADIENT_STEPS = 4\ndef mine():\n    return SIGNAL, NEED, GRADIENT_STEPS"
    plugins.check_declarations(plugin_of(tmp_path, near, kind))


@pytest.mark.parametrize("words", [["--list"], ["--help"], ["--method", "promptfl", "--attack", "lira", "--dry-run"]])
def test_the_command_refuses_a_misspelt_declaration(tmp_path, monkeypatch, capsys, words):
    folder, places = tmp_path / "attacks", plugins.package_folder
    shutil.copytree(places("attacks"), folder)
    lira = folder / "lira.py"
    lira.write_text(lira.read_text().replace("SHADOWS = True", "SHADOW = True"))
    monkeypatch.setattr(plugins, "package_folder", lambda package: folder if package == "attacks" else places(package))
    monkeypatch.setattr(plugins, "plugins", functools.cache(plugins.plugins.__wrapped__))
    out = tmp_path / "out"
    assert cli.main([*words, *([] if words[0].startswith(("--list", "--help")) else ["--out", str(out)])]) == 2
    said = capsys.readouterr()
    assert said.err.strip() == (
        f"error: {lira}: SHADOW is nothing that files of attacks declare (did you mean 'SHADOWS'?); "
        "there are RECORDS, ON_TEXTS, NEEDS, SHADOWS, STRENGTH, GRADIENTS, MIXTURES, SEQUENCES, VECTORS, ROUNDS, GUESSES, "
        "SIGNALS"
    )
    assert said.out == ""
    assert not out.exists()


# --- what readers call the scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [p for p in EVERY if p.kind == "attack"], ids=lambda p: p.name)
def test_an_attacks_words_for_readers_stand_in_its_file(attack):
    """Or, of scores of tokens, which several attacks share, in the file that makes these."""
    assert attack.signals
    for signal in attack.signals:
        name = score_names.name_of(signal)
        assert name.in_tables.strip()
        assert name.in_sentences.strip()
        assert "{" not in name.in_tables + name.in_sentences
        assert any(pattern.fullmatch(signal) for pattern, _ in score_names._declared()), f"{signal} has no words"


def test_no_score_is_named_twice():
    """And an attack's words are of its own scores: what they say depends on no other attack's file."""
    signals = [s for p in EVERY if p.kind == "attack" for s in p.signals]
    assert len(signals) == len(set(signals))
    for signal in [*signals, *cell_names(("image", "instruction", "caption"))]:
        assert sum(bool(pattern.fullmatch(signal)) for pattern, _ in score_names._declared()) == 1, signal


def test_a_methods_name_for_readers_stands_in_its_file():
    """By default it is the key, as of a training done elsewhere."""
    known = plugins.plugins("method")
    assert (known["dpfpl"].title, known["local"].title, known["fedavg"].title) == ("DP-FPL", "Local prompts", "FedAvg")
    assert [method_name(name) for name in known] == [plugin.title for plugin in known.values()]
    assert method_name("of a folder") == "of a folder"


@pytest.mark.parametrize(
    ("signal", "parts", "in_sentences"),
    [
        ("renyi/2/10/caption", ("MaxRényi, order 2", 10, "caption"), "MaxRényi-10% of order 2 on the caption"),
        ("renyi/inf/0/image", ("MaxRényi, order inf", 0, "image"), "MaxRényi-0% of order inf on the image"),
        ("mink/20/caption", ("Min-K", 20, "caption"), "mink/20/caption"),
        ("modrenyi/2/caption", ("modified Rényi, order 2", None, "caption"), "modrenyi/2/caption"),
        ("gap/caption", ("probability gap", None, "caption"), "gap/caption"),
        ("loss", ("loss", None, ""), "the loss"),
        ("loss/base", ("calibrated loss", None, ""), "the loss calibrated by the untrained model"),
        ("lira/online", ("LiRA", None, "online"), "LiRA (online)"),
        ("fedmia/2", ("FedMIA-II", None, ""), "FedMIA-II"),
        ("custom", ("custom", None, ""), "custom"),
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
@pytest.mark.parametrize("attack", [p for p in EVERY if p.kind == "attack"], ids=lambda p: p.name)
def test_a_cell_of_the_matrix_runs_or_names_what_is_missing(attack, threat_model):
    """For every attack and threat model: refused exactly where a capability is missing, and by its name; `--list` prints the same, with the threat model above the column."""
    missing = [capability for capability in attack.needs if capability not in threat_model.sees]
    why = refusal(attack, threat_model)
    fitting = [learner for learner in map(facts, every_learner()) if learner.fits(attack)]
    if not any(threat_model in (*learner.threat_models, *learner.on_shares) for learner in fitting):
        lacks = {"prompt-user": "release no personal prompt", "peer": "pass no part of a client on to others"}
        assert why == f"{fitting[0].title} methods {lacks.get(threat_model, 'compute nothing on secret shares')}"
    elif missing:
        assert f"the threat model {threat_model} does not see {missing[0]}" in why
        with pytest.raises(LacksCapability, match=f"{threat_model} does not see {missing[0]}"):
            require(threat_model, missing[0])
    else:
        assert why is None
    row = next(line for line in listing.matrix() if line.split()[:1] == [attack.name]).split()
    cell = row[1 + list(THREAT_MODELS).index(threat_model)]
    assert (cell == "yes") == (why is None)
    if why:
        said = why.removeprefix(f"the threat model {threat_model} ")
        assert f"  {cell}: {said}" in listing.matrix()


def test_attacks_never_import_what_knows_the_truth():
    for path in plugins.package_folder("attacks").glob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name and (name.startswith(("audits", "fedaudit.tasks"))) for name in imported), path


def misspelt(name, known):
    """The name with another last letter: no other name, whatever letter it ends in."""
    return next(wrong for letter in string.ascii_lowercase if (wrong := name[:-1] + letter) not in known)


@each
def test_a_misspelt_name_is_answered_with_the_nearest(plugin):
    wrong = misspelt(plugin.name, plugins.plugins(plugin.kind))
    with pytest.raises(
        InputError,
        match=rf"--{plugin.kind} {wrong}: no such {plugin.kind} \(did you mean '\w+'\?\);.*\b{plugin.name}\b",
    ):
        plugins.find(plugin.kind, wrong, flag=f"--{plugin.kind}")


@pytest.mark.parametrize("name", ["fedprox", "fedproa", "x", "a"])
def test_a_misspelling_is_no_name(name):
    """Names that end in x, which once was the letter that every name was misspelt with, and names a letter apart."""
    assert misspelt(name, {"fedprox", "fedproa", "fedprob", "x", "a"}) not in {
        "fedprox",
        "fedproa",
        "fedprob",
        "x",
        "a",
    }


def test_listing_and_help_import_nothing_heavy():
    code = (
        "import sys; from fedaudit.command import cli, listing\n"
        "print(listing.listing())\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'peft', 'numpy', 'pandas', 'matplotlib', 'sklearn', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert all(p.name in out.stdout for p in EVERY)
    assert "examples:" in out.stdout


FIGURES = papers.items()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_a_paper_is_a_file_that_can_be_asked_for(name):
    figure = FIGURES[name]
    assert name.replace(":", "_", 1) == figure.module
    assert 20 <= len(figure.summary) <= 160
    assert re.search(rf"^  {name} +{re.escape(figure.summary)}$", listing.listing(), re.MULTILINE)
    assert (figure.preset is None) == (not figure.tasks)
    assert all(cli.read_command([f"--preset={figure.preset}", *words]).plan for words in figure.tasks.values())
    assert callable(importlib.import_module(f"reports.papers.{figure.module}").build)


def test_a_new_figure_is_found_without_a_line_elsewhere(tmp_path, monkeypatch):
    words = 'PRESET = "fedrand-tables"\nTASKS = {"captions": ("--task=captions",)}\n'
    (tmp_path / "fedrand_figure2.py").write_text(f'"""FedRand, Figure 2: what leaks."""\n{words}')
    (tmp_path / "helper.py").write_text('"""No figure."""\n')
    monkeypatch.setattr(plugins, "package_folder", lambda package: tmp_path)
    found = papers.items.__wrapped__()
    tasks = {"captions": ("--task=captions",)}
    assert found == {
        "fedrand:figure2": papers.PaperItem(
            "fedrand_figure2", "FedRand, Figure 2: what leaks.", "fedrand-tables", tasks
        )
    }
