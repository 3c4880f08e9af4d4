"""Clipping, noise, the ledger and the accountant. Reference values: exact Gaussian accounting at delta 1e-5 over T = 100 steps, DP-FPL's setting."""

import dataclasses
import itertools
import json
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch

from fedaudit.command.cli import read_command
from fedaudit.machinery import plugins
from fedaudit.pipeline.notes import limits
from fedaudit.privacy import accountant, ledger
from fedaudit.privacy.accountant import noise_multiplier, noise_stds, nominal_std, provable
from fedaudit.privacy.clipping import add_noise, clipped_mean
from fedaudit.privacy.ledger import Ledger, Mechanism, RoundNoise, Turn
from fedaudit.privacy.settings import Privacy
from tests.doc_blocks import table
from tests.gaussian import sampled_epsilon

DELTA = 1e-5
T, B, N, C = 100, 32, 10, 10.0  # DP-FPL, appendix A.2
RECORDS = 413
SHARED = ("p_G",)
LOCAL = ("u", "v")


def mechanism(release="p_G", *, std, clip="record", party=None, clients=None, **more):
    """A mechanism of the paper's setting; what is shared is noised by the server unless said."""
    shared = release in SHARED
    clients = clients or (N if shared else 1)
    return Mechanism(
        release=release,
        party=party or ("server" if shared else "client"),
        clip=clip,
        clip_norm=C,
        sensitivity=ledger.sensitivity(clip=clip, norm=C, batch=B, clients=clients),
        std=std,
        dimension=16 * 512,
        **{"sampler": "epochs", "batch": B, **more},
    )


def rounds_of(mechanisms, *, steps=T, records=RECORDS, client=0):
    """One step per round; an epoch begins when the last one has no full batch left."""
    length = ledger.epoch_length(records=records, batch=B)
    turns = [Turn(client=client, records=records, steps=1, shuffles=int(t % length == 0)) for t in range(steps)]
    return [RoundNoise(mechanisms=tuple(mechanisms), turns=(turn,)) for turn in turns]


def single(std, *, steps=T, **more):
    """A run that releases p_G only, noised by the client."""
    return Ledger.of(rounds_of([mechanism(std=std, party="client", **more)], steps=steps), shared=SHARED)


def dpfpl(epsilon, *, clip="record", steps=T, **more):
    """A run of DP-FPL with the noise of its theorem; the noise is that of record clipping whatever the clipping was."""
    far = ledger.sensitivity(clip="record", norm=C, batch=B)
    std = nominal_std(sensitivity=far, steps=T, epsilon=epsilon, delta=DELTA)
    noise = dict.fromkeys(LOCAL, std) | dict.fromkeys(SHARED, std / N)
    return joint([mechanism(name, std=std, clip=clip, **more) for name, std in noise.items()], steps=steps)


def joint(mechanisms, **more):
    """A run that releases shared and local parts."""
    return Ledger.of(rounds_of(mechanisms, **more), shared=SHARED, local=LOCAL)


def epsilon(run, *, threat_model="prompt-user", delta=DELTA, **more):
    return provable(run, threat_model=threat_model, delta=delta, **more).epsilon


def gaussian_delta(eps, mu):
    """Dong, Roth, Su (2022), corollary 2.13, in 60 digits."""
    with mpmath.workdps(60):
        return mpmath.ncdf(-eps / mu + mu / 2) - mpmath.exp(eps) * mpmath.ncdf(-eps / mu - mu / 2)


