"""Signals against a slow loop over words, closed forms, hand calculations and laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from fedaudit.attacks.tokens import signals
from fedaudit.attacks.tokens.signals import row_signals, token_signals

INF = math.inf


def log_sum_exp(values):
    top = max(values, default=-INF)
    return top if top == -INF else top + math.log(math.fsum(math.exp(v - top) for v in values))


def exact_oracle(row, y):
    """All signals of one row by definition; log(1 - p) is the log of the others' sum, so it holds where p rounds to 1."""
    row = (np.asarray(row, np.float64) - max(row)).tolist()
    log_z = log_sum_exp(row)
    log_p = [v - log_z for v in row]
    p = [math.exp(v) for v in log_p]
    log_not = [math.log1p(-q) if q < 0.4 else log_sum_exp(row[:z] + row[z + 1 :]) - log_z for z, q in enumerate(p)]
    possible = [z for z, v in enumerate(log_p) if v > -INF]
    others = [z for z in possible if z != y]
    mean = math.fsum(p[z] * log_p[z] for z in possible)
    not_y = math.exp(log_not[y])
    first, second = sorted(row)[:-3:-1]
    return {
        "log_prob": log_p[y],
        "mean": mean,
        "var": math.fsum(p[z] * (log_p[z] - mean) ** 2 for z in possible),
        "gap": first - second,
        "renyi 0.5": 2 * math.log(math.fsum(map(math.sqrt, p))),
        "renyi 1": -mean,
        "renyi 2": -math.log(math.fsum(q * q for q in p)),
        "renyi inf": -max(log_p),
        "modified 0.5": 2
        * (not_y * (1 - math.sqrt(p[y])) - math.fsum(p[z] * (math.exp(log_not[z] / 2) - 1) for z in others)),
        "modified 1": (-not_y * log_p[y] if not_y else 0.0) - math.fsum(p[z] * log_not[z] for z in others),
        "modified 2": not_y**2 + math.fsum(p[z] ** 2 for z in others),
    }


def vlmia_oracle(row, y):
    """The arithmetic of VL-MIA's metric_util.py, line by line, in float64 and with a 1 - p that does not cancel."""
    out = exact_oracle(row, y)
    row = (np.asarray(row, np.float64) - max(row)).tolist()
    log_z = log_sum_exp(row)
    p = [math.exp(v - log_z) for v in row]
    not_p = [1 - q if q < 0.4 else math.exp(log_sum_exp(row[:z] + row[z + 1 :]) - log_z) for z, q in enumerate(p)]
    c, d = ([min(max(q, 1e-10), 1 - 1e-10) for q in values] for values in (p, not_p))
    rest = [z for z in range(len(p)) if z != y]
    out["renyi 0.5"] = 1 / (1 - 0.5) * math.log(math.fsum(q**0.5 for q in c))
    out["renyi 2"] = 1 / (1 - 2) * math.log(math.fsum(q**2 for q in c))
    out["modified 1"] = -d[y] * math.log(c[y]) - math.fsum(q * math.log(not_q) for q, not_q in zip(p, d, strict=True))
    out["modified 1"] += c[y] * math.log(d[y])
    for a in (0.5, 2):
        b = abs(1 - a)
        total = d[y] * c[y] ** b - d[y] + math.fsum(c[z] * d[z] ** b for z in rest) - math.fsum(c[z] for z in rest)
        out[f"modified {a:g}"] = -1 / b * total
    return out


ORACLES = {None: exact_oracle, "vlmia": vlmia_oracle}


def flat(s):
    """{name: array [n]}, named as the oracles name them."""
    named = {"log_prob": s.log_prob, "mean": s.mean_log_prob, "var": s.var_log_prob, "gap": s.gap}
    named |= {f"renyi {order:g}": values for order, values in s.renyi.items()}
    return named | {f"modified {order:g}": values for order, values in s.modified.items()}


def assert_equal_to(oracle, logits, targets, got):
    expected = [oracle(row, y) for row, y in zip(np.asarray(logits, np.float64), targets, strict=True)]
    assert set(flat(got)) == set(expected[0])
    for name, values in flat(got).items():
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, [e[name] for e in expected], rtol=1e-12, atol=1e-10, err_msg=name)


