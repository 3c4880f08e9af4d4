"""The figures about membership inference on prompts: those of every membership page, classes, training, and leakage
against epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame as Table

from reports.attack_success import with_leakage
from reports.figures import membership as figures
from reports.figures.against_epsilon import PANELS, against_epsilon
from reports.figures.drawing import (
    GREY,
    INK,
    LINES,
    LOW,
    Plot,
    PrintedFigure,
    grid,
    legend,
    look_of,
    name_rows,
    panels,
    printed,
    styled,
)
from reports.inputs import TABLES, joined
from reports.rows import MethodRow, as_printed

CLASSES = 40  # rows of the figure by class
CLIENTS = 3  # panels of the figure of training
CAPTIONS = {
    "roc": "Both axes are logarithmic: what counts is the left edge, where few non-members are accused. A line above "
    "the diagonal (guessing) is "
    "leakage; each line starts at 1/n, the smallest rate that its n non-members can show; bands are confidence "
    "intervals.",
    "scores": "Higher means more likely a member. Where the filled shape (members) lies to the right of the outline "
    "(held-out records), records are "
    "exposed. Scores of several clients' models are pooled for display only, never for a number.",
    "clients": "One marker per client: its own members against its own held-out records. Each rests on few records "
    "and scatters by itself.",
    "leakage-epsilon": "Privacy grows to the left, on a logarithmic axis; what is not noised stands at the right end. "
    "Success is the share of "
    "correct guesses, the mean over classes (DP-FPL, section A.3): an attack that only guesses is right half the time, "
    "and one that is right less "
    "often has learnt nothing either (the grey line is guessing). Bars: one standard deviation over seeds where there "
    "are several, else the "
    "confidence interval.",
    "classes": "Share of correct guesses about members and held-out records of one class; the grey line is guessing.",
    "trajectories": "Mean loss of a client's members and of its held-out records, and of its most exposed members one "
    "by one: where the loss of "
    "members falls below that of held-out records, the prompt remembers them.",
}

Figure = tuple[PrintedFigure, str]  # with its caption


def draw(found: Sequence[MethodRow], shown: Sequence[MethodRow], signal: str | None) -> dict[str, Figure]:
    """Figures of one score, with captions, by name; those without a row are left out. `found` are all runs, `shown`
    those that fit into a figure."""
    titles = [v.title for v in shown]
    tables = {name: joined([replace(v.evidence[0], method=v.title) for v in shown], name) for name in TABLES}
    tables["scores"] = tables["scores"][
        tables["scores"].kind.isin(("member", "held-out"))
    ]  # the only ones that are drawn
    drawn = figures.draw(tables, titles, [signal] if signal else [])
    own: list[tuple[str, str, Callable[[], Plot]]] = [
        ("leakage-epsilon", "Accuracy, and success of the attack, against epsilon", lambda: _against(found, signal)),
        ("classes", "Success rate of the attack in each class", lambda: _classes(tables["classes"], titles, signal)),
        ("trajectories", "Loss of members and held-out records", lambda: _trajectories(tables["trajectories"], titles)),
    ]
    with styled():
        drawn |= {name: printed(name, alt, plot()) for name, alt, plot in own}
    captions = {name: CAPTIONS["scores" if name.startswith("scores-") else name] for name, d in drawn.items() if d}
    captions |= {"classes": captions["classes"] + _beyond(tables["classes"], signal)} if "classes" in captions else {}
    return {name: (drawing, captions[name]) for name, drawing in drawn.items() if drawing is not None}


def _against(found: Sequence[MethodRow], signal: str | None) -> Plot:
    """Accuracy, success rate and AUROC of one variant of each method and epsilon: that of the paper's tables."""
    if signal is None:
        return None
    leaking = [with_leakage(v, signal) for v in as_printed(found)]
    quantities = [q for q in PANELS if any(q in v.scores for v in leaking) and q != "overall"]
    if not {"success", "auroc"} & set(quantities):
        return None
    return against_epsilon(leaking, list(dict.fromkeys(v.method for v in leaking)), quantities)


def _rated(classes: Table, signal: str | None) -> Table:
    """The rates of one score with their names in the figure: of each client the mean, then its classes."""
    rows = classes[(classes.signal == signal) & classes.success.notna()]
    label = rows.label.astype(str)
    order = rows.assign(label=label, name=rows.client.astype(str) + " · " + label, own=label != "mean")
    return order.sort_values(["client", "own", "label"], kind="stable")


def _beyond(classes: Table, signal: str | None) -> str:
    n = _rated(classes, signal).name.nunique()
    return f" Of {n} rows the first {CLASSES} are drawn; all stand in the data." if n > CLASSES else ""


def _classes(classes: Table, methods: Sequence[str], signal: str | None) -> Plot:
    data = _rated(classes, signal)
    if data.empty:
        return None
    names, threats = list(dict.fromkeys(data.name))[:CLASSES], figures.ordered(data.threat_model, figures.THREATS)
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
    return figure, data.drop(columns=["name", "own"])


def _trajectories(table: Table, methods: Sequence[str]) -> Plot:
    clients = list(dict.fromkeys(table.client))[:CLIENTS]
    table = table[table.client.isin(clients)]
    if table.empty:
        return None
    rows = figures.ordered(table.method, methods)
    figure, axes = grid(len(rows), len(clients), height=2.1, margins=LOW, sharex=True, sharey=True)
    for panel, method, client in panels(axes, rows, clients):
        part = table[(table.method == method) & (table.client == client)]
        for _, line in part[part.record != "mean"].groupby("record", sort=False):
            panel.plot(
                line["round"], line.loss, color=GREY, linewidth=0.8, zorder=1, label="most exposed members, one by one"
            )
        for kind, line in part[part.record == "mean"].groupby("kind", sort=False):
            panel.plot(line["round"], line.loss, **_kind(str(kind), methods, method))
        panel.set(title=f"{method} · {client}", xlabel="rounds completed")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.tick_params(labelbottom=True, labelleft=True)
    name_rows(axes, "loss (nats)")
    legend(figure)
    return figure, table


def _kind(kind: str, methods: Sequence[str], method: str) -> dict[str, Any]:
    """Records that were trained on in the run's colour, others in ink; canaries with dots."""
    trained = kind in ("member", "canary")
    colour = look_of(methods, method)["color"] if trained else INK
    line = LINES[2 * ("canary" in kind) + (not trained)]
    return {"color": colour, "linestyle": line, "label": f"{kind}, mean ({method})" if trained else f"{kind}, mean"}
