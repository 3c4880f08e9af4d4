"""Symbols on which the embedded CLIP models are pre-trained: their names in captions, and their forms.

Digits, letters, Greek, signs and shapes are printed in fourteen fonts or written by hand. The stages of `recipes.clip`
use the languages `FIRST` and `SECOND`. In the second, names have several senses, as words have for any CLIP, so that
context can select one: "k" may be a Georgian letter, "five" an Arabic digit. The tasks use other fonts
(`fedaudit.tasks.drawings`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from fedaudit.tasks import drawings
from fedaudit.tasks.drawings import Rng

FONTS = {
    "DejaVuSans": "sans",
    "DejaVuSans-Bold": "bold sans",
    "DejaVuSans-Oblique": "italic sans",
    "DejaVuSansMono": "mono",
    "DejaVuSansMono-Bold": "bold mono",
    "DejaVuSansMono-Oblique": "italic mono",
    "DejaVuSerif": "serif",
    "DejaVuSerif-Bold": "bold serif",
    "DejaVuSerif-Italic": "italic serif",
    "STIXGeneral": "serif",
    "STIXGeneralItalic": "italic serif",
    "cmr10": "thin serif",
    "cmss10": "thin sans",
    "cmti10": "italic serif",
}


@dataclass(frozen=True)
class Symbol:
    name: str
    kind: str


@dataclass(frozen=True)
class Language:
    """How captions name symbols: the frequency of each kind, its nouns, and the share of names without a noun."""

    shares: dict[str, float]
    nouns: dict[str, tuple[str, ...]]
    plain: float

    def kinds(self, noun: str) -> frozenset[str]:
        """The kinds that `noun` can mean; all of them if it is empty."""
        return frozenset(kind for kind, nouns in self.nouns.items() if not noun or noun in nouns)


FIRST = Language(
    {"digit": 0.28, "capital": 0.36, "lowercase": 0.08, "greek": 0.1, "sign": 0.06, "shape": 0.12},
    {
        "digit": ("digit", "number", "numeral", "digit"),
        "capital": ("capital letter", "uppercase letter", "capital", "letter"),
        "lowercase": ("lowercase letter", "small letter", "lowercase", "letter"),
        "greek": ("greek letter", "greek symbol"),
        "sign": ("sign", "symbol"),
        "shape": ("shape", "figure"),
    },
    plain=0.2,
)
SECOND = Language(
    {
        "digit": 0.22,
        "arabic": 0.11,
        "capital": 0.26,
        "lowercase": 0.06,
        "georgian": 0.13,
        "greek": 0.06,
        "small greek": 0.04,
        "sign": 0.05,
        "shape": 0.07,
    },
    {
        "digit": ("digit", "number", "numeral", "latin", "latin digit", "latin number"),
        "arabic": ("digit", "number", "numeral", "arabic", "arabic digit", "arabic number"),
        "capital": (
            "letter",
            "latin",
            "latin letter",
            "latin capital letter",
            "capital letter",
            "uppercase letter",
            "capital",
        ),
        "lowercase": ("letter", "latin", "latin letter", "lowercase letter", "small letter", "lowercase"),
        "georgian": ("letter", "georgian", "georgian letter"),
        "greek": ("greek letter", "greek symbol", "capital greek letter"),
        "small greek": ("greek letter", "greek symbol", "small greek letter"),
        "sign": ("sign", "symbol"),
        "shape": ("shape", "figure"),
    },
    plain=0.3,
)
SECOND_WORDS = ("latin", "arabic", "georgian")
GEORGIAN = dict(zip("abcdefghjklmnpqrstuvwxyz", "აბცდეფგჰჯკლმნპქრსტუვწხყზ", strict=True))  # as on a keyboard
ARABIC = dict(zip(drawings.DIGITS, "٠١٢٣٤٥٦٧٨٩", strict=True))
SMALL_GREEK = dict(zip(drawings.GREEK, "σωψΠφλγθ", strict=True))  # for pi the capital, as the usual one is small
ARABIC_FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold")

SYMBOLS = (
    *(Symbol(name, "digit") for name in drawings.DIGITS),
    *(Symbol(name, "capital") for name in "abcdefghjklmnpqrstuvwxyz"),  # i and o look like one and zero
    *(Symbol(name, "lowercase") for name in "abdefghmnqrty"),  # the others look like their capitals
    *(Symbol(name, "greek") for name in drawings.GREEK),
    *(Symbol(name, "sign") for name in drawings.SIGNS),
    *(Symbol(name, "shape") for name in drawings.SHAPES),
)
SENSES = (  # the same names in other scripts; second stage only
    *(Symbol(name, "arabic") for name in ARABIC),
    *(Symbol(name, "georgian") for name in GEORGIAN),
    *(Symbol(name, "small greek") for name in SMALL_GREEK),
)

# Pen strokes on a grid of 7 columns (0-6) and 9 rows (0-8): "xy" corner by corner; a leading ~ rounds the corners.
STROKES: dict[str, tuple[str, ...]] = {
    "zero": ("~30 12 04 16 38 56 64 52 30", "~40 10 04 28 58 64 40 20"),
    "one": ("30 38", "12 30 38", "13 40 38", "12 30 38|18 58"),
    "two": ("~02 10 40 62 44 08|08 68", "~02 20 51 53 26 08 17 38 68", "~11 30 51 43 08|08 58"),
    "three": (
        "~01 20 50 62 44 24|~24 54 66 48 18 07",
        "00 60 33|~33 55 66 48 17 07",
        "~01 30 51 43 24|~24 55 57 38 07",
    ),
    "four": ("40 05 65|40 48", "00 04 64|50 48", "10 05 55|43 48"),
    "five": ("60 00 04|~04 33 64 66 48 18 07", "50 10 03|~03 33 55 57 38 08"),
    "six": ("~50 21 04 06 28 48 66 45 25 06", "~40 12 05 17 38 57 55 34 15"),
    "seven": ("00 60 28", "00 60 28|14 54", "02 00 60 38", "~00 30 60|60 18"),
    "eight": ("~30 11 12 34 56 57 38 17 16 34 52 51 30", "~50 20 11 13 55 57 38 17 15 53 51 40"),
    "nine": ("~61 30 02 04 25 55 61|~61 65 58", "~51 20 02 14 44 51|51 48", "~50 20 02 24 51|~51 55 37 08"),
    "a": ("08 30 68|15 55", "~08 12 30 52 68|15 55"),
    "b": ("00 08|~00 40 52 34 04|~04 44 66 48 08",),
    "c": ("~61 40 10 03 05 18 48 67", "~50 20 03 05 28 57"),
    "d": ("00 08|~00 30 62 66 38 08",),
    "e": ("60 00 08 68|04 54", "~61 30 11 13 34|~34 15 07 38 67"),
    "f": ("60 00 08|04 44", "50 10 18|14 44"),
    "g": ("~61 40 10 03 05 18 48 66|34 64 68", "~51 20 03 05 28 57 54|54 34"),
    "h": ("00 08|60 68|04 64",),
    "j": ("~50 56 38 18 05", "20 60|~40 46 28 06"),
    "k": ("00 08|60 04 68", "00 08|50 03|24 68"),
    "l": ("00 08 68", "10 18 58"),
    "m": ("08 00 35 60 68", "08 10 36 50 68"),
    "n": ("08 00 68 60",),
    "p": ("00 08|~00 40 62 44 04", "00 08|~01 30 62 54 25 04"),
    "q": ("~30 03 05 38 65 63 30|46 68",),
    "r": ("00 08|~00 40 62 44 04|34 68",),
    "s": ("~61 40 11 02 24 45 66 57 38 18 06", "~50 20 12 44 56 38 07"),
    "t": ("00 60|30 38",),
    "u": ("~00 05 18 48 65 60", "~00 05 28 55 60|60 68"),
    "v": ("00 38 60", "~00 38 60"),
    "w": ("00 18 33 58 60", "~00 17 34 57 60"),
    "x": ("00 68|60 08", "~00 34 68|60 08"),
    "y": ("00 34 60|34 38", "00 34|60 18"),
    "z": ("00 60 08 68", "00 60 08 68|14 54"),
    "sigma": ("60 00 34 08 68", "61 60 00 34 08 68 67"),
    "omega": ("08 28|~28 05 02 30 62 65 48|48 68",),
    "psi": ("~00 04 35 64 60|30 38",),
    "pi": ("00 60|10 18|50 58", "~01 20 60|10 18|~50 57 68"),
    "phi": ("30 38|~32 13 04 36 64 53 32",),
    "lambda": ("08 30 68",),
    "gamma": ("61 60 00 08", "60 00 08"),
    "hash": ("20 18|50 48|03 63|05 65",),
    "arrow": ("04 64|41 64 47",),
    "cross": ("31 37|04 64",),
}
WRITTEN = 36  # handwritten forms of a symbol that has strokes
PROPORTIONS = 24  # variants of a shape


def handwriting(text: str, rng: Rng) -> Tensor:
    """Distance field [FIELD, FIELD] of a handwritten symbol: corners jittered, slanted, drawn with a round pen. text:
    its strokes, as in `STROKES`."""
    mask = Image.new("L", (256, 256))
    pen = ImageDraw.Draw(mask)
    width, slant, narrow = int(rng.integers(8, 30)), rng.uniform(-0.3, 0.3), rng.uniform(0.6, 1.1)
    for stroke in text.split("|"):
        corners = np.array([(int(corner[0]), int(corner[1])) for corner in stroke.lstrip("~").split()], np.float64)
        path = corners + rng.normal(0, 0.25, corners.shape)
        if stroke.startswith("~"):
            path = rounded(path)
        x, y = (path[:, 0] - 3) * narrow, path[:, 1] - 4
        points = [(128 + 22 * (a - slant * b), 128 + 22 * b) for a, b in zip(x, y, strict=True)]
        pen.line(points, fill=255, width=width, joint="curve")
        for a, b in points:
            pen.ellipse((a - width / 2, b - width / 2, a + width / 2, b + width / 2), fill=255)
    return drawings.distance_field(mask)


def rounded(corners: NDArray[Any], between: int = 6) -> NDArray[Any]:
    """Points [(n - 1) * between + 1, 2] of the Catmull-Rom curve through `corners` [n, 2]."""
    padded = np.concatenate([corners[:1], corners, corners[-1:]])
    t = (np.arange(between) / between)[:, None, None]
    p, q, r, s = (padded[i : len(padded) - 3 + i][None] for i in range(4))
    curve = (2 * q + (r - p) * t + (2 * p - 5 * q + 4 * r - s) * t**2 + (3 * q - p - 3 * r + s) * t**3) / 2
    return np.concatenate([curve.transpose(1, 0, 2).reshape(-1, 2), corners[-1:]])


def characters(symbol: Symbol) -> tuple[str, list[str]]:
    """A symbol's character, and the fonts that have it."""
    if symbol.kind == "arabic":
        return ARABIC[symbol.name], list(ARABIC_FONTS)
    if symbol.kind == "georgian":
        return GEORGIAN[symbol.name], [font for font in FONTS if font.startswith("DejaVu")]
    if symbol.kind in ("greek", "small greek", "sign"):
        char = SMALL_GREEK[symbol.name] if symbol.kind == "small greek" else drawings.character(symbol.name)
        return char, [font for font in FONTS if font not in drawings.LATIN_FONTS]
    return symbol.name if symbol.kind == "lowercase" else drawings.character(symbol.name), list(FONTS)


