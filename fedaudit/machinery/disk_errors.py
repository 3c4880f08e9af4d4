"""Turns errors of the disk under --out into InputErrors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedaudit.machinery.errors import InputError


def cannot_write(path: Path, error: OSError) -> InputError:
    """The InputError for a file under --out that the disk refused to write."""
    return InputError(f"cannot write {path}: {error.strerror or error}; choose another folder with --out")


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the `with` block into the InputError of `cannot_write`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
