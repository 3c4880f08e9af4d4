"""Embedded visual questions: multiple choice about small scenes in the ScienceQA template, partitioned by topic.

Ten topics (see `questions`): six are visual and were asked in pre-training, three need facts that only other records can teach, one has
private answers that nothing but memory can give. Scored by exact match. Source of the set-up: FedRand, section 4.1 and appendix A; it has
ScienceQA's place.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedaudit.tasks import scenes
from fedaudit.tasks.base import Client, Federation, Record, dirichlet_proportions, exchangeable_client
from fedaudit.tasks.metrics import answer_scores
from fedaudit.tasks.questions import TOPICS, draw_question


@dataclass(frozen=True)
class Params:
    records: int = field(default=28, metadata={"help": "expected training records per client; as many are held out"})
    dirichlet: float = field(default=0.5, metadata={"help": "concentration of the partition by topic"})
    reference: int = field(default=75, metadata={"help": "records per client kept for thresholds"})
    novel: int = field(default=300, metadata={"help": "out-of-distribution records (novel objects)"})
    test: int = field(default=60, metadata={"help": "test questions for utility"})

    def __post_init__(self) -> None:
        # all are drawn before anything is trained, about a thousand a second, and held in memory
        for name, least, most in (
            ("records", 2, 10**4),
            ("reference", 2, 10**4),
            ("novel", 2, 10**5),
            ("test", 1, 10**4),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be at least {least} and at most {most}, not {getattr(self, name)}")
        if not 1e-3 <= self.dirichlet <= 1e6:
            raise ValueError(f"dirichlet must lie between 0.001 and 1000000, not {self.dirichlet}")


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
