"""Writes a run of this project in the folder format of docs/reference/run-folder.md; reading it back gives the same
transcript and records."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.external.schema import FORMATS, ROUNDS, RUN, SCORES
from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    from fedaudit.audits.findings import Claims
    from fedaudit.tasks.base import Federation, Record
    from fedaudit.trainers.base import State
    from fedaudit.trainers.transcript import Transcript

_SCORES = {"caption_scores": SCORES[0], "answer_scores": SCORES[1]}  # by functions of tasks.metrics


def export_run(
    transcript: Transcript, federation: Federation, destination: Path, *, about: Mapping[str, Any], score: str,
    epsilon: Claims,
) -> None:  # fmt: skip
    """Write a run into the folder `destination`, which must be empty or absent; `run.json` is written last.

    `about` is the content of run.json without format, score and epsilon. `epsilon` has the keys "claimed" and
    "provable", in words. `score` is "captions", "answers" or the name of one of their functions. Background records of
    clients are left out: no attack looks at them. InputError: the destination is not empty, the disk refuses, or the
    task is scored in another way.
    """
    scored = _SCORES.get(score, score)
    if scored not in SCORES:
        raise InputError(f"--export-run {destination}: utility is scored by {score}; valid are {' and '.join(SCORES)}")
    out = _Destination(destination)
    out.claim()
    _messages(transcript, out)
    if federation.classes:
        _parts(transcript, out)
    else:
        _owners(transcript, out)
    _records(federation, out)
    out.write(ROUNDS, _json(_notes(transcript)))
    claims = {name: epsilon[name] for name in ("claimed", "provable")}
    scores = {} if federation.classes else {"score": scored}
    out.write(RUN, _json({"format": FORMATS[-1], **about, **scores, **claims}), last=True)


def _messages(transcript: Transcript, out: _Destination) -> None:
    """Write global models and uploads."""
    rounds = transcript.schedule.rounds
    for r in range(rounds + 1):
        out.write(f"models/round-{r:03d}.safetensors", _tensors(transcript.broadcast(r)))
    for r in range(rounds):
        for client in transcript.cohort(r):
            sent = _tensors(transcript.upload(r, client))
            out.write(f"uploads/round-{r:03d}/client-{client:02d}.safetensors", sent)


def _owners(transcript: Transcript, out: _Destination) -> None:
    """Write each client's adapter after its last round, if the transcript has it."""
    rounds = range(transcript.schedule.rounds)
    for client, last in {k: r for r in rounds for k in transcript.cohort(r)}.items():
        model: State | None = transcript.own_model(last, client)
        if model is not None:  # a run from elsewhere need not have it
            out.write(f"owners/client-{client:02d}.safetensors", _tensors(model))


def _parts(transcript: Transcript, out: _Destination) -> None:
    """Write what clients keep in each round, and what a computation on secret shares reveals and leaves behind."""
    for r in range(transcript.schedule.rounds):
        for client in transcript.cohort(r):
            if transcript.round(r)["uploads"][str(client)]["owner"]:
                kept = _tensors(transcript.own_part(r, client))
                out.write(f"private/round-{r:03d}/client-{client:02d}.safetensors", kept)
        for name, state in (("revealed", transcript.revealed(r)), ("held", transcript.held_shares(r))):
            if state:
                out.write(f"{name}/round-{r:03d}.safetensors", _tensors(state))


def _records(federation: Federation, out: _Destination) -> None:
    """Write the lists of records (members.jsonl, ...) and their images."""
    lists: dict[str, list[dict[str, Any]]] = {"members": [], "nonmembers": [], "reference": []}
    written = functools.partial(_line, out=out, of_classes=bool(federation.classes))
    for k, client in enumerate(federation.clients):
        for i, (record, used) in enumerate(zip(client.records, client.member, strict=True)):
            line = {"client": k, "position": i} | written(record)
            lists["members" if used else "nonmembers"].append(line)
        lists["reference"] += [{"client": k} | written(record) for record in client.reference]
    for name in ("novel", "test", "novel_test"):
        lists[name] = [written(record) for record in getattr(federation, name)]
    for name, lines in lists.items():
        out.write(f"{name}.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def _line(record: Record, out: _Destination, *, of_classes: bool) -> dict[str, Any]:
    """Write a record's image, named by its content, and return the fields of the record's line."""
    from PIL import Image

    png = io.BytesIO()
    Image.fromarray(record.image).save(png, "PNG")
    name = f"images/{hashlib.sha256(png.getvalue()).hexdigest()[:20]}.png"
    out.write(name, png.getvalue())
    line = {"id": record.id, "image": name}
    if of_classes:
        return line | {"class": record.group}
    more = {"text": record.text, "references": list(record.references), "group": record.group}
    return line | {"prompt": record.prompt} | more


def _notes(transcript: Transcript) -> dict[str, Any]:
    """Content of rounds.json: utility, bytes and facts of each round, which the tensors do not tell."""
    notes: dict[str, Any] = {"initial": {"utility": transcript.initial["utility"]}}
    for r in range(transcript.schedule.rounds):
        entry = transcript.round(r)
        messages = {
            client: {name: message[name] for name in ("records", "facts", "bytes", "kept")}
            for client, message in entry["uploads"].items()
        }
        parts = ("bytes_down", "bytes_up", "utility", "revealed")
        notes[str(r)] = {"uploads": messages} | {name: entry[name] for name in parts if name in entry}
    return notes


def _tensors(state: State) -> bytes:
    from fedaudit.trainers.base import pack

    return pack(state)


def _json(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


@dataclass(frozen=True)
class _Destination:
    """The folder that an export fills; errors of the disk become InputErrors that name --export-run."""

    path: Path

    def claim(self) -> None:
        """Create the folder. InputError: it is not empty."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            full = any(self.path.iterdir())
        except OSError as error:
            raise self._refused(error) from error
        if full:
            raise InputError(f"--export-run {self.path}: not empty; name a folder that is empty or not there yet")

    def write(self, name: str, data: bytes, *, last: bool = False) -> None:
        """Write a file, with `last` atomically."""
        path = self.path / name
        try:
            path.parent.mkdir(exist_ok=True, parents=True)
            if last:
                write_atomic(path, data)
            else:
                path.write_bytes(data)
        except OSError as error:
            raise self._refused(error) from error
        except InputError as error:  # from write_atomic, which names another flag
            raise self._refused(error.__cause__ or error) from error

    def _refused(self, error: BaseException) -> InputError:
        reason = getattr(error, "strerror", None) or error
        return InputError(f"--export-run {self.path}: cannot be written ({reason}); name a folder on a disk with room")
