"""Attacks on trainings whose records are texts: every model that an adversary holds is scored once, then compared with
the truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from attacks.attacked_models import Model
from attacks.base import Candidates, View
from attacks.rebuild import rebuild_all
from attacks.tokens.attack import TokenAttack
from audits.blind import blind_scores
from audits.comparisons import Attacked, ScoredModel
from audits.membership import LOSS, STRONGEST
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
from trainers.base import AttackBench, Bench, Transcript, pack, unpack

Scored = list[tuple[Model, pd.DataFrame]]


def attacked(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> Attacked:
    """The scores of every model that any adversary holds, as far as they are not in `folder`, with truth and
    controls."""
    attack, transcript = attack_of(cell), transcript_of(cell)
    views = _views(cell, transcript, workshop.federation)
    scores = _score_models(attack, views, folder, workshop.attackers, progress)
    return _attacked(cell, scores, views, transcript, workshop.federation)


def tables(cell: Cell, run: Attacked, workshop: Workshop) -> dict[str, pd.DataFrame]:
    """What a report shows beside the findings."""
    transcript, federation = transcript_of(cell), workshop.federation
    found = evidence(run, federation.records, confidence=cell.plan.audits["membership"].confidence)
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
        {k: [r.id for r in (*client.records, *client.canaries)] for k, client in enumerate(federation.clients)},
        {k: [r.id for r in client.reference] for k, client in enumerate(federation.clients)},
        [r.id for r in federation.novel],
    )
    return {name: View(transcript, name, candidates) for name in cell.plan.trained.threat_models}


def attack_of(cell: Cell) -> TokenAttack:
    """The pass over tokens that scores for all attacks of a cell: that of the one which has its own, or the plain
    one."""
    attacks = plugins.plugins("attack")
    own = [attacks[name].make(params) for name, params in cell.plan.attacks.items() if not attacks[name].tokens]
    return next(iter(own), TokenAttack())


def _score_models(
    attack: TokenAttack, views: Mapping[str, View], folder: Folder, attackers: Attackers, progress: Progress
) -> Scored:
    """Every model that any adversary holds with its table of scores; equal models are scored once."""
    held = [model for view in views.values() for model in attack.models(view)]
    distinct = {model.digest: model for model in held}
    todo = {d: m for d, m in distinct.items() if not folder.usable(f"scores-{d}.parquet", progress.say)}
    if todo:
        jobs = ((attack, pack(model.state), list(model.records)) for model in todo.values())
        with progress.stage(f"attack: {len(distinct)} models of {len(held)} views", len(todo)) as advance:
            for digest, table in zip(todo, attackers.map(_score, jobs), strict=True):
                folder.write_table(f"scores-{digest}.parquet", table)
                advance()
    tables = {d: folder.read_table(f"scores-{d}.parquet").set_index("record", drop=False) for d in distinct}
    return [(model, tables[model.digest]) for model in held]


def _attacked(
    cell: Cell, scores: Scored, views: Mapping[str, View], transcript: Transcript, federation: Federation
) -> Attacked:
    """The scores with the truth and the controls beside them."""
    attack = attack_of(cell)
    public = next(table for model, table in scores if model.way == "base")
    base = attack.calibrate(public, public)
    clients = dict(enumerate(federation.clients))
    return Attacked(
        models=[
            ScoredModel(
                m.threat_model,
                m.way,
                m.client,
                m.round,
                attack.calibrate(table, public),
                base,
                facts=pd.DataFrame({"loss": -table[LOSS], "base_loss": -base[LOSS].reindex(table.index)}),
            )
            for m, table in scores
            if m.way != "base"
        ],
        **named(cell),
        blind=_controls(federation),
        records={k: [r.id for r in client.records] for k, client in clients.items()},
        reference=views["released-model"].candidates.reference,
        truth=federation.truth,
        group={name: record.group for name, record in federation.records.items()},
        canaries={k: [r.id for r in client.canaries] for k, client in clients.items() if client.canaries},
        novel=views["released-model"].candidates.novel,
        cohorts=[transcript.cohort(r) for r in range(transcript.schedule.rounds)],
    )


def named(cell: Cell) -> dict[str, Any]:
    """The scores that were fixed before looking, each attack's own, and those beside them: fields of `Attacked`.

    The strongest sibling stands for the attack that has a pass of its own, unless another attack stands for it.
    """
    attacks = plugins.plugins("attack")
    headlines = {name: attacks[name].tokens[:1] or (attack_of(cell).signal,) for name in cell.plan.attacks}
    signals = {signal: name for name in headlines for signal in (*headlines[name], *attacks[name].tokens)}
    first = next((name for name in headlines if not attacks[name].tokens), next(iter(headlines)))
    if STRONGEST not in signals:
        headlines[first] = (*headlines[first], STRONGEST)
        signals[STRONGEST] = first
    return {"headlines": headlines, "signals": signals | ({} if LOSS in signals else {LOSS: first})}


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


def _score(bench: AttackBench, job: tuple[TokenAttack, bytes, list[str]]) -> pd.DataFrame:
    attack, state, records = job
    return attack.ask(bench.learner, unpack(state), records)


def _words(bench: Bench, records: list[str]) -> list[list[str]]:
    """The tokens of records as words."""
    tokenizer = bench.learner.vlm.tokenizer
    return [[tokenizer.decode([int(i)]).strip() for i in bench.learner.data[record].ids] for record in records]
