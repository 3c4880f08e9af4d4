"""Epsilon audit: what a method claims beside what an accountant proves from the ledger of the noise that really ran.

One row per adversary and whose record: of the client whose prompt is looked at, or of another one. Proven are four
readings: as it ran (a record is in at most so many of the steps), as the papers compose (in every step), under
replacement of a record, and infinity where something leaves without noise. The mechanisms themselves and the noise over
the signal that it covers stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from audits.findings import Epsilon
from audits.subject import Result, Subject
from fedaudit.privacy.accountant import noise_to_signal, provable
from fedaudit.privacy.ledger import Ledger, RoundNoise, strict
from trainers.base import Transcript

NEEDS = ("noise",)
VIEWS = ("prompt-user", "released-model", "server", "owner")
COLUMNS = "threat_model whose claimed provable every_step replace_one delta why".split()
NOISE = "release party std dimension sensitivity clip clip_norm sampler batch steps noise signal ratio clipped".split()


@dataclass(frozen=True)
class Params:
    """The epsilon audit has no parameters of its own."""


def epsilon(subject: Subject, params: Params) -> Result:
    """What is claimed and proven about a training, and the ledger that says so."""
    ledger = ledger_of(subject.transcript, subject.method)
    table = privacy_table(ledger, subject.method, subject.privacy)
    tables = {"privacy": table, "noise": noise_table(ledger, subject.transcript)}
    return Result(findings(table, names=subject.names), tables, {"ledger": ledger.to_json()})


def findings(table: pd.DataFrame, *, names: Mapping[str, Any]) -> list[Epsilon]:
    """A finding per row of `privacy_table`; `names` holds run, method, task and seed."""
    found = []
    for row in table.to_dict("records"):
        claimed, proven = row["claimed"], row["provable"]
        found.append(
            Epsilon(
                **names,
                metric="epsilon",
                threat_model=row["threat_model"],
                whose=row["whose"],
                claimed=strict(claimed),
                provable=strict(proven),
                every_step=strict(row["every_step"]),
                replace_one=None if math.isnan(row["replace_one"]) else strict(row["replace_one"]),
                delta=row["delta"],
                why=row["why"],
                sentence=_sentence(row),
            )
        )
    return found


def _sentence(row: Mapping[str, Any]) -> str:
    claimed, proven, every = row["claimed"], row["provable"], row["every_step"]
    who = f"{row['threat_model']}, a record of {'the client itself' if row['whose'] == 'own' else 'another client'}"
    if math.isinf(claimed):
        return f"{who}: nothing is claimed; {row['why']}."
    if every > claimed * 1.001:
        more = "" if math.isinf(every) else f" ({every / claimed:.2g} times)"
        ran = "" if proven > claimed else f"; as it ran, {proven:.3g} is proven"
        return (
            f"{who}: epsilon {claimed:g} is claimed, {every:.3g} is proven if a record is in every "
            f"step{more}{ran}; {row['why']}."
        )
    return (
        f"{who}: epsilon {claimed:g} is claimed and {every:.3g} is proven, a record being in every step; {row['why']}."
    )


def ledger_of(transcript: Transcript, method: Any) -> Ledger:
    """All noise of a run; `method` says what it keeps, shares, and uploads without noise."""
    rounds = (transcript.round(r) for r in range(transcript.schedule.rounds))
    return Ledger.of(
        (RoundNoise.from_json(found["noise"]) for found in rounds if "noise" in found),
        local=method.local,
        shared=method.shared,
        clear=tuple(f"the gradient of {name}" for name in method.central),
    )


def privacy_table(ledger: Ledger, method: Any, privacy: Any) -> pd.DataFrame:
    """Claimed and provable epsilon by adversary and whose record; infinities as such."""
    rows = []
    for view in VIEWS:
        for whose in ("own", "other"):
            if not (method.local or method.shared):  # it looks at no record
                rows.append((view, whose, 0.0, 0.0, 0.0, 0.0, privacy.delta, "nothing is trained"))
                continue
            where: dict[str, Any] = {"threat_model": view, "whose": whose, "delta": privacy.delta}
            ran, every = provable(ledger, **where), provable(ledger, **where, every_step=True)
            swapped = provable(ledger, **where, every_step=True, relation="replace")
            trusted = (
                view == "server" and method.central
            )  # these methods trust the server: nothing is claimed against it
            claimed = math.inf if trusted else privacy.epsilon
            rows.append((view, whose, claimed, ran.epsilon, every.epsilon, swapped.epsilon, privacy.delta, ran.why))
    return pd.DataFrame(rows, columns=COLUMNS)


def noise_table(ledger: Ledger, transcript: Transcript) -> pd.DataFrame:
    """Every mechanism that ran, how often, its noise over the mean length of the gradient that it covers, and the share
    of gradients that were longer than C (NaN where there were none)."""
    noised = [found["noise"] for r in range(transcript.schedule.rounds) if "noise" in (found := transcript.round(r))]
    rows = []
    for k, step in enumerate(ledger.steps):
        for m in step:
            signal = float(np.mean([one["signals"][m.release] for one in noised if m.release in one["signals"]]))
            cut, counted = np.sum([one["clipped"][m.release] for one in noised], axis=0)
            rows.append((m.release, m.party, m.std, m.dimension, m.sensitivity, m.clip, m.clip_norm, m.sampler, m.batch,
                         max(e.steps[k] for e in ledger.exposures), m.std * math.sqrt(m.dimension), signal,
                         noise_to_signal(std=m.std, dimension=m.dimension, signal=signal),
                         cut / counted if counted else math.nan))  # fmt: skip
    return pd.DataFrame(rows, columns=NOISE)
