"""Classification of real handwritten digits: the 1,797 of scikit-learn, 8 x 8 pixels enlarged to 32 x 32.

Half of each class is for training, half for testing. In a pathological split over ten clients each has one class. Meant
for checks on real pictures without a download; for comparisons take `glyphs`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedaudit.tasks.base import Federation
from fedaudit.tasks.classification import Labelled, federate
from fedaudit.tasks.facts import TaskFacts
from fedaudit.tasks.partition_params import Partitioned

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Facts(TaskFacts):
    learner = "prompts"


@dataclass(frozen=True)
class Params(Partitioned):
    """The parameters of the partition, and no others."""


def digits(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on real handwritten digits; `seed` also decides which half of each class is
    for testing."""
    pictures, labels = _load()
    rng = np.random.default_rng((seed, 5))
    halves = [np.array_split(rng.permutation(np.flatnonzero(labels == c)), 2) for c in range(len(CLASSES))]
    train, test = (np.sort(np.concatenate(half)) for half in zip(*halves, strict=True))
    real = Labelled("digits", CLASSES, pictures[train], labels[train], pictures[test], labels[test])
    return federate([real], params=params, clients=clients, seed=seed)


def _load() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels [1797, 32, 32, 3], light on dark, the digit in the middle 24 x 24; labels [1797]."""
    from PIL import Image
    from sklearn.datasets import load_digits

    data = load_digits()
    ink = (data.images * (255 / 16)).astype(np.float32)  # [n, 8, 8] of 0..16
    large = np.stack([np.asarray(Image.fromarray(one).resize((24, 24), Image.Resampling.BILINEAR)) for one in ink])
    framed = np.pad(large.round().astype(np.uint8), ((0, 0), (4, 4), (4, 4)))
    return np.repeat(framed[..., None], 3, axis=-1), data.target.astype(np.int64)
