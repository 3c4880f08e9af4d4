"""Attacks on classifiers: every adversary of every target client, with what they have in common computed once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from attacks import gradients, queries
from attacks.answers import ClassAnswers
from attacks.attacked_models import CURVE, OTHERS, SHADOWS_ASKED, Target
from attacks.base import Candidates, View
from attacks.decompose import solve
from attacks.knowledge import Attack, Floats, Knowledge, Shadows
from attacks.rebuild import Rebuilt
from attacks.replay import Messages, losses
from attacks.source import whose
from attacks.threats import refusal
from fedaudit.machinery import plugins
from fedaudit.pipeline import bank
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, recipe_of, shadows_of
from fedaudit.tasks.base import Federation
from fedaudit.terms.held_models import FINAL
from fedaudit.terms.term import find
from fedaudit.terms.threat_models import PEER, RELEASED_MODEL, SERVER, THREAT_MODELS
from trainers.base import AttackBench, Classifier, Differentiable, Method, State, Transcript, pack

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Given = ParamSpec("Given")
Result = TypeVar("Result")
Sent = dict[tuple[str, Path], Messages]  # by threat model and folder of the training


@dataclass(frozen=True)
class Job:
    """Some targets of a trained cell and their adversaries: what a worker needs to attack."""

    method: Method[Any]
    transcript: Transcript
    recipe: ShadowRecipe | None  # of its shadow models
    views: Mapping[str, Mapping[str, DataclassInstance]]  # threat model to its attacks with their parameters
    asked: Sequence[Target]
    rounds: int  # whose messages are attacked
    solved: int = 0  # first messages that are solved for their batches, 0 = those of the first epochs


def allowed(cell: Cell, threat_model: str) -> dict[str, str | None]:
    """Every attack of the plan with the reason why it does not run against this method under this threat model; None if
    it does."""
    method, variant, adversary = method_of(cell), cell.variant, cell.plan.adversary
    assert variant is not None
    reasons: dict[str, str | None] = {}
    for name in cell.plan.attacks:
        plugin = plugins.plugins("attack")[name]
        why = refusal(plugin, threat_model, cell.plan.trained)
        if not variant.plugin.trains:
            why = "this method trains nothing"
        elif not method.sends and (threat_model in (RELEASED_MODEL, SERVER) or (plugin.needs and why is None)):
            why = "this method sends nothing"
        elif threat_model == PEER and not method.by_client:
            why = "this method passes no part of a client on to others"
        elif plugin.shadows and adversary.trajectory == "observed" and threat_model != SERVER and why is None:
            why = "only the server observes the other clients' messages (--trajectory)"
        reasons[name] = why
    return reasons


def refused(cell: Cell) -> pd.DataFrame:
    """Every attack that did not run under a threat model, and why."""
    found = [
        (name, threat_model, why)
        for threat_model in cell.threat_models
        for name, why in allowed(cell, threat_model).items()
        if why is not None
    ]
    return pd.DataFrame(found, columns=["attack", "threat_model", "why"])


def questions(cell: Cell, federation: Federation) -> list[Target]:
    """What the adversaries ask about each target. The sample of other clients' records is drawn at random."""
    found = []
    for k in cell.targets:
        client = federation.clients[k]
        rest = [
            r.id for j, other in enumerate(federation.clients) if j != k for r in (*other.records, *other.reference)
        ]
        drawn = np.random.default_rng((cell.plan.seed, 13, k)).permutation(len(rest))[:OTHERS]
        others, complete = [rest[i] for i in sorted(drawn)], not client.background and not client.canaries
        found.append(Target(k, client.candidates, [r.id for r in client.reference], others, complete))
    return found


def trained_on(cell: Cell, federation: Federation, client: int) -> set[str]:
    """The records that a client really took a step on: those that were in a batch with weight."""
    holder = federation.clients[client]
    method = method_of(cell, federation.sizes)
    rounds = transcript_of(cell).participations(client)
    listed = [r.id for r in holder.training_records]
    return method.used(listed, client=client, seed=cell.seed, rounds=rounds) - holder.left_out


def shared_of(cell: Cell, federation: Federation, client: int) -> set[str]:
    """The records that a client gave to others as they are, with weight."""
    holder = federation.clients[client]
    if not transcript_of(cell).participations(client):
        return set()
    listed = [r.id for r in holder.training_records]
    return method_of(cell, federation.sizes).shown(listed, client=client, seed=cell.seed) - holder.left_out


