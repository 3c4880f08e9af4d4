"""How language models with adapters are queried about texts: each forward pass costs, and answers for a few records."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fedaudit.attacks.answers import Arrays, PublicRecords, Texts, spans_of
from fedaudit.attacks.attacked_models import (
    NOVEL_PER_CLIENT,
    PER_ROUND,
    AttackedModel,
    Read,
    Target,
    Wanted,
    evenly_spaced,
)
from fedaudit.attacks.base import View
from fedaudit.attacks.messages.adapters import AdapterMessages
from fedaudit.attacks.messages.rebuild import Rebuilt, rebuild, rebuild_all
from fedaudit.attacks.messages.ridge import REFERENCES
from fedaudit.attacks.tokens.signals import TokenSignals, row_signals, stacked
from fedaudit.machinery.errors import InputError
from fedaudit.terms.held_models import BEST_UTILITY, FINAL, REBUILDINGS, ROUND, TRUE_STATE
from fedaudit.terms.populations import MEMBERS_THAT_TRAINED
from fedaudit.terms.threat_models import OWNER, RELEASED_MODEL
from fedaudit.trainers.base import Method, State
from fedaudit.trainers.protocols import AdaptedModel, LanguageModel


class TextQuestions:
    """See `attacks.questions.base.Questions`."""

    over_rounds_alone = True
    others = False
    curves = False
    replays = False
    unasked: Mapping[str, str] = MappingProxyType({
        "other clients' records": "a pass of the language model for each, under every model; asked of prompts",
        "loss by round": "the true models of all rounds would be asked about every candidate; shown of prompts",
        MEMBERS_THAT_TRAINED: "of clients' own models only; the released one is of all clients together",
    })  # fmt: skip

    def parts(self, wanted: Wanted) -> tuple[str, ...]:
        return ("own", "heard") if wanted.messages else ("own",)

    def arithmetics(self, compats: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(["exact", *compats]))

    def released(self, method: Method[Any] | None, client: int, public: State, broadcast: State) -> State:
        return broadcast

    def public(self, view: View, method: Method[Any] | None) -> State:
        return view.public

    def collect_models(
        self, view: View, method: Method[Any] | None, target: Target, wanted: Wanted, novel: Sequence[str],
        rebuilt: Sequence[Rebuilt],
    ) -> Iterator[AttackedModel]:  # fmt: skip
        """Yield the models of the target that the adversary has, with the records to ask each about: the released model
        of every round (with few candidates if no attack looks at rounds; only the final one if `target.client` is
        None), or one client's true model, or what the server rebuilds of the client in each way (REBUILDINGS) that is
        possible."""
        if view.threat_model == RELEASED_MODEL:
            yield from _released(view, target, wanted)
        elif target.client is not None:
            further = novel[:NOVEL_PER_CLIENT] if wanted.novel_of_clients else ()
            for model_kind, rounds, read in _client_models(view, target.client):
                if not wanted.ways or model_kind not in REBUILDINGS or model_kind in wanted.ways:
                    model = AttackedModel(
                        view.threat_model, model_kind, target.client, rounds, read, target.own, "personal"
                    )
                    yield model
                    if further:
                        yield dataclasses.replace(model, records=further, role=None, over_rounds=False, of_target=False)

    def history(self, view: View, held: AttackedModel, most: int) -> list[int]:
        return list(range((held.round if held.client is None else view.rounds) + 1))

    def heard_rounds(self, view: View, client: int, most: int) -> list[int]:
        """Rounds in which it took part, out of `most` evenly spaced ones; in each, all clients are rebuilt in all
        ways."""
        observed = evenly_spaced(view.rounds, most)
        return [r for r in view.participations(client) if r in observed]

    def solved_rounds(
        self, view: View, method: Any, client: int, candidates: Sequence[Sequence[str]], rounds: int
    ) -> list[int]:
        sent = [r for r in view.participations(client) if view.upload(r, client)]
        return sent[: rounds or None]

    def solved_for(self, target: Target) -> int:
        return len(target.candidates) + len(target.reference[:REFERENCES])

    def public_records(self, learner: LanguageModel, records: Sequence[str]) -> Arrays:
        encoded = [learner.data[record] for record in records]
        sizes = np.array([len(one.ids) - 1 for one in encoded])
        words, tokens = [learner.words(r) for r in records], [learner.tokens(r) for r in records]
        return Texts(sizes, [one.spans for one in encoded], words, tokens).arrays()

    def answers(
        self, learner: LanguageModel, method: Any, models: Sequence[State], records: Sequence[str],
        arithmetics: Sequence[str],
    ) -> list[dict[str, Arrays]]:  # fmt: skip
        return [_signals(learner, state, records, arithmetics) for state in models]

    def check(self, attacks: Sequence[object], records: Sequence[PublicRecords]) -> None:
        """Raise InputError if an attack's parameter `slice` names a part that has no score in any record."""
        spans = [parts for public in records if isinstance(public, Texts) for parts in public.spans]
        for params in (params for params in attacks if hasattr(params, "slice")):
            by_record = [spans_of(parts, getattr(params, "compat", "exact")) for parts in spans]
            scored = [name for name in by_record[0] if any(p[name].start < p[name].stop for p in by_record)]
            if params.slice not in scored:
                raise InputError(
                    f"--slice {params.slice}: no record has two tokens of it, and one gives no score "
                    f"(docs/reference/attacks-outputs.md, maxrenyi); valid here: {', '.join(scored)}"
                )

    def messages(
        self, view: View, method: Any, learner: AdaptedModel, candidates: Sequence[Sequence[str]]
    ) -> AdapterMessages:
        return AdapterMessages(view, learner)


