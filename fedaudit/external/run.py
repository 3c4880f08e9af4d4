"""Somebody's own run, trained elsewhere, as a folder of models, messages and records (docs/own-runs.md): checked, and
made a transcript.

Importing this module is light, and `read` needs no torch: it goes by the headers of the tensor files.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedaudit.external.adapters import Adapter, canonical, check_tensors, read_models, read_owners, read_uploads
from fedaudit.external.export import export_run
from fedaudit.external.files import OwnFiles
from fedaudit.external.records import OF_CLIENTS, Lists, check_clients, check_pixels, federation, read_lists
from fedaudit.external.schema import (
    COUNT,
    FORMAT,
    LINE,
    NAME,
    OBJECT,
    PATH,
    POSITIVE,
    ROUNDS,
    RUN,
    SCORES,
    TEXT,
    TEXTS,
    UTILITY,
    fields,
    one_of,
    parse,
    shown,
)
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from fedaudit.machinery.store import Folder
    from fedaudit.tasks.base import Federation

__all__ = ["OwnRun", "check_values", "export_run", "read", "warnings", "write_transcript"]

IMAGE = "<image>"

_NEEDED = {"format": one_of(FORMAT), "method": NAME, "task": NAME, "backbone": PATH, "alpha": POSITIVE}
_OPTIONAL = {"seed": COUNT, "score": one_of(*SCORES), "prompt": TEXT, "claimed": LINE, "provable": LINE}
_ROUND = {"uploads": OBJECT, "bytes_down": COUNT, "bytes_up": COUNT, "utility": UTILITY}
_UPLOAD = {"records": COUNT, "facts": OBJECT, "kept": TEXTS, "bytes": COUNT}


@dataclass(frozen=True, eq=False)
class OwnRun:
    """A folder that was found complete and consistent."""

    learner: ClassVar[str] = "lora"  # what such a folder holds

    path: Path
    method: str
    task: str
    seed: int
    backbone: str  # as written
    alpha: float
    score: str
    claimed: str  # epsilon, in words
    provable: str
    rank: int  # of the global model
    targets: tuple[str, ...]  # last components of the adapted layers' names: k_proj, q_proj
    models: Sequence[Adapter]  # [rounds + 1], at the start of each round and after the last
    uploads: Sequence[Mapping[int, Adapter]]  # [rounds], by client
    owners: Mapping[int, Adapter]  # true models after the last participation, of some clients or of none
    lists: Lists
    notes: Mapping[str, Any]  # rounds.json

    @property
    def rounds(self) -> int:
        return len(self.uploads)

    @property
    def cohorts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(sent)) for sent in self.uploads)

    @property
    def clients(self) -> int:
        """1 + the largest number of a client anywhere."""
        named = (entry.client for name in OF_CLIENTS for entry in self.lists[name] if entry.client is not None)
        return 1 + max((*named, *(k for cohort in self.cohorts for k in cohort)))

    @functools.cached_property
    def federation(self) -> Federation:
        return federation(self.lists, self.clients, self.score)

    @functools.cached_property
    def sha256(self) -> str:
        """Over names and contents of all files that count, wherever the folder lies."""
        digest = hashlib.sha256()
        for name, content in sorted(self.digests.items()):
            digest.update(f"{name}\0".encode() + content)
        return digest.hexdigest()

    @functools.cached_property
    def digests(self) -> dict[str, bytes]:
        """SHA-256 of every file that counts, by its name."""
        return {name: _digest(self.path / name) for name in self._files()}

    @property
    def adapters(self) -> list[Adapter]:
        """The tensor files."""
        return [*self.models, *self.owners.values(), *(a for sent in self.uploads for a in sent.values())]

    def last(self, client: int) -> int:
        """The round of a client's last participation."""
        return max(r for r, sent in enumerate(self.uploads) if client in sent)

    def write_transcript(self, folder: Folder, *, say: Callable[[str], None] = lambda text: None) -> None:
        """The files that `trainers.rounds.train` leaves: see the function of this name."""
        write_transcript(self, folder, say=say)

    def digest(self, adapter: Adapter) -> bytes:
        """SHA-256 of a tensor file."""
        return self.digests[self._name(adapter)]

    def _name(self, adapter: Adapter) -> str:
        return adapter.path.relative_to(self.path).as_posix()

    def _files(self) -> set[str]:
        files = {self._name(adapter) for adapter in self.adapters}
        files |= {entry.image for entries in self.lists.values() for entry in entries}
        files |= {f"{name}.jsonl" for name, entries in self.lists.items() if entries}
        return files | {RUN} | ({ROUNDS} if self.notes else set())


