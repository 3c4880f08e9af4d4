"""Settings that several audits share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Confident:
    confidence: float = field(default=0.95, metadata={"help": "of all intervals"})

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence <= 0.9999:
            raise ValueError(f"confidence must lie between 0.5 and 0.9999, not {self.confidence}")
