"""Records a federated training while it runs, as a folder that FedAudit audits (`audit.py --run my-run`).

One file, to be put into the server's own training loop. It needs torch and numpy, runs on Python 3.8 and any torch
since 1.13, and imports nothing of FedAudit. The folder's format is described in docs/reference/run-folder.md.

    recorder = Recorder("my-run", method="fedavg", task="photos", backbone="llava-hf/llava-1.5-7b-hf", alpha=16)
    for r in range(rounds):
        recorder.broadcast(r, server)                      # the global model that round r sends out
        for client in cohort:
            recorder.upload(r, client, sent, records=n)    # what the server received, before it changes anything
        server = aggregate(...)
    recorder.close(server)                                 # the model after the last round

A kill at any moment leaves the rounds that were whole: what is recorded of a round lies in the hidden folder
`.recorder` until the next model is there. Where a kill met a round while it was put in its place (a few renames),
`python -m fedaudit_recorder my-run` finishes that.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import re
import shutil
import sys
import uuid
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch

__all__ = ["Recorder"]
__version__ = "0.1.0"

LARGEST = 10_000  # absolute value of a number: trained ones lie far below
CLIENTS = 100_000  # numbers of clients are below
ADAPTERS, PROMPTS = "adapters", "prompts"  # kinds of what is trained
HIDDEN = ".recorder"  # the folder of what is not yet a whole round, and of what a resumed recording must know
WHOLE = "whole.json"  # is there once a round is whole, while it is put in its place
REWIND = "rewind.json"  # is there while rounds are dropped
ROUND = "round.json"  # what rounds.json will hold of an open round beside clients
NOTES = "notes.json"  # what rounds.json will hold
MEMBERS = "members"  # its key for losses on members
TEMPORARY = "temporary-"  # how names of files begin that are not whole yet

_ABOUT = {"seed", "claimed", "provable", "uploads", "aggregation", "clients", "claim"}
_ABOUT_KIND = {
    ADAPTERS: {"alpha", "scale", "scaling", "score", "prompt"},
    PROMPTS: {"classes", "weights", "rule", "recipe", "privacy"},
}
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_INTEGERS = {torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}
_KNOWN_INTEGERS = {PROMPTS: {"cluster"}, ADAPTERS: set()}  # tensors that hold whole numbers where methods send them
_UNREAD = {PROMPTS: {"token_suffix"}, ADAPTERS: set()}  # nothing is read from these: class names of the training
_STARTS = {"p_L", "u", "v", "token_prefix"}  # of prompts: what the first model alone may hold
_NOTES = {"records", "facts", "kept", "bytes"}  # what rounds.json holds of an upload
_COLUMNS = {"round", "model", "method", "seed"}  # no metrics
_HALF = re.compile(r"(?P<layer>[\w.-]+?)\.(?:(?P<own>[AB])|lora_(?P<peft>[AB])(?:\.\w+)?\.weight)", re.ASCII)
_OF_PICTURES = re.compile(
    r"vision|visual|image_encoder|clip|siglip|projector|connector|resampler|qformer|perceiver", re.I
)
_ROUND = re.compile(r"round-(\d{3,})(?:\.safetensors)?\Z", re.ASCII)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Shapes = Mapping[str, tuple[int, ...]]
    Check = Callable[[Shapes, str], None]  # ValueError, which begins with the text, where shapes are wrong


class Recorder:
    """Writes the folder `folder` round by round.

    `method` and `task` are what tables call them, `backbone` is the frozen model, `kind` is "adapters" (LoRA) or
    "prompts". With `every=10` rounds 0, 10, 20, ... and the last are kept. `model` is the model that holds the
    adapters, of which their scale is read. `about` holds further keys of run.json: alpha (adapters without a `model`),
    classes (prompts), seed, aggregation, uploads, claim, prompt, recipe and so on.

    On a folder that holds a recording it goes on with that, and raises ValueError if something else is said about it.
    The server broadcasts and closes; other processes may make a Recorder of the same folder, and upload. All methods
    raise ValueError, and record nothing, where what they are given could not be audited.
    """

    def __init__(
        self, folder: Any, *, method: str, task: str, backbone: str, kind: str = ADAPTERS, every: int = 1,
        model: Any = None, **about: Any,
    ) -> None:  # fmt: skip
        self.folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        self.kind, self.every = kind, every
        if kind not in (ADAPTERS, PROMPTS):
            raise ValueError(f"kind must be {ADAPTERS!r} or {PROMPTS!r}, not {kind!r}")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be a whole number, 1 or more, not {every!r}")
        for key, value in (("method", method), ("task", task)):
            _require_name(value, key)
        valid = _ABOUT | _ABOUT_KIND[kind]
        unknown = sorted(set(about) - valid)
        if unknown:
            listed = ", ".join(sorted(valid))
            raise ValueError(f"run.json of {kind} has no key {unknown[0]!r} that is yours to give; valid are {listed}")
        if kind == PROMPTS and not about.get("classes"):
            raise ValueError("prompts need classes=[...]: the names of all classes, in the order of the labels")
        for name in about.get("clients", ()):
            _require_name(name, "clients")
        if model is not None:
            about = _with_scales(about, kind, model)
        stated = {"kind": kind, "method": method, "task": task, "backbone": backbone}
        stated.update({key: value for key, value in about.items() if value is not None})
        for key, value in stated.items():
            try:
                _json(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{key} cannot be written to run.json ({error})") from None
        self._about = json.loads(_json(stated))  # as a file holds it: lists for tuples
        # whether clients go by texts; None until the first one is named
        self._texts: bool | None = True if self._about.get("clients") else None
        self._shapes: Shapes | None = None
        self._broadcasting, self._closed = False, False
        self._start()

    # What users call

    def broadcast(self, r: int, state: Mapping[str, Any], *, bytes_down: int | None = None) -> None:
        """Record the global model that round `r` sends out, and with it that round r - 1 is over.

        Rounds are counted from 0, each one more than the last. A round that was recorded before is recorded again: it
        and all later ones are dropped, as after a restart from a checkpoint. `bytes_down` is the size of all messages
        to clients, by default a model for each.
        """
        self._require_open()
        where = f"the model of round {r}"
        r = _count(r, "broadcast: the round")
        _finish(self.folder)
        now = self._now()
        most = now + 1 if now is not None else max(self._models(), default=0)
        if r > most:
            raise ValueError(
                f"{where}: the next is round {most}; rounds are counted from 0 and recorded one by one (every=10 keeps "
                "some of them)"
            )
        if now is not None and r == now + 1:
            self._end(now, state, where)
        else:
            model = self._write(self._path(HIDDEN), state, where, self._check_model if r else self._check_first)
            _rewind(self.folder, r)
            self._begin(r, model)
            self._shapes = None if r == 0 else self._shapes
        if bytes_down is not None:
            self._say(r, {"bytes_down": _count(bytes_down, f"{where}: bytes_down")})
        self._broadcasting = True

    def upload(self, r: int, client: Any, state: Mapping[str, Any], records: int | None = None, **notes: Any) -> None:
        """Record what the server received from a client in round `r`. `records` is its number of records; `notes` are
        facts, kept and bytes as rounds.json has them. A second upload of a client replaces its first."""
        name, client, stage, where = self._of_client(r, client, "the upload")
        noted = {key: value for key, value in dict(notes, records=records).items() if value is not None}
        unknown = sorted(set(noted) - _NOTES)
        if unknown:
            valid = ", ".join(sorted(_NOTES))
            raise ValueError(f"{where}: rounds.json has no {unknown[0]!r} of an upload; valid are {valid}")
        for key in ("records", "bytes"):
            if key in noted:
                noted[key] = _count(noted[key], f"{where}: {key}")
        self._put(stage, "uploads", name, state, where, self._check_part, {"client": client, "said": noted})

    def owner(self, r: int, client: Any, state: Mapping[str, Any]) -> None:
        """Record what a client itself holds after round `r`: of adapters its whole model (owners/, the last one
        counts), of prompts its own part (private/)."""
        name, client, stage, where = self._of_client(r, client, "the owner's state")
        note = None
        if self.kind == PROMPTS and not os.path.exists(os.path.join(stage, "notes", name + ".json")):
            note = {"client": client, "said": {}}  # of one that sends nothing
        self._put(stage, "owners", name, state, where, self._check_owner, note)

    def failed(self, r: int, client: Any) -> None:
        """Record that a client was asked in round `r` and sent nothing. An upload of it in this round is dropped."""
        name, client, stage, where = self._of_client(r, client, "the failure")
        with _still_open(stage, where):
            self._note(stage, name, {"client": client, "failed": True})
            for part in ("uploads", "owners"):
                _remove(os.path.join(stage, part, name + ".safetensors"))

    def utility(
        self, r: Any, numbers: Mapping[str, Mapping[str, Any]] = {}, *, members: Mapping[str, Any] = {}
    ) -> None:
        """Record numbers of the model after round `r`, as {"global": {"loss": 1.2}}; r = "initial" is before training.
        `members` are its losses on some members (eight will do), in nats per token, by their ids in members.jsonl: an
        audit compares its own. To be called by the process that broadcasts."""
        self._require_open()
        where = f"the utility of round {r}"
        both = {"utility": _numbers(numbers, where), MEMBERS: _losses(members, where)}
        note = {key: value for key, value in both.items() if value}
        if r != "initial":
            r, now = _count(r, where), self._now()
            if r == now:
                self._say(r, note)
                return
            if r >= (now if now is not None else max(self._models(), default=0)):
                raise ValueError(f"{where}: that round was not broadcast")
        before = _read_json(self._path(HIDDEN, NOTES), {}).get(str(r), {})
        self._add_note(r, _merged(before, note))
        _write_rounds(self.folder)

    def close(self, state: Mapping[str, Any]) -> None:
        """Record the model after the last round, and end the recording."""
        if self._closed:
            return
        _finish(self.folder)
        now = self._now()
        if now is None:
            raise ValueError("close: no round is open; broadcast(0, state) opens the first")
        self._end(now, state, f"the model after round {now}", last=True)
        _write_run(self.folder, [])
        self._closed = True

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._broadcasting and not self._closed:
            text = f"{self.folder}: close(state) was not called, so that the last round is not recorded"
            warnings.warn(text, stacklevel=2)

    @staticmethod
    def repair(folder: Any) -> int:
        """Finish a round that a kill met while it was put in its place, and return how many rounds are there.
        ValueError: there is no recording."""
        return _finish(os.path.abspath(os.path.expanduser(os.fspath(folder))))

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("the recording is closed; a new Recorder of the folder goes on with it")

    # What is on disk

    def _path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def _stage(self, r: int) -> str:
        return self._path(HIDDEN, _round(r))

    def _now(self) -> int | None:
        """The round that is open; None if there is none."""
        return max(_rounds(self._path(HIDDEN)), default=None)

    def _models(self) -> list[int]:
        return _rounds(self._path("models"))

    def _start(self) -> None:
        """Create the folder, or check that it holds a recording of the same run."""
        for name in (HIDDEN, "models", "uploads"):
            os.makedirs(self._path(name), exist_ok=True)
        setup, path = {"every": self.every, "about": self._about}, self._path(HIDDEN, "recorder.json")
        # looked for first: another process that starts now writes recorder.json before it
        foreign = os.path.exists(self._path("run.json")) or self._models()
        if not os.path.exists(path):
            if foreign:
                raise ValueError(f"{self.folder} holds a run that no recorder wrote; name another folder")
            _create_json(path, setup, self._path(HIDDEN))
        before = _read_json(path, {})
        for key in sorted(set(self._about) | set(before["about"])):
            old, new = before["about"].get(key), self._about.get(key)
            if old != new:
                raise ValueError(
                    f"{self.folder} holds a recording with {key}={old!r}, not {new!r}; name another folder for another "
                    "run"
                )
        if before["every"] != self.every:
            raise ValueError(f"{self.folder} holds a recording with every={before['every']}, not {self.every}")
        if not os.path.exists(self._path("run.json")):
            _create_json(self._path("run.json"), _run(self.folder, []), self._path(HIDDEN))

    def _first_shapes(self) -> Shapes:
        """Names and shapes of the first model."""
        if self._shapes is None:
            path = self._path("models", _round(0) + ".safetensors")
            if not os.path.exists(path):
                raise ValueError(f"{self.folder}: no model was broadcast yet; broadcast(0, state) is the first")
            self._shapes = _header(path)
        return self._shapes

    def _kept(self, r: int) -> bool:
        return r % self.every == 0

    def _begin(self, r: int, model: str | None) -> None:
        """Open round `r`. `model` is a file with its model, which is moved to its place; None if it is there."""
        stage = self._path(HIDDEN, TEMPORARY + uuid.uuid4().hex)
        for part in ("uploads", "owners", "notes", "temporary"):
            os.makedirs(os.path.join(stage, part))
        if model and (self._kept(r) or r in self._models()):
            _move(model, self._path("models", _round(r) + ".safetensors"))
        elif model:
            _move(model, os.path.join(stage, "model.safetensors"))
        os.rename(stage, self._stage(r))
        _sync(self._path(HIDDEN))

    def _end(self, r: int, state: Mapping[str, Any], where: str, *, last: bool = False) -> None:
        """End round `r` with the model after it, and open the next one unless it is the last."""
        stage, kept = self._stage(r), last or self._kept(r)
        if kept:
            self._check_round(stage, r)
        model = self._write(self._path(HIDDEN), state, where, self._check_model)
        if not kept:
            self._add_note(r, _read_json(os.path.join(stage, ROUND), {}))
            self._begin(r + 1, model)
            _discard(stage, self._path(HIDDEN))
            return
        _move(model, os.path.join(stage, "next.safetensors"))
        texts = [note["client"] for note in _notes(stage) if isinstance(note["client"], str)]
        if texts:
            _write_run(self.folder, texts)
        owners = _files(os.path.join(stage, "owners"))
        # from here on the round is recorded, whatever happens
        _write_json(os.path.join(stage, WHOLE), {"owners": owners})
        _finish(self.folder)
        if not last:
            self._begin(r + 1, None)

    def _say(self, r: int, note: Mapping[str, Any]) -> None:
        """Note something of the round that is open."""
        path = os.path.join(self._stage(r), ROUND)
        _write_json(path, _merged(_read_json(path, {}), note))

    def _add_note(self, r: Any, note: Mapping[str, Any]) -> None:
        path = self._path(HIDDEN, NOTES)
        notes = _read_json(path, {})
        notes[str(r)] = dict(notes.get(str(r), {}), **note)
        _write_json(path, notes)

    # What is written of a client

    def _of_client(self, r: Any, client: Any, what: str) -> tuple[str, Any, str, str]:
        """The name of a client's files, the client as JSON has it, the open round's folder, and words for errors."""
        self._require_open()
        r = _count(r, f"{what} of client {client!r}: the round")
        where = f"{what} of client {client} in round {r}"
        if isinstance(client, str):
            _require_name(client, where)
        else:
            try:
                client = operator.index(client)
            except TypeError:
                raise ValueError(f"{where}: a client is a whole number or a text, not {client!r}") from None
            if not 0 <= client < CLIENTS:
                raise ValueError(
                    f"{where}: numbers of clients are 0 to {CLIENTS - 1}; pass larger ones as texts, str({client})"
                )
        texts = isinstance(client, str)
        if self._texts is None:
            self._texts = texts
        if texts != self._texts:
            raise ValueError(f"{where}: clients before it were named by {'texts' if self._texts else 'numbers'}")
        listed = self._about.get("clients")
        if listed and client not in listed:
            raise ValueError(f"{where}: it is not among the clients given to the Recorder")
        stage = self._stage(r)
        if not os.path.isdir(stage):
            now = self._now()
            is_now = "no round is open" if now is None else f"round {now} is open"
            raise ValueError(f"{where}: {is_now}; broadcast(r, state) opens round r and ends the one before")
        return _file_of(client), client, stage, where

    def _put(
        self, stage: str, part: str, name: str, state: Mapping[str, Any], where: str, check: Check, note: Any = None
    ) -> None:
        """Write a client's tensors, and before them the note of them, so that the tensors never stand without."""
        with _still_open(stage, where):
            temporary = self._write(os.path.join(stage, "temporary"), state, where, check)
            if note is not None:
                self._note(stage, name, note)
            _move(temporary, os.path.join(stage, part, name + ".safetensors"))

    def _note(self, stage: str, name: str, note: Any) -> None:
        path = os.path.join(stage, "notes", name + ".json")
        _write_json(path, note, beside=os.path.join(stage, "temporary"))

    def _check_round(self, stage: str, r: int) -> None:
        """ValueError unless the files of a round make a whole one."""
        sent, own = (set(_files(os.path.join(stage, part))) for part in ("uploads", "owners"))
        failed = [note for note in _notes(stage) if note.get("failed")]
        if not (sent or failed or (own and self.kind == PROMPTS)):
            raise ValueError(
                f"round {r} has no upload and no failed client; record what the server received before the next model"
            )
        silent = sorted(own - sent)
        if silent and self.kind == ADAPTERS:
            raise ValueError(f"round {r}: owner() of {silent[0].rsplit('.', 1)[0]} without its upload()")
        if len({isinstance(note["client"], str) for note in _notes(stage)}) > 1:
            raise ValueError(f"round {r}: some clients are named by texts and some by numbers")

    # What is checked of tensors: names and shapes here, values where they are written

    def _check_first(self, shapes: Shapes, where: str) -> None:
        if not shapes:
            raise ValueError(f"{where} holds no tensors")
        for name in shapes if self.kind == ADAPTERS else ():
            layer, half = _half(name, where)
            if not any(_half(other, where) == (layer, "B" if half == "A" else "A") for other in shapes):
                raise ValueError(f"{where}: {name} is there without the other factor of its layer")

    def _check_model(self, shapes: Shapes, where: str) -> None:
        first = self._first_shapes()
        self._check_part(shapes, where)
        for name in first:
            start = self.kind == PROMPTS and ("rule" in self._about or name.rpartition(".")[2] in _STARTS)
            if name not in shapes and not start:
                raise ValueError(f"{where} lacks {name}, which the first model has")

    def _check_part(self, shapes: Shapes, where: str) -> None:
        """ValueError unless an upload holds some of the first model's tensors, or of prompts what a rule allows."""
        first = self._first_shapes()
        for name, shape in shapes.items():
            if name in first:
                _require_shape(name, shape, first[name], where)
            elif self.kind == PROMPTS and "rule" in self._about:
                continue
            elif self.kind == PROMPTS and name == "gradient":
                shared = [first[key] for key in first if key.rpartition(".")[2] in ("ctx", "p_G")]
                _require_shape(name, shape, shared[0] if shared else shape, where)
            else:
                raise ValueError(f"{where}: {name} {list(shape)} is not in the first model, which has {_few(first)}")

    def _check_owner(self, shapes: Shapes, where: str) -> None:
        """ValueError unless a client holds all layers of an adapter, of any rank; prompts are not checked."""
        if self.kind == PROMPTS:
            return
        first = self._first_shapes()
        for name in sorted(set(first) | set(shapes)):
            if name not in shapes or name not in first:
                differs = f"lacks {name}, which" if name in first else f"holds {name}, which is not in"
                raise ValueError(f"{where} {differs} the first model{' has' if name in first else ''}")
            side = 1 if _half(name, where)[1] == "A" else 0
            if shapes[name][side] != first[name][side]:
                _require_shape(name, shapes[name], first[name], where)

    def _write(self, folder: str, state: Mapping[str, Any], where: str, check: Check) -> str:
        """Write tensors into a temporary file of a folder, and return its path. ValueError names what is wrong."""
        tensors = {}
        if not isinstance(state, Mapping):
            raise ValueError(f"{where} must be a dict of tensors by name, not {type(state).__name__}")
        for name, value in state.items():
            if not isinstance(name, str):
                raise ValueError(f"{where}: {name!r} is no name of a tensor")
            if name.rpartition(".")[2] not in _UNREAD[self.kind]:
                tensors[name] = _tensor(value, name, where)
        for name, tensor in tensors.items():
            known = name.rpartition(".")[2] in _KNOWN_INTEGERS[self.kind] and tensor.dtype in _INTEGERS
            if tensor.dtype not in _DTYPES and not known:
                valid = ", ".join(str(dtype) for dtype in _DTYPES)
                raise ValueError(f"{where}: {name} {list(tensor.shape)} is {tensor.dtype}; valid are {valid}")
            if not tensor.numel():
                raise ValueError(f"{where}: {name} {list(tensor.shape)} holds no numbers")
            if self.kind == ADAPTERS:
                _half(name, where)
                if tensor.dim() != 2:
                    raise ValueError(
                        f"{where}: {name} has shape {list(tensor.shape)}, where a factor of an adapter is a matrix"
                    )
        check({name: tuple(tensor.shape) for name, tensor in tensors.items()}, where)
        path = os.path.join(folder, TEMPORARY + uuid.uuid4().hex)
        try:
            _save(tensors, path, where)
        except BaseException:
            _remove(path)
            raise
        return path