def jobs_of(cell: Cell, federation: Federation, targets: Sequence[int]) -> list[Job]:
    """The attacks that each adversary can run on some targets of a cell; one job for each worker, whose targets share
    what is read once."""
    params = {name: plugins.plugins("attack")[name].own(given) for name, given in cell.plan.attacks.items()}
    able = {view: [n for n, why in allowed(cell, view).items() if why is None] for view in cell.threat_models}
    views = {view: {name: params[name] for name in names} for view, names in able.items() if names}
    method, recipe = method_of(cell, federation.sizes), recipe_of(cell, federation)
    asked = [question for question in questions(cell, federation) if question.client in targets]
    adversary = cell.plan.adversary
    parts = [asked[i :: cell.plan.threads] for i in range(min(cell.plan.threads, len(asked)))]
    return [
        Job(method, transcript_of(cell), recipe, views, part, adversary.observed_rounds, adversary.solved_rounds)
        for part in parts
    ]


Tables = dict[str, pd.DataFrame]


def attack(bench: AttackBench, job: Job) -> dict[int, dict[str, Tables]]:
    """By target and threat model the scores of records: of the attacked model, of the controls ("base"), of models
    whose members the adversary knows ("pseudo"), and what else it computed ("facts"). An adversary without a model of
    the target is left out."""
    found: dict[int, dict[str, Tables]] = {}
    messages: Sent = {}
    for asked in job.asked:
        attacker = Attacker(bench, job, asked, messages)
        tables = {view: attacker.tables(view, attacks) for view, attacks in job.views.items()}
        found[asked.client] = {view: of_view for view, of_view in tables.items() if of_view}
    return found


