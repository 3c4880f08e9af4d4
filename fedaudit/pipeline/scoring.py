"""From answers to scores: runs every attack on what its adversary knows, and on the controls.

No model is needed here, only answers on disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedaudit.attacks.answers import public_records
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge
from fedaudit.attacks.source import record_owner
from fedaudit.machinery.executor import one_thread
from fedaudit.pipeline.question_set import QuestionSet, answers_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Tables = dict[str, pd.DataFrame]
ModelKey = tuple[str, str, int | None, int]  # threat model, way, client (None: all) and rounds seen of a model


@dataclass(frozen=True)
class ScoringJob:
    """One target's attacked models, with their answers, and the attacks on them."""

    question_sets: Sequence[QuestionSet]
    attacks: Mapping[str, Mapping[str, DataclassInstance]]  # parameters by threat model and attack
    over_rounds_alone: bool  # whether attacks on one model also use its states after several rounds
    stand_ins: int  # how many of the shadows, the first ones, play the attacked model


def score(job: ScoringJob) -> list[tuple[ModelKey, Tables]]:
    """Run all attacks on all models of the job; returns (model, tables by name) for every model that any attack has
    scores of.

    Tables with a row per record: `scores`, a column per score; `base` and `before_first_round`, the same of the
    controls; `shadow_targets`, the same of models whose `member`s the adversary knows; `facts`, see `record_facts`.
    `batches`: see the function `batches`. All but `scores`, `base` and `facts` may be missing.
    """
    one_thread()
    scorer = Scorer(job)
    scored = [((q.threat_model, q.way, q.client, q.round), scorer.tables(q)) for q in job.question_sets]
    return [(key, tables) for key, tables in scored if tables]


def concatenate_targets(parts: Iterable[tuple[ModelKey, Tables]]) -> dict[ModelKey, Tables]:
    """The tables of all targets, {model: {name: table}}; those of several targets about one model are concatenated by
    rows."""
    by_model: dict[ModelKey, dict[str, list[pd.DataFrame]]] = {}
    for key, tables in parts:
        of_model = by_model.setdefault(key, {})
        for name, table in tables.items():
            of_model.setdefault(name, []).append(table)
    return {key: {name: pd.concat(few) for name, few in tables.items()} for key, tables in by_model.items()}


