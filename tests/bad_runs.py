"""Run folders with wrong content, each a small change of a good one, with what the refusal says (a pattern)."""

from __future__ import annotations

from torch import ones

from tests.small_run import MODEL, UPLOAD, A, B, adapter, add, delete, edit, line, raw, replace, truncate

ROW = "layers.1.q_proj.A"  # of a layer that the small run has not
OWNER = "owners/client-02.safetensors"
REFUSED = {
    "no run.json": (delete("run.json"), "run.json is missing"),
    "run.json no JSON": (raw("run.json", b"{"), "run.json is no valid JSON"),
    "run.json a list": (raw("run.json", b"[1]"), "run.json must be an object with the keys format, method, task"),
    "endless": (raw("run.json", b'{"alpha": 1e999}'), "1e999 is no JSON number"),
    "a key of format 2 in format 1": (edit("run.json", uploads="changes"), 'key .uploads. needs "format": 2'),
    "missing key": (edit("run.json", backbone=None), "run.json lacks the key 'backbone', which is a path"),
    "unknown key": (edit("run.json", sede=1), "unknown key 'sede'; valid are format, .*did you mean 'seed'"),
    "prompt": (edit("run.json", prompt="What?"), "run.json: prompt must hold <image> once, not 0 times"),
    "no prompt": (edit("run.json", prompt=None), "members.jsonl line 1 lacks a prompt"),
    "no models": (delete("models"), "models is missing"),
    "one model": (
        lambda run: [delete(f"models/round-{r:03d}.safetensors")(run) for r in (1, 2)],
        "models holds 1 models; a run has at least two",
    ),
    "missing model": (delete("models/round-001.safetensors"), "models/round-001.safetensors is missing; .* round 2"),
    "strange file": (raw("models/best.safetensors", b""), "models/best.safetensors is not expected here; valid are"),
    "client too large": (raw("uploads/round-000/client-123456.safetensors", b""), "123456 must be a .*, 0 to 99999"),
    "no uploads": (delete("uploads"), "uploads is missing"),
    "empty round": (delete(UPLOAD), "uploads/round-001 is missing or empty; .* what the server received in round 1"),
    "missing round": (delete("uploads/round-000"), "uploads/round-000 is missing or empty"),
    "no model after": (
        replace("uploads/round-002/client-00.safetensors", adapter(1)),
        r"uploads/round-002 has no model after it: .*models/round-003.safetensors is missing",
    ),
    "truncated": (truncate(UPLOAD, -4), r"client-02.safetensors is truncated or damaged: 16 bytes .* names 20"),
    "not an adapter": (
        replace(UPLOAD, {"q_proj.weight": ones(3, 2)}),
        "q_proj.weight is no name .* valid are layers.0.s",
    ),
    "twice": (
        replace(UPLOAD, {A: ones(1, 2), "x.layers.0.q_proj.lora_A.weight": ones(1, 2)}),
        f"are both {A}; each tensor once",
    ),
    "unknown tensor": (
        replace(UPLOAD, {ROW: ones(1, 2)}),
        rf"client-02.safetensors: {ROW} is not in the global model \(.*models/round-000.safetensors\)",
    ),
    "wrong shape": (replace(UPLOAD, {A: ones(1, 3)}), rf"client-02.*: {A} has shape \[1, 3\] where .* \[1, 2\]"),
    "A without B": (replace(MODEL, {A: ones(1, 2)}), f"round-000.safetensors: {A} is there without {B}"),
    "no tensors": (raw(MODEL, (2).to_bytes(8, "little") + b"{}"), "round-000.safetensors holds no tensors"),
    "two ranks": (
        replace(MODEL, adapter(1) | {ROW: ones(2, 2), "layers.1.q_proj.B": ones(3, 2)}),
        f"{ROW} has rank 2 where {A} has 1; all layers of a run have one rank",
    ),
    "model shrinks": (
        replace("models/round-001.safetensors", {A: ones(1, 2)}),
        f"001.safetensors lacks {B}, which .*000",
    ),
    "owner of nothing": (replace("owners/client-01.safetensors", adapter(1)), "client-01.* client 1 took part in no"),
    "half an owner": (replace(OWNER, {A: ones(1, 2)}), f"lacks {B}; a client's own model"),
    "owner too wide": (replace(OWNER, {A: ones(1, 2), B: ones(4, 1)}), rf"{B} has shape \[4, 1\] where \[3, 1\] would"),
    "owner's factors": (
        replace(OWNER, {A: ones(2, 2), B: ones(3, 4)}),
        rf"{A} has shape \[2, 2\] where \[4, 2\] would",
    ),
    "owner elsewhere": (replace(OWNER, adapter(1) | {ROW: ones(1, 2)}), f"{ROW} is not in the global model"),
    "no members": (delete("members.jsonl"), "members.jsonl is missing; it lists the members of all clients"),
    "no non-members": (delete("nonmembers.jsonl"), "nonmembers.jsonl is missing"),
    "line no JSON": (add("members.jsonl", "", "{id: 1}"), "members.jsonl line 5 is no valid JSON"),
    "prompt twice": (
        add("nonmembers.jsonl", line("x", 0, prompt="<image><image>")),
        r"record x \(.*nonmembers.jsonl line 3\): its prompt must hold <image> once, not 2 times",
    ),
    "no client": (add("nonmembers.jsonl", line("x")), "nonmembers.jsonl line 3 lacks the key 'client'"),
    "no client of a reference": (replace("reference.jsonl", [line("x")]), "reference.jsonl line 1 lacks .* 'client'"),
    "client of a novel record": (replace("novel.jsonl", [line("x", 1)]), "novel.jsonl line 1: unknown key 'client'"),
    "stranger": (add("nonmembers.jsonl", line("x", 1)), "line 3: client 1 has no member and took part in no round"),
    "strange reference": (replace("reference.jsonl", [line("x", 7)]), "reference.jsonl line 1: client 7 has no member"),
    "in both lists": (
        add("nonmembers.jsonl", line("m2", 2)),
        r"nonmembers.jsonl line 3: the id 'm2' is taken \(.*members.jsonl line 2\); a record is in one list, once",
    ),
    "no image": (add("members.jsonl", line("x", 0, image="y.png")), "members.jsonl line 4: image y.png is missing"),
    "no members of one": (
        replace("members.jsonl", [line("m0", 0)]),
        "members.jsonl: client 2 took part .* no member; it",
    ),
    "no non-members of one": (
        replace("nonmembers.jsonl", [line("o2", 2)]),
        "nonmembers.jsonl: client 0 .* no non-member",
    ),
    "unknown note": (replace("rounds.json", {"0": {"byte_up": 1}}), "round 0: unknown key 'byte_up'.*'bytes_up'"),
    "kept but sent": (
        replace("rounds.json", {"1": {"uploads": {"2": {"kept": [B]}}}}),
        f"round 1, client 2: kept names {B}, which its upload holds",
    ),
    "initial": (replace("rounds.json", {"initial": {"loss": 1}}), "rounds.json, initial: unknown key 'loss'"),
}
