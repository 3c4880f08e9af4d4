"""Measured epsilon: lower bounds from how well each adversary guesses which canaries were trained on.

Each adversary guesses by one score, the first headline score that its models have, or where the ledger has Gaussian
noise that of an attack made for it (`AttackFacts.of_noise`), and by the freshest of its models of a client. All
canaries of the attacked clients count, and a fifth of them is guessed about, so that nothing is chosen after the coins
were seen. Two bounds come from the same guesses: that of Steinke, Nasr and Jagielski (2023), which holds whatever the
mechanism is, and, where the ledger proves a Gaussian mechanism of finite epsilon, that of Mahloujifar, Melis and
Chaudhuri (2025), which holds if it is one. A third bound needs no guesses: where messages with such noise were seen and
solved, all are regressed on the coins (`audits.statistics.regression`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedaudit.attacks.facts import ATTACKS
from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.audits.findings import (
    MEASURED,
    MEASURED_GAUSSIAN,
    MEASURED_SCORES,
    MEASURED_WEIGHT,
    MeasuredEpsilon,
    MeasuredWeight,
    Names,
    OfRun,
)
from fedaudit.audits.statistics import one_run, trade_off
from fedaudit.audits.statistics.guesses import CONFIDENCE, number_of_guesses, right_guesses
from fedaudit.audits.statistics.regression import Coined, CoinRegression, regress
from fedaudit.privacy.ledger import strict
from fedaudit.tasks.base import client_name
from fedaudit.terms.held_models import FRESHEST
from fedaudit.terms.threat_models import THREAT_MODELS

NOT_GUESSED = "not measured: no attack here speaks of canaries"
CEILING = 1e5  # a larger epsilon is not told apart
Floats = NDArray[np.float64]

Coins = Mapping[int, Mapping[str, bool]]  # by client and canary whether it was inserted


@dataclass(frozen=True)
class Hypothesis:
    """The claimed and the provable epsilon for a record of the attacked client against an adversary; infinite: none."""

    claimed: float = math.inf
    provable: float = math.inf
    family: trade_off.Family | None = None  # of the mechanism whose epsilon is proven; None: no finite one is
    noise: float | None = None  # the ledger's standard deviation of what clients send; None: none is known
    share: float = 1.0  # of the steps that a record is in


@dataclass(frozen=True, kw_only=True)
class Guessed:
    """The guesses of one adversary about the canaries of the attacked clients, as `MeasuredEpsilon` reports them."""

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
    run: ScoredRun,
    coins: Coins,
    *,
    names: Names,
    delta: float,
    hypotheses: Mapping[str, Hypothesis],
    guessed_about: str = "canaries",
) -> list[MeasuredEpsilon | MeasuredWeight]:
    """The lower bounds on epsilon by every adversary that can guess: one for any mechanism; if the ledger's mechanism
    has a proven epsilon, a second one for its family (`Hypothesis.family`); if messages with Gaussian noise were
    solved, a third one from these, and how much of a record is in them. `guessed_about` is what sentences call the
    records of the `coins`."""
    lower_bounds: list[MeasuredEpsilon | MeasuredWeight] = []
    for threat_model in THREAT_MODELS:
        hypothesis = hypotheses.get(threat_model, Hypothesis())
        if (guessed := guess(run, coins, threat_model, noised=hypothesis.family is not None)) is not None:
            metrics = (MEASURED, MEASURED_GAUSSIAN) if hypothesis.family else (MEASURED,)
            lower_bounds += [_bound(guessed, metric, hypothesis, names, delta, guessed_about) for metric in metrics]
            if (fitted := regression(run, coins, threat_model)) is not None:
                lower_bounds.append(_of_messages(guessed, fitted, hypothesis, names, delta, guessed_about))
                lower_bounds.append(_weight(threat_model, fitted, hypothesis.share, names))
    return lower_bounds


def guess(run: ScoredRun, coins: Coins, threat_model: str, *, noised: bool = False) -> Guessed | None:
    """The guesses of an adversary about all canaries; None if it holds no model, no attack scores its models, or there
    are no canaries. It uses its first headline score, or if messages are `noised` one made for noise, and its first
    kind of model in FRESHEST (an order of preference) that scores half as many canaries as any."""
    models = [m for m in run.models if m.threat_model == threat_model and m.way in FRESHEST]
    headlines = [(attack, signal) for attack, signals in run.headlines.items() for signal in signals]
    if noised:
        headlines.sort(key=lambda pair: pair[0] not in ATTACKS or not ATTACKS[pair[0]].facts.of_noise)
    score = next(((a, s) for a, s in headlines if any(s in m.scores for m in models)), None)
    canaries = {(k, name): coin for k, coin_by_canary in coins.items() for name, coin in coin_by_canary.items()}
    if score is None or not canaries:
        return None
    attack, signal = score
    by_way = {way: _scores([m for m in models if m.way == way], list(canaries), signal) for way in FRESHEST}
    reached = {way: int(values.notna().sum()) for way, values in by_way.items()}
    way = next(
        way for way in FRESHEST if 2 * reached[way] >= max(reached.values()) and any(m.way == way for m in models)
    )
    shared = any(m.way == way and m.client is None for m in models)
    inserted = np.array([*canaries.values()], dtype=bool)
    model = np.array(["" if shared else client_name(k) for k, _ in canaries], dtype=str)
    return Guessed(
        threat_model=threat_model,
        way=way,
        attack=attack,
        signal=signal,
        clients=sum(bool(coin_by_canary) for coin_by_canary in coins.values()),
        canaries=len(canaries),
        inserted=int(inserted.sum()),
        guesses=number_of_guesses(len(canaries)),
        correct=right_guesses(by_way[way].to_numpy(), inserted, model),
    )


def _scores(models: Sequence[ScoredModel], canaries: Sequence[tuple[int, str]], signal: str) -> pd.Series:
    """The score of every canary [n], given as (client, id), by the model of its client or, if it has none, by the one
    that all clients share; NaN: there is none."""
    scores = {m.client: m.scores[signal] for m in models if signal in m.scores}
    values = [scores[k if k in scores else None].get(name, math.nan) if {k, None} & scores.keys() else math.nan
              for k, name in canaries]  # fmt: skip
    return pd.Series(values, dtype=float)


def _bound(
    guessed: Guessed, metric: str, hypothesis: Hypothesis, names: Names, delta: float, guessed_about: str
) -> MeasuredEpsilon:
    """The finding of a lower bound: for any mechanism (`metric` MEASURED), or for the hypothesis' family of mechanisms
    (MEASURED_GAUSSIAN)."""
    g, family = guessed, hypothesis.family if metric == MEASURED_GAUSSIAN else None
    right = {"correct": g.correct, "guesses": g.guesses, "canaries": g.canaries}
    value, ceiling = (_lower_bound(family, counts, delta) for counts in (right, right | {"correct": g.guesses}))
    return MeasuredEpsilon(
        **names,
        metric=metric,
        **dataclasses.asdict(guessed),
        mechanism=family.words if family else "",
        value=value,
        confidence=CONFIDENCE,
        ceiling=ceiling,
        delta=delta,
        claimed=strict(hypothesis.claimed),
        provable=strict(hypothesis.provable),
        p_claimed=_p_value(family, hypothesis.claimed, delta, right),
        p_provable=_p_value(family, hypothesis.provable, delta, right),
        sentence=_sentence(g, family, value, ceiling, delta, guessed_about),
    )


def regression(run: ScoredRun, coins: Coins, threat_model: str) -> CoinRegression | None:
    """The regression of all messages that an adversary saw on the coins of the canaries; None if it saw none with
    noise, or they tell nothing."""
    clients = []
    for model in run.models:
        read = model.messages if model.threat_model == threat_model and model.client in coins else None
        if model.client is not None and read is not None and (messages := read()):
            records = model.scores.index[: messages[0].gradients.shape[1]].tolist()
            clients.append(Coined(messages, *_columns(run, coins[model.client], records)))
    return regress(clients) if clients else None


def _columns(run: ScoredRun, coins: Mapping[str, bool], records: Sequence[str]) -> tuple[Floats, Floats]:
    """`Coined.coins` and `Coined.expected` of some records [n] of a client, whose canaries' coins are given."""
    coin = [coins[record] - 0.5 if record in coins else 0.0 for record in records]
    expected = [0.5 if record in coins else float(run.truth.get(record, False)) for record in records]
    return np.array(coin), np.array(expected)


