"""Partitions of labelled records over clients, as functions of the labels alone.

`labels` [n] has a class per record (names or numbers). A partition is a list with one entry per client: the ascending
positions in `labels` of its records. Sources: pathological, DP-FPL (A.1); Dirichlet, DP-FPL (A.1) and SecFPP (5.1); few
shots with a dominant class, DP2FL (heterogeneity simulation).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaudit.machinery.errors import InputError

Labels = NDArray[Any]  # [n]
Share = NDArray[np.int64]  # positions of one client's records, ascending

DRAWS = 100  # how often a Dirichlet partition that leaves a client too little is drawn again
DROPPED, KEPT = 0.2, 0.25  # DP2FL: of the classes, and of the shots of each class that is left


def pathological(labels: Labels, clients: int, rng: np.random.Generator) -> list[Share]:
    """For each client, the ascending positions of its records in `labels`. Every class goes to one client, at random,
    with as many classes for each (or one more). InputError: more clients than classes."""
    names = np.unique(labels)
    if clients > len(names):
        raise InputError(
            f"--clients {clients}: a pathological split needs at least one class per client, and there are "
            f"{len(names)} classes; give --partition dirichlet, or fewer clients"
        )
    return [np.flatnonzero(np.isin(labels, classes)) for classes in np.array_split(rng.permutation(names), clients)]


def few_shot(labels: Labels, clients: int, shots: int, rng: np.random.Generator) -> list[Share]:
    """Draw `shots` records of every class of a pathological partition. InputError: a class has fewer."""
    shares = pathological(labels, clients, rng)
    return [_draw(labels, dict.fromkeys(np.unique(labels[share]), shots), rng) for share in shares]


def dominant(labels: Labels, clients: int, shots: int, rng: np.random.Generator) -> list[Share]:
    """For each client, the ascending positions of its records in `labels`, drawn as in DP2FL: `shots` records of one
    dominant class and a quarter as many of each other one, nothing of a fifth of the classes. InputError: a class has
    fewer records.

    With 16 shots: 16 records of the dominant class and 4 of each other. Every client draws from all records, so two
    clients may have the same one: few data sets are large enough for disjoint clients.
    """
    names = np.unique(labels)
    left, kept = len(names) - round(DROPPED * len(names)), max(1, round(KEPT * shots))
    shares = []
    for _ in range(clients):
        first, *others = rng.permutation(names)[:left]
        shares.append(_draw(labels, dict.fromkeys(others, kept) | {first: shots}, rng))
    return shares


def dirichlet(labels: Labels, clients: int, beta: float, rng: np.random.Generator, *, least: int = 1) -> list[Share]:
    """For each client, the ascending positions of its records in `labels`: each record of a class goes to client k with
    that class's own probability p_k, p ~ Dirichlet(beta). Every record has one client.

    The whole partition is drawn again, up to 100 times, until every client has `least` records; InputError if it never
    does. Rounding n p_k instead would starve the first client of data sets with many classes.
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
        f"of the {len(labels)} training records; raise --dirichlet, lower --clients or take more records"
    )


def _draw(labels: Labels, counts: dict[Any, int], rng: np.random.Generator) -> Share:
    """The ascending positions in `labels` of counts[name] records of each class, drawn without replacement. InputError:
    a class has fewer."""
    drawn = []
    for name, count in counts.items():
        there = np.flatnonzero(labels == name)
        if len(there) < count:
            raise InputError(f"--shots {count}: class {str(name)!r} has only {len(there)} training records")
        drawn.append(rng.choice(there, size=count, replace=False))
    return np.sort(np.concatenate(drawn))
