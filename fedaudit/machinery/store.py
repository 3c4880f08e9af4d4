"""Runs on disk: folders whose files are complete, hashed and named by what went into them.

A file appears under its name only when it is complete, and counts only once `manifest.json` lists its SHA-256.
A kill at any moment therefore leaves complete files and absent ones. What is absent or damaged is computed again;
since computing is deterministic, the folder ends byte-identical to an uninterrupted one. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import reprlib
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import torch

if sys.platform == "win32":
    import msvcrt

    def _acquire(descriptor: int, *, wait: bool) -> None:
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if not wait:
                    raise BlockingIOError from error
                time.sleep(0.1)

    def _release(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _acquire(descriptor: int, *, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(descriptor: int) -> None:
        # closing alone would not do: a forked worker holds a copy of the descriptor
        fcntl.flock(descriptor, fcntl.LOCK_UN)


Say = Callable[[str], None]

MANIFEST = "manifest.json"
_LOCK = ".lock"
_TEMPORARY = ".fedaudit-tmp"
_NAME = re.compile(r"[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*(/[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*)?")
_GRAIN_NS = 2_000_000_000  # the coarsest clock of a file system in use (FAT)

_digests: dict[Path, tuple[tuple[int, int, int], str]] = {}  # by file: its stat signature and SHA-256
_held: dict[Path, int] = {}  # by locked folder: the process that did it


class Damaged(Exception):
    """A file is not what `manifest.json` says; `path` names it."""

    def __init__(self, path: Path, reason: str = f"is damaged (its SHA-256 is not the one in {MANIFEST})") -> None:
        super().__init__(path, reason)  # both, so that it survives the way out of a worker process
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


class Missing(FileNotFoundError):
    """No complete file has a name; `path` is where it would be."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is not there: {MANIFEST} does not list it"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Within, what was complete is needed. InputError names the folder if somebody damaged or deleted it meanwhile."""
    try:
        yield
    except (Damaged, Missing) as error:
        raise InputError(
            f"{error}, but was whole: keep the folder {error.path.parent} as it is while it is worked on, and run the "
            f"same command "
            "again, which computes again what is lost"
        ) from error


def key_of(description: Mapping[str, Any]) -> str:
    """16 hex digits of the SHA-256 over a description as canonical JSON.

    TypeError names what is not JSON; NaN, an infinity and a key that is no text are not.
    """
    plain = _plain(description, "description", nan_as_null=False)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def fingerprint(paths: Iterable[Path], *, root: Path) -> str:
    """16 hex digits over the contents of files and their names below `root`, wherever that lies; order is free."""
    return key_of({path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths})


def refuse_files(path: Path) -> None:
    """InputError if there is a file in the place of the folder `path` or of one above it."""
    file = next((p for p in (path, *path.parents) if p.is_file()), None)
    if file is not None:
        raise InputError(f"{file} is a file where a folder is needed; choose another folder with --out")


def inside(path: Path) -> list[Path]:
    """What lies in a folder; nothing if it is not there (any more)."""
    try:
        return list(path.iterdir())
    except FileNotFoundError:
        return []


def claim(path: Path) -> Folder:
    """The folder at `path`, made with its parents where it is missing. InputError names what is in the way."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse_files(path)
        raise _cannot_write(path, error) from error
    return Folder(path)


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` under `path`, completely or not at all, before this returns. InputError if the disk refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{_TEMPORARY}")
    with _disk(path):
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Folder:
    """The complete files of one folder. Every change happens under the folder's lock; reading needs none.

    A name is a file's name, or a folder's and a file's ("figures/roc.svg"). One thread at a time.
    """

    path: Path

    def write(self, name: str, data: bytes) -> None:
        """Put `data` under `name` and into the manifest; nothing changes if it is there already."""
        path, digest = self._file(name), hashlib.sha256(data).hexdigest()
        with self._hold():
            manifest = self._manifest() or {}
            if manifest.get(name) == digest and self.intact(name):
                return
            if manifest.pop(name, None) is not None:
                self._list(manifest)  # a kill from here on leaves the name absent, not damaged
            claim(path.parent)
            write_atomic(path, data)
            self._list(manifest | {name: digest})

    def read(self, name: str) -> bytes:
        """The bytes under `name`: Damaged if not those that were written, Missing if none were."""
        path = self._checked(name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise Damaged(path, f"cannot be read ({error.strerror or error})") from error

    def _checked(self, name: str) -> Path:
        """The path of `name`, after a look at its hash. Errors as of `read`."""
        path = self._file(name)
        manifest = self._manifest()
        if manifest is None:
            raise Damaged(self.path / MANIFEST, "is damaged (it does not list names and SHA-256s)")
        if name not in manifest:
            raise Missing(path)
        try:
            if _sha256(path) != manifest[name]:
                raise Damaged(path)
            return path
        except FileNotFoundError as error:
            raise Damaged(path, "is missing") from error
        except OSError as error:
            raise Damaged(path, f"cannot be read ({error.strerror or error})") from error

    def __contains__(self, name: str) -> bool:
        return self._file(name).is_file() and name in (self._manifest() or {})

    def names(self) -> list[str]:
        """What the manifest lists, sorted."""
        return sorted(self._manifest() or {})

    def require(self, names: Iterable[str]) -> None:
        """Missing for the first of `names` that the manifest does not list."""
        listed = self._manifest() or {}
        for name in names:
            if name not in listed:
                raise Missing(self._file(name))

    def intact(self, name: str) -> bool:
        """Whether `name` is listed, exists and has the hash that was listed."""
        path, listed = self._file(name), (self._manifest() or {}).get(name)
        try:
            return listed is not None and _sha256(path) == listed
        except OSError:
            return False

    @property
    def damaged(self) -> bool:
        """Whether a file that was complete is no longer what it was, or is gone, the manifest too. Nothing is
        changed."""
        manifest = self._manifest()
        if not manifest:
            # a kill before the first manifest leaves one file that is not listed
            return manifest is None or sum(not path.name.startswith(".") for path in inside(self.path)) > 1
        return not all(self.intact(name) for name in manifest)

    def usable(self, name: str, say: Say) -> bool:
        """Whether `name` need not be computed; if listed but damaged or missing it is named and removed."""
        if self.intact(name):
            return True
        if name not in self._sound(say):
            return False
        with self._hold():
            if self.intact(name):  # another process was faster
                return True
            path = self._file(name)
            say(f"{path} is {'damaged' if path.exists() else 'missing'}; computing it again")
            self.remove(name)
        return False

    def remove(self, name: str) -> None:
        """Take `name` off the manifest and the disk, if it is there."""
        path = self._file(name)
        with self._hold():
            manifest = self._manifest() or {}
            if manifest.pop(name, None) is not None:
                self._list(manifest)
            with _disk(path):
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, say: Say) -> Iterator[None]:
        """Keep other processes out while working on the folder; may be nested. A killed process loses its lock.

        What it left half done is cleared away first; a damaged manifest or a missing file is named through `say`.
        Worker processes forked under the lock must leave the writing to their parent.
        """
        with self._hold(say):
            self._clear(say)
            yield

    def write_text(self, name: str, text: str) -> None:
        """UTF-8."""
        self.write(name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Keys in the order given, NaN as null. TypeError names what is not JSON; an infinity is not."""
        plain = _plain(value, name, nan_as_null=True)
        self.write_text(name, json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        return json.loads(self.read(name))

    def write_tensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """As safetensors, the same bytes in whatever order the tensors and the metadata come."""
        import torch
        from safetensors.torch import save

        # copies, because safetensors refuses tensors that share memory
        copies = {key: t.detach().cpu().clone(memory_format=torch.contiguous_format) for key, t in tensors.items()}
        data: bytes = save(copies, metadata=dict(metadata) if metadata else None)
        self.write(name, _sorted_header(data))

    def read_tensors(self, name: str, prefix: str = "") -> dict[str, torch.Tensor]:
        """The tensors whose names begin with `prefix`, under the rest of their names. Errors as of `read`."""
        from safetensors import safe_open

        path = self._checked(name)
        try:
            with safe_open(path, framework="pt") as opened:
                names = [key for key in opened.keys() if key.startswith(prefix)]  # noqa: SIM118, no mapping
                return {key[len(prefix) :]: opened.get_tensor(key).clone() for key in names}
        except FileNotFoundError as error:  # since its hash was looked at
            raise Damaged(path, "is missing") from error

    def write_table(self, name: str, frame: pd.DataFrame) -> None:
        """As parquet, without the index: ValueError if it holds more than the columns and row numbers do."""
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
        import pyarrow.parquet

        return pyarrow.parquet.read_table(io.BytesIO(self.read(name)), use_threads=False).to_pandas(use_threads=False)

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name == MANIFEST:
            raise ValueError(f"file name {name!r} is not valid; valid is NAME or FOLDER/NAME without a leading dot")
        return self.path / name

    def _manifest(self) -> dict[str, str] | None:
        """{name: SHA-256} of the complete files; None if the manifest is damaged or cannot be read."""
        try:
            found = json.loads((self.path / MANIFEST).read_bytes())
            return {name: str(found[name]) for name in found if self._file(name)}  # ValueError for a name that is none
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError):
            return None

    def _list(self, manifest: Mapping[str, str]) -> None:
        # sorted, so that the order in which files were completed leaves no trace
        write_atomic(self.path / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")

    def _sound(self, say: Say) -> dict[str, str]:
        """The manifest; a damaged one is named and removed, so that every file counts as absent."""
        path = self.path / MANIFEST
        if self._manifest() is None:
            with self._hold():
                if self._manifest() is None:  # no other process has put it right
                    say(f"{path} is damaged; computing again what the folder holds")
                    with _disk(path):
                        path.unlink()
        return self._manifest() or {}

    def _clear(self, say: Say) -> None:
        if not (self.path / MANIFEST).exists() and self.damaged:
            say(f"{self.path / MANIFEST} is missing; computing again what the folder holds")
        for name in self._sound(say):
            if not self._file(name).exists():
                self.usable(name, say)
        # a folder below that has a lock of its own may be at work
        below = [p for p in inside(self.path) if p.is_dir() and not (p / _LOCK).exists()]
        for path in (path for folder in (self.path, *below) for path in inside(folder)):
            if path.name.endswith(_TEMPORARY):
                with _disk(path):
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _hold(self, say: Say | None = None) -> Iterator[None]:
        claim(self.path)
        key = self.path.resolve()
        if key in _held:
            if _held[key] != os.getpid():
                raise RuntimeError(f"a worker process cannot write into {self.path}: its parent holds the lock")
            yield
            return
        with _disk(self.path / _LOCK):
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _wait(descriptor, self.path, say)
            _held[key] = os.getpid()
            try:
                yield
            finally:
                del _held[key]
                _release(descriptor)
        finally:
            os.close(descriptor)


def _wait(descriptor: int, path: Path, say: Say | None) -> None:
    with _disk(path / _LOCK), contextlib.suppress(BlockingIOError):
        _acquire(descriptor, wait=False)
        return
    if say is not None:
        say(f"another process works on {path}; waiting")
    with _disk(path / _LOCK):
        _acquire(descriptor, wait=True)


def _sha256(path: Path) -> str:
    """SHA-256 of a file, computed once per process unless its stat signature changes."""
    stat = path.stat()
    signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    known = _digests.get(path)
    if known is not None and known[0] == signature:
        return known[1]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # a file written just now could change again within the same tick of the clock, unseen
    if time.time_ns() - stat.st_mtime_ns > _GRAIN_NS:
        _digests[path] = signature, digest
    return digest


def _plain(value: Any, where: str, *, nan_as_null: bool) -> Any:
    """A copy in JSON's own types; TypeError says where it has none."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float) and math.isnan(value) and nan_as_null:
        return None
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{where}[{key!r}]", nan_as_null=nan_as_null) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]", nan_as_null=nan_as_null) for i, item in enumerate(value)]
    raise TypeError(
        f"{where} is {reprlib.repr(value)} ({type(value).__name__}), which is not JSON; "
        "valid are None, bool, int, finite float, str, list, tuple and mappings with text as keys"
    )


def _sorted_header(data: bytes) -> bytes:
    """safetensors writes its metadata in the random order of a hash table; the same file with sorted metadata."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    if "__metadata__" not in header:
        return data
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {path}: {error.strerror or error}; choose another folder with --out")


def _sync_folder(path: Path) -> None:
    if sys.platform == "win32":  # has no such call; the rename is in the file system's journal
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
