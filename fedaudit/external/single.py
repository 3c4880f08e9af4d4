"""One fine-tuned peft adapter, or one checkpoint of prompts, and the list of what it was trained on, as a run of one
client and one round."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.external.adapters import (
    Adapters,
    check_tensors,
    notes_of,
    places,
    read_adapter,
    scaled,
    targets_of,
    without_b,
)
from fedaudit.external.checkpoints import find
from fedaudit.external.coins import COINS, read_coins
from fedaudit.external.files import OwnFiles
from fedaudit.external.peft_config import NAME, read_peft_config
from fedaudit.external.prompts import Prompts, describe, read_prompts, read_start, untrained
from fedaudit.external.recording import MEAN
from fedaudit.external.records import (
    CANDIDATES,
    REFERENCE,
    ListFile,
    Lists,
    check_clients,
    read_lists,
    without_copies,
)
from fedaudit.external.run import NOT_STATED, UNKNOWN, OwnRun
from fedaudit.external.schema import SCORES, UNIQUE_NAMES, one_line, parse
from fedaudit.external.tensors import TensorFile
from fedaudit.machinery.errors import InputError

TENSORS = "adapter_model.safetensors"
LISTS_BY_FLAG = dict(zip(CANDIDATES, ("--members", "--nonmembers"), strict=True))


@dataclass(frozen=True)
class Flags:
    """The values of the flags that go with one model."""

    linked: bool  # whether files and pictures may lie, or be links to, elsewhere
    members: str | None
    nonmembers: str | None
    classes: str | None = None  # a file of class names, one a line

    def sources(self, place: Path) -> dict[str, ListFile]:
        """The lists of candidates by name. InputError: one is not named."""
        sources = {}
        for name, path in zip(CANDIDATES, (self.members, self.nonmembers), strict=True):
            if path is None:
                raise InputError(
                    f"--run {place}: one model needs its lists of records; {LISTS_BY_FLAG[name]} is missing"
                )
            sources[name] = list_file(Path(path), self.linked)
        beside = sources[CANDIDATES[0]].files
        if all(os.path.lexists(beside.root / name) for name in (COINS, f"{REFERENCE}.jsonl")):
            sources[REFERENCE] = ListFile(beside, beside.root / f"{REFERENCE}.jsonl")
        return sources


def find_single(place: Path) -> Callable[[Path, Flags], OwnRun] | None:
    """The reader of the one model that `place` is or holds; None if that is none."""
    if place.suffix == ".safetensors" or os.path.lexists(place / TENSORS):
        return read_adapter_run
    return read_checkpoint_run if find(place) is not None else None


def read_adapter_run(place: Path, flags: Flags) -> OwnRun:
    """The run of an adapter: `place` is a folder as peft saves it, or its tensor file; the lists are JSON lines as
    in docs/reference/run-folder.md, without clients. The model before training is the adapter with B zero. InputError:
    a list is not named, or a file is missing or wrong."""
    sources = flags.sources(place)
    tensors = place / TENSORS if place.is_dir() else place
    files = OwnFiles(tensors.parent, flags.linked)
    config = read_peft_config(files, (tensors.parent,))
    if config is None:
        raise InputError(f"{tensors.parent / NAME} is missing; it says how the adapter in {tensors.name} is scaled")
    if config.of_backbone:
        raise InputError(
            f"{config.path}: init_lora_weights {config.start} takes the first adapter out of the backbone's weights, "
            "and one adapter does not tell which it was; save it with path_initial_model_for_weight_conversion, or "
            "save the changed backbone as a model, name it by --backbone, and write init_lora_weights true"
        )
    adapter = read_adapter(files, tensors)
    rank = check_tensors([adapter, adapter], [{0: adapter}], {}, config)
    models, uploads, _ = scaled([adapter], [{0: adapter}], [], config.scale, config.scale(""))
    trained = Adapters(
        config.scale("") * config.rank, rank, targets_of(adapter, config), (), True, places([adapter]), notes_of(config)
    )
    return _run(
        place, tensors, "adapter", config.base, trained, sources,
        read_lists(sources, None, client=0), [without_b(adapter), *models], uploads, [{}], {NAME: config.path},
    )  # fmt: skip


def read_checkpoint_run(place: Path, flags: Flags) -> OwnRun:
    """The run of a checkpoint of CoOp, which nobody but its owner was sent, or of MaPLe: `place` is the file or a
    folder with it. The model before training has zero prompts. InputError: a list is not named, classes are missing,
    or a file is missing or wrong."""
    sources, path = flags.sources(place), find(place)
    assert path is not None
    files = OwnFiles(path.parent, flags.linked)
    model = read_prompts(files, path, own=True)
    classes = _classes(flags, sources)
    dual = "Pt" in model.shapes
    lists = read_lists(sources, None, client=0, classes=classes)
    models = [untrained(model), model] if dual else [untrained(model), untrained(model)]
    sent: dict[int, TensorFile] = {0: model} if dual else {}
    kept: dict[int, TensorFile] = {} if dual else {0: model}
    about = {"classes": classes}
    trained = describe(path, about, models, [model], {}, {}, read_start(files, path))
    texts = {} if flags.classes is None else {"classes": Path(os.path.expanduser(flags.classes))}
    return _run(place, path, "prompts", "", trained, sources, lists, models, [sent], [kept], texts)


def _classes(flags: Flags, sources: Mapping[str, ListFile]) -> tuple[str, ...]:
    """The names of all classes: as --classes lists them, else those of the records, sorted. InputError: a line is empty
    or comes twice."""
    if flags.classes is None:
        lines = [line for source in sources.values() for line in source.files.lines(source.path, purpose="")]
        values = (parse(line, where) for line, where in lines)
        return tuple(sorted({str(value["class"]) for value in values if isinstance(value, dict) and "class" in value}))
    source = list_file(Path(flags.classes), flags.linked)
    names = [line.decode("utf-8", "replace").strip() for line, _ in source.files.lines(source.path)]
    if not UNIQUE_NAMES.holds(names):
        raise InputError(f"--classes {flags.classes}: must hold {UNIQUE_NAMES.words}")
    return tuple(names)


def _run(
    place: Path, tensors: Path, method: str, backbone: str, trained: Adapters | Prompts,
    sources: Mapping[str, ListFile], all_lists: Lists, models: Sequence[TensorFile],
    uploads: Sequence[Mapping[int, TensorFile]], private: Sequence[Mapping[int, TensorFile]], texts: Mapping[str, Path],
) -> OwnRun:  # fmt: skip
    """The run of one client and one round."""
    roots = {file.files.root for file in sources.values()}
    coins = read_coins(next(iter(sources.values())).files, all_lists) if len(roots) == 1 else None
    lists, copies = without_copies(all_lists)
    check_clients(place, lists, [[0]])
    at_coins = {COINS: sources[CANDIDATES[0]].files.root / COINS} if coins else {}
    return OwnRun(
        path=tensors.parent,
        method=method,
        task=one_line(tensors.parent.name or method),
        seed=0,
        backbone=backbone,
        aggregation=MEAN,
        changes=False,
        score=SCORES[0],
        claimed=NOT_STATED,
        provable=UNKNOWN,
        trained=trained,
        models=models,
        uploads=uploads,
        private=private,
        lists=lists,
        copies=copies,
        texts={**texts} | {f"{name}.jsonl": file.path for name, file in sources.items()} | at_coins,
        notes={},
        numbers=[0, 1],
        coins=coins,
    )


def list_file(path: Path, linked: bool) -> ListFile:
    """A list of records that a flag names; its pictures lie in its own folder unless `linked`."""
    path = Path(os.path.expanduser(path))
    return ListFile(OwnFiles(path.parent, linked), path)
