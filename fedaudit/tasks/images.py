"""Classification of real pictures from local files: the data sets that federated prompt learning is measured on.

`--dataset NAME --data-root DIR`, or two as NAME+NAME: the first half of the clients then shares the first, the others
the second (SecFPP, 5.1). `domainnet` and `office_caltech10` stand for all of their domains. Sources of the partitions:
DP-FPL A.1, SecFPP 5.1, DP2FL. Data sets, layouts, partitions: docs/reference/images.md.
"""

from dataclasses import dataclass

import numpy as np

from fedaudit.machinery.parameters import text
from fedaudit.tasks.base import Federation
from fedaudit.tasks.classification import federate, split_names
from fedaudit.tasks.facts import TaskFacts
from fedaudit.tasks.imagesets import IMAGE_SETS, each_domain, load
from fedaudit.tasks.local_files import folder
from fedaudit.tasks.partition_params import Partitioned


class Facts(TaskFacts):
    learner = "prompts"


@dataclass(frozen=True)
class Params(Partitioned):
    dataset: str = text(
        "caltech101",
        "caltech101, oxford_pets, oxford_flowers, food101, cifar10, cifar100, dtd, eurosat, fgvc_aircraft, ucf101, "
        "stanford_cars, sun397, domainnet or office_caltech10, or two as in caltech101+oxford_pets",
    )
    data_root: str = text("", "folder that holds the data sets' folders, or is one")


def images(params: Params, *, clients: int, seed: int) -> Federation:
    """The federation of `clients` clients on the image data sets in `data_root`; pictures are decoded when they are
    used."""
    names = split_names(each_domain(params.dataset), IMAGE_SETS, flag="--dataset")
    root = folder(
        params.data_root,
        flag="--data-root",
        source=" and ".join(dict.fromkeys(IMAGE_SETS[name].folders[0] for name in names)),
    )
    data_sets = [load(name, root, np.random.default_rng((seed, 5, d))) for d, name in enumerate(names)]
    return federate(data_sets, params=params, clients=clients, seed=seed)
