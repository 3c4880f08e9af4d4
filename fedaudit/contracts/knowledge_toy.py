"""A synthetic `Knowledge` with a planted leak of known strength: no network is trained, so attacks can be tested in
milliseconds.

Every model sees record i as logits that are common to all models (what is hard about it) plus the model's own noise;
the models that trained on it add `leak` to the logit of its own class. With `leak=0` members and held-out records have
the same distribution, so no attack may find anything.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.answers import ClassAnswers, TextAnswers
from fedaudit.attacks.knowledge import (
    SUMS,
    Floats,
    Knowledge,
    Mixture,
    PooledSum,
    Rounds,
    Shadows,
    SolvedBatch,
    log_odds,
    own_class,
)
from fedaudit.machinery.plugins import Plugin

HARD, NOISE = 1.5, 0.5  # standard deviations of the logits: among records, and of one record among models
LEARNT = 1.0  # what training adds to the own class of every record of the distribution, member or not


def toy_seen(
    *,
    leak: float,
    records: int = 96,
    known: int = 24,
    classes: int = 5,
    shadows: int = 12,
    clients: int = 4,
    rounds: int = 6,
    seed: int = 0,
) -> tuple[Knowledge, NDArray[np.bool_]]:
    """An attacked model of client 1, with everything an attacker could know, and who its members are, [n]: apart, no
    `Knowledge` knows.

    The last `known` of the records are known non-members, in no model; the others were drawn by a fair coin for each
    model alone. In every round one client in four sends nothing (its entries are nan), but never client 1.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, records)
    is_known = np.arange(records) >= records - known
    common = HARD * rng.standard_normal((records, classes))
    scale = np.exp(0.3 * rng.standard_normal(records))  # of a record's gradient, the same in every model

    def train(member: NDArray[np.bool_], strength: float, learnt: float = LEARNT) -> Floats:
        """log p [.., n, C] of models with these members [.., n]."""
        noise = NOISE * rng.standard_normal((*member.shape, classes))
        return _log_softmax(common + noise + (learnt + strength * member)[..., None] * np.eye(classes)[labels])

    def norms(log_probs: Floats) -> Floats:
        """As of a linear classifier: the norm of p - onehot, times the record's own scale."""
        return scale * np.linalg.norm(np.exp(log_probs) - np.eye(classes)[labels], axis=-1)

    member = _coins(rng, (records,), is_known)
    in_shadow = _coins(rng, (shadows, records), is_known)
    log_probs, base, shadow_probs = train(member, leak), train(member, 0.0, 0.0), train(in_shadow, leak)
    progress = np.arange(1, rounds + 1) / rounds
    history = np.stack([-own_class(train(member, leak * part, LEARNT * part), labels) for part in progress])
    knowledge = classified(
        tuple(f"r{i}" for i in range(records)), labels, is_known, log_probs, base,
        hard=train(member, 0.0, 0.5), gradient_norms=norms(log_probs), base_gradient_norms=norms(base),
        shadows=shadows_of(in_shadow, shadow_probs, labels, norms(shadow_probs)), history=history,
        rounds=_rounds(rng, member, leak * progress, clients, lambda m, s: -own_class(train(m, s), labels)),
    )  # fmt: skip
    where = rng.standard_normal(records)  # how far training moves the vectors along a record's gradient without it

    def after(of: NDArray[np.bool_]) -> Floats:
        """Confidences [.., T, n] over the rounds."""
        return np.stack([log_odds(train(of, leak * part, LEARNT * part), labels) for part in progress], axis=-2)

    def projected(of: NDArray[np.bool_]) -> Floats:
        return where + leak * of + rng.standard_normal(of.shape)

    assert knowledge.shadows is not None
    shadow = dataclasses.replace(knowledge.shadows, sequence=after(in_shadow), projections=projected(in_shadow))
    answer, _ = _mixtures(np.random.default_rng((seed, 7)), member, leak)
    knowledge = dataclasses.replace(
        knowledge, shadows=shadow, sequence=after(member), projections=projected(member),
        base_projections=np.zeros(records),
        probed={"scaled": answer}, pooled=_pooled(np.random.default_rng((seed, 3)), member, labels, leak),
        **_contents(np.random.default_rng((seed, 1)), member, labels, leak),
    )  # fmt: skip
    return knowledge, member


def scores_of(plugin: Plugin[Any], knowledge: Knowledge, **params: Any) -> dict[str, Floats]:
    """The scores of an attack with its own defaults but for these."""
    result: dict[str, Floats] = plugin.make(dataclasses.replace(plugin.params(), **params)).score(knowledge)
    return result


def auroc(knowledge: Knowledge, member: NDArray[np.bool_], score: Floats) -> float:
    """The AUROC of the candidates that have a score."""
    candidates = ~knowledge.known & ~np.isnan(score)
    return float(roc_auc_score(member[candidates], score[candidates]))


def by_chance(one: int, other: int, worlds: int = 1) -> float:
    """Four standard deviations of a mean AUROC of so many members and others that nothing tells apart."""
    return 4 * math.sqrt((one + other + 1) / (12 * one * other) / worlds)


def log_probs_of(shadows: Shadows) -> Floats:
    """log p [S, n, C] of shadows that classify."""
    return np.stack([answers.log_probs for answers in shadows.answers])  # type: ignore[attr-defined]


