"""Messages of adapters explained by gradients: against loops, by hand, sketched, on steps of AdamW on a coin."""

import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import Decompose, Params
from fedaudit.attacks.knowledge import Explained, Floats
from fedaudit.attacks.messages import ridge
from fedaudit.attacks.messages.adapters import AdapterMessages
from fedaudit.attacks.messages.rebuild import round_start
from fedaudit.attacks.messages.ridge import Regression, count_sketch
from fedaudit.attacks.questions.texts import TextQuestions
from fedaudit.contracts.method_worlds import WORLDS
from fedaudit.trainers import learners
from fedaudit.trainers.base import State
from fedaudit.trainers.transcript import Transcript
from tests.test_adapter_messages import with_settings
from tests.test_text_attacks import texts

CLIENT = 1


def explained(message: torch.Tensor, rows: torch.Tensor) -> Explained:
    return added(Regression(message, len(rows), [rows]), rows.chunk(2)).explain(0)


def added(regression: Regression, parts: Iterable[torch.Tensor]) -> Regression:
    for part in parts:
        regression.add(part)
    return regression


def slow_weights(gradients: list[Floats], message: Floats) -> Floats:
    n, size = len(gradients), len(message)
    v = [math.sqrt(sum(g[j] ** 2 for g in gradients) / n) for j in range(size)]
    damping = 0.001 * sum(v) / size
    rows = []
    for g in gradients:
        p = [g[j] / (v[j] + damping) for j in range(size)]
        length = math.sqrt(sum(x * x for x in p))
        rows.append([x / length for x in p])
    length = math.sqrt(sum(x * x for x in message))
    d = [x / length for x in message]
    k = np.array([[sum(x * y for x, y in zip(p, q, strict=True)) for q in rows] for p in rows])
    b = np.array([sum(x * y for x, y in zip(p, d, strict=True)) for p in rows])
    return np.linalg.inv(k + 0.1 * np.trace(k) / n * np.eye(n)) @ b


def test_weights_equal_the_formula() -> None:
    rng = np.random.default_rng(0)
    gradients, message = rng.standard_normal((7, 40)) * np.geomspace(1e-3, 10, 40), rng.standard_normal(40)
    found = explained(torch.from_numpy(message).float(), torch.from_numpy(gradients).float())
    np.testing.assert_allclose(found.weights, slow_weights([*gradients], message), atol=1e-6)
    assert found.skipped == 0


def test_by_hand_and_what_is_zero_is_skipped_and_counted() -> None:
    """Two records along two axes: K is the identity, so that each weight is its cosine with the message over 1.1."""
    rows = torch.tensor([[2.0, 0, 0], [0, 0, 0], [0, 5.0, 0]])
    found = explained(torch.tensor([3.0, 4.0, 0.0]), rows)
    np.testing.assert_allclose(found.weights, [0.6 / 1.1, np.nan, 0.8 / 1.1], atol=1e-6)
    assert (found.residual, found.skipped) == (pytest.approx(1 - 1 / 1.1, abs=1e-6), 1)
    silent, blind = explained(torch.zeros(3), rows), explained(torch.ones(3), torch.zeros(2, 3))
    assert np.isnan([*silent.weights, silent.residual, *blind.weights]).all()
    assert blind.skipped == 2


def test_records_beyond_the_first_are_not_looked_at() -> None:
    rows, message = torch.randn(9, 30), torch.randn(30)
    found = added(Regression(message, 5, [rows]), rows.split(2)).explain(0)
    np.testing.assert_array_equal(found.weights, explained(message, rows[:5]).weights)


def test_what_is_stored_is_read_again() -> None:
    one = Explained(3, np.array([0.5, np.nan, -1.0]), 0.25, 1)
    again = Explained.of(one.arrays())
    assert (again.round, again.residual, again.skipped) == (3, 0.25, 1)
    np.testing.assert_array_equal(again.weights, one.weights)
    np.testing.assert_array_equal(again.picked(np.array([2, -1, 0])).weights, [-1.0, np.nan, 0.5])


