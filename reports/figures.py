"""The report's figures, drawn through matplotlib's object API, each with the rows that it shows.

All tables have the columns `method` and `seed` first, with one seed per method. A method keeps its colour, marker and line style in every
figure (colours of Okabe and Ito, safe for colour-blind readers); nothing is told by colour alone.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib import style
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame as Table

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
SYMBOLS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "◀", "▶", "⬟")  # the markers, for text
LINES = ("-", "--", "-.", ":")
CONFIDENT, UNCERTAIN = "#0b3c5d", "#f3f6f9"  # ends of the entropy scale, low to high
INK, GREY = "#1c2733", "#8a94a0"
WAYS = ("final", "exact", "newest", "server-fill", "true state", "literal")  # of several, a figure shows the first
THREATS = ("released-model", "server", "owner")
NAMES = {
    "renyi": "MaxRényi",
    "mink": "Min-K",
    "minkpp": "Min-K++",
    "modrenyi": "modified Rényi",
    "gap": "probability gap",
    "zlib": "zlib ratio",
    "loss-base": "base-calibrated loss",
}
METRICS = {
    "loss": "loss (nats per token)",
    "bleu4": "BLEU-4",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "exact_match": "exact match (%)",
}
INSIDE = 4  # so many lines can be named inside a panel without hiding them
WIDTH = 11.0  # inches; 1056 CSS pixels

Margins = tuple[
    float, float, float, float
]  # left, between columns, top (with the legend's line and the title), bottom; inches
USUAL, LOW = (0.62, 0.62, 0.75, 0.52), (0.62, 0.62, 0.6, 0.52)  # titles of two lines and of one
_FONT = "'DejaVu Sans', sans-serif"  # what matplotlib measures with; wider than what browsers put in its place
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedaudit",  # ids from the content, not from a clock
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a dollar sign in a caption is a dollar sign
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # a fixed place: looking for one takes a tenth of the time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True, eq=False)
class Drawing:
    """A printed figure: its name in the files, what it shows for readers who cannot see it, and the rows behind it."""

    name: str
    alt: str
    svg: bytes
    pdf: bytes
    data: Table

    @property
    def inline(self) -> Markup:
        """The SVG as an element of a page: no prolog, no fixed size, no ids that another figure has."""
        text = self.svg.decode()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", text).replace("xlink:href", "href")
        view = re.findall(r'viewBox="[^"]*"', text)[0]
        root = f'<svg {view} role="img" aria-label="{escape(self.alt)}">'
        return Markup(re.sub(r"<svg[^>]*>", lambda _: root, text, count=1))


Plot = tuple[Figure, Table] | None  # None: the table holds no row that this figure shows


def draw(tables: Mapping[str, Table], methods: Sequence[str], signals: Sequence[str]) -> dict[str, Drawing | None]:
    """Every figure by name; None where the tables hold no row for it. `signals` are the headline's, in reading order."""
    histograms = [(f"scores-{_slug(s)}", f"Histograms of {signal_name(s)}", _scores, "scores", [s]) for s in signals]
    plots: list[tuple[str, str, Callable[..., Plot], str, Sequence[str]]] = [
        ("roc", "ROC curves on logarithmic axes, by threat model and score", _roc, "curves", signals),
        *histograms,
        ("tokens", "Entropy of each caption token of a member and of a non-member", _tokens, "tokens", signals),
        ("rounds", "AUROC of the released model by round", _rounds, "rounds", signals),
        ("tradeoff", "AUROC of the released model against its held-out loss", _tradeoff, "rounds", signals),
        ("clients", "AUROC of each client, by threat model and score", _clients, "clients", signals),
        ("utility", "Utility by round", _utility, "utility", signals),
        ("cost", "Bytes sent by round, down and up", _cost, "cost", signals),
    ]
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # readers have fonts that this machine lacks
        return {
            name: _print(name, alt, plot(tables[table], methods, shown)) if len(tables[table]) else None
            for name, alt, plot, table, shown in plots
        }


def parts(signal: str) -> tuple[str, int | None, str]:
    """Name with order, K in percent or None, and token slice of "renyi/2/10/caption", "mink/20/caption", "loss/caption"."""
    kind, *rest = signal.split("/")
    share = int(rest.pop(-2)) if kind in ("renyi", "mink", "minkpp") and len(rest) > 1 else None
    piece = rest.pop() if rest else ""
    return ", order ".join([NAMES.get(kind, kind), *rest]), share, piece


