"""The server's decomposition of messages: against all batches and all active sets of tiny problems, and on the messages of every method, of which the
true shares must be a solution."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.attacks import decompose
from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.knowledge import Floats, Mixture
from fedaudit.attacks.messages.mixtures import _epoch_shares
from fedaudit.attacks.messages.prompts import ReplayedMessages, solved_rounds
from fedaudit.contracts.in_process import message_answers
from fedaudit.contracts.knowledge_toy import toy_seen
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Participation, Schedule
from fedaudit.trainers.prompts import PromptMethod, Settings
from fedaudit.trainers.transcript import Transcript
from tests.asking_toy import solved
from tests.prompt_toy import METHODS, NONE, PRIVACY, SETTINGS, Federation, federation, made, run, with_noise

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
INF = math.inf


def some(gradients: Floats, sent: Floats, **more: Any) -> Mixture:
    """A message of one step whose batch is divided by 1, and its records' shares sum to as many."""
    usual: dict[str, Any] = {
        "round": 0, "numbers": len(sent), "divisor": 1.0, "low": 0.0, "high": 1.0, "total": 1.0, "known": "equal", "scaled": False,
        "std": 0.0, "lengths": np.linalg.norm(gradients, axis=0), "coefficients": np.ones(1),
    }  # fmt: skip
    return Mixture(gradients=gradients, sent=sent, **(usual | more))


def best_batch(gradients: Floats, sent: Floats, size: int) -> set[int]:
    """Of all batches of that size the one whose sum is nearest to what was sent."""
    batches = itertools.combinations(range(gradients.shape[1]), size)
    return set(min(batches, key=lambda batch: np.linalg.norm(gradients[:, batch].sum(1) - sent)))


def best_shares(rows: Floats, target: Floats, low: float, high: float, total: float | None) -> Floats:
    """Least squares with bounds and a sum, by every active set: each share at a bound or free."""
    n, best = rows.shape[1], (INF, np.zeros(rows.shape[1]))
    for active in itertools.product((low, high, None), repeat=n):
        free = [i for i, at in enumerate(active) if at is None]
        x = np.array([0.0 if at is None else at for at in active])
        if free:
            inner, rest = rows[:, free], target - rows @ x
            system, right = inner.T @ inner, inner.T @ rest
            if total is not None:  # Lagrange
                ones = np.ones((len(free), 1))
                system = np.block([[system, ones], [ones.T, np.zeros((1, 1))]])
                right = np.append(right, total - x.sum())
            x[free] = np.linalg.lstsq(system, right, rcond=None)[0][: len(free)]
        inside = (x >= low - 1e-9).all() and (x <= high + 1e-9).all()
        if inside and (total is None or abs(x.sum() - total) < 1e-9):
            best = min(best, (float(np.linalg.norm(rows @ x - target)), x), key=lambda pair: pair[0])
    return best[1]


@pytest.mark.parametrize("seed", range(10))
def test_the_named_batch_is_the_best_of_all(seed: int) -> None:
    """Of 12 records, with noise that leaves no doubt."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    gradients, batch = rng.standard_normal((30, 12)), rng.permutation(12)[:size]
    sent = gradients[:, batch].sum(1) + 0.05 * rng.standard_normal(30)
    shares = solve(some(gradients, sent, total=float(size))).shares
    assert set(np.argsort(-shares)[:size]) == best_batch(gradients, sent, size) == set(batch)
    assert np.abs(shares - np.isin(range(12), batch)).max() < 0.2


@pytest.mark.parametrize("known", ["equal", "at most", "on average"])
@pytest.mark.parametrize("std", [0.0, 0.7])
def test_shares_are_the_best_within_their_bounds(known: str, std: float) -> None:
    """Four records and a message that none of their mixtures is: all active sets. `std`: known noise draws shares to what chance gives."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        gradients, sent, total = rng.standard_normal((9, 4)), 3 * rng.standard_normal(9), 1.5
        low, high = -0.5, 2.0
        mixture = some(gradients, sent, low=low, high=high, total=total, known=known, std=std, divisor=2.0)
        found, _ = decompose._fit_shares(mixture, gradients / 2, np.ones(4, int), std)
        chance = total / 4
        pull = std / math.sqrt(chance * (high - chance)) * np.eye(4)
        rows, target = np.vstack([gradients / 2, pull]), np.concatenate([sent, pull @ np.full(4, chance)])
        free = best_shares(rows, target, low, high, None)
        expected = {"equal": best_shares(rows, target, low, high, total), "on average": free}
        expected["at most"] = free if total - free.sum() >= 0 else expected["equal"]
        np.testing.assert_allclose(found, expected[known], atol=1e-4)


