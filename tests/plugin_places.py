"""Folders of plugins for tests, which a process must forget again: it knows them until it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fedaudit.machinery import closure, places, plugins
from fedaudit.pipeline import keys


def forget() -> None:
    """As if no plugin had been named in this process, and no file been read."""
    places._added.clear()
    foreign = [name for name, module in sys.modules.items() if _is_foreign(module)]
    for name in foreign:
        parent, _, last = name.rpartition(".")
        vars(sys.modules[parent]).pop(last, None) if parent in sys.modules else None
        del sys.modules[name]
    for cached in (places.places, closure._parsed, plugins._text, plugins.dataclass_of, keys._sha256):
        cached.cache_clear()
    for cleared in places._to_forget:
        cleared()


def _is_foreign(module: object) -> bool:
    loaded = str(getattr(module, "__file__", None) or "")
    ours = str(getattr(module, "__name__", "")).startswith(("fedaudit.trainers", "fedaudit.attacks", "fedaudit.audits"))
    return ours and not loaded.startswith(str(places.ours().folder)) and "my_audits" not in loaded


@pytest.fixture
def forgotten() -> Iterator[None]:
    """For tests that name folders of plugins in this process."""
    forget()
    yield
    forget()
