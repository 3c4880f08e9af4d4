"""The world on which the embedded CLIP models are pre-trained: symbols in many looks, and captions of them.

Digits, letters, Greek, signs and shapes are printed in fourteen fonts or written by hand, in inks, on grounds and with
damages of several kinds. `FIRST` and `SECOND` are the languages of the two stages of `recipes.clip`:
in the second, names have several senses ("k" may be a Georgian letter, "five" an Arabic digit), as words have for any
CLIP, so that context has something to select. No font and no style is one of the tasks' (`fedaudit.tasks.drawings`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from fedaudit.tasks import drawings
from fedaudit.tasks.drawings import Placing, Rng, fill, mix, smooth, uniform

CONTEXT = 32  # tokens

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
    """How captions speak of symbols: how often each kind is drawn, what it is called, the share of names without a
    noun."""

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
            pairs.append((names[a], names[_pick(far.tolist(), rng)]))
    shades = np.array([[COLOURS[a], COLOURS[b]] for a, b in pairs]) + rng.normal(0, 0.05, (n, 2, 3))
    middle = shades.mean(1, keepdims=True)
    contrast = rng.uniform(1 - 0.5 * severity, 1, (n, 1, 1))
    return torch.from_numpy((middle + contrast * (shades - middle)).clip(0, 1)).float(), pairs


# --- captions and their words ---

TEMPLATES = (
    "{}", "a {}", "the {}", "a drawing of the {}", "a drawing of a {}", "a picture of the {}", "an image of the {}",
    "this is the {}",
    "a sketch of the {}", "here is a {}", "a photo of a {}", "a photo of the {}", "a good photo of a {}",
    "one {} in the picture",
)  # fmt: skip
GENERAL_WORDS = (
    "a an the of on in with and . , photo picture image drawing sketch this is here one it shows good bad close up my "
    "single some "
    "small large tiny big style font type background color dark light bright by from domain handwritten symbol on "
    "paper screen wall sign "
    "neon chalk dots print outline relief glowing dotted old new real blackboard computer what which are you"
).split()


def vocabulary(stage: int = 2) -> list[str]:
    """Padding, start, unknown, every word, single characters that a word can go on with; the end token is last (the
    highest id).

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
