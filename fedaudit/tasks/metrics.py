"""Caption metrics as MSCOCO's evaluation (coco-caption) computes them: BLEU-1..4, ROUGE-L and CIDEr-D, without Java.

Sources: Papineni et al., BLEU (ACL 2002); Lin, ROUGE (2004); Vedantam et al., CIDEr (CVPR 2015); the evaluation itself:
Chen et al., Microsoft COCO Captions (2015). `bleu`, `rouge_l` and `cider` take hypotheses [image][token] and references
[image][reference][token] and return coco-caption's scale; `caption_scores` takes texts and returns the scale of papers.
ValueError: no images, unequal numbers of images, an image without references, or a string in place of a list.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import or_
from statistics import fmean

Tokens = Sequence[str]
Gram = tuple[str, ...]

ORDERS = (1, 2, 3, 4)
TINY, SMALL = 1e-15, 1e-9  # coco-caption's guards: a precision of 0 / n becomes 1e-15 / n, and 0 / 0 becomes 1e-6
BETA = 1.2  # ROUGE-L: how much recall counts against precision
SIGMA = 6.0  # CIDEr-D: width of the length penalty, in tokens

_TOKEN = re.compile(
    r"""\b[a-z](?:\.[a-z])+\b\.?                       # u.s., a.m.
    | can(?=not\b) | (?:gon|wan)(?=na\b) | got(?=ta\b) | (?:gim|lem)(?=me\b)
    | [a-z]+(?=n't\b) | n't\b                          # do n't
    | '(?:[smd]|re|ve|ll)\b                            # it 's
    | [dlo]'\w{2,}                                     # o'clock
    | \w+(?:[-/]\w+|(?<=\d)[.,:]\d+)*                  # t-shirt, and/or, 1,000, 10:30
    | [?!]{2,}                                         # coco-caption drops only a single ? or !
    | [^\w\s?!'"`“”„«».,:;…–—-]                        # any other sign; the listed ones are dropped
    """,
    re.VERBOSE,
)


def tokenize(text: str) -> list[str]:
    """Lower-case tokens like those of the Stanford PTB tokenizer, without the punctuation that coco-caption removes.

    Contractions are split (do n't, it 's, can not); hyphenated words and numbers (1,000) stay whole. Brackets stay, as
    in coco-caption, whose list of punctuation has -LRB- while its tokens are lower case by then. Not reproduced, being
    rare in captions: American spelling, URLs, the full stop kept in "mr.", apostrophes as in ma'am.
    """
    return _TOKEN.findall(text.lower().translate({ord("‘"): "'", ord("’"): "'"}))


def bleu(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> tuple[float, float, float, float]:
    """BLEU-1 to BLEU-4 of the whole corpus, each in [0, 1] (Papineni et al. 2002, section 2.3).

    The reference length of an image is the one closest to its hypothesis, the shorter of two equally close ones. As in
    coco-caption a precision is (matches + 1e-15) / (n-grams + 1e-9): an order without a match gives a tiny BLEU, not 0.
    """
    lengths = [(len(h), [len(r) for r in refs]) for h, refs in zip(hypotheses, references, strict=True)]
    total = sum(length for length, _ in lengths)
    reference_total = sum(min((abs(one - length), one) for one in ones)[1] for length, ones in lengths)
    penalty = math.exp(min(0.0, 1 - (reference_total + SMALL) / (total + TINY)))
    precisions = [_precision(hypotheses, references, n) for n in ORDERS]
    bleu1, bleu2, bleu3, bleu4 = (penalty * math.prod(precisions[:n]) ** (1 / n) for n in ORDERS)
    return bleu1, bleu2, bleu3, bleu4


def rouge_l(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """ROUGE-L, mean over images, in [0, 1]: F (beta 1.2) of the longest common subsequence (Lin 2004, section 3).

    Like coco-caption it takes the best precision and the best recall over the references, even from two different ones.
    """
    return fmean(_rouge_l(h, refs) for h, refs in zip(hypotheses, references, strict=True))


def cider(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """CIDEr-D, mean over images, in [0, 10]; about 1 on MSCOCO (Vedantam et al. 2015).

    Document frequencies come from `references`, so scores on different test sets cannot be compared. An n-gram has
    weight log(images / images with it): a single image, or n-grams in every image, score 0.
    """
    return fmean(_cider(hypotheses, references, n) for n in ORDERS)


def caption_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """All metrics of texts, {name: score}, from hypotheses [image] and references [image][reference], times 100 as
    papers print them. Names: bleu1, bleu2, bleu3, bleu4, rouge_l (0 to 100) and cider (0 to 1000; coco-caption's 1.11
    is 111)."""
    spoken = [tokenize(text) for text in hypotheses]
    correct = [[tokenize(text) for text in texts] for texts in references]
    scores = {f"bleu{n}": score for n, score in zip(ORDERS, bleu(spoken, correct), strict=True)}
    scores |= {"rouge_l": rouge_l(spoken, correct), "cider": cider(spoken, correct)}
    return {name: 100 * score for name, score in scores.items()}


def answer_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """{"exact_match": percentage of hypotheses that equal one of their references but for case and surrounding
    space}."""
    pairs = zip(hypotheses, references, strict=True)
    return {"exact_match": 100 * fmean(h.strip().lower() in {r.strip().lower() for r in refs} for h, refs in pairs)}


def _ngrams(tokens: Tokens, n: int) -> Counter[Gram]:
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _precision(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]], n: int) -> float:
    """N-gram precision of the corpus; an n-gram counts at most as often as in the reference that has most of it."""
    matches = total = 0
    for hypothesis, refs in zip(hypotheses, references, strict=True):
        counts = _ngrams(hypothesis, n)
        matches += (counts & reduce(or_, (_ngrams(r, n) for r in refs))).total()
        total += counts.total()
    return (matches + TINY) / (total + SMALL)


def _rouge_l(hypothesis: Tokens, refs: Sequence[Tokens]) -> float:
    common = [_lcs(hypothesis, r) for r in refs]
    if not any(common):
        return 0.0
    precision = max(common) / len(hypothesis)
    recall = max(c / max(len(r), 1) for c, r in zip(common, refs, strict=True))
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _lcs(a: Tokens, b: Tokens) -> int:
    """Length of the longest common subsequence of two token lists."""
    row = [0] * (len(b) + 1)  # row[j]: of the tokens of `a` up to now and b[:j]
    for x in a:
        above, row = row, [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
    return row[-1]


def _cider(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]], n: int) -> float:
    """CIDEr-D over n-grams of length n, 0 to 10, mean over images."""
    frequency = Counter(gram for refs in references for gram in {gram for r in refs for gram in _ngrams(r, n)})

    def weigh(tokens: Tokens) -> dict[Gram, float]:
        grams = _ngrams(tokens, n).items()
        return {gram: count * math.log(len(references) / max(1, frequency[gram])) for gram, count in grams}

    def score(hypothesis: Tokens, refs: Sequence[Tokens]) -> float:
        weights = weigh(hypothesis)
        penalties = [math.exp(-((len(hypothesis) - len(r)) ** 2) / (2 * SIGMA**2)) for r in refs]
        return fmean(10 * p * _clipped_cosine(weights, weigh(r)) for p, r in zip(penalties, refs, strict=True))

    return fmean(score(h, refs) for h, refs in zip(hypotheses, references, strict=True))


def _clipped_cosine(a: dict[Gram, float], b: dict[Gram, float]) -> float:
    """Cosine with `a` clipped to `b` in the product, so that repetition gains nothing; 0 for a zero vector."""
    norm = math.hypot(*a.values()) * math.hypot(*b.values())
    return sum(min(weight, b[gram]) * b[gram] for gram, weight in a.items() if gram in b) / norm if norm else 0.0
