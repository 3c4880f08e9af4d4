"""Which scores are compared with which: members and non-members of one population under one adversary's model(s)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedaudit.tasks.base import client_name


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """The scores of one model that an adversary holds: a row per record (index), a column per signal."""

    threat_model: str
    way: str
    client: int | None
    round: int
    scores: pd.DataFrame


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

    def participants(self, rounds: int) -> list[int]:
        """Clients that took part in the first `rounds` rounds: only their records were trained on."""
        return sorted({client for cohort in self.cohorts[:rounds] for client in cohort})


@dataclass(frozen=True, eq=False)
class Comparison:
    """Members against non-members: aligned arrays, one entry per (model, record)."""

    threat_model: str
    way: str
    round: int
    population: str
    nonmembers: str
    per_client: bool  # scores come from one model per client: means of per-client values, never pooled
    client: NDArray[np.str_]  # the cluster of each entry
    member: NDArray[np.bool_]
    scores: pd.DataFrame
    base: pd.DataFrame
    blind: NDArray[np.float64]
    reference: Mapping[str, pd.DataFrame]  # cluster to scores of further held-out records; "" is everybody's


@functools.lru_cache(maxsize=1)
def comparisons(run: Attacked) -> tuple[Comparison, ...]:
    """Every row of the leakage table, each against held-out records and, where there are any, against novel objects."""
    found: list[Comparison] = []
    against = ("held-out", "novel objects") if run.novel else ("held-out",)
    for model in run.models:
        if model.way == "final":
            everyone, last = run.participants(model.round), list(run.cohorts[model.round - 1])
            found += [
                _pooled(run, model, everyone, "all members", "held-out"),
                _pooled(run, model, last, "last-round members", "held-out"),
            ]
            found += [_pooled(run, model, everyone, "all members", other) for other in against[1:]]
    held = {(m.threat_model, m.way) for m in run.models if m.client is not None}
    for threat_model, way in sorted(held, key=_reading_order):
        chosen = [m for m in run.models if (m.threat_model, m.way) == (threat_model, way) and m.client is not None]
        found += [_per_client(run, chosen, nonmembers) for nonmembers in against]
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


def _pooled(run: Attacked, model: ScoredModel, clients: Sequence[int], population: str, nonmembers: str) -> Comparison:
    """One model for everybody. Novel records belong to no client: each is a cluster of its own."""
    scored = set(model.scores.index)
    pairs = [(client_name(k), r) for k in clients for r in run.records[k] if r in scored]
    if nonmembers == "novel objects":
        pairs = [(name, r) for name, r in pairs if run.truth[r]] + [(r, r) for r in run.novel if r in scored]
    reference = [r for k in clients for r in run.reference[k] if r in scored]
    names, records = [name for name, _ in pairs], [r for _, r in pairs]
    return Comparison(
        model.threat_model,
        model.way,
        model.round,
        population,
        nonmembers,
        False,
        np.array(names),
        np.array([run.truth.get(r, False) for r in records]),
        model.scores.loc[records].reset_index(drop=True),
        run.base.loc[records].reset_index(drop=True),
        np.array([run.blind[nonmembers][r] for r in records]),
        {"": model.scores.loc[reference]} if reference else {},
    )


def _per_client(run: Attacked, chosen: Sequence[ScoredModel], nonmembers: str) -> Comparison:
    """One model per client, each asked about its own records."""
    names: list[str] = []
    records: list[str] = []
    frames, reference = [], {}
    for model in chosen:
        assert model.client is not None
        own = list(run.records[model.client])
        if nonmembers == "novel objects":
            own = [r for r in own if run.truth[r]] + [r for r in run.novel if r in model.scores.index]
        names += [client_name(model.client)] * len(own)
        records += own
        frames.append(model.scores.loc[own])
        reference[names[-1]] = model.scores.loc[list(run.reference[model.client])]
    return Comparison(
        chosen[0].threat_model,
        chosen[0].way,
        max(m.round for m in chosen),
        "own members",
        nonmembers,
        True,
        np.array(names),
        np.array([run.truth.get(r, False) for r in records]),
        pd.concat(frames, ignore_index=True),
        run.base.loc[records].reset_index(drop=True),
        np.array([run.blind[nonmembers][r] for r in records]),
        reference,
    )