def test_a_count_sketch_equals_its_loop_and_keeps_inner_products() -> None:
    rows = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0))
    unit = torch.eye(50, 20_000)
    places = count_sketch(unit)  # where each of the first numbers goes, with its sign
    assert (places.abs().sum(1) == 1).all()
    small = torch.zeros(1, 20_000)
    small[0, :50] = rows[0, :50]
    np.testing.assert_allclose(count_sketch(small)[0], (rows[0, :50, None] * places).sum(0), atol=1e-5)
    together = torch.cat([rows, rows[:1] + rows[1:2]])
    sketches, exact = count_sketch(together), together @ together.T
    assert torch.equal(sketches, count_sketch(together))
    error = (sketches @ sketches.T - exact).abs() / (exact.diag()[:, None] * exact.diag()).sqrt()
    assert error.max() < 5 / math.sqrt(ridge.BUCKETS)


def test_sketched_weights_are_near_those_of_whole_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of 30 records are in the message; v of the sketched ones is that of the last ten alone."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 50_000, generator=generator) * torch.linspace(0.1, 3, 50_000)
    message = (rows[:15] / torch.linspace(0.1, 3, 50_000)).sum(0)
    whole = explained(message, rows)
    monkeypatch.setattr(ridge, "DENSE", 30 * 50_000 - 1)
    regression = added(Regression(message, 30, [rows[20:24], rows[24:]]), rows.split(7))
    assert regression.sketched
    assert all(kept.shape[1] == ridge.BUCKETS for kept in regression.kept)
    sketched = regression.explain(0)
    assert np.corrcoef(sketched.weights, whole.weights)[0, 1] > 0.98
    assert sketched.weights[:15].min() > sketched.weights[15:].max()


