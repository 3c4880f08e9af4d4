"""Findings, the numbers that audits report: a value with its interval, its controls and a verdict in plain language."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

# raised when a field of a finding or a column of runs.json goes, is renamed or means something else; not for a new one
SCHEMA = 5
MEASURED = "measured"  # metric of a lower bound on epsilon, whatever the mechanism is
MEASURED_GAUSSIAN = "measured/gaussian"  # if the mechanism is Gaussian, or Gaussian on Poisson samples
MEASURED_SCORES = "measured/messages"  # if the noise is Gaussian, from the messages themselves
MEASURED_WEIGHT = "measured/weight"  # how much of a record is in the messages
RECORDING = "recording"  # metric of a sentence about how an external run was recorded
INFORMATION = "mutual_information"  # metric of bits per record
NO_CANARIES = "not measured: needs canaries"
NO_COINS = "not checked: no coins decided before the training who is a member"  # of a run trained elsewhere
BEFOREHAND = ("named", "primary")  # in `family`: scores that were named before any run
WHOLE_RANKING = "the ranking as a whole"  # in `part`: the AUROC is what is furthest from chance
NEAR_CHANCE = "; as a whole the ranking is near chance"  # ends `part` where the highest scores alone tell members
THESE = "these clients"  # in `interval`: its units are records, so it is about the attacked clients only


class Names(TypedDict):
    """The fields that all findings about one run repeat, see `OfRun`."""

    run: str
    method: str
    task: str
    seed: int


class OfAttack(Names):
    """The fields that all findings about one score of an attack repeat, see `Finding`."""

    attack: str
    headline: bool


class Place(TypedDict):
    """The model that the adversary attacks, and the records that are compared, see `Finding`."""

    threat_model: str
    way: str
    population: str
    nonmembers: str


class OfScore(OfAttack, Place):
    """All fields that the findings about one score on one comparison repeat."""

    signal: str
    confidence: float
    members: int
    nonmembers_n: int
    clients: int


class Claims(TypedDict, total=False):
    """The claimed, provable and measured epsilon for a record, each in words; a key is absent where there is none."""

    claimed: str
    provable: str
    measured: str


class Ends(TypedDict):
    """A number with the ends of its interval; None: not measurable."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """Base of all findings: the run that a number is about, so that findings of many runs fit into one table.

    For an audit of your own, write a frozen dataclass below this one, with keyword-only fields: `metric`, a name that
    no other finding has, `value`, the ends of its interval, and what else readers need. Pass `**subject.names` to it.

    `run` is the analysis key, which covers all that a number comes from. Attacks on one training share its training
    key.
    """

    schema: int = field(default=SCHEMA, init=False)
    run: str
    method: str
    task: str
    seed: int
    # checks of the recording that void this number, "members, weights"; of a `Recorded` its own check, if it is a doubt
    doubt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Recorded(OfRun):
    """A sentence about how an external run was recorded: a doubt, at the top of the report, or a note, among its
    limitations."""

    metric: str
    check: str  # what was checked
    sentence: str
    value: float | None  # the number in the sentence, if it has one
    p: float | None = None  # of a right recording to fail so, where chance may


@dataclass(frozen=True, kw_only=True)
class Finding(OfRun):
    """One number about one method, one adversary and one population. Fields that do not apply are None."""

    attack: str
    threat_model: str
    way: str  # which model the adversary holds: prompt, final, rebuilt, exact, literal, newest, server-fill, true state
    population: str  # the records that count as members; "members that trained" are those that were in a batch,
    # "members given to others" those that a client sent to others unchanged
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
    interval: str  # the method of the interval
    status: str = "ok"  # or "coarse", "not measurable (n)"
    base_value: float | None = None  # the same score on the public base model
    base_low: float | None = None
    base_high: float | None = None
    base_note: str | None = None
    blind_value: float | None = None  # of a classifier that sees the records and never a model
    blind_low: float | None = None
    blind_high: float | None = None
    # smallest AUROC that would be called a leak, where coins decided with a power of 80 %, elsewhere if it were just
    # measured: its interval excludes 0.5; None: constant score
    detectable: float | None = None
    realised_fpr: float | None = None
    realised_low: float | None = None
    realised_high: float | None = None
    # "leak", "leak, score reversed", "no leak found", "confounded" or "inconclusive"; None where coins decided: the
    # report fills it in
    verdict: str | None = None
    sentence: str | None = None
    claimed: str | None = None
    provable: str | None = None
    measured: str | None = None
    # number of attacks that this is the best of: interval and verdict are corrected for picking it
    best_of: int | None = None
    # only where nothing but our coin flips decided who is a member (`audits.permutation_test`):
    z: float | None = None  # the AUROC within clients, in standard deviations from its mean over permutations
    t: float | None = None  # the test's statistic, the largest of |z| and those of the highest scores, or -|z|
    p: float | None = None  # raw p-value of t
    part: str | None = None  # which of the three t is, in words
    detectable_named: int | None = None  # so many named records, all of them members, would be called a leak
    family: str | None = None  # "named", "primary" or "secondary": the group of scores that p is corrected for
    p_adjusted: float | None = None  # p corrected for its family; the report fills it in
    family_n: int | None = None  # number of scores in that family, in all runs of the report
    base_z: float | None = None  # z of the same score on the public base model
    blind_p: float | None = None  # raw p-value of the blind classifier, by its interval
    alarm: str | None = None  # a sentence if a control is off; the report fills it in


@dataclass(frozen=True, kw_only=True)
class Accuracy(OfRun):
    """Accuracy of released models in percent, as a mean over clients."""

    metric: str  # accuracy/local, accuracy/neighbour, accuracy/overall, accuracy/own_test
    value: float
    low: float | None  # None for a single client
    high: float | None
    confidence: float
    before: float | None = None  # the value before training
    clients: int
    rounds: int = 1  # number of last rounds that are averaged
    epsilon: float | str  # the epsilon that the noise was chosen for; "inf": no noise
    noise_ratio: float | str | None = None  # largest noise over signal of any release; None without noise
    # largest share, of any release, of per-record gradients longer than the clipping norm; None without clipping
    clipped: float | None = None
    interval: str  # the method of the interval


@dataclass(frozen=True, kw_only=True)
class MeasuredEpsilon(OfRun):
    """A lower bound on epsilon for a client's own record, from how many canaries one adversary guessed right, or from a
    regression of the messages that it saw on the canaries' coins (MEASURED_SCORES)."""

    metric: str  # MEASURED, MEASURED_GAUSSIAN or MEASURED_SCORES
    threat_model: str
    way: str  # the model that the adversary guessed from, as in `Finding`
    attack: str
    signal: str  # the score that stands for the adversary, fixed before looking
    # the mechanism for which the bound holds: "Gaussian" or "Gaussian on Poisson samples"; "": any
    mechanism: str
    value: float  # the lower bound
    confidence: float
    ceiling: float  # the bound if all guesses were right, or if messages had no noise
    delta: float
    clients: int  # number of clients whose canaries were guessed about
    canaries: int  # number of canaries of these clients
    inserted: int
    guesses: int | None  # None: from a regression
    correct: int | None
    # of a regression: the noise's standard deviation, that of the ledger, and about what the bound would be if the
    # ledger is right
    noise: float | None = None
    ledger_noise: float | None = None
    expected: float | None = None
    claimed: float | str
    provable: float | str | None  # None: nobody knows what noise ran, as in a run from elsewhere
    p_claimed: float | None  # largest probability of so many right guesses if the claimed epsilon is true
    p_provable: float | None  # and if the provable one is; None: that epsilon is infinite
    sentence: str


