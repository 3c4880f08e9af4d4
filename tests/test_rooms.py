"""The house: each storey imports only what is under it, no files import each other in a circle, and a name means one thing."""

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from fedaudit.machinery import closure, places
from fedaudit.trainers.learners import METHODS

ROOT = Path(__file__).parent.parent
ROOMS = ("trainers", "attacks", "audits", "reports")  # packages of fedaudit that lie beside it
STOREYS = [
    {"fedaudit.machinery", "fedaudit.terms"},
    {"fedaudit.tasks", "fedaudit.privacy"},
    {"fedaudit.backbones"},
    {"fedaudit.trainers"},
    {"fedaudit.attacks"},
    {"fedaudit.audits"},
    {"fedaudit.reports"},
    {"fedaudit.external"},
    {"fedaudit.pipeline"},
    {"fedaudit.command"},
    {"fedaudit.contracts"},
    {"fedaudit"},  # the front door: api and __main__
]
SHUT = {  # what a room must not import although it lies below
    "fedaudit.attacks": ("fedaudit.tasks", "fedaudit.machinery.store", "fedaudit.machinery.executor"),
    "fedaudit.audits": ("fedaudit.attacks",),
    "fedaudit.reports": ("fedaudit.attacks", "fedaudit.trainers"),
}
OPEN = ("fedaudit.attacks.facts", "fedaudit.attacks.score_names", "fedaudit.trainers.learners")  # to all above
PLUGIN = {"Params", "Settings", "Facts", "Learner", "Items"}  # what a file of its kind is expected to define


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return f"fedaudit.{name}" if name.split(".")[0] in ROOMS else name


PATHS = (path for top in ("fedaudit", *ROOMS) for path in sorted((ROOT / top).rglob("*.py")))
FILES = {module: path for module in map(_module, PATHS) if (path := closure.source_file(module))}


@pytest.fixture(scope="module")
def nodes():
    """The syntax of every file of ours, parsed once."""
    return {module: nodes_of(path) for module, path in FILES.items()}


@pytest.fixture(scope="module")
def imports(nodes):
    return {module: parts_named(own, module.rpartition(".")[0]) for module, own in nodes.items()}


def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_bytes()))]


def parts_named(nodes: Iterable[ast.AST], package: str) -> set[str]:
    """Everything that a file imports, for type checkers only too, with the packages that it lies in."""
    names = (name for node in nodes for name in closure.names(node, package))
    return {part for name in names for part in closure._with_packages(name)}


HEIGHT = {room: i for i, rooms in enumerate(STOREYS) for room in rooms}


def room(module: str) -> str:
    """The room that a module lies in: a top folder, or one of fedaudit's."""
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first == "fedaudit" and rest and f"{first}.{rest[0]}" in HEIGHT else first


def forbidden(module: str, imports: Iterable[str]) -> list[str]:
    """Those imports of a module that are above its room, or shut to it."""
    here = room(module)

    def shut(name: str) -> bool:
        """But for open modules and packages that they lie in."""
        return name.startswith(SHUT.get(here, ("-",))) and not any(f"{o}.".startswith(f"{name}.") for o in OPEN)

    def above(name: str) -> bool:
        return HEIGHT[room(name)] >= HEIGHT[here] and room(name) != here

    return [name for name in imports if name != "fedaudit" and (shut(name) or above(name))]  # its version is for all


def test_a_room_imports_only_what_is_under_it(imports):
    found = {m: forbidden(m, names & FILES.keys()) for m, names in imports.items() if FILES[m].name != "__init__.py"}
    assert {module: names for module, names in found.items() if names} == {}


def test_no_file_imports_a_room_by_its_short_name(imports):
    """A user's folder may hold a module of that name (test_shadowing)."""
    assert [module for module, names in imports.items() if names & {*ROOMS}] == []


def test_recipes_stand_above_backbones_and_the_product_imports_none(imports):
    """No wheel holds them."""
    assert [module for module, names in imports.items() if "recipes" in names] == []
    below = {"fedaudit", *(room for rooms in STOREYS[:3] for room in rooms)}
    recipes = [path for path in (ROOT / "recipes").glob("*.py") if path.name != "__init__.py"]
    assert all({room(m) for m in parts_named(nodes_of(path), "recipes") & FILES.keys()} <= below for path in recipes)


def test_no_files_import_each_other_in_a_circle():
    files = {module for module in FILES if FILES[module].name != "__init__.py"}
    imported = {module: [n for n in closure.imported(module) if n in files] for module in files}
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError, which names them


def test_a_forbidden_import_is_seen():
    for module, name in (
        ("fedaudit.machinery.store", "fedaudit.tasks.base"),
        ("fedaudit.trainers.fedavg", "fedaudit.attacks.lira"),
        ("fedaudit.attacks.lira", "fedaudit.audits.blind"),
        ("fedaudit.attacks.lira", "fedaudit.machinery.store"),  # below it, and shut
        ("fedaudit.audits.blind", "fedaudit.attacks.lira"),
        ("fedaudit.pipeline.plan", "fedaudit.command.cli"),
        ("fedaudit.pipeline.plan", "fedaudit.api"),
    ):
        assert forbidden(module, ["fedaudit", "fedaudit.machinery.errors", name]) == [name]


def compared(nodes: Iterable[ast.AST]) -> set[object]:
    """The constants that a source compares with anything."""
    compares = (node for node in nodes if isinstance(node, ast.Compare))
    parts = (part for node in compares for side in (node.left, *node.comparators) for part in ast.walk(side))
    return {part.value for part in parts if isinstance(part, ast.Constant)}


def test_nobody_asks_a_learner_for_its_name(nodes):
    """What differs between learners stands in their files (`Facts`)."""
    learners = {plugin.facts.learner for plugin in METHODS.values()}
    assert learners <= compared(ast.walk(ast.parse("x in ('lora', 'maple', 'prompts')")))
    assert [module for module, own in nodes.items() if learners & compared(own)] == []


KINDS = re.compile("(?<![a-z])(method|attack|audit|record|shadow)s?(?![a-z])", re.IGNORECASE)


def of_plugins(source: str) -> set[str]:
    """The names and literals of a source, but for docstrings, that say of what kind a plugin is."""
    nodes = [*ast.walk(ast.parse(source))]
    documented = (node for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)))
    docs = {ast.get_docstring(node, clean=False) for node in documented}
    words = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "arg", "name")}
    words |= {node.value for node in nodes if isinstance(node, ast.Constant)} - docs
    return {word for word in words if isinstance(word, str) and KINDS.search(word)}


def test_the_machinery_knows_no_kind_of_plugin():
    """But for the names of the packages, whose files are ours."""
    source = "class A:\n    'Shadows.'\n    def audits(self, own): return own.shadows, {'records': 'text'}[own]"
    assert of_plugins(source) == {"audits", "shadows", "records"}
    files = {module: path for module, path in FILES.items() if room(module) == "fedaudit.machinery"}
    told = {module: of_plugins(path.read_text()) - {places.OURS} for module, path in files.items()}
    assert {module: words for module, words in told.items() if words} == {}


def test_a_public_class_has_a_name_of_its_own(nodes):
    homes = defaultdict(list)
    for module, (tree, *_) in nodes.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in PLUGIN:
                homes[node.name].append(module)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
