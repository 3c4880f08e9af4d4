"""Writes files that are there whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

from fedaudit.machinery.disk_errors import write_errors

TEMPORARY = ".fedaudit-tmp"  # how the names of files end that are being written


def write_atomic(path: Path, data: bytes | Iterable[bytes | memoryview]) -> None:
    """Write `data`, or its parts one after the other, to `path`, synced to disk, so that the file is there whole or not
    at all. InputError on failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    with write_errors(path):
        try:
            with open(temporary, "xb") as file:
                for part in [data] if isinstance(data, bytes) else data:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk."""
    if sys.platform == "win32":  # Windows cannot sync a folder; its file system journals the rename
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
