"""Caption metrics against sacrebleu, slow oracles written from the definitions, hand calculations and laws."""

import math

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from fedaudit.tasks.metrics import answer_scores, bleu, caption_scores, cider, rouge_l, tokenize

Corpus = tuple[list[list[str]], list[list[list[str]]]]


def words(text: str) -> list[list[str]]:
    """Sentences parted by bars, as tokens."""
    return [sentence.split() for sentence in text.split("|")]


def corpus(seed: int, *, images: int = 12, references: int = 3, words: int = 8, longest: int = 12) -> Corpus:
    """Random captions of 0 (hypotheses) or 1 to `longest` tokens, of few words, so that n-grams of all orders match;
    half of them are a theme of the image, so that document frequencies differ."""
    rng = np.random.default_rng(seed)

    def sentence(image: int, least: int) -> list[str]:
        theme = rng.random(int(rng.integers(least, longest + 1))) < 0.5
        return [f"theme{image % 5}" if own else f"w{rng.integers(words)}" for own in theme]

    hypotheses = [sentence(i, 0) for i in range(images)]
    return hypotheses, [[sentence(i, 1) for _ in range(references)] for i in range(images)]


def slow_lcs(a: list[str], b: list[str]) -> int:
    """Lin 2004, section 3: the recursion as defined, without memory."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + slow_lcs(a[1:], b[1:])
    return max(slow_lcs(a[1:], b), slow_lcs(a, b[1:]))


def slow_rouge_l(hypotheses: list[list[str]], references: list[list[list[str]]]) -> float:
    """Mean F with beta 1.2 of the best precision and the best recall."""
    scores = []
    for h, refs in zip(hypotheses, references, strict=True):
        precision = max(slow_lcs(h, r) / len(h) for r in refs) if h else 0.0
        recall = max(slow_lcs(h, r) / len(r) for r in refs)
        scores.append(2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0.0)
    return float(np.mean(scores))


def slow_cider(hypotheses: list[list[str]], references: list[list[list[str]]]) -> float:
    """CIDEr-D of Vedantam et al. 2015 as defined: dense vectors over every n-gram that occurs, one entry at a time."""

    def grams(tokens: list[str], n: int) -> list[str]:
        return [" ".join(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]

    total = 0.0
    for n in (1, 2, 3, 4):
        texts = hypotheses + [r for refs in references for r in refs]
        vocabulary = sorted({g for text in texts for g in grams(text, n)})
        idf = {}
        for g in vocabulary:
            holders = sum(any(g in grams(r, n) for r in refs) for refs in references)
            idf[g] = math.log(len(references)) - math.log(max(1, holders))
        for h, refs in zip(hypotheses, references, strict=True):
            for r in refs:
                x = np.array([grams(h, n).count(g) * idf[g] for g in vocabulary])
                y = np.array([grams(r, n).count(g) * idf[g] for g in vocabulary])
                norms = np.linalg.norm(x) * np.linalg.norm(y)
                cosine = np.minimum(x, y) @ y / norms if norms > 0 else 0.0
                penalty = math.exp(-((len(h) - len(r)) ** 2) / 72)
                total += 10 * penalty * cosine / len(refs) / len(references) / 4
    return total


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A man, riding a T-shirt-red bike.", "a man riding a t-shirt-red bike"),
        ("I don't think it's here; isn't it?", "i do n't think it 's here is n't it"),
        ("He can't, won't, cannot, gonna: they've", "he ca n't wo n't can not gon na they 've"),
        ("I'm she'd we'll you're", "i 'm she 'd we 'll you 're"),
        ("The dogs' ball and the ‘dog’s’ “house”", "the dogs ball and the dog 's house"),
        ("10:30 p.m. the U.S. 1,000 3.5-inch and/or o'clock", "10:30 p.m. the u.s. 1,000 3.5-inch and/or o'clock"),
        ("two ... dogs -- one - cat — … \"x\" ``y'' `z'", "two dogs one cat x y z"),
        ("stop! really? wow!! (red)", "stop really wow !! ( red )"), ("dog.cat,bird 50% $5", "dog cat bird 50 % $ 5"),
        ("Crème brûlée", "crème brûlée"), ("  \n\t", ""), (" . , ! ", ""),
    ],
)  # fmt: skip
def test_tokens(text: str, tokens: str) -> None:
    """Splits of the Penn Treebank conventions, written by hand; the last rows have nothing to keep."""
    assert tokenize(text) == tokens.split()
    assert tokenize(tokens) == tokens.split(), "tokens stay as they are"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("references", [1, 2, 5])
def test_bleu_agrees_with_sacrebleu(seed: int, references: int) -> None:
    """Lengths 0 to 12 against 1 to 12: references that are equally close occur in every corpus with several."""
    hypotheses, refs = corpus(seed, images=80, references=references, words=3)
    streams = [[" ".join(r[i]) for r in refs] for i in range(references)]
    said = [" ".join(h) for h in hypotheses]
    for n, ours in enumerate(bleu(hypotheses, refs), start=1):
        theirs = BLEU(tokenize="none", smooth_method="none", max_ngram_order=n).corpus_score(said, streams).score
        assert theirs > 1  # every order has matches: the constants that keep coco-caption off 0 play no part
        assert 100 * ours == pytest.approx(theirs, abs=1e-6)


def test_bleu_clips_to_the_fullest_reference() -> None:
    """Papineni et al., section 2.1: "the" occurs at most twice in a reference, so 2 of 7; no bigram "the the" in 6."""
    scores = bleu(words("the the the the the the the"), [words("the cat is on the mat|there is a cat on the mat")])
    assert scores[0] == pytest.approx(2 / 7, rel=1e-8)
    assert scores[1] == pytest.approx(math.sqrt(2 / 7 * 1e-15 / 6), rel=1e-6)


def test_bleu_without_any_ngram_of_an_order() -> None:
    """Three right words have no 4-gram: 0 / 0 becomes 1e-15 / 1e-9 = 1e-6, so BLEU-4 is its fourth root."""
    assert bleu(words("a b c"), [words("a b c")]) == pytest.approx((1, 1, 1, 1e-6 ** (1 / 4)), rel=1e-8)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("references", [1, 3])
def test_rouge_l_and_cider_agree_with_their_definitions(seed: int, references: int) -> None:
    short = corpus(seed, references=references, words=4, longest=7)
    assert rouge_l(*short) == pytest.approx(slow_rouge_l(*short), abs=1e-12)
    assert 0 < rouge_l(*short) < 1
    whole = corpus(seed, references=references)
    assert cider(*whole) == pytest.approx(slow_cider(*whole), abs=1e-10)
    assert cider(*whole) > 0.01


def test_rouge_l_by_hand() -> None:
    """First reference: "the cat on the mat", 5 of 6 both ways. Second: 1 of 6 and 1 of 1. Best: P = 5/6, R = 1.
    F = 2.44 · 5/6 / (1 + 1.44 · 5/6) = 61/66. The second image shares nothing: 0. Mean 61/132.
    """
    references = [words("the cat is on the mat|cat"), words("x y")]
    assert rouge_l(words("the cat sat on the mat|a b"), references) == pytest.approx(61 / 132, rel=1e-12)


def test_cider_by_hand() -> None:
    """Two images; "a" is in both (weight 0), every other n-gram in one or none (weight L = log 2).
    Image 1, "a b" for "a b": n = 1: only b counts, cosine 1; n = 2: "a b", 1; no longer ones: 0. 10 · (1 + 1) / 4 = 5.
    Image 2, "c c c" for "a c d": n = 1: min(3L, L) · L / (3L · sqrt(2) L) = 1 / (3 sqrt 2); n = 2, 3: nothing common.
    Against its other reference "e": 0. So 10 / (3 sqrt 2) / 4 / 2 = 5/(12 sqrt 2); mean 2.5 + 5/(24 sqrt 2).
    """
    score = cider(words("a b|c c c"), [words("a b"), words("a c d|e")])
    assert score == pytest.approx(2.5 + 5 / (24 * math.sqrt(2)), rel=1e-12)
    assert cider(words("a b c d e"), [words("a b c d e")]) == 0  # n-grams of one image are in all: log(1 / 1) = 0


def test_perfect_captions() -> None:
    """Distinct captions of at least 4 words, each its image's only reference: 100, 100 and 1000."""
    texts = ["a red dog runs fast", "two small birds on a wire.", "the man's hat, blue and big"]
    scores = caption_scores(texts, [[text] for text in texts])
    assert scores == pytest.approx(dict.fromkeys(scores, 100) | {"cider": 1000}, abs=1e-6)
    assert list(scores) == ["bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider"]


