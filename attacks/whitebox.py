"""White-box score: every candidate's coin by ridge regression of a client's messages on the clipped gradients.

With noise one message says little of a record. This adds up what all messages say: in message t of a client, y_t, a
record i that is in every step is seen as a_ti = (sum of the steps' weights) * g_i / |B|, where g_i is its clipped
gradient in the model from which the client started. With x_i the record's coin, of mean q and variance q (1 - q),

    min over x of  sum over t of |y_t - A_t x|^2 / s_t^2  +  |x - q|^2 / (q (1 - q))

and the score is x_i - q: the best linear guess if the noise is normal. q is the batch over the number of candidates.
s_t^2 is the mean square of what of y_t lies outside the span of all gradients, so that the noise is measured and not
believed. Steinke, Nasr and Jagielski (2023) take the product <y_t, g_i> in a white-box audit; here the other records'
gradients are taken out, as these point the same way, and hide one record behind the others.

whitebox              with gradients as the client clips them.
whitebox/unclipped    with gradients as they are, times the one number that fits the messages best: for faults
                      of clipping.

Needs the server's view (uploads). Looks at the first messages of a client (`--solved-rounds`); with noise, ask for all.
 Records with no gradient are NaN, and reference records, whose coins are known.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Attack, Floats, Knowledge, Mixture

EXACT = 1e-6  # times a message's mean number: errors of gradients are about so large, and no noise is smaller


class Facts(AttackFacts):
    records = ("classes",)
    needs = ("uploads",)
    mixtures = True
    of_noise = True
    signals = (
        ("whitebox", "white-box score", "the white-box score"),
        ("whitebox/unclipped", "white-box score, unclipped", "the white-box score by gradients before clipping"),
    )


@dataclass(frozen=True)
class Params:
    """The white-box score has no parameters."""


class Whitebox(Attack):
    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        if knowledge.rounds is None:
            raise ValueError("the white-box score needs what was seen of rounds")
        mixtures = knowledge.rounds.mixtures
        scores = {name: np.full(len(knowledge.records), np.nan) for name in Facts.names()}
        if mixtures:
            unknown = ~knowledge.known[: mixtures[0].gradients.shape[1]]
            places = np.flatnonzero(unknown)
            scores["whitebox"][places] = coins(mixtures, unknown, [one.clipped_to for one in mixtures])
            scores["whitebox/unclipped"][places] = coins(
                mixtures, unknown, [one.lengths for one in mixtures], free=True
            )
        return scores


def coins(
    mixtures: tuple[Mixture, ...], unknown: NDArray[np.bool_], lengths: list[Floats], *, free: bool = False
) -> Floats:
    """The best linear guess of the coins [u] of u `unknown` records, less their mean; NaN without a gradient. Gradients
    are brought to the `lengths` [n] of each message. `free`: they are then multiplied by the number that fits best."""
    pairs = [_whitened(mixture, unknown, length) for mixture, length in zip(mixtures, lengths, strict=True)]
    share = float(np.mean([mixture.total / mixture.coefficients.sum() for mixture in mixtures])) / unknown.sum()
    mean = min(share, 0.5)
    if free:
        sums = [rows.sum(1) * mean for rows, _ in pairs]
        square = sum(float(each @ each) for each in sums)
        product = sum(float(each @ sent) for each, (_, sent) in zip(sums, pairs, strict=True))
        pairs = [(rows * (product / square), sent) for rows, sent in pairs] if square else pairs
    gram, inner = np.zeros((unknown.sum(),) * 2), np.zeros(unknown.sum())
    for rows, sent in pairs:
        gram += rows.T @ rows
        inner += rows.T @ (sent - rows.sum(1) * mean)
    deviations: Floats = np.linalg.solve(gram + np.eye(len(gram)) / (mean * (1 - mean)), inner)
    deviations[np.diag(gram) == 0] = np.nan
    return deviations


def _whitened(mixture: Mixture, unknown: NDArray[np.bool_], lengths: Floats) -> tuple[Floats, Floats]:
    """Rows [m, u], what each of u unknown records adds to a message if it is in every step, and the message [m], both
    divided by the standard deviation of the noise."""
    square, dimension = mixture.remainder()
    least = EXACT * float(np.linalg.norm(mixture.sent)) / np.sqrt(mixture.numbers)
    noise = max(np.sqrt(square / dimension) if dimension > 0 else mixture.std, least) or 1.0
    scale = np.divide(lengths, mixture.clipped_to, out=np.zeros_like(lengths), where=mixture.clipped_to > 0)
    rows = mixture.gradients * (scale * mixture.coefficients.sum() / mixture.divisor)
    return rows[:, unknown] / noise, mixture.sent / noise
