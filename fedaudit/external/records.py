"""Reads the records of an external run, which are lists of JSON lines, and builds its federation."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.external.files import OwnFiles
from fedaudit.external.names import NUMBERED, ClientNames
from fedaudit.external.schema import ANY_TEXT, IMAGE, INTEGER, LINE, PATH, TEXT, TEXTS, Kind, fields, one_of, parse
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import each
from fedaudit.machinery.samples import Sample

if TYPE_CHECKING:
    from fedaudit.tasks.base import Federation, Record

CANDIDATES = ("members", "nonmembers")  # required lists
REFERENCE = "reference"
OF_CLIENTS = (*CANDIDATES, REFERENCE)
LISTS = (*OF_CLIENTS, "novel", "test", "novel_test")

_OF_ALL = {"id": LINE, "image": PATH}
_OF_TEXTS = {"prompt": TEXT, "references": TEXTS, "group": ANY_TEXT}


@dataclass(frozen=True, eq=False)
class Entry:
    """One line of a list. `client` is None in lists without clients, `position` where the line has none."""

    record: Record
    image: str  # path as written in the line
    where: str  # "FILE line N"
    client: int | None
    position: int | None
    files: OwnFiles  # where its picture may lie
    values: Mapping[str, Any]  # the line itself

    @property
    def path(self) -> Path:
        assert isinstance(self.record.picture, Path)  # of an external run always
        return self.record.picture


Lists = Mapping[str, Sequence[Entry]]


@dataclass(frozen=True)
class ListFile:
    """The file of a list, and where its pictures may lie: below `files.root`, to which their paths are relative."""

    files: OwnFiles
    path: Path


def read_lists(
    sources: Mapping[str, ListFile], prompt: str | None, *, client: int | None = None,
    names: ClientNames = NUMBERED, classes: Sequence[str] = (),
) -> Lists:  # fmt: skip
    """{list name: entries} for all LISTS; an optional list without file is empty. Lines without a prompt get `prompt`,
    with a `client` all are of that one and need no id; other clients go by `names`. With `classes` each line names one
    of them, and has no text. InputError: a list of candidates is missing, a line is wrong, an id comes twice, an image
    is missing or no image."""
    form = _Form(prompt, client, names, tuple(classes))
    lists = {name: _read(sources[name], name, form) if name in sources else [] for name in LISTS}
    _check_entries([*itertools.chain.from_iterable(lists.values())])
    return lists if client is not None else _with_client(lists, names)


def _with_client(lists: Lists, names: ClientNames) -> Lists:
    """The lists as they are if every line of a client names it. If none does, all are of the one client of a run.
    InputError: some do and some do not, or the run has several clients."""
    of_clients = [entry for name in OF_CLIENTS for entry in lists[name]]
    silent = [entry for entry in of_clients if entry.client is None]
    if silent and (len(silent) < len(of_clients) or len(names.names) > 1):
        raise InputError(f"{silent[0].where} lacks the key 'client', which is {names.kind.words}")
    only = {entry: dataclasses.replace(entry, client=0) for entry in silent}
    return {name: [only.get(entry, entry) for entry in entries] for name, entries in lists.items()}


def _check_entries(entries: Sequence[Entry]) -> None:
    """InputError: an id comes twice, an image is missing or no image."""
    entry_by_id: dict[str, Entry] = {}
    for entry in entries:
        other = entry_by_id.setdefault(entry.record.id, entry)
        if other is not entry:
            raise InputError(
                f"{entry.where}: the id {entry.record.id!r} is taken ({other.where}); a record is in one list, once"
            )
    each(_check_header, _pictures({"": entries}).values())


def _check_header(entry: Entry) -> None:
    """InputError: an entry's image is missing, elsewhere or no image. What follows its header is not read."""
    with (
        entry.files.opened(entry.path, name=f"{entry.where}: image {entry.image}"),
        _readable(entry),
        user_files.picture(entry.path),
    ):
        pass


