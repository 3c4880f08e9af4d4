"""The figures about membership, drawn through matplotlib's object API, each with the rows that it shows.

All tables have the columns `method` and `seed` first, with one seed per method.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame as Table

from fedaudit.machinery.score_names import signal_name
from reports.figures.drawing import (
    GREY,
    INK,
    LINES,
    LOW,
    USUAL,
    Each,
    Plot,
    PrintedFigure,
    grid,
    legend,
    look_of,
    name_rows,
    panels,
    printed,
    styled,
)  # fmt: skip

CONFIDENT, UNCERTAIN = "#0b3c5d", "#f3f6f9"  # ends of the entropy scale, low to high
WAYS = ("final", "exact", "newest", "server-fill", "true state", "literal")  # of several, a figure shows the first
THREATS = ("prompt-user", "released-model", "server", "owner")
METRICS = {
    "loss": "loss (nats per token)",
    "bleu4": "BLEU-4",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "exact_match": "exact match (%)",
}
Drawn = Callable[[Table, Sequence[str], Sequence[str]], Plot]  # a table's rows, methods, signals
INSIDE = 4  # so many lines can be named inside a panel without hiding them


def draw(
    tables: Mapping[str, Table], methods: Sequence[str], signals: Sequence[str], *, each: Each = map
) -> dict[str, PrintedFigure | None]:
    """Every figure by name; None where the tables hold no row for it. `signals` are the headline's, in reading
    order."""
    histograms = [(f"scores-{_slug(s)}", f"Histograms of {signal_name(s)}", _scores, "scores", [s]) for s in signals]
    plots: list[tuple[str, str, Drawn, str, Sequence[str]]] = [
        ("roc", "ROC curves on logarithmic axes, by threat model and score", _roc, "curves", signals),
        *histograms,
        ("tokens", "Entropy of each caption token of a member and of a non-member", _tokens, "tokens", signals),
        ("rounds", "AUROC of the released model by round", _rounds, "rounds", signals),
        ("tradeoff", "AUROC of the released model against its held-out loss", _tradeoff, "rounds", signals),
        ("clients", "AUROC of each client, by threat model and score", _clients, "clients", signals),
        ("utility", "Utility by round", _utility, "utility", signals),
    ]
    given = [(name, alt, plot, tables[table], methods, shown) for name, alt, plot, table, shown in plots]
    return dict(zip((name for name, *_ in given), each(_print, given), strict=True))


def cost(table: Table, methods: Sequence[str], *, each: Each = map) -> PrintedFigure | None:
    """The figure of what was sent."""
    job = ("cost", "Bytes sent by round, down and up", _cost, table, methods, ())
    return next(iter(each(_print, [job])))


def _print(job: tuple[str, str, Drawn, Table, Sequence[str], Sequence[str]]) -> PrintedFigure | None:
    name, alt, plot, table, methods, shown = job
    with styled():
        return printed(name, alt, plot(table, methods, shown)) if len(table) else None


def ordered(present: Iterable[str], order: Sequence[str]) -> list[str]:
    """Distinct values: the known ones in their order, then the others as they come."""
    found = list(dict.fromkeys(present))
    return sorted(found, key=lambda value: order.index(value) if value in order else len(order))


def primary(table: Table) -> Table:
    """The rows of the way that figures show: of those that reach at least half of the clients, the freshest model."""
    place = [table.method, table.threat_model]
    reached = table.groupby([*place, table.way]).client.transform("nunique")
    rank = table.way.map({way: i for i, way in enumerate(WAYS)}).fillna(len(WAYS))
    rank = rank.where(2 * reached >= reached.groupby(place).transform("max"), np.inf)
    return table[rank == rank.groupby(place).transform("min")]


def scale(tokens: Table) -> float:
    """Upper end of the entropy scale in nats: the 95th percentile, so that one uncertain token does not darken all
    others."""
    values = tokens[["entropy", "base_entropy"]].to_numpy(float)
    return float(np.nanquantile(values, 0.95)) if np.isfinite(values).any() else 0.0


def shade(entropy: float, top: float) -> tuple[str, str]:
    """Background and ink (hex colours) of a token with this entropy on the scale from 0 to `top` nats."""
    if not np.isfinite(entropy):
        return "#ffffff", INK
    t = min(max(entropy / top, 0.0), 1.0) if top > 0 else 0.0
    ends = [[int(end[i : i + 2], 16) for i in (1, 3, 5)] for end in (CONFIDENT, UNCERTAIN)]
    mixed = "".join(f"{round(a + (b - a) * t):02x}" for a, b in zip(*ends, strict=True))
    return f"#{mixed}", "#ffffff" if t < 0.55 else INK


def _slug(signal: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", signal).strip("-").lower()


def _headline(table: Table, signals: Sequence[str]) -> tuple[Table, list[str]]:
    """The rows of the headline signals, and those signals that have any."""
    kept = table[table.signal.isin(list(signals))]
    return kept, ordered(kept.signal, signals)


def _roc(curves: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    curves, signals = _headline(curves[curves.nonmembers == "held-out"], signals)
    if curves.empty:
        return None
    curves = curves[curves.fpr >= curves.floor * (1 - 1e-9)]
    threats, bottom = ordered(curves.threat_model, THREATS), float(curves.floor.min())
    lines = curves.groupby(["threat_model", "signal"], sort=False)
    most = max(len(part.groupby(["method", "way", "population"])) for _, part in lines)
    plain = all(part.method.nunique() == len(part.groupby(["method", "way", "population"])) for _, part in lines)
    below = 0.17 * most + 0.1 if most > INSIDE and not plain else 0.0
    margins = USUAL if plain else (0.62, 0.62, 0.45, 0.52 + below)
    figure, axes = grid(len(signals), len(threats), height=2.9, margins=margins)
    for panel, signal, threat in panels(axes, signals, threats):
        part = curves[(curves.signal == signal) & (curves.threat_model == threat)]
        _roc_lines(panel, part, methods, bottom, plain=plain)
        panel.plot([bottom, 1], [bottom, 1], color=GREY, linewidth=0.9, zorder=1)
        panel.set(xscale="log", yscale="log", xlim=(bottom, 1), ylim=(bottom, 1.08), xlabel="false positive rate")
        panel.set_title(f"{threat}\n{signal_name(signal)}")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        if below:
            panel.legend(loc="upper left", bbox_to_anchor=(0, -0.45 / 2.9), borderaxespad=0)
        elif not plain:
            panel.legend(loc="lower right")
    name_rows(axes, "true positive rate")
    if plain:
        legend(figure)
    return figure, curves


def _roc_lines(panel: Any, curves: Table, methods: Sequence[str], bottom: float, *, plain: bool) -> None:
    """The lines of one method differ in line style, unless each has one (`plain`); what lies below the lowest rate is
    drawn at the lower edge."""
    for method, own in curves.groupby("method", sort=False):
        for i, ((way, population), line) in enumerate(own.groupby(["way", "population"], sort=False)):
            look = look_of(methods, method, hollow=population == "last-round members") | {
                "linestyle": LINES[i % len(LINES)]
            }
            label = method if plain else f"{method}: {way}, {population}"
            tpr, low, high = (line[name].astype(float).clip(bottom, 1) for name in ("tpr", "low", "high"))
            panel.plot(line.fpr, tpr, **look, markevery=8, label=label)
            panel.fill_between(line.fpr, low, high, color=look["color"], alpha=0.1, linewidth=0)


def _scores(scores: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    signal = signals[0]
    shown = primary(scores[np.isfinite(scores[signal])]) if signal in scores else scores[:0]
    if shown.empty:
        return None
    rows, threats = ordered(shown.method, methods), ordered(shown.threat_model, THREATS)
    low, high = shown[signal].quantile([0.002, 0.998])  # the few beyond are counted at the ends
    edges = np.linspace(low, high if high > low else low + 1, 31)
    figure, axes = grid(len(rows), len(threats), height=1.7, margins=USUAL, sharex=True, sharey=True)
    data = []
    for panel, method, threat in panels(axes, rows, threats):
        part = shown[(shown.method == method) & (shown.threat_model == threat)]
        filled = {
            "label": f"members ({method})",
            "color": look_of(methods, method)["color"],
            "alpha": 0.35,
            "fill": True,
        }
        held_out, novel = (
            {"label": "held-out records", "color": INK},
            {"label": "novel objects", "color": GREY, "ls": ":"},
        )
        for kind, look in {"member": filled, "held-out": held_out, "novel": novel}.items():
            values = part[signal][part.kind == kind].clip(edges[0], edges[-1])
            if len(values):
                density = np.histogram(values, edges, density=True)[0]
                panel.stairs(density, edges, linewidth=1.4, **look)
                bins = {"n": len(values), "low": edges[:-1], "high": edges[1:], "density": density}
                data.append(Table({"method": method, "threat_model": threat, "kind": kind, **bins}))
        panel.set(title=f"{method}\n{threat}: {', '.join(part.way.unique()) or 'no model'}", xlabel=signal_name(signal))
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.tick_params(labelbottom=True)
    name_rows(axes, "density")
    legend(figure)
    return figure, pd.concat(data)


def _tokens(tokens: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    caption = tokens[tokens["slice"] == "caption"]
    if caption.empty:
        return None
    rows, columns, top = ordered(caption.method, methods), ordered(caption.panel, ("member",)), scale(tokens)
    colours = LinearSegmentedColormap.from_list("entropy", [CONFIDENT, UNCERTAIN])
    figure, axes = grid(len(rows), len(columns), height=0.6, margins=(0.75, 0.75, 0.3, 0.9))
    for panel, method, kind in panels(axes, rows, columns):
        part = caption[(caption.method == method) & (caption.panel == kind)]
        values = part[["entropy", "base_entropy"]].to_numpy(float).T
        panel.imshow(values, cmap=colours, vmin=0, vmax=top, aspect="auto")
        small = {"size": min(6.0, 130 / max(1, values.shape[1])), "ha": "center", "va": "center"}
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                panel.text(column, row, f"{value:.1f}", color=shade(value, top)[1], **small)
        words = ["".join(c if c.isprintable() else "·" for c in word) for word in part.token]
        panel.set_xticks(range(len(words)), words, rotation=90, size=7)
        panel.set_yticks([0, 1], ["after", "base"])
        panel.set_title(f"{method} · {kind}")
        panel.grid(False)
    return figure, tokens


def _rounds(rounds: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    rounds, signals = _headline(rounds, signals)
    if rounds.empty:
        return None
    figure, axes = grid(1, len(signals), height=2.8, margins=LOW, sharey=True)
    lines = list(dict.fromkeys(zip(rounds.method, rounds.population, strict=True)))
    for panel, signal in zip(axes[0], signals, strict=True):
        for i, (method, population) in enumerate(lines):
            line = rounds[(rounds.signal == signal) & (rounds.method == method) & (rounds.population == population)]
            ends = [(line.auroc - line.low).clip(lower=0), (line.high - line.auroc).clip(lower=0)]
            at = line["round"] + 0.3 * ((i + 0.5) / len(lines) - 0.5)  # shifted, so that bars do not hide each other
            look = look_of(methods, method, hollow=population != "all members")
            panel.errorbar(at, line.auroc, ends, elinewidth=0.8, label=f"{method}: {population}", **look)
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="rounds completed")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_rows(axes, "AUROC")
    legend(figure)
    return figure, rounds


def _tradeoff(rounds: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    rounds, signals = _headline(rounds[rounds.population == "all members"], signals)
    rounds = rounds[np.isfinite(rounds.heldout_loss.astype(float))]
    if rounds.empty:
        return None
    figure, axes = grid(1, len(signals), height=2.8, margins=LOW, sharey=True)
    for panel, signal in zip(axes[0], signals, strict=True):
        for method, line in rounds[rounds.signal == signal].groupby("method", sort=False):
            path = line.sort_values("round")
            panel.plot(path.heldout_loss, path.auroc, **look_of(methods, method), label=method)
            for end in path.iloc[[0, -1]].itertuples():
                note = {"xytext": (4, 5), "textcoords": "offset points", "size": 7.5}
                panel.annotate(f"round {end.round}", (end.heldout_loss, end.auroc), **note)
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="held-out loss (nats per token)")
        panel.margins(x=0.15)
    name_rows(axes, "AUROC")
    legend(figure)
    return figure, rounds


def _clients(clients: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    clients, signals = _headline(clients, signals)
    if clients.empty:
        return None
    shown, threats = primary(clients), ordered(clients.threat_model, THREATS)
    names = sorted(set(clients.client), reverse=True)
    height, margins = 0.35 + 0.19 * len(names), (0.8, 0.3, 0.75, 0.52)
    figure, axes = grid(len(signals), len(threats), height=height, margins=margins, sharex=True, sharey=True)
    for panel, signal, threat in panels(axes, signals, threats):
        part = shown[(shown.signal == signal) & (shown.threat_model == threat)]
        for i, (method, dots) in enumerate(part.groupby("method", sort=False)):
            at = [names.index(name) + 0.16 * (0.5 - i) for name in dots.client]
            panel.plot(dots.auroc, at, **look_of(methods, method) | {"linestyle": "", "label": method})
        panel.axvline(0.5, color=GREY, linewidth=0.9)
        panel.set_yticks(range(len(names)), names)
        panel.set(xlim=(-0.03, 1.03), ylim=(-0.8, len(names) - 0.2), xlabel="AUROC")
        panel.set_title(f"{threat}: {', '.join(part.way.unique())}\n{signal_name(signal)}")
        panel.tick_params(labelbottom=True)
    legend(figure)
    return figure, clients


def _utility(utility: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    left_out = {"method", "seed", "round", "model", "bleu1", "bleu2", "bleu3"}
    names = [name for name in utility if name not in left_out and utility[name].notna().any()]
    if not names:
        return None
    utility = utility[utility.model != "novel"]  # measured at the ends only: a table shows it
    columns = min(4, len(names))
    figure, axes = grid(math.ceil(len(names) / columns), columns, height=2.2, margins=LOW)
    for panel, name in zip(axes.flat, names, strict=False):
        for (method, model), line in utility.groupby(["method", "model"], sort=False):
            look, asked = look_of(methods, method, hollow=model != "global"), line[line[name].notna()]
            panel.plot(asked["round"] + 1, asked[name], **look, label=f"{method}: {model}")
        panel.set(title=METRICS.get(name, name), xlabel="rounds completed")
        panel.yaxis.set_major_formatter("{x:.3g}")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    legend(figure)
    return figure, utility.assign(rounds_completed=utility["round"] + 1).drop(columns="round")


def _cost(cost: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
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
