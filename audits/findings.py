"""What an audit says: a finding is a value with its interval, its controls and a verdict in plain language."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

# raised when a field of a finding or a column of runs.json goes, is renamed or means something else; not for a new one
SCHEMA = 3
MEASURED = "measured"  # metric of a lower bound on epsilon, whatever the mechanism is
MEASURED_GAUSSIAN = "measured/gaussian"  # if the mechanism is Gaussian, or Gaussian on Poisson samples
INFORMATION = "mutual_information"  # metric of bits per record
NO_CANARIES = "not measured: needs canaries"
NO_COINS = "not measured: trained elsewhere, without canaries"  # a run that nobody can add any to
THESE = "these clients"  # what an interval is about whose units are records, as `interval` says


class Names(TypedDict):
    """What every finding about a cell repeats: see `OfRun`."""

    run: str
    method: str
    task: str
    seed: int


class OfAttack(Names):
    """What the findings about a headline score of an attack, or one beside it, repeat: see `Finding`."""

    attack: str
    headline: bool


class Place(TypedDict):
    """Whose models are attacked, and which records are compared."""

    threat_model: str
    way: str
    population: str
    nonmembers: str


class OfScore(OfAttack, Place):
    """What all findings about a score on a comparison have in common."""

    signal: str
    confidence: float
    members: int
    nonmembers_n: int
    clients: int


class Claims(TypedDict, total=False):
    """What is claimed, provable and measured about a record, in words, as far as anything is."""

    claimed: str
    provable: str
    measured: str


class Ends(TypedDict):
    """A number with its interval."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """What every finding is of, so that findings of many runs can stand under each other.

    `run` is the analysis key, not the training key: that is shared by all attacks on one training. The analysis key
    covers the training's, and with it all that a number comes from.
    """

    schema: int = field(default=SCHEMA, init=False)
    run: str
    method: str
    task: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Finding(OfRun):
    """One number about one method, one adversary and one population. Fields that do not apply are None."""

    attack: str
    threat_model: str
    way: str  # which model the adversary holds: prompt, final, rebuilt, exact, literal, newest, server-fill, true state
    population: str  # whose records count as members; "members that trained" are those of them in a batch,
    # "members given to others" those that a client sent around as they are
    # "held-out" (same distribution), "novel objects" (the papers' own split), "other clients", "left-out canaries"
    nonmembers: str
    signal: str
    headline: bool  # a score that stands for its attack, fixed before looking
    metric: str  # auroc, balanced_accuracy, tpr@10%, tpr@1%, tpr@0.1%
    value: float | None
    low: float | None
    high: float | None
    confidence: float
    members: int
    nonmembers_n: int
    clients: int
    interval: str  # how the interval was made
    status: str = "ok"  # or "coarse", "not measurable (n)"
    base_value: float | None = None  # the same score on the public base model
    base_low: float | None = None
    base_high: float | None = None
    base_note: str | None = None
    blind_value: float | None = None  # a classifier that sees the records and never a model
    blind_low: float | None = None
    blind_high: float | None = None
    detectable: float | None = None  # smallest AUROC whose interval would clear 0.5 at this n
    realised_fpr: float | None = None
    realised_low: float | None = None
    realised_high: float | None = None
    # "leak", "leak, score reversed", "no leak found", "confounded" or "inconclusive"; where coins decided, the report's
    verdict: str | None = None
    sentence: str | None = None
    claimed: str | None = None
    provable: str | None = None
    measured: str | None = None
    best_of: int | None = None  # the best of so many attacks: its interval and verdict are corrected for picking it
    # where a coin of ours alone decided who is a member (`audits.permutation_test`):
    z: float | None = None  # the AUROC within clients, in standard deviations of its permutations from their mean
    p: float | None = None  # its raw two-sided p-value
    family: str | None = None  # "primary" or "secondary": the scores that a report corrects it for
    p_adjusted: float | None = None  # corrected, the report's
    family_n: int | None = None  # number of scores in that family, in all runs of the report
    base_z: float | None = None  # z of the same score on the public base model
    blind_p: float | None = None  # raw p-value of the blind classifier, by its interval
    alarm: str | None = None  # that a control is off, the report's


@dataclass(frozen=True, kw_only=True)
class Accuracy(OfRun):
    """How good released models are: a mean over clients, in percent."""

    metric: str  # accuracy/local, accuracy/neighbour, accuracy/overall, accuracy/own_test
    value: float
    low: float | None  # None for a single client
    high: float | None
    confidence: float
    before: float | None  # the same before training
    clients: int
    rounds: int  # last rounds that are averaged
    epsilon: float | str  # that set the noise; "inf" for none
    noise_ratio: float | str | None  # largest noise over signal of any release; None without noise
    clipped: (
        float | None
    )  # share of the gradients of records longer than C, the largest of any release; None without clipping
    interval: str  # how the interval was made


@dataclass(frozen=True, kw_only=True)
class MeasuredEpsilon(OfRun):
    """A lower bound on epsilon for a client's own record, from how many canaries one adversary guessed right."""

    metric: str  # MEASURED or MEASURED_GAUSSIAN
    threat_model: str
    way: str  # which model the adversary guessed from, as in `Finding`
    attack: str
    signal: str  # the score that stands for the adversary, fixed before looking
    # what the mechanism must be for the bound to hold: "Gaussian", or "Gaussian on Poisson samples"; "" for whatever
    mechanism: str
    value: float  # epsilon is at least that
    confidence: float
    ceiling: float  # what the guesses would show if all were right
    delta: float
    clients: int  # whose canaries were guessed about
    canaries: int  # of these clients, all
    inserted: int
    guesses: int
    correct: int
    claimed: float | str
    provable: float | str
    p_claimed: float | None  # largest probability of so many right guesses if epsilon is what is claimed
    p_provable: float | None  # and if it is what is proven; None where that is infinite
    sentence: str


@dataclass(frozen=True, kw_only=True)
class SharedInformation(OfRun):
    """How many bits a score holds about who was a member: a lower bound on what the adversary's view holds."""

    metric: str  # INFORMATION
    threat_model: str
    way: str
    population: str
    nonmembers: str
    attack: str
    signal: str
    value: float  # bits per record, of at most `ceiling`; an estimate, so that it may be below 0
    low: float
    high: float
    confidence: float
    null_low: float  # between these are so many of the estimates where membership is exchanged at random
    null_high: float
    p: float  # one-sided, of that null
    p_adjusted: float  # corrected for all rows of the run
    base_value: float | None  # the same score on the public base model
    ceiling: float  # entropy of membership among these records, in bits
    members: int
    nonmembers_n: int
    clients: int
    interval: str


@dataclass(frozen=True, kw_only=True)
class Epsilon(OfRun):
    """What is claimed and what is proven about one record against one adversary; infinities are the string "inf"."""

    metric: str  # epsilon
    threat_model: str
    whose: str  # "own": a record of the client looked at; "other": of another client
    claimed: float | str
    provable: float | str  # as it ran
    every_step: float | str  # as if the record had been in every step
    replace_one: float | str | None  # that, and a record is replaced rather than left out
    delta: float
    why: str
    sentence: str
    measured: str = NO_CANARIES  # the bounds of `MeasuredEpsilon` in words
