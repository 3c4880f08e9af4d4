"""Tables of a training on secret shares: what was revealed and sent, and how well a clustering server and colluding
users reconstruct clients' vectors from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.attacks.collude import LATTICE, recover_slices
from fedaudit.attacks.knowledge import Floats
from fedaudit.attacks.locate import GroupDistances, mutual_distances, trilaterate
from fedaudit.audits.statistics import mutual_information as mi
from fedaudit.audits.statistics import secfpp_distance
from fedaudit.audits.statistics.arrays import Ints
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.privacy.accountant import gaussian_epsilon
from fedaudit.privacy.secpc import Protocol
from fedaudit.privacy.sharing import Sharing
from fedaudit.tasks.base import client_name
from fedaudit.terms.threat_models import CLUSTERING_SERVER, COLLUDING_USERS
from fedaudit.trainers.secfpp import SecFPP
from fedaudit.trainers.transcript import Transcript

REVEALED = "round centres distances polynomials sums decoded absent wrong".split()
SENT = "round client shares masks answers".split()
LOCATED = "round centres rank pairs pairs_error slices slices_error public_error colluding colluding_error".split()
SCATTERED = "rank directions revealed noise epsilon".split()
DELTA = 1e-5  # at which the epsilon of the scatter's noise is told
POOLED = ("class_counts", "scatter", "moment")  # names of revealed tensors that are sums over all users
# what these tables read of `Method.reveals`, beside the attacks that say so themselves
READS = ("class_counts", "basis", "polynomials")
INFORMED = "centre points users d bits low high null_low null_high p theory".split()
EXCHANGES, LEAST = 100, 40  # permutations for the null; fewest points (clients times rounds) of an estimate
COLLUDING = "what colluders equations slices right error".split()


def tables(cell: Cell) -> dict[str, pd.DataFrame]:
    """The tables of a training on secret shares, by name: `revealed`, `sent`, `colluding`, `class_scatter`, which may
    be empty, and, unless the server asked for no distances, `located` and `distance_information`. Errors are squared
    and relative: 0 is exact, 1 is as good as guessing zeros."""
    transcript, method = transcript_of(cell), method_of(cell, ())
    assert isinstance(method, SecFPP)
    protocol = method.protocol(cell.plan.clients, entries=transcript.broadcast(0)["p_0"].numel())
    by_name = {"revealed": revealed_table(transcript), "sent": sent_table(transcript)}
    by_name["class_scatter"] = scatter_table(transcript, method)
    if any(transcript.distance_groups(r) for r in range(transcript.schedule.rounds)):
        by_name["located"] = located_table(transcript, protocol)
        by_name["distance_information"] = information_table(transcript, protocol)
    by_name["colluding"] = colluding_table(transcript, protocol)
    return by_name


def revealed_table(transcript: Transcript) -> pd.DataFrame:
    """A row per `round` about what the server learnt: numbers of `centres`, `distances` and `sums`, whether it learnt
    `polynomials` of distances, how many residues it `decoded` for all that, and the names of `absent` and `wrong`
    clients, joined by commas."""
    rows = []
    for r in range(transcript.schedule.rounds):
        facts, tensors = transcript.round(r)["revealed"], transcript.revealed(r)
        groups, summed = transcript.distance_groups(r), transcript.summed_groups(r)
        distances = tensors["distances"].numel() if groups else 0
        sums = len(summed) + sum(name in tensors for name in POOLED)
        names = [", ".join(map(client_name, facts[part])) for part in ("absent", "wrong")]
        rows.append((r, len(groups), distances, "polynomials" in tensors, sums, facts["decoded"], *names))
    return pd.DataFrame(rows, columns=REVEALED)


def scatter_table(transcript: Transcript, method: SecFPP) -> pd.DataFrame:
    """One row about the scatter of classes: the largest `rank` that it can have from all users but t, the number of
    `directions`, whether it was `revealed`, the std of the users' `noise` in an entry and its `epsilon` for one user's
    whole scatter. No row if users are clustered by prompts."""
    facts = transcript.round(0)["revealed"]
    if "rank" not in facts:
        return pd.DataFrame(columns=SCATTERED)
    epsilon = gaussian_epsilon(math.sqrt(2) / method.noise, DELTA)  # two users' scatters of length 1 are so far apart
    if "scatter" in transcript.revealed(0):
        row = facts["rank"], facts["directions"], True, method.noise, epsilon
    else:
        row = facts["rank"], facts["directions"], False, 0.0, math.nan
    return pd.DataFrame([row], columns=SCATTERED)


def sent_table(transcript: Transcript) -> pd.DataFrame:
    """A row per round and client: bytes of the `shares` and `masks` that it dealt to others, and of its `answers` to
    the server."""
    rows = []
    for r in range(transcript.schedule.rounds):
        by_kind = transcript.round(r)["revealed"]["sent"]
        none = [0] * transcript.schedule.clients
        by_client = zip(*(by_kind.get(kind, none) for kind in SENT[2:]), strict=True)
        rows += [(r, client_name(k), *sizes) for k, sizes in enumerate(by_client)]
    return pd.DataFrame(rows, columns=SENT)


def colluding_table(transcript: Transcript, protocol: Protocol) -> pd.DataFrame:
    """How well the last m users, who collude, recover the other users' last prompts and gradients from their shares: a
    row per `what` (prompts or gradients) and m (column colluders) from t, the number that the protocol tolerates, on.

    `equations` are those beyond t, `slices` the unknowns; `right` is the share of exact entries, 0 where nothing can be
    recovered, `error` the relative squared one.
    """
    rounds, n, t = transcript.schedule.rounds, protocol.users, protocol.tolerance.colluders
    rows = []
    for what, sharing in (("prompts", protocol.of_distances), ("gradients", protocol.of_sums)):
        r = next((r for r in reversed(range(rounds)) if what in transcript.held_shares(r)), None)
        if r is None:
            continue
        ell = sharing.slices
        true = slices_of(_view(transcript, range(n)), r, what, sharing)
        for m in (m for m in (range(t, t + ell + 1) if ell <= LATTICE else (t, t + 1, t + ell)) if m < n):
            slices = slices_of(_view(transcript, range(n - m, n)), r, what, sharing)
            others = slice(0, n - m)
            guess = np.zeros_like(true) if slices is None else slices
            right = 0.0 if slices is None else float((guess == true)[:, others].mean())
            rows.append((what, m, m - t, ell, right, _error(guess[:, others], true[:, others])))
    return pd.DataFrame(rows, columns=COLLUDING)


def located_table(transcript: Transcript, protocol: Protocol) -> pd.DataFrame:
    """How well the server reconstructs users from all distances up to a round: a row per round with distances.

    Columns: round; centres; rank of the equations, of so many pairs of users; pairs_error of distances between users;
    slices; slices_error of these distances slice by slice (NaN where slices are not revealed); public_error of prompts
    guessed from public states; colluding (t users) and colluding_error of prompts if these, who collude with the
    server, tell it their vectors.
    """
    n, t, sharing = protocol.users, protocol.tolerance.colluders, protocol.of_distances
    view = View(transcript, CLUSTERING_SERVER)
    whole: list[GroupDistances] = []
    slices: list[list[GroupDistances]] = [[] for _ in range(sharing.slices)]
    rows = []
    for r in (r for r in range(view.rounds) if transcript.distance_groups(r)):
        groups, tensors = view.distances(r)
        whole.append((groups, tensors["distances"].numpy()))
        sizes = np.array([len(group) for group in groups])
        for one, values in zip(slices, tensors.get("polynomials", ()), strict=False):
            one.append((groups, values.numpy() / (protocol.steps * sizes) ** 2))
        exact = slices_of(_view(transcript, range(n)), r, "prompts", sharing)
        true = np.moveaxis(exact / protocol.steps, 1, 0)  # [n, ell, length]
        located_users = mutual_distances(whole)
        public = _public(view, r, tensors.get("basis"), true.shape)
        slices_error = math.nan
        if "polynomials" in tensors:
            by_slice = [(mutual_distances(one).squared, true[:, s], public[:, s]) for s, one in enumerate(slices)]
            slices_error = float(np.mean([_pairs_error(squared, _squared(part)) for squared, part, _ in by_slice]))
            guess = np.stack([_trilaterated(part, squared, prior, t) for squared, part, prior in by_slice], axis=1)
        else:
            flat = [part.reshape(n, -1) for part in (true, public)]
            guess = _trilaterated(flat[0], located_users.squared, flat[1], t).reshape(true.shape)
        honest = slice(0, n - t)
        pairs_error = _pairs_error(located_users.squared, _squared(true.reshape(n, -1)))
        rows.append((
            r, len(groups), located_users.rank, n * (n - 1) // 2, pairs_error, len(slices), slices_error,
            _error(public, true), t, _error(guess[honest], true[honest]),
        ))  # fmt: skip
    return pd.DataFrame(rows, columns=LOCATED)


def information_table(transcript: Transcript, protocol: Protocol) -> pd.DataFrame:
    """Mutual information, in bits, between a distance and the length of a client's vector: SecFPP's MI(P; D²), measured
    on what a run revealed. A row for centres that the client belongs to (`what` "own") and one for others ("other"); a
    row is missing with fewer than `LEAST` points.

    For independent normal prompts P, D² tells about P what it tells about |P| (`audits.statistics.secfpp_distance`).
    Each round is estimated by itself, a point per client, and the rounds are averaged: clients hardly move between
    rounds, so pooled rounds would hold near copies, which a nearest-neighbour estimator takes for dependence. Both
    values are logarithms, centred among the clients of a centre. The interval is over clients; the null permutes
    distances within a centre. `theory` is the value of independent normal prompts with as many entries, and as many
    clients per centre as here on average.
    """
    points, d = _points(transcript, protocol)
    logs = np.log(points[["length", "distance"]].clip(lower=1e-300))
    points[["x", "y"]] = logs - logs.groupby([points.inside, points["round"], points.centre]).transform("mean")
    n, rng, rows = protocol.users, np.random.default_rng(protocol.users), []
    for inside in (True, False):
        of_side = points[points.inside == inside]
        rounds = [part.set_index("client") for _, part in of_side.groupby("round") if len(part) == n]
        if len(rounds) * n < LEAST:
            continue

        def estimate(clients: Ints, rounds: Sequence[pd.DataFrame] = rounds) -> float:
            return float(np.mean([mi.ksg(part.x[clients], part.y[clients]) for part in rounds]))

        i = mi.interval(estimate, n)
        null = [estimate(np.arange(n), [_permuted(part, rng) for part in rounds]) for _ in range(EXCHANGES)]
        users = round(of_side["size"].mean())
        bits = [mi.BITS * v for v in (i.value, i.low, i.high, *np.quantile(null, [0.025, 0.975]))]
        p = (1 + sum(one >= i.value for one in null)) / (1 + EXCHANGES)
        theory = mi.BITS * secfpp_distance.exact(users, d, inside=inside)
        rows.append(("own" if inside else "other", n * len(rounds), users, d, *bits, p, theory))
    return pd.DataFrame(rows, columns=INFORMED)


def _permuted(part: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return part.assign(y=part.groupby("centre").y.transform(rng.permutation))


def _points(transcript: Transcript, protocol: Protocol) -> tuple[pd.DataFrame, int]:
    """The points of `information_table`, and the number of entries of a vector. A row per round, client and side
    (`inside`: whether the client belongs to the centre), of the first such centre: `length`, the squared length of the
    client's vector, and `distance`, the squared one."""
    n, sharing = protocol.users, protocol.of_distances
    view = View(transcript, CLUSTERING_SERVER)
    rows, d = [], 0
    for r in (r for r in range(view.rounds) if transcript.distance_groups(r)):
        groups, tensors = view.distances(r)
        true = slices_of(_view(transcript, range(n)), r, "prompts", sharing) / protocol.steps
        lengths, d = np.square(true).sum(axis=(0, 2)), true.shape[0] * true.shape[2]
        for g, group in enumerate(groups):
            by_client = zip(range(n), lengths, tensors["distances"].numpy()[:, g], strict=True)
            rows += [(r, g, k in group, len(group), k, *numbers) for k, *numbers in by_client]
    points = pd.DataFrame(rows, columns=["round", "centre", "inside", "size", "client", "length", "distance"])
    return points.drop_duplicates(["round", "client", "inside"]), d


