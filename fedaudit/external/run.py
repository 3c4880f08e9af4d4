"""An external run: a training done elsewhere, as a folder of models, uploads and records (docs/reference/run-
folder.md). It is checked and turned into a transcript.

Importing this module is light, and `read` needs no torch: it reads only the headers of tensor files.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.external.adapters import Adapters, canonical
from fedaudit.external.coins import Coins
from fedaudit.external.names import NUMBERED, ClientNames
from fedaudit.external.prompts import Prompts
from fedaudit.external.recording import Remark, of_records, remarks
from fedaudit.external.records import OF_CLIENTS, Lists, check_pixels, federation
from fedaudit.external.tensors import TensorFile
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import at_once, each
from fedaudit.machinery.samples import Sample

if TYPE_CHECKING:
    from fedaudit.machinery.store import Folder
    from fedaudit.tasks.base import Federation
    from fedaudit.trainers.base import State

NOT_STATED, UNKNOWN = "not stated", "unknown: the run has no ledger of noise"  # an epsilon, in words


@dataclass(frozen=True, eq=False)
class OwnRun:
    """An external run whose folder has been checked."""

    path: Path
    method: str
    task: str
    seed: int
    backbone: str  # as written in run.json
    aggregation: str  # the server's rule, one of AGGREGATIONS
    changes: bool  # whether files of uploads hold changes of the model that was sent out, not states
    score: str
    claimed: str  # epsilon, in words
    provable: str
    trained: Adapters | Prompts  # what the tensors are of, and what is said of that
    models: Sequence[TensorFile]  # [rounds + 1] global models: at the start of each round and after the last
    uploads: Sequence[Mapping[int, TensorFile]]  # [rounds], by client
    private: Sequence[Mapping[int, TensorFile]]  # [rounds], by client: what it held after the round, where recorded
    lists: Lists  # without `copies`
    copies: int  # candidates on both sides, which are left out
    texts: Mapping[str, Path]  # run.json, the lists, and what else was read beside tensors and pictures, by name
    notes: Mapping[str, Any]  # content of rounds.json, with rounds and clients by their numbers here
    numbers: Sequence[int]  # [rounds + 1] the models' numbers in the training, which go up by more than 1 in gaps
    names: ClientNames = NUMBERED
    coins: Coins | None = None  # that decided before the training who is a member
    claim: Mapping[str, Any] = field(default_factory=dict)  # an epsilon that can be compared; {} without one

    @property
    def learner(self) -> str:
        return self.trained.learner

    @property
    def repeatable(self) -> bool:
        """Whether the run tells how it was trained, so that shadow models can be trained alike."""
        return isinstance(self.trained, Prompts) and not self.trained.untold

    @property
    def rounds(self) -> int:
        return len(self.uploads)

    @property
    def cohorts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted({*sent, *kept})) for sent, kept in zip(self.uploads, self.private, strict=True))

    @property
    def clients(self) -> int:
        """Number of clients: 1 + the largest client number in any list or round."""
        named = (entry.client for name in OF_CLIENTS for entry in self.lists[name] if entry.client is not None)
        return 1 + max((*named, *(k for cohort in self.cohorts for k in cohort)))

    @functools.cached_property
    def remarks(self) -> list[Remark]:
        """Remarks on how the run was recorded, made after reading every tensor and decoding every picture.
        InputError: the run cannot be right, or a file is truncated or holds values that are no numbers."""
        return self.remarks_on(Sample(), Sample())

    def remarks_on(self, pictures: Sample, rounds: Sample) -> list[Remark]:
        """As `remarks`, after reading those pictures, and those rounds, that are chosen."""
        shared, on_rounds = at_once(lambda: check_pixels(self.lists, pictures), lambda: remarks(self, rounds))
        return [*of_records(self.copies, shared), *on_rounds]

    @functools.cached_property
    def unscaled(self) -> OwnRun:
        """The run with the tensors as its server averages them."""
        return dataclasses.replace(
            self,
            models=[model.unscaled for model in self.models],
            uploads=[{k: message.unscaled for k, message in sent.items()} for sent in self.uploads],
            private=[{k: file.unscaled for k, file in kept.items()} for kept in self.private],
        )

    @functools.cached_property
    def federation(self) -> Federation:
        canaries = self.coins.canaries if self.coins else ()
        return federation(self.lists, self.clients, self.score, self.trained.classes, canaries)

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 over relative names and contents of all files of the run."""
        digest = hashlib.sha256()
        for name, content in sorted(self.digests.items()):
            digest.update(f"{name}\0".encode() + content)
        return digest.hexdigest()

    @functools.cached_property
    def digests(self) -> dict[str, bytes]:
        """SHA-256 of every file of the run that is read, by its path relative to the folder."""
        pictures = {entry.image: entry.path for entries in self.lists.values() for entry in entries}
        tensors = {self._name(file): file.path for file in self.files}
        return {name: _digest(path) for name, path in {**self.texts, **pictures, **tensors}.items()}

    @property
    def files(self) -> list[TensorFile]:
        """All tensor files."""
        by_client = [file for sent in (*self.uploads, *self.private) for file in sent.values()]
        return [*self.models, *by_client, *self.trained.files]

    def received(self, r: int, before: State) -> dict[int, State]:
        """The states that the server received in round r, by client; `before` is the global model of that round."""
        sent = self.uploads[r]
        uploads = dict(zip(sent, each(lambda message: message.load(), sent.values()), strict=True))
        if not self.changes:
            return uploads
        return {
            client: {name: before[name] + tensor for name, tensor in state.items()} for client, state in uploads.items()
        }

    def record_counts(self, r: int) -> dict[int, int]:
        """n_k of the clients of round r: as stated in rounds.json, else the client's number of members."""
        members = collections.Counter(entry.client for entry in self.lists["members"])
        return {k: self._upload_note(r, k).get("records", members[k]) for k in self.cohorts[r]}

    def counts_stated(self, r: int) -> bool:
        """Whether rounds.json states n_k for every client of round r."""
        return all("records" in self._upload_note(r, k) for k in self.uploads[r])

    def _upload_note(self, r: int, client: int) -> Mapping[str, Any]:
        """The note of a client's upload in rounds.json; {} without one."""
        note: Mapping[str, Any] = self.notes.get(str(r), {}).get("uploads", {}).get(str(client), {})
        return note

    def write_transcript(self, folder: Folder, *, say: Callable[[str], None] = lambda text: None) -> None:
        """Write the files that `trainers.rounds.train` would leave; intact ones in `folder` are kept. `say` gets the
        names of damaged files. InputError: a tensor is unreadable or not finite."""
        if not (folder.usable("initial.safetensors", say) and folder.usable("initial.json", say)):
            folder.write_tensors("initial.safetensors", self.models[0].load())
            folder.write_json("initial.json", {"utility": self.notes.get("initial", {}).get("utility", {})})
        for r in range(self.rounds):
            if not (folder.usable(f"round-{r:03d}.safetensors", say) and folder.usable(f"round-{r:03d}.json", say)):
                folder.write_tensors(f"round-{r:03d}.safetensors", _tensors(self, r))
                folder.write_json(f"round-{r:03d}.json", _record(self, r))

    def digest(self, file: TensorFile) -> bytes:
        """SHA-256 of a tensor file of the run."""
        return _digest(file.path)

    def _name(self, file: TensorFile) -> str:
        return file.path.relative_to(self.path).as_posix()


