"""Sums that SecFPP reveals: what they tell of members, that all is safe, and that an attack reads each."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.base import View
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import PooledSum
from fedaudit.attacks.messages import pooled
from fedaudit.attacks.messages.distances import UserVector, _slopes, from_distances
from fedaudit.attacks.scatter import solve
from fedaudit.pipeline import on_shares
from fedaudit.privacy.secpc import Meeting, Protocol, pooled_moment
from fedaudit.privacy.sharing import Tolerance
from fedaudit.trainers.base import Schedule
from fedaudit.trainers.prompts import Settings
from fedaudit.trainers.secfpp import FEW, SecFPP, largest_rank
from fedaudit.trainers.transcript import Transcript
from tests.prompt_toy import METHODS, NONE, federation, made, run
from tests.test_secfpp import SCHEDULE, SIZES, USERS, secfpp
from tests.test_secfpp import whole as whole

Floats = NDArray[np.float64]
EACH = 12  # candidates of a class, half of them members

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


@dataclasses.dataclass(frozen=True)
class User:
    marks: Floats
    classes: NDArray[np.int64]
    member: NDArray[np.bool_]


def users(number: int, classes: int, directions: int, seed: int) -> list[User]:
    """Every user has so many of ten classes; records of a class are alike."""
    rng, found = np.random.default_rng(seed), []
    middle = 3 * rng.normal(size=(10, directions))
    for _ in range(number):
        labels = np.repeat(rng.choice(10, classes, replace=False), EACH)
        coins = np.concatenate([rng.permutation(np.arange(EACH) % 2 == 0) for _ in range(classes)])
        found.append(User(middle[labels] + rng.normal(size=(len(labels), directions)), labels, coins))
    return found


def scatter_of(user: User, member: NDArray[np.bool_]) -> Floats:
    present = sorted({int(c) for c in user.classes[member]})
    count = {c: sum(1 for i in np.flatnonzero(member) if user.classes[i] == c) for c in present}
    weight = {c: count[c] / (count[c] + FEW) for c in present}
    total = sum(weight.values())
    mean = {c: sum(user.marks[i] for i in np.flatnonzero(member) if user.classes[i] == c) / count[c] for c in present}
    middle = sum(weight[c] / total * mean[c] for c in present)
    part = sum(weight[c] / total * np.outer(mean[c] - middle, mean[c] - middle) for c in present)
    found: Floats = part / np.trace(part)
    return found


def auroc(everybody: list[User], floor: float, noise: float = 0.0, second: bool = False) -> float:
    """The mean over users of the members' AUROC; `second`: of a coin that W does not depend on."""
    rng = np.random.default_rng(7)
    W = sum(scatter_of(user, user.member) for user in everybody)
    bumps = np.triu(rng.normal(0, noise, W.shape)) if noise else np.zeros_like(W)
    root = pooled.inverse_root(torch.from_numpy(W + bumps + np.triu(bumps, 1).T), floor)
    found = []
    for user in everybody:
        one_hot = F.one_hot(torch.from_numpy(user.classes), 10).double()
        truth = rng.permutation(user.member) if second else user.member
        found.append(roc_auc_score(truth, solve(pooled.between_classes(torch.from_numpy(user.marks), one_hot, root))))
    return float(np.mean(found))


def test_where_directions_are_empty_every_member_is_found_and_no_second_coin() -> None:
    several = [users(10, classes=4, directions=160, seed=seed) for seed in range(3)]
    assert min(auroc(everybody, 1e-6) for everybody in several) > 0.98
    second = np.mean([auroc(everybody, 1e-6, second=True) for everybody in several])
    assert abs(second - 0.5) < 0.04  # 1,440 candidates: a standard error of .015


def test_where_none_is_empty_and_there_is_noise_hardly_anything_is_found() -> None:
    everybody = users(20, classes=9, directions=100, seed=0)
    found = [auroc(everybody, floor, noise=1e-2) for floor in (1e-6, 1e-3, 1e-1)]
    assert max(found) < 0.6
    assert auroc(everybody, 1e-6) > max(found)  # without noise


@pytest.mark.parametrize("seed", range(4))
def test_shares_are_those_of_a_slow_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, target, groups = rng.normal(size=(5, 8)), rng.normal(size=5), np.array([0, 0, 0, 1, 1, 1, 1, 1])
    sums = [{"type": "eq", "fun": lambda a, g=g: a[groups == g].sum() - 1} for g in (0, 1)]
    limits = {"bounds": [(0, None)] * 8, "constraints": sums, "options": {"ftol": 1e-14, "maxiter": 1000}}
    slow = minimize(lambda a: ((rows @ a - target) ** 2).sum(), np.full(8, 0.25), **limits)
    shares = solve(PooledSum(rows, target, groups))
    np.testing.assert_allclose(shares, slow.x, atol=2e-4)
    assert (shares >= 0).all()