@pytest.mark.parametrize(("turn", "shares"), [(0, (0, 1)), (1, (0, 2))])
def test_a_record_is_in_one_step_of_an_epoch(turn: int, shares: tuple[int, int]) -> None:
    """Two steps a round, three an epoch: the first round's are of one epoch, the second's of two."""
    assert _epoch_shares(np.ones(2), turn, 24, 8) == shares


def test_noise_that_nobody_states_is_estimated() -> None:
    """Of 20 messages with noise of 2 that `std` = 0 hides: shares are drawn to what chance gives, and nearer to the truth."""
    rng, ridge, bounded = np.random.default_rng(5), 0.0, 0.0
    truth = np.arange(12) < 3
    for _ in range(20):
        gradients = rng.standard_normal((12, 12))
        mixture = some(gradients, gradients @ truth + 2 * rng.standard_normal(12), total=3.0, known="on average")
        free, _ = decompose._fit_shares(mixture, gradients, np.ones(12, int), 0.0)
        ridge += float(((solve(mixture).shares - truth) ** 2).sum())
        bounded += float(((free - truth) ** 2).sum())
    assert ridge < 0.8 * bounded


def test_a_message_that_was_shortened_is_as_good() -> None:
    """A clipped batch: its mean times an unknown factor below 1."""
    gradients = np.random.default_rng(0).standard_normal((30, 12))
    sent = 0.2 * gradients[:, :3].sum(1)
    truth = np.arange(12) < 3
    np.testing.assert_allclose(solve(some(gradients, sent, total=3.0, scaled=True)).shares, truth, atol=1e-6)
    assert np.abs(solve(some(gradients, sent, total=3.0)).shares - truth).max() > 0.2


def test_residual_and_singular_value_by_hand() -> None:
    """Gradients 3 and 4 along two axes, the batch the first record, and 0.3 more that no record explains."""
    found = solve(some(np.array([[3.0, 0], [0, 4.0], [0, 0]]), np.array([3.0, 0, 0.3])))
    assert found.least == pytest.approx(3)
    assert found.residual == pytest.approx(0.3 / math.sqrt(9.09), rel=0.05)
    assert found.error == pytest.approx(0.1, rel=0.05)
    assert found.weight == pytest.approx(1 / 1.1, rel=0.01)


def test_records_with_equal_gradients_share_their_weight() -> None:
    gradients = np.random.default_rng(1).standard_normal((20, 6))
    twins = np.column_stack([gradients, gradients[:, :2], gradients[:, :1] * (1 + 1e-7)])
    found = solve(some(twins, gradients[:, [0, 1, 2]].sum(1), total=3.0))
    np.testing.assert_allclose(found.shares, [1 / 3, 1 / 2, 1, 0, 0, 0, 1 / 3, 1 / 2, 1 / 3], atol=1e-6)
    assert found.weight == pytest.approx(1, abs=1e-6)  # equal ones leave no doubt about the others
    both = solve(some(twins, twins[:, [0, 6, 2]].sum(1), total=3.0))  # two of the three
    np.testing.assert_allclose(both.shares, [2 / 3, 0, 1, 0, 0, 0, 2 / 3, 0, 2 / 3], atol=1e-6)


def test_of_a_record_without_gradient_nothing_is_said() -> None:
    gradients = np.column_stack([np.eye(3), np.zeros(3), 1e-9 * np.ones(3)])
    np.testing.assert_allclose(solve(some(gradients, np.eye(3)[0])).shares, [1, 0, 0, np.nan, np.nan], atol=1e-9)
    assert np.isnan(solve(some(np.zeros((3, 2)), np.ones(3))).shares).all()
    assert solve(some(np.eye(3), np.zeros(3))).shares.tolist() == [0, 0, 0]  # an empty batch