class Scorer:
    """Runs the attacks on one target. Results that several attacks or adversaries share are computed once, and equal
    models are attacked once."""

    def __init__(self, job: ScoringJob) -> None:
        self.job = job
        self._results: dict[object, Any] = {}

    def tables(self, question_set: QuestionSet) -> Tables:
        """The tables {name: table} of one attacked model, as `score` describes them; {} if no attack has a score."""
        shadows, records = question_set.shadows, question_set.records
        asked = (shadows.name, shadows.parts) if shadows else ()  # adversaries may ask the same shadows for less
        vectors = question_set.vectors.name if question_set.vectors else ""
        key = asked, vectors, records[0], len(records)
        knowledge = question_set.knowledge(self._cached((*key, "shadow answers"), question_set.shadow_answers))
        alone = dataclasses.replace(knowledge, history=None, rounds=None, explained=None)  # equal for equal models
        scores, base, before_first_round = dict[str, Floats](), dict[str, Floats](), dict[str, Floats]()
        shadow_targets = list[pd.DataFrame]()
        for name, params in self.job.attacks[question_set.threat_model].items():
            facts = ATTACKS[name].facts
            if (facts.shadows and knowledge.shadows is None) or (facts.needs and not question_set.over_rounds):
                continue
            attack: Attack = ATTACKS[name].make(params)
            if knowledge.shadows is not None and (facts.shadows or not facts.needs):
                shadow_targets += self._cached(
                    (*key, name, "shadow_targets"), self._shadow_targets, question_set, attack, knowledge
                )
            if facts.needs:
                scores |= attack.score(knowledge)
                if twin := self._twin(question_set, knowledge):
                    twin_scores = attack.score(twin[0])
                    base |= twin_scores
                    shadow_targets.append(_with_membership(question_set, twin_scores, twin[1]))
                continue
            if facts.rounds and self.job.over_rounds_alone and knowledge.states is not None:
                scores |= attack.score(knowledge)
            else:
                scores |= self._cached((*key, name, knowledge.answers.digest), attack.score, alone)
            start = self._cached((*key, name, "base"), attack.score, knowledge.before_training())
            base |= start
            before_first_round |= self._cached(
                (*key, name, "before_first_round"), self._before_first_round, attack, question_set, knowledge, start
            )
        if not scores:
            return {}
        columns = {"scores": scores, "base": base, "facts": record_facts(knowledge)} | (
            {"before_first_round": before_first_round} if before_first_round else {}
        )
        index = pd.Index(knowledge.records, name="record")
        tables = {name: pd.DataFrame(values, index) for name, values in columns.items()}
        return tables | batches(knowledge) | ({"shadow_targets": pd.concat(shadow_targets)} if shadow_targets else {})

    def _cached(
        self, key: object, compute: Callable[Arguments, Result], *args: Arguments.args, **more: Arguments.kwargs
    ) -> Result:
        """`compute(*args, **more)`, computed once per key."""
        if key not in self._results:
            self._results[key] = compute(*args, **more)
        return self._results[key]

    def _before_first_round(
        self, attack: Attack, question_set: QuestionSet, knowledge: Knowledge, start: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """The attack's scores of the released model before the target's first round, as a control for those scores
        that are constant on the public start (`start`). {} without such scores or such a model."""
        constant = {name for name, values in start.items() if len(set(values[~np.isnan(values)])) == 1}
        if not constant or question_set.before is None:
            return {}
        answers = answers_of(public_records(question_set.public.read("public")), question_set.before)
        scores = attack.score(dataclasses.replace(knowledge.before_training(), answers=answers))
        return {name: values for name, values in scores.items() if name in constant}

    def _shadow_targets(self, question_set: QuestionSet, attack: Attack, knowledge: Knowledge) -> list[pd.DataFrame]:
        """The attack's scores with each of the first `stand_ins` shadows as the attacked model, a table per shadow; see
        `_with_membership` for the columns."""
        assert knowledge.shadows is not None
        member = knowledge.shadows.member
        some = range(min(self.job.stand_ins, len(member)))
        return [_with_membership(question_set, attack.score(knowledge.leave_out(s)), member[s]) for s in some]

    def _twin(self, question_set: QuestionSet, knowledge: Knowledge) -> tuple[Knowledge, NDArray[np.bool_]] | None:
        """The adversary's knowledge of the twin federation, and which of the records [n] were members there; None
        without a twin. Shadows of the twin's own trajectory are left out."""
        if question_set.twin is None or question_set.drawn is None:
            return None
        twin = question_set.twin.knowledge()
        if knowledge.shadows is not None:  # the first shadow's trajectory is the twin's
            twin = dataclasses.replace(twin, shadows=knowledge.shadows.without(0))
        return twin, question_set.target.of_records(question_set.drawn.read("drawn")["member"])


def _with_membership(
    question_set: QuestionSet, scores: Mapping[str, Floats], member: NDArray[np.bool_]
) -> pd.DataFrame:
    """A row per candidate and reference record, indexed by record: `member`, and a column per score."""
    n = len(question_set.target.own)
    index = pd.Index(question_set.records[:n], name="record")
    return pd.DataFrame({"member": member[:n]} | {name: values[:n] for name, values in scores.items()}, index)


def record_facts(knowledge: Knowledge) -> dict[str, Any]:
    """Columns, {name: [n]}, that reports show beside the scores of n records: losses of the attacked model and of the
    public start, mean losses of shadows with and without the record, and what else the adversary computed of each
    record."""
    columns: dict[str, Any] = {"loss": knowledge.loss, "base_loss": knowledge.base.loss}
    if knowledge.hard is not None:
        columns["hard_right"] = knowledge.hard.argmax(1) == knowledge.labels
    if knowledge.shadows is not None:
        loss = knowledge.shadows.loss
        for name, part in (("loss_in", knowledge.shadows.member), ("loss_out", ~knowledge.shadows.member)):
            columns[name] = np.ma.masked_array(loss, ~part).mean(0).filled(np.nan)
    if knowledge.rounds is not None:
        columns |= record_owner(knowledge.rounds)
    return columns | knowledge.answers.facts(knowledge.base)


def batches(knowledge: Knowledge) -> Tables:
    """The table `batches` by its name: a row per message of the target that was solved, how well records explain it
    (`attacks.decompose.Solution`; of adapters `Explained`), and how many were skipped as they have no gradient. {}
    where none was solved."""
    solutions = [(mixture.round, solve(mixture)) for mixture in (knowledge.rounds.mixtures if knowledge.rounds else ())]
    rows = [(r, one.residual, one.least, one.error, int(np.isnan(one.shares).sum())) for r, one in solutions]
    rows += [(one.round, one.residual, np.nan, np.nan, one.skipped) for one in knowledge.explained or ()]
    return {"batches": pd.DataFrame(rows, columns=["round", "residual", "least", "error", "skipped"])} if rows else {}
