"""Plugins: every module of a package that defines a class `Params` is one, and every such file of a user's folder or of
an installed distribution (`fedaudit.machinery.places`); there is no other registration.

A plugin describes itself in a class `Facts`, whose base class declares all fields and their defaults. Sources are
parsed, not imported, so that the command line knows every name, summary, fact and parameter in milliseconds; the module
(and torch) is imported when the plugin is used. This file knows no kind of plugin.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import copyreg
import dataclasses
import functools
import importlib
import importlib.util
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedaudit.machinery import closure, places
from fedaudit.machinery.errors import InputError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FactsClass = TypeVar("FactsClass")
FACTS, PARAMS = "Facts", "Params"


@dataclass(frozen=True)
class Plugin(Generic[FactsClass]):
    """One plugin file: its kind, its name on the command line, and the dotted name of its module."""

    kind: str
    name: str
    path: Path
    module: str
    facts: FactsClass  # an object of its class `Facts`, or of the base class
    foreign: bool = False  # whether it lies elsewhere: what is wrong with it is for its author to mend

    @property
    def summary(self) -> str:
        """The first line of the module's docstring."""
        return summary(self.path)

    @property
    def params(self) -> type[DataclassInstance]:
        """The dataclass `Params`, executed without the rest of the file (see `dataclass_of`)."""
        return dataclass_of(self.path, PARAMS)

    def load(self) -> Any:
        """Import the module; return its class or function that is named as the file, but for case and underscores."""
        wanted, module = _plain(self.name), self._import()
        defined = {n: thing for n, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
        alike = (thing for name, thing in defined.items() if _plain(name) == wanted)
        return defined[self.name] if self.name in defined else next(alike)

    def make(self, params: DataclassInstance, **more: object) -> Any:
        """Import the module and call its class or function with `own(params)` and the keywords `more`."""
        return self.load()(self.own(params), **more)

    def own(self, params: DataclassInstance) -> DataclassInstance:
        """Import the module; return an object of its `Params` class with the values of `params`."""
        converted: DataclassInstance = self._import().Params(**dataclasses.asdict(params))
        return converted

    def _import(self) -> ModuleType:
        try:
            return importlib.import_module(self.module)
        except Exception as error:
            if not self.foreign or isinstance(error, InputError):
                raise
            raise InputError(f"{self.path}: cannot be imported ({type(error).__name__}: {error})") from error


def _plain(name: str) -> str:
    """A name without case and underscores."""
    return name.lower().replace("_", "")


@functools.cache
def package_folder(package: str) -> Path:
    """The folder of a package. At most its parent packages are imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


class Plugins(Mapping[str, Plugin[FactsClass]]):
    """Mapping from name to plugin, for one kind: the files of `package`, and of folders of its name elsewhere; `usual`
    is the base class of their `Facts`. Files are read at the first access. InputError: a file is wrong."""

    def __init__(self, kind: str, package: str, usual: type[FactsClass]) -> None:
        self.kind, self.package, self.usual = kind, package, usual
        places.on_change(lambda: self.__dict__.pop("_plugins", None))

    @functools.cached_property
    def _plugins(self) -> dict[str, Plugin[FactsClass]]:
        paths = [path for path in sorted(package_folder(self.package).glob("*.py")) if _class(path, PARAMS)]
        by_name = {path.stem: self.read(path) for path in paths}
        part = self.package.partition(".")[2]
        for place in places.places()[1:]:
            for path in sorted((place.folder / part).glob("*.py")):
                if is_foreign_plugin(path, f"{place.package}.{part}", self.kind):
                    if path.stem in by_name:
                        raise InputError(f"{path} has the name of {by_name[path.stem].path}; rename it")
                    module = f"{place.package}.{part}.{path.stem}"
                    by_name[path.stem] = Plugin(self.kind, path.stem, path, module, facts_of(path, self.usual), True)
        return dict(sorted(by_name.items()))

    def read(self, path: Path) -> Plugin[FactsClass]:
        """The plugin in the file `path` of the package."""
        return Plugin(self.kind, path.stem, path, f"{self.package}.{path.stem}", facts_of(path, self.usual))

    def __getitem__(self, name: str) -> Plugin[FactsClass]:
        return self._plugins[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plugins)

    def __len__(self) -> int:
        return len(self._plugins)

    def find(self, name: str, *, flag: str) -> Plugin[FactsClass]:
        """The plugin `name`. InputError, which begins with `flag`, names the most similar one if there is none."""
        if name not in self:
            raise InputError(f"{flag} {name}: no such {self.kind}{nearest(name, self)}; there are {', '.join(self)}")
        return self[name]


def is_foreign_plugin(path: Path, package: str, kind: str) -> bool:
    """Whether a file that is not ours is a plugin, and not a helper of one. InputError: it is no Python, lacks a class,
    imports what is not there, or its parameters are not as they must be."""
    try:
        body = _parse(path).body
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path}: is no Python ({error})") from error
    public = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    named = _plain(path.stem) in map(_plain, public)
    if PARAMS not in public:
        if named or FACTS in public:
            raise InputError(f"{path}: has no class {PARAMS}, which every {kind} has, also one without parameters")
        return False
    if not named:
        raise InputError(f"{path}: has no class or function that is named as the file, but for case and underscores")
    for name in (name for node in body for name in closure.names(node, package)):
        if not _is_there(name):
            raise InputError(f"{path}: imports {name}, which is not there")
    _check_params(path)
    return True


def _is_there(name: str) -> bool:
    """Whether a module is there, or a name of one: of ours it is looked for, of others only the distribution."""
    top = name.partition(".")[0]
    if not closure.source_file(top):
        return importlib.util.find_spec(top) is not None
    return any(map(closure.source_file, (name, name.rpartition(".")[0])))


def _check_params(path: Path) -> None:
    """Raise InputError if the class `Params` of a file is no dataclass of flags."""
    try:
        params = dataclass_of(path, PARAMS)
        params()
    except Exception as error:
        why = "a dataclass whose fields have defaults, executed without the rest of the file"
        raise InputError(f"{path}: {PARAMS} must be {why} ({error})") from error
    for field in dataclasses.fields(params):
        if not isinstance(field.default, bool | int | float | str):
            raise InputError(f"{path}: the default of {PARAMS}.{field.name} must be a bool, int, float or str")


def facts_of(path: Path, usual: type[FactsClass]) -> FactsClass:
    """An object of the class `Facts` in a file, which must inherit from `usual`; `usual()` if the file has none.
    InputError names file and field: an unknown field, a value of another type, or a field without a value."""
    if _class(path, FACTS) is None:
        for node in _parse(path).body if usual.__name__ in _text(path) else ():
            if isinstance(node, ast.ClassDef) and usual.__name__ in map(ast.unparse, node.bases):
                raise InputError(f"{path}: {node.name} must be called {FACTS}")
        return usual()
    try:
        facts = _executed(path, FACTS)
    except Exception as error:
        raise InputError(f"{path}: {FACTS} must stand alone, without the rest of the file ({error})") from error
    if not issubclass(facts, usual):
        raise InputError(f"{path}: {FACTS} must have the base {usual.__name__}")
    try:
        _check(facts, typing.get_type_hints(usual))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return facts()


def _check(facts: type[Any], fields: Mapping[str, Any]) -> None:
    """Raise ValueError if an attribute of the class `facts` is no field or of another type than its hint, or a field
    has no value."""
    for name, value in vars(facts).items():
        if name in fields and not _fits(value, hint := fields[name]):
            raise ValueError(f"{name} must be {hint.__name__ if isinstance(hint, type) else hint}, not {value!r}")
        if name not in fields and not name.startswith("__"):
            raise ValueError(f"{FACTS} has no {name}{nearest(name, fields)}; there are {', '.join(fields)}")
    for name in fields:
        if not hasattr(facts, name):
            raise ValueError(f"{FACTS} must say {name}")


def _fits(value: object, hint: Any) -> bool:
    """Whether a value fits a type hint: a plain type (exactly), a tuple or a union of these."""
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
    """The first line of the docstring of a source file; "" if it has none."""
    if docstring := re.match(r'"""([^\\\n]+?)("""|$)', _text(path), re.MULTILINE):  # as almost always: not parsed
        return docstring[1].strip()
    return (ast.get_docstring(_parse(path)) or "").partition("\n")[0]


def literal(path: Path, name: str) -> Any:
    """The literal that a source file assigns to `name` at module level; None if it assigns nothing. ValueError: the
    value is no literal."""
    if not re.search(rf"^{name}\b", _text(path), re.MULTILINE):  # as almost always: not parsed
        return None
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
    """The dataclass `name` of a source file, executed with the imports that it uses and nothing else of the file. Its
    objects can be pickled."""
    cls = typing.cast("type[DataclassInstance]", _executed(path, name))
    fields = [field.name for field in dataclasses.fields(cls)]
    copyreg.pickle(cls, lambda params: (_unpickle, (path, name, {field: getattr(params, field) for field in fields})))
    return cls


def _unpickle(path: Path, name: str, values: dict[str, Any]) -> DataclassInstance:
    """An object of `dataclass_of(path, name)`, in any process; pickle could not find the class in a module."""
    return dataclass_of(path, name)(**values)


def _class(path: Path, name: str) -> ast.ClassDef | None:
    """The definition of class `name` at module level of a source file; None if there is none."""
    body = _parse_until(path, name).body
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _executed(path: Path, name: str) -> type[Any]:
    """The class `name` of a source file, executed with the imports that it uses and nothing else of the file."""
    node = _class(path, name)
    assert node is not None
    namespace: dict[str, Any] = {"__name__": f"{name} of {path.stem}"}
    whole = ast.Module([*_imports(_parse_until(path, name).body, node), node], [])
    exec(compile(whole, str(path), "exec", dont_inherit=True), namespace)
    cls: type[Any] = namespace[name]
    return cls


def _imports(body: Iterable[ast.stmt], of: ast.ClassDef) -> Iterator[ast.stmt]:
    """Yield the import statements in `body`, reduced to the names that the class `of` uses; those that it does not use
    at all are left out."""
    used = {part.id for part in ast.walk(of) if isinstance(part, ast.Name)}
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            needed = copy.copy(statement)
            needed.names = [alias for alias in statement.names if (alias.asname or alias.name) in used]
            if needed.names:
                yield needed


def _parse_until(path: Path, name: str) -> ast.Module:
    """A source file up to the end of its class `name`, without the rest, which takes most of the time; nothing if the
    file has no such class."""
    text = _text(path)
    lines = [*re.finditer(rf"^class {name}\b", text, re.MULTILINE)]
    for line in lines:
        end = re.compile(r"^[^\s)#]", re.MULTILINE).search(text, line.end())
        with contextlib.suppress(SyntaxError):  # the line is part of a string, or the class has a line without indent
            return _parsed(text[: end.start() if end else None])
    return _parse(path) if lines else ast.Module([], [])


@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _parse(path: Path) -> ast.Module:
    return _parsed(_text(path))


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
