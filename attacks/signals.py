"""Token-level membership signals: every score of a record comes from one forward pass and one exp per logit.

Per predicted token: log p(y), the Rényi entropies of the next-word distribution, mean and variance of log p
(Min-K%++), the top-2 gap and the modified entropies. Natural logarithms, float64. Vocabulary rows are never kept.

The exact mode measures every word from the *second* most likely one and leaves the top word out of all sums, so that
1 - p(top) never cancels: results stay finite and exact where p(top) rounds to 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
ORDERS: tuple[float, ...] = (0.5, 1, 2, math.inf)
MODIFIED_ORDERS: tuple[float, ...] = (0.5, 1, 2)

# A word less likely than e^-300 times the second one counts as that: it keeps -inf out of the sums and changes none of
# them by a relative 1e-120.
_HALF_FLOOR = -150.0
# Up to this probability p log(1-p) and p (sqrt(1-p) - 1) are their Taylor series to p^4, which costs power sums only.
# The sum of what is left out over all words is at most (sum p) t^4 / (4 (1-t)) = 2.3e-13. At most 1,024 words are above.
_SERIES_UP_TO = 2.0**-10
_CLAMP = 1e-10  # VL-MIA's epsilon
_SCRATCH_BYTES = {"cpu": 4 << 20, "cuda": 24 << 20}  # two float64 buffers; the CPU's stays near its cache


@dataclass(frozen=True, eq=False)
class TokenSignals:
    """Signals of n predicted tokens, natural logarithms, each array float64 [n]; `signals[a:b]` are views of a range.

    log_prob       log p(y); -inf where the logit of y is -inf.
    renyi          {order: H_order(p)} in nats, orders 0.5, 1, 2, inf.
    mean_log_prob  E_{z~p} log p(z), the negative of Shannon's entropy.
    var_log_prob   Var_{z~p} log p(z), at least 0.
    gap            log p(first) - log p(second): 0 for a tie, inf where only one word has a finite logit.
    modified       {order: modified entropy of p and y}, orders 0.5, 1, 2; order 1 is inf where log_prob is -inf.
    """

    log_prob: Array
    renyi: Mapping[float, Array]
    mean_log_prob: Array
    var_log_prob: Array
    gap: Array
    modified: Mapping[float, Array]

    def __len__(self) -> int:
        return len(self.log_prob)

    def __getitem__(self, rows: slice) -> "TokenSignals":
        return TokenSignals(
            log_prob=self.log_prob[rows],
            renyi={order: values[rows] for order, values in self.renyi.items()},
            mean_log_prob=self.mean_log_prob[rows],
            var_log_prob=self.var_log_prob[rows],
            gap=self.gap[rows],
            modified={order: values[rows] for order, values in self.modified.items()},
        )


def token_signals(
    logits: torch.Tensor | NDArray[np.floating[Any]], ids: ArrayLike | torch.Tensor, compat: str | None = None
) -> TokenSignals:
    """Signals of a sequence: logits [T, V], ids [T]; row i predicts token i + 1, so T rows give T - 1 scores.

    Every id, the first included, must be a word in 0..V-1. Otherwise as `row_signals`; T < 2 raises ValueError.
    """
    logits, ids = _checked(logits, ids, "ids")
    if len(ids) < 2:
        raise ValueError(f"logits and ids must hold at least 2 tokens to predict one, not {len(ids)}")
    return row_signals(logits[:-1], ids[1:], compat=compat)


def row_signals(
    logits: torch.Tensor | NDArray[np.floating[Any]],
    targets: ArrayLike | torch.Tensor,
    *,
    compat: str | None = None,
    chunk_rows: int | None = None,
) -> TokenSignals:
    """Signals of R independent rows: logits [R, V] (any floating type, any device), targets [R] words in 0..V-1.

    Definitions, p = softmax(row) in float64 and y its target:
    Rényi        H_a = log(sum p^a) / (1-a); H_1 Shannon's; H_inf = -log max p.
    modified 1   -(1-p_y) log p_y - sum_{z != y} p_z log(1-p_z)                           (Song & Mittal 2021, eq. 8)
    modified a   -[(1-p_y) p_y^b - (1-p_y) + sum_{z != y} p_z (1-p_z)^b - p_z] / b, b = |1-a|      (Li et al. 2024)

    `compat="vlmia"` reproduces the public code of Li et al. 2024 (github.com/LIONS-EPFL/VL-MIA, metric_util.py), but in
    float64 throughout: Rényi orders 0.5 and 2 and all modified entropies take p clamped to [1e-10, 1 - 1e-10] without
    renormalising (in modified 1 the weight p_z stays unclamped); a tie still has gap 0, where that code skips to the
    next distinct value. None or "exact" clamps nothing.

    `chunk_rows` bounds the memory (by default about 4 MB on a CPU, 24 MB on a GPU) and does not change the results.

    Raises ValueError: shapes that do not match, V < 2, no rows, a target outside 0..V-1 (also -100: leave ignored rows
    out), a row with NaN, +inf or nothing finite, an unknown `compat`.
    """
    logits, targets = _checked(logits, targets, "targets")
    if compat not in (None, "exact", "vlmia"):
        raise ValueError(f"compat must be None, 'exact' or 'vlmia', not {compat!r}")
    on_gpu = isinstance(logits, torch.Tensor) and logits.is_cuda
    size = chunk_rows or max(1, _SCRATCH_BYTES["cuda" if on_gpu else "cpu"] // (2 * 8 * logits.shape[1]))
    xp, scratch = _workspace(logits, min(size, len(logits)))
    parts = []
    for start in range(0, len(logits), size):
        chunk, words = logits[start : start + size], targets[start : start + size]
        buffers = scratch[:, : len(chunk)]
        if isinstance(chunk, torch.Tensor):
            torch.as_tensor(buffers[0]).copy_(chunk)
            words = torch.as_tensor(words, device=chunk.device) if xp is torch else words
        else:
            buffers[0][...] = chunk
        parts.append(_chunk_sums(xp, buffers, words, start, clamped=compat == "vlmia"))
    columns = np.concatenate(parts, axis=1)
    exact = _exact_signals(_Sums(*columns[: len(_Sums._fields)]))
    return _clamped_signals(exact, columns[len(_Sums._fields) :]) if compat == "vlmia" else exact


class _Sums(NamedTuple):
    """One value per row. d is the distance to the second word in nats, e = exp(d); sums run over all but the top word."""

    gap: Array
    target: Array  # logit of y minus the top logit
    is_top: Array  # 1 where y is the left-out word
    sqrt_e: Array
    e: Array
    ed: Array
    edd: Array
    e2: Array
    e3: Array
    e4: Array
    log_rest: Array  # what the series of p log(1-p) lacks, over words above _SERIES_UP_TO
    sqrt_rest: Array  # what the series of p (sqrt(1-p) - 1) lacks


def _chunk_sums(xp: Any, buffers: Any, words: Any, start: int, *, clamped: bool) -> Array:
    """Rows of `_Sums` [12 or 17, r] from logits in buffers[0] [r, V]; both buffers are overwritten."""
    x, h = buffers
    row = xp.arange(len(x)) if xp is np else xp.arange(len(x), device=x.device)
    top = xp.argmax(x, axis=1)
    highest = x[row, top]
    _refuse_not_finite(highest, start)
    target = x[row, words] - highest
    x[row, top] = -math.inf
    second = xp.amax(x, axis=1)
    gap = highest - second

    half = x  # d / 2: exp of it is sqrt(e), and its square e
    half -= xp.where(second == -math.inf, highest, second)[:, None]
    half *= 0.5
    half[row, top] = -1e4  # exp of it is 0
    xp.exp(half, out=h)
    dot = xp.linalg.vecdot
    sums = [gap, target, (words == top) * 1.0, h.sum(1), dot(h, h)]
    hd = xp.multiply(h, half, out=half)
    masked = xp.isnan(ed := dot(h, hd))
    if masked.any():  # 0 * -inf: a word whose logit is -inf adds nothing
        hd[xp.isnan(hd)] = 0
        ed = dot(h, hd)
    sums += [2 * ed, 4 * dot(hd, hd)]
    e = xp.multiply(h, h, out=h)
    square = xp.multiply(e, e, out=x)
    sums += [dot(e, e), dot(e, square), dot(square, square)]

    log_z = xp.log1p(xp.exp(-gap) * sums[4])
    p_second = xp.exp(-gap - log_z)
    columns = [_host(xp.stack(sums)), _series_rest(xp, e, p_second)]
    if clamped:
        e *= p_second[:, None]
        e[row, top] = xp.exp(-log_z)
        columns.append(_host(_clamped_sums(xp, e)))
    return np.concatenate(columns)


def _series_rest(xp: Any, e: Any, p_second: Any) -> Array:
    """[2, r]: function minus series for p log(1-p) and p (sqrt(1-p) - 1), summed over words above _SERIES_UP_TO."""
    # A p_second of 0 divides to inf: no word but the top one counts.
    with np.errstate(divide="ignore"):
        limit = _SERIES_UP_TO / p_second
    (flat,) = xp.where((e > limit[:, None]).reshape(-1))
    of_row = flat // e.shape[1]
    p, of_row = _host(e.reshape(-1)[flat] * p_second[of_row]), _host(of_row)
    by_log = p * (np.log1p(-p) + p * (1 + p * (1 / 2 + p / 3)))
    by_sqrt = p * (np.sqrt(1 - p) - 1 + p * (1 / 2 + p * (1 / 8 + p / 16)))
    return np.stack([np.bincount(of_row, part, len(e)) for part in (by_log, by_sqrt)])


def _exact_signals(s: _Sums) -> TokenSignals:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_z = np.log1p(np.exp(-s.gap) * s.e)  # -log p(top)
        log_prob = s.target - log_z
        w = np.exp(-s.gap - log_z)  # p(second): p = w e
        g = np.minimum(s.gap, 1e4)  # any larger gap has w = 0
        mean = w * (s.ed - g * s.e)  # of log p - log p(top)
        var = np.maximum(w * (s.edd - 2 * g * s.ed + g * g * s.e) - mean**2, 0)
        p2, p3, p4 = w**2 * s.e2, w**3 * s.e3, w**4 * s.e4
        sum_log = s.log_rest - (p2 + p3 / 2 + p4 / 3)  # of p log(1-p)
        sum_sqrt = s.sqrt_rest - (p2 / 2 + p3 / 8 + p4 / 16)  # of p (sqrt(1-p) - 1)

        top, rest, p_y, not_y = np.exp(-log_z), w * s.e, np.exp(log_prob), -np.expm1(log_prob)
        # The sums run over all but the top word; the modified entropies over all but y.
        swap_log = top * (np.log(s.e) - s.gap - log_z) - p_y * np.log1p(-p_y)
        swap_sqrt = top * (np.sqrt(rest) - 1) - p_y * (np.sqrt(not_y) - 1)
        other_log, other_sqrt, other_p2 = (
            total + np.where(s.is_top == 1, 0.0, swap)
            for total, swap in ((sum_log, swap_log), (sum_sqrt, swap_sqrt), (p2, top**2 - p_y**2))
        )
        return TokenSignals(
            log_prob=log_prob,
            renyi={
                0.5: 2 * np.log1p(np.exp(-s.gap / 2) * s.sqrt_e) - log_z,
                1: log_z - mean,
                2: 2 * log_z - np.log1p(np.exp(-2 * s.gap) * s.e2),
                math.inf: log_z,
            },
            mean_log_prob=mean - log_z,
            var_log_prob=var,
            gap=s.gap,
            modified={
                0.5: 2 * (not_y * (1 - np.sqrt(p_y)) - other_sqrt),
                1: -not_y * log_prob - other_log,
                2: not_y**2 + other_p2,
            },
        )


def _clamped_sums(xp: Any, p: Any) -> Any:
    """[5, r] over all words of p [r, V], c its clamped copy: c, sqrt(c), c^2, c sqrt(1-c), p log(1-c)."""
    c = xp.clip(p, _CLAMP, 1 - _CLAMP)
    dot = xp.linalg.vecdot
    return xp.stack([c.sum(1), xp.sqrt(c).sum(1), dot(c, c), dot(c, xp.sqrt(1 - c)), dot(p, xp.log1p(-c))])


def _clamped_signals(exact: TokenSignals, sums: Array) -> TokenSignals:
    total, sqrt, square, by_sqrt, by_log = sums
    y = np.clip(np.exp(exact.log_prob), _CLAMP, 1 - _CLAMP)
    half = (1 - y) * np.sqrt(y) - (1 - y) + (by_sqrt - y * np.sqrt(1 - y)) - (total - y)
    modified = {
        0.5: -2 * half,
        1: -(1 - y) * np.log(y) - by_log + y * np.log1p(-y),
        2: (1 - y) ** 2 + square - y**2,
    }
    return replace(exact, renyi={**exact.renyi, 0.5: 2 * np.log(sqrt), 2: -np.log(square)}, modified=modified)


def _checked(logits: Any, ids: Any, name: str) -> tuple[Any, NDArray[np.int64]]:
    """Logits [R, V] (detached tensor, or array) and ids [R] on the host, or ValueError."""
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


def _workspace(logits: Any, rows: int) -> tuple[ModuleType, Any]:
    """Namespace and scratch [2, rows, V]. NumPy on the CPU: its float64 exp takes half the time of torch's."""
    shape = (2, rows, logits.shape[1])
    on_gpu = isinstance(logits, torch.Tensor) and logits.is_cuda
    scratch = torch.empty(shape, dtype=torch.float64, device=logits.device if on_gpu else "cpu")
    return (torch, scratch) if on_gpu else (np, scratch.numpy())


def _refuse_not_finite(highest: Any, start: int) -> None:
    values = _host(highest)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        what = "NaN" if np.isnan(values[bad[0]]) else "+inf" if values[bad[0]] > 0 else "no finite value"
        raise ValueError(f"logits hold {what} in row {start + bad[0]}")


def _host(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values