def test_noise_makes_it_careful() -> None:
    """With noise as large as the signal the mean squared error is less where its size is known; half the records are in no batch."""
    rng, errors = np.random.default_rng(0), {0.0: 0.0, 1.0: 0.0}
    for _ in range(20):
        gradients = rng.standard_normal((60, 40)) @ np.diag(np.geomspace(0.1, 1, 40))
        truth = np.isin(range(40), rng.permutation(40)[:8])
        sent = gradients @ truth + rng.standard_normal(60)
        for std in errors:
            mixture = some(gradients, sent, total=8.0, std=std, numbers=60)
            shares, _ = decompose._fit_shares(mixture, gradients, np.ones(40, int), std)
            errors[std] += float(((shares - truth) ** 2).mean())
    assert errors[1.0] < 0.9 * errors[0.0]


def test_scores_add_up_over_rounds_and_other_clients_have_none() -> None:
    """Two messages: the second is explained by half only, and counts for less; the last record could not be the client's."""
    seen, _ = toy_seen(leak=1.0, records=8, known=2)
    first = some(np.eye(9)[:, :7], np.eye(9)[0])
    second = some(np.eye(9)[:, :7], np.eye(9)[1] + np.eye(9)[8])

    def score(*mixtures: Mixture) -> Floats:
        rounds = dataclasses.replace(seen.rounds, mixtures=mixtures)
        return decompose.Decompose(decompose.Params()).score(dataclasses.replace(seen, rounds=rounds))["decompose"]

    found = score(first, second)
    one, other = solve(first), solve(second)
    assert one.weight > 0.99
    assert other.weight < 0.6
    np.testing.assert_allclose(found[:7], one.shares + other.shares * other.weight)
    assert np.isnan(found[7])
    assert np.isnan(score()).all()


# --- real messages --------------------------------------------------------------------------------------------------

UNSEEN = ("local", "secfpp")  # of which the server sees nothing
SENDING = [name for name, plugin in METHODS.items() if plugin.facts.trains and name not in UNSEEN]
SLOW = dataclasses.replace(SETTINGS, global_rate=1e-4, local_rate=1e-4)
STEPS = {
    "1 step": SETTINGS,
    "3 steps": dataclasses.replace(SLOW, local_steps=3),
    "3 steps, momentum": dataclasses.replace(SLOW, local_steps=3, momentum=0.6),
    "2 epochs": dataclasses.replace(SLOW, local_epochs=2),
}
PARAMS: dict[str, dict[str, Any]] = {
    "dpfpl": {"rank": 2}, "fedpgp": {"rank": 2}, "fedprox": {"mu": 2000.0}, "pfedme": {"inner": 3, "envelope": 12000.0},
}  # fmt: skip


def sent(
    path: Path, name: str, settings: Settings, privacy: Privacy, *, world: Federation, std: float = 0.0, rounds: int = 1
) -> tuple[PromptMethod, Transcript]:
    """A run of three clients whose records have the noise `std`."""
    schedule = Schedule(rounds=rounds, clients=3, per_round=3, seed=1)
    if name == "pfedme":  # whose rounds are of several inner steps
        settings = dataclasses.replace(settings, global_rate=1e-4, local_rate=1e-4)
    method = made(name, PARAMS.get(name, {}), NONE, schedule, settings)
    if privacy != NONE:
        method = with_noise(method, privacy, dict.fromkeys((*method.local, *method.shared), std))
    return method, run(path, method, world, schedule)


def mixtures(method: PromptMethod, transcript: Transcript, world: Federation, client: int) -> tuple[Mixture, ...]:
    """Of a client's messages: its own records first, then others'."""
    own = world.training[client]
    asked = [*own, *world.test[:6]]
    messages = ReplayedMessages(View(transcript, "server"), method, world.learner(method.settings))
    turns = transcript.participations(client)
    return tuple(solved(messages, client, asked, turns, len(asked), not world.left_out))


