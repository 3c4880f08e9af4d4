"""A synthetic `Knowledge` of texts with a planted leak of known strength: no network is trained."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedaudit.attacks.answers import TextAnswers
from fedaudit.attacks.knowledge import Explained, Floats, Knowledge, Rounds, Shadows
from fedaudit.attacks.tokens.signals import row_signals

WORDS, HARD, NOISE = 12, 1.0, 0.4  # of the vocabulary; standard deviations of logits, among tokens and among models
ROUNDS, SHADOWS, KNOWN = 4, 24, 12  # models of the adversary's own; known non-members, the last records

Bools = NDArray[np.bool_]
Rows = list[tuple[Floats, NDArray[np.int64]]]  # of each text: logits [T, V], and the words [T]


@functools.cache
def texts(leak: float, n: int = 60, seed: int = 0) -> tuple[Knowledge, Bools, Rows]:
    """Knowledge of n texts, which of them the model was trained on, and its logits: training adds `leak` to the logit
    of each word of their captions. Texts have three to seven rows: one of the image, one of the instruction, the rest
    of the caption."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 8, n)
    nonmembers = np.arange(n) >= n - KNOWN
    member, *of_shadows = (rng.random((1 + SHADOWS, n)) < 0.5) & ~nonmembers
    commons = [HARD * rng.standard_normal((size, WORDS)) for size in sizes]
    wanted = [rng.integers(0, WORDS, size) for size in sizes]

    def trained(of: Bools, strength: float) -> Rows:
        learnt = [
            strength * mine * (np.arange(size) >= 2)[:, None] * np.eye(WORDS)[words]
            for size, mine, words in zip(sizes, of, wanted, strict=True)
        ]
        return [
            (common + more + NOISE * rng.standard_normal(common.shape), words)
            for common, more, words in zip(commons, learnt, wanted, strict=True)
        ]

    base, model = trained(member, 0.0), trained(member, leak)
    spans = [{"image": slice(0, 1), "instruction": slice(1, 2), "caption": slice(2, int(size))} for size in sizes]
    captions: Sequence[str] = [" ".join(map(str, range(size))) for size in sizes]

    def answers(rows: Rows) -> TextAnswers:
        logits, targets = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        return TextAnswers({"exact": row_signals(logits, targets)}, sizes, spans, captions)

    names = tuple(f"r{i}" for i in range(n))
    shadows = Shadows(np.array(of_shadows), [answers(trained(of, leak)) for of in of_shadows])
    knowledge = Knowledge(
        names, nonmembers, answers(model), answers(base), shadows=shadows, rounds=_over_rounds(member, leak, rng),
        explained=_by_gradients(member, leak, rng),
    )  # fmt: skip
    return knowledge, member, model


def _by_gradients(member: Bools, leak: float, rng: np.random.Generator) -> tuple[Explained, ...]:
    """Messages explained by gradients: what is learnt weighs more; one record has no gradient in one of them."""
    weights = 0.1 * leak * member + 0.2 * NOISE * rng.standard_normal((ROUNDS, len(member)))
    weights[1, 2] = np.nan
    return tuple(Explained(r, of_round, 0.7, int(np.isnan(of_round).sum())) for r, of_round in enumerate(weights))


def _over_rounds(member: Bools, leak: float, rng: np.random.Generator) -> Rounds:
    """Messages of client 1 of three, in rounds in which it trained: what is learnt lowers its loss, turns its update
    and leaves less residual. Losses differ among records more than training lowers them; the second client is away in
    one round."""
    shape = ROUNDS, 3, len(member)
    mine = 0.3 * leak * (np.arange(3) == 1)[:, None] * member
    hard = 2 + HARD * rng.random(len(member))
    loss, cosine = hard - mine + NOISE * rng.random(shape), 0.3 * mine + NOISE * rng.standard_normal(shape)
    loss[1, 2] = cosine[1, 2] = np.nan
    began, residual = (base + NOISE * rng.random((ROUNDS, len(member))) for base in (hard, 0.5 - 0.3 * mine[1]))
    return Rounds(1, loss, cosine, start_loss=began, residual=residual)
