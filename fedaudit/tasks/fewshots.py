"""The drawn symbols of `glyphs` in DP2FL's split: a fifth of the classes missing, few shots, one dominant class.

Of 16 shots a client has 4 of each class that it is left with, and all 16 of its dominant one (Chang et al. 2025,
heterogeneity simulation). Validation records are the method's to hold back; test images count in each client's own
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
    """The federation of `clients` clients."""
    return glyphs(params, clients=clients, seed=seed)
