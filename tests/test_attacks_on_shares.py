"""Attacks on what SecFPP reveals: nothing of t users, exact where it must be, against brute force; views hold no private prompt."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sympy import Matrix
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.attacks.collude import noise_free, recover_slices
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.gradients import mean_gradient
from fedaudit.attacks.locate import mutual_distances, trilaterate
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.attacks.threats import THREAT_MODELS, LacksCapability
from fedaudit.command import cli
from fedaudit.pipeline import on_shares
from fedaudit.privacy.field import Field, Residues
from fedaudit.privacy.secpc import Meeting, Protocol
from fedaudit.privacy.sharing import Sharing, Tolerance
from fedaudit.trainers.base import State
from fedaudit.trainers.secfpp import Params, SecFPP
from fedaudit.trainers.transcript import Transcript
from tests.asking_toy import solved
from tests.prompt_toy import federation, run
from tests.test_secfpp import SCHEDULE, SETTINGS, SIZES, USERS, first_updates, secfpp
from tests.test_secpc import plain_distances

Floats = NDArray[np.float64]
PROTOCOL = Protocol(20, Tolerance(6), 10**5, 1536)  # four slices of distances
SMALL = secfpp().protocol(USERS, entries=64)  # of the run below


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Scattered(Sharing):
    """With evaluation points drawn from the whole field."""

    @property
    def points(self) -> Residues:
        return rng(1).integers(self.field.q, size=self.users)

    def _nodes(self, count: int) -> Residues:
        return rng(2).integers(self.field.q, size=100)[:count]


def scattered(plan: Sharing) -> Scattered:
    return Scattered(plan.field, plan.users, plan.slices, plan.degree, plan.tolerance)


@pytest.mark.parametrize("sharing", [PROTOCOL.of_distances, scattered(PROTOCOL.of_distances)])
def test_no_noise_is_left_in_combinations_and_no_more_can_be(sharing: Sharing) -> None:
    users = [19, 3, 4, 8, 0, 11, 7, 2]
    combined, encoding = noise_free(sharing, users).astype(object), sharing.encoding[users].astype(object)
    assert combined.shape == (2, 8)
    assert not (combined @ encoding[:, sharing.slices :] % sharing.field.q).any()
    assert (combined @ encoding[:, : sharing.slices] % sharing.field.q).any(axis=1).all()


def test_t_users_learn_nothing_and_ell_plus_t_everything() -> None:
    """Between them m - t projections of ell: consecutive points make equations in small whole numbers."""
    sharing, t = PROTOCOL.of_distances, 6
    true = np.rint(9000 * rng().normal(size=4 * 60)).astype(np.int64)
    shares = sharing.share(true, rng(3))
    found = {m: recover_slices(sharing, range(20 - m, 20), shares[20 - m :]) for m in range(1, t + 5)}
    assert all(found[m] is None for m in range(1, t + 1))
    errors = [np.square(found[m].reshape(-1) - true).sum() / np.square(true * 1.0).sum() for m in range(t + 1, t + 5)]
    assert errors[3] == 0
    np.testing.assert_allclose(errors[:3], [0.75, 0.5, 0.25], atol=0.1)


def test_with_scattered_points_the_first_user_above_t_is_one_too_many() -> None:
    """Two slices within +-2^15 in a field of 45 bits; within +-2^25 there are too many solutions."""
    sharing = scattered(Protocol(20, Tolerance(6, 2, 1), 10**5, 1536).of_distances)
    for bits, right in ((15, 1.0), (25, 0.0)):
        true = rng().integers(-(2**bits), 2**bits, size=(2, 50))
        shares = sharing.share(true.reshape(-1), rng(3))
        found = recover_slices(sharing, range(7), shares[:7])
        assert (found.reshape(true.shape) == true).mean() == right


@pytest.mark.parametrize("seed", range(4))
def test_the_shortest_solution_is_that_of_trying_all(seed: int) -> None:
    """Over a field of 1009, two slices, one equation."""
    sharing = (Sharing, Scattered)[seed % 2](Field(1009), 9, 2, 2, Tolerance(2))
    shares = sharing.share(rng(seed).integers(-20, 21, size=10), rng(seed))[:3]
    found = recover_slices(sharing, range(3), shares)
    combined = noise_free(sharing, range(3)).astype(object)
    slices, sides = combined @ sharing.encoding[:3, :2].astype(object), combined @ shares.astype(object)
    assert not ((slices @ found.astype(object) - sides) % 1009).any()
    near = np.array(list(itertools.product(range(-40, 41), repeat=2)))
    for column in range(5):
        fits = near[((near.astype(object) @ slices[0] - sides[0, column]) % 1009) == 0]
        least = (fits**2).sum(1).min()
        assert (found[:, column] ** 2).sum() <= 2 * least  # nearest plane: within 2^(k / 2) of the nearest


def test_what_t_users_see_does_not_depend_on_what_is_shared() -> None:
    """The same noise of the t users' own points explains any other vector: shares of it exist that they hold as well."""
    sharing, held = PROTOCOL.of_distances, [2, 5, 9, 11, 14, 19]
    shares, other = sharing.share(np.arange(40), rng(0)), sharing.share(np.arange(40) ** 2, rng(1))
    difference = sharing.field.subtract(shares, other)[held]
    noise = sharing.encoding[held, sharing.slices :].astype(object)
    inverse = np.array(Matrix(noise.tolist()).inv_mod(sharing.field.q).tolist(), dtype=object)
    moved = inverse @ difference.astype(object) % sharing.field.q  # what the other noise must be more
    assert (noise @ moved % sharing.field.q == difference).all()


