"""Embedded visual questions: multiple choice about small scenes in the ScienceQA template, partitioned by topic.

Ten topics (see `questions`): six are visual and were asked in pre-training, three need facts that only other records
can teach, one has private answers that nothing but memory can give. Scored by exact match. Source of the set-up:
FedRand, section 4.1 and appendix A; it has ScienceQA's place.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.machinery.parameters import like
from fedaudit.tasks import scenes
from fedaudit.tasks.base import Client, Federation, Record, dirichlet_proportions, exchangeable_client
from fedaudit.tasks.drawn import Drawn
from fedaudit.tasks.metrics import answer_scores
from fedaudit.tasks.questions import TOPICS, draw_question


@dataclass(frozen=True)
class Params(Drawn):
    dirichlet: float = like(Drawn, "dirichlet", 0.5, "concentration of the partition by topic")
    test: int = like(Drawn, "test", 60, "test questions for utility")


def vqa(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients; each part has its own generator, so that none depends on another's size."""
    rng = np.random.default_rng((seed, 0))
    proportions = dirichlet_proportions(clients, len(TOPICS), params.dirichlet, rng)
    return Federation(
        clients=tuple(_client(k, p, params, seed) for k, p in enumerate(proportions)),
        novel=_draw("novel", params.novel, np.random.default_rng((seed, 2)), shapes=scenes.NOVEL_SHAPES),
        test=_draw("test", params.test, np.random.default_rng((seed, 3))),
        score=answer_scores,
        novel_test=_draw("novel-test", params.test, np.random.default_rng((seed, 4)), shapes=scenes.NOVEL_SHAPES),
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
    shapes: Sequence[str] = scenes.SHAPES,
) -> tuple[Record, ...]:
    """n records named `name-000` and on, their topics drawn by `proportions` (alike where None)."""
    topics = rng.choice(TOPICS, size=n, p=proportions).tolist()
    drawn = [draw_question(rng, topic, shapes) for topic in topics]
    images = scenes.render([scene for scene, _ in drawn], rng)
    return tuple(
        Record(f"{name}-{i:03d}", topic, image, asked.prompt, asked.answer, (asked.answer,))
        for i, (topic, (_, asked), image) in enumerate(zip(topics, drawn, images, strict=True))
    )
