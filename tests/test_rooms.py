"""The house: each storey imports only what is under it, no files import each other in a circle, and a name means one thing."""

import ast
import graphlib
from collections import defaultdict
from pathlib import Path

import pytest

from fedaudit.machinery import closure

ROOT = Path(__file__).parent.parent
STOREYS = [
    {"fedaudit.machinery"},
    {"fedaudit.tasks", "fedaudit.privacy"},
    {"fedaudit.backbones"},
    {"trainers"},
    {"attacks"},
    {"audits"},
    {"reports"},
    {"fedaudit.external"},
    {"fedaudit.pipeline"},
    {"fedaudit.command"},
    {"fedaudit"},  # the front door: api and __main__
]
SHUT = {  # what a room must not import although it lies below
    "attacks": ("fedaudit.tasks", "fedaudit.machinery.store", "fedaudit.machinery.executor"),
    "audits": ("attacks",),
    "reports": ("attacks", "trainers"),
}
PLUGIN = {"Params", "Settings", "Learner"}  # what a file of its kind is expected to define


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {_module(path): path for top in closure.OURS for path in sorted((ROOT / top).rglob("*.py"))}
IMPORTS = {module: [name for name in closure.imported(module) if name in FILES] for module in FILES}
HEIGHT = {room: i for i, rooms in enumerate(STOREYS) for room in rooms}


def room(module: str) -> str:
    """The room that a module lies in: a top folder, or one of fedaudit's."""
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first == "fedaudit" and rest and f"{first}.{rest[0]}" in HEIGHT else first


@pytest.mark.parametrize("module", [m for m in FILES if FILES[m].name != "__init__.py"])
def test_a_room_imports_only_what_is_under_it(module):
    here = room(module)
    for name in (n for n in IMPORTS[module] if n != "fedaudit"):  # its version, which is above all
        assert HEIGHT[room(name)] < HEIGHT[here] or room(name) == here, f"{module} imports {name}"
        assert not name.startswith(SHUT.get(here, ("-",))), f"{module} imports {name}"


def test_no_files_import_each_other_in_a_circle():
    files = {m: [n for n in IMPORTS[m] if FILES[n].name != "__init__.py"] for m in FILES}
    assert len(list(graphlib.TopologicalSorter(files).static_order())) == len(FILES)  # CycleError names one


def test_a_circle_and_a_forbidden_arrow_would_be_seen(tmp_path):
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter({"a": ["b"], "b": ["a"]}).static_order())
    assert HEIGHT[room("fedaudit.command.cli")] > HEIGHT[room("fedaudit.pipeline.plan")] > HEIGHT[room("audits.blind")]


def test_a_public_class_has_a_name_of_its_own():
    homes = defaultdict(list)
    for module, path in FILES.items():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in PLUGIN:
                homes[node.name].append(module)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
