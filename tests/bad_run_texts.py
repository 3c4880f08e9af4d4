"""Run folders of wrong JSON and wrong headers of safetensors files. By name, as in `bad_runs`."""

import os

from tests.small_run import MODEL, UPLOAD, A, B, Change, add, edit, header, instead, line, raw, replace

DEEP = "[" * 100_000
MEMBER = "members.jsonl line 4"
OWNER = "owners/client-02.safetensors"
NAMED = '{"id": "x", "client": 0, "image": "images/x.png", "text": "a"'  # a line of a list, but for its end


def member(end: str) -> Change:
    """A line of text, from its fifth field on."""
    return add("members.jsonl", NAMED + end)


def no_json(file: str, *names: str) -> dict[str, tuple[Change, str]]:
    """What is no JSON, all of it or by these names: in a file, or in a further line of a list."""
    texts = {
        "nothing": (b"{", ""),
        "not utf-8": (b"\xff\xfe", ""),
        "deep": (b'{"a":' * 100_000, ""),
        "nested deeper than 20": (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", " .nested deeper than 20"),
        "NaN": (b'{"a": NaN}', " .NaN is no JSON number"),
        "endless": (b'{"a": 1e999}', " .1e999 is no JSON number"),
        "of 10^23": (b'{"a": 100000000000000000000000}', " .1000.* is too large"),
        "of 5000 digits": (b'{"a": ' + b"9" * 5000 + b"}", " .9999.* is too large"),
        "a key twice": (b'{"a": 1, "a": 1}', " .the key 'a' comes twice"),
        "NUL": (b'{"a": "a\\u0000"}', " .* holds NUL or half of a surrogate pair"),
        "half a letter as a key": (b'{"\\ud800": 1}', " .* holds NUL or half of a surrogate pair"),
    }
    where = f"{file}{' line 1' * file.endswith('.jsonl')} is no valid JSON"
    return {f"{file}: {name}": (raw(file, texts[name][0]), where + texts[name][1]) for name in names or texts}


IN_A_LINE: dict[str, tuple[object, ...]] = {
    "id": (3, "  ", "a\nb", "\x1b[2J", "ü" * 128),
    "client": (1.0, True, -1, 100_000),
    "image": (1, "a" * 300, "a/" * 3000, "a\nb"),
    "text": (1, " "),
    "references": ("a", [1]),
    "position": (1.5,),
}
IN_RUN_JSON: dict[str, tuple[object, ...]] = {
    "format": (3, True),
    "method": (1, "a\nb", "𝄞" * 100),
    "task": ("a\nb",),
    "backbone": ("a" * 300, "a\nb"),
    "alpha": ("16", 0, 1e23, [16], True),
    "seed": (-1, 1.0, True),
    "score": ("bleu",),
    "claimed": ("8 " * 1000, "8\n9"),
    "provable": (8,),
}
OF_A_ROUND: dict[str, tuple[object, ...]] = {
    "bytes_up": (-1,),
    "bytes_down": (1.5,),
    "uploads": ([],),
    "utility": (
        {"loss": 1}, {"a\nb": {"loss": 1}}, *({"global": {"loss": value}} for value in ("1", True, 1e300)), {"global": {"round": 1}},
    ),
}  # fmt: skip
OF_AN_UPLOAD: dict[str, tuple[object, ...]] = {"kept": ("B", [1]), "records": (1.5,), "facts": ([],), "bytes": (True,)}


def tensors(**changes: object) -> dict[str, dict[str, object]]:
    """The header of an upload, its first tensor changed; None takes an entry's key away."""
    first = {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]} | changes
    second = {"dtype": "F32", "shape": [3, 1], "data_offsets": [8, 20]}
    return {A: {key: value for key, value in first.items() if value is not None}, B: second}


IN_A_HEADER: dict[str, tuple[object, ...]] = {
    "dtype": (32, ["F32"]),
    "shape": ("12", ["1", "2"], [1.0, 2.0], [True, 2], [[1, 2]], [-1, -2]),
    "data_offsets": ([-8, 8], [8, 0], [0, 4, 8], [0.0, 8.0], {"0": 8}),
}
FILE = r"round-001/client-02\.safetensors"


def of_round(said: object) -> Change:
    return replace("rounds.json", {"0": said})


