"""Reads the files of an external run: regular ones, of limited length, and inside the run's folder.

A link to a file elsewhere could bring what only the auditor may read into a report that others see. It needs
--linked-files.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

LONGEST = 100_000_000  # bytes of a file that is read as a whole; also the format's limit for a safetensors header
LINE = 1_000_000  # bytes of a line


@dataclass(frozen=True)
class OwnFiles:
    """The files in a run's folder `root`; with `linked`, links to and paths of files elsewhere are allowed."""

    root: Path
    linked: bool

    @contextlib.contextmanager
    def opened(self, path: Path, *, name: str = "", purpose: str = "") -> Iterator[IO[bytes]]:
        """Open a file for reading. InputError: missing, outside of the folder, not regular or unreadable. Messages call
        the file `name`, by default its path, and add its `purpose` if it is missing."""
        name = name or str(path)
        self._require_inside(path, name)
        try:
            with user_files.opened(path) as file:
                yield file
        except FileNotFoundError as error:
            raise InputError(f"{name} is missing{'; ' if purpose else ''}{purpose}") from error
        except OSError as error:
            raise InputError(f"{name} cannot be read ({error.strerror or error})") from error

    def read(self, path: Path, *, name: str = "", purpose: str = "") -> bytes:
        """The content of a file. InputError as in `opened`, or it is longer than LONGEST."""
        with self.opened(path, name=name, purpose=purpose) as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise InputError(f"{name or path} is longer than {LONGEST} bytes")
        return data

    def lines(self, path: Path, *, purpose: str = "") -> Iterator[tuple[bytes, str]]:
        """Yield (line, "FILE line N") for each line that is not blank. InputError as in `opened`, or a line is longer
        than LINE."""
        with self.opened(path, purpose=purpose) as file:
            for n, line in enumerate(iter(lambda: file.readline(LINE + 1), b""), 1):
                where = f"{path} line {n}"
                if len(line) > LINE:
                    raise InputError(f"{where} is longer than {LINE} bytes")
                if line.strip():
                    yield line, where

    def listed(self, folder: Path) -> list[Path]:
        """The paths in a folder without hidden files, sorted. InputError: missing, no folder, or outside."""
        self._require_inside(folder, str(folder))
        try:
            return [path for path in user_files.listed(folder) if not path.name.startswith(".")]
        except FileNotFoundError as error:
            raise InputError(f"{folder} is missing; a run has a folder of that name") from error
        except OSError as error:
            raise InputError(f"{folder} cannot be read as a folder ({error.strerror or error})") from error

    def _require_inside(self, path: Path, name: str) -> None:
        if not self.linked and not Path(os.path.realpath(path)).is_relative_to(self._real_root):
            raise InputError(f"{name} lies outside of the run's folder; only --linked-files allows that")

    @functools.cached_property
    def _real_root(self) -> Path:
        return Path(os.path.realpath(self.root))
