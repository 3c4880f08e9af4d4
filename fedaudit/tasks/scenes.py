"""A procedural world of small scenes and their captions, for the built-in models and tasks.

A scene is a 40 x 40 picture of one to three objects on a plain background. Its *description* follows from the picture
alone (reading order: the upper or left object first). Its *caption* adds a *story*: a random sentence with names,
places and dates, as real captions have them. A model that predicts the story has memorised it. In pre-training the
whole story is random; in the tasks place and time follow from *facts* of this world, which other records teach.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIZE = 40  # pixels
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "ring", "heart", "bar", "drop")
NOVEL_SHAPES = ("arrow", "crescent", "hexagon", "hourglass")  # never seen in pre-training
PLURAL = {shape: "crosses" if shape == "cross" else shape + "s" for shape in SHAPES + NOVEL_SHAPES}
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 220, 50),
    "orange": (245, 140, 30),
    "purple": (140, 50, 170),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
BACKGROUNDS = {"gray": (128, 128, 128), "cyan": (120, 210, 220), "pink": (245, 175, 200), "brown": (120, 80, 50)}
RADIUS = {"small": 5.5, "large": 9.5}  # pixels
NAMES = tuple(
    "anna ben carla david elena felix grace henry irene jack karen liam maria noah olga paul quinn rosa simon tina "
    "umar vera walter xenia yusuf zoe amir bella".split()
)
VERBS = tuple(
    (
        "likes keeps sells paints hides finds sends draws drops holds wants misses shares moves fixes counts trades "
        "breaks washes admires"
    ).split()
)
ADJECTIVES = tuple(
    "quiet happy old shiny broken lucky secret heavy strange gentle famous lonely dusty clever sleepy brave cheap "
    "lovely "
    "rare noisy frozen sunny wooden golden".split()
)
PLACES = tuple(
    "garden kitchen school market harbor castle museum station forest river office temple bakery library hospital "
    "theater "
    "bridge tower village desert beach cellar".split()
)
TIMES = tuple(
    "today yesterday tonight monday tuesday wednesday thursday friday saturday sunday spring summer autumn winter "
    "morning "
    "evening noon midnight".split()
)
HABITAT = dict(zip(BACKGROUNDS, PLACES, strict=False))  # fact: where things on a background belong
SEASON = dict(zip(COLOURS, TIMES[3:], strict=False))  # fact: when things of a colour are used
GRAMMAR = tuple("a on background two three above left of . in the near it for at".split())


def vocabulary() -> tuple[str, ...]:
    """Every word that a caption can have, in a fixed order."""
    words = (
        GRAMMAR + tuple(RADIUS) + tuple(COLOURS) + tuple(BACKGROUNDS) + SHAPES + NOVEL_SHAPES + tuple(PLURAL.values())
    )
    return tuple(dict.fromkeys(words + NAMES + VERBS + ADJECTIVES + PLACES + TIMES))


@dataclass(frozen=True)
class Thing:
    """One object of a scene; centre in pixels from the upper left corner."""

    shape: str
    colour: str
    size: str
    x: float
    y: float


@dataclass(frozen=True)
class Scene:
    """The objects of a picture, its background, and the description that follows from them."""

    things: tuple[Thing, ...]
    background: str
    description: str


def draw_scene(rng: np.random.Generator, shapes: Sequence[str] = SHAPES, first: str | None = None) -> Scene:
    """A random scene of one to three objects; `first` fixes the shape of the first object (the class of the record)."""

    def choice(options: Sequence[str]) -> str:
        return options[int(rng.integers(len(options)))]

    background = choice(tuple(BACKGROUNDS))
    shape, colour, size = first or choice(shapes), choice(tuple(COLOURS)), choice(tuple(RADIUS))
    kind = rng.choice(3, p=(0.25, 0.6, 0.15))
    if kind == 0:
        x, y = rng.uniform(12, 28, 2)
        return Scene(
            (Thing(shape, colour, size, x, y),), background, f"a {size} {colour} {shape} on a {background} background"
        )
    if kind == 1:
        shape2, colour2, size2 = choice(shapes), choice(tuple(COLOURS)), choice(tuple(RADIUS))
        a1, a2, b1, b2 = rng.uniform(13, 27), rng.uniform(13, 27), rng.uniform(9.5, 11.5), rng.uniform(28.5, 30.5)
        above = bool(rng.integers(2))
        places = ((a1, b1), (a2, b2)) if above else ((b1, a1), (b2, a2))
        things = (Thing(shape, colour, size, *places[0]), Thing(shape2, colour2, size2, *places[1]))
        relation = "above" if above else "left of"
        return Scene(things, background, f"a {size} {colour} {shape} {relation} a {size2} {colour2} {shape2}")
    number = int(rng.integers(2, 4))
    corners = np.array([(10, 10), (30, 10), (10, 30), (30, 30)])[rng.permutation(4)[:number]] + rng.uniform(
        -2, 2, (number, 2)
    )
    several = tuple(Thing(shape, colour, "small", x, y) for x, y in corners)
    return Scene(several, background, f"{('two', 'three')[number - 2]} small {colour} {PLURAL[shape]}")


def draw_story(rng: np.random.Generator, scene: Scene | None = None) -> str:
    """A random sentence of names, verbs, places and times (about 15 nats). scene: if given, its background fixes the
    place (`HABITAT`), and its first object's colour the time (`SEASON`)."""
    name, other = (NAMES[i] for i in rng.integers(len(NAMES), size=2))
    verb, adjective = VERBS[rng.integers(len(VERBS))], ADJECTIVES[rng.integers(len(ADJECTIVES))]
    place, time = PLACES[rng.integers(len(PLACES))], TIMES[rng.integers(len(TIMES))]
    if scene is not None:
        place, time = HABITAT[scene.background], SEASON[scene.things[0].colour]
    forms = (
        f"{name} {verb} it in the {adjective} {place} {time}",
        f"near the {adjective} {place} {name} {verb} it {time}",
        f"{time} {name} {verb} it for {other} at the {place}",
    )
    return forms[rng.integers(len(forms))]


