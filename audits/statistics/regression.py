"""A lower bound on epsilon from a regression of noised messages on the canaries' coins.

A client sends the sum of its records' clipped gradients and Gaussian noise. Let g_i be the gradient of record i as
the client clips it, over |B|, b_i its coin, and

    X = sum over canaries of (b_i - 1/2) g_i       N = sum over members of g_i + 1/2 sum over canaries of g_i

All messages y of all clients are fitted by y = kappa X + c N + z. If the training is as the ledger says, kappa is 1
and z has the ledger's standard deviation. What is said of members only serves N: it may be wrong, the coins may not.
With X' the part of X that is orthogonal to N, t = kappa |X'| / s is noncentral t, nearly, with mean |X'| over the
standard deviation. A record whose gradients are as long as clipping allows, L over all messages, moves the release by
mu = L / s. So

    mu >= L / |X'| * (lower bound on the mean of t)

if kappa is at most 1. It is larger where the gradients of the steps are longer than the g_i, as at later local steps.
So the bound is at most L / s (1 - z / sqrt(2 dof)), with z the quantile of its confidence and dof the degrees of
freedom of s: nearly the lower bound on L over the true standard deviation.

s is not the ledger's: s^2 is the largest of three estimates: the mean square of z outside the span of all candidates'
gradients, that within the span, where errors of the model lie, and |X'|^2 times the variance of kappa under redrawn
coins, sum over canaries of <g_i, z>^2 / 4 / |X'|^2.

Where a record is in a part q of the steps only, kappa is about q, and what is shown is less than the true mu. Guesses
by rank, as in `one_run` and `trade_off`, use less of the scores, and need no model of the noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from fedaudit.audits.statistics.guesses import CONFIDENCE

Floats = NDArray[np.float64]
LARGEST = 1e3  # a mu beyond it is not told apart


@dataclass(frozen=True, eq=False)
class Message:
    """One message and its records' gradients, scaled so that noise has one size in all messages of a run."""

    gradients: Floats  # [m, n], what each record adds to the message if it is in every step
    sent: Floats  # [m]; rows may be any with the same inner products as the message's own numbers
    rank: int  # dimension of the span of the gradients
    outside: float  # squared length of the part of the message outside the span of the gradients
    spare: int  # dimension of the space outside that span
    longest: float  # length of the gradient of a record that is as long as clipping allows


@dataclass(frozen=True, eq=False)
class Coined:
    """The messages of one client, in whose columns are n records."""

    messages: Sequence[Message]
    coins: Floats  # [n], 1/2 for an inserted canary, -1/2 for one that was left out, 0 for all other records
    expected: Floats  # [n], 1 for a member, 1/2 for a canary, 0 for all other records


@dataclass(frozen=True)
class CoinRegression:
    """The fit of all messages: how much of a coin is in them, beside how much noise."""

    scale: float  # kappa
    noise: float  # s
    length: float  # |X'|
    spare: int  # degrees of freedom of s
    longest: float  # L

    @property
    def t(self) -> float:
        """The estimated length of X' in the messages, in standard deviations of the noise."""
        return self.scale * self.length / self.noise if self.noise > 0 else math.inf * np.sign(self.scale)

    def scale_interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Lower and upper bound on kappa, each at `confidence`."""
        half = norm.ppf(confidence) * self.noise / self.length if self.length > 0 else math.inf
        return self.scale - half, self.scale + half

    def mu_lower_bound(self, confidence: float = CONFIDENCE) -> float:
        """The lower bound on mu, 0 to LARGEST; it exceeds the truth with a probability of at most 1 - confidence."""
        if not self.length > 0 or not self.t > 0:
            return 0.0
        if not self.noise > 0:
            return LARGEST
        quantile = float(norm.ppf(confidence))
        by_coins = self.t - quantile * math.sqrt(1 + self.t**2 / (2 * self.spare))
        most = self.length / self.noise * (1 - quantile / math.sqrt(2 * self.spare))
        return float(np.clip(min(by_coins, most) * self.longest / self.length, 0.0, LARGEST))

    def p_value(self, mu: float) -> float:
        """The probability of so large a bound, or a larger one, if a record moves the release by at most mu: the
        smallest 1 - confidence at which `mu_lower_bound` is above it."""
        if not self.length > 0:
            return 1.0
        mean = mu * self.length / self.longest
        by_coins = norm.sf((self.t - mean) / math.sqrt(1 + self.t**2 / (2 * self.spare)))
        by_noise = norm.sf((1 - mu * self.noise / self.longest) * math.sqrt(2 * self.spare))
        return float(max(by_coins, by_noise))

    def expected_bound(self, mu: float, confidence: float = CONFIDENCE) -> float:
        """About what `mu_lower_bound` would be if mu were the truth and kappa 1."""
        return dataclasses.replace(self, scale=1.0, noise=self.longest / mu).mu_lower_bound(confidence)


def regress(clients: Sequence[Coined]) -> CoinRegression | None:
    """The regression of all messages of these clients on their coins; None if they tell nothing: no canary has a
    gradient, or no degree of freedom is left for the noise."""
    products = np.zeros((3, 3))  # of X, N and y
    for client in clients:
        for message in client.messages:
            columns = message.gradients @ np.column_stack([client.coins, client.expected])
            both = np.column_stack([columns, message.sent])
            products += both.T @ both
    scale, other = np.linalg.lstsq(products[:2, :2], products[:2, 2], rcond=None)[0]
    shared = products[0, 1] ** 2 / products[1, 1] if products[1, 1] > 0 else 0.0
    square = products[0, 0] - shared
    outside, spare, inside, rank, by_coin = 0.0, 0, 0.0, 0, 0.0
    for client in clients:
        along = np.zeros(len(client.coins))
        for message in client.messages:
            left = message.sent - message.gradients @ (scale * client.coins + other * client.expected)
            along += message.gradients.T @ left
            inside += max(0.0, float(left @ left) - message.outside)
            outside, spare, rank = outside + message.outside, spare + message.spare, rank + message.rank
        by_coin += float(np.square(along[client.coins != 0]).sum()) / 4
    if square <= 0 or rank <= 2 or spare <= 0:
        return None
    noise = max(outside / spare, inside / (rank - 2), by_coin / square)
    longest = max(math.sqrt(sum(message.longest**2 for message in client.messages)) for client in clients)
    return CoinRegression(float(scale), math.sqrt(noise), math.sqrt(square), spare, longest)
