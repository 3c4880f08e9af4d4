"""The attacks on prompts record by record, as slow as their definitions read. Log-probabilities and confidences as in attacks/knowledge.py."""

import math

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import polygamma, psi
from scipy.stats import norm

from fedaudit.attacks.likelihood import LARGEST_FREEDOM, SMALLEST
from fedaudit.attacks.lira import LARGEST
from fedaudit.attacks.rmia import TIE
from fedaudit.attacks.shadow import LEARNING_RATE, SEED, WEIGHT_DECAY


def phi(row, y):
    """Confidence log(p / (1 - p)) of one record."""
    p_y = math.exp(row[y])
    rest = math.fsum(math.exp(value) for c, value in enumerate(row) if c != y)
    odds = -math.inf if p_y == 0 else math.inf if rest == 0 else row[y] - math.log(rest)
    return min(max(odds, -LARGEST), LARGEST)


def lira(target, shadows, member, *, variance):
    """Scores [n] online and offline of values [n] and [S, n]."""
    lists = {
        used: [[shadows[s, i] for s in range(len(shadows)) if member[s, i] == used] for i in range(len(target))]
        for used in (True, False)
    }
    priors = {used: _variance_prior(values) for used, values in lists.items()}
    online, offline = [], []
    for i, value in enumerate(target):
        if variance == "prior":
            location, scale, freedom = _predictive(lists[False][i], *priors[False], 0.0, 0.0)
            c, k = _centre(lists, priors, i)
            inside = _predictive(lists[True][i], *priors[True], c, k)
            online.append(student(value, *inside) - student(value, location, scale, freedom))
            offline.append((value - location) / scale)
            continue
        normal = {used: _normal(lists[used], i, own=variance == "per-record") for used in (True, False)}
        online.append(norm.logpdf(value, *normal[True]) - norm.logpdf(value, *normal[False]))
        offline.append((value - normal[False][0]) / normal[False][1])
    return np.array(online), np.array(offline)


def _normal(lists, i, *, own):
    """Mean and unbiased standard deviation of one record; with `own` its own, if it has two values, else that of all."""
    values = lists[i]
    variance = _common_variance(lists)
    if own and len(values) > 1:
        variance = _squares(values) / (len(values) - 1)
    return _mean(values), math.nan if math.isnan(variance) else max(math.sqrt(variance), SMALLEST)


def _common_variance(lists):
    freedom = sum(len(values) - 1 for values in lists if values)
    return math.fsum(_squares(values) for values in lists if values) / freedom if freedom else math.nan


def _squares(values):
    mean = _mean(values)
    return math.fsum((x - mean) ** 2 for x in values)


def _variance_prior(lists):
    """d and s^2 of an inverse-gamma prior of variances (Smyth 2004, section 6.2)."""
    known = [(_squares(values), len(values) - 1) for values in lists if len(values) > 1]
    if not known:
        return math.inf, math.nan
    common = max(math.fsum(q for q, _ in known) / sum(f for _, f in known), SMALLEST**2)
    e = [math.log(max(q / f, SMALLEST**2)) - psi(f / 2) + math.log(f / 2) for q, f in known]
    if len(e) < 2:
        return math.inf, common
    beyond = _squares(e) / (len(e) - 1) - _mean([polygamma(1, f / 2) for _, f in known])
    if beyond <= polygamma(1, LARGEST_FREEDOM / 2):
        return math.inf, common
    half = brentq(lambda x: polygamma(1, x) - beyond, 1e-8, LARGEST_FREEDOM, xtol=1e-14, rtol=1e-14)
    return 2 * half, math.exp(_mean(e) + psi(half) - math.log(half))


def _shrunk(values, d, s2):
    squares, freedom = (_squares(values), len(values) - 1) if values else (0.0, 0)
    return s2 if math.isinf(d) else (d * s2 + squares) / (d + freedom)


def _centre(lists, priors, i):
    """c and k of the prior of record i's mean with it."""
    both = [j for j in range(len(lists[True])) if lists[True][j] and lists[False][j]]
    if not both:
        return 0.0, 0.0
    error = {j: _shrunk(lists[False][j], *priors[False]) / len(lists[False][j]) for j in both}
    shift = {j: _mean(lists[True][j]) - _mean(lists[False][j]) for j in both}
    explained = _mean([_shrunk(lists[True][j], *priors[True]) / len(lists[True][j]) + error[j] for j in both])
    between = max(0.0, _squares(shift.values()) / (len(both) - 1) - explained) if len(both) > 1 else 0.0
    if i not in both:
        return math.nan, math.nan
    own = max(_shrunk(lists[True][i], *priors[True]), SMALLEST**2)
    return _mean(lists[False][i]) + _mean(shift.values()), own / max(between + error[i], SMALLEST**2)


