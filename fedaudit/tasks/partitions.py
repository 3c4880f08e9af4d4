"""Who holds which record: partitions of labelled records over clients, as functions of the labels alone.

`labels` [n] holds a class per record (names or numbers); a partition is a list of clients, each an ascending array of
positions in `labels`. Sources: pathological, DP-FPL (A.1); Dirichlet, DP-FPL (A.1) and SecFPP (5.1); shots with a
dominant class, DP2FL (heterogeneity simulation).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.errors import InputError

Labels = NDArray[Any]  # [n]
Share = NDArray[np.int64]  # positions of one client's records, ascending

DRAWS = 100  # how often a Dirichlet partition that leaves a client too little is drawn again
DROPPED, KEPT = 0.2, 0.25  # DP2FL: of the classes, and of the shots of each class that is left


def pathological(labels: Labels, clients: int, rng: np.random.Generator) -> list[Share]:
    """Every class belongs to one client, drawn at random; numbers of classes differ by one at most. Complete,
    disjoint."""
    names = np.unique(labels)
    if clients > len(names):
        raise InputError(
            f"--clients {clients}: a pathological split needs at least one class per client, and there are "
            f"{len(names)} classes"
        )
    return [np.flatnonzero(np.isin(labels, own)) for own in np.array_split(rng.permutation(names), clients)]


def few_shot(labels: Labels, clients: int, shots: int, rng: np.random.Generator) -> list[Share]:
    """`shots` records of every class of a pathological split, drawn at random. InputError: a class has fewer."""
    shares = pathological(labels, clients, rng)
    return [_draw(labels, dict.fromkeys(np.unique(labels[share]), shots), rng) for share in shares]


def dominant(labels: Labels, clients: int, shots: int, rng: np.random.Generator) -> list[Share]:
    """DP2FL: a client lacks a fifth of the classes, has a quarter of `shots` of each other one, and all of one dominant
    class.

    With 16 shots: 4 records of each class that is left, 16 = 4 + 12 of the dominant one. Every client draws from all
    records, so two clients may hold the same one: few data sets have enough for clients that share nothing.
    """
    names = np.unique(labels)
    left, kept = len(names) - round(DROPPED * len(names)), max(1, round(KEPT * shots))
    shares = []
    for _ in range(clients):
        first, *others = rng.permutation(names)[:left]
        shares.append(_draw(labels, dict.fromkeys(others, kept) | {first: shots}, rng))
    return shares


def dirichlet(labels: Labels, clients: int, beta: float, rng: np.random.Generator, *, least: int = 1) -> list[Share]:
    """Each record of a class goes to client k with the class's own probability p_k, p ~ Dirichlet(beta). Complete,
    disjoint.

    Drawn again as a whole, up to 100 times, until every client has `least` records: a Dirichlet partition given that.
    Records are dealt one by one rather than by rounding n p_k, which starves the first client of data sets with many
    classes.
    """
    for _ in range(DRAWS):
        owner = np.empty(len(labels), np.int64)
        for name in np.unique(labels):
            places = np.flatnonzero(labels == name)
            owner[places] = rng.choice(clients, size=len(places), p=rng.dirichlet(np.full(clients, beta)))
        sizes = np.bincount(owner, minlength=clients)
        if sizes.min() >= least:
            return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    raise InputError(
        f"--clients {clients} with --dirichlet {beta:g}: in each of {DRAWS} draws some client got fewer than {least} "
        f"of the "
        f"{len(labels)} training records; raise --dirichlet, lower --clients or take more records"
    )


def _draw(labels: Labels, counts: dict[Any, int], rng: np.random.Generator) -> Share:
    """counts[name] records of each class, without replacement."""
    drawn = []
    for name, count in counts.items():
        there = np.flatnonzero(labels == name)
        if len(there) < count:
            raise InputError(f"--shots {count}: class {str(name)!r} has only {len(there)} training records")
        drawn.append(rng.choice(there, size=count, replace=False))
    return np.sort(np.concatenate(drawn))
