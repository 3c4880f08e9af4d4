"""What the prompt methods share: gradients of records, batches, clipping and noise as they run, the ledger of a run, the evaluation."""

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.audits.epsilon import noise_table
from fedaudit.machinery.executor import Executor
from fedaudit.privacy.accountant import provable
from fedaudit.privacy.ledger import Ledger, RoundNoise
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Participation, Schedule, Site, Upload, generator
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.prompts import Cohort, PromptMethod, Settings, Step
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.steps import epoch_batch, poisson_batch
from tests import prompt_oracle, prompt_toy
from tests.prompt_toy import NONE, SCHEDULE, SETTINGS, Federation, close, federation, made, on_a_line, run, with_noise

RECORD = Privacy(epsilon=10, clip_norm=2)
BATCH = Privacy(epsilon=10, clip_norm=2, clip="batch")

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def cohort(method: PromptMethod, world: Federation) -> Step:
    """The first step of a round."""
    learner = world.learner(method.settings)
    return next(Cohort(learner, world.clients(learner), method).steps())


def prompts(n: int, *, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(n, 4, prompt_toy.clip().width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [(10, 6, 3), (5, 4, 9, 1, 2, 7, 4, 5, 6, 3, 8)])
def test_gradients_of_records_equal_autograd_record_by_record(sizes: tuple[int, ...]) -> None:
    """[R, N, b, d] of a few clients and of more than one backward pass takes at once; with a mean of them where nothing is clipped."""
    world, own = federation(sizes), prompts(len(sizes))
    ours = cohort(made("local", {}, RECORD), world)
    found = ours.gradient(own)
    mean = cohort(made("local", {}), world).gradient(own)
    assert found.shape == (4, *own.shape)
    assert mean.shape == (1, *own.shape)
    for k, client in enumerate(ours.clients):
        records = [client.records[i] for i in epoch_batch(client, 4, len(client.earlier_rounds))]
        assert ours.batch.weights[:, k].tolist() == [1] * len(records) + [0] * (4 - len(records))
        slow = torch.stack([prompt_oracle.record_gradient(world, own[k], record) for record in records])
        close(found[: len(records), k], slow)
        close(mean[0, k], slow.mean(0))
        assert float(slow.abs().max()) > 0.1


LINE = Settings(prompt_length=6, batch=2)
STDS = {"p_G": 0.7, "p_L": 0.3, "u": 0.3, "v": 0.5}


def silent(n: int) -> Federation:
    """Clients whose records have no gradient: what moves is noise."""
    world = on_a_line([[(0.0, 0), (0.0, 1)]] * n)
    return dataclasses.replace(world, clip=prompt_toy.LinearCLIP(torch.zeros(2, 6, 1)))


def noisy(name: str, params: dict[str, Any]) -> PromptMethod:
    method = dataclasses.replace(made(name, params), settings=LINE)
    return with_noise(method, Privacy(epsilon=1, clip_norm=1), {n: STDS[n] for n in (*method.local, *method.shared)})


def drawn(world: Federation, r: int) -> tuple[Tensor, Tensor]:
    """The noise of a round of FedOTP, [n, 6] of the clients and [6] of the server: what moved, over the learning rate."""
    method, learner = noisy("fedotp", {}), world.learner(LINE)
    clients, start = world.clients(learner, r=r), {n: torch.zeros(6, 1) for n in ("p_G", "p_L")}
    updates = learner.work(method, [start] * len(clients), [start] * len(clients), clients)
    assert not any(update.upload["gradient"].any() for update in updates)  # messages are bare
    server = method.aggregate(start, [Upload(k, 2, update.upload) for k, update in enumerate(updates)], Site(0, r))
    local = torch.stack([update.private["p_L"].flatten() for update in updates])
    return -local / LINE.local_rate, -server["p_G"].flatten() / LINE.global_rate


def test_noise_has_its_size_and_is_drawn_for_each_release_client_and_round_apart() -> None:
    """4 clients, 200 rounds, 6 entries: standard deviations within 5 %, every correlation below 5 / sqrt(n)."""
    world = silent(4)
    local, server = map(torch.stack, zip(*(drawn(world, r) for r in range(200)), strict=True))  # [200, 4, 6], [200, 6]
    assert float(local.std()) == pytest.approx(0.3, rel=0.05)
    assert float(server.std()) == pytest.approx(0.7, rel=0.07)
    assert abs(float(local.mean())) < 5 * 0.3 / math.sqrt(4800)
    series = torch.cat([local.flatten(1), server], dim=1)  # [200, 30]
    series = torch.cat([series[1:], series[:-1]], dim=1)  # with the round before
    correlations = torch.corrcoef(series.T) - torch.eye(60)
    assert float(correlations.abs().max()) < 5 / math.sqrt(199)


def test_the_server_noises_the_average_once() -> None:
    """Messages are bare, whoever and however many they are; the noise of the average is the same for one client and for five."""
    for name, params in (("fedotp", {}), ("dpfpl", {"rank": 1}), ("fedpgp", {"rank": 1})):
        method = noisy(name, params)
        start = {"p_G": torch.zeros(6, 1), "hard": torch.zeros(6, 1)}
        found = []
        for n in (1, 5):
            site = Site(0, 3)
            uploads = [Upload(k, 2, {"gradient": torch.zeros(6, 1)}) for k in range(n)]
            found.append(method.aggregate(start, uploads, site)["p_G"])
            (mechanism,) = site.noised.mechanisms
            assert (mechanism.release, mechanism.party, mechanism.std) == ("p_G", "server", 0.7)
            assert mechanism.sensitivity == pytest.approx(1 / (2 * n))
        assert torch.equal(*found)
        assert float(found[0].abs().max()) > 0


CASES = [*((name, {}) for name in ("local", "promptfl", "fedotp")), ("fedpgp", {"rank": 2})]
CASES += [("dpfpl", {"rank": 2}), ("dpfpl", {"rank": 0})]


def ledger_of(transcript: Any, method: PromptMethod) -> Ledger:
    rounds = [RoundNoise.from_json(transcript.round(r)["noise"]) for r in range(transcript.schedule.rounds)]
    return Ledger.of(rounds, shared=method.shared, local=method.local)


CALIBRATED = [(*method, "epochs", ("record", "batch")[i % 2]) for i, method in enumerate(CASES)]
# dear; quick: in epochs, and test_privacy
POISSON_TOO = pytest.param("promptfl", {}, "poisson", "record", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "params", "sampler", "clip"), [*CALIBRATED, POISSON_TOO])
def test_calibrated_noise_proves_the_promise_for_the_run_that_ran(
    tmp_path: Path, name: str, params: dict[str, Any], sampler: str, clip: str
) -> None:
    """All clients in every round; with 1 % less noise more than epsilon is proven at best."""
    world = federation((16, 10, 25))
    privacy = Privacy(epsilon=2, clip_norm=2, sigma="calibrated", sampler=sampler, clip=clip)
    method = made(name, params).protected(privacy, SCHEDULE, [16, 10, 25])
    ledger = ledger_of(run(tmp_path, method, world, SCHEDULE), method)
    assert provable(ledger, threat_model="prompt-user", delta=1e-5).epsilon <= 2
    less = [tuple(dataclasses.replace(m, std=0.99 * m.std) for m in step) for step in ledger.steps]
    assert provable(dataclasses.replace(ledger, steps=tuple(less)), threat_model="prompt-user", delta=1e-5).epsilon > 2


