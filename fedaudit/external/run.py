"""An external run: a training done elsewhere, as a folder of models, uploads and records (docs/own-runs.md). It is
checked and turned into a transcript.

Importing this module is light, and `read` needs no torch: it reads only the headers of tensor files.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedaudit.external.adapters import (
    Adapter,
    canonical,
    check_tensors,
    read_models,
    read_owners,
    read_uploads,
    scaled,
    without_b,
)
from fedaudit.external.files import OwnFiles
from fedaudit.external.names import NUMBERED, ClientNames
from fedaudit.external.peft_config import NAME as PEFT_CONFIG
from fedaudit.external.peft_config import PeftConfig, read_peft_config
from fedaudit.external.recording import AGGREGATIONS, MEAN, Remark, of_records, remarks
from fedaudit.external.records import (
    LISTS,
    OF_CLIENTS,
    ListFile,
    Lists,
    check_clients,
    check_pixels,
    federation,
    read_lists,
    without_copies,
)
from fedaudit.external.round_notes import notes_by_interval, read_notes
from fedaudit.external.schema import (
    COUNT,
    FORMATS,
    LINE,
    NAME,
    OBJECT,
    PATH,
    POSITIVE,
    ROUNDS,
    RUN,
    SCORES,
    SHARE,
    TEXT,
    UNIQUE_NAMES,
    fields,
    one_line,
    one_of,
    parse,
)
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from fedaudit.machinery.store import Folder
    from fedaudit.tasks.base import Federation
    from trainers.base import State

IMAGE = "<image>"
NOT_STATED, UNKNOWN = "not stated", "unknown: the run has no ledger of noise"  # an epsilon, in words

_NEEDED = {"format": one_of(*FORMATS), "method": NAME, "task": NAME, "backbone": PATH}
_OPTIONAL = {
    "alpha": POSITIVE,
    "seed": COUNT,
    "score": one_of(*SCORES),
    "prompt": TEXT,
    "claimed": LINE,
    "provable": LINE,
}
_SINCE_2 = {
    "uploads": one_of("states", "changes"),
    "aggregation": one_of(*AGGREGATIONS),
    "clients": UNIQUE_NAMES,
    "gaps": one_of(True, False),
    "claim": OBJECT,
}
CLAIM = {
    "epsilon": POSITIVE,
    "delta": SHARE,
    "unit": one_of("record", "client"),
    "neighbours": one_of("zero-out", "add or remove", "replace"),
}


@dataclass(frozen=True, eq=False)
class OwnRun:
    """An external run whose folder has been checked."""

    learner: ClassVar[str] = "lora"  # the only kind of training that the format has

    path: Path
    method: str
    task: str
    seed: int
    backbone: str  # as written in run.json
    aggregation: str  # the server's rule, one of AGGREGATIONS
    changes: bool  # whether files of uploads hold changes of the model that was sent out, not states
    alpha: float
    score: str
    claimed: str  # epsilon, in words
    provable: str
    rank: int  # of the global model
    targets: tuple[str, ...]  # last components of the adapted layers' names: k_proj, q_proj
    models: Sequence[Adapter]  # [rounds + 1] global models: at the start of each round and after the last
    uploads: Sequence[Mapping[int, Adapter]]  # [rounds], by client
    owners: Mapping[int, Adapter]  # true models after the last participation, by client; some may be missing
    lists: Lists  # without `copies`
    copies: int  # candidates on both sides, which are left out
    texts: Mapping[str, Path]  # run.json, the lists, and what else was read beside tensors and pictures, by name
    notes: Mapping[str, Any]  # content of rounds.json, with rounds and clients by their numbers here
    numbers: Sequence[int]  # [rounds + 1] the models' numbers in the training, which go up by more than 1 in gaps
    names: ClientNames = NUMBERED

    @property
    def rounds(self) -> int:
        return len(self.uploads)

    @property
    def cohorts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(sent)) for sent in self.uploads)

    @property
    def clients(self) -> int:
        """Number of clients: 1 + the largest client number in any list or round."""
        named = (entry.client for name in OF_CLIENTS for entry in self.lists[name] if entry.client is not None)
        return 1 + max((*named, *(k for cohort in self.cohorts for k in cohort)))

    @functools.cached_property
    def remarks(self) -> list[Remark]:
        """Remarks on how the run was recorded, made after reading every tensor and decoding every picture.
        InputError: the run cannot be right, or a file is truncated or holds values that are no numbers."""
        return [*of_records(self.copies, check_pixels(self.lists)), *remarks(self)]

    @functools.cached_property
    def federation(self) -> Federation:
        return federation(self.lists, self.clients, self.score)

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
        tensors = {self._name(adapter): adapter.path for adapter in self.adapters}
        return {name: _digest(path) for name, path in {**self.texts, **pictures, **tensors}.items()}

    @property
    def adapters(self) -> list[Adapter]:
        """All tensor files: global models, clients' true models, uploads."""
        return [*self.models, *self.owners.values(), *(a for sent in self.uploads for a in sent.values())]

    def received(self, r: int, before: State) -> dict[int, State]:
        """The states that the server received in round r, by client; `before` is the global model of that round."""
        uploads = {client: message.load() for client, message in self.uploads[r].items()}
        if not self.changes:
            return uploads
        return {
            client: {name: before[name] + tensor for name, tensor in state.items()} for client, state in uploads.items()
        }

    def record_counts(self, r: int) -> dict[int, int]:
        """n_k of the clients of round r: as stated in rounds.json, else the client's number of members."""
        members = collections.Counter(entry.client for entry in self.lists["members"])
        return {k: self._upload_note(r, k).get("records", members[k]) for k in self.uploads[r]}

    def counts_stated(self, r: int) -> bool:
        """Whether rounds.json states n_k for every client of round r."""
        return all("records" in self._upload_note(r, k) for k in self.uploads[r])

    def _upload_note(self, r: int, client: int) -> Mapping[str, Any]:
        """The note of a client's upload in rounds.json; {} without one."""
        note: Mapping[str, Any] = self.notes.get(str(r), {}).get("uploads", {}).get(str(client), {})
        return note

    def last(self, client: int) -> int:
        """The last round in which a client took part. ValueError: it never did."""
        return max(r for r, sent in enumerate(self.uploads) if client in sent)

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

    def digest(self, adapter: Adapter) -> bytes:
        """SHA-256 of a tensor file of the run."""
        return self.digests[self._name(adapter)]

    def _name(self, adapter: Adapter) -> str:
        return adapter.path.relative_to(self.path).as_posix()