def asked(vectors: Floats, rounds: int) -> list[tuple[list[list[int]], Floats]]:
    """Halves drawn anew in every round, and the distances to their means."""
    halves = [np.split(rng(r).permutation(len(vectors)), 2) for r in range(rounds)]
    return [([group.tolist() for group in groups], plain_distances(vectors, groups)) for groups in halves]


def squared(vectors: Floats) -> Any:
    return ((vectors[:, None] - vectors) ** 2).sum(-1)


def test_users_that_stand_still_are_placed() -> None:
    """Of users equally far from each other no pair is called nearer than another."""
    vectors = rng().normal(size=(8, 5))
    few, many = mutual_distances(asked(vectors, 2)), mutual_distances(asked(vectors, 12))
    assert few.rank < many.rank == 28
    np.testing.assert_allclose(many.squared, squared(vectors), atol=1e-2)
    alike = mutual_distances(asked(np.eye(8), 6)).squared[np.triu_indices(8, 1)]
    np.testing.assert_allclose(alike, 2, atol=1e-6)


def test_a_domain_is_seen_in_one_round() -> None:
    """Two clumps, asked about by halves that are not they: mates are nearer than others on average."""
    vectors = np.repeat(2 * np.eye(2, 6), 6, axis=0) + 0.1 * rng().normal(size=(12, 6))
    order = [[0, 1, 2, 3, 6, 7], [4, 5, 8, 9, 10, 11]]
    found = mutual_distances([(order, plain_distances(vectors, [*map(np.array, order)]))]).squared
    own = np.repeat([0, 1], 6)
    same = (own[:, None] == own) & ~np.eye(12, dtype=bool)
    assert found[same].mean() < 0.7 * found[own[:, None] != own].mean()


@pytest.mark.parametrize("d", [1, 3, 8])
def test_d_plus_one_known_points_locate_another_and_d_do_not(d: int) -> None:
    points = rng().normal(size=(d + 6, d))
    known, others, nothing = points[: d + 1], points[d + 1 :], np.zeros((5, d))
    to = ((others[:, None] - known) ** 2).sum(-1)
    np.testing.assert_allclose(trilaterate(known, to, nothing), others, atol=1e-8)
    fewer = trilaterate(known[:d], to[:, :d], nothing)
    assert np.abs(fewer - others).max() > 0.01
    axes = known[1:d] - known[0]  # what they do tell is the projection onto the directions between them
    np.testing.assert_allclose((fewer - known[0]) @ axes.T, (others - known[0]) @ axes.T, atol=1e-8)


