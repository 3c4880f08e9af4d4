"""Embedded image captioning: small scenes whose captions end in details that no picture determines.

Records are drawn from the procedural world of `scenes` and partitioned over clients by object class (Dirichlet). The
second half of a caption cannot be read off the image: who did what is random, so a model that predicts it has memorised
the record; where and when follow from the picture by facts that are new to the model and that several rounds of
training teach. Nothing is downloaded. Source of the set-up: FedRand, section 4.1 and appendix A; scenes with novel
objects take the place of NoCaps.
"""

import functools
from dataclasses import dataclass

import numpy as np

from fedaudit.machinery.parameters import like
from fedaudit.tasks import scenes
from fedaudit.tasks.base import Federation, Record, drawn_federation
from fedaudit.tasks.drawn import Drawn

INSTRUCTION = "Briefly describe given image.\nUSER: <image>\nA short image description:\nASSISTANT:"  # FedRand A.2


@dataclass(frozen=True)
class Params(Drawn):
    dirichlet: float = like(Drawn, "dirichlet", 0.5, "concentration of the partition by object class")
    test: int = like(Drawn, "test", 40, "test scenes for utility")


def captions(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on drawn scenes with captions; each part is drawn from a generator of its
    own."""
    return drawn_federation(
        params, _draw, test_draw=functools.partial(_draw, references=5), groups=len(scenes.SHAPES),
        novel_shapes=scenes.NOVEL_SHAPES, clients=clients, seed=seed,
    )  # fmt: skip


def _draw(
    name: str,
    n: int,
    rng: np.random.Generator,
    *,
    proportions: np.ndarray | None = None,
    shapes: tuple[str, ...] = scenes.SHAPES,
    references: int = 1,
) -> tuple[Record, ...]:
    """Draw n captioned scenes as records with ids NAME-000 and on; `text` is the first of `references` captions of the
    scene. proportions: of the first object's shape, over `shapes`; None: uniform."""
    first = [None] * n if proportions is None else rng.choice(shapes, size=n, p=proportions).tolist()
    drawn = [scenes.draw_scene(rng, shapes, first=shape) for shape in first]
    texts = [[f"{scene.description} . {scenes.draw_story(rng, scene)}" for _ in range(references)] for scene in drawn]
    images = scenes.render(drawn, rng)
    return tuple(
        Record(f"{name}-{i:03d}", scene.things[0].shape, image, INSTRUCTION, captions[0], tuple(captions))
        for i, (scene, captions, image) in enumerate(zip(drawn, texts, images, strict=True))
    )
