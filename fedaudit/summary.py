"""The findings as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def show(findings: Sequence[dict[str, Any]], attack: str) -> None:
    """Print the AUROC rows against held-out records, and the verdict of each threat model's headline."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = [f for f in findings if f["metric"] == "auroc"]
    seeds = sorted({f["seed"] for f in rows})
    several = len({f["method"] for f in rows}) > 1
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{attack}: members against held-out records of the same clients, seed {seeds[0]}"
    )
    for name in (["method"] if several else []) + ["adversary", "model", "members", "score"]:
        table.add_column(name)
    for name in (f"AUROC [{100 * rows[0]['confidence']:g} %]", "base model", "blind", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for f in rows:
        if f["seed"] != seeds[0] or f["nonmembers"] != "held-out" or not f["headline"]:
            continue
        cells = [f["method"]] if several else []
        cells += [f["threat_model"], f["way"], f["population"], f["signal"], _interval(f["value"], f["low"], f["high"])]
        cells += [_number(f["base_value"]), _number(f["blind_value"]), f["verdict"]]
        table.add_row(*cells)
    console = Console()
    if not console.is_terminal:  # nobody can widen that window: never cut a number
        console = Console(width=150)
    console.print(table)
    if len(seeds) > 1:
        _spread(console, rows, seeds)


def _spread(console: Any, rows: Sequence[dict[str, Any]], seeds: Sequence[int]) -> None:
    from statistics import mean, stdev

    for f in rows:
        if f["seed"] == seeds[0] and f["nonmembers"] == "held-out" and f["headline"]:
            same = [
                g["value"]
                for g in rows
                if all(g[k] == f[k] for k in ("method", "threat_model", "way", "population", "nonmembers", "signal"))
            ]
            if len(same) > 1:
                label = f"{f['method']} {f['threat_model']} {f['way']} {f['population']} {f['signal']}"
                console.print(f"{label}: {mean(same):.3f} over {len(same)} seeds, sd {stdev(same):.3f}")


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _number(x: float | None) -> str:
    return "n/a" if x is None else f"{x:.3f}"