def told(
    path: Path, name: str, settings: Settings, privacy: Privacy, *, world: Federation, std: float = 0.0, rounds: int = 1
) -> Iterator[tuple[int, int, Mixture, Floats]]:
    """(Client, round, message, the true shares of the records asked about) of a run."""
    method, transcript = sent(path, name, settings, privacy, world=world, std=std, rounds=rounds)
    for client, listed in enumerate(world.training):
        for r, mixture in enumerate(mixtures(method, transcript, world, client)):
            working = Participation(client, r, 1, listed, None, range(r), world.left_out)
            shares = np.zeros(mixture.gradients.shape[1])
            for step, count in enumerate(method.messages.step_coefficients(method.steps(len(listed)))):
                held, own_mean = method.minibatch(working, step), not method.protection.per_record
                divided = min(method.settings.batch, len(listed)) / len(held) if own_mean and held else 1
                for record in set(held) - world.left_out:
                    shares[listed.index(record)] += count * divided
            yield client, r, mixture, shares


CASES = [  # quick: every kind of noise, and every method, over every kind of rounds; all three together are slow
    pytest.param(name, steps, kind, marks=() if steps != "3 steps" and (i - k) % min(6, len(kinds)) == 0 else pytest.mark.slow)
    for i, name in enumerate(SENDING)
    for steps in STEPS
    # of more than a step, where a batch is clipped as a whole, each has a factor of its own
    for kinds in [(*PRIVACY,) if steps == "1 step" and name != "pfedme" else ("none", "record", "poisson")]
    for k, kind in enumerate(kinds)
]  # fmt: skip


@pytest.mark.parametrize(("name", "steps", "kind"), CASES)
def test_the_truth_is_a_solution(tmp_path: Path, name: str, steps: str, kind: str) -> None:
    """Noise-free messages of every method are their mixtures: at the start of one step exactly, after small steps to first order."""
    privacy = PRIVACY[kind]
    for client, _, mixture, shares in told(tmp_path, name, STEPS[steps], privacy, world=federation()):
        explained = mixture.gradients @ shares / mixture.divisor
        if mixture.scaled:
            assert np.linalg.norm(mixture.sent) == pytest.approx(privacy.clip_norm, rel=1e-3)
            explained *= np.linalg.norm(mixture.sent) / np.linalg.norm(explained)
        else:
            assert "batch" not in kind or np.linalg.norm(mixture.sent) < privacy.clip_norm
        exact = steps == "1 step" and name != "pfedme"
        off = np.linalg.norm(explained - mixture.sent) / max(np.linalg.norm(mixture.sent), 1e-9)
        assert off < (2e-4 if exact else 0.05), (client, off)
        assert (shares >= mixture.low - 1e-9).all()
        assert (shares <= mixture.high + 1e-9).all()
        if mixture.known == "equal" and shares.any():
            assert shares.sum() == pytest.approx(mixture.total)


@pytest.mark.parametrize("name", SENDING)
def test_records_of_weight_zero_are_no_part_of_the_message(tmp_path: Path, name: str) -> None:
    world = dataclasses.replace(federation(), left_out=frozenset({"0-1", "0-2", "0-7", "1-0", "1-5", "2-0"}))
    for _, _, mixture, shares in told(tmp_path, name, SETTINGS, PRIVACY["record"], world=world):
        assert mixture.known == ("on average" if mixture.low < 0 else "at most")  # others may have less than nothing
        assert shares.sum() <= mixture.total or mixture.low < 0
        if name != "pfedme":
            off = np.linalg.norm(mixture.gradients @ shares / mixture.divisor - mixture.sent)
            assert off < 2e-4 * np.linalg.norm(mixture.sent)


