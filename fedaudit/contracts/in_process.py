"""Trained and asked in this process, without a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedaudit.attacks.attacked_models import AttackedModel, Target, Wanted
from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import Rounds
from fedaudit.attacks.questions.base import Messages
from fedaudit.attacks.questions.texts import TextQuestions
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import claim
from fedaudit.pipeline.shadow_models import NoEvaluation
from fedaudit.trainers.base import Method, Schedule
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train
from fedaudit.trainers.transcript import Transcript


def trained(
    path: Path,
    method: Method[Any],
    schedule: Schedule,
    bench: Bench,
    *,
    evaluation: Any = NoEvaluation(),  # noqa: B008, it has no state
    advance: Callable[[], None] = lambda: None,
    until: int | None = None,
) -> Transcript:
    """The rounds of the loop, in this process."""
    with Executor(lambda: bench) as executor:
        return train(
            method, schedule, evaluation,
            folder=claim(path), executor=executor, say=print, advance=advance, until=until,
        )  # fmt: skip


class Candidates(NamedTuple):
    """Record ids that adversaries ask about: of each client, and of nobody."""

    clients: Mapping[int, Sequence[str]]
    reference: Mapping[int, Sequence[str]]
    novel: Sequence[str]


def models(view: View, asked: Candidates, **wanted: Any) -> Iterator[AttackedModel]:
    """Yield the language models that an adversary holds, of one target after the other, and in the end those that it
    asks about nobody's records."""
    targets = [Target(k, asked.clients[k], asked.reference[k]) for k in asked.clients]
    for target in (*targets, Target(None, asked.novel, ())):
        yield from TextQuestions().collect_models(view, None, target, Wanted(**wanted), asked.novel, ())


def message_answers(messages: Messages, client: int, records: Sequence[str], rounds: Sequence[int]) -> Rounds:
    """The answers of the messages of some rounds about a client's records."""
    clients = len(messages.view.clients)  # type: ignore[attr-defined]
    heard = [messages.round(client, r, records, ("own", "heard"), 0, False) for r in rounds]
    return Rounds.of(client, clients, getattr(messages, "way", "exact"), heard)
