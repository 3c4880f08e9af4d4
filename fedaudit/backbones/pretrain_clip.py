"""The recipe of the embedded CLIP models: a small ViT and a small ResNet, pre-trained on a procedural world of symbols.

    python -m fedaudit.backbones.pretrain_clip --out FOLDER --tower vit|resnet
    python -m fedaudit.backbones.pretrain_clip --evaluate FOLDER

The first writes a folder that open_clip reads (`open_clip.create_model("local-dir:FOLDER")`), with `training.json` beside it: the recipe,
a fingerprint of the data, the first losses and the quality of the weights as shipped. The second prints the table of the model card.

Every batch is of one of two kinds. In *naming* batches a caption says which symbol it is and little else, and every picture that the
caption is true of is a positive. In *describing* batches captions name font, size, style, colours and ground, with CLIP's own loss. Without the
first, colours are learned at once and symbols never; without the second, captions know no style. Styles start mild and widen.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks import drawings
from fedaudit.tasks.drawings import Placing, Rng, fill, mix, smooth, uniform

MEAN, STD = 0.5, 0.3  # of the pixel values in [0, 1]
CONTEXT = 32  # tokens
BLANK_STD = 0.02
TOWERS: dict[str, dict[str, Any]] = {
    "vit": {"image_size": drawings.SIZE, "layers": 5, "width": 128, "head_width": 32, "patch_size": 8},
    "resnet": {"image_size": drawings.SIZE, "layers": [1, 1, 1, 1], "width": 16, "head_width": 32},
}


@dataclass(frozen=True)
class Recipe:
    """Every choice of the pre-training; `SHIPPED` holds those of the two shipped models."""

    tower: str = "vit"
    seed: int = 0
    steps: int = 3600
    batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warm_up: int = 150  # steps until the learning rate is reached
    pool: int = 60_000  # pictures, mild ones first
    widen: int = 1500  # steps until all of the pool is in use
    naming_share: float = 0.65  # batches; all of the first 120
    head_weight: float = 1.0  # of the loss of a linear head that names the symbol; it is not shipped
    sense_steps: int = 1200  # second stage
    sense_batch: int = 160
    sense_rate: float = 1e-3
    sense_pool: int = 24_000  # pictures
    blank_share: float = 0.5  # batches of the second stage whose captions stand behind blank vectors
    blanks: int = 18  # of these vectors, at most
    text_width: int = 96
    text_layers: int = 3
    text_heads: int = 3
    embed: int = 128

    def __post_init__(self) -> None:
        if self.tower not in TOWERS:
            raise ValueError(f"tower must be one of {', '.join(TOWERS)}, not {self.tower}")


SHIPPED = {"vit": Recipe(), "resnet": Recipe(tower="resnet", steps=2500, widen=1000)}

# --- symbols and their names ---

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
    """How captions speak of symbols: how often each kind is drawn, what it is called, the share of names without a noun."""

    shares: dict[str, float]
    nouns: dict[str, tuple[str, ...]]
    plain: float

    def kinds(self, noun: str) -> frozenset[str]:
        """The kinds that `noun` can stand for; all of them if nothing is said."""
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
    *(
        Symbol(name, "capital") for name in "abcdefghjklmnpqrstuvwxyz"
    ),  # i and o: nobody can tell them from one and zero
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
    """Distance field of a symbol written by hand: corners moved, slanted, drawn with a round pen."""
    mask = Image.new("L", (256, 256))
    pen = ImageDraw.Draw(mask)
    width, slant, narrow = int(rng.integers(8, 30)), rng.uniform(-0.3, 0.3), rng.uniform(0.6, 1.1)
    for stroke in text.split("|"):
        corners = np.array([(int(x), int(y)) for x, y in stroke.lstrip("~").split()], float)
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
    """The Catmull-Rom curve through `corners` [n, 2]: [(n - 1) * between + 1, 2]."""
    padded = np.concatenate([corners[:1], corners, corners[-1:]])
    t = (np.arange(between) / between)[:, None, None]
    p, q, r, s = (padded[i : len(padded) - 3 + i][None] for i in range(4))
    curve = (2 * q + (r - p) * t + (2 * p - 5 * q + 4 * r - s) * t**2 + (3 * q - p - 3 * r + s) * t**3) / 2
    return np.concatenate([curve.transpose(1, 0, 2).reshape(-1, 2), corners[-1:]])


def characters(symbol: Symbol) -> tuple[str, list[str]]:
    """The character of a symbol and the fonts that have it."""
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
    """Distance fields [k, FIELD, FIELD]; of every symbol the printed and the written ones as (index, adjectives)."""

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


# --- looks: none of them is one of the tasks' ---

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
    """Stripes [n, FINE, FINE] in [0, 1] of random direction and frequency."""
    angle, frequency = uniform(rng, 0, 2 * np.pi, n), uniform(rng, 4, 14, n)
    wave = torch.sin(frequency * (COLUMNS * torch.cos(angle) + ROWS * torch.sin(angle)))
    return (wave > 0).float() if hard else wave / 2 + 0.5


def clouds(rng: Rng, n: int, knots: int) -> Tensor:
    return smooth(rng.normal(size=(n, 1, knots, knots)))[:, 0]


def ink(style: str, d: Tensor, rng: Rng) -> Tensor:
    """Ink [n, FINE, FINE] of one style over distances of the same shape."""
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
    """How much [n, FINE, FINE] of the second ground colour shows."""
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
    """Small pictures [n, 3, SIZE, SIZE] made worse."""
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
    """What is known of a picture; `adjectives` are of the form and style."""

    symbol: Symbol
    adjectives: tuple[str, ...]
    colour: str
    ground: str
    pattern: str


CHUNK = 500  # pictures painted at a time; styles take turns within a chunk


def draw_pool(n: int, rng: Rng, seed: int) -> tuple[Tensor, list[Drawing]]:
    """`n` pictures, uint8 [n, 3, SIZE, SIZE], the mild ones first, and what they show."""
    pictures, drawn = [], []
    for start in range(0, n, CHUNK):
        part = draw_chunk(min(CHUNK, n - start), start / n, rng, seed)
        pictures.append(part[0])
        drawn += part[1]
    return torch.cat(pictures), drawn


def draw_chunk(
    n: int, severity: float, rng: Rng, seed: int, language: Language = FIRST
) -> tuple[Tensor, list[Drawing]]:
    """Pictures and what they show; styles, damages and distortions are as frequent as `severity` in [0, 1] says."""
    bank = forms(seed)
    known = SYMBOLS + SENSES
    kinds = rng.choice(list(language.shares), n, p=list(language.shares.values()))
    symbols = [_pick([i for i, s in enumerate(known) if s.kind == kind], rng) for kind in kinds]
    chosen = [
        _pick(bank.written[s] if bank.written[s] and rng.random() < 0.4 else bank.printed[s], rng) for s in symbols
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
        drawn.append(Drawing(known[symbols[i]], tuple(w for w in words if w not in plain), *names[i], patterns[i]))
    return (small.clamp(0, 1) * 255).round().byte(), drawn


def _pick(options: Sequence[Any], rng: Rng) -> Any:
    return options[int(rng.integers(len(options)))]


def _choose(table: dict[str, float], n: int, severity: float, rng: Rng) -> list[str]:
    """One key of `table` per picture; the first key takes what the others leave."""
    shares = [severity**0.5 * share * 1.3 for share in table.values()]
    return rng.choice(list(table), n, p=[1 - sum(shares), *shares[1:]]).tolist()


def _groups(labels: Sequence[str]) -> Iterator[tuple[list[int], str]]:
    for label in dict.fromkeys(labels):
        yield [i for i, other in enumerate(labels) if other == label], label


def _colours(n: int, severity: float, rng: Rng) -> tuple[Tensor, list[tuple[str, str]]]:
    """Ink and ground [n, 2, 3] and their names; a third white on black, a sixth black on white."""
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
            pairs.append((names[a], names[_pick(far, rng)]))
    shades = np.array([[COLOURS[a], COLOURS[b]] for a, b in pairs]) + rng.normal(0, 0.05, (n, 2, 3))
    middle = shades.mean(1, keepdims=True)
    contrast = rng.uniform(1 - 0.5 * severity, 1, (n, 1, 1))
    return torch.from_numpy((middle + contrast * (shades - middle)).clip(0, 1)).float(), pairs


# --- captions and their words ---

TEMPLATES = (
    "{}", "a {}", "the {}", "a drawing of the {}", "a drawing of a {}", "a picture of the {}", "an image of the {}", "this is the {}",
    "a sketch of the {}", "here is a {}", "a photo of a {}", "a photo of the {}", "a good photo of a {}", "one {} in the picture",
)  # fmt: skip
GENERAL_WORDS = (
    "a an the of on in with and . , photo picture image drawing sketch this is here one it shows good bad close up my single some "
    "small large tiny big style font type background color dark light bright by from domain handwritten symbol on paper screen wall sign "
    "neon chalk dots print outline relief glowing dotted old new real blackboard computer what which are you"
).split()


def vocabulary(stage: int = 2) -> list[str]:
    """Padding, start, unknown, every word, single characters that a word can go on with; the end token is last (the highest id).

    The second stage's words stand before the end token, so that the others keep their ids.
    """
    words = [*GENERAL_WORDS, *COLOURS, *STYLES, *GROUNDS, *DAMAGES, *" ".join(FONTS.values()).split()]
    words += " ".join(" ".join(nouns) for nouns in FIRST.nouns.values()).split()
    words += [symbol.name for symbol in SYMBOLS]
    characters = "abcdefghijklmnopqrstuvwxyz0123456789"
    more = [*characters, *"-'?!:", *(f"##{c}" for c in characters)]
    new = SECOND_WORDS if stage == 2 else ()
    return list(dict.fromkeys(["<pad>", "<start>", "<unk>", *words, *more, *new, "<end>"]))


def build_tokenizer(stage: int = 2) -> PreTrainedTokenizerFast:
    """One token per known word, otherwise one per character; lower case; start and end tokens are added."""
    words = vocabulary(stage)
    ids = {word: i for i, word in enumerate(words)}
    # byte-pair encoding without pairs: a word is looked up whole, else spelt
    model = models.BPE(ids, [], unk_token="<unk>", continuing_subword_prefix="##", ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[a-z]+|[0-9]|[^\sa-z0-9]"), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", ids["<start>"]), ("<end>", ids["<end>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<start>",
        eos_token="<end>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=CONTEXT,
    )


Claim = tuple[str, frozenset[str]]  # a symbol's name, and the kinds that a caption can mean by it


def naming_caption(drawing: Drawing, rng: Rng, language: Language = FIRST) -> tuple[str, Claim]:
    """A caption that names the symbol, and what it claims."""
    named, kinds = _named(drawing.symbol, rng, language)
    if drawing.adjectives and rng.random() < 0.25:
        named = f"{_pick(drawing.adjectives, rng)} {named}"
    return _sentence(named, rng), (drawing.symbol.name, kinds)


def describing_caption(drawing: Drawing, rng: Rng, language: Language = FIRST) -> str:
    adjectives = [word for word in dict.fromkeys(drawing.adjectives) if rng.random() < 0.8]
    if rng.random() < 0.6:
        adjectives.append(drawing.colour)
    text = _sentence(" ".join([*adjectives, _named(drawing.symbol, rng, language)[0]]), rng).rstrip(" .")
    if rng.random() < 0.5:
        pattern = drawing.pattern if drawing.pattern != "plain" else _pick(("", "plain"), rng)
        text += f" on a {drawing.ground} {pattern} background"
    if rng.random() < 0.03:  # a name that means nothing: spelt words are to be passed over
        text += " by " + "".join(_pick("abcdefghijklmnopqrstuvwxyz", rng) for _ in range(int(rng.integers(3, 8))))
    return text


def _named(symbol: Symbol, rng: Rng, language: Language) -> tuple[str, frozenset[str]]:
    name = drawings.character(symbol.name) if symbol.kind == "digit" and rng.random() < 0.12 else symbol.name
    if rng.random() < language.plain:
        return name, language.kinds("")
    noun = _pick(language.nouns[symbol.kind], rng)
    return (f"{name} {noun}" if symbol.kind in ("sign", "shape") else f"{noun} {name}"), language.kinds(noun)


def _sentence(named: str, rng: Rng) -> str:
    return _pick(TEMPLATES, rng).format(named) + _pick(("", "."), rng)


# --- model and training ---


def model_config(recipe: Recipe, stage: int = 2) -> dict[str, Any]:
    """What open_clip calls model_cfg."""
    return {
        "embed_dim": recipe.embed,
        "vision_cfg": TOWERS[recipe.tower],
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": len(vocabulary(stage)),
            "width": recipe.text_width,
            "heads": recipe.text_heads,
            "layers": recipe.text_layers,
        },
    }


def build_model(recipe: Recipe, stage: int = 2) -> open_clip.CLIP:
    """The untrained model; its initial weights are fixed by `recipe.seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return open_clip.CLIP(**model_config(recipe, stage))


def build_head(recipe: Recipe) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed + 1)
        return nn.Linear(recipe.embed, len(SYMBOLS))


def normalise(pictures: Tensor) -> Tensor:
    """uint8 [n, 3, S, S] to the vision tower's input."""
    return (pictures.float() / 255 - MEAN) / STD


def encode_text(model: open_clip.CLIP, ids: Tensor, blanks: Tensor | None = None) -> Tensor:
    """Unit features [n, E] of padded token ids [n, T <= CONTEXT], with vectors `blanks` [n, k, d] between start and words if given.

    Cutting the padding is exact, the tower is causal.
    """
    x, ends = model.token_embedding(ids), ids.argmax(1)
    if blanks is not None:
        x, ends = torch.cat([x[:, :1], blanks, x[:, 1:]], 1), ends + blanks.shape[1]
    length = x.shape[1]
    x = x + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    return F.normalize(x[torch.arange(len(ids)), ends] @ model.text_projection, dim=-1)


def draw_blanks(rng: Rng, recipe: Recipe, n: int, room: int) -> Tensor | None:
    """Meaningless vectors [n, k, d] for captions to stand behind, in some batches: words then keep their sense at later places.

    A CLIP that saw captions of all lengths knows that. Prompt learning starts from such vectors, N(0, 0.02^2) (CoOp).
    """
    k = int(rng.integers(1, recipe.blanks + 1))
    if rng.random() >= recipe.blank_share or room < 1:
        return None
    return torch.from_numpy(BLANK_STD * rng.standard_normal((n, min(k, room), recipe.text_width))).float()


def naming_loss(logits: Tensor, drawn: Sequence[Drawing], claims: Sequence[Claim]) -> Tensor:
    """Cross-entropy both ways with every true (picture, caption) pair of logits [n, n] as a positive of equal weight."""
    true = [[d.symbol.name == name and d.symbol.kind in kinds for name, kinds in claims] for d in drawn]
    return _two_way(logits, torch.tensor(true).float())


def describing_loss(logits: Tensor, captions: Sequence[str]) -> Tensor:
    """CLIP's loss; captions that are the same word for word are no negatives of each other."""
    return _two_way(logits, torch.tensor([[float(a == b) for b in captions] for a in captions]))


def _two_way(logits: Tensor, true: Tensor) -> Tensor:
    rows, columns = true / true.sum(1, keepdim=True), true / true.sum(0, keepdim=True)
    return -((rows * logits.log_softmax(1)).sum(1).mean() + (columns * logits.log_softmax(0)).sum(0).mean()) / 2


Step = tuple[str, float, open_clip.CLIP]


def train(recipe: Recipe, *, stop_after: int | None = None) -> Iterator[Step]:
    """The first stage, yielding (kind of batch, loss, model) after every step; `stop_after` ends it early for tests."""
    torch.set_num_threads(1)
    model = build_model(recipe, stage=1)
    tokenizer = build_tokenizer(stage=1)
    pictures, drawn = draw_pool(recipe.pool, np.random.default_rng((recipe.seed, 0)), recipe.seed)
    rng = np.random.default_rng((recipe.seed, 1))
    head = build_head(recipe)
    optimizer = _optimizer(recipe, [*model.parameters(), *head.parameters()])
    model.train()
    for step in range(min(recipe.steps, stop_after or recipe.steps)):
        reach = int(recipe.pool * min(1, 0.15 + 0.85 * step / recipe.widen))
        rows = rng.integers(max(reach, 1), size=recipe.batch)
        kind = "naming" if step < 120 or rng.random() < recipe.naming_share else "describing"
        _schedule(optimizer, recipe.learning_rate, step, recipe.steps, recipe.warm_up)
        shown = [drawn[i] for i in rows]
        down, right = (int(s) for s in rng.integers(-2, 3, 2))
        features = model.visual(normalise(pictures[rows].roll((down, right), (2, 3))))
        named = F.cross_entropy(head(features), torch.tensor([SYMBOLS.index(d.symbol) for d in shown]))
        matched = _match(model, tokenizer, kind, F.normalize(features, dim=-1), shown, rng, FIRST)
        loss = matched + recipe.head_weight * named
        _step(optimizer, model, list(model.parameters()), loss)
        yield kind, loss.item(), model


def _match(
    model: open_clip.CLIP,
    tokenizer: PreTrainedTokenizerFast,
    kind: str,
    features: Tensor,
    drawn: Sequence[Drawing],
    rng: Rng,
    language: Language,
    recipe: Recipe | None = None,
) -> Tensor:
    """The loss between unit image features [n, E] and fresh captions of what they show; with a recipe some stand behind blanks."""
    claims: tuple[Claim, ...] = ()
    if kind == "naming":
        captions, claims = zip(*(naming_caption(d, rng, language) for d in drawn), strict=True)
    else:
        captions = tuple(describing_caption(d, rng, language) for d in drawn)
    ids = tokenize(tokenizer, captions)
    blanks = draw_blanks(rng, recipe, len(ids), CONTEXT - ids.shape[1]) if recipe else None
    logits = model.logit_scale.exp() * features @ encode_text(model, ids, blanks).T
    return naming_loss(logits, drawn, claims) if kind == "naming" else describing_loss(logits, captions)


def tokenize(tokenizer: PreTrainedTokenizerFast, captions: Sequence[str]) -> Tensor:
    """Padded ids [n, T], T <= CONTEXT."""
    return tokenizer(list(captions), padding=True, truncation=True, return_tensors="pt")["input_ids"]


def _optimizer(recipe: Recipe, parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def _schedule(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int, warm_up: int) -> None:
    """Linear warm-up, then half a cosine down to 2 %."""
    cosine = 0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2
    for group in optimizer.param_groups:
        group["lr"] = peak * min(1, (step + 1) / warm_up) * cosine


def grow_vocabulary(recipe: Recipe, model: open_clip.CLIP) -> open_clip.CLIP:
    """The model with the second stage's words; they start near the mean of the others."""
    grown = build_model(recipe)
    state = model.state_dict()
    old = state["token_embedding.weight"]
    new = old.mean(0) + grown.token_embedding.weight.detach()[: len(SECOND_WORDS)]
    state["token_embedding.weight"] = torch.cat([old[:-1], new, old[-1:]])
    grown.load_state_dict(state)
    return grown


def teach_senses(recipe: Recipe, model: open_clip.CLIP, *, stop_after: int | None = None) -> Iterator[Step]:
    """The second stage: the text tower alone learns that names have several senses, the image tower locked (LiT, arXiv 2111.07991)."""
    torch.set_num_threads(1)
    model = grow_vocabulary(recipe, model)
    model.eval()
    model.visual.requires_grad_(False)
    tokenizer = build_tokenizer()
    rng = np.random.default_rng((recipe.seed, 2))
    features, drawn = [], []
    for _ in range(0, recipe.sense_pool, CHUNK):
        pictures, shown = draw_chunk(CHUNK, rng.random(), rng, recipe.seed, SECOND)
        features.append(encode_pictures(model, pictures))
        drawn += shown
    pool = torch.cat(features)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = _optimizer(recipe, trained)
    for step in range(min(recipe.sense_steps, stop_after or recipe.sense_steps)):
        _schedule(optimizer, recipe.sense_rate, step, recipe.sense_steps, recipe.warm_up)
        rows = rng.integers(len(pool), size=recipe.sense_batch)
        kind = "naming" if rng.random() < 0.5 else "describing"
        loss = _match(model, tokenizer, kind, pool[rows], [drawn[i] for i in rows], rng, SECOND, recipe)
        _step(optimizer, model, trained, loss)
        yield kind, loss.item(), model


def _step(
    optimizer: torch.optim.Optimizer, model: open_clip.CLIP, trained: Sequence[nn.Parameter], loss: Tensor
) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, math.log(100))


# --- quality ---

PROMPT = "a photo of a {}."
CONTEXT_VECTORS = 16
TRAIN_PER_CLASS, TEST_PER_CLASS = 32, 25


@dataclass(frozen=True)
class Examples:
    """Unit image features [n, E] and labels [n] of one task, split; `names` as a prompt would say them."""

    names: tuple[str, ...]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def evaluate(model: open_clip.CLIP) -> dict[str, dict[str, float]]:
    """Accuracy in percent on real digits and on every style: zero-shot, with a tuned context, and of a linear probe."""
    torch.set_num_threads(1)
    model.eval().requires_grad_(False)
    tokenizer = build_tokenizer()
    found = {}
    for task in ("digits", *drawings.DOMAINS):
        examples = digits(model) if task == "digits" else styled(model, task)
        found[task] = {
            "zero_shot": accuracy(
                encode_text(model, tokenize(tokenizer, [PROMPT.format(n) for n in examples.names])), examples
            ),
            "tuned": accuracy(tuned_text(model, tokenizer, examples), examples),
            "linear_probe": linear_probe(examples),
        }
    return found


def digits(model: open_clip.CLIP) -> Examples:
    """Scikit-learn's handwritten digits (8 x 8 pixels), light on dark, enlarged to 24 x 24 inside a margin of 4."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    pictures = F.interpolate(torch.from_numpy(loaded.images).float()[:, None] / 16, (24, 24), mode="bilinear")
    pixels = (F.pad(pictures, (4, 4, 4, 4)) * 255).round().byte().expand(-1, 3, -1, -1)
    labels = torch.from_numpy(loaded.target).long()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    train = torch.cat([order[labels[order] == c][:TRAIN_PER_CLASS] for c in range(10)])
    test = order[~torch.isin(order, train)]
    features = encode_pictures(model, pixels)
    return Examples(drawings.DIGITS, (features[train], labels[train]), (features[test], labels[test]))


def styled(model: open_clip.CLIP, domain: str) -> Examples:
    rng = np.random.default_rng((0, list(drawings.DOMAINS).index(domain)))
    split = []
    for per_class in (TRAIN_PER_CLASS, TEST_PER_CLASS):
        labels = np.repeat(np.arange(len(drawings.CLASSES)), per_class)
        pixels = torch.from_numpy(drawings.draw(domain, labels.tolist(), rng)).permute(0, 3, 1, 2)
        split.append((encode_pictures(model, pixels), torch.from_numpy(labels)))
    return Examples(drawings.CLASSES, split[0], split[1])


@torch.no_grad()
def encode_pictures(model: open_clip.CLIP, pixels: Tensor) -> Tensor:
    """Unit features [n, E] of uint8 pictures [n, 3, S, S]."""
    return torch.cat([F.normalize(model.visual(normalise(part)), dim=-1) for part in pixels.split(250)])


def accuracy(text: Tensor, examples: Examples) -> float:
    features, labels = examples.test
    return round(100 * ((features @ text.T).argmax(1) == labels).float().mean().item(), 1)


def tuned_text(
    model: open_clip.CLIP,
    tokenizer: PreTrainedTokenizerFast,
    examples: Examples,
    *,
    steps: int = 400,
    batch: int = 64,
    rate: float = 0.01,
) -> Tensor:
    """Class features [C, E] behind `CONTEXT_VECTORS` learned vectors that all classes share (CoOp, arXiv 2109.01134), by Adam."""
    generator = torch.Generator().manual_seed(0)
    ids = tokenize(tokenizer, [f"{name}." for name in examples.names])
    words = model.token_embedding(ids)
    context = (0.02 * torch.randn(CONTEXT_VECTORS, words.shape[2], generator=generator)).requires_grad_()
    ends = ids.argmax(1) + CONTEXT_VECTORS
    length = ids.shape[1] + CONTEXT_VECTORS

    def text() -> Tensor:
        x = (
            torch.cat([words[:, :1], context.expand(len(ids), -1, -1), words[:, 1:]], 1)
            + model.positional_embedding[:length]
        )
        x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
        return F.normalize(x[torch.arange(len(ids)), ends] @ model.text_projection, dim=-1)

    features, labels = examples.train
    optimizer = torch.optim.Adam([context], rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * step / steps)) / 2
        rows = torch.randint(len(labels), (batch,), generator=generator)
        loss = F.cross_entropy(model.logit_scale.exp() * features[rows] @ text().T, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return text().detach()


def linear_probe(examples: Examples) -> float:
    from sklearn.linear_model import LogisticRegression

    probe = LogisticRegression(C=100, max_iter=2000).fit(*(t.numpy() for t in examples.train))
    return round(100 * float(probe.score(*(t.numpy() for t in examples.test))), 1)


# --- the folder ---


def save(
    model: open_clip.CLIP,
    recipe: Recipe,
    first_losses: Sequence[float],
    last_losses: dict[str, float],
    out: Path,
    seconds: int,
) -> None:
    """Write weights in half precision, configuration, tokenizer and training record; the quality is that of the rounded weights."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: t.half().contiguous() if t.is_floating_point() else t for name, t in model.state_dict().items()}
    save_file(weights, out / "open_clip_model.safetensors", metadata={"format": "pt"})
    config = {"model_cfg": model_config(recipe), "preprocess_cfg": preprocessing()}
    (out / "open_clip_config.json").write_text(json.dumps(config, indent=2) + "\n")
    build_tokenizer().save_pretrained(out)
    record = {
        "recipe": dataclasses.asdict(recipe),
        "data": data_fingerprint(recipe),
        "first_losses": list(first_losses),
        "last_losses": last_losses,
        "weights_sha256": hashlib.sha256((out / "open_clip_model.safetensors").read_bytes()).hexdigest(),
        "accuracy": evaluate(read(out)),
        "cpu_seconds": seconds,
        "versions": {"torch": torch.__version__.split("+")[0], "open_clip": open_clip.__version__},
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


def read(folder: Path) -> open_clip.CLIP:
    """The model of a folder, in single precision."""
    return open_clip.create_model(f"local-dir:{folder}").float()


def preprocessing() -> dict[str, Any]:
    """What open_clip calls preprocess_cfg."""
    return {
        "size": [drawings.SIZE, drawings.SIZE],
        "mode": "RGB",
        "mean": [MEAN] * 3,
        "std": [STD] * 3,
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }


def data_fingerprint(recipe: Recipe) -> dict[str, Any]:
    """SHA-256 of 256 drawings' words and captions, and the mean brightness of the first 16 pictures (0-255).

    Pictures are compared by brightness because font rasterisers and interpolation differ in the last bits between versions.
    """
    pictures, drawn = draw_chunk(256, 0.5, np.random.default_rng((recipe.seed, 0)), recipe.seed)
    rng = np.random.default_rng((recipe.seed, 1))
    lines = [f"{d}|{naming_caption(d, rng)}|{describing_caption(d, rng)}" for d in drawn]
    lines += [f"{tokenize(build_tokenizer(), [PROMPT.format(s.name) for s in SYMBOLS]).tolist()}"]
    brightness = pictures[:16].float().mean((1, 2, 3)).round().int().tolist()
    return {"sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(), "brightness": brightness}


def table(found: dict[str, dict[str, float]]) -> str:
    rows = [f"{'task':10}{'zero-shot':>10}{'tuned':>8}{'probe':>8}"]
    return "\n".join(
        rows + [f"{task:10}{a['zero_shot']:10}{a['tuned']:8}{a['linear_probe']:8}" for task, a in found.items()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train an embedded CLIP model, or measure one.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="folder for the model")
    task.add_argument(
        "--evaluate", type=Path, metavar="FOLDER", help="print the accuracies of the model in this folder"
    )
    parser.add_argument("--tower", choices=list(TOWERS), default="vit")
    parser.add_argument("--steps", type=int, help="optimiser steps, if not those of the shipped model")
    arguments = parser.parse_args()
    if arguments.evaluate:
        print(table(evaluate(read(arguments.evaluate))))
        return
    recipe = SHIPPED[arguments.tower]
    if arguments.steps:
        recipe = dataclasses.replace(recipe, steps=arguments.steps)
    run(recipe, arguments.out)


def run(recipe: Recipe, out: Path) -> None:
    """Train to the end, with a line every 100 steps, and write the folder."""
    losses: dict[str, list[float]] = {"naming": [], "describing": []}
    first: list[float] = []
    for step, (kind, loss, model) in enumerate(train(recipe), 1):
        losses[kind].append(loss)
        if step <= 3:
            first.append(round(loss, 4))
        if step % 100 == 0:
            last = {name: round(float(np.mean(values[-60:])), 4) for name, values in losses.items() if values}
            print(f"step {step}/{recipe.steps}  {last}", flush=True)
        if step == recipe.steps:
            save(model, recipe, first, last, out, round(time.process_time()))
    print(table(evaluate(read(out))))


if __name__ == "__main__":
    main()
