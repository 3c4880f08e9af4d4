"""FedAudit: privacy audits of federated prompt learning and federated LoRA on vision-language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaudit.api import Audit, audit, dry_run, findings, runs
    from fedaudit.external.split import split
    from fedaudit.machinery.errors import InputError
    from fedaudit_recorder import Recorder

__all__ = ["Audit", "InputError", "Recorder", "audit", "dry_run", "findings", "runs", "split"]
__version__ = "0.1.0"
OUTSIDE_KEYS = "the front door, which leads everywhere; the version stands in the key of a page by itself"

_HOMES = {
    "Audit": "fedaudit.api",
    "InputError": "fedaudit.machinery.errors",
    "Recorder": "fedaudit_recorder",
    "audit": "fedaudit.api",
    "dry_run": "fedaudit.api",
    "findings": "fedaudit.api",
    "runs": "fedaudit.api",
    "split": "fedaudit.external.split",
}


def __getattr__(name: str) -> Any:
    """Import and return a name of the library when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
