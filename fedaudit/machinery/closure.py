"""Which files of ours a module reaches by its imports, found by reading sources: what a key has to know. Imports
nothing but the standard library.

Imports inside functions count, those for type checkers do not. What is imported by a computed name (plugins, the
learner of a method) is named by who asks: see `fedaudit.pipeline.keys`.

A module that makes no number says so in its own file, by the literal `OUTSIDE_KEYS` with the reason. It is in no
closure, and its imports are not followed.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

OURS = ("fedaudit", "trainers", "attacks", "audits", "reports")
OUTSIDE = "OUTSIDE_KEYS"
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # what can hold an import: expressions cannot


@functools.cache
def closure(*modules: str) -> Mapping[str, Path]:
    """The source files that some modules reach, themselves included, by name ("trainers/base.py"), sorted."""
    todo, found = list(modules), set[str]()
    while todo:
        module = todo.pop()
        if module not in found and not why_outside(module):
            found.add(module)
            todo += imported(module)
    files = {module: source_file(module) for module in found}
    return dict(sorted((_name(module, path), path) for module, path in files.items() if path is not None))


@functools.cache
def imported(module: str) -> tuple[str, ...]:
    """The modules of ours that the source of one names in its imports, with the packages that they lie in."""
    package = module if _path(module).name == "__init__.py" else module.rpartition(".")[0]
    named = (name for node in _executed(_parsed(module)) for name in _names(node, package))
    return tuple(dict.fromkeys(part for name in named for part in _with_packages(name) if source_file(part)))


@functools.cache
def why_outside(module: str) -> str:
    """Why no number comes from a module, as its file says; empty where it says nothing, and it may make some."""
    for node in _parsed(module).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == OUTSIDE for to in node.targets):
            return str(ast.literal_eval(node.value))
    return ""


@functools.cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(_path(module).read_bytes())


def _path(module: str) -> Path:
    path = source_file(module)
    if path is None:
        raise ModuleNotFoundError(f"there is no module {module}")
    return path


@functools.cache
def source_file(module: str) -> Path | None:
    """Where the source of a module of ours lies; None if there is no such module of ours."""
    top, *rest = module.split(".")
    if top not in OURS:
        return None
    spec = importlib.util.find_spec(top)  # of a top-level name: imports nothing
    assert spec is not None
    assert spec.origin is not None
    place = Path(spec.origin).parent.joinpath(*rest)
    return next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)


def _name(module: str, path: Path) -> str:
    """The name of a module's file below the folder that holds the packages."""
    place = module.replace(".", "/")
    return f"{place}/{path.name}" if path.name == "__init__.py" else f"{place}.py"


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All statements but those that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, STATEMENTS):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield child
        yield from _executed(child)


def _names(node: ast.AST, package: str) -> Iterator[str]:
    """What a node imports: modules, or names in them that may be modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.rsplit(".", node.level - 1)[0] if node.level else ""
        module = ".".join(filter(None, (above, node.module)))
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))