@pytest.mark.parametrize("sampler", ["epochs", "poisson"])
def test_the_ledger_counts_what_ran(tmp_path: Path, sampler: str) -> None:
    """Eleven rounds with two of three clients: steps are participations, no record was in more batches than the ledger's bound."""
    schedule = Schedule(rounds=11, clients=3, per_round=2, seed=5)
    world = federation()
    method = made("dpfpl", {"rank": 2}, Privacy(epsilon=3, clip_norm=2, sampler=sampler), schedule)
    transcript = run(tmp_path, method, world, schedule)
    ledger = ledger_of(transcript, method)
    (step,) = ledger.steps
    assert [(m.release, m.party, m.dimension, m.sampler, m.batch) for m in step] == [
        ("p_G", "server", 4 * 16, sampler, 4), ("u", "client", 4 * 2, sampler, 4), ("v", "client", 2 * 16, sampler, 4),
    ]  # fmt: skip
    assert {m.release: m.std for m in step} == method.protection.stds
    learner, epoch = world.learner(), (2, 1, 1)  # steps of an epoch: 10 // 4, 6 // 4, and a batch of all three
    for exposure in ledger.exposures:
        k, rounds = exposure.client, transcript.participations(exposure.client)
        assert exposure.records == len(world.training[k])
        assert exposure.steps == (len(rounds),)
        assert exposure.times == (math.ceil(len(rounds) / epoch[k]) if sampler == "epochs" else len(rounds))
        used: Counter[int] = Counter()
        for place, r in enumerate(rounds):
            client = world.clients(learner, seed=5, r=r, earlier=rounds[:place])[k]
            used.update(epoch_batch(client, 4, place) if sampler == "epochs" else poisson_batch(client, 4, 0))
        assert max(used.values()) <= exposure.times
    assert sum(exposure.steps[0] for exposure in ledger.exposures) == 22


