"""The table of runs that stands beside the findings: what each of them was made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reports.evidence import Evidence


def runs(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    """A row per run: schema, run, method, task and seed as in its findings, its attacks, and every entry of the
    configuration by its path (`schedule.rounds`, `method.rho`, `versions.torch`). A run under two labels has the row of
    the first."""
    found: dict[str, dict[str, Any]] = {}
    for e in evidence:
        names = {name: e.findings[0][name] for name in ("schema", "run", "method", "task", "seed")}
        found.setdefault(e.key, names | {"attacks": e.attack} | entries(e.setting))
    return list(found.values())


def entries(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The entries of a nested configuration by their path."""
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= entries(inner, f"{prefix}{name}.") if isinstance(inner, dict) else {f"{prefix}{name}": inner}
    return found