def read(folder: Path, *, linked: bool = False) -> OwnRun:
    """The run in a folder; `linked`: its files may be links to, and its pictures paths of, what lies elsewhere.

    InputError names what is wrong with it, as far as that can be told without a model and without reading what
    `check_values` reads.
    """
    folder = Path(os.path.expanduser(folder))
    if not os.path.isdir(folder):
        raise InputError(
            f"{shown(str(folder), most=5000)}: no such folder; it should hold {RUN}, models, uploads and lists of "
            f"records"
        )
    files = OwnFiles(folder, linked)
    about = _about(files)
    models = read_models(files)
    uploads = read_uploads(files, len(models) - 1)
    owners = read_owners(files)
    rank = check_tensors(models, uploads, owners)
    lists = read_lists(files, about.get("prompt"))
    check_clients(folder, lists, uploads)
    return OwnRun(
        path=folder,
        method=about["method"],
        task=about["task"],
        seed=about.get("seed", 0),
        backbone=about["backbone"],
        alpha=float(about["alpha"]),
        score=about.get("score", SCORES[0]),
        claimed=about.get("claimed", "not stated"),
        provable=about.get("provable", "unknown: the run has no ledger of noise"),
        rank=rank,
        targets=tuple(sorted({name.split(".")[-2] for name in models[0].shapes})),
        models=models,
        uploads=uploads,
        owners=owners,
        lists=lists,
        notes=_notes(files, uploads),
    )


def check_values(own: OwnRun) -> None:
    """Read every tensor and decode every picture, one file at a time. InputError names what is truncated, or no number
    of a model."""
    for adapter in own.adapters:
        adapter.load()
    check_pixels(own.lists)


def warnings(own: OwnRun) -> list[str]:
    """What looks wrong in a run and may be right, a sentence each: clients of one round whose messages are
    byte-identical."""
    same = []
    for r, sent in enumerate(own.uploads):
        clients = defaultdict(list)
        for client, message in sent.items():
            if message.shapes:  # who sends nothing sends the same as others
                clients[own.digest(message)].append(str(client))
        same += [f"{' and '.join(alike)} in round {r}" for alike in clients.values() if len(alike) > 1]
    more = f" and {len(same) - 3} times more" if len(same) > 3 else ""
    return (
        [
            f"Uploads of different clients are byte-identical (clients {', '.join(same[:3])}{more}): if their states "
            f"shared memory "
            "when they were saved, all but one are lost (docs/own-runs.md)."
        ]
        if same
        else []
    )


def write_transcript(own: OwnRun, folder: Folder, *, say: Callable[[str], None] = lambda text: None) -> None:
    """The files that `trainers.rounds.train` leaves; what `folder` holds already is not written again.

    InputError: as of `check_values`, of a tensor. `say` is told of `warnings` and of damaged files.
    """
    for text in warnings(own):
        say(f"warning: {text}")
    if not (folder.usable("initial.safetensors", say) and folder.usable("initial.json", say)):
        folder.write_tensors("initial.safetensors", own.models[0].load())
        folder.write_json("initial.json", {"utility": own.notes.get("initial", {}).get("utility", {})})
    for r in range(own.rounds):
        if not (folder.usable(f"round-{r:03d}.safetensors", say) and folder.usable(f"round-{r:03d}.json", say)):
            folder.write_tensors(f"round-{r:03d}.safetensors", _tensors(own, r))
            folder.write_json(f"round-{r:03d}.json", _record(own, r))


