"""The drawn symbols of `glyphs` in DP2FL's partition: few shots, a fifth of the classes missing, one dominant class.

A client has 4 records of each class that it keeps, and all 16 of its dominant class (Chang et al. 2025, heterogeneity
simulation). The method itself holds back validation records; test images are weighted by each client's own class
proportions (`own_test`).
"""

from dataclasses import dataclass

from fedaudit.machinery.parameters import like
from fedaudit.tasks.base import Federation
from fedaudit.tasks.facts import TaskFacts
from fedaudit.tasks.glyphs import glyphs
from fedaudit.tasks.partition_params import Drawings


class Facts(TaskFacts):
    learner = "maple"


@dataclass(frozen=True)
class Params(Drawings):
    partition: str = like(Drawings, "partition", "dominant")


def fewshots(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients, as `glyphs` makes it."""
    return glyphs(params, clients=clients, seed=seed)
