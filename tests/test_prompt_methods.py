"""The prompt methods against slow oracles and by hand: training step for step, the round loop, and what is special about each of them."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.machinery.errors import InputError
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers import dpfpl, fedotp
from fedaudit.trainers.base import Schedule, Site, Upload, generator
from fedaudit.trainers.dpfpl import DPFPL, full_gradient, power_iteration
from fedaudit.trainers.fedotp import _on_device, _on_host, transport_plan, transport_scores
from fedaudit.trainers.prompts import Settings
from fedaudit.trainers.transcript import Transcript
from tests import prompt_oracle, prompt_toy
from tests.prompt_toy import METHODS, PRIVACY, SETTINGS, close, federation, made, named, one_round, run

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "dpfpl": [{"rank": 0}, *({"rank": k, "residual": kept} for k in (1, 4) for kept in (True, False))],
    "fedotp": [{"match": "ot"}, {"match": "sum"}],
    "fedpgp": [{"rank": 2, "mu": mu} for mu in (0.0, 1.0)],
    "pfedme": [{"inner": 2, "mixing": beta} for beta in (1.0, 0.5)],
    "secfpp": [{"clustered": "prompt", "together": 9}],  # nobody is clustered: tests/test_secfpp.py does
}
SCHEDULE = Schedule(rounds=2, clients=3, per_round=3, seed=1)
CASES = [(name, params) for name in METHODS for params in VARIANTS.get(name, [{}])]
USUAL = [(name, VARIANTS.get(name, [{}])[0]) for name in METHODS]
WAYS = ("none", "record", "batch", "poisson")


def is_quick(i: int, case: tuple[str, dict[str, Any]], j: int) -> bool:
    """A method's first variant in all ways but one, the others in one of them each."""
    return j != 2 + i % 2 if case in USUAL else j == i % 4


NOISED = [
    pytest.param(*case, how, marks=() if is_quick(i, case, j) else pytest.mark.slow)  # the others in all ways
    for i, case in enumerate(CASES)
    for j, how in enumerate(WAYS)
    if how == "none" or (METHODS[case[0]].facts.trains and not METHODS[case[0]].facts.on_shares)
]

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any], str], Transcript]:
    """Uninterrupted runs with all clients in one problem, each trained once; those with Poisson sampling have a cohort of two."""

    @functools.cache
    def trained(name: str, params: str, privacy: str) -> Transcript:
        method = made(name, json.loads(params), PRIVACY[privacy], schedule_of(privacy))
        return run(tmp_path_factory.mktemp("whole"), method, federation(), schedule_of(privacy))

    return lambda name, params, privacy: trained(name, json.dumps(params), privacy)


def schedule_of(privacy: str) -> Schedule:
    return dataclasses.replace(SCHEDULE, rounds=3, per_round=2) if privacy == "poisson" else SCHEDULE


@pytest.mark.parametrize(("name", "params", "privacy"), NOISED, ids=named)
def test_training_equals_clients_and_records_one_by_one(whole: Any, name: str, params: Any, privacy: str) -> None:
    """Uploads, own parts and aggregates of all rounds."""
    fast, schedule = whole(name, params, privacy), schedule_of(privacy)
    method = made(name, params, PRIVACY[privacy], schedule)
    slow = prompt_oracle.oracle_of(name)(federation(), method.params, SETTINGS, PRIVACY[privacy], schedule).run()
    prompt_oracle.same(fast, slow, atol=2e-5)
    if method.local or method.shared:  # what was compared is not a prompt that stood still
        end = schedule.rounds - 1
        before, last = fast.broadcast(0), fast.broadcast(end + 1) | fast.private(end, fast.cohort(end)[0])
        constant = ("hard", "p_0", "cluster")
        moved = [float((last[n] - t).abs().max()) for n, t in before.items() if n not in constant]
        assert min(moved) > 0.002


