"""FedAudit: privacy audits of federated prompt learning and federated LoRA on vision-language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedaudit.api import Audit, audit, dry_run, findings, runs
    from fedaudit.external.split import split
    from fedaudit.machinery.errors import InputError
    from fedaudit.options import Options
    from fedaudit_recorder import Recorder

__all__ = ["Audit", "InputError", "Options", "Recorder", "audit", "dry_run", "findings", "runs", "split"]
__version__ = "0.1.0"
OUTSIDE_KEYS = "the front door, which leads everywhere; the version stands in the key of a page by itself"

_HOMES = {
    "Audit": "fedaudit.api",
    "InputError": "fedaudit.machinery.errors",
    "Options": "fedaudit.options",
    "Recorder": "fedaudit_recorder",
    "audit": "fedaudit.api",
    "dry_run": "fedaudit.api",
    "findings": "fedaudit.api",
    "runs": "fedaudit.api",
    "split": "fedaudit.external.split",
}


def __dir__() -> list[str]:
    """The names of the library, also those that are not imported yet."""
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name

    def __getattr__(name: str) -> object:
        """Import and return a name of the library when it is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
