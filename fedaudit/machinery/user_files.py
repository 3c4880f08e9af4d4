"""Reads the user's files: only regular ones, and pictures only in the usual formats. Imports nothing heavy.

A FIFO would block for ever and a device never end; Pillow's rarer readers start other programs. All input is read
through this module, so that `recorded` can list the files that a data set was read from. Pictures are not in that list:
they are identified by their content (`sha256`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import struct
import time
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # of pictures
_DAMAGED = (  # what Pillow's readers raise
    ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, TypeError, ValueError,
    struct.error,
)  # fmt: skip
GRAIN_NS = 2_000_000_000  # the coarsest clock of a file system in use (FAT)

_recorded: ContextVar[set[Path] | None] = ContextVar("recorded", default=None)
_digests: dict[str, tuple[int, int, str]] = {}  # by absolute path: size, time of change in ns, SHA-256


def opened(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, and note it for `recorded`. OSError, with a `strerror` for the user: it is
    missing, not regular, or its name is impossible."""
    note(path)
    return _regular(path)


def _regular(path: Path) -> io.BufferedReader:
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a NUL or half of a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name", repr(str(path))) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a FIFO, socket or device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return open(path, "rb")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file. OSError as in `opened`."""
    with opened(path) as file:
        return file.read()


def listed(folder: Path) -> list[Path]:
    """The paths in a folder, sorted by name; the folder is noted for `recorded`. OSError if it is no folder."""
    note(folder)
    return sorted(folder.iterdir())


def largest(folder: Path, most: int = 4) -> str:
    """End of a message about a folder: "it holds NAME, ... and N more" with its `most` largest files, "it is empty", or
    "it cannot be read"."""
    try:
        names = [repr(path.name)[1:-1] for path in sorted(folder.iterdir(), key=_size, reverse=True)]
    except OSError:  # another user's
        return "it cannot be read"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"it holds {', '.join(names[:most])}{more}" if names else "it is empty"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:  # a link to itself
        return -1


def exists(path: Path) -> bool:
    """Whether the path exists, a broken link included. Notes it for `recorded`; if it leads nowhere, its nearest
    existing parent instead."""
    note(path if os.path.exists(path) else next(parent for parent in path.parents if os.path.isdir(parent)))
    return os.path.lexists(path)  # False for an impossible name


def is_dir(path: Path) -> bool:
    """Whether the path is a folder; noted as in `exists`."""
    return exists(path) and os.path.isdir(path)


@contextlib.contextmanager
def picture(source: Path | bytes) -> Iterator[Image]:
    """Open a picture (path or content) of one of FORMATS with 8 or 16 bits a channel; it is decoded later, by `rgb`.
    OSError, with a `strerror` for the user: it is no such picture, or decoding it inside the `with` block fails."""
    from PIL import Image

    with _regular(source) if isinstance(source, Path) else io.BytesIO(source) as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                image = Image.open(file, formats=FORMATS)
            if image.mode in ("I", "F"):  # no number in the file says which value is white
                raise _Unusual(f"more than 16 bits a channel, mode {image.mode}")
            yield image
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise OSError(errno.EINVAL, f"more than {Image.MAX_IMAGE_PIXELS:,} pixels") from error
        except _Unusual as error:
            raise OSError(errno.EINVAL, str(error)) from error
        except _DAMAGED as error:
            raise OSError(errno.EINVAL, f"damaged? {', '.join(FORMATS)} are read") from error


def decode(source: Path | bytes) -> Image:
    """The decoded picture in RGB, of an animation the first frame. OSError as in `picture`."""
    with picture(source) as opened:
        return rgb(opened)


def rgb(opened: Image) -> Image:
    """An opened picture in RGB: transparency is ignored, and of 16 bits a channel the upper 8 count."""
    from PIL import Image

    if opened.mode.startswith("I;16"):  # Pillow would clip at 255, not scale
        import numpy as np

        opened = Image.fromarray((np.asarray(opened) >> 8).astype(np.uint8))
    whole = opened.convert("RGBA") if opened.mode == "P" else opened  # else Pillow warns of transparency
    return whole.convert("RGB")


class _Unusual(Exception):
    """A picture is not damaged, but of a kind that is not supported."""


def note(path: Path) -> None:
    """Add a file, or a folder whose names are listed, to the set of `recorded`, if that is active."""
    if (files := _recorded.get()) is not None:
        files.add(path.absolute())


@contextlib.contextmanager
def recorded() -> Iterator[set[Path]]:
    """Collect the absolute paths of files and folders that this module reads inside the `with` block, except by
    `picture` and `sha256`; the yielded set fills meanwhile."""
    files: set[Path] = set()
    token = _recorded.set(files)
    try:
        yield files
    finally:
        _recorded.reset(token)


def sha256(path: Path) -> str:
    """SHA-256 of a regular file in hexadecimal, as `sha256_of`. OSError as in `opened`."""
    with _regular(path) as file:
        return sha256_of(file)


def sha256_of(file: io.BufferedReader) -> str:
    """SHA-256 of an open file in hexadecimal, cached for this process while size and time of change are the same."""
    path, now = os.path.abspath(file.name), os.fstat(file.fileno())
    cached = _digests.get(path)
    if cached is not None and cached[:2] == (now.st_size, now.st_mtime_ns):
        return cached[2]
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    # a file written just now could change again within the same clock tick, which we could not notice
    if time.time_ns() - now.st_mtime_ns > GRAIN_NS:
        _digests[path] = (now.st_size, now.st_mtime_ns, digest)
    return digest


def known_digests() -> dict[str, tuple[int, int, str]]:
    """The cache of `sha256`: {absolute path: (size, time of change in nanoseconds, SHA-256)}."""
    return dict(_digests)


def remember(digests: Mapping[str, tuple[int, int, str]]) -> None:
    """Add another process' `known_digests` to the cache of `sha256`; entries of this process stay."""
    _digests.update({path: entry for path, entry in digests.items() if path not in _digests})
