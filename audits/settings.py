"""Settings that several audits share."""

from __future__ import annotations

from dataclasses import dataclass

from fedaudit.machinery.parameters import Parameters, number


@dataclass(frozen=True)
class Confident(Parameters):
    """Base of the `Params` of audits whose intervals share one confidence."""

    confidence: float = number(0.95, "of all intervals", least=0.5, most=0.9999)
