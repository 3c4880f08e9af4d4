"""Run folders that a script, a disk or somebody with bad intentions made: links, pipes, JSON, safetensors, pictures.

As in `bad_runs`: by name a small change of a good run, with what the refusal says (a pattern).
`VALUES` are found by reading all tensors and pictures.
"""

from __future__ import annotations

import gzip
import io
import os
import socket
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.small_run import (
    MODEL,
    PICTURE,
    PROMPT,
    UPLOAD,
    A,
    B,
    Change,
    adapter,
    add,
    edit,
    folder,
    header,
    instead,
    line,
    linked,
    moved_out,
    pipe,
    raw,
    replace,
    truncate,
)

OUTSIDE = "lies outside of the run's folder; only --linked-files allows that"
NO_FILE = "not a regular file"
LOOP = "Too many levels of symbolic links"
DEEP = "[" * 100_000
MEMBER = "members.jsonl line 4"
OWNER = "owners/client-02.safetensors"
NAMED = '{"id": "x", "client": 0, "image": "images/x.png", "text": "a"'  # a line of a list, but for its end


def all_of(*changes: Change) -> Change:
    return lambda run: [change(run) for change in changes]


def outside(image: str) -> Change:
    """A member whose picture is `image`, beside a folder with a picture in it; {} stands for where that lies."""

    def change(run: Path) -> None:
        elsewhere = run.parent / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "x.png").write_bytes((run / PICTURE).read_bytes())
        add("members.jsonl", line("x", 0, image=image.format(elsewhere)))(run)

    return change