def read_candidates(source: ListFile) -> tuple[list[Entry], tuple[str, ...]]:
    """The records of one list, and the names of their clients in the order of their numbers, () if no line names any.
    Lines are those of a run's lists; a text needs no prompt yet. InputError: a line is wrong, some name clients or
    classes and some do not, an id comes twice, an image is missing or no image."""
    lines = list(source.files.lines(source.path, purpose="it lists the records to deal, one JSON object a line"))
    values = [parse(line, where) for line, where in lines]
    for n, value in enumerate(values):
        if isinstance(value, dict):
            value.setdefault("id", f"record-{n:06d}")
    named = [[value for value in values if isinstance(value, dict) and key in value] for key in ("class", "client")]
    for key, some in zip(("class", "client"), named, strict=True):
        if some and len(some) < len(values):
            where = next(where for (_, where), value in zip(lines, values, strict=True) if value not in some)
            raise InputError(f"{where} lacks the key {key!r}, which other lines have")
    classes = tuple(sorted({str(value["class"]) for value in named[0]}))
    clients = tuple(dict.fromkeys(str(value["client"]) for value in named[1]))
    form = _Form(IMAGE, None if clients else 0, ClientNames(clients), classes)
    places = [where for _, where in lines]
    entries = [
        _entry(source.files, CANDIDATES[0], value, where, form) for value, where in zip(values, places, strict=True)
    ]
    _check_entries(entries)
    return entries, clients


def without_copies(lists: Lists) -> tuple[Lists, int]:
    """The lists without those candidates that stand on both sides, and their number. Equal pixels, prompt and text make
    two records one, of which nobody can say whether it was trained on."""
    from fedaudit.tasks.duplicates import identities

    sides: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for name in CANDIDATES:
        for entry in lists[name]:
            sides.setdefault((entry.record.prompt, entry.record.text), {}).setdefault(name, []).append(entry)
    suspects = [sides_of_text for sides_of_text in sides.values() if len(sides_of_text) == len(CANDIDATES)]
    entries = [entry for sides_of_text in suspects for side in sides_of_text.values() for entry in side]
    identity = dict(zip(entries, identities([entry.path for entry in entries]), strict=True))
    copies: set[Entry] = set()
    for sides_of_text in suspects:
        on_both = set.intersection(*({identity[entry] for entry in side} for side in sides_of_text.values()))
        copies |= {entry for side in sides_of_text.values() for entry in side if identity[entry] in on_both}
    if not copies:
        return lists, 0
    return {name: [entry for entry in entries if entry not in copies] for name, entries in lists.items()}, len(copies)


def check_pixels(lists: Lists, some: Sample) -> int:
    """Decode the pictures that `some` chooses, and return how many non-members have the pixels of some member's
    picture. InputError names all that are truncated or damaged."""
    digests = dict(each(lambda entry: (entry.path, pixels(entry, small=True)), some([*_pictures(lists).values()])))
    members = {digests.get(entry.path) for entry in lists["members"]} - {None}
    return sum(digests.get(entry.path) in members for entry in lists["nonmembers"])


def pixels(entry: Entry, *, small: bool) -> bytes:
    """A digest of a picture's pixels; with `small`, of as few as its format gives once all bytes are read."""
    content = entry.files.read(entry.path, name=f"{entry.where}: image {entry.image}")
    with _readable(entry), user_files.picture(content) as picture:
        picture.verify()  # its checksums, which decoding does not look at
    with _readable(entry), user_files.picture(content) as picture:
        size = picture.size
        if small:
            picture.draft("RGB", (1, 1))
        return hashlib.sha256(f"{size}".encode() + user_files.rgb(picture).tobytes()).digest()


def check_clients(folder: Path, lists: Lists, cohorts: Sequence[Iterable[int]]) -> None:
    """InputError: a client that took part lacks a member or a non-member, or a record's client has no member and never
    took part. `cohorts` are the clients of each round."""
    clients = {name: {entry.client for entry in lists[name]} for name in CANDIDATES}
    for r, cohort in enumerate(cohorts):
        for client in cohort:
            for name, word in zip(CANDIDATES, ("member", "non-member"), strict=True):
                if client not in clients[name]:
                    raise InputError(
                        f"{folder / name}.jsonl: client {client} took part in round {r} and has no {word}; it needs at "
                        "least one member and one non-member to be measured"
                    )
    training_clients = clients["members"].union(*cohorts)
    for entry in (*lists["nonmembers"], *lists["reference"]):
        if entry.client not in training_clients:
            raise InputError(
                f"{entry.where}: client {entry.client} has no member and took part in no round; name the client whose "
                "distribution the record is from"
            )


