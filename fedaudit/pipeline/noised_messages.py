"""Messages with Gaussian noise, for the audit that bounds epsilon by a regression of them on the canaries' coins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from fedaudit.attacks.knowledge import Mixture
from fedaudit.audits.statistics.regression import Message
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.question_set import QuestionSet
from fedaudit.pipeline.questions import StoredQuestion
from fedaudit.pipeline.scoring import ModelKey
from fedaudit.trainers.prompts import PromptMethod


def noised_messages(
    question_plan: QuestionPlan, question_sets: Sequence[QuestionSet]
) -> dict[ModelKey, Callable[[], list[Message]]]:
    """By attacked model, what reads the client's solved messages from disk, where each is a sum of gradients that were
    clipped record by record, with Gaussian noise. None with Poisson batches: nobody knows who was in them."""
    method = question_plan.method
    if not isinstance(method, PromptMethod) or not method.protection.per_record or "p_G" in method.central:
        return {}
    if (privacy := method.protection.privacy).sampler != "epochs":
        return {}
    read = {(q.threat_model, q.way, q.client, q.round): q.solved for q in question_sets if q.solved}
    return {key: functools.partial(_read, solved, privacy.clip_norm) for key, solved in read.items()}


def _read(solved: Sequence[StoredQuestion], clip_norm: float) -> list[Message]:
    return [message_of(Mixture.of(question.read("solved")), clip_norm) for question in solved]


def message_of(mixture: Mixture, clip_norm: float) -> Message:
    """A mixture scaled so that its noise has the standard deviation of one step's."""
    size = float(np.linalg.norm(mixture.coefficients))
    weight = float(mixture.coefficients.sum()) / size / mixture.divisor
    square, spare = mixture.remainder()
    rank = mixture.numbers - spare
    return Message(mixture.gradients * weight, mixture.sent / size, rank, square / size**2, spare, clip_norm * weight)
