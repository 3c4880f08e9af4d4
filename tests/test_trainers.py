"""The round loop and the methods, against hand calculations on the toy learner."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from fedaudit.machinery.errors import InputError
from fedaudit.trainers import fedavg
from fedaudit.trainers.base import Participation, Schedule, Site, Upload, generator, size, weighted_mean
from fedaudit.trainers.fedrand import FedRand, Params
from tests.toy import A, B, ToyLearner, state, toy_run
from tests.whole_runs import contents

SITE = Site(seed=0, round=0)
SCHEDULE = Schedule(rounds=6, clients=5, per_round=2, seed=3)


def upload(client: int, records: int, **tensors: float) -> Upload:
    shapes = {"a": (A, (1, 2)), "b": (B, (2, 1))}
    sent = {shapes[k][0]: torch.full(shapes[k][1], v) for k, v in tensors.items()}
    return Upload(client, records, sent, {"half": "A" if "a" in tensors else "B"})


def values(s) -> tuple[float, float]:
    assert torch.equal(s[A], s[A][0, 0].expand_as(s[A]))
    assert torch.equal(s[B], s[B][0, 0].expand_as(s[B]))
    return float(s[A][0, 0]), float(s[B][0, 0])


@pytest.mark.parametrize(
    ("params", "uploads", "expected"),
    [
        # A from clients 0 and 1: alpha = 0.4, (10/40) * 1 + (30/40) * 2 = 1.75. B from client 2 alone: 9
        ({}, [upload(0, 10, a=1.0), upload(1, 30, a=2.0), upload(2, 60, b=9.0)], (1.75, 9.0)),
        # nobody sends B: 0.1 * 1 + 0.3 * 2 + 0.6 * 4 = 3.1, and B stays as it was
        ({}, [upload(0, 10, a=1.0), upload(1, 30, a=2.0), upload(2, 60, a=4.0)], (3.1, 7.0)),
        # coefficients n_k / m as they are: A = 0.1 * 1 + 0.3 * 2 = 0.7, B = 0.6 * 9 = 5.4
        ({"normalise": False}, [upload(0, 10, a=1.0), upload(1, 30, a=2.0), upload(2, 60, b=9.0)], (0.7, 5.4)),
        ({}, [upload(0, 3, b=2.0)], (5.0, 2.0)),  # one client
    ],
)
def test_fedrands_aggregation_by_hand(params, uploads, expected):
    """The server has A = 5 and B = 7."""
    found = FedRand(Params(**params)).aggregate(state(5, 7), uploads, SITE)
    assert values(found) == pytest.approx(expected, abs=1e-6)


def updated(r=0, **params):
    """Of client 1, which adds (1, 2) to what it starts from."""
    client = Participation(1, r, 0, ["x", "y"], ToyLearner())
    return FedRand(Params(**params)).update(state(10, 20), state(1, 2), client)


@pytest.mark.parametrize(
    ("params", "private", "sent"),
    [
        ({"rho": 1.0}, (11.0, 4.0), A),  # always A: it starts from the server's A and its own B, (10, 2)
        ({"rho": 0.0}, (2.0, 22.0), B),  # always B: from the server's B and its own A
        ({"rho": 1.0, "past": False}, (11.0, 22.0), A),  # from the server
    ],
)
def test_fedrands_update_by_hand(params, private, sent):
    update = updated(**params)
    assert values(update.private) == private
    assert update.upload.keys() == {sent}
    assert update.facts == {"half": "A" if sent == A else "B"}


def test_fedrands_coin_is_fair_and_fixed_by_seed_client_and_round():
    halves, again = ([updated(r, rho=0.3).facts["half"] for r in range(1000)] for _ in range(2))
    assert halves == again
    assert abs(halves.count("A") - 300) < 4 * 14.5  # 4 standard deviations


def test_fedavg_by_hand(tmp_path):
    """One round, both of two clients (1 and 2 records): every client adds (1, 2), so the average does too."""
    run = toy_run(tmp_path, fedavg.FedAvg(fedavg.Params()), schedule=Schedule(rounds=1, clients=2, per_round=2))
    before, after = values(run.broadcast(0)), values(run.broadcast(1))
    assert after == pytest.approx((before[0] + 1, before[1] + 2))
    assert values(weighted_mean([state(1, 2), state(4, 8)], [1 / 3, 2 / 3])) == pytest.approx((3.0, 6.0))
    learner = ToyLearner()
    fedavg.FedAvg(fedavg.Params()).update(state(0, 0), state(0, 0), Participation(2, 0, 0, ["2-0", "2-1"], learner))
    assert learner.trained[0][1] == ("2-0", "2-1"), "its own records only"


def test_own_half_comes_from_the_last_participation_and_first_from_the_public_start(tmp_path):
    """With rho = 1 a client's B is never sent: after p participations it is 2p, whatever the rounds between."""
    run = toy_run(tmp_path, FedRand(Params(rho=1.0)), schedule=dataclasses.replace(SCHEDULE, rounds=9))
    assert any(run.participations(client)[0] >= 2 for client in range(5)), "somebody is new in a later round"
    for client in range(5):
        for p, r in enumerate(run.participations(client), 1):
            assert values(run.private(r, client)) == pytest.approx((values(run.broadcast(r))[0] + 1, 2 * p))


