"""Reads rounds.json of an external run: what the tensors of a round do not tell."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit.external.adapters import canonical
from fedaudit.external.files import OwnFiles
from fedaudit.external.names import ClientNames
from fedaudit.external.schema import (
    CLIENTS_LIST,
    COUNT,
    LOSSES,
    OBJECT,
    ROUNDS,
    TEXTS,
    UTILITY,
    fields,
    one_line,
    parse,
)
from fedaudit.external.tensors import TensorFile
from fedaudit.machinery.errors import InputError

ROUND = {
    "uploads": OBJECT, "failed": CLIENTS_LIST, "bytes_down": COUNT, "bytes_up": COUNT, "utility": UTILITY,
    "revealed": OBJECT, "members": LOSSES,
}  # fmt: skip
_OF_MODEL = ("utility", "members")  # of the model after the round, or before training
UPLOAD = {"records": COUNT, "facts": OBJECT, "kept": TEXTS, "bytes": COUNT}


def read_notes(
    files: OwnFiles, uploads: Mapping[int, Mapping[int, TensorFile]], rounds: int, names: ClientNames, *, gaps: bool
) -> dict[str, Any]:
    """Content of rounds.json, with clients by number; {} if there is none. With `gaps` it may name uploads of rounds
    that were not kept. InputError: rounds, clients or tensors in it do not exist."""
    path = files.root / ROUNDS
    if not os.path.lexists(path):
        return {}
    kinds = {str(r): OBJECT for r in range(rounds)}
    notes = fields(parse(files.read(path), str(path)), str(path), {}, {"initial": OBJECT} | kinds)
    fields(notes.get("initial", {}), f"{path}, initial", {}, {name: ROUND[name] for name in _OF_MODEL})
    by_round = {key: note for key, note in notes.items() if key == "initial"}
    for key in notes.keys() - {"initial"}:
        where, recorded = f"{path}, round {key}", int(key) in uploads or not gaps
        note = fields(notes[key], where, {}, ROUND)
        by_round[key] = _note(where, note if recorded else note | {"uploads": {}}, uploads.get(int(key), {}), names)
    return by_round


def check_members(path: Path, notes: Mapping[str, Any], members: Collection[str]) -> None:
    """InputError if `notes`, the content of rounds.json, state losses of members that members.jsonl has not."""
    for key, note in notes.items():
        if unknown := sorted(note.get("members", {}).keys() - set(members)):
            raise InputError(f"{path}, {key}, members: {one_line(unknown[0])} is no id in members.jsonl")


def _note(where: str, note: Mapping[str, Any], sent: Mapping[int, TensorFile], names: ClientNames) -> dict[str, Any]:
    """Return what rounds.json says of one round, in which `sent` was received; clients by number."""
    for client in note.get("failed", []):
        if names.number(client) is None:
            raise InputError(f"{where}, failed: {one_line(str(client))} is no client")
    clients_by_name = {names.names[k] if names.names else str(k): k for k in sorted(sent)}
    messages = fields(note.get("uploads", {}), f"{where}, uploads", {}, dict.fromkeys(clients_by_name, OBJECT))
    for client, message in messages.items():
        fields(message, f"{where}, client {client}", {}, UPLOAD)
        both = {canonical(name) or name for name in message.get("kept", [])} & sent[
            clients_by_name[client]
        ].shapes.keys()
        if both:
            raise InputError(f"{where}, client {client}: kept names {min(map(str, both))}, which its upload holds")
    return {**note, "uploads": {str(clients_by_name[client]): message for client, message in messages.items()}}


def notes_by_interval(notes: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the notes by the number of the recorded round: of what was sent in its own round, and of its next model's
    utility."""
    by_interval = {key: note for key, note in notes.items() if key == "initial"}
    for i, (r, following) in enumerate(itertools.pairwise(numbers)):
        note = {**notes.get(str(r), {})}
        if following > r + 1:
            last = notes.get(str(following - 1), {})
            note = {key: value for key, value in note.items() if key not in _OF_MODEL}
            note |= {key: last[key] for key in _OF_MODEL if key in last}
        if note:
            by_interval[str(i)] = note
    return by_interval