def test_signals_are_the_lengths_of_what_the_noise_covers(tmp_path: Path) -> None:
    """Mean over clients of the L2 norm before the noise; of p_G the norm of the average."""
    schedule = dataclasses.replace(SCHEDULE, rounds=1)
    method = made("promptfl", {}, RECORD, schedule)
    transcript = run(tmp_path, method, federation(), schedule, clients_per_batch=2)
    start = {"p_G": transcript.broadcast(0)["p_G"]}
    bare = with_noise(made("promptfl", {}), RECORD, {"p_G": 0.0})
    learner = federation().learner()
    updates = learner.work(bare, [start] * 3, [start] * 3, federation().clients(learner, seed=SCHEDULE.seed))
    norms = [float((start["p_G"] - update.upload["p_G"]).norm()) / SETTINGS.global_rate for update in updates]
    assert transcript.round(0)["noise"]["signals"] == {"p_G": pytest.approx(np.mean(norms), rel=1e-4)}


@pytest.mark.parametrize("clip", ["record", "batch"])
def test_clipped_gradients_are_counted_as_a_slow_loop_does(tmp_path: Path, clip: str) -> None:
    """Of every release, over both batches: records whose gradient alone is longer than C, or clients whose mean is; padding counts nowhere."""
    schedule = dataclasses.replace(SCHEDULE, rounds=1)
    world, learner = federation(), federation().learner()
    clients = world.clients(learner, seed=SCHEDULE.seed)
    start = made("fedotp", {}).start(learner.initial(generator(SCHEDULE.seed, "initial")))
    prompt = start["p_G"] + start["p_L"]
    batches = [[client.records[i] for i in epoch_batch(client, 4, 0)] for client in clients]
    slow = [torch.stack([prompt_oracle.record_gradient(world, prompt, r) for r in batch]) for batch in batches]
    units = [*torch.cat(slow)] if clip == "record" else [one.mean(0) for one in slow]
    lengths = sorted(float(unit.norm()) for unit in units)
    C = (lengths[1] + lengths[2]) / 2
    method = made("fedotp", {}, Privacy(epsilon=10, clip_norm=C, clip=clip), schedule)
    transcript = run(tmp_path, method, world, schedule, clients_per_batch=2)
    counts = [len(lengths) - 2, len(lengths)]
    assert transcript.round(0)["noise"]["clipped"] == {"p_L": counts, "p_G": counts}
    table = noise_table(ledger_of(transcript, method), transcript)
    assert table.clipped.tolist() == [counts[0] / counts[1]] * 2


def client(n: int, *, earlier: tuple[int, ...] = (), r: int | None = None, k: int = 0, seed: int = 0) -> Participation:
    now = (max(earlier, default=-1) + 1) if r is None else r
    return Participation(k, now, seed, [str(i) for i in range(n)], None, earlier)


def dealt_to(client: Participation, size: int) -> list[int]:
    """The batch of a round of one step."""
    return epoch_batch(client, size, len(client.earlier_rounds))


