"""Figures about who is exposed: ROC curves, scores, clients, classes, losses and rounds.

All tables have the columns `method` and `seed` first, and one seed per method. A figure is None without rows to show;
`methods` fixes the colours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame as Table

from fedaudit.attacks.score_names import signal_name
from fedaudit.reports.evidence import ordered
from fedaudit.reports.figures.drawing import (
    GREY,
    INK,
    LOW,
    USUAL,
    Note,
    Plot,
    Sketch,
    grid,
    legend,
    look_of,
    name_rows,
    panels,
    place_notes,
)
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from fedaudit.terms.populations import ALL_MEMBERS, LAST_ROUND_MEMBERS
from fedaudit.terms.record_kinds import CANARY, HELD_OUT_RECORD, MEMBER, NOVEL_RECORD, TRAINED
from fedaudit.terms.threat_models import THREAT_MODELS

CLASSES = 40  # rows of the figure by class, at most
CLIENTS = 3  # clients whose losses are drawn
ROC = (
    "Both axes are logarithmic: what counts is the left edge, where few non-members are accused. A line above the "
    "diagonal (guessing) is leakage; each line starts at 1/n, the smallest rate that its n non-members can show; bands "
    "are confidence intervals."
)
SCORES = (
    "Higher means more likely a member. Where the filled shape (members) lies to the right of the solid outline "
    "(held-out records), records are exposed.{} Scores of several clients' models are pooled for display only, never "
    "for a number."
)
NOVEL = " Novel objects (dotted) are another distribution and may lie apart without any leak."
ONE_BY_ONE = (
    "One marker per client: its own members against its own held-out records. Each rests on few records and scatters "
    "by itself; a client without a marker cannot be attacked or never took part."
)
GUESSED = "Share of correct guesses about members and held-out records of one class; the grey line is guessing.{}"
LOSSES = (
    "Mean loss of a client's members and of its held-out records, and of its most exposed members one by one: where "
    "the loss of members falls below that of held-out records, the model remembers them."
)
ROUNDS = (
    "The released model after each round: 0.5 is guessing, bars are confidence intervals, hollow markers are the "
    "records that the last round trained on. The last point is the number of the tables; earlier models are asked "
    "about some of the records only, so that their intervals are wider."
)
TRADEOFF = (
    "The same points against the loss on held-out records, joined in the order of the rounds: at one loss (a vertical "
    "line), the method that lies lower leaks less for the same utility; a method that only learns more slowly follows "
    "the other's line."
)


def sketches(tables: Mapping[str, Table], methods: Sequence[str], signals: Sequence[str]) -> list[Sketch]:
    """All figures about `signals`, in reading order, to be drawn later: those without data become none. The one by
    class shows the first signal that has success rates. `tables` needs curves, scores, clients, classes, trajectories
    and rounds."""
    scores, classes, rounds = tables["scores"], _success_rates(tables["classes"], signals), tables["rounds"]
    scores = scores[scores.kind.isin((MEMBER, HELD_OUT_RECORD, NOVEL_RECORD))]
    distribution = SCORES.format(NOVEL if (scores.kind == NOVEL_RECORD).any() else "")
    n = classes.name.nunique()
    beyond = f" Of {n} rows the first {CLASSES} are drawn; all stand in the data." if n > CLASSES else ""
    return [
        Sketch("roc", "ROC curves on logarithmic axes, by threat model and score", ROC, _roc_plot,
               (tables["curves"], methods, signals)),
        *(Sketch(f"scores-{_slug(s)}", f"Histograms of {signal_name(s)}", distribution, _scores_plot,
                 (scores, methods, s)) for s in signals),
        Sketch("clients", "AUROC of each client, by threat model and score", ONE_BY_ONE, _clients_plot,
               (tables["clients"], methods, signals)),
        Sketch("classes", "Success rate of the attack in each class", GUESSED.format(beyond), _classes_plot,
               (classes, methods)),
        Sketch("trajectories", "Loss of members and held-out records", LOSSES, _trajectories_plot,
               (tables["trajectories"], methods)),
        Sketch("rounds", "AUROC of the released model by round", ROUNDS, _rounds_plot, (rounds, methods, signals)),
        Sketch("tradeoff", "AUROC of the released model against its held-out loss", TRADEOFF, _tradeoff_plot,
               (rounds, methods, signals)),
    ]  # fmt: skip


def primary(table: Table) -> Table:
    """The rows about one kind of attacked model (`way`) per method and adversary: the first in `FRESHEST`, an order of
    preference, that reaches at least half as many clients as the one that reaches most."""
    groups = [table.method, table.threat_model]
    reached = table.groupby([*groups, table.way]).client.transform("nunique")
    rank = table.way.map({model: i for i, model in enumerate(FRESHEST)}).fillna(len(FRESHEST))
    rank = rank.where(2 * reached >= reached.groupby(groups).transform("max"), np.inf)
    return table[rank == rank.groupby(groups).transform("min")]


def _slug(signal: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", signal).strip("-").lower()


def _rows_about(table: Table, signals: Sequence[str]) -> tuple[Table, list[str]]:
    """The rows about `signals`, and those signals that have any, in order."""
    kept = table[table.signal.isin(list(signals))]
    return kept, ordered(kept.signal, signals)


def _roc_plot(curves: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    """The figure of ROC curves against held-out records, with its data: a row of panels per signal, a column per
    adversary; None without data."""
    curves, signals = _rows_about(curves[curves.nonmembers == HELD_OUT], signals)
    if curves.empty:
        return None
    curves = curves[curves.fpr >= curves.floor * (1 - 1e-9)]
    threats, bottom = ordered(curves.threat_model, THREAT_MODELS), float(curves.floor.min())
    in_panel = curves.groupby(["threat_model", "signal"], sort=False)
    single = all(part.method.nunique() == len(part.groupby(["method", "way", "population"])) for _, part in in_panel)
    figure, axes = grid(len(signals), len(threats), height=2.9, margins=USUAL)
    for panel, signal, threat in panels(axes, signals, threats):
        part = curves[(curves.signal == signal) & (curves.threat_model == threat)]
        _draw_roc(panel, part, methods, bottom, single=single)
        panel.plot([bottom, 1], [bottom, 1], color=GREY, linewidth=0.9, zorder=1)
        panel.set(xscale="log", yscale="log", xlim=(bottom, 1), ylim=(bottom, 1.08), xlabel="false positive rate")
        panel.set_title(f"{threat}\n{signal_name(signal)}")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
    name_rows(axes, "true positive rate")
    legend(figure)
    return figure, curves


def _draw_roc(panel: Any, curves: Table, methods: Sequence[str], bottom: float, *, single: bool) -> None:
    """Draw the curves of one panel; several models of one method differ in tint, and are named unless every method has
    a `single` one in all panels. Rates below `bottom` are drawn at the lower edge."""
    for method, part in curves.groupby("method", sort=False):
        models = list(dict.fromkeys(part.way))
        for (model, population), line in part.groupby(["way", "population"], sort=False):
            last = population == LAST_ROUND_MEMBERS
            look = look_of(methods, method, hollow=last, tint=models.index(model) + last)
            label = method if single else f"{method}: {model}, {population}"
            tpr, low, high = (line[name].astype(float).clip(bottom, 1) for name in ("tpr", "low", "high"))
            panel.plot(line.fpr, tpr, **look, markevery=8, label=label)
            panel.fill_between(line.fpr, low, high, color=look["color"], alpha=0.1, linewidth=0)


def _scores_plot(scores: Table, methods: Sequence[str], signal: str) -> Plot:
    """The figure of histograms of one signal, with its bins as data: a row of panels per method, a column per
    adversary; None without data."""
    scores = primary(scores[np.isfinite(scores[signal])]) if signal in scores else scores[:0]
    if scores.empty:
        return None
    rows, threats = ordered(scores.method, methods), ordered(scores.threat_model, THREAT_MODELS)
    low, high = scores[signal].quantile([0.002, 0.998])  # the few values beyond count in the outer bins
    edges = np.linspace(low, high if high > low else low + 1, 31)
    figure, axes = grid(len(rows), len(threats), height=1.7, margins=USUAL, sharex=True, sharey=True)
    data = []
    for panel, method, threat in panels(axes, rows, threats):
        part = scores[(scores.method == method) & (scores.threat_model == threat)]
        colour = look_of(methods, method)["color"]
        looks = {
            MEMBER: {"label": f"members ({method})", "color": colour, "alpha": 0.35, "fill": True},
            HELD_OUT_RECORD: {"label": HELD_OUT.heading, "color": INK},
            NOVEL_RECORD: {"label": NOVEL_OBJECTS.heading, "color": GREY, "ls": ":"},
        }
        for kind, look in looks.items():
            values = part[signal][part.kind == kind].clip(edges[0], edges[-1])
            if len(values):
                density = np.histogram(values, edges, density=True)[0]
                panel.stairs(density, edges, linewidth=1.4, **look)
                bins = {"n": len(values), "low": edges[:-1], "high": edges[1:], "density": density}
                data.append(Table({"method": method, "threat_model": threat, "kind": kind, **bins}))
        unit = f", {part.unit.iloc[0]}" if "unit" in part else ""
        title = f"{method}\n{threat}: {', '.join(part.way.unique()) or 'no model'}"
        panel.set(title=title, xlabel=f"{signal_name(signal)}{unit}")
        panel.xaxis.set_major_locator(MaxNLocator(5))
        panel.tick_params(labelbottom=True)
    name_rows(axes, "density")
    legend(figure)
    return figure, pd.concat(data)


def _clients_plot(clients: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    """The figure of AUROC per client, with its data: a row of panels per signal, a column per adversary; None without
    data."""
    clients, signals = _rows_about(clients, signals)
    if clients.empty:
        return None
    drawn, threats = primary(clients), ordered(clients.threat_model, THREAT_MODELS)
    names = sorted(set(clients.client), reverse=True)
    height, margins = 0.35 + 0.19 * len(names), (0.8, 0.3, 0.75, 0.52)
    figure, axes = grid(len(signals), len(threats), height=height, margins=margins, sharex=True, sharey=True)
    for panel, signal, threat in panels(axes, signals, threats):
        part = drawn[(drawn.signal == signal) & (drawn.threat_model == threat)]
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


def _success_rates(classes: Table, signals: Sequence[str]) -> Table:
    """The rows of the first signal that has success rates, sorted by client: the client's mean, then its classes. Two
    columns are added: `name`, the row's name in the figure, and `is_class`, False for a mean."""
    rated = classes[classes.success.notna()]
    rows = rated[rated.signal.isin(ordered(rated.signal, signals)[:1])]
    label = rows.label.astype(str)
    order = rows.assign(label=label, name=rows.client.astype(str) + " · " + label, is_class=label != "mean")
    return order.sort_values(["client", "is_class", "label"], kind="stable")


