"""Parameters of the embedded tasks on scenes: how many are drawn, and how clients share them. Imports nothing heavy."""

from dataclasses import dataclass

from fedaudit.machinery.parameters import Parameters, number, whole


@dataclass(frozen=True)
class Drawn(Parameters):
    """Base of the tasks' `Params`; docs/reference/methods.md describes the tasks. All records are drawn before anything
    is trained, about a thousand a second, and held in memory."""

    records: int = whole(28, "expected training records per client; as many are held out", least=2, most=10**4)
    dirichlet: float = number(0.5, "concentration of the partition", least=0.001, most=10**6)
    reference: int = whole(40, "records per client kept for thresholds", least=2, most=10**4)
    novel: int = whole(150, "out-of-distribution records (novel objects)", least=2, most=10**5)
    test: int = whole(40, "test records for utility", least=1, most=10**4)
