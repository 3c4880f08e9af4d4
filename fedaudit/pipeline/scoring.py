"""From answers to scores: every attack as a function of what its adversary knows, and the controls beside it.

No model is asked here, and nothing knows what a record is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attacks.answers import public_records
from attacks.decompose import solve
from attacks.facts import ATTACKS
from attacks.knowledge import Attack, Floats, Knowledge
from attacks.source import record_owner
from fedaudit.machinery.executor import one_thread
from fedaudit.pipeline.inquiry import Inquiry, answers_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Given = ParamSpec("Given")
Result = TypeVar("Result")
Tables = dict[str, pd.DataFrame]
Place = tuple[str, str, int | None, int]  # threat model, way, client and rounds seen of a model


@dataclass(frozen=True)
class ScoringJob:
    """What the adversaries of one target have asked, and their attacks by threat model."""

    inquiries: Sequence[Inquiry]
    attacks: Mapping[str, Mapping[str, DataclassInstance]]
    over_rounds_alone: bool  # attacks on one model also look at all states that are seen of it
    stand_ins: int  # so many of the first shadows stand in for the attacked model


def score(job: ScoringJob) -> list[tuple[Place, Tables]]:
    """Of every model, by record: the scores, those of the controls ("base", "before_first_round"), of models whose
    members the adversary knows ("shadow_targets"), what else it computed ("facts"), and of messages that are solved
    "batches". A model that no attack has a score of is left out."""
    one_thread()
    scorer = Scorer(job)
    found = [((i.threat_model, i.way, i.client, i.round), scorer.tables(i)) for i in job.inquiries]
    return [(place, tables) for place, tables in found if tables]


def together(parts: Iterable[tuple[Place, Tables]]) -> dict[Place, Tables]:
    """By model the tables of all targets, one below the other."""
    found: dict[Place, dict[str, list[pd.DataFrame]]] = {}
    for place, tables in parts:
        of_model = found.setdefault(place, {})
        for name, table in tables.items():
            of_model.setdefault(name, []).append(table)
    return {place: {name: pd.concat(few) for name, few in tables.items()} for place, tables in found.items()}


class Scorer:
    """One target under attack. What several attacks or adversaries need is computed once; equal models are attacked
    once."""

    def __init__(self, job: ScoringJob) -> None:
        self.job = job
        self._once: dict[object, Any] = {}

    def tables(self, inquiry: Inquiry) -> Tables:
        """See `score`."""
        place = inquiry.shadows.name if inquiry.shadows else "", inquiry.records[0], len(inquiry.records)
        seen = inquiry.knowledge(self._cached((*place, "beside"), inquiry.beside))
        alone = dataclasses.replace(seen, history=None, rounds=None)  # equal for equal models
        scores: dict[str, Floats] = {}
        base: dict[str, Floats] = {}
        before_first_round: dict[str, Floats] = {}
        shadow_targets: list[pd.DataFrame] = []
        for name, params in self.job.attacks[inquiry.threat_model].items():
            plugin = ATTACKS[name]
            if (plugin.facts.shadows and seen.shadows is None) or (plugin.facts.needs and not inquiry.over_rounds):
                continue
            made: Attack = plugin.make(params)
            if seen.shadows is not None and (plugin.facts.shadows or not plugin.facts.needs):
                shadow_targets += self._cached(
                    (*place, name, "shadow_targets"), self._shadow_targets, inquiry, made, seen
                )
            if plugin.facts.needs:
                scores |= made.score(seen)
                if twin := self._twin(inquiry, seen):
                    again = made.score(twin[0])
                    base |= again
                    shadow_targets.append(_known(inquiry, again, twin[1]))
                continue
            if plugin.facts.rounds and self.job.over_rounds_alone and seen.states is not None:
                scores |= made.score(seen)
            else:
                scores |= self._cached((*place, name, seen.answers.digest), made.score, alone)
            start = self._cached((*place, name, "base"), made.score, seen.before_training())
            base |= start
            before_first_round |= self._cached(
                (*place, name, "before_first_round"), self._before_first_round, made, inquiry, seen, start
            )
        if not scores:
            return {}
        columns = {"scores": scores, "base": base, "facts": facts(seen)} | (
            {"before_first_round": before_first_round} if before_first_round else {}
        )
        index = pd.Index(seen.records, name="record")
        tables = {name: pd.DataFrame(values, index) for name, values in columns.items()}
        return tables | batches(seen) | ({"shadow_targets": pd.concat(shadow_targets)} if shadow_targets else {})

    def _cached(self, key: object, compute: Callable[Given, Result], *args: Given.args, **more: Given.kwargs) -> Result:
        if key not in self._once:
            self._once[key] = compute(*args, **more)
        found: Result = self._once[key]
        return found

    def _before_first_round(
        self, made: Attack, inquiry: Inquiry, seen: Knowledge, start: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """Of scores that are constant on the public start (`start`) those of the released model before the target first
        took part; none if it began with the public start."""
        constant = {name for name, values in start.items() if len(set(values[~np.isnan(values)])) == 1}
        if not constant or inquiry.before is None:
            return {}
        answers = answers_of(public_records(inquiry.public.read("public")), inquiry.before)
        scores = made.score(dataclasses.replace(seen.before_training(), answers=answers))
        return {name: values for name, values in scores.items() if name in constant}

    def _shadow_targets(self, inquiry: Inquiry, made: Attack, seen: Knowledge) -> list[pd.DataFrame]:
        """Scores of shadows in the place of the attacked model."""
        assert seen.shadows is not None
        some = range(min(self.job.stand_ins, len(seen.shadows.member)))
        return [_known(inquiry, made.score(seen.leave_out(s)), seen.shadows.member[s]) for s in some]

    def _twin(self, inquiry: Inquiry, seen: Knowledge) -> tuple[Knowledge, NDArray[np.bool_]] | None:
        """What the same adversary would have seen of a federation that drew its members anew, and those members; None
        without one. Beside it stand the shadows of the other trajectories."""
        if inquiry.twin is None or inquiry.drawn is None:
            return None
        again = inquiry.twin.knowledge()
        if seen.shadows is not None:  # the twin's trajectory is the first one's
            again = dataclasses.replace(again, shadows=seen.shadows.without(0))
        return again, inquiry.target.of_records(inquiry.drawn.read("drawn")["member"])


def _known(inquiry: Inquiry, scores: Mapping[str, Floats], member: NDArray[np.bool_]) -> pd.DataFrame:
    """Scores of the target's own records whose membership the adversary knows."""
    own = slice(0, len(inquiry.target.own))
    index = pd.Index(inquiry.records[own], name="record")
    return pd.DataFrame({"member": member[own]} | {name: values[own] for name, values in scores.items()}, index)


def facts(seen: Knowledge) -> dict[str, Any]:
    """Losses with and without the record and what else readers ask, by record."""
    found: dict[str, Any] = {"loss": seen.loss, "base_loss": seen.base.loss}
    if seen.hard is not None:
        found["hard_right"] = seen.hard.argmax(1) == seen.labels
    if seen.shadows is not None:
        loss = seen.shadows.loss
        for name, part in (("loss_in", seen.shadows.member), ("loss_out", ~seen.shadows.member)):
            found[name] = np.ma.masked_array(loss, ~part).mean(0).filled(np.nan)
    if seen.rounds is not None:
        found |= record_owner(seen.rounds)
    return found | seen.answers.facts(seen.base)


def batches(seen: Knowledge) -> Tables:
    """How well each message that is solved is explained."""
    solved = [(mixture.round, solve(mixture)) for mixture in (seen.rounds.mixtures if seen.rounds else ())]
    rows = [(r, found.residual, found.least, found.error) for r, found in solved]
    return {"batches": pd.DataFrame(rows, columns=["round", "residual", "least", "error"])} if rows else {}