def signal_name(signal: str) -> str:
    """A signal's name for readers: "renyi/2/10/caption" is "MaxRényi, order 2, K 10 %, caption"."""
    name, share, piece = parts(signal)
    return name + (f", K {share} %" if share is not None else "") + (f", {piece}" if piece else "")


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
    """Upper end of the entropy scale in nats: the 95th percentile, so that one uncertain token does not darken all others."""
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


def _print(name: str, alt: str, plot: Plot) -> Drawing | None:
    """As SVG and PDF, without dates."""
    if plot is None:
        return None
    svg, pdf = io.BytesIO(), io.BytesIO()
    about = {"Creator": None, "Title": alt}
    plot[0].savefig(svg, format="svg", metadata={**about, "Date": None, "Format": None, "Type": None})
    plot[0].savefig(pdf, format="pdf", metadata={**about, "CreationDate": None, "Producer": None})
    generic = svg.getvalue().replace(_FONT.encode(), b"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif")
    generic = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b"?", generic)  # XML has no such characters
    return Drawing(name, alt, generic, pdf.getvalue(), plot[1])


def _slug(signal: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", signal).strip("-").lower()


def _grid(rows: int, columns: int, *, height: float, margins: Margins, **shared: Any) -> tuple[Figure, Any]:
    """A figure of page width with panels `height` inches high. Fixed margins (inches) are quick and repeatable."""
    left, gap, top, bottom = margins
    between = bottom + 0.46  # a panel's axis below and the next one's title, two lines
    total = top + rows * height + (rows - 1) * between + bottom
    width = (WIDTH - left - 0.12 - (columns - 1) * gap) / columns
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    edges = {"left": left / WIDTH, "right": 1 - 0.12 / WIDTH, "top": 1 - top / total, "bottom": bottom / total}
    figure.subplots_adjust(**edges, wspace=gap / width, hspace=between / height)
    return figure, axes


def _look(methods: Sequence[str], method: str, *, hollow: bool = False) -> dict[str, Any]:
    """Colour, marker and line style of a method."""
    i = list(methods).index(method)
    colour = COLOURS[i % len(COLOURS)]
    look = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
    return look | {"markerfacecolor": "white" if hollow else colour}


def _legend(figure: Figure) -> None:
    """One legend for all panels, in lines above them; the figure grows where one line is too short."""
    pairs = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in figure.axes]
    unique = {label: handle for pair in pairs for handle, label in pair}
    start = figure.axes[0].get_position().x0
    widest = max(
        (0.062 * len(label) + 0.6 for label in unique), default=1
    )  # inches: letters, and the sample before them
    columns = min(len(unique) or 1, max(1, int((1 - start) * WIDTH / widest)))
    _grow(figure, 0.18 * (math.ceil(len(unique) / columns) - 1))
    corner = (start, 1 - 0.02 / figure.get_figheight())
    place = {"loc": "upper left", "bbox_to_anchor": corner, "borderaxespad": 0, "borderpad": 0}
    figure.legend(unique.values(), unique.keys(), ncols=columns, **place)


def _grow(figure: Figure, inches: float) -> None:
    """Make a figure higher at the top; its panels keep their size."""
    old, edges = figure.get_figheight(), figure.subplotpars
    figure.set_figheight(old + inches)
    figure.subplots_adjust(top=edges.top * old / (old + inches), bottom=edges.bottom * old / (old + inches))


def _name_rows(axes: Any, label: str) -> None:
    for row in axes:
        row[0].set_ylabel(label)