def named_socket(path: Path) -> None:
    """A relative name, because that of a socket is short."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


LINKS = {
    "absolute picture": (outside("{}/x.png"), rf"{MEMBER}: image .*/elsewhere/x.png {OUTSIDE}"),
    "picture above": (outside("../elsewhere/x.png"), rf"{MEMBER}: image \.\./elsewhere/x.png {OUTSIDE}"),
    "picture above by detour": (outside("images/../../elsewhere/x.png"), f"{MEMBER}: image .* {OUTSIDE}"),
    "picture of the system": (outside("/etc/hostname"), f"{MEMBER}: image /etc/hostname {OUTSIDE}"),
    "picture that is missing outside": (outside("../nothing.png"), f"{MEMBER}: image .* {OUTSIDE}"),
    "linked picture": (moved_out(PICTURE), f"members.jsonl line 1: image images/x.png {OUTSIDE}"),
    "linked folder of pictures": (moved_out("images"), f"members.jsonl line 1: image images/x.png {OUTSIDE}"),
    "link to a link": (
        all_of(moved_out(PICTURE), linked("images/y.png", "x.png"), add("test.jsonl", line("t", image="images/y.png"))),
        f"image images/[xy].png {OUTSIDE}",
    ),
    "picture is a device": (linked(PICTURE, "/dev/zero"), f"image images/x.png {OUTSIDE}"),
    "linked run.json": (moved_out("run.json"), f"run.json {OUTSIDE}"),
    "linked members": (moved_out("members.jsonl"), f"members.jsonl {OUTSIDE}"),
    "linked test": (all_of(replace("test.jsonl", [line("t")]), moved_out("test.jsonl")), f"test.jsonl {OUTSIDE}"),
    "linked rounds.json": (all_of(replace("rounds.json", {}), moved_out("rounds.json")), f"rounds.json {OUTSIDE}"),
    "linked model": (moved_out(MODEL), f"round-000.safetensors {OUTSIDE}"),
    "linked models": (moved_out("models"), f"models {OUTSIDE}"),
    "linked upload": (moved_out(UPLOAD), f"client-02.safetensors {OUTSIDE}"),
    "linked round": (moved_out("uploads/round-000"), f"round-000 {OUTSIDE}"),
    "linked owners": (all_of(replace(OWNER, adapter(1)), moved_out("owners")), f"owners {OUTSIDE}"),
    "run.json links to itself": (linked("run.json", "run.json"), f"run.json cannot be read .{LOOP}"),
    "members link to themselves": (linked("members.jsonl", "members.jsonl"), f"members.jsonl cannot be read .{LOOP}"),
    "test links to itself": (linked("test.jsonl", "test.jsonl"), f"test.jsonl cannot be read .{LOOP}"),
    "picture links to itself": (linked(PICTURE, "x.png"), f"image images/x.png cannot be read .{LOOP}"),
    "model links to itself": (linked(MODEL, "round-000.safetensors"), f"round-000.safetensors cannot be read .{LOOP}"),
    "models link to themselves": (linked("models", "models"), f"models cannot be read as a folder .{LOOP}"),
    "rounds.json leads nowhere": (linked("rounds.json", "nothing"), r"rounds\.json is missing"),
    "reference leads nowhere": (linked("reference.jsonl", "nothing"), r"reference\.jsonl is missing"),
    "owners lead nowhere": (linked("owners", "nothing"), "owners is missing"),
    "upload leads nowhere": (linked(UPLOAD, "nothing"), "client-02.safetensors is missing"),
}

KINDS = {
    "run.json a pipe": (pipe("run.json"), f"run.json cannot be read .*{NO_FILE}"),
    "members a pipe": (pipe("members.jsonl"), f"members.jsonl cannot be read .*{NO_FILE}"),
    "reference a pipe": (pipe("reference.jsonl"), f"reference.jsonl cannot be read .*{NO_FILE}"),
    "rounds.json a pipe": (pipe("rounds.json"), f"rounds.json cannot be read .*{NO_FILE}"),
    "picture a pipe": (pipe(PICTURE), f"members.jsonl line 1: image images/x.png cannot be read .*{NO_FILE}"),
    "model a pipe": (pipe(MODEL), f"round-000.safetensors cannot be read .*{NO_FILE}"),
    "upload a pipe": (pipe(UPLOAD), f"client-02.safetensors cannot be read .*{NO_FILE}"),
    "owner a pipe": (pipe(OWNER), f"client-02.safetensors cannot be read .*{NO_FILE}"),
    "models a pipe": (pipe("models"), "models cannot be read as a folder"),
    "picture a socket": (instead(PICTURE, named_socket), f"images/x.png cannot be read .*{NO_FILE}"),
    "members a socket": (instead("members.jsonl", named_socket), f"members.jsonl cannot be read .*{NO_FILE}"),
    "run.json a folder": (folder("run.json"), "run.json cannot be read .it is a folder"),
    "members a folder": (folder("members.jsonl"), "members.jsonl cannot be read .it is a folder"),
    "novel a folder": (folder("novel.jsonl"), "novel.jsonl cannot be read .it is a folder"),
    "rounds.json a folder": (folder("rounds.json"), "rounds.json cannot be read .it is a folder"),
    "picture a folder": (folder(PICTURE), "image images/x.png cannot be read .it is a folder"),
    "model a folder": (folder(MODEL), "round-000.safetensors cannot be read .it is a folder"),
    "upload a folder": (folder(UPLOAD), "client-02.safetensors cannot be read .it is a folder"),
    "owner a folder": (folder(OWNER), "client-02.safetensors cannot be read .it is a folder"),
    "uploads a file": (instead("uploads", Path.touch), "uploads cannot be read as a folder"),
    "a round a file": (instead("uploads/round-000", Path.touch), "round-000 cannot be read as a folder"),
    "owners a file": (instead("owners", Path.touch), "owners cannot be read as a folder"),
    "name of a second line": (raw("models/a\nb", b""), r"models/a\\nb' is not expected here"),
    "name for the terminal": (raw("models/\x1b[2J", b""), r"models/\\x1b\[2J' is not expected here"),
    "name of no text": (raw(os.fsdecode(b"models/\xff"), b""), r"models/\\udcff' is not expected here"),
    "number in other digits": (
        raw("uploads/round-000/client-٣.safetensors", b""),
        "client-٣.safetensors is not expected",
    ),
    "number of 200 digits": (raw(f"models/round-{'9' * 200}.safetensors", b""), "round-003.safetensors is missing"),
    "negative round": (raw("models/round--1.safetensors", b""), "round--1.safetensors is not expected here"),
    "no number": (raw("models/round-.safetensors", b""), "round-.safetensors is not expected here"),
    "capital letters": (raw("models/Round-003.safetensors", b""), "Round-003.safetensors is not expected here"),
    "leading zeros": (raw("models/round-0002.safetensors", b""), "are both round 2; each once"),
    "rounds with a gap": (replace("models/round-004.safetensors", adapter(4)), "round-003.safetensors is missing"),
    "tensors among the rounds": (replace("uploads/client-00.safetensors", adapter(4)), "is not expected here"),
}


def member(end: str) -> Change:
    """A line of text, from its fifth field on."""
    return add("members.jsonl", NAMED + end)


def both(names: Sequence[str], value: str) -> dict[str, tuple[Change, str]]:
    """A field of a line, and of run.json where it has such a field, each with a value of text that no field may hold."""
    return {
        f"{name} with {value!a}": (add("members.jsonl", line("x", 0) | {name: f"a{value}"}), MEMBER) for name in names
    }


TEXTS = ("id", "image", "text", "prompt", "group")
WORDS = {
    **both(TEXTS, "\0"),
    **both(TEXTS, "\ud800"),
    "references with NUL": (add("members.jsonl", line("x", 0, references=["a\0"])), MEMBER),
    "references with a half": (add("members.jsonl", line("x", 0, references=["\udfff"])), MEMBER),
    "references are numbers": (add("members.jsonl", line("x", 0, references=[1])), f"{MEMBER}: references must be a list"),
    "key with a half": (member(', "\\ud800": 1}'), f"{MEMBER} is no valid JSON"),
    "id of two lines": (add("members.jsonl", line("a\nb", 0)), f"{MEMBER}: id must be one line"),
    "id with a tab first": (add("members.jsonl", line("\ta", 0)), f"{MEMBER}: id must be one line"),
    "id for the terminal": (add("members.jsonl", line("\x1b[2J", 0)), f"{MEMBER}: id must be one line"),
    "id of 256 bytes": (add("members.jsonl", line("ü" * 128, 0)), f"{MEMBER}: id must be one line of at most 255 bytes"),
    "id of blanks": (add("members.jsonl", line("  ", 0)), f"{MEMBER}: id must be one line"),
    "picture's name too long": (add("members.jsonl", line("x", 0, image="a" * 300)), f"{MEMBER}: image must be a path"),
    "picture's path too long": (add("members.jsonl", line("x", 0, image="a/" * 3000)), f"{MEMBER}: image must be a path"),
    "picture's name of two lines": (add("members.jsonl", line("x", 0, image="a\nb")), f"{MEMBER}: image must be a path"),
    "picture of the home folder": (add("members.jsonl", line("x", 0, image="~/x.png")), f"{MEMBER}: image ~/x.png is missing"),
    "picture of the network": (add("members.jsonl", line("x", 0, image="https://a.org/x.png")), "x.png is missing"),
    "picture a number": (add("members.jsonl", line("x", 0, image=1)), f"{MEMBER}: image must be a path"),
    "method of 400 bytes": (edit("run.json", method="𝄞" * 100), "run.json: method must be a name: one line"),
    "task with NUL": (edit("run.json", task="a\0"), "run.json is no valid JSON"),
    "task for the terminal": (edit("run.json", task="\x1b[2J"), "run.json: task must be a name: one line"),
    "backbone with NUL": (edit("run.json", backbone="a\0"), "run.json is no valid JSON"),
    "backbone with a half": (edit("run.json", backbone="a\ud800"), "run.json is no valid JSON"),
    "backbone too long": (edit("run.json", backbone="a" * 300), "run.json: backbone must be a path"),
    "backbone of two lines": (edit("run.json", backbone="a\nb"), "run.json: backbone must be a path"),
    "prompt with a half": (edit("run.json", prompt=PROMPT + "\udc00"), "run.json is no valid JSON"),
    "claimed a book": (edit("run.json", claimed="8 " * 1000), "run.json: claimed must be one line"),
    "provable of two lines": (edit("run.json", provable="8\n9"), "run.json: provable must be one line"),
    "provable a number": (edit("run.json", provable=8), "run.json: provable must be one line"),
    "seed of 10^23": (edit("run.json", seed=10**23), "run.json is no valid JSON .100000.* is too large"),
    "seed of 5000 digits": (raw("run.json", b'{"seed": ' + b"9" * 5000 + b"}"), "run.json is no valid JSON .9999.* is too large"),
    "seed 1.0": (edit("run.json", seed=1.0), "run.json: seed must be a whole number, 0 or more, not 1.0"),
    "alpha of 10^23": (raw("run.json", b'{"format": 1, "method": "m", "task": "t", "backbone": "b", "alpha": 1e23}'), "alpha must"),
    "alpha a list": (edit("run.json", alpha=[16]), r"run.json: alpha must be a number above 0, .*not \[16\]"),
    "alpha true": (edit("run.json", alpha=True), "run.json: alpha must be a number above 0, .*not true"),
    "client of 10^23": (add("members.jsonl", line("x", 10**23)), f"{MEMBER} is no valid JSON .100000.* is too large"),
    "client 1e5": (add("members.jsonl", line("x", 100_000)), f"{MEMBER}: client must be a client's number, 0 to 99999"),
    "client -1": (add("members.jsonl", line("x", -1)), f"{MEMBER}: client must be a client's number"),
    "client 1.0": (add("members.jsonl", line("x") | {"client": 1.0}), f"{MEMBER}: client must be a client's number"),
    "client true": (add("members.jsonl", line("x", True)), f"{MEMBER}: client must be a client's number"),
    "client null": (member(', "client": null}'), f"{MEMBER} is no valid JSON .the key 'client' comes twice"),
    "position of 10^23": (add("members.jsonl", line("x", 0, position=10**23)), f"{MEMBER} is no valid JSON .1000.* too large"),
    "position NaN": (member(', "position": NaN}'), f"{MEMBER} is no valid JSON .NaN is no JSON number"),
    "position -Infinity": (member(', "position": -Infinity}'), f"{MEMBER} is no valid JSON .-Infinity is no JSON number"),
    "a line is deep": (add("members.jsonl", DEEP), f"{MEMBER} is no valid JSON"),
    "a line is a list": (add("members.jsonl", "[1]"), f"{MEMBER} must be an object with the keys id"),
    "a line is a number": (add("members.jsonl", "1"), f"{MEMBER} must be an object with the keys id"),
    "a line is a text": (add("members.jsonl", '"' + "x" * 1000 + '"'), rf"{MEMBER} must be an object .*not \"x+\.\.\.$"),
    "a line without end": (raw("members.jsonl", b" " * 1_000_001), "members.jsonl line 1 is longer than 1000000 bytes"),
    "a line of zeros": (raw("members.jsonl", bytes(100)), "members.jsonl line 1 is no valid JSON"),
    "lines end as on old Macs": (raw("members.jsonl", f"{NAMED}}}\r{NAMED}}}\r".encode()), "members.jsonl line 1 is no valid JSON"),
    "a comma at the end": (member(",}"), f"{MEMBER} is no valid JSON"),
    "single quotes": (add("members.jsonl", "{'id': 'x'}"), f"{MEMBER} is no valid JSON"),
    "another encoding": (raw("test.jsonl", "{\"id\": \"ä\"}".encode("latin-1")), "test.jsonl line 1 is no valid JSON"),
    "a key of a million letters": (member(f', "{"k" * 900_000}": 1}}'), rf"{MEMBER}: unknown key 'k{{50,100}}\.\.\.'"),
    "a key twice in a line": (member(', "id": "y"}'), f"{MEMBER} is no valid JSON .the key 'id' comes twice"),
    "a key twice in run.json": (raw("run.json", b'{"format": 1, "format": 1}'), "run.json is no valid JSON .the key 'format' comes twice"),
    "a round twice": (raw("rounds.json", b'{"0": {}, "0": {}}'), "rounds.json is no valid JSON .the key '0' comes twice"),
    "a sender twice": (raw("rounds.json", b'{"0": {"uploads": {"0": {}, "0": {}}}}'), "rounds.json is no valid JSON .the key '0' comes twice"),
    "run.json deep": (raw("run.json", DEEP.encode()), "run.json is no valid JSON"),
    "run.json deep objects": (raw("run.json", b'{"a":' * 100_000), "run.json is no valid JSON"),
    "run.json empty": (raw("run.json", b""), "run.json is no valid JSON"),
    "run.json null": (raw("run.json", b"null"), "run.json must be an object with the keys"),
    "run.json in UTF-16": (raw("run.json", '{"format": 1}'.encode("utf-16")), "run.json is no valid JSON"),
    "run.json endless": (instead("run.json", lambda path: (path.touch(), os.truncate(path, 10**12))), "run.json is longer than 100000000 bytes"),
    "members empty": (raw("members.jsonl", b"\n\n"), "members.jsonl: client 0 took part in round 0 and has no member"),
    "rounds.json a list": (raw("rounds.json", b"[]"), r"rounds.json must be an object with the keys initial, 0, 1, not \[\]"),
    "rounds.json deep": (raw("rounds.json", DEEP.encode()), "rounds.json is no valid JSON"),
    "facts deep": (
        raw("rounds.json", b'{"0": {"uploads": {"0": {"facts": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}}}}"),
        "rounds.json is no valid JSON .nested deeper than 20",
    ),
    "round 00": (replace("rounds.json", {"00": {}}), "rounds.json: unknown key '00'; valid are initial, 0, 1"),
    "client 02": (replace("rounds.json", {"0": {"uploads": {"02": {}}}}), "rounds.json, round 0, uploads: unknown key '02'"),
    "round null": (replace("rounds.json", {"0": None}), "rounds.json: 0 must be an object, not null"),
    "uploads a list": (replace("rounds.json", {"0": {"uploads": []}}), "rounds.json, round 0: uploads must be an object"),
    "bytes of 10^23": (replace("rounds.json", {"0": {"bytes_up": 10**23}}), "rounds.json is no valid JSON .1000.* is too large"),
    "bytes -1": (replace("rounds.json", {"0": {"bytes_down": -1}}), "rounds.json, round 0: bytes_down must be a whole number"),
    "records 1.5": (
        replace("rounds.json", {"0": {"uploads": {"0": {"records": 1.5}}}}),
        "rounds.json, round 0, client 0: records must be a whole number",
    ),
    "kept with NUL": (replace("rounds.json", {"0": {"uploads": {"0": {"kept": ["\0"]}}}}), "rounds.json is no valid JSON"),
    "facts with a half": (replace("rounds.json", {"0": {"uploads": {"0": {"facts": {"\ud800": 1}}}}}), "rounds.json is no valid JSON"),
    "loss a text": (replace("rounds.json", {"0": {"utility": {"global": {"loss": "1"}}}}), "rounds.json, round 0: utility must be"),
    "loss true": (replace("rounds.json", {"0": {"utility": {"global": {"loss": True}}}}), "rounds.json, round 0: utility must be"),
    "loss of 10^300": (replace("rounds.json", {"0": {"utility": {"global": {"loss": 1e300}}}}), "rounds.json, round 0: utility must be"),
    "loss NaN": (raw("rounds.json", b'{"0": {"utility": {"global": {"loss": NaN}}}}'), "rounds.json is no valid JSON .NaN"),
    "utility of a stranger": (replace("rounds.json", {"0": {"utility": {"a\nb": {"loss": 1}}}}), "rounds.json, round 0: utility must be"),
    "utility with a table's own column": (
        replace("rounds.json", {"0": {"utility": {"global": {"round": 1}}}}),
        "rounds.json, round 0: utility must be",
    ),
}  # fmt: skip


def tensors(**changes: object) -> dict[str, object]:
    """The header of an upload, its first tensor changed; None takes an entry's key away."""
    first = {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]} | changes
    return {
        A: {key: value for key, value in first.items() if value is not None},
        B: {"dtype": "F32", "shape": [3, 1], "data_offsets": [8, 20]},
    }


