"""Layers that are computed twice: the same gradients to the bit, the adapter of the pass in both, and less memory."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.vlm import load
from fedaudit.machinery.store import claim
from fedaudit.tasks.base import Record
from fedaudit.trainers.base import State, generator, plain
from fedaudit.trainers.lora import Learner, Settings
from fedaudit.trainers.recompute import recompute
from tests import tiny_models
from tests.test_memory import peak

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
SETTINGS = Settings(batch=1, local_steps=3)
LITTLE = 1  # byte: not even one record's pass fits


def records() -> list[Record]:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (40, 40, 3), dtype=np.uint8) for _ in range(3)]
    texts = ["a cat sat on the mat", "a dog", "two birds over a house"]
    prompt = "USER : <image> describe the picture :"
    return [Record(f"r{i}", "g", *pair) for i, pair in enumerate(zip(pictures, [prompt] * 3, texts, strict=True))]


def learner_of(folder: Path, memory: int) -> Learner:
    vlm = load(folder)  # its own: layers of it are changed
    data = vlm.encode(records(), claim(folder.parent / "cache"), say=print)
    return Learner(vlm, data, SETTINGS, memory)


def start(learner: Learner) -> State:
    g = torch.Generator().manual_seed(1)
    made = learner.initial(generator(0, "initial"))
    return {n: t + 0.1 * torch.randn(t.shape, generator=g) for n, t in made.items()}


def recomputes(learner: Learner) -> int:
    return sum(isinstance(getattr(m, "forward", None), functools.partial) for m in layers(learner))


def layers(learner: Learner) -> list[torch.nn.Module]:
    return [m for m in learner.model.modules() if type(m).__name__.endswith("DecoderLayer")]


def gradients(learner: Learner, each: bool) -> Tensor:
    return torch.cat([*learner.gradients(start(learner), ["r0", "r1", "r2"], each=each)])


# every family; quick: LLaVA, and the built-in model
FAMILIES = [pytest.param(name, marks=[pytest.mark.slow] if name != "llava" else []) for name in tiny_models.FAMILIES]


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_are_the_same_to_the_bit(family: str, tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path / "model", tiny_models.FAMILIES[family])
    usual, little = learner_of(folder, 10**9), learner_of(folder, LITTLE)
    assert recomputes(usual) == 0
    assert recomputes(little) == len(layers(little)) > 0
    state, ids = start(usual), ["r0", "r1", "r2"]
    trained = [one.train(state, ids, generator(0, "batches"), plain) for one in (usual, little)]
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in state)
    assert not any(torch.equal(trained[0][name], state[name]) for name in state)
    # parts of one record in both
    alone = torch.cat([*itertools.chain(*(usual.gradients(state, [name], each=True) for name in ids))])
    assert torch.equal(alone, gradients(little, True))
    assert usual.losses(state, ids) == little.losses(state, ids)


def test_the_adapter_of_a_pass_is_the_one_of_its_second_time(tmp_path: Path) -> None:
    """Not the one that lies in the model when the gradient is taken."""
    folder = tiny_models.save(tmp_path / "model", tiny_models.llava)
    usual, little = learner_of(folder, 10**9), learner_of(folder, LITTLE)
    state = start(usual)

    def gradient(learner: Learner) -> list[Any]:
        leaves = {name: t.clone().requires_grad_() for name, t in state.items()}
        loss = learner.loss(leaves, ["r0"])
        learner.load_adapter({name: torch.full_like(t, 9.0) for name, t in state.items()})
        return list(torch.autograd.grad(loss, list(leaves.values())))

    assert all(torch.equal(a, b) for a, b in zip(gradient(usual), gradient(little), strict=True))


def test_a_pass_holds_less(tmp_path: Path) -> None:
    """The built-in model has more layers than the tiny ones."""
    vlm = load(EMBEDDED)
    data = vlm.encode(records(), claim(tmp_path), say=print)
    settings = Settings(batch=1, local_steps=1)
    usual = Learner(vlm, data, settings)
    before = usual._bytes_per_token
    state = start(usual)
    most = peak(lambda: usual.train(state, ["r0"], generator(0, "batches"), plain))
    little = Learner(vlm, data, settings, LITTLE)
    count, width = len(layers(little)), vlm.model.config.get_text_config().hidden_size
    assert little._bytes_per_token == before // count + count * width * 4 < before / 2  # one layer, and all inputs
    assert peak(lambda: little.train(state, ["r0"], generator(0, "batches"), plain)) < 0.8 * most
    assert recompute(little.model) == len(layers(little))  # again changes nothing
    little.train(state, ["r0"], generator(0, "batches"), plain)