def _tensors(own: OwnRun, r: int) -> dict[str, Any]:
    """Tensors of round r as in a transcript: keys "aggregate/NAME", "upload/CLIENT/NAME", "private/CLIENT/NAME" (of
    what a client holds, where it is known and differs from the upload), and what else the run's kind has."""
    import torch

    before = own.models[r].load() if own.changes else {}
    tensors = {f"aggregate/{name}": tensor for name, tensor in own.models[r + 1].load().items()}
    received = own.received(r, before)
    for client, sent in received.items():
        tensors |= {f"upload/{client}/{name}": tensor for name, tensor in sent.items()}
    for client, file in own.private[r].items():
        sent = received.get(client, {})
        for name, tensor in file.load().items():
            if name not in sent or not torch.equal(tensor, sent[name]):
                tensors[f"private/{client}/{name}"] = tensor
    return tensors | own.trained.more_tensors(r)


def _record(own: OwnRun, r: int) -> dict[str, Any]:
    """Content of a transcript's round-NNN.json for round r: from rounds.json, else derived from the files."""
    note, counts = own.notes.get(str(r), {}), own.record_counts(r)
    messages = {}
    for client in own.cohorts[r]:
        message, upload = own.uploads[r].get(client), own._upload_note(r, client)
        messages[str(client)] = {
            "records": counts[client],
            "facts": upload.get("facts", {}),
            "bytes": upload.get("bytes", message.size if message else 0),
            "kept": _kept(own, r, client, upload),
            "owner": own.trained.nothing_private or client in own.private[r],
        }
    return {
        "round": r,
        "cohort": list(own.cohorts[r]),
        "uploads": messages,
        "bytes_down": note.get("bytes_down", len(messages) * own.models[r].size),
        "bytes_up": note.get("bytes_up", sum(m["bytes"] for m in messages.values())),
        "utility": note.get("utility", {}),
    } | {name: note[name] for name in ("revealed",) if name in note}


def _kept(own: OwnRun, r: int, client: int, note: Mapping[str, Any]) -> list[str]:
    """Sorted names of the tensors that a client held and did not upload in round r: those that `note`, what rounds.json
    says of the upload, names, and of adapters what the upload lacks of the global model; without a note of prompts what
    it lacks of the client's own part."""
    stated = {canonical(name) or name for name in note.get("kept", ())}
    sent = own.uploads[r][client].shapes.keys() if client in own.uploads[r] else set()
    if not isinstance(own.trained, Prompts):
        return sorted(stated | (own.models[r].shapes.keys() - sent))
    if "kept" not in note and client in own.private[r]:
        return sorted(own.private[r][client].shapes.keys() - sent)
    return sorted(stated)


def _digest(path: Path) -> bytes:
    """SHA-256 of a file. InputError: it cannot be read."""
    try:
        return bytes.fromhex(user_files.sha256(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