def _classes_plot(data: Table, methods: Sequence[str]) -> Plot:
    """The figure of success rates by client and class, a panel per adversary, with its data; None without data. Of
    `data`, from `_success_rates`, the first CLASSES names are drawn, and all rows are returned."""
    if data.empty:
        return None
    names, threats = list(dict.fromkeys(data.name))[:CLASSES], ordered(data.threat_model, THREAT_MODELS)
    margins = (0.25 + 0.075 * max(map(len, names)), 0.3, 0.6, 0.52)
    figure, axes = grid(1, len(threats), height=0.3 + 0.21 * len(names), margins=margins, sharex=True, sharey=True)
    for panel, _, threat in panels(axes, [""], threats):
        part = data[(data.threat_model == threat) & data.name.isin(names)]
        for i, (method, dots) in enumerate(part.groupby("method", sort=False)):
            shift = 0.5 * ((i + 0.5) / part.method.nunique() - 0.5)
            at = np.array([names.index(name) for name in dots.name]) + shift
            percent = 100 * dots[["success", "low", "high"]].astype(float)
            bars = [(percent.success - percent.low).clip(lower=0), (percent.high - percent.success).clip(lower=0)]
            look = look_of(methods, str(method)) | {"linestyle": "", "label": str(method)}
            panel.errorbar(percent.success, at, xerr=bars, elinewidth=0.8, capsize=1.5, **look)
        panel.axvline(50, color=GREY, linewidth=1.1)
        panel.set_yticks(range(len(names)), names)
        panel.set(xlim=(-3, 103), ylim=(len(names) - 0.4, -0.6), xlabel="correct guesses (%)")
        panel.set_title(f"{threat}: {', '.join(part.way.unique())}")
    for label in (label for panel in axes[0] for label in panel.get_yticklabels()):
        label.set_weight("bold" if label.get_text().endswith("· mean") else "normal")
    legend(figure)
    return figure, data.drop(columns=["name", "is_class"])


