"""From a finished training to findings: runs the attacks, then the audits."""

from __future__ import annotations

import dataclasses
import graphlib
from typing import TYPE_CHECKING

from fedaudit.audits.facts import AUDITS
from fedaudit.audits.findings import NO_COINS, RECORDING, Recorded
from fedaudit.audits.subject import Result, Subject
from fedaudit.external.recording import Remark
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.resource_usage import ResourceUsage, note
from fedaudit.machinery.store import Damaged, Folder, Missing, claim
from fedaudit.pipeline import on_shares
from fedaudit.pipeline.attacks import attack_training, utility_of_texts
from fedaudit.pipeline.finished import complete, finish
from fedaudit.pipeline.kept_rounds import reopen
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.newcomers import newcomer_accuracies
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.recorded import model_remarks
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop

if TYPE_CHECKING:
    from fedaudit.audits.comparisons import ScoredRun
    from fedaudit.tasks.base import Client


def ensure_analysis(cell: Cell, workshop: Workshop, progress: Progress, *, wait: bool = True) -> list[str]:
    """Attack and audit a cell, with results in its `analysis_folder`, unless they are there. Returns [name for
    messages] if they were, else []. Busy without `wait`: another process does it."""
    folder = claim(cell.analysis_folder)
    with folder.lock(progress.say, wait=wait):
        if complete(folder, progress.say):
            return [f"analysis of {cell.method}, seed {cell.seed}"]
        usage = ResourceUsage()
        with usage.phase("attacks and audits"):
            try:
                analyse(cell, folder, workshop, progress)
            except (Damaged, Missing) as error:  # a file that was needed; a second try computes its folder again
                if not reopen([cell], progress.say):
                    progress.say(f"{error}; computing it again")
                analyse(cell, folder, workshop, progress)
        note(folder.path, {}, usage)
    return []


def analyse(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> None:
    """Attack and audit a training, which is run first if it is missing or damaged; write findings and tables to
    `folder`, and mark it as finished."""
    train_all([cell], workshop, progress)
    attack = attack_training(cell, workshop, progress) if cell.plan.attacks else None
    run = attack.run if attack else None
    accuracies = newcomer_accuracies(cell, folder, workshop, progress)
    with progress.stage(f"auditing {cell.method}", len(cell.plan.audits) + (attack is not None), "audit") as advance:
        subject = dataclasses.replace(subject_of(cell, run, workshop), newcomers=accuracies)
        for name in sort_audits(cell):
            subject = dataclasses.replace(subject, before={**subject.before, name: audit(cell, name, subject)})
            advance()
        tables = {}
        if attack:
            tables = attack.tables()
            advance()
    if not (utility := utility_of_texts(subject.transcript)).columns.empty:
        tables["utility"] = utility
    if cell.variant and cell.variant.plugin.facts.on_shares:
        tables |= on_shares.tables(cell)
    results = [*subject.before.values()][::-1]  # audits that build on others come first in the report
    if cell.plan.own:
        results.append(Result([_said(remark, cell) for remark in _remarks(cell, workshop, progress)]))
    for result in results:
        tables |= result.tables
        for name, kept in result.kept.items():
            folder.write_json(f"{name}.json", kept)
    for name, table in tables.items():
        folder.write_table(f"{name}.parquet", table)
    folder.write_json("findings.json", [dataclasses.asdict(f) for result in results for f in result.findings])
    finish(folder)


def _remarks(cell: Cell, workshop: Workshop, progress: Progress) -> list[Remark]:
    """All that is to be said about how a cell's external run was recorded; what needs the model is said at once."""
    assert cell.plan.own is not None
    by_model = model_remarks(cell, workshop)
    for remark in by_model:
        progress.say(remark.line)
    return [*cell.plan.own.remarks, *by_model]


def _said(remark: Remark, cell: Cell) -> Recorded:
    doubt = None if remark.note else remark.check
    return Recorded(
        **cell.names, metric=RECORDING, doubt=doubt, check=remark.check, sentence=remark.sentence, value=remark.value,
        p=remark.p,
    )  # fmt: skip


def subject_of(cell: Cell, run: ScoredRun | None, workshop: Workshop) -> Subject:
    """Put together the subject of the first audit: a training, its attacks' scores (`run`; None without attacks), and
    the coins of the attacked clients' canaries. Later audits also get the results of those before
    (`Subject.before`)."""
    plan, clients, external = cell.plan, workshop.federation.clients, cell.plan.own
    return Subject(
        transcript=transcript_of(cell),
        method=method_of(cell, workshop.federation.sizes) if cell.trained_here else None,
        privacy=cell.variant.privacy if cell.variant and cell.trained_here else None,
        threat_models=cell.threat_models,
        names=cell.names,
        attacked=run,
        canaries={k: coins for k in cell.targets if (coins := _coins(cell, clients[k]))},
        canary_kind=external.coins.kind if external and external.coins else plan.canaries.canary_kind,
        said=({"claimed": external.claimed, "provable": external.provable, "measured": NO_COINS} if external else None),
        claim=external.claim if external and external.coins else None,
    )


def _coins(cell: Cell, client: Client) -> dict[str, bool]:
    """Whether each of a client's canaries was inserted, by record; of a run from elsewhere whose coins made none,
    whether each of its candidates was a member."""
    external = cell.plan.own
    if external and external.coins and not external.coins.canaries:
        return {r.id: bool(used) for r, used in zip(client.records, client.member, strict=True)}
    return {r.id: bool(used) for r, used in zip(client.canaries, client.canary_included, strict=True)}


def sort_audits(cell: Cell) -> list[str]:
    """The names of a cell's audits, each after those whose results it uses (`AuditFacts.after`)."""
    audits = cell.plan.audits
    needed = {name: [before for before in AUDITS[name].facts.after if before in audits] for name in audits}
    return [*graphlib.TopologicalSorter(needed).static_order()]


def audit(cell: Cell, name: str, subject: Subject) -> Result:
    """Run one audit, by its name, with the plan's parameters."""
    plugin = AUDITS[name]
    return plugin.load()(subject, plugin.own(cell.plan.audits[name]))
