"""A procedural world of single symbols: their forms as distance fields, and six styles of drawing them.

A *form* is a symbol's outline, as a signed distance field; *placing* it varies position, size, rotation and slant, and
warps it. Tasks and pre-training share placing and differ in style: the styles here use the fonts in `TASK_FONTS` and
ways of drawing (dots, glow, chalk, relief, a thin double contour, print on paper) that `recipes/symbol_pictures.py`
never shows. So the model has not seen them, and zero-shot accuracy is honest. Shapes without a font (`SHAPES`) are the
same in both.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import distance_transform_edt
from torch import Tensor

SIZE = 32  # pixels
FINE = 64  # looks are painted at twice the size, then averaged
FIELD = 64  # samples of a distance field along each side
DIGITS = tuple("zero one two three four five six seven eight nine".split())
GREEK = {"sigma": "Σ", "omega": "Ω", "psi": "Ψ", "pi": "π", "phi": "Φ", "lambda": "Λ", "gamma": "Γ", "theta": "Θ"}
SIGNS = {"ampersand": "&", "hash": "#", "percent": "%", "dollar": "$", "question": "?", "euro": "€"}
SHAPES = ("star", "heart", "arrow", "triangle", "circle", "square", "diamond", "pentagon", "cross", "crescent")
CLASSES: tuple[str, ...] = (
    DIGITS
    + tuple("bcdefghjklmnprtuvwxy")
    + ("sigma", "omega", "psi", "pi", "ampersand", "hash", "star", "heart", "arrow", "triangle")
)  # capital letters; those that look like a digit in some style (i, o, q, s, z) are left out
DOMAINS: dict[str, str] = {
    "print": "ink on grainy paper, letterpress fonts",
    "outline": "a thin double contour",
    "dots": "a matrix of dots, as on a display",
    "neon": "a glowing tube on a dark wall",
    "chalk": "broken strokes of chalk on a board",
    "relief": "pressed into a coloured ground, seen by light and shade",
}
TASK_FONTS = (
    "cmtt10",
    "cmb10",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "DejaVuSerif-BoldItalic",
    "DejaVuSansMono-BoldOblique",
)
LATIN_FONTS = frozenset({"cmtt10", "cmb10", "cmr10", "cmss10", "cmti10"})  # no Greek, no signs

Rng = np.random.Generator


def character(name: str) -> str:
    """The character of the symbol `name`: zero -> "0", b -> "B", sigma -> "Σ"."""
    if name in DIGITS:
        return str(DIGITS.index(name))
    return GREEK.get(name) or SIGNS.get(name) or name.upper()


def distance_field(mask: Image.Image) -> Tensor:
    """Signed distance [FIELD, FIELD] to the edge of the white area, positive inside; unit: one field sample."""
    inside = np.asarray(mask.resize((2 * FIELD, 2 * FIELD), Image.Resampling.BILINEAR)) > 127
    signed = distance_transform_edt(inside) - distance_transform_edt(~inside)
    return F.avg_pool2d(torch.from_numpy(signed / 2).float()[None], 2)[0]


def glyph(char: str, font: str) -> Tensor:
    """Distance field [FIELD, FIELD] of a character; its longer side is 70 % of the field."""
    face = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf", 160)
    left, top, right, bottom = face.getbbox(char)
    width, height = right - left, bottom - top
    side = round(max(width, height) / 0.7)
    mask = Image.new("L", (side, side))
    ImageDraw.Draw(mask).text(((side - width) / 2 - left, (side - height) / 2 - top), char, fill=255, font=face)
    return distance_field(mask)


def polygon(points: NDArray[Any]) -> Tensor:
    """Distance field [FIELD, FIELD] of a filled polygon with corners [n, 2] in [-1, 1], y pointing up."""
    mask = Image.new("L", (256, 256))
    ImageDraw.Draw(mask).polygon([(128 + 90 * x, 128 - 90 * y) for x, y in points], fill=255)
    return distance_field(mask)


def shape(name: str, rng: Rng) -> NDArray[Any]:
    """Corners [n, 2] of the shape called `name`, with random proportions."""
    turn = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    r = rng.uniform
    if name == "heart":
        y = 13 * np.cos(turn) - r(4, 6) * np.cos(2 * turn) - 2 * np.cos(3 * turn) - np.cos(4 * turn)
        return np.stack([r(0.85, 1.1) * np.sin(turn) ** 3, y / 17], 1)
    if name == "crescent":
        bite = r(0.15, 0.5)  # the moon's right side is cut by a second circle
        outer, inner = np.linspace(0.9, 2 * np.pi - 0.9, 40), np.linspace(2 * np.pi - 1.6, 1.6, 40)
        return np.concatenate([_around(outer), _around(inner) * [0.75, 0.79] + [bite + 0.25, 0]])
    if name == "arrow":
        neck, half, barb = r(-0.1, 0.4), r(0.12, 0.3), r(0.5, 0.8)
        return np.array([(-1, half), (neck, half), (neck, barb), (1, 0), (neck, -barb), (neck, -half), (-1, -half)])
    if name == "cross":
        w = r(0.15, 0.38)
        arm = np.array([(-w, 1), (w, 1), (w, w)])
        return np.concatenate([arm @ _rotation(-k * np.pi / 2) for k in range(4)])
    if name == "star":
        points = int(rng.choice([5, 5, 6]))
        return _around(np.pi / 2 + np.pi / points * np.arange(2 * points), np.tile([1, r(0.35, 0.5)], points))
    if name == "circle":
        return _around(turn) * [1, r(0.85, 1.0)]
    if name == "square":
        return 0.85 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * [1, r(0.8, 1.0)]
    corners = {"triangle": 3, "diamond": 4, "pentagon": 5}[name]
    squeeze = r(0.55, 0.75) if name == "diamond" else r(0.8, 1.1)
    return _around(np.pi / 2 + 2 * np.pi / corners * np.arange(corners)) * [squeeze, 1]


def _around(angles: NDArray[Any], radius: NDArray[Any] | float = 1.0) -> NDArray[Any]:
    return np.stack([radius * np.cos(angles), radius * np.sin(angles)], 1)


def _rotation(angle: float) -> NDArray[Any]:
    return np.array([(math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))])


@dataclass(frozen=True)
class Placing:
    """How much forms vary; numbers are standard deviations unless noted."""

    scale: tuple[float, float] = (0.75, 1.2)
    rotation: float = 0.1  # radians
    slant: float = 0.1
    aspect: float = 0.1  # of the log
    shift: float = 0.12  # largest, of half the picture
    warp: float = 0.07  # largest amplitude of the rubber sheet, of half the picture

    def place(self, fields: Tensor, rng: Rng) -> Tensor:
        """Turn, scale, slant, shift and warp distance fields [n, FIELD, FIELD] at random; returns [n, FINE, FINE].
        Values keep the form's units; outside the field they fall on with the distance from its edge."""
        n = len(fields)
        zoom = 1 / rng.uniform(*self.scale, n)
        turn, slant, aspect = (rng.normal(0, s, n) for s in (self.rotation, self.slant, self.aspect))
        x, y = rng.uniform(-self.shift, self.shift, (2, n))
        cos, sin, stretch = np.cos(turn) * zoom, np.sin(turn) * zoom, np.exp(aspect)
        affine = np.stack([cos * stretch, sin + slant, x, -sin, cos / stretch, y], 1).reshape(n, 2, 3)
        grid = F.affine_grid(torch.from_numpy(affine).float(), [n, 1, FINE, FINE], align_corners=False)
        knots = rng.normal(size=(n, 2, 5, 5)) * rng.uniform(0, self.warp, (n, 1, 1, 1))
        grid = grid + smooth(knots).permute(0, 2, 3, 1)
        placed = F.grid_sample(fields[:, None], grid, padding_mode="border", align_corners=False)[:, 0]
        beyond = (grid.abs().amax(-1) - 1).clamp(min=0)  # outside the field the edge is farther away
        return placed - beyond * FIELD / 2


