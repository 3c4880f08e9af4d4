"""Embedded classification of 40 drawn symbols in one style, or in several: digits, letters, signs and shapes.

The pictures come from `drawings`, in styles that the embedded model's pre-training never shows. `--domain print+neon`
gives the first half of the clients one style and the others another (SecFPP's multi-domain setting, 5.1): both have the
same 40 classes, a name being one class in either style, so a client's neighbours own the same names in another look.
Partitions: docs/images.md.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.tasks.base import Federation
from fedaudit.tasks.classification import Labelled, chosen, federate
from fedaudit.tasks.drawings import CLASSES, DOMAINS, draw
from fedaudit.tasks.facts import TaskFacts
from fedaudit.tasks.partition_params import Drawings


class Facts(TaskFacts):
    learner = "prompts"


@dataclass(frozen=True)
class Params(Drawings):
    """Those of drawn symbols."""


def glyphs(params: Drawings, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients; training and test pictures of each style are drawn from generators of their
    own."""
    styles = chosen(params.domain, DOMAINS, flag="--domain")
    drawn = [_drawn(style, params, d, seed) for d, style in enumerate(styles)]
    return federate(drawn, params=params, clients=clients, seed=seed)


def _drawn(style: str, params: Drawings, d: int, seed: int) -> Labelled:
    train, test = (np.repeat(np.arange(len(CLASSES)), each) for each in (params.train, params.test))
    pictures = draw(style, train.tolist(), np.random.default_rng((seed, 5, d)))
    unseen = draw(style, test.tolist(), np.random.default_rng((seed, 3, d)))
    return Labelled(style, CLASSES, pictures, train, unseen, test)