def test_the_command_line_reads_the_settings_without_importing_them():
    alone = plugins.dataclass_of(plugins.package_folder("fedaudit.privacy") / "settings.py", "Privacy")
    assert dataclasses.asdict(alone()) == dataclasses.asdict(Privacy())
    assert all(field.metadata["help"] for field in dataclasses.fields(alone))


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0), ("delta", 1), ("clip", "records"), ("clip_norm", math.nan), ("sigma", ""), ("sampler", "shuffle")],
)
def test_a_wrong_setting_is_named_with_its_value_and_an_epsilon_needs_clipping(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must .*, not {value!r}$"):
        Privacy(**{name: value})
    assert Privacy(epsilon=math.inf, clip_norm=math.inf).epsilon == math.inf
    with pytest.raises(ValueError, match="clip_norm must be finite"):
        Privacy(epsilon=1.0, clip_norm=math.inf)


def slow_mean(gradients, weights, norm, batch):
    """Record by record, in float64."""
    out = np.zeros(gradients.shape[1:])
    for r, n in itertools.product(*map(range, gradients.shape[:2])):
        g = gradients[r, n].double().numpy()
        length = math.sqrt((g**2).sum())
        out[n] += weights[r, n].item() * g * (norm / length if length > norm else 1.0)
    return out / batch


@pytest.mark.parametrize("shape", [(5, 3, 4, 7), (1, 1, 2), (8, 2, 1), (3, 2)])
@pytest.mark.parametrize("norm", [0.5, 2.0, math.inf])
def test_clipping_agrees_with_a_loop_over_records(shape, norm):
    draw = torch.Generator().manual_seed(1)
    gradients = torch.randn(shape, generator=draw) * torch.rand((*shape[:2], *[1] * (len(shape) - 2)), generator=draw)
    weights = (torch.rand(shape[:2], generator=draw) < 0.7).float()
    got = clipped_mean(gradients, weights, how="record", norm=norm, batch=6)
    np.testing.assert_allclose(got, slow_mean(gradients, weights, norm, 6), rtol=1e-5, atol=1e-7)
    unweighted = clipped_mean(gradients, None, how="record", norm=norm, batch=6)
    np.testing.assert_allclose(unweighted, slow_mean(gradients, torch.ones(shape[:2]), norm, 6), rtol=1e-5, atol=1e-7)


def test_clients_in_one_tensor_are_the_clients_one_by_one_bit_for_bit():
    gradients = 3 * torch.randn(32, 10, 16, 33, generator=torch.Generator().manual_seed(2))
    weights = (torch.rand(32, 10, generator=torch.Generator().manual_seed(3)) < 0.8).float()
    together = clipped_mean(gradients, weights, how="record", norm=20.0, batch=32)
    for n in range(10):
        alone = clipped_mean(gradients[:, [n]], weights[:, [n]], how="record", norm=20.0, batch=32)
        assert torch.equal(together[n], alone[0])


def test_the_batch_mean_is_clipped_once_and_not_divided():
    mean = torch.tensor([[[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]]])
    got = clipped_mean(mean, torch.tensor([[1.0, 1.0, 0.0]]), how="batch", norm=1.0, batch=7)
    torch.testing.assert_close(got, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    with pytest.raises(ValueError, match=r"\[1, N, ...\], not \[2, 3, 2\]"):
        clipped_mean(mean.repeat(2, 1, 1), how="batch", norm=1.0, batch=7)


def test_zero_gradients_empty_batches_and_broken_gradients():
    zero = torch.zeros(2, 3, 4)
    assert torch.equal(clipped_mean(zero, how="record", norm=1.0, batch=2), torch.zeros(3, 4))
    assert torch.equal(clipped_mean(zero[:0], how="record", norm=1.0, batch=2), torch.zeros(3, 4))
    for value in (math.nan, math.inf):
        broken = zero.clone()
        broken[1, 2, 0] = value
        with pytest.raises(FloatingPointError, match=r"clients \[2\] are not finite"):
            clipped_mean(broken, how="record", norm=1.0, batch=2)


@pytest.mark.parametrize(
    ("how", "weights"), [("records", None), ("record", torch.ones(2)), ("record", torch.ones(3, 2))]
)
def test_misuse_of_clipping_is_refused(how, weights):
    with pytest.raises(ValueError, match="must be"):
        clipped_mean(torch.ones(2, 3, 4), weights, how=how, norm=1.0, batch=2)


def test_record_clipping_keeps_its_sensitivity_over_random_neighbours():
    """Leaving out one record moves the mean by at most C / |B|, replacing one by twice that; both are nearly reached."""
    draw = torch.Generator().manual_seed(4)
    out, replaced = [], []
    for _ in range(200):
        gradients = torch.randn(4, 1, 3, generator=draw) * 10 ** (4 * torch.rand(4, 1, 1, generator=draw) - 2)
        other = gradients.clone()
        other[0] = -gradients[0] * torch.rand((), generator=draw) * 10
        mean = clipped_mean(gradients, how="record", norm=1.0, batch=4)
        keep = torch.tensor([[0.0], [1.0], [1.0], [1.0]])
        out.append((mean - clipped_mean(gradients, keep, how="record", norm=1.0, batch=4)).norm().item())
        replaced.append((mean - clipped_mean(other, how="record", norm=1.0, batch=4)).norm().item())
    bound = ledger.sensitivity(clip="record", norm=1.0, batch=4)
    assert 0.99 * bound < max(out) <= bound * (1 + 1e-5)
    assert 1.9 * bound < max(replaced) <= 2 * bound * (1 + 1e-5)


def test_batch_clipping_breaks_the_sensitivity_of_the_paper():
    """Three small records one way, a fourth that outweighs them: with it the clipped mean is C one way, without it C the other."""
    with_it = torch.tensor([[[-99.0]], [[3.0]], [[3.0]], [[3.0]]])
    without = torch.tensor([[[0.0]], [[3.0]], [[3.0]], [[3.0]]])
    one, other = (clipped_mean(g.mean(0, keepdim=True), how="batch", norm=1.0, batch=4) for g in (with_it, without))
    moved = (one - other).abs().item()
    assert moved == ledger.sensitivity(clip="batch", norm=1.0, batch=4) == 2.0
    assert moved == 8 * ledger.sensitivity(clip="record", norm=1.0, batch=4)
    # those of the theorem
    for clip, clients, expected in (("record", 1, 10 / 32), ("record", 10, 10 / 320), ("batch", 10, 2.0)):
        assert ledger.sensitivity(clip=clip, norm=10.0, batch=32, clients=clients) == expected


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_noise_has_its_moments_and_clients_are_independent():
    mean = torch.arange(4.0).reshape(4, 1).repeat(1, 50_000)
    noise = add_noise(mean, 3.0, generators(0, 1, 2, 3)) - mean
    assert noise.mean(1).abs().max() < 4 * 3 / math.sqrt(50_000)
    assert (noise.std(1) / 3 - 1).abs().max() < 4 / math.sqrt(2 * 50_000)
    assert ((noise / 3) ** 4).mean().item() == pytest.approx(3, abs=4 * math.sqrt(96 / 200_000))  # a Gaussian's fourth
    correlation = torch.corrcoef(noise) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(50_000)


def test_the_noise_of_a_client_does_not_depend_on_who_else_takes_part():
    mean = torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(0))
    together = add_noise(mean, 0.5, generators(*range(5)))
    for n in range(5):
        assert torch.equal(add_noise(mean[[n]], 0.5, generators(n))[0], together[n])


def test_no_noise_and_wrong_noise():
    mean = torch.ones(2, 3)
    assert torch.equal(add_noise(mean, 0.0, generators(0, 1)), mean)
    with pytest.raises(ValueError, match="each of the 2 rows, not 1"):
        add_noise(mean, 1.0, generators(0))
    for std in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="std must be finite and not negative"):
            add_noise(mean, std, generators(0, 1))


