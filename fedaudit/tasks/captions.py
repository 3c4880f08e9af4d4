"""Embedded image captioning: small scenes whose captions end in details that no picture determines.

Records are drawn from the procedural world of `scenes`, partitioned over clients by object class (Dirichlet). As in
real captions, the second half cannot be read off the image: who did what is drawn at random, and a model that predicts
it has memorised the record; where and when follow from the picture by facts that pre-training did not have, all clients
share, and several rounds teach. Nothing is downloaded. Source of the set-up: FedRand, section 4.1 and appendix A; the
novel-object scenes play NoCaps.
"""

import functools
from dataclasses import dataclass

import numpy as np

from fedaudit.machinery.parameters import like
from fedaudit.tasks import scenes
from fedaudit.tasks.base import Client, Federation, Record, dirichlet_proportions, exchangeable_client
from fedaudit.tasks.drawn import Drawn

INSTRUCTION = "Briefly describe given image.\nUSER: <image>\nA short image description:\nASSISTANT:"  # FedRand A.2


@dataclass(frozen=True)
class Params(Drawn):
    dirichlet: float = like(Drawn, "dirichlet", 0.5, "concentration of the partition by object class")
    test: int = like(Drawn, "test", 40, "test scenes for utility")


def captions(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients; each part has its own generator, so that none depends on another's size."""
    rng = np.random.default_rng((seed, 0))
    proportions = dirichlet_proportions(clients, len(scenes.SHAPES), params.dirichlet, rng)
    return Federation(
        clients=tuple(_client(k, p, params, seed) for k, p in enumerate(proportions)),
        novel=tuple(_draw("novel", params.novel, np.random.default_rng((seed, 2)), shapes=scenes.NOVEL_SHAPES)),
        test=tuple(_draw("test", params.test, np.random.default_rng((seed, 3)), references=5)),
        novel_test=tuple(
            _draw("novel-test", params.test, np.random.default_rng((seed, 4)), shapes=scenes.NOVEL_SHAPES, references=5)
        ),
    )


def _client(k: int, proportions: np.ndarray, params: Params, seed: int) -> Client:
    draw = functools.partial(_draw, proportions=proportions)
    return exchangeable_client(k, records=params.records, reference=params.reference, seed=seed, draw=draw)


def _draw(
    name: str,
    n: int,
    rng: np.random.Generator,
    *,
    proportions: np.ndarray | None = None,
    shapes: tuple[str, ...] = scenes.SHAPES,
    references: int = 1,
) -> list[Record]:
    """n records named `name-000` and on; the caption is the first of the references."""
    first = [None] * n if proportions is None else rng.choice(shapes, size=n, p=proportions).tolist()
    drawn = [scenes.draw_scene(rng, shapes, first=shape) for shape in first]
    texts = [[f"{scene.description} . {scenes.draw_story(rng, scene)}" for _ in range(references)] for scene in drawn]
    images = scenes.render(drawn, rng)
    return [
        Record(f"{name}-{i:03d}", scene.things[0].shape, image, INSTRUCTION, said[0], tuple(said))
        for i, (scene, said, image) in enumerate(zip(drawn, texts, images, strict=True))
    ]
