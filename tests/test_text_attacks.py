"""Attacks on texts, as functions of what an adversary knows: against loops over tokens, with a planted leak and none."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.special import log_softmax

from fedaudit.attacks.answers import ClassAnswers, TextAnswers
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import Knowledge
from fedaudit.attacks.tokens.signals import row_signals
from fedaudit.contracts.attacks import contracts_of, named, scores_of
from fedaudit.contracts.text_toy import ROUNDS, WORDS, texts
from tests import inference_oracle as oracle

ALONE = [p for p in ATTACKS.values() if "texts" in p.facts.records and not p.facts.shadows]
OF_BOTH = [p for p in ALONE if not p.facts.needs and "classes" in p.facts.records]
of_both = pytest.mark.parametrize("plugin", OF_BOTH, ids=lambda p: p.name)
KEPT = [(p, contract) for p in ATTACKS.values() for contract in contracts_of(p) if "texts" in p.facts.records]


@pytest.mark.parametrize(("plugin", "contract"), [c for c in KEPT if "text" in c[1].__name__], ids=named)
def test_every_attack_on_texts_keeps_its_contracts(plugin, contract):
    contract(plugin)


def test_loss_and_entropy_are_means_over_the_caption():
    seen, _, rows = texts(1.0, 20)
    found = {k: v for name in ("loss", "entropy") for k, v in scores_of(ATTACKS[name], seen).items()}
    for i, (logits, words) in enumerate(rows):
        log_p = log_softmax(logits[2:], axis=1)
        p = np.exp(log_p)
        own = log_p[np.arange(len(log_p)), words[2:]]
        modified = [
            -(1 - p[t, y]) * log_p[t, y] - sum(p[t, z] * math.log1p(-p[t, z]) for z in range(WORDS) if z != y)
            for t, y in enumerate(words[2:])
        ]
        states = [seen.rounds.loss[t, 1, i] for t in range(ROUNDS)]
        expected = {
            "loss": own.mean(), "loss/base": own.mean() + seen.base.loss[i],
            "loss/rounds": seen.base.loss[i] - np.mean(states), "entropy": (p * log_p).sum(1).mean(),
            "entropy/confidence": log_p.max(1).mean(), "entropy/modified": -np.mean(modified),
        }  # fmt: skip
        assert {name: score[i] for name, score in found.items()} == pytest.approx(expected, abs=1e-12)


@of_both
def test_a_text_of_one_token_is_a_classification(plugin):
    """All K and slices coincide: one score instead of many."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 30)
    model, base = (log_softmax(rng.standard_normal((30, 5)), axis=1) for _ in range(2))

    def as_texts(log_probs):
        one = {"caption": slice(0, 1)}
        return TextAnswers({"exact": row_signals(log_probs, labels)}, np.ones(30, int), [one] * 30, ["x"] * 30)

    names, known = tuple(map(str, range(30))), np.zeros(30, bool)
    of_classes = Knowledge(names, known, ClassAnswers(model, labels), ClassAnswers(base, labels))
    of_texts = Knowledge(names, known, as_texts(model), as_texts(base))
    alone, many = scores_of(plugin, of_classes), scores_of(plugin, of_texts)
    if plugin.name == "maxrenyi":
        alone = {f"renyi/2/{k}/caption": alone["maxrenyi"] for k in range(0, 101, 10)}
    for name, score in alone.items():
        np.testing.assert_allclose(many[name], score, rtol=0, atol=1e-12)


