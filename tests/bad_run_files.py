"""Run folders of wrong files: links out of the folder, pipes, folders, names, pictures. By name, as in `bad_runs`."""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests import small_run
from tests.bad_pictures import bomb
from tests.small_run import MODEL, PICTURE, UPLOAD, B, adapter, add, folder, line, linked, moved_out, pipe, raw, replace

OUTSIDE = "lies outside of the run's folder; only --linked-files allows that"
NO_FILE = "not a regular file"
LOOP = "Too many levels of symbolic links"
MEMBER = "members.jsonl line 4"
OWNER = "owners/client-02.safetensors"


def all_of(*changes: small_run.Change) -> small_run.Change:
    return lambda run: [change(run) for change in changes]


def outside(image: str) -> small_run.Change:
    """A member whose picture is `image`, beside a folder with a picture in it; {} stands for where that lies."""

    def change(run: Path) -> None:
        elsewhere = shutil.copytree(run / "images", run.parent / "elsewhere")
        add("members.jsonl", line("x", 0, image=image.format(elsewhere)))(run)

    return change


LINKS = {
    "absolute picture": (outside("{}/x.png"), rf"{MEMBER}: image .*/elsewhere/x.png {OUTSIDE}"),
    "picture above": (outside("../elsewhere/x.png"), rf"{MEMBER}: image \.\./elsewhere/x.png {OUTSIDE}"),
    "linked picture": (moved_out(PICTURE), f"members.jsonl line 1: image images/x.png {OUTSIDE}"),
    "link to a link": (
        all_of(moved_out(PICTURE), linked("images/y.png", "x.png"), add("test.jsonl", line("t", image="images/y.png"))),
        f"image images/[xy].png {OUTSIDE}",
    ),
    "linked members": (moved_out("members.jsonl"), f"members.jsonl {OUTSIDE}"),
    "linked model": (moved_out(MODEL), f"round-000.safetensors {OUTSIDE}"),
    "linked models": (moved_out("models"), f"models {OUTSIDE}"),
    "run.json links to itself": (linked("run.json", "run.json"), f"run.json cannot be read .{LOOP}"),
    "rounds.json leads nowhere": (linked("rounds.json", "nothing"), r"rounds\.json is missing"),
    "reference leads nowhere": (linked("reference.jsonl", "nothing"), r"reference\.jsonl is missing"),
    "owners lead nowhere": (linked("owners", "nothing"), "owners is missing"),
}

KINDS = {
    "run.json a pipe": (pipe("run.json"), f"run.json cannot be read .*{NO_FILE}"),
    "picture a pipe": (pipe(PICTURE), f"members.jsonl line 1: image images/x.png cannot be read .*{NO_FILE}"),
    "members a folder": (folder("members.jsonl"), "members.jsonl cannot be read .it is a folder"),
    "rounds.json a folder": (folder("rounds.json"), "rounds.json cannot be read .it is a folder"),
    "model a folder": (folder(MODEL), "round-000.safetensors cannot be read .it is a folder"),
    "owners a file": (small_run.instead("owners", Path.touch), "owners cannot be read as a folder"),
    "name of a second line": (raw("models/a\nb", b""), r"models/a\\nb' is not expected here"),
    "name of no text": (raw(os.fsdecode(b"models/\xff"), b""), r"models/\\udcff' is not expected here"),
    "number in other digits": (raw("uploads/round-000/client-٣.safetensors", b""), "client-٣.safetensors is not exp"),
    "number of 200 digits": (raw(f"models/round-{'9' * 200}.safetensors", b""), "round-003.safetensors is missing"),
    "leading zeros": (raw("models/round-0002.safetensors", b""), "are both round 2; each once"),
    "tensors among the rounds": (replace("uploads/client-00.safetensors", adapter(4)), "is not expected here"),
}


def picture(form: str, size: tuple[int, int] = (8, 8)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)).save(file, form)
    return file.getvalue()


NO_IMAGE = r"members.jsonl line 1: image images/x.png is no readable image \(damaged, or not one of JPEG, PNG"
PICTURES = {
    "picture in EPS": (raw(PICTURE, picture("EPS")), NO_IMAGE),
    "picture empty": (raw(PICTURE, b""), NO_IMAGE),
    "picture of 1.6 gigapixels": (raw(PICTURE, bomb()), NO_IMAGE),
}  # fmt: skip

FILES = LINKS | KINDS | PICTURES

NUMBERS = f"{B} holds NaN or infinite values, where a model holds finite numbers"
VALUES = {  # found only by reading all tensors and pictures
    **{
        f"{value} in {name}": (replace(name, adapter(1) | {B: torch.tensor([[1.0], [value], [1.0]])}), f"{name}: {NUMBERS}")
        for name, value in (("models/round-001.safetensors", float("nan")), (UPLOAD, float("inf")), (OWNER, float("-inf")))
    },
    "NaN in half precision": (replace(UPLOAD, {B: torch.full((3, 1), torch.nan, dtype=torch.bfloat16)}), f"{UPLOAD}: {NUMBERS}"),
    "beyond float32": (replace(UPLOAD, {B: torch.full((3, 1), 1e300, dtype=torch.float64)}), f"{UPLOAD}: {NUMBERS}"),
    "diverged": (replace(UPLOAD, {B: torch.full((3, 1), -1e20)}), f"{UPLOAD}: {B} holds -1e.20, .* 10000 .did the training diverge"),
    **{
        f"truncated {form}": (raw(PICTURE, picture(form, (64, 64))[:-100]), NO_IMAGE)
        for form in ("JPEG", "GIF")
    },
    "picture with another checksum": (raw(PICTURE, picture("PNG").replace(b"IDAT", b"IDAT\0", 1)), NO_IMAGE),
}  # fmt: skip