@pytest.mark.parametrize(("n", "size"), [(10, 4), (12, 4), (4, 4), (5, 4), (100, 7), (9, 1)])
def test_epochs_deal_every_record_at_most_once(n: int, size: int) -> None:
    length, orders = n // size, set()
    for epoch in range(6):
        dealt = [dealt_to(client(n, earlier=tuple(range(epoch * length + i))), size) for i in range(length)]
        assert [len(batch) for batch in dealt] == [size] * length
        flat = [record for batch in dealt for record in batch]
        assert len(set(flat)) == len(flat)
        assert set(flat) <= set(range(n))
        orders.add(tuple(flat))
    assert len(orders) == 6


def test_every_record_is_dealt_as_often_as_any() -> None:
    """600 epochs of two batches of four out of ten records: each is in 480 of them, within 4 standard deviations (9.8)."""
    used = Counter(i for p in range(1200) for i in dealt_to(client(10, earlier=tuple(range(p))), 4))
    assert all(abs(used[i] - 480) < 4 * 9.8 for i in range(10))


def test_an_epoch_goes_on_over_rounds_in_which_a_client_is_away() -> None:
    """Only how often it took part matters, not when."""
    for earlier, later in [((0, 1, 2), (4, 17, 90)), ((0,), (5,))]:
        assert dealt_to(client(10, earlier=earlier), 4) == dealt_to(client(10, earlier=later, r=200), 4)
    assert dealt_to(client(10, k=1), 4) != dealt_to(client(10, k=2), 4)
    assert dealt_to(client(10, seed=1), 4) != dealt_to(client(10, seed=2), 4)


def test_poisson_sampling_takes_each_record_by_a_coin_of_its_own() -> None:
    """2,000 rounds of 10 records at 4 / 10: rates within 4 standard deviations, coins of records and of rounds uncorrelated."""
    coins = np.zeros((2000, 10))
    for r in range(2000):
        coins[r, poisson_batch(client(10, r=r), 4, 0)] = 1
    assert np.abs(coins.mean(0) - 0.4).max() < 4 * math.sqrt(0.24 / 2000)
    sizes = coins.sum(1)
    assert sizes.var() == pytest.approx(10 * 0.24, rel=0.15)  # binomial: not a fixed size
    series = np.concatenate([coins[1:], coins[:-1]], axis=1)
    assert np.abs(np.corrcoef(series.T) - np.eye(20)).max() < 5 / math.sqrt(1999)
    assert poisson_batch(client(10, r=3, k=1), 4, 0) != poisson_batch(client(10, r=3, k=2), 4, 0)


@pytest.mark.parametrize("privacy", [NONE, RECORD, BATCH], ids=["none", "record", "batch"])
@pytest.mark.parametrize("everybody", [True, False])
def test_an_empty_poisson_batch_is_a_zero_gradient(privacy: Privacy, everybody: bool) -> None:
    """Batches of one out of three, in a round in which the last client, or nobody, gets one."""
    world = federation((3, 3))
    settings = dataclasses.replace(SETTINGS, batch=1)
    method = dataclasses.replace(made("local", {}), settings=settings)
    method = with_noise(method, dataclasses.replace(privacy, sampler="poisson"), {"p_L": 0.0})
    learner = world.learner(settings)

    def empty(r: int) -> list[bool]:
        return [not poisson_batch(c, 1, 0) for c in world.clients(learner, r=r)]

    r = next(r for r in range(100) if empty(r) == [everybody, True])
    start = {"p_L": prompts(1)[0]}
    updates = learner.work(method, [{}] * 2, [start] * 2, world.clients(learner, r=r))
    assert [torch.equal(update.private["p_L"], start["p_L"]) for update in updates] == [everybody, True]
    assert all(torch.isfinite(update.private["p_L"]).all() for update in updates)


class Fixed:
    """A learner whose prompts recognise what their number says: test record i, if bit i of it is set."""

    def __init__(self, together: int = 50) -> None:
        self.together = together

    def clients_per_batch(self, method: Any) -> int:
        return self.together

    def recognised(self, models: list[dict[str, Tensor]], records: list[str], method: Any) -> Any:
        return np.array([[int(model["prompt"]) >> i & 1 for i in range(len(records))] for model in models], dtype=bool)


