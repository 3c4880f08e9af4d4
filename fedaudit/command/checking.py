"""`--check`: whether data, a run from elsewhere and the frozen model fit, what was found, and what is missing.

The task's own code lists the records, and the loaders of models open them without their numbers. No picture is decoded
but for its header, and nothing is trained or written.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.backbones.clip_source import ClipSource
from fedaudit.backbones.resolve import display_name
from fedaudit.backbones.weight_files import read_weights
from fedaudit.command import exits
from fedaudit.command.window import tell
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.plan import Plan
from fedaudit.pipeline.recorded import spread
from fedaudit.pipeline.workers import federation_of

if TYPE_CHECKING:
    from fedaudit.external.run import OwnRun
    from fedaudit.tasks.base import Federation, Record

OPENED = 1000  # pictures whose headers are read, spread over all
SHOWN = 5  # faults of one kind that are said


def check(plan: Plan, faults: Sequence[str]) -> int:
    """Print what was found, and on stderr a sentence for each thing that is missing. Returns the exit code. `faults`:
    why the plan's model is not the one that was asked for."""
    missing = list(faults)
    if plan.own is not None:
        tell(f"run: {_of_run(plan.own)}")
    federation = _kept(lambda: federation_of(plan), missing)
    if federation is not None:
        tell(f"data: {plan.task}: {_of_data(federation)}")
        missing += _faults_of_pictures(list(federation.records.values()))
    if not faults:
        model = _kept(lambda: _of_model(plan, federation, missing), missing)
        if model is not None:
            tell(f"model: {model}")
    for sentence in missing:
        tell(f"error: {sentence}", sys.stderr)
    if not missing:
        print("fits: nothing is missing")
    return exits.MENDABLE if missing else exits.DONE


def _kept(find: Callable[[], Any], missing: list[str]) -> Any:
    """The value of `find`; None if it raises an InputError, which is added to `missing`."""
    try:
        return find()
    except InputError as error:
        missing.append(str(error))
        return None


def _of_run(own: OwnRun) -> str:
    sent = sum(len(uploads) for uploads in own.uploads)
    numbers = sum(math.prod(shape) for shape in own.models[0].shapes.values())
    return (
        f"{own.path}: {own.method} on {own.task}, {_count(own.rounds, 'round')}, {_count(own.clients, 'client')}; "
        f"{_count(len(own.models), 'global model')} of {_count(len(own.models[0].shapes), 'tensor')} "
        f"({numbers:,} numbers), {_count(sent, 'upload')}, {own.copies} copies left out"
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


def _faults_of_pictures(records: Sequence[Record]) -> list[str]:
    """A sentence for each picture whose header cannot be read, for SHOWN at most."""
    faults = []
    for i in spread(range(len(records)), OPENED):
        picture = records[i].picture
        if isinstance(picture, Path | bytes):
            try:
                with user_files.picture(picture):
                    pass
            except OSError as error:
                place = picture if isinstance(picture, Path) else "its image"
                faults.append(f"{records[i].called}: {place} is no readable image ({error.strerror or error})")
    more = len(faults) - SHOWN
    return [*faults[:SHOWN], *([f"{more} more pictures cannot be read"] if more > 0 else [])]


def _of_model(plan: Plan, federation: Federation | None, missing: list[str]) -> str:
    """The frozen model in words. What of records and run does not fit it is added to `missing`."""
    if isinstance(plan.backbone, ClipSource):
        return _of_clip(plan, plan.backbone, federation, missing)
    return _of_vlm(plan, plan.backbone, federation, missing)


def _of_clip(plan: Plan, source: ClipSource, federation: Federation | None, missing: list[str]) -> str:
    from fedaudit.backbones.clip import outline

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
    return f"{display_name(path)}: {kind} of {_parameters(model.model, files, plan.dtype)}"


def _faults_of_adapters(plan: Plan, model: Any) -> Iterator[str]:
    """A sentence if the adapters of a run from elsewhere do not fit the layers of the model; or if these lack some that
    --target-modules names."""
    layers = model.projections(str(vars(plan.settings)["target_modules"]))
    if plan.own is None:
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
