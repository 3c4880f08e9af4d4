"""How the records of a classification task are shared out: the parameters that all of these tasks have. Imports nothing
heavy."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Partitioned:
    """Base of the tasks' `Params`; docs/images.md describes the partitions."""

    partition: str = field(
        default="pathological", metadata={"help": "of the classes over clients: pathological, dirichlet or dominant"}
    )
    dirichlet: float = field(default=0.3, metadata={"help": "concentration of the dirichlet partition"})
    shots: int = field(
        default=0,
        metadata={"help": "records per class and client, held-out ones included; 0: all (16 of the dominant class)"},
    )
    reference_share: float = field(default=0.25, metadata={"help": "part of a client's records kept for thresholds"})
    holdout: float = field(
        default=0.5,
        metadata={
            "help": "part of the others that coins hold out: 0.5, or 0 to train on all where nothing is attacked"
        },
    )

    def __post_init__(self) -> None:
        if self.partition not in ("pathological", "dirichlet", "dominant"):
            raise ValueError(f"partition must be pathological, dirichlet or dominant, not {self.partition}")
        if not 1e-3 <= self.dirichlet <= 1e6:
            raise ValueError(f"dirichlet must lie between 0.001 and 1000000, not {self.dirichlet}")
        if self.shots < 0 or (self.shots and self.partition == "dirichlet"):
            raise ValueError(f"shots must be at least 0, and 0 with a dirichlet partition, not {self.shots}")
        if not 0.05 <= self.reference_share <= 0.9:
            raise ValueError(f"reference_share must lie between 0.05 and 0.9, not {self.reference_share}")
        if self.holdout not in (0, 0.5):
            raise ValueError(f"holdout must be 0.5 (fair coins) or 0 (all records are trained on), not {self.holdout}")


@dataclass(frozen=True)
class Drawings(Partitioned):
    """Base of the `Params` of tasks on drawn symbols."""

    domain: str = field(
        default="neon", metadata={"help": "style: print, outline, dots, neon, chalk, relief, or several as print+neon"}
    )
    train: int = field(default=48, metadata={"help": "training pictures of each class, held-out ones included"})
    test: int = field(default=20, metadata={"help": "test pictures of each class"})

    def __post_init__(self) -> None:
        for name in ("train", "test"):  # all are drawn before anything is trained, and held in memory
            if not 1 <= getattr(self, name) <= 10**4:
                raise ValueError(f"{name} must be at least 1 and at most 10000, not {getattr(self, name)}")
        super().__post_init__()