def _predictive(values, d, s2, c, k):
    """Location, scale and degrees of freedom of Student's t."""
    m = len(values)
    if not m or math.isnan(k):
        return math.nan, math.nan, math.nan
    mean, freedom = _mean(values), d + m - (k == 0)
    variance = s2 if math.isinf(d) else (d * s2 + _squares(values) + (mean - c) ** 2 * k * m / (k + m)) / freedom
    scale = math.sqrt(variance * (k + m + 1) / (k + m))
    return (k * c + m * mean) / (k + m), max(scale, SMALLEST), freedom


def student(x, location, scale, freedom):
    """log density of Student's t, of the normal where `freedom` is infinite."""
    z = (x - location) / scale
    if math.isinf(freedom):
        return -0.5 * (math.log(2 * math.pi) + z * z) - math.log(scale)
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return constant - (freedom + 1) / 2 * math.log1p(z * z / freedom) - math.log(scale)


def rmia(target, shadows, member, known, *, gamma, a):
    """Scores [n] online and offline of own-class log-probabilities [n] and [S, n]; a = 0 fits it."""
    n, p = len(target), np.exp(shadows)
    inside = [_mean([p[s, i] for s in range(len(p)) if member[s, i]]) for i in range(n)]
    outside = [_mean([p[s, i] for s in range(len(p)) if not member[s, i]]) for i in range(n)]
    if not a:
        both = [(1 - x, 1 - y) for x, y in zip(inside, outside, strict=True) if not math.isnan(x + y)]
        a = min(1.0, math.fsum(x * y for x, y in both) / math.fsum(y * y for _, y in both)) if both else 1.0
    online = [target[i] - math.log((inside[i] + outside[i]) / 2) for i in range(n)]
    offline = [target[i] - math.log(((1 + a) * outside[i] + 1 - a) / 2) for i in range(n)]
    z = [offline[i] for i in range(n) if known[i]]
    return share_dominated(online, z, gamma), share_dominated(offline, z, gamma)


def _mean(values):
    return math.fsum(values) / len(values) if values else math.nan


def share_dominated(log_x, log_z, gamma):
    """The double loop over x and z, and half of LR / (1 + LR) of a step more."""
    z = [value for value in log_z if not math.isnan(value)]

    def share(x):
        if math.isnan(x) or not z:
            return math.nan
        return (sum(x - math.log(gamma) + TIE >= value for value in z) + 0.5 / (1 + math.exp(-x))) / len(z)

    return np.array([*map(share, log_x)])


def quantile(target, shadows, member):
    """Mid-rank [n] of confidences [n] among those [S, n] of the shadows without the record."""
    found = []
    for i, value in enumerate(target):
        others = [shadows[s, i] for s in range(len(shadows)) if not member[s, i]]
        found.append(_mean([(x < value) + (x == value) / 2 for x in others]))
    return np.array(found)


def shadow_network(log_probs, member, queries, *, hidden, steps):
    """Score [q] of queries [q, C] by one class's network, trained alone on its records: log_probs [S, r, C], member [S, r]."""
    C = log_probs.shape[-1]
    weight = np.zeros(member.shape)
    for s, i in np.ndindex(*member.shape):
        weight[s, i] = 0.5 / (member[:, i] == member[s, i]).sum() / member.shape[1]
    x, asked_about = (np.sqrt(np.exp(v)) for v in (log_probs.reshape(-1, C), queries))
    mean = np.average(x, axis=0, weights=weight.ravel())
    scale = np.sqrt(np.average(((x - mean) ** 2).mean(1), weights=weight.ravel()))
    inputs, asked = (torch.tensor((v - mean) / scale, dtype=torch.float32) for v in (x, asked_about))
    network = torch.nn.Sequential(torch.nn.Linear(C, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2))
    generator = torch.Generator().manual_seed(SEED)
    for layer in (network[0], network[2]):
        start = torch.randn(layer.in_features, layer.out_features, generator=generator)
        layer.weight.data, layer.bias.data = start.T / layer.in_features**0.5, torch.zeros(layer.out_features)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    target, importance = torch.tensor(member.ravel()).long(), torch.tensor(weight.ravel(), dtype=torch.float32)
    for _ in range(steps):
        losses = torch.nn.functional.cross_entropy(network(inputs), target, reduction="none")
        optimizer.zero_grad()
        (losses @ importance).backward()
        optimizer.step()
    with torch.no_grad():
        logits = network(asked)
    return (logits[:, 1] - logits[:, 0]).numpy()
