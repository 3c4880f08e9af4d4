"""Methods, attacks, audits and tasks are files: a module of their folder that defines `Params` is a plugin.

The folder's source is read, not imported, so that the command line knows every name, summary and parameter in milliseconds;
a plugin's module (and torch) is imported when it is used.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import math
import typing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedaudit.machinery.errors import InputError, nearest

PACKAGES = {"method": "trainers", "attack": "attacks", "audit": "audits", "task": "fedaudit.tasks"}


@dataclass(frozen=True)
class Plugin:
    """One file of a plugin folder; its name is its key on the command line."""

    kind: str
    name: str
    path: Path

    @property
    def module(self) -> str:
        return f"{PACKAGES[self.kind]}.{self.name}"

    @property
    def summary(self) -> str:
        """First line of the module's docstring."""
        return (ast.get_docstring(_parse(self.path)) or "").partition("\n")[0]

    @property
    def params(self) -> type[Any]:
        """The frozen dataclass `Params`, executed alone out of the source: nothing else of the file runs."""
        return dataclass_of(self.path, "Params")

    @property
    def learner(self) -> str:
        """The helper module of trainers/ that holds what is trained: by a method, on a task, under an attack (the literal `LEARNER`)."""
        return str(self._literal("LEARNER", "lora"))

    @property
    def trains(self) -> bool:
        """For a method, whether it trains anything at all (the literal `TRAINS`)."""
        return bool(self._literal("TRAINS", True))

    @property
    def needs(self) -> tuple[str, ...]:
        """For an attack, what it needs to see beyond a model and public things (the literal `NEEDS`)."""
        return tuple(self._literal("NEEDS", ()))

    @property
    def shadows(self) -> bool:
        """For an attack, whether it needs shadow models (the literal `SHADOWS`)."""
        return bool(self._literal("SHADOWS", False))

    @property
    def gradients(self) -> bool:
        """For an attack, whether it needs gradients of single records (the literal `GRADIENTS`)."""
        return bool(self._literal("GRADIENTS", False))

    def _literal(self, name: str, default: Any) -> Any:
        for node in _parse(self.path).body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
                return ast.literal_eval(node.value)
        return default

    def load(self) -> Any:
        """The plugin's public class or function: the one named as its file, but for case and underscores."""
        wanted = self.name.replace("_", "")
        return next(thing for name, thing in vars(self._import()).items() if name.lower().replace("_", "") == wanted)

    def make(self, params: Any, **more: Any) -> Any:
        """Call the plugin's class or function with its own `Params`, made from the one that the command line read."""
        return self.load()(self.own(params), **more)

    def own(self, params: Any) -> Any:
        """The module's own `Params`, made from the one that the command line read."""
        return self._import().Params(**dataclasses.asdict(params))

    def _import(self) -> ModuleType:
        return importlib.import_module(self.module)


@functools.cache
def package_folder(package: str) -> Path:
    """Where a package's source files lie; the package's own __init__ is all that is imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def plugins(kind: str) -> dict[str, Plugin]:
    """All plugins of a kind, by name."""
    return {
        path.stem: Plugin(kind, path.stem, path)
        for path in sorted(package_folder(PACKAGES[kind]).glob("*.py"))
        if any(isinstance(node, ast.ClassDef) and node.name == "Params" for node in _parse(path).body)
    }


def find(kind: str, name: str, *, flag: str) -> Plugin:
    """The plugin of that name, or an InputError that names the nearest right one."""
    known = plugins(kind)
    if name not in known:
        raise InputError(f"{flag} {name}: no such {kind}{nearest(name, known)}; there are {', '.join(known)}")
    return known[name]


@functools.cache
def dataclass_of(path: Path, name: str) -> type[Any]:
    """The dataclass `name` of a source file, executed without the rest of the file; a base class is imported, from a light module."""
    body = _parse(path).body
    node = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == name)
    bases = {ast.unparse(base) for base in node.bases}
    namespace: dict[str, Any] = {
        **vars(typing),
        **vars(dataclasses),
        "math": math,
        "__name__": f"params of {path.stem}",
    }
    for statement in (n for n in body if isinstance(n, ast.ImportFrom)):
        for base in bases & {alias.name for alias in statement.names}:
            namespace[base] = getattr(importlib.import_module(str(statement.module)), base)
    exec(compile(ast.Module([node], []), str(path), "exec", dont_inherit=True), namespace)
    return typing.cast(type[Any], namespace[name])


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
