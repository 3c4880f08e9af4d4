"""From a plan to a report: train, attack, audit, write. Results that are on disk under their keys are reused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.texts import check_texts
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim, refuse_files, undisturbed
from fedaudit.pipeline.analysis import audit, ensure_analysis, subject_of
from fedaudit.pipeline.finished import complete, finish, intact, on_disk, sound
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.page import read_evidence, write_page
from fedaudit.pipeline.plan import Cell, Plan
from fedaudit.pipeline.shadow_trainings import train_banks
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from fedaudit.tasks.base import Federation
from fedaudit.terms.threat_models import SERVER
from trainers.base import pack, unpack
from trainers.protocols import Bench


def compute(plan: Plan, progress: Progress) -> list[str]:
    """Make the plan's report and all that it needs. Returns names of the parts that were on disk, for messages."""
    with Workshop(plan, progress) as workshop:
        check(plan, workshop.federation, progress)
        if any(not intact(cell.analysis_folder) and not intact(cell.training_folder) for cell in plan.cells):
            _open(plan, workshop)
        return _compute(plan, workshop, progress)


def check(plan: Plan, federation: Federation, progress: Progress) -> None:
    """InputError if data, methods, somebody's own run or the report's folder cannot be used; nothing is written."""
    refuse_files(plan.report_folder)
    if plan.own is not None:
        for remark in plan.own.remarks:
            progress.say(f"warning: {remark.sentence}")
    else:
        for cell in plan.cells:
            method_of(cell, federation.sizes)
    from_files = plan.own is not None or plan.data.digest is not None
    if from_files and isinstance(plan.backbone, Path) and not plan.backbone_code:
        check_texts(plan.backbone, federation.records.values())


def _open(plan: Plan, workshop: Workshop) -> None:
    """Load the model in the workers. InputError: it cannot be used, or somebody's own run does not fit it."""
    executor = workshop.executor
    if plan.own is not None:
        try:
            next(executor.map(_put, [pack(plan.own.models[0].load())]))
        except InputError as error:
            raise InputError(
                f"--run {plan.own.path}: {error}; name the model that it was trained on by --backbone"
            ) from error


def _put(bench: Bench, adapter: bytes) -> None:
    from trainers.lora import Learner

    assert isinstance(bench.learner, Learner)
    bench.learner.load_adapter(unpack(adapter))


def _compute(plan: Plan, workshop: Workshop, progress: Progress) -> list[str]:
    """As `compute`, after the checks; under the lock of the report's folder."""
    report = claim(plan.report_folder)
    with report.lock(progress.say):
        if complete(report, progress.say) and sound(plan):  # another process was faster
            return ["report"]
        plan.data.save()
        reused = _train(plan, workshop, progress)
        evidence = []
        for cell in plan.cells:
            reused += ensure_analysis(cell, workshop, progress)
            evidence.append(read_evidence(cell))
        with progress.stage("report", 1) as advance:
            write_page(evidence, report, workshop.each, plan.across)
            finish(report)
            advance()
    return reused


def _train(plan: Plan, workshop: Workshop, progress: Progress) -> list[str]:
    """Train the cells that lack findings or have damaged files, and their shadow models. Returns names of the trainings
    that were on disk."""
    todo = [cell for cell in plan.cells if not on_disk(cell.analysis_folder, progress.say)]
    damaged = [cell for cell in plan.cells if any(Folder(folder).damaged for folder in cell.folders)]
    cells = list(dict.fromkeys([*todo, *damaged]))
    reused = train_all(cells, workshop, progress)
    if plan.trained.shadows and plan.attacks:
        train_banks(cells, workshop, progress)
    return [f"training of {c.method}, seed {c.seed}" for c in todo if c.training_key in reused]


def _aggregation(cell: Cell, data: Federation) -> str:
    """The server's rule of a cell's training, as run.json names it."""
    return cell.plan.own.aggregation if cell.plan.own else method_of(cell, data.sizes).aggregation


@undisturbed()
def export(plan: Plan, progress: Progress, *, run_to: Path | None, adapters_to: Path | None) -> None:
    """Export the one training of a finished plan: to `run_to` as a folder that docs/own-runs.md describes, to
    `adapters_to` as adapters that peft loads. None: not exported."""
    (cell,) = plan.cells
    transcript, workshop = transcript_of(cell), Workshop(plan, progress)
    if run_to is not None:
        from fedaudit.external.export import export_run
        from trainers.lora import Settings

        data, subject = workshop.federation, subject_of(cell, None, workshop)
        subject = dataclasses.replace(subject, before={"epsilon": audit(cell, "epsilon", subject)})
        assert isinstance(plan.backbone, Path)  # prompts are not exported
        export_run(
            transcript, data, run_to, method=cell.method, task=plan.task, seed=cell.seed,
            backbone="embedded" if plan.backbone == EMBEDDED else str(plan.backbone.absolute()),
            alpha=Settings(**dataclasses.asdict(plan.settings)).alpha, score=data.score.__name__,
            aggregation=_aggregation(cell, data), epsilon=subject.claims(SERVER),
        )  # fmt: skip
        progress.say(f"exported: {run_to}")
    if adapters_to is not None:
        from trainers.lora import export_adapters

        with workshop:
            next(workshop.executor.map(export_adapters, [(transcript, claim(adapters_to))]))
        progress.say(f"exported: {adapters_to}")