def learnt(seed: int, steps: int = 30) -> tuple[torch.Tensor, torch.Tensor, Floats]:
    """A message of AdamW steps of a linear classifier on a coin's members, the directions of all records, the coin."""
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = torch.randn(60, 80, generator=generator), torch.randint(5, (60,), generator=generator)
    member = torch.rand(60, generator=generator) < 0.5
    start = 0.01 * torch.randn(5, 80, generator=generator)

    def gradient(weight: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
        leaf = weight.detach().requires_grad_()
        return torch.autograd.grad(F.cross_entropy(inputs[some] @ leaf.T, labels[some]), leaf)[0]

    weight = start.clone().requires_grad_()
    optimizer, listed = torch.optim.AdamW([weight], lr=1e-2), member.nonzero()[:, 0]
    for _ in range(steps):
        batch = listed[torch.randperm(len(listed), generator=generator)[:8]]
        weight.grad = gradient(weight, batch)
        optimizer.step()
    rows = torch.stack([-gradient(start, torch.tensor([i])).flatten() for i in range(60)])
    return (weight.detach() - start).flatten(), rows, member.numpy()


def test_members_are_found_and_a_second_coin_is_not() -> None:
    aurocs, second, rng = [], [], np.random.default_rng(0)
    for seed in range(12):
        message, rows, member = learnt(seed)
        weights = explained(message, rows).weights
        cosine = F.normalize(rows, dim=1) @ F.normalize(message, dim=0)
        aurocs.append((roc_auc_score(member, weights), roc_auc_score(member, cosine)))
        second.append(roc_auc_score(rng.permutation(60) % 2, weights))
    by_weight, by_cosine = np.mean(aurocs, axis=0)
    assert by_weight > 0.9
    assert by_weight > by_cosine
    assert abs(np.mean(second) - 0.5) < 4 * math.sqrt(61 / (12 * 900) / 12)


@pytest.fixture(scope="module")
def world() -> Any:
    made = copy.copy(WORLDS["lora"]())
    object.__setattr__(made, "learner", with_settings(made.learner, local_steps=2, batch=1))
    return made


@pytest.fixture(scope="module")
def run(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return world.run(world.make(learners.METHODS["fedavg"]), tmp_path_factory.mktemp("fedavg"))


def slow_gradients(learner: Any, start: State, names: list[str], records: list[str]) -> list[Floats]:
    rows = []
    for record in records:
        leaves = {name: t.clone().requires_grad_() for name, t in start.items()}
        learner.loss(leaves, [record]).backward()
        rows.append(-torch.cat([leaves[name].grad.flatten() for name in names]).double().numpy())
    return rows


def moved(before: State, after: State, names: list[str]) -> Floats:
    return torch.cat([(after[name] - before[name]).flatten() for name in names]).double().numpy()


def matrix_weights(rows: list[Floats], message: Floats) -> Floats:
    """As `slow_weights`, by matrices: a message has thousands of numbers."""
    g = np.stack(rows)
    v = np.sqrt((g**2).mean(0))
    p = g / (v + 0.001 * v.mean())
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    return np.linalg.solve(p @ p.T + 0.1 * np.eye(len(p)), p @ message / np.linalg.norm(message))


@pytest.mark.parametrize("r", [0, 1])
def test_a_message_is_explained_by_the_gradients_where_its_client_began(world: Any, run: Transcript, r: int) -> None:
    learner, view = world.learner, View(run, "server")
    records = [*world.training[CLIENT][:3], *world.training[0][:3]]
    found = AdapterMessages(view, learner).round(CLIENT, r, records, ("solved",), 5, False)
    upload = view.upload(r, CLIENT)
    rows = slow_gradients(learner, round_start(view, CLIENT, r), [*upload], records[:5])
    message = moved(view.broadcast(r), upload, [*upload])
    np.testing.assert_allclose(found["solved/weights"], matrix_weights(rows, message), atol=1e-6)


def test_the_order_of_the_records_does_not_matter(world: Any, run: Transcript) -> None:
    messages, records = AdapterMessages(View(run, "server"), world.learner), [*world.training[1], *world.training[0]]
    order = np.random.default_rng(0).permutation(len(records))
    shuffled = [records[i] for i in order]
    found = [messages.round(CLIENT, 1, some, ("solved",), len(records), False) for some in (records, shuffled)]
    one, other = (of["solved/weights"] for of in found)
    np.testing.assert_allclose(other, one[order], atol=1e-6)


def test_gradients_are_computed_once_for_cosine_and_decompose(world: Any, run: Transcript) -> None:
    taken: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.learner, name)

        def gradients(self, state: State, records: list[str], *, each: bool) -> Iterator[torch.Tensor]:
            taken.extend(records)
            yield from world.learner.gradients(state, records, each=each)

    records = [*world.training[CLIENT], *world.training[0][:2]]
    messages = AdapterMessages(View(run, "server"), Counting())  # type: ignore[arg-type]
    both = messages.round(CLIENT, 1, records, ("own", "heard", "solved"), 4, False)
    assert taken == records
    alone = [messages.round(CLIENT, 1, records, parts, 4, False) for parts in (("own", "heard"), ("solved",))]
    assert both.keys() == {*alone[0], *alone[1]}
    for name, array in (alone[0] | alone[1]).items():
        np.testing.assert_allclose(both[name], array, atol=1e-6)


def test_a_change_of_the_broadcast_is_explained_by_all_who_may_be_in_it(world: Any, run: Transcript) -> None:
    view = View(run, "released-model")
    records = [record for k in view.cohort(0) for record in world.training[k][:3]]
    found = AdapterMessages(view, world.learner).change(0, records)
    before, after = view.broadcast(0), view.broadcast(1)
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    message = moved(before, after, changed)
    rows = slow_gradients(world.learner, before, changed, records)
    np.testing.assert_allclose(found["weights"], matrix_weights(rows, message), atol=1e-6)


def test_all_messages_are_solved_for_candidates_and_some_references(run: Transcript) -> None:
    view, kind = View(run, "server"), TextQuestions()
    target = Target(CLIENT, ["a", "b"], [f"r{i}" for i in range(30)])
    assert kind.solved_for(target) == 2 + ridge.REFERENCES
    assert kind.solved_for(Target(CLIENT, ["a", "b"], ["r"])) == 3
    assert kind.solved_rounds(view, None, CLIENT, (), 0) == view.participations(CLIENT)
    assert kind.solved_rounds(view, None, CLIENT, (), 1) == view.participations(CLIENT)[:1]


def test_the_score_is_the_mean_over_messages() -> None:
    seen, *_ = texts(1.0)
    weights = np.stack([message.weights for message in seen.explained])
    score = Decompose(Params()).score(seen)["decompose"]
    np.testing.assert_allclose(score, np.nanmean(weights, axis=0))
    assert np.isnan(weights).any()
    with pytest.raises(ValueError, match="needs what was seen"):
        Decompose(Params()).score(seen.before_training())
