"""What one adversary asks about one model that it holds: the questions are the asking's job list, and their answers the
attacks' knowledge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attacks.answers import Arrays, PublicRecords, public_records
from attacks.attacked_models import Target
from attacks.knowledge import Floats, Knowledge, Rounds, Shadows
from fedaudit.pipeline.asking import Ask, AskDrawn, AskModel, AskRecords, AskRound, AskShadows, AskVectors


@dataclass(frozen=True)
class Inquiry:
    """One model in an adversary's hands, and all questions about some records whose answers it knows."""

    threat_model: str
    way: str
    client: int | None
    round: int
    target: Target
    records: Sequence[str]
    clients: int  # of the federation
    public: AskRecords
    model: AskModel
    base: AskModel
    over_rounds: bool  # whether more may be known of it than what it answers
    before: AskModel | None = None  # the released model before the target first took part
    history: Sequence[AskModel] = ()
    sequence: Sequence[AskModel] = ()
    heard: Sequence[AskRound] = ()
    solved: Sequence[AskRound] = ()
    shadows: AskShadows | None = None
    vectors: AskVectors | None = None
    twin: Inquiry | None = None  # the same of a federation that drew its members anew
    drawn: AskDrawn | None = None  # which these were

    def questions(self) -> Iterator[Ask]:
        """All of them, the twin's too."""
        alone = self.public, self.model, self.base, self.before, self.shadows, self.vectors, self.drawn
        yield from (question for question in alone if question is not None)
        for several in (self.history, self.sequence, self.heard, self.solved):
            yield from several
        if self.twin is not None:
            yield from self.twin.questions()

    def knowledge(self, beside: Shadows | None = None) -> Knowledge:
        """What the adversary has computed when its attacks begin, from what is kept; `beside` are its shadow models, if
        they have been read before."""
        public = public_records(self.public.read("public"))
        vectors = self.vectors.read("projections") if self.vectors else {}
        norms = [asked.read("norms")["norms"] if "norms" in asked.parts else None for asked in (self.model, self.base)]
        return Knowledge(
            tuple(self.records),
            np.isin(self.records, self.target.reference),
            answers_of(public, self.model),
            answers_of(public, self.base),
            public.hard,
            gradient_norms=norms[0],
            base_gradient_norms=norms[1],
            shadows=beside or self.beside(),
            history=np.stack([answers_of(public, q).loss for q in self.history]) if self.history else None,
            sequence=np.stack([answers_of(public, q).confidence for q in self.sequence]) if self.sequence else None,
            projections=vectors.get("moved"),
            base_projections=vectors.get("still"),
            rounds=self._rounds(),
        )

    def beside(self) -> Shadows | None:
        """What its shadow models say; None without any."""
        if (asked := self.shadows) is None:
            return None
        public = public_records(self.public.read("public"))
        vectors = self.vectors.read("projections") if self.vectors else {}
        drawn = asked.read("drawn")
        parts = {part: asked.read(part) for part in asked.parts if part not in AskShadows.OTHER}

        def said(s: int) -> dict[str, Arrays]:
            return {part: {name: array[s] for name, array in arrays.items()} for part, arrays in parts.items()}

        more: dict[str, Floats | None] = {
            part: asked.read(part)[part] if part in asked.parts else None for part in ("norms", "sequence")
        }
        return Shadows(
            self.target.of_records(drawn["member"]),
            [public.answers(said(s)) for s in range(len(drawn["member"]))],
            more["norms"],
            drawn["trajectory"],
            more["sequence"],
            vectors.get("shadows"),
        )

    def _rounds(self) -> Rounds | None:
        if not self.heard or self.client is None:
            return None
        heard = [{f"{part}/{n}": a for part in q.parts for n, a in q.read(part).items()} for q in self.heard]
        solved = [q.read("solved") for q in self.solved]
        return Rounds.of(self.client, self.clients, self.way, heard, solved)


def answers_of(public: PublicRecords, asked: AskModel) -> Any:
    """What a model says of the records."""
    return public.answers({part: asked.read(part) for part in asked.parts if part != "norms"})
