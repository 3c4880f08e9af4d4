"""Contracts that every method, attack, audit and task keeps; found by looking into the folders, so a new file is tested at once."""

import ast
import dataclasses
import inspect
import subprocess
import sys

import pytest

from attacks.threats import THREAT_MODELS, LacksCapability, refusal, require
from fedaudit.command import listing
from fedaudit.command.flags import Parser, add_backbone, add_choices, add_general_options, add_schedule
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError

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
    add_schedule(parser, plugin.learner)
    add_backbone(parser, plugin.learner)
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
    if plugin.kind == "method":
        assert (plugins.package_folder("trainers") / f"{plugin.learner}.py").is_file()
        assert list(inspect.signature(thing.update).parameters) == ["self", "server", "own", "client"]
        assert list(inspect.signature(thing.aggregate).parameters) == ["self", "server", "uploads", "site"]
    elif plugin.kind == "attack" and plugin.learner == "prompts":
        made = plugin.make(plugin.params())
        assert made.signals
        assert all(signal.partition("/")[0] == plugin.name for signal in made.signals)
        assert list(inspect.signature(made.score).parameters) == ["seen"]
        assert {*plugin.needs} <= set.union(*map(set, THREAT_MODELS.values()))
    elif plugin.kind == "attack":
        made = plugin.make(plugin.params())
        assert isinstance(made.signal, str)
        assert list(inspect.signature(made.models).parameters) == ["view"]
        assert list(inspect.signature(made.score).parameters) == ["learner", "state", "records"]
        assert list(inspect.signature(made.calibrate).parameters) == ["scores", "base"]
    elif plugin.kind == "task":
        assert list(inspect.signature(thing).parameters) == ["params", "clients", "seed"]


@pytest.mark.parametrize("threat_model", THREAT_MODELS)
@pytest.mark.parametrize("attack", [p for p in EVERY if p.kind == "attack"], ids=lambda p: p.name)
def test_a_cell_of_the_matrix_runs_or_names_what_is_missing(attack, threat_model):
    """For every attack and threat model: refused exactly where a capability is missing, and by its name; `--list` prints the same."""
    missing = [capability for capability in attack.needs if capability not in THREAT_MODELS[threat_model]]
    why = refusal(attack, threat_model)
    if attack.learner == "lora" and threat_model == "prompt-user":
        assert why == "LoRA methods release no personal prompt"
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
        assert f"{cell}: {why}" in "\n".join(listing.matrix())


def test_attacks_never_import_what_knows_the_truth():
    for path in plugins.package_folder("attacks").glob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name and (name.startswith(("audits", "fedaudit.tasks"))) for name in imported), path


@each
def test_a_misspelt_name_is_answered_with_the_nearest(plugin):
    wrong = plugin.name[:-1] + "x"
    with pytest.raises(InputError, match=rf"--{plugin.kind} {wrong}: no such {plugin.kind}.*{plugin.name}"):
        plugins.find(plugin.kind, wrong, flag=f"--{plugin.kind}")


def test_listing_and_help_import_nothing_heavy():
    code = (
        "import sys; from fedaudit import cli, listing\n"
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
