"""What a training on secret shares told whom: tables of what was revealed and sent, and of what two adversaries make of
it, beside the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from attacks.base import View
from attacks.collude import LATTICE, recover_slices
from attacks.knowledge import Floats
from attacks.locate import GroupDistances, mutual_distances, trilaterate
from audits.statistics import mutual_information as mi
from audits.statistics import secfpp_distance
from audits.statistics.neighbours import Ints
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.privacy.secpc import Protocol
from fedaudit.privacy.sharing import Sharing
from fedaudit.tasks.base import client_name
from fedaudit.terms.threat_models import CLUSTERING_SERVER, COLLUDING_USERS
from trainers.base import Transcript

REVEALED = "round centres distances polynomials sums decoded absent wrong".split()
SENT = "round client shares masks answers".split()
LOCATED = "round centres rank pairs pairs_error slices slices_error public_error colluding colluding_error".split()
POOLED = ("scatter", "moment")  # sums over all users, by their names among what was revealed
INFORMED = "centre points users d bits low high null_low null_high p theory".split()
EXCHANGES, LEAST = 100, 40  # of the null; points of an estimate
COLLUDING = "what colluders equations slices right error".split()


def tables(cell: Cell) -> dict[str, pd.DataFrame]:
    """Of a training on shares. Errors are squared and relative: 0 is exact, 1 what a guess of nothing has."""
    transcript = transcript_of(cell)
    entries = transcript.broadcast(0)["p_0"].numel()
    protocol: Protocol = method_of(cell, ()).protocol(cell.plan.clients, entries=entries)  # type: ignore[attr-defined]
    found = {"revealed": revealed(transcript), "sent": sent(transcript)}
    if any(transcript.asked(r) for r in range(transcript.schedule.rounds)):
        found["located"] = located(transcript, protocol)
        found["distance_information"] = informed(transcript, protocol)
    found["colluding"] = colluding(transcript, protocol)
    return found


def revealed(transcript: Transcript) -> pd.DataFrame:
    """A row per round: how much of what the server decoded."""
    rows = []
    for r in range(transcript.schedule.rounds):
        facts, tensors = transcript.round(r)["revealed"], transcript.revealed(r)
        asked, summed = transcript.asked(r), transcript.summed(r)
        distances = tensors["distances"].numel() if asked else 0
        numbers = len(summed) + sum(name in tensors for name in POOLED)
        names = [", ".join(map(client_name, facts[who])) for who in ("absent", "wrong")]
        rows.append((r, len(asked), distances, "polynomials" in tensors, numbers, facts["decoded"], *names))
    return pd.DataFrame(rows, columns=REVEALED)


def sent(transcript: Transcript) -> pd.DataFrame:
    """A row per round and client: bytes of the shares and masks that it dealt and of its answers."""
    rows = []
    for r in range(transcript.schedule.rounds):
        kinds = transcript.round(r)["revealed"]["sent"]
        none = [0] * transcript.schedule.clients
        each = zip(*(kinds.get(kind, none) for kind in SENT[2:]), strict=True)
        rows += [(r, client_name(k), *own) for k, own in enumerate(each)]
    return pd.DataFrame(rows, columns=SENT)


def colluding(transcript: Transcript, protocol: Protocol) -> pd.DataFrame:
    """What m users who put their shares together learn of the others' last prompts and gradients, from m = t on."""
    rounds, n, t = transcript.schedule.rounds, protocol.users, protocol.tolerance.colluders
    rows = []
    for what, sharing in (("prompts", protocol.of_distances), ("gradients", protocol.of_sums)):
        r = next((r for r in reversed(range(rounds)) if what in transcript.held(r)), None)
        if r is None:
            continue
        ell = sharing.slices
        true = slices_of(_view(transcript, range(n)), r, what, sharing)
        for m in (m for m in (range(t, t + ell + 1) if ell <= LATTICE else (t, t + 1, t + ell)) if m < n):
            found = slices_of(_view(transcript, range(n - m, n)), r, what, sharing)
            others = slice(0, n - m)
            guess = np.zeros_like(true) if found is None else found
            right = 0.0 if found is None else float((guess == true)[:, others].mean())
            rows.append((what, m, m - t, ell, right, _error(guess[:, others], true[:, others])))
    return pd.DataFrame(rows, columns=COLLUDING)


