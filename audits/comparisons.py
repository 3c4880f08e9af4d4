"""The comparisons of an attacked run: members against non-members of one population under one adversary's model(s).

An adversary holds one model of the whole federation, or one model per client. Non-members are held-out records of
the same clients, records of another distribution, other clients' records, and canaries that a coin left out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedaudit.audits.statistics.regression import Message
from fedaudit.audits.statistics.stratified import comparable
from fedaudit.tasks.base import client_name
from fedaudit.terms.held_models import AT_THE_END, BEST_UTILITY, FINAL, ROUND
from fedaudit.terms.nonmembers import BY_COIN, HELD_OUT, LEFT_OUT_CANARIES, NOVEL_OBJECTS, OTHER_CLIENTS, Nonmembers
from fedaudit.terms.populations import (
    ALL_MEMBERS,
    CANARIES,
    LAST_ROUND_MEMBERS,
    MEMBERS_GIVEN_AWAY,
    MEMBERS_THAT_TRAINED,
    OWN_MEMBERS,
    Population,
)
from fedaudit.terms.record_kinds import (
    CANARY,
    HELD_OUT_RECORD,
    LEFT_OUT_CANARY,
    MEMBER,
    OTHER_CLIENTS_RECORD,
    REFERENCE,
    RecordKind,
)
from fedaudit.terms.threat_models import THREAT_MODELS

FEW = 3  # up to so many clients, records are the units of intervals


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """The scores of one model that an adversary holds: a row per record (index), a column per signal; NaN: no score.

    `base` has the same columns, for a model that learnt none of the records: the public start or, for attacks on
    messages, a twin federation that drew its members anew. It may hold further records. `before_first_round` has the
    scores by the released model before the record's client first took part, for clients that did not begin with the
    public start; it is the control of scores that are constant on the public start. `shadow_targets` has the scores by
    models that the adversary trained itself: a row per model and record (index), and "member" says whether the model
    was trained on the record. `facts` are numbers for readers: loss, base_loss, loss_in and loss_out (means over
    shadows trained with the record and without it), hard_right (whether the hard prompt is right), owner and owners
    (the most probable client, and among how many); for texts, per token, token_slice, token_log_prob, token_entropy,
    base_token_entropy (nats). `batches` has a row per message solved for its batch: round, residual, least, error,
    skipped. `messages` reads the messages with noise that the adversary saw of the client, whose gradients are of the
    first records of `scores`; None: no attack looks at them, or they have no Gaussian noise.
    """

    threat_model: str
    way: str
    client: int | None  # None: a model of the whole federation
    round: int
    scores: pd.DataFrame
    base: pd.DataFrame | None = None
    shadow_targets: pd.DataFrame | None = None
    facts: pd.DataFrame | None = None
    batches: pd.DataFrame | None = None
    before_first_round: pd.DataFrame | None = None
    messages: Callable[[], Sequence[Message]] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredRun:
    """A run after the attacks: all scores, with the truth about membership. Mappings by client hold the attacked
    clients; lists hold ids of records."""

    models: Sequence[ScoredModel]
    headlines: Mapping[str, Sequence[str]]  # by attack the scores that stand for it, fixed before looking
    signals: Mapping[str, str]  # the attack of each score, in reading order
    blind: Mapping[tuple[int | None, str], Mapping[str, float]]  # see `blind_of`
    records: Mapping[int, Sequence[str]]  # candidates of each client
    reference: Mapping[int, Sequence[str]]  # known non-members of the same distribution
    truth: Mapping[str, bool]  # by candidate or canary: whether its client was trained on it
    canaries: Mapping[int, Sequence[str]] = field(default_factory=dict)  # of each client, beside its candidates
    others: Mapping[int, Sequence[str]] = field(default_factory=dict)  # a sample of other clients' records
    novel: Sequence[str] = ()  # records of another distribution
    group: Mapping[str, str] = field(default_factory=dict)  # class name of each record
    cohorts: Sequence[Sequence[int]] = ()  # clients of each round, if a model of the whole federation is attacked
    guesses: Sequence[str] = ()  # the scores whose sign says member or not
    few: bool = False  # only chosen clients are attacked: records are the units of intervals
    # by candidate or canary its coin and the coin's stratum (`Federation.coins`); empty if we flipped no coins
    coins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unused: Mapping[int, Sequence[str]] = field(default_factory=dict)  # members that were in no batch
    shared: Mapping[int, Sequence[str]] = field(default_factory=dict)  # members that their client sent to others
    seed: int = 0  # of the training, from which exchanges of coins are drawn

    @property
    def headline(self) -> list[str]:
        """The scores that stand for the attacks, in reading order."""
        return [signal for signals in self.headlines.values() for signal in signals]

    def participants(self, rounds: int) -> list[int]:
        """Attacked clients that took part in one of the first `rounds` rounds; only their records were trained on."""
        return sorted({k for cohort in self.cohorts[:rounds] for k in cohort if k in self.records})

    def last_cohort(self, rounds: int) -> list[int]:
        """Attacked clients that took part in the last of the first `rounds` rounds."""
        return [k for k in self.cohorts[rounds - 1] if k in self.records]

    def blind_of(self, client: int, nonmembers: str) -> Mapping[str, float]:
        """By record, the score of the blind classifier for this kind of non-members: the client's own, or the common
        one."""
        return self.blind[client if (client, nonmembers) in self.blind else None, nonmembers]

    def kinds(self, client: int) -> dict[str, RecordKind]:
        """The kind of each record that belongs to a client's audit, {record id: kind}: members, held-out records,
        inserted and left-out canaries, reference records, and other clients' records."""
        member = {True: MEMBER, False: HELD_OUT_RECORD}
        canary = {True: CANARY, False: LEFT_OUT_CANARY}
        return (
            {r: member[self.truth[r]] for r in self.records[client]}
            | {r: canary[self.truth[r]] for r in self.canaries.get(client, ())}
            | dict.fromkeys(self.reference[client], REFERENCE)
            | dict.fromkeys(self.others.get(client, ()), OTHER_CLIENTS_RECORD)
        )

    def trained(self, client: int) -> dict[str, bool]:
        """By record, whether it is a member, of a client's candidates without the members that were in no batch."""
        unused = set(self.unused.get(client, ()))
        return {r: member for r, member in self.row(client, HELD_OUT).items() if r not in unused}

    def given_away(self, client: int) -> dict[str, bool]:
        """By record, whether it is a member, of a client's non-members and the members that it sent to others."""
        shared = set(self.shared.get(client, ()))
        return {r: member for r, member in self.row(client, HELD_OUT).items() if r in shared or not member}

    def row(self, client: int, nonmembers: str) -> dict[str, bool]:
        """The records in a client's comparison with this kind of non-members, {record id: whether it is a member}: all
        candidates or canaries if a coin chose the non-members, else the members and the records from elsewhere."""
        records = self.canaries.get(client, ()) if nonmembers == LEFT_OUT_CANARIES else self.records[client]
        truth = {r: self.truth[r] for r in records}
        if nonmembers in BY_COIN:
            return truth
        others = self.novel if nonmembers == NOVEL_OBJECTS else self.others.get(client, ())
        return {r: True for r, member in truth.items() if member} | dict.fromkeys(others, False)

    @property
    def rows(self) -> dict[tuple[int, str], dict[str, bool]]:
        """`row` of every attacked client and every kind of non-members of this run."""
        return {(k, nonmembers): self.row(k, nonmembers) for k in self.records for nonmembers in self.against}

    @property
    def against(self) -> list[Nonmembers]:
        """The kinds of non-members of which this run has records, held-out records first, which are always listed."""
        present = {
            HELD_OUT: True,
            NOVEL_OBJECTS: bool(self.novel),
            OTHER_CLIENTS: any(self.others.values()),
            LEFT_OUT_CANARIES: any(self.canaries.values()),
        }
        return [name for name, has_records in present.items() if has_records]


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Members against non-members: aligned arrays [n], one entry per (model, record)."""

    threat_model: str
    way: str
    round: int
    population: Population
    nonmembers: str
    per_client: bool  # one model per client: metrics are means over clients, scores are never pooled
    client: NDArray[np.str_]  # the client of each entry; a record of another distribution is its own
    record: NDArray[np.str_]
    member: NDArray[np.bool_]
    scores: pd.DataFrame
    base: pd.DataFrame
    blind: NDArray[np.float64]
    reference: Mapping[
        str, pd.DataFrame
    ]  # by client, scores of further held-out records; key "" if one model is for all
    unit: str = "clients"  # of the intervals; "records" if few clients are attacked
    coin: bool = False  # our coin flips alone decided who is a member: the permutation test gives the verdict
    within: NDArray[np.str_] | None = None  # label of each entry, if only entries with equal labels are compared
    shadow_targets: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by client, see `ScoredModel`
    before_first_round: Set[str] = frozenset()  # signals whose `base` has `ScoredModel.before_first_round`

    @property
    def exchangeable(self) -> bool:
        """Whether nothing but membership differs: a coin chose the members, or only equal labels are compared."""
        return self.nonmembers in BY_COIN or self.within is not None

    @property
    def descriptive(self) -> bool:
        """Whether it has no verdict: which records were in a batch, or were sent to others, depends on the coins."""
        return self.population.descriptive

    @property
    def measurable(self) -> bool:
        """Whether there are two members and two non-members to compare; of one client, if each has its own model."""
        if self.per_client:
            return bool(comparable(self.member, self.client, self.within).any())
        return bool(min(self.member.sum(), (~self.member).sum()) >= 2)

    def with_values(self, values: pd.Series | NDArray[np.float64]) -> Comparison:
        """This comparison with only the entries whose value in `values` [n] is not NaN. If at most FEW clients are
        left, records become the units of intervals."""
        kept = ~np.isnan(np.asarray(values, dtype=float))
        if kept.all():
            return self
        parts = {name: getattr(self, name)[kept] for name in ("client", "record", "member", "blind")}
        frames = {name: getattr(self, name)[kept].reset_index(drop=True) for name in ("scores", "base")}
        within = None if self.within is None else self.within[kept]
        unit = "records" if len(np.unique(parts["client"])) <= FEW else self.unit
        return dataclasses.replace(self, **parts, **frames, within=within, unit=unit)


@functools.lru_cache(maxsize=1)
def comparisons(run: ScoredRun) -> tuple[Comparison, ...]:
    """All comparisons of a run but those of `by_round`: under models that all clients share, then under clients' own
    models, by adversary. Non-members that the run lacks are skipped. ValueError: a client's model of an unknown threat
    model or kind (`way`)."""
    rows: list[Comparison] = []
    for model in (m for m in run.models if m.client is None):
        everyone = run.participants(model.round)
        if model.way == FINAL:
            rows.append(_pooled(run, model, everyone, ALL_MEMBERS, HELD_OUT))
            rows.append(_pooled(run, model, run.last_cohort(model.round), LAST_ROUND_MEMBERS, HELD_OUT))
            rows += [_pooled(run, model, everyone, ALL_MEMBERS, other) for other in run.against[1:]]
        if model.way == BEST_UTILITY:
            rows.append(_pooled(run, model, everyone, ALL_MEMBERS, HELD_OUT))
    pairs = {(m.threat_model, m.way) for m in run.models if m.client is not None}
    if unknown := [pair for pair in pairs if pair[0] not in THREAT_MODELS or pair[1] not in AT_THE_END]:
        raise ValueError(f"threat models are {THREAT_MODELS} and ways {AT_THE_END}, not {min(unknown)}")
    for held_model in sorted(pairs, key=lambda pair: (THREAT_MODELS.index(pair[0]), AT_THE_END.index(pair[1]))):
        models = [m for m in run.models if (m.threat_model, m.way) == held_model and m.client is not None]
        scored = models[0].scores.index
        kinds = [k for k in run.against if k != NOVEL_OBJECTS or any(r in scored for r in run.novel)]
        rows += [_per_client(run, models, nonmembers) for nonmembers in kinds]
        if any(run.unused.get(client_of(m)) for m in models):
            rows.append(_per_client(run, models, HELD_OUT, MEMBERS_THAT_TRAINED))
        if any(run.shared.get(client_of(m)) for m in models):
            rows.append(_per_client(run, models, HELD_OUT, MEMBERS_GIVEN_AWAY))
    return tuple(rows)


def by_round(run: ScoredRun) -> list[Comparison]:
    """Two comparisons with held-out records per attacked round, by the model released after it: of all clients that
    took part so far, then of that round's clients. Those of the last round are two of `comparisons`; before it, models
    were asked about some records only."""
    rows = []
    whole = [m for m in run.models if m.client is None and m.way in (ROUND, FINAL)]
    for model in sorted(whole, key=lambda m: m.round):
        rows.append(_pooled(run, model, run.participants(model.round), ALL_MEMBERS, HELD_OUT))
        rows.append(_pooled(run, model, run.last_cohort(model.round), LAST_ROUND_MEMBERS, HELD_OUT))
    return rows


def client_of(model: ScoredModel) -> int:
    """The client that the model belongs to; the model must not be the whole federation's."""
    assert model.client is not None
    return model.client