def schedule(*, steps, records, batch, rng, keep_short):
    """How often each record was used [records]: shuffled epochs that run on, with or without the last short batch."""
    used, queue = np.zeros(records, int), np.array([], int)
    for _ in range(steps):
        if len(queue) < (1 if keep_short else min(batch, records)):
            queue = rng.permutation(records)
        used[queue[:batch]] += 1
        queue = queue[batch:]
    return used


@pytest.mark.parametrize("keep_short", [False, True])
def test_no_record_is_used_more_often_than_the_bound(keep_short):
    for steps, records, batch in itertools.product((1, 5, 24), (1, 3, 8, 13, 24), (1, 4, 8, 30)):
        bound = ledger.participations(steps=steps, records=records, batch=batch)
        about = {"steps": steps, "records": records, "batch": batch, "keep_short": keep_short}
        most = max(schedule(**about, rng=np.random.default_rng(seed)).max() for seed in range(20))
        assert most <= bound, about
        if not keep_short and records % batch == 0:
            assert most == bound, about  # some record is in every epoch begun


def test_participations_by_hand():
    """413 records in batches of 32: 12 steps an epoch, 100 steps begin 9 epochs."""
    for steps, records, times in ((100, 413, 9), (100, 20, 100), (0, 20, 0)):
        assert ledger.participations(steps=steps, records=records, batch=32) == times, (steps, records)
    run = dpfpl(0.1)
    (exposure,) = run.exposures
    assert (exposure.steps, exposure.times, len(run.steps)) == ((T,), 9, 1)


