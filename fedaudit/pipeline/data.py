"""The data of a plan: the federation that its task deals, and a hash of it, so that copied data count as the same and
changed data do not.

Tasks that read local files have folders as parameters (fields `..._root`). The hash covers every text, class, coin and
picture of their federation. An index on disk keeps the hash with size and time of each file that was read, so that a
second command reads none of them. What is known of the pixels of files is kept too, once for all plans of a cache, so
that a picture that may be a copy is decoded once.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery import user_files
from fedaudit.machinery.closure import closure
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.places import module_of
from fedaudit.machinery.store import claim, key_of
from fedaudit.pipeline import keys
from fedaudit.tasks.facts import TASKS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.pipeline.plan import Plan
    from fedaudit.tasks.base import Federation, Record

LABELS = "labels"  # in the index: names of classes
PIXELS = "pixels.json"  # of the cache: `duplicates.known_pictures`
ROOT = "_root"  # how the names of parameters that are folders of data end

Stamp = tuple[int, int]  # size, and time of the last change in ns


def roots(params: DataclassInstance) -> dict[str, str]:
    """The folders of data that a task reads, by parameter; those left empty are not listed."""
    folders = {f.name: str(getattr(params, f.name)) for f in dataclasses.fields(params) if f.name.endswith(ROOT)}
    return {name: folder for name, folder in folders.items() if folder}


class Data:
    """The federation that the task of a plan deals, before canaries, and its hash."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._read = plan, set[Path]()
        self._unsaved: dict[str, Any] = {}

    @functools.cached_property
    def federation(self) -> Federation:
        """The clients and their records, made by the plan's task. InputError says what is wrong with the data."""
        plan, task = self._plan, TASKS[self._plan.task]
        assert plan.task_params is not None
        if not roots(plan.task_params):
            made: Federation = task.make(plan.task_params, clients=plan.clients, seed=plan.seed)
            return made
        from fedaudit.tasks import duplicates

        duplicates.remember(self._cached(PIXELS))
        before = duplicates.known_pictures()
        with user_files.recorded() as self._read:
            made = task.make(plan.task_params, clients=plan.clients, seed=plan.seed)
        if (after := duplicates.known_pictures()) != before:
            self._unsaved[PIXELS] = after
        return made

    @functools.cached_property
    def digest(self) -> str | None:
        """A hash of the federation; None for tasks that read no files. InputError as `federation`."""
        if self._plan.task_params is None or not roots(self._plan.task_params):
            return None
        index = self._index
        if self._fresh:
            return str(index["digest"])
        user_files.remember({path: (size, when, sha) for path, (size, when, sha) in index.get("pictures", {}).items()})
        return self._digest()

    @functools.cached_property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on the data, as `Federation.remarks`. InputError as `federation`."""
        if self._plan.task_params is None or not roots(self._plan.task_params):
            return ()
        return tuple(self._index["remarks"]) if self._fresh else self.federation.remarks

    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the user's files, () for other tasks. InputError as `federation`."""
        if self._plan.task_params is None or not roots(self._plan.task_params):
            return ()
        return tuple(self._index[LABELS]) if self._fresh else self.federation.classes

    def save(self) -> None:
        """Write to the cache what the next command need not read again: the hash, with sizes and times of the files
        that it rests on, and what is known of pixels. Errors of the disk are ignored."""
        for name, content in self._unsaved.items():
            try:
                claim(self._folder).write_json(name, content)
            except InputError:
                return

    def _digest(self) -> str:
        digest = key_of(_content(self.federation))
        pictures = {r.picture for r in self.federation.records.values() if isinstance(r.picture, Path)}
        watched = {str(path): _stamp(path) for path in sorted({*self._read, *pictures})}
        settled = time.time_ns() - user_files.GRAIN_NS  # what is newer could change again within a tick of the clock
        if all(stamp is not None and stamp[1] < settled for stamp in watched.values()):
            digests = {path: list(entry) for path, entry in user_files.known_digests().items() if path in watched}
            texts = {"remarks": self.federation.remarks, LABELS: self.federation.classes}
            about = {"digest": digest, "watched": watched, "pictures": digests, **texts}
            self._unsaved[self._name] = about
        return digest

    @functools.cached_property
    def _fresh(self) -> bool:
        """Whether the index is there, and no file that it rests on was changed since."""
        watched: dict[str, list[int]] = self._index.get("watched", {})
        return (
            LABELS in self._index
            and bool(watched)
            and all(_stamp(Path(path)) == tuple(stamp) for path, stamp in watched.items())
        )

    @functools.cached_property
    def _index(self) -> dict[str, Any]:
        return self._cached(self._name)

    def _cached(self, name: str) -> dict[str, Any]:
        """The content of a file that an earlier command's `save` wrote; {} if there is none, or it is damaged."""
        folder = claim(self._folder) if self._folder.is_dir() else None
        return folder.read_json(name) if folder is not None and folder.intact(name) else {}

    @property
    def _folder(self) -> Path:
        return self._plan.out / "cache"

    @functools.cached_property
    def _name(self) -> str:
        plan = self._plan
        assert plan.task_params is not None
        code = {
            n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in closure(module_of("tasks", plan.task)).items()
        }
        folders = {name: str(Path(root).expanduser().absolute()) for name, root in roots(plan.task_params).items()}
        about = keys.fields(plan.task_params) | folders | {"clients": plan.clients, "seed": plan.seed, "code": code}
        return f"data-{key_of(about)}.json"


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _content(federation: Federation) -> dict[str, Any]:
    """Everything of a federation that training, attacks and audits can read, for the hash."""
    clients = [
        {
            "name": client.name,
            "classes": list(client.classes),
            "member": client.member.tolist(),
            **{part: _records(getattr(client, part)) for part in ("records", "reference", "background")},
        }
        for client in federation.clients
    ]
    of_no_client = {part: _records(getattr(federation, part)) for part in ("novel", "test", "novel_test")}
    about = {"classes": list(federation.classes), "score": federation.score.__name__, "remarks": federation.remarks}
    return {"clients": clients, **of_no_client, **about}


def _records(records: Iterable[Record]) -> list[list[Any]]:
    return [[r.id, r.group, r.prompt, r.text, list(r.references), r.domain, r.digest] for r in records]
