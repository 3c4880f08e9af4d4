"""--memory: what a client of prompts holds is counted as it is measured, and decides how many train together."""

import argparse
import dataclasses
import itertools
from unittest import mock

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fedaudit.backbones.clip import FrozenCLIP, ImageFeatures, load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.command import cli, exits
from fedaudit.command.argv import size
from fedaudit.contracts import maple_toy
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.workers import resources_of
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers import dp2fl, maple, prompt_model
from fedaudit.trainers.base import Participation, Schedule, generator
from fedaudit.trainers.prompts import Cohort, Learner, Settings
from tests import prompt_toy
from tests.prompt_toy import made


def peak(work) -> int:
    """The most bytes of tensors that `work` has allocated and not freed."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore
    sizes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(sizes))


@pytest.fixture(scope="module")
def embedded() -> FrozenCLIP:
    return load(resolve_clip("", ""))


def learner_of(clip: FrozenCLIP, classes: int, records: int, settings: Settings, *, patches: int = 0) -> Learner:
    row = {f"r{i}": i for i in range(records)}
    features = torch.nn.functional.normalize(torch.randn(records, 1 + patches, clip.embed), dim=-1)
    seen = ImageFeatures(row, features[:, 0], list(features) if patches else None)
    names = [f"thing {c:03d}" for c in range(classes)]
    return Learner(clip, seen, {record: i % classes for record, i in row.items()}, names, settings)


CASES = {  # one for each part of the count
    "a short prompt": ("dpfpl", {"rank": 2}, 40, Settings(prompt_length=4), 0),
    "a large batch": ("promptfl", {}, 20, Settings(batch=64), 0),
    "a context of its own for every class": ("promptfl", {}, 20, Settings(class_contexts=True), 0),
    "two prompts and many patches": ("fedotp", {"match": "ot"}, 20, Settings(), 196),
}


@pytest.mark.parametrize("case", CASES)
def test_a_client_holds_what_is_counted(case: str, embedded: FrozenCLIP) -> None:
    clients = 2
    name, params, classes, settings, patches = CASES[case]
    schedule, batch = Schedule(1, clients, clients), settings.batch
    method = made(name, params, Privacy(epsilon=1), schedule, settings)
    learner = learner_of(embedded, classes, clients * batch, settings, patches=patches)
    learner.memory = clients * learner.client_bytes(method)
    own = [[f"r{k * batch + i}" for i in range(batch)] for k in range(clients)]
    (step,) = Cohort(learner, [Participation(k, 0, 0, ids, learner) for k, ids in enumerate(own)], method).steps()
    start = method.start(learner.initial(generator(0, "initial")))
    prompt = method.prompt({n: t.expand(clients, *t.shape) for n, t in start.items()}).clone()
    assert step.batch.labels.shape == (batch, clients)
    assert learner.clients_per_batch(method) == clients
    assert peak(lambda: step.gradient(prompt)) == pytest.approx(learner.memory, rel=0.15)


def test_a_client_of_dual_prompts_holds_what_is_counted(embedded: FrozenCLIP) -> None:
    settings, clients, classes = maple.Settings(local_epochs=0, local_steps=1), 3, 20
    soft = learner_of(embedded, classes, clients * 5, Settings())
    with torch.no_grad():
        cut = embedded.vision.tokens(torch.randn(clients * 5, 3, *embedded.model.visual.image_size))
    row = soft.features._row
    tokens = ImageFeatures(row, cut[:, 0], list(cut))
    learner = maple.Learner(embedded, soft.features, tokens, soft._labels, soft.classes, settings)
    method = dp2fl.DP2FL(dp2fl.Params())
    start, ids = method.start(learner.initial(generator(0, "initial"))), list(row)
    turns = [Participation(k, 0, 0, ids[5 * k : 5 * k + 5], learner) for k in range(clients)]
    held = peak(lambda: learner.work(method, [start] * clients, [start] * clients, turns))
    assert held == pytest.approx(clients * learner.client_bytes(method), rel=0.2)


def test_memory_decides_how_many_train_together() -> None:
    method, learner = made("dpfpl", {"rank": 2}), prompt_toy.federation().learner()
    assert learner.memory == prompt_model.MEMORY["cpu"]
    each = learner.client_bytes(method)
    for memory, together in ((1, 1), (each, 1), (2 * each - 1, 1), (2 * each, 2), (1000 * each, prompt_model.TOGETHER)):
        learner.memory = memory
        assert learner.clients_per_batch(method) == together, memory
    assert maple_toy.learner().clients_per_batch(method) == prompt_model.TOGETHER


def test_the_embedded_models_train_fifty_clients_together(embedded: FrozenCLIP) -> None:
    """Of 40 classes, the most that an embedded task has: no usual run's numbers depend on what is given here."""
    for name, params in (("dpfpl", {}), ("fedotp", {"match": "ot"}), ("fedpgp", {}), ("promptfl", {})):
        learner = learner_of(embedded, 40, 1, Settings(), patches=16)
        assert learner.clients_per_batch(made(name, params, settings=Settings())) == 50


def test_gradients_go_back_one_by_one_where_several_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    world = prompt_toy.federation()
    method, records = made("promptfl", {}), world.ids[:5]
    grad = mock.Mock(wraps=torch.autograd.grad)
    monkeypatch.setattr(torch.autograd, "grad", grad)
    found = []
    for memory in (10**9, 1):
        learner = world.learner()
        learner.memory = memory
        found += learner.gradients(method, {"prompt": learner.initial(generator(0, "initial"))["p_G"]}, records)
    assert [len(call.args[2]) for call in grad.call_args_list if call.kwargs.get("is_grads_batched")] == [5]
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)


def test_images_that_do_not_fit_are_scored_in_parts() -> None:
    """Of transport, whose similarities are those of all patches: the same numbers."""
    world = prompt_toy.federation()
    method = dataclasses.replace(made("fedotp", {"match": "ot"}), settings=prompt_toy.SETTINGS)
    whole, parts = world.learner(), world.learner()
    parts.memory = 1
    models = [method.model(whole.initial(generator(k, "initial"))) for k in range(3)]
    one, other = (torch.from_numpy(learner.log_probs(method, models, world.ids)) for learner in (parts, whole))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    assert (parts.predicted(models, world.ids, method) == whole.predicted(models, world.ids, method)).all()


def test_sizes_are_read() -> None:
    read = {"500MB": 5 * 10**8, "4GB": 4 * 10**9, "1.5gb": 15 * 10**8, "2000000": 2 * 10**6}
    assert {text: size(text) for text in read} == read
    for text in ("4", "4TB", "-1GB", "GB", "1,5GB", "0.5MB", "1001GB"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"500MB or 4GB|between 1MB and 1000GB"):
            size(text)


def test_memory_is_given_to_both_learners_and_is_part_of_the_key() -> None:
    for method in ("dpfpl", "fedavg"):
        usual, more = (cli.read_command(["--method", method, *words]).plan for words in ([], ["--memory", "4GB"]))
        assert resources_of(usual).memory == 0
        assert resources_of(more).memory == 4 * 10**9
        assert "memory" not in usual.cells[0].setting
        assert more.cells[0].setting == usual.cells[0].setting | {"memory": 4 * 10**9}
    with pytest.raises(InputError, match=r"--memory: 'much' must be a size, as 500MB or 4GB"):
        cli.read_command(["--memory", "much"])


def test_messages_about_memory_name_the_flag() -> None:
    full = type("OutOfMemoryError", (RuntimeError,), {})
    assert "lower --memory or --batch" in exits._sentence(full("x"))
    assert "lower --threads, --memory" in exits._sentence(MemoryError())