class Attacker:
    """One target under attack. What several attacks or adversaries need is computed once; equal models are attacked
    once. So many of the first shadows stand in for the attacked model (`stand_ins`)."""

    def __init__(
        self, bench: AttackBench, job: Job, asked: Target, messages: Sent, *, stand_ins: int = SHADOWS_ASKED
    ) -> None:
        assert isinstance(bench.learner, Classifier)
        self.bench, self.learner, self.job, self.asked, self._messages = bench, bench.learner, job, asked, messages
        self.stand_ins = stand_ins
        self._once: dict[object, Any] = {}
        wanted = [plugins.plugins("attack")[name] for attacks in job.views.values() for name in attacks]
        self.norms = self._norms if any(plugin.gradients for plugin in wanted) else None
        self.rounds = job.rounds if any(plugin.needs for plugin in wanted) else 0
        self.solved = job.solved if any(plugin.mixtures for plugin in wanted) else None
        in_order = any(plugin.sequences for plugin in wanted)
        self.sequence = bank.sequence_rounds(job.transcript.schedule.rounds) if in_order else []
        self.vectors = any(plugin.vectors for plugin in wanted)

    @staticmethod
    def _whose(threat_model: str) -> str:
        """Which of a shadow's models stands beside what the adversary attacks."""
        return "released" if find(THREAT_MODELS, threat_model, "threat model").attacks == FINAL else "personal"

    def knowledge(self, threat_model: str) -> Knowledge | None:
        """What an adversary has computed when its attacks begin; None if it has no model of the target."""
        whose = self._whose(threat_model)
        along = self._projections(whose) if self.vectors else None
        return self._see(threat_model, self.job.transcript, self._shadows(whose), norms=self.norms, projections=along)

    def tables(self, threat_model: str, attacks: Mapping[str, DataclassInstance]) -> Tables:
        whose, seen = self._whose(threat_model), self.knowledge(threat_model)
        if seen is None:
            return {}
        alone = dataclasses.replace(seen, history=None, rounds=None)  # equal for equal models
        scores: dict[str, Floats] = {}
        base: dict[str, Floats] = {}
        earlier: dict[str, Floats] = {}
        pseudo: list[pd.DataFrame] = []
        for name, params in attacks.items():
            plugin = plugins.plugins("attack")[name]
            made: Attack = plugin.make(params)
            if not plugin.needs:
                key = whose, name
                scores |= self._cached((*key, seen.log_probs.tobytes()), made.score, alone)
                start = self._cached((*key, "base"), made.score, seen.before_training())
                base |= start
                earlier |= self._cached((*key, "earlier"), self._earlier, made, seen, start)
                pseudo += self._cached((*key, "pseudo"), self._pseudo, made, seen)
                continue
            scores |= made.score(seen)
            if plugin.shadows:
                pseudo += self._cached((whose, name, "pseudo"), self._pseudo, made, seen)
            if twin := self._cached((threat_model, "twin"), self._twin, threat_model, whose):
                again = made.score(twin[0])
                base |= again
                pseudo.append(self._known(again, twin[1]))
        index = pd.Index(seen.records, name="record")
        found = {"scores": scores, "base": base, "facts": _facts(seen)} | ({"earlier": earlier} if earlier else {})
        tables = {name: pd.DataFrame(columns, index).reset_index() for name, columns in found.items()}
        return tables | _batches(seen) | ({"pseudo": pd.concat(pseudo)} if pseudo else {})

    def _cached(self, key: object, compute: Callable[Given, Result], *args: Given.args, **more: Given.kwargs) -> Result:
        if key not in self._once:
            self._once[key] = compute(*args, **more)
        found: Result = self._once[key]
        return found

    def _norms(self, model: State) -> Floats:
        method, learner = self.job.method, self.learner
        assert isinstance(learner, Differentiable)
        key = "norms", *(tensor.numpy().tobytes() for tensor in model.values())
        return self._cached(key, gradients.gradient_norms, method, learner, model, self.asked.records)

    def _see(
        self, threat_model: str, transcript: Transcript, shadows: Shadows | None, *,
        norms: queries.Norms | None = None, projections: queries.Projections | None = None,
    ) -> Knowledge | None:  # fmt: skip
        asked, method, learner = self.asked, self.job.method, self.learner
        candidates = Candidates({asked.client: asked.candidates}, {asked.client: asked.reference}, ())
        view, key = View(transcript, threat_model, candidates), (threat_model, transcript.folder.path)
        if view.gives("sums of uploads") and key not in self._messages:
            self._messages[key] = Messages(view, method, learner, self.bench.candidates)
        return queries.see(
            view, method, learner, asked,
            messages=self._messages.get(key), shadows=shadows, norms=norms, rounds=self.rounds,
            solved=self.solved, sequence=self.sequence, projections=projections,
        )  # fmt: skip

    def _trained(self) -> bank.ShadowData:
        assert self.job.recipe is not None
        return self._cached("bank", shadows_of, self.bench, self.job.recipe, self.asked.client)

    def _shadows(self, whose: str) -> Shadows | None:
        return self._cached((whose, "shadows"), self._asked, whose) if self.job.recipe else None

    def _asked(self, whose: str) -> Shadows:
        trained, method, learner = self._trained(), self.job.method, self.learner
        models: Sequence[State] = getattr(trained, whose)
        more: dict[str, Any] = {"trajectory": trained.trajectory}
        if self.sequence:
            asked = functools.partial(queries.ask_sequences, method, learner, self.asked, trained.sequence)
            more["sequence"] = self._cached("sequences", asked)
        if self.vectors:
            along = self._projections(whose)
            more["projections"] = np.stack([along(*pair) for pair in zip(models, trained.start, strict=True)])
        return queries.ask(
            method, learner, self.asked, models, trained.member, norms=self.norms, normed=self.stand_ins, **more
        )

    def _projections(self, whose: str) -> queries.Projections:
        """Of what training moved, on each record's descent where training ends on average: at the public start, moved
        as far as the shadows were."""
        method, learner, trained = self.job.method, self.learner, self._trained()
        assert isinstance(learner, Differentiable)
        public = method.model(self.job.transcript.broadcast(0))
        models: Sequence[State] = getattr(trained, whose)
        pairs = [*zip(models, trained.start, strict=True)]
        moved = {name: torch.stack([model[name] - start[name] for model, start in pairs]).mean(0) for name in public}
        middle = {name: public[name] + mean for name, mean in moved.items()}
        descents = self._cached((whose, "descents"), gradients.descents, method, learner, middle, self.asked.records)

        def project(model: State, start: State) -> Floats:
            found: Floats = descents @ gradients.change(model, start)
            return found

        return project

    def _earlier(self, made: Attack, seen: Knowledge, start: Mapping[str, Floats]) -> dict[str, Floats]:
        """Of scores that are constant on the public start (`start`) those of the released model before the target first
        took part; none if it began with the public start."""
        constant = {name for name, values in start.items() if len(set(values[~np.isnan(values)])) == 1}
        first = next(iter(self.job.transcript.participations(self.asked.client)), 0)
        if not constant or not first:
            return {}
        method, transcript = self.job.method, self.job.transcript
        model = method.model(transcript.broadcast(0) | transcript.broadcast(first) | method.place(self.asked.client))
        (answers,) = self.learner.log_probs(method, [model], self.asked.records)
        scores = made.score(dataclasses.replace(seen.before_training(), answers=ClassAnswers(answers, seen.labels)))
        return {name: values for name, values in scores.items() if name in constant}

    def _pseudo(self, made: Attack, seen: Knowledge) -> list[pd.DataFrame]:
        """Scores of shadows in the place of the attacked model."""
        if seen.shadows is None:
            return []
        some = range(min(self.stand_ins, len(seen.shadows.member)))
        return [self._known(made.score(seen.leave_out(s)), seen.shadows.member[s]) for s in some]

    def _twin(self, threat_model: str, whose: str) -> tuple[Knowledge, NDArray[np.bool_]] | None:
        """What the same adversary would have seen of a federation that drew its members anew, and those members; None
        without one. Beside it stand the shadows of the other trajectories."""
        recipe = self.job.recipe
        if recipe is None or recipe.twin is None:
            return None
        transcript, k = recipe.simulated(recipe.twin), self.asked.client
        shadows = self._shadows(whose)
        seen = self._see(threat_model, transcript, shadows.without(0) if shadows else None)  # it is the first one's
        (member,) = bank.members(self.bench, recipe.method, transcript, k, seed=recipe.seed, shadows=[recipe.twin])
        return None if seen is None else (seen, self.asked.of_records(member))

    def _known(self, scores: Mapping[str, Floats], member: NDArray[np.bool_]) -> pd.DataFrame:
        """Scores of the target's own records whose membership the adversary knows."""
        own = slice(0, len(self.asked.candidates) + len(self.asked.reference))
        known = {"record": self.asked.records[own], "member": member[own]}
        return pd.DataFrame(known | {name: values[own] for name, values in scores.items()})


