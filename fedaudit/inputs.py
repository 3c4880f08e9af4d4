"""Files that a user gives: only regular ones are opened, pictures only in the usual formats. Imports nothing heavy.

A FIFO would block for ever and a device never end; Pillow's rarer readers start other programs. Every input passes here, and so it is known what
a data set was read from (`recorded`).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # of pictures

_recorded: ContextVar[set[Path] | None] = ContextVar("recorded", default=None)


def opened(path: Path) -> IO[bytes]:
    """A regular file for reading. OSError, with a `strerror` for people, if it is none, is missing, or has no possible name."""
    note(path)
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a NUL or half of a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name", repr(str(path))) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a FIFO, socket or device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return open(path, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file. OSError as of `opened`."""
    with opened(path) as file:
        return file.read()


def listed(folder: Path) -> list[Path]:
    """What lies in a folder, sorted by name. OSError if it is none."""
    note(folder)
    return sorted(folder.iterdir())


@contextlib.contextmanager
def picture(source: Path | bytes) -> Iterator[Image]:
    """A picture, not decoded yet, of one of FORMATS. OSError, SyntaxError, ValueError or DecompressionBombError if it is none."""
    from PIL import Image

    with (
        opened(source) if isinstance(source, Path) else io.BytesIO(source) as file,
        Image.open(file, formats=FORMATS) as found,
    ):
        yield found


def note(path: Path) -> None:
    """Say that what follows depends on a file or a folder's list of names, read by somebody else's reader."""
    if (files := _recorded.get()) is not None:
        files.add(path.absolute())


@contextlib.contextmanager
def recorded() -> Iterator[set[Path]]:
    """The files and folders that are read inside, as far as they are read through this module; filled while it lasts."""
    files: set[Path] = set()
    token = _recorded.set(files)
    try:
        yield files
    finally:
        _recorded.reset(token)
