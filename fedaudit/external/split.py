"""Deals records for a training that is done elsewhere: an independent fair coin per record, before it begins.

Source: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023): with such coins one
training gives evidence that rests on no assumption about the data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.external.coins import (
    COINS,
    NATURAL,
    REFERENCE_SHARE,
    SEED_BYTES,
    Coins,
    commitment_of,
    describe,
    draw,
    picture_digests,
)
from fedaudit.external.files import OwnFiles
from fedaudit.external.records import OF_CLIENTS, Entry, ListFile, pixels, read_candidates
from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import each

if TYPE_CHECKING:
    from fedaudit.tasks.base import Federation

LEAST = 10  # candidates of a client: the coins of so many all fall alike once in 512 times, and are then flipped again
MEMBERS, NONMEMBERS, REFERENCE = OF_CLIENTS


@dataclass(frozen=True)
class SplitResult:
    """The result of `split`."""

    folder: Path
    counts: Mapping[str, int]  # records by list
    canaries: int
    merged: int  # copies of other records, which were left out
    two_classes: int  # records that were left out, as another class has the same pixels
    commitment: str

    @property
    def sentences(self) -> list[str]:
        """Sentences for the user: the numbers of records, and what to publish."""
        first = (
            f"{self.folder}: {self.counts[MEMBERS]} members to train on; {self.counts[NONMEMBERS]} non-members and "
            f"{self.counts[REFERENCE]} reference records to leave out"
        )
        copies = [f"{self.merged} copies of other records were left out: one record, one coin"] if self.merged else []
        if self.two_classes:
            copies += [f"{self.two_classes} records were left out: pictures under two classes, of which none is right"]
        canaries = [f"{self.canaries} of the members and non-members are canaries"] if self.canaries else []
        publish = f"commitment: {self.commitment} (publish it before the training; {COINS} tells the coins)"
        return [first, *canaries, *copies, publish]


def split(
    candidates: Path, out: Path, *, reference_share: float = REFERENCE_SHARE, canaries: int = 0,
    canary_kind: str = "mislabelled", linked: bool = False, seed: bytes | None = None,
) -> SplitResult:  # fmt: skip
    """Deal the records that the JSON lines of the file `candidates` list into members, non-members and reference
    records, and write the lists, their pictures and coins.json into the folder `out`, which must be empty or absent.

    Of each client's records of each class a share, drawn at random, is for reference; a fair coin each decides about
    the others. As many of these as `canaries` says, spread over clients and drawn at random, become canaries of a kind.
    The operating system draws the `seed` of 128 bits unless it is given. InputError: a line or a picture is wrong, a
    client has too few records, or `out` is not empty.
    """
    files = OwnFiles(candidates.parent, linked)
    entries, _ = read_candidates(ListFile(files, candidates))
    kept, merged, two_classes = _without_copies(entries)
    _claim(out)
    while True:
        drawn = seed or secrets.token_bytes(SEED_BYTES)
        reference = _reference(drawn, kept, reference_share)
        dealt = [entry for entry in kept if entry not in reference]
        _require_enough(candidates, dealt)
        if seed or not _one_sided(drawn, dealt):
            break
    chosen = _canaries(drawn, dealt, canaries)
    final = _with_canaries(kept, chosen, canary_kind, drawn, out)
    coins = Coins(drawn, "", frozenset(entry.record.id for entry in chosen), canary_kind if chosen else NATURAL, merged)
    lists: dict[str, list[Entry]] = {name: [] for name in OF_CLIENTS}
    for before, after in zip(kept, final, strict=True):
        side = MEMBERS if coins.of(after.record.id) else NONMEMBERS
        lists[REFERENCE if before in reference else side].append(after)
    return _write(out, lists, coins, two_classes)


def _without_copies(entries: Sequence[Entry]) -> tuple[list[Entry], int, int]:
    """The entries without those that have pixels and texts of an earlier one, and without pictures under two classes;
    and the numbers of both."""
    alike = each(lambda entry: pixels(entry, small=False), entries)
    if entries and "class" in entries[0].values:
        from fedaudit.tasks.duplicates import labelled_copies

        copies = labelled_copies(alike, [entry.record.text for entry in entries])
        return [entries[i] for i in copies.kept(len(entries))], len(copies.merged), len(copies.two_classes)
    first: dict[object, Entry] = {}
    for entry, digest in zip(entries, alike, strict=True):
        first.setdefault((digest, entry.record.prompt, entry.record.text), entry)
    return [*first.values()], len(entries) - len(first), 0


def _by_client(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    groups: dict[int, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.client or 0, []).append(entry)
    return groups


def _drawn(seed: bytes, purpose: str, entries: Iterable[Entry]) -> list[Entry]:
    """The entries in a random order, which is another one for each purpose."""
    return sorted(entries, key=lambda entry: draw(seed, purpose, entry.record.id))


def _reference(seed: bytes, entries: Sequence[Entry], share: float) -> set[Entry]:
    """The reference records: a share of each client's records of each class, at least one of a client."""
    chosen: set[Entry] = set()
    for of_client in _by_client(entries).values() if share else ():
        order = sorted(_drawn(seed, REFERENCE, of_client), key=lambda entry: entry.record.group)
        groups = [list(group) for _, group in itertools.groupby(order, key=lambda entry: entry.record.group)]
        some = [entry for group in groups for entry in group[: round(share * len(group))]]
        chosen |= {*(some or _drawn(seed, REFERENCE, of_client)[:1])}
    return chosen


