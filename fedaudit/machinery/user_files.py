"""Files that a user gives: only regular ones are opened, pictures only in the usual formats. Imports nothing heavy.

A FIFO would block for ever and a device never end; Pillow's rarer readers start other programs. Every input passes
here, and so it is known what a data set was read from (`recorded`). What pictures show is no part of that record: it is
known by their content (`sha256`).
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
_digests: dict[str, tuple[int, int, str]] = {}  # by file: its size, time of change and SHA-256


def opened(path: Path) -> io.BufferedReader:
    """A regular file for reading. OSError, with a `strerror` for people, if it is none, is missing, or has no possible
    name."""
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
    """The content of a regular file. OSError as of `opened`."""
    with opened(path) as file:
        return file.read()


def listed(folder: Path) -> list[Path]:
    """What lies in a folder, sorted by name. OSError if it is none."""
    note(folder)
    return sorted(folder.iterdir())


def largest(folder: Path, most: int = 4) -> str:
    """What lies in a folder, for a sentence that says what is missing there: the largest files' names first."""
    try:
        names = [repr(one.name)[1:-1] for one in sorted(folder.iterdir(), key=_size, reverse=True)]
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
    """Whether something has this name, be it a broken link; where nothing is, the nearest folder is noted in which it
    could appear."""
    note(path if os.path.exists(path) else next(one for one in path.parents if os.path.isdir(one)))
    return os.path.lexists(path)  # False for a name that is none


def is_dir(path: Path) -> bool:
    """Whether a folder has this name; noted as of `exists`."""
    return exists(path) and os.path.isdir(path)


@contextlib.contextmanager
def picture(source: Path | bytes) -> Iterator[Image]:
    """A picture, not decoded yet, of one of FORMATS with 8 bits a channel.

    OSError, with a `strerror` for people, if it is none, and for whatever its reader raises inside.
    """
    from PIL import Image

    with _regular(source) if isinstance(source, Path) else io.BytesIO(source) as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                found = Image.open(file, formats=FORMATS)
            if found.mode.startswith(("I", "F")):  # would be cut off at 255, not scaled
                raise _Unusual(f"more than 8 bits a channel, mode {found.mode}")
            yield found
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise OSError(errno.EINVAL, f"more than {Image.MAX_IMAGE_PIXELS:,} pixels") from error
        except _Unusual as error:
            raise OSError(errno.EINVAL, str(error)) from error
        except _DAMAGED as error:
            raise OSError(errno.EINVAL, f"damaged? {', '.join(FORMATS)} are read") from error


class _Unusual(Exception):
    """A picture that is whole and cannot be used."""


def note(path: Path) -> None:
    """Say that what follows depends on a file or a folder's list of names, read by somebody else's reader."""
    if (files := _recorded.get()) is not None:
        files.add(path.absolute())


@contextlib.contextmanager
def recorded() -> Iterator[set[Path]]:
    """The files and folders that are read inside, as far as they are read through this module; filled while it
    lasts."""
    files: set[Path] = set()
    token = _recorded.set(files)
    try:
        yield files
    finally:
        _recorded.reset(token)


def sha256(path: Path) -> str:
    """SHA-256 of a regular file in hexadecimal, computed once unless its size or time changes. OSError as of
    `opened`."""
    with _regular(path) as file:
        now = os.fstat(file.fileno())
        known = _digests.get(str(path.absolute()))
        if known is not None and known[:2] == (now.st_size, now.st_mtime_ns):
            return known[2]
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # a file written just now could change again within the same tick of the clock, unseen
    if time.time_ns() - now.st_mtime_ns > GRAIN_NS:
        _digests[str(path.absolute())] = (now.st_size, now.st_mtime_ns, digest)
    return digest


def known_digests() -> dict[str, tuple[int, int, str]]:
    """Every file that `sha256` need not read again: its size, time of change in nanoseconds and SHA-256, by its
    absolute path."""
    return dict(_digests)


def remember(digests: Mapping[str, tuple[int, int, str]]) -> None:
    """Take over what another process found, in the form of `known_digests`; what this one found itself stays."""
    _digests.update({path: found for path, found in digests.items() if path not in _digests})
