"""Pictures on which the embedded CLIP models are pre-trained: symbols with inks, grounds and damages of several kinds.

The tasks use other styles (`fedaudit.tasks.drawings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.tasks import drawings
from fedaudit.tasks.drawings import Placing, Rng, fill, mix, smooth, uniform
from recipes.symbols import FIRST, SENSES, SYMBOLS, Language, Symbol, forms, pick

COLOURS = {
    "red": (0.85, 0.12, 0.12),
    "green": (0.12, 0.65, 0.2),
    "blue": (0.16, 0.28, 0.88),
    "yellow": (0.94, 0.86, 0.16),
    "orange": (0.95, 0.55, 0.1),
    "purple": (0.55, 0.16, 0.7),
    "pink": (0.97, 0.55, 0.75),
    "cyan": (0.2, 0.82, 0.86),
    "brown": (0.48, 0.3, 0.14),
    "gray": (0.5, 0.5, 0.5),
    "white": (0.97, 0.97, 0.97),
    "black": (0.03, 0.03, 0.03),
}
STYLES = {
    "solid": 0.0,
    "outlined": 0.14,
    "striped": 0.08,
    "soft": 0.12,
    "worn": 0.16,
    "shadowed": 0.1,
}  # the rest is solid
GROUNDS = {"plain": 0.0, "gradient": 0.12, "striped": 0.06, "checkered": 0.06, "cloudy": 0.16}  # the rest is plain
DAMAGES = {"clean": 0.0, "blurry": 0.25, "pixelated": 0.12, "noisy": 0.15}  # the rest is clean
CONTOUR = (1.5, 3.0)  # half the width of an outline, in field samples
ROWS, COLUMNS = torch.meshgrid(*[torch.linspace(-1, 1, drawings.FINE)] * 2, indexing="ij")


def stripes(rng: Rng, n: int, hard: bool = True) -> Tensor:
    """Stripes [n, FINE, FINE] in [0, 1], of random direction and frequency."""
    angle, frequency = uniform(rng, 0, 2 * np.pi, n), uniform(rng, 4, 14, n)
    wave = torch.sin(frequency * (COLUMNS * torch.cos(angle) + ROWS * torch.sin(angle)))
    return (wave > 0).float() if hard else wave / 2 + 0.5


def clouds(rng: Rng, n: int, knots: int) -> Tensor:
    return smooth(rng.normal(size=(n, 1, knots, knots)))[:, 0]


def ink(style: str, d: Tensor, rng: Rng) -> Tensor:
    """How much ink there is, [n, FINE, FINE] in [0, 1], in one style for distances `d` of the same shape to a symbol's
    edge."""
    n = len(d)
    if style == "outlined":
        return fill(uniform(rng, *CONTOUR, n) - d.abs())
    if style == "soft":
        return (
            fill(d, 0.0, 1.0) ** 2 * 0.5
            + 0.5 * torch.exp(-d.abs() / uniform(rng, 1.5, 4, n)) * (d < 0)
            + 0.5 * (d >= 0)
        )
    solid = fill(d)
    if style == "striped":
        return solid * (1 - uniform(rng, 0.4, 0.8, n) * stripes(rng, n))
    if style == "worn":
        return solid * fill(clouds(rng, n, int(rng.integers(8, 22))), uniform(rng, 0.0, 0.8, n), 4)
    if style == "shadowed":
        shift = [int(s) for s in rng.choice([-4, -3, 3, 4], 2)]
        return torch.maximum(solid, 0.45 * solid.roll(shift, (1, 2)))
    return solid


def ground(pattern: str, n: int, rng: Rng) -> Tensor:
    """Weight [n, FINE, FINE] in [0, 1] of the second ground colour in a pattern; 0 for a plain ground."""
    if pattern == "gradient":
        angle = uniform(rng, 0, 2 * np.pi, n)
        return ((COLUMNS * torch.cos(angle) + ROWS * torch.sin(angle)) / 2 + 0.5).clamp(0, 1)
    if pattern == "striped":
        return stripes(rng, n)
    if pattern == "checkered":
        return (stripes(rng, n) + stripes(rng, n)) % 2
    if pattern == "cloudy":
        return (0.5 + 0.5 * clouds(rng, n, int(rng.integers(4, 20)))).clamp(0, 1)
    return torch.zeros(n, drawings.FINE, drawings.FINE)


def damage(kind: str, picture: Tensor, rng: Rng) -> Tensor:
    """The pictures [n, 3, SIZE, SIZE] with damage of one kind: "blurry", "pixelated" (coarse pixels), else noise, more
    of it for "noisy"."""
    size = (drawings.SIZE, drawings.SIZE)
    if kind == "blurry":
        coarse = int(rng.choice([8, 8, 10, 12, 16]))
        return F.interpolate(F.adaptive_avg_pool2d(picture, coarse), size, mode="bilinear", align_corners=False)
    if kind == "pixelated":
        return F.interpolate(F.adaptive_avg_pool2d(picture, int(rng.choice([12, 14, 16]))), size, mode="nearest")
    noise = (
        uniform(rng, 0.1, 0.22, len(picture), 1, 1, 1)
        if kind == "noisy"
        else uniform(rng, 0, 0.05, len(picture), 1, 1, 1)
    )
    return picture + noise * torch.from_numpy(rng.standard_normal(tuple(picture.shape), dtype=np.float32))


@dataclass(frozen=True)
class Drawing:
    """The contents of a picture; `adjectives` are about form and style."""

    symbol: Symbol
    adjectives: tuple[str, ...]
    colour: str
    ground: str
    pattern: str


CHUNK = 500  # pictures painted at a time; styles take turns within a chunk


def draw_pool(n: int, rng: Rng, seed: int) -> tuple[Tensor, list[Drawing]]:
    """`n` pictures, uint8 [n, 3, SIZE, SIZE], the least distorted ones first, and their contents."""
    pictures, drawn = [], []
    for start in range(0, n, CHUNK):
        part = draw_chunk(min(CHUNK, n - start), start / n, rng, seed)
        pictures.append(part[0])
        drawn += part[1]
    return torch.cat(pictures), drawn


def draw_chunk(
    n: int, severity: float, rng: Rng, seed: int, language: Language = FIRST
) -> tuple[Tensor, list[Drawing]]:
    """Pictures, uint8 [n, 3, SIZE, SIZE], and their contents. severity in [0, 1]: how frequent styles and damages
    are, and how strong distortions."""
    bank = forms(seed)
    every_symbol = SYMBOLS + SENSES
    kinds = rng.choice(list(language.shares), n, p=list(language.shares.values()))
    symbols = [pick([i for i, s in enumerate(every_symbol) if s.kind == kind], rng) for kind in kinds]
    chosen = [
        pick(bank.written[s] if bank.written[s] and rng.random() < 0.4 else bank.printed[s], rng) for s in symbols
    ]
    placing = Placing(
        scale=(0.85 - 0.2 * severity, 1.1 + 0.2 * severity),
        rotation=0.06 + 0.12 * severity,
        slant=0.05 + 0.1 * severity,
        shift=0.08 + 0.1 * severity,
        warp=0.03 + 0.08 * severity,
    )
    d = placing.place(bank.fields[[c[0] for c in chosen]], rng)
    weight = torch.from_numpy(rng.normal(0, 0.5 + 0.8 * severity, (n, 1, 1))).float().clamp(-2, 3)
    styles, patterns, damages = (_choose(table, n, severity, rng) for table in (STYLES, GROUNDS, DAMAGES))
    shades, names = _colours(n, severity, rng)
    inked, pattern = torch.empty_like(d), torch.empty_like(d)
    for rows, style in _groups(styles):
        inked[rows] = ink(style, (d + weight)[rows], rng)
    for rows, kind in _groups(patterns):
        pattern[rows] = ground(kind, len(rows), rng)
    second = (0.6 * shades[:, 1] + 0.4 * uniform(rng, 0, 1, n, 3)).clamp(0, 1)
    picture = mix(
        mix(shades[:, 1, :, None, None], second[:, :, None, None], pattern), shades[:, 0, :, None, None], inked
    )
    small = F.avg_pool2d(picture, drawings.FINE // drawings.SIZE)
    for rows, kind in _groups(damages):
        small[rows] = damage(kind, small[rows], rng)
    drawn = []
    for i in range(n):
        words = (
            *chosen[i][1].split(),
            styles[i],
            damages[i],
            "bold" if weight[i] > 1.3 else "thin" if weight[i] < -1.2 else "",
        )
        plain = ("", "solid", "clean")
        drawn.append(
            Drawing(every_symbol[symbols[i]], tuple(w for w in words if w not in plain), *names[i], patterns[i])
        )
    return (small.clamp(0, 1) * 255).round().byte(), drawn


def _choose(table: dict[str, float], n: int, severity: float, rng: Rng) -> list[str]:
    """One key of `table` per picture; the first key gets the remaining probability."""
    shares = [severity**0.5 * share * 1.3 for share in table.values()]
    return rng.choice(list(table), n, p=[1 - sum(shares), *shares[1:]]).tolist()


def _groups(labels: Sequence[str]) -> Iterator[tuple[list[int], str]]:
    for label in dict.fromkeys(labels):
        yield [i for i, other in enumerate(labels) if other == label], label


def _colours(n: int, severity: float, rng: Rng) -> tuple[Tensor, list[tuple[str, str]]]:
    """(Ink and ground colours [n, 2, 3], their names); a third is white on black, a sixth black on white."""
    names = list(COLOURS)
    values = np.array(list(COLOURS.values()))
    pairs = []
    for share in rng.random(n):
        if share < 0.33:
            pairs.append(("white", "black"))
        elif share < 0.5:
            pairs.append(("black", "white"))
        else:
            a = int(rng.integers(len(names)))
            far = np.flatnonzero(np.abs(values - values[a]).sum(1) > 0.9)
            pairs.append((names[a], names[pick(far.tolist(), rng)]))
    shades = np.array([[COLOURS[a], COLOURS[b]] for a, b in pairs]) + rng.normal(0, 0.05, (n, 2, 3))
    middle = shades.mean(1, keepdims=True)
    contrast = rng.uniform(1 - 0.5 * severity, 1, (n, 1, 1))
    return torch.from_numpy((middle + contrast * (shades - middle)).clip(0, 1)).float(), pairs