def _released(view: View, target: Target, wanted: Wanted) -> Iterator[AttackedModel]:
    def after(r: int, model_kind: str, records: Sequence[str], **more: Any) -> AttackedModel:
        return AttackedModel(
            view.threat_model, model_kind, None, r, functools.partial(view.broadcast, r), records, **more
        )

    if target.client is None:
        yield after(view.rounds, FINAL, target.records, over_rounds=False, of_target=False)
        return
    if wanted.answers and not wanted.ways:
        sample = target.own if wanted.states else target.candidates[:PER_ROUND]
        yield from (after(r, ROUND, sample, over_rounds=False) for r in range(1, view.rounds))
    yield after(view.rounds, FINAL, target.own, role="released")
    if view.rounds_at_least_loss < view.rounds and wanted.answers:
        yield after(view.rounds_at_least_loss, BEST_UTILITY, target.own)


def _client_models(view: View, client: int) -> Iterator[tuple[str, int, Read]]:
    """Yield every model of a client that the adversary has or can rebuild: its kind, the rounds of training behind it,
    and a function that reads it."""
    if view.threat_model == OWNER:
        if view.private(client) is not None:
            yield TRUE_STATE, view.rounds, lambda: _existing(view.private(client))
        return
    for model in rebuild_all(view, clients=[client]):
        if model.state is not None and model.last_round is not None:
            yield model.way, model.last_round + 1, functools.partial(_rebuild, view, client, model.way)


def _rebuild(view: View, client: int, model_kind: str) -> State:
    return _existing(rebuild(view, client, model_kind).state)


def _existing(state: State | None) -> State:
    assert state is not None
    return state


def _signals(
    learner: LanguageModel, state: State, records: Sequence[str], arithmetics: Sequence[str]
) -> dict[str, Arrays]:
    """Signals of all tokens of the records, in order, {arithmetic ("exact" or "vlmia"): {"signals": array [11,
    tokens]}}, as `attacks.tokens.signals.stacked` lays them out."""
    by_record: dict[int, dict[str, TokenSignals]] = {}
    for part in learner.chunks(state, records):
        targets = torch.cat([learner.data[records[i]].ids[1:] for i, _ in part])
        logits = torch.cat([rows[:-1] for _, rows in part])
        ends = np.cumsum([len(rows) - 1 for _, rows in part])
        of_part = {compat: row_signals(logits, targets, compat=compat) for compat in arithmetics}
        for (i, rows), end in zip(part, ends, strict=True):
            span = slice(end - len(rows) + 1, end)
            by_record[i] = {compat: signals[span] for compat, signals in of_part.items()}
    return {
        compat: {"signals": np.concatenate([stacked(by_record[i][compat]) for i in range(len(records))], axis=1)}
        for compat in arithmetics
    }