FILE = r"round-001/client-02\.safetensors"
FACTOR = f"{FILE}: {A} is .*, where a factor of an adapter is a matrix of F64, F32, F16, BF16"
HEADERS = {
    **{f"dtype {kind}": (header(UPLOAD, tensors(dtype=kind)), FACTOR) for kind in ("F8_E4M3", "I64", "BOOL", "U8", "F4", "f32")},
    "dtype made up": (header(UPLOAD, tensors(dtype="🎲" * 1000)), f"{FILE}: {A} is .*, where a factor"),
    "dtype for the terminal": (header(UPLOAD, tensors(dtype="\x1b[2J\n")), f"{FILE}: {A} is .*, where a factor"),
    "dtype a number": (header(UPLOAD, tensors(dtype=32)), f"{FILE}: {A}: dtype must be a text"),
    "dtype a list": (header(UPLOAD, tensors(dtype=["F32"])), f"{FILE}: {A}: dtype must be a text"),
    "no dtype": (header(UPLOAD, tensors(dtype=None)), f"{FILE}: {A} lacks the key 'dtype'"),
    "no shape": (header(UPLOAD, tensors(shape=None)), f"{FILE}: {A} lacks the key 'shape'"),
    "no offsets": (header(UPLOAD, tensors(data_offsets=None)), f"{FILE}: {A} lacks the key 'data_offsets'"),
    "shape a text": (header(UPLOAD, tensors(shape="12")), f"{FILE}: {A}: shape must be a list of whole numbers"),
    "shape of texts": (header(UPLOAD, tensors(shape=["1", "2"])), f"{FILE}: {A}: shape must be a list of whole numbers"),
    "shape of floats": (header(UPLOAD, tensors(shape=[1.0, 2.0])), f"{FILE}: {A}: shape must be a list of whole numbers"),
    "shape of truths": (header(UPLOAD, tensors(shape=[True, 2])), f"{FILE}: {A}: shape must be a list of whole numbers"),
    "shape nested": (header(UPLOAD, tensors(shape=[[1, 2]])), f"{FILE}: {A}: shape must be a list of whole numbers"),
    "shape negative": (header(UPLOAD, tensors(shape=[-1, -2])), f"{FILE}: {A}: shape must be a list of whole numbers"),
    "shape of 10^23": (header(UPLOAD, tensors(shape=[10**23, 1])), f"{FILE}, header is no valid JSON .1000.* is too large"),
    "shape of 2^62": (header(UPLOAD, tensors(shape=[2**62, 4])), f"{FILE}: {A} takes 8 bytes, where F32"),
    "shape empty": (header(UPLOAD, tensors(shape=[])), f"{FILE}: {A} takes 8 bytes, where F32"),
    "shape with 0": (header(UPLOAD, tensors(shape=[0, 2], data_offsets=[0, 0])), f"{FILE}"),
    "shape of three": (header(UPLOAD, tensors(shape=[1, 2, 1])), FACTOR),
    "shape of a thousand": (header(UPLOAD, tensors(shape=[2, *[1] * 1000])), f"{FILE}: {A} is .*, where a factor"),
    "offsets negative": (header(UPLOAD, tensors(data_offsets=[-8, 8])), f"{FILE}: {A}: data_offsets must be two whole numbers"),
    "offsets reversed": (header(UPLOAD, tensors(data_offsets=[8, 0])), f"{FILE}: {A}: data_offsets must be two whole numbers"),
    "offsets of three": (header(UPLOAD, tensors(data_offsets=[0, 4, 8])), f"{FILE}: {A}: data_offsets must be two whole numbers"),
    "offsets of floats": (header(UPLOAD, tensors(data_offsets=[0.0, 8.0])), f"{FILE}: {A}: data_offsets must be two whole numbers"),
    "offsets of 10^23": (header(UPLOAD, tensors(data_offsets=[0, 10**23])), f"{FILE}, header is no valid JSON .1000.* is too large"),
    "offsets of 2^62": (header(UPLOAD, tensors(data_offsets=[0, 2**62])), f"{FILE}"),
    "offsets an object": (header(UPLOAD, tensors(data_offsets={"0": 8})), f"{FILE}: {A}: data_offsets must be two whole numbers"),
    "tensors overlap": (header(UPLOAD, tensors(data_offsets=[4, 12])), f"{FILE}: the bytes of {A} do not follow"),
    "tensors leave a gap": (header(UPLOAD, tensors(shape=[1, 1], data_offsets=[0, 4])), f"{FILE}: the bytes of {B} do not follow"),
    "tensors begin late": (header(UPLOAD, {B: tensors()[B]}), f"{FILE}: the bytes of {B} do not follow"),
    "too few bytes for the shape": (header(UPLOAD, tensors(shape=[2, 2])), f"{FILE}: {A} takes 8 bytes, where F32"),
    "bytes behind the tensors": (header(UPLOAD, tensors(), 24), f"{FILE} is truncated or damaged: 24 bytes of tensors where its header names 20"),
    "bytes missing": (header(UPLOAD, tensors(), 19), f"{FILE} is truncated or damaged: 19 bytes"),
    "an entry is a list": (header(UPLOAD, {A: [1]}), f"{FILE}, header: {A} must be an object"),
    "an entry is null": (header(UPLOAD, {A: None}), f"{FILE}, header: {A} must be an object"),
    "an entry with more": (header(UPLOAD, tensors(code="x")), f"{FILE}: {A}: unknown key 'code'"),
    "header a list": (header(UPLOAD, []), f"{FILE} is no complete safetensors file"),
    "header a text": (header(UPLOAD, '"x"'), f"{FILE} is no complete safetensors file"),
    "header deep": (header(UPLOAD, '{"a":' * 100_000), f"{FILE}, header is no valid JSON"),
    "header a list that is deep": (header(UPLOAD, DEEP), f"{FILE} is no complete safetensors file"),
    "header with NaN": (header(UPLOAD, '{"a": NaN}'), f"{FILE}, header is no valid JSON .NaN is no JSON number"),
    "header with a tensor twice": (header(UPLOAD, f'{{"{A}": {{}}, "{A}": {{}}}}'), f"{FILE}, header is no valid JSON .the key '{A}' comes twice"),
    "header in another encoding": (raw(UPLOAD, (8).to_bytes(8, "little") + b'{"\xff": 1}'), f"{FILE}, header is no valid JSON"),
    "header of 2^63 bytes": (raw(UPLOAD, (2**63).to_bytes(8, "little") + b"{}"), f"{FILE} is no complete safetensors file"),
    "header that is too long": (
        instead(UPLOAD, lambda path: (path.write_bytes((10**9).to_bytes(8, "little") + b"{"), os.truncate(path, 10**10))),
        f"{FILE} is no complete safetensors file",
    ),
    "header of no bytes": (raw(UPLOAD, bytes(8)), f"{FILE} is no complete safetensors file"),
    "no bytes": (raw(UPLOAD, b""), f"{FILE} is no complete safetensors file"),
    "zeros": (raw(UPLOAD, bytes(1000)), f"{FILE} is no complete safetensors file"),
    "pickle": (raw(UPLOAD, b"\x80\x04K\x01."), f"{FILE} is no complete safetensors file"),
    "metadata a list": (header(UPLOAD, tensors() | {"__metadata__": [1]}), f"{FILE}, header: __metadata__ must be an object of texts"),
    "metadata of numbers": (header(UPLOAD, tensors() | {"__metadata__": {"a": 1}}), f"{FILE}, header: __metadata__ must be an object of texts"),
    "tensor's name with NUL": (header(UPLOAD, {"a\0": {}}), f"{FILE}, header is no valid JSON"),
    "tensor's name with a half": (header(UPLOAD, '{"a\\ud800": {}}'), f"{FILE}, header is no valid JSON"),
    "tensor's name of two lines": (header(UPLOAD, {"layers.0.q\np.A": tensors()[A]}, 8), rf"{FILE}: .layers\.0\.q\\np\.A. is no name of"),
    "tensor's name for the terminal": (header(UPLOAD, {"layers.0.\x1b[2J.A": tensors()[A]}, 8), f"{FILE}: .* is no name of"),
    "tensor's name a book": (header(UPLOAD, {"x" * 10_000: tensors()[A]}, 8), rf"{FILE}: x{{50,100}}\.\.\. is no name of"),
    "tensor's name in other digits": (header(UPLOAD, {"layers.٣.q_proj.A": tensors()[A]}, 8), f"{FILE}: .* is no name of"),
    "model without bytes": (raw(MODEL, b""), "round-000.safetensors is no complete safetensors file"),
    "owner of F8": (header(OWNER, tensors(dtype="F8_E5M2")), f"owners/client-02.safetensors: {A} is F8_E5M2"),
}  # fmt: skip