def smooth(knots: NDArray[Any]) -> Tensor:
    """Interpolate random knots [n, c, k, k] to a smooth surface [n, c, FINE, FINE]."""
    return F.interpolate(torch.from_numpy(knots).float(), (FINE, FINE), mode="bicubic", align_corners=False)


def uniform(rng: Rng, low: float, high: float, n: int, *more: int) -> Tensor:
    """Draw float32 numbers in [low, high): [n, 1, 1], or [n, *more] if `more` is given."""
    return torch.from_numpy(rng.uniform(low, high, (n, *(more or (1, 1))))).float()


def fill(distance: Tensor, weight: Tensor | float = 0.0, sharp: float = 1.6) -> Tensor:
    """Ink between 0 and 1, above 1/2 where distance to the edge + `weight` is positive. weight: widens the stroke, in
    units of distance; sharp: slope of the edge."""
    return torch.sigmoid((distance + weight) * sharp)


def mix(ground: Tensor, colour: Tensor, ink: Tensor) -> Tensor:
    """Paint colour [n, 3, 1, 1] over ground [n, 3, *, *] where there is ink [n, FINE, FINE]."""
    return ground + (colour - ground) * ink[:, None]


def finish(picture: Tensor) -> NDArray[np.uint8]:
    """Convert pictures [n, 3, FINE, FINE] in [0, 1] to uint8 [n, SIZE, SIZE, 3]."""
    small = F.avg_pool2d(picture, FINE // SIZE).clamp(0, 1)
    return (small * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def _print(d: Tensor, rng: Rng) -> Tensor:
    n = len(d)
    paper = uniform(rng, 0.65, 0.95, n, 3, 1, 1) + 0.1 * smooth(rng.normal(size=(n, 1, 24, 24)))
    blot = smooth(rng.normal(size=(n, 1, 16, 16)))[:, 0]
    ink = fill(d, uniform(rng, -0.8, 0.8, n) + 0.8 * blot) * uniform(rng, 0.6, 1, n)
    return mix(paper, uniform(rng, 0, 0.35, n, 3, 1, 1), ink)


def _outline(d: Tensor, rng: Rng) -> Tensor:
    n = len(d)
    half = uniform(rng, *CONTOUR, n)
    lines = torch.maximum(fill(half - d.abs()), 0.7 * fill(half - (d + uniform(rng, 3, 4.5, n)).abs()))
    return mix(*_colours(rng, n, 0.5), lines)


def _dots(d: Tensor, rng: Rng) -> Tensor:
    n, pitch = len(d), 6
    centres = F.interpolate(d[:, None, pitch // 2 :: pitch, pitch // 2 :: pitch], scale_factor=pitch, mode="nearest")
    lit = fill(centres[:, 0, :FINE, :FINE], uniform(rng, -0.3, 0.9, n), 2.5)
    side = lit.shape[-1]
    at = (torch.arange(side) % pitch - (pitch - 1) / 2) ** 2
    disc = torch.sigmoid(3 * (uniform(rng, 1.9, 2.7, n) - (at[:, None] + at[None]).sqrt()))
    ink = F.pad(disc * (0.08 + 0.92 * lit), (0, FINE - side, 0, FINE - side))
    return mix(*_colours(rng, n, 0.6), ink)


def _neon(d: Tensor, rng: Rng) -> Tensor:
    n = len(d)
    away = (d - uniform(rng, -0.5, 1.0, n)).abs()
    glow = uniform(rng, 0.4, 0.75, n) * torch.exp(-away / uniform(rng, 2.5, 5, n))
    tube = torch.exp(-((away / uniform(rng, 0.9, 1.4, n)) ** 2))
    hue = uniform(rng, 0, 1, n, 3, 1, 1)
    hue = hue / hue.amax(1, keepdim=True)
    wall = uniform(rng, 0, 0.18, n, 3, 1, 1).expand(-1, -1, FINE, FINE)
    return mix(mix(wall, hue, glow), 0.4 * hue + 0.6, tube)


def _chalk(d: Tensor, rng: Rng) -> Tensor:
    n = len(d)
    dust = torch.from_numpy(rng.normal(size=(n, FINE, FINE))).float()
    dust = F.avg_pool2d(dust[:, None], 3, 1, 1)[:, 0] * 3
    stroke = fill(d, uniform(rng, -1, 0.5, n)) * fill(dust, uniform(rng, -0.2, 0.6, n), 3)
    board = uniform(rng, 0.05, 0.3, n, 3, 1, 1) + 0.06 * smooth(rng.normal(size=(n, 1, 6, 6)))
    return mix(board, uniform(rng, 0.75, 1, n, 3, 1, 1), stroke)


def _relief(d: Tensor, rng: Rng) -> Tensor:
    n = len(d)
    height = fill(d, uniform(rng, -0.5, 0.5, n), 0.7)[:, None]
    slope_x = F.pad(height[..., 2:] - height[..., :-2], (1, 1, 0, 0), mode="replicate")
    slope_y = F.pad(height[..., 2:, :] - height[..., :-2, :], (0, 0, 1, 1), mode="replicate")
    light = uniform(rng, 0.15 * np.pi, 0.85 * np.pi, n, 1, 1, 1)  # from above
    shade = torch.cos(light) * slope_x + torch.sin(light) * slope_y
    ground = uniform(rng, 0.3, 0.7, n, 3, 1, 1) + 0.04 * smooth(rng.normal(size=(n, 1, 12, 12)))
    hollow = uniform(rng, 0.05, 0.2, n, 1, 1, 1) * height  # less light reaches it
    return ground + uniform(rng, 0.7, 1.2, n, 1, 1, 1) * shade - hollow


def _colours(rng: Rng, n: int, apart: float) -> tuple[Tensor, Tensor]:
    """Ground [n, 3, FINE, FINE] and ink [n, 3, 1, 1] whose mean brightness differs by about `apart` to 0.9; either is
    lighter."""
    gap = uniform(rng, apart, 0.9, n, 1, 1, 1)
    dark = torch.minimum(uniform(rng, 0, 0.3, n, 3, 1, 1), 1 - gap)
    light = (dark.mean(1, keepdim=True) + gap + uniform(rng, -0.1, 0.1, n, 3, 1, 1)).clamp(0, 1)
    swap = torch.from_numpy(rng.random((n, 1, 1, 1)) < 0.5)
    ground, ink = torch.where(swap, light, dark), torch.where(swap, dark, light)
    return ground.expand(-1, -1, FINE, FINE), ink


LOOKS: dict[str, Callable[[Tensor, Rng], Tensor]] = {
    "print": _print,
    "outline": _outline,
    "dots": _dots,
    "neon": _neon,
    "chalk": _chalk,
    "relief": _relief,
}
PLACING = Placing()
CHUNK = 256  # pictures painted at a time
PROPORTIONS = 6  # variants of a shape
CONTOUR = (0.6, 0.9)  # half the width of an outline, in field samples; pre-training has none as thin


@functools.cache
def _forms(name: str) -> Tensor:
    """Distance fields [k, FIELD, FIELD] of a class: one per font of the tasks, or `PROPORTIONS` of a shape."""
    if name in SHAPES:
        rng = np.random.default_rng(SHAPES.index(name))
        return torch.stack([polygon(shape(name, rng)) for _ in range(PROPORTIONS)])
    latin = name in DIGITS or len(name) == 1
    return torch.stack([glyph(character(name), font) for font in TASK_FONTS if latin or font not in LATIN_FONTS])


def draw(domain: str, classes: Sequence[int], rng: Rng) -> NDArray[np.uint8]:
    """Draw one picture per entry of `classes` (indices into CLASSES) in the style `domain`: uint8 [n, SIZE, SIZE,
    3]. All randomness is from `rng`: font or proportions, placing, weight, colours and the grain of the style."""
    look = LOOKS[domain]
    picked = [forms[rng.integers(len(forms))] for forms in (_forms(CLASSES[c]) for c in classes)]
    drawn = np.empty((len(picked), SIZE, SIZE, 3), np.uint8)  # before, so that what a chunk takes is free for the next
    for start in range(0, len(picked), CHUNK):
        part = torch.stack(picked[start : start + CHUNK])
        drawn[start : start + CHUNK] = finish(look(PLACING.place(part, rng), rng))
    return drawn
