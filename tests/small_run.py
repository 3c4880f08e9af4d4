"""A small run of somebody else's as a folder, and ways to change one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

PROMPT = "<image> What is it?"
A, B = "layers.0.q_proj.A", "layers.0.q_proj.B"  # [rank 1, in 2], [out 3, rank 1]
RUN = {"format": 1, "method": "mine", "task": "photos", "backbone": "embedded", "alpha": 2, "prompt": PROMPT}
MODEL = "models/round-000.safetensors"
UPLOAD = "uploads/round-001/client-02.safetensors"
PICTURE = "images/x.png"

Change = Callable[[Path], object]  # of a run's folder


def small_run(folder: Path) -> Path:
    """Two rounds: clients 0 and 2 in the first, client 2 alone in the second; client 2 sends A only, then both."""
    put(folder / "run.json", RUN)
    for r, model in enumerate(MODELS):
        put(folder / f"models/round-{r:03d}.safetensors", model)
    put(folder / "uploads/round-000/client-00.safetensors", adapter(10))
    put(folder / "uploads/round-000/client-02.safetensors", {A: adapter(20)[A]})
    put(folder / UPLOAD, adapter(30))
    put(folder / "members.jsonl", [line("m0", 0), line("m2", 2, references=["one", "two"]), line("n2", 2)])
    put(folder / "nonmembers.jsonl", [line("o0", 0, group="dogs"), line("o2", 2, prompt="<image> other")])
    (folder / "images").mkdir()
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)).save(folder / PICTURE)
    return folder


def adapter(value: float) -> dict[str, torch.Tensor]:
    return {A: torch.full((1, 2), float(value)), B: torch.full((3, 1), float(value))}


MODELS = [adapter(0), {A: adapter(50 / 3)[A], B: adapter(10)[B]}, adapter(30)]  # means by numbers of records


def line(name: str, client: int | None = None, **more: object) -> dict[str, object]:
    return {"id": name, "image": PICTURE, "text": f"a {name}"} | ({} if client is None else {"client": client}) | more


def put(path: Path, content: object) -> None:
    """Tensors by name, a list as JSON lines, anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
        path.write_text("".join(json.dumps(item) + "\n" for item in content))
    elif isinstance(content, dict) and any(isinstance(v, torch.Tensor) for v in content.values()):
        save_file(content, path)
    else:
        path.write_text(json.dumps(content))


def edit(name: str, **changes: object) -> Change:
    """Of run.json; None takes a key away."""

    def change(run: Path) -> None:
        found = json.loads((run / name).read_text()) if (run / name).exists() else {}
        put(run / name, {k: v for k, v in (found | changes).items() if v is not None})

    return change


def add(name: str, *lines: object) -> Change:
    def change(run: Path) -> None:
        with (run / name).open("a") as file:
            file.writelines((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in lines)

    return change


def replace(name: str, content: object) -> Change:
    return lambda run: put(run / name, content)


def raw(name: str, data: bytes) -> Change:
    def change(run: Path) -> None:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(data)

    return change


def delete(name: str) -> Change:
    return lambda run: shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()


def truncate(name: str, to: int) -> Change:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:to])


def moved_out(name: str) -> Change:
    """The file or folder lies beside the run; a link stands in its place."""

    def change(run: Path) -> None:
        elsewhere = run.parent / "elsewhere"
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).rename(elsewhere / name)
        (run / name).symlink_to(elsewhere / name)

    return change


def linked(name: str, target: str) -> Change:
    """A symbolic link instead of whatever is there; a relative target is relative to the link."""
    return instead(name, lambda path: path.symlink_to(target))


def pipe(name: str) -> Change:
    return instead(name, os.mkfifo)


def folder(name: str) -> Change:
    return instead(name, Path.mkdir)


def instead(name: str, make: Callable[[Path], object]) -> Change:
    """Something made in the place of a file or folder."""

    def change(run: Path) -> None:
        if (run / name).exists():
            delete(name)(run)
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        make(run / name)

    return change


def header(name: str, entries: object, size: int = 20) -> Change:
    """A safetensors file of this header, JSON or a text, and `size` bytes of zeros."""
    text = (entries if isinstance(entries, str) else json.dumps(entries)).encode("utf-8", "surrogatepass")
    return raw(name, len(text).to_bytes(8, "little") + text + bytes(size))
