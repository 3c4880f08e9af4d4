"""In a checkout some packages of `fedaudit` lie beside it and can be imported by their short names too: each module is
one object, `trainers.base is fedaudit.trainers.base`. An installed wheel has the long names only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def one_module(name: str) -> None:
    """Called by a room's package with its `__name__`: the package and its modules by their short names become those of
    `fedaudit`."""
    if not name.startswith("fedaudit."):
        sys.meta_path.insert(0, OldNames(name))
        sys.modules[name] = importlib.import_module(f"fedaudit.{name}")


class OldNames(MetaPathFinder, Loader):
    """Finds the modules of a package by their short names."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith(f"{self.package}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"fedaudit.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own `__spec__` back: Python has just put the one of the short name in its place."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
