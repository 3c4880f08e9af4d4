"""Figures of the bytes sent: by round, and utility against the bytes sent until then."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import MaxNLocator
from pandas import DataFrame as Table

from fedaudit.reports.evidence import ordered
from fedaudit.reports.figures.drawing import GREY, INK, LOW, Plot, grid, legend, look_of, name_rows
from fedaudit.reports.figures.trade_offs import UTILITY

PANELS = 3  # worlds that are drawn, a panel each


def cost_plot(cost: Table, methods: Sequence[str]) -> Plot:
    """The figure of bytes down and up by round, beside FedAvg's, a panel per method, and its data with rounds counted
    from 1; `methods` fixes the colours."""
    rows = ordered(cost.method, methods)
    most = float(cost[["bytes_down", "bytes_up", "fedavg_bytes"]].sum(axis=1).max())
    unit, name = next(
        (u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes")) if most >= 2 * u or u == 1
    )
    figure, axes = grid(1, len(rows), height=2.2, margins=LOW, sharey=True)
    for panel, method in zip(axes[0], rows, strict=True):
        part = cost[cost.method == method]
        at, down, up, whole = part["round"] + 1, part.bytes_down, part.bytes_up, part.fedavg_bytes
        colour, hatched = look_of(methods, method)["color"], {"hatch": "///", "edgecolor": "white", "linewidth": 0}
        panel.bar(at, down / unit, 0.7, color=colour, alpha=0.45, label=f"down ({method})")
        panel.bar(at, up / unit, 0.7, bottom=down / unit, color=colour, label=f"up ({method})", **hatched)
        dash = {"color": INK, "markersize": 12, "markeredgewidth": 1.4, "label": "FedAvg, both ways"}
        panel.plot(at, whole / unit, "_", **dash)
        share = f": {100 * (down + up).sum() / whole.sum():.0f} % of FedAvg's bytes" if whole.sum() else ""
        panel.set(title=f"{method}{share}", xlabel="round")
        panel.set_ylim(0)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_rows(axes, f"{name} per round, all clients")
    legend(figure)
    return figure, cost.assign(round=cost["round"] + 1)


def until_plot(by_round: Table, costs: Table) -> Plot:
    """The figure of utility after each round against all bytes sent until then, and its data: a panel for each of the
    first `PANELS` worlds (tasks with their data), a line per setting; None if no utility was measured by round. `costs`
    has the common utility (`target`), drawn as a line."""
    by_round = by_round[by_round.utility.notna()]
    if by_round.empty:
        return None
    worlds = list(dict.fromkeys(by_round.world))[:PANELS]
    figure, axes = grid(1, len(worlds), height=2.8, margins=LOW)
    for panel, world in zip(axes[0], worlds, strict=True):
        part = by_round[by_round.world == world]
        points = list(dict.fromkeys(part.point))
        for point, line in part.groupby("point", sort=False):
            every = max(1, len(line) // 12)
            panel.plot(line.sent / 1e6, line.utility, **look_of(points, str(point)), markevery=every, label=str(point))
        panel.axhline(float(costs[costs.world == world].target.iloc[0]), color=GREY, linewidth=1.1)
        panel.set(xlabel="MB sent, all clients, both ways", ylabel=UTILITY[part.utility_metric.iloc[0]])
        panel.set_title(world if len(worlds) > 1 else "")
    legend(figure)
    return figure, by_round
