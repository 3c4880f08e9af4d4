"""Contracts of every attack: each is a function of an attack, which scores what a synthetic adversary knows."""

from __future__ import annotations

import ast
import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from fedaudit.attacks.answers import ClassAnswers, TextAnswers
from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Floats, Knowledge, Shadows
from fedaudit.contracts import knowledge_toy, text_toy
from fedaudit.contracts.knowledge_toy import (
    auroc,
    by_chance,
    classified,
    log_probs_of,
    picked,
    shadows_of,
    some_of,
    toy_seen,
)
from fedaudit.contracts.text_toy import KNOWN, texts
from fedaudit.machinery import closure
from fedaudit.machinery.plugins import Plugin

Attack = Plugin[AttackFacts]
Contract = Callable[[Attack], None]

# rooms that know who trained on what, or can read it from a disk
TRUTH = ("audits", "tasks", "pipeline", "external", "reports", "command", "machinery.store", "machinery.executor")

# parameters of attacks whose defaults see nothing in texts of twelve words
ON_TOY: dict[str, dict[str, float]] = {}


def scores_of(attack: Attack, knowledge: Knowledge, **params: Any) -> dict[str, Floats]:
    """The scores of an attack with its defaults, or in texts of twelve words those of `ON_TOY`, but for `params`."""
    ours = ON_TOY.get(attack.name, {}) if isinstance(knowledge.answers, TextAnswers) else {}
    return knowledge_toy.scores_of(attack, knowledge, **(ours | params))


def seen_by(attack: Attack, **world: Any) -> tuple[Knowledge, NDArray[np.bool_]]:
    """Knowledge of classes (see `toy_seen`) with answers to the attack's own probes, and who the members are."""
    knowledge, member = toy_seen(**world)
    if "probes" in attack.facts.needs:
        knowledge = dataclasses.replace(knowledge, probed=dict.fromkeys([attack.name], *knowledge.probed.values()))
    return knowledge, member


def learns_no_truth(attack: Attack) -> None:
    """Neither the attack nor a module that it imports imports what knows who the members are."""
    for module in _below(attack.module):
        for name in closure.imported(module):
            room = name.removeprefix("fedaudit.")
            assert not any(f"{room}.".startswith(f"{shut}.") for shut in TRUTH), f"{module} imports {name}"
        path = closure.source_file(module)
        assert path is not None
        opened = {node.id for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Name)} & OPENING
        assert not opened, f"{module} uses {', '.join(sorted(opened))}: an attack reads its knowledge only"


OPENING = {"open", "globals", "__import__"}  # ways around the knowledge


def _below(module: str) -> Iterator[str]:
    """Yield a module, and all that it imports of the rooms of attacks and of its own package, directly or not."""
    todo, reached = [module], set[str]()
    while todo:
        if (one := todo.pop()) not in reached:
            reached.add(one)
            yield one
            ours = ("fedaudit.attacks.", f"{module.partition('.')[0]}.") if not module.startswith("fedaudit.") else ()
            todo += [name for name in closure.imported(one) if name.startswith(ours or "fedaudit.attacks.")]


# --- on classes -----------------------------------------------------------------------------------------------------


def one_score_per_record(attack: Attack) -> None:
    """Scores are those that `signals` names, one number per record; they begin with the attack's name."""
    knowledge, _ = seen_by(attack, leak=1.0)
    scores = scores_of(attack, knowledge)
    assert tuple(scores) == attack.facts.names(), f"scores are {[*scores]}, signals {attack.facts.names()}"
    for name, score in scores.items():
        _check_shape(name, score, knowledge)
        assert name.partition("/")[0] == attack.name, f"{name} does not begin with {attack.name}"


