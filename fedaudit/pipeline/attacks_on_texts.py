"""Attacks on trainings whose records are texts: every model that an adversary holds is asked and attacked once, then
compared with the truth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attacks import queries
from attacks.answers import TextAnswers
from attacks.attacked_models import Model, Target, earlier_models, models, released_last
from attacks.base import Candidates, View
from attacks.knowledge import Knowledge
from attacks.rebuild import rebuild_all
from attacks.source import whose
from attacks.threats import refusal
from attacks.tokens.scores import spans_of
from audits.blind import blind_scores
from audits.comparisons import Attacked, ScoredModel
from audits.tables.coverage import coverage_table
from audits.tables.records import evidence
from audits.tables.tokens import panels, tokens_table
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline import attack_jobs, bank, text_shadows
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, recipe_of, train_banks
from fedaudit.pipeline.text_rounds import OverRounds, Seen
from fedaudit.pipeline.workers import Attackers, Workshop
from fedaudit.tasks.base import Federation, Record
from fedaudit.terms.held_models import BASE, BEFORE, CONTROLS, ROUND
from fedaudit.terms.nonmembers import HELD_OUT, LEFT_OUT_CANARIES, NOVEL_OBJECTS
from fedaudit.terms.threat_models import RELEASED_MODEL, SERVER
from trainers.base import AttackBench, Bench, LanguageModel, Transcript, pack, unpack

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PART = 200  # records of the public base that a worker is asked about at once


@dataclass(frozen=True)
class ModelJob:
    """One model in an adversary's hands: what a worker needs to attack it."""

    attacks: Mapping[str, DataclassInstance]  # name to parameters
    records: Sequence[str]
    known: Sequence[bool]  # of the records, which are non-members by construction
    state: bytes | None  # None: the public base, which was asked before
    base: TextAnswers  # about the same records
    seen: Seen  # of rounds


Tables = dict[str, pd.DataFrame]  # "scores" and "facts": a row per record (index)
Scored = list[tuple[Model, Tables]]
Place = tuple[str, str, int | None]  # threat model, way and client of a model


