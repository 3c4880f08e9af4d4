"""Attacks on texts, as functions of what an adversary knows: against loops over tokens, with a planted leak and none."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy.special import log_softmax

from fedaudit.attacks.answers import ClassAnswers, TextAnswers
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import Explained, Knowledge, Rounds, Shadows
from fedaudit.attacks.tokens.signals import row_signals, stacked, unstacked
from fedaudit.contracts import knowledge_toy
from fedaudit.contracts.knowledge_toy import auroc, by_chance, picked, some_of
from tests import inference_oracle as oracle

WORDS, HARD, NOISE = 12, 1.0, 0.4  # of the vocabulary; standard deviations of logits, among tokens and among models
ROUNDS, SHADOWS, KNOWN = 4, 24, 12  # models of the adversary's own; known non-members, the last records
ON_TEXTS = [p for p in ATTACKS.values() if "texts" in p.facts.records]
each = pytest.mark.parametrize("plugin", ON_TEXTS, ids=lambda p: p.name)
ALONE = [p for p in ON_TEXTS if not p.facts.shadows]
each_alone = pytest.mark.parametrize("plugin", ALONE, ids=lambda p: p.name)
OF_BOTH = [p for p in ALONE if not p.facts.needs and "classes" in p.facts.records]
of_both = pytest.mark.parametrize("plugin", OF_BOTH, ids=lambda p: p.name)


@functools.cache
def texts(leak, n=60, seed=0):
    """What a model, the public base and shadow models know of n texts, and which of them the model was trained on: that adds `leak` to the logit of
    each word of their captions. Texts have three to seven rows: one of the image, one of the instruction, the rest of the caption."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 8, n)
    known = np.arange(n) >= n - KNOWN
    member, *of_shadows = (rng.random((1 + SHADOWS, n)) < 0.5) & ~known
    commons = [HARD * rng.standard_normal((size, WORDS)) for size in sizes]
    wanted = [rng.integers(0, WORDS, size) for size in sizes]

    def trained(of, strength):
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
    captions = [" ".join(map(str, range(size))) for size in sizes]

    def answers(rows):
        parts = [stacked(row_signals(logits, targets)) for logits, targets in rows]
        exact = unstacked(np.concatenate(parts, axis=1))
        return TextAnswers({"exact": exact}, sizes, spans, captions)

    names = tuple(f"r{i}" for i in range(n))
    shadows = Shadows(np.array(of_shadows), [answers(trained(of, leak)) for of in of_shadows])
    seen = Knowledge(
        names, known, answers(model), answers(base), shadows=shadows, rounds=over_rounds(member, leak, rng),
        explained=by_gradients(member, leak, rng),
    )  # fmt: skip
    return seen, member, model


def by_gradients(member, leak, rng):
    """Messages explained by gradients: what is learnt weighs more; one record has no gradient in one of them."""
    weights = 0.1 * leak * member + 0.2 * NOISE * rng.standard_normal((ROUNDS, len(member)))
    weights[1, 2] = np.nan
    return tuple(Explained(r, of_round, 0.7, int(np.isnan(of_round).sum())) for r, of_round in enumerate(weights))


def over_rounds(member, leak, rng):
    """Messages of client 1 of three, in rounds in which it trained: what is learnt lowers its loss, turns its update and leaves less residual.
    Losses differ among records more than training lowers them; the second client is away in one round."""
    shape = ROUNDS, 3, len(member)
    mine = 0.3 * leak * (np.arange(3) == 1)[:, None] * member
    hard = 2 + HARD * rng.random(len(member))
    loss, cosine = hard - mine + NOISE * rng.random(shape), 0.3 * mine + NOISE * rng.standard_normal(shape)
    loss[1, 2] = cosine[1, 2] = np.nan
    began, residual = (base + NOISE * rng.random((ROUNDS, len(member))) for base in (hard, 0.5 - 0.3 * mine[1]))
    return Rounds(1, loss, cosine, start_loss=began, residual=residual)


# parameters of attacks whose defaults see nothing here: no word of the twelve is below a probability of about 0.01
ON_TOY: dict[str, dict[str, float]] = {}


def scores_of(plugin, seen, **params):
    return knowledge_toy.scores_of(plugin, seen, **(ON_TOY.get(plugin.name, {}) | params))


@each
def test_every_score_is_one_number_per_record_and_its_headlines_are_among_them(plugin):
    seen, *_ = texts(1.0)
    scores = scores_of(plugin, seen)
    for score in scores.values():
        assert (score.shape, score.dtype) == ((len(seen.records),), np.float64)
    assert {signal.format(**vars(plugin.params())) for signal in plugin.facts.headlines("texts")} <= scores.keys()