def _of_messages(
    guessed: Guessed, fitted: CoinRegression, hypothesis: Hypothesis, names: Names, delta: float, about: str
) -> MeasuredEpsilon:
    """The finding of the lower bound from a regression of the messages of the adversary that `guessed`."""

    def epsilon(mu: float) -> float:
        return min(CEILING, trade_off.GAUSSIAN.epsilon(mu, delta))

    def p_value(hypothesised: float) -> float | None:
        return None if math.isinf(hypothesised) else fitted.p_value(trade_off.GAUSSIAN.mu(hypothesised, delta))

    value, noise = epsilon(fitted.mu_lower_bound()), fitted.noise
    expected = None
    if 0 < hypothesis.provable < math.inf:
        expected = epsilon(fitted.expected_bound(trade_off.GAUSSIAN.mu(hypothesis.provable, delta)))
    beside = f", {noise / hypothesis.noise:.3g} of the ledger's" if hypothesis.noise else ""
    expectation = "" if expected is None else f"; about {expected:.3g} if the ledger is right"
    return MeasuredEpsilon(
        **names,
        metric=MEASURED_SCORES,
        **{**dataclasses.asdict(guessed), "guesses": None, "correct": None},
        mechanism="Gaussian, added to sums of gradients",
        value=value,
        confidence=CONFIDENCE,
        ceiling=CEILING,
        delta=delta,
        claimed=strict(hypothesis.claimed),
        provable=strict(hypothesis.provable),
        p_claimed=p_value(hypothesis.claimed),
        p_provable=p_value(hypothesis.provable),
        noise=noise,
        ledger_noise=hypothesis.noise,
        expected=expected,
        sentence=f"{guessed.threat_model}, by a regression of messages on the coins of {guessed.canaries} {about}: "
        f"epsilon is at least {value:.3g} if the noise is Gaussian ({100 * CONFIDENCE:g} %, delta {delta:g}"
        f"{expectation}). The noise has a standard deviation of {noise:.3g}{beside}.",
    )


