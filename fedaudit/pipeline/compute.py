"""From a plan to a report: train, attack, audit, write. Results that are on disk under their keys are reused."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.settings import Probing
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.backbones.texts import check_texts
from fedaudit.external.adapters import Adapters
from fedaudit.external.prompts import START_TOKEN
from fedaudit.external.reading import PROMPTS
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import DamagedPicture, each
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim, refuse_files, undisturbed
from fedaudit.machinery.threads import allow_threads
from fedaudit.pipeline import index, provenance
from fedaudit.pipeline.analysis import audit, ensure_analysis, subject_of
from fedaudit.pipeline.finished import complete, finish, intact, on_disk, sound
from fedaudit.pipeline.kept_rounds import reopen
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.page import read_evidence, write_page
from fedaudit.pipeline.plan import Cell, Plan
from fedaudit.pipeline.shadow_trainings import train_banks
from fedaudit.pipeline.sharing import free_first
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from fedaudit.tasks.base import Federation, Record
from fedaudit.terms.threat_models import CLUSTERING_SERVER, SERVER
from fedaudit.trainers.base import Method, pack, plugin_name, unpack
from fedaudit.trainers.protocols import Bench, Classifier

PATIENCE = 5.0  # seconds that work without progress of its own may last without a word


def compute(plan: Plan, progress: Progress) -> list[str]:
    """Make the plan's report and all that it needs. Returns names of the parts that were on disk, for messages."""
    allow_threads(plan.threads)
    with Workshop(plan, progress) as workshop:
        with _announced(progress, f"making the data of task {plan.task}, which may take minutes"):
            federation = workshop.federation
        check(plan, federation, progress)
        if any(not intact(cell.analysis_folder) and not intact(cell.training_folder) for cell in plan.cells):
            _open(plan, workshop)
        try:
            return _compute(plan, workshop, progress)
        except DamagedPicture:
            _require_pictures(workshop.federation)
            raise


@contextmanager
def _announced(progress: Progress, sentence: str) -> Iterator[None]:
    """Say the sentence if what is done inside the `with` block takes more than `PATIENCE` seconds."""
    timer = threading.Timer(PATIENCE, progress.say, [sentence])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _require_pictures(federation: Federation) -> None:
    """InputError names all pictures that cannot be decoded."""
    each(Record.require_image, federation.records.values())


def check(plan: Plan, federation: Federation, progress: Progress) -> None:
    """InputError if data, methods, somebody's own run or the report's folder cannot be used; nothing is written."""
    refuse_files(plan.report_folder)
    for name, read in plan.attacks.items():
        if isinstance(params := ATTACKS[name].own(read), Probing) and params.probe_round > plan.rounds:
            raise InputError(f"--probe-round {params.probe_round}: the training has {plan.rounds} rounds")
    if plan.own is not None:
        for remark in plan.own.remarks:
            progress.say(remark.line)
    else:
        for sentence in federation.remarks:
            progress.say(f"warning: {sentence}")
        for cell in plan.cells:
            method_of(cell, federation.sizes)
    from_files = plan.own is not None or plan.data.digest is not None
    if from_files and plan.own is None:
        try:
            each(Record.require_image, {record.group: record for record in federation.records.values()}.values())
        except InputError:
            _require_pictures(federation)
            raise
    if from_files and isinstance(plan.backbone, Path) and not plan.backbone_code:
        check_texts(plan.backbone, federation.records.values())


def _open(plan: Plan, workshop: Workshop) -> None:
    """Load the model in the workers. InputError: it cannot be used, or somebody's own run does not fit it."""
    executor = workshop.executor
    if plan.own is not None:
        (cell,) = plan.cells
        token = plan.own.trained.start_token
        trial = _Trial(
            method_of(cell) if cell.variant else None,
            [pack(plan.own.models[r].load()) for r in (0, -1)],
            pack(token.load()) if token else None,
            plan.own.trained.places if isinstance(plan.own.trained, Adapters) else (),
        )
        try:
            next(executor.map(_try_models, [trial]))
        except InputError as error:
            raise InputError(
                f"--run {plan.own.path}: {error}; name the model that it was trained on by --backbone"
            ) from error


@dataclass(frozen=True)
class _Trial:
    """Global models of somebody's own run, to be put into the frozen model."""

    method: Method[Any] | None  # that they are read by; None for adapters
    models: Sequence[bytes]  # the start, and another one
    start_token: bytes | None  # {START_TOKEN: the start token's embedding in the text encoder of the training}
    places: Sequence[str]  # of adapters, in the model that was trained


