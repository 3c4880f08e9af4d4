"""How long attacks take, for `--dry-run`: every kind of question is put once to the plan's own model, with all records
of a target, and multiplied by how often the attacks put it."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress, nothing
from fedaudit.pipeline.plan import Cell
from fedaudit.terms.threat_models import CLUSTERING_SERVER, PROMPT_USER, SERVER

if TYPE_CHECKING:
    from attacks.attacked_models import Target
    from fedaudit.tasks.base import Federation
    from trainers.base import Bench, Transcript

ASKED = 6  # models that are asked about a target's records, at most: two released ones, and four of the target
ROUNDS = 2  # of the training whose last messages are looked at: a client that sends halves has sent both, or may have


@dataclass(frozen=True)
class AttackWork:
    """What the attacks on one target do: how often, or in seconds each."""

    answers: float = 0.0  # a model is asked about the target's records
    gradients: float = 0.0  # the same with a gradient for each record
    messages: float = 0.0  # what all messages of a round say about the records
    solved: float = 0.0  # a message of the target is solved for its batch

    def seconds(self, each: AttackWork) -> float:
        """Of so much work, by what each takes."""
        return sum(n * one for n, one in zip(dataclasses.astuple(self), dataclasses.astuple(each), strict=True))


def work(cell: Cell, federation: Federation) -> AttackWork:
    """How often the attacks on one target of a cell put each question."""
    from attacks.attacked_models import SHADOWS_ASKED
    from fedaudit.pipeline.attacks_on_texts import allowed
    from fedaudit.pipeline.bank import sequence_rounds

    plan, adversary = cell.plan, cell.plan.adversary
    known = plugins.plugins("attack")
    able = {view: [known[n] for n, why in allowed(cell, view).items() if why is None] for view in cell.threat_models}
    able = {view: wanted for view, wanted in able.items() if wanted}
    every = [plugin for wanted in able.values() for plugin in wanted]
    shadows = adversary.shadows * cell.needs_shadows
    looking, observed = any(plugin.needs for plugin in every), min(adversary.observed_rounds, plan.rounds)
    twice = 2 if looking and shadows and adversary.trajectory == "simulated" else 1  # of a simulated federation too
    turns = observed * plan.per_round / plan.present * twice
    answers = ASKED + 2 * shadows
    if plan.trained.records == "texts":
        if not looking and not any(plugin.rounds for plugin in every):
            return AttackWork(answers)
        return AttackWork(answers + (plan.rounds - 1) * twice, messages=turns)
    listening = any("broadcasts" not in plugin.needs for plugin in every if plugin.needs)
    views = sum(view != PROMPT_USER for view in able)
    answers += observed * (views + twice - 1) * looking
    answers += len(sequence_rounds(plan.rounds)) * (views + shadows) * any(plugin.sequences for plugin in every)
    models = (len(able) + 1 + 2 * min(SHADOWS_ASKED, shadows)) * any(plugin.gradients for plugin in every)
    solved = _solved(cell, federation) * twice if any(plugin.mixtures for plugin in every) else 0
    return AttackWork(answers, models + 2 * any(plugin.vectors for plugin in every), turns * listening, solved)


def _solved(cell: Cell, federation: Federation) -> float:
    """How many messages of a target are solved."""
    from attacks.replay import EPOCHS
    from fedaudit.pipeline.methods import method_of
    from fedaudit.privacy.ledger import epoch_length
    from trainers.prompts import PromptMethod

    method, listed = method_of(cell), federation.sizes[0]
    assert isinstance(method, PromptMethod)
    first = math.ceil(EPOCHS * epoch_length(records=listed, batch=method.settings.batch) / method.steps(listed))
    return min(cell.plan.adversary.solved_rounds or first, cell.plan.rounds)


def timed(cell: Cell, federation: Federation, bench: Bench, wanted: AttackWork, progress: Progress) -> AttackWork:
    """The seconds of each question that is wanted; trains two rounds in a folder that is thrown away where messages
    are."""
    from fedaudit.pipeline.attack_jobs import questions

    asked = questions(cell, federation)[0]
    texts = cell.plan.trained.records == "texts"
    if texts:  # nobody asks other clients' records there
        asked = dataclasses.replace(asked, others=())
    found = _of_texts(cell, bench, asked) if texts else _of_classes(cell, bench, asked, wanted)
    if not wanted.messages:
        return found
    with _transcript(cell, federation, bench, progress) as transcript:
        if not (turns := _turns(transcript)):
            return found
        if texts:
            return dataclasses.replace(found, messages=_heard(cell, bench, asked, transcript, *turns))
        return dataclasses.replace(found, **_replayed(cell, federation, bench, asked, transcript, *turns, wanted))


@contextmanager
def _transcript(cell: Cell, federation: Federation, bench: Bench, progress: Progress) -> Iterator[Transcript]:
    """Some messages of every client of a cohort, or somebody's own."""
    from fedaudit.machinery.executor import Executor
    from fedaudit.machinery.store import claim
    from fedaudit.pipeline.bank import NoExam
    from fedaudit.pipeline.methods import method_of, schedule_of
    from trainers.base import Transcript, train

    rounds = min(ROUNDS, cell.plan.rounds)
    schedule = dataclasses.replace(schedule_of(cell), rounds=rounds, clients=cell.plan.per_round, newcomers=0)
    with tempfile.TemporaryDirectory() as path, Executor(lambda: bench) as executor:
        folder = claim(Path(path))
        if (own := cell.plan.own) is not None:
            own.write_transcript(folder)
            yield Transcript(folder, schedule_of(cell))
            return
        yield train(
            method_of(cell, federation.sizes), schedule, NoExam(), folder=folder, executor=executor, say=progress.say,
            advance=nothing,
        )  # fmt: skip