def read(folder: Path, *, linked: bool = False) -> OwnRun:
    """Read and check an external run. With `linked`, links and paths of pictures may lead outside of the folder.

    InputError names what is wrong. Values of tensors and pixels are checked by `OwnRun.remarks` only, and whether the
    adapter fits the backbone later still.
    """
    folder = Path(os.path.expanduser(folder))
    if not os.path.isdir(folder):
        raise InputError(
            f"{one_line(str(folder), most=5000)}: no such folder; it should hold {RUN}, models, uploads and "
            "lists of records"
        )
    files = OwnFiles(folder, linked)
    about = _about(files)
    names = ClientNames(tuple(about.get("clients", ())))
    numbers, models, uploads, notes = _read_rounds(files, names, gaps=about.get("gaps", False))
    owners = read_owners(files, names)
    config = read_peft_config(files, (folder, folder / "models"))
    rank = check_tensors(models, uploads, owners, config)
    alpha = _alpha(files.root / RUN, about, config)
    if config:
        models, uploads, owners = scaled(models, uploads, owners, config)
    sources = {name: ListFile(files, folder / f"{name}.jsonl") for name in LISTS}
    all_lists = read_lists(sources, about.get("prompt"), names=names)
    lists, copies = without_copies(all_lists)
    check_clients(folder, lists, uploads)
    texts = [folder / RUN, *(sources[name].path for name, entries in all_lists.items() if entries)]
    texts += [folder / ROUNDS] * bool(notes) + [config.path for config in (config,) if config]
    return OwnRun(
        path=folder,
        method=about["method"],
        task=about["task"],
        seed=about.get("seed", 0),
        backbone=about["backbone"],
        aggregation=about.get("aggregation", MEAN),
        changes=about.get("uploads") == "changes",
        alpha=alpha,
        score=about.get("score", SCORES[0]),
        claimed=_claimed(files.root / RUN, about),
        provable=about.get("provable", UNKNOWN),
        rank=rank,
        targets=tuple(sorted({name.split(".")[-2] for name in models[0].shapes})),
        models=models,
        uploads=uploads,
        owners=owners,
        lists=lists,
        copies=copies,
        texts={path.relative_to(folder).as_posix(): path for path in texts},
        notes=notes,
        numbers=numbers,
        names=names,
    )


def _read_rounds(
    files: OwnFiles, names: ClientNames, *, gaps: bool
) -> tuple[list[int], list[Adapter], list[dict[int, Adapter]], dict[str, Any]]:
    """The recorded rounds: numbers of their models in the training and the models themselves [rounds + 1], uploads by
    client [rounds], and what rounds.json says by recorded round. InputError: a file is missing or wrong."""
    models_by_round = read_models(files, gaps=gaps)
    uploads_by_round = read_uploads(files, models_by_round, names)
    notes_by_round = read_notes(files, uploads_by_round, max(models_by_round), names, gaps=gaps)
    if gaps and 0 not in models_by_round:  # the adapter is zero before training, as peft starts it
        models_by_round = {0: without_b(next(iter(models_by_round.values()))), **models_by_round}
    numbers, models = [*models_by_round], [*models_by_round.values()]
    for r in numbers[:-1]:
        if not (uploads_by_round.get(r) or gaps or notes_by_round.get(str(r), {}).get("failed")):
            raise InputError(
                f"{files.root / 'uploads'}/round-{r:03d} is missing or empty; it holds what the server received in "
                f"round {r}, one file client-{names.example}.safetensors per client (if all clients failed, "
                f'{ROUNDS} names them under "failed")'
            )
    uploads = [uploads_by_round.get(r, {}) for r in numbers[:-1]]
    return numbers, models, uploads, notes_by_interval(notes_by_round, numbers)


