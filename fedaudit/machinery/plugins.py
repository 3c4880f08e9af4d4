"""Plugins: a module of a folder that defines `Params` is one, and nothing else registers it.

What a file says of itself stands in its class `Facts`, whose base has every field that there is, with what holds where
a file says nothing. The folder's source is read, not imported, so that the command line knows every name, summary,
fact and parameter in milliseconds; a plugin's module (and torch) is imported when it is used. Knows no kind of plugin.
"""

from __future__ import annotations

import ast
import copy
import copyreg
import dataclasses
import functools
import importlib
import importlib.util
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedaudit.machinery.errors import InputError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Said = TypeVar("Said")
FACTS, PARAMS = "Facts", "Params"


@dataclass(frozen=True)
class Plugin(Generic[Said]):
    """One file of a plugin folder; its name is its key on the command line."""

    kind: str
    name: str
    path: Path
    module: str
    facts: Said  # what the file says of itself

    @property
    def summary(self) -> str:
        """First line of the module's docstring."""
        return summary(self.path)

    @property
    def params(self) -> type[DataclassInstance]:
        """The frozen dataclass `Params`, executed alone out of the source: nothing else of the file runs."""
        return dataclass_of(self.path, PARAMS)

    def load(self) -> Any:
        """The plugin's public class or function: the one named as its file, but for case and underscores. Of which type
        it is follows from its kind: who asks says it."""
        wanted, module = self.name.replace("_", ""), self._import()
        own = {n: thing for n, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
        alike = (thing for name, thing in own.items() if name.lower().replace("_", "") == wanted)
        return own[self.name] if self.name in own else next(alike)

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


class Plugins(Mapping[str, Plugin[Said]]):
    """All plugins of a kind by name: the files of a package, with facts of the class `usual`. Read when first asked;
    InputError: the facts of a file are wrong."""

    def __init__(self, kind: str, package: str, usual: type[Said]) -> None:
        self.kind, self.package, self.usual = kind, package, usual

    @functools.cached_property
    def _plugins(self) -> dict[str, Plugin[Said]]:
        paths = [path for path in sorted(package_folder(self.package).glob("*.py")) if _class(path, PARAMS)]
        return {path.stem: self.read(path) for path in paths}

    def read(self, path: Path) -> Plugin[Said]:
        """The plugin of a file."""
        return Plugin(self.kind, path.stem, path, f"{self.package}.{path.stem}", facts_of(path, self.usual))

    def __getitem__(self, name: str) -> Plugin[Said]:
        return self._plugins[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plugins)

    def __len__(self) -> int:
        return len(self._plugins)

    def find(self, name: str, *, flag: str) -> Plugin[Said]:
        """The plugin of that name, or an InputError that names the nearest right one."""
        if name not in self:
            raise InputError(f"{flag} {name}: no such {self.kind}{nearest(name, self)}; there are {', '.join(self)}")
        return self[name]


def facts_of(path: Path, usual: type[Said]) -> Said:
    """What the class `Facts` of a file says, which has `usual` as its base; just that where there is none.

    InputError names file and field: there is no such field, its value is of another type, or it is not said.
    """
    if _class(path, FACTS) is None:
        for node in _parse(path).body:
            if isinstance(node, ast.ClassDef) and usual.__name__ in map(ast.unparse, node.bases):
                raise InputError(f"{path}: {node.name} must be called {FACTS}")
        return usual()
    try:
        found = _executed(path, FACTS)
    except Exception as error:
        raise InputError(f"{path}: {FACTS} must stand alone, without the rest of the file ({error})") from error
    if not issubclass(found, usual):
        raise InputError(f"{path}: {FACTS} must have the base {usual.__name__}")
    try:
        _check(found, typing.get_type_hints(usual))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return found()


def _check(found: type[Any], fields: Mapping[str, Any]) -> None:
    """ValueError: something in a class is no field or of another type, or a field has no value."""
    for name, value in vars(found).items():
        if name in fields and not _fits(value, hint := fields[name]):
            raise ValueError(f"{name} must be {hint.__name__ if isinstance(hint, type) else hint}, not {value!r}")
        if name not in fields and not name.startswith("__"):
            raise ValueError(f"{FACTS} has no {name}{nearest(name, fields)}; there are {', '.join(fields)}")
    for name in fields:
        if not hasattr(found, name):
            raise ValueError(f"{FACTS} must say {name}")


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type: a plain one, a tuple of some, or one of several."""
    parts = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if typing.get_origin(hint) is not tuple:
        return type(value) is hint
    if not isinstance(value, tuple):
        return False
    wanted = parts[:1] * len(value) if parts[-1] is ... else parts
    return len(value) == len(wanted) and all(map(_fits, value, wanted))


def summary(path: Path) -> str:
    """First line of a file's docstring."""
    return (ast.get_docstring(_parse(path)) or "").partition("\n")[0]


def literal(path: Path, name: str) -> Any:
    """What a file gives a name at module level, written out; None where it does not."""
    for node in _parse(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                return ast.literal_eval(node.value)
    return None


def class_of(path: Path, name: str) -> type[Any] | None:
    """The class `name` of a source file, executed with the imports that it uses and nothing else; None: there is
    none."""
    return _executed(path, name) if _class(path, name) else None


@functools.cache
def dataclass_of(path: Path, name: str) -> type[DataclassInstance]:
    """The dataclass `name` of a source file, executed without the rest of the file but for the imports that it uses,
    which are of light modules. Its objects can be pickled."""
    made = typing.cast("type[DataclassInstance]", _executed(path, name))
    fields = [field.name for field in dataclasses.fields(made)]
    copyreg.pickle(made, lambda params: (_made, (path, name, {field: getattr(params, field) for field in fields})))
    return made


def _made(path: Path, name: str, values: dict[str, Any]) -> DataclassInstance:
    """An object of the dataclass `name` of a source file, in whatever process: its class has no module to be found
    in."""
    return dataclass_of(path, name)(**values)


def _class(path: Path, name: str) -> ast.ClassDef | None:
    """The class of that name at module level, if there is one."""
    return next((node for node in _parse(path).body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _executed(path: Path, name: str) -> type[Any]:
    """The class `name` of a file that has it, executed with the imports that it uses and nothing else of the file."""
    node = _class(path, name)
    assert node is not None
    namespace: dict[str, Any] = {"__name__": f"{name} of {path.stem}"}
    whole = ast.Module([*_imports(_parse(path).body, node), node], [])
    exec(compile(whole, str(path), "exec", dont_inherit=True), namespace)
    found: type[Any] = namespace[name]
    return found


def _imports(body: Iterable[ast.stmt], of: ast.ClassDef) -> Iterator[ast.stmt]:
    """The imports of a file, with those names alone that one of its classes uses."""
    used = {part.id for part in ast.walk(of) if isinstance(part, ast.Name)}
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            own = copy.copy(statement)
            own.names = [alias for alias in statement.names if (alias.asname or alias.name) in used]
            if own.names:
                yield own


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