def test_clients_of_partial_cohorts_are_counted_apart():
    small, large = (mechanism(std=std, party="client") for std in (1.0, 2.0))
    turn = Turn(client=0, records=64, steps=2, shuffles=1)
    rounds = [
        RoundNoise(mechanisms=(small,), turns=(turn, dataclasses.replace(turn, client=3))),
        RoundNoise(mechanisms=(large,), turns=(turn,)),
    ]
    run = Ledger.of(rounds, shared=SHARED)
    assert [(e.client, e.steps, e.times) for e in run.exposures] == [(0, (2, 2), 2), (3, (2, 0), 1)]
    # which steps a record was in is not known: the two of the smaller noise
    far = small.sensitivity
    assert gaussian_delta(epsilon(run, threat_model="owner"), far * math.sqrt(2)) == pytest.approx(DELTA)
    every = epsilon(run, threat_model="owner", every_step=True)
    assert gaussian_delta(every, far * math.sqrt(2 + 2 / 4)) == pytest.approx(DELTA)


def test_a_schedule_that_cannot_have_run_is_refused():
    noise = mechanism(std=1.0)
    turn = Turn(client=4, records=64, steps=5, shuffles=2)
    with pytest.raises(ValueError, match="shuffles of client 4 must be at least 3 for 5 steps, not 2"):
        Ledger.of([RoundNoise(mechanisms=(noise,), turns=(turn,))], shared=SHARED)
    turns = [dataclasses.replace(turn, records=n, steps=1) for n in (64, 65)]
    with pytest.raises(ValueError, match=r"records of client 4 must stay the same over the rounds, not \[64, 65\]"):
        Ledger.of([RoundNoise(mechanisms=(noise,), turns=(turn,)) for turn in turns], shared=SHARED)


@pytest.mark.parametrize(
    ("mechanisms", "message"),
    [
        ([{"std": 1.0, "sampler": "poisson"}, {"release": "u", "std": 1.0}], "sampler must be the same"),
        ([{"std": 1.0, "batch": 8}, {"release": "u", "std": 1.0}], "batch must be the same"),
        ([{"std": 1.0}, {"std": 2.0}], "must noise each release once, not p_G, p_G"),
        ([{"release": "w", "std": 1.0}], "releases must be shared or local, not neither: w"),
    ],
)
def test_a_ledger_that_does_not_fit_together_is_refused(mechanisms, message):
    turn = Turn(client=0, records=64, steps=1, shuffles=1)
    noise = RoundNoise(mechanisms=tuple(mechanism(**m) for m in mechanisms), turns=(turn,))
    with pytest.raises(ValueError, match=message):
        Ledger.of([noise], shared=SHARED, local=LOCAL)