def _require_enough(candidates: Path, dealt: Sequence[Entry]) -> None:
    """InputError: a client has fewer candidates than LEAST."""
    for of_client in _by_client(dealt).values() or [[]]:
        if len(of_client) < LEAST:
            name = of_client[0].values.get("client") if of_client else None
            whose = "it has" if name is None else f"client {name} has"
            raise InputError(
                f"--split {candidates}: {whose} {len(of_client)} records without those for reference, and coins need "
                f"{LEAST}; list more, or lower --reference-share"
            )


def _one_sided(seed: bytes, dealt: Sequence[Entry]) -> bool:
    """Whether all coins of some client fall alike."""
    coins = Coins(seed, "", frozenset(), NATURAL, 0)
    return any(len({coins.of(entry.record.id) for entry in some}) == 1 for some in _by_client(dealt).values())


def _canaries(seed: bytes, dealt: Sequence[Entry], number: int) -> list[Entry]:
    """The candidates that become canaries, in their own order: as many of each client as possible. InputError: there
    are too few."""
    from fedaudit.tasks.canaries import shares

    groups = [_drawn(seed, "chosen", some) for _, some in sorted(_by_client(dealt).items())]
    most = min(map(len, groups)) * len(groups)
    if number > most:
        raise InputError(f"--canaries {number}: at most {most} records can be canaries here, as many of each client")
    chosen = {entry for some, n in zip(groups, shares(number, len(groups)), strict=True) for entry in some[:n]}
    return [entry for entry in dealt if entry in chosen]


def _with_canaries(entries: Sequence[Entry], chosen: Sequence[Entry], kind: str, seed: bytes, out: Path) -> list[Entry]:
    """The entries, `chosen` ones as canaries of a kind, whose pictures may be made in the folder `out`. InputError: no
    other text is wrong for one."""
    import numpy as np

    from fedaudit.tasks.canaries import make

    rng = np.random.default_rng(int.from_bytes(draw(seed, "looks", ""), "big"))
    made = dict(zip(chosen, make(kind, [entry.record for entry in chosen], _federation(entries), rng), strict=True))
    return [_as(entry, made[entry], out) if entry in made else entry for entry in entries]


def _federation(entries: Sequence[Entry]) -> Federation:
    """A federation of one client that has all records."""
    import numpy as np

    from fedaudit.tasks.base import Client, Federation, client_name

    records = tuple(entry.record for entry in entries)
    classes = tuple(sorted({record.group for record in records})) if "class" in entries[0].values else ()
    client = Client(client_name(0), records, (), np.zeros(len(records), bool), classes=classes)
    return Federation((client,), (), (), classes=classes)


def _as(entry: Entry, record: Any, out: Path) -> Entry:
    """The entry with another record's texts and picture, which is written into `out` if it is made of numbers."""
    texts = {"class": record.group} if "class" in entry.values else {"text": record.text}
    if "references" in entry.values:
        texts["references"] = list(record.references)
    if "group" in entry.values:
        texts["group"] = record.group
    if not isinstance(record.picture, Path):
        from PIL import Image

        png = io.BytesIO()
        Image.fromarray(record.picture).save(png, "PNG")
        path = out / "images" / f"{hashlib.sha256(png.getvalue()).hexdigest()[:20]}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        write_atomic(path, png.getvalue())
        record = dataclasses.replace(record, picture=path)
    return dataclasses.replace(entry, record=record, values={**entry.values, **texts})


def _claim(out: Path) -> None:
    """Create the folder. InputError: it is not empty, or the disk refuses."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        full = any(out.iterdir())
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror or error}); name another folder") from error
    if full:
        raise InputError(f"--out {out}: there is something already; name a folder that is empty or not there yet")


def _write(out: Path, lists: Mapping[str, Sequence[Entry]], coins: Coins, two_classes: int) -> SplitResult:
    """Write pictures, lists and, last, coins.json."""
    digests = picture_digests(lists)
    for path, digest in digests.items():
        copy = out / _place(path, digest)
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            write_atomic(copy, path.read_bytes())
    for name, entries in lists.items():
        lines = [
            {**entry.values, "id": entry.record.id, "image": _place(entry.path, digests[entry.path])}
            for entry in _drawn(coins.seed, "order", entries)
        ]
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_atomic(out / f"{name}.jsonl", content.encode())
    described = [describe(entry, digests[entry.path]) for entries in lists.values() for entry in entries]
    coins = dataclasses.replace(coins, commitment=commitment_of(coins.seed, described))
    write_atomic(out / COINS, coins.text.encode())
    counts = {name: len(entries) for name, entries in lists.items()}
    return SplitResult(out, counts, len(coins.canaries), coins.merged, two_classes, coins.commitment)


def _place(picture: Path, digest: str) -> str:
    """The path of a picture in the folder of the lists: by its content, so that it tells nothing."""
    return f"images/{digest[:20]}{picture.suffix.lower()}"
