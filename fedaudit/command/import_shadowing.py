"""Whether the folders beside this package are what Python finds under their names: many a research repository has a
`trainers/` of its own.

Imports nothing of them, so that it can say so before they are imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fedaudit.machinery.errors import InputError

PACKAGES = ("trainers", "attacks", "audits", "reports")
HOME = Path(__file__).resolve().parent.parent.parent


def refuse_shadowed() -> None:
    """InputError names the first package or module that hides one of ours, and what to do."""
    for name in PACKAGES:
        found = _found(name)
        if found not in (None, HOME / name):
            raise InputError(
                f"{found} hides FedAudit's own {name} ({HOME / name}): rename it, or call the command fedaudit or "
                f"python -P, "
                "which look for no packages in the folder of a script or of the call"
            )


def _found(name: str) -> Path | None:
    """The folder or file that `import name` would take; None if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is None:  # a folder without __init__.py
        return Path(next(iter(spec.submodule_search_locations or ()))).resolve()
    file = Path(spec.origin).resolve()
    return file.parent if file.name == "__init__.py" else file
