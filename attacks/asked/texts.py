"""What is asked of language models with adapters about texts: each pass answers for some records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from attacks.answers import Arrays, PublicRecords, Texts, spans_of
from attacks.attacked_models import NOVEL_PER_CLIENT, PER_ROUND, Held, Read, Target, Wanted, evenly_spaced
from attacks.base import View
from attacks.messages.adapters import AdapterMessages
from attacks.messages.rebuild import Rebuilt, rebuild, rebuild_all
from attacks.tokens.signals import TokenSignals, joined, row_signals, stacked
from fedaudit.machinery.errors import InputError
from fedaudit.terms.held_models import BEST_UTILITY, FINAL, REBUILDINGS, ROUND, TRUE_STATE
from fedaudit.terms.populations import MEMBERS_THAT_TRAINED
from fedaudit.terms.threat_models import OWNER, RELEASED_MODEL
from trainers.base import AdaptedModel, LanguageModel, Method, State


class AskedTexts:
    """See `attacks.asked.base.Askable`."""

    over_rounds_alone = True
    others = False
    curves = False
    replays = False
    unasked: Mapping[str, str] = MappingProxyType({
        "other clients' records": "a pass of the language model for each, under every model; asked of prompts",
        "loss by round": "the true models of all rounds would be asked about every candidate; shown of prompts",
        MEMBERS_THAT_TRAINED: "which records a client's steps reached is counted of prompts only",
    })  # fmt: skip

    def parts(self, wanted: Wanted) -> tuple[str, ...]:
        return ("own", "heard") if wanted.messages else ("own",)

    def arithmetics(self, compats: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(["exact", *compats]))

    def released(self, method: Method[Any] | None, client: int, public: State, broadcast: State) -> State:
        return broadcast

    def public(self, view: View, method: Method[Any] | None) -> State:
        return view.public

    def held(
        self, view: View, method: Method[Any] | None, target: Target, wanted: Wanted, novel: Sequence[str],
        rebuilt: Sequence[Rebuilt],
    ) -> Iterator[Held]:  # fmt: skip
        """The released model of every round, asked about some candidates where nobody looks at all rounds, or of one
        client its own state or what the server rebuilds in every way."""
        if view.threat_model == RELEASED_MODEL:
            yield from _released(view, target, wanted)
        elif target.client is not None:
            further = novel[:NOVEL_PER_CLIENT] if wanted.novel_of_clients else ()
            for way, seen, read in _of_client(view, target.client):
                if not wanted.ways or way not in REBUILDINGS or way in wanted.ways:
                    held = Held(view.threat_model, way, target.client, seen, read, target.own, "personal")
                    yield held
                    if further:
                        yield dataclasses.replace(held, records=further, role=None, over_rounds=False, of_target=False)

    def history(self, view: View, held: Held, most: int) -> list[int]:
        return list(range((held.round if held.client is None else view.rounds) + 1))

    def heard_rounds(self, view: View, client: int, most: int) -> list[int]:
        """Those in which it took part, of `most` evenly spaced ones: in each, every client of the cohort is rebuilt in
        every way."""
        observed = evenly_spaced(view.rounds, most)
        return [r for r in view.participations(client) if r in observed]

    def solved_rounds(self, *_: Any) -> list[int]:
        return []

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
        """InputError: an attack's parameter `slice` names a part that is too short for a score in every record."""
        spans = [own for public in records if isinstance(public, Texts) for own in public.spans]
        for params in (params for params in attacks if hasattr(params, "slice")):
            by_record = [spans_of(own, getattr(params, "compat", "exact")) for own in spans]
            scored = [part for part in by_record[0] if any(own[part].start < own[part].stop for own in by_record)]
            if params.slice not in scored:
                raise InputError(
                    f"--slice {params.slice}: no record has two tokens of it, and one gives no score (docs/attacks.md, "
                    f"maxrenyi); valid here: {', '.join(scored)}"
                )

    def messages(
        self, view: View, method: Any, learner: AdaptedModel, candidates: Sequence[Sequence[str]]
    ) -> AdapterMessages:
        return AdapterMessages(view, learner)


def _released(view: View, target: Target, wanted: Wanted) -> Iterator[Held]:
    def held(way: str, r: int, records: Sequence[str], **more: Any) -> Held:
        return Held(view.threat_model, way, None, r, functools.partial(view.broadcast, r), records, **more)

    if target.client is None:
        yield held(FINAL, view.rounds, target.records, over_rounds=False, of_target=False)
        return
    if wanted.answers and not wanted.ways:
        sample = target.own if wanted.states else target.candidates[:PER_ROUND]
        yield from (held(ROUND, r, sample, over_rounds=False) for r in range(1, view.rounds))
    yield held(FINAL, view.rounds, target.own, role="released")
    if view.served_best < view.rounds and wanted.answers:
        yield held(BEST_UTILITY, view.served_best, target.own)


def _of_client(view: View, client: int) -> Iterator[tuple[str, int, Read]]:
    """Way, rounds seen and reader of every model of a client that the adversary can put together."""
    if view.threat_model == OWNER:
        if view.private(client) is not None:
            yield TRUE_STATE, view.rounds, lambda: _known(view.private(client))
        return
    for found in rebuild_all(view, clients=[client]):
        if found.state is not None and found.seen is not None:
            yield found.way, found.seen + 1, functools.partial(_rebuilt, view, client, found.way)


def _rebuilt(view: View, client: int, way: str) -> State:
    return _known(rebuild(view, client, way).state)


def _known(state: State | None) -> State:
    assert state is not None
    return state


def _signals(
    learner: LanguageModel, state: State, records: Sequence[str], arithmetics: Sequence[str]
) -> dict[str, Arrays]:
    """By arithmetic the signals of every token of the records, one behind the other."""
    by_record: dict[int, dict[str, TokenSignals]] = {}
    for part in learner.chunks(state, records):
        targets = torch.cat([learner.data[records[i]].ids[1:] for i, _ in part])
        logits = torch.cat([rows[:-1] for _, rows in part])
        ends = np.cumsum([len(rows) - 1 for _, rows in part])
        of_part = {compat: row_signals(logits, targets, compat=compat) for compat in arithmetics}
        for (i, rows), end in zip(part, ends, strict=True):
            own = slice(end - len(rows) + 1, end)
            by_record[i] = {compat: signals[own] for compat, signals in of_part.items()}
    in_order = [by_record[i] for i in range(len(records))]
    return {compat: {"signals": stacked(joined([one[compat] for one in in_order]))} for compat in arithmetics}