def _tensor(value: Any, name: str, where: str) -> torch.Tensor:
    """A state's value as a tensor that shares its memory, wherever it is."""
    if isinstance(value, numpy.ndarray):
        try:
            return torch.from_numpy(numpy.array(value))  # a copy: numpy's may run backwards or be read-only
        except TypeError as error:
            raise ValueError(f"{where}: {name} {list(value.shape)} is {error}") from None
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{where}: {name} is no tensor but {type(value).__name__}")
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise ValueError(f"{where}: {name} {list(value.shape)} is no dense tensor with numbers in it")
    return value.detach()


def _half(name: str, where: str) -> tuple[str, str]:
    """The layer and the factor ("A" or "B") that a tensor of an adapter is."""
    half = _HALF.match(name)
    parts = half.group("layer").split(".") if half and half.end() == len(name) else []
    if not half or not any(part.isdecimal() for part in parts[:-1]):
        raise ValueError(
            f"{where}: {name} is no factor of an adapter; valid are layers.0.self_attn.q_proj.A (or .B) and peft's "
            "...layers.0.self_attn.q_proj.lora_A.weight, as get_peft_model_state_dict(model) gives them"
        )
    above = name.partition(".layers.")[0].split(".")
    if any(_OF_PICTURES.search(part) for part in above if "language" not in part.lower()):
        raise ValueError(f"{where}: {name} adapts what reads pictures; only adapters of the language model are audited")
    return half.group("layer"), half.group("own") or half.group("peft")