@pytest.mark.parametrize(
    ("name", "value"), [("party", "nobody"), ("relation", "replace"), ("std", -1.0), ("std", math.inf), ("batch", 0)]
)
def test_a_wrong_mechanism_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*, not {value}"):
        dataclasses.replace(mechanism(std=1.0), **{name: value})


def test_rounds_and_ledgers_come_back_from_strict_json():
    unclipped = dataclasses.replace(mechanism(std=1.0), clip_norm=math.inf, sensitivity=math.inf)
    rounds = [*rounds_of([mechanism(std=0.1), mechanism("u", std=0.3)], steps=3), *rounds_of([unclipped], steps=1)]
    run = Ledger.of(rounds, shared=SHARED, local=LOCAL, clear=("loss",))
    for thing in (*rounds, run):
        text = json.dumps(thing.to_json(), allow_nan=False)
        assert type(thing).from_json(json.loads(text)) == thing
    found = provable(run, threat_model="owner", delta=DELTA)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["epsilon"] == "inf"


POINTS = [
    ("0.01", "0.0069", "0.0128", "0.68", "1.24"),
    ("0.1", "0.0898", "0.164", "9.30", "18.6"),
    ("0.4", "0.408", "0.742", "59.8", "140"),
]


def test_the_docs_print_the_reference_points():
    assert [tuple(row) for row in table("docs/reference/privacy.md", "claimed", "one noised tensor")] == POINTS
    heading = "one noised tensor (`promptfl`, `fedprox`, `pfedme`, `local`)"
    ((one, _, jointly),) = table("docs/reference/privacy.md", heading)
    assert (one, jointly) == POINTS[1][1:3]


@pytest.mark.parametrize(("claimed", "one", "jointly", "batch_one", "batch_jointly"), POINTS)
def test_reference_points_of_dpfpl(claimed, one, jointly, batch_one, batch_jointly):
    """Every record in every step, zero-out."""
    for clip, alone, joint in (("record", one, jointly), ("batch", batch_one, batch_jointly)):
        run = dpfpl(float(claimed), clip=clip)
        mine = [dataclasses.replace(m, party="client") for m in run.steps[0] if m.release == "p_G"]
        only = Ledger.of(rounds_of(mine), shared=SHARED)
        for expected, got in ((alone, epsilon(only, every_step=True)), (joint, epsilon(run, every_step=True))):
            digits = len(expected.partition(".")[2])
            assert f"{got:.{digits}f}" == expected


def test_reference_points_of_replacement_and_poisson_sampling():
    assert f"{epsilon(dpfpl(0.1), relation='replace', every_step=True):.3f}" == "0.348"
    assert f"{epsilon(dpfpl(0.1, sampler='poisson')):.4f}" == "0.0097"  # rate 32/413


def test_noise_to_signal_of_the_design():
    """896 entries, epsilon 0.1, |B| = 32, whatever C and T: noise over all steps is 32 times the longest possible signal."""
    for norm, steps in ((10.0, 100), (1.0, 7)):
        std = nominal_std(sensitivity=norm / 32, steps=steps, epsilon=0.1, delta=DELTA)
        ratio = accountant.noise_to_signal(std=std, dimension=896, signal=norm) / math.sqrt(steps)
        assert ratio == pytest.approx(math.sqrt(896 * math.log(1e5)) / 3.2)
        assert round(ratio) == 32
    assert accountant.noise_to_signal(std=0.0, dimension=3, signal=0.0) == 0
    assert accountant.noise_to_signal(std=1.0, dimension=3, signal=0.0) == math.inf


@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.3, 1.0, 4.0, 11.0, 100.0, 3000.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_gaussian_is_exact(mu, delta):
    """The closed form at the returned epsilon gives delta back, or lies below it where epsilon is 0."""
    got = accountant.gaussian_epsilon(mu, delta)
    if got == 0:
        assert gaussian_delta(mpmath.mpf(0), mu) <= delta
    else:
        assert float(gaussian_delta(mpmath.mpf(got), mpmath.mpf(mu))) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("mu", "rate"), [(0.5, 0.08), (2.0, 0.3)])