def test_transcript_holds_what_was_sent_and_what_was_not(tmp_path):
    run = toy_run(tmp_path, FedRand(Params()), schedule=SCHEDULE, noise=0.1)
    for r in range(6):
        about, cohort = run.round(r), run.cohort(r)
        assert len(cohort) == 2
        assert about["cohort"] == sorted(cohort)
        assert (about["bytes_down"], about["bytes_up"]) == (2 * size(run.broadcast(r)), 2 * 8)
        received = []
        for client in cohort:
            sent, (n, facts) = run.upload(r, client), (about["uploads"][str(client)][x] for x in ("records", "facts"))
            received.append(Upload(client, n, sent, facts))
            own = run.private(r, client)
            assert (own.keys(), sent.keys()) == ({A, B}, {A if facts["half"] == "A" else B})
            assert all(torch.equal(own[name], tensor) for name, tensor in sent.items())
        again = FedRand(Params()).aggregate(run.broadcast(r), received, SITE)
        torch.testing.assert_close(again, run.broadcast(r + 1), rtol=0, atol=0)


def test_generators_are_independent_streams_and_paths_that_zeros_would_make_one_are_refused():
    paths = [("client", k, r, p) for k in range(4) for r in range(4) for p in ("coin", "batches")]
    draws, again = ([generator(0, *path).initial_seed() for path in paths] for _ in range(2))
    assert draws == again
    assert len({*draws}) == len(paths)
    one = generator(0, "padded", 3).initial_seed()
    for path in (("padded",), ("padded", 3, 0), ("padded", 0, 0)):
        with pytest.raises(ValueError, match="zeros fill them up"):
            generator(0, *path)
    assert generator(0, "padded", 3).initial_seed() == one != generator(0, "padded", 0).initial_seed()


def test_cohorts_are_uniform():
    """Over 600 rounds each of 6 clients takes part in half of them, within 4 standard deviations."""
    cohorts = [torch.randperm(6, generator=generator(0, "cohort", r))[:3] for r in range(600)]
    assert (abs(torch.cat(cohorts).bincount(minlength=6) - 300) < 4 * 12.3).all()


def halved(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HARMS = {
    "the folder deleted": ("", shutil.rmtree, r"is not there: manifest\.json does not list it"),
    "the manifest damaged": ("manifest.json", halved, r"is not there: manifest\.json does not list it"),
    "the start damaged": ("initial.safetensors", halved, r"initial\.safetensors is damaged \(its SHA-256"),
    "the start deleted": ("initial.safetensors", Path.unlink, r"initial\.safetensors is missing"),
    "a round damaged": ("round-000.safetensors", halved, r"round-000\.safetensors is damaged \(its SHA-256"),
}
LAST = SCHEDULE.rounds - 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    toy_run(folder, fedavg.FedAvg(fedavg.Params()), schedule=SCHEDULE)
    return contents(folder)


@pytest.mark.parametrize(
    ("harm", "at"), [*((harm, 1) for harm in HARMS), ("the folder deleted", LAST), ("the manifest damaged", LAST)]
)
def test_what_is_damaged_or_deleted_meanwhile_is_named(harm, at, whole, tmp_path):
    """What is left of the other files in the last round is not read again here; it is still listed, and so whoever reads it knows."""
    file, change, words = HARMS[harm]

    class Harms(fedavg.FedAvg):
        def aggregate(self, server, uploads, site):
            if site.round == at:
                change(tmp_path / "run" / file)
            return super().aggregate(server, uploads, site)

    with pytest.raises(InputError, match=words) as refused:
        toy_run(tmp_path / "run", Harms(fedavg.Params()), schedule=SCHEDULE)
    assert f"keep the folder {tmp_path / 'run'} as it is while it is worked on" in str(refused.value)
    assert str(refused.value).endswith("run the same command again, which computes again what is lost")
    toy_run(tmp_path / "run", fedavg.FedAvg(fedavg.Params()), schedule=SCHEDULE)
    assert contents(tmp_path / "run") == whole