def _trajectories_plot(table: Table, methods: Sequence[str]) -> Plot:
    """The figure of loss by round, with its data: a row of panels per method, a column for each of the first `CLIENTS`
    clients; None without data."""
    clients = list(dict.fromkeys(table.client))[:CLIENTS]
    table = table[table.client.isin(clients)]
    if table.empty:
        return None
    rows = ordered(table.method, methods)
    figure, axes = grid(len(rows), len(clients), height=2.1, margins=LOW, sharex=True, sharey=True)
    for panel, method, client in panels(axes, rows, clients):
        part = table[(table.method == method) & (table.client == client)]
        for _, line in part[part.record != "mean"].groupby("record", sort=False):
            panel.plot(
                line["round"], line.loss, color=GREY, linewidth=0.8, zorder=1, label="most exposed members, one by one"
            )
        for kind, line in part[part.record == "mean"].groupby("kind", sort=False):
            panel.plot(line["round"], line.loss, **_look_of_kind(str(kind), methods, method))
        panel.set(title=f"{method} · {client}", xlabel="rounds completed")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.tick_params(labelbottom=True, labelleft=True)
    name_rows(axes, "loss (nats)")
    legend(figure)
    return figure, table


def _look_of_kind(kind: str, methods: Sequence[str], method: str) -> dict[str, Any]:
    """Matplotlib properties of a kind of records: the method's colour if trained on, else black; canaries with
    points."""
    trained = kind in TRAINED
    colour = look_of(methods, method)["color"] if trained else INK
    marker = "." if CANARY in kind else ""
    return {"color": colour, "marker": marker, "label": f"{kind}, mean ({method})" if trained else f"{kind}, mean"}


