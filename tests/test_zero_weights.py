"""Records of weight 0: in a client's list and batches, counted in every divisor, and without any other influence."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedaudit.audits.epsilon import ledger_of, noise_table
from fedaudit.contracts.method_worlds import WORLDS
from fedaudit.trainers.base import Participation, State, generator
from fedaudit.trainers.lora import Learner
from fedaudit.trainers.prompts import PromptMethod
from tests import prompt_oracle
from tests.prompt_toy import NONE, PRIVACY, SETTINGS, Federation, close, federation, made, run
from tests.test_local_steps import LEFT_OUT, LOCAL, PARAMS, SCHEDULE, TRAINING
from tests.whole_runs import contents

KINDS = ("none", "record", "batch", "poisson")
CASES = [  # every method, and every way to noise, in a quick case; tests/test_local_steps.py has several steps
    pytest.param(name, privacy, marks=() if i % 4 == j else pytest.mark.slow)  # in all ways
    for i, name in enumerate(TRAINING)
    for j, privacy in enumerate(KINDS)
]

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def world(left_out: frozenset[str] = LEFT_OUT) -> Federation:
    """Three clients of 10, 6 and 3 records in batches of 4; the last one's batches are padded."""
    return dataclasses.replace(federation(), left_out=left_out)


def of(name: str, privacy: str, *, local: str = "1 step", **params: Any) -> PromptMethod:
    return made(name, PARAMS.get(name, {}) | params, PRIVACY[privacy], SCHEDULE, LOCAL[local])


@pytest.mark.parametrize(("name", "privacy"), CASES)
def test_training_is_the_slow_oracles_and_the_ledger_that_of_any_coins(tmp_path: Path, name: str, privacy: str) -> None:
    method = of(name, privacy)
    fast = run(tmp_path / "fast", method, world(), SCHEDULE)
    oracle = prompt_oracle.oracle_of(name)(world(), method.params, SETTINGS, PRIVACY[privacy], SCHEDULE)
    prompt_oracle.same(fast, oracle.run())
    other = run(tmp_path / "other", method, world(frozenset({"0-0", "1-1"})), SCHEDULE)
    assert ledger_of(fast, method) == ledger_of(other, method)
    for r in range(SCHEDULE.rounds):
        assert [fast.round(r)["uploads"][str(k)]["records"] for k in range(3)] == [10, 6, 3]


@pytest.mark.parametrize(("name", "privacy"), CASES)
def test_what_they_show_changes_no_bit_of_the_transcript(tmp_path: Path, name: str, privacy: str) -> None:
    """Over two steps; without noise the contract `weighs_nothing` says so of one."""
    here = world()
    rows = [here.ids.index(record) for record in LEFT_OUT]
    features, patches = here.features.clone(), here.patches.clone()
    features[rows], patches[rows] = -features[rows], -patches[rows]
    labels = here.labels | {record: (here.labels[record] + 1) % 5 for record in LEFT_OUT}
    changed = dataclasses.replace(here, features=features, patches=patches, labels=labels)
    method = of(name, privacy, local="2 steps")
    for i, one in enumerate((here, changed)):
        run(tmp_path / str(i), method, one, SCHEDULE)
    assert contents(tmp_path / "0") == contents(tmp_path / "1")


# what an upload or an own part is of the clipped mean gradients, by tensor: leaf and factor
MOVED: dict[str, dict[str, tuple[str, float]]] = {
    "dpfpl": {"gradient": ("p_G", 1)},
    "fedotp": {"gradient": ("p_G", 1), "p_L": ("p_L", -SETTINGS.local_rate)},
    "fedpgp": {"gradient": ("p_G", 1), "u": ("u", -SETTINGS.local_rate), "v": ("v", -SETTINGS.local_rate)},
    "fedprox": {"p_G": ("p_G", -SETTINGS.global_rate)},
    "local": {"p_L": ("p_L", -SETTINGS.local_rate)},
    "pfedme": {"p_G": ("p_G", -SETTINGS.global_rate * 15 * SETTINGS.local_rate)},
    "promptfl": {"p_G": ("p_G", -SETTINGS.global_rate)},
}