def test_unmasked_polynomials_hold_the_distance_of_every_slice() -> None:
    vectors, groups = rng().normal(size=(20, 12)) / 6, np.split(np.arange(20), 2)
    parties = Meeting(PROTOCOL, [rng(user) for user in range(20)], masked=False)
    distances = parties.squared_distances(vectors, groups)
    np.testing.assert_allclose(distances, plain_distances(vectors, groups), atol=1e-4)
    assert parties.polynomials.shape == (PROTOCOL.of_distances.size, 20, 2)
    for s in range(4):
        part = plain_distances(vectors[:, 3 * s : 3 * s + 3], groups)
        np.testing.assert_allclose(parties.polynomials[s] / (10 * PROTOCOL.steps) ** 2, part, atol=1e-4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return run(tmp_path_factory.mktemp("views"), secfpp(), federation(SIZES), SCHEDULE)


def view(transcript: Transcript, threat_model: str) -> View:
    return View(transcript, threat_model, users=(8, 9))


def everything(seen: View) -> Iterator[Tensor]:
    """Every tensor that a view gives; what it refuses is left out."""
    yield from _tensors(seen.public)
    for name, r in itertools.product(("broadcast", "uploads", "sums", "distances", "shares"), range(SCHEDULE.rounds)):
        with contextlib.suppress(LacksCapability):
            yield from _tensors(getattr(seen, name)(r))


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, dict | tuple | list):
        for part in found.values() if isinstance(found, dict) else found:
            yield from _tensors(part)


def is_in(tensor: Tensor, secret: Tensor) -> bool:
    """Whether a row of the tensor, if it has such rows, is the secret."""
    secret = secret.flatten().double()
    if tensor.numel() % len(secret):
        return False
    rows = tensor.double().reshape(-1, len(secret))
    return bool(((rows - secret).norm(dim=1) < 1e-4 * secret.norm()).any())


@pytest.mark.parametrize("threat_model", ["released-model", "server", "clustering-server", "colluding-users"])
def test_no_private_prompt_is_in_any_view(whole: Transcript, threat_model: str) -> None:
    """Nor a gradient, nor a direction, whole or a row of a tensor; shares of them are there as good as random."""
    secrets = [tensor for update in first_updates(whole.broadcast(0)) for tensor in update.sealed.values()]
    for r, k in itertools.product(range(SCHEDULE.rounds), range(USERS)):
        secrets += [*(whole.private(r, k)[name] for name in ("p_L", "mark")), whole.personal(r, k)["prompt"]]
    seen = list(everything(view(whole, threat_model)))
    assert seen
    assert not any(is_in(tensor, secret) for tensor in seen for secret in secrets)
    assert any(is_in(tensor, secrets[-1]) for tensor in _tensors({"a": [whole.personal(r, k)]}))


def test_each_party_sees_its_own_and_no_more(whole: Transcript) -> None:
    server, users = view(whole, "clustering-server"), view(whole, "colluding-users")
    assert set(server.distances(2)[1]) == {"distances"}
    asked, found = server.distances(0)
    assert (asked, set(found)) == ([], {"scatter", "class_counts"})
    assert sorted(k for group in server.sums(2)[0] for k in group) == list(range(USERS))
    held = users.shares(2)
    assert {name: len(shares) for name, shares in held.items()} == {"prompts": 2, "gradients": 2}
    assert (held["prompts"] == whole.held_shares(2)["prompts"][[8, 9]]).all()
    for call, *given in ((server.shares, 2), (server.upload, 2, 0), (users.sums, 2), (users.distances, 2)):
        with pytest.raises(LacksCapability):
            call(*given)
    for name in {*THREAT_MODELS} - {"owner"}:
        with pytest.raises(LacksCapability, match="private states"):
            view(whole, name).private(0)


def recovered(whole: Transcript, r: int, what: str, sharing: Sharing) -> Floats:
    """What the shares of everybody hold of each user."""
    slices = on_shares.slices_of(View(whole, "colluding-users", users=range(USERS)), r, what, sharing)
    return np.moveaxis(slices, 1, 0).reshape(USERS, -1)


def test_all_shares_together_are_what_was_shared(whole: Transcript) -> None:
    """What the tables of a report take for the truth."""
    found = recovered(whole, 0, "gradients", SMALL.of_sums)[:, :64] / 1e6
    true = np.stack([u.sealed["gradient"].flatten().numpy() for u in first_updates(whole.broadcast(0))])
    np.testing.assert_allclose(found, true, atol=1e-6)