def _rounds_plot(rounds: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    """The figure of the released model's AUROC by round, a panel per signal, with its data; None without data."""
    rounds, signals = _rows_about(rounds, signals)
    if rounds.empty:
        return None
    figure, axes = grid(1, len(signals), height=2.8, margins=LOW, sharey=True)
    lines = list(dict.fromkeys(zip(rounds.method, rounds.population, strict=True)))
    for panel, signal in zip(axes[0], signals, strict=True):
        for i, (method, population) in enumerate(lines):
            line = rounds[(rounds.signal == signal) & (rounds.method == method) & (rounds.population == population)]
            ends = [(line.auroc - line.low).clip(lower=0), (line.high - line.auroc).clip(lower=0)]
            at = line["round"] + 0.3 * ((i + 0.5) / len(lines) - 0.5)  # shifted, so that bars do not hide each other
            look = look_of(methods, method, hollow=population != ALL_MEMBERS)
            panel.errorbar(at, line.auroc, ends, elinewidth=0.8, label=f"{method}: {population}", **look)
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="rounds completed")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_rows(axes, "AUROC")
    legend(figure)
    return figure, rounds


def _tradeoff_plot(rounds: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    """The figure of the released model's AUROC against its held-out loss over the rounds, a panel per signal, with its
    data; None without such losses."""
    if "heldout_loss" not in rounds:
        return None
    rounds = rounds[(rounds.population == ALL_MEMBERS) & np.isfinite(rounds.heldout_loss.astype(float))]
    rounds, signals = _rows_about(rounds, signals)
    if rounds.empty:
        return None
    figure, axes = grid(1, len(signals), height=2.8, margins=LOW, sharey=True)
    notes: dict[str, list[Note]] = {signal: [] for signal in signals}
    for panel, signal in zip(axes[0], signals, strict=True):
        for method, line in rounds[rounds.signal == signal].groupby("method", sort=False):
            path = line.sort_values("round")
            panel.plot(path.heldout_loss, path.auroc, **look_of(methods, method), label=method)
            ends = path.iloc[[0, -1]].itertuples()
            notes[signal] += [(f"round {end.round}", end.heldout_loss, end.auroc) for end in ends]
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="held-out loss (nats per token)")
        panel.margins(x=0.15)
    name_rows(axes, "AUROC")
    legend(figure)
    for panel, signal in zip(axes[0], signals, strict=True):
        place_notes(panel, notes[signal])
    return figure, rounds
