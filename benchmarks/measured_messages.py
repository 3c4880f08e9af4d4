"""The bound from a regression of messages, where the truth is known: how much of it is shown, and how often too much.

    python -m benchmarks.measured_messages [number of runs, default 400] [canaries, default 1000]

Ten clients send messages of 1,024 numbers: the sum of the gradients of 40 of 80 candidates and of the canaries whose coin
fell so, and Gaussian noise. Gradients are drawn once for each row of the table, coins and noise in each run. Two steps
that each take in all records, all gradients are as long as clipping allows, and share a third of their squared length
with the others of the client; but for one thing:

    alike         nine tenths of their squared length are shared
    uneven        lengths are uniform from 0 to the longest
    heavy tails   a tenth is as long as clipping allows, the others fall like a Pareto law
    wrong         who of the candidates is a member is told wrongly for every second one
    wrong, uneven both
    told .8       the gradients that the regression is told are as long as .8 of the true ones
    told half     and half as long
    growing       four steps, whose gradients are .25, .5, .75 and 1 of what clipping allows; told are the first ones
    epochs        20 steps, of which a record is in every tenth; nobody knows who was in which
    Poisson       20 steps, and a record is in each with probability 0.1; the suite takes no bound then

`shown` is the mean of the bound over the true epsilon, `above` how often it is above it: a bound of 95 % is in at most 33
of 400 runs (the binomial's 0.999). `scale` is kappa, `noise` is s over the true standard deviation, on average.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.measured_epsilon import DELTA, RATE, STEPS, sampled_mu
from fedaudit.audits.statistics.regression import Coined, Message, regress
from fedaudit.audits.statistics.trade_off import GAUSSIAN

CLIENTS, CANDIDATES, REFERENCES, NUMBERS = 10, 80, 40, 1024
EPSILONS = (0.5, 2.0, 8.0)


@dataclass(frozen=True)
class Kind:
    """A row of the table: how its runs differ from plain ones."""

    shared: float = 1 / 3
    lengths: str = "equal"
    wrong: float = 0.0
    told: float = 1.0  # length of the gradients that the regression is told, of the longest ones
    grows: bool = False
    sampler: str = ""


KINDS = {
    "plain": Kind(),
    "alike": Kind(shared=0.9),
    "uneven": Kind(lengths="uneven"),
    "heavy tails": Kind(lengths="heavy"),
    "wrong": Kind(wrong=0.5),
    "wrong, uneven": Kind(lengths="uneven", wrong=0.5),
    "told .8": Kind(told=0.8),
    "told half": Kind(told=0.5),
    "growing": Kind(told=0.25, grows=True),
    "epochs": Kind(sampler="epochs"),
    "Poisson": Kind(sampler="poisson"),
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    canaries = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    print(f"{runs} runs, {canaries} canaries, delta {DELTA:g}")
    print(f"{'runs':<15}{'epsilon':>8}{'shown':>8}{'largest':>9}{'above':>12}{'scale':>8}{'noise':>8}")
    for number, (name, kind) in enumerate(KINDS.items()):
        rng = np.random.default_rng(number)
        gradients = [gradients_of(rng, kind, canaries // CLIENTS) for _ in range(CLIENTS)]
        for epsilon in EPSILONS:
            rows = np.array([one_run(rng, kind, gradients, epsilon) for _ in range(runs)])
            above = f"{(rows[:, 0] > epsilon).sum()} of {runs}"
            print(f"{name:<15}{epsilon:>8g}{rows[:, 0].mean() / epsilon:>8.2f}{rows[:, 0].max():>9.2f}{above:>12}"
                  f"{rows[:, 1].mean():>8.2f}{rows[:, 2].mean():>8.2f}", flush=True)  # fmt: skip


def gradients_of(rng: np.random.Generator, kind: Kind, canaries: int) -> np.ndarray:
    """The gradients [n, n] of a client's records, of length 1 at most, in a basis of their span: canaries are last."""
    n = CANDIDATES + REFERENCES + canaries
    own = rng.standard_normal((NUMBERS, n))
    own /= np.linalg.norm(own, axis=0)
    common = rng.standard_normal((NUMBERS, 1))
    rows = np.sqrt(kind.shared) * common / np.linalg.norm(common) + np.sqrt(1 - kind.shared) * own
    length = np.ones(n)
    if kind.lengths == "uneven":
        length = rng.random(n)
    elif kind.lengths == "heavy":
        length = np.minimum(1.0, 0.1 / rng.random(n))
    return np.asarray(np.linalg.qr(rows / np.linalg.norm(rows, axis=0) * length, mode="r"))


def one_run(
    rng: np.random.Generator, kind: Kind, gradients: list[np.ndarray], epsilon: float
) -> tuple[float, float, float]:
    """The bound, kappa, and s over the true standard deviation."""
    steps = STEPS if kind.sampler else 4 if kind.grows else 2
    times = steps * RATE if kind.sampler == "epochs" else steps  # a record is in so many
    mu = sampled_mu(epsilon) if kind.sampler == "poisson" else GAUSSIAN.mu(epsilon, DELTA) / np.sqrt(times)
    std, clients = 1 / mu, []
    for rows in gradients:
        n = rows.shape[1]
        coins = rng.random(n - CANDIDATES - REFERENCES) < 0.5
        member = rng.permutation(CANDIDATES) < CANDIDATES // 2
        told = member ^ (rng.random(CANDIDATES) < kind.wrong)
        used = np.concatenate([member, np.zeros(REFERENCES), coins])
        turn = rng.integers(round(1 / RATE), size=n)
        messages = []
        for t in range(steps):
            taken = np.ones(n)
            if kind.sampler == "epochs":
                taken = (turn == t % round(1 / RATE)).astype(float)
            elif kind.sampler == "poisson":
                taken = (rng.random(n) < RATE).astype(float)
            longer = (t + 1) / steps if kind.grows else 1.0
            outside = std**2 * rng.chisquare(NUMBERS - n)
            sent = longer * rows @ (used * taken) + std * rng.standard_normal(n)
            messages.append(Message(kind.told * rows, sent, n, outside, NUMBERS - n, 1.0))
        expected = np.concatenate([told, np.zeros(REFERENCES), np.full(len(coins), 0.5)])
        clients.append(Coined(messages, np.concatenate([np.zeros(n - len(coins)), coins - 0.5]), expected))
    found = regress(clients)
    assert found is not None
    return GAUSSIAN.epsilon(found.mu_lower_bound(), DELTA), found.scale, found.noise / std


if __name__ == "__main__":
    main()
