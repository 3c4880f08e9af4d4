"""Attacks on texts by shadow models: each target's models beside those that the adversary trained in its place."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from attacks import queries
from attacks.answers import TextAnswers
from attacks.attacked_models import SHADOWS_ASKED, Model, Target
from attacks.knowledge import Attack, Floats, Knowledge, Shadows
from fedaudit.machinery import plugins
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, shadows_of
from fedaudit.pipeline.text_rounds import Seen
from fedaudit.terms.held_models import BASE, BEFORE, BEST_UTILITY, FINAL, ROUND
from trainers.base import AttackBench, LanguageModel, unpack

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Held:
    """A model to attack, packed, with what is known of rounds beside it."""

    role: str | None  # which of a shadow's models stands beside it
    state: bytes
    seen: Seen


@dataclass(frozen=True)
class TargetJob:
    """One target and the models to attack, by key: its own ones and released ones of everybody."""

    attacks: Mapping[str, DataclassInstance]  # name to parameters
    recipe: ShadowRecipe
    target: Target
    held: Mapping[str, Held]
    base: TextAnswers  # about the target's records


def role(model: Model) -> str | None:
    """Which of a shadow's models stands beside this one; None: there is none, of a state before the last round."""
    if model.way in (BASE, BEFORE, ROUND, BEST_UTILITY):
        return None
    return "released" if model.way == FINAL else "personal"


def attack(bench: AttackBench, job: TargetJob) -> dict[str, Tables]:
    """By key what every attack says of a model's answers about the target's records ("scores"), of the public
    base's ("base"), and of the first shadows' own, whose members the adversary knows ("pseudo")."""
    assert isinstance(bench.learner, LanguageModel)
    trained, records = shadows_of(bench, job.recipe, job.target.client), job.target.records
    member = job.target.of_records(trained.member)
    ask = functools.partial(queries.ask_texts, bench.learner, records=records, compats=("exact",))
    found = {}
    known = np.isin(records, job.target.reference)
    for role, models in (("personal", trained.personal), ("released", trained.released)):
        held = {key: one for key, one in job.held.items() if one.role == role}
        if held:
            shadows = Shadows(member, [ask(state=model) for model in models], trajectory=trained.trajectory)
            pseudo: pd.DataFrame | None = None
            for key, one in held.items():
                seen = Knowledge(
                    records, known, ask(state=unpack(one.state)), job.base,
                    shadows=shadows, history=one.seen.history, rounds=one.seen.rounds,
                )  # fmt: skip
                if pseudo is None:  # the same for all models beside the same shadows
                    pseudo = _pseudo(job.attacks, seen)
                scores, base = (scores_of(job.attacks, one) for one in (seen, seen.before_training()))
                found[key] = {"scores": scores, "base": base, "pseudo": pseudo}
    return found


def scores_of(attacks: Mapping[str, DataclassInstance], seen: Knowledge) -> pd.DataFrame:
    """The scores of every attack, a row per record."""
    columns: dict[str, Floats] = {}
    for name, params in attacks.items():
        made: Attack = plugins.plugins("attack")[name].make(params)
        columns |= made.score(seen)
    return pd.DataFrame(columns, pd.Index(seen.records, name="record"))


def _pseudo(attacks: Mapping[str, DataclassInstance], seen: Knowledge) -> pd.DataFrame:
    """Scores of shadows in the place of the attacked model."""
    assert seen.shadows is not None
    some = range(min(SHADOWS_ASKED, len(seen.shadows.member)))
    return pd.concat([scores_of(attacks, seen.leave_out(s)).assign(member=seen.shadows.member[s]) for s in some])


def joined(tables: Tables, of_targets: Sequence[Tables]) -> Tables:
    """A model's tables with what attacks by shadow models say of some targets' records; NaN about all others."""
    further = {name: pd.concat([each[name] for each in of_targets]) for name in ("scores", "base", "pseudo")}
    return tables | further | {"scores": tables["scores"].join(further["scores"])}