@pytest.mark.parametrize("clients_per_batch", [1, 2, 50])
def test_accuracies_by_hand(clients_per_batch: int) -> None:
    """Five test images. Client 0 owns the first two and recognises 0, 2, 3: local 1 of 2, neighbour 2 of 3, overall 3 of 5. Client 1
    owns all and recognises 4: local and overall 1 of 5, no neighbour. Client 2 owns none, recognises all: neighbour and overall 100."""
    evaluation = Recognition([[True, True, False, False, False], [True] * 5, [False] * 5])
    states = {k: {"p_L": torch.tensor(float(bits))} for k, bits in enumerate([0b01101, 0b10000, 0b11111])}
    server, method = {"p_G": torch.tensor(0.0)}, made("dpfpl", {"rank": 0})
    with Executor(lambda: Bench(Fixed(clients_per_batch), [["a"]] * 3, ["t"] * 5)) as executor:
        found = evaluation.after(executor, method, server, states, done=1, last=True)
        some = evaluation.after(executor, method, server, {2: states[2]}, done=1, last=True)
        before = evaluation.before(executor, method, server | {"p_L": torch.tensor(3.0)})
    assert found == {
        "clients": {"local": 35, "neighbour": pytest.approx((200 / 3 + 100) / 2), "overall": 60},
        "client-00": {"local": 50, "neighbour": pytest.approx(200 / 3), "overall": 60},
        "client-01": {"local": 20, "overall": 20},
        "client-02": {"neighbour": 100, "overall": 100},
    }
    assert some == {"clients": {"neighbour": 100, "overall": 100}, "client-02": {"neighbour": 100, "overall": 100}}
    assert [before[f"client-0{k}"]["overall"] for k in range(3)] == [40, 40, 40]


def test_accuracy_on_a_clients_own_test_set_by_hand() -> None:
    """Client 0 recognises images 0, 2 and 3, of chances 1/2, 1/8 and 0; client 1 all; the other accuracies stay as they are."""
    own = [[True, True, True, False], [False, False, True, True]]
    chances = [[0.5, 0.375, 0.125, 0], [0, 0, 0.25, 0.75]]
    states = {k: {"p_L": torch.tensor(float(bits))} for k, bits in enumerate([0b1101, 0b1111])}
    with Executor(lambda: Bench(Fixed(), [["a"]] * 2, ["t"] * 4)) as executor:
        given = executor, made("dpfpl", {"rank": 0}), {"p_G": torch.tensor(0.0)}, states
        found = Recognition(own, chances).after(*given, done=1, last=True)
        without = Recognition(own).after(*given, done=1, last=True)
    assert [found[name].pop("own_test") for name in ("client-00", "client-01", "clients")] == [62.5, 100, 81.25]
    assert found == without


@pytest.mark.parametrize("match", ["sum", "ot"])
def test_recognition_equals_images_one_by_one(match: str) -> None:
    """300 images, more than are looked at at once."""
    world = federation(test=300)
    method = made("fedotp", {"match": match})
    states = [{"p_G": p, "p_L": q} for p, q in zip(prompts(2), prompts(2, seed=1), strict=True)]
    found = world.learner().recognised([method.model(state) for state in states], world.test, method)
    assert found.shape == (2, 300)
    assert 0.05 < found.mean() < 0.95
    for state, row in zip(states, found, strict=True):
        both = [state["p_G"] + state["p_L"]] if match == "sum" else [state["p_G"], state["p_L"]]
        text = torch.stack([prompt_oracle.text_features(world.clip, p.double(), world.classes) for p in both])
        for record, right in list(zip(world.test, row, strict=True))[::7]:
            image, patches = (of[world.ids.index(record)].double() for of in (world.features, world.patches))
            scores = text[0] @ image if match == "sum" else prompt_oracle.transport_similarity(text, patches)
            top = scores.topk(2).values
            if top[0] - top[1] > 1e-5:
                assert bool(right) == (int(scores.argmax()) == world.labels[record])