@each
def test_a_planted_leak_is_found_and_without_one_nothing_is(plugin):
    (seen, member, _), (null, nobody, _) = texts(2.5, 200), texts(0.0, 200)
    second, bound = np.random.default_rng(9).random(200) < 0.5, by_chance(80, 80)
    leaking, chance = scores_of(plugin, seen), scores_of(plugin, null)
    before = {} if plugin.facts.needs else scores_of(plugin, seen.before_training())
    for signal in (signal.format(**vars(plugin.params())) for signal in plugin.facts.headlines("texts")):
        assert np.ptp(leaking[signal][:-KNOWN]) > 0, f"{signal} is the same for all texts of the toy: see ON_TOY"
        assert auroc(seen, member, leaking[signal]) > 0.7
        assert abs(auroc(seen, second, leaking[signal]) - 0.5) < bound  # a coin that nobody trained by
        assert abs(auroc(null, nobody, chance[signal]) - 0.5) < bound
        if not plugin.facts.needs:  # what is seen of rounds has no such control
            assert abs(auroc(seen, member, before[signal]) - 0.5) < bound


@each_alone
def test_a_record_is_judged_alone(plugin):
    seen, *_ = texts(1.0)
    chosen = [7, 3, 41]
    some = dataclasses.replace(
        seen, records=tuple(seen.records[i] for i in chosen), known=seen.known[chosen],
        answers=some_of(seen.answers, chosen), base=some_of(seen.base, chosen), rounds=picked(seen.rounds, chosen),
        explained=tuple(message.picked(np.array(chosen)) for message in seen.explained),
    )  # fmt: skip
    whole = scores_of(plugin, seen)
    for name, score in scores_of(plugin, some).items():
        np.testing.assert_array_equal(score, whole[name][chosen])


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
            "loss": own.mean(),
            "loss/base": own.mean() + seen.base.loss[i],
            "loss/rounds": seen.base.loss[i] - np.mean(states),
            "entropy": (p * log_p).sum(1).mean(),
            "entropy/confidence": log_p.max(1).mean(),
            "entropy/modified": -np.mean(modified),
        }
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
        for k in range(0, 101, 10):
            np.testing.assert_allclose(many[f"renyi/2/{k}/caption"], alone["maxrenyi"], rtol=0, atol=1e-12)
    else:
        for name, score in alone.items():
            np.testing.assert_allclose(many[name], score, rtol=0, atol=1e-12)


def test_scores_of_rounds_equal_their_loops():
    seen, *_ = texts(1.0, 30)
    rounds, attacks = seen.rounds, ATTACKS
    gone = dataclasses.replace(rounds, loss=rounds.loss.copy(), residual=rounds.residual.copy())
    gone.loss[2, 1] = gone.residual[0] = np.nan  # not rebuilt after one round; in another nothing moved
    seen = dataclasses.replace(seen, rounds=gone)
    names = ("slope", "projres", "quantile", "reconstruct")
    found = {signal: score for name in names for signal, score in scores_of(attacks[name], seen).items()}
    for i in range(30):
        own = [gone.loss[t, 1, i] for t in (0, 1, 3)]
        out = [answers.loss[i] for s, answers in enumerate(seen.shadows.answers) if not seen.shadows.member[s, i]]
        expected = {
            "slope": np.mean([gone.start_loss[t, i] - gone.loss[t, 1, i] for t in (0, 1, 3)]),
            "projres": -np.mean([gone.residual[t, i] for t in (1, 2, 3)]),
            "quantile/rounds": np.mean(out) - np.mean(own),
            "reconstruct/rounds": seen.base.loss[i] - np.mean(own),
        }
        assert {name: found[name][i] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_without_messages_losses_over_rounds_are_those_of_the_broadcasts():
    seen, *_ = texts(1.0, 30)
    history = np.random.default_rng(0).random((5, 30))
    seen = dataclasses.replace(seen, rounds=None, history=history)
    attacks = ATTACKS
    for i in range(30):
        slope = scores_of(attacks["slope"], seen)["slope"][i]
        assert slope == pytest.approx(-np.polyfit(range(5), history[:, i], 1)[0], abs=1e-12)
        over = scores_of(attacks["loss"], seen)["loss/rounds"][i]
        assert over == pytest.approx(seen.base.loss[i] - history[:, i].mean(), abs=1e-12)


def mean_log_p(rows):
    """Of the words of each caption, in a loop."""
    return np.array(
        [np.mean([log_softmax(row)[y] for row, y in zip(logits[2:], words[2:], strict=True)]) for logits, words in rows]
    )


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
            found.append(
                [own.mean(), least.mean(), *np.quantile(entropies, [0.25, 0.5, 0.75]), (first - second).mean()]
            )
        return np.array(found)

    same = seen.answers.features(seen.answers)
    np.testing.assert_array_equal(same, np.zeros((10, 6)))
    of_nothing = dataclasses.replace(
        seen.answers,
        by_compat={
            "exact": row_signals(
                np.zeros((len(seen.answers.signals()), WORDS)), np.zeros(len(seen.answers.signals()), int)
            )
        },
    )
    uniform = np.array([-math.log(WORDS)] * 2 + [math.log(WORDS)] * 3 + [0.0])
    np.testing.assert_allclose(seen.answers.features(of_nothing), summary(rows) - uniform, rtol=0, atol=1e-12)