@pytest.mark.parametrize(("name", "params"), [*USUAL, ("dpfpl", {"rank": 1, "residual": True})], ids=named)
def test_clients_in_one_problem_are_the_clients_one_by_one(tmp_path: Path, whole: Any, name: str, params: Any) -> None:
    privacy = "none" if METHODS[name].facts.on_shares else "record"
    together = whole(name, params, privacy)
    alone = run(tmp_path, made(name, params, PRIVACY[privacy], SCHEDULE), federation(), SCHEDULE, clients_per_batch=1)
    for r in range(SCHEDULE.rounds):
        for k in range(3):
            found, expected = together.private(r, k), alone.private(r, k)
            assert found.keys() == expected.keys()
            for tensor, value in expected.items():
                close(found[tensor], value)
        one, other = (dict(run.round(r)) for run in (together, alone))
        signals = [about["noise"].pop("signals") for about in (one, other) if "noise" in about]
        if signals:
            assert signals[0] == pytest.approx(signals[1], rel=1e-4)
        assert one == other  # cohort, bytes, utilities, mechanisms and turns


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def carriers(b: int, d: int, k: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    return torch.linalg.qr(gaussian(b, k, seed=seed)).Q, torch.linalg.qr(gaussian(d, k, seed=seed + 1)).Q.T


@pytest.mark.parametrize("k", [1, 2, 5])
def test_eq_4_is_the_projection_on_the_tangent_space(k: int) -> None:
    """P_u G + G P_v - P_u G P_v, which leaves every direction u a + b v alone and is a projection."""
    u, v = carriers(5, 9, k)
    G = gaussian(5, 9, seed=7)
    P_u, P_v = u @ u.T, v.T @ v
    found = full_gradient(u, v, G @ v.T, u.T @ G)
    close(found, P_u @ G + G @ P_v - P_u @ G @ P_v, atol=1e-12)
    tangent = u @ gaussian(k, 9, seed=8) + gaussian(5, k, seed=9) @ v
    close(full_gradient(u, v, tangent @ v.T, u.T @ tangent), tangent, atol=1e-12)
    assert float(((G - found) * tangent).sum()) == pytest.approx(0, abs=1e-10)


def test_eq_4_of_carriers_that_are_not_orthonormal_by_hand() -> None:
    """u = (2, 0)', v = (1, 0), G = [[1, 2], [3, 4]]: d_u = G v' = (1, 3)', d_v = u' G = (2, 4).

    d_u v = [[1, 0], [3, 0]], u d_v = [[4, 8], [0, 0]], u u' d_u v = [[4, 0], [0, 0]]: eq. 4 gives [[1, 8], [3, 0]]. The projection, with
    P_u = P_v = diag(1, 0), is [[1, 2], [3, 0]].
    """
    u, v = torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0, 0.0]])
    G = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert full_gradient(u, v, G @ v.T, u.T @ G).tolist() == [[1, 8], [3, 0]]
    assert full_gradient(u / 2, v, G @ v.T, u.T @ G / 2).tolist() == [[1, 2], [3, 0]]


@pytest.mark.parametrize("k", [1, 3, 6])
def test_carriers_are_orthonormal_for_every_client(k: int) -> None:
    u, v = power_iteration(gaussian(4, 6, 11), gaussian(4, 11, k, seed=1))
    assert (u.shape, v.shape) == ((4, 6, k), (4, k, 11))
    close(u.mT @ u, torch.eye(k).expand(4, k, k), atol=1e-12)
    close(v @ v.mT, torch.eye(k).expand(4, k, k), atol=1e-12)
    u, v = power_iteration(torch.zeros(1, 4, 9), gaussian(1, 9, 2).float())  # of a prompt of zeros, too
    close(u.mT @ u, torch.eye(2)[None])
    close(v @ v.mT, torch.eye(2)[None])


