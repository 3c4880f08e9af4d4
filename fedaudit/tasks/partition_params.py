"""Parameters of all classification tasks: how clients share the records. Imports nothing heavy."""

from dataclasses import dataclass

from fedaudit.machinery.parameters import Parameters, choice, number, text, whole


@dataclass(frozen=True)
class Partitioned(Parameters):
    """Base of the tasks' `Params`; docs/reference/images.md describes the partitions."""

    partition: str = choice("pathological", "of the classes over clients", ("pathological", "dirichlet", "dominant"))
    dirichlet: float = number(0.3, "concentration of the dirichlet partition", least=0.001, most=10**6)
    shots: int = whole(
        0,
        "records per class and client, held-out ones included; 0: all (16 of the dominant class)",
        least=0,
        most=10**6,
    )
    reference_share: float = number(0.25, "part of a client's records kept for thresholds", least=0.05, most=0.9)
    holdout: float = choice(
        0.5, "part of the others that coins hold out; 0 trains on all, where nothing is attacked", (0.5, 0)
    )

    def check(self) -> None:
        if self.shots and self.partition == "dirichlet":
            raise ValueError(f"shots must be 0 with a dirichlet partition, not {self.shots}")


@dataclass(frozen=True)
class Drawings(Partitioned):
    """Base of the `Params` of tasks on drawn symbols. All are drawn before training and kept in memory."""

    domain: str = text("neon", "style: print, outline, dots, neon, chalk, relief, or several as print+neon")
    train: int = whole(48, "training pictures of each class, held-out ones included", least=1, most=10**4)
    test: int = whole(20, "test pictures of each class", least=1, most=10**4)
