"""Federations for classification: a labelled data set, a partition of it over clients, and a coin for every record.

A fixed part of a client's share, drawn at random, becomes its reference records; a fair coin makes each other record a
member or a held-out record. (With `holdout` 0 all records are members.) So members, held-out and reference records of a
client are exchangeable. A picture that two clients have (`dominant`) has the same role for both: nobody trains on what
is held out. Copies of a picture are merged before (`duplicates`).

Several data sets make a federation of several domains (SecFPP, 5.1): of two, the first half of the clients share the
first, the others the second. All clients choose among the classes of all domains; equal names are one class.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.errors import InputError, nearest
from fedaudit.tasks import duplicates, partitions
from fedaudit.tasks.base import IMAGE, Client, Federation, Record, client_name, coin_flips
from fedaudit.tasks.metrics import answer_scores
from fedaudit.tasks.partitions import Share

Picture = NDArray[np.uint8] | Path | bytes
Pictures = Sequence[Picture] | NDArray[np.uint8]  # pixels [n, H, W, 3] are a sequence of pictures, too

SHOTS = 16  # of the dominant partition where none are asked for (DP2FL)
LEAST = 4  # records of a client that can be attacked: one for reference, one member, one held out, one for the coin
UNDEALT, REFERENCE, HELD_OUT, MEMBER = range(4)  # roles of a training record


@dataclass(frozen=True, eq=False)
class Labelled:
    """A data set: pictures with one class each, for training and for testing. InputError: a class has no record."""

    name: str  # as the flag calls it
    classes: tuple[str, ...]
    pictures: Pictures
    labels: NDArray[np.int64]  # [len(pictures)], indices into `classes`
    test_pictures: Pictures
    test_labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        for kind, labels in (("training", self.labels), ("test", self.test_labels)):
            if not len(labels):
                raise InputError(f"{self.name} has no {kind} records")
            empty = np.flatnonzero(np.bincount(labels, minlength=len(self.classes)) == 0)
            if len(empty):
                raise InputError(f"{self.name}: class {self.classes[empty[0]]!r} has no {kind} records")

    @property
    def names(self) -> NDArray[np.str_]:
        """Class name of each training record [len(pictures)]."""
        return np.array(self.classes)[self.labels]


def split_names(value: str, valid: Collection[str], *, flag: str) -> list[str]:
    """The names in `value`, which is NAME or NAME+NAME and so on. InputError: one is not valid, or stands twice."""
    names = [name.strip() for name in value.split("+")]
    for name in names:
        if name not in valid:
            raise InputError(f"{flag} {value}: no {name!r}{nearest(name, valid)}; there are {', '.join(valid)}")
    if len(set(names)) < len(names):
        raise InputError(f"{flag} {value}: give one name, or different ones as in A+B")
    return names


def federate(domains: Sequence[Labelled], *, params: Any, clients: int, seed: int) -> Federation:
    """The federation over one data set or several (domains, each with clients of its own). params: has the fields of
    `Partitioned`. InputError: there are too few clients or records."""
    classes = tuple(dict.fromkeys(name for domain in domains for name in domain.classes))
    if clients < len(domains):
        raise InputError(f"--clients {clients}: {len(domains)} domains need at least a client each")
    domains, remarks = _without_copies(domains)
    everyone: list[Client] = []
    shared: dict[str, str] = {}
    for d, (domain, numbers) in enumerate(zip(domains, np.array_split(np.arange(clients), len(domains)), strict=True)):
        try:
            shares = _partition(domain, params, len(numbers), np.random.default_rng((seed, 0, d)))
        except InputError as error:
            if len(domains) == 1:
                raise
            raise InputError(f"{domain.name}, for {len(numbers)} of {clients} clients: {error}") from None
        roles, first = np.full(len(domain.labels), UNDEALT), dict[int, str]()
        for k, share in zip(numbers.tolist(), shares, strict=True):
            _deal(roles, share, k, params, seed)
            client, names = _client(k, domain, share, roles, classes, seed)
            everyone.append(client)
            shared |= {name: first[n] for n, name in names.items() if n in first}
            first = names | first
    return Federation(
        clients=tuple(everyone),
        novel=(),
        test=tuple(record for domain in domains for record in _test(domain, several=len(domains) > 1)),
        score=answer_scores,
        classes=classes,
        shared=shared,
        remarks=remarks,
    )


def _without_copies(domains: Sequence[Labelled]) -> tuple[list[Labelled], tuple[str, ...]]:
    """The data sets with one of each picture that is in them several times, a training one if there is any, and without
    pictures under two classes; and sentences on what was left out. InputError: a class has no picture left."""
    listed = [*_listed(domains, test=False), *_listed(domains, test=True)]
    pixels = duplicates.identities([one.picture for one in listed])
    copies = duplicates.labelled_copies(pixels, [one.label for one in listed])
    remarks = tuple(_said(copies, listed))
    if not remarks:
        return list(domains), ()
    kept: dict[tuple[int, bool], list[int]] = {(d, test): [] for d in range(len(domains)) for test in (False, True)}
    for i in copies.kept(len(listed)):
        kept[listed[i].domain, listed[i].test].append(listed[i].place)
    try:
        return [_chosen(one, kept[d, False], kept[d, True]) for d, one in enumerate(domains)], remarks
    except InputError as error:
        raise InputError(f"{error} that are left: {' '.join(remarks)}") from None


@dataclass(frozen=True, eq=False)
class _Listed:
    """A picture at its place in a data set's training or test list."""

    picture: Picture
    label: str
    domain: int
    test: bool
    place: int
    data_set: str

    @property
    def name(self) -> str:
        if isinstance(self.picture, Path):
            return duplicates.file_name(self.picture)
        return f"{self.data_set} {'test' if self.test else 'training'} picture {self.place}"