def _pooled(
    run: ScoredRun, model: ScoredModel, clients: Sequence[int], population: Population, nonmembers: str
) -> Comparison:
    """The comparison under one model that all `clients` share, of their records that have scores. Records of another
    distribution belong to no client: each is a client of its own, and they come last."""
    scored, novel = set(model.scores.index), set(run.novel)
    rows = {(r if r in novel else client_name(k), r): m for k in clients for r, m in run.row(k, nonmembers).items()}
    pairs = sorted((pair for pair in rows if pair[1] in scored), key=lambda pair: pair[1] in novel)
    records = [r for _, r in pairs]
    alike = nonmembers != LEFT_OUT_CANARIES  # canaries are of another distribution than the reference records
    reference = [r for k in clients for r in run.reference[k] if r in scored and alike]
    blind = run.blind[None, nonmembers]
    base, before_first_round = _base(run, [(model, records)], nonmembers)
    return Comparison(
        threat_model=model.threat_model,
        way=model.way,
        round=model.round,
        population=CANARIES if nonmembers == LEFT_OUT_CANARIES else population,
        nonmembers=nonmembers,
        per_client=False,
        client=np.array([name for name, _ in pairs], dtype=str),
        record=np.array(records, dtype=str),
        member=np.array([rows[pair] for pair in pairs], dtype=bool),
        scores=model.scores.loc[records].reset_index(drop=True),
        base=base,
        before_first_round=before_first_round,
        coin=bool(run.coins) and nonmembers in BY_COIN,
        blind=np.array([blind[r] for r in records], dtype=float),
        reference={"": model.scores.loc[reference]} if reference else {},
        unit="records" if len(clients) <= FEW else "clients",
    )


