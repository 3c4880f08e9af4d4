"""Record-level DP-SGD on adapters: gradients of single records against a loop, clipped sums and a whole run against a
slow oracle, the ledger against what the oracle wrote down while it noised, epsilon against a second accountant, and the
noise as the ledger says."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.audits.epsilon import Params as EpsilonParams
from fedaudit.audits.epsilon import epsilon, ledger_of, noise_table, privacy_table
from fedaudit.audits.subject import Subject
from fedaudit.backbones.vlm import FrozenVLM, load
from fedaudit.command import cli
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import claim
from fedaudit.privacy.accountant import provable
from fedaudit.privacy.settings import AdapterPrivacy, Privacy
from fedaudit.tasks.base import Record
from fedaudit.trainers.base import Participation, Schedule, State, generator, weighted_mean
from fedaudit.trainers.dpfedavg import RELEASE, Descent, DPFedAvg, Params
from fedaudit.trainers.learners import METHODS
from fedaudit.trainers.lora import Facts, Learner, Settings
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.steps import epoch_batch, poisson_batch
from fedaudit.trainers.transcript import Transcript
from tests import tiny_models
from tests.gaussian import gaussian_epsilon, sampled_epsilon
from tests.toy import trained

SCHEDULE = Schedule(rounds=2, clients=3, per_round=2, seed=1)
SIZES = (7, 5, 2)  # batches of 3: 2, 1 and 1 steps of an epoch, and a client with less than a batch
SETTINGS = Settings(rank=2, alpha=4.0, batch=3, local_steps=2, learning_rate=0.02)
LOCAL = {
    "1 step": dataclasses.replace(SETTINGS, local_steps=1),
    "2 steps": SETTINGS,
    "5 steps": dataclasses.replace(SETTINGS, local_steps=5),
    "2 epochs": dataclasses.replace(SETTINGS, local_epochs=2),
}
PRIVACY = {
    "none": Privacy(epsilon=math.inf),
    "record": Privacy(epsilon=30, clip_norm=0.05),
    "batch": Privacy(epsilon=30, clip_norm=0.05, clip="batch"),
    "poisson": Privacy(epsilon=30, clip_norm=0.05, sampler="poisson"),
    "poisson, batch": Privacy(epsilon=30, clip_norm=0.05, sampler="poisson", clip="batch"),
    "poisson, none": Privacy(epsilon=math.inf, sampler="poisson"),
}
TAIL = " on the table under the small red bird and a large blue dog".split()
torch.set_num_threads(1)
RECORDS = [f"r{i}" for i in range(sum(SIZES))]

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def opened(folder: Path) -> tuple[FrozenVLM, dict[str, Any]]:
    """A model of two layers, and texts of different lengths."""
    rng = np.random.default_rng(0)
    records = [
        Record(
            name, "g", rng.integers(0, 255, (20, 30, 3), dtype=np.uint8), "USER : <image> describe the picture :",
            "a cat" + " ".join(["", *TAIL[: 1 + (3 * i) % len(TAIL)]]),
        )
        for i, name in enumerate(RECORDS)
    ]  # fmt: skip
    vlm = load(tiny_models.save(folder / "model", tiny_models.llava))
    data = vlm.encode(records, claim(folder / "cache"), say=print)
    return vlm, data


def doubled(learner: Learner) -> Learner:
    """All that trains and is trained in double precision, from a start whose tensors are not zero."""
    learner.model.double()
    learner.initial = lambda _: adapter(learner)  # type: ignore[method-assign]
    return learner


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    learner = doubled(Learner(*opened(tmp_path_factory.mktemp("tiny")), SETTINGS))
    assert learner._folded
    return learner


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """The same where the adapted weights are too many to have a second copy of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedaudit.trainers.lora_model.FOLD_BELOW", 0)
        learner = Learner(*opened(tmp_path_factory.mktemp("large")), SETTINGS)
    assert not learner._folded
    return doubled(learner)


def adapter(learner: Learner, seed: int = 0) -> State:
    """None of whose tensors is zero, in double precision."""
    start, g = Learner.initial(learner, generator(seed, "initial")), torch.Generator().manual_seed(seed)
    return {
        n: t.double() + 0.1 * torch.randn(t.shape, generator=g, dtype=torch.double) for n, t in sorted(start.items())
    }


def slow_gradient(learner: Learner, state: State, record: str) -> Tensor:
    """Gradient [P] of one record's mean loss, by a pass of its own without padding."""
    leaves = {name: t.clone().requires_grad_() for name, t in state.items()}
    learner.loss(leaves, [record]).backward()
    return torch.cat([leaf.grad.flatten() for leaf in leaves.values() if leaf.grad is not None])