@dataclass(frozen=True, kw_only=True)
class MeasuredWeight(OfRun):
    """How much of a record is in the messages that an adversary saw, by the same regression: 1 is what a record whose
    gradients are those at the broadcast and that is in every step adds."""

    metric: str  # MEASURED_WEIGHT
    threat_model: str
    value: float
    low: float  # each end at `confidence`
    high: float
    confidence: float
    share: float  # of the steps that a record is in, as the ledger says
    sentence: str


@dataclass(frozen=True, kw_only=True)
class SharedInformation(OfRun):
    """Mutual information of a score with membership, in bits: a lower bound on that of the adversary's whole view."""

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
    null_low: float  # `confidence` of the estimates with randomly exchanged membership lie between these
    null_high: float
    p: float  # one-sided, by these exchanges
    p_adjusted: float  # corrected for all such findings of the run
    base_value: float | None  # the same score on the public base model
    ceiling: float  # entropy of membership among these records, in bits
    members: int
    nonmembers_n: int
    clients: int
    interval: str


@dataclass(frozen=True, kw_only=True)
class Epsilon(OfRun):
    """The claimed and the provable epsilon for one record against one adversary; infinity is the string "inf"."""

    metric: str  # epsilon
    threat_model: str
    whose: str  # "own": a record of the attacked client; "other": of another client
    claimed: float | str
    provable: float | str  # for the steps as they ran
    every_step: float | str  # as if the record had been in every step
    replace_one: float | str | None  # like every_step, where a record is replaced instead of left out
    delta: float
    why: str  # what the proof counts, or why epsilon is infinite
    sentence: str
    measured: str = NO_CANARIES  # the bounds of `MeasuredEpsilon` in words
