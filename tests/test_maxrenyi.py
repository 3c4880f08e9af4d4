"""MaxRényi and its siblings against slow per-cell computations, closed forms and the integer rule for k."""

import dataclasses
import itertools
import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaudit.attacks.maxrenyi import Facts, Params, max_renyi
from fedaudit.attacks.tokens.scores import cell_names, record_scores, spans_of
from fedaudit.attacks.tokens.signals import row_signals

ENTROPIES = st.lists(st.floats(0, 20), min_size=1, max_size=60)


def k_of(n, k_percent, compat="exact"):
    """k from the outside: the k largest of 0..n-1 have the mean n - 1 - (k - 1) / 2."""
    return round(2 * (n - 1 - max_renyi(np.arange(n), k_percent, compat=compat))) + 1


def test_k_is_the_integer_rule_on_a_grid_and_that_of_vlmia_a_floating_point_product():
    for n in range(1, 201):
        assert [k_of(n, k) for k in range(101)] == [max(1, n * k // 100) for k in range(101)], n
    for n in (1, 2, 10, 99, 100, 200):
        assert [k_of(n, k, "vlmia") for k in range(101)] == [max(1, int(n * (k / 100))) for k in range(101)], n
    assert (k_of(100, 29), k_of(100, 29, "vlmia")) == (29, 28)


@pytest.mark.parametrize(
    ("n", "k_percent", "k"),
    [(100, 0.29 * 100, 29), (3, 100 / 3, 1), (6, 200 / 3, 4), (1000, 0.1, 1), (1000, 2.7, 27), (999, 2.7, 26)],
)
def test_fractional_k_is_rounded_to_a_fraction(n, k_percent, k):
    assert k_of(n, k_percent) == k


@given(ENTROPIES)
def test_from_the_maximum_down_to_the_mean(entropies):
    means = [max_renyi(entropies, k) for k in range(101)]
    assert means[0] == max(entropies)
    assert means[100] == pytest.approx(math.fsum(entropies) / len(entropies), rel=1e-12)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(means))


def test_ties_and_single_values():
    assert max_renyi([2.0, 5.0, 5.0, 1.0], 50) == 5
    assert max_renyi([2.0, 5.0, 5.0, 1.0], 75) == 4
    assert [max_renyi([3.5], k) for k in (0, 1, 50, 100)] == [3.5] * 4
    assert type(max_renyi(np.ones(3, np.float32), 10)) is float


@pytest.mark.parametrize(
    ("entropies", "k", "compat", "message"),
    [
        ([], 10, "exact", r"entropies must be one or more numbers in one dimension without NaN, not \[\]"),
        ([1.0, math.nan], 10, "exact", "entropies must be .* without NaN"),
        ([1.0], -1, "exact", "k_percent must lie between 0 and 100, not -1"),
        ([1.0], math.nan, "exact", "k_percent must lie between 0 and 100, not nan"),
        ([1.0], 10, "VL-MIA", "compat must be exact or vlmia, not 'VL-MIA'"),
    ],
)
def test_refuses_with_the_reason(entropies, k, compat, message):
    with pytest.raises(ValueError, match=message):
        max_renyi(entropies, k, compat=compat)


SPANS = {"image": slice(0, 25), "instruction": slice(25, 37), "caption": slice(37, 60)}
VLMIA = {**SPANS, "desp": slice(38, 59), "inst_desp": slice(25, 59)}
TEXT = "A red cube left of a blue ball. Ein Würfel."


def some_signals(compat=None, seed=0):
    rng = np.random.default_rng(seed)
    return row_signals(rng.normal(size=(60, 90)) * 3, rng.integers(0, 90, 60), compat=compat)


def slow_cell(name, signals, compat):
    """One cell from its name, by definition; the mean of the k largest (smallest) values of a sorted list."""
    kind, *middle, part = name.split("/")
    rows = range(*VLMIA[part].indices(60))
    log_p = [float(signals.log_prob[i]) for i in rows]
    n = len(log_p)

    def smallest(values, percent):
        k = max(1, n * percent // 100) if compat == "exact" else max(1, int(n * (percent / 100)))
        return math.fsum(sorted(values)[:k]) / k

    z = [(signals.log_prob[i] - signals.mean_log_prob[i]) / math.sqrt(signals.var_log_prob[i]) for i in rows]
    return {
        "renyi": lambda order, k: smallest([-signals.renyi[float(order)][i] for i in rows], int(k)),
        "mink": lambda k: smallest(log_p, int(k)),
        "minkpp": lambda k: smallest(z, int(k)),
        "modrenyi": lambda order: -math.fsum(signals.modified[float(order)][i] for i in rows) / n,
        "gap": lambda: math.fsum(signals.gap[i] for i in rows) / n,
        "zlib": lambda: math.fsum(log_p) / len(zlib.compress(TEXT.encode("utf-8"))),
    }[kind](*middle)


@pytest.mark.parametrize("compat", ["exact", "vlmia"])
def test_every_cell_equals_the_slow_one(compat):
    signals = some_signals(None if compat == "exact" else compat)
    scores = record_scores(signals, spans_of(SPANS, compat), TEXT, compat=compat)
    assert list(scores) == cell_names(spans_of(SPANS, compat), compat=compat)
    assert len(scores) == (3 * 4 * 11 + 2 * 10 + 3 + 2 if compat == "exact" else 5 * 4 * 12 + 2 * 11 + 3 + 2)
    for name, value in scores.items():
        assert type(value) is float
        assert value == pytest.approx(slow_cell(name, signals, compat), abs=1e-12), name


def public_code(logits, ids, ratio, part):
    """Order 2 as VL-MIA's public code has it: both cut to the part, row i of the cut scores token i + 1 of it, so that T rows give T - 1."""
    logits, ids = logits[part], ids[part]
    entropies = []
    for i, _ in enumerate(ids[1:]):
        p = np.exp(logits[i] - logits[i].max())
        p = np.clip(p / p.sum(), 1e-10, 1 - 1e-10)
        entropies.append(-math.log((p**2).sum()))
    k = max(1, int(len(entropies) * ratio))
    return -float(np.mean(np.sort(entropies)[::-1][:k]))


@pytest.mark.parametrize(
    ("words", "name"), [(20, "desp"), (20, "inst_desp"), (20, "image"), (20, "instruction"), (2, "inst_desp")]
)
@pytest.mark.parametrize("k", [0, 5, 10, 90, 100])
def test_vlmia_takes_the_slices_of_the_public_code(words, name, k):
    """Two words before the image, 25 patches, 12 words of instruction, the description, and the end, which that code does not see."""
    rng = np.random.default_rng(words)
    n = 2 + 25 + 12 + words
    logits, ids = rng.normal(size=(n + 1, 90)) * 3, rng.integers(0, 90, n + 1)
    ours = {"image": slice(2, 26), "instruction": slice(27, 38), "caption": slice(38, n)}
    public = {"image": slice(2, 27), "instruction": slice(27, 39), "desp": slice(39, n), "inst_desp": slice(27, n)}
    signals = row_signals(logits[:-1], ids[1:], compat="vlmia")
    found = record_scores(signals, spans_of(ours, "vlmia"), TEXT, compat="vlmia")
    expected = public_code(logits[:n], ids[:n], k / 100, public[name])
    assert found[f"renyi/2/{k}/{name}"] == pytest.approx(expected, abs=1e-12)


def test_a_description_of_one_word_keeps_the_row_that_predicts_it():
    """Where the prompt ends with its image, instruction and description together have that row alone."""
    spans = spans_of({"image": slice(0, 5), "instruction": slice(5, 9), "caption": slice(9, 11)}, "vlmia")
    assert (spans["desp"], spans["inst_desp"]) == (slice(9, 10), slice(5, 10))
    spans = spans_of({"image": slice(0, 5), "instruction": slice(6, 5), "caption": slice(5, 7)}, "vlmia")
    assert spans["desp"] == spans["inst_desp"] == slice(5, 6)


def test_a_memorised_record_scores_higher_in_every_cell():
    """The targets' logits raised by 6 and by 12: one sign for all cells."""
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(60, 50)), rng.integers(0, 50, 60)
    raised = np.zeros((60, 50))
    raised[np.arange(60), targets] = 6
    unsure, sure = (record_scores(row_signals(logits + times * raised, targets), SPANS, TEXT) for times in (1, 2))
    # Min-K %++ subtracts what the model expects, and falls back to 0 as it becomes certain: compare with no raise at all.
    neutral = record_scores(row_signals(logits, targets), SPANS, TEXT)
    for name, value in sure.items():
        assert value > (neutral if name.startswith("minkpp") else unsure)[name], name


def test_rows_without_spread_have_z_zero():
    """Uniform rows, and one with a single possible word: log p is its own expectation."""
    logits = np.zeros((4, 8))
    logits[3, 1:] = -math.inf
    scores = record_scores(row_signals(logits, [0, 1, 2, 0]), {"caption": slice(0, 4)}, "")
    assert {scores[f"minkpp/{k}/caption"] for k in range(10, 101, 10)} == {0.0}
    assert scores["renyi/2/0/caption"] == pytest.approx(-math.log(8))


def test_an_impossible_word_is_the_surest_non_member():
    logits = np.zeros((3, 8))
    logits[1, 5] = -math.inf
    scores = record_scores(row_signals(logits, [0, 5, 2]), {"caption": slice(0, 3)}, "a b c")
    for name in ("mink/10", "mink/100", "minkpp/100", "modrenyi/1", "zlib"):
        assert scores[f"{name}/caption"] == -math.inf
    assert not any(math.isnan(value) for value in scores.values())


@pytest.mark.parametrize("compat", ["exact", "vlmia"])
@pytest.mark.parametrize(
    ("spans", "without"),
    [
        ({"image": slice(0, 25), "instruction": slice(26, 25), "caption": slice(25, 59)}, "instruction"),
        ({"image": slice(0, 25), "instruction": slice(26, 26), "caption": slice(26, 59)}, "instruction"),
        ({"image": slice(3, 3), "instruction": slice(4, 30), "caption": slice(30, 59)}, "image"),
    ],
    ids=["a prompt that ends with its image", "one token behind the image", "an image of one token"],
)
def test_a_part_without_rows_has_no_score(spans, without, compat):
    signals = some_signals(None if compat == "exact" else compat)
    scores = record_scores(signals, spans_of(spans, compat), TEXT, compat=compat)
    assert list(scores) == cell_names(spans_of(spans, compat), compat=compat)
    for name, value in scores.items():
        assert math.isnan(value) == name.endswith(f"/{without}"), name


@pytest.mark.parametrize("span", [slice(3, 3), slice(50, 61)])
def test_a_caption_must_hold_rows(span):
    with pytest.raises(ValueError, match=r"span 'caption' must be one or more rows of 0\.\.59, not slice"):
        record_scores(some_signals(), {"image": slice(0, 5), "caption": span}, TEXT)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("k", 5, "k must be one of 0, 10, ..., 100, or with compat vlmia 5, not 5"),
        ("slice", "inst_desp", "with compat vlmia desp or inst_desp, not 'inst_desp'"),
    ],
)
def test_parameters_name_what_is_wrong(field, value, message):
    with pytest.raises(ValueError, match=message):
        Params(**{field: value})


def test_every_parameter_names_a_cell():
    for compat, ks, slices in (("exact", (0, 10, 100), SPANS), ("vlmia", (0, 5, 100), VLMIA)):
        names = set(cell_names(slices, compat=compat))
        for order, k, part in itertools.product((0.5, 1, 2, math.inf), ks, slices):
            p = dataclasses.replace(Params(), order=order, k=k, slice=part, compat=compat)
            assert {signal.format(**vars(p)) for signal in Facts.on_texts} - {"loss/base"} <= names