def repeats(attack: Attack) -> None:
    """Scoring changes nothing that it was given, and the same knowledge gives the same scores to the bit."""
    knowledge, _ = seen_by(attack, leak=1.0)
    before = copy.deepcopy(knowledge)
    first, again = scores_of(attack, knowledge), scores_of(attack, before)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
    untouched, _ = seen_by(attack, leak=1.0)
    both = (knowledge, untouched), (knowledge.shadows, untouched.shadows), (knowledge.rounds, untouched.rounds)
    for one, other in both:
        assert one is not None
        for field in dataclasses.fields(one):
            if isinstance(getattr(one, field.name), np.ndarray):
                np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), field.name)


def finds_a_leak(attack: Attack) -> None:
    """Members stand out in every score where training left a strong trace."""
    knowledge, member = seen_by(attack, leak=2.0, records=192, known=48, shadows=24)
    for name, score in scores_of(attack, knowledge).items():
        assert (results := auroc(knowledge, member, score)) > 0.6, f"{name}: AUROC {results:.2f} of a strong leak"


def ignores_order(attack: Attack) -> None:
    """A record has its score wherever it stands in the list."""
    knowledge, _ = seen_by(attack, leak=1.0)
    assert knowledge.shadows is not None
    assert knowledge.rounds is not None
    order = np.random.default_rng(1).permutation(len(knowledge.records))

    def of(array: Any) -> Any:
        return array[..., order]

    shuffled = dataclasses.replace(
        knowledge,
        records=tuple(knowledge.records[i] for i in order), known=of(knowledge.known),
        hard=_rows(knowledge.hard, order),
        answers=ClassAnswers(knowledge.log_probs[order], knowledge.labels[order]),
        base=ClassAnswers(_log_probs(knowledge.base)[order], knowledge.labels[order]),
        gradient_norms=of(knowledge.gradient_norms), base_gradient_norms=of(knowledge.base_gradient_norms),
        shadows=shadows_of(
            of(knowledge.shadows.member), log_probs_of(knowledge.shadows)[:, order], knowledge.labels[order],
            of(knowledge.shadows.gradient_norms), projections=of(knowledge.shadows.projections),
        ),
        projections=of(knowledge.projections), base_projections=of(knowledge.base_projections), sequence=None,
        history=of(knowledge.history), rounds=picked(knowledge.rounds, order),
    )  # fmt: skip
    results = scores_of(attack, shuffled)
    for name, score in scores_of(attack, knowledge).items():
        alike = np.allclose(results[name], score[order], rtol=0, atol=1e-9, equal_nan=True)
        if not alike and attack.facts.shadows:  # training amplifies the rounding of float32
            alike = spearmanr(results[name], score[order], nan_policy="omit").statistic > 0.99
        assert alike, f"{name} depends on the order of the records"


def finds_nothing_before_training(attack: Attack) -> None:
    """The public start says nothing about who will be a member."""
    knowledge, member = seen_by(attack, leak=3.0, records=400, known=100, shadows=8)
    for name, score in scores_of(attack, knowledge.before_training()).items():
        _check_chance(name, auroc(knowledge, member, score), by_chance(150, 150))


def finds_nothing_without_a_leak(attack: Attack) -> None:
    """Where training leaves no trace nothing tells members from others; eight worlds, or each shadow as the target."""
    results: dict[str, list[float]] = {}
    if attack.facts.needs and not attack.facts.shadows:
        for seed in range(8):
            knowledge, member = seen_by(attack, leak=0.0, records=400, known=100, shadows=4, seed=seed)
            for name, score in scores_of(attack, knowledge).items():
                results.setdefault(name, []).append(auroc(knowledge, member, score))
        bound = by_chance(150, 150, 8)
    else:
        results, bound = _shadows_in_turn(attack, 0.0), by_chance(45, 45, 12)
        for name, values in _shadows_in_turn(attack, 2.0).items():
            assert abs(np.mean(values) - 0.5) > bound, f"{name} finds nothing where a shadow is the target"
    for name, values in results.items():
        _check_chance(name, float(np.mean(values)), bound)


