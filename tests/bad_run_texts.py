"""Run folders of wrong JSON and wrong headers of safetensors files. By name, as in `bad_runs`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.small_run import (
    MODEL,
    PROMPT,
    UPLOAD,
    A,
    B,
    Change,
    add,
    edit,
    header,
    instead,
    line,
    raw,
    replace,
)

DEEP = "[" * 100_000
MEMBER = "members.jsonl line 4"
OWNER = "owners/client-02.safetensors"
NAMED = '{"id": "x", "client": 0, "image": "images/x.png", "text": "a"'  # a line of a list, but for its end


def member(end: str) -> Change:
    """A line of text, from its fifth field on."""
    return add("members.jsonl", NAMED + end)


def both(names: Sequence[str], value: str) -> dict[str, tuple[Change, str]]:
    """Fields of a line with what no text may hold."""
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
    "a line is a text": (add("members.jsonl", '"' + "x" * 1000 + '"'), rf"{MEMBER} must be an object .*not \"x+\.\.\.x+\"$"),
    "a line without end": (raw("members.jsonl", b" " * 1_000_001), "members.jsonl line 1 is longer than 1000000 bytes"),
    "a line of zeros": (raw("members.jsonl", bytes(100)), "members.jsonl line 1 is no valid JSON"),
    "lines end as on old Macs": (raw("members.jsonl", f"{NAMED}}}\r{NAMED}}}\r".encode()), "members.jsonl line 1 is no valid JSON"),
    "a comma at the end": (member(",}"), f"{MEMBER} is no valid JSON"),
    "single quotes": (add("members.jsonl", "{'id': 'x'}"), f"{MEMBER} is no valid JSON"),
    "another encoding": (raw("test.jsonl", "{\"id\": \"ä\"}".encode("latin-1")), "test.jsonl line 1 is no valid JSON"),
    "a key of a million letters": (member(f', "{"k" * 900_000}": 1}}'), rf"{MEMBER}: unknown key 'k{{25,}}\.\.\.k{{25,}}'"),
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
    "tensor's name a book": (header(UPLOAD, {"x" * 10_000: tensors()[A]}, 8), rf"{FILE}: x{{25,}}\.\.\.x{{25,}} is no name of"),
    "tensor's name in other digits": (header(UPLOAD, {"layers.٣.q_proj.A": tensors()[A]}, 8), f"{FILE}: .* is no name of"),
    "model without bytes": (raw(MODEL, b""), "round-000.safetensors is no complete safetensors file"),
    "owner of F8": (header(OWNER, tensors(dtype="F8_E5M2")), f"owners/client-02.safetensors: {A} is F8_E5M2"),
}  # fmt: skip

JSON = WORDS | HEADERS