def _require_shape(name: str, shape: Any, expected: Any, where: str) -> None:
    if tuple(shape) != tuple(expected):
        raise ValueError(f"{where}: {name} has shape {list(shape)}, where the first model has {list(expected)}")


def _require_name(value: Any, where: str) -> None:
    """ValueError unless the value is a name: one line of at most 100 bytes."""
    valid = isinstance(value, str) and value.strip() == value and value.isprintable()
    if not valid or not 0 < len(value.encode()) <= 100:
        raise ValueError(f"{where}: a name is one line of at most 100 bytes, not {value!r}")


def _count(value: Any, where: str) -> int:
    """A whole number, 0 or more."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise ValueError(f"{where} must be a whole number, 0 or more, not {value!r}")
    return number


def _numbers(models: Any, where: str) -> dict[str, Any]:
    """Utility as rounds.json holds it: numbers, or None, by model and metric."""
    out: dict[str, Any] = {}
    if not isinstance(models, Mapping) or not all(isinstance(metrics, Mapping) for metrics in models.values()):
        raise ValueError(f'{where} must be as {{"global": {{"loss": 1.5}}}}, not {models!r}')
    for model, metrics in models.items():
        _require_name(model, where)
        out[model] = {}
        for metric, value in metrics.items():
            _require_name(metric, where)
            try:
                number = None if value is None else float(value)
            except (TypeError, ValueError):
                number = math.nan
            if metric in _COLUMNS or (number is not None and not abs(number) < 1e15):
                columns = ", ".join(sorted(_COLUMNS))
                raise ValueError(
                    f"{where}: {metric} of {model} is {value!r}; valid are numbers below 1e15 and None, none called "
                    f"{columns}"
                )
            out[model][metric] = number
    return out


def _losses(members: Any, where: str) -> dict[str, float]:
    """Losses on members by their ids. ValueError: one is no finite number, 0 or more."""
    if not isinstance(members, Mapping):
        raise ValueError(f'{where}: members must be as {{"photo-1": 1.5}}, not {members!r}')
    out = {}
    for name, value in members.items():
        try:
            out[str(name)] = float(value)
        except (TypeError, ValueError):
            out[str(name)] = math.nan
        if not 0 <= out[str(name)] < 1e15:
            raise ValueError(f"{where}: the loss on member {name} is {value!r}, where a number from 0 on is valid")
    return out


def _merged(before: Mapping[str, Any], note: Mapping[str, Any]) -> dict[str, Any]:
    """Two notes of a round in one: the later one's values, objects key by key."""
    both = {key: dict(before[key], **note[key]) for key in note if isinstance(note[key], dict) and key in before}
    return {**before, **note, **both}


