"""Asked and attacked in this process: what tests of attacks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedaudit.attacks.knowledge import Mixture
from fedaudit.attacks.questions.base import Messages
from fedaudit.attacks.settings import Adversary
from fedaudit.contracts.in_process import Candidates, models  # noqa: F401, others take them from here
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.attacks import scoring_jobs
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.question_set import QuestionSet
from fedaudit.pipeline.scoring import Tables, score
from fedaudit.pipeline.workers import Attackers

QUIET = Progress(quiet=True)
Found = dict[int | None, dict[str, Tables]]  # by target and threat model


def asking(folder, records, method, transcript, targets, attacks, recipe=None, **adversary) -> QuestionPlan:
    """What the adversaries of a run ask, without a plan."""
    own, shadows = [target.candidates for target in targets], folder / "shadows"
    asked_by = targets, attacks, Adversary(**adversary), own, recipe, shadows
    return QuestionPlan(records, method, transcript, folder / "answers", *asked_by)


def asked(bench: Any, asking: QuestionPlan) -> list[QuestionSet]:
    with Executor(lambda: bench) as executor:
        return asking.answer_all(lambda: Attackers(executor), QUIET)


def attacked(bench: Any, asking: QuestionPlan) -> Found:
    """What one adversary's model of each target scores, with its controls."""
    found: Found = {}
    for target, job in zip(asking.targets, scoring_jobs(asking, asked(bench, asking)), strict=True):
        found[target.client] = {threat_model: tables for (threat_model, *_), tables in score(job)}
    return found


def solved(
    messages: Messages, client: int, records: Sequence[str], rounds: Sequence[int], own: int, complete: bool
) -> list[Mixture]:
    """The client's messages of some rounds as mixtures of its first `own` records."""
    parts = [messages.round(client, r, records, ("solved",), own, complete) for r in rounds]
    return [Mixture.of({name.removeprefix("solved/"): array for name, array in part.items()}) for part in parts]