def _turns(transcript: Transcript) -> tuple[int, int] | None:
    """A client and its last round."""
    rounds = range(transcript.schedule.rounds)
    return next(((transcript.cohort(r)[0], r) for r in reversed(rounds) if transcript.cohort(r)), None)


def _of_texts(cell: Cell, bench: Bench, asked: Target) -> AttackWork:
    from attacks.queries import ask_texts
    from fedaudit.pipeline.methods import method_of
    from trainers.base import LanguageModel, generator

    learner, state = bench.learner, bench.learner.initial(generator(0, "estimate"))
    assert isinstance(learner, LanguageModel)
    model = method_of(cell).model(method_of(cell).start(state)) if cell.variant else state
    return AttackWork(_seconds(lambda: ask_texts(learner, model, asked.records, compats=["exact"])))


def _heard(cell: Cell, bench: Bench, asked: Target, transcript: Transcript, client: int, r: int) -> float:
    """Seconds of the messages of a round, or of the client's own alone where no attack looks at them."""
    from attacks.adapter_messages import hear
    from attacks.base import Candidates, View
    from trainers.base import AdaptedModel

    learner, view = bench.learner, View(transcript, SERVER, Candidates({}, {}, ()))
    assert isinstance(learner, AdaptedModel)
    looking = any("uploads" in plugins.plugins("attack")[name].needs for name in cell.plan.attacks)
    return _seconds(lambda: hear(view, learner, client, r, asked.records, messages=looking))


def _of_classes(cell: Cell, bench: Bench, asked: Target, wanted: AttackWork) -> AttackWork:
    from attacks.gradients import gradient_norms
    from fedaudit.pipeline.methods import method_of
    from trainers.base import Classifier, Differentiable, generator

    learner, method = bench.learner, method_of(cell)
    assert isinstance(learner, Classifier)
    model = method.model(method.start(learner.initial(generator(0, "estimate"))))
    answers = _seconds(lambda: learner.log_probs(method, [model], asked.records))
    if not wanted.gradients:
        return AttackWork(answers)
    assert isinstance(learner, Differentiable)
    return AttackWork(answers, _seconds(lambda: gradient_norms(method, learner, model, asked.records)))


def _replayed(
    cell: Cell, federation: Federation, bench: Bench, asked: Target, transcript: Transcript, client: int, r: int,
    wanted: AttackWork,
) -> dict[str, float]:  # fmt: skip
    """Seconds of the messages of a round, with its share of the replay of all rounds, which the targets have in common;
    and of one that is solved."""
    from attacks.base import Candidates, View
    from attacks.decompose import solve
    from attacks.replay import Messages, Solved
    from fedaudit.pipeline.methods import method_of
    from trainers.base import Classifier

    plan, method, learner = cell.plan, method_of(cell, federation.sizes), bench.learner
    assert isinstance(learner, Classifier)
    server = next(view for view in cell.threat_models if view in (SERVER, CLUSTERING_SERVER))
    view, sent = View(transcript, server, Candidates({}, {}, ())), list[Messages]()
    all_rounds = _seconds(lambda: sent.append(Messages(view, method, learner, bench.candidates)))
    all_rounds *= plan.rounds / transcript.schedule.rounds
    found = {"messages": _seconds(lambda: sent[0].rounds(client, asked.records, [r]))}
    found["messages"] += all_rounds / len(cell.targets) / wanted.messages
    if wanted.solved:
        first = Solved(1, len(asked.own), asked.complete)
        found["solved"] = _seconds(
            lambda: [solve(mixture) for mixture in sent[0].rounds(client, asked.records, [], solved=first).mixtures]
        )
    return found


def _seconds(ask: Callable[[], Any]) -> float:
    started = time.perf_counter()
    ask()
    return time.perf_counter() - started