def test_the_tables_of_a_run(whole: Transcript) -> None:
    revealed, sent = on_shares.revealed_table(whole), on_shares.sent_table(whole)
    for r in range(SCHEDULE.rounds):
        about = whole.round(r)
        assert sent[sent["round"] == r][["shares", "masks", "answers"]].to_numpy().sum() == about["bytes_up"]
        assert revealed.distances[r] == USERS * len(about["revealed"].get("groups", []))
    located = on_shares.located_table(whole, SMALL)
    assert located["round"].tolist() == [1, 2, 3, 4]
    assert (located["rank"].diff().dropna() >= 0).all()
    colluding = on_shares.colluding_table(whole, SMALL)
    for _, table in colluding.groupby("what"):
        assert (table.right.iloc[0], table.error.iloc[0]) == (0, 1)
        assert table.equations.tolist() == list(range(len(table)))
        if table.colluders.max() == 2 + table.slices.max():
            assert table.right.tolist()[-1] == 1


def test_a_distance_is_that_of_the_vectors_whose_length_stands_beside_it(whole: Transcript) -> None:
    points, d = on_shares._points(whole, SMALL)
    assert set(points.inside) == {True, False}
    assert not points.duplicated(["round", "client", "inside"]).any()
    for (r, g), own in points.groupby(["round", "centre"]):
        vectors = recovered(whole, r, "prompts", SMALL.of_distances)[:, :d] / SMALL.steps
        group = whole.distance_groups(r)[g]
        apart = np.square(vectors - vectors[group].mean(axis=0)).sum(axis=1)
        np.testing.assert_allclose(own.distance, apart[own.client], rtol=1e-6)
        np.testing.assert_allclose(own.length, np.square(vectors[own.client]).sum(axis=1))
        assert set(own[own.inside].client) <= set(group)
        assert set(own[~own.inside].client).isdisjoint(group)
        assert (own["size"] == len(group)).all()


@pytest.mark.parametrize(("exchanged", "moves"), [(False, True), (False, False), (True, True)])
def test_independent_prompts_hold_what_the_theorem_says(exchanged: bool, moves: bool, monkeypatch: Any) -> None:
    """60 users in two groups, which walk away from 0, drawn anew in every round or once for all; exchanged they hold
    nothing."""
    n, d, rows = 60, 8, []
    protocol = dataclasses.replace(PROTOCOL, users=n)
    for r in range(2):
        prompts = (1 + r) * rng(r * moves).normal(size=(n, d))
        order = np.concatenate([rng(r + 3000).permutation(30), 30 + rng(r + 4000).permutation(30)])
        for g in (0, 1):
            group = range(30 * g, 30 * (g + 1))
            apart = np.square(prompts - prompts[group].mean(axis=0)).sum(axis=1)[order if exchanged else slice(None)]
            rows += [(r, g, k in group, 30, k, np.square(prompts[k]).sum(), apart[k]) for k in range(n)]
    made_up = pd.DataFrame(rows, columns=["round", "centre", "inside", "size", "client", "length", "distance"])
    monkeypatch.setattr(on_shares, "_points", lambda *_: (made_up, d))
    found = on_shares.information_table(None, protocol)
    assert found.centre.tolist() == ["own", "other"]
    for row in found.itertuples():
        assert (row.points, row.users, row.d) == (120, 30, d)
        assert row.low - 0.2 <= (0 if exchanged else row.theory) <= row.high + 0.3
        assert (row.p > 0.01) == exchanged
        assert row.null_low < 0 < row.null_high < 0.3


def test_a_run_without_masks_is_the_same_and_shows_slices(whole: Transcript, tmp_path: Path) -> None:
    bare = run(tmp_path, secfpp(masks=False), federation(SIZES), SCHEDULE)
    for r in range(SCHEDULE.rounds):
        torch.testing.assert_close(bare.broadcast(r + 1), whole.broadcast(r + 1), atol=0, rtol=0)
        assert ("polynomials" in bare.revealed(r)) == (r >= 1)
    assert on_shares.located_table(bare, SMALL).slices_error.notna().all()
    assert on_shares.located_table(whole, SMALL).slices_error.isna().all()


