"""The comparisons of target clients of prompt learning: each attacked through a model of its own, and few of them.

Members stand against held-out records of the same client, against other clients' records, and inserted canaries against left-out ones. The
records, not the clients, are the units of the intervals (`audits.statistics.stratified`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from audits.comparisons.models import Comparison, ScoredModel
from audits.statistics.stratified import comparable
from fedaudit.tasks.base import client_name

HELD = (("prompt-user", "prompt"), ("released-model", "final"), ("server", "rebuilt"), ("owner", "true state"))
POPULATIONS = {"held-out": "own members", "other clients": "own members", "left-out canaries": "canaries"}


@dataclass(frozen=True, eq=False)
class AttackedPrompts:
    """Target clients after all attacks, with the truth: what audits of prompts work on. Mappings by client hold the targets."""

    models: Sequence[ScoredModel]  # each of one target, with `base`
    signals: Mapping[str, str]  # of every score the attack, in order; an attack's first score is its headline
    blind: Mapping[tuple[int, str], Mapping[str, float]]  # `audits.blind.blind_controls`
    records: Mapping[int, Sequence[str]]  # candidates of each target
    reference: Mapping[int, Sequence[str]]  # known non-members of the same distribution
    others: Mapping[int, Sequence[str]]  # a sample of other clients' records
    truth: Mapping[str, bool]  # candidate or canary to whether its client was trained on it
    group: Mapping[str, str]  # record to class name
    canaries: Mapping[int, Sequence[str]] = field(default_factory=dict)  # of each target; no candidates

    @property
    def headline(self) -> dict[str, str]:
        """Attack to the score that stands for it, fixed before looking."""
        found: dict[str, str] = {}
        for signal, attack in self.signals.items():
            found.setdefault(attack, signal)
        return found

    def kinds(self, client: int) -> dict[str, str]:
        """Every record that a target's models are judged by, and what it is; they may have been asked about more."""
        member = {True: "member", False: "held-out"}
        canary = {True: "canary", False: "left-out canary"}
        return (
            {r: member[self.truth[r]] for r in self.records[client]}
            | {r: canary[self.truth[r]] for r in self.canaries.get(client, ())}
            | dict.fromkeys(self.reference[client], "reference")
            | dict.fromkeys(self.others.get(client, ()), "other client")
        )


def rows(run: AttackedPrompts) -> dict[tuple[int, str], dict[str, bool]]:
    """By target and kind of non-members, the records of a comparison and which of them are members."""
    found = {}
    for k in run.records:
        kinds = run.kinds(k)
        for nonmembers, pair in (
            ("held-out", ("member", "held-out")),
            ("other clients", ("member", "other client")),
            ("left-out canaries", ("canary", "left-out canary")),
        ):
            found[k, nonmembers] = {r: kind == pair[0] for r, kind in kinds.items() if kind in pair}
    return found


@functools.lru_cache(maxsize=1)
def target_comparisons(run: AttackedPrompts) -> tuple[Comparison, ...]:
    """Every row of the leakage table, adversary by adversary; other clients and canaries where there are any."""
    against = ["held-out"]
    against += ["other clients"] * any(run.others.values()) + ["left-out canaries"] * any(run.canaries.values())
    asked, found = rows(run), []
    pairs = {(m.threat_model, m.way) for m in run.models}
    if unknown := pairs - set(HELD):
        raise ValueError(f"threat model and way must be one of {HELD}, not {min(unknown)}")
    for held in sorted(pairs, key=HELD.index):
        models = [m for m in run.models if (m.threat_model, m.way) == held]
        found += [_row(run, models, nonmembers, asked) for nonmembers in against]
    return tuple(found)


def _row(
    run: AttackedPrompts,
    models: Sequence[ScoredModel],
    nonmembers: str,
    asked: Mapping[tuple[int, str], Mapping[str, bool]],
) -> Comparison:
    """All targets of one adversary, each asked about its own records."""
    parts = [(m, list(asked[client_of(m), nonmembers].items())) for m in models]
    client = np.array([client_name(client_of(m)) for m, own in parts for _ in own], dtype=str)
    record = np.array([r for _, own in parts for r, _ in own], dtype=str)
    member = np.array([used for _, own in parts for _, used in own], dtype=bool)
    coin = nonmembers != "other clients"
    return Comparison(
        threat_model=models[0].threat_model,
        way=models[0].way,
        round=max(m.round for m in models),
        population=POPULATIONS[nonmembers],
        nonmembers=nonmembers,
        per_client=True,
        client=client,
        record=record,
        member=member,
        scores=pd.concat([m.scores.loc[[r for r, _ in own]] for m, own in parts], ignore_index=True),
        base=pd.concat([_base(m, [r for r, _ in own]) for m, own in parts], ignore_index=True),
        blind=np.array([run.blind[client_of(m), nonmembers][r] for m, own in parts for r, _ in own], dtype=float),
        reference={client_name(client_of(m)): _known(run, m) for m in models} if nonmembers == "held-out" else {},
        unit="records",
        within=None if coin else _classes(run, client, record, member),
        pseudo={
            client_name(client_of(m)): _pseudo(run, m, nonmembers) for m in models if coin and m.pseudo is not None
        },
    )


def client_of(model: ScoredModel) -> int:
    """The target whose model it is."""
    assert model.client is not None
    return model.client


def _known(run: AttackedPrompts, model: ScoredModel) -> pd.DataFrame:
    return model.scores.loc[list(run.reference[client_of(model)])]


def _base(model: ScoredModel, records: Sequence[str]) -> pd.DataFrame:
    """The control's scores [record, signal]; NaN where the attack has none."""
    base = pd.DataFrame() if model.base is None else model.base
    return base.reindex(index=list(records), columns=model.scores.columns)


def _classes(
    run: AttackedPrompts, client: NDArray[np.str_], record: NDArray[np.str_], member: NDArray[np.bool_]
) -> NDArray[np.str_] | None:
    """Each entry's class, if a target shares enough of its classes with the others for a comparison within them."""
    label = np.array([run.group[r] for r in record], dtype=str)
    return label if comparable(member, client, label).any() else None


def _pseudo(run: AttackedPrompts, model: ScoredModel, nonmembers: str) -> pd.DataFrame:
    """What the adversary knows of its own models about records such as these: canaries are another distribution than all others."""
    assert model.pseudo is not None
    k, asked = client_of(model), model.pseudo.index
    alike = run.canaries.get(k, ()) if nonmembers == "left-out canaries" else (*run.records[k], *run.reference[k])
    if not asked.isin(list(run.kinds(k))).any():
        raise ValueError(f"pseudo must be indexed by the target's records, got {asked[0]!r}.")
    return model.pseudo[asked.isin(alike)]
