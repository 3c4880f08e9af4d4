"""The contracts of attacks are shown attacks with a planted fault, which they must refuse; sound ones keep them in
`test_inference_attacks` and `test_text_attacks`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedaudit.attacks.facts import ATTACKS, AttackFacts
from fedaudit.attacks.knowledge import Floats, Knowledge
from fedaudit.contracts import attacks
from fedaudit.machinery import places
from fedaudit.machinery.plugins import Plugin
from tests.plugin_places import forgotten  # noqa: F401, a fixture

Scores = dict[str, Floats]
Fault = Callable[[Knowledge, Scores], Scores]


@dataclasses.dataclass(frozen=True)
class Faulty(Plugin[AttackFacts]):
    """An attack whose scores are changed by `fault`, in view of what it knows."""

    fault: Fault = lambda knowledge, scores: scores

    def make(self, params: Any, **more: object) -> Any:
        made = super().make(params, **more)
        original = made.score
        made.score = lambda knowledge: self.fault(knowledge, original(knowledge))
        return made


def faulty(fault: Fault, name: str = "entropy") -> Faulty:
    return Faulty(**vars(ATTACKS[name]), fault=fault)


def every(change: Callable[[Knowledge, Floats], Floats]) -> Fault:
    return lambda knowledge, scores: {name: change(knowledge, score) for name, score in scores.items()}


def overwriting(knowledge: Knowledge, scores: Scores) -> Scores:
    knowledge.known[:] = False
    if knowledge.rounds is not None:
        knowledge.rounds.loss[:] = 0
    return scores


def peeping(knowledge: Knowledge, scores: Scores) -> Scores:
    """Takes who the members are from whoever calls it."""
    frame = sys._getframe()
    while frame.f_back and "member" not in frame.f_locals:
        frame = frame.f_back
    member = np.asarray(frame.f_locals.get("member", np.zeros(len(knowledge.records))))
    return {name: score + 100.0 * member for name, score in scores.items()}


nan = every(lambda knowledge, score: np.full_like(score, np.nan))
random = every(lambda knowledge, score: score + np.random.default_rng().random(len(score)))
placed = every(lambda knowledge, score: score + np.arange(len(score)))
blunt = every(lambda knowledge, score: np.zeros_like(score))
narrow = every(lambda knowledge, score: score.astype(np.float32))
backwards = every(lambda knowledge, score: -score)
centred = every(lambda knowledge, score: score - score.mean())


def renamed(knowledge: Knowledge, scores: Scores) -> Scores:
    return {f"my_{name}": score for name, score in scores.items()}


FAULTS: list[tuple[attacks.Contract, Fault, str]] = [
    (attacks.one_score_per_record, renamed, "entropy"),
    (attacks.one_score_per_record, narrow, "entropy"),
    (attacks.repeats, random, "entropy"),
    (attacks.repeats, overwriting, "fedmia"),
    (attacks.finds_a_leak, nan, "entropy"),
    (attacks.finds_a_leak, blunt, "entropy"),
    (attacks.finds_a_leak, backwards, "entropy"),
    (attacks.finds_nothing_without_a_leak, peeping, "entropy"),
    (attacks.finds_nothing_without_a_leak, peeping, "fedmia"),
    (attacks.ignores_order, placed, "entropy"),
    (attacks.finds_nothing_before_training, peeping, "entropy"),
    (attacks.bears_certainty, nan, "lira"),
    (attacks.bears_certainty, backwards, "lira"),
    (attacks.one_score_per_text, narrow, "entropy"),
    (attacks.repeats_on_texts, random, "entropy"),
    (attacks.repeats_on_texts, overwriting, "loss"),
    (attacks.finds_a_leak_of_texts, nan, "entropy"),
    (attacks.finds_a_leak_of_texts, peeping, "entropy"),
    (attacks.judges_a_text_alone, centred, "entropy"),
]


@pytest.mark.parametrize(
    ("contract", "fault", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value))
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_planted_fault_is_refused(contract: attacks.Contract, fault: Fault, name: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        contract(faulty(fault, name))


@pytest.mark.parametrize("line", ["from fedaudit.tasks.base import Record", "from fedaudit.machinery import store"])
@pytest.mark.usefixtures("forgotten")
def test_an_attack_must_not_import_what_knows_the_truth(line: str, tmp_path: Path) -> None:
    (tmp_path / "attacks").mkdir()
    head = '"""Mine: a score that is made up for a test."""\n\nfrom dataclasses import dataclass\n\n'
    body = "@dataclass(frozen=True)\nclass Params:\n    pass\n\n\nclass Mine: ...\n"
    (tmp_path / "attacks" / "mine.py").write_text(f"{head}from .words import HALF\n\n\n{body}")
    (tmp_path / "attacks" / "words.py").write_text(f"{line}\n\nHALF = 0.5\n")
    places.add([tmp_path], "--plugins")
    with pytest.raises(AssertionError, match=r"fedaudit\.attacks\.words imports fedaudit\."):
        attacks.learns_no_truth(ATTACKS["mine"])


def test_every_contract_is_shown_a_fault() -> None:
    asked = {contract for plugin in ATTACKS.values() for contract in attacks.contracts_of(plugin)}
    assert {contract for contract, *_ in FAULTS} | {attacks.learns_no_truth} == asked
