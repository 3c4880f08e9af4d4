"""The table of runs (runs.csv and runs.json): the configuration, seeds and versions of every run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedaudit.reports.evidence import Evidence


def runs(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    """One row {column: value} per run: schema, run, method, task and seed as in its findings, `attacks`, and every
    entry of the configuration by dotted path (`schedule.rounds`, `method.rho`, `versions.torch`). Of a run that comes
    under two labels only the first is kept."""
    row_by_run: dict[str, dict[str, Any]] = {}
    for e in evidence:
        names = {name: e.findings[0][name] for name in ("schema", "run", "method", "task", "seed")}
        row_by_run.setdefault(e.key, names | {"attacks": e.attack} | entries(e.setting))
    return list(row_by_run.values())


def entries(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary flattened: values by dotted path. `prefix` is put before every path."""
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= entries(inner, f"{prefix}{name}.") if isinstance(inner, dict) else {f"{prefix}{name}": inner}
    return flat