def slices_of(view: View, r: int, what: str, sharing: Sharing) -> Any:
    """The slices [ell, dealer, length] of all users' vectors (`what`: prompts or gradients) of round r that the view's
    colluding users recover from their shares; None if they cannot."""
    shares = view.shares(r)[what].numpy()  # [m, dealer, length]
    slices = recover_slices(sharing, view.users, shares.reshape(len(shares), -1))
    return None if slices is None else slices.reshape(sharing.slices, *shares.shape[1:])


def _view(transcript: Transcript, users: Sequence[int]) -> View:
    return View(transcript, COLLUDING_USERS, users=users)


def _trilaterated(true: Floats, squared: Floats, prior: Floats, t: int) -> Floats:
    """All users' vectors [n, d], reconstructed from squared distances [n, n] and the true vectors of the last t users;
    in directions that these leave open they stay at `prior` [n, d]."""
    colluders = slice(len(true) - t, None)
    return trilaterate(true[colluders], squared[:, colluders], prior)


def _public(view: View, r: int, basis: Tensor | None, shape: Sequence[int]) -> Floats:
    """Users' vectors [n, ell, length], guessed from public states: as if each prompt had moved as its cluster's global
    prompt. Zeros where the vectors are not the movements of prompts."""
    if "scatter" in view.distances(0)[1]:
        return np.zeros(shape)
    server = view.broadcast(r)
    change = (server["p_G"] - server["p_0"]).double()[server["cluster"].expand(shape[0])]
    length = change.flatten(1).norm(dim=1).clamp(min=1e-300)
    directions = change / length[:, None, None]
    flat = (directions if basis is None else directions @ basis).flatten(1).numpy()
    return np.pad(flat, ((0, 0), (0, shape[1] * shape[2] - flat.shape[1]))).reshape(shape)


def _squared(vectors: Floats) -> Floats:
    """Squared distances [n, n] between vectors [n, d]."""
    return np.square(vectors[:, None] - vectors[None]).sum(-1)


def _pairs_error(guess: Floats, true: Floats) -> float:
    """Error of distances between users [n, n]; 1 is as good as guessing their mean."""
    pairs = np.triu_indices(len(true), 1)
    return _error(guess[pairs] - true[pairs].mean(), true[pairs] - true[pairs].mean())


def _error(guess: Any, true: Any) -> float:
    """Squared error relative to the squared size of `true`; if that is 0, 0 where the guess is exact, else 1."""
    off, size = (float(np.square(part.astype(np.float64)).sum()) for part in (guess - true, true))
    return off / size if size else float(off > 0)
