"""The test of a trade-off curve in one run: against sums as the paper writes them, an optimiser that knows no recursion,
numbers of public implementations, laws over grids, and mechanisms whose curve is known."""

import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from fedaudit.audits.statistics import one_run, trade_off
from fedaudit.audits.statistics.guesses import number_of_guesses, right_guesses
from fedaudit.audits.statistics.trade_off import GAUSSIAN, ceiling, epsilon_lower_bound, gaussian, p_value

M, R = 1000, 200


def slow_refutes(mu, correct, guesses, canaries, error):
    """Theorem 4.2 as it stands, with every p_i kept and both sums made anew, in 30 digits: the smallest p that obey it.

    f(x) = Phi(Phi^-1(1 - x) - mu); the least x with 1 - f(x) >= y is Phi(Phi^-1(y) - mu).
    """
    with mpmath.workdps(30):

        def phi(x):
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        def quantile(y):
            return mpmath.sqrt(2) * mpmath.erfinv(2 * y - 1) if y > mpmath.mpf(10) ** -8 else _tail(phi, y)

        p = [mpmath.mpf(0)] * (guesses + 1)
        p[correct] = mpmath.mpf(error)
        for i in range(correct - 1, -1, -1):
            right = sum(mpmath.mpf(j) / canaries * p[j] for j in range(i + 1, guesses + 1))
            wrong = sum(mpmath.mpf(guesses - j) / canaries * p[j] for j in range(i + 1, guesses + 1))
            if right >= 1:
                return True
            needed = phi(quantile(right) - mu)
            p[i] = max(mpmath.mpf(0), (needed - wrong) * canaries / (guesses - i))
            if sum(p) > 1:
                return True
        return False


def _tail(phi, y):
    return mpmath.findroot(lambda x: mpmath.log(phi(x)) - mpmath.log(y), -mpmath.sqrt(-2 * mpmath.log(y)))


@pytest.mark.parametrize("mu", [0.0, 0.2, 1.0, 3.0])
@pytest.mark.parametrize(
    ("correct", "guesses", "canaries"), [(1, 1, 1), (6, 7, 7), (7, 7, 20), (20, 30, 40), (28, 30, 30)]
)
def test_the_p_value_is_where_the_papers_sums_begin_to_refute(mu, correct, guesses, canaries):
    found = p_value(gaussian(mu), correct=correct, guesses=guesses, canaries=canaries)
    assert not slow_refutes(mu, correct, guesses, canaries, found * (1 - 1e-7))
    if found < 1:
        assert slow_refutes(mu, correct, guesses, canaries, found * (1 + 1e-7))


@pytest.mark.parametrize("mu", [0.3, 1.0])
@pytest.mark.parametrize(("correct", "guesses", "canaries"), [(3, 3, 3), (4, 5, 5), (5, 5, 9), (3, 6, 8)])
def test_no_distribution_that_obeys_the_theorem_is_right_more_often(mu, correct, guesses, canaries):
    """An optimiser over all distributions of the number of right guesses, which knows nothing of where the mass must lie."""
    j = np.arange(guesses + 1)

    def slack(p):
        right = [np.sum(j[i:] * p[i:]) / canaries for i in range(1, guesses + 1)]
        wrong = [np.sum((guesses - j[i:]) * p[i:]) / canaries for i in range(guesses)]
        return norm.cdf(norm.ppf(np.clip(wrong, 1e-12, 1 - 1e-12)) + mu) - np.array(right)

    def tail(p):
        return float(np.sum(p[correct:]))

    rng, best = np.random.default_rng(0), 0.0
    for _ in range(5):
        start = rng.dirichlet(np.ones(guesses + 1))
        rules = [{"type": "eq", "fun": lambda p: p.sum() - 1}, {"type": "ineq", "fun": slack}]
        about = {"bounds": [(0, 1)] * len(j), "constraints": rules, "options": {"maxiter": 500}}
        found = minimize(lambda p: -tail(p), start, **about)
        if found.success and slack(found.x).min() > -1e-7:
            best = max(best, tail(found.x))
    assert p_value(gaussian(mu), correct=correct, guesses=guesses, canaries=canaries) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "mu", "expected"),
    [
        (1000, 200, 150, 0.5, 0.4452939219869684),
        (1000, 200, 170, 0.5, 0.020635313544625205),
        (1000, 200, 190, 1.0, 0.11055983520194247),
        (100, 20, 18, 0.25, 0.011753787149723185),
        (500, 100, 80, 1.0, 1.0),
        (1000, 1000, 900, 1.0, 0.10819943704006613),
    ],
)
def test_p_values_of_a_public_implementation(canaries, guesses, correct, mu, expected):
    """Where `audit_rh_with_cap` of facebookresearch/PrivacyGuard, commit fb9c26c, begins to reject (60 halvings of log error)."""
    found = p_value(gaussian(mu), correct=correct, guesses=guesses, canaries=canaries)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "expected"),
    [
        (1000, 200, 150, 1.2969160950579595),
        (1000, 200, 190, 3.916104498950318),
        (1000, 1000, 1000, 12.334570155595598),
        (100, 20, 20, 3.2393925462725353),
        (1000, 200, 120, 0.21866447688741952),
    ],
)
def test_bounds_of_a_public_implementation(canaries, guesses, correct, expected):
    """`_epsilon_one_run_fdp` of google-deepmind/jax_privacy, commit 8967688: significance 0.05, delta 1e-5, xtol 1e-6."""
    found = epsilon_lower_bound(correct=correct, guesses=guesses, canaries=canaries, delta=1e-5)
    assert found == pytest.approx(expected, abs=2e-6)


