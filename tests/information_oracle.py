"""Estimators of mutual information as they are printed, one loop per sum, and closed forms: what the fast ones must equal."""

import math

import numpy as np
from scipy.special import digamma


def _distance(a, b):
    return max(abs(float(p) - float(q)) for p, q in zip(a, b, strict=True))


def _others(a):
    n = len(a)
    return [[_distance(a[i], a[j]) for j in range(n)] for i in range(n)]


def ksg(x, y, k, estimator):
    """Kraskov et al. 2004, equations 8 and 9, on arrays [n, p] and [n, q] as they are."""
    n, dx, dy = len(x), _others(x), _others(y)
    total = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        near = sorted(others, key=lambda j: max(dx[i][j], dy[i][j]))[:k]
        if estimator == 1:
            reach = max(dx[i][near[-1]], dy[i][near[-1]])
            nx, ny = (sum(d[i][j] < reach for j in others) for d in (dx, dy))
            total += digamma(nx + 1) + digamma(ny + 1)
        else:
            nx, ny = (sum(d[i][j] <= max(d[i][m] for m in near) for j in others) for d in (dx, dy))
            total += digamma(nx) + digamma(ny)
    return digamma(k) + digamma(n) - total / n - (1 / k if estimator == 2 else 0)


def ross(label, x, k):
    """Ross 2014, equation 2, every label having two points."""
    n, d = len(x), _others(x)
    total = 0.0
    for i in range(n):
        own = [j for j in range(n) if j != i and label[j] == label[i]]
        near = min(k, len(own))
        reach = sorted(d[i][j] for j in own)[near - 1]
        inside = 1 + sum(d[i][j] < reach for j in range(n) if j != i)
        total += digamma(near) - digamma(len(own) + 1) - digamma(inside)
    return digamma(n) + total / n


def mixed(x, y, k):
    """Gao et al. 2017, algorithm 1, with the authors' psi(n_x + 1)."""
    n, dx, dy = len(x), _others(x), _others(y)
    total = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        reach = sorted(max(dx[i][j], dy[i][j]) for j in others)[k - 1]
        if reach == 0:
            near = 1 + sum(max(dx[i][j], dy[i][j]) == 0 for j in others)
            nx, ny = (sum(d[i][j] == 0 for j in others) for d in (dx, dy))
        else:
            near = k
            nx, ny = (sum(d[i][j] < reach for j in others) for d in (dx, dy))
        total += digamma(near) + math.log(n) - digamma(nx + 1) - digamma(ny + 1)
    return total / n


def plug_in(x, y):
    """Mutual information of the counted frequencies of two discrete variables."""
    n = len(x)
    joint = {}
    for pair in zip(x, y, strict=True):
        joint[pair] = joint.get(pair, 0) + 1
    return sum(c / n * math.log(c * n / (sum(np.equal(x, a)) * sum(np.equal(y, b)))) for (a, b), c in joint.items())


def standardised(a):
    a = np.asarray(a, dtype=float).reshape(len(a), -1)
    return (a - a.mean(axis=0)) / a.std(axis=0)