def test_one_poisson_step_against_its_closed_form(mu, rate):
    """(1 - q) N(0, 1) + q N(mu, 1) against N(0, 1): delta by the point where the likelihood ratio crosses e^eps, in both directions."""

    def delta_at(eps):
        def crossing(ratio):  # mixture over N(0, 1) grows with x
            inside = (ratio - (1 - rate)) / rate
            return -mpmath.inf if inside <= 0 else mpmath.log(inside) / mu + mu / 2

        x, y = crossing(mpmath.exp(eps)), crossing(mpmath.exp(-eps))
        upper = (1 - rate) * mpmath.ncdf(-x) + rate * mpmath.ncdf(mu - x) - mpmath.exp(eps) * mpmath.ncdf(-x)
        below = mpmath.ncdf(y) - mpmath.exp(eps) * ((1 - rate) * mpmath.ncdf(y) + rate * mpmath.ncdf(y - mu))
        return max(upper, below)

    got = accountant._sampled_epsilon(((mu, 1),), rate, DELTA)
    assert delta_at(got) <= DELTA
    assert delta_at(got - 5e-3) > DELTA


@pytest.mark.parametrize(
    ("mu", "rate", "steps"),
    [
        (0.05, 0.1, 100),
        (0.3, 0.08, 1),
        (0.8, 0.2, 5),
        (0.8, 0.2, 100),
        (3.0, 0.4, 100),
        (30.0, 0.67, 5),
        (0.3, 1.0, 100),
    ],
)
def test_poisson_steps_against_a_second_accountant(mu, rate, steps):
    """Another discretisation, by other hands: the privacy loss rounded to the nearest point of a grid, where the library rounds up."""
    got, expected = accountant._sampled_epsilon(((mu, steps),), rate, DELTA), sampled_epsilon(mu, rate, steps)
    assert got == pytest.approx(expected, rel=0.002, abs=1e-6)


def test_poisson_steps_against_simulation():
    """delta(eps) = E[(1 - exp(eps - L))+] over the privacy loss L of 20 steps, from 400,000 draws."""
    mu, rate, steps, delta = 0.8, 0.2, 20, 0.02
    epsilon = accountant._sampled_epsilon(((mu, steps),), rate, delta)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400_000, steps)) + mu * (rng.random((400_000, steps)) < rate)
    loss = np.log1p(rate * np.expm1(mu * x - mu**2 / 2)).sum(1)
    drawn = np.maximum(0, -np.expm1(epsilon - loss))
    assert abs(drawn.mean() - delta) < 4 * drawn.std() / math.sqrt(len(drawn))


def test_nominal_noise_is_the_theorem():
    std = nominal_std(sensitivity=10 / 32, steps=100, epsilon=0.1, delta=1e-5)
    assert std == pytest.approx(0.3125 * 10 * math.sqrt(5 * math.log(10)) / 0.1)
    assert nominal_std(sensitivity=1.0, steps=100, epsilon=math.inf, delta=1e-5) == 0


def test_every_step_costs_at_least_what_ran_and_sampling_never_costs():
    for claimed, clip in itertools.product((0.01, 0.4, 10.0), ("record", "batch")):
        every = epsilon(dpfpl(claimed, clip=clip), every_step=True)
        assert epsilon(dpfpl(claimed, clip=clip)) < every
        assert epsilon(dpfpl(claimed, clip=clip, sampler="poisson")) < every
        assert epsilon(dpfpl(claimed, clip=clip, sampler="poisson"), every_step=True) == every


def test_a_sample_of_everybody_is_no_sample():
    run = Ledger.of(rounds_of([mechanism(std=1.0, sampler="poisson")], records=B - 1), shared=SHARED)
    assert epsilon(run) == epsilon(run, every_step=True) > 0