def federation(
    lists: Lists, clients: int, score: str, classes: Sequence[str] = (), canaries: Collection[str] = ()
) -> Federation:
    """The federation of the lists with `clients` clients, with `classes` one of pictures that have these; pictures are
    read when used. `score`: as in `run.json`; `canaries`: ids of candidates that are canaries."""
    import numpy as np

    from fedaudit.tasks.base import Client, Federation, client_name
    from fedaudit.tasks.metrics import answer_scores, caption_scores

    def records(name: str, client: int | None = None) -> tuple[Record, ...]:
        return tuple(entry.record for entry in lists[name] if entry.client == client)

    made = []
    members = {entry.record.id for entry in lists["members"]}
    for k in range(clients):
        both = [entry.record for entry in candidates(lists, k)]
        own_records, own_canaries = ([r for r in both if (r.id in canaries) == is_one] for is_one in (False, True))
        used, included = (np.array([r.id in members for r in part], bool) for part in (own_records, own_canaries))
        reference = records("reference", k)
        present = {record.group for record in (*both, *reference)}
        made.append(
            Client(
                client_name(k), tuple(own_records), reference, used,
                classes=tuple(name for name in classes if name in present),
                canaries=tuple(own_canaries), canary_included=included, weightless=False,
            )
        )  # fmt: skip
    return Federation(
        clients=tuple(made),
        novel=records("novel"),
        test=records("test"),
        score=answer_scores if score == "answers" or classes else caption_scores,
        novel_test=records("novel_test"),
        classes=tuple(classes),
    )


def candidates(lists: Lists, client: int) -> list[Entry]:
    """Members and non-members of a client, in an order that tells nothing about membership.

    The order is by position if all of them have one, otherwise by a hash of the id: attacks query the first few
    candidates more often, and ids such as member-001 and other-001 would put all members first.
    """
    entries = [entry for name in CANDIDATES for entry in lists[name] if entry.client == client]
    placed = all(entry.position is not None for entry in entries)
    return sorted(entries, key=lambda e: (e.position or 0 if placed else 0, _id_hash(e.record.id), e.record.id))


def _id_hash(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class _Form:
    """The form that the lines of a run's lists have."""

    prompt: str | None  # of lines without one
    client: int | None  # of all lines; None: each line names its own
    names: ClientNames
    classes: tuple[str, ...]  # of which each line names one; without any, lines have a text

    def keys(self, name: str) -> tuple[dict[str, Kind], dict[str, Kind]]:
        """(Needed keys, optional keys) of a line in the list `name`."""
        needed: dict[str, Kind] = {**_OF_ALL, **({"class": one_of(*self.classes)} if self.classes else {"text": TEXT})}
        optional: dict[str, Kind] = {} if self.classes else {**_OF_TEXTS}
        if name in OF_CLIENTS and self.client is None:
            optional["client"] = self.names.kind
        if name in CANDIDATES:
            optional["position"] = INTEGER
        if self.client is not None:
            optional["id"] = needed.pop("id")
        return needed, optional


def _read(source: ListFile, name: str, form: _Form) -> list[Entry]:
    if name not in CANDIDATES and not os.path.lexists(source.path):
        return []
    lines = source.files.lines(source.path, purpose=f"it lists the {name} of all clients, one JSON object a line")
    return [_entry(source.files, name, parse(line, where), where, form) for line, where in lines]


def _entry(files: OwnFiles, name: str, value: Any, where: str, form: _Form) -> Entry:
    from fedaudit.tasks.base import Record

    values: dict[str, Any] = fields(value, where, *form.keys(name))
    number = form.names.number(values["client"]) if "client" in values else form.client
    picture = (files.root / values["image"]).absolute()
    name_of_record = values.get("id", f"{name} {where.rpartition(' ')[2]}")
    if form.classes:
        label = values["class"]
        record = Record(name_of_record, label, picture, IMAGE, label, (label,), where=where)
    else:
        prompt = values.get("prompt", form.prompt)
        if prompt is None:
            more = ", or run.json one for all" if form.client is None else ""
            raise InputError(f"{where} lacks a prompt; give it one{more}")
        references = tuple(values.get("references", [values["text"]]))
        record = Record(
            name_of_record, values.get("group", ""), picture, prompt, values["text"], references, where=where
        )
    return Entry(record, values["image"], where, number, values.get("position"), files, values)


def _pictures(lists: Lists) -> dict[Path, Entry]:
    """Each picture file once, with the first entry that uses it."""
    entries: dict[Path, Entry] = {}
    for entry in itertools.chain.from_iterable(lists.values()):
        entries.setdefault(entry.path, entry)
    return entries


@contextlib.contextmanager
def _readable(entry: Entry) -> Iterator[None]:
    """Turn any error of reading an entry's picture inside the `with` block into an InputError."""
    try:
        yield
    except Exception as error:  # damaged files make Pillow's readers raise nearly everything
        formats = ", ".join(user_files.FORMATS)
        raise InputError(
            f"{entry.where}: image {entry.image} is no readable image (damaged, or not one of {formats})"
        ) from error
