"""Multiple-choice questions about the scenes, of visual topics, topics that take knowledge, and a private one.

A question belongs to a topic, by which clients are partitioned. Answers to *visual* topics are in the picture, and
pre-training asked them. Those to *knowledge* topics follow from the picture by facts of this world that pre-training
did not have: other records teach them. Answers to the *private* topic are random: a model that gives them has memorised
the record. Template: FedRand, appendix A.2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.tasks import scenes
from fedaudit.tasks.scenes import (
    ADJECTIVES,
    BACKGROUNDS,
    COLOURS,
    HABITAT,
    NAMES,
    PLACES,
    PLURAL,
    RADIUS,
    SEASON,
    SHAPES,
    TIMES,
    Scene,
)  # fmt: skip

VISUAL = ("colour", "shape", "size", "number", "background", "position")
KNOWLEDGE = ("habitat", "season", "character")
PRIVATE = ("owner",)
TOPICS = VISUAL + KNOWLEDGE + PRIVATE
OPTIONS = 4  # at most
HINTED = 0.3  # share of the questions that come with a context
LETTERS = "ABCDEFGHIJ"

EVERY_SHAPE = SHAPES + scenes.NOVEL_SHAPES
NUMBERS = ("one", "two", "three")
CHARACTER = dict(zip(NUMBERS, ADJECTIVES, strict=False))  # the number of things decides

WORDS = tuple(
    "based , respond to question with options answer context ( ) b c d what which colour shape how is big many are "
    "there ? behind it does lie below right one this thing belong where when used who owns like".split()
)


@dataclass(frozen=True)
class Question:
    """One question about a scene; `answer` is one of `options`."""

    text: str
    options: tuple[str, ...]
    answer: str
    context: str = ""

    @property
    def prompt(self) -> str:
        return question_prompt(question=self.text, options=self.options, context=self.context)


def question_prompt(*, question: str, options: Sequence[str], context: str = "") -> str:
    """The prompt of a multiple-choice question by FedRand's ScienceQA template. The paper has no place for the
    question: here it precedes the context."""
    hint = f"Context: {context.rstrip('. ')}. " if context.strip() else ""
    listed = " ".join(f"({LETTERS[i] if i < len(LETTERS) else i + 1}) {option}" for i, option in enumerate(options))
    return (
        "Based on the image, respond to the question with a given options.\n"
        f"USER: <image>\nQuestion: {question} {hint}Options: {listed}. Answer:\nASSISTANT:"
    )


def draw_question(
    rng: np.random.Generator, topic: str, shapes: Sequence[str] = SHAPES, *, hinted: float = HINTED
) -> tuple[Scene, Question]:
    """A random scene, and the question of `topic` about it, to which exactly one of its options is right. hinted: the
    probability that the question has a context."""
    while (drafted := _DRAFTS[topic](scene := scenes.draw_scene(rng, shapes), rng)) is None:
        pass
    text, answer, others = drafted
    wrong = [other for other in others if other != answer]
    count = min(len(wrong), int(rng.integers(2, OPTIONS)))
    options = [answer, *(wrong[i] for i in rng.choice(len(wrong), size=count, replace=False))]
    order = rng.permutation(len(options))
    context = scenes.draw_story(rng) if rng.random() < hinted else ""
    return scene, Question(text, tuple(options[i] for i in order), answer, context)


Draft = tuple[str, str, Sequence[str]] | None  # question, answer, all possible answers; None: the scene does not fit


def _colour(scene: Scene, rng: np.random.Generator) -> Draft:
    thing = scene.things[rng.integers(len(scene.things))]
    if len({t.colour for t in scene.things if t.shape == thing.shape}) > 1:
        return None
    return f"what colour is the {thing.shape}?", thing.colour, tuple(COLOURS)


def _shape(scene: Scene, rng: np.random.Generator) -> Draft:
    thing = scene.things[rng.integers(len(scene.things))]
    if len({t.shape for t in scene.things if t.colour == thing.colour}) > 1:
        return None
    return f"which shape is {thing.colour}?", thing.shape, EVERY_SHAPE if thing.shape not in SHAPES else SHAPES


def _size(scene: Scene, rng: np.random.Generator) -> Draft:
    thing = scene.things[rng.integers(len(scene.things))]
    if len({t.size for t in scene.things if t.shape == thing.shape}) > 1:
        return None
    return f"how big is the {thing.shape}?", thing.size, tuple(RADIUS)


def _number(scene: Scene, rng: np.random.Generator) -> Draft:
    shape = scene.things[0].shape
    count = sum(t.shape == shape for t in scene.things)
    return f"how many {PLURAL[shape]} are there?", NUMBERS[count - 1], NUMBERS


def _position(scene: Scene, rng: np.random.Generator) -> Draft:
    if len({t.shape for t in scene.things}) < 2:
        return None
    first, second = scene.things  # in reading order: the first is above or left of the second
    above = second.y - first.y > abs(second.x - first.x)
    if rng.random() < 0.5:
        answer, one, other = ("above" if above else "left"), first, second
    else:
        answer, one, other = ("below" if above else "right"), second, first
    return f"where does the {one.shape} lie to the {other.shape}?", answer, ("above", "below", "left", "right")


def _season(scene: Scene, rng: np.random.Generator) -> Draft:
    colours = {t.colour for t in scene.things}
    return None if len(colours) > 1 else ("when is this thing used?", SEASON[colours.pop()], TIMES)


_DRAFTS: dict[str, Callable[[Scene, np.random.Generator], Draft]] = {
    "colour": _colour,
    "shape": _shape,
    "size": _size,
    "number": _number,
    "background": lambda scene, rng: ("what colour is behind it?", scene.background, tuple(BACKGROUNDS)),
    "position": _position,
    "habitat": lambda scene, rng: ("where does this thing belong?", HABITAT[scene.background], PLACES),
    "season": _season,
    "character": lambda scene, rng: ("what is this thing like?", CHARACTER[NUMBERS[len(scene.things) - 1]], ADJECTIVES),
    "owner": lambda scene, rng: ("who owns this thing?", NAMES[rng.integers(len(NAMES))], NAMES),
}
