"""The bound from a regression of messages on coins: against plain least squares, the noncentral t, and nulls by the binomial."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import binom, nct, norm

from fedaudit.attacks.knowledge import Mixture
from fedaudit.audits.statistics.regression import Coined, CoinRegression, Floats, Message, regress
from fedaudit.audits.statistics.trade_off import GAUSSIAN
from fedaudit.pipeline.noised_messages import message_of

NUMBERS, RECORDS, CANARIES = 60, 12, 8  # canaries are the last records


def raw(rng: np.random.Generator, rounds: int) -> tuple[list[Floats], Floats]:
    """Gradients [NUMBERS, RECORDS] of each round, and each record's coin."""
    return [rng.standard_normal((NUMBERS, RECORDS)) for _ in range(rounds)], (rng.random(RECORDS) < 0.5).astype(float)


def client(gradients: list[Floats], coins: Floats, sent: list[Floats], longest: float = 10.0) -> Coined:
    canary = np.arange(RECORDS) >= RECORDS - CANARIES
    messages = []
    for rows, message in zip(gradients, sent, strict=True):
        basis, upper = np.linalg.qr(rows)
        inside = basis.T @ message
        outside = float(message @ message - inside @ inside)
        messages.append(Message(upper, inside, RECORDS, outside, NUMBERS - RECORDS, longest))
    return Coined(messages, np.where(canary, coins - 0.5, 0.0), np.where(canary, 0.5, coins))


def noised(rng: np.random.Generator, *, clients: int = 3, std: float = 1.0, scale: float = 1.0) -> list[Coined]:
    found = []
    for _ in range(clients):
        gradients, coins = raw(rng, 2)
        sent = [scale * rows @ coins + std * rng.standard_normal(NUMBERS) for rows in gradients]
        found.append(client(gradients, coins, sent))
    return found


def test_is_least_squares_of_all_numbers_on_two_columns() -> None:
    """X and N laid end to end over clients and rounds, with what they leave, redrawn coins and both parts of it."""
    rng, all_x, all_n, all_y, clients, parts = np.random.default_rng(1), [], [], [], [], []
    for _ in range(3):
        gradients, coins = raw(rng, 2)
        sent = [rows @ coins + rng.standard_normal(NUMBERS) for rows in gradients]
        one = client(gradients, coins, sent)
        clients.append(one)
        all_x += [rows @ one.coins for rows in gradients]
        all_n += [rows @ one.expected for rows in gradients]
        all_y += sent
        parts.append((gradients, one.coins != 0))
    x, n, y = map(np.concatenate, (all_x, all_n, all_y))
    design = np.column_stack([x, n])
    fitted = np.linalg.lstsq(design, y, rcond=None)[0]
    left = (y - design @ fitted).reshape(3, 2, NUMBERS)
    apart = x - (x @ n) / (n @ n) * n
    outside = inside = by_coin = 0.0
    for rests, (gradients, canaries) in zip(left, parts, strict=True):
        along = sum(rows.T @ rest for rows, rest in zip(gradients, rests, strict=True))
        by_coin += np.square(along[canaries]).sum() / 4
        for rows, rest in zip(gradients, rests, strict=True):
            seen = rows @ np.linalg.lstsq(rows, rest, rcond=None)[0]
            outside, inside = outside + np.square(rest - seen).sum(), inside + np.square(seen).sum()
    spare = 6 * (NUMBERS - RECORDS)
    variance = max(outside / spare, inside / (6 * RECORDS - 2), by_coin / (apart @ apart))
    found = regress(clients)
    assert (found.scale, found.noise) == pytest.approx((fitted[0], math.sqrt(variance)))
    assert (found.length, found.spare) == (pytest.approx(np.linalg.norm(apart)), spare)
    assert found.longest == pytest.approx(math.sqrt(2) * 10)


@pytest.mark.parametrize("spare", [50, 400, 8000])
@pytest.mark.parametrize("t", [0.5, 3.0, 12.0, 60.0])
def test_the_bound_is_that_of_the_noncentral_t(t: float, spare: int) -> None:
    found = CoinRegression(scale=1.0, noise=1.0, length=t, spare=spare, longest=t)
    mean = found.mu_lower_bound()
    if t < 1:
        assert mean == 0
    else:
        assert nct.sf(t, spare, mean) == pytest.approx(0.05, abs=0.004)
    assert found.p_value(mean) == pytest.approx(0.05 if t > 1 else nct.sf(t, spare, 0.0), abs=0.01)
    assert found.expected_bound(t) == pytest.approx(mean, abs=1e-9)


def test_no_bound_is_above_what_the_noise_alone_allows() -> None:
    """Where messages hold more of a record than the longest gradient: L / s, less the error of s. p says the same."""
    found = CoinRegression(scale=3.0, noise=2.0, length=50.0, spare=800, longest=6.0)
    bound = found.mu_lower_bound()
    assert bound == pytest.approx(6 / 2 * (1 - norm.ppf(0.95) / math.sqrt(1600)))
    assert found.p_value(bound) == pytest.approx(0.05)
    assert found.p_value(6 / 2) == pytest.approx(0.5)
    assert found.scale_interval() == pytest.approx((3 - norm.ppf(0.95) * 2 / 50, 3 + norm.ppf(0.95) * 2 / 50))