def case(name, rng):
    """Logits [R, V] in float64."""
    if name.startswith("normal"):
        _, words, scale = name.split()
        return rng.normal(size=(6, int(words))) * float(scale)
    rows = rng.normal(size=(6, 40))
    rows[np.arange(6), rng.integers(0, 40, 6)] += {"peaked": 30, "certain": 60, "underflow": 1500}.get(name, 0)
    places, value = SHAPES[name]
    rows[:, places] = value
    if name == "near one half":
        rows[:, :2] += rng.normal(size=(6, 2)) * 1e-9
    if name == "small and large":  # words on either side of _SMALL, and at it
        rows[:, 1:] += rng.normal(size=(6, 39)) * 1e-3
        rows[:, 0] = 0.0
    return rows


EVERY_OTHER = slice(0, None, 2)
SHAPES = dict.fromkeys(("peaked", "certain", "underflow"), ([], 0.0)) | {  # words that have a value of their own
    "masked": (EVERY_OTHER, -INF),
    "one word left": (slice(1, None), -INF),
    "two words left": (slice(2, None), -INF),
    "ties": ([3, 7, 9], 5.0),
    "float32 minimum": (EVERY_OTHER, float(np.finfo(np.float32).min)),
    "uniform": (slice(None), 7.25),
    "near one half": (slice(0, 2), 40.0),
    "small and large": (slice(None), math.log(signals._SMALL)),
}
CASES = [f"normal {words} {scale}" for words in (2, 3, 50, 700) for scale in (0.01, 1, 5, 100)]
CASES += ["normal 6000 1", "normal 6000 3", *SHAPES]


@pytest.mark.parametrize("compat", [None, "vlmia"])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_slow_loop(name, compat):
    rng = np.random.default_rng(CASES.index(name))
    logits = case(name, rng)
    targets = rng.integers(0, logits.shape[1], len(logits))
    targets[:3] = logits[:3].argmax(1)
    assert_equal_to(ORACLES[compat], logits, targets, row_signals(logits, targets, compat=compat))