@pytest.mark.parametrize(("name", "privacy"), [*((name, "record") for name in TRAINING), ("fedpgp", "poisson")])
def test_a_coin_moves_a_step_by_that_records_clipped_gradient(tmp_path: Path, name: str, privacy: str) -> None:
    """Zero-out to the letter: over the public |B|, and nothing else, under the same noise."""
    one = {"inner": 1} if name == "pfedme" else {}
    method, schedule = of(name, privacy, **one), dataclasses.replace(SCHEDULE, rounds=1)
    everybody = world(frozenset())
    coin = method.minibatch(everybody.clients(everybody.learner(), seed=schedule.seed)[0], 0)[0]
    worlds = {"kept": everybody, "out": world(frozenset({coin}))}
    kept, out = (run(tmp_path / i, method, w, schedule) for i, w in worlds.items())
    oracle = prompt_oracle.oracle_of(name)(everybody, method.params, SETTINGS, PRIVACY[privacy], schedule)
    start = {n: t.double() for n, t in kept.broadcast(0).items()}
    (each,) = oracle.gradients(oracle.leaves(start, start, 0, 0, 0), start, start, [coin])
    assert name in MOVED, f"say in MOVED how a record's gradient enters what {name} sends and keeps"
    for tensor, (leaf, factor) in MOVED[name].items():
        g = each[leaf]
        clipped = g * min(1.0, PRIVACY[privacy].clip_norm / float(g.norm()))
        close(kept.private(0, 0)[tensor] - out.private(0, 0)[tensor], factor * clipped / SETTINGS.batch, atol=1e-6)
        assert float(clipped.norm()) > 0.01
    for k in (1, 2):
        for tensor, value in kept.private(0, k).items():
            assert torch.equal(out.private(0, k)[tensor], value)


EVERYBODY = frozenset(record for own in federation().training for record in own)


@pytest.mark.parametrize(("name", "privacy"), [*((name, "none") for name in TRAINING), ("dpfpl", "poisson, none")])
def test_where_nothing_weighs_prompts_rest(tmp_path: Path, name: str, privacy: str) -> None:
    """All steps are taken, with a gradient of 0; FedPGP's contrastive term would still move, as no record is in it."""
    method = of(name, privacy, local="2 steps", **({"mu": 0.0} if name in ("fedpgp", "fedprox") else {}))
    found = run(tmp_path, method, world(EVERYBODY), SCHEDULE)
    start = found.broadcast(0)
    for r in range(SCHEDULE.rounds):
        for k in range(3):
            for tensor, value in found.private(r, k).items():
                close(value, start[{"theta": "p_G"}.get(tensor, tensor)], atol=1e-7)


@pytest.mark.parametrize("privacy", ["record", "batch"])
def test_where_nothing_weighs_noise_is_added_all_the_same(tmp_path: Path, privacy: str) -> None:
    method = of("promptfl", privacy)
    found, usual = (run(tmp_path / str(i), method, w, SCHEDULE) for i, w in enumerate((world(EVERYBODY), world())))
    start, std = found.broadcast(0)["p_G"], method.protection.stds["p_G"]
    for k in range(3):
        noise = std * torch.randn(start.shape, generator=generator(SCHEDULE.seed, "client", k, 0, "noise on p_G"))
        close(found.upload(0, k)["p_G"], start - SETTINGS.global_rate * noise, atol=1e-6)
    ledger = ledger_of(found, method)
    assert ledger == ledger_of(usual, method)
    assert found.round(0)["noise"]["clipped"] == {"p_G": [0, 0]}
    assert math.isnan(noise_table(ledger, found).clipped[0])