def test_carriers_span_the_top_directions_of_a_decaying_spectrum() -> None:
    """Singular values 1, 1/2, then 1e-4: one iteration finds both leading pairs to about 1e-4 (left) and 1e-8 (right)."""
    left, right = carriers(8, 12, 8, seed=3)
    values = torch.tensor([1, 0.5, *[1e-4] * 6], dtype=torch.float64)
    u, v = power_iteration(left @ torch.diag(values) @ right, gaussian(12, 2, seed=4))
    close(u @ u.T, left[:, :2] @ left[:, :2].T, atol=3e-3)
    close(v.T @ v, right[:2].T @ right[:2], atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_without_residual_the_best_rank_k_part_is_released(k: int) -> None:
    p_G, p_L = gaussian(2, 4, 9), gaussian(2, 4, 9, seed=1)
    state = {"p_G": p_G, "p_L": p_L}
    method = DPFPL(dpfpl.Params(rank=k, residual=False), SETTINGS)
    released = method.prompt(state) - p_G
    for part, whole in zip(released, p_L, strict=True):
        values = np.linalg.svd(part.numpy(), compute_uv=False)
        wanted = np.linalg.svd(whole.numpy(), compute_uv=False)
        assert values == pytest.approx([*wanted[:k], *[0] * (4 - k)], abs=1e-10)
        assert float((whole - part).norm()) == pytest.approx(math.hypot(*wanted[k:]), abs=1e-10)  # Eckart and Young
    close(DPFPL(dpfpl.Params(rank=k), SETTINGS).prompt(state), p_G + p_L, atol=0)


@pytest.mark.parametrize(("name", "rank"), [("dpfpl", 5), ("fedpgp", 5), ("fedpgp", 17)])
def test_a_rank_above_the_prompt_is_refused(name: str, rank: int) -> None:
    with pytest.raises(InputError, match=rf"--rank {rank}: a prompt of 4 vectors"):
        made(name, {"rank": rank})


COSTS = [(5, 2, 0), (5, 2, 1), (3, 4, 2), (49, 2, 3), (1, 2, 4), (6, 1, 5), (1, 1, 6)]


def costs(M: int, P: int, seed: int) -> Tensor:
    """1 minus cosines between random directions in 12 dimensions: 0.2 to 1.8."""
    a, b = (F.normalize(gaussian(n, 12, seed=seed + s), dim=-1) for n, s in ((M, 0), (P, 100)))
    return 1 - a @ b.T


@pytest.mark.parametrize(("M", "P", "seed"), COSTS)
def test_a_plan_is_that_of_the_slow_iteration_and_has_its_marginals(M: int, P: int, seed: int) -> None:
    """A prompt receives 0.8 / P exactly, a patch gives at most 1 / M (to 1 % after 100 iterations)."""
    cost = costs(M, P, seed)
    plan = transport_plan(cost)
    close(plan, torch.tensor(prompt_oracle.slow_plan(cost.tolist()), dtype=torch.float64), atol=1e-12)
    assert float(plan.min()) >= 0
    assert plan.sum(0).tolist() == pytest.approx([0.8 / P] * P, abs=1e-12)
    assert float(plan.sum(1).max()) <= 1.01 / M


@pytest.mark.parametrize(("M", "P", "seed"), COSTS)
def test_a_plan_is_the_optimum_of_its_problem(M: int, P: int, seed: int) -> None:
    """Conditions of the entropic problem: log plan + cost / eps = f_m + g_p, f <= 0, and f < 0 only where a patch gives all it has.

    The slow iteration, run to its end, fulfils them to rounding; the plan after 100 iterations is within 1 % of a patch's mass of it.
    """
    cost = costs(M, P, seed)
    plan = torch.tensor(prompt_oracle.slow_plan(cost.tolist(), rounds=3000, still=0), dtype=torch.float64)
    sums = plan.log() + cost / 0.1
    g = sums.amax(0)  # of a patch that does not give all it has, f = 0
    f = (sums - g)[:, 0]
    close(sums, f[:, None] + g[None, :], atol=1e-9)
    assert float(f.max()) <= 1e-9
    spare = 1 / M - plan.sum(1)
    assert float(spare.min()) >= -1e-9
    assert float((spare * f).abs().max()) < 1e-8
    close(transport_plan(cost), plan, atol=0.01 / M)


def test_one_prompt_and_cheap_patches_by_hand() -> None:
    """Two patches of equal cost and one prompt: 0.4 of 0.8 each. With costs 0 and 1: e^-10 of the mass would go the dear way, were the
    cheap patch not limited to 1/2: it gives 1/2 and the other one 0.3."""
    close(transport_plan(torch.tensor([[0.3], [0.3]])), torch.tensor([[0.4], [0.4]]))
    close(transport_plan(torch.tensor([[0.0], [1.0]])), torch.tensor([[0.5], [0.3]]), atol=1e-3)
    close(transport_plan(torch.tensor([[1.7]])), torch.tensor([[0.8]]))


@pytest.mark.parametrize("shift", [0.0, 3.0, 500.0])
@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_the_extremes_of_cosines_do_not_overflow(size: float, shift: float) -> None:
    """1 - cos lies in [0, 2]; what all costs have in common changes nothing, although e^(-cost / eps) alone would be 0."""
    cost = torch.tensor([[0.0, 2.0], [2.0, 0.0], [2.0, 2.0], [0.1, 1.9], [1.0, 1.0]])
    plan = transport_plan(size * cost + shift)
    assert torch.isfinite(plan).all()
    close(plan.sum(0), torch.full((2,), 0.4), atol=1e-3)
    assert (plan.sum(1) <= 1 / 5 + 0.02).all()


SINGLE = [(*sizes, torch.float32) for sizes in ((1, 2), (16, 2), (49, 2), (7, 3))]


@pytest.mark.parametrize(("M", "P", "dtype"), [*SINGLE, (5, 2, torch.float64), (7, 3, torch.float64)])
def test_a_plan_does_not_depend_on_what_is_computed_beside_it(M: int, P: int, dtype: torch.dtype) -> None:
    """To the bit: alone, in another order, with others left out, twice, and beside problems that stop at once or never."""
    several = torch.stack([costs(M, P, seed) for seed in range(40)]).to(dtype)
    several[3], several[4] = 0.5, torch.linspace(0, 2, M * P).reshape(M, P)
    plans = transport_plan(several)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for chosen in (order, order[:7], order[[0, 0, 1, 1, 2]], torch.tensor([4, 9])):
        assert torch.equal(transport_plan(several[chosen]), plans[chosen])
    assert all(torch.equal(transport_plan(cost), plan) for cost, plan in zip(several, plans, strict=True))
    assert torch.equal(transport_plan(several.reshape(5, 2, 4, M, P)), plans.reshape(5, 2, 4, M, P))


def test_a_device_scales_as_the_host_does() -> None:
    """To the bit, though it computes problems that stand still again."""
    kernel = torch.stack([(-costs(16, 2, seed) / 0.1).exp().T for seed in range(40)], dim=1).contiguous()  # [P, n, M]
    kernel[:, 3] = 0.5  # stops at once
    start = torch.ones(2, 40, 1, dtype=kernel.dtype)
    assert torch.equal(_on_device(kernel, start), _on_host(kernel, start))


@pytest.mark.parametrize("M", [5, 16, 49])
def test_a_frozen_plan_is_near_that_of_all_iterations(M: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 1 % of a patch's mass, though most problems stop within 20 of the 100 iterations; it is not the same."""
    several = torch.stack([costs(M, 2, seed) for seed in range(200)]) / 2  # as far apart as an image's patches
    frozen = transport_plan(several)
    monkeypatch.setattr(fedotp, "ITERATIONS", 20)
    assert sum(map(torch.equal, transport_plan(several), frozen)) > 100
    monkeypatch.setattr(fedotp, "ITERATIONS", 100)
    monkeypatch.setattr(fedotp, "STILL", 0.0)
    far = float((transport_plan(several) - frozen).abs().max())
    assert 0 < far < 0.01 / M


def test_transport_scores_equal_loops_and_the_plan_is_a_constant() -> None:
    text = F.normalize(gaussian(2, 2, 3, 6), dim=-1).requires_grad_()  # [N, P, C, E]
    patches = F.normalize(gaussian(1, 4, 5, 6, seed=1), dim=-1)  # [1, B, M, E]
    found = transport_scores(text, patches)
    each = [prompt_oracle.transport_similarity(t, image) for t in text for image in patches[0]]
    slow = torch.stack(each).view(2, 4, 3)
    close(found.detach(), slow.detach(), atol=1e-12)
    weight = gaussian(2, 4, 3, seed=2)
    (fast,) = torch.autograd.grad((found * weight).sum(), text)
    (expected,) = torch.autograd.grad((slow * weight).sum(), text)
    close(fast, expected, atol=1e-12)


@pytest.mark.parametrize("privacy", ["none", "record"])
def test_the_contrastive_gradient_is_added_outside_the_clipping(privacy: str) -> None:
    """What mu changes in a round is mu times the gradient of the term, whole, though the clip norm is a hundredth of it and less."""
    settings = PRIVACY[privacy] if privacy == "none" else Privacy(epsilon=20, clip_norm=1e-5, clip=privacy)
    world, start = federation(), None
    found = {}
    for mu in (0.0, 100.0):
        method = made("fedpgp", {"rank": 2, "mu": mu, "temperature": 0.2}, settings)
        start = method.start(world.learner().initial(generator(0, "initial")))
        found[mu] = one_round(method, world, start)
    leaves = {name: start[name].double().requires_grad_() for name in ("p_G", "u", "v")}
    t_0, t_G, t_i = (
        prompt_oracle.text_features(world.clip, p, world.classes)
        for p in (start["hard"].double(), leaves["p_G"], leaves["p_G"] + leaves["u"] @ leaves["v"])
    )
    toward, away = ((t_0 * t_G).sum(1) / 0.2).exp(), ((t_G * t_i).sum(1) / 0.2).exp()
    term = -100 * (toward / (toward + away)).log().mean()
    expected = dict(zip(leaves, torch.autograd.grad(term, list(leaves.values())), strict=True))
    for without, with_term in zip(found[0.0], found[100.0], strict=True):
        close(with_term.upload["gradient"] - without.upload["gradient"], expected["p_G"])
        for name in ("u", "v"):
            close(without.private[name] - with_term.private[name], SETTINGS.local_rate * expected[name], atol=2e-6)
    assert min(float(g.norm()) for g in expected.values()) > 0.003  # 300 times the clip norm


LINE = Settings(prompt_length=1, batch=2, global_rate=0.1, local_rate=0.5)
A_AND_B = [[(2.0, 0), (4.0, 1)], [(6.0, 0), (6.0, 0), (6.0, 0)]]


DPFPL_STARTS = [{"rank": 0}, {"rank": 1}, {"rank": 1, "residual": False}]
BY_HAND: list[tuple[str, dict[str, Any], float | None, str, list[float], float | None]] = [
    # mean gradients 0.5 and -3, uploads -0.05 and 0.3, n = 2 and 3: p_G = 2/5 * -0.05 + 3/5 * 0.3 = 0.16
    ("promptfl", {}, None, "p_G", [-0.05, 0.3], 0.16),
    # clipped to 1.5: A (-1 + 1.5) / 2 = 0.25, B (-1.5 - 1.5) / 2 = -1.5; uploads -0.025 and 0.15, averaged alike
    ("promptfl", {}, 1.5, "p_G", [-0.025, 0.15], 0.0625),
    # each by its own mean gradient: 0 - 0.5 * 0.5 = -0.25 and 0 + 0.5 * 3 = 1.5; nothing is sent
    ("local", {}, None, "p_L", [-0.25, 1.5], None),
    # p_G = 1 and p_L = -1 add up to 0; in one dimension u and v are 1 or -1, and eq. 4 is G + G - G. p_L: -1 - 0.5 * 0.5
    # and -1 + 0.5 * 3; p_G: 1 - 0.1 * (0.5 - 3) / 2 = 1.125: clients count alike, whatever their n
    *(("dpfpl", params, None, "p_L", [-1.25, 0.5], 1.125) for params in DPFPL_STARTS),
    # clipped to 1.5: 0.25 and -1.5. p_L: -1.125 and -0.25; p_G: 1 - 0.1 * (0.25 - 1.5) / 2
    *(("dpfpl", params, 1.5, "p_L", [-1.125, -0.25], 1.0625) for params in DPFPL_STARTS),
]


@pytest.mark.parametrize(("name", "params", "clip_norm", "tensor", "of_clients", "of_server"), BY_HAND, ids=named)
def test_a_round_by_hand(
    name: str, params: dict[str, Any], clip_norm: float | None, tensor: str, of_clients: list[float], of_server: Any
) -> None:
    """Clients A and B have numbers x with labels. Similarities of x are (p x, 0), so that with p = 0 both classes have probability 1/2 and
    the gradient of a record in p is -x / 2 for class 0, x / 2 for class 1: A -1 and 2, B -3 thrice, of which a batch of two takes two."""
    method = METHODS[name].load()(METHODS[name].own(METHODS[name].params(**params)), settings=LINE)
    if clip_norm is not None:
        silent = dict.fromkeys((*method.local, *method.shared), 0.0)
        method = prompt_toy.with_noise(method, Privacy(epsilon=1, clip_norm=clip_norm), silent)
    values = {"p_G": 1.0, "p_L": -1.0} if name == "dpfpl" else {tensor: 0.0}
    start, world = {n: torch.tensor([[value]]) for n, value in values.items()}, prompt_toy.on_a_line(A_AND_B)
    updates = one_round(method, world, start)
    assert [float((u.upload | u.private)[tensor]) for u in updates] == pytest.approx(of_clients)
    if of_server is None:
        assert [update.upload for update in updates] == [{}, {}]
        return
    uploads = [Upload(k, len(world.training[k]), update.upload) for k, update in enumerate(updates)]
    assert float(method.aggregate(start, uploads, Site(0, 0))["p_G"]) == pytest.approx(of_server)


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("[!.]*")}


@pytest.mark.parametrize(("name", "params"), USUAL, ids=named)
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, whole: Any, name: str, params: Any) -> None:
    """Killed after all rounds but one, in the last of which somebody was away; every file is the same, bit for bit."""
    how = "none" if METHODS[name].facts.on_shares else "poisson"
    method, schedule = made(name, params, PRIVACY[how], schedule_of(how)), schedule_of(how)
    advance = Mock(side_effect=[*[None] * (schedule.rounds - 2), KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, method, federation(), schedule, advance=advance)
    assert len([*tmp_path.glob("round-*.json")]) == schedule.rounds - 1
    run(tmp_path, method, federation(), schedule)
    assert files(tmp_path) == files(whole(name, params, how).folder.path)


def test_blocks_of_rounds_equal_one_go(tmp_path: Path, whole: Any) -> None:
    params = {"rank": 1, "residual": True}
    method = made("dpfpl", params, PRIVACY["record"], SCHEDULE)
    for until in (1, 2):
        run(tmp_path, method, federation(), SCHEDULE, until=until)
        assert sorted(tmp_path.glob("round-*.json"))[-1].name == f"round-{until - 1:03d}.json"
    assert files(tmp_path) == files(whole("dpfpl", params, "record").folder.path)


def test_what_prompt_users_owner_and_server_get(whole: Any) -> None:
    """A user has p_G of after the round with the client's own p_L; the server has gradients; what the client keeps is in no message."""
    transcript = whole("dpfpl", {"rank": 1, "residual": True}, "record")
    for r in range(SCHEDULE.rounds):
        for k in transcript.cohort(r):
            kept = transcript.private(r, k)["p_L"]
            assert torch.equal(transcript.personal(r, k)["prompt"], transcript.broadcast(r + 1)["p_G"] + kept)
            assert transcript.upload(r, k).keys() == {"gradient"}
            assert transcript.kept(r, k) == ["p_L"]
        assert transcript.broadcast(r + 1).keys() == {"p_G"}
        assert transcript.round(r)["bytes_down"] == transcript.round(r)["bytes_up"] == 3 * 4 * 16 * 4
    kept = [transcript.private(SCHEDULE.rounds - 1, k)["p_L"] for k in range(3)]
    assert not torch.equal(kept[0], kept[1])


def test_zero_shot_is_the_hard_prompt_and_stays_it(tmp_path: Path) -> None:
    """Accuracy of open_clip's own class features on the same images."""
    world = federation(test=60)
    transcript = run(tmp_path, made("zeroshot", {}), world, SCHEDULE)
    ids = [prompt_toy.tiny_clip.tokenizer().encode(f"a photo of a {name} .").ids for name in world.classes]
    padded = torch.tensor([row + [0] * (16 - len(row)) for row in ids])
    with torch.no_grad():
        text = world.clip.model.encode_text(padded, normalize=True)
    images = torch.stack([world.features[world.ids.index(record)] for record in world.test])
    right = (images @ text.T).argmax(1) == torch.tensor([world.labels[record] for record in world.test])
    for row in (transcript.initial, *map(transcript.round, range(SCHEDULE.rounds))):
        assert row["utility"]["clients"]["overall"] == pytest.approx(100 * float(right.float().mean()))
    assert 0 < int(right.sum()) < 60
    assert torch.equal(transcript.broadcast(0)["hard"], transcript.broadcast(SCHEDULE.rounds)["hard"])
    assert "noise" not in transcript.round(0)
    assert transcript.round(0)["bytes_up"] == transcript.round(0)["bytes_down"] == 0