def test_the_smallest_rank_of_any_users_is_that_of_trying_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        classes = rng.integers(1, 7, size=7)
        counts = np.bincount(classes - 1, minlength=6).astype(float)
        for some in range(1, 8):
            assert largest_rank(counts, some) == min(sum(few) for few in itertools.combinations(classes - 1, some))


def test_noise_of_users_is_in_the_sum_once_and_nothing_is_lost() -> None:
    plan = Protocol(8, Tolerance(2), 10**5, 4)
    generators = [np.random.default_rng(user) for user in range(8)]
    matrices = np.random.default_rng(1).normal(size=(8, 3, 4)) / 4
    noise = np.random.default_rng(2).normal(0, 1e-3, (8, 10))
    plain = np.einsum("nbd,nbe->de", matrices, matrices)
    total = pooled_moment(Meeting(plan, generators), matrices, noise)
    upper = np.triu_indices(4)
    np.testing.assert_allclose((total - plain)[upper], noise.sum(0), atol=1e-7)
    np.testing.assert_array_equal(total, total.T)


def vector(user: User, shares: Floats) -> Floats:
    weights = {c: (n / 2) / (n / 2 + FEW) for c in {*user.classes} if (n := int((user.classes == c).sum()))}
    mean = sum(weights[c] / sum(weights.values()) * shares[i] * user.marks[i] for i, c in enumerate(user.classes))
    found: Floats = mean / np.linalg.norm(mean)
    return found


