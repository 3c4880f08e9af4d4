"""The report's figures, drawn through matplotlib's object API, each with the rows that it shows.

All tables have a column `method` first, and one seed per method. A method keeps its colour, marker and line style in every
figure (colours of Okabe and Ito, safe for colour-blind readers); nothing is told by colour alone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib import style
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
METRICS = {"loss": "loss (nats per token)", "bleu4": "BLEU-4", "rouge_l": "ROUGE-L", "cider": "CIDEr"}
WIDTH = 11.0  # inches; 1056 CSS pixels
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
    """A figure with its name in the files, what it shows (for readers who cannot see it), how to read it, and its data."""

    name: str
    alt: str
    caption: str
    svg: bytes
    pdf: bytes
    data: pd.DataFrame

    @property
    def inline(self) -> Markup:
        """The SVG as an element of a page: no prolog, no fixed size, no ids or names that another figure has."""
        text = self.svg.decode()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", text)
        view = re.search(r'viewBox="[^"]*"', text)
        assert view is not None
        label = f'<svg {view[0]} role="img" aria-label="{escape(self.alt)}">'
        return Markup(re.sub(r"<svg[^>]*>", lambda _: label, text, count=1).replace("xlink:href", "href"))


class Plot(NamedTuple):
    """A figure before it is printed; the fields are those of `Drawing`."""

    figure: Figure
    data: pd.DataFrame
    alt: str
    caption: str


def draw(
    tables: Mapping[str, pd.DataFrame], methods: Sequence[str], signals: Sequence[str]
) -> dict[str, Drawing | None]:
    """Every figure by name; None where the tables hold no row for it. `signals` are the headline's, in reading order."""
    plots: list[tuple[str, Callable[..., Plot | None], str, Sequence[str]]] = [
        ("roc", _roc, "curves", signals),
        *((f"scores-{_slug(signal)}", _scores, "scores", [signal]) for signal in signals),
        ("tokens", _tokens, "tokens", signals),
        ("rounds", _rounds, "rounds", signals),
        ("tradeoff", _tradeoff, "rounds", signals),
        ("clients", _clients, "clients", signals),
        ("utility", _utility, "utility", signals),
        ("cost", _cost, "cost", signals),
    ]
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from"
        )  # browsers have fonts that this machine lacks
        return {
            name: _print(name, plot(tables[table], methods, shown)) if len(tables[table]) else None
            for name, plot, table, shown in plots
        }


def parts(signal: str) -> tuple[str, int | None, str]:
    """Kind with order, K in percent (None without one) and token slice of a signal: "renyi/2/10/caption", "mink/20/caption", "loss/caption"."""
    kind, *rest = signal.split("/")
    share = int(rest.pop(-2)) if kind in ("renyi", "mink", "minkpp") and len(rest) > 1 else None
    piece = rest.pop() if rest else ""
    return ", order ".join([NAMES.get(kind, kind), *rest]), share, piece


def signal_name(signal: str) -> str:
    """A signal's name for readers: "renyi/2/10/caption" is "MaxRényi, order 2, K 10 %, caption"."""
    name, share, piece = parts(signal)
    return name + (f", K {share} %" if share is not None else "") + (f", {piece}" if piece else "")


def scale(tokens: pd.DataFrame) -> float:
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