def _listed(domains: Sequence[Labelled], *, test: bool) -> Iterator[_Listed]:
    for d, one in enumerate(domains):
        pictures, labels = (one.test_pictures, one.test_labels) if test else (one.pictures, one.labels)
        for place, (picture, label) in enumerate(zip(pictures, labels.tolist(), strict=True)):
            yield _Listed(picture, one.classes[label], d, test, place, one.name)


def _chosen(domain: Labelled, train: list[int], test: list[int]) -> Labelled:
    return dataclasses.replace(
        domain,
        pictures=[domain.pictures[i] for i in train],
        labels=domain.labels[train],
        test_pictures=[domain.test_pictures[i] for i in test],
        test_labels=domain.test_labels[test],
    )


def _said(copies: duplicates.Copies, listed: Sequence[_Listed]) -> Iterator[str]:
    """Sentences on the pictures that are left out."""

    def name(i: int) -> str:
        return listed[i].name

    if merged := copies.merged:
        test = [i for i in merged if listed[i].test]
        across = sum(not listed[merged[i]].test for i in test)
        yield (
            f"pictures left out as their pixels are those of another one: {len(merged)} (twice in training: "
            f"{len(merged) - len(test)}, in training and test: {across}, twice in test: {len(test) - across}), "
            f"{duplicates.pairs(merged, name)}."
        )
    if torn := copies.two_classes:
        yield (
            f"pictures left out as each stands under two classes, and no class is right for it: {len(torn)}, "
            f"{duplicates.pairs(torn, name)}."
        )


def _partition(domain: Labelled, params: Any, clients: int, rng: np.random.Generator) -> list[Share]:
    """For each client, the positions of its records in a domain's training set. InputError: a client would have too
    few. A dirichlet partition always keeps enough for holding out, so that it is the same with `holdout` 0."""
    if params.partition == "dirichlet":
        return partitions.dirichlet(domain.names, clients, params.dirichlet, rng, least=LEAST)
    if params.partition == "dominant":
        fewest = int(np.unique(domain.names, return_counts=True)[1].min())
        shares = partitions.dominant(domain.names, clients, params.shots or min(SHOTS, fewest), rng)
    elif params.shots:
        shares = partitions.few_shot(domain.names, clients, params.shots, rng)
    else:
        shares = partitions.pathological(domain.names, clients, rng)
    least, needed = min(len(share) for share in shares), LEAST if params.holdout else 1
    if least < needed:
        raise InputError(
            f"--clients {clients}: a client would hold {least} records of {domain.name} and needs {needed}; "
            "lower --clients, or raise --shots or the number of training records"
        )
    return shares


def _deal(roles: NDArray[np.int64], share: Share, k: int, params: Any, seed: int) -> None:
    """Write into `roles` a role (member, held-out or reference) for those of client k's records that have none yet.
    InputError: a role has no record."""
    if not params.holdout:
        roles[share] = MEMBER
        return
    deal, coins = (np.random.default_rng((seed, 1, k, part)) for part in (1, 2))
    new = deal.permutation(share[roles[share] == UNDEALT])
    kept = max(1, round(params.reference_share * len(new))) if len(new) else 0
    roles[new[:kept]] = REFERENCE
    roles[new[kept:]] = np.where(coin_flips(len(new) - kept, coins), MEMBER, HELD_OUT)
    missing = {REFERENCE, HELD_OUT, MEMBER} - set(roles[share].tolist())
    if missing:
        raise InputError(
            f"{client_name(k)} has {len(share)} records, too few for members, held-out and reference records; "
            "raise --shots, or lower --clients or --reference-share"
        )


def _client(
    k: int, domain: Labelled, share: Share, roles: NDArray[np.int64], classes: tuple[str, ...], seed: int
) -> tuple[Client, dict[int, str]]:
    """(Client k with its records in random order, {index of a training picture of the domain: record id})."""
    name, order = client_name(k), np.random.default_rng((seed, 1, k, 3)).permutation(share)
    records = [_record(f"{name}-{i:04d}", domain, domain.pictures[n], domain.labels[n]) for i, n in enumerate(order)]
    dealt, present = roles[order], {record.group for record in records}
    client = Client(
        name,
        records=tuple(record for record, role in zip(records, dealt, strict=True) if role != REFERENCE),
        reference=tuple(record for record, role in zip(records, dealt, strict=True) if role == REFERENCE),
        member=dealt[dealt != REFERENCE] == MEMBER,
        classes=tuple(one for one in classes if one in present),
    )
    return client, {int(n): record.id for n, record in zip(order, records, strict=True)}


def _test(domain: Labelled, *, several: bool) -> list[Record]:
    """All test records of a domain; with `several` domains their ids name it."""
    first = f"test-{domain.name}" if several else "test"
    pairs = enumerate(zip(domain.test_pictures, domain.test_labels, strict=True))
    return [_record(f"{first}-{i:05d}", domain, picture, label) for i, (picture, label) in pairs]


def _record(name: str, domain: Labelled, picture: Picture, label: int) -> Record:
    label_name = domain.classes[label]
    return Record(name, label_name, picture, IMAGE, label_name, (label_name,), domain.name)
