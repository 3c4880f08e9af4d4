"""The LoRA methods on the built-in model: everything that is trained has a gradient, the low-rank product is the dense one, exports load in peft."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.vlm import load
from fedaudit.machinery.store import claim
from fedaudit.tasks import captions
from fedaudit.trainers.base import Participation, Schedule, generator
from fedaudit.trainers.evaluations import Answers
from fedaudit.trainers.learners import METHODS
from fedaudit.trainers.lora import Learner, Settings, export_adapters
from fedaudit.trainers.lowrank import train_as_one, train_beside
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests import tiny_models
from tests.toy import trained

torch.set_num_threads(1)
LORA = [name for name, plugin in METHODS.items() if plugin.facts.learner == "lora"]


def make_learner(federation, folder, **settings):
    vlm = load(EMBEDDED)  # its own: adapters are put on it
    data = vlm.encode(list(federation.records.values()), claim(folder), say=print)
    return Learner(vlm, data, Settings(**settings))


@pytest.fixture(scope="module")
def federation():
    return captions.captions(captions.Params(records=8, reference=2, novel=2, test=2), clients=2, seed=0)


@pytest.fixture(scope="module")
def learner(federation, tmp_path_factory):
    return make_learner(federation, tmp_path_factory.mktemp("cache"), local_steps=1)


@pytest.fixture(scope="module")
def records(federation):
    return [r.id for r in federation.clients[0].training_records]


def method(name, **params):
    plugin = METHODS[name]
    return plugin.make(plugin.params(**params))


def one_step(learner, method, records):
    """What a client holds after one local step of its first participation."""
    server = learner.initial(generator(0, "initial"))
    client = Participation(0, 0, 0, records, learner)
    return method.update(method.download(server, client), server, client).private


def gradients(learner, method, state, records):
    leaves = {name: t.clone().requires_grad_() for name, t in state.items()}
    learner.loss(method.model(leaves), records[:4]).backward()
    return {name: leaf.grad for name, leaf in leaves.items()}


@pytest.mark.parametrize("name", LORA)
def test_every_trainable_tensor_has_a_gradient_after_one_step(name, learner, records):
    found = gradients(learner, method(name), one_step(learner, method(name), records), records)
    assert len(found) == (4 if name == "fedpara" else 2) * 6 * 7
    assert [name for name, gradient in found.items() if gradient is None or not gradient.any()] == []


def test_the_pure_product_of_two_lora_pairs_never_trains(learner, records):
    """The gradient of all four factors is exactly zero at the start, and so after any number of steps."""
    product = method("fedpara", form="product")
    state = one_step(learner, product, records)
    for _ in range(2):
        assert not any(g.any() for g in gradients(learner, product, state, records).values())
        state = learner.train(state, records, generator(0, "more"), product.model)
    base = learner.initial(generator(0, "initial"))
    assert all(not t.any() for name, t in state.items() if name.endswith(".B"))
    tuned, public = (tiny_models.logits_of(learner, model, records) for model in (product.model(state), base))
    assert all(map(torch.equal, tuned, public))


def test_the_personal_form_starts_at_the_public_model_and_learns(learner, records):
    personal, start = method("fedpara"), learner.initial(generator(0, "initial"))
    state = start | personal.private_pair(start, Participation(0, 0, 0, records, learner))
    before = learner.losses(personal.model(state), records)
    assert before == pytest.approx(learner.losses(start, records), abs=1e-5)
    for step in range(4):
        state = learner.train(state, records, generator(0, "step", step), personal.model)
    assert sum(learner.losses(personal.model(state), records)) < sum(before)


@pytest.mark.parametrize("form", ["personal", "product"])
def test_low_rank_gradients_equal_those_of_the_dense_hadamard_product(form, learner, federation, records):
    """Slow oracle: the weight matrices themselves, W0 + s (B A) o (1 + B' A') or s (B A) o (B' A'), in the frozen model."""
    fedpara, g = method("fedpara", form=form), torch.Generator().manual_seed(5)
    server = learner.initial(generator(0, "initial"))
    state = server | fedpara.private_pair(server, Participation(0, 0, 0, records, learner))
    state = {name: t + 0.02 * torch.randn(t.shape, generator=g) for name, t in state.items()}
    fast = gradients(learner, fedpara, state, records)
    slow = {name: t.clone().requires_grad_() for name, t in state.items()}
    scale, weights = learner.settings.alpha / learner.settings.rank, {}
    for layer in sorted({name[:-2] for name in server}):
        a, b, a2, b2 = (slow[f"{layer}.{part}"] for part in ("A", "B", "own.A", "own.B"))
        factor = (1 if form == "personal" else 0) + b2 @ a2
        place = learner._names[f"{layer}.A"].replace("lora_A.default", "base_layer")
        weights[place] = learner.model.get_parameter(place).detach() + scale * (b @ a) * factor
    batch = learner.vlm.batch([learner.data[r] for r in records[:4]])
    with learner.model.disable_adapter():
        logits = torch.func.functional_call(learner.model, weights, kwargs=batch.inputs).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten())
    loss.backward()
    for name, leaf in slow.items():
        assert torch.allclose(fast[name], leaf.grad, rtol=1e-2, atol=1e-4 * float(leaf.grad.abs().max())), name


def test_local_epochs_give_the_papers_number_of_steps_and_only_named_projections_are_adapted(federation, tmp_path):
    """T_k = ceil(n_k / b) E (FedRand, Algorithm 2): 10 records in batches of 4 for two epochs are 6 steps."""
    some = make_learner(federation, tmp_path, local_epochs=2, batch=4, target_modules="q_proj,v_proj")
    assert [len([*some.settings.batches(n, generator(0, "x"))]) for n in (1, 4, 5, 10)] == [2, 2, 4, 6]
    assert len(some.parameters) == 6 * 2 * 2
    assert {name.split(".")[-2] for name in some.parameters} == {"q_proj", "v_proj"}


@pytest.fixture(scope="module")
def short_run(learner, federation, tmp_path_factory):
    """A FedPara run of two rounds with everything that a transcript holds."""
    training = [[r.id for r in c.training_records] for c in federation.clients]
    evaluation = Answers([r.references for r in federation.test], federation.score)
    bench = Bench(learner, training, [r.id for r in federation.test])
    schedule = Schedule(rounds=2, clients=2, per_round=1)
    return trained(tmp_path_factory.mktemp("run"), method("fedpara"), schedule, bench, evaluation=evaluation)


def test_exported_adapters_load_in_peft_and_are_the_same_model(short_run: Transcript, learner, federation, tmp_path):
    export_adapters(Bench(learner, [], []), (short_run, claim(tmp_path)))
    took_part = {f"client-{k:02d}" for r in range(2) for k in short_run.cohort(r)}
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"global"} | took_part
    client, record = short_run.cohort(1)[0], federation.test[0].id
    for folder, state in (("global", short_run.broadcast(2)), (f"client-{client:02d}", short_run.own_model(1, client))):
        vlm = load(EMBEDDED)
        tuned = PeftModel.from_pretrained(vlm.model, tmp_path / folder)
        with torch.no_grad():
            logits = tuned(**vlm.batch([learner.data[record]]).inputs).logits[0]
        assert torch.allclose(logits, tiny_models.logits_of(learner, state, [record])[0], atol=1e-3)


def adapted(*, bias: bool):
    torch.manual_seed(0)
    config = LoraConfig(r=3, lora_alpha=4.5, target_modules=["0"], init_lora_weights=False)
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(5, 7, bias=bias)).double(), config)
    return model, model.base_model.model[0]


def passed(layer, x, factors):
    """Output and all gradients of a pass."""
    x = x.clone().requires_grad_()
    out = layer(x)
    return out, torch.autograd.grad((out**2).sum(), [x, *factors])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [3, 6])
def test_value_and_gradients_are_those_of_peft(bias, rank):
    model, layer = adapted(bias=bias)
    factors = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    factors[0].data, factors[1].data = torch.randn(rank, 5).double(), torch.randn(7, rank).double()
    x = torch.randn(2, 4, 5).double()
    out, gradients = passed(layer, x, factors)
    train_as_one(layer)
    fused, again = passed(layer, x, factors)
    assert torch.allclose(fused, out, rtol=1e-12)
    for one, other in zip(again, gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
    assert torch.autograd.gradcheck(layer, x.requires_grad_())
    with model.disable_adapter():
        assert torch.equal(layer(x), layer.base_layer(x))


@pytest.mark.parametrize("train", [train_as_one, train_beside])
def test_copies_of_the_factors_get_the_gradients_of_single_records(train):
    """Of x [R, T, in] with A [R, r, in] and B [R, out, r]; one record with factors [r, in] and [out, r] at a time."""
    _, layer = adapted(bias=True)
    train(layer)
    x, factors = torch.randn(3, 4, 5).double(), (torch.randn(3, 5).double(), torch.randn(7, 3).double())
    copies = [factor.expand(3, *factor.shape).detach().requires_grad_() for factor in factors]
    names = ("lora_A.default.weight", "lora_B.default.weight")
    out = torch.func.functional_call(layer, dict(zip(names, copies, strict=True)), x)
    gradients = torch.autograd.grad((out**2).sum(), copies)
    for i in range(3):
        own = [factor.clone().requires_grad_() for factor in factors]
        alone = torch.func.functional_call(layer, dict(zip(names, own, strict=True)), x[i : i + 1])
        assert torch.allclose(out[i : i + 1], alone, rtol=1e-10)
        for several, one in zip(gradients, torch.autograd.grad((alone**2).sum(), own), strict=True):
            assert torch.allclose(several[i], one, rtol=1e-10)
