"""Attacks on LoRA trainings and their audit: every model that an adversary holds is scored once, then compared with the truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from attacks.base import Candidates, View
from attacks.threats import OF_LEARNER
from audits.blind import blind_scores
from audits.comparisons.models import Attacked, ScoredModel
from audits.findings import Finding
from audits.membership import cells, membership
from audits.statistics.one_run import canary_table
from audits.tables.models import evidence, panels
from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.trainings import finish, train_one
from fedaudit.pipeline.workers import Workshop
from trainers.base import pack, unpack

NOISE_FREE = {"claimed": "none", "provable": "infinity: nothing is noised"}  # of every method that there is


def analyse(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> None:
    """Attack and audit a training; write findings and tables."""
    transcript, _ = train_one(cell, workshop, progress)  # nothing to do, unless it was damaged since
    federation = workshop.federation
    run = attacked(cell, transcript, folder, workshop, progress)
    with progress.stage(f"audit of {cell.method}", 3) as advance:
        found = findings(cell, run)
        advance()
        asked = [record for _, record in panels(run)]
        words = dict(zip(asked, next(workshop.executor.map(_words, [asked])), strict=True))
        confidence = cell.plan.audits["membership"].confidence
        tables = evidence(run, transcript, _views(transcript, federation)["server"], federation, words,
                          attack_signal=attack_of(cell).signal, confidence=confidence)  # fmt: skip
        advance()
        tables["cells"] = cells(run, confidence)
        if cell.plan.canaries.canaries:
            coins = [used for client in federation.clients for used in client.canary_included]
            tables["canaries"] = canary_table(cell.plan.canaries.canary_kind, coins, delta=0.0)
        advance()
    for name, table in tables.items():
        folder.write_table(f"{name}.parquet", table)
    folder.write_json("findings.json", [dataclasses.asdict(finding) for finding in found])
    finish(folder)


def attacked(cell: Cell, transcript: Any, folder: Folder, workshop: Workshop, progress: Progress) -> Attacked:
    """The scores of every model that any adversary holds, as far as they are not in `folder`, with truth and controls."""
    attack, views = attack_of(cell), _views(transcript, workshop.federation)
    scores = _score_models(attack, views, folder, workshop.executor, progress)
    return _attacked(attack, scores, views, transcript, workshop.federation)


def _views(transcript: Any, federation: Any) -> dict[str, View]:
    """What each adversary holds, by threat model."""
    candidates = Candidates(
        {k: [r.id for r in (*client.records, *client.canaries)] for k, client in enumerate(federation.clients)},
        {k: [r.id for r in client.reference] for k, client in enumerate(federation.clients)},
        [r.id for r in federation.novel],
    )
    return {name: View(transcript, name, candidates) for name in OF_LEARNER["lora"]}


def findings(cell: Cell, run: Attacked) -> list[Finding]:
    """What the membership audit says about the attacked training of a cell."""
    own = cell.plan.own
    names = cell.names | {"attack": cell.plan.attack}
    epsilon = {"claimed": own.claimed, "provable": own.provable} if own else NOISE_FREE
    audit = cell.plan.audits["membership"]
    return membership(run, audit, attack_signal=attack_of(cell).signal, names=names, epsilon=epsilon)


def attack_of(cell: Cell) -> Any:
    """The one attack of a cell."""
    ((name, params),) = cell.plan.attacks.items()
    return plugins.plugins("attack")[name].make(params)


def _score_models(
    attack: Any, views: dict[str, Any], folder: Folder, executor: Any, progress: Progress
) -> list[tuple[Any, Any]]:
    """Every model that any adversary holds with its table of scores; equal models are scored once."""
    held = [model for view in views.values() for model in attack.models(view)]
    distinct = {model.digest: model for model in held}
    todo = {d: m for d, m in distinct.items() if not folder.usable(f"scores-{d}.parquet", progress.say)}
    if todo:
        jobs = ((attack, pack(model.state), list(model.records)) for model in todo.values())
        with progress.stage(f"attack: {len(distinct)} models of {len(held)} views", len(todo)) as advance:
            for digest, table in zip(todo, executor.map(_score, jobs), strict=True):
                folder.write_table(f"scores-{digest}.parquet", table)
                advance()
    tables = {d: folder.read_table(f"scores-{d}.parquet").set_index("record", drop=False) for d in distinct}
    return [(model, tables[model.digest]) for model in held]


def _attacked(
    attack: Any, scores: list[tuple[Any, Any]], views: dict[str, Any], transcript: Any, federation: Any
) -> Attacked:
    """The scores with the truth and the controls beside them."""
    base = next(table for model, table in scores if model.way == "base")
    scored = [
        ScoredModel(m.threat_model, m.way, m.client, m.round, attack.calibrate(table, base))
        for m, table in scores
        if m.way != "base"
    ]
    truth, asked = federation.truth, views["released-model"].candidates
    owners = [(client.name, record) for client in federation.clients for record in client.records]
    blind = {"held-out": _blind(blind_scores, owners, [truth[r.id] for _, r in owners])}
    if federation.novel:
        against = [(name, record) for name, record in owners if truth[record.id]]
        against += [("novel", record) for record in federation.novel]
        blind["novel objects"] = _blind(blind_scores, against, [name != "novel" for name, _ in against])
    canaries = [(client.name, record) for client in federation.clients for record in client.canaries]
    if canaries:
        blind["left-out canaries"] = _blind(blind_scores, canaries, [truth[r.id] for _, r in canaries])
    return Attacked(
        scored, attack.calibrate(base, base), blind,
        {k: [r.id for r in client.records] for k, client in enumerate(federation.clients)}, asked.reference,
        asked.novel, truth, [transcript.cohort(r) for r in range(transcript.schedule.rounds)],
        {k: [r.id for r in client.canaries] for k, client in enumerate(federation.clients) if client.canaries},
    )  # fmt: skip


def _blind(
    classify: Callable[..., dict[str, float]], pairs: list[tuple[str, Any]], member: list[bool]
) -> dict[str, float]:
    return classify([record for _, record in pairs], member, [name for name, _ in pairs], seed=0)


def _score(bench: Any, job: tuple[Any, bytes, list[str]]) -> Any:
    attack, state, records = job
    return attack.score(bench.learner, unpack(state), records)


def _words(bench: Any, records: list[str]) -> list[list[str]]:
    """The tokens of records as words."""
    tokenizer = bench.learner.vlm.tokenizer
    return [[tokenizer.decode([int(i)]).strip() for i in bench.learner.data[record].ids] for record in records]
