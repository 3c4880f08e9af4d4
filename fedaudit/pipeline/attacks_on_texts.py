"""Attacks on trainings whose records are texts: every model that an adversary holds is asked and attacked once, then
compared with the truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pandas as pd

from attacks import queries
from attacks.answers import TextAnswers
from attacks.attacked_models import Model, models
from attacks.base import Candidates, View
from attacks.knowledge import Attack, Floats, Knowledge
from attacks.rebuild import rebuild_all
from audits.blind import blind_scores
from audits.comparisons import Attacked, ScoredModel
from audits.tables.coverage import coverage_table
from audits.tables.records import evidence
from audits.tables.tokens import panels, tokens_table
from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.workers import Attackers, Workshop
from fedaudit.tasks.base import Federation, Record
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


Tables = dict[str, pd.DataFrame]  # "scores" and "facts": a row per record (index)
Scored = list[tuple[Model, Tables]]


def attacked(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> Attacked:
    """The scores of every model that any adversary holds, as far as they are not in `folder`, with truth and
    controls."""
    transcript = transcript_of(cell)
    views = _views(cell, transcript, workshop.federation)
    scores = _attack(cell, views, folder, workshop.attackers, progress)
    return _attacked(cell, scores, views, transcript, workshop.federation)


def tables(cell: Cell, run: Attacked, workshop: Workshop) -> dict[str, pd.DataFrame]:
    """What a report shows beside the findings."""
    transcript, federation = transcript_of(cell), workshop.federation
    found = evidence(run, federation.records, confidence=cell.plan.confidence)
    asked = [*panels(found).values()]
    words = dict(zip(asked, next(workshop.executor.map(_words, [asked])), strict=True))
    server = _views(cell, transcript, federation)["server"]
    utility = _utility(transcript)
    if "rounds" in found and "loss" in utility:
        losses = utility[utility.model == "global"].set_index("round").loss
        found["rounds"]["heldout_loss"] = (found["rounds"]["round"] - 1).map(losses)
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
        {k: client.candidates for k, client in enumerate(federation.clients)},
        {k: [r.id for r in client.reference] for k, client in enumerate(federation.clients)},
        [r.id for r in federation.novel],
    )
    return {name: View(transcript, name, candidates) for name in cell.plan.trained.threat_models}


def _attack(cell: Cell, views: Mapping[str, View], folder: Folder, attackers: Attackers, progress: Progress) -> Scored:
    """Every model that any adversary holds with what the attacks say of it; equal models are attacked once."""
    params = {name: plugins.plugins("attack")[name].own(given) for name, given in cell.plan.attacks.items()}
    held = [model for view in views.values() for model in models(view, params.values())]
    distinct = {model.digest: model for model in held}
    names = {d: {"scores": f"scores-{d}.parquet", "facts": f"scores-{d}-facts.parquet"} for d in distinct}
    todo = [d for d, files in names.items() if not all(folder.usable(file, progress.say) for file in files.values())]
    if todo:
        with progress.stage(f"attack: {len(distinct)} models of {len(held)} views", len(todo)) as advance:
            public = next(model for model in held if model.way == "base")
            base = _ask_base(params, public, attackers)
            known = {r for view in views.values() for own in view.candidates.reference.values() for r in own}
            jobs = (_job(distinct[digest], params, public, base, known) for digest in todo)
            for digest, found in zip(todo, attackers.map(attack, jobs), strict=True):
                for table, file in names[digest].items():
                    folder.write_table(file, found[table].reset_index())
                advance()
    tables = {
        digest: {table: folder.read_table(file).set_index("record") for table, file in files.items()}
        for digest, files in names.items()
    }
    return [(model, tables[model.digest]) for model in held]


def _ask_base(params: Mapping[str, DataclassInstance], public: Model, attackers: Attackers) -> TextAnswers:
    """What the public base answers, which every attack compares with: asked by all workers at once."""
    parts = [public.records[i : i + PART] for i in range(0, len(public.records), PART)]
    state = pack(public.state)
    return TextAnswers.joined(list(attackers.map(_ask, ((compats(params), state, part) for part in parts))))


def _job(
    model: Model, params: Mapping[str, DataclassInstance], public: Model, base: TextAnswers, known: set[str]
) -> ModelJob:
    place = {record: i for i, record in enumerate(public.records)}
    of_records = base.of([place[record] for record in model.records])
    state = None if model.way == "base" else pack(model.state)
    return ModelJob(params, model.records, [r in known for r in model.records], state, of_records)


def compats(params: Mapping[str, DataclassInstance]) -> tuple[str, ...]:
    """The arithmetic that attacks ask for: exact, and that of public code where a parameter `compat` names it."""
    return tuple(dict.fromkeys(["exact", *(getattr(own, "compat", "exact") for own in params.values())]))


def _ask(bench: AttackBench, job: tuple[tuple[str, ...], bytes, Sequence[str]]) -> TextAnswers:
    wanted, state, records = job
    assert isinstance(bench.learner, LanguageModel)
    return queries.ask_texts(bench.learner, unpack(state), records, compats=wanted)


def attack(bench: AttackBench, job: ModelJob) -> Tables:
    """What every attack says of a model ("scores"), and what it answers, for readers ("facts")."""
    answers = job.base if job.state is None else _ask(bench, (compats(job.attacks), job.state, job.records))
    seen = Knowledge(tuple(job.records), np.array(job.known), answers, job.base)
    scores: dict[str, Floats] = {}
    for name, params in job.attacks.items():
        made: Attack = plugins.plugins("attack")[name].make(params)
        scores |= made.score(seen)
    facts = {"loss": seen.loss, "base_loss": seen.base.loss} | _tokens(answers, job.base)
    index = pd.Index(seen.records, name="record")
    return {"scores": pd.DataFrame(scores, index), "facts": pd.DataFrame(facts, index)}


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
    base = next(tables for model, tables in scores if model.way == "base")
    clients = dict(enumerate(federation.clients))
    attacked_models = [
        ScoredModel(m.threat_model, m.way, m.client, m.round, tables["scores"], base["scores"], facts=tables["facts"])
        for m, tables in scores
        if m.way != "base"
    ]
    return Attacked(
        models=attacked_models,
        **named(cell, base["scores"].columns),
        blind=_controls(federation),
        records={k: [r.id for r in client.records] for k, client in clients.items()},
        reference=views["released-model"].candidates.reference,
        truth=federation.truth,
        group={name: record.group for name, record in federation.records.items()},
        canaries={k: [r.id for r in client.canaries] for k, client in clients.items() if client.canaries},
        novel=views["released-model"].candidates.novel,
        cohorts=[transcript.cohort(r) for r in range(transcript.schedule.rounds)],
        coins={} if cell.plan.own else federation.coins,
        seed=cell.seed,
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
    found = {"held-out": _blind(owners, [truth[r.id] for _, r in owners])}
    if federation.novel:
        against = [(name, record) for name, record in owners if truth[record.id]]
        against += [("novel", record) for record in federation.novel]
        found["novel objects"] = _blind(against, [name != "novel" for name, _ in against])
    canaries = [(client.name, record) for client in federation.clients for record in client.canaries]
    if canaries:
        found["left-out canaries"] = _blind(canaries, [truth[r.id] for _, r in canaries])
    return {(None, nonmembers): scores for nonmembers, scores in found.items()}


def _blind(pairs: list[tuple[str, Record]], member: list[bool]) -> dict[str, float]:
    return blind_scores([record for _, record in pairs], member, [name for name, _ in pairs], seed=0)


def _words(bench: Bench, records: list[str]) -> list[list[str]]:
    """The tokens of records as words."""
    assert isinstance(bench.learner, LanguageModel)
    return [bench.learner.tokens(record) for record in records]