def attacked(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> Attacked:
    """The scores of every model that any adversary holds, as far as they are not in `folder`, with truth and
    controls."""
    train_banks([cell], workshop, progress)  # nothing to do, unless it was damaged since
    transcript = transcript_of(cell)
    views = _views(cell, transcript, workshop.federation)
    scores = _attack(cell, views, folder, workshop, progress)
    return _attacked(cell, scores, views, transcript, workshop.federation)


def tables(cell: Cell, run: Attacked, workshop: Workshop) -> dict[str, pd.DataFrame]:
    """What a report shows beside the findings."""
    transcript, federation = transcript_of(cell), workshop.federation
    found = evidence(run, federation.records, confidence=cell.plan.confidence)
    asked = [*panels(found).values()]
    words = dict(zip(asked, next(workshop.executor.map(_words, [asked])), strict=True))
    server = _views(cell, transcript, federation)[SERVER]
    utility = _utility(transcript)
    if "rounds" in found and "loss" in utility:
        losses = utility[utility.model == "global"].set_index("round").loss
        found["rounds"]["heldout_loss"] = (found["rounds"]["round"] - 1).map(losses)
    if cell.variant and len(refused := attack_jobs.refused(cell)):
        found["refused"] = refused
    return found | {
        "tokens": tokens_table(run, found, words),
        "utility": utility,
        "coverage": coverage_table(rebuild_all(server, server.clients), transcript),
    }


def _utility(transcript: Transcript) -> pd.DataFrame:
    """How good models are, by round (-1 = before training)."""
    rows = [{"round": -1, "model": model} | found for model, found in transcript.initial["utility"].items()]
    for r in range(transcript.schedule.rounds):
        for model, utility in transcript.round(r)["utility"].items():
            rows.append({"round": r, "model": model} | utility)
    return pd.DataFrame(rows, columns=None if rows else ["round", "model"])


def _views(cell: Cell, transcript: Transcript, federation: Federation) -> dict[str, View]:
    """What each adversary holds, by threat model."""
    candidates = Candidates(
        {k: federation.clients[k].candidates for k in cell.targets},
        {k: [r.id for r in federation.clients[k].reference] for k in cell.targets},
        [r.id for r in federation.novel],
    )
    return {name: View(transcript, name, candidates) for name in cell.plan.trained.threat_models}


def _attack(cell: Cell, views: Mapping[str, View], folder: Folder, workshop: Workshop, progress: Progress) -> Scored:
    """Every model that any adversary holds with what the attacks say of it; equal models of which no more is known are
    attacked once."""
    known = plugins.plugins("attack")
    params = {name: known[name].own(given) for name, given in cell.plan.attacks.items()}
    alone, beside = ({n: p for n, p in params.items() if known[n].shadows is shadows} for shadows in (False, True))
    over = _over_rounds(cell, views)
    held = [model for view in views.values() for model in models(view, params.values(), history=over is not None)]
    held = [model for model in held if alone or model.way == BASE or text_shadows.role(model)]
    held += _earlier(cell, views[RELEASED_MODEL]) if alone else []
    base = Base(next(model for model in held if model.way == BASE), alone, workshop.attackers)
    attackers = LoneAttacks(alone, base, {name: allowed(cell, name) for name in views}, folder, progress)
    tables, over = attackers.tables(held, views, over)
    recipe = recipe_of(cell, workshop.federation)
    twins = _twins(cell, recipe, attackers, views, over) if recipe and over else {}
    if beside:
        assert recipe is not None
        able = {name for name in views if allowed(cell, name)[next(iter(beside))] is None}
        shown = [model for model in held if model.threat_model in able and text_shadows.role(model)]
        of_targets = _attack_beside(beside, recipe, shown, views, over, base, folder, progress)
        tables |= {key: text_shadows.joined(tables[key], parts) for key, parts in of_targets.items()}
    return [(model, _with_twin(tables[key_of(model, over)], twins.get(_place(model)))) for model in held]


def _over_rounds(cell: Cell, views: Mapping[str, View]) -> OverRounds | None:
    """What the attacks ask of rounds; None: nothing."""
    wanted = [plugins.plugins("attack")[name] for name in cell.plan.attacks]
    if not any(plugin.needs or plugin.rounds for plugin in wanted):
        return None
    messages = any("uploads" in plugin.needs for plugin in wanted)
    return OverRounds(views, cell.plan.adversary.observed_rounds, messages)


def allowed(cell: Cell, threat_model: str) -> dict[str, str | None]:
    """Every attack with the reason why it does not run under a threat model, somebody's own training included."""
    if cell.variant is None:
        known = plugins.plugins("attack")
        return {name: refusal(known[name], threat_model, cell.plan.trained) for name in cell.plan.attacks}
    return attack_jobs.allowed(cell, threat_model)


def key_of(model: Model, over: OverRounds | None) -> str:
    """What its tables are called: the same for equal models of which no more is known than their answers."""
    return f"{model.digest}-{model.threat_model}" if over and over.concerns(model) else model.digest


def _earlier(cell: Cell, view: View) -> list[Model]:
    """The released model before each target's first round."""
    rounds = {k: transcript_of(cell).participations(k) for k in cell.targets}
    return earlier_models(view, {k: of_client[0] for k, of_client in rounds.items() if of_client})


class Base:
    """What the public base answers, which every attack compares with: asked when it is first needed, by all workers
    at once. InputError: an attack's headline is about a part of texts that no record has."""

    def __init__(self, public: Model, params: Mapping[str, DataclassInstance], attackers: Attackers) -> None:
        self.public, self.attackers, self._params = public, attackers, params

    @functools.cached_property
    def _answers(self) -> TextAnswers:
        records, state = self.public.records, pack(self.public.state)
        parts = [records[i : i + PART] for i in range(0, len(records), PART)]
        jobs = ((compats(self._params), state, part) for part in parts)
        answers = TextAnswers.joined(list(self.attackers.map(_ask, jobs)))
        _check_slices(self._params, answers)
        return answers

    def about(self, records: Sequence[str]) -> TextAnswers:
        """Of some records."""
        place = {record: i for i, record in enumerate(self.public.records)}
        return self._answers.of([place[record] for record in records])


@dataclass(frozen=True)
class LoneAttacks:
    """The attacks without shadow models, and what they need to run."""

    params: Mapping[str, DataclassInstance]
    base: Base
    refused: Mapping[str, Mapping[str, str | None]]  # by threat model, why an attack does not run; None: it does
    folder: Folder
    progress: Progress
    of: str = ""  # whom they attack, if not the training itself

    def tables(
        self, held: Sequence[Model], views: Mapping[str, View], over: OverRounds | None
    ) -> tuple[dict[str, Tables], OverRounds | None]:
        """By key what they say of every model, as far as it is not on disk; and what is known of rounds."""
        if over is None:
            return self._tables(held, views, None), None
        last = released_last(views[RELEASED_MODEL])
        plain = [model for model in held if not over.concerns(model)]
        found = self._tables([*plain, last], views, over)
        broadcasts = {m.round: found[key_of(m, over)]["facts"] for m in (*plain, last) if m.way in (BASE, ROUND)}
        over = over.after(broadcasts)
        return found | self._tables([model for model in held if over.concerns(model)], views, over), over

    def _tables(self, held: Sequence[Model], views: Mapping[str, View], over: OverRounds | None) -> dict[str, Tables]:
        distinct = {key_of(model, over): model for model in held}
        prefix = "-".join(filter(None, ("scores", self.of)))
        names = {k: {"scores": f"{prefix}-{k}.parquet", "facts": f"{prefix}-{k}-facts.parquet"} for k in distinct}
        usable = functools.partial(self.folder.usable, say=self.progress.say)
        todo = [key for key, files in names.items() if not all(usable(file) for file in files.values())]
        if todo:
            if over:
                over.listen([distinct[key] for key in todo], self.base.attackers, self.progress)
            with self.progress.stage(f"attack: {len(distinct)} models of {len(held)} views", len(todo)) as advance:
                known = {r for view in views.values() for own in view.candidates.reference.values() for r in own}
                jobs = (self._job(distinct[key], known, over) for key in todo)
                for key, found in zip(todo, self.base.attackers.map(attack, jobs), strict=True):
                    _write(self.folder, names[key], found)
                    advance()
        return {key: _read(self.folder, files) for key, files in names.items()}

    def _job(self, model: Model, known: set[str], over: OverRounds | None) -> ModelJob:
        seen = over.seen(model, model.records) if over else Seen()
        knows = not over or over.concerns(model)
        attack_of = plugins.plugins("attack")
        params = {
            name: own
            for name, own in self.params.items()
            if self.refused[model.threat_model][name] is None and (knows or not attack_of[name].needs)
        }
        state = None if model.way == BASE else pack(model.state)
        return ModelJob(
            params, model.records, [r in known for r in model.records], state, self.base.about(model.records), seen
        )


def _twins(
    cell: Cell, recipe: ShadowRecipe, attacks: LoneAttacks, views: Mapping[str, View], over: OverRounds
) -> dict[Place, Tables]:
    """By model the control of what is seen of rounds: the same scores of a federation that drew its members anew
    ("base"), and whom it drew ("pseudo")."""
    wanted = {name: own for name, own in attacks.params.items() if plugins.plugins("attack")[name].needs}
    if recipe.twin is None or not wanted:
        return {}
    transcript, asked = recipe.simulated(recipe.twin), next(iter(views.values())).candidates
    seen = {name: View(transcript, name, asked) for name in views}
    held = [model for view in seen.values() for model in models(view, history=True)]
    again = dataclasses.replace(attacks, params=wanted, of="twin")
    tables, twin = again.tables(held, seen, dataclasses.replace(over, views=seen, heard={}))
    jobs = [(recipe, transcript, k) for k in cell.targets]
    drawn = dict(zip(cell.targets, attacks.base.attackers.map(_drawn, jobs), strict=True))
    found: dict[Place, Tables] = {}
    for model in (model for model in held if over.concerns(model)):
        scores = tables[key_of(model, twin)]["scores"]
        found[_place(model)] = {"base": scores}
        if model.client is not None:
            known = dict(zip(asked.clients[model.client], drawn[model.client], strict=True))
            known |= dict.fromkeys(asked.reference[model.client], False)
            found[_place(model)]["pseudo"] = scores.loc[[*known]].assign(member=[*known.values()])
    return found


def _drawn(bench: AttackBench, job: tuple[ShadowRecipe, Transcript, int]) -> NDArray[np.bool_]:
    """Which of a client's candidates the twin was trained on."""
    recipe, transcript, client = job
    assert recipe.twin is not None
    (member,) = bank.members(bench, recipe.method, transcript, client, seed=recipe.seed, shadows=[recipe.twin])
    return member


def _place(model: Model) -> Place:
    return model.threat_model, model.way, model.client


def _with_twin(tables: Tables, twin: Tables | None) -> Tables:
    """A model's tables with the control of what is seen of rounds."""
    if twin is None:
        return tables
    found = {name: [table] for name, table in tables.items()}
    for name, table in twin.items():
        found.setdefault(name, []).append(table)
    base = pd.concat(found["base"], axis=1)
    return tables | {"base": base} | ({"pseudo": pd.concat(found["pseudo"])} if "pseudo" in found else {})


def _attack_beside(
    params: Mapping[str, DataclassInstance], recipe: ShadowRecipe, shown: Sequence[Model], views: Mapping[str, View],
    over: OverRounds | None, base: Base, folder: Folder, progress: Progress,
) -> dict[str, list[Tables]]:  # fmt: skip
    """By key what attacks by shadow models say of each target's records, as far as it is not in `folder`."""
    asked = next(iter(views.values())).candidates
    jobs = {k: [m for m in shown if m.client in (k, None)] for k in asked.clients}
    names = {
        (k, key): {t: f"scores-{key}-{k:03d}-{t}.parquet" for t in ("scores", "base", "pseudo")}
        for k, models in jobs.items()
        for key in (key_of(model, over) for model in models)
    }
    done = {pair for pair, files in names.items() if all(folder.usable(file, progress.say) for file in files.values())}
    todo = [k for k, models in jobs.items() if any((k, key_of(m, over)) not in done for m in models)]
    if todo:
        if over:
            over.listen([model for k in todo for model in jobs[k]], base.attackers, progress)
        with progress.stage(f"attacks beside shadow models of {len(todo)} clients", len(todo)) as advance:
            targets = (Target(k, asked.clients[k], asked.reference[k], ()) for k in todo)
            given = (_target_job(params, recipe, target, jobs[target.client], over, base) for target in targets)
            for k, found in zip(todo, base.attackers.map(text_shadows.attack, given), strict=True):
                for key, tables in found.items():
                    _write(folder, names[k, key], tables)
                advance()
    of_targets: dict[str, list[Tables]] = {}
    for (_, key), files in names.items():
        of_targets.setdefault(key, []).append(_read(folder, files))
    return of_targets


def _write(folder: Folder, files: Mapping[str, str], tables: Tables) -> None:
    for table, file in files.items():
        folder.write_table(file, tables[table].reset_index())


def _read(folder: Folder, files: Mapping[str, str]) -> Tables:
    return {table: folder.read_table(file).set_index("record") for table, file in files.items()}


def _target_job(
    params: Mapping[str, DataclassInstance], recipe: ShadowRecipe, target: Target, models: Sequence[Model],
    over: OverRounds | None, base: Base,
) -> text_shadows.TargetJob:  # fmt: skip
    held = {
        key_of(m, over): text_shadows.Held(
            text_shadows.role(m), pack(m.state), over.seen(m, target.records) if over else Seen()
        )
        for m in models
    }
    return text_shadows.TargetJob(params, recipe, target, held, base.about(target.records))


def compats(params: Mapping[str, DataclassInstance]) -> tuple[str, ...]:
    """The arithmetic that attacks ask for: exact, and that of public code where a parameter `compat` names it."""
    return tuple(dict.fromkeys(["exact", *(getattr(own, "compat", "exact") for own in params.values())]))


def _check_slices(params: Mapping[str, DataclassInstance], answers: TextAnswers) -> None:
    """InputError: an attack's parameter `slice` names a part that is too short for a score in every record."""
    for own in (own for own in params.values() if hasattr(own, "slice")):
        by_record = [spans_of(spans, getattr(own, "compat", "exact")) for spans in answers.spans]
        scored = [part for part in by_record[0] if any(spans[part].start < spans[part].stop for spans in by_record)]
        if own.slice not in scored:
            raise InputError(
                f"--slice {own.slice}: no record has two tokens of it, and one gives no score (docs/attacks.md, "
                f"maxrenyi); valid here: {', '.join(scored)}"
            )


def _ask(bench: AttackBench, job: tuple[tuple[str, ...], bytes, Sequence[str]]) -> TextAnswers:
    wanted, state, records = job
    assert isinstance(bench.learner, LanguageModel)
    return queries.ask_texts(bench.learner, unpack(state), records, compats=wanted)


def attack(bench: AttackBench, job: ModelJob) -> Tables:
    """What every attack says of a model ("scores"), and what it answers, for readers ("facts")."""
    answers = job.base if job.state is None else _ask(bench, (compats(job.attacks), job.state, job.records))
    seen = Knowledge(
        tuple(job.records), np.array(job.known), answers, job.base, history=job.seen.history, rounds=job.seen.rounds
    )
    owner = {} if seen.rounds is None else whose(seen.rounds)
    facts = {"loss": seen.loss, "base_loss": seen.base.loss} | owner | _tokens(answers, job.base)
    index = pd.Index(seen.records, name="record")
    return {"scores": text_shadows.scores_of(job.attacks, seen), "facts": pd.DataFrame(facts, index)}


def _tokens(answers: TextAnswers, base: TextAnswers) -> dict[str, list[Any]]:
    """Per record, the part that each of its tokens belongs to, log p, and the Rényi-2 entropy now and before training
    (nats)."""
    found: dict[str, list[Any]] = {
        "token_slice": [], "token_log_prob": [], "token_entropy": [], "base_token_entropy": [],
    }  # fmt: skip
    for i, spans in enumerate(answers.spans):
        own, before = answers[i]["exact"], base[i]["exact"]
        part = np.full(len(own), "instruction", dtype=object)
        for name, span in spans.items():
            part[span] = name
        found["token_slice"].append(part.tolist())
        for name, values in (
            ("token_log_prob", own.log_prob),
            ("token_entropy", own.renyi[2]),
            ("base_token_entropy", before.renyi[2]),
        ):
            found[name].append(values.astype(np.float32))
    return found


def _attacked(
    cell: Cell, scores: Scored, views: Mapping[str, View], transcript: Transcript, federation: Federation
) -> Attacked:
    """The scores with the truth and the controls beside them."""
    base = next(tables["scores"] for model, tables in scores if model.way == BASE)
    before = [tables["scores"] for model, tables in scores if model.way == BEFORE]
    clients = {k: federation.clients[k] for k in cell.targets}
    attacked_models = [
        ScoredModel(
            m.threat_model,
            m.way,
            m.client,
            m.round,
            tables["scores"],
            base.join(tables.get("base", [])),
            pseudo=tables.get("pseudo"),
            facts=tables["facts"],
            earlier=pd.concat(before) if before else None,
        )
        for m, tables in scores
        if m.way not in CONTROLS
    ]
    there = dict.fromkeys(signal for model in attacked_models for signal in model.scores)
    return Attacked(
        models=attacked_models,
        **named(cell, there),
        blind=_controls(federation),
        records={k: [r.id for r in client.records] for k, client in clients.items()},
        reference=views[RELEASED_MODEL].candidates.reference,
        truth=federation.truth,
        group={name: record.group for name, record in federation.records.items()},
        canaries={k: [r.id for r in client.canaries] for k, client in clients.items() if client.canaries},
        novel=views[RELEASED_MODEL].candidates.novel,
        cohorts=[transcript.cohort(r) for r in range(transcript.schedule.rounds)],
        coins={} if cell.plan.own else federation.coins,
        seed=cell.seed,
        few=len(clients) < len(federation.clients),
    )


class Named(TypedDict):
    """Fields of `Attacked`."""

    headlines: dict[str, tuple[str, ...]]
    signals: dict[str, str]


def named(cell: Cell, there: Iterable[str]) -> Named:
    """Of the scores that are there, those that were fixed before looking, each attack's own, and those beside them.

    A score that several attacks compute belongs to the one whose file declares it, if that runs.
    """
    known, there = plugins.plugins("attack"), set(there)
    own = {signal: name for name in cell.plan.attacks for signal in known[name].signals if signal in there}
    shared = [s for plugin in known.values() for s in plugin.signals if s in there and s not in own]
    headlines: dict[str, tuple[str, ...]] = {}
    signals: dict[str, str] = {}
    for name, params in cell.plan.attacks.items():
        filled = [signal.format(**vars(params)) for signal in known[name].on_texts]
        headlines[name] = tuple(s for s in filled if own.get(s, name) == name and s not in signals)
        signals |= dict.fromkeys(headlines[name], name) | {s: name for s, of in own.items() if of == name}
    first = next(iter(headlines))
    return {"headlines": headlines, "signals": signals | {s: first for s in shared if s not in signals}}


def _controls(federation: Federation) -> dict[tuple[int | None, str], dict[str, float]]:
    """The blind classifier's scores of all clients' records together, by kind of non-members."""
    truth = federation.truth
    owners = [(client.name, record) for client in federation.clients for record in client.records]
    found = {HELD_OUT: _blind(owners, [truth[r.id] for _, r in owners])}
    if federation.novel:
        against = [(name, record) for name, record in owners if truth[record.id]]
        against += [("novel", record) for record in federation.novel]
        found[NOVEL_OBJECTS] = _blind(against, [name != "novel" for name, _ in against])
    canaries = [(client.name, record) for client in federation.clients for record in client.canaries]
    if canaries:
        found[LEFT_OUT_CANARIES] = _blind(canaries, [truth[r.id] for _, r in canaries])
    return {(None, nonmembers): scores for nonmembers, scores in found.items()}


def _blind(pairs: list[tuple[str, Record]], member: list[bool]) -> dict[str, float]:
    return blind_scores([record for _, record in pairs], member, [name for name, _ in pairs], seed=0)


def _words(bench: Bench, records: list[str]) -> list[list[str]]:
    """The tokens of records as words."""
    assert isinstance(bench.learner, LanguageModel)
    return [bench.learner.tokens(record) for record in records]
