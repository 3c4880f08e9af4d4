"""Methods, attacks, audits and tasks are files: a module of their folder that defines `Params` is a plugin.

The folder's source is read, not imported, so that the command line knows every name, summary and parameter in
milliseconds; a plugin's module (and torch) is imported when it is used.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from fedaudit.machinery.errors import InputError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Declaration = str | bool | int | tuple[str, ...] | dict[str, tuple[str, str]]
Declared = TypeVar("Declared", bound=Declaration)

PACKAGES = {"method": "trainers", "attack": "attacks", "audit": "audits", "task": "fedaudit.tasks"}
# what a file may declare at module level, each a literal, with what holds where it does not
DECLARATIONS: dict[str, dict[str, Declaration]] = {
    "method": {
        "LEARNER": "lora",
        "TRAINS": True,
        "TITLE": "",
        "PRIVATE": False,
        "ON_SHARES": False,
        "NEWCOMERS": False,
    },
    "attack": {
        "RECORDS": ("texts",),
        "ON_TEXTS": (),
        "NEEDS": (),
        "SHADOWS": False,
        "STRENGTH": 0,
        "GRADIENTS": False,
        "MIXTURES": False,
        "SEQUENCES": False,
        "VECTORS": False,
        "ROUNDS": False,
        "GUESSES": (),
        "SIGNALS": {},
    },
    "audit": {"NEEDS": (), "AFTER": (), "ON_REQUEST": False, "ACROSS": False},
    "task": {"LEARNER": "lora"},
}
VALID = {
    bool: "True or False",
    int: "a whole number",
    str: "a text",
    tuple: "a tuple of texts",
    dict: "a dictionary of pairs of texts",
}
NEAR = 0.7  # difflib's ratio from which a name looks like a declaration's: TRAINING does, SEED and LEARNING_RATE do not


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
        return summary(self.path)

    @property
    def params(self) -> type[DataclassInstance]:
        """The frozen dataclass `Params`, executed alone out of the source: nothing else of the file runs."""
        return dataclass_of(self.path, "Params")

    @property
    def learner(self) -> str:
        """The module of trainers/ that holds what is trained by a method, or on a task (the literal `LEARNER`)."""
        return str(self._declared("LEARNER"))

    @property
    def records(self) -> tuple[str, ...]:
        """For an attack, the kinds of records that it can score: texts, classes (the literal `RECORDS`)."""
        return self._texts("RECORDS")

    @property
    def on_texts(self) -> tuple[str, ...]:
        """For an attack, the scores that stand for it where records are texts, parameters in braces (the literal
        `ON_TEXTS`); by default its first."""
        return self._texts("ON_TEXTS") or self.signals[:1]

    @property
    def trains(self) -> bool:
        """For a method, whether it trains anything at all (the literal `TRAINS`)."""
        return bool(self._declared("TRAINS"))

    @property
    def private(self) -> bool:
        """For a method, whether it can be noised where its learner's others cannot (the literal `PRIVATE`)."""
        return bool(self._declared("PRIVATE"))

    @property
    def on_shares(self) -> bool:
        """For a method, whether its clients compute together on secret shares: it takes no noise, and no client can be
        trained alone (the literal `ON_SHARES`)."""
        return bool(self._declared("ON_SHARES"))

    @property
    def newcomers(self) -> bool:
        """For a method, whether it says how a client comes to a run that is over (the literal `NEWCOMERS`)."""
        return bool(self._declared("NEWCOMERS"))

    @property
    def title(self) -> str:
        """For a method, what readers call it (the literal `TITLE`); by default its key."""
        return str(self._declared("TITLE")) or self.name

    @property
    def needs(self) -> tuple[str, ...]:
        """For an attack, what it needs to see beyond a model and public things; for an audit, what a run must have for
        it (the literal `NEEDS`)."""
        return self._texts("NEEDS")

    @property
    def after(self) -> tuple[str, ...]:
        """For an audit, the audits whose results it uses (the literal `AFTER`)."""
        return self._texts("AFTER")

    @property
    def on_request(self) -> bool:
        """For an audit, whether it runs only where --audit names it (the literal `ON_REQUEST`)."""
        return bool(self._declared("ON_REQUEST"))

    @property
    def across(self) -> bool:
        """For an audit, whether it compares all runs of a page instead of looking at one (the literal `ACROSS`)."""
        return bool(self._declared("ACROSS"))

    @property
    def shadows(self) -> bool:
        """For an attack, whether it needs shadow models (the literal `SHADOWS`)."""
        return bool(self._declared("SHADOWS"))

    @property
    def strength(self) -> int:
        """For an attack, how strong it is known to be beforehand (the literal `STRENGTH`): where all run, the strongest
        come first, and the first two have primary scores."""
        return declared(self.path, "STRENGTH", 0)

    @property
    def gradients(self) -> bool:
        """For an attack, whether it needs gradients of single records (the literal `GRADIENTS`)."""
        return bool(self._declared("GRADIENTS"))

    @property
    def mixtures(self) -> bool:
        """For an attack, whether it needs messages as mixtures of records (the literal `MIXTURES`)."""
        return bool(self._declared("MIXTURES"))

    @property
    def sequences(self) -> bool:
        """For an attack, whether it needs what the released models of many rounds say, those of the shadows too (the
        literal `SEQUENCES`)."""
        return bool(self._declared("SEQUENCES"))

    @property
    def vectors(self) -> bool:
        """For an attack, whether it needs the attacked vectors themselves beside gradients of single records at the
        shadows' mean (the literal `VECTORS`)."""
        return bool(self._declared("VECTORS"))

    @property
    def rounds(self) -> bool:
        """For an attack on one model, whether it also has a score of all states that an adversary sees of it (the
        literal `ROUNDS`); they are computed where records are texts."""
        return bool(self._declared("ROUNDS"))

    @property
    def guesses(self) -> tuple[str, ...]:
        """For an attack, those of its scores whose sign says member or not (the literal `GUESSES`)."""
        return self._texts("GUESSES")

    @property
    def signals(self) -> tuple[str, ...]:
        """For an attack, the names of its scores, as far as its file declares them (the literal `SIGNALS`)."""
        return self._texts("SIGNALS")

    def _declared(self, name: str) -> Declaration:
        return declared(self.path, name, DECLARATIONS[self.kind][name])

    def _texts(self, name: str) -> tuple[str, ...]:
        found = self._declared(name)
        return tuple(found) if isinstance(found, tuple | dict) else ()

    def load(self) -> Any:
        """The plugin's public class or function: the one named as its file, but for case and underscores. Of which type
        it is follows from its kind: who asks says it."""
        wanted, module = self.name.replace("_", ""), self._import()
        own = {n: thing for n, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
        return next(thing for name, thing in own.items() if name.lower().replace("_", "") == wanted)

    def make(self, params: DataclassInstance, **more: object) -> Any:
        """Call the plugin's class or function with its own `Params`, made from the one that the command line read."""
        return self.load()(self.own(params), **more)

    def own(self, params: DataclassInstance) -> DataclassInstance:
        """The module's own `Params`, made from the one that the command line read."""
        own: DataclassInstance = self._import().Params(**dataclasses.asdict(params))
        return own

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
    """All plugins of a kind, by name. InputError: a declaration in one of the files is misspelt or not of its type."""
    found = {
        path.stem: Plugin(kind, path.stem, path)
        for path in sorted(package_folder(PACKAGES[kind]).glob("*.py"))
        if any(isinstance(node, ast.ClassDef) and node.name == "Params" for node in _parse(path).body)
    }
    for plugin in found.values():
        check_declarations(plugin)
    return found


def check_declarations(plugin: Plugin) -> None:
    """InputError names file and name where a declaration is no literal of its type, or a name is misspelt.

    Misspelt is a name near a declaration of any kind, in any case, that its file does not read, as it reads its
    constants, or that has the type of that declaration.
    """
    known = DECLARATIONS[plugin.kind]
    for name, default in known.items():
        declared(plugin.path, name, default)
    defaults = {name: default for names in DECLARATIONS.values() for name, default in names.items()}
    for name, value in _assigned(plugin.path):
        near = difflib.get_close_matches(name.upper(), defaults, cutoff=NEAR)
        fits = any(_fits(value, defaults[other]) for other in near)
        if name not in known and near and (fits or name not in _read(plugin.path)):
            raise InputError(
                f"{plugin.path}: {name} is nothing that files of {plugin.kind}s declare{nearest(name, known)}; "
                f"there are {', '.join(known)}"
            )


def declared(path: Path, name: str, default: Declared) -> Declared:
    """The literal that a file gives a name at module level, or `default`. InputError: it is of another type."""
    for given, node in _assigned(path):
        if given == name:
            if not _fits(node, default):
                raise InputError(f"{path}: {name} must be {VALID[type(default)]} written out, not {ast.unparse(node)}")
            found: Declared = ast.literal_eval(node)
            return found
    return default


def summary(path: Path) -> str:
    """First line of a file's docstring."""
    return (ast.get_docstring(_parse(path)) or "").partition("\n")[0]


def literal(path: Path, name: str) -> Any:
    """What a file gives a name at module level, written out; None where it does not."""
    return next((ast.literal_eval(node) for given, node in _assigned(path) if given == name), None)


def _assigned(path: Path) -> Iterator[tuple[str, ast.expr]]:
    """The names that a file assigns at module level, each with what stands on the right."""
    for node in _parse(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                stored = (
                    part for part in ast.walk(target) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                )
                yield from ((part.id, node.value) for part in stored)


def _read(path: Path) -> set[str]:
    """The names that a file reads."""
    names = (node for node in ast.walk(_parse(path)) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def _fits(node: ast.expr, default: Declaration) -> bool:
    """Whether an expression is a literal of the default's type; what tuples and pairs in dictionaries hold is texts."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):  # TypeError: a key that cannot be hashed
        return False
    texts = value if isinstance(value, tuple) else ()
    if isinstance(value, dict):
        pairs = [pair for pair in value.values() if isinstance(pair, tuple) and len(pair) == 2]
        texts = (*value, *(text for pair in pairs for text in pair), *([None] * (len(value) - len(pairs))))
    return type(value) is type(default) and all(isinstance(text, str) for text in texts)


def find(kind: str, name: str, *, flag: str) -> Plugin:
    """The plugin of that name, or an InputError that names the nearest right one."""
    known = plugins(kind)
    if name not in known:
        raise InputError(f"{flag} {name}: no such {kind}{nearest(name, known)}; there are {', '.join(known)}")
    return known[name]


@functools.cache
def dataclass_of(path: Path, name: str) -> type[DataclassInstance]:
    """The dataclass `name` of a source file, executed without the rest of the file; what it takes from other files, as
    a base class, is imported, from light modules."""
    body = _parse(path).body
    node = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == name)
    taken = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    namespace: dict[str, object] = {
        **vars(typing),
        **vars(dataclasses),
        "math": math,
        "__name__": f"params of {path.stem}",
    }
    for statement in (n for n in body if isinstance(n, ast.ImportFrom)):
        for given in taken & {alias.name for alias in statement.names}:
            namespace[given] = getattr(importlib.import_module(str(statement.module)), given)
    exec(compile(ast.Module([node], []), str(path), "exec", dont_inherit=True), namespace)
    return typing.cast("type[DataclassInstance]", namespace[name])


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
