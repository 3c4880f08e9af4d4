"""The one-run theorem: against hand calculations, a direct evaluation, laws over grids, and mechanisms whose epsilon is known."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from fedaudit.audits.statistics.one_run import ceiling, epsilon_lower_bound, needed_accuracy, p_value

REPETITIONS = 500
TOO_OFTEN = 41  # of 500 at 5 %: 42 or more have probability 0.001
assert binom.sf(TOO_OFTEN, REPETITIONS, 0.05) < 1.5e-3


def slow_p_value(correct, guesses, canaries, epsilon, delta):
    """The theorem as it stands, with f as a sum of integers times powers and i up to m."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))

    def f(v):
        return sum(math.comb(guesses, w) * q**w * (1 - q) ** (guesses - w) for w in range(max(v, 0), guesses + 1))

    terms = [(f(correct - i) - f(correct)) / i for i in range(1, canaries + 1)]
    return min(1.0, f(correct) + 2 * canaries * delta * max(terms))


@pytest.mark.parametrize(("guesses", "canaries"), [(1, 1), (7, 7), (7, 12), (30, 30)])
def test_the_p_value_is_the_formula(guesses, canaries):
    for epsilon, delta in itertools.product([0.0, 0.5, 3.0, 12.0], [0.0, 1e-5, 0.02, 1.0]):
        for correct in {0, 1, guesses // 2, guesses - 1, guesses}:
            found = p_value(correct=correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta)
            slow = slow_p_value(correct, guesses, canaries, epsilon, delta)
            assert found == pytest.approx(slow, rel=1e-9, abs=1e-12), (epsilon, delta, correct)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "epsilon", "delta", "expected"),
    [
        (1000, 200, 150, 0.5, 1e-5, 0.0006212078358387147),
        (1000, 200, 170, 1.0, 1e-5, 0.0006178602714948735),
        (1000, 1000, 600, 0.1, 1e-5, 0.00019130982309872288),
        (100, 20, 18, 0.5, 1e-5, 0.006562062043571669),
        (500, 100, 80, 1.0, 1e-3, 0.14419970402188775),
        (50, 50, 40, 0.7, 0.0, 0.029907657766142983),
    ],
)
def test_p_values_of_a_public_implementation(canaries, guesses, correct, epsilon, delta, expected):
    """`_one_run_p_value` of google-deepmind/jax_privacy, commit 8967688."""
    found = p_value(correct=correct, guesses=guesses, canaries=canaries, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("canaries", "confidence"), [(5, 0.95), (9, 0.999), (10, 0.999), (100, 0.9), (10_000, 0.95)])
def test_a_perfect_attack_by_hand(canaries, confidence):
    """Without delta: q^m = 1 - confidence, so epsilon = log q / (1 - q); nothing where even q = 1/2 could be luck."""
    q = (1 - confidence) ** (1 / canaries)
    expected = max(0.0, math.log(q / (1 - q)))
    assert ceiling(canaries, delta=0, confidence=confidence) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "delta"),
    [(18, 20, 20, 0.0), (18, 20, 25, 1e-4), (29, 30, 30, 1e-3), (40, 60, 60, 0.0)],
)
def test_the_bound_is_the_largest_refuted_epsilon_of_a_fine_grid(correct, guesses, canaries, delta):
    bound = epsilon_lower_bound(correct=correct, guesses=guesses, canaries=canaries, delta=delta)
    grid = [*np.arange(0, 6, 0.1), *bound + np.arange(-0.02, 0.021, 0.005)]
    refuted = [e for e in grid if slow_p_value(correct, guesses, canaries, e, delta) <= 0.05]
    assert bound == pytest.approx(max(refuted), abs=0.0051)
    assert p_value(correct=correct, guesses=guesses, canaries=canaries, epsilon=bound, delta=delta) <= 1 - 0.95


