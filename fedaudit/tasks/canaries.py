"""Canaries: records that each go into training or not by a coin, so that one run gives a lower bound of epsilon.

Some candidates of each client become canaries: unchanged, with a wrong label, or with a random picture. Models can only
memorise the last two. The coins are fair and independent of everything else, which is all that the one-run theorem
needs (`audits.statistics.one_run`). Source: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run"
(NeurIPS 2023).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.errors import InputError
from fedaudit.machinery.parameters import Parameters, choice, whole
from fedaudit.tasks.base import Client, Federation, Record

KEPT = 2  # members, and as many held-out records, that stay a client's candidates
CELLS = 8  # of a pattern's side at most
STREAM = 7  # of the generators (seed, STREAM, client, part): canaries change no other draw


@dataclass(frozen=True)
class Canaries(Parameters):
    canaries: int = whole(0, "records inserted by a coin flip each, over all clients; 0 = none", least=0, most=10**6)
    canary_kind: str = choice(
        "mislabelled",
        "mislabelled: another's label or text; ood: a picture of nothing; natural: as they are",
        ("mislabelled", "ood", "natural"),
    )


def insert(federation: Federation, params: Any, seed: int, *, holders: int | None = None) -> Federation:
    """The federation with `params.canaries` canaries, spread evenly over the first `holders` clients (all by
    default). params: has the fields of `Canaries`; with 0 canaries the federation is returned as it is."""
    if not params.canaries:
        return federation
    chosen = _choose(federation, params.canaries, seed, holders or len(federation.clients))
    texts = _Texts(
        federation, [c.records[i] for c, places in zip(federation.clients, chosen, strict=True) for i in places]
    )
    clients = []
    for k, (client, places) in enumerate(zip(federation.clients, chosen, strict=True)):
        coins, looks = (np.random.default_rng((seed, STREAM, k, part)) for part in (1, 2))
        made = [_make_canary(params.canary_kind, client.records[i], texts, looks) for i in places]
        clients.append(_replace_with_canaries(client, places, made, coins.random(len(places)) < 0.5))
    return dataclasses.replace(federation, clients=tuple(clients))


def make(kind: str, records: Sequence[Record], federation: Federation, rng: np.random.Generator) -> list[Record]:
    """Canaries of a kind made of some candidates of a federation, whose ids they keep. InputError: no other text is
    wrong for one."""
    texts = _Texts(federation, list(records))
    return [_make_canary(kind, record, texts, rng) for record in records]


def shares(n: int, holders: int) -> list[int]:
    """The number of canaries of each of `holders` clients, n in all; the first clients get the remainder."""
    return [n // holders + (k < n % holders) for k in range(holders)]


def _choose(federation: Federation, n: int, seed: int, holders: int) -> list[NDArray[np.int64]]:
    """For each client, the positions of the candidates that become canaries, drawn at random; none for clients from
    number `holders` on. InputError: a client has too few."""
    clients = federation.clients[:holders]
    alone = _unshared_candidates(federation)[:holders]
    generators = [np.random.default_rng((seed, STREAM, k, 0)) for k in range(len(clients))]
    free = [
        _convertible(client, unshared, rng) for client, unshared, rng in zip(clients, alone, generators, strict=True)
    ]
    room = [len(places) for places in free]
    for client, unshared, share, most in zip(clients, alone, shares(n, holders), room, strict=True):
        if share > most:
            valid = min(room) * len(clients) + room.index(min(room))  # the clients before that one give one more
            raise InputError(
                f"--canaries {n}: {client.name} would give {share} of its {len(client.records)} candidates; {KEPT} "
                f"members and {KEPT} held-out records stay, and {len(unshared)} show a picture that no other record "
                f"shows; valid here are 0 to {valid}"
            )
    chosen = [
        rng.choice(places, share, replace=False)
        for rng, places, share in zip(generators, free, shares(n, holders), strict=True)
    ]
    return chosen + [np.zeros(0, dtype=np.int64) for _ in federation.clients[holders:]]


def _unshared_candidates(federation: Federation) -> list[NDArray[np.int64]]:
    """For each client, the positions of the candidates whose picture no other record shows. A canary that is left
    out must not be trained on as another record."""
    digests = {name: record.digest for name, record in federation.records.items()}
    count = Counter(digests.values())
    return [np.flatnonzero([count[digests[r.id]] == 1 for r in client.records]) for client in federation.clients]


def _convertible(client: Client, places: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """`places` without the two members and two held-out records, drawn from all candidates, that must stay candidates;
    empty if the client has fewer of either."""
    roles = [rng.permutation(np.flatnonzero(role))[:KEPT] for role in (client.member, ~client.member)]
    return np.setdiff1d(places, np.concatenate(roles)) if min(map(len, roles)) == KEPT else places[:0]


def _replace_with_canaries(
    client: Client, places: NDArray[np.int64], made: list[Record], included: NDArray[np.bool_]
) -> Client:
    """The client without the candidates at `places`; its canaries are `made`, with new ids, and `included` [n] says
    which of them are trained on."""
    kept = np.delete(np.arange(len(client.records)), places)
    return dataclasses.replace(
        client,
        records=tuple(client.records[i] for i in kept),
        member=client.member[kept],
        canaries=tuple(dataclasses.replace(r, id=f"{client.name}-canary-{i:04d}") for i, r in enumerate(made)),
        canary_included=included,
    )


def _make_canary(kind: str, record: Record, texts: _Texts, rng: np.random.Generator) -> Record:
    """The canary of that kind ("mislabelled", "ood", else natural) made from a candidate, whose id it keeps."""
    if kind == "mislabelled":
        return texts.wrong(record, rng)
    if kind == "ood":
        height, width, _ = record.image.shape
        return dataclasses.replace(texts.any_label(record, rng), picture=_pattern(height, width, rng))
    return record


class _Texts:
    """Wrong labels or texts for canaries: the task's classes, or else the texts of other records."""

    def __init__(self, federation: Federation, canaries: list[Record]) -> None:
        self.classes, self.canaries = federation.classes, canaries
        self.candidates = [record for client in federation.clients for record in client.records]
        self.several = len({record.group for record in self.candidates}) > 1
        self.used: Counter[str] = Counter()

    def wrong(self, record: Record, rng: np.random.Generator) -> Record:
        """The record with another class; in tasks without classes, with text, references and group of a record of
        another group (of any other record if all are of one group). InputError: no other text is wrong for it.

        Texts come from the canaries if one of them fits, each used as rarely as possible: then no candidate and few
        other canaries have the same text.
        """
        if self.classes:
            return _labelled(record, [name for name in self.classes if name != record.group], rng)
        fitting = self._fitting(record, self.canaries) or self._fitting(record, self.candidates)
        if not fitting:
            raise InputError(
                f"--canary-kind mislabelled: no other text is wrong for {record.id} ({record.text!r}); valid here are "
                f"ood and natural"
            )
        other = min((fitting[i] for i in rng.permutation(len(fitting))), key=lambda r: self.used[r.text])
        self.used[other.text] += 1
        return dataclasses.replace(record, text=other.text, references=other.references, group=other.group)

    def any_label(self, record: Record, rng: np.random.Generator) -> Record:
        """The record with a random class, maybe its own; in tasks without classes, the record unchanged."""
        return _labelled(record, self.classes, rng) if self.classes else record

    def _fitting(self, record: Record, others: list[Record]) -> list[Record]:
        right = {record.text, *record.references}
        return [r for r in others if r.text not in right and (r.group != record.group or not self.several)]


def _labelled(record: Record, names: tuple[str, ...] | list[str], rng: np.random.Generator) -> Record:
    name = names[rng.integers(len(names))]
    return dataclasses.replace(record, group=name, text=name, references=(name,))


def _pattern(height: int, width: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A picture [height, width, 3] of random coloured blocks. Pixel noise would look alike to a model."""
    rows, columns = (np.arange(side) * rng.integers(2, CELLS + 1) // side for side in (height, width))
    colours: NDArray[np.uint8] = rng.integers(0, 256, (CELLS, CELLS, 3), np.uint8)
    return colours[rows][:, columns]