def _per_client(
    run: ScoredRun, models: Sequence[ScoredModel], nonmembers: str, population: Population = OWN_MEMBERS
) -> Comparison:
    """The comparison under one model per client, of that client's records that the model has scores of."""
    subset = {MEMBERS_THAT_TRAINED: run.trained, MEMBERS_GIVEN_AWAY: run.given_away}.get(population)
    rows = [subset(client_of(m)) if subset else run.row(client_of(m), nonmembers) for m in models]
    parts = [(m, {r: u for r, u in row.items() if r in m.scores.index}) for m, row in zip(models, rows, strict=True)]
    client = np.array([client_name(client_of(m)) for m, row in parts for _ in row], dtype=str)
    record = np.array([r for _, row in parts for r in row], dtype=str)
    member = np.array([is_member for _, row in parts for is_member in row.values()], dtype=bool)
    reference = {client_name(client_of(m)): m.scores.loc[list(run.reference[client_of(m)])] for m in models}
    shadow_targets = {
        client_name(client_of(m)): _shadow_targets(run, m, nonmembers) for m in models if m.shadow_targets is not None
    }
    blind = [run.blind_of(client_of(m), nonmembers)[r] for m, row in parts for r in row]
    base, before_first_round = _base(run, [(m, list(row)) for m, row in parts], nonmembers)
    return Comparison(
        threat_model=models[0].threat_model,
        way=models[0].way,
        round=max(m.round for m in models),
        population=CANARIES if nonmembers == LEFT_OUT_CANARIES else population,
        nonmembers=nonmembers,
        per_client=True,
        client=client,
        record=record,
        member=member,
        scores=pd.concat([m.scores.loc[list(row)] for m, row in parts], ignore_index=True),
        base=base,
        before_first_round=before_first_round,
        blind=np.array(blind, dtype=float),
        reference=reference if nonmembers in (HELD_OUT, NOVEL_OBJECTS) else {},
        coin=bool(run.coins) and nonmembers in BY_COIN and subset is None,
        unit="records" if run.few or len(parts) <= FEW else "clients",
        within=_classes(run, client, record, member) if nonmembers == OTHER_CLIENTS else None,
        shadow_targets=shadow_targets if nonmembers in BY_COIN else {},
    )