def _facts(seen: Knowledge) -> dict[str, NDArray[Any]]:
    """Losses with and without the record, for readers."""
    facts: dict[str, NDArray[Any]] = {"loss": seen.loss, "base_loss": seen.base.loss}
    if seen.hard is not None:
        facts["hard_right"] = seen.hard.argmax(1) == seen.labels
    if seen.shadows is not None:
        loss = seen.shadows.loss
        for name, part in (("loss_in", seen.shadows.member), ("loss_out", ~seen.shadows.member)):
            facts[name] = np.ma.masked_array(loss, ~part).mean(0).filled(np.nan)
    if seen.rounds is not None:
        facts |= whose(seen.rounds)
    return facts


def _batches(seen: Knowledge) -> Tables:
    """How well each message that is solved is explained."""
    solved = [(mixture.round, solve(mixture)) for mixture in (seen.rounds.mixtures if seen.rounds else ())]
    rows = [(r, found.residual, found.least, found.error) for r, found in solved]
    return {"batches": pd.DataFrame(rows, columns=["round", "residual", "least", "error"])} if rows else {}


def rebuilt(bench: AttackBench, job: tuple[Method[Any], Transcript, str]) -> list[tuple[Rebuilt, bytes | None]]:
    """Every client as the server rebuilds it, its model packed."""
    method, transcript, threat_model = job
    assert isinstance(bench.learner, Classifier)
    view = View(transcript, threat_model, Candidates({}, {}, ()))
    messages = Messages(view, method, bench.learner, bench.candidates)
    found = [messages.rebuilt(k) for k in messages.view.clients]
    return [(dataclasses.replace(r, state=None), None if r.state is None else pack(r.state)) for r in found]


def trajectory(bench: AttackBench, job: tuple[Method[Any], Transcript, int, Sequence[str]]) -> pd.DataFrame:
    """Loss of records by the true model of a client over the rounds: what no adversary sees whole, for readers."""
    method, transcript, client, records = job
    assert isinstance(bench.learner, Classifier)
    own = transcript.participations(client)
    chosen = sorted({own[int(i)] for i in np.linspace(0, len(own) - 1, CURVE).round()}) if own else []
    models = [method.model(transcript.broadcast(0)), *(transcript.personal(r, client) for r in chosen)]
    loss = losses(method, bench.learner, models, records)
    rounds = [0, *(r + 1 for r in chosen)]
    places = {"record": np.tile(records, len(rounds)), "round": np.repeat(rounds, len(records))}
    return pd.DataFrame({"client": client, **places, "loss": loss.ravel()})