def picture(form: str, size: tuple[int, int] = (8, 8)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)).save(file, form)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    """A PNG that says it is of this size and holds nothing."""
    found = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IEND", b"")):
        found += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return found


NO_IMAGE = r"members.jsonl line 1: image images/x.png is no readable image \(damaged, or not one of JPEG, PNG"
PICTURES = {
    **{f"picture in {form}": (raw(PICTURE, picture(form)), NO_IMAGE) for form in ("EPS", "PCX", "PPM", "ICO", "TGA", "PDF")},
    "picture in SVG": (raw(PICTURE, b'<svg xmlns="http://www.w3.org/2000/svg"/>'), NO_IMAGE),
    "picture for a reader of scripts": (raw(PICTURE, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), NO_IMAGE),
    "picture packed": (raw(PICTURE, gzip.compress(picture("PNG"))), NO_IMAGE),
    "picture empty": (raw(PICTURE, b""), NO_IMAGE),
    "picture of zeros": (raw(PICTURE, bytes(1000)), NO_IMAGE),
    "picture a header": (raw(PICTURE, b"GIF89a"), NO_IMAGE),
    "picture of 2.5 gigapixels": (raw(PICTURE, png(50_000, 50_000)), NO_IMAGE),
    "picture without width": (raw(PICTURE, png(0, 5)), NO_IMAGE),
    "picture with another checksum": (raw(PICTURE, picture("PNG").replace(b"IDAT", b"IDAT\0", 1)), NO_IMAGE),
}  # fmt: skip

