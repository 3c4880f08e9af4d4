"""Classification of real pictures from local files: ten data sets that federated prompt learning is measured on.

`--dataset NAME --data-root DIR`, or two as NAME+NAME: the first half of the clients then shares the first, the others the
second (SecFPP, 5.1). Sources of the partitions: DP-FPL A.1, SecFPP 5.1, DP2FL. Data sets, layouts, partitions: docs/images.md.
"""

from dataclasses import dataclass, field

import numpy as np

from fedaudit.tasks.base import Federation
from fedaudit.tasks.imagesets import IMAGE_SETS, load
from fedaudit.tasks.labelled import chosen, federate
from fedaudit.tasks.local import folder

LEARNER = "prompts"


@dataclass(frozen=True)
class Params:
    dataset: str = field(
        default="caltech101",
        metadata={
            "help": "caltech101, oxford_pets, oxford_flowers, food101, cifar10, cifar100, dtd, eurosat, fgvc_aircraft or "
            "ucf101, or two as in caltech101+oxford_pets"
        },
    )
    data_root: str = field(default="", metadata={"help": "folder that holds the data sets' folders, or is one"})
    partition: str = field(
        default="pathological", metadata={"help": "of the classes over clients: pathological, dirichlet or dominant"}
    )
    dirichlet: float = field(default=0.3, metadata={"help": "concentration of the dirichlet partition"})
    shots: int = field(
        default=0,
        metadata={"help": "records per class and client, held-out ones included; 0: all (16 of the dominant class)"},
    )
    reference_share: float = field(default=0.25, metadata={"help": "part of a client's records kept for thresholds"})

    def __post_init__(self) -> None:
        if self.partition not in ("pathological", "dirichlet", "dominant"):
            raise ValueError(f"partition must be pathological, dirichlet or dominant, not {self.partition}")
        if not 1e-3 <= self.dirichlet <= 1e6:
            raise ValueError(f"dirichlet must lie between 0.001 and 1000000, not {self.dirichlet}")
        if self.shots < 0 or (self.shots and self.partition == "dirichlet"):
            raise ValueError(f"shots must be at least 0, and 0 with a dirichlet partition, not {self.shots}")
        if not 0.05 <= self.reference_share <= 0.9:
            raise ValueError(f"reference_share must lie between 0.05 and 0.9, not {self.reference_share}")


def images(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the files of `data_root`; pictures are read when they are used."""
    names = chosen(params.dataset, IMAGE_SETS, flag="--dataset")
    root = folder(
        params.data_root, flag="--data-root", source=" and ".join(IMAGE_SETS[name].folders[0] for name in names)
    )
    found = [load(name, root, np.random.default_rng((seed, 5, d))) for d, name in enumerate(names)]
    return federate(found, params=params, clients=clients, seed=seed)