def test_scores_of_rounds_equal_their_loops():
    seen, *_ = texts(1.0, 30)
    rounds = seen.rounds
    gone = dataclasses.replace(rounds, loss=rounds.loss.copy(), residual=rounds.residual.copy())
    gone.loss[2, 1] = gone.residual[0] = np.nan  # not rebuilt after one round; in another nothing moved
    seen = dataclasses.replace(seen, rounds=gone)
    names = ("slope", "projres", "quantile", "reconstruct")
    found = {signal: score for name in names for signal, score in scores_of(ATTACKS[name], seen).items()}
    for i in range(30):
        own = [gone.loss[t, 1, i] for t in (0, 1, 3)]
        out = [answers.loss[i] for s, answers in enumerate(seen.shadows.answers) if not seen.shadows.member[s, i]]
        expected = {
            "slope": np.mean([gone.start_loss[t, i] - gone.loss[t, 1, i] for t in (0, 1, 3)]),
            "projres": -np.mean([gone.residual[t, i] for t in (1, 2, 3)]),
            "quantile/rounds": np.mean(out) - np.mean(own), "reconstruct/rounds": seen.base.loss[i] - np.mean(own),
        }  # fmt: skip
        assert {name: found[name][i] for name in expected} == pytest.approx(expected, abs=1e-12)
    seen, *_ = texts(1.0, 30)
    history = np.random.default_rng(0).random((5, 30))
    seen = dataclasses.replace(seen, rounds=None, history=history)
    slope, over = scores_of(ATTACKS["slope"], seen)["slope"], scores_of(ATTACKS["loss"], seen)["loss/rounds"]
    assert slope == pytest.approx([-np.polyfit(range(5), own, 1)[0] for own in history.T], abs=1e-12)
    assert over == pytest.approx(seen.base.loss - history.mean(0), abs=1e-12)


def mean_log_p(rows):
    """Of the words of each caption, in a loop."""
    captions = ((logits[2:], words[2:]) for logits, words in rows)
    return np.array([np.mean([log_softmax(row)[y] for row, y in zip(*one, strict=True)]) for one in captions])


@pytest.mark.parametrize("variance", ["prior", "fixed", "per-record"])
def test_lira_and_rmia_take_the_mean_log_probability_of_the_words(variance):
    seen, _, rows = texts(1.0, 40)
    target = mean_log_p(rows)
    shadows = np.array([[-loss for loss in answers.loss] for answers in seen.shadows.answers])
    np.testing.assert_allclose(-seen.loss, target, rtol=0, atol=1e-12)
    found = scores_of(ATTACKS["lira"], seen, variance=variance)
    expected = oracle.lira(target, shadows, seen.shadows.member, variance=variance)
    for score, slow in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(score, slow, rtol=1e-8, atol=1e-8)
    found = scores_of(ATTACKS["rmia"], seen, offline_a=0.3)
    expected = oracle.rmia(target, shadows, seen.shadows.member, seen.known, gamma=1.0, a=0.3)
    for score, slow in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(score, slow, rtol=0, atol=1e-10)


def test_the_shadow_network_sees_what_training_changed_in_the_caption():
    seen, _, rows = texts(1.0, 10)

    def summary(rows):
        found = []
        for logits, words in rows:
            log_p = log_softmax(logits[2:], axis=1)
            own, entropies = log_p[np.arange(len(log_p)), words[2:]], -(np.exp(log_p) * log_p).sum(1)
            first, second = np.sort(log_p, axis=1)[:, ::-1][:, :2].T
            least = np.sort(own)[: max(1, len(own) // 5)]
            middle = np.quantile(entropies, [0.25, 0.5, 0.75])
            found.append([own.mean(), least.mean(), *middle, (first - second).mean()])
        return np.array(found)

    same = seen.answers.features(seen.answers)
    np.testing.assert_array_equal(same, np.zeros((10, 6)))
    n = len(seen.answers.signals())
    nothing = row_signals(np.zeros((n, WORDS)), np.zeros(n, int))
    of_nothing = dataclasses.replace(seen.answers, by_compat={"exact": nothing})
    uniform = np.array([-math.log(WORDS)] * 2 + [math.log(WORDS)] * 3 + [0.0])
    np.testing.assert_allclose(seen.answers.features(of_nothing), summary(rows) - uniform, rtol=0, atol=1e-12)