def located(transcript: Transcript, protocol: Protocol) -> pd.DataFrame:
    """What the server makes of distances, by the round up to which it has seen them: of users' distances to each other,
    of these slice by slice, and of prompts, alone and with the vectors of t users who collude with it."""
    n, t, sharing = protocol.users, protocol.tolerance.colluders, protocol.of_distances
    view = View(transcript, CLUSTERING_SERVER)
    whole: list[GroupDistances] = []
    parts: list[list[GroupDistances]] = [[] for _ in range(sharing.slices)]
    rows = []
    for r in (r for r in range(view.rounds) if transcript.asked(r)):
        groups, seen = view.distances(r)
        whole.append((groups, seen["distances"].numpy()))
        sizes = np.array([len(group) for group in groups])
        for own, values in zip(parts, seen.get("polynomials", ()), strict=False):
            own.append((groups, values.numpy() / (protocol.steps * sizes) ** 2))
        exact = slices_of(_view(transcript, range(n)), r, "prompts", sharing)
        true = np.moveaxis(exact / protocol.steps, 1, 0)  # [n, ell, length]
        where = mutual_distances(whole)
        public = _public(view, r, seen.get("basis"), true.shape)
        apart = math.nan  # nothing is seen of slices
        if "polynomials" in seen:
            by_slice = [(mutual_distances(own).squared, true[:, s], public[:, s]) for s, own in enumerate(parts)]
            apart = float(np.mean([_apart(squared, _squared(own)) for squared, own, _ in by_slice]))
            guess = np.stack([_told(own, squared, prior, t) for squared, own, prior in by_slice], axis=1)
        else:
            flat = [part.reshape(n, -1) for part in (true, public)]
            guess = _told(flat[0], where.squared, flat[1], t).reshape(true.shape)
        honest = slice(0, n - t)
        rows.append((
            r, len(groups), where.rank, n * (n - 1) // 2, _apart(where.squared, _squared(true.reshape(n, -1))),
            len(parts), apart, _error(public, true), t, _error(guess[honest], true[honest]),
        ))  # fmt: skip
    return pd.DataFrame(rows, columns=LOCATED)


def informed(transcript: Transcript, protocol: Protocol) -> pd.DataFrame:
    """Bits that a distance holds about the length of a client's vector, of centres that the client is a part of and of
    others: SecFPP's MI(P; D²), measured on what a run revealed.

    Of independent normal prompts all that D² says of P it says of |P| (`audits.statistics.secfpp_distance`). Estimated
    in every round, whose points are the clients, a centre each, and averaged: clients hardly move between rounds, so
    that points of several rounds would be near copies of each other, which nearest neighbours take for dependence. Of
    both the logarithm is taken, less its mean among the clients of a centre. The interval is over clients, the null
    exchanges distances within a centre. `theory`: what independent normal prompts have, of as many entries, and as
    many clients to a centre as here on average.
    """
    points, d = _points(transcript, protocol)
    logs = np.log(points[["length", "distance"]].clip(lower=1e-300))
    points[["x", "y"]] = logs - logs.groupby([points.inside, points["round"], points.centre]).transform("mean")
    n, rng, rows = protocol.users, np.random.default_rng(protocol.users), []
    for inside in (True, False):
        own = points[points.inside == inside]
        rounds = [part.set_index("client") for _, part in own.groupby("round") if len(part) == n]
        if len(rounds) * n < LEAST:
            continue

        def estimate(who: Ints, rounds: Sequence[pd.DataFrame] = rounds) -> float:
            return float(np.mean([mi.ksg(part.x[who], part.y[who]) for part in rounds]))

        i = mi.interval(estimate, n)
        null = [estimate(np.arange(n), [_exchanged(part, rng) for part in rounds]) for _ in range(EXCHANGES)]
        users = round(own["size"].mean())
        bits = [mi.BITS * v for v in (i.value, i.low, i.high, *np.quantile(null, [0.025, 0.975]))]
        p = (1 + sum(one >= i.value for one in null)) / (1 + EXCHANGES)
        theory = mi.BITS * secfpp_distance.exact(users, d, inside=inside)
        rows.append(("own" if inside else "other", n * len(rounds), users, d, *bits, p, theory))
    return pd.DataFrame(rows, columns=INFORMED)


