"""The figure of a caption's tokens, and the colours in which the page shows them too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from pandas import DataFrame as Table

from fedaudit.reports.evidence import ordered
from fedaudit.reports.figures.drawing import Plot, grid, panels

CONFIDENT, UNCERTAIN = "#0b3c5d", "#f3f6f9"  # ends of the entropy scale, low to high
ON_LIGHT, ON_DARK = (
    "#010101",
    "#fefefe",
)  # text on these: not the page's black and white, which turn over on dark screens
TURN = 0.33  # of the scale, where either has a contrast of 4.5 (WCAG 2.2, AA)


def scale(tokens: Table) -> float:
    """Upper end of the entropy scale in nats: the 95th percentile, against outliers; 0 without finite values."""
    values = tokens[["entropy", "base_entropy"]].to_numpy(float)
    return float(np.nanquantile(values, 0.95)) if np.isfinite(values).any() else 0.0


def shade(entropy: float, top: float) -> tuple[str, str]:
    """Background and text colour (hex) of a token with this entropy (nats), on a scale from 0 to `top`."""
    if not np.isfinite(entropy):
        return "#ffffff", ON_LIGHT
    t = min(max(entropy / top, 0.0), 1.0) if top > 0 else 0.0
    ends = [[int(end[i : i + 2], 16) for i in (1, 3, 5)] for end in (CONFIDENT, UNCERTAIN)]
    mixed = "".join(f"{round(a + (b - a) * t):02x}" for a, b in zip(*ends, strict=True))
    return f"#{mixed}", ON_DARK if t < TURN else ON_LIGHT


def tokens_plot(tokens: Table, methods: Sequence[str]) -> Plot:
    """The figure of the entropy of every caption token, after tuning and of the base model, with its data: a row of
    panels per method, a column for the member and one for the non-member; None without captions."""
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