DOORS = {**LINKS, **KINDS, **WORDS, **HEADERS, **PICTURES}

NUMBERS = f"{B} holds NaN or infinite values, where a model holds finite numbers"
VALUES = {
    **{
        f"{value} in {name}": (replace(name, adapter(1) | {B: torch.tensor([[1.0], [value], [1.0]])}), f"{name}: {NUMBERS}")
        for name in ("models/round-001.safetensors", UPLOAD, OWNER)
        for value in (float("nan"), float("inf"), float("-inf"))
    },
    "NaN in half precision": (replace(UPLOAD, {B: torch.full((3, 1), torch.nan, dtype=torch.bfloat16)}), f"{UPLOAD}: {NUMBERS}"),
    "beyond float32": (replace(UPLOAD, {B: torch.full((3, 1), 1e300, dtype=torch.float64)}), f"{UPLOAD}: {NUMBERS}"),
    "diverged": (replace(UPLOAD, {B: torch.full((3, 1), -1e20)}), f"{UPLOAD}: {B} holds -1e.20, .* 10000 .did the training diverge"),
    **{
        f"truncated {form}": (all_of(raw(PICTURE, picture(form, (64, 64))), truncate(PICTURE, -100)), NO_IMAGE)
        for form in ("JPEG", "WEBP", "GIF", "BMP", "TIFF", "PNG")
    },
}  # fmt: skip
