"""From a finished training to findings: what every adversary makes of it, and what every audit says."""

from __future__ import annotations

import dataclasses
import graphlib
from typing import TYPE_CHECKING

from audits.facts import AUDITS
from audits.findings import NO_COINS
from audits.subject import Result, Subject
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.resource_usage import ResourceUsage, note
from fedaudit.machinery.store import Damaged, Folder, Missing, claim
from fedaudit.pipeline import on_shares
from fedaudit.pipeline.attacks import under_attack
from fedaudit.pipeline.finished import complete, finish
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.newcomers import newcomers
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop

if TYPE_CHECKING:
    from audits.comparisons import ScoredRun
    from fedaudit.tasks.base import Client


def ensure_analysis(cell: Cell, workshop: Workshop, progress: Progress) -> list[str]:
    """Make sure that the findings of a cell are on disk; returns what was."""
    folder = claim(cell.analysis_folder)
    with folder.lock(progress.say):
        if complete(folder, progress.say):
            return [f"analysis of {cell.method}, seed {cell.seed}"]
        spent = ResourceUsage()
        with spent.phase("attacks and audits"):
            try:
                analyse(cell, folder, workshop, progress)
            except (Damaged, Missing) as lost:  # found on the way: what it belongs to is computed again, once
                progress.say(f"{lost}; computing it again")
                analyse(cell, folder, workshop, progress)
        note(folder.path, {}, spent)
    return []


def analyse(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> None:
    """Attack and audit a training; write findings and tables. It is trained again if it was damaged since."""
    train_all([cell], workshop, progress)
    attack = under_attack(cell, workshop, progress) if cell.plan.attacks else None
    run = attack.run if attack else None
    came = newcomers(cell, folder, workshop, progress)
    with progress.stage(f"audit of {cell.method}", len(cell.plan.audits) + (attack is not None)) as advance:
        subject = dataclasses.replace(subject_of(cell, run, workshop), newcomers=came)
        for name in in_order(cell):
            subject = dataclasses.replace(subject, before={**subject.before, name: audit(cell, name, subject)})
            advance()
        tables = {}
        if attack:
            tables = attack.tables()
            advance()
    if cell.variant and cell.variant.plugin.facts.on_shares:
        tables |= on_shares.tables(cell)
    results = [*subject.before.values()][::-1]  # what stands beside what others say is read first
    for result in results:
        tables |= result.tables
        for name, kept in result.kept.items():
            folder.write_json(f"{name}.json", kept)
    for name, table in tables.items():
        folder.write_table(f"{name}.parquet", table)
    folder.write_json("findings.json", [dataclasses.asdict(f) for result in results for f in result.findings])
    finish(folder)


def subject_of(cell: Cell, run: ScoredRun | None, workshop: Workshop) -> Subject:
    """A training as audits are given it, before any of them."""
    plan, clients = cell.plan, workshop.federation.clients
    return Subject(
        transcript=transcript_of(cell),
        method=method_of(cell, workshop.federation.sizes) if cell.variant else None,
        privacy=cell.variant.privacy if cell.variant else None,
        threat_models=cell.threat_models,
        names=cell.names,
        attacked=run,
        canaries={k: _coins(clients[k]) for k in cell.targets if clients[k].canaries},
        canary_kind=plan.canaries.canary_kind,
        said=({"claimed": plan.own.claimed, "provable": plan.own.provable, "measured": NO_COINS} if plan.own else None),
    )


def _coins(client: Client) -> dict[str, bool]:
    """A client's canaries, and whether each was inserted."""
    return {r.id: bool(used) for r, used in zip(client.canaries, client.canary_included, strict=True)}


def in_order(cell: Cell) -> list[str]:
    """The audits of a cell, each behind those that its file names (`Facts.after`)."""
    wanted = {
        name: [before for before in AUDITS[name].facts.after if before in cell.plan.audits] for name in cell.plan.audits
    }
    return [*graphlib.TopologicalSorter(wanted).static_order()]


def audit(cell: Cell, name: str, subject: Subject) -> Result:
    """What one audit says."""
    plugin = AUDITS[name]
    found: Result = plugin.load()(subject, plugin.own(cell.plan.audits[name]))
    return found