def _try_models(bench: Bench, trial: _Trial) -> None:
    """Use the models of a trial once. InputError: they do not fit, or were trained on another frozen model."""
    from fedaudit.trainers.lora import Learner

    if isinstance(bench.learner, Learner):
        bench.learner.vlm.require_language(trial.places)
        bench.learner.load_adapter(unpack(trial.models[0]))
        return
    assert isinstance(bench.learner, Classifier)
    assert trial.method is not None
    if trial.start_token is not None:
        bench.learner.check_start(unpack(trial.start_token)[START_TOKEN])
    public = unpack(trial.models[0])
    bench.learner.check_width(public)
    records = [record for candidates in bench.candidates for record in candidates][:1]
    try:
        models = [trial.method.model(public | unpack(model)) for model in trial.models]
        bench.learner.log_probs(trial.method, models, records)
    except InputError:
        raise
    except (KeyError, ValueError, RuntimeError, IndexError) as error:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in public.items())
        raise InputError(
            f"its models ({shapes}) cannot be read by {plugin_name(trial.method)} in this CLIP "
            f"({str(error).splitlines()[0]})"
        ) from error


def _compute(plan: Plan, workshop: Workshop, progress: Progress) -> list[str]:
    """As `compute`, after the checks. Other processes with the same cells share the work: each cell has its lock."""
    report, started = claim(plan.report_folder), time.monotonic()
    provenance.begin(plan)
    index.write(plan.out, progress.say)  # names it while it is not finished
    plan.data.save()
    reused = _train(plan, workshop, progress)

    def analysed(cell: Cell, wait: bool) -> list[str]:
        return ensure_analysis(cell, workshop, progress, wait=wait)

    reused += itertools.chain(*free_first(analysed, plan.cells))
    with report.lock(progress.say):
        if complete(report, progress.say) and sound(plan):  # another process was faster
            return [*reused, "report"]
        evidence = [read_evidence(cell) for cell in plan.cells]
        with progress.stage("writing the report", 1) as advance:
            note = provenance.end(plan, started, reused)
            write_page(
                evidence, report, workshop.each, plan.across, note,
                own_files=plan.own_files, show_records=plan.show_records,
            )  # fmt: skip
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


def _of_adapters(plan: Plan) -> dict[str, Any]:
    """Fields of an exported run's run.json that only runs of adapters have."""
    from fedaudit.trainers.lora import Settings

    assert isinstance(plan.backbone, Path)
    backbone = "embedded" if plan.backbone == EMBEDDED else str(plan.backbone.absolute())
    return {"backbone": backbone, "alpha": Settings(**dataclasses.asdict(plan.settings)).alpha}


def _of_prompts(cell: Cell, data: Federation) -> dict[str, Any]:
    """Fields of an exported run's run.json that only runs of prompts have."""
    variant, model = cell.variant, cell.plan.backbone
    assert variant is not None
    assert isinstance(model, ClipSource)
    noise = {} if variant.privacy is None else dataclasses.asdict(variant.privacy)
    finite = {name: value for name, value in noise.items() if value != math.inf}
    return {
        "kind": PROMPTS,
        **model.flags,
        "classes": list(data.classes),
        "rule": {"method": variant.method, **dataclasses.asdict(variant.params)},
        "recipe": dataclasses.asdict(cell.plan.settings),
        **({"privacy": finite} if finite else {}),
    }


def _aggregation(cell: Cell, data: Federation) -> str:
    """The server's rule of a cell's training, as run.json names it."""
    return cell.plan.own.aggregation if cell.plan.own else method_of(cell, data.sizes).aggregation


@undisturbed()
def export(plan: Plan, progress: Progress, *, run_to: Path | None, adapters_to: Path | None) -> None:
    """Export the one training of a finished plan: to `run_to` as a folder that docs/reference/run-folder.md describes,
    to `adapters_to` as adapters that peft loads. None: not exported."""
    (cell,) = plan.cells
    transcript, workshop = transcript_of(cell), Workshop(plan, progress)
    if reopen(plan.cells, progress.say):
        with workshop:
            train_all(plan.cells, workshop, progress)
    if run_to is not None:
        from fedaudit.external.export import export_run

        data, subject = workshop.federation, subject_of(cell, None, workshop)
        subject = dataclasses.replace(subject, before={"epsilon": audit(cell, "epsilon", subject)})
        about = {"method": cell.method, "task": plan.task, "seed": cell.seed, "aggregation": _aggregation(cell, data)}
        about |= _of_prompts(cell, data) if data.classes else _of_adapters(plan)
        against = next(one for one in (SERVER, CLUSTERING_SERVER) if one in cell.threat_models)
        export_run(transcript, data, run_to, about=about, score=data.score.__name__, epsilon=subject.claims(against))
        progress.say(f"exported: {run_to}")
    if adapters_to is not None:
        from fedaudit.trainers.lora import export_adapters

        with workshop:
            next(workshop.executor.map(export_adapters, [(transcript, claim(adapters_to))]))
        progress.say(f"exported: {adapters_to}")
