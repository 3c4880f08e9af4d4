"""A real round of DP-FPL on the full-size architectures of the paper, randomly initialised, through the project's own loop."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedaudit.backbones.clip import load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import claim
from fedaudit.privacy.settings import Privacy
from fedaudit.tasks import drawings
from fedaudit.tasks.classification import Labelled, federate
from fedaudit.trainers.base import Schedule
from fedaudit.trainers.dpfpl import DPFPL, Params
from fedaudit.trainers.evaluations import Recognition
from fedaudit.trainers.prompts import Learner, Settings
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train

CLASSES, TRAIN, TEST = 4, 8, 2


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    labels, tests = (np.repeat(np.arange(CLASSES), n) for n in (TRAIN, TEST))
    drawn = [drawings.draw("neon", part.tolist(), rng) for part in (labels, tests)]
    data = Labelled("neon", drawings.CLASSES[:CLASSES], drawn[0], labels, drawn[1], tests)
    params = SimpleNamespace(partition="pathological", dirichlet=0.3, shots=0, reference_share=0.25, holdout=0.5)
    return federate([data], params=params, clients=2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "width", "epsilon"), [("ViT-B-16", 512, 0.4), ("RN50", 512, float("inf"))])
def test_a_round_moves_the_prompts_and_leaves_the_model_alone(architecture, width, epsilon, federation, tmp_path):
    clip = load(resolve_clip(architecture, "random"))
    before = {name: t.clone() for name, t in clip.model.state_dict().items()}
    settings = Settings(batch=4)
    records = list(federation.records.values())
    number = {name: i for i, name in enumerate(federation.classes)}
    features = clip.encode(records, claim(tmp_path / "cache"), say=print)
    learner = Learner(clip, features, {r.id: number[r.group] for r in records}, federation.classes, settings)
    training = [[r.id for r in client.training_records] for client in federation.clients]
    bench = Bench(learner, training, [r.id for r in federation.test])
    schedule = Schedule(rounds=1, clients=2, per_round=2, seed=0)
    method = DPFPL(Params(rank=4), settings).protected(Privacy(epsilon=epsilon), schedule, [len(t) for t in training])
    local = [[r.group in client.classes for r in federation.test] for client in federation.clients]
    with Executor(lambda: bench) as executor:
        run = train(method, schedule, Recognition(local), folder=claim(tmp_path / "run"), executor=executor,
                    say=print, advance=lambda: None)  # fmt: skip
    for k in range(2):
        prompt, start = run.personal(0, k)["prompt"], method.prompt(run.broadcast(0))
        assert prompt.shape == (16, width)
        assert torch.isfinite(prompt).all()
        assert not torch.equal(prompt, start)
    assert ("noise" in run.round(0)) == np.isfinite(epsilon)
    assert set(run.round(0)["utility"]["clients"]) == {"local", "neighbour", "overall"}
    assert all(torch.equal(t, before[name]) for name, t in clip.model.state_dict().items())