def test_replacing_a_record_doubles_record_clipping_only():
    twice = epsilon(single(0.5))
    assert epsilon(single(1.0), relation="replace") == twice
    whole = single(100.0, clip="batch")
    assert epsilon(whole, relation="replace") == epsilon(whole)


def test_the_most_exposed_client_counts():
    few, many = (rounds_of([mechanism(std=1.0, party="client")], records=n, client=k) for k, n in enumerate((40, 4000)))
    both = Ledger.of([*few, *many], shared=SHARED)
    assert epsilon(both) == epsilon(Ledger.of(few, shared=SHARED)) > epsilon(Ledger.of(many, shared=SHARED))


@pytest.mark.parametrize(
    ("wanted", "sampler"), [(0.01, "epochs"), (8.0, "epochs"), (100.0, "epochs"), (0.4, "poisson")]
)
def test_calibrated_noise_proves_the_promise_and_a_percent_less_does_not(wanted, sampler):
    far = {"u": C / B, "v": C / B, "p_G": C / (N * B)}
    privacy = Privacy(epsilon=wanted, sigma="calibrated", sampler=sampler)
    stds = noise_stds(privacy, far, steps=[T, T], batch=B, records=[600, RECORDS])
    assert {name: stds[name] / far[name] for name in far} == pytest.approx(dict.fromkeys(far, stds["u"] / far["u"]))
    whole, less = (
        epsilon(joint([mechanism(name, std=factor * std, sampler=sampler) for name, std in stds.items()]))
        for factor in (1, 0.99)
    )
    assert 0.99 * wanted < whole <= wanted < less


def test_calibration_by_the_closed_form():
    """Three releases, 9 participations: one Gaussian with mu = sqrt(27) / z."""
    z = noise_multiplier(3, epsilon=1.0, delta=DELTA, times=9, rate=1.0)
    assert float(gaussian_delta(1, math.sqrt(27) / z)) == pytest.approx(DELTA, rel=1e-5)


def test_noise_that_the_settings_ask_for():
    far = {"u": 1.0, "p_G": 0.1}
    nominal = noise_stds(Privacy(epsilon=0.5), far, steps=[T], batch=B, records=[40])
    assert nominal == {name: nominal_std(sensitivity=s, steps=T, epsilon=0.5, delta=DELTA) for name, s in far.items()}
    for sigma in ("nominal", "calibrated"):
        none = noise_stds(Privacy(epsilon=math.inf, sigma=sigma), far, steps=[T], batch=B, records=[40])
        assert none == {"u": 0, "p_G": 0}


def test_server_sees_what_it_noises_itself_in_the_clear():
    found = provable(dpfpl(0.1), threat_model="server", delta=DELTA)
    assert found.epsilon == math.inf
    assert "the server adds the noise of p_G itself" in found.why


def test_noise_of_the_client_holds_against_the_server():
    run = single(5.0)
    assert epsilon(run, threat_model="server") == epsilon(run, threat_model="released-model") == epsilon(run) < math.inf
    aside = dataclasses.replace(run, clear=("loss", "gradient of w"))
    found = provable(aside, threat_model="server", delta=DELTA)
    assert found.epsilon == math.inf
    assert "loss and gradient of w" in found.why
    assert epsilon(aside) == epsilon(run)


@pytest.mark.parametrize("missing", ["u", "v", "p_G"])
@pytest.mark.parametrize("threat_model", ["released-model", "prompt-user", "owner"])
@pytest.mark.parametrize("whose", ["own", "other"])
def test_one_release_without_noise_is_unbounded(missing, threat_model, whose):
    noised = [mechanism(name, std=1.0) for name in (*LOCAL, *SHARED)]
    for kept in (
        [m for m in noised if m.release != missing],
        [dataclasses.replace(m, std=float(m.release != missing)) for m in noised],
    ):
        found = provable(joint(kept), threat_model=threat_model, whose=whose, delta=DELTA)
        assert (found.epsilon, found.why) == (math.inf, f"unbounded: no noise is added to {missing}")


