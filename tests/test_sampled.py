"""The test of a trade-off curve where steps are Poisson samples: the curve of a privacy profile against a search over
pairs, that of sampled Gaussian steps against what likelihood ratios reach, and bounds where the truth is known."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from fedaudit.audits.epsilon import hypotheses, privacy_table
from fedaudit.audits.measured import Hypothesis
from fedaudit.audits.statistics import trade_off
from fedaudit.audits.statistics.guesses import number_of_guesses, right_guesses
from fedaudit.audits.statistics.sampled import PoissonSampled
from fedaudit.audits.statistics.trade_off import gaussian, of_profile, p_value
from fedaudit.privacy.accountant import PoissonRun, provable
from fedaudit.privacy.ledger import Ledger, Mechanism, RoundNoise, Turn
from fedaudit.privacy.settings import Privacy
from tests.test_measured import bounds_of

DELTA = 1e-5
RATES = (1e-7, 1e-4, 0.003, 0.05, 0.2, 0.5, 0.8, 0.97, 0.9999)  # of true positives


def family(mu: float, rate: float, steps: int) -> PoissonSampled:
    return PoissonSampled(PoissonRun(((((mu, steps),), rate),)))


def ratio(x: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """Log-likelihood ratio [n] of observations [n, steps]: sampled steps over steps without the record."""
    return np.log1p(rate * np.expm1(mu * x - mu**2 / 2)).sum(-1)


def observed(rng: np.random.Generator, coins: np.ndarray, mu: float, rate: float, steps: int) -> np.ndarray:
    sampled = (rng.random((len(coins), steps)) < rate) & coins[:, None]
    return rng.standard_normal((len(coins), steps)) + mu * sampled


def test_the_curve_of_a_profile_is_the_largest_of_all_its_pairs() -> None:
    epsilons, deltas = [0.0, 0.3, 1.0, 4.0], [0.3, 0.2, 0.05, 1e-6]
    curve = of_profile(epsilons, deltas)
    for y in np.linspace(0, 1, 101):
        pairs = zip(epsilons, deltas, strict=True)
        slow = max(max(0.0, (y - d) / math.exp(e), 1 - d - math.exp(e) * (1 - y)) for e, d in pairs)
        assert curve(y) == pytest.approx(slow, abs=1e-12)
    assert of_profile([0.0], [0.0])(0.3) == pytest.approx(0.3)  # nothing is told apart
    assert of_profile([0.0], [1.0])(1.0) == 0.0  # nothing is promised


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_curve_of_a_gaussians_profile_is_its_own(mu: float) -> None:
    epsilons = np.linspace(0, 30, 601)
    profile = norm.cdf(-epsilons / mu + mu / 2) - np.exp(epsilons) * norm.cdf(-epsilons / mu - mu / 2)
    curve = of_profile(epsilons.tolist(), profile.tolist())
    for y in RATES:
        assert gaussian(mu)(y) * (0.99 if y > 1e-6 else 0.9) <= curve(y) <= gaussian(mu)(y) * (1 + 1e-9)


def test_samples_of_everybody_are_a_gaussian() -> None:
    sampled = family(0.5, 1.0, 4)
    about = {"correct": 150, "guesses": 200, "canaries": 1000}
    both = [trade_off.epsilon_lower_bound(**about, delta=DELTA, family=f) for f in (sampled, trade_off.GAUSSIAN)]
    assert 0.99 * both[1] < both[0] <= both[1]
    p = [p_value(curve, **about) for curve in (sampled.curve(1.0), gaussian(1.0))]
    assert p[0] == pytest.approx(p[1], rel=0.02)
    assert p[0] >= p[1]


@pytest.mark.parametrize(("mu", "rate"), [(2.0, 0.3), (0.8, 0.1)])
def test_no_threshold_on_the_ratio_of_one_step_beats_the_curve_and_some_is_as_good(mu: float, rate: float) -> None:
    x, curve = np.linspace(-8, 12, 2001), family(mu, rate, 1).curve(1.0)
    without = norm.sf(x)
    sampled = (1 - rate) * norm.sf(x) + rate * norm.sf(x - mu)
    # x above a threshold means "in"; below it "out", where a false positive is a sampled one
    for false, true in ((without, sampled), (1 - sampled, 1 - without)):
        least = np.array([curve(y) for y in true])
        assert (least <= false * (1 + 1e-6) + 1e-12).all()
    sharp = without > 1e-4
    least = np.array([curve(y) for y in sampled[sharp]])
    other = np.array([curve(y) for y in 1 - without[sharp]])
    assert (least / without[sharp]).max() > 0.99
    assert (other / (1 - sampled[sharp])).max() > 0.99


def test_the_curve_of_many_steps_against_simulation() -> None:
    mu, rate, steps, n = 0.8, 0.2, 20, 100_000
    curve, rng = family(mu, rate, steps).curve(1.0), np.random.default_rng(0)
    with_it, without = (ratio(observed(rng, np.full(n, c), mu, rate, steps), mu, rate) for c in (True, False))
    for at in np.quantile(with_it, (0.5, 0.8, 0.95)):
        true, false = (with_it > at).mean(), (without > at).mean()
        assert curve(true) <= false + 4 * math.sqrt(false / n)
        assert curve(true) > 0.9 * false - 4 * math.sqrt(false / n)


def test_mu_and_epsilon_are_inverse() -> None:
    sampled = family(0.3, 0.1, 50)
    for mu in (0.5, 1.0, 3.0):
        assert sampled.mu(sampled.epsilon(mu, DELTA), DELTA) == pytest.approx(mu, rel=2e-3)
    assert sampled.epsilon(0.0, DELTA) == 0.0


def test_what_is_proven_is_refuted_by_chance_only() -> None:
    """The best guesses there are, by likelihood ratios, of a mechanism that is what it says: at most 41 of 500 at 5 %."""
    mu, rate, steps, m = 0.5, 0.2, 20, 500
    curve, rng = family(mu, rate, steps).curve(1.0), np.random.default_rng(0)
    p_of = functools.cache(lambda right: p_value(curve, correct=right, guesses=number_of_guesses(m), canaries=m))
    p = []
    for _ in range(500):
        coins = rng.random(m) < 0.5
        scores = ratio(observed(rng, coins, mu, rate, steps), mu, rate)
        p.append(p_of(right_guesses(scores, coins, np.full(m, ""))))
    assert sum(one <= 0.05 for one in p) <= 41
    assert min(p) < 0.5  # they tell something


def ledger(sizes: tuple[int, ...], steps: tuple[int, ...], *, sampler: str = "poisson") -> Ledger:
    noise = Mechanism(
        release="p_G", party="client", clip="record", clip_norm=1.0, sensitivity=0.25, std=0.5, dimension=4,
        sampler=sampler, batch=4,
    )  # fmt: skip
    each = enumerate(zip(sizes, steps, strict=True))
    turns = [Turn(client=k, records=n, steps=t, shuffles=t if sampler == "epochs" else 0) for k, (n, t) in each]
    return Ledger.of([RoundNoise(mechanisms=(noise,), turns=tuple(turns))], shared=("p_G",))


def test_the_most_exposed_clients_count() -> None:
    run = PoissonRun.of(ledger((10, 10, 40, 80), (5, 9, 20, 20)))
    assert run.clients == ((((0.5, 9),), 0.4), (((0.5, 20),), 0.1))
    assert run.epsilon(DELTA) == provable(ledger((10, 40), (9, 20)), threat_model="server", delta=DELTA).epsilon
    alone = [PoissonRun((one,)).deltas([0.1, 1.0]) for one in run.clients]
    assert run.deltas([0.1, 1.0]) == [*map(max, *alone)]
    assert run.unsampled == pytest.approx(0.5 * math.sqrt(20))
    assert PoissonSampled.of(ledger((10,), (9,))).run.unsampled == pytest.approx(1.0)
    assert run.scaled(2.0).clients[0] == (((1.0, 9),), 0.4)


@pytest.mark.parametrize(("sampler", "words"), [("poisson", "Gaussian on Poisson samples"), ("epochs", "Gaussian")])
def test_the_bound_says_what_the_ledger_proves(sampler: str, words: str) -> None:
    ran, method = ledger((40,), (5,), sampler=sampler), SimpleNamespace(local=(), shared=("p_G",), central=())
    table = privacy_table(ran, method, Privacy(epsilon=9.0), ("prompt-user", "server"))
    said = hypotheses(table, ran)["prompt-user"]
    any_, gaussian_ = bounds_of({"prompt-user": said})
    assert (any_.mechanism, gaussian_.mechanism) == ("", words)
    assert f"if the mechanism is {words} (95 %" in gaussian_.sentence
    assert (gaussian_.value > said.provable) == (gaussian_.p_provable < 0.05)
    curve = said.family.curve(said.family.mu(said.provable, DELTA))
    assert gaussian_.p_provable == p_value(curve, correct=20, guesses=20, canaries=100)


def test_what_no_guesses_can_show_is_never_refuted() -> None:
    assert bounds_of({"prompt-user": Hypothesis(1e6, 1e5, family(0.3, 0.1, 10))})[1].p_provable == 1.0
    assert family(0.5, 0.1, 5).curve(0.0)(0.3) == pytest.approx(0.3)