def _with_scales(about: Mapping[str, Any], kind: str, model: Any) -> dict[str, Any]:
    """Add to what is said of a run the scale of each layer, as the modules of its `model` have it, and alpha.
    ValueError: the model holds no LoRA of one name, or alpha is another."""
    scales, ranks, names = {}, {}, set()
    for layer, module in model.named_modules() if kind == ADAPTERS else ():
        scaling = getattr(module, "scaling", None)
        if isinstance(scaling, Mapping) and hasattr(module, "lora_A"):
            active = [name for name in scaling if name in module.lora_A]
            names.update(active)
            for name in active:
                scales[layer], ranks[layer] = float(scaling[name]), int(module.r[name])
    if len(names) != 1:
        found = f"adapters called {', '.join(sorted(names))}" if names else "no LoRA of peft"
        raise ValueError(
            f"model holds {found}, where one adapter's scale is to be read; leave model out and give alpha"
        )
    first = next(iter(scales))
    alpha = scales[first] * ranks[first]
    if not math.isclose(about.get("alpha", alpha), alpha, rel_tol=1e-6):
        raise ValueError(f"alpha is {about['alpha']:g}, and the model's adapters make it {alpha:g}; leave alpha out")
    return dict(about, alpha=alpha, scaling=scales)


def _few(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:5] + ["..."] * (len(listed) > 5))


