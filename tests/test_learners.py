"""What the files of learners say of them, read without importing them, holds."""

import importlib

import pytest

from fedaudit.machinery import plugins
from fedaudit.terms.threat_models import THREAT_MODELS
from trainers.learners import USUAL, every_learner, facts

LEARNERS = every_learner()
each = pytest.mark.parametrize("learner", LEARNERS)


@each
def test_its_usual_words_are_of_its_own(learner):
    found = facts(learner)
    for kind in ("method", "task"):
        assert plugins.find(kind, getattr(found, kind), flag=f"--{kind}").learner == learner
    if found.attack != "none":
        assert found.fits(plugins.find("attack", found.attack, flag="--attack"))
    assert all(found.fits(plugins.plugins("attack")[name]) for name in found.alone)
    assert found.attack != "none" or found.unattacked


@each
def test_its_threat_models_exist(learner):
    found = facts(learner)
    assert set(found.threat_models) <= {*THREAT_MODELS}
    assert "owner" in found.threat_models  # the upper bound that other rows are compared with


@each
def test_its_schedule_can_be_run(learner):
    found = facts(learner)
    assert min(found.rounds, found.clients) >= 1
    assert found.per_round is None or 1 <= found.per_round <= found.clients


@each
def test_its_module_holds_what_a_plan_asks_of_it(learner):
    module = importlib.import_module(f"trainers.{learner}")
    assert vars(module.Facts()) == vars(facts(learner))  # imported, and read from the source
    for name in ("Settings", "Learner", "prepared", "exam"):
        assert hasattr(module, name), name


def test_one_of_them_is_the_usual_one():
    assert USUAL in LEARNERS
