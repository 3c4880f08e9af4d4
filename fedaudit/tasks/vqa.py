"""Embedded visual questions: multiple choice about small scenes in the ScienceQA template, partitioned by topic.

Ten topics (see `questions`): six are visual and were asked in pre-training, three need facts that only other records
can teach, one has private answers that nothing but memory can give. Scored by exact match. Source of the set-up:
FedRand, section 4.1 and appendix A; the task takes the place of ScienceQA.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedaudit.machinery.parameters import like
from fedaudit.tasks import scenes
from fedaudit.tasks.base import Federation, Record, drawn_federation
from fedaudit.tasks.drawn import Drawn
from fedaudit.tasks.metrics import answer_scores
from fedaudit.tasks.questions import TOPICS, draw_question


@dataclass(frozen=True)
class Params(Drawn):
    dirichlet: float = like(Drawn, "dirichlet", 0.5, "concentration of the partition by topic")
    test: int = like(Drawn, "test", 60, "test questions for utility")


def vqa(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on drawn scenes with questions; each part is drawn from a generator of its
    own."""
    return drawn_federation(
        params, _draw, test_draw=_draw, groups=len(TOPICS), novel_shapes=scenes.NOVEL_SHAPES, clients=clients,
        seed=seed, score=answer_scores,
    )  # fmt: skip


def _draw(
    name: str,
    n: int,
    rng: np.random.Generator,
    *,
    proportions: np.ndarray | None = None,
    shapes: Sequence[str] = scenes.SHAPES,
) -> tuple[Record, ...]:
    """Draw n questions as records with ids NAME-000 and on, on topics by `proportions` over `TOPICS` (None: uniform),
    about scenes of these `shapes`."""
    topics = rng.choice(TOPICS, size=n, p=proportions).tolist()
    drawn = [draw_question(rng, topic, shapes) for topic in topics]
    images = scenes.render([scene for scene, _ in drawn], rng)
    return tuple(
        Record(f"{name}-{i:03d}", topic, image, question.prompt, question.answer, (question.answer,))
        for i, (topic, (_, question), image) in enumerate(zip(topics, drawn, images, strict=True))
    )