@pytest.mark.parametrize("compat", [None, "vlmia"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_takes_every_floating_type(dtype, compat):
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(size=(5, 300)) * 4).to(dtype).requires_grad_()
    targets = torch.from_numpy(rng.integers(0, 300, 5))
    seen = logits.detach().double().numpy()
    got = row_signals(logits, targets, compat=compat)
    assert_equal_to(ORACLES[compat], seen, targets.tolist(), got)
    if dtype != torch.bfloat16:
        same = row_signals(logits.detach().numpy(), targets.numpy(), compat=compat)
        assert all(np.array_equal(a, b) for a, b in zip(flat(got).values(), flat(same).values(), strict=True))


def test_vlmia_clamp_by_hand():
    """One word has everything: p = (1, 0) becomes (1 - e, e)."""
    e = 1e-10
    s = flat(row_signals(np.array([[0.0, -INF]]), [0], compat="vlmia"))
    assert s["renyi 0.5"][0] == pytest.approx(2 * math.log(math.sqrt(1 - e) + math.sqrt(e)), abs=1e-15)
    assert s["renyi 2"][0] == pytest.approx(2e-10, abs=1e-15)
    assert s["renyi 1"][0] == s["renyi inf"][0] == 0
    # -(1-c) log c is 1e-20; the sum is 1 log(e) + 0, the term added back (1-e) log(e): what is left is -e log(e).
    assert s["modified 1"][0] == pytest.approx(-e * math.log(e), rel=1e-6)
    assert s["modified 2"][0] == pytest.approx(2e-20, abs=1e-15)


@pytest.mark.parametrize("words", [2, 5, 80, 255, 256, 257, 300, 500, 2000, 32000])
def test_uniform_has_entropy_log_v_for_all_orders(words):
    s = row_signals(np.full((2, words), -3.5, np.float32), [0, words - 1])
    for values in s.renyi.values():
        np.testing.assert_allclose(values, math.log(words), rtol=1e-14)
    q = 1 / words
    np.testing.assert_allclose(s.modified[1], (1 - q) * (math.log(words) - math.log1p(-q)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(s.modified[2], 1 - q, rtol=0, atol=1e-14)
    np.testing.assert_allclose(s.modified[0.5], 2 * (1 - q) * (2 - math.sqrt(q) - math.sqrt(1 - q)), rtol=0, atol=1e-12)
    assert (s.var_log_prob < 1e-14).all()
    assert (s.gap == 0).all()


def test_certainty_keeps_finite_and_exact_modified_entropies():
    """p(first) rounds to 1, and the target is the other word, d nats below: order 1 is d + log(1 + ...) = 2 d nearly."""
    for d in (40.0, 300.0, 5000.0):
        s = row_signals(np.array([[d, 0.0]]), [1])
        assert s.modified[1][0] == pytest.approx(2 * d, rel=1e-12)
        assert s.modified[2][0] == pytest.approx(2)
        assert s.modified[0.5][0] == pytest.approx(4, abs=4 * math.exp(-d / 2) + 1e-12)


def test_impossible_target():
    s = row_signals(np.array([[1.0, 1.0, -INF], [5.0, -INF, -INF]]), [2, 2])
    assert (s.log_prob == -INF).all()
    assert (s.modified[1] == INF).all()
    assert np.isfinite([*s.renyi.values(), s.modified[2], s.modified[0.5], s.mean_log_prob, s.var_log_prob]).all()
    assert s.gap.tolist() == [0, INF]


LOGITS = st.one_of(st.floats(-40, 40), st.sampled_from([-INF, 0.0, 700.0, -745.0, 1e30]))
ROWS = st.lists(LOGITS, min_size=2, max_size=12).filter(lambda row: max(row) > -INF)


@given(row=ROWS, data=st.data())
@settings(max_examples=300, deadline=None)
def test_laws_of_one_row(row, data):
    y = data.draw(st.integers(0, len(row) - 1))
    s = row_signals(np.array([row]), [y])
    assert_equal_to(exact_oracle, [row], [y], s)
    h = [s.renyi[order][0] for order in (INF, 2, 1, 0.5)]
    possible = sum(v > -INF for v in row)
    assert -1e-12 <= h[0] <= h[1] + 1e-12 <= h[2] + 2e-12 <= h[3] + 3e-12 <= math.log(possible) + 4e-12
    assert s.renyi[2][0] <= 2 * s.renyi[INF][0] + 1e-12
    assert s.log_prob[0] <= -s.renyi[INF][0] + 1e-12


@pytest.mark.parametrize("compat", [None, "vlmia"])
def test_chunks_and_blocks_do_not_change_a_bit(compat, monkeypatch):
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(23, 301)).astype(np.float32) * 3, rng.integers(0, 301, 23)
    whole = flat(row_signals(logits, targets, compat=compat))
    for block, chunk in ((1024, 1), (1024, 7), (5, 2), (5, 50)):
        monkeypatch.setattr(signals, "_BLOCK_ROWS", block)
        monkeypatch.setattr(signals, "_SCRATCH_BYTES", chunk * 16 * logits.shape[1])
        for name, values in flat(row_signals(logits, targets, compat=compat)).items():
            np.testing.assert_array_equal(values, whole[name])


@pytest.mark.parametrize("compat", [None, "vlmia"])
@pytest.mark.parametrize("name", ["normal 700 5", "certain", "masked", "one word left", "ties"])
def test_torch_path_of_a_gpu_equals_the_numpy_path(name, compat, monkeypatch):
    rng = np.random.default_rng(2)
    logits = torch.from_numpy(case(name, rng))
    targets = rng.integers(0, logits.shape[1], len(logits))
    expected = flat(row_signals(logits, targets, compat=compat))
    on_cpu = signals._scratch
    monkeypatch.setattr(signals, "_SCRATCH_BYTES", 4 * 16 * logits.shape[1])
    monkeypatch.setattr(signals, "_scratch", lambda *args: torch.from_numpy(on_cpu(*args)))
    for key, values in flat(row_signals(logits, targets, compat=compat)).items():
        np.testing.assert_allclose(values, expected[key], rtol=1e-13, atol=1e-12, err_msg=key)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compat", [None, "vlmia"])
def test_gpu_equals_the_slow_loop(compat):
    logits = torch.from_numpy(case("normal 700 5", np.random.default_rng(5))).cuda()
    targets = torch.arange(6).cuda()
    got = row_signals(logits, targets, compat=compat)
    assert_equal_to(ORACLES[compat], logits.cpu(), targets.tolist(), got)


def test_input_is_left_alone_and_scratch_is_bounded():
    logits = np.random.default_rng(0).normal(size=(4, 50))
    before = logits.copy()
    row_signals(logits, [0, 1, 2, 3], compat="vlmia")
    np.testing.assert_array_equal(logits, before)
    for shape in ((100_000, 152_000), (10_000_000, 64), (3, 10)):
        assert signals._scratch(torch.empty(1, 1).expand(shape)).nbytes <= 6 << 20
    assert signals._scratch(torch.empty(1, 1).expand(5, 10**6)).shape == (2, 1, 10**6)  # one row at least


def test_a_span_is_a_view():
    s = row_signals(np.random.default_rng(0).normal(size=(9, 20)), np.arange(9))
    part = s[2:5]
    assert (len(s), len(part)) == (9, 3)
    for name, values in flat(part).items():
        np.testing.assert_array_equal(values, flat(s)[name][2:5])
        assert np.shares_memory(values, flat(s)[name])
    assert s.renyi[1.0] is s.renyi[1]
    assert list(s.renyi) == [0.5, 1, 2, INF]


@pytest.mark.parametrize("compat", [None, "exact", "vlmia"])
def test_row_i_predicts_token_i_plus_1(compat):
    rng = np.random.default_rng(4)
    logits, ids = torch.from_numpy(rng.normal(size=(7, 30))), torch.from_numpy(rng.integers(0, 30, 7))
    s = token_signals(logits, ids, compat)
    log_p = torch.log_softmax(logits, 1)
    np.testing.assert_allclose(s.log_prob, [log_p[i, ids[i + 1]] for i in range(6)], rtol=1e-13)
    for name, values in flat(row_signals(logits[:6], ids[1:], compat=compat)).items():
        np.testing.assert_array_equal(flat(s)[name], values)


GOOD = np.zeros((3, 5))


@pytest.mark.parametrize(
    ("logits", "ids", "message"),
    [
        (GOOD, [0, 5, 0], r"ids must be words in 0\.\.4, not 5 in row 1"),
        (GOOD, [0, 0], r"ids must be integers of shape \(3,\), not int64 \(2,\)"),
        (GOOD, [0.0, 1.0, 2.0], r"ids must be integers of shape \(3,\), not float64"),
        (GOOD[:1], [0], r"logits and ids must hold at least 2 tokens to predict one, not 1"),
        (GOOD[:0], [], r"logits must be floating point \[rows >= 1, words >= 2\], not float64 \(0, 5\)"),
        (torch.zeros(3, 5, dtype=torch.long), [0, 0, 0], r"logits must be floating point .* not torch.int64"),
    ],
)
def test_refuses_with_the_reason(logits, ids, message):
    with pytest.raises(ValueError, match=message):
        token_signals(logits, np.array(ids) if len(ids) else np.zeros(0, int))
    with pytest.raises(ValueError, match=r"compat must be None, 'exact' or 'vlmia', not 'vl-mia'"):
        token_signals(GOOD, [0, 1, 2], "vl-mia")


@pytest.mark.parametrize(("value", "what"), [(math.nan, "NaN"), (INF, r"\+inf"), (-INF, "no finite value")])
@pytest.mark.parametrize("row", [0, 4, 2000])
def test_names_the_row_that_is_not_finite(value, what, row):
    logits = np.zeros((2001, 3))
    logits[row] = value if value == -INF else (0, value, 0)
    with pytest.raises(ValueError, match=rf"logits hold {what} in row {row}$"):
        row_signals(logits, np.zeros(2001, int))


def test_threads_are_limited_inside_and_given_back(monkeypatch):
    inside, exact_signals = [], signals._exact_signals

    def noting(sums):
        inside.append({pool["num_threads"] for pool in threadpool_info()})
        return exact_signals(sums)

    monkeypatch.setattr(signals, "_exact_signals", noting)
    with threadpool_limits(2):
        before = threadpool_info()
        row_signals(np.zeros((2, 3)), [0, 1])
        assert threadpool_info() == before
        with pytest.raises(ValueError, match="must be words"):
            row_signals(np.zeros((2, 3)), [0, 3])
        assert threadpool_info() == before
    assert inside == [{1}]