PLACES = [
    (IN_A_LINE, lambda key, value: add("members.jsonl", line("x", 0) | {key: value}), MEMBER),
    (IN_RUN_JSON, lambda key, value: edit("run.json", **{key: value}), "run.json"),
    (OF_A_ROUND, lambda key, value: of_round({key: value}), "rounds.json, round 0"),
    (OF_AN_UPLOAD, lambda key, value: of_round({"uploads": {"0": {key: value}}}), "rounds.json, round 0, client 0"),
    (IN_A_HEADER, lambda key, value: header(UPLOAD, tensors(**{key: value})), f"{FILE}: {A}"),
]
VALUES = {
    f"{where}: {key} {ascii(value)[:30]}": (change(key, value), f"{where}: {key} must be ")
    for table, change, where in PLACES
    for key, values in table.items()
    for value in values
}
WORDS = {
    **no_json("run.json"),
    **no_json("members.jsonl", "not utf-8", "deep", "NUL"),
    **no_json("rounds.json", "nothing"),
    "picture of the home folder": (add("members.jsonl", line("x", 0, image="~/x.png")), f"{MEMBER}: image ~/x.png is missing"),
    "a line is a text": (add("members.jsonl", '"' + "x" * 1000 + '"'), rf"{MEMBER} must be an object .*not \"x+\.\.\.x+\"$"),
    "a line without end": (raw("members.jsonl", b" " * 1_000_001), "members.jsonl line 1 is longer than 1000000 bytes"),
    "lines end as on old Macs": (raw("members.jsonl", f"{NAMED}}}\r{NAMED}}}\r".encode()), "members.jsonl line 1 is no valid JSON"),
    "a key of a million letters": (member(f', "{"k" * 900_000}": 1}}'), rf"{MEMBER}: unknown key 'k{{25,}}\.\.\.k{{25,}}'"),
    "run.json endless": (instead("run.json", lambda path: (path.touch(), os.truncate(path, 10**12))), "run.json is longer than 100000000 bytes"),
    "members empty": (raw("members.jsonl", b"\n\n"), "members.jsonl: client 0 took part in round 0 and has no member"),
    "rounds.json a list": (raw("rounds.json", b"[]"), r"rounds.json must be an object with the keys initial, 0, 1, not \[\]"),
    "round 00": (replace("rounds.json", {"00": {}}), "rounds.json: unknown key '00'; valid are initial, 0, 1"),
    "client 02": (of_round({"uploads": {"02": {}}}), "rounds.json, round 0, uploads: unknown key '02'"),
    "round null": (of_round(None), "rounds.json: 0 must be an object, not null"),
}  # fmt: skip
FACTOR = f"{FILE}: {A} is .*, where a factor of an adapter is a matrix of F64, F32, F16, BF16"
NO_TENSORS = f"{FILE} is no complete safetensors file"
HEADERS = {
    **{f"dtype {kind}": (header(UPLOAD, tensors(dtype=kind)), FACTOR) for kind in ("F8_E4M3", "f32")},
    "dtype for the terminal": (header(UPLOAD, tensors(dtype="\x1b[2J🎲\n" * 1000)), f"{FILE}: {A} is .*, where a factor"),
    **{f"no {key}": (header(UPLOAD, tensors(**{key: None})), f"{FILE}: {A} lacks the key '{key}'") for key in IN_A_HEADER},
    "shape of 2^62": (header(UPLOAD, tensors(shape=[2**62, 4])), f"{FILE}: {A} takes 8 bytes, where F32"),
    "shape with 0": (header(UPLOAD, tensors(shape=[0, 2], data_offsets=[0, 0])), f"{FILE}"),
    "shape of a thousand": (header(UPLOAD, tensors(shape=[2, *[1] * 1000])), f"{FILE}: {A} is .*, where a factor"),
    "offsets of 2^62": (header(UPLOAD, tensors(data_offsets=[0, 2**62])), f"{FILE}"),
    "tensors begin late": (header(UPLOAD, tensors(data_offsets=[4, 12])), f"{FILE}: the bytes of {A} do not follow"),
    "tensors overlap": (
        header(UPLOAD, tensors() | {B: {**tensors()[B], "data_offsets": [4, 16]}}, 16),
        f"{FILE}: the bytes of {B} do not follow",
    ),
    "tensors leave a gap": (header(UPLOAD, tensors(shape=[1, 1], data_offsets=[0, 4])), f"{FILE}: the bytes of {B} do not follow"),
    "bytes behind the tensors": (header(UPLOAD, tensors(), 24), f"{FILE} is truncated or damaged: 24 bytes of tensors where its header names 20"),
    "an entry is a list": (header(UPLOAD, {A: [1]}), f"{FILE}, header: {A} must be an object"),
    "an entry with more": (header(UPLOAD, tensors(code="x")), f"{FILE}: {A}: unknown key 'code'"),
    "header deep": (header(UPLOAD, '{"a":' * 100_000), f"{FILE}, header is no valid JSON"),
    "header a list that is deep": (header(UPLOAD, DEEP), NO_TENSORS),
    "header of 2^63 bytes": (raw(UPLOAD, (2**63).to_bytes(8, "little") + b"{}"), NO_TENSORS),
    "header that is too long": (
        instead(UPLOAD, lambda path: (path.write_bytes((10**9).to_bytes(8, "little") + b"{"), os.truncate(path, 10**10))), NO_TENSORS,
    ),
    "no bytes": (raw(UPLOAD, b""), NO_TENSORS),
    "pickle": (raw(UPLOAD, b"\x80\x04K\x01."), NO_TENSORS),
    "metadata a list": (header(UPLOAD, tensors() | {"__metadata__": [1]}), f"{FILE}, header: __metadata__ must be an object of texts"),
    "metadata of numbers": (header(UPLOAD, tensors() | {"__metadata__": {"a": 1}}), f"{FILE}, header: __metadata__ must be an object of texts"),
    "tensor's name of two lines": (header(UPLOAD, {"layers.0.q\np.A": tensors()[A]}, 8), rf"{FILE}: .layers\.0\.q\\np\.A. is no name of"),
    "tensor's name a book": (header(UPLOAD, {"x" * 10_000: tensors()[A]}, 8), rf"{FILE}: x{{25,}}\.\.\.x{{25,}} is no name of"),
    "tensor's name in other digits": (header(UPLOAD, {"layers.٣.q_proj.A": tensors()[A]}, 8), f"{FILE}: .* is no name of"),
    "model without bytes": (raw(MODEL, b""), "round-000.safetensors is no complete safetensors file"),
    "owner of F8": (header(OWNER, tensors(dtype="F8_E5M2")), f"owners/client-02.safetensors: {A} is F8_E5M2"),
}  # fmt: skip

JSON = WORDS | VALUES | HEADERS