def test_momentum_goes_on_where_nothing_weighs(tmp_path: Path) -> None:
    """The first client's second batch weighs 0: its velocity is 0.9 times the first step's."""
    settings = dataclasses.replace(SETTINGS, local_steps=2, momentum=0.9)
    method = made("promptfl", {}, NONE, SCHEDULE, settings)
    clients = world().clients(world().learner(settings), seed=SCHEDULE.seed)
    second = frozenset(method.minibatch(clients[0], 1))
    assert not second & set(method.minibatch(clients[0], 0))
    methods, schedule = (method, made("promptfl", {}, NONE, SCHEDULE)), dataclasses.replace(SCHEDULE, rounds=1)
    two, one = (run(tmp_path / str(i), m, world(second), schedule) for i, m in enumerate(methods))
    start = one.broadcast(0)["p_G"]
    moved = one.upload(0, 0)["p_G"] - start
    assert moved.norm() > 0.01
    close(two.upload(0, 0)["p_G"] - start, 1.9 * moved, atol=1e-6)


def adapters(**settings: Any) -> tuple[Learner, list[str]]:
    """A tiny model, and the ids of four texts of unequal length."""
    found = WORLDS["lora"]()
    learner = copy.copy(found.learner)
    learner.settings = dataclasses.replace(learner.settings, **settings)
    by_length: Mapping[int, str] = {learner._tokens([record]): record for record in sorted(learner.data)}
    return learner, list(by_length.values())[:4]


def trained(learner: Learner, start: State, records: list[str], left_out: set[str]) -> State:
    return Participation(0, 0, 0, records, learner, left_out=frozenset(left_out)).train(start)


def gradient(learner: Learner, state: State, records: list[str]) -> State:
    """Of the mean over all tokens of these records."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
    found = torch.autograd.grad(learner.loss(leaves, records), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def start_of(learner: Learner) -> State:
    """Both halves of the adapters away from zero, so that both have a gradient."""
    g = generator(0, "somewhere")
    return {name: t + 0.05 * torch.randn(t.shape, generator=g) for name, t in learner.initial(g).items()}


@pytest.mark.parametrize("parts", ["in one", "in two"])
def test_the_token_mean_counts_the_tokens_of_what_was_left_out(parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of plain gradient descent on four texts, two of which weigh 0."""
    learner, records = adapters(batch=4, local_steps=1)
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda leaves, lr, weight_decay, fused: torch.optim.SGD(leaves, lr=lr, weight_decay=0.0)
    )
    start, kept = start_of(learner), [records[0], records[2]]
    if parts == "in two":
        learner._bytes_per_token = 10**9
        assert len(learner._parts(kept)) == 2
    found = trained(learner, start, records, {records[1], records[3]})
    share = learner._tokens(kept) / learner._tokens(records)
    assert 0.2 < share < 0.8
    for name, g in gradient(learner, start, kept).items():
        close(found[name], start[name] - learner.settings.learning_rate * share * g, atol=1e-6)


def test_adamw_takes_a_step_where_nothing_weighs() -> None:
    """Two batches of one text, of which the second weighs 0: decay and moments of Loshchilov and Hutter (2019), written out."""
    learner, records = adapters(batch=1, local_steps=2, weight_decay=0.5)
    records, start = records[:2], start_of(learner)
    rate, decay = learner.settings.learning_rate, learner.settings.weight_decay
    client = Participation(0, 0, 0, records, learner)
    first, second = (records[i] for i in torch.randperm(2, generator=client.generator("batches")).tolist())
    found = trained(learner, start, records, {second})
    g = gradient(learner, start, [first])
    for name, p in start.items():
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        for t, now in enumerate((g[name], torch.zeros_like(p)), 1):
            p = p * (1 - rate * decay)
            m, v = 0.9 * m + 0.1 * now, 0.999 * v + 0.001 * now**2
            p = p - rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        close(found[name], p, atol=1e-5)
        once = start[name] * (1 - rate * decay) - rate * g[name] / (g[name].abs() + 1e-8)
        assert float((once - p).abs().max()) > rate / 2  # a batch that is passed over would end here