@pytest.mark.parametrize("m", [1, 10, 200])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_the_needed_accuracy_is_the_smallest_that_shows_epsilon(m, epsilon):
    share = needed_accuracy(m, epsilon=epsilon, delta=1e-5)
    if math.isinf(share):
        assert ceiling(m, delta=1e-5) <= epsilon
        return
    v = round(share * m)
    assert v / m == share
    assert epsilon_lower_bound(correct=v, guesses=m, canaries=m, delta=1e-5) >= epsilon - 1e-9
    assert epsilon_lower_bound(correct=v - 1, guesses=m, canaries=m, delta=1e-5) <= epsilon


def test_nothing_is_shown_without_evidence_and_what_100_canaries_need():
    assert needed_accuracy(100, epsilon=0.5, delta=1e-5) == 0.71
    assert epsilon_lower_bound(correct=70, guesses=100, canaries=100, delta=1e-5) == pytest.approx(0.4714, abs=1e-4)
    assert epsilon_lower_bound(correct=5, guesses=5, delta=0.0, canaries=100) > 0
    assert ceiling(100, delta=1.0) == 0 == ceiling(100, delta=0.5), "such a delta allows everything"
    assert ceiling(0, delta=0.0) == 0
    assert needed_accuracy(4, epsilon=0.0, delta=0.0) == math.inf
    with pytest.raises(ValueError, match="epsilon must"):
        needed_accuracy(10, epsilon=-0.1, delta=0)


def _randomised_response(rng, n, epsilon):
    """Whether each of n guesses is right when every coin is told truly with probability e^epsilon / (1 + e^epsilon)."""
    return rng.random(n) < 1 / (1 + math.exp(-epsilon))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_the_bound_rarely_exceeds_a_known_epsilon(epsilon):
    """Randomised response of 120 coins is epsilon-DP and the theorem is tight for it: 5 % exceed, no more and not much fewer."""
    rng, m = np.random.default_rng(1), 120
    right = [int(_randomised_response(rng, m, epsilon).sum()) for _ in range(REPETITIONS)]
    bound = {v: epsilon_lower_bound(correct=v, guesses=m, canaries=m, delta=0) for v in set(right)}
    exceeded = sum(bound[v] > epsilon for v in right)
    assert exceeded <= TOO_OFTEN
    assert exceeded >= 5, "a bound that never exceeds is not this one"


def test_delta_is_paid_for():
    """A training that shows every coin with probability delta and is epsilon-DP otherwise: without its delta it is convicted too often."""
    rng, m, epsilon, delta = np.random.default_rng(2), 20, 0.5, 0.12
    shown = (rng.random() < delta for _ in range(REPETITIONS))
    right = [m if all_of_it else int(_randomised_response(rng, m, epsilon).sum()) for all_of_it in shown]
    exceeded = {}
    for d in (delta, 0.0):
        bound = [epsilon_lower_bound(correct=v, guesses=m, canaries=m, delta=d) for v in range(m + 1)]
        exceeded[d] = sum(bound[v] > epsilon for v in right)
    assert exceeded[delta] <= TOO_OFTEN < exceeded[0.0]


def test_abstaining_does_not_break_the_bound():
    """Guesses about the 40 canaries of 160 whose noisy statistic is the furthest from 0 (Laplace noise, epsilon = 1)."""
    rng, m, r, epsilon = np.random.default_rng(3), 160, 40, 1.0
    bound = np.array([epsilon_lower_bound(correct=v, guesses=r, canaries=m, delta=0) for v in range(r + 1)])
    right = []
    for _ in range(REPETITIONS):
        coins = rng.choice((-1, 1), m)
        seen = coins + rng.laplace(0, 2 / epsilon, m)
        sure = np.argsort(-np.abs(seen))[:r]
        right.append(int((np.sign(seen[sure]) == coins[sure]).sum()))
    assert np.sum(bound[right] > epsilon) <= TOO_OFTEN
    assert np.mean(bound[right]) > 0.2, "positive control"
