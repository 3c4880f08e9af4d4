"""Which scores are compared with which: members and non-members of one population under one adversary's model(s).

An adversary holds one model of the whole federation, or models of single clients. Non-members are held-out records of
the same clients, records of another distribution, other clients' records, and canaries that a coin left out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from audits.statistics.stratified import comparable
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

FEW = 3  # clients at most over which there is no interval: records are its units


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """The scores of one model that an adversary holds: a row per record (index), a column per signal; NaN: it cannot
    say.

    `base` are the same columns where no record was learnt: of the public start or, for attacks on messages, of a twin
    federation that drew its members anew; it may hold further records. `earlier` are those of the released model before
    the record's client first took part, of clients that did not begin with the public start: the control of scores
    that are constant there. `pseudo` are scores of models that the adversary
    trained itself: a row per model and record (index), whether it was trained on it ("member"). `facts` are numbers for
    readers: loss, base_loss, loss_in and loss_out (means over shadows trained with the record and without it),
    hard_right (whether the hard prompt is right), owner and owners (the most probable one, and among how many
    clients); of texts per token token_slice, token_log_prob, token_entropy, base_token_entropy (nats). `batches` has a
    row for every message that was solved for its batch: round, residual, least, error.
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


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredRun:
    """A run after the attack, with the truth: what audits work on. Mappings by client hold the clients that were
    attacked."""

    models: Sequence[ScoredModel]
    headlines: Mapping[str, Sequence[str]]  # attack to the scores that stand for it, fixed before looking
    signals: Mapping[str, str]  # of every score the attack, in reading order
    blind: Mapping[tuple[int | None, str], Mapping[str, float]]  # see `blind_of`
    records: Mapping[int, Sequence[str]]  # candidates of each client
    reference: Mapping[int, Sequence[str]]  # known non-members of the same distribution
    truth: Mapping[str, bool]  # candidate or canary to whether its client was trained on it
    canaries: Mapping[int, Sequence[str]] = field(default_factory=dict)  # of each client; no candidates
    others: Mapping[int, Sequence[str]] = field(default_factory=dict)  # a sample of other clients' records
    novel: Sequence[str] = ()  # records of another distribution
    group: Mapping[str, str] = field(default_factory=dict)  # record to class name
    cohorts: Sequence[Sequence[int]] = ()  # of each round, where a model of the whole federation is attacked
    guesses: Sequence[str] = ()  # of the scores, those whose sign says member or not
    few: bool = False  # clients were chosen to be attacked, however many: records are the units of intervals
    # of every candidate and canary (`Federation.coins`); none where no coin of ours decided who is a member
    coins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unused: Mapping[int, Sequence[str]] = field(default_factory=dict)  # members that were in no batch
    shared: Mapping[int, Sequence[str]] = field(default_factory=dict)  # members that their client sent to others
    seed: int = 0  # of the training: exchanges of coins are drawn from it

    @property
    def headline(self) -> list[str]:
        """The scores that stand for the attacks, in reading order."""
        return [signal for signals in self.headlines.values() for signal in signals]

    def participants(self, rounds: int) -> list[int]:
        """Clients under attack that took part in the first `rounds` rounds: only their records were trained on."""
        return sorted({k for cohort in self.cohorts[:rounds] for k in cohort if k in self.records})

    def last_cohort(self, rounds: int) -> list[int]:
        """Those of them that took part in the last of these rounds."""
        return [k for k in self.cohorts[rounds - 1] if k in self.records]

    def blind_of(self, client: int, nonmembers: str) -> Mapping[str, float]:
        """Record to the score of the blind classifier of a comparison: the client's own, or one for all clients
        together (None)."""
        return self.blind[client if (client, nonmembers) in self.blind else None, nonmembers]

    def kinds(self, client: int) -> dict[str, RecordKind]:
        """Every record that a client's models are judged by, and what it is; they may have been asked about more."""
        member = {True: MEMBER, False: HELD_OUT_RECORD}
        canary = {True: CANARY, False: LEFT_OUT_CANARY}
        return (
            {r: member[self.truth[r]] for r in self.records[client]}
            | {r: canary[self.truth[r]] for r in self.canaries.get(client, ())}
            | dict.fromkeys(self.reference[client], REFERENCE)
            | dict.fromkeys(self.others.get(client, ()), OTHER_CLIENTS_RECORD)
        )

    def trained(self, client: int) -> dict[str, bool]:
        """A client's candidates without members that were in no batch, and which of them are members."""
        unused = set(self.unused.get(client, ()))
        return {r: member for r, member in self.row(client, HELD_OUT).items() if r not in unused}

    def given(self, client: int) -> dict[str, bool]:
        """What a client sent to others of its candidates, and those that are no members."""
        shared = set(self.shared.get(client, ()))
        return {r: member for r, member in self.row(client, HELD_OUT).items() if r in shared or not member}

    def row(self, client: int, nonmembers: str) -> dict[str, bool]:
        """The records of a client's part in a comparison, and which of them are members."""
        asked = self.canaries.get(client, ()) if nonmembers == LEFT_OUT_CANARIES else self.records[client]
        found = {r: self.truth[r] for r in asked}
        if nonmembers in BY_COIN:
            return found
        further = self.novel if nonmembers == NOVEL_OBJECTS else self.others.get(client, ())
        return {r: True for r, member in found.items() if member} | dict.fromkeys(further, False)

    @property
    def rows(self) -> dict[tuple[int, str], dict[str, bool]]:
        """`row` of every client and kind of non-members."""
        return {(k, nonmembers): self.row(k, nonmembers) for k in self.records for nonmembers in self.against}

    @property
    def against(self) -> list[Nonmembers]:
        """The kinds of non-members that there are."""
        there = {
            HELD_OUT: True,
            NOVEL_OBJECTS: bool(self.novel),
            OTHER_CLIENTS: any(self.others.values()),
            LEFT_OUT_CANARIES: any(self.canaries.values()),
        }
        return [name for name, some in there.items() if some]


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Members against non-members: aligned arrays, one entry per (model, record)."""

    threat_model: str
    way: str
    round: int
    population: Population
    nonmembers: str
    per_client: bool  # scores come from one model per client: means of per-client values, never pooled
    client: NDArray[np.str_]  # the cluster of each entry
    record: NDArray[np.str_]
    member: NDArray[np.bool_]
    scores: pd.DataFrame
    base: pd.DataFrame
    blind: NDArray[np.float64]
    reference: Mapping[str, pd.DataFrame]  # cluster to scores of further held-out records; "" is everybody's
    unit: str = "clients"  # of the intervals; "records" where few clients are attacked
    coin: bool = False  # a coin of ours alone decided who is a member: its verdict is that of the permutation test
    within: NDArray[np.str_] | None = None  # label of each entry, where only equal ones are compared
    shadow_targets: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by client, see `ScoredModel`
    before_first_round: Set[str] = frozenset()  # signals whose `base` are scores of earlier models, one per client

    @property
    def exchangeable(self) -> bool:
        """Whether members and non-members differ in nothing but membership, by design or because their label is all
        that tells them apart."""
        return self.nonmembers in BY_COIN or self.within is not None

    @property
    def descriptive(self) -> bool:
        """Whether there is no verdict about it: who was in a batch, or was sent around, depends on the coins."""
        return self.population.descriptive

    @property
    def measurable(self) -> bool:
        """Whether there are two members and two non-members to compare: of one client, where each has its own model."""
        if self.per_client:
            return bool(comparable(self.member, self.client, self.within).any())
        return bool(min(self.member.sum(), (~self.member).sum()) >= 2)

    def having(self, values: pd.Series | NDArray[np.float64]) -> Comparison:
        """The entries whose value is a number."""
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
    """Every row of the leakage table, adversary by adversary. ValueError: a threat model or a way that nobody knows."""
    found: list[Comparison] = []
    for model in (m for m in run.models if m.client is None):
        everyone = run.participants(model.round)
        if model.way == FINAL:
            found.append(_pooled(run, model, everyone, ALL_MEMBERS, HELD_OUT))
            found.append(_pooled(run, model, run.last_cohort(model.round), LAST_ROUND_MEMBERS, HELD_OUT))
            found += [_pooled(run, model, everyone, ALL_MEMBERS, other) for other in run.against[1:]]
        if model.way == BEST_UTILITY:
            found.append(_pooled(run, model, everyone, ALL_MEMBERS, HELD_OUT))
    held = {(m.threat_model, m.way) for m in run.models if m.client is not None}
    if unknown := [pair for pair in held if pair[0] not in THREAT_MODELS or pair[1] not in AT_THE_END]:
        raise ValueError(f"threat models are {THREAT_MODELS} and ways {AT_THE_END}, not {min(unknown)}")
    for place in sorted(held, key=lambda pair: (THREAT_MODELS.index(pair[0]), AT_THE_END.index(pair[1]))):
        models = [m for m in run.models if (m.threat_model, m.way) == place and m.client is not None]
        asked = models[0].scores.index
        kinds = [k for k in run.against if k != NOVEL_OBJECTS or any(r in asked for r in run.novel)]
        found += [_per_client(run, models, nonmembers) for nonmembers in kinds]
        if any(run.unused.get(client_of(m)) for m in models):
            found.append(_per_client(run, models, HELD_OUT, MEMBERS_THAT_TRAINED))
        if any(run.shared.get(client_of(m)) for m in models):
            found.append(_per_client(run, models, HELD_OUT, MEMBERS_GIVEN_AWAY))
    return tuple(found)


def by_round(run: ScoredRun) -> list[Comparison]:
    """The released model after each round on the subsample that every round was asked about."""
    found = []
    whole = [m for m in run.models if m.client is None]
    for model in sorted((m for m in whole if m.way in (ROUND, FINAL)), key=lambda m: m.round):
        asked = set(next((m for m in whole if m.way == ROUND), model).scores.index)
        small = dataclasses.replace(model, scores=model.scores[model.scores.index.isin(asked)])
        found.append(_pooled(run, small, run.participants(model.round), ALL_MEMBERS, HELD_OUT))
        found.append(_pooled(run, small, run.last_cohort(model.round), LAST_ROUND_MEMBERS, HELD_OUT))
    return found


def client_of(model: ScoredModel) -> int:
    """The client whose model it is."""
    assert model.client is not None
    return model.client


def _population(usual: Population, nonmembers: str) -> Population:
    return CANARIES if nonmembers == LEFT_OUT_CANARIES else usual


def _pooled(
    run: ScoredRun, model: ScoredModel, clients: Sequence[int], population: Population, nonmembers: str
) -> Comparison:
    """One model for everybody. Novel records belong to no client: each is a cluster of its own."""
    scored, novel = set(model.scores.index), set(run.novel)
    rows = {(r if r in novel else client_name(k), r): m for k in clients for r, m in run.row(k, nonmembers).items()}
    asked = {pair: member for pair, member in rows.items() if pair[1] in scored}
    ours = [pair for pair in asked if pair[1] not in novel]
    pairs = ours + [pair for pair in asked if pair[1] in novel]
    records = [r for _, r in pairs]
    known = nonmembers != LEFT_OUT_CANARIES  # which are of another distribution than the reference records
    reference = [r for k in clients for r in run.reference[k] if r in scored and known]
    blind = run.blind[None, nonmembers]
    base, before_first_round = _base(run, [(model, records)], nonmembers)
    return Comparison(
        threat_model=model.threat_model,
        way=model.way,
        round=model.round,
        population=_population(population, nonmembers),
        nonmembers=nonmembers,
        per_client=False,
        client=np.array([name for name, _ in pairs], dtype=str),
        record=np.array(records, dtype=str),
        member=np.array([asked[pair] for pair in pairs], dtype=bool),
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
    """One model per client, each asked about its own records."""
    some = {MEMBERS_THAT_TRAINED: run.trained, MEMBERS_GIVEN_AWAY: run.given}.get(population)
    rows = [some(client_of(m)) if some else run.row(client_of(m), nonmembers) for m in models]
    parts = [(m, {r: u for r, u in row.items() if r in m.scores.index}) for m, row in zip(models, rows, strict=True)]
    client = np.array([client_name(client_of(m)) for m, own in parts for _ in own], dtype=str)
    record = np.array([r for _, own in parts for r in own], dtype=str)
    member = np.array([used for _, own in parts for used in own.values()], dtype=bool)
    known = {client_name(client_of(m)): m.scores.loc[list(run.reference[client_of(m)])] for m in models}
    shadow_targets = {
        client_name(client_of(m)): _shadow_targets(run, m, nonmembers) for m in models if m.shadow_targets is not None
    }
    blind = [run.blind_of(client_of(m), nonmembers)[r] for m, own in parts for r in own]
    base, before_first_round = _base(run, [(m, list(own)) for m, own in parts], nonmembers)
    return Comparison(
        threat_model=models[0].threat_model,
        way=models[0].way,
        round=max(m.round for m in models),
        population=_population(population, nonmembers),
        nonmembers=nonmembers,
        per_client=True,
        client=client,
        record=record,
        member=member,
        scores=pd.concat([m.scores.loc[list(own)] for m, own in parts], ignore_index=True),
        base=base,
        before_first_round=before_first_round,
        blind=np.array(blind, dtype=float),
        reference=known if nonmembers in (HELD_OUT, NOVEL_OBJECTS) else {},
        coin=bool(run.coins) and nonmembers in BY_COIN and some is None,
        unit="records" if run.few or len(parts) <= FEW else "clients",
        within=_classes(run, client, record, member) if nonmembers == OTHER_CLIENTS else None,
        shadow_targets=shadow_targets if nonmembers in BY_COIN else {},
    )


def _base(
    run: ScoredRun, asked: Sequence[tuple[ScoredModel, list[str]]], nonmembers: str
) -> tuple[pd.DataFrame, Set[str]]:
    """The control's scores [record, signal], NaN where the attack has none, and the signals that are constant on the
    base, whose control are earlier models as far as there are any.

    A picture that several clients hold may have been learnt from another one: earlier models have no score of it.
    """
    base, before_first_round = (
        pd.concat([_of(getattr(m, part), m, records) for m, records in asked], ignore_index=True)
        for part in ("base", "before_first_round")
    )
    held = Counter(coin for coin, _ in run.coins.values())
    before_first_round.loc[[r in run.coins and held[run.coins[r][0]] > 1 for _, records in asked for r in records]] = (
        np.nan
    )
    constant = [
        s for s in base if nonmembers in BY_COIN and base[s].nunique() == 1 and before_first_round[s].notna().any()
    ]
    return base.assign(**before_first_round[constant]), frozenset(constant)


def _of(table: pd.DataFrame | None, model: ScoredModel, records: Sequence[str]) -> pd.DataFrame:
    return (pd.DataFrame() if table is None else table).reindex(index=list(records), columns=model.scores.columns)


def _classes(
    run: ScoredRun, client: NDArray[np.str_], record: NDArray[np.str_], member: NDArray[np.bool_]
) -> NDArray[np.str_] | None:
    """Each entry's class, if a client shares enough of its classes with the others for a comparison within them."""
    label = np.array([run.group[r] for r in record], dtype=str)
    return label if comparable(member, client, label).any() else None


def _shadow_targets(run: ScoredRun, model: ScoredModel, nonmembers: str) -> pd.DataFrame:
    """What the adversary knows of its own models about records such as these: canaries are another distribution than
    all others."""
    assert model.shadow_targets is not None
    k, asked = client_of(model), model.shadow_targets.index
    alike = run.canaries.get(k, ()) if nonmembers == LEFT_OUT_CANARIES else (*run.records[k], *run.reference[k])
    if not asked.isin(list(run.kinds(k))).any():
        raise ValueError(f"pseudo must be indexed by the client's records, got {asked[0]!r}.")
    return model.shadow_targets[asked.isin(alike)]
