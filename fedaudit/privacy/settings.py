"""Settings of clipping and noise, as the command line has them. Imports nothing heavy."""

import math
from dataclasses import dataclass

from fedaudit.machinery.parameters import Parameters, choice, like, number


@dataclass(frozen=True)
class Privacy(Parameters):
    """Clipping and noise of a run. The budget is per record of one client; an infinite epsilon means no noise."""

    epsilon: float = number(
        0.1, "epsilon per record that sets the noise", least=1e-6, most=10**6, infinite="none for no noise", sweep=True
    )
    delta: float = number(1e-5, "delta of that guarantee", least=1e-100, below=1)  # 1 / delta is a number
    clip: str = choice(
        "record",
        "record: clip each record's gradient, sum, divide by the public batch size; batch: clip the batch mean once, "
        "as the released code of DP-FPL does (sensitivity up to twice the clip norm)",
        ("record", "batch"),
    )
    clip_norm: float = number(
        10.0, "largest L2 norm that passes the clipping (C_th)", least=1e-6, most=10**9, infinite="inf without noise"
    )
    sigma: str = choice(
        "nominal",
        "nominal: S sqrt(T ln(1/delta)) / epsilon (DP-FPL, theorem 3.3 with c = 1); calibrated: the smallest noise for "
        "which the accountant proves (epsilon, delta) for everything a record touches",
        ("nominal", "calibrated"),
    )
    sampler: str = choice(
        "epochs",
        "epochs: batches of fixed size without replacement within a shuffled epoch; poisson: each step takes every "
        "record with probability batch / records",
        ("epochs", "poisson"),
    )

    def check(self) -> None:
        if math.isinf(self.clip_norm) and not math.isinf(self.epsilon):
            raise ValueError(f"clip_norm must be finite where epsilon is ({self.epsilon}), not {self.clip_norm}")


@dataclass(frozen=True)
class AdapterPrivacy(Privacy):
    """Defaults for adapters: a thousand times more noised entries than prompts (docs/reference/privacy.md)."""

    epsilon: float = like(Privacy, "epsilon", 10.0)
    clip_norm: float = like(Privacy, "clip_norm", 0.05)
    sigma: str = like(Privacy, "sigma", "calibrated")
    sampler: str = like(Privacy, "sampler", "poisson")


@dataclass(frozen=True)
class SilentPrivacy(Privacy):
    """Settings with no noise by default: for baselines of a method that adds none."""

    epsilon: float = like(Privacy, "epsilon", math.inf)
