"""One fine-tuned peft adapter and the list of what it was trained on, as a run of one client and one round."""

from __future__ import annotations

import os
from pathlib import Path

from fedaudit.external.adapters import Adapters, check_tensors, read_adapter, scaled, without_b
from fedaudit.external.files import OwnFiles
from fedaudit.external.peft_config import NAME, read_peft_config
from fedaudit.external.recording import MEAN
from fedaudit.external.records import CANDIDATES, ListFile, check_clients, read_lists, without_copies
from fedaudit.external.run import NOT_STATED, UNKNOWN, OwnRun
from fedaudit.external.schema import SCORES, one_line
from fedaudit.machinery.errors import InputError

TENSORS = "adapter_model.safetensors"
FLAGS = dict(zip(CANDIDATES, ("--members", "--nonmembers"), strict=True))


def read_single(place: Path, members: str | None, nonmembers: str | None, *, linked: bool) -> OwnRun:
    """The run of an adapter: `place` is a folder as peft saves it, or its tensor file; the lists are JSON lines as in
    docs/own-runs.md, without clients. The model before training is the adapter with B zero. InputError: a list is not
    named, or a file is missing or wrong."""
    lists_by_name = dict(zip(CANDIDATES, (members, nonmembers), strict=True))
    for name, path in lists_by_name.items():
        if path is None:
            raise InputError(f"--run {place}: one adapter needs its lists of records; {FLAGS[name]} is missing")
    tensors = place / TENSORS if place.is_dir() else place
    files = OwnFiles(tensors.parent, linked)
    config = read_peft_config(files, (tensors.parent,))
    if config is None:
        raise InputError(f"{tensors.parent / NAME} is missing; it says how the adapter in {tensors.name} is scaled")
    adapter = read_adapter(files, tensors)
    rank = check_tensors([adapter, adapter], [{0: adapter}], {}, config)
    models, uploads, _ = scaled([adapter], [{0: adapter}], {}, config)
    sources = {name: list_file(Path(path), linked) for name, path in lists_by_name.items() if path}
    lists, copies = without_copies(read_lists(sources, None, client=0))
    check_clients(place, lists, [[0]])
    return OwnRun(
        path=tensors.parent,
        method="adapter",
        task=one_line(tensors.parent.name or "adapter"),
        seed=0,
        backbone=config.base,
        aggregation=MEAN,
        changes=False,
        score=SCORES[0],
        claimed=NOT_STATED,
        provable=UNKNOWN,
        trained=Adapters(
            config.scale("") * config.rank, rank, tuple(sorted({name.split(".")[-2] for name in adapter.shapes}))
        ),
        models=[without_b(adapter), *models],
        uploads=uploads,
        private=[{}],
        lists=lists,
        copies=copies,
        texts={NAME: config.path} | {f"{name}.jsonl": file.path for name, file in sources.items()},
        notes={},
        numbers=[0, 1],
    )


def list_file(path: Path, linked: bool) -> ListFile:
    """A list of records that a flag names; its pictures lie in its own folder unless `linked`."""
    path = Path(os.path.expanduser(path))
    return ListFile(OwnFiles(path.parent, linked), path)