def _shadows_in_turn(attack: Attack, leak: float) -> dict[str, list[float]]:
    """The AUROC of each score for each shadow that is attacked with the others."""
    knowledge, _ = seen_by(attack, leak=leak, records=120, known=30, classes=3, shadows=12, seed=3)
    assert knowledge.shadows is not None
    results: dict[str, list[float]] = {}
    for s, member in enumerate(knowledge.shadows.member):
        for name, score in scores_of(attack, knowledge.leave_out(s)).items():
            results.setdefault(name, []).append(auroc(knowledge, member, score))
    return results


def bears_certainty(attack: Attack) -> None:
    """Probabilities of 0 and 1 give every candidate a number and no warning; of an attack that looks at the label, the
    certain record looks more like a member than the impossible one."""
    labels = np.array([0, 0, 1, 1, 2, 2, 0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        scores, others = (scores_of(attack, _certain(labels_told)) for labels_told in (labels, (labels + 1) % 3))
    for name, score in scores.items():
        assert not np.isnan(score[:6]).any(), f"{name} has no number for a record of probability 0 or 1"
        if not np.array_equal(score, others[name], equal_nan=True):
            assert (score[[0, 2, 4]] > score[[1, 3, 5]]).all(), f"{name} ranks impossible records above certain ones"


def _certain(labels_told: NDArray[np.int64]) -> Knowledge:
    """Knowledge of records that models are certain of, rightly and wrongly in turn, by the labels 0 0 1 1 2 2 0 1;
    `asked` are the labels that the adversary is told."""
    rng, eye = np.random.default_rng(0), np.eye(3)
    labels = np.array([0, 0, 1, 1, 2, 2, 0, 1])
    wrong, even = (labels + 1) % 3, np.arange(8) % 2 == 0
    member = rng.random((10, 8)) < 0.5
    member[0], member[1], member[:, 6:] = True, False, False
    member[0, 6:] = False
    with np.errstate(divide="ignore"):
        shadows = np.log(np.where(member[:, :, None], eye[labels], eye[wrong]))
        target = np.log(np.where(even[:, None], eye[labels], eye[wrong]))
    uniform, norms = np.full((8, 3), -math.log(3)), np.where(even, 0.0, 1.0)
    nonmembers, names = np.arange(8) >= 6, tuple(f"r{i}" for i in range(8))
    of_shadows = shadows_of(member, shadows, labels_told)
    knowledge = classified(names, labels_told, nonmembers, target, uniform, uniform, shadows=of_shadows)
    assert knowledge.shadows is not None
    moved: Shadows = dataclasses.replace(knowledge.shadows, projections=np.where(member, 1.0, 0.0))
    return dataclasses.replace(knowledge, gradient_norms=norms, shadows=moved, projections=1 - norms)


# --- on texts -------------------------------------------------------------------------------------------------------


def one_score_per_text(attack: Attack) -> None:
    """Every score is one number per text, and the headlines are among them."""
    knowledge, *_ = texts(1.0)
    scores = scores_of(attack, knowledge)
    for name, score in scores.items():
        _check_shape(name, score, knowledge)
    assert {*headlines(attack)} <= scores.keys(), f"a headline is not among the scores {[*scores]}"


def finds_a_leak_of_texts(attack: Attack) -> None:
    """Headlines tell members where training left a strong trace, and nothing by another coin, without a trace, or
    before training."""
    (knowledge, member, _), (null, nobody, _) = texts(2.5, 200), texts(0.0, 200)
    second, bound = np.random.default_rng(9).random(200) < 0.5, by_chance(80, 80)
    leaking, chance = scores_of(attack, knowledge), scores_of(attack, null)
    before = {} if attack.facts.needs else scores_of(attack, knowledge.before_training())
    for signal in headlines(attack):
        assert np.ptp(leaking[signal][:-KNOWN]) > 0, f"{signal} is the same for all texts of the toy: see ON_TOY"
        results = auroc(knowledge, member, leaking[signal])
        assert results > 0.7, f"{signal}: AUROC {results:.2f} of a strong leak"
        _check_chance(f"{signal}, by a coin that nobody trained by", auroc(knowledge, second, leaking[signal]), bound)
        _check_chance(f"{signal}, without a leak", auroc(null, nobody, chance[signal]), bound)
        if before:  # what is seen of rounds has no such control
            _check_chance(f"{signal}, before training", auroc(knowledge, member, before[signal]), bound)


def judges_a_text_alone(attack: Attack) -> None:
    """A text has its score whatever other texts are asked about."""
    knowledge, *_ = texts(1.0)
    assert isinstance(knowledge.answers, TextAnswers)
    assert isinstance(knowledge.base, TextAnswers)
    assert knowledge.rounds is not None
    chosen = np.array([7, 3, 41])
    some = dataclasses.replace(
        knowledge, records=tuple(knowledge.records[i] for i in chosen), known=knowledge.known[chosen],
        answers=some_of(knowledge.answers, chosen), base=some_of(knowledge.base, chosen),
        rounds=picked(knowledge.rounds, chosen),
        explained=tuple(message.picked(chosen) for message in knowledge.explained or ()),
    )  # fmt: skip
    whole = scores_of(attack, knowledge)
    for name, score in scores_of(attack, some).items():
        np.testing.assert_array_equal(score, whole[name][chosen], err_msg=name)


def repeats_on_texts(attack: Attack) -> None:
    """Equal knowledge gives equal scores to the bit, and is as it was afterwards."""
    knowledge, *_ = text_toy.texts.__wrapped__(1.0)  # its own: what an attack breaks in it stays here
    before = copy.deepcopy(knowledge)
    first, again = scores_of(attack, knowledge), scores_of(attack, before)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
    untouched, *_ = text_toy.texts.__wrapped__(1.0)
    for name, one in vars(untouched.rounds).items():
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, getattr(knowledge.rounds, name), err_msg=name)
    np.testing.assert_array_equal(untouched.answers.loss, knowledge.answers.loss)


def headlines(attack: Attack) -> list[str]:
    """Names of the headline scores on texts, with the attack's default parameters."""
    return [signal.format(**vars(attack.params())) for signal in attack.facts.headlines("texts")]


def _rows(array: Floats | None, order: NDArray[np.int64]) -> Floats | None:
    return None if array is None else array[order]


def _log_probs(answers: Any) -> Floats:
    results: Floats = answers.log_probs
    return results


def _check_shape(name: str, score: Any, knowledge: Knowledge) -> None:
    assert isinstance(score, np.ndarray), f"{name} is no array"
    wanted = (len(knowledge.records),), np.dtype(np.float64)
    assert (score.shape, score.dtype) == wanted, f"{name} is {score.shape} {score.dtype}, and not {wanted}"


def _check_chance(name: str, results: float, bound: float) -> None:
    assert abs(results - 0.5) < bound, f"{name}: AUROC {results:.2f} where there is nothing to find"


EACH: tuple[Contract, ...] = (learns_no_truth,)
ON_CLASSES: tuple[Contract, ...] = (
    one_score_per_record, repeats, finds_a_leak, finds_nothing_without_a_leak,
)  # fmt: skip
OF_ONE_MODEL: tuple[Contract, ...] = (ignores_order, finds_nothing_before_training, bears_certainty)
ON_TEXTS: tuple[Contract, ...] = (one_score_per_text, repeats_on_texts, finds_a_leak_of_texts)


def named(thing: Any) -> str:
    """The name of an attack or of a contract."""
    return str(getattr(thing, "__name__", "") or thing.name)


def contracts_of(attack: Attack) -> list[Contract]:
    """The contracts that an attack must keep, by the records that it scores and what it needs."""
    facts = attack.facts
    results = [*EACH]
    if "classes" in facts.records:
        results += [*ON_CLASSES, *(() if facts.needs else OF_ONE_MODEL)]
    if "texts" in facts.records:
        results += [*ON_TEXTS, *(() if facts.shadows else (judges_a_text_alone,))]
    return results