def flat(state: State) -> Tensor:
    return torch.cat([t.flatten() for t in state.values()])


def like(vector: Tensor, state: State) -> State:
    parts = vector.split([t.numel() for t in state.values()])
    return {name: part.view_as(t) for (name, t), part in zip(state.items(), parts, strict=True)}


@dataclasses.dataclass
class Slow:
    """DP-FedAvg one client, one step, one record at a time; `drawn` is written down when noise is added."""

    learner: Learner
    privacy: Privacy
    settings: Settings
    std: float
    drawn: list[tuple[int, float]] = dataclasses.field(default_factory=list)  # client, sensitivity over std

    def mean(self, state: State, chosen: Sequence[str]) -> Tensor:
        """Clipped as the privacy says, over |B|."""
        total, c = torch.zeros_like(flat(state)), self.privacy.clip_norm
        private = math.isfinite(self.privacy.epsilon)
        for record in chosen:
            g = slow_gradient(self.learner, state, record)
            total += g * min(1.0, c / float(g.norm())) if private and self.privacy.clip == "record" else g
        mean = total / self.settings.batch
        if private and self.privacy.clip == "batch" and mean.norm() > c:
            mean *= c / mean.norm()
        return mean

    def client(self, server: State, k: int, r: int, earlier: Sequence[int], records: Sequence[str]) -> State:
        n, b = len(records), self.settings.batch
        steps = self.settings.local_epochs * max(1, n // b) or self.settings.local_steps
        state, m, v = {name: t.clone() for name, t in server.items()}, 0.0, 0.0
        who = Participation(k, r, SCHEDULE.seed, records, self.learner, tuple(earlier))
        for s in range(steps):
            if self.privacy.sampler == "poisson":
                chosen = [records[i] for i in poisson_batch(who, b, s)]
            else:
                chosen = [records[i] for i in epoch_batch(who, b, len(earlier) * steps + s)]
            g = self.mean(state, chosen)
            if math.isfinite(self.privacy.epsilon):
                noise = torch.randn(g.shape, generator=who.generator(f"noise on {RELEASE}", s), dtype=g.dtype)
                g = g + self.std * noise
                far = self.privacy.clip_norm / b if self.privacy.clip == "record" else 2 * self.privacy.clip_norm
                self.drawn.append((k, far / self.std))
            # AdamW (Loshchilov and Hutter 2019, Algorithm 2)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            up = (m / (1 - 0.9 ** (s + 1))) / ((v / (1 - 0.999 ** (s + 1))).sqrt() + 1e-8)
            old, rate = flat(state), self.settings.learning_rate
            state = like(old - rate * self.settings.weight_decay * old - rate * up, state)
        return state

    def run(self, start: State, training: Sequence[Sequence[str]]) -> list[tuple[State, dict[int, State]]]:
        """After each round the server's state, and what its cohort sent."""
        server, earlier, found = start, [[] for _ in training], []
        for r in range(SCHEDULE.rounds):
            order = torch.randperm(SCHEDULE.clients, generator=generator(SCHEDULE.seed, "cohort", r))
            cohort = sorted(order[: SCHEDULE.per_round].tolist())
            sent = {k: self.client(server, k, r, earlier[k], training[k]) for k in cohort}
            server = weighted_mean(list(sent.values()), [1 / len(sent)] * len(sent))
            for k in cohort:
                earlier[k].append(r)
            found.append((server, sent))
        return found


@pytest.mark.parametrize("which", ["world", "beside"])
@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_of_single_records_are_those_of_a_loop(
    which: str, parts: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of different lengths in one padded batch, or in two parts; their sum is the gradient of the sum."""
    learner: Learner = request.getfixturevalue(which)
    asked, state = RECORDS[:5], adapter(learner)
    assert len({len(learner.data[record].ids) for record in asked}) > 2
    if parts > 1:
        monkeypatch.setattr(learner, "_parts", lambda records, copies: [records[:3], records[3:]])
    slow = torch.stack([slow_gradient(learner, state, record) for record in asked])
    found = list(learner.gradients(state, asked, each=True))
    assert len(found) == parts
    fast = torch.cat(found)
    assert fast.shape == (5, sum(t.numel() for t in state.values()))
    assert float(((fast - slow).norm(dim=1) / slow.norm(dim=1)).max()) < 1e-6
    total = torch.cat(list(learner.gradients(state, asked, each=False))).sum(0)
    assert float((total - slow.sum(0)).norm() / slow.sum(0).norm()) < 1e-6


def test_parts_hold_the_gradients_of_their_records(world: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part's activations and copies of gradients fit into the memory that there is; one record always does."""
    each = 4 * sum(t.numel() for t in world.parameters.values())
    longest = world._bytes_per_token * max(len(world.data[record].ids) for record in RECORDS)
    monkeypatch.setattr("fedaudit.trainers.lora.ACTIVATIONS", 3 * (longest + 2 * each))
    assert [len(part) for part in world._parts(RECORDS, copies=2)] == [3, 3, 3, 3, 2]
    assert len(world._parts(RECORDS, copies=8)[0]) < 3  # fewer records where each needs more
    found = list(world.gradients(adapter(world), RECORDS[:7], each=True))
    assert [len(part) for part in found] == [3, 3, 1]
    monkeypatch.setattr("fedaudit.trainers.lora.ACTIVATIONS", 1)
    assert len(list(world.gradients(adapter(world), RECORDS[:2], each=True))) == 2
    assert list(world.gradients(adapter(world), [], each=True)) == []
    monkeypatch.setattr(world, "memory", 4 * (longest + 2 * each))  # --memory wins
    assert [len(part) for part in world._parts(RECORDS, copies=2)] == [4, 4, 4, 2]


def training() -> tuple[tuple[str, ...], ...]:
    ends = np.cumsum(SIZES)
    return tuple(tuple(RECORDS[end - n : end]) for end, n in zip(ends, SIZES, strict=True))


def made(privacy: Privacy, settings: Settings = SETTINGS, **params: Any) -> DPFedAvg:
    return DPFedAvg(Params(**params), settings).protected(privacy, SCHEDULE, SIZES)


def run(path: Path, method: Any, learner: Learner, **more: Any) -> Transcript:
    return trained(path, method, SCHEDULE, Bench(learner, training(), RECORDS), **more)


QUICK = {  # every way to noise, and rounds of every kind; all pairs are slow
    ("2 steps", "none"), ("1 step", "record"), ("2 epochs", "record"), ("2 steps", "batch"), ("5 steps", "poisson"),
    ("2 steps", "poisson, batch"), ("2 epochs", "poisson, none"),
}  # fmt: skip
ROUNDS = [
    # quick: each of both once
    pytest.param(local, privacy, marks=() if (local, privacy) in QUICK else pytest.mark.slow)
    for local in LOCAL
    for privacy in PRIVACY
]


@pytest.mark.parametrize(("local", "privacy"), ROUNDS)
def test_training_and_its_ledger_are_the_slow_oracles(
    tmp_path: Path, local: str, privacy: str, world: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a batch is computed in parts."""
    monkeypatch.setattr(world, "_parts", lambda ids, copies=0: [ids[i : i + 2] for i in range(0, len(ids), 2)])
    asked, method = PRIVACY[privacy], made(PRIVACY[privacy], LOCAL[local])
    fast = run(tmp_path, method, world)
    slow = Slow(world, asked, LOCAL[local], method.protection.stds.get(RELEASE, 0.0))
    for r, (server, sent) in enumerate(slow.run(adapter(world), training())):
        assert fast.cohort(r) == sorted(sent)
        uploads, broadcast = fast.uploads(r), fast.broadcast(r + 1)
        for k, state in sent.items():
            for name, expected in state.items():
                assert torch.allclose(uploads[k][name], expected, rtol=1e-4, atol=1e-6)
        for name, expected in server.items():
            assert torch.allclose(broadcast[name], expected, rtol=1e-4, atol=1e-6)
    ledger = ledger_of(fast, method)
    if math.isinf(asked.epsilon):
        assert ledger.steps == ()
        assert provable(ledger, threat_model="server", delta=1e-5).epsilon == math.inf
        return
    agrees(ledger, slow)


def agrees(ledger: Any, slow: Slow) -> None:
    """Per client a mechanism of as many steps as the oracle noised, and as large; and what follows for epsilon."""
    ((mechanism,),) = ledger.steps
    assert mechanism.dimension == sum(t.numel() for t in adapter(slow.learner).values())
    steps = {e.client: e.steps[0] for e in ledger.exposures}
    assert steps == Counter(k for k, _ in slow.drawn)
    (shift,) = {round(shift, 9) for _, shift in slow.drawn}
    assert mechanism.shift("zero-out") == pytest.approx(shift, rel=1e-6)
    for threat in Facts().threat_models:  # everything that leaves carries the client's own noise
        every = provable(ledger, threat_model=threat, delta=1e-5, every_step=True)
        assert every.epsilon == pytest.approx(gaussian_epsilon(shift * math.sqrt(max(steps.values()))), rel=0.01)
    for exposure in ledger.exposures:  # each client alone: the most exposed one may be in every sample
        alone = dataclasses.replace(ledger, exposures=(exposure,))
        if slow.privacy.sampler == "poisson":
            rate = min(1.0, slow.settings.batch / exposure.records)
            expected = sampled_epsilon(shift, rate, exposure.steps[0])
        else:
            expected = gaussian_epsilon(shift * math.sqrt(exposure.times))
        assert provable(alone, threat_model="server", delta=1e-5).epsilon == pytest.approx(expected, rel=0.01)


def test_calibrated_noise_spends_what_was_asked_by_a_second_accountant(tmp_path: Path, world: Learner) -> None:
    method = made(dataclasses.replace(PRIVACY["poisson"], epsilon=8, sigma="calibrated"))
    ledger = ledger_of(run(tmp_path, method, world), method)
    ((mechanism,),) = ledger.steps
    shift = mechanism.shift("zero-out")
    steps = SCHEDULE.rounds * SETTINGS.local_steps
    spent = [sampled_epsilon(shift, min(1.0, SETTINGS.batch / n), steps) for n in SIZES]
    assert max(spent) == pytest.approx(8, rel=0.01)  # all clients in all rounds, which the noise is made for


def test_in_epochs_a_record_is_in_no_more_steps_than_the_ledger_says(tmp_path: Path, world: Learner) -> None:
    method = made(PRIVACY["record"], LOCAL["2 epochs"])
    fast = run(tmp_path, method, world)
    for exposure in ledger_of(fast, method).exposures:
        k, used = exposure.client, Counter[str]()
        rounds = fast.participations(k)
        for i, r in enumerate(rounds):
            client = Participation(k, r, SCHEDULE.seed, training()[k], world, tuple(rounds[:i]))
            for s in range(method.steps(len(client.records))):
                used.update(method.minibatch(client, s))
        assert max(used.values()) <= exposure.times
        told = {"seed": SCHEDULE.seed, "rounds": rounds, "settings": method.settings}
        assert method.messages.used_records(training()[k], client=k, **told) == set(used)


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_the_noise_is_as_large_as_the_ledger_says(clip: str, tmp_path: Path, world: Learner) -> None:
    """After one step of SGD the uploads of a run and of the same without noise differ by rate times the noise."""
    settings = dataclasses.replace(SETTINGS, local_steps=1, learning_rate=1.0)
    private = made(Privacy(epsilon=5, clip_norm=1e-3, clip=clip, sigma="calibrated"), settings, optimizer="sgd")
    silent = dataclasses.replace(private, protection=dataclasses.replace(private.protection, stds={RELEASE: 0.0}))
    noised, plain = (run(tmp_path / str(i), m, world) for i, m in enumerate((private, silent)))
    ((mechanism,),) = ledger_of(noised, private).steps
    assert mechanism.sensitivity == (1e-3 / SETTINGS.batch if clip == "record" else 2e-3)
    draws = [flat(noised.upload(0, k)) - flat(plain.upload(0, k)) for k in noised.cohort(0)]
    n = mechanism.dimension
    for draw in draws:
        assert draw.numel() == n
        assert float(draw.std()) == pytest.approx(mechanism.std, rel=5 / math.sqrt(2 * n))
        assert abs(float(draw.mean())) < 5 * mechanism.std / math.sqrt(n)
    assert abs(float(torch.corrcoef(torch.stack(draws))[0, 1])) < 5 / math.sqrt(n)
    (row,) = noise_table(ledger_of(noised, private), noised).to_dict("records")
    assert row["std"] == mechanism.std
    assert row["signal"] <= 1e-3 * (1 + 1e-6)  # of |B| clipped gradients over |B|, or of a clipped mean


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_an_empty_batch_is_noised_as_any_other(clip: str, world: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    method, start = made(dataclasses.replace(PRIVACY["poisson"], clip=clip)), adapter(world)
    monkeypatch.setattr(DPFedAvg, "minibatch", lambda *_: [])
    (update,) = world.work(method, [start], [start], [Participation(0, 0, 0, RECORDS[:7], world)])
    assert update.noised.turns[0].steps == 2
    assert update.noised.clipped == {RELEASE: (0, 0)}
    assert not torch.equal(flat(update.upload), flat(start))


@pytest.mark.parametrize("privacy", ["none", "record", "batch"])
def test_a_record_that_is_left_out_is_missing_from_the_sum_and_nowhere_else(privacy: str, world: Learner) -> None:
    """Batch, steps and divisor are those of its client's whole list."""
    method, start = made(PRIVACY[privacy]), adapter(world)
    client = Participation(0, 0, 0, RECORDS[:7], world, left_out=frozenset(RECORDS[:4]))
    step = next(Descent(client, method, start).steps())
    others = [record for record in method.minibatch(client, 0) if record not in RECORDS[:4]]
    slow = Slow(world, PRIVACY[privacy], SETTINGS, 1.0).mean(start, others)
    assert float((step.clipped_mean()[0] - slow).abs().max()) <= 1e-6 * float(slow.abs().max() + 1e-9)
    assert 0 < len(others) < 3


def test_clipped_gradients_are_counted_over_all_parts(world: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "_parts", lambda records, copies=0: [records[:2], records[2:]])
    start, client = adapter(world), Participation(0, 0, 0, RECORDS[:7], world)
    for norm, longer in ((1e-6, 6), (1e6, 0)):
        method = made(Privacy(epsilon=30, clip_norm=norm))
        (update,) = world.work(method, [start], [start], [client])
        assert update.noised.clipped == {RELEASE: (longer, 6)}  # 2 steps of 3 records


def test_what_is_claimed_is_proven_against_everybody(tmp_path: Path, world: Learner) -> None:
    privacy = AdapterPrivacy(epsilon=4)
    method = made(privacy)
    table = privacy_table(ledger_of(run(tmp_path, method, world), method), method, privacy, Facts().threat_models)
    assert set(table.threat_model) == set(Facts().threat_models)
    assert (table.claimed == 4).all()
    assert table.provable.between(0, 4, inclusive="right").all()


@pytest.mark.parametrize("words", ["--epsilon 3", "--clip-norm 2", "--sampler poisson", "--delta 1e-4", "--no-twin"])
def test_other_lora_methods_refuse_what_is_about_noise(words: str) -> None:
    flag = words.split()[0]
    with pytest.raises(InputError, match=rf"^{flag}: fedavg, fedrand adds no noise; of the LoRA methods dpfedavg can$"):
        cli.read_command(f"--method fedavg,fedrand {words}".split())


def test_it_comes_with_its_noise_free_twin_and_its_own_defaults() -> None:
    plan = cli.read_command("--method fedavg,dpfedavg --task captions".split()).plan
    assert list(plan.methods) == ["fedavg", "dpfedavg:epsilon=none", "dpfedavg:epsilon=10"]
    asked = {label: variant.privacy for label, variant in plan.methods.items() if variant}
    assert asked["fedavg"] is None
    assert asked["dpfedavg:epsilon=none"] == Privacy(epsilon=math.inf, sampler="poisson")
    assert asked["dpfedavg:epsilon=10"] == AdapterPrivacy()
    assert {"epsilon", "membership"} <= set(plan.audits)
    alone = cli.read_command("--method dpfedavg:epsilon=3 --no-twin --clip-norm 0.2".split()).plan
    (variant,) = alone.methods.values()
    assert variant.privacy == AdapterPrivacy(epsilon=3, clip_norm=0.2)


def test_what_is_said_of_noise_comes_from_the_ledger(tmp_path: Path, world: Learner) -> None:
    """Without noise nothing is claimed or proven, of a method that cannot be noised as of one that is not."""
    plain = METHODS["fedavg"].make(METHODS["fedavg"].params())
    for name, method, privacy in (("fedavg", plain, None), ("dpfedavg", made(PRIVACY["none"]), PRIVACY["none"])):
        subject = Subject(
            transcript=run(tmp_path / name, method, world), method=method, privacy=privacy, threat_models=Facts().threat_models, attacked=None,
            names={"run": "r", "method": name, "task": "t", "seed": 0},
        )  # fmt: skip
        result = epsilon(subject, EpsilonParams())
        assert result.kept["ledger"]["steps"] == []
        assert len(result.tables["noise"]) == 0
        assert len(result.findings) == 2 * len(Facts().threat_models)
        assert {(f.claimed, f.provable) for f in result.findings} == {("inf", "inf")}
        words = dataclasses.replace(subject, before={"epsilon": result}).claims("server")
        trained = "A and B" if name == "dpfedavg" else "what clients train"
        assert words == {"claimed": "none", "provable": f"infinity: unbounded: no noise is added to {trained}"}