def test_scores_are_the_metrics_of_the_tokens_times_100() -> None:
    hypotheses, references = ["A dog's ball.", "two birds"], [["the dog's red ball", "a ball"], ["two big birds!"]]
    tokens = words("a dog 's ball|two birds"), [words("the dog 's red ball|a ball"), words("two big birds")]
    expected = [100 * score for score in (*bleu(*tokens), rouge_l(*tokens), cider(*tokens))]
    assert list(caption_scores(hypotheses, references).values()) == pytest.approx(expected, rel=1e-12)


def test_nothing_said_scores_nothing() -> None:
    """Every hypothesis without a token: 0 everywhere, even for a reference that is only punctuation."""
    scores = caption_scores(["", "...", "."], [["a red dog"], ["two birds", "birds"], ["."]])
    assert scores == dict.fromkeys(scores, 0)


def test_empty_reference_beside_a_full_one() -> None:
    """A reference of punctuation only: best precision and recall stay 1, closest length 4, the mean of CIDEr halves."""
    said, right = words("a b c d|x"), [[[], ["a", "b", "c", "d"]], [["y"], ["x"]]]
    assert rouge_l(said, right) == pytest.approx(1, rel=1e-12)
    assert bleu(said, right) == pytest.approx((1, 1, 1, 1), rel=1e-8)
    assert cider(said, right) == pytest.approx((10 / 2 + 10 / 4 / 2) / 2, rel=1e-12)


def test_exact_match() -> None:
    """Right but for case and space, right by the second reference, wrong, wrong by a full stop: 2 of 4."""
    said = [" Paris\n", "b", "a b", "no."]
    assert answer_scores(said, [["paris"], ["A", "B"], ["ab"], ["no"]]) == {"exact_match": 50}