def primary(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the way that figures show: for each method and threat model the freshest model that there is."""
    rank = table.way.map({way: i for i, way in enumerate(WAYS)}).fillna(len(WAYS))
    return table[rank == rank.groupby([table.method, table.threat_model]).transform("min")]


def _print(name: str, plot: Plot | None) -> Drawing | None:
    """As SVG and PDF, without dates."""
    if plot is None:
        return None
    svg, pdf = io.BytesIO(), io.BytesIO()
    about = {"Creator": None, "Title": plot.alt}
    plot.figure.savefig(svg, format="svg", metadata={**about, "Date": None, "Format": None, "Type": None})
    plot.figure.savefig(pdf, format="pdf", metadata={**about, "CreationDate": None, "Producer": None})
    generic = svg.getvalue().replace(_FONT.encode(), b"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif")
    return Drawing(name, plot.alt, plot.caption, generic, pdf.getvalue(), plot.data)


def _slug(signal: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", signal).strip("-").lower()


def _grid(
    rows: int,
    columns: int,
    *,
    height: float,
    left: float = 0.62,
    gap: float = 0.62,
    top: float = 0.75,
    bottom: float = 0.52,
    **shared: Any,
) -> tuple[Figure, Any]:
    """A figure of page width with panels `height` inches high; margins are fixed in inches, which is quick and repeatable.

    The space at the top holds the legend's line and two lines of title.
    """
    between = bottom + 0.46
    total = top + rows * height + (rows - 1) * between + bottom
    width = (WIDTH - left - 0.12 - (columns - 1) * gap) / columns
    figure = Figure(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    edges = {"left": left / WIDTH, "right": 1 - 0.12 / WIDTH, "top": 1 - top / total, "bottom": bottom / total}
    figure.subplots_adjust(**edges, wspace=gap / width, hspace=between / height)
    return Plot(figure, axes)


def _look(methods: Sequence[str], method: str) -> dict[str, Any]:
    """Colour, marker and line style of a method."""
    i = list(methods).index(method)
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}


def _legend(figure: Figure) -> None:
    """One legend for all panels, in a line above them."""
    pairs = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in figure.axes]
    unique = {label: handle for pair in pairs for handle, label in pair}
    height = figure.get_figheight()
    place = {"loc": "upper left", "bbox_to_anchor": (figure.axes[0].get_position().x0, 1 - 0.02 / height)}
    figure.legend(unique.values(), unique.keys(), **place, ncols=max(1, len(unique)), borderaxespad=0, borderpad=0)


def _label_rows(axes: Any, label: str) -> None:
    for row in axes:
        row[0].set_ylabel(label)


def _hollow(yes: bool) -> dict[str, Any]:
    return {"markerfacecolor": "white"} if yes else {}


def _panels(axes: Any, down: Sequence[str], across: Sequence[str]) -> Iterator[tuple[Any, str, str]]:
    for row, a in zip(axes, down, strict=True):
        for panel, b in zip(row, across, strict=True):
            yield panel, a, b


def ordered(present: Iterable[str], order: Sequence[str]) -> list[str]:
    """Distinct values: the known ones in their order, then the others as they come."""
    found = list(dict.fromkeys(present))
    return sorted(found, key=lambda value: order.index(value) if value in order else len(order))


def _headline(table: pd.DataFrame, signals: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The rows of the headline signals, and those signals that have any."""
    kept = table[table.signal.isin(list(signals))]
    return kept, ordered(kept.signal, signals)


def _roc(curves: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    curves, signals = _headline(curves[curves.nonmembers == "held-out"], signals)
    if curves.empty:
        return None
    curves = curves[curves.fpr >= curves.floor * (1 - 1e-9)]
    threats, bottom = ordered(curves.threat_model, THREATS), float(curves.floor.min())
    figure, axes = _grid(len(signals), len(threats), height=2.9, top=0.45)
    for panel, signal, threat in _panels(axes, signals, threats):
        shown = curves[(curves.signal == signal) & (curves.threat_model == threat)]
        for (method, way, population), line in shown.groupby(["method", "way", "population"], sort=False):
            nth = list(
                dict.fromkeys(zip(*(shown[shown.method == method][c] for c in ("way", "population")), strict=True))
            )
            look = _look(methods, method) | {"linestyle": LINES[nth.index((way, population)) % len(LINES)]}
            tpr, low, high = (line[name].clip(bottom, 1) for name in ("tpr", "low", "high"))
            panel.plot(
                line.fpr,
                tpr,
                **look,
                **_hollow(population == "last-round members"),
                markevery=8,
                label=f"{method}: {way}, {population}",
            )
            panel.fill_between(line.fpr, low, high, color=look["color"], alpha=0.1, linewidth=0)
        panel.plot([bottom, 1], [bottom, 1], color=GREY, linewidth=0.9, zorder=1)
        panel.set(
            xscale="log", yscale="log", xlim=(bottom, 1), ylim=(bottom, 1.08), title=f"{threat}\n{signal_name(signal)}"
        )
        panel.set_xlabel("false positive rate")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.legend(loc="lower right")
    _label_rows(axes, "true positive rate")
    caption = (
        "Both axes are logarithmic: what counts is the left edge, where few non-members are accused. A line above the diagonal (guessing) is "
        "leakage; each line starts at 1/n, the smallest rate that its n non-members can show; bands are confidence intervals."
    )
    return Plot(figure, curves, "ROC curves on logarithmic axes for each threat model and headline signal", caption)


def _scores(scores: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    signal = signals[0]
    if signal not in scores or scores[signal].notna().sum() == 0:
        return None
    shown = primary(scores[np.isfinite(scores[signal])])
    rows = [m for m in methods if m in set(shown.method)]
    threats = ordered(shown.threat_model, THREATS)
    edges = np.linspace(*shown[signal].quantile([0.002, 0.998]), 31)
    edges = edges if edges[-1] > edges[0] else edges[0] + np.linspace(-0.5, 0.5, 31)
    figure, axes = _grid(len(rows), len(threats), height=1.7, sharex=True, sharey=True)
    data = []
    for panel, method, threat in _panels(axes, rows, threats):
        part = shown[(shown.method == method) & (shown.threat_model == threat)]
        member = {"color": _look(methods, method)["color"], "alpha": 0.35, "fill": True}
        looks = {"member": member, "held-out": {"color": INK}, "novel": {"color": GREY, "linestyle": ":"}}
        names = {"member": f"members ({method})", "held-out": "held-out records", "novel": "novel objects"}
        for kind, look in looks.items():
            values = part[signal][part.kind == kind].clip(edges[0], edges[-1])
            if len(values):
                density = np.histogram(values, edges, density=True)[0]
                panel.stairs(density, edges, label=names[kind], linewidth=1.4, **look)
                where = {
                    "method": method,
                    "threat_model": threat,
                    "kind": kind,
                    "n": len(values),
                    "low": edges[:-1],
                    "high": edges[1:],
                }
                data.append(pd.DataFrame({**where, "density": density}))
        panel.set(title=f"{method}\n{threat}: {', '.join(part.way.unique()) or 'no model'}", xlabel=signal_name(signal))
        panel.tick_params(labelbottom=True)
    _label_rows(axes, "density")
    _legend(figure)
    caption = (
        f"Scores by {signal_name(signal)}; higher means more likely a member. Where the filled shape (members) lies to the right of the "
        "solid outline (held-out records), records are exposed; novel objects (dotted) are another distribution and may lie apart "
        "without any leak. Rows of several clients' models are pooled for display only, never for a number."
    )
    return Plot(
        figure, pd.concat(data), f"Histograms of {signal_name(signal)} for members, held-out and novel records", caption
    )


def _tokens(tokens: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    caption = tokens[tokens["slice"] == "caption"]
    if caption.empty:
        return None
    rows, columns = [m for m in methods if m in set(caption.method)], ordered(caption.panel, ("member", "non-member"))
    top = scale(tokens)
    colours = LinearSegmentedColormap.from_list("entropy", [CONFIDENT, UNCERTAIN])
    figure, axes = _grid(len(rows), len(columns), height=0.6, left=0.75, gap=0.75, top=0.3, bottom=0.9)
    for panel, method, kind in _panels(axes, rows, columns):
        part = caption[(caption.method == method) & (caption.panel == kind)]
        values = part[["entropy", "base_entropy"]].to_numpy(float).T
        panel.imshow(values, cmap=colours, vmin=0, vmax=top, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            size = min(6.0, 130 / max(1, values.shape[1]))
            panel.text(column, row, _short(value), color=shade(value, top)[1], size=size, ha="center", va="center")
        words = ["".join(c if c.isprintable() else "·" for c in word) for word in part.token]
        panel.set_xticks(range(len(words)), words, rotation=90, size=7)
        panel.set_yticks([0, 1], ["after", "base"])
        panel.set_title(f"{method} · {kind}")
        panel.grid(False)
    return Plot(
        figure,
        tokens,
        "Entropy of every caption token of a member and a non-member",
        "Rényi-2 entropy (nats) of each caption token.",
    )


def _short(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "n/a"


def _rounds(rounds: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    rounds, signals = _headline(rounds, signals)
    if rounds.empty:
        return None
    figure, axes = _grid(1, len(signals), height=2.8, top=0.6, sharey=True)
    lines = list(dict.fromkeys(zip(rounds.method, rounds.population, strict=True)))
    for panel, signal in zip(axes[0], signals, strict=True):
        for i, (method, population) in enumerate(lines):
            line = rounds[(rounds.signal == signal) & (rounds.method == method) & (rounds.population == population)]
            ends = [(line.auroc - line.low).clip(lower=0), (line.high - line.auroc).clip(lower=0)]
            shift = 0.3 * ((i + 0.5) / len(lines) - 0.5)  # so that bars do not hide each other
            look = (
                _look(methods, method)
                | _hollow(population != "all members")
                | {"elinewidth": 0.8, "label": f"{method}: {population}"}
            )
            panel.errorbar(line["round"] + shift, line.auroc, ends, **look)
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="rounds completed")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _label_rows(axes, "AUROC")
    _legend(figure)
    caption = (
        "The released model after each round, on a subsample of the records: 0.5 is guessing, bars are confidence intervals, hollow markers "
        "are the records that the last round trained on."
    )
    return Plot(figure, rounds, "AUROC of the released model by round", caption)


def _tradeoff(rounds: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    rounds, signals = _headline(rounds[rounds.population == "all members"], signals)
    rounds = rounds[np.isfinite(rounds.heldout_loss.astype(float))]
    if rounds.empty:
        return None
    figure, axes = _grid(1, len(signals), height=2.8, top=0.6, sharey=True)
    for panel, signal in zip(axes[0], signals, strict=True):
        for method, line in rounds[rounds.signal == signal].groupby("method", sort=False):
            line = line.sort_values("round")
            panel.plot(line.heldout_loss, line.auroc, **_look(methods, method), label=method)
            for _, end in line.iloc[[0, -1]].iterrows():
                panel.annotate(
                    f"round {end['round']}", (end.heldout_loss, end.auroc), (4, 5), textcoords="offset points", size=7.5
                )
        panel.axhline(0.5, color=GREY, linewidth=0.9)
        panel.set(title=signal_name(signal), xlabel="held-out loss (nats per token)")
        panel.margins(x=0.15)
    _label_rows(axes, "AUROC")
    _legend(figure)
    caption = (
        "The same points against the loss on held-out records, joined in the order of the rounds: at one loss (a vertical line), the "
        "method that lies lower leaks less for the same utility; a method that only learns more slowly follows the other's line."
    )
    return Plot(figure, rounds, "AUROC of the released model against its held-out loss", caption)


def _clients(clients: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    clients, signals = _headline(clients, signals)
    if clients.empty:
        return None
    shown, threats, names = (
        primary(clients),
        ordered(clients.threat_model, THREATS),
        sorted(set(clients.client), reverse=True),
    )
    figure, axes = _grid(
        len(signals), len(threats), height=0.35 + 0.19 * len(names), left=0.8, gap=0.3, sharex=True, sharey=True
    )
    for panel, signal, threat in _panels(axes, signals, threats):
        part = shown[(shown.signal == signal) & (shown.threat_model == threat)]
        for i, (method, dots) in enumerate(part.groupby("method", sort=False)):
            height = [names.index(name) + 0.16 * (0.5 - i) for name in dots.client]
            panel.plot(dots.auroc, height, **_look(methods, method) | {"linestyle": "", "label": method})
        panel.axvline(0.5, color=GREY, linewidth=0.9)
        panel.set_yticks(range(len(names)), names)
        panel.set(xlim=(-0.03, 1.03), ylim=(-0.8, len(names) - 0.2), xlabel="AUROC")
        panel.set_title(f"{threat}: {', '.join(part.way.unique())}\n{signal_name(signal)}")
        panel.tick_params(labelbottom=True)
    _legend(figure)
    caption = (
        "One dot per client: its own members against its own held-out records. Each dot rests on a few dozen records and scatters by "
        "itself; a client without a dot cannot be rebuilt or never took part."
    )
    return Plot(figure, clients, "AUROC of each client, by threat model", caption)


def _utility(utility: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    names = [
        n
        for n in utility
        if n not in ("method", "round", "model", "bleu1", "bleu2", "bleu3") and utility[n].notna().any()
    ]
    if not names:
        return None
    columns = min(4, len(names))
    figure, axes = _grid(-(-len(names) // columns), columns, height=2.2, top=0.6)
    for panel, name in zip(axes.flat, names, strict=False):
        for (method, model), line in utility.groupby(["method", "model"], sort=False):
            look = _look(methods, method) | _hollow(model != "global")
            panel.plot(line["round"] + 1, line[name], **look, label=f"{method}: {model}")
        panel.set(title=METRICS.get(name, name), xlabel="rounds completed")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes.flat[len(names) :]:
        panel.set_axis_off()
    _legend(figure)
    data = utility.assign(rounds_completed=utility["round"] + 1).drop(columns="round")
    return Plot(
        figure,
        data,
        "Utility by round",
        "On held-out test records (loss: lower is better, the others: higher); 0 rounds is the base model; hollow markers are the mean of clients' own models.",
    )


def _cost(cost: pd.DataFrame, methods: Sequence[str], signals: Sequence[str]) -> Plot | None:
    rows = [m for m in methods if m in set(cost.method)]
    most = float(cost[["bytes_down", "bytes_up", "fedavg_bytes"]].to_numpy(float).max())
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes")) if most >= u or u == 1)
    figure, axes = _grid(1, len(rows), height=2.2, top=0.6, sharey=True)
    for panel, method in zip(axes[0], rows, strict=True):
        part = cost[cost.method == method]
        at, down, up = part["round"] + 1, part.bytes_down / unit, part.bytes_up / unit
        colour = _look(methods, method)["color"]
        panel.bar(at, down, 0.7, color=colour, alpha=0.45, label=f"down ({method})")
        panel.bar(
            at,
            up,
            0.7,
            bottom=down,
            color=colour,
            alpha=0.9,
            hatch="///",
            edgecolor="white",
            linewidth=0,
            label=f"up ({method})",
        )
        panel.plot(
            at, part.fedavg_bytes / unit, "_", color=INK, markersize=12, markeredgewidth=1.4, label="FedAvg, both ways"
        )
        whole = float(part.fedavg_bytes.sum())
        share = f": {100 * (part.bytes_down + part.bytes_up).sum() / whole:.0f} % of FedAvg's bytes" if whole else ""
        panel.set(title=f"{method}{share}", xlabel="round", ylim=(0, 1.05 * most / unit))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _label_rows(axes, f"{name} per round, all clients")
    _legend(figure)
    data = cost.assign(round=cost["round"] + 1)
    caption = "Bytes of the tensors really sent in each round; the dash is what FedAvg sends with the same clients."
    return Plot(figure, data, "Communication by round", caption)
