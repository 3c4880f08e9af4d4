"""Which scores are compared with which: members and non-members of one population under one adversary's model(s).

This is about LoRA, where every client's model is attacked; a few target clients of prompts are in `audits.comparisons.targets`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from audits.statistics.stratified import comparable
from fedaudit.tasks.base import client_name

COIN = ("held-out", "left-out canaries")  # non-members that only a fair coin made so


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """The scores of one model that an adversary holds: a row per record (index), a column per signal; NaN: it cannot say.

    `base` are the same columns where no record was learnt: of the public start or, for attacks on messages, of a twin federation that
    drew its members anew. `pseudo` are scores of models that the adversary trained itself: a row per model and record (index), whether it was
    trained on it ("member"). `facts` are numbers for readers: loss, base_loss, loss_in and loss_out (means over shadows trained with the
    record and without it), hard_right (whether the hard prompt is right). None of the three where they are of all models (`Attacked.base`).
    """

    threat_model: str
    way: str
    client: int | None
    round: int
    scores: pd.DataFrame
    base: pd.DataFrame | None = None
    pseudo: pd.DataFrame | None = None
    facts: pd.DataFrame | None = None


@dataclass(frozen=True, eq=False)
class Attacked:
    """A run after the attack, with the truth: what audits work on."""

    models: Sequence[ScoredModel]
    base: pd.DataFrame  # the public base model's scores of every record
    blind: Mapping[str, Mapping[str, float]]  # "held-out" and "novel objects": record to the blind classifier's score
    records: Mapping[int, Sequence[str]]  # candidates of each client
    reference: Mapping[int, Sequence[str]]
    novel: Sequence[str]
    truth: Mapping[str, bool]
    cohorts: Sequence[Sequence[int]]  # of each round
    canaries: Mapping[int, Sequence[str]] = field(default_factory=dict)  # of each client; no candidates

    def participants(self, rounds: int) -> list[int]:
        """Clients that took part in the first `rounds` rounds: only their records were trained on."""
        return sorted({client for cohort in self.cohorts[:rounds] for client in cohort})


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Members against non-members: aligned arrays, one entry per (model, record)."""

    threat_model: str
    way: str
    round: int
    population: str
    nonmembers: str
    per_client: bool  # scores come from one model per client: means of per-client values, never pooled
    client: NDArray[np.str_]  # the cluster of each entry
    record: NDArray[np.str_]
    member: NDArray[np.bool_]
    scores: pd.DataFrame
    base: pd.DataFrame
    blind: NDArray[np.float64]
    reference: Mapping[str, pd.DataFrame]  # cluster to scores of further held-out records; "" is everybody's
    unit: str = "clients"  # of the intervals; "records" where a few clients are attacked, through a model each
    within: NDArray[np.str_] | None = None  # label of each entry, where only equal ones are compared
    pseudo: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # by client, see `ScoredModel`

    @property
    def exchangeable(self) -> bool:
        """Whether members and non-members differ in nothing but membership, by design or because their label is all that tells them apart."""
        return self.nonmembers in COIN or self.within is not None

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
        return dataclasses.replace(self, **parts, **frames, within=within)


@functools.lru_cache(maxsize=1)
def comparisons(run: Attacked) -> tuple[Comparison, ...]:
    """Every row of the leakage table: against held-out records and, where there are any, against novel objects; and canaries."""
    found: list[Comparison] = []
    against = ["held-out", *["novel objects"] * bool(run.novel), *["left-out canaries"] * any(run.canaries.values())]
    for model in run.models:
        if model.way == "final":
            everyone, last = run.participants(model.round), list(run.cohorts[model.round - 1])
            found += [
                _pooled(run, model, everyone, "all members", "held-out"),
                _pooled(run, model, last, "last-round members", "held-out"),
            ]
            found += [_pooled(run, model, everyone, _population("all members", other), other) for other in against[1:]]
        if model.way == "best utility":
            found.append(_pooled(run, model, run.participants(model.round), "all members", "held-out"))
    held = {(m.threat_model, m.way) for m in run.models if m.client is not None}
    for threat_model, way in sorted(held, key=_reading_order):
        chosen = [m for m in run.models if (m.threat_model, m.way) == (threat_model, way) and m.client is not None]
        asked = chosen[0].scores.index
        kinds = [kind for kind in against if kind != "novel objects" or any(r in asked for r in run.novel)]
        found += [_per_client(run, chosen, nonmembers) for nonmembers in kinds]
    return tuple(found)