def _weight(threat_model: str, fitted: CoinRegression, share: float, names: Names) -> MeasuredWeight:
    """How much of a record is in the messages, and what it means where it is more or much less than the ledger says."""
    value, (low, high) = fitted.scale, fitted.scale_interval()
    means = ""
    if low > 1:
        means = (
            ": messages hold more of a record than clipping allows, or gradients of later steps are longer than those "
            "at the broadcast. The bound from messages counts no more than 1"
        )
    elif value < 0.5 * share and high < share:
        means = (
            ": gradients of the steps are not those at the broadcast, or less is in the messages than the ledger says. "
            "The bound from messages is far below the truth"
        )
    return MeasuredWeight(
        **names, metric=MEASURED_WEIGHT, threat_model=threat_model, value=value, low=low, high=high,
        confidence=CONFIDENCE, share=share,
        sentence=f"{threat_model}: a record has {value:.3g} [{low:.3g}, {high:.3g}] of the weight of one that is in "
        f"every step, where {share:.3g} is expected{means}.",
    )  # fmt: skip


def _lower_bound(family: trade_off.Family | None, right: Mapping[str, int], delta: float) -> float:
    """The lower bound on epsilon from the counts `right` (correct, guesses, canaries); `family` None: for any
    mechanism."""
    if family is None:
        return one_run.epsilon_lower_bound(**right, delta=delta)
    return trade_off.epsilon_lower_bound(**right, delta=delta, family=family)


def _p_value(family: trade_off.Family | None, epsilon: float, delta: float, right: Mapping[str, int]) -> float | None:
    """Largest probability of so many right guesses if `epsilon` is true; None if it is infinite."""
    if math.isinf(epsilon):
        return None
    if family is None:
        return one_run.p_value(**right, epsilon=epsilon, delta=delta)
    return trade_off.p_value(family.curve(family.mu(epsilon, delta)), **right)


def _sentence(
    g: Guessed, family: trade_off.Family | None, value: float, ceiling: float, delta: float, guessed_about: str
) -> str:
    """A lower bound in words: the guesses that are right, the bound, and the largest one that could be shown."""
    if_gaussian = f" if the mechanism is {family.words}" if family else ""
    return (
        f"{g.threat_model}, by {g.signal}: {g.correct} of {g.guesses} guesses about {g.canaries} {guessed_about} are "
        f"right: epsilon is at least {value:.3g}{if_gaussian} ({100 * CONFIDENCE:g} %, delta {delta:g}; "
        f"at most {ceiling:.3g} could be shown)."
    )


def words(findings: Sequence[OfRun], threat_model: str) -> str:
    """The bounds by an adversary in a line, such as "at least 1.2: of at most 3 with 40 coins, 20 guessed about";
    with a bound for a Gaussian mechanism if there is one, and first the one from messages if there is one.
    `NOT_GUESSED` without bounds."""
    bound_by_metric = {
        m.metric: m for m in findings if isinstance(m, MeasuredEpsilon) and m.threat_model == threat_model
    }
    if MEASURED not in bound_by_metric:
        return NOT_GUESSED
    first = bound_by_metric[MEASURED]
    about = f"of at most {first.ceiling:.3g} with {first.canaries} coins, {first.guesses} guessed about"
    if (second := bound_by_metric.get(MEASURED_GAUSSIAN)) is None:
        return f"at least {first.value:.3g}: {about}"
    more = f"at least {second.value:.3g} (of at most {second.ceiling:.3g}) if the mechanism is {second.mechanism}"
    if (third := bound_by_metric.get(MEASURED_SCORES)) is None:
        return f"at least {first.value:.3g}: {about}; {more}"
    guesses = f"from guesses at least {first.value:.3g} whatever the mechanism is, {about}; {more}"
    return f"at least {third.value:.3g}: from the messages, if the noise is Gaussian; {guesses}"