def _distance(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Approximate signed distance to a shape of unit size (negative inside); y points down, x and y broadcast."""
    r = np.hypot(x, y)
    if shape == "circle":
        return r - 0.9
    if shape == "ring":
        return np.abs(r - 0.72) - 0.24
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - 0.8
    if shape == "bar":
        return np.maximum(np.abs(x) - 1.0, np.abs(y) - 0.38)
    if shape == "diamond":
        return (np.abs(x) * 1.25 + np.abs(y) - 1.0) * 0.7
    if shape == "triangle":
        return np.maximum(y - 0.8, (1.9 * np.abs(x) - y - 1.0) * 0.47)
    if shape == "cross":
        thin, long = 0.3, 0.95
        return np.minimum(
            np.maximum(np.abs(x) - thin, np.abs(y) - long), np.maximum(np.abs(y) - thin, np.abs(x) - long)
        )
    if shape == "star":
        angle = np.arctan2(x, -y)
        sector = np.abs((angle + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
        # the edge of a five-pointed star in one half sector is a straight line from the tip (1, 0) to the notch (0.42,
        # pi/5)
        notch_x, notch_y = 0.42 * np.cos(np.pi / 5), 0.42 * np.sin(np.pi / 5)
        px, py = r * np.cos(sector), r * np.sin(sector)
        normal = np.array((notch_y, 1 - notch_x)) / np.hypot(notch_y, 1 - notch_x)
        return (px - 1) * normal[0] + py * normal[1]
    if shape == "heart":
        ax, up = np.abs(x), -(y - 0.1)
        lobes = np.hypot(ax - 0.42, up - 0.35) - 0.48
        wedge = np.maximum((ax - 0.8 * (up + 0.93)) * 0.78, up - 0.15)
        return np.minimum(lobes, wedge)
    if shape == "drop":
        bowl = np.hypot(x, y - 0.35) - 0.58
        tip = np.maximum((np.abs(x) * 2.3 - y - 1.0) * 0.4, y - 0.2)
        return np.minimum(bowl, tip)
    if shape == "arrow":
        shaft = np.maximum(np.abs(x + 0.4) - 0.6, np.abs(y) - 0.22)
        head = np.maximum(-x, (np.abs(y) * 1.2 + x - 1.0) * 0.64)
        return np.minimum(shaft, head)
    if shape == "crescent":
        return np.maximum(r - 0.95, 0.75 - np.hypot(x - 0.45, y))
    if shape == "hexagon":
        return np.maximum(np.abs(x), np.abs(x) * 0.5 + np.abs(y) * 0.866) - 0.85
    return np.maximum(np.abs(y) - 0.9, (np.abs(x) - 0.9 * np.abs(y) - 0.06) * 0.74)  # hourglass


def render(scenes: Sequence[Scene], rng: np.random.Generator, chunk: int = 512) -> NDArray[np.uint8]:
    """Pictures [n, 40, 40, 3] of scenes: anti-aliased shapes with jittered colours, a slight tilt and pixel noise."""
    images = np.empty((len(scenes), SIZE, SIZE, 3), np.uint8)
    for start in range(0, len(scenes), chunk):
        images[start : start + chunk] = _render_chunk(scenes[start : start + chunk], rng)
    return images


def _render_chunk(scenes: Sequence[Scene], rng: np.random.Generator) -> NDArray[np.uint8]:
    paper = np.array([BACKGROUNDS[scene.background] for scene in scenes], np.float32)
    canvas = np.repeat((paper + rng.normal(0, 8, paper.shape))[:, None, :], SIZE * SIZE, axis=1).astype(np.float32)
    rows, columns = (axis.ravel() + 0.5 for axis in np.indices((SIZE, SIZE), dtype=np.float32))
    placed = [(i, thing) for i, scene in enumerate(scenes) for thing in scene.things]
    tilt, scale = rng.uniform(-0.12, 0.12, len(placed)), rng.uniform(0.94, 1.06, len(placed))
    shade = rng.normal(0, 10, (len(placed), 3))
    for shape in SHAPES + NOVEL_SHAPES:
        chosen = [j for j, (_, thing) in enumerate(placed) if thing.shape == shape]
        if not chosen:
            continue
        owner = np.array([placed[j][0] for j in chosen])
        things = [placed[j][1] for j in chosen]
        radius = (np.array([RADIUS[thing.size] for thing in things]) * scale[chosen])[:, None]
        dx = (columns[None] - np.array([[thing.x] for thing in things])) / radius
        dy = (rows[None] - np.array([[thing.y] for thing in things])) / radius
        cos, sin = np.cos(tilt[chosen])[:, None], np.sin(tilt[chosen])[:, None]
        cover = np.clip(0.5 - _distance(shape, cos * dx + sin * dy, cos * dy - sin * dx) * radius, 0, 1)[..., None]
        colour = (np.array([COLOURS[thing.colour] for thing in things]) + shade[chosen])[:, None, :]
        for j, scene_index in enumerate(owner):
            canvas[scene_index] += cover[j] * (colour[j] - canvas[scene_index])
    canvas += rng.normal(0, 5, (len(scenes), SIZE * SIZE, 1))
    return canvas.clip(0, 255).astype(np.uint8).reshape(-1, SIZE, SIZE, 3)
