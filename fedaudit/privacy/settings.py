"""How a method is made private: what the command line offers. Imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Privacy:
    """Clipping and noise of a run. The budget is per record of one client; an infinite epsilon means no noise."""

    epsilon: float = field(
        default=0.1, metadata={"help": "epsilon per record that sets the noise, none for no noise", "sweep": True}
    )
    delta: float = field(default=1e-5, metadata={"help": "delta of that guarantee"})
    clip: str = field(
        default="record",
        metadata={
            "help": "record: clip each record's gradient, sum, divide by the public batch size; batch: clip the batch "
            "mean once, as the "
            "released code of DP-FPL does (sensitivity up to twice the clip norm)"
        },
    )
    clip_norm: float = field(default=10.0, metadata={"help": "largest L2 norm that passes the clipping (C_th)"})
    sigma: str = field(
        default="nominal",
        metadata={
            "help": "nominal: S sqrt(T ln(1/delta)) / epsilon (DP-FPL, theorem 3.3 with c = 1); calibrated: the "
            "smallest noise for which the "
            "accountant proves (epsilon, delta) for everything a record touches"
        },
    )
    sampler: str = field(
        default="epochs",
        metadata={
            "help": "epochs: batches of fixed size without replacement within a shuffled epoch; poisson: each step "
            "takes every record with "
            "probability batch / records"
        },
    )

    def __post_init__(self) -> None:
        if not (1e-6 <= self.epsilon <= 10**6 or self.epsilon == math.inf):
            raise ValueError(
                f"epsilon must be positive, from 0.000001 to 1000000, or none for no noise, not {self.epsilon}"
            )
        if not 1e-100 <= self.delta < 1:  # 1 / delta is a number
            raise ValueError(f"delta must lie between 0 and 1, and be at least 1e-100, not {self.delta}")
        if not (1e-6 <= self.clip_norm <= 10**9 or self.clip_norm == math.inf):
            raise ValueError(f"clip_norm must be positive, from 0.000001 to 1000000000, not {self.clip_norm}")
        if math.isinf(self.clip_norm) and not math.isinf(self.epsilon):
            raise ValueError(f"clip_norm must be finite where epsilon is ({self.epsilon}), not {self.clip_norm}")
        for name, words in (
            ("clip", ("record", "batch")),
            ("sigma", ("nominal", "calibrated")),
            ("sampler", ("epochs", "poisson")),
        ):
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be {' or '.join(words)}, not {getattr(self, name)}")


def _usual(name: str, value: Any) -> Any:
    """The field of `Privacy` with another default."""
    return field(default=value, metadata=Privacy.__dataclass_fields__[name].metadata)


@dataclass(frozen=True)
class AdapterPrivacy(Privacy):
    """The same with what is usual for adapters, whose noised gradients have a thousand times more entries than a
    prompt's (docs/privacy.md has what these values rest on)."""

    epsilon: float = _usual("epsilon", 10.0)
    clip_norm: float = _usual("clip_norm", 0.05)
    sigma: str = _usual("sigma", "calibrated")
    sampler: str = _usual("sampler", "poisson")


@dataclass(frozen=True)
class SilentPrivacy(Privacy):
    """The same without noise, unless it is asked for: for baselines of a method that adds none."""

    epsilon: float = _usual("epsilon", math.inf)