def _tensors(own: OwnRun, r: int) -> dict[str, Any]:
    """What each party saw in round r, as in a transcript."""
    import torch

    tensors = {f"aggregate/{name}": tensor for name, tensor in own.models[r + 1].load().items()}
    for client, message in own.uploads[r].items():
        sent = message.load()
        tensors |= {f"upload/{client}/{name}": tensor for name, tensor in sent.items()}
        for name, tensor in own.owners[client].load().items() if _owned(own, r, client) else ():
            if name not in sent or not torch.equal(tensor, sent[name]):
                tensors[f"private/{client}/{name}"] = tensor
    return tensors


def _record(own: OwnRun, r: int) -> dict[str, Any]:
    """What round r was beside its tensors: as rounds.json says, and where it says nothing as the tensors do."""
    note = own.notes.get(str(r), {})
    messages = {}
    for client, message in sorted(own.uploads[r].items()):
        said = note.get("uploads", {}).get(str(client), {})
        messages[str(client)] = {
            "records": said.get("records", sum(entry.client == client for entry in own.lists["members"])),
            "facts": said.get("facts", {}),
            "bytes": said.get("bytes", message.size),
            "kept": _kept(own.models[r], message, said),
            "owner": _owned(own, r, client),
        }
    return {
        "round": r,
        "cohort": list(own.cohorts[r]),
        "uploads": messages,
        "bytes_down": note.get("bytes_down", len(messages) * own.models[r].size),
        "bytes_up": note.get("bytes_up", sum(m["bytes"] for m in messages.values())),
        "utility": note.get("utility", {}),
    }


def _kept(model: Adapter, message: Adapter, said: Mapping[str, Any]) -> list[str]:
    """Names of the tensors of a client's model that its message did not hold."""
    if "kept" in said:
        return sorted(canonical(name) or name for name in said["kept"])
    return sorted(model.shapes.keys() - message.shapes.keys())


def _owned(own: OwnRun, r: int, client: int) -> bool:
    """Whether the client's true model after round r is known."""
    return client in own.owners and own.last(client) == r


def _about(files: OwnFiles) -> dict[str, Any]:
    path = files.root / RUN
    found = parse(files.read(path, purpose="it says which method, task and backbone the run is of"), str(path))
    if isinstance(found, dict) and "format" in found:  # another format may have other keys
        fields({"format": found["format"]}, str(path), {"format": _NEEDED["format"]}, {})
    about = fields(found, str(path), _NEEDED, _OPTIONAL)
    if "prompt" in about and about["prompt"].count(IMAGE) != 1:
        raise InputError(f"{path}: prompt must hold {IMAGE} once, not {about['prompt'].count(IMAGE)} times")
    return about


def _notes(files: OwnFiles, uploads: Sequence[Mapping[int, Adapter]]) -> Mapping[str, Any]:
    """rounds.json; empty if there is none. InputError: rounds, clients or tensors that the folder does not have."""
    path = files.root / ROUNDS
    if not os.path.lexists(path):
        return {}
    rounds = {str(r): OBJECT for r in range(len(uploads))}
    found = fields(parse(files.read(path), str(path)), str(path), {}, {"initial": OBJECT} | rounds)
    fields(found.get("initial", {}), f"{path}, initial", {}, {"utility": UTILITY})
    for r, sent in enumerate(uploads):
        where = f"{path}, round {r}"
        note = fields(found.get(str(r), {}), where, {}, _ROUND)
        messages = fields(note.get("uploads", {}), f"{where}, uploads", {}, {str(k): OBJECT for k in sorted(sent)})
        for client, message in messages.items():
            fields(message, f"{where}, client {client}", {}, _UPLOAD)
            both = {canonical(name) for name in message.get("kept", [])} & sent[int(client)].shapes.keys()
            if both:
                raise InputError(f"{where}, client {client}: kept names {min(map(str, both))}, which its upload holds")
    return found


def _digest(path: Path) -> bytes:
    """SHA-256. InputError: the file cannot be read any more."""
    try:
        with user_files.opened(path) as file:
            digest = hashlib.sha256()
            for part in iter(lambda: file.read(2**20), b""):
                digest.update(part)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
    return digest.digest()
