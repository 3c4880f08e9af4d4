"""Places that hold modules like ours: folders that the user names, and packages that installed distributions name.

A folder's `PART/mine.py` is the module `fedaudit.PART.mine`, as if it lay in this package, wherever the folder is: so
keys hold no path, and a file can be merged as it is. A distribution's modules keep their own names.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from fedaudit.machinery.errors import InputError

OURS = "fedaudit"
VARIABLE = "FEDAUDIT_PLUGINS"  # environment variable with folders, separated as in PATH
GROUP = "fedaudit.plugins"  # of entry points, each of which names a package


@dataclass(frozen=True)
class ModulePlace:
    """A folder whose files are modules of `package`."""

    folder: Path
    package: str

    def file(self, module: str) -> Path | None:
        """The source file of a module; None if it is not here."""
        if module != self.package and not module.startswith(f"{self.package}."):
            return None
        path = self.folder.joinpath(*module.removeprefix(self.package).split(".")[1:])
        return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


_added: list[Path] = []
_to_forget: list[Callable[[], object]] = []


def on_change(*functions: Callable[[], object]) -> None:
    """Call these functions whenever a folder is added: they clear what was remembered of all places."""
    _to_forget.extend(functions)


def add(folders: Iterable[Path], source: str) -> None:
    """Let the files of these folders be modules of ours, for the rest of the process; known ones stay. InputError,
    which begins with `source`: there is no such folder, it has no part that ours has, or a file of it has the name of
    one that is there already."""
    for folder in (Path(os.path.abspath(folder)) for folder in folders):
        if folder not in _added:
            _check(folder, f"{source} {folder}", places())
            _added.append(folder)
            for forget in (places.cache_clear, *_to_forget):
                forget()


@functools.cache
def places() -> Sequence[ModulePlace]:
    """All places: ours first, then folders, then packages of installed distributions. InputError: one that the
    environment names is wrong."""
    all_places = [ours(), *(ModulePlace(folder, OURS) for folder in _added)]
    for folder in map(os.path.abspath, filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))):
        if (place := ModulePlace(Path(folder), OURS)) not in all_places:
            _check(place.folder, f"{VARIABLE} {folder}", all_places)
            all_places.append(place)
    return [*all_places, *_installed()]


@functools.cache
def ours() -> ModulePlace:
    """This package itself."""
    spec = importlib.util.find_spec(OURS)  # of a top-level name: imports nothing
    assert spec is not None
    assert spec.origin is not None
    return ModulePlace(Path(spec.origin).parent, OURS)


def source_of(module: str) -> Path | None:
    """The source file of a module of any place; None if no place has it."""
    return next((file for place in places() if (file := place.file(module))), None)


def module_of(part: str, name: str) -> str:
    """The dotted name of the module `name` in the folder `part` of the first place that has it; of ours if none has."""
    modules = (f"{place.package}.{part}.{name}" for place in places())
    return next((module for module in modules if source_of(module)), f"{OURS}.{part}.{name}")


def _check(folder: Path, source: str, others: Sequence[ModulePlace]) -> None:
    """Raise InputError if a folder can be no place beside the others."""
    if not folder.is_dir():
        raise InputError(f"{source}: no such folder")
    parts_of_ours = {path.name for path in others[0].folder.iterdir() if path.is_dir() and path.name[0] != "_"}
    parts = sorted(path.name for path in folder.iterdir() if path.name in parts_of_ours and path.is_dir())
    if not parts:
        raise InputError(f"{source}: has none of the folders that plugins lie in; see docs/guides/plugins.md")
    for path in (path for part in parts for path in sorted((folder / part).rglob("*.py"))):
        module = ".".join((OURS, *path.relative_to(folder).with_suffix("").parts))
        for place in others:
            if path.name != "__init__.py" and (taken := place.file(module)):
                raise InputError(f"{source}: {path} has the name of {taken}; rename it")


def _installed() -> Iterator[ModulePlace]:
    """Yield the packages that entry points name. Looking for the name of the group alone is ten times as fast as
    `importlib.metadata`, which is imported only if it is there."""
    files = (file for folder in filter(os.path.isdir, sys.path) for file in _entry_point_files(folder))
    if not any(f"[{GROUP}]" in file.read_text(encoding="utf-8", errors="replace") for file in files):
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            spec = importlib.util.find_spec(point.value)
        except ImportError:
            spec = None
        if spec is None or not spec.submodule_search_locations:
            by = f" of {point.dist.name}" if point.dist else ""
            raise InputError(f"the entry point {point.name}{by}: there is no package {point.value}")
        yield ModulePlace(Path(next(iter(spec.submodule_search_locations))), point.value)


def _entry_point_files(folder: str) -> list[Path]:
    """The lists of entry points of the distributions that are installed in a folder of sys.path."""
    with os.scandir(folder) as entries:
        all_places = [Path(entry.path, "entry_points.txt") for entry in entries if entry.name.endswith(".dist-info")]
    return [path for path in all_places if path.is_file()]


class _Finder(MetaPathFinder):
    """Finds modules in the folders that the user names, after Python has looked into our own."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        files = (place.file(name) for place in places()[1:] if place.package == OURS) if name.startswith(OURS) else ()
        if (file := next(filter(None, files), None)) is None:
            return None
        folder = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)


@dataclass(frozen=True)
class Carrier:
    """The folders of this process: where it is unpickled, they are added."""

    folders: tuple[Path, ...]

    @classmethod
    def of_this_process(cls) -> Carrier:
        """The folders that were added here."""
        return cls(tuple(_added))

    def __reduce__(self) -> tuple[Callable[..., Carrier], tuple[tuple[Path, ...]]]:
        return _carried, (self.folders,)


def _carried(folders: tuple[Path, ...]) -> Carrier:
    add(folders, "--plugins")
    return Carrier(folders)


sys.meta_path.append(_Finder())