def _tensors(own: OwnRun, r: int) -> dict[str, Any]:
    """Tensors of round r as in a transcript: keys "aggregate/NAME", "upload/CLIENT/NAME", "private/CLIENT/NAME" (of a
    client's own model, where it is known and differs from the upload)."""
    import torch

    tensors = {f"aggregate/{name}": tensor for name, tensor in own.models[r + 1].load().items()}
    for client, sent in own.received(r, own.models[r].load() if own.changes else {}).items():
        tensors |= {f"upload/{client}/{name}": tensor for name, tensor in sent.items()}
        for name, tensor in own.owners[client].load().items() if _owned(own, r, client) else ():
            if name not in sent or not torch.equal(tensor, sent[name]):
                tensors[f"private/{client}/{name}"] = tensor
    return tensors


def _record(own: OwnRun, r: int) -> dict[str, Any]:
    """Content of a transcript's round-NNN.json for round r: from rounds.json, else derived from the files."""
    note, counts = own.notes.get(str(r), {}), own.record_counts(r)
    messages = {}
    for client, message in sorted(own.uploads[r].items()):
        upload = own._upload_note(r, client)
        messages[str(client)] = {
            "records": counts[client],
            "facts": upload.get("facts", {}),
            "bytes": upload.get("bytes", message.size),
            "kept": _kept(own.models[r], message, upload),
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


def _kept(model: Adapter, message: Adapter, note: Mapping[str, Any]) -> list[str]:
    """Sorted names of the tensors that a client did not upload; `note` is what rounds.json says of the upload."""
    if "kept" in note:
        return sorted(canonical(name) or name for name in note["kept"])
    return sorted(model.shapes.keys() - message.shapes.keys())


def _owned(own: OwnRun, r: int, client: int) -> bool:
    """Whether the client's true model after round r is known: at most that of the last round in which it took part."""
    return client in own.owners and own.last(client) == r


def _about(files: OwnFiles) -> dict[str, Any]:
    """Content of run.json. InputError: missing, or a key is missing, unknown or has a wrong value."""
    path = files.root / RUN
    value = parse(files.read(path, purpose="it says which method, task and backbone the run is of"), str(path))
    if isinstance(value, dict) and "format" in value:  # check this first: another format may have other keys
        fields({"format": value["format"]}, str(path), {"format": _NEEDED["format"]}, {})
        if newer := [key for key in value if key in _SINCE_2 and value["format"] == 1]:
            raise InputError(f'{path}: the key {newer[0]!r} needs "format": 2')
    about = fields(value, str(path), _NEEDED, _OPTIONAL | _SINCE_2)
    if "prompt" in about and about["prompt"].count(IMAGE) != 1:
        raise InputError(f"{path}: prompt must hold {IMAGE} once, not {about['prompt'].count(IMAGE)} times")
    return about


def _claimed(path: Path, about: Mapping[str, Any]) -> str:
    """The claimed epsilon in words: as `claimed` says it, or made of `claim`. InputError: both are there, or `claim`
    lacks a part without which it cannot be compared."""
    if "claim" not in about:
        return str(about.get("claimed", NOT_STATED))
    if "claimed" in about:
        raise InputError(f"{path}: claimed and claim say the same; one of them is enough")
    claim = fields(about["claim"], f"{path}, claim", CLAIM, {})
    return f"{claim['epsilon']:g} at delta {claim['delta']:g} for a {claim['unit']} ({claim['neighbours']})"


def _alpha(path: Path, about: Mapping[str, Any], config: PeftConfig | None) -> float:
    """LoRA's numerator: as run.json states it, or so that alpha / rank is the scale of peft's configuration.
    InputError: neither states it, or they differ."""
    if config is None:
        if "alpha" not in about:
            raise InputError(f"{path} lacks the key 'alpha', which is {POSITIVE.words} (or add peft's {PEFT_CONFIG})")
        return float(about["alpha"])
    alpha = config.scale("") * config.rank
    if not math.isclose(about.get("alpha", alpha), alpha, rel_tol=1e-6):
        raise InputError(
            f"{path}: alpha is {about['alpha']:g}, and {config.path} makes it {alpha:g} (an update is alpha / "
            f"{config.rank} * B A); leave alpha out"
        )
    return alpha


def _digest(path: Path) -> bytes:
    """SHA-256 of a file. InputError: it cannot be read."""
    try:
        with user_files.opened(path) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
