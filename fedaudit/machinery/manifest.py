"""The manifest of a folder: the names of its complete files, with their SHA-256.

It is `manifest.json`, sorted. While a process holds the folder's lock, each change is a line of a journal beside it,
which goes into the manifest when the lock is released, or is next taken after a kill: n files cost n lines, not n whole
manifests. Both are parsed once under the lock; without it again only when they change.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from fedaudit.machinery.atomic import sync_folder, write_atomic
from fedaudit.machinery.disk_errors import write_errors
from fedaudit.machinery.locks import holds_lock
from fedaudit.machinery.user_files import GRAIN_NS

MANIFEST = "manifest.json"
_JOURNAL = ".manifest"
_NAME = re.compile(r"[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*(/[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*)?")
_PARSED = 256  # folders whose manifests stay in memory

Entries = dict[str, str]  # SHA-256 by name
Stamps = tuple[tuple[int, int, int] | None, ...]  # time of the last change in ns, size and inode of both files

_parsed: dict[Path, tuple[Stamps, Entries]] = {}


def check_name(name: str) -> None:
    """Raise ValueError if `name` cannot be that of a file in a folder of results."""
    if not _NAME.fullmatch(name) or name == MANIFEST:
        raise ValueError(f"file name {name!r} is not valid; valid is NAME or FOLDER/NAME without a leading dot")


def entries(folder: Path) -> Entries | None:
    """{name: SHA-256} of the complete files, not to be changed; {} if there is no manifest, None if it is damaged or
    unreadable."""
    stamps = _stamps(folder)
    parsed = _parsed.get(folder)
    if parsed is not None and parsed[0] == stamps and (holds_lock(folder) or _settled(stamps)):
        return parsed[1]
    try:
        listing = json.loads(_content(folder / MANIFEST, b"{}"))
        # a line is whole where it has ended
        lines = [json.loads(line) for line in _content(folder / _JOURNAL, b"").split(b"\n")[:-1]]
        listed = {name: str(listing[name]) for name in listing}
        for name, digest in lines:
            _apply(listed, name, digest)
        for name in listed:
            check_name(name)
    except (OSError, ValueError, TypeError, LookupError):
        return None
    _keep(folder, stamps, listed)
    return listed


def enter(folder: Path, name: str, digest: str | None) -> None:
    """List the file `name` with its SHA-256, or with None no longer. Call it under the folder's lock. InputError: the
    disk refuses."""
    listed = entries(folder)
    if listed is None:  # nothing of a damaged manifest is kept
        replace(folder, {} if digest is None else {name: digest})
        return
    path = folder / _JOURNAL
    with write_errors(path):
        new = not path.exists()
        journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(journal, json.dumps([name, digest]).encode() + b"\n")
            os.fsync(journal)
        finally:
            os.close(journal)
        if new:
            sync_folder(folder)
    _apply(listed, name, digest)
    _keep(folder, _stamps(folder), listed)


def replace(folder: Path, listed: Entries) -> None:
    """Write a whole manifest, sorted, so that the order in which files were completed leaves no trace."""
    write_atomic(folder / MANIFEST, json.dumps(listed, indent=1, sort_keys=True).encode() + b"\n")
    with write_errors(folder / _JOURNAL):
        (folder / _JOURNAL).unlink(missing_ok=True)
    _keep(folder, _stamps(folder), listed)


def fold(folder: Path) -> None:
    """Put the journal, if there is one, into the manifest. Call it under the folder's lock."""
    if (folder / _JOURNAL).exists() and (listed := entries(folder)) is not None:
        replace(folder, listed)


def discard(folder: Path) -> None:
    """Remove a damaged manifest. Call it under the folder's lock."""
    for path in (folder / MANIFEST, folder / _JOURNAL):
        with write_errors(path):
            path.unlink(missing_ok=True)


def forget(folder: Path) -> None:
    """Parse the manifest anew when it is next asked for: other processes may have written it."""
    _parsed.pop(folder, None)


def _apply(listed: Entries, name: str, digest: str | None) -> None:
    if digest is None:
        listed.pop(name, None)
    else:
        listed[name] = str(digest)


def _keep(folder: Path, stamps: Stamps, listed: Entries) -> None:
    _parsed.pop(folder, None)
    _parsed[folder] = (stamps, listed)
    if len(_parsed) > _PARSED:
        del _parsed[next(iter(_parsed))]


def _content(path: Path, absent: bytes) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return absent


def _stamps(folder: Path) -> Stamps:
    return tuple(_stamp(folder / name) for name in (MANIFEST, _JOURNAL))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _settled(stamps: Stamps) -> bool:
    """Whether files with these stamps cannot have changed since within the same tick of the clock."""
    latest = max((stamp[0] for stamp in stamps if stamp is not None), default=0)
    return time.time_ns() - latest > GRAIN_NS