def by_round(run: Attacked) -> list[Comparison]:
    """The released model after each round on the subsample that every round was asked about."""
    found = []
    for model in sorted((m for m in run.models if m.way in ("round", "final")), key=lambda m: m.round):
        asked = set(next((m for m in run.models if m.way == "round"), model).scores.index)
        small = ScoredModel(
            model.threat_model, model.way, None, model.round, model.scores[model.scores.index.isin(asked)]
        )
        found.append(_pooled(run, small, run.participants(model.round), "all members", "held-out"))
        found.append(_pooled(run, small, list(run.cohorts[model.round - 1]), "last-round members", "held-out"))
    return found


def _reading_order(held: tuple[str, str]) -> tuple[int, int]:
    ways = ("exact", "literal", "newest", "server-fill", "true state")
    return ("server", "owner").index(held[0]), ways.index(held[1])


def _population(usual: str, nonmembers: str) -> str:
    return "canaries" if nonmembers == "left-out canaries" else usual


def _asked(run: Attacked, client: int, nonmembers: str) -> list[str]:
    """The records of a client that a coin decided about: canaries or candidates."""
    return list(run.canaries.get(client, ()) if nonmembers == "left-out canaries" else run.records[client])


def _pooled(run: Attacked, model: ScoredModel, clients: Sequence[int], population: str, nonmembers: str) -> Comparison:
    """One model for everybody. Novel records belong to no client: each is a cluster of its own."""
    scored = set(model.scores.index)
    pairs = [(client_name(k), r) for k in clients for r in _asked(run, k, nonmembers) if r in scored]
    if nonmembers == "novel objects":
        pairs = [(name, r) for name, r in pairs if run.truth[r]] + [(r, r) for r in run.novel if r in scored]
    reference = [r for k in clients for r in run.reference[k] if r in scored and nonmembers != "left-out canaries"]
    names, records = [name for name, _ in pairs], [r for _, r in pairs]
    return Comparison(
        threat_model=model.threat_model,
        way=model.way,
        round=model.round,
        population=population,
        nonmembers=nonmembers,
        per_client=False,
        client=np.array(names, dtype=str),
        record=np.array(records, dtype=str),
        member=np.array([run.truth.get(r, False) for r in records], dtype=bool),
        scores=model.scores.loc[records].reset_index(drop=True),
        base=run.base.loc[records].reset_index(drop=True),
        blind=np.array([run.blind[nonmembers][r] for r in records], dtype=float),
        reference={"": model.scores.loc[reference]} if reference else {},
    )


def _per_client(run: Attacked, chosen: Sequence[ScoredModel], nonmembers: str) -> Comparison:
    """One model per client, each asked about its own records."""
    names: list[str] = []
    records: list[str] = []
    frames, reference = [], {}
    for model in chosen:
        assert model.client is not None
        own = _asked(run, model.client, nonmembers)
        if nonmembers == "novel objects":
            own = [r for r in own if run.truth[r]] + [r for r in run.novel if r in model.scores.index]
        names += [client_name(model.client)] * len(own)
        records += own
        frames.append(model.scores.loc[own])
        if nonmembers != "left-out canaries":  # which are of another distribution than the reference records
            reference[client_name(model.client)] = model.scores.loc[list(run.reference[model.client])]
    return Comparison(
        threat_model=chosen[0].threat_model,
        way=chosen[0].way,
        round=max(m.round for m in chosen),
        population=_population("own members", nonmembers),
        nonmembers=nonmembers,
        per_client=True,
        client=np.array(names, dtype=str),
        record=np.array(records, dtype=str),
        member=np.array([run.truth.get(r, False) for r in records], dtype=bool),
        scores=pd.concat(frames, ignore_index=True),
        base=run.base.loc[records].reset_index(drop=True),
        blind=np.array([run.blind[nonmembers][r] for r in records], dtype=float),
        reference=reference,
    )