def test_the_ceilings_that_the_documentation_names():
    found = {m: (one_run.ceiling(m, delta=1e-5), ceiling(m, canaries=m, delta=1e-5)) for m in (100, 1000)}
    assert [round(x, 2) for x in found[100]] == [3.49, 8.22]
    assert [round(x, 2) for x in found[1000]] == [5.78, 12.33]
    fifth = [(one_run.ceiling(m // 5, canaries=m, delta=1e-5), ceiling(m // 5, canaries=m, delta=1e-5)) for m in found]
    assert [[round(x, 2) for x in pair] for pair in fifth] == [[1.82, 3.24], [4.17, 7.26]]


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_mu_and_epsilon_are_inverse(mu, delta):
    epsilon = GAUSSIAN.epsilon(mu, delta)
    assert GAUSSIAN.mu(epsilon, delta) == pytest.approx(mu, rel=1e-6) or epsilon == 0
    if epsilon:
        tails = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        assert tails == pytest.approx(delta, rel=1e-6)


BOUNDS = pytest.mark.parametrize("lower_bound", [one_run.epsilon_lower_bound, epsilon_lower_bound])


@BOUNDS
@pytest.mark.parametrize("m", [1, 6, 40, 200])
def test_more_evidence_never_shows_less(m, lower_bound):
    """More right guesses, fewer wrong ones, fewer canaries behind as many guesses, a smaller delta, less confidence."""

    def bound(correct, guesses=m, canaries=m, delta=1e-4, confidence=0.95):
        about = {"correct": correct, "guesses": guesses, "canaries": canaries}
        return lower_bound(**about, delta=delta, confidence=confidence)

    laws = [
        [bound(v) for v in range(m + 1)],
        [bound(m // 2, guesses=r) for r in range(m, max(m // 2, 1) - 1, -1)],
        [bound(m, canaries=n) for n in (50 * m, 5 * m, m)],
        [bound(m, delta=delta) for delta in (0.1, 1e-3, 1e-5, 1e-9)],
        [bound(m, confidence=c) for c in (0.9999, 0.99, 0.95, 0.8, 0.51)],
    ]
    for law in laws:
        assert np.all(np.diff(law) >= -1e-9), law


@pytest.mark.parametrize("canaries", [10, 100, 1000])
def test_a_bound_is_the_last_mu_that_its_p_value_refutes(canaries):
    for correct in (canaries // 5, canaries // 5 - 1):
        about = {"correct": correct, "guesses": canaries // 5, "canaries": canaries}
        mu = trade_off.mu_lower_bound(**about)
        if mu:
            assert p_value(gaussian(mu), **about) <= 0.05 * (1 + 1e-6)
            assert p_value(gaussian(1.001 * mu), **about) > 0.05


@pytest.mark.parametrize("canaries", [7, 50, 1000])
def test_with_noise_alone_coins_are_tossed(canaries):
    """A mu of 0 leaves fair coins: the test of the curve is then never sharper than the binomial tail, which is exact."""
    for correct in range(canaries // 2, canaries + 1, max(1, canaries // 20)):
        exact = one_run.p_value(correct=correct, guesses=canaries, canaries=canaries, epsilon=0.0, delta=0.0)
        assert p_value(gaussian(0.0), correct=correct, guesses=canaries, canaries=canaries) >= exact * (1 - 1e-9)


@BOUNDS
@pytest.mark.parametrize(("correct", "guesses"), [(0, 0), (0, 20), (10, 20), (4, 4)])  # 1/16 is more than 5 %
def test_nothing_is_shown_without_evidence(correct, guesses, lower_bound):
    assert lower_bound(correct=correct, guesses=guesses, canaries=100, delta=1e-5) == 0


@BOUNDS
@pytest.mark.parametrize(
    "wrong",
    [{"correct": -1}, {"correct": 6}, {"guesses": 11}, {"delta": -1e-9}, {"delta": 1.1}, {"confidence": 1.0}, {"confidence": math.nan}],
)  # fmt: skip
def test_impossible_numbers_are_refused(wrong, lower_bound):
    with pytest.raises(ValueError, match="must"):
        lower_bound(**({"correct": 5, "guesses": 5, "canaries": 10, "delta": 1e-5} | wrong))


def test_a_certain_attack_refutes_no_mu_without_limit():
    assert not trade_off.refutes(gaussian(5.0), correct=20, guesses=20, canaries=100, error=0.05)
    assert p_value(gaussian(0.0), correct=0, guesses=10, canaries=10) == 1


def guessed(rng, mu, m=M):
    """Right guesses about m canaries of which a Gaussian mechanism releases each coin, moved by mu standard deviations."""
    coins = rng.random(m) < 0.5
    return right_guesses(mu * coins + rng.standard_normal(m), coins, np.full(m, ""))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_rarely_exceeds_a_known_gaussian(epsilon):
    """Of 500 at most 41 (0.999 of the binomial); benchmarks/measured_epsilon.py has all four epsilons."""
    rng, mu = np.random.default_rng(0), GAUSSIAN.mu(epsilon, 1e-5)
    found = [guessed(rng, mu) for _ in range(500)]
    bounds = {c: trade_off.mu_lower_bound(correct=c, guesses=R, canaries=M) for c in set(found)}
    assert sum(bounds[c] > mu for c in found) <= 41


def test_it_is_sharper_than_the_theorem_without_a_mechanism():
    rng, mu = np.random.default_rng(1), GAUSSIAN.mu(2.0, 1e-5)
    found = [{"correct": guessed(rng, mu), "guesses": R, "canaries": M, "delta": 1e-5} for _ in range(50)]
    sharp = np.mean([epsilon_lower_bound(**about) for about in found])
    assert sharp >= 1.4 * np.mean([one_run.epsilon_lower_bound(**about) for about in found]) > 0.5


def test_on_randomised_response_it_overstates():
    """Why its condition is printed with it: with epsilon 2 known, it shows more."""
    rng = np.random.default_rng(2)
    coins = rng.random(M) < 0.5
    said = np.where(rng.random(M) < 1 / (1 + math.exp(-2.0)), coins, ~coins).astype(float)
    about = {"correct": right_guesses(said, coins, np.full(M, "")), "guesses": R, "canaries": M, "delta": 1e-5}
    assert epsilon_lower_bound(**about) > 2.0 >= one_run.epsilon_lower_bound(**about)


class TestGuesses:
    def test_are_a_fifth_rounded_up_and_say_in_at_the_top_and_out_at_the_bottom(self):
        assert [number_of_guesses(m) for m in (0, 1, 5, 6, 100, 1000)] == [0, 1, 1, 2, 20, 200]
        coins, scores, one = np.array([True] * 5 + [False] * 5), np.arange(10.0)[::-1], np.full(10, "")
        assert right_guesses(scores, coins, one) == 2
        assert right_guesses(-scores, coins, one) == 0

    def test_scores_of_several_models_are_compared_by_rank(self):
        """One model's scores are all above the other's: each contributes its own extremes."""
        coins = np.array([True, True, False, False, False] * 2)
        scores = np.array([5.0, 4, 3, 2, 1, 500, 400, 300, 200, 100])
        model = np.array(["a"] * 5 + ["b"] * 5)
        assert right_guesses(scores, coins, model) == 2
        assert right_guesses(scores * np.where(model == "a", 1, 7), coins, model) == 2

    def test_what_has_no_score_is_guessed_about_last(self):
        coins = np.array([False, True, True, False, True] * 2)
        scores = np.array([1.0, 9.0] + [np.nan] * 8)
        assert right_guesses(scores, coins, np.full(10, "")) == 2

    def test_nothing_to_go_by_is_chance(self):
        """Constant scores and none at all: the order of the canaries decides, which knows no coin."""
        rng = np.random.default_rng(0)
        for scores in (np.zeros(50), np.full(50, np.nan)):
            right = [right_guesses(scores, rng.random(50) < 0.5, np.full(50, "")) for _ in range(2000)]
            assert np.mean(right) == pytest.approx(5, abs=0.15)
        assert right_guesses(np.zeros(0), np.zeros(0, bool), np.zeros(0, str)) == 0, "no canaries"
