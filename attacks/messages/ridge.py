"""A message of adapters as a regression on the gradients of records: the linear algebra of `decompose` on adapters.

A LoRA client sends the sum of many AdamW steps. That is no sum of gradients, as AdamW divides every number by its own
running size. Divide the numbers of records' gradients by their size over the records, and what the client learnt weighs
more than what it did not. With d the message, and g_i minus the gradient of record i where the client began:

    v_j = root mean square over i of g_ij         p_i = g_i / (v + DAMPING mean(v))         p_i, d scaled to length 1
    w = (K + RIDGE tr(K) / n I)^-1 b              K = P P^T, b = P d

Many or long gradients are sketched first: a count sketch (Charikar, Chen and Farach-Colton 2002) adds the numbers of
p_i and d, each with a random sign, into `BUCKETS` sums, which changes inner products little. For that v must be known
before, and is taken from the last `REFERENCES` records.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedaudit.attacks.answers import Floats
from fedaudit.attacks.knowledge import Explained
from fedaudit.machinery.devices import double
from fedaudit.trainers.generators import generator

DAMPING = 1e-3  # times the mean of v, added to v: numbers that hardly move do not count more than others
RIDGE = 0.1  # times the mean of K's diagonal
REFERENCES = 20  # known non-members among the records
DENSE = 2**27  # numbers of all gradients together, 0.5 GiB; more are sketched
BUCKETS = 4096  # sums of a sketch
BLOCK = 2**14  # columns whose inner products are taken at once, in double precision


class Regression:
    """Collects the directions of n records, and explains a message by them."""

    def __init__(self, message: Tensor, records: int, references: Iterable[Tensor]) -> None:
        """`message`: d [P], to be explained by so many `records`. `references`: directions of known non-members in
        parts [R, P], which are read only where there are too many numbers to keep."""
        self.message, self.records, self.kept = message, records, list[Tensor]()
        self.sketched = records * len(message) > DENSE
        self._divisor = divisor(_mean_squares(references)) if self.sketched else torch.ones(0)

    def add(self, directions: Tensor) -> None:
        """Add the directions g [R, P] of further R records; those beyond the n first are not looked at."""
        directions = directions[: self.records - sum(map(len, self.kept))]
        self.kept.append(count_sketch(directions / self._divisor.to(directions)) if self.sketched else directions)

    def explain(self, r: int) -> Explained:
        """The message, which is that of round r, explained by all records added."""
        rows = torch.cat(self.kept)
        if self.sketched:
            return explain(rows, count_sketch(self.message[None])[0], r)
        return explain(rows / divisor(rows.square().mean(0)), self.message, r)


def _mean_squares(parts: Iterable[Tensor]) -> Tensor:
    """Mean squares [P] of the numbers of vectors that come in parts [R, P]."""
    total, records = torch.zeros(1), 0
    for part in parts:
        total, records = total.to(part) + part.square().sum(0), records + len(part)
    return total / records


def divisor(mean_squares: Tensor) -> Tensor:
    """v + DAMPING mean(v) [P], for the mean squares [P] of the numbers of gradients; 1 where all are zero."""
    v = mean_squares.sqrt()
    return v + DAMPING * v.mean() if v.any() else torch.ones_like(v)


def count_sketch(rows: Tensor) -> Tensor:
    """Count sketches [R, BUCKETS] of rows [R, P]; always by the same hash for the same P."""
    size = rows.shape[1]
    chance = generator(0, "count sketch", size)
    bucket = torch.randint(BUCKETS, (size,), generator=chance, dtype=torch.int32).to(rows.device)
    sign = 2 * torch.randint(2, (size,), generator=chance, dtype=torch.int8).to(rows.device) - 1
    return rows.new_zeros(len(rows), BUCKETS).index_add_(1, bucket, rows * sign)


def explain(rows: Tensor, message: Tensor, r: int) -> Explained:
    """The message [m] of round r explained by n records, whose p_i are the `rows` [n, m] up to their length."""
    gram, inner, square = inner_products(rows, message)
    lengths = np.sqrt(np.diag(gram))
    some = lengths > 0
    weights = np.full(len(rows), np.nan)
    if not square or not some.any():
        return Explained(r, weights, np.nan, int((~some).sum()))
    k = gram[np.ix_(some, some)] / np.outer(lengths[some], lengths[some])
    b = inner[some] / (lengths[some] * np.sqrt(square))
    weights[some] = w = np.linalg.solve(k + RIDGE * np.trace(k) / len(k) * np.eye(len(k)), b)
    return Explained(r, weights, float(np.sqrt(max(0.0, 1 - 2 * w @ b + w @ k @ w))), int((~some).sum()))


def inner_products(rows: Tensor, message: Tensor) -> tuple[Floats, Floats, float]:
    """Inner products of rows [n, m] with each other [n, n] and with a message [m], and its squared length."""
    n = len(rows)
    both = double(rows.new_zeros(n + 1, n + 1))
    for block, part in zip(rows.split(BLOCK, dim=1), message.to(rows.device).split(BLOCK), strict=True):
        columns = double(torch.cat([block, part[None]]))
        both += columns @ columns.T
    products: Floats = both.cpu().numpy()
    return products[:n, :n], products[:n, n], float(products[n, n])
