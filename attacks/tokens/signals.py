"""Token-level membership signals: all scores of a record need one forward pass, and one exp per logit.

Per predicted token y: log p(y), the Rényi entropies of the next-token distribution, mean and variance of log p
(Min-K%++), the top-2 gap and the modified entropies. Natural logarithms, float64. Logits are never stored. A word is an
index of the vocabulary.

The exact mode takes every logit relative to the *second* largest, and leaves the top word out of all sums: no
cancellation in 1 - p(top), so that results are finite and exact even if p(top) rounds to 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import ArrayLike, NDArray

from fedaudit.machinery.devices import for_float64
from fedaudit.machinery.threads import on_one_thread

Array = NDArray[np.float64]
ORDERS: tuple[float, ...] = (0.5, 1, 2, math.inf)
MODIFIED_ORDERS: tuple[float, ...] = (0.5, 1, 2)

# Up to this probability t, log(1-p) and sqrt(1-p) - 1 are approximated by cubics through four Chebyshev points, which
# need power sums only. The error is at most max|4th derivative| t^4 / 3072, over all words (sum p) t^4 / 500 = 4.7e-13.
_SMALL = 2.0**-8
_LOG, _SQRT = (
    np.array(Chebyshev.interpolate(f, 3, domain=(0, _SMALL)).convert(kind=Polynomial).coef, np.float64)
    for f in (lambda p: np.log1p(-p), lambda p: np.sqrt(1 - p) - 1)
)  # coefficients of 1, p, p^2, p^3
_CLAMP = 1e-10  # VL-MIA's epsilon
_SCRATCH_BYTES = 6 << 20  # two float64 buffers, which stay in the cache of a CPU
_GPU_SCRATCH_BYTES = 24 << 20
_BLOCK_ROWS = 1024  # rows over which words above _SMALL are collected: at most 4 MB


@dataclass(frozen=True, eq=False)
class TokenSignals:
    """Signals of n predicted tokens y, each array float64 [n], natural logarithms; `signals[a:b]` selects a range.

    log_prob       log p(y); -inf where the logit of y is -inf.
    renyi          {order: Rényi entropy of p} in nats, orders 0.5, 1 (Shannon's entropy), 2, inf (-log max p).
    mean_log_prob  E_{z~p} log p(z), minus Shannon's entropy.
    var_log_prob   Var_{z~p} log p(z), at least 0.
    gap            log p of the most likely word minus that of the second: 0 for a tie, inf if all others have p = 0.
    modified       {order: modified entropy of p and y}, orders 0.5, 1, 2; order 1 is inf where log_prob is -inf. See
                   `row_signals` for definitions.
    """

    log_prob: Array
    renyi: Mapping[float, Array]
    mean_log_prob: Array
    var_log_prob: Array
    gap: Array
    modified: Mapping[float, Array]

    def __len__(self) -> int:
        return len(self.log_prob)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> "TokenSignals":
        return TokenSignals(
            log_prob=self.log_prob[rows],
            renyi={order: values[rows] for order, values in self.renyi.items()},
            mean_log_prob=self.mean_log_prob[rows],
            var_log_prob=self.var_log_prob[rows],
            gap=self.gap[rows],
            modified={order: values[rows] for order, values in self.modified.items()},
        )


def stacked(signals: TokenSignals) -> Array:
    """All signals of n tokens as one array [11, n]: log_prob, mean_log_prob, var_log_prob, gap, then Rényi and modified
    entropies by order; `unstacked` reads it."""
    without_order = signals.log_prob, signals.mean_log_prob, signals.var_log_prob, signals.gap
    return np.stack(
        [*without_order, *(signals.renyi[o] for o in ORDERS), *(signals.modified[o] for o in MODIFIED_ORDERS)]
    )


def unstacked(rows: Array) -> TokenSignals:
    """The signals of n tokens in an array [11, n] of `stacked`."""
    log_prob, mean, variance, gap, *orders = rows
    renyi = dict(zip(ORDERS, orders[: len(ORDERS)], strict=True))
    return TokenSignals(
        log_prob=log_prob, renyi=renyi, mean_log_prob=mean, var_log_prob=variance, gap=gap,
        modified=dict(zip(MODIFIED_ORDERS, orders[len(ORDERS) :], strict=True)),
    )  # fmt: skip


def token_signals(
    logits: torch.Tensor | NDArray[np.floating[Any]], ids: ArrayLike | torch.Tensor, compat: str | None = None
) -> TokenSignals:
    """Signals of the T - 1 predicted tokens of a sequence: logits [T, V], ids [T]; row i predicts token i + 1.

    Every id, the first included, must be in 0..V-1. Otherwise as `row_signals`; ValueError for T < 2.
    """
    logits, ids = _checked(logits, ids, "ids")
    if len(ids) < 2:
        raise ValueError(f"logits and ids must hold at least 2 tokens to predict one, not {len(ids)}")
    return row_signals(logits[:-1], ids[1:], compat=compat)


@on_one_thread()
def row_signals(
    logits: torch.Tensor | NDArray[np.floating[Any]], targets: ArrayLike | torch.Tensor, *, compat: str | None = None
) -> TokenSignals:
    """Signals of R independent rows: logits [R, V] (any floating type, any device), targets y [R] in 0..V-1.

    Definitions, p = softmax(row) in float64 and y its target:
    Rényi        H_a = log(sum p^a) / (1-a); H_1 Shannon's; H_inf = -log max p.
    modified 1   -(1-p_y) log p_y - sum_{z != y} p_z log(1-p_z)                              (Song & Mittal 2021)
    modified a   -[(1-p_y) p_y^b - (1-p_y) + sum_{z != y} p_z (1-p_z)^b - p_z] / b, b = |1-a|   (Li et al. 2024)

    `compat="vlmia"` reproduces the public code of Li et al. 2024 (github.com/LIONS-EPFL/VL-MIA, metric_util.py), but in
    float64 throughout: Rényi orders 0.5 and 2 and all modified entropies take p clamped to [1e-10, 1 - 1e-10] without
    renormalising (in modified 1 the weight p_z stays unclamped), 1 - p likewise, without that code's cancellation near
    p = 1; a tie still has gap 0, where that code takes the next distinct value. None or "exact" clamps nothing.

    Rows are computed in chunks of about 6 MB on a CPU, 24 MB on a GPU.

    ValueError: shapes that do not match, V < 2, no rows, a target outside 0..V-1 (also -100: leave ignored rows out), a
    row with NaN, +inf or nothing finite, an unknown `compat`.
    """
    logits, targets = _checked(logits, targets, "targets")
    if compat not in (None, "exact", "vlmia"):
        raise ValueError(f"compat must be None, 'exact' or 'vlmia', not {compat!r}")
    clamped = compat == "vlmia"
    scratch = _scratch(logits)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # log 0 and 0 * inf are meant
        blocks = [
            _block_sums(scratch, logits[i : i + _BLOCK_ROWS], targets[i : i + _BLOCK_ROWS], i, clamped=clamped)
            for i in range(0, len(logits), _BLOCK_ROWS)
        ]
        sums = np.concatenate(blocks, axis=1)
        exact = _exact_signals(_Sums(*sums[: len(_Sums._fields)]))
        return _clamped_signals(exact, sums[len(_Sums._fields) :]) if clamped else exact


class _Sums(NamedTuple):
    """Sums over all words but the top one, by row. d: a word's logit minus that of the second word; e = exp(d)."""

    top: Array  # logit of the top word
    second: Array  # logit of the second word
    target: Array  # logit of y
    is_top: Array  # 1 if y is the top word, else 0
    sqrt_e: Array  # sum of sqrt(e); the next sums are of e, e d / 2, e (d / 2)^2, e^2, e^3, e^4
    e: Array
    ed: Array
    edd: Array
    e2: Array
    e3: Array
    e4: Array
    log_rest: Array  # correction of the cubic for p log(1-p), over words above _SMALL
    sqrt_rest: Array  # correction of the cubic for p (sqrt(1-p) - 1), over words above _SMALL


def _block_sums(scratch: Any, logits: Any, targets: Any, start: int, *, clamped: bool) -> Array:
    """The sums `_Sums` as rows [13, R] of logits [R, V] and, if `clamped`, those of `_clamped_sums` below, [18, R]; row
    `start` is the first, for error messages."""
    xp = _namespace(scratch)
    words = xp.asarray(targets, device=scratch.device)
    sums = xp.zeros((18 if clamped else 13, len(logits)), dtype=xp.float64, device=scratch.device)
    mask = xp.empty(scratch.shape[1:], dtype=xp.bool, device=scratch.device)
    above = []
    for i in range(0, len(logits), len(mask)):
        chunk = logits[i : i + len(mask)]
        x, h = scratch[:, : len(chunk)]
        if isinstance(chunk, torch.Tensor):
            torch.as_tensor(x).copy_(chunk.to(x.device))
        else:
            x[...] = chunk
        rows, e = _chunk_sums(x, h, mask[: len(chunk)], words[i : i + len(chunk)], sums[:, i : i + len(chunk)])
        above.append((_host(rows) + i, _host(e)))
    sums = _host(sums)
    _refuse_not_finite(sums[0], start)
    s = _Sums(*sums[:13])
    rows, e = (np.concatenate(parts) for parts in zip(*above, strict=True))
    p = e / (np.exp(s.top - s.second) + s.e)[rows]
    powers = p ** np.arange(4)[:, None]
    s.log_rest[:] = np.bincount(rows, p * (np.log1p(-p) - _LOG @ powers), len(logits))
    s.sqrt_rest[:] = np.bincount(rows, p * (np.sqrt(1 - p) - 1 - _SQRT @ powers), len(logits))
    return sums


def _chunk_sums(x: Any, h: Any, mask: Any, words: Any, sums: Any) -> tuple[Any, Any]:
    """Fill all but the last two of `_Sums` from logits x [r, V]; return (row, e) of the words with a probability above
    _SMALL, but for each row's top word.

    Nearly every line is one pass over [r, V] in place: x, h and mask [r, V] are overwritten.
    """
    xp = _namespace(x)
    dot = np.vecdot if xp is np else torch.linalg.vecdot
    s = _Sums(*sums[:13])
    row = xp.arange(len(x), device=x.device)
    first = xp.argmax(x, axis=1)
    s.top[:], s.target[:], s.is_top[:] = x[row, first], x[row, words], words == first
    x[row, first] = -math.inf
    s.second[:] = xp.amax(x, axis=1)

    half = x  # d / 2; h is its exp, so that h h = e
    shift = torch.as_tensor(xp.where(s.second == -math.inf, s.top, s.second))
    torch.add(-shift[:, None] / 2, torch.as_tensor(half), alpha=0.5, out=torch.as_tensor(half))
    half[row, first] = -1e4  # exp of it is 0
    xp.exp(half, out=h)
    s.sqrt_e[:], s.e[:] = torch.as_tensor(h).sum(1), dot(h, h)
    half *= h
    s.ed[:] = dot(h, half)
    if xp.isnan(s.ed).any():  # 0 * -inf: a word whose logit is -inf adds 0
        half[xp.isnan(half)] = 0
        s.ed[:] = dot(h, half)
    s.edd[:] = dot(half, half)
    e = xp.multiply(h, h, out=h)
    square = xp.multiply(e, e, out=x)
    s.e2[:], s.e3[:], s.e4[:] = dot(e, e), dot(e, square), dot(square, square)

    total = xp.exp(s.top - s.second) + s.e  # p = e / total
    limit, flat = _SMALL * total, row[:0]
    if (limit < 1).any():  # e of the second word is 1
        xp.greater(e, limit[:, None], out=mask)
        (flat,) = xp.where(mask.reshape(-1))
    above = flat // e.shape[1], e.reshape(-1)[flat]
    if len(sums) > len(s):
        rest = xp.exp(s.second - s.top) * s.e
        p = xp.divide(e, total[:, None], out=h)
        p[row, first] = 1 / (1 + rest)
        not_p = xp.negative(p, out=x)
        not_p += 1
        not_p[row, first] = rest / (1 + rest)
        sums[len(s) :] = _clamped_sums(p, not_p)
    return above


def _exact_signals(s: _Sums) -> TokenSignals:
    """The signals of R rows without clamping, computed from their sums."""
    gap = s.top - s.second
    log_z = np.log1p(np.exp(-gap) * s.e)  # -log p(first)
    log_prob = s.target - s.top - log_z
    w = np.exp(-gap - log_z)  # p(second): p = w e
    g = np.minimum(gap, 1e4)  # any larger gap has w = 0
    mean = w * (2 * s.ed - g * s.e)  # of log p - log p(first)
    var = np.maximum(w * (4 * s.edd - 4 * g * s.ed + g * g * s.e) - mean**2, 0)

    p_first, p_y, not_y = np.exp(-log_z), np.exp(log_prob), -np.expm1(log_prob)
    powers = np.stack([w * s.e, w**2 * s.e2, w**3 * s.e3, w**4 * s.e4])
    # turn sums of p log(1-p), p (sqrt(1-p) - 1) and p^2 over all but the top word into sums over all but y
    swaps = (
        (_LOG @ powers + s.log_rest, p_first * (np.log(s.e) - gap - log_z) - p_y * np.log1p(-p_y)),
        (_SQRT @ powers + s.sqrt_rest, p_first * (np.sqrt(powers[0]) - 1) - p_y * (np.sqrt(not_y) - 1)),
        (powers[1], p_first**2 - p_y**2),
    )
    by_log, by_sqrt, square = (total + np.where(s.is_top == 1, 0.0, swap) for total, swap in swaps)
    return TokenSignals(
        log_prob=log_prob,
        renyi={
            0.5: 2 * np.log1p(np.exp(-gap / 2) * s.sqrt_e) - log_z,
            1: log_z - mean,
            2: 2 * log_z - np.log1p(np.exp(-2 * gap) * s.e2),
            math.inf: log_z,
        },
        mean_log_prob=mean - log_z,
        var_log_prob=var,
        gap=gap,
        modified={
            0.5: 2 * (not_y * (1 - np.sqrt(p_y)) - by_sqrt),
            1: -not_y * log_prob - by_log,
            2: not_y**2 + square,
        },
    )


def _clamped_sums(p: Any, not_p: Any) -> Any:
    """Sums [5, r] over words of c, sqrt(c), c^2, c sqrt(d), p log(d); c and d are p and 1 - p [r, V] clamped in
    place."""
    xp = _namespace(p)
    dot = xp.linalg.vecdot
    d = xp.clip(not_p, _CLAMP, 1 - _CLAMP, out=not_p)
    by_log = dot(p, xp.log(d))
    c = xp.clip(p, _CLAMP, 1 - _CLAMP, out=p)
    return xp.stack([c.sum(1), xp.sqrt(c).sum(1), dot(c, c), dot(c, xp.sqrt(d, out=d)), by_log])


def _clamped_signals(exact: TokenSignals, sums: Array) -> TokenSignals:
    """The signals as VL-MIA's code computes them: `exact` ones, but for those in which it clamps p, which come from the
    sums [5, n] of `_clamped_sums`."""
    total, sqrt, square, by_sqrt, by_log = sums
    y, not_y = (np.clip(q, _CLAMP, 1 - _CLAMP) for q in (np.exp(exact.log_prob), -np.expm1(exact.log_prob)))
    modified = {
        0.5: -2 * (not_y * np.sqrt(y) - not_y + (by_sqrt - y * np.sqrt(not_y)) - (total - y)),
        1: -not_y * np.log(y) - by_log + y * np.log(not_y),
        2: not_y**2 + square - y**2,
    }
    return replace(exact, renyi={**exact.renyi, 0.5: 2 * np.log(sqrt), 2: -np.log(square)}, modified=modified)


def _checked(logits: Any, ids: Any, name: str) -> tuple[Any, NDArray[np.int64]]:
    """Return logits [R, V] as a detached tensor or an array, and ids [R] on the host; ValueError if they do not fit."""
    logits = logits.detach() if isinstance(logits, torch.Tensor) else np.asarray(logits)
    ids = np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids)
    floating = logits.is_floating_point() if isinstance(logits, torch.Tensor) else logits.dtype.kind == "f"
    if not floating or logits.ndim != 2 or logits.shape[0] < 1 or logits.shape[1] < 2:
        raise ValueError(
            f"logits must be floating point [rows >= 1, words >= 2], not {logits.dtype} {tuple(logits.shape)}"
        )
    if ids.dtype.kind not in "iu" or ids.shape != (len(logits),):
        raise ValueError(f"{name} must be integers of shape ({len(logits)},), not {ids.dtype} {ids.shape}")
    bad = np.flatnonzero((ids < 0) | (ids >= logits.shape[1]))
    if len(bad):
        raise ValueError(f"{name} must be words in 0..{logits.shape[1] - 1}, not {ids[bad[0]]} in row {bad[0]}")
    return logits, ids.astype(np.int64)


def _scratch(logits: Any) -> Any:
    """Two float64 buffers [2, rows, V]: a tensor on a GPU that has float64, else NumPy arrays, aligned by torch, whose
    exp is fast."""
    device = for_float64(logits.device) if isinstance(logits, torch.Tensor) else torch.device("cpu")
    limit = _SCRATCH_BYTES if device.type == "cpu" else _GPU_SCRATCH_BYTES
    size = max(1, limit // (2 * 8 * logits.shape[1]))
    buffers = torch.empty((2, min(size, len(logits)), logits.shape[1]), dtype=torch.float64, device=device)
    return buffers.numpy() if device.type == "cpu" else buffers


def _namespace(array: Any) -> Any:
    return torch if isinstance(array, torch.Tensor) else np


def _refuse_not_finite(highest: Any, start: int) -> None:
    values = _host(highest)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        what = "NaN" if np.isnan(values[bad[0]]) else "+inf" if values[bad[0]] > 0 else "no finite value"
        raise ValueError(f"logits hold {what} in row {start + bad[0]}")


def _host(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values
