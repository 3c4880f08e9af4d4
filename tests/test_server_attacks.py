"""Attacks on what was seen of rounds: against slow loops and by hand, ties, absent clients, a planted leak."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedaudit.attacks import cosine, fedmia, slope, source
from fedaudit.attacks.knowledge import Floats, Knowledge, Rounds
from fedaudit.contracts.knowledge_toy import classified, toy_seen

pytestmark = pytest.mark.filterwarnings("error")
NAN = math.nan
ATTACKS: dict[str, Any] = {
    "cosine": cosine.Cosine(cosine.Params()),
    "fedmia": fedmia.FedMIA(fedmia.Params()),
    "slope": slope.Slope(slope.Params()),
    "source": source.Source(source.Params()),
}


def some_seen(rounds: Rounds | None, history: Floats | None = None) -> Knowledge:
    n = rounds.loss.shape[-1] if rounds is not None else 3 if history is None else history.shape[-1]
    labels, uniform = np.zeros(n, np.int64), np.full((n, 2), -math.log(2))
    ids = tuple(map(str, range(n)))
    return classified(ids, labels, np.zeros(n, bool), uniform, uniform, uniform, rounds=rounds, history=history)


def grids() -> dict[str, Rounds]:
    """Random sizes, one client, two and more; clients away in some rounds or in all; few levels (many ties), constants."""
    rng, found = np.random.default_rng(0), {}
    for case in range(24):
        T, K, n = rng.integers(1, 8), 1 + case % 5, rng.integers(1, 12)
        levels, away = rng.choice([1, 2, 3, 1000]), rng.random((T, K)) < rng.choice([0, 0.3, 0.8])
        loss = rng.integers(1, levels + 1, (T, K, n)) / 7
        cosines = rng.integers(-levels, levels + 1, (T, K, n)) / (levels + 0.1)
        loss[away] = cosines[away] = NAN
        found[f"{case}: {T}x{K}x{n}, {levels}"] = Rounds(int(rng.integers(K)), loss, cosines)
    return found


def mean(values: list[float]) -> float:
    """Of what is there; nan if nothing is."""
    there = [v for v in values if not math.isnan(v)]
    return sum(there) / len(there) if there else NAN


def slow_fedmia(values: Floats, client: int, i: int) -> float:
    found = []
    for row in values[:, :, i]:
        others = [v for k, v in enumerate(row) if k != client and not math.isnan(v)]
        if math.isnan(row[client]) or not others:
            continue
        if len(set(others)) == 1:
            found.append(1.0 if row[client] > others[0] else 0.5 if row[client] == others[0] else 0.0)
        else:
            found.append(norm.cdf((row[client] - np.mean(others)) / np.std(others, ddof=1)))
    return mean(found)


def slow_posterior(loss: Floats, client: int, i: int) -> float:
    rows = [row for row in loss[:, :, i] if not math.isnan(row[client])]
    return mean([math.log(math.exp(-row[client]) / np.nansum(np.exp(-row))) for row in rows])


def slow_slope(losses: Floats) -> float:
    there = [(t, v) for t, v in enumerate(losses) if not math.isnan(v)]
    if len(there) < 2:
        return NAN
    return float(np.polyfit([t for t, _ in there], [v for _, v in there], 1)[0])


def test_every_score_and_the_attributed_owner_equal_their_loops() -> None:
    for case, rounds in grids().items():
        seen = some_seen(rounds)
        found = {name: score for attack in ATTACKS.values() for name, score in attack.score(seen).items()}
        k, (_, K, n) = rounds.client, rounds.loss.shape
        own = [[v for v in rounds.cosine[:, k, i] if not math.isnan(v)] for i in range(n)]
        posterior = [[slow_posterior(rounds.loss, client, i) for client in range(K)] for i in range(n)]
        slow = {
            "cosine/mean": [mean(values) for values in own],
            "cosine/max": [max(values, default=NAN) for values in own],
            "fedmia/2": [slow_fedmia(rounds.cosine, k, i) for i in range(n)],
            "fedmia/1": [slow_fedmia(-rounds.loss, k, i) for i in range(n)],
            "source": [of_record[k] for of_record in posterior],
            "slope": [-slow_slope(rounds.loss[:, k, i]) for i in range(n)],
        }
        assert found.keys() == slow.keys()
        for name, expected in slow.items():
            np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-12, err_msg=f"{case}: {name}")
        for owner, of_record in zip(source.attribution(rounds), posterior, strict=True):
            known = [p for p in of_record if not math.isnan(p)]
            assert of_record[owner] == pytest.approx(max(known), abs=1e-12) if known else owner == -1, case


def test_others_that_agree_but_for_rounding_of_their_mean_are_a_tie() -> None:
    """The mean of seven times 0.1 is not 0.1 in floating point."""
    assert fedmia.all_for_one(np.full((1, 8, 1), 0.1), 3).tolist() == [0.5]


def test_losses_of_thousands_do_not_overflow() -> None:
    loss = np.array([[[5000.0], [5001.0]]])
    found = source.log_posterior(Rounds(0, loss, loss))[:, 0]
    np.testing.assert_allclose(found, [-math.log1p(math.exp(-1)), -1 - math.log1p(math.exp(-1))])


def test_a_constant_is_exactly_flat() -> None:
    """Whatever it is and whichever rounds are missing: nothing may order records whose losses do not move."""
    history = np.broadcast_to(np.linspace(0.1, 5, 99), (7, 99)).copy()
    history[2, 50:] = history[5, :70] = NAN
    assert (slope.least_squares_slope(history) == 0).all()


def test_the_slope_is_of_the_clients_own_loss_where_messages_are_seen() -> None:
    own = np.array([[3.0], [1.0]])
    loss = np.stack([own, own[::-1]], axis=1)
    seen = some_seen(Rounds(0, loss, loss), history=np.array([[1.0], [8.0]]))
    assert ATTACKS["slope"].score(seen)["slope"].tolist() == [2]
    assert ATTACKS["slope"].score(dataclasses.replace(seen, rounds=None))["slope"].tolist() == [-7]


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_without_what_it_needs_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="rounds"):
        ATTACKS[name].score(some_seen(None))


def test_the_owner_of_what_leaks_is_found() -> None:
    """Client 1 trained on the members alone: they are attributed to it more often than the others are."""
    seen, member = toy_seen(leak=4.0, records=400, known=100, shadows=4)
    owner = source.attribution(seen.rounds)
    assert (owner[member] == 1).mean() > 0.8
    assert (owner[~member] == 1).mean() < 0.4
