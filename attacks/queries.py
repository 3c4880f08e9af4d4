"""From a view to `Knowledge`: the adversary asks its models, and its shadows, about the records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attacks.answers import TextAnswers, log_odds
from attacks.attacked_models import Target, attacked_model
from attacks.base import View
from attacks.knowledge import Floats, Knowledge, Shadows
from attacks.replay import Messages, Solved, history_of
from attacks.tokens.signals import TokenSignals, joined, row_signals
from trainers.base import Classifier, LanguageModel, Method, State

Norms = Callable[[State], Floats]  # of each record's gradient in a model, [n]
Projections = Callable[[State, State], Floats]  # of a model less its public start on each record's descent, [n]


def ask_texts(learner: LanguageModel, state: State, records: Sequence[str], *, compats: Collection[str]) -> TextAnswers:
    """What a language model answers about texts, in the arithmetic of `compats` ("exact", "vlmia")."""
    by_record: dict[int, dict[str, TokenSignals]] = {}
    for part in learner.chunks(state, records):
        targets = torch.cat([learner.data[records[i]].ids[1:] for i, _ in part])
        logits = torch.cat([rows[:-1] for _, rows in part])
        ends = np.cumsum([len(rows) - 1 for _, rows in part])
        of_part = {compat: row_signals(logits, targets, compat=compat) for compat in compats}
        for (i, rows), end in zip(part, ends, strict=True):
            own = slice(end - len(rows) + 1, end)
            by_record[i] = {compat: signals[own] for compat, signals in of_part.items()}
    in_order = [by_record[i] for i in range(len(records))]
    return TextAnswers(
        {compat: joined([one[compat] for one in in_order]) for compat in compats},
        np.array([len(one["exact"]) for one in in_order]),
        [learner.data[record].spans for record in records],
        [learner.words(record) for record in records],
    )


def see(
    view: View, method: Method[Any], learner: Classifier, asked: Target, *, messages: Messages | None,
    shadows: Shadows | None, norms: Norms | None, rounds: int, solved: int | None = None,
    sequence: Sequence[int] = (), projections: Projections | None = None,
) -> Knowledge | None:  # fmt: skip
    """Everything that attacks may use, of one target; None if the adversary has no model of it.

    `messages`: all that clients sent, where the adversary sees it; `norms`: how gradient norms are computed, if they
    are wanted; `rounds`: how many rounds are looked at, evenly spaced, 0 = none; `solved`: of how many first messages
    of the target it is solved who was in the batch, 0 = those of its first epochs, None = of none; `sequence`: after
    how many rounds each the released model is asked; `projections`: how the attacked vectors are, if they are wanted.
    """
    model = attacked_model(view, method, asked.client, messages)
    if model is None:
        return None
    ids, public = asked.records, method.model(view.public)
    attacked, base = learner.log_probs(method, [model, public], ids)
    lengths = [norms(m) if norms else None for m in (model, public)]
    chosen = np.unique(np.linspace(0, view.rounds - 1, min(rounds, view.rounds)).round().astype(int)).tolist()
    history = rounds > 0 and view.gives("broadcasts")
    which = None if solved is None else Solved(solved, len(asked.own), asked.complete)
    return Knowledge.of_classes(
        ids,
        learner.labels(ids).numpy(),
        np.isin(ids, asked.reference),
        attacked,
        base,
        learner.untrained(ids),
        gradient_norms=lengths[0],
        base_gradient_norms=lengths[1],
        shadows=shadows,
        history=history_of(view, method, learner, ids, chosen, asked.client) if history else None,
        rounds=messages.rounds(asked.client, ids, chosen, solved=which) if rounds and messages else None,
        sequence=_sequence(view, method, learner, asked, sequence) if sequence and view.gives("broadcasts") else None,
        projections=projections(model, public) if projections else None,
        base_projections=projections(public, public) if projections else None,
    )


def _sequence(view: View, method: Method[Any], learner: Classifier, asked: Target, rounds: Sequence[int]) -> Floats:
    """See `Knowledge.sequence`."""
    ids, place = asked.records, method.messages.model_selector(asked.client)
    models = [method.model(view.public | view.broadcast(r) | place) for r in rounds]
    return log_odds(learner.log_probs(method, models, ids), learner.labels(ids).numpy())


def ask_sequences(method: Method[Any], learner: Classifier, asked: Target, models: Sequence[Sequence[State]]) -> Floats:
    """What S shadows' released models after T rounds say, [S, T, n]; see `Knowledge.sequence`."""
    ids, labels = asked.records, learner.labels(asked.records).numpy()
    of_rounds = [log_odds(learner.log_probs(method, after, ids), labels) for after in zip(*models, strict=True)]
    return np.stack(of_rounds, axis=1)


def ask(
    method: Method[Any], learner: Classifier, asked: Target, models: Sequence[State], member: NDArray[np.bool_], *,
    norms: Norms | None, normed: int, **more: Any,
) -> Shadows:  # fmt: skip
    """What S shadow models say; of the first `normed` gradient norms are computed, and `more` are other fields."""
    ids, trained = asked.records, asked.of_records(member)
    lengths = None
    if norms:
        lengths = np.full(trained.shape, np.nan)
        for s, model in enumerate(models[:normed]):
            lengths[s] = norms(model)
    answers = learner.log_probs(method, models, ids)
    return Shadows.of_classes(trained, answers, learner.labels(ids).numpy(), lengths, **more)
