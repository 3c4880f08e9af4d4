"""Folders of results on disk, named by a hash of what went into them, with hashed files.

A file appears under its name only when it is complete, and counts only once `manifest.json` lists its SHA-256.
A kill at any moment therefore leaves complete files and absent ones. What is absent or damaged is computed again;
since computing is deterministic, the folder ends byte-identical to an uninterrupted one. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery import manifest
from fedaudit.machinery.atomic import TEMPORARY, write_atomic
from fedaudit.machinery.canonical import TensorBytes, plain_json
from fedaudit.machinery.disk_errors import cannot_write, write_errors
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.locks import LOCK, folder_lock
from fedaudit.machinery.manifest import MANIFEST
from fedaudit.machinery.user_files import sha256_of

if TYPE_CHECKING:
    import pandas as pd
    import torch

Say = Callable[[str], None]


class Damaged(Exception):
    """The file `path` is gone or does not have the SHA-256 in the manifest, or is a damaged manifest itself."""

    def __init__(self, path: Path, reason: str = f"is damaged (its SHA-256 is not the one in {MANIFEST})") -> None:
        super().__init__(path, reason)  # both, so that it survives the way out of a worker process
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


class Missing(FileNotFoundError):
    """The manifest does not list the file `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is not there: {MANIFEST} does not list it"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Turn Damaged or Missing inside the `with` block into an InputError: files were changed by others during work."""
    try:
        yield
    except (Damaged, Missing) as error:
        raise InputError(
            f"{error}, but was whole: keep the folder {error.path.parent} as it is while it is worked on, and run the "
            "same command again, which computes again what is lost"
        ) from error


def key_of(description: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 of a description as canonical JSON. TypeError names what is not JSON: NaN,
    infinities, keys that are no text."""
    plain = plain_json(description, "description", nan_as_null=False)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def refuse_files(path: Path) -> None:
    """Raise InputError if `path`, which should be a folder, or one of its parents is a file."""
    file = next((p for p in (path, *path.parents) if p.is_file()), None)
    if file is not None:
        raise InputError(f"{file} is a file where a folder is needed; choose another folder with --out")


def inside(path: Path) -> list[Path]:
    """The paths in a folder, unsorted; [] if the folder does not exist."""
    try:
        return list(path.iterdir())
    except FileNotFoundError:
        return []


def claim(path: Path) -> Folder:
    """Create the folder `path` with its parents if it is missing, and return it. InputError if that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse_files(path)
        raise cannot_write(path, error) from error
    return Folder(path)


@dataclass(frozen=True)
class Folder:
    """The complete files of one folder. Changes take the folder's lock; reading does not. Not for several threads. A
    `name` is that of a file, or of a subfolder and a file ("figures/roc.svg")."""

    path: Path

    def write(self, name: str, data: bytes | TensorBytes) -> None:
        """Write `data` to the file `name` and its hash into the manifest; does nothing if both are there already."""
        path, sha256 = self._file(name), hashlib.sha256()
        for part in [data] if isinstance(data, bytes) else data:
            sha256.update(part)
        digest = sha256.hexdigest()
        with self._hold():
            listed = (self._manifest() or {}).get(name)
            if listed == digest and self._has(name, digest):
                return
            if listed is not None:
                manifest.enter(self.path, name, None)  # a kill from here on leaves the name absent, not damaged
            claim(path.parent)
            write_atomic(path, data)
            manifest.enter(self.path, name, digest)

    def read(self, name: str) -> bytes:
        """The content of the file `name`. Missing: the manifest does not list it. Damaged: the file, or the manifest,
        was changed or deleted after it was written."""
        path = self._checked(name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise Damaged(path, f"cannot be read ({error.strerror or error})") from error

    def _checked(self, name: str) -> Path:
        """The path of the file `name`, whose hash has been checked. Errors as in `read`."""
        path = self._file(name)
        listed = self._manifest()
        if listed is None:
            raise Damaged(self.path / MANIFEST, "is damaged (it does not list names and SHA-256s)")
        if name not in listed:
            raise Missing(path)
        try:
            if _sha256(path) != listed[name]:
                raise Damaged(path)
            return path
        except FileNotFoundError as error:
            raise Damaged(path, "is missing") from error
        except OSError as error:
            raise Damaged(path, f"cannot be read ({error.strerror or error})") from error

    def __contains__(self, name: str) -> bool:
        return self._file(name).is_file() and name in (self._manifest() or {})

    def names(self) -> list[str]:
        """The names in the manifest, sorted; [] if it is damaged or missing."""
        return sorted(self._manifest() or {})

    def require(self, names: Iterable[str]) -> None:
        """Raise Missing for the first of `names` that the manifest does not list."""
        listed = self._manifest() or {}
        for name in names:
            if name not in listed:
                raise Missing(self._file(name))

    def intact(self, name: str) -> bool:
        """Whether the file `name` exists and has the hash that the manifest lists."""
        self._file(name)
        return self._has(name, (self._manifest() or {}).get(name))

    def _has(self, name: str, digest: str | None) -> bool:
        """Whether the file `name` exists and has this hash."""
        try:
            return digest is not None and _sha256(self._file(name)) == digest
        except OSError:
            return False

    @property
    def damaged(self) -> bool:
        """Whether the manifest, or a file that it lists, was changed or deleted after it was written. Repairs
        nothing."""
        listed = self._manifest()
        if not listed:
            # a kill before the first manifest leaves one file that is not listed
            return listed is None or sum(not path.name.startswith(".") for path in inside(self.path)) > 1
        return not all(self._has(name, digest) for name, digest in listed.items())

    def usable(self, name: str, say: Say) -> bool:
        """Whether the file `name` is intact. If the manifest lists it but it is not intact, it is removed and `say` is
        told so; so is a damaged manifest."""
        if self.intact(name):
            return True
        if name not in self._repaired_manifest(say):
            return False
        with self._hold():
            if self.intact(name):  # another process was faster
                return True
            path = self._file(name)
            say(f"{path} is {'damaged' if path.exists() else 'missing'}; computing it again")
            self.remove(name)
        return False

    def remove(self, name: str) -> None:
        """Remove the file `name` from the manifest and the disk, if it is there."""
        path = self._file(name)
        with self._hold():
            if name in (self._manifest() or {}):
                manifest.enter(self.path, name, None)
            with write_errors(path):
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, say: Say, *, wait: bool = True) -> Iterator[None]:
        """Hold the folder's lock inside the `with` block; may be nested. Waits while another process holds it, and
        tells `say` so; Busy where `wait` is false. A killed process loses its lock.

        Leftovers of a killed process are removed first; `say` is told of a damaged manifest and of missing files.
        Worker processes that are forked under the lock must not write into the folder.
        """
        with self._hold(say, wait=wait):
            self._remove_leftovers(say)
            yield

    def write_json(self, name: str, value: Any) -> None:
        """Write JSON with keys in their order and NaN as null. TypeError names what is not JSON, as infinities."""
        plain = plain_json(value, name, nan_as_null=True)
        self.write(name, json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def read_json(self, name: str) -> Any:
        """The value in a JSON file. Errors as in `read`."""
        return json.loads(self.read(name))

    def write_tensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Write a safetensors file; its bytes do not depend on the order of the tensors and of the metadata."""
        self.write(name, TensorBytes(tensors, metadata))

    def read_tensors(self, name: str, prefix: str = "") -> dict[str, torch.Tensor]:
        """{name without `prefix`: tensor} of the tensors whose names begin with `prefix`, on the CPU. Errors as in
        `read`."""
        from safetensors import safe_open

        path = self._checked(name)
        try:
            with safe_open(path, framework="pt") as opened:
                names = [key for key in opened.keys() if key.startswith(prefix)]  # noqa: SIM118, no mapping
                return {key[len(prefix) :]: opened.get_tensor(key).clone() for key in names}
        except FileNotFoundError as error:  # deleted since its hash was checked
            raise Damaged(path, "is missing") from error

    def write_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write a table as parquet without its index. ValueError if the index holds more than row numbers."""
        import pandas as pd
        import pyarrow
        import pyarrow.parquet

        lost = [level for level in frame.index.names if level not in frame.columns]
        if lost and not (lost == [None] and pd.api.types.is_integer_dtype(frame.index)):
            raise ValueError(f"{name}: the frame's index {lost} would be lost; call reset_index first")
        # pandas' own metadata names versions and the index, nothing that the columns' types do not say
        table = pyarrow.Table.from_pandas(frame, preserve_index=False, nthreads=1).replace_schema_metadata(None)
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(table, buffer)
        self.write(name, buffer.getvalue())

    def read_table(self, name: str) -> pd.DataFrame:
        """The table in a parquet file. Errors as in `read`."""
        import pyarrow.parquet

        return pyarrow.parquet.read_table(io.BytesIO(self.read(name)), use_threads=False).to_pandas(use_threads=False)

    def _file(self, name: str) -> Path:
        manifest.check_name(name)
        return self.path / name

    def _manifest(self) -> manifest.Entries | None:
        return manifest.entries(self.path)

    def _repaired_manifest(self, say: Say) -> manifest.Entries:
        """The manifest. A damaged one is removed, and {} returned: all files count as absent. `say` is told so."""
        path = self.path / MANIFEST
        if self._manifest() is None:
            with self._hold():
                if self._manifest() is None:  # no other process has repaired it
                    say(f"{path} is damaged; computing again what the folder holds")
                    manifest.discard(self.path)
        return self._manifest() or {}

    def _remove_leftovers(self, say: Say) -> None:
        if not (self.path / MANIFEST).exists() and self.damaged:
            say(f"{self.path / MANIFEST} is missing; computing again what the folder holds")
        for name in list(self._repaired_manifest(say)):
            if not self._file(name).exists():
                self.usable(name, say)
        # a subfolder with a lock file may be in use
        below = [p for p in inside(self.path) if p.is_dir() and not (p / LOCK).exists()]
        for path in (path for folder in (self.path, *below) for path in inside(folder)):
            if path.name.endswith(TEMPORARY):
                with write_errors(path):
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _hold(self, say: Say | None = None, *, wait: bool = True) -> Iterator[None]:
        claim(self.path)
        with folder_lock(self.path, say, wait=wait) as outermost:
            if not outermost:
                yield
                return
            manifest.forget(self.path)
            manifest.fold(self.path)  # of a killed process
            try:
                yield
            finally:
                manifest.fold(self.path)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return sha256_of(file)
