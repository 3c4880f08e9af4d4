"""What a distance says of a prompt: quadrature against simulation and against other quadratures; the printed theorem."""

import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, ncx2

from fedaudit.audits.statistics import mutual_information as mi
from fedaudit.audits.statistics import secfpp_distance as distance
from tests.closed_information import by_simulation


def slow_exact(n, d, inside):
    """Both entropies as sums over fine steps of |P|² and of D²."""
    m = n - 1 if inside else n
    lengths = (np.arange(200) + 0.5) / 200 * (d + 14 * math.sqrt(2 * d))
    conditional = []
    for length in lengths:
        x, step = np.linspace(1e-9, d + m * length + 14 * math.sqrt(2 * (d + 2 * m * length)), 2000, retstep=True)
        f = ncx2.pdf(x, d, m * length)
        conditional.append(-step * np.sum(f * np.log(f, out=np.zeros_like(f), where=f > 0)))
    whole = np.sum(chi2.pdf(lengths, d) * conditional) * (lengths[1] - lengths[0])
    return math.log(m + 1) + chi2(d).entropy() - whole


def moser(m, xi):
    """g_m of equation (13)."""
    tail = sum(
        (-1) ** j
        * (mpmath.e ** (-xi) * mpmath.factorial(j - 1) - mpmath.factorial(m - 1) / (j * mpmath.factorial(m - 1 - j)))
        * (1 / xi) ** j
        for j in range(1, m)
    )
    return mpmath.log(xi) - mpmath.ei(-xi) + tail


def test_equals_sums_over_fine_steps():
    assert [distance.exact(20, d) for d in (8, 120)] == pytest.approx([1.142, 1.163], abs=5e-4)
    for n, d, inside in ((3, 6, True), (5, 8, False)):
        assert distance.exact(n, d, inside=inside) == pytest.approx(slow_exact(n, d, inside), abs=1e-4), n


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (20, 8), (20, 120), (100, 3)])
def test_equals_simulation(n, d, inside):
    value, error = by_simulation(n, d, 20_000, np.random.default_rng([n, d]), inside=inside)
    assert abs(distance.exact(n, d, inside=inside) - value) < 3.5 * error


def test_ksg_of_the_squared_length_covers_it():
    """Of 12 at least 9 (0.998 of the binomial), as often as an interval of 95 % must."""
    covered = []
    for seed in range(12):
        drawn = distance.draws(20, 8, 200, np.random.default_rng(seed))
        lengths = (drawn.prompts**2).sum(axis=1)
        found = mi.interval(lambda rows, a=lengths, b=drawn.squared: mi.ksg(a[rows], b[rows]), 200)
        covered.append(found.low < distance.exact(20, 8) < found.high)
    assert sum(covered) >= 9


@pytest.mark.parametrize("d", [8, 120])
def test_ksg_of_the_prompt_itself_misses_most_of_it(d):
    drawn = distance.draws(20, d, 1000, np.random.default_rng(d))
    assert mi.ksg(drawn.prompts, drawn.squared) < 0.4 * distance.exact(20, d)


def test_draws_are_of_such_clusters():
    """Inside: by averaging n prompts of which the first is the one looked at."""
    rng = np.random.default_rng(0)
    for inside in (True, False):
        drawn = distance.draws(4, 3, 40_000, rng, inside=inside)
        cluster = rng.normal(size=(40_000, 4, 3))
        prompt = cluster[:, 0] if inside else rng.normal(size=(40_000, 3))
        squared = ((prompt - cluster.mean(axis=1)) ** 2).sum(axis=1)
        assert drawn.squared.mean() == pytest.approx(squared.mean(), rel=0.02)
        assert np.corrcoef((drawn.prompts**2).sum(1), drawn.squared)[0, 1] == pytest.approx(
            np.corrcoef((prompt**2).sum(1), squared)[0, 1], abs=0.02
        )
        assert np.corrcoef(drawn.prompts[:, 0], drawn.centres[:, 0])[0, 1] == pytest.approx(0.5 * inside, abs=0.02)


def test_the_centre_is_gaussian():
    rho = 1 / math.sqrt(20)  # of a coordinate of P with the same one of the centre
    assert distance.centre(20, 8) == pytest.approx(-4 * math.log(1 - rho**2))
    assert distance.centre(20, 8, inside=False) == 0


def test_the_printed_formula_with_the_papers_own_functions():
    """Equation (3), its integral over the length of a prompt with g_m in 40 digits."""
    mpmath.mp.dps = 40
    n, d = 20, 8
    integral = quad(lambda q: chi2.pdf(q, d) * float(mpmath.log(2) + moser(d // 2, mpmath.mpf(q) / 2)), 1e-6, 80)[0]
    entropy = math.log(2 * math.gamma(d / 2)) + (1 - d / 2) * mi.digamma(d / 2) + d / 2
    by_hand = entropy + integral + 2 * math.log(19 / 20)
    assert distance.printed(n, d) == pytest.approx(by_hand, abs=1e-4)
    assert distance.printed(n, d) == pytest.approx(5.26, abs=0.005)
    assert distance.chi2_entropy(d) == pytest.approx(chi2(d).entropy())


def test_what_grows_with_what_is_the_reverse_of_the_printed_reading():
    exact, printed = ([[f(n, d) for d in (8, 120)] for n in (10, 40)] for f in (distance.exact, distance.printed))
    assert abs(exact[0][1] - exact[0][0]) < 0.03
    assert exact[1][0] - exact[0][0] > 0.6
    assert printed[0][1] - printed[0][0] > 4
    assert abs(printed[1][0] - printed[0][0]) < 0.2