# Files. Each is written beside its place, flushed to the disk and moved there, so that it is whole or absent.


def _save(tensors: Mapping[str, torch.Tensor], path: str, where: str) -> None:
    """Write a safetensors file, one tensor after the other: no second copy of the state is ever made. ValueError: a
    number is not finite or is huge."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # larger items first: aligned
    header, end = {}, 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        kind = _DTYPES.get(tensor.dtype) or _INTEGERS[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            copy = tensors[name].to("cpu", copy=True).contiguous()  # what is checked is what is written
            _check_numbers(copy, f"{where}: {name}")
            if copy.dtype in (torch.bfloat16, torch.bool):
                copy = copy.view(torch.int16 if copy.dtype is torch.bfloat16 else torch.uint8)
            file.write(copy.numpy().reshape(-1).view(numpy.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _check_numbers(tensor: torch.Tensor, where: str) -> None:
    """ValueError unless all numbers are finite and at most LARGEST."""
    if not tensor.is_floating_point():
        return
    wide = tensor.float() if tensor.element_size() < 4 else tensor
    low, high = wide.min().item(), wide.max().item()  # NaN if any number is
    if low >= -LARGEST and high <= LARGEST:
        return
    flat = wide.reshape(-1)
    bad = int((~((flat >= -LARGEST) & (flat <= LARGEST))).nonzero()[0])
    at = [int(i) for i in numpy.unravel_index(bad, tuple(tensor.shape))]
    raise ValueError(
        f"{where} {list(tensor.shape)} holds {flat[bad].item():g} at {at}, where a model's numbers lie between "
        f"-{LARGEST} and {LARGEST} (did the training diverge?)"
    )


def _header(path: str) -> dict[str, tuple[int, ...]]:
    """Shapes by name of the tensors in a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")).decode())
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write_json(path: str, value: Any, *, beside: str = "") -> None:
    """Write a JSON file; its temporary file lies in the folder `beside`, by default that of the file."""
    temporary = os.path.join(beside or os.path.dirname(path), TEMPORARY + uuid.uuid4().hex)
    try:
        _flushed_json(temporary, value)
        _move(temporary, path)
    finally:
        _remove(temporary)