def test_a_run_that_was_cut_off_ends_with_the_same_files(whole: Transcript, tmp_path: Path) -> None:
    """Shares, masks and halves are drawn by round: the same bytes, what parties hold of each other included."""
    run(tmp_path, secfpp(), federation(SIZES), SCHEDULE, until=3)
    (tmp_path / "round-002.safetensors").unlink()  # as a kill before it was whole leaves it
    run(tmp_path, secfpp(), federation(SIZES), SCHEDULE)
    for path in sorted(Path(whole.folder.path).glob("round-*")):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_what_colluders_hold_is_read_at_their_clusters_place(whole: Transcript) -> None:
    """The attacked prompt of who sees broadcasts is the global one of the target's cluster, with the public p_L."""
    last = whole.broadcast(SCHEDULE.rounds)
    for k in range(USERS):
        found = whole.model(whole.broadcast(0) | last | secfpp().messages.model_selector(k))["prompt"]
        expected = last["p_G"][last["cluster"][k]] + whole.broadcast(0)["p_L"]
        assert torch.equal(found, expected)


@pytest.mark.slow  # simulated federations compute on shares; quick: every part of it, above
def test_shadow_federations_attack_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the whole pipeline; without --shadow-kind federations it is refused."""
    words = "--method secfpp --clients 8 --colluders 2 --together 1 --train 4 --test 1 --rounds 3 --shadows 4"
    more = ["--targets", "1", "--attack", "loss,lira,cosine", "--threads", "1", "--quiet", "--out", str(tmp_path)]
    common = [*words.split(), *more]
    assert cli.main(common) == 2
    assert "no client of secfpp can be trained alone; take --shadow-kind federations" in capsys.readouterr().err
    assert cli.main([*common, "--shadow-kind", "federations"]) == 0
    (findings,) = (json.loads(path.read_text()) for path in tmp_path.glob("reports/*/findings.json"))
    by_view = {f["threat_model"] for f in findings if f["metric"] == "auroc" and f["attack"] == "lira"}
    assert by_view == {"prompt-user", "released-model", "clustering-server", "colluding-users", "owner"}
    (page,) = tmp_path.glob("reports/*/index.html")
    assert "What was revealed" in page.read_text()


class Sums:
    """A clustering server's view of one round in which nothing was private but who was a member."""

    def __init__(self, start: State, groups: list[list[int]], means: Tensor) -> None:
        self.public = self._server = start
        self.clients, self.rounds, self._found = range(USERS), 1, (groups, means)

    def gives(self, capability: str) -> bool:
        return capability != "uploads"

    def broadcast(self, r: int) -> State:
        return self._server

    def sums(self, r: int) -> tuple[list[list[int]], Tensor]:
        return self._found


def auroc_of_groups(size: int, leak: bool = True) -> float:
    """Members of the first clients' lists against the others of their candidates, by the solved sums of groups."""
    world, method = federation((12,) * USERS), SecFPP(Params(), settings=SETTINGS)
    learner = world.learner(SETTINGS)
    g = torch.Generator().manual_seed(1)
    start = method.start({name: 0.05 * torch.randn(4, 16, generator=g) for name in ("p_G", "p_L")})
    coins = rng(0 if leak else 1).permuted(np.tile(np.arange(12) < 6, (USERS, 1)), axis=1)
    prompt = method.prompt(start)
    lists = [[*itertools.compress(ids, own)] for ids, own in zip(world.training, coins, strict=True)]
    means = torch.stack([mean_gradient(method, learner, prompt, records) for records in lists])
    groups = [list(range(i, i + size)) for i in range(0, USERS, size)]
    seen = Sums(start, groups, torch.stack([means[group].mean(0) for group in groups]))
    messages = ReplayedMessages(seen, method, learner, world.training)
    truth = coins if leak else rng(5).permuted(coins, axis=1)
    mixtures = [solved(messages, k, world.training[k], [0], 12, True) for k in range(USERS)]
    shares = [np.nan_to_num(solve(mixture).shares) for (mixture,) in mixtures]
    return float(np.mean([roc_auc_score(*pair) for pair in zip(truth, shares, strict=True)]))


@pytest.mark.usefixtures("unsafe_but_quick")
def test_a_single_gradient_names_its_batch_and_sums_hide_it() -> None:
    """A group of one names every member, one of two nearly all; the larger the group, the less."""
    alone, two, five = (auroc_of_groups(size) for size in (1, 2, 5))
    assert alone > 0.99
    assert alone > two > five > 0.5
    assert abs(auroc_of_groups(1, leak=False) - 0.5) < 0.15, "coins that nothing was trained by"