@pytest.mark.parametrize("settings", [SETTINGS, STEPS["3 steps, momentum"]], ids=["1 step", "3 steps"])
def test_the_clients_noise_is_as_large_as_said(tmp_path: Path, settings: Settings) -> None:
    """What the truth leaves of a message of 64 numbers has the length of so much noise, over three clients; the server's noise is in none."""
    for name, noised in (("promptfl", True), ("fedotp", settings.several)):
        left = said = 0.0
        noisy = told(tmp_path / name, name, settings, PRIVACY["record"], world=federation(), std=0.5)
        for _, _, mixture, shares in noisy:
            left += float(np.linalg.norm(mixture.gradients @ shares / mixture.divisor - mixture.sent)) ** 2
            said += mixture.numbers * mixture.std**2
        assert (said > 0) == noised
        assert math.sqrt(left) == pytest.approx(math.sqrt(said), rel=0.3, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "rounds", "kind"),
    [
        pytest.param(name, rounds, kind, marks=() if (i + j) % 4 == 0 else pytest.mark.slow)  # quick: each of both once
        for i, (name, rounds) in enumerate([("dpfpl", 1), ("fedotp", 3), ("promptfl", 3), ("fedpgp", 3)])
        for j, kind in enumerate(["none", "record", "batch", "poisson", "poisson, none"])
    ],
)
def test_whole_batches_are_named(tmp_path: Path, name: str, rounds: int, kind: str) -> None:
    """DP-FPL's first message at any noise of the server, others as long as the replay is exact."""
    if kind != "none" and name in ("fedotp", "fedpgp"):
        rounds = 1  # clipped: the client's own part moves by less than the replay thinks
    for client, r, mixture, shares in told(tmp_path, name, SETTINGS, PRIVACY[kind], world=federation(), rounds=rounds):
        found = solve(mixture)
        first = np.argsort(-np.nan_to_num(found.shares), kind="stable")[: (shares > 0).sum()]
        assert {*first} == {*np.flatnonzero(shares)}, (client, r, found.residual)
        assert found.residual < 1e-4


def test_where_the_replay_breaks_down_the_residual_says_so(tmp_path: Path) -> None:
    """DP-FPL's random factors are its client's own: from the second message on the server is at another prompt."""
    world = federation()
    method, transcript = sent(tmp_path, "dpfpl", SETTINGS, NONE, world=world, rounds=3)
    first, *later = (solve(mixture) for mixture in mixtures(method, transcript, world, 0))
    assert first.weight > 0.9
    assert all(one.residual > 100 * first.residual and one.weight < 0.5 * first.weight for one in later)


def test_the_first_messages_of_a_client_are_those_of_two_epochs(tmp_path: Path) -> None:
    """Ten records in batches of four: two steps are an epoch, so four rounds; of three records every round is one."""
    world = federation()
    method, transcript = sent(tmp_path, "fedotp", SETTINGS, NONE, world=world, rounds=6)
    messages = ReplayedMessages(View(transcript, "server"), method, world.learner())
    for client, rounds in ((0, [0, 1, 2, 3]), (2, [0, 1])):
        assert solved_rounds(messages.view, method, client, world.training, 0) == rounds
        assert solved_rounds(messages.view, method, client, world.training, 1) == rounds[:1]
        alone = solved(messages, client, world.ids[:5], rounds, 3, complete=False)
        assert [mixture.round for mixture in alone] == rounds
        assert {mixture.gradients.shape[1] for mixture in alone} == {3}
        both = messages.round(client, 0, world.ids[:5], ("heard", "solved"), 3, False)
        plain = messages.round(client, 0, world.ids[:5], ("heard",), 3, False)
        assert {name for name in both if name.startswith("heard/")} == plain.keys()
        for name, array in (plain | {f"solved/{name}": array for name, array in alone[0].arrays().items()}).items():
            np.testing.assert_array_equal(both[name], array)


def test_pfedme_starts_every_round_at_what_was_sent(tmp_path: Path) -> None:
    """Its theta of the round before is no part of a gradient in the second round."""
    world = federation()
    method, transcript = sent(tmp_path, "pfedme", SETTINGS, NONE, world=world, rounds=2)
    messages = ReplayedMessages(View(transcript, "server"), method, world.learner())
    assert np.isfinite(message_answers(messages, 0, world.training[0][:3], [0, 1]).cosine).all()
    assert torch.equal(messages.exchanges[1].server["p_G"][0], transcript.broadcast(1)["p_G"])