@dataclass(frozen=True)
class Forms:
    """Distance fields [k, FIELD, FIELD]; for every symbol its printed and written ones as (index, adjectives)."""

    fields: Tensor
    printed: tuple[tuple[tuple[int, str], ...], ...]
    written: tuple[tuple[tuple[int, str], ...], ...]


@functools.cache
def forms(seed: int) -> Forms:
    rng = np.random.default_rng((seed, 10))
    fields: list[Tensor] = []

    def add(field: Tensor, adjective: str) -> tuple[int, str]:
        fields.append(field)
        return len(fields) - 1, adjective

    printed, written = [], []
    for symbol in SYMBOLS + SENSES:
        if symbol.kind == "shape":
            printed.append(
                tuple(add(drawings.polygon(drawings.shape(symbol.name, rng)), "") for _ in range(PROPORTIONS))
            )
        else:
            char, fonts = characters(symbol)
            printed.append(tuple(add(drawings.glyph(char, font), FONTS[font]) for font in fonts))
        strokes = STROKES.get(symbol.name, ()) if symbol in SYMBOLS and symbol.kind != "lowercase" else ()
        written.append(
            tuple(
                add(handwriting(strokes[k % len(strokes)], rng), "handwritten")
                for k in range(WRITTEN if strokes else 0)
            )
        )
    return Forms(torch.stack(fields), tuple(printed), tuple(written))


def pick(options: Sequence[Any], rng: Rng) -> Any:
    return options[int(rng.integers(len(options)))]
