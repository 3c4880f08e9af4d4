"""SecFPP as it runs: shares change nothing but by rounding, no file holds what nobody may see, drills end as if nothing had happened."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.command.cli import read_command
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.notes import cautions
from fedaudit.privacy.secpc import Meeting
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Schedule, Update
from fedaudit.trainers.prompts import Cohort, Settings
from fedaudit.trainers.secfpp import Params, SecFPP, _inverse_root, _measured
from fedaudit.trainers.transcript import Transcript
from tests.prompt_oracle import SecFPP as SlowSecFPP
from tests.prompt_toy import METHODS, NONE, federation, made, run
from tests.prompt_toy import close as prompt_close
from tests.test_secpc import plain_distances

USERS, ROUNDS = 10, 5
SCHEDULE = Schedule(rounds=ROUNDS, clients=USERS, per_round=USERS, seed=1)
SETTINGS = Settings(prompt_length=4, batch=4, global_rate=0.1, local_rate=0.06)
SIZES = (6, 5, 4, 6, 5, 4, 6, 5, 4, 6)

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def secfpp(**params: Any) -> SecFPP:
    """Two colluders, so that four users make a cluster; split as soon as halves differ at all."""
    usual = {"colluders": 2, "absent": 2, "wrong": 1, "together": 1}
    usual |= {"split_above": 1.1, "merge_below": 0.5, "directions": 8}
    return SecFPP(Params(**(usual | params)), settings=SETTINGS).protected(NONE, SCHEDULE, SIZES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    done = run(tmp_path_factory.mktemp("secfpp"), secfpp(), federation(SIZES), SCHEDULE)
    assert max(len(done.broadcast(r + 1)["p_G"]) for r in range(ROUNDS)) == 2, "else the tests below would say little"
    return done


def first_updates(start: dict[str, Tensor]) -> list[Update]:
    """What the users of `whole` made of its first round."""
    method, world = secfpp(), federation(SIZES)
    learner = world.learner(SETTINGS)
    clients = world.clients(learner, seed=SCHEDULE.seed)
    received = [method.download(start, client) for client in clients]
    return learner.work(method, received, [start] * USERS, clients)


def equal(one: Transcript, other: Transcript, atol: float) -> None:
    for r in range(ROUNDS):
        found, expected = ([run.broadcast(r + 1), *(run.private(r, k) for k in range(USERS))] for run in (one, other))
        torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def test_the_secure_path_is_the_plaintext_path(whole: Transcript, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Meeting, "squared_distances", lambda self, v, groups, **_: plain_distances(v, groups))
    monkeypatch.setattr(Meeting, "sums", lambda self, v, groups, **_: [v[group].sum(0) for group in groups])
    equal(whole, run(tmp_path, secfpp(), federation(SIZES), SCHEDULE), atol=1e-5)


def test_users_who_vanish_or_lie_are_named_and_change_nothing(whole: Transcript, tmp_path: Path) -> None:
    drill = run(tmp_path, secfpp(vanish=2, lie=1), federation(SIZES), SCHEDULE)
    equal(whole, drill, atol=0)
    for r in range(ROUNDS):
        seen, calm = drill.round(r)["revealed"], whole.round(r)["revealed"]
        assert (len(seen["absent"]), len(seen["wrong"])) == (2, 1)
        assert not set(seen["absent"]) & set(seen["wrong"])
        assert (calm["absent"], calm["wrong"]) == ([], [])


def test_what_is_revealed_is_in_the_files_and_nothing_else_is(whole: Transcript) -> None:
    """The server's tensors are public ones, distances, a moment and mean gradients; the rest is the users' own."""
    for r in range(ROUNDS):
        about = whole.round(r)
        assert whole.uploads(r) == {}
        tensors = whole.folder.read_tensors(f"round-{r:03d}.safetensors")
        names = {name for name in tensors if not name.startswith("private/")}
        shown = {"gradients"} | ({"distances"} if r else {"scatter", "class_counts"})
        held = {"gradients"} | ({"prompts"} if r >= 1 else set())
        public = {"p_G", "p_0", "cluster", "half", "looks"} | (set() if r else {"metric"})
        kinds = {"revealed": shown, "held": held, "aggregate": public}
        assert names == {f"{kind}/{n}" for kind, each in kinds.items() for n in each}
        assert {name.split("/")[2] for name in tensors if name.startswith("private/")} == {"p_L", "point", "mark"}
        groups = about["revealed"].get("groups", [])
        assert all(len(group) >= 4 for group in groups)
        assert len(groups) <= USERS // 4
        if r >= 1:
            assert whole.revealed(r)["distances"].shape == (USERS, len(groups))
    secrets = [t.flatten().float() for one in first_updates(whole.broadcast(0)) for t in one.sealed.values()]
    for r in range(ROUNDS):
        for name, tensor in whole.folder.read_tensors(f"round-{r:03d}.safetensors").items():
            seen = tensor.flatten().float()
            assert not any(len(t) == len(seen) and torch.allclose(t, seen, rtol=1e-3) for t in secrets), (r, name)


def test_a_clusters_gradient_is_the_mean_of_its_users(whole: Transcript) -> None:
    updates = first_updates(whole.broadcast(0))
    mean = torch.stack([update.sealed["gradient"] for update in updates]).mean(0)
    seen = whole.revealed(0)["gradients"]
    torch.testing.assert_close(seen, mean[None], atol=2e-6, rtol=0)
    moved = whole.broadcast(0)["p_G"] - SETTINGS.global_rate * seen
    torch.testing.assert_close(whole.broadcast(1)["p_G"], moved)


def test_class_gradients_are_means_of_those_of_single_records() -> None:
    """Of the records that count; of a class without any, 0."""
    world = dataclasses.replace(federation((6, 5)), left_out=frozenset({"0-1", "1-3"}))
    learner, method = world.learner(SETTINGS), secfpp()
    clients, prompt = world.clients(learner), learner.initial(torch.Generator().manual_seed(3))["p_G"]
    found, counts = Cohort(learner, clients, method).class_gradients(prompt)
    for k, client in enumerate(clients):
        for c in range(len(world.classes)):
            own = [r for r in client.records if r not in world.left_out and world.labels[r] == c]
            single = [dataclasses.replace(client, records=(r,)) for r in own]
            each = [Cohort(learner, [one], method).gradient(prompt[None])[0] for one in single]
            expected = torch.stack(each).mean(0) if each else torch.zeros_like(prompt)
            torch.testing.assert_close(found[k, c], expected, atol=1e-5, rtol=1e-4)
            assert counts[k, c] == len(own)


def test_the_metric_shows_a_domain_that_classes_hide() -> None:
    """Users of two domains who hold 10 of 30 classes each: classes move their gradients ten times as far as domains do,
    but in few directions."""
    g = torch.Generator().manual_seed(0)
    users, held, entries = 20, 10, 64
    domain = torch.arange(users) % 2
    classes = torch.zeros(30, entries)
    classes[:, :8] = 10 * torch.randn(30, 8, generator=g)
    noise = 0.3 * torch.randn(users, held, entries, generator=g)
    own = torch.stack([classes[torch.randperm(30, generator=g)[:held]] for _ in range(users)]) + noise
    own[..., 8] += domain[:, None]  # 1 apart
    mean = own.mean(1)
    apart = F.normalize((own - mean[:, None]).flatten(1)).view_as(own)
    metric = _inverse_root(torch.einsum("ncd,nce->de", apart, apart).double())
    seen = _measured(mean, metric.expand(users, -1, -1))

    def told(vectors: torch.Tensor) -> int:
        """Users who are nearer to the mean of the others of their domain."""
        centres = [[vectors[(domain == d) & (torch.arange(users) != i)].mean(0) for d in (0, 1)] for i in range(users)]
        gaps = [[(vectors[i] - centre).norm() for centre in pair] for i, pair in enumerate(centres)]
        return sum(bool(pair[int(domain[i])] < pair[1 - int(domain[i])]) for i, pair in enumerate(gaps))

    assert told(seen) == users
    assert told(F.normalize(mean)) < 15  # a guess is right of 10, of 15 in 2 of 100 cases
    plain = _inverse_root(torch.zeros(3, 3).double())  # without classes to compare
    assert torch.equal(plain, torch.eye(3).double())


@pytest.mark.parametrize("steps", [{"local_epochs": 2}, {"local_steps": 3}], ids=str)
def test_several_steps_are_those_of_the_slow_oracle(tmp_path: Path, steps: dict[str, int]) -> None:
    """Of records of weight 0 too: they count in every mean."""
    world = dataclasses.replace(federation(), left_out=frozenset({"0-1", "0-2", "1-3", "2-0"}))
    schedule, settings = Schedule(rounds=2, clients=3, per_round=3, seed=1), dataclasses.replace(SETTINGS, **steps)
    method = made("secfpp", {}, NONE, schedule, settings)
    slow = SlowSecFPP(world, method.params, settings, NONE, schedule).run()
    fast = run(tmp_path, method, world, schedule)
    for r, (server, own, _) in enumerate(slow):
        prompt_close(fast.broadcast(r + 1)["p_G"], server["p_G"])
        for k in range(3):
            prompt_close(fast.private(r, k)["p_L"], own[k]["p_L"])


def test_bytes_include_the_shares(whole: Transcript) -> None:
    method = secfpp()
    users = method.protocol(USERS, entries=1)
    width, classes, directions = 4 * 16, 5, 8
    residues = sum(users.of_sums.length(n) for n in (width, classes, directions * (directions + 1) // 2))
    about, one_prompt = whole.round(0), width * 4
    assert about["bytes_up"] == 8 * residues * (USERS * USERS + USERS)
    assert about["bytes_down"] == 8 * residues * USERS * USERS + USERS * 2 * one_prompt


def test_every_reduction_runs(tmp_path: Path) -> None:
    for how, more in (("moments", {"moment"}), ("random", set()), ("none", set())):
        schedule = dataclasses.replace(SCHEDULE, rounds=2)
        done = run(tmp_path / how, secfpp(clustered="prompt", reduction=how), federation(SIZES), schedule)
        assert set(done.revealed(1)) - {"basis"} == {"distances", "gradients"} | more


@pytest.mark.parametrize(
    ("params", "schedule", "complaint"),
    [
        ({"colluders": 5}, SCHEDULE, r"--clients 10: too few users for --colluders 5"),
        ({"colluders": 3, "absent": 0, "wrong": 2}, SCHEDULE, r"2 \(ell \+ t - 1\) \+ 1 \+ 2 x 2 \+ 0, that is 11"),
        ({"precision": 1e-9}, SCHEDULE, "a prime above .* less precision"),
        ({}, dataclasses.replace(SCHEDULE, per_round=5), "--per-round 5: all users of SecFPP take part"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(params: Any, schedule: Schedule, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        secfpp(**params).protected(NONE, schedule, SIZES)


@pytest.mark.parametrize(
    "params", [{"merge_below": 3.0}, {"merge_below": 0, "split_above": 2}, {"vanish": 1}, {"lie": 1}], ids=str
)
def test_parameters_that_do_not_go_together_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(params))} must"):
        Params(**params)


def test_it_takes_no_noise() -> None:
    assert METHODS["secfpp"].facts.on_shares
    assert not secfpp().protected(Privacy(epsilon=float("inf")), SCHEDULE, SIZES).protection.private
    assert made("secfpp", {}).protection.stds == {}


def test_domains_whose_users_share_no_class_are_warned_of():
    words = "--method secfpp --clients 20 --domain {} --partition {} --attack none".format
    said = {p: cautions(read_command(words("print+neon", p).split()).plan) for p in ("pathological", "dirichlet")}
    assert "--preset secfpp" in said["pathological"][0]
    assert said["dirichlet"] == cautions(read_command(words("neon", "pathological").split()).plan) == []


@pytest.mark.parametrize(
    ("domain", "clients", "said"),
    [
        ("print+chalk", 20, "print and chalk are much alike"),
        ("neon+chalk", 20, ""),
        ("print+neon", 10, "2 domains are only found among more than 10, not 10"),  # 5 in a half: nobody can change
        ("print+neon", 12, ""),
    ],
)
def test_domains_that_will_not_be_found_are_warned_of(domain: str, clients: int, said: str) -> None:
    words = f"--method secfpp --domain {domain} --clients {clients} --partition dirichlet --attack none"
    found = "".join(cautions(read_command(words.split()).plan))
    assert said in found
    assert bool(said) == bool(found)


def test_what_earlier_looks_told_goes_on_and_is_not_broadcast(tmp_path: Path) -> None:
    """By chance, without thresholds: a run of 5 rounds asks 4 times, and what was told is kept for the next one."""
    done = run(tmp_path, secfpp(split_above=0, merge_below=0), federation(SIZES), SCHEDULE)
    assert [len(done.server(r + 1)["looks"]) for r in range(ROUNDS)] == [0, 1, 2, 3, 4]
    assert "looks" not in done.broadcast(ROUNDS)
