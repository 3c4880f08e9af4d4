"""How many scenes are drawn, and how they are shared out: the parameters that the embedded tasks on scenes have.
Imports nothing heavy."""

from dataclasses import dataclass, field

# all are drawn before anything is trained, about a thousand a second, and held in memory
LIMITS = {"records": (2, 10**4), "reference": (2, 10**4), "novel": (2, 10**5), "test": (1, 10**4)}


@dataclass(frozen=True)
class Drawn:
    """Base of the tasks' `Params`; docs/methods.md describes the tasks."""

    records: int = field(default=28, metadata={"help": "expected training records per client; as many are held out"})
    dirichlet: float = field(default=0.5, metadata={"help": "concentration of the partition"})
    reference: int = field(default=40, metadata={"help": "records per client kept for thresholds"})
    novel: int = field(default=150, metadata={"help": "out-of-distribution records (novel objects)"})
    test: int = field(default=40, metadata={"help": "test records for utility"})

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be at least {least} and at most {most}, not {getattr(self, name)}")
        if not 1e-3 <= self.dirichlet <= 1e6:
            raise ValueError(f"dirichlet must lie between 0.001 and 1000000, not {self.dirichlet}")