def _base(
    run: ScoredRun, parts: Sequence[tuple[ScoredModel, list[str]]], nonmembers: str
) -> tuple[pd.DataFrame, Set[str]]:
    """The control's scores [record, signal] of each model's records in order, NaN where there are none; and the names
    of signals that are constant on the public start, whose control is the released model before each client's first
    round.

    A record that several clients hold may have been learnt from another one: that second control has no score of it.
    """
    base, before_first_round = (
        pd.concat(
            [
                (pd.DataFrame() if (table := getattr(m, name)) is None else table).reindex(
                    records, columns=m.scores.columns
                )
                for m, records in parts
            ],
            ignore_index=True,
        )
        for name in ("base", "before_first_round")
    )
    holders = Counter(coin for coin, _ in run.coins.values())
    several = [r in run.coins and holders[run.coins[r][0]] > 1 for _, records in parts for r in records]
    before_first_round.loc[several] = np.nan
    constant = [
        s for s in base if nonmembers in BY_COIN and base[s].nunique() == 1 and before_first_round[s].notna().any()
    ]
    return base.assign(**before_first_round[constant]), frozenset(constant)


def _classes(
    run: ScoredRun, client: NDArray[np.str_], record: NDArray[np.str_], member: NDArray[np.bool_]
) -> NDArray[np.str_] | None:
    """The class of each entry [n]; None if no client has two members and two non-members of classes in common."""
    label = np.array([run.group[r] for r in record], dtype=str)
    return label if comparable(member, client, label).any() else None


def _shadow_targets(run: ScoredRun, model: ScoredModel, nonmembers: str) -> pd.DataFrame:
    """The scores (rows: records, columns: signals and whether a member) of the adversary's own models on records of the
    same distribution as these non-members: canaries, or the client's candidates and reference records. ValueError: not
    the client's records."""
    assert model.shadow_targets is not None
    k, scored = client_of(model), model.shadow_targets.index
    alike = run.canaries.get(k, ()) if nonmembers == LEFT_OUT_CANARIES else (*run.records[k], *run.reference[k])
    if not scored.isin(list(run.kinds(k))).any():
        raise ValueError(f"shadow_targets must be indexed by the client's records, got {scored[0]!r}.")
    return model.shadow_targets[scored.isin(alike)]