def _exchanged(part: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return part.assign(y=part.groupby("centre").y.transform(rng.permutation))


def _points(transcript: Transcript, protocol: Protocol) -> tuple[pd.DataFrame, int]:
    """A row per round, client and side, inside a centre or not, of the first centre for which that is so: the squared
    length of its vector and its distance; and the vectors' entries."""
    n, sharing = protocol.users, protocol.of_distances
    view = View(transcript, CLUSTERING_SERVER)
    rows, d = [], 0
    for r in (r for r in range(view.rounds) if transcript.asked(r)):
        groups, seen = view.distances(r)
        true = slices_of(_view(transcript, range(n)), r, "prompts", sharing) / protocol.steps
        lengths, d = np.square(true).sum(axis=(0, 2)), true.shape[0] * true.shape[2]
        for g, group in enumerate(groups):
            own = zip(range(n), lengths, seen["distances"].numpy()[:, g], strict=True)
            rows += [(r, g, k in group, len(group), k, *numbers) for k, *numbers in own]
    points = pd.DataFrame(rows, columns=["round", "centre", "inside", "size", "client", "length", "distance"])
    return points.drop_duplicates(["round", "client", "inside"]), d


def slices_of(view: View, r: int, what: str, sharing: Sharing) -> Any:
    """The slices [ell, dealer, length] of all users' vectors as the colluding users find them; None where they
    cannot."""
    shares = view.shares(r)[what].numpy()  # [m, dealer, length]
    found = recover_slices(sharing, view.users, shares.reshape(len(shares), -1))
    return None if found is None else found.reshape(sharing.slices, *shares.shape[1:])


def _view(transcript: Transcript, users: Sequence[int]) -> View:
    return View(transcript, COLLUDING_USERS, users=users)


def _told(true: Floats, squared: Floats, prior: Floats, t: int) -> Floats:
    """All vectors [n, d] for who knows those of the last t users and takes the squared distances for right."""
    known = slice(len(true) - t, None)
    return trilaterate(true[known], squared[:, known], prior)


def _public(view: View, r: int, basis: Tensor | None, shape: Sequence[int]) -> Floats:
    """Users' vectors [n, ell, length] as if their prompts had moved as the global prompts of their clusters did; of
    vectors that are not the prompts' movements nothing is public, and they are taken for 0."""
    if "scatter" in view.distances(0)[1]:
        return np.zeros(shape)
    server = view.broadcast(r)
    moved = (server["p_G"] - server["p_0"]).double()[server["cluster"].expand(shape[0])]
    length = moved.flatten(1).norm(dim=1).clamp(min=1e-300)
    directions = moved / length[:, None, None]
    flat = (directions if basis is None else directions @ basis).flatten(1).numpy()
    return np.pad(flat, ((0, 0), (0, shape[1] * shape[2] - flat.shape[1]))).reshape(shape)


def _squared(vectors: Floats) -> Floats:
    """Squared distances [n, n]."""
    found: Floats = np.square(vectors[:, None] - vectors[None]).sum(-1)
    return found


def _apart(found: Floats, true: Floats) -> float:
    """The error of distances of users to each other, 1 for who takes all of them to be alike."""
    pairs = np.triu_indices(len(true), 1)
    return _error(found[pairs] - true[pairs].mean(), true[pairs] - true[pairs].mean())


def _error(found: Any, true: Any) -> float:
    off, size = (float(np.square(part.astype(np.float64)).sum()) for part in (found - true, true))
    return off / size if size else float(off > 0)