def _flushed_json(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(_json(value))
        file.flush()
        os.fsync(file.fileno())


def _create_json(path: str, value: Any, folder: str) -> None:
    """Write a JSON file through `folder`, unless it is there: another process may be doing the same."""
    temporary = os.path.join(folder, "start-" + uuid.uuid4().hex)
    try:
        _flushed_json(temporary, value)
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not os.path.exists(path):
            os.replace(temporary, path)
    finally:
        _remove(temporary)


def _read_json(path: str, otherwise: Any) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return otherwise


def _move(source: str, path: str) -> None:
    os.replace(source, path)
    _sync(os.path.dirname(path))


def _sync(folder: str) -> None:
    """Flush a folder's names to the disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _discard(folder: str, trash: str) -> None:
    """Delete a folder; it goes to the folder `trash` first, so that nobody sees half of it."""
    if os.path.isdir(folder):
        gone = os.path.join(trash, TEMPORARY + uuid.uuid4().hex)
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _files(folder: str) -> list[str]:
    """Names of a folder's files, without hidden ones."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(".")) if os.path.isdir(folder) else []


def _round(r: int) -> str:
    return f"round-{r:03d}"


def _rounds(folder: str) -> list[int]:
    """Numbers of the files or folders `round-000` in a folder."""
    return sorted(int(match.group(1)) for match in map(_ROUND.match, _files(folder)) if match)


def _notes(stage: str) -> list[dict[str, Any]]:
    """The notes of the clients of a round, of those that sent something or failed."""
    folder = os.path.join(stage, "notes")
    return [_read_json(os.path.join(folder, name), None) for name in _files(folder)]


@contextlib.contextmanager
def _still_open(stage: str, where: str) -> Iterator[None]:
    """ValueError if a file is missing because the round's folder is gone."""
    try:
        yield
    except FileNotFoundError as error:
        if os.path.isdir(stage) and not os.path.exists(os.path.join(stage, WHOLE)):
            raise
        raise ValueError(f"{where}: the round ended meanwhile") from error


# What moves a whole round to its place. Each step can be done again after a kill.


def _finish(root: str) -> int:
    """Do what a kill left undone, and return how many rounds are there."""
    hidden = os.path.join(root, HIDDEN)
    if not os.path.isdir(hidden):
        raise ValueError(f"{root} holds no recording")
    back = _read_json(os.path.join(hidden, REWIND), None)
    if back is not None:
        _drop_from(root, back["round"])
    for r in _rounds(hidden):
        if os.path.exists(os.path.join(hidden, _round(r), WHOLE)):
            _publish(root, r)
    for r in _rounds(hidden)[:-1]:  # of a round that is not kept
        _discard(os.path.join(hidden, _round(r)), hidden)
    for name in _files(hidden):
        if name.startswith(TEMPORARY):  # a kill left it
            path = os.path.join(hidden, name)
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else _remove(path)
    models = _rounds(os.path.join(root, "models"))
    return sum(r + 1 in models for r in models)


def _publish(root: str, r: int) -> None:
    """Move a whole round to its place."""
    stage = os.path.join(root, HIDDEN, _round(r))
    prompts = _read_json(os.path.join(root, "run.json"), {}).get("kind") == PROMPTS
    notes = _notes(stage)
    _publish_file(os.path.join(stage, "model.safetensors"), os.path.join(root, "models", _round(r) + ".safetensors"))
    uploads = os.path.join(root, "uploads", _round(r))
    if _files(os.path.join(stage, "uploads")) and not os.path.isdir(uploads):
        os.rename(os.path.join(stage, "uploads"), uploads)
    owners = os.path.join(stage, "owners")
    if prompts and _files(owners):
        os.makedirs(os.path.join(root, "private"), exist_ok=True)
        os.rename(owners, os.path.join(root, "private", _round(r)))
    for name in set(_files(uploads)) - set(_read_json(os.path.join(stage, WHOLE), {})["owners"]):
        _remove(os.path.join(root, "owners", name))  # of an earlier round than the client's last
    for name in _files(owners):
        os.makedirs(os.path.join(root, "owners"), exist_ok=True)
        _publish_file(os.path.join(owners, name), os.path.join(root, "owners", name))
    after = os.path.join(root, "models", _round(r + 1) + ".safetensors")
    _publish_file(os.path.join(stage, "next.safetensors"), after)
    for name in ("models", "uploads", "private", "owners"):
        _sync(os.path.join(root, name))
    entry = _of_round(notes, _files(uploads) + _files(os.path.join(root, "private", _round(r))))
    entry.update(_read_json(os.path.join(stage, ROUND), {}))
    path = os.path.join(root, HIDDEN, NOTES)
    _write_json(path, dict(_read_json(path, {}), **({str(r): entry} if entry else {})))
    _write_rounds(root)
    _discard(stage, os.path.join(root, HIDDEN))


def _publish_file(source: str, path: str) -> None:
    if os.path.exists(source):
        os.replace(source, path)


def _of_round(notes: Iterable[Mapping[str, Any]], sent: Iterable[str]) -> dict[str, Any]:
    """The entry of rounds.json for a round, made of the notes of its clients; `sent` are names of their files."""
    senders = {name.rsplit(".", 1)[0] for name in sent}
    entry: dict[str, Any] = {}
    uploads, failed = {}, []
    for note in notes:
        client = note["client"]
        if note.get("failed"):
            failed.append(client)
        elif note["said"] and _file_of(client) in senders:
            uploads[str(client)] = note["said"]
    if uploads:
        entry["uploads"] = uploads
    if failed:
        entry["failed"] = failed
    return entry


def _file_of(client: Any) -> str:
    """The name of a client's files, without the ending; a slash in it is written as in an address, %2F."""
    if not isinstance(client, str):
        return f"client-{client:02d}"
    return "client-" + client.replace("%", "%25").replace("/", "%2F").replace("\\", "%5C")


def _run(root: str, clients: Iterable[str]) -> dict[str, Any]:
    """The content of run.json; `clients` are texts that clients go by, those that are new come last."""
    setup = _read_json(os.path.join(root, HIDDEN, "recorder.json"), {})
    run = dict({"format": 2}, **setup["about"])
    if setup["every"] > 1:
        run["gaps"] = True
    names = _read_json(os.path.join(root, "run.json"), {}).get("clients", []) + list(clients)
    if names and "clients" not in setup["about"]:
        run["clients"] = list(dict.fromkeys(names))
    return run


def _write_run(root: str, clients: Iterable[str]) -> None:
    _write_json(os.path.join(root, "run.json"), _run(root, clients), beside=os.path.join(root, HIDDEN))


def _write_rounds(root: str) -> None:
    """Write rounds.json: what is noted of rounds that have a model after them."""
    most = max(_rounds(os.path.join(root, "models")), default=0)
    notes = _read_json(os.path.join(root, HIDDEN, NOTES), {})
    shown = {key: note for key, note in notes.items() if key == "initial" or int(key) < most}
    path = os.path.join(root, "rounds.json")
    if shown or os.path.exists(path):
        _write_json(path, shown, beside=os.path.join(root, HIDDEN))


def _rewind(root: str, r: int) -> None:
    """Drop round `r` and all later ones, but for the model that round `r` sends out."""
    _write_json(os.path.join(root, HIDDEN, REWIND), {"round": r})
    _drop_from(root, r)


def _drop_from(root: str, r: int) -> None:
    hidden = os.path.join(root, HIDDEN)
    for q in reversed(_rounds(hidden)):
        if q >= r:
            _discard(os.path.join(hidden, _round(q)), hidden)
    path = os.path.join(hidden, NOTES)
    notes = _read_json(path, {})
    _write_json(path, {key: note for key, note in notes.items() if key == "initial" or int(key) < r})
    for q in reversed(_rounds(os.path.join(root, "uploads"))):
        if q >= r:
            for name in _files(os.path.join(root, "uploads", _round(q))):
                _remove(os.path.join(root, "owners", name))  # of that round, or of a later one
            _discard(os.path.join(root, "uploads", _round(q)), hidden)
    for q in reversed(_rounds(os.path.join(root, "private"))):
        if q >= r:
            _discard(os.path.join(root, "private", _round(q)), hidden)
    for q in reversed(_rounds(os.path.join(root, "models"))):
        if q > r:
            _remove(os.path.join(root, "models", _round(q) + ".safetensors"))
    _write_rounds(root)
    _remove(os.path.join(hidden, REWIND))


def _main(words: list[str]) -> int:
    if len(words) != 1:
        print("python fedaudit_recorder.py FOLDER finishes a recording that was killed", file=sys.stderr)
        return 2
    try:
        rounds = Recorder.repair(words[0])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{words[0]}: {rounds} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
