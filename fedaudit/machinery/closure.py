"""Import closures: the source files of this project that a module imports, directly or not. Cache keys hash them.

Sources are parsed, not imported. Files of plugins from elsewhere (`fedaudit.machinery.places`) are of this project too.
Imports inside functions count, imports under TYPE_CHECKING do not. A module that is imported by a computed name
(plugins, a method's learner) must be named by the caller: see `fedaudit.pipeline.keys`.

A module that computes no number assigns the reason to `OUTSIDE_KEYS`. It is in no closure, and its imports are not
followed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.machinery import places

OUTSIDE = "OUTSIDE_KEYS"
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # what can hold an import: expressions cannot


@functools.cache
def closure(*modules: str) -> Mapping[str, Path]:
    """Source files of `modules` (dotted names) and of all project modules that they import, directly or not, sorted:
    {"fedaudit/trainers/base.py": path, ...}. A module with `OUTSIDE_KEYS` is left out, and its imports are not
    followed."""
    todo, reached = list(modules), set[str]()
    while todo:
        module = todo.pop()
        if module not in reached and not why_outside(module):
            reached.add(module)
            todo += imported(module)
    files = {module: source_file(module) for module in reached}
    return dict(sorted((_name(module, path), path) for module, path in files.items() if path is not None))


@functools.cache
def imported(module: str) -> tuple[str, ...]:
    """Dotted names of this project's modules that the source of `module` imports, with the packages around them; not
    under TYPE_CHECKING."""
    package = module if _path(module).name == "__init__.py" else module.rpartition(".")[0]
    named = (name for node in _parsed(module).imports for name in names(node, package))
    return tuple(dict.fromkeys(part for name in named for part in _with_packages(name) if source_file(part)))


@functools.cache
def why_outside(module: str) -> str:
    """The text that a module assigns to `OUTSIDE_KEYS`, the reason why cache keys do not hash it; "" if it assigns
    none."""
    reason = _parsed(module).outside
    return "" if reason is None else str(ast.literal_eval(reason))


@dataclass(frozen=True)
class _Source:
    """The part of a module's source that decides its closure."""

    imports: Sequence[ast.stmt]  # that are executed
    outside: ast.expr | None  # that it assigns to `OUTSIDE_KEYS`


@functools.cache
def _parsed(module: str) -> _Source:
    return _parse(_path(module).read_bytes())


@functools.cache  # by content: places may change, and most sources do not
def _parse(source: bytes) -> _Source:
    tree = ast.parse(source)
    imports = [node for node in _executed(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assigned = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == OUTSIDE for to in node.targets)
    )
    return _Source(imports, next(assigned, None))


def _path(module: str) -> Path:
    path = source_file(module)
    if path is None:
        raise ModuleNotFoundError(f"there is no module {module}")
    return path


@functools.cache
def source_file(module: str) -> Path | None:
    """The .py file of a dotted module name; None if this project has no such module."""
    return places.source_of(module)


def _name(module: str, path: Path) -> str:
    """The path of a module's file relative to the folder that holds the package: "fedaudit/trainers/base.py"."""
    relative = module.replace(".", "/")
    return f"{relative}/{path.name}" if path.name == "__init__.py" else f"{relative}.py"


def _executed(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements below `node`, however deep, except those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, STATEMENTS):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from _executed(child)


def names(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the dotted names that an import statement imports: modules, or names in modules; nothing for other
    statements."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.rsplit(".", node.level - 1)[0] if node.level else ""
        module = ".".join(filter(None, (above, node.module)))
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


places.on_change(closure.cache_clear, imported.cache_clear, why_outside.cache_clear, source_file.cache_clear)
