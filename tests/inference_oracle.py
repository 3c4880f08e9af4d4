"""The attacks on prompts record by record, as slow as their definitions read. Log-probabilities and confidences as in attacks/knowledge.py."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import norm

from attacks.lira import LARGEST, SMALLEST
from attacks.rmia import TIE
from attacks.shadow import LEARNING_RATE, SEED, WEIGHT_DECAY


def phi(row, y):
    """Confidence log(p / (1 - p)) of one record."""
    p_y = math.exp(row[y])
    rest = math.fsum(math.exp(value) for c, value in enumerate(row) if c != y)
    odds = -math.inf if p_y == 0 else math.inf if rest == 0 else row[y] - math.log(rest)
    return min(max(odds, -LARGEST), LARGEST)


def lira(target, shadows, member, *, per_record):
    """Scores [n] online and offline of confidences [n] and [S, n]."""
    common = {used: _common_variance(shadows, member == used) for used in (True, False)}
    online, offline = [], []
    for i, value in enumerate(target):
        normal = {}
        for used in (True, False):
            mine = [shadows[s, i] for s in range(len(shadows)) if member[s, i] == used]
            mean = math.fsum(mine) / len(mine) if mine else math.nan
            variance = common[used]
            if per_record and len(mine) > 1:
                variance = math.fsum((x - mean) ** 2 for x in mine) / (len(mine) - 1)
            normal[used] = mean, math.nan if math.isnan(variance) else max(math.sqrt(variance), SMALLEST)
        online.append(norm.logpdf(value, *normal[True]) - norm.logpdf(value, *normal[False]))
        offline.append((value - normal[False][0]) / normal[False][1])
    return np.array(online), np.array(offline)


def _common_variance(shadows, used):
    squares, freedom = 0.0, 0
    for i in range(shadows.shape[1]):
        mine = shadows[used[:, i], i].tolist()
        if mine:
            mean = math.fsum(mine) / len(mine)
            squares += math.fsum((x - mean) ** 2 for x in mine)
            freedom += len(mine) - 1
    return squares / freedom if freedom else math.nan


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
    return dominated(online, z, gamma), dominated(offline, z, gamma)


def _mean(values):
    return math.fsum(values) / len(values) if values else math.nan


def dominated(log_x, log_z, gamma):
    """The double loop over x and z, and half of LR / (1 + LR) of a step more."""
    z = [value for value in log_z if not math.isnan(value)]
    return np.array(
        [
            math.nan
            if math.isnan(x) or not z
            else (sum(x - math.log(gamma) + TIE >= value for value in z) + 0.5 / (1 + math.exp(-x))) / len(z)
            for x in log_x
        ]
    )


def quantile(target, shadows, member):
    """Mid-rank [n] of confidences [n] among those [S, n] of the shadows without the record."""
    found = []
    for i, value in enumerate(target):
        others = [shadows[s, i] for s in range(len(shadows)) if not member[s, i]]
        found.append(_mean([(x < value) + (x == value) / 2 for x in others]))
    return np.array(found)


def modified_entropy(p, y):
    """Song & Mittal 2021, eq. 8, of one record's probabilities; 0 log 0 = 0."""
    terms = [(1 - p[c], p[c]) if c == y else (p[c], 1 - p[c]) for c in range(len(p))]
    return math.fsum(math.inf if x == 0 else -weight * math.log(x) for weight, x in terms if weight)


def shadow_network(log_probs, member, queries, *, hidden, steps):
    """Score [q] of queries [q, C] by one class's network, trained alone on its records: log_probs [S, r, C], member [S, r]."""
    C = log_probs.shape[-1]
    weight = np.zeros(member.shape)
    for i in range(member.shape[1]):
        for s in range(member.shape[0]):
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
