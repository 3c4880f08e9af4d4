"""The white-box score: against the posterior mean on raw numbers, and what it finds where a leak or none is planted."""

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.knowledge import Floats, Knowledge, Mixture
from fedaudit.attacks.messages.mixtures import compress
from fedaudit.attacks.whitebox import Params, Whitebox
from fedaudit.contracts.knowledge_toy import toy_seen

NUMBERS, RECORDS, KNOWN = 80, 30, 6


def planted(
    std: float, *, seed: int = 0, clip: float = np.inf, off: bool = False, leak: bool = True, share: float = 0.5
) -> tuple[Knowledge, Floats, list[tuple[Floats, Floats]]]:
    """What a server knows of a client's three messages, the coins of the first records, and the messages' raw numbers. `off`:
    the client does not clip what it says it clips. `share`: of the coins, how many are heads."""
    rng = np.random.default_rng(seed)
    coins = (rng.permutation(RECORDS - KNOWN) < share * (RECORDS - KNOWN)).astype(float)
    sent_by = coins if leak else np.full(len(coins), 0.5)
    common, mixtures, numbers = rng.standard_normal(NUMBERS), [], []
    for r in range(3):
        gradients = (rng.standard_normal((NUMBERS, RECORDS)) + common[:, None]) * (0.5 + rng.random(RECORDS))
        lengths = np.linalg.norm(gradients, axis=0)
        clipped = gradients * np.minimum(1, clip / lengths)
        sent = (gradients if off else clipped)[:, : len(coins)] @ sent_by / 4 + std * rng.standard_normal(NUMBERS)
        rows, target = compress(clipped.T, sent)
        scale = {"numbers": NUMBERS, "divisor": 4.0, "low": 0.0, "high": 1.0, "total": share * len(coins)}
        noise = {"known": "equal", "scaled": False, "std": std, "lengths": lengths, "coefficients": np.ones(1)}
        mixtures.append(Mixture(r, rows, target, **scale, **noise))
        numbers.append((clipped[:, : len(coins)] / 4, sent))
    toy, _ = toy_seen(leak=1.0, records=RECORDS, known=KNOWN)
    return dataclasses.replace(toy, rounds=dataclasses.replace(toy.rounds, mixtures=tuple(mixtures))), coins, numbers


def score(knowledge: Knowledge, name: str = "whitebox") -> Floats:
    return Whitebox(Params()).score(knowledge)[name]


@pytest.mark.parametrize("share", [1 / 2, 1 / 4])
def test_is_the_posterior_mean_of_normal_coins(share: float) -> None:
    """By the whole covariance of all messages' numbers, with the noise as it is outside the span of the gradients."""
    knowledge, coins, numbers = planted(0.5, share=share)
    n = len(coins)
    everything = np.vstack([rows for rows, _ in numbers])
    sent = np.concatenate([message for _, message in numbers])
    noise = [square / spare for square, spare in (mixture.remainder() for mixture in knowledge.rounds.mixtures)]
    variance = share * (1 - share)
    covariance = variance * everything @ everything.T + np.diag(np.repeat(noise, NUMBERS))
    posterior = variance * everything.T @ np.linalg.solve(covariance, sent - share * everything.sum(1))
    found = score(knowledge)
    np.testing.assert_allclose(found[:n], posterior, rtol=1e-6, atol=1e-9)
    assert np.isnan(found[n:]).all()


def test_finds_all_coins_without_noise_and_most_with_some() -> None:
    clear, coins, _ = planted(0.0)
    assert roc_auc_score(coins, score(clear)[: len(coins)]) == 1.0
    some = [planted(2.0, seed=seed)[:2] for seed in range(20)]
    assert np.mean([roc_auc_score(c, score(k)[: len(c)]) for k, c in some]) > 0.65


def test_finds_nothing_where_nothing_leaks() -> None:
    """40 runs whose messages hold half of every record: the mean of their AUROC is chance, within four standard errors."""
    found = [roc_auc_score(c, score(k)[: len(c)]) for k, c, _ in (planted(1.0, seed=s, leak=False) for s in range(40))]
    assert abs(np.mean(found) - 0.5) < 4 * np.std(found) / np.sqrt(len(found))


def test_gradients_before_clipping_find_more_where_clipping_is_off() -> None:
    runs = [planted(1.5, clip=1.0, off=True, seed=seed)[:2] for seed in range(10)]
    clipped, raw = (
        np.mean([roc_auc_score(c, score(k, name)[: len(c)]) for k, c in runs])
        for name in ("whitebox", "whitebox/unclipped")
    )
    assert raw > clipped + 0.01


def test_a_record_without_gradient_is_not_scored() -> None:
    knowledge, _, _ = planted(0.5)
    kept = np.arange(RECORDS) != 2
    blank = tuple(
        dataclasses.replace(mixture, gradients=mixture.gradients * kept, lengths=mixture.lengths * kept)
        for mixture in knowledge.rounds.mixtures
    )
    found = score(dataclasses.replace(knowledge, rounds=dataclasses.replace(knowledge.rounds, mixtures=blank)))
    assert np.isnan(found[2])
    assert not np.isnan(found[[0, 1, 3]]).any()


def test_needs_messages() -> None:
    knowledge, _ = toy_seen(leak=1.0)
    with pytest.raises(ValueError, match="rounds"):
        score(dataclasses.replace(knowledge, rounds=None))
