"""`--check`: whether data, a run from elsewhere and the frozen model fit, what was found, and what is missing.

The task's own code lists the records, and the loaders of models open them without their numbers. As many pictures and
rounds are read as half a minute allows, and one picture is prepared as the model takes it. Nothing is trained or
written.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.backbones.clip_source import ClipSource
from fedaudit.backbones.resolve import display_name
from fedaudit.backbones.weight_files import read_weights
from fedaudit.command import exits
from fedaudit.command.window import tell
from fedaudit.external.adapters import Adapters
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import each, first_of, sentences
from fedaudit.machinery.samples import Sample
from fedaudit.pipeline.plan import Plan
from fedaudit.pipeline.workers import federation_of
from fedaudit.tasks import duplicates
from fedaudit.tasks.base import Record

if TYPE_CHECKING:
    from fedaudit.external.run import OwnRun
    from fedaudit.tasks.base import Federation

SECONDS = 30  # that pictures and tensors are read for


def check(plan: Plan, faults: Sequence[str], *, whole: bool) -> int:
    """Print what was found; on stderr a sentence for each thing that is missing, and for each doubt on a recording.
    Returns the exit code. `faults`: why the plan's model is not the one that was asked for; `whole`: all is read, as
    long as it takes."""
    missing, doubts = list(faults), list[str]()
    pictures, rounds = (Sample(math.inf if whole else SECONDS / (1 if plan.own is None else 2)) for _ in range(2))
    if plan.own is not None:
        tell(f"run: {_of_run(plan.own)}")
    federation = _kept(lambda: federation_of(plan), missing)
    if federation is not None:
        tell(f"data: {plan.task}: {_of_data(federation)}")
        doubts = _kept(lambda: _of_files(plan, federation, pictures, rounds), missing) or []
    if not faults:
        model = _kept(lambda: _of_model(plan, federation, missing), missing)
        if model is not None:
            tell(f"model: {model}")
    for sentence in first_of(missing):
        tell(f"error: {sentence}", sys.stderr)
    for sentence in doubts:
        tell(f"doubt: {sentence}", sys.stderr)
    if read := _amounts(pictures, rounds):
        tell(f"read: {read}")
    if not missing:
        print(_conclusion(plan, doubts, partial=pictures.partial or rounds.partial))
    return exits.MENDABLE if missing or doubts else exits.DONE


def in_time(words: Sequence[str]) -> AbstractContextManager[object]:
    """Inside the `with` block no pictures are decoded to look for copies, unless the words of the command ask for the
    whole."""
    return nullcontext() if "--whole" in words else duplicates.undecoded()


def _amounts(pictures: Sample, rounds: Sample) -> str:
    """ "18,000 of 118,000 pictures and 20 rounds; ..."; "" if nothing was to be read."""
    counts = (
        (f"{sample.read:,} of " if sample.partial else "") + _count(sample.of, word)
        for sample, word in ((pictures, "picture"), (rounds, "round"))
        if sample.of
    )
    more = "; the audit reads all, and so does --check --whole" if pictures.partial or rounds.partial else ""
    return " and ".join(counts) + more


def _conclusion(plan: Plan, doubts: Sequence[str], *, partial: bool) -> str:
    """The last line where nothing is missing."""
    if doubts:
        return f"fits, but for {_count(len(doubts), 'doubt')} on the recording (--accept-doubts)"
    later = "; losses, members and scale are checked by the audit" if plan.own is not None else ""
    return f"fits: nothing is missing{' in what was read' if partial else ''}{later}"


def _kept(find: Callable[[], Any], missing: list[str]) -> Any:
    """The value of `find`; None if it raises an InputError, which is added to `missing`."""
    try:
        return find()
    except InputError as error:
        missing += sentences(error)
        return None


def _of_run(own: OwnRun) -> str:
    sent = sum(len(uploads) for uploads in own.uploads)
    numbers = sum(math.prod(shape) for shape in own.models[0].shapes.values())
    copies = f", {own.copies} copies left out" if own.copies else ""
    return (
        f"{own.path}: {own.method} on {own.task}, {_count(own.rounds, 'round')}, {_count(own.clients, 'client')}; "
        f"{_count(len(own.models), 'global model')} of {_count(len(own.models[0].shapes), 'tensor')} "
        f"({numbers:,} numbers), {_count(sent, 'upload')}{copies}"
    )


def _of_data(federation: Federation) -> str:
    clients = federation.clients
    members = sum(int(client.member.sum()) for client in clients)
    parts = {
        "members": members,
        "held out": sum(len(client.records) for client in clients) - members,
        "reference": sum(len(client.reference) for client in clients),
        "background": sum(len(client.background) for client in clients),
        "canaries": sum(len(client.canaries) for client in clients),
        "test": len(federation.test),
        "novel": len(federation.novel) + len(federation.novel_test),
    }
    among = f" in {_count(len(federation.classes), 'class', 'classes')}" if federation.classes else ""
    counts = ", ".join(f"{n:,} {name}" for name, n in parts.items() if n)
    sizes = federation.sizes
    return (
        f"{_count(len(federation.records), 'record')}{among}, {_count(len(clients), 'client')} with {min(sizes):,} to "
        f"{max(sizes):,} training records; {counts}"
    )


def _of_files(plan: Plan, federation: Federation, pictures: Sample, rounds: Sample) -> list[str]:
    """Read the chosen pictures and rounds. Returns the doubts on a recording that are not accepted, and prints its
    notes. InputError names all files that are damaged."""
    if plan.own is None:
        of_files = [record for record in federation.records.values() if isinstance(record.picture, Path | bytes)]
        each(Record.require_image, pictures(of_files))
        return []
    remarks = plan.own.remarks_on(pictures, rounds)
    for remark in remarks:
        if remark.note:
            tell(remark.line)
    return [one.sentence for one in remarks if not one.note and one.check not in plan.accepted_doubts]


def _of_model(plan: Plan, federation: Federation | None, missing: list[str]) -> str:
    """The frozen model in words. What of records and run does not fit it is added to `missing`."""
    if isinstance(plan.backbone, ClipSource):
        return _of_clip(plan, plan.backbone, federation, missing)
    return _of_vlm(plan, plan.backbone, federation, missing)


def _of_clip(plan: Plan, source: ClipSource, federation: Federation | None, missing: list[str]) -> str:
    from fedaudit.backbones.clip import outline, prepare

    model, tower = outline(source)
    if federation is not None and federation.classes:
        settings = vars(plan.settings)
        context = int(settings.get("prompt_length", settings.get("tokens", 0)))
        _kept(lambda: tower.classes(federation.classes, context), missing)
    if plan.own is not None:
        widths = {s[-1] for name, s in plan.own.models[0].shapes.items() if name in ("p_G", "p_L")}
        if other := widths - {tower.embedding.shape[1]}:
            missing.append(
                f"--run {plan.own.path}: its prompts are vectors of {other.pop()} numbers, and those of "
                f"{source.name} have {tower.embedding.shape[1]}"
            )
    height, width = model.visual.image_size
    if federation is not None and not missing:
        first = next(iter(federation.records.values()))
        _kept(lambda: prepare(model, first), missing)
    files = source.shards or ((source.weights,) if source.weights else ())
    return (
        f"{source.name}, activation {source.activation}: a CLIP of {_parameters(model, files, 'float32')}; pictures "
        f"of {height} x {width}"
    ) + (f"; {source.doubt}" if source.doubt else "")


def _of_vlm(plan: Plan, path: Path, federation: Federation | None, missing: list[str]) -> str:
    from fedaudit.backbones import vlm
    from fedaudit.backbones.texts import check_texts

    if federation is not None:
        _kept(lambda: check_texts(path, federation.records.values()), missing)
    if plan.backbone_code:  # it may open the model as it likes, so that it is not run here
        return f"{display_name(path)}, opened by {plan.backbone_code}, which is not run here"
    model = vlm.load(path, "meta", plan.dtype)
    missing += _faults_of_adapters(plan, model)
    files = sorted(path.glob("*.safetensors"))
    kind = type(model.model).__name__
    record = next(iter(federation.records.values())) if federation is not None and not missing else None
    tokens = _kept(lambda: model.count_tokens(record), missing) if record else None
    read = f"; {record.called}: {tokens[0]} tokens of the picture, {tokens[1]} of texts" if record and tokens else ""
    return f"{display_name(path)}: {kind} of {_parameters(model.model, files, plan.dtype)}{read}"


def _faults_of_adapters(plan: Plan, model: Any) -> Iterator[str]:
    """A sentence if the adapters of a run from elsewhere do not fit the layers of the model; or if these lack some that
    --target-modules names."""
    layers = model.projections(str(vars(plan.settings)["target_modules"]))
    if plan.own is None:
        return
    assert isinstance(plan.own.trained, Adapters)
    try:
        model.require_language(plan.own.trained.places)
    except InputError as error:
        yield f"--run {plan.own.path}: {error}"
        return
    weights = {model.short(name): model.model.get_submodule(name).weight.shape for name in layers}
    expected = {f"{name}.{half}": shape["BA".index(half)] for name, shape in weights.items() for half in "AB"}
    shapes = plan.own.models[0].shapes
    if odd := sorted(shapes.keys() ^ expected.keys()):
        yield (
            f"--run {plan.own.path}: its adapters of {len(shapes)} tensors do not fit the model, whose layers take "
            f"{len(expected)} ({odd[0]} is in one of them only)"
        )
        return
    for name, features in expected.items():
        if shapes[name]["BA".index(name[-1])] != features:
            yield f"--run {plan.own.path}: {name} has shape {list(shapes[name])}, and the layer has {features} features"
            return


def _parameters(model: Any, files: Sequence[Path], used: str) -> str:
    """ "149.6 million parameters, float16 in its file, used as float32 (0.6 GB)"."""
    import torch

    n = sum(parameter.numel() for parameter in model.parameters())
    dtypes = sorted({dtype for file in files for dtype in read_weights(file).dtypes.values() if "float" in dtype})
    stored = f"{' and '.join(dtypes)} in the files" if dtypes else "random"
    size = n * getattr(torch, used).itemsize / 1e9
    return f"{n / 1e6:,.1f} million parameters, {stored}, used as {used} ({size:,.2f} GB)"


def _count(n: int, one: str, several: str = "") -> str:
    return f"{n:,} {one if n == 1 else several or one + 's'}"