def _rounds(
    rng: np.random.Generator, member: NDArray[np.bool_], strengths: Floats, clients: int,
    loss: Callable[[NDArray[np.bool_], float], Floats],
) -> Rounds:  # fmt: skip
    """Only client 1 ever trained on the records; the cosine of a member's gradient with its update rises by a tenth of
    the leak."""
    mine = (np.arange(clients) == 1)[:, None] & member
    losses = np.stack([loss(mine, strength) for strength in strengths])
    cosines = np.stack([0.1 * rng.standard_normal(mine.shape) + 0.1 * strength * mine for strength in strengths])
    absent = rng.random((len(strengths), clients)) < 0.25
    absent[:, 1] = False
    losses[absent] = cosines[absent] = np.nan
    return Rounds(1, losses, cosines, _mixtures(rng, member, strengths[-1]))


def _mixtures(rng: np.random.Generator, member: NDArray[np.bool_], leak: float) -> tuple[Mixture, ...]:
    """Two messages, each of a third of the members, or where nothing leaks of as many records of any kind; the noise in
    them falls with the leak."""
    n, listed = len(member), np.flatnonzero(member) if leak else np.arange(len(member))
    size, std = max(1, int(member.sum()) // 3), 1 / max(leak, 1e-9)
    result = []
    for r, batch in enumerate(rng.permutation(listed)[: 2 * size].reshape(2, size)):
        gradients = rng.standard_normal((2 * n, n))
        sent = gradients[:, batch].mean(1) + (std * rng.standard_normal(2 * n) / size if leak else 0)
        result.append(
            Mixture(
                r, gradients, sent, numbers=2 * n, divisor=float(size), low=0.0, high=1.0, total=float(size),
                known="equal", scaled=False, std=std / size if leak else 0.0,
                lengths=np.linalg.norm(gradients, axis=0), coefficients=np.ones(1),
            )
        )  # fmt: skip
    return tuple(result)


def _contents(
    rng: np.random.Generator, member: NDArray[np.bool_], labels: NDArray[np.int64], leak: float
) -> dict[str, Any]:
    """A message of half of the members, or where nothing leaks of as many records of any kind, solved with an error of
    a third of a picture."""
    pictures = rng.standard_normal((len(member), 24))
    pictures /= np.linalg.norm(pictures, axis=1, keepdims=True)
    batch = rng.permutation(np.flatnonzero(member) if leak else np.arange(len(member)))[
        : max(1, int(member.sum()) // 2)
    ]
    solved = pictures[batch] + 0.3 * rng.standard_normal((len(batch), 24)) / math.sqrt(24)
    return {
        "contents": SolvedBatch(labels[batch], solved / np.linalg.norm(solved, axis=1, keepdims=True)),
        "embeddings": pictures,
    }


def _pooled(
    rng: np.random.Generator, member: NDArray[np.bool_], labels: NDArray[np.int64], leak: float
) -> dict[str, PooledSum]:
    """Sums that the mean of each class's members explains, or where nothing leaks of as many records of any kind, up to
    noise."""
    n, pooled = len(member), {}
    for name in SUMS:
        inside = member if leak else rng.permutation(member)
        rows = rng.standard_normal((2 * n, n))
        shares = inside / np.maximum(1, np.bincount(labels, inside)[labels])
        noise = rng.standard_normal(2 * n) / 10 / max(leak, 1e-2)
        pooled[name] = PooledSum(rows, rows @ shares + noise, labels)
    return pooled


def _coins(rng: np.random.Generator, shape: tuple[int, ...], never: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return (rng.random(shape) < 0.5) & ~never


def _log_softmax(logits: Floats) -> Floats:
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def classified(
    records: tuple[str, ...], labels: NDArray[np.int64], known: NDArray[np.bool_], log_probs: Floats, base: Floats,
    hard: Floats | None, **more: Any,
) -> Knowledge:  # fmt: skip
    """Knowledge of classifications: log-probabilities [n, C] of the attacked model, the public start and the hard
    prompt; `more` are the other fields."""
    attacked, start = (ClassAnswers(result, labels) for result in (log_probs, base))
    return Knowledge(records, known, attacked, start, hard, **more)


def shadows_of(
    member: NDArray[np.bool_], log_probs: Floats, labels: NDArray[np.int64], gradient_norms: Floats | None = None,
    **more: Any,
) -> Shadows:  # fmt: skip
    """Shadows that classify: log-probabilities [S, n, C]; `more` are the other fields."""
    return Shadows(member, [ClassAnswers(result, labels) for result in log_probs], gradient_norms, **more)


def picked(rounds: Rounds, places: NDArray[np.int64]) -> Rounds:
    """The rounds of some records, by place."""
    arrays = {name: getattr(rounds, name) for name in ("loss", "cosine", "start_loss", "residual")}
    some: dict[str, Any] = {name: None if array is None else array[..., places] for name, array in arrays.items()}
    return dataclasses.replace(rounds, **some, mixtures=())


def some_of(answers: TextAnswers, places: NDArray[np.int64]) -> TextAnswers:
    """Answers about some texts, by place."""
    rows = np.concatenate([np.arange(answers.starts[i], answers.starts[i] + answers.sizes[i]) for i in places])
    kept = {compat: signals[rows] for compat, signals in answers.by_compat.items()}
    spans, words = ([of_record[i] for i in places] for of_record in (answers.spans, answers.words))
    return TextAnswers(kept, answers.sizes[places], spans, words)
