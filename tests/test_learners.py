"""What the files of learners say of them, read without importing them, holds."""

import concurrent.futures
import copy
import dataclasses
import importlib
import math
import multiprocessing
import pickle

import pytest

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.threats import lacks
from fedaudit.command.cli import read_command
from fedaudit.command.listing import KINDS
from fedaudit.machinery.parameters import Between
from fedaudit.tasks.facts import TASKS
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.trainers.learners import METHODS, USUAL, LearnerFacts, every_learner, facts

LEARNERS = every_learner()
each = pytest.mark.parametrize("learner", LEARNERS)


@each
def test_its_usual_words_are_of_its_own_and_can_be_run(learner):
    found = facts(learner)
    assert USUAL in LEARNERS
    assert METHODS[found.method].facts.learner == TASKS[found.task].facts.learner == learner
    assert all(lacks(ATTACKS[name], found) is None for name in {found.attack, *found.alone} - {"none"})
    assert found.attack != "none" or found.unattacked
    assert {"owner"} <= set(found.threat_models) <= {*THREAT_MODELS}  # the upper bound that others are compared with
    assert min(found.rounds, found.clients) >= 1
    assert found.per_round is None or 1 <= found.per_round <= found.clients


@each
def test_its_module_holds_what_a_plan_asks_of_it(learner):
    module = importlib.import_module(f"fedaudit.trainers.{learner}")
    own, read = module.Facts(), facts(learner)  # imported, and read from the source
    assert all(getattr(own, name) == getattr(read, name) for name in LearnerFacts.__annotations__)
    for name in ("Settings", "Learner", "prepared", "evaluation"):
        assert hasattr(module, name), name


@pytest.fixture(scope="module")
def another_process():
    """A process that is spawned, as on macOS and Windows: it has nothing of this one, and gets all by pickle."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def values(plan):
    return {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}


@each
def test_its_plan_reaches_another_process(learner, another_process):
    plan = read_command(["--method", facts(learner).method]).plan
    assert values(pickle.loads(pickle.dumps(plan))) == values(plan)
    assert values(another_process.submit(copy.copy, plan).result()) == values(plan)


def test_every_plugins_parameters_reach_another_process(another_process):
    for params in [plugin.params() for kind in KINDS.values() for plugin in kind.values()]:
        assert pickle.loads(pickle.dumps(params)) == params
        assert another_process.submit(copy.copy, params).result() == params


def test_parameters_beyond_their_bounds_are_refused_by_name():
    """Of every plugin and learner, each below and above what it states, and no number at all or no option."""
    checked = [plugin.params for kind in KINDS.values() for plugin in kind.values()]
    checked += [importlib.import_module(f"fedaudit.trainers.{learner}").Settings for learner in LEARNERS]
    fields = [(of, field) for of in checked for field in dataclasses.fields(of) if "valid" in field.metadata]
    assert len(fields) > 100
    for of, field in fields:
        valid, beyond = field.metadata["valid"], ["no such"]
        if isinstance(valid, Between):
            low = valid.low if valid.open_low else valid.low - 1
            beyond = [low, valid.high if valid.open_high else 2 * valid.high + 1, math.nan]
        for value in beyond if valid else ():
            with pytest.raises(ValueError, match=rf"^{field.name} must be .*, not"):
                of(**{field.name: value})
