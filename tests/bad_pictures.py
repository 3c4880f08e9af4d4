"""Files that are no pictures that an audit could use, by name."""

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from tests.minidata import picture, write

Damage = Callable[[Path], object]  # of one file


def saved(pixels: np.ndarray, form: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 40,000 x 40,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "text": b"no picture",
    "cut in its header": picture(0)[:12],
    "a bomb": bomb(),
    "32 bits a pixel": saved(np.full((4, 4), 70_000, np.int32), "TIFF"),
    "floats": saved(np.full((4, 4), 0.5, np.float32), "TIFF"),
    "of another format": saved(np.zeros((4, 4, 3), np.uint8), "PCX"),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n",
}


def replaced(files: Iterable[Path], how: Damage) -> None:
    for file in list(files):
        file.unlink()
        how(file)


def holding(content: bytes) -> Damage:
    return lambda file: write(file, content)


DAMAGES: dict[str, Damage] = {name: holding(content) for name, content in CONTENTS.items()} | {
    "missing": lambda file: None,
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to itself": lambda file: file.symlink_to(file.name),
    "a link to a device": lambda file: file.symlink_to(os.devnull),
}
