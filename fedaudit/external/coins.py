"""Coins that decide before a training which records are its members: written by `--split`, checked when the run comes
back (docs/guides/coins.md, *Coins before training*).

The coin of a record is one bit of HMAC-SHA-256 of its id under a seed of 128 bits. Who published the commitment, the
SHA-256 of the seed and of the list of all records, before the training cannot have chosen coins or records after it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedaudit.external.files import OwnFiles
from fedaudit.external.records import CANDIDATES, OF_CLIENTS, Entry, Lists
from fedaudit.external.schema import TEXT, Kind, fields, one_line, one_of, parse
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError

COINS = "coins.json"
FORMAT = 1
SEED_BYTES = 16
REFERENCE_SHARE = 0.2  # of each client's records of each class, by default
NATURAL = "natural"
KINDS = ("mislabelled", "ood", NATURAL)  # of canaries, as in `fedaudit.tasks.canaries`

_HEX = {
    "seed": Kind(f"{2 * SEED_BYTES} hexadecimal digits", lambda v: _is_hex(v, SEED_BYTES)),
    "commitment": Kind("64 hexadecimal digits", lambda v: _is_hex(v, 32)),
}
_NEEDED = {
    "format": one_of(FORMAT),
    **_HEX,
    "canary_kind": one_of(*KINDS),
    "canaries": Kind("a list of ids", lambda v: isinstance(v, list) and all(TEXT.holds(name) for name in v)),
    "merged": Kind("a whole number, 0 or more", lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0),
}


def _is_hex(value: object, size: int) -> bool:
    digits = set("0123456789abcdef")
    return isinstance(value, str) and len(value) == 2 * size and set(value) <= digits


@dataclass(frozen=True)
class Coins:
    """The coins of a run."""

    seed: bytes
    commitment: str
    canaries: frozenset[str]  # ids of the candidates that were made canaries; none: any candidate is one
    kind: str  # of the canaries
    merged: int  # copies of other records that were left out before the coins

    def of(self, record: str) -> bool:
        """Whether the coin makes the record with this id a member."""
        return bool(draw(self.seed, "coin", record)[0] & 1)

    @property
    def text(self) -> str:
        """The content of coins.json."""
        about = {"format": FORMAT, "seed": self.seed.hex(), "commitment": self.commitment, "canary_kind": self.kind}
        return json.dumps(about | {"canaries": sorted(self.canaries), "merged": self.merged}, indent=1) + "\n"


def draw(seed: bytes, purpose: str, record: str) -> bytes:
    """32 random bytes for a record; each purpose has its own."""
    return hmac.digest(seed, f"{purpose}\0{record}".encode("utf-8", "surrogatepass"), "sha256")


def commitment_of(seed: bytes, lines: Iterable[str]) -> str:
    """The SHA-256, in hexadecimal, of a seed and of the lines that describe all records (`describe`)."""
    digest = hashlib.sha256(seed)
    for line in sorted(lines):
        digest.update(hashlib.sha256(line.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()


def describe(entry: Entry, picture: str) -> str:
    """A record in one line, whatever list it is in: what its line says, with the SHA-256 of the picture's file in place
    of its path and without its position."""
    values = {name: value for name, value in entry.values.items() if name not in ("image", "position")}
    return json.dumps({**values, "id": entry.record.id, "picture": picture}, sort_keys=True)


def picture_digests(lists: Lists) -> dict[Path, str]:
    """The SHA-256 of every picture file. InputError: one cannot be read."""
    paths = dict.fromkeys(entry.path for name in OF_CLIENTS for entry in lists[name])
    try:
        return {path: user_files.sha256(path) for path in paths}
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read ({error.strerror or error})") from error


def read_coins(files: OwnFiles, lists: Lists) -> Coins | None:
    """The coins in a run's folder; None if it has none. InputError: the lists are not those of the coins."""
    path = files.root / COINS
    if not os.path.lexists(path):
        return None
    about = fields(parse(files.read(path), str(path)), str(path), _NEEDED, {})
    coins = Coins(
        bytes.fromhex(about["seed"]), about["commitment"], frozenset(about["canaries"]), about["canary_kind"],
        about["merged"],
    )  # fmt: skip
    for name, member in zip(CANDIDATES, (True, False), strict=True):
        for entry in lists[name]:
            if coins.of(entry.record.id) != member:
                side = CANDIDATES[0] if not member else CANDIDATES[1]
                raise InputError(
                    f"{entry.where}: the coin of {one_line(entry.record.id)} says {side} ({path}); a record that was "
                    "moved or added after the coins were flipped is no evidence"
                )
    digests = picture_digests(lists)
    lines = [describe(entry, digests[entry.path]) for name in OF_CLIENTS for entry in lists[name]]
    if (computed := commitment_of(coins.seed, lines)) != coins.commitment:
        raise InputError(
            f"{path}: commits to other records than {', '.join(f'{name}.jsonl' for name in OF_CLIENTS)} hold "
            f"({coins.commitment[:12]}..., theirs is {computed[:12]}...); one was left out, added or changed after the "
            "coins were flipped"
        )
    unknown = coins.canaries - {entry.record.id for name in CANDIDATES for entry in lists[name]}
    if unknown:
        raise InputError(f"{path}, canaries: {one_line(min(unknown))} is no candidate")
    return coins
