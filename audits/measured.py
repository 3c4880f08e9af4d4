"""Measured epsilon: what each adversary shows of it by guessing which canaries were trained on.

One score stands for an adversary: the first attack's first, of those that see something there; where it holds several
models of a client, the freshest. All canaries of the attacked clients count, and a fifth of them is guessed about, so
that nothing is chosen after the coins were seen. Two bounds come from the same guesses: that of Steinke, Nasr and
Jagielski (2023), which holds whatever the mechanism is, and, where the ledger proves a Gaussian mechanism of finite
epsilon, that of Mahloujifar, Melis and Chaudhuri (2025), which holds if it is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from audits.comparisons import ScoredModel, ScoredRun
from audits.findings import MEASURED, MEASURED_GAUSSIAN, MeasuredEpsilon, Names, OfRun
from audits.statistics import one_run, trade_off
from audits.statistics.guesses import CONFIDENCE, number_of_guesses, right_guesses
from fedaudit.privacy.ledger import strict
from fedaudit.tasks.base import client_name
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.threat_models import THREAT_MODELS

NOT_GUESSED = "not measured: no attack here speaks of canaries"

Coins = Mapping[int, Mapping[str, bool]]  # client to its canaries, and whether each was inserted


@dataclass(frozen=True)
class Hypothesis:
    """What is said about an adversary's epsilon for a record of the client looked at; infinite: nothing is."""

    claimed: float = math.inf
    provable: float = math.inf
    family: trade_off.Family | None = None  # of the mechanism whose epsilon is proven; None if nothing finite is


@dataclass(frozen=True, kw_only=True)
class Guessed:
    """How often one adversary was right about the canaries of the attacked clients."""

    threat_model: str
    way: str
    attack: str
    signal: str
    clients: int
    canaries: int
    inserted: int
    guesses: int
    correct: int


def bounds(
    run: ScoredRun, coins: Coins, *, names: Names, delta: float, said: Mapping[str, Hypothesis]
) -> list[MeasuredEpsilon]:
    """The lower bounds of every adversary that can guess; `said` by threat model is what is claimed and proven."""
    found = []
    for threat_model in THREAT_MODELS:
        if (guessed := guess(run, coins, threat_model)) is not None:
            about = said.get(threat_model, Hypothesis())
            metrics = (MEASURED, MEASURED_GAUSSIAN) if about.family else (MEASURED,)
            found += [_bound(guessed, metric, about, names, delta) for metric in metrics]
    return found


def guess(run: ScoredRun, coins: Coins, threat_model: str) -> Guessed | None:
    """What the adversary guesses; None if it holds no model or no score of any attack."""
    held = [m for m in run.models if m.threat_model == threat_model and m.way in FRESHEST]
    headlines = [(attack, signal) for attack, signals in run.headlines.items() for signal in signals]
    score = next(((a, s) for a, s in headlines if any(s in m.scores for m in held)), None)
    canaries = {(k, name): used for k, own in coins.items() for name, used in own.items()}
    if score is None or not canaries:
        return None
    attack, signal = score
    by_way = {way: _scores([m for m in held if m.way == way], list(canaries), signal) for way in FRESHEST}
    reached = {way: int(values.notna().sum()) for way, values in by_way.items()}
    way = next(way for way in FRESHEST if 2 * reached[way] >= max(reached.values()) and any(m.way == way for m in held))
    shared = any(m.way == way and m.client is None for m in held)
    used = np.array([*canaries.values()], dtype=bool)
    model = np.array(["" if shared else client_name(k) for k, _ in canaries], dtype=str)
    return Guessed(
        threat_model=threat_model,
        way=way,
        attack=attack,
        signal=signal,
        clients=sum(bool(own) for own in coins.values()),
        canaries=len(canaries),
        inserted=int(used.sum()),
        guesses=number_of_guesses(len(canaries)),
        correct=right_guesses(by_way[way].to_numpy(), used, model),
    )


def _scores(models: Sequence[ScoredModel], canaries: Sequence[tuple[int, str]], signal: str) -> pd.Series:
    """The score of every canary by the model of its client, or of all clients; NaN where there is none."""
    of = {m.client: m.scores[signal] for m in models if signal in m.scores}
    values = [of[k if k in of else None].get(name, math.nan) if {k, None} & of.keys() else math.nan
              for k, name in canaries]  # fmt: skip
    return pd.Series(values, dtype=float)


def _bound(guessed: Guessed, metric: str, said: Hypothesis, names: Names, delta: float) -> MeasuredEpsilon:
    g, family = guessed, said.family if metric == MEASURED_GAUSSIAN else None
    right = {"correct": g.correct, "guesses": g.guesses, "canaries": g.canaries}
    value, most = (_lower_bound(family, about, delta) for about in (right, right | {"correct": g.guesses}))
    return MeasuredEpsilon(
        **names,
        metric=metric,
        threat_model=g.threat_model,
        way=g.way,
        attack=g.attack,
        signal=g.signal,
        mechanism=family.words if family else "",
        value=value,
        confidence=CONFIDENCE,
        ceiling=most,
        delta=delta,
        clients=g.clients,
        inserted=g.inserted,
        canaries=g.canaries,
        guesses=g.guesses,
        correct=g.correct,
        claimed=strict(said.claimed),
        provable=strict(said.provable),
        p_claimed=_p_value(family, said.claimed, delta, right),
        p_provable=_p_value(family, said.provable, delta, right),
        sentence=_sentence(g, family, value, most, delta),
    )


def _lower_bound(family: trade_off.Family | None, right: Mapping[str, int], delta: float) -> float:
    if family is None:
        return one_run.epsilon_lower_bound(**right, delta=delta)
    return trade_off.epsilon_lower_bound(**right, delta=delta, family=family)


def _p_value(family: trade_off.Family | None, epsilon: float, delta: float, right: Mapping[str, int]) -> float | None:
    """Largest probability of so many right guesses if epsilon is that; None if it is infinite."""
    if math.isinf(epsilon):
        return None
    if family is None:
        return one_run.p_value(**right, epsilon=epsilon, delta=delta)
    return trade_off.p_value(family.curve(family.mu(epsilon, delta)), **right)


def _sentence(g: Guessed, family: trade_off.Family | None, value: float, most: float, delta: float) -> str:
    if_gaussian = f" if the mechanism is {family.words}" if family else ""
    return (
        f"{g.threat_model}, by {g.signal}: {g.correct} of {g.guesses} guesses about {g.canaries} canaries are right: "
        f"epsilon is at least {value:.3g}{if_gaussian} ({100 * CONFIDENCE:g} %, delta {delta:g}; "
        f"at most {most:.3g} could be shown)."
    )


def words(findings: Sequence[OfRun], threat_model: str) -> str:
    """The bounds against an adversary in a line: the number, and behind a colon what it rests on."""
    own = {m.metric: m for m in findings if isinstance(m, MeasuredEpsilon) and m.threat_model == threat_model}
    if MEASURED not in own:
        return NOT_GUESSED
    first = own[MEASURED]
    about = f"of at most {first.ceiling:.3g} with {first.canaries} canaries, {first.guesses} guessed about"
    if (second := own.get(MEASURED_GAUSSIAN)) is None:
        return f"at least {first.value:.3g}: {about}"
    more = f"at least {second.value:.3g} (of at most {second.ceiling:.3g}) if the mechanism is {second.mechanism}"
    return f"at least {first.value:.3g}: {about}; {more}"