def asked(vectors: Floats, rounds: int) -> list[tuple[list[list[int]], Floats]]:
    orders = [np.random.default_rng(r).permutation(len(vectors)).tolist() for r in range(rounds)]
    halves = [[order[: len(order) // 2], order[len(order) // 2 :]] for order in orders]
    means = [np.stack([vectors[half].mean(0) for half in both]) for both in halves]
    return [(both, ((vectors[:, None] - mean) ** 2).sum(-1)) for both, mean in zip(halves, means, strict=True)]


def expected_of(user: User) -> UserVector:
    return UserVector.of(torch.from_numpy(user.marks), torch.from_numpy(user.classes))


def test_slopes_are_those_of_small_steps() -> None:
    everybody = users(5, classes=3, directions=20, seed=0)
    expected = [expected_of(user) for user in everybody]
    shares = [np.full(len(user.classes), 1 / EACH) for user in everybody]
    vectors = np.stack([vector(*pair) for pair in zip(everybody, shares, strict=True)])
    np.testing.assert_allclose(vectors, [one.expected for one in expected], atol=1e-12)
    (groups, before), step = asked(vectors, 1)[0], 1e-6
    for k in (0, 3):
        move = np.zeros(len(shares[k]))
        move[[1, 2]] = step, -step  # of one class, as only the sum of its shares is fixed
        moved = vectors.copy()
        moved[k] = vector(everybody[k], shares[k] + move)
        for g, group in enumerate(groups):
            apart, inside = vectors - vectors[group].mean(0), np.isin(np.arange(5), group)
            after = ((moved - moved[group].mean(0)) ** 2).sum(1)
            slopes = _slopes(apart, expected[k], k, inside)
            np.testing.assert_allclose((after - before[:, g]) / step, slopes @ move / step, atol=1e-4)


def test_distances_tell_members_and_nothing_of_a_second_coin() -> None:
    rng, found, second = np.random.default_rng(5), [], []
    for seed in range(6):
        everybody = users(8, classes=2, directions=20, seed=seed)
        true = [user.member / np.bincount(user.classes, user.member)[user.classes] for user in everybody]
        vectors = np.stack([vector(*pair) for pair in zip(everybody, true, strict=True)])
        expected, told = [expected_of(user) for user in everybody], asked(vectors, 20)
        for k, user in enumerate(everybody):
            shares = solve(from_distances(expected, told, k))
            found.append(roc_auc_score(user.member, shares))
            second.append(roc_auc_score(rng.permutation(user.member), shares))
    assert np.mean(found) > 0.6
    assert abs(np.mean(second) - 0.5) < 4 * np.std(second) / len(second) ** 0.5


def test_the_expected_vectors_of_a_run_are_its_own_where_all_candidates_are_members(whole: Transcript) -> None:
    """Each record twice among the candidates, so that the expected half are all: distances follow to the last step."""
    method, world, seen = secfpp(), federation(SIZES), View(whole, "clustering-server")
    learner = world.learner()
    expected = pooled.user_vectors(seen, method, learner, [[*own, *own] for own in world.training])
    vectors, rounds = np.stack([one.expected for one in expected]), pooled.told_distances(seen)
    assert len(rounds) == SCHEDULE.rounds - 1
    for groups, distances in rounds:
        means = np.stack([vectors[group].mean(0) for group in groups])
        np.testing.assert_allclose(((vectors[:, None] - means) ** 2).sum(-1), distances, atol=1e-3)
    assert pooled.user_vectors(View(whole, "colluding-users"), method, learner, world.training) is None


def revealing(path: Path, rounds: int, **params: Any) -> Transcript:
    return run(path, secfpp(**params), federation(SIZES), dataclasses.replace(SCHEDULE, rounds=rounds))


def test_with_too_few_classes_nothing_is_revealed_and_users_stay_together(tmp_path: Path) -> None:
    shut = revealing(tmp_path, rounds=3, directions=64)
    assert set(shut.revealed(0)) == {"class_counts", "gradients"}
    facts = shut.round(0)["revealed"]
    assert facts["rank"] < facts["directions"] == 64
    for r in (1, 2):
        assert set(shut.revealed(r)) == {"gradients"}
        assert not {"metric", "half"} & {*shut.broadcast(r)}
        assert len(shut.broadcast(r + 1)["p_G"]) == 1
    (row,) = on_shares.scatter_table(shut, secfpp(directions=64)).itertuples()
    assert (row.rank, row.directions, row.revealed) == (facts["rank"], 64, False)


def test_the_sum_is_revealed_where_classes_fill_all_directions_and_no_sooner(tmp_path: Path) -> None:
    rank = revealing(tmp_path / "usual", rounds=1).round(0)["revealed"]["rank"]
    for directions in (rank, rank + 1):
        found = revealing(tmp_path / f"{directions}", rounds=1, directions=directions)
        assert ("scatter" in found.revealed(0)) == (directions == rank)


def test_a_user_without_any_record_that_counts_has_no_class(tmp_path: Path, whole: Transcript) -> None:
    world = dataclasses.replace(federation(SIZES), left_out=frozenset(federation(SIZES).training[3]))
    found = run(tmp_path, secfpp(), world, dataclasses.replace(SCHEDULE, rounds=2))
    some, all_users = found.revealed(0)["class_counts"], whole.revealed(0)["class_counts"]
    assert some.sum() == all_users.sum() == USERS
    assert some[0] == all_users[0] + 1


def test_the_metric_tells_what_the_sum_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever receives the metric has the equations of the server, up to rounding."""
    monkeypatch.setattr(SecFPP, "noise", 1e-9)
    method, world = secfpp(), federation(SIZES)
    noisy, learner = run(tmp_path, method, world, dataclasses.replace(SCHEDULE, rounds=2)), world.learner()
    views = [View(noisy, name) for name in ("clustering-server", "colluding-users", "released-model")]
    for user in range(3):
        candidates = [*world.training[user], *world.test[:6]]
        gradients = functools.partial(pooled.start_gradients, views[0], method, learner, candidates)
        seen = [pooled.pooled_sums(view, method, learner.labels(candidates), gradients)["scatter"] for view in views]
        lengths = [np.linalg.norm(one.rows, axis=0) for one in seen]
        for other in lengths[1:]:
            np.testing.assert_allclose(other / other.sum(), lengths[0] / lengths[0].sum(), rtol=0.02)


def test_the_noise_in_the_sum_is_as_large_as_said(tmp_path: Path, whole: Transcript, monkeypatch: Any) -> None:
    """With all users' noise it is a bit larger than what is left if t collude and some are absent."""
    monkeypatch.setattr(SecFPP, "noise", 1e-12)
    other = revealing(tmp_path, rounds=1).revealed(0)["scatter"]
    spread = float((whole.revealed(0)["scatter"] - other)[np.triu_indices(8)].std())
    assert 0.7e-4 < spread / (USERS / (USERS - 4)) ** 0.5 < 1.3e-4


REDUCED = [{"clustered": "prompt", "reduction": reduction} for reduction in ("moments", "random", "none")]


@pytest.mark.parametrize("params", [{}, {"directions": 64}, {"masks": False}, *REDUCED], ids=str)
def test_whatever_is_revealed_is_declared_and_read_by_an_attack(tmp_path: Path, params: dict[str, Any]) -> None:
    method = secfpp(**params)
    assert seen_beside_models(method, revealing(tmp_path, rounds=2, **params)) <= {*method.reveals}
    read = {name for plugin in ATTACKS.values() for name in plugin.facts.reads} | {*on_shares.READS}
    assert {*method.reveals} <= read


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_other_method_sends_what_no_attack_reads(name: str, tmp_path: Path) -> None:
    if not METHODS[name].facts.trains or name == "secfpp":
        return
    method = made(name, {}, NONE, settings=Settings(prompt_length=8, batch=4))
    done = run(tmp_path, method, federation(), Schedule(rounds=2, clients=3, per_round=3, seed=1))
    assert method.reveals == ()
    assert not seen_beside_models(method, done)


def seen_beside_models(method: Any, whole: Any) -> set[str]:
    """Names of tensors that the server or clients are told, but for mean uploads, constants and models."""
    names = set[str]()
    for r in range(whole.schedule.rounds):
        names |= {*whole.revealed(r)} - {"gradients"}
        start, now = whole.broadcast(0), whole.broadcast(r + 1)
        constant = {n for n in now if n in start and torch.equal(start[n], now[n])}
        names |= {*now} - constant - {*method.shared, *method.by_client, *start} - {"half"}
    return names