def test_a_method_without_a_global_part_reaches_only_its_own_users():
    run = Ledger.of(rounds_of([mechanism("u", std=1.0)]), local=("u",))
    assert 0 < epsilon(run) == epsilon(run, threat_model="owner") < math.inf
    for threat_model, whose in (("prompt-user", "other"), ("released-model", "own"), ("server", "own")):
        found = provable(run, threat_model=threat_model, whose=whose, delta=DELTA)
        assert found.epsilon == 0
        assert "nothing is" in found.why


def test_without_noise_nothing_is_proven():
    bare = Ledger.of(rounds_of([]), shared=SHARED, clear=SHARED)
    seers = ("server", "released-model", "prompt-user", "owner")
    assert {epsilon(bare, threat_model=seer) for seer in seers} == {math.inf}
    assert epsilon(Ledger.of([], shared=SHARED)) == math.inf


def test_a_local_prompt_that_nobody_sees_leaks_through_later_uploads():
    """Two steps, the record in the first only. Step 1 noises p_G and u with multiplier z; the hidden local prompt is the noisy u. In step 2 every
    gradient of p_G is `slope` times that prompt, within the clip norm for four standard deviations. The view of p_G alone is two Gaussians, of mu
    1/z and slope / (z sqrt(slope² + 1)): more than p_G's own composition proves, and within the joint one.
    """
    z, slope = 2.0, 4.0
    far = C / B
    rounds = rounds_of([mechanism(name, std=z * far, clients=1) for name in ("u", "p_G")], steps=2)
    run = Ledger.of(rounds, shared=SHARED, local=("u",))
    exact = accountant.gaussian_epsilon(math.hypot(1, slope / math.hypot(slope, 1)) / z, DELTA)
    alone = Ledger.of(rounds_of([mechanism(std=z * far, clients=1)], steps=2), shared=SHARED)
    for threat_model, whose in (("released-model", "own"), ("released-model", "other"), ("prompt-user", "other")):
        assert epsilon(alone, threat_model=threat_model, whose=whose) < 0.75 * exact
        assert exact < epsilon(run, threat_model=threat_model, whose=whose) < 1.03 * exact


def test_a_question_that_is_not_one_is_refused():
    run = single(1.0)
    for wrong in ({"threat_model": "insider"}, {"whose": "mine"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be .*, not {next(iter(wrong.values()))}"):
            epsilon(run, **wrong)
    sampled = single(1.0, sampler="poisson")
    with pytest.raises(ValueError, match="relation must be zero-out for Poisson sampling, not replace"):
        epsilon(sampled, relation="replace")
    every = {"relation": "replace", "every_step": True}
    assert epsilon(sampled, **every) == epsilon(single(1.0), **every)


def test_the_sentence_says_what_was_counted():
    about = {"threat_model": "owner", "delta": DELTA}
    assert provable(dpfpl(0.1), **about).why == "u, v and p_G jointly: in at most 9 of 100 steps"
    assert provable(dpfpl(0.1), **about, every_step=True).why.endswith("in each of 100 steps")
    assert "probability 0.0775" in provable(dpfpl(0.1, sampler="poisson"), **about).why


def test_reading_a_ledger_imports_nothing_heavy():
    code = "import sys; import fedaudit.privacy.ledger, fedaudit.privacy.accountant; print({'torch', 'scipy', 'dp_accounting'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_several_epsilons_of_one_seed_are_not_to_be_published_together():
    def said(words: str) -> bool:
        return any("draw the same noise" in sentence for sentence in limits(read_command(words.split()).plan))

    assert said("--method dpfpl --epsilon 1,8 --attack none")
    assert not said("--method dpfpl:epsilon=8,promptfl:epsilon=1 --attack none")
    assert not said("--method dpfpl --epsilon 8 --attack none")
