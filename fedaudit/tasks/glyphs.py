"""Embedded classification of 40 drawn symbols in one style or several: digits, letters, signs and shapes.

The pictures come from `drawings`, in styles that the built-in model was not pre-trained on. With `--domain print+neon`
the first half of the clients has one style and the others another (multi-domain setting of SecFPP, 5.1). Both have the
same 40 classes. Partitions: docs/reference/images.md.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.tasks.base import Federation
from fedaudit.tasks.classification import Labelled, federate, split_names
from fedaudit.tasks.drawings import CLASSES, DOMAINS, draw
from fedaudit.tasks.facts import TaskFacts
from fedaudit.tasks.partition_params import Drawings


class Facts(TaskFacts):
    learner = "prompts"


@dataclass(frozen=True)
class Params(Drawings):
    """The parameters of drawn symbols, and no others."""


def glyphs(params: Drawings, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients; each style's training and test pictures have generators of their own."""
    styles = split_names(params.domain, DOMAINS, flag="--domain")
    drawn = [_drawn(style, params, d, seed) for d, style in enumerate(styles)]
    return federate(drawn, params=params, clients=clients, seed=seed)


def _drawn(style: str, params: Drawings, d: int, seed: int) -> Labelled:
    train, test = (np.repeat(np.arange(len(CLASSES)), each) for each in (params.train, params.test))
    pictures = draw(style, train.tolist(), np.random.default_rng((seed, 5, d)))
    test_pictures = draw(style, test.tolist(), np.random.default_rng((seed, 3, d)))
    return Labelled(style, CLASSES, pictures, train, test_pictures, test)
