"""Epsilon audit: what a method claims, what an accountant proves from the ledger, and what canaries show.

One row per adversary and owner of the record: the client under attack ("own"), or another one ("other"). The accountant
proves epsilon in three readings: as it ran (a record is in at most so many of the steps), as the papers compose (in
every step), and that under replacement of a record; infinity where something leaves without noise. A second table has
the mechanisms, and their noise over the gradient that it covers. Measured are lower bounds from guesses about canaries
(`audits.measured`), with or without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.findings import NO_CANARIES, Epsilon, MeasuredEpsilon, MeasuredWeight, Names
from fedaudit.audits.measured import Hypothesis, words
from fedaudit.audits.measured import bounds as measured_bounds
from fedaudit.audits.statistics.sampled import PoissonSampled
from fedaudit.audits.statistics.trade_off import GAUSSIAN, Family
from fedaudit.audits.subject import Result, Subject
from fedaudit.privacy.accountant import noise_to_signal, provable
from fedaudit.privacy.ledger import Ledger, RoundNoise, sampling_rate, strict
from fedaudit.privacy.settings import Privacy
from fedaudit.terms.threat_models import ACTIVE_SERVER, RELEASED_MODEL, SERVER
from fedaudit.trainers.transcript import Transcript

COLUMNS = "threat_model whose claimed provable every_step replace_one delta why".split()
NOISE = "release party std dimension sensitivity clip clip_norm sampler batch steps noise signal ratio clipped".split()


class Facts(AuditFacts):
    needs = ("ledger",)


@dataclass(frozen=True)
class Params:
    """The epsilon audit has no parameters of its own."""


def epsilon(subject: Subject, params: Params) -> Result:
    """Findings of the claimed and provable epsilon of a training, and of lower bounds from canaries; the tables
    `privacy` (see `privacy_table`) and `noise` (see `noise_table`), and the ledger as JSON in `kept`."""
    ledger = ledger_of(subject.transcript, subject.method)
    table = privacy_table(ledger, subject.method, subject.privacy or Privacy(epsilon=math.inf), subject.threat_models)
    tables = {"privacy": table, "noise": noise_table(ledger, subject.transcript)}
    bounds = measured(subject, hypotheses(table, ledger))
    rows = findings(
        table, names=subject.names, in_words=lambda view, owner: _measured_words(subject, bounds, view, owner)
    )
    return Result([*rows, *bounds], tables, {"ledger": ledger.to_json()})


def measured(subject: Subject, hypotheses: Mapping[str, Hypothesis]) -> list[MeasuredEpsilon | MeasuredWeight]:
    """The lower bounds on epsilon from the canaries of an attacked run, one or two per adversary; none without an
    attack."""
    if subject.attacked is None:
        return []
    return measured_bounds(
        subject.attacked, subject.canaries, names=subject.names, delta=subject.delta, hypotheses=hypotheses
    )


def hypotheses(table: pd.DataFrame, ledger: Ledger) -> dict[str, Hypothesis]:
    """By adversary, the claimed and provable epsilon for a client's own record from `privacy_table`, with the family of
    the ledger's mechanism if the provable one is finite and positive."""
    own = table[table.whose == "own"]
    sent = next((m for step in ledger.steps for m in step if m.release in ledger.shared), None)
    of_sent: tuple[float | None, float] = (None, 1.0)
    if sent is not None:
        rates = [sampling_rate(records=each.records, batch=sent.batch) for each in ledger.exposures]
        of_sent = sent.std, float(np.mean(rates))
    return {
        view: Hypothesis(claimed, proven, _family(ledger) if 0 < proven < math.inf else None, *of_sent)
        for view, claimed, proven in zip(own.threat_model, own.claimed, own.provable, strict=True)
    }


def _family(ledger: Ledger) -> Family:
    """The family of mechanisms that a ledger's noise belongs to."""
    return PoissonSampled.of(ledger) if ledger.sampler == "poisson" else GAUSSIAN


def _measured_words(subject: Subject, bounds: Sequence[MeasuredEpsilon | MeasuredWeight], view: str, owner: str) -> str:
    """The canaries' lower bounds on epsilon against the adversary `view` in words, or why there are none, for a record
    of the client itself (`owner` "own") or of another one ("other"); the released model is the same for both."""
    if not subject.canaries:
        return NO_CANARIES
    if subject.attacked is None:
        return "not measured: nothing was attacked"
    if owner == "other" and view != RELEASED_MODEL:
        return "not measured: a canary is guessed from its own client's model"
    return words(bounds, view)


def findings(
    table: pd.DataFrame, *, names: Names, in_words: Callable[[str, str], str] = lambda *_: NO_CANARIES
) -> list[Epsilon]:
    """A finding per row of `privacy_table`. `names` holds run, method, task and seed; `in_words` gives, for an
    adversary and the owner of the record ("own", "other"), the measured epsilon in words."""
    rows = []
    for row in table.to_dict("records"):
        claimed, proven = row["claimed"], row["provable"]
        rows.append(
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
                measured=in_words(row["threat_model"], row["whose"]),
            )
        )
    return rows


def _sentence(row: Mapping[str, Any]) -> str:
    """A row of `privacy_table` in words: against whom, what is claimed, what is proven, and the reason."""
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
    """The ledger of all noise of a run; `method` names the tensors that it keeps, shares and uploads without noise."""
    rounds = (transcript.round(r) for r in range(transcript.schedule.rounds))
    return Ledger.of(
        (RoundNoise.from_json(record["noise"]) for record in rounds if "noise" in record),
        local=method.local,
        shared=method.shared,
        clear=tuple(f"the gradient of {name}" for name in method.central),
    )


def privacy_table(ledger: Ledger, method: Any, privacy: Privacy, threat_models: Sequence[str]) -> pd.DataFrame:
    """The claimed and provable epsilons: a row per adversary and `whose` record it is ("own": the attacked client's,
    "other": another client's).

    Columns: threat_model, whose; claimed; provable, of the run as it was; every_step, if the record were in every step;
    replace_one, the same if records are swapped, not removed; delta; why, a reason in words. The float inf: nothing is
    claimed or proven; 0: nothing is trained.
    """
    rows = []
    for view in threat_models:
        for owner in ("own", "other"):
            if not (method.local or method.shared):  # it looks at no record
                rows.append((view, owner, 0.0, 0.0, 0.0, 0.0, privacy.delta, "nothing is trained"))
                continue
            where: dict[str, Any] = {"threat_model": view, "whose": owner, "delta": privacy.delta}
            ran, every = provable(ledger, **where), provable(ledger, **where, every_step=True)
            swapped = provable(ledger, **where, every_step=True, relation="replace")
            # methods whose server adds the noise trust it: nothing is claimed against it
            trusted = view in (SERVER, ACTIVE_SERVER) and method.central
            claimed = math.inf if trusted else privacy.epsilon
            rows.append((view, owner, claimed, ran.epsilon, every.epsilon, swapped.epsilon, privacy.delta, ran.why))
    return pd.DataFrame(rows, columns=COLUMNS)


def noise_table(ledger: Ledger, transcript: Transcript) -> pd.DataFrame:
    """A row per noise mechanism that ran, with the columns NOISE: who adds it to which tensor, its parameters, how
    often it ran (`steps`), its length `noise` beside the mean length `signal` of the gradient that it covers, their
    `ratio`, and the share of gradients that were longer than the clipping norm (`clipped`; NaN: there were none)."""
    noised = [record["noise"] for r in range(transcript.schedule.rounds) if "noise" in (record := transcript.round(r))]
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
