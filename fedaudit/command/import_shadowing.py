"""Checks that another package does not hide one of ours: many research repositories have a `trainers/` too.

Imports none of our packages, so that it can run before they are imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fedaudit.machinery.errors import InputError

PACKAGES = ("trainers", "attacks", "audits", "reports")
HOME = Path(__file__).resolve().parent.parent.parent


def refuse_shadowed() -> None:
    """Raise InputError if another package or module hides one of PACKAGES; it names the first one, and what to do about
    it."""
    for name in PACKAGES:
        path = _import_path(name)
        if path not in (None, HOME / name):
            raise InputError(
                f"{path} hides FedAudit's own {name} ({HOME / name}): rename it, or call the command fedaudit or "
                "python -P, which look for no packages in the folder of a script or of the call"
            )


def _import_path(name: str) -> Path | None:
    """The folder or file that `import name` would load; None if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is None:  # a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations or ()))).resolve()
    file = Path(spec.origin).resolve()
    return file.parent if file.name == "__init__.py" else file