@pytest.mark.parametrize("told", [0.25, 0.5, 0.8])
def test_gradients_that_are_told_too_short_show_no_more_than_the_truth(told: float) -> None:
    rng, runs, mu, above = np.random.default_rng(7), 100, 2 * math.sqrt(2), 0
    for _ in range(runs):
        gradients, coins = raw(rng, 2)
        gradients = [10 * rows / np.linalg.norm(rows, axis=0) for rows in gradients]
        sent = [rows @ coins + 5 * rng.standard_normal(NUMBERS) for rows in gradients]
        found = regress([client([told * rows for rows in gradients], coins, sent)])
        above += found.mu_lower_bound() > mu
    assert above <= binom.isf(0.0005, runs, 0.05)
    assert found.scale == pytest.approx(1 / told, rel=0.5)


def test_grows_with_the_planted_leak_and_falls_with_the_noise() -> None:
    """A tenth of the noise is ten times the mu; messages without a coin in them show nothing."""
    none, noisy, clear = (
        regress(noised(np.random.default_rng(5), std=std, scale=scale)).mu_lower_bound()
        for std, scale in ((1.0, 0.0), (1.0, 1.0), (0.1, 1.0))
    )
    assert none == 0
    assert 8 < clear / noisy < 12


def test_the_null_and_the_truth_are_exceeded_at_most_as_often_as_the_binomial_says() -> None:
    """300 runs without a coin in them, of 20 canaries each, and 300 with every coin, whose mu is 10 sqrt(2) / 20."""
    rng, runs = np.random.default_rng(7), 300
    above = {0.0: 0, math.sqrt(2) / 2: 0}
    for mu in above:
        for _ in range(runs):
            gradients, coins = raw(rng, 2)
            gradients = [10 * rows / np.linalg.norm(rows, axis=0) for rows in gradients]
            sent = [(mu > 0) * rows @ coins + 20 * rng.standard_normal(NUMBERS) for rows in gradients]
            found = regress([client(gradients, coins, sent)])
            above[mu] += found.mu_lower_bound() > mu
    assert max(above.values()) <= binom.isf(0.0005, runs, 0.05)


def test_members_told_wrongly_make_the_bound_smaller_and_not_wrong() -> None:
    told = noised(np.random.default_rng(11), clients=8)
    swapped = [np.where(one.coins == 0, 1 - one.expected, one.expected) for one in told]
    wrong = [dataclasses.replace(one, expected=expected) for one, expected in zip(told, swapped, strict=True)]
    first, second = regress(told), regress(wrong)
    assert second.noise > first.noise
    assert second.scale == pytest.approx(1, abs=0.3)


def test_nothing_to_regress_is_none() -> None:
    (one,) = noised(np.random.default_rng(0), clients=1)
    assert regress([dataclasses.replace(one, coins=np.zeros(RECORDS))]) is None
    full = [dataclasses.replace(message, outside=0.0, spare=0) for message in one.messages]
    assert regress([dataclasses.replace(one, messages=full)]) is None


def test_a_message_of_several_steps_has_the_noise_of_one() -> None:
    """Steps of weights 1, 2 and 2, of a batch of 4: a record in all is in it by 5 / 4, the noise is three times one step's."""
    rng = np.random.default_rng(3)
    gradients, sent = rng.standard_normal((7, 3)), rng.standard_normal(7)
    mixture = Mixture(
        0, gradients, sent, numbers=7, divisor=4.0, low=0.0, high=5.0, total=15.0, known="equal", scaled=False, std=0.3,
        lengths=np.ones(3), coefficients=np.array([1.0, 2.0, 2.0]),
    )  # fmt: skip
    message = message_of(mixture, clip_norm=2.0)
    np.testing.assert_allclose(message.gradients, gradients * 5 / 4 / 3)
    np.testing.assert_allclose(message.sent, sent / 3)
    inside = gradients @ np.linalg.lstsq(gradients, sent, rcond=None)[0]
    assert message.outside == pytest.approx(np.square(sent - inside).sum() / 9)
    assert (message.rank, message.spare, message.longest) == (3, 4, pytest.approx(2 * 5 / 4 / 3))


def test_half_of_the_truth_is_shown_by_a_thousand_canaries() -> None:
    """The law of the bound: 1 - 1.645 / (sqrt(canaries) mu / 2) of mu, where gradients are as long as clipping allows."""
    mu, canaries = GAUSSIAN.mu(2.0, 1e-5), 1000
    found = CoinRegression(scale=1.0, noise=1 / mu, length=math.sqrt(canaries) / 2, spare=10**5, longest=1.0)
    assert found.mu_lower_bound() == pytest.approx(mu - 2 * 1.645 / math.sqrt(canaries), rel=2e-3)
    assert 0.7 < GAUSSIAN.epsilon(found.mu_lower_bound(), 1e-5) / 2 < 0.85