def _panels(axes: Any, down: Sequence[str], across: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    for row, a in zip(axes, down, strict=True):
        for panel, b in zip(row, across, strict=True):
            yield panel, a, b


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
    below = 0.17 * most + 0.1 if most > INSIDE else 0.0
    figure, axes = _grid(len(signals), len(threats), height=2.9, margins=(0.62, 0.62, 0.45, 0.52 + below))
    for panel, signal, threat in _panels(axes, signals, threats):
        _roc_lines(panel, curves[(curves.signal == signal) & (curves.threat_model == threat)], methods, bottom)
        panel.plot([bottom, 1], [bottom, 1], color=GREY, linewidth=0.9, zorder=1)
        panel.set(xscale="log", yscale="log", xlim=(bottom, 1), ylim=(bottom, 1.08), xlabel="false positive rate")
        panel.set_title(f"{threat}\n{signal_name(signal)}")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        if below:
            panel.legend(loc="upper left", bbox_to_anchor=(0, -0.45 / 2.9), borderaxespad=0)
        else:
            panel.legend(loc="lower right")
    _name_rows(axes, "true positive rate")
    return figure, curves


def _roc_lines(panel: Any, curves: Table, methods: Sequence[str], bottom: float) -> None:
    """The lines of one method differ in line style; what lies below the lowest rate is drawn at the lower edge."""
    for method, own in curves.groupby("method", sort=False):
        for i, ((way, population), line) in enumerate(own.groupby(["way", "population"], sort=False)):
            look = _look(methods, method, hollow=population == "last-round members") | {
                "linestyle": LINES[i % len(LINES)]
            }
            tpr, low, high = (line[name].astype(float).clip(bottom, 1) for name in ("tpr", "low", "high"))
            panel.plot(line.fpr, tpr, **look, markevery=8, label=f"{method}: {way}, {population}")
            panel.fill_between(line.fpr, low, high, color=look["color"], alpha=0.1, linewidth=0)


def _scores(scores: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    signal = signals[0]
    shown = primary(scores[np.isfinite(scores[signal])]) if signal in scores else scores[:0]
    if shown.empty:
        return None
    rows, threats = ordered(shown.method, methods), ordered(shown.threat_model, THREATS)
    low, high = shown[signal].quantile([0.002, 0.998])  # the few beyond are counted at the ends
    edges = np.linspace(low, high if high > low else low + 1, 31)
    figure, axes = _grid(len(rows), len(threats), height=1.7, margins=USUAL, sharex=True, sharey=True)
    data = []
    for panel, method, threat in _panels(axes, rows, threats):
        part = shown[(shown.method == method) & (shown.threat_model == threat)]
        filled = {"label": f"members ({method})", "color": _look(methods, method)["color"], "alpha": 0.35, "fill": True}
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
    _name_rows(axes, "density")
    _legend(figure)
    return figure, pd.concat(data)


def _tokens(tokens: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    caption = tokens[tokens["slice"] == "caption"]
    if caption.empty:
        return None
    rows, columns, top = ordered(caption.method, methods), ordered(caption.panel, ("member",)), scale(tokens)
    colours = LinearSegmentedColormap.from_list("entropy", [CONFIDENT, UNCERTAIN])
    figure, axes = _grid(len(rows), len(columns), height=0.6, margins=(0.75, 0.75, 0.3, 0.9))
    for panel, method, kind in _panels(axes, rows, columns):
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
    figure, axes = _grid(1, len(signals), height=2.8, margins=LOW, sharey=True)
    lines = list(dict.fromkeys(zip(rounds.method, rounds.population, strict=True)))
    for panel, signal in zip(axes[0], signals, strict=True):
        for i, (method, population) in enumerate(lines):
            line = rounds[(rounds.signal == signal) & (rounds.method == method) & (rounds.population == population)]
            ends = [(line.auroc - line.low).clip(lower=0), (line.high - line.auroc).clip(lower=0)]
            at = line["round"] + 0.3 * ((i + 0.5) / len(lines) - 0.5)  # shifted, so that bars do not hide each other
            look = _look(methods, method, hollow=population != "all members")
            panel.errorbar(at, line.auroc, ends, elinewidth=0.8, label=f"{method}: {population}", **look)
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="rounds completed")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name_rows(axes, "AUROC")
    _legend(figure)
    return figure, rounds


def _tradeoff(rounds: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    rounds, signals = _headline(rounds[rounds.population == "all members"], signals)
    rounds = rounds[np.isfinite(rounds.heldout_loss.astype(float))]
    if rounds.empty:
        return None
    figure, axes = _grid(1, len(signals), height=2.8, margins=LOW, sharey=True)
    for panel, signal in zip(axes[0], signals, strict=True):
        for method, line in rounds[rounds.signal == signal].groupby("method", sort=False):
            path = line.sort_values("round")
            panel.plot(path.heldout_loss, path.auroc, **_look(methods, method), label=method)
            for end in path.iloc[[0, -1]].itertuples():
                note = {"xytext": (4, 5), "textcoords": "offset points", "size": 7.5}
                panel.annotate(f"round {end.round}", (end.heldout_loss, end.auroc), **note)
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="held-out loss (nats per token)")
        panel.margins(x=0.15)
    _name_rows(axes, "AUROC")
    _legend(figure)
    return figure, rounds


def _clients(clients: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    clients, signals = _headline(clients, signals)
    if clients.empty:
        return None
    shown, threats = primary(clients), ordered(clients.threat_model, THREATS)
    names = sorted(set(clients.client), reverse=True)
    height, margins = 0.35 + 0.19 * len(names), (0.8, 0.3, 0.75, 0.52)
    figure, axes = _grid(len(signals), len(threats), height=height, margins=margins, sharex=True, sharey=True)
    for panel, signal, threat in _panels(axes, signals, threats):
        part = shown[(shown.signal == signal) & (shown.threat_model == threat)]
        for i, (method, dots) in enumerate(part.groupby("method", sort=False)):
            at = [names.index(name) + 0.16 * (0.5 - i) for name in dots.client]
            panel.plot(dots.auroc, at, **_look(methods, method) | {"linestyle": "", "label": method})
        panel.axvline(0.5, color=GREY, linewidth=0.9)
        panel.set_yticks(range(len(names)), names)
        panel.set(xlim=(-0.03, 1.03), ylim=(-0.8, len(names) - 0.2), xlabel="AUROC")
        panel.set_title(f"{threat}: {', '.join(part.way.unique())}\n{signal_name(signal)}")
        panel.tick_params(labelbottom=True)
    _legend(figure)
    return figure, clients


def _utility(utility: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    left_out = {"method", "seed", "round", "model", "bleu1", "bleu2", "bleu3"}
    names = [name for name in utility if name not in left_out and utility[name].notna().any()]
    if not names:
        return None
    utility = utility[utility.model != "novel"]  # measured at the ends only: a table shows it
    columns = min(4, len(names))
    figure, axes = _grid(math.ceil(len(names) / columns), columns, height=2.2, margins=LOW)
    for panel, name in zip(axes.flat, names, strict=False):
        for (method, model), line in utility.groupby(["method", "model"], sort=False):
            look = _look(methods, method, hollow=model != "global")
            panel.plot(line["round"] + 1, line[name], **look, label=f"{method}: {model}")
        panel.set(title=METRICS.get(name, name), xlabel="rounds completed")
        panel.yaxis.set_major_formatter("{x:.3g}")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    _legend(figure)
    return figure, utility.assign(rounds_completed=utility["round"] + 1).drop(columns="round")


def _cost(cost: Table, methods: Sequence[str], signals: Sequence[str]) -> Plot:
    rows = ordered(cost.method, methods)
    most = float(cost[["bytes_down", "bytes_up", "fedavg_bytes"]].sum(axis=1).max())
    unit, name = next(
        (u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes")) if most >= 2 * u or u == 1
    )
    figure, axes = _grid(1, len(rows), height=2.2, margins=LOW, sharey=True)
    for panel, method in zip(axes[0], rows, strict=True):
        part = cost[cost.method == method]
        at, down, up, whole = part["round"] + 1, part.bytes_down, part.bytes_up, part.fedavg_bytes
        colour, hatched = _look(methods, method)["color"], {"hatch": "///", "edgecolor": "white", "linewidth": 0}
        panel.bar(at, down / unit, 0.7, color=colour, alpha=0.45, label=f"down ({method})")
        panel.bar(at, up / unit, 0.7, bottom=down / unit, color=colour, label=f"up ({method})", **hatched)
        dash = {"color": INK, "markersize": 12, "markeredgewidth": 1.4, "label": "FedAvg, both ways"}
        panel.plot(at, whole / unit, "_", **dash)
        share = f": {100 * (down + up).sum() / whole.sum():.0f} % of FedAvg's bytes" if whole.sum() else ""
        panel.set(title=f"{method}{share}", xlabel="round")
        panel.set_ylim(0)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name_rows(axes, f"{name} per round, all clients")
    _legend(figure)
    return figure, cost.assign(round=cost["round"] + 1)
