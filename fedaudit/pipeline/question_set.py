"""All questions of one adversary about one model that it attacks, and what their answers tell its attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedaudit.attacks.answers import Arrays, PublicRecords, Texts, public_records
from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.knowledge import Explained, Floats, Knowledge, Mixture, Rounds, Shadows, SolvedBatch
from fedaudit.pipeline.contents import EmbeddingQuestion
from fedaudit.pipeline.pooled import PooledQuestion
from fedaudit.pipeline.probing import ProbeQuestion
from fedaudit.pipeline.questions import (
    ChangeQuestion,
    MessageQuestion,
    ModelQuestion,
    ProjectionQuestion,
    RecordQuestion,
    ShadowQuestion,
    StoredQuestion,
    TwinQuestion,
)


@dataclass(frozen=True)
class QuestionSet:
    """One model that an adversary attacks, with all questions about some records whose answers it may use."""

    threat_model: str
    way: str  # how the adversary got it, see `fedaudit.terms.held_models`
    client: int | None  # whose model it is; None: everybody's
    round: int  # how many rounds it has seen
    target: Target
    records: Sequence[str]
    clients: int  # of the federation
    public: RecordQuestion
    model: ModelQuestion
    base: ModelQuestion  # the public start
    over_rounds: bool  # whether attacks on several rounds look at it too
    before: ModelQuestion | None = None  # the released model before the target first took part
    history: Sequence[ModelQuestion] = ()  # as `Knowledge.history`
    sequence: Sequence[ModelQuestion] = ()  # as `Knowledge.sequence`
    heard: Sequence[MessageQuestion] = ()  # messages of rounds; empty where the adversary sees none
    # the target's messages, or changes of broadcasts, that are solved for the records in them
    solved: Sequence[MessageQuestion | ChangeQuestion] = ()
    contents: Sequence[MessageQuestion] = ()  # the target's first message; empty where no attack asks
    pictures: EmbeddingQuestion | None = None  # of the whole data set, as `Knowledge.embeddings`
    shadows: ShadowQuestion | None = None
    vectors: ProjectionQuestion | None = None
    twin: QuestionSet | None = None  # the model's counterpart in a simulated federation that drew its members anew
    probed: Mapping[str, ProbeQuestion] = field(default_factory=dict)  # as `Knowledge.probed`
    pooled: PooledQuestion | None = None  # about sums over all users
    drawn: TwinQuestion | None = None  # which members the twin federation drew

    def questions(self) -> Iterator[StoredQuestion]:
        """Yield all questions of this set, those about the twin included."""
        models = self.model, self.base, self.before, self.shadows, self.vectors
        single = self.public, *models, self.drawn, self.pictures, self.pooled
        yield from (question for question in single if question is not None)
        for several in (self.history, self.sequence, self.heard, self.solved, self.contents):
            yield from several
        yield from self.probed.values()
        if self.twin is not None:
            yield from self.twin.questions()

    def knowledge(self, shadows: Shadows | None = None) -> Knowledge:
        """The adversary's knowledge, which attacks get, read from the answers on disk. `shadows`: the result of
        `shadow_answers`, if it was read before; else it is read here."""
        public = public_records(self.public.read("public"))
        vectors = self.vectors.read("projections") if self.vectors else {}
        norms = [q.read("norms")["norms"] if "norms" in q.parts else None for q in (self.model, self.base)]
        return Knowledge(
            tuple(self.records),
            np.isin(self.records, self.target.reference),
            answers_of(public, self.model),
            answers_of(public, self.base),
            public.hard,
            gradient_norms=norms[0],
            base_gradient_norms=norms[1],
            shadows=shadows or self.shadow_answers(),
            history=np.stack([answers_of(public, q).loss for q in self.history]) if self.history else None,
            sequence=np.stack([answers_of(public, q).confidence for q in self.sequence]) if self.sequence else None,
            projections=vectors.get("moved"),
            base_projections=vectors.get("still"),
            probed={name: Mixture.of(q.read("mixture")) for name, q in self.probed.items()},
            rounds=self._rounds(isinstance(public, Texts)),
            pooled=self.pooled.sums() if self.pooled else {},
            contents=self.solved_batch(),
            embeddings=self.pictures.rows(self.records) if self.pictures else None,
            explained=self._explained() if isinstance(public, Texts) and self.solved else None,
        )

    def shadow_answers(self) -> Shadows | None:
        """The shadow models' outputs, read from disk; None without shadow models."""
        if (question := self.shadows) is None:
            return None
        public = public_records(self.public.read("public"))
        vectors = self.vectors.read("projections") if self.vectors else {}
        drawn = question.read("drawn")
        parts = {part: question.read(part) for part in question.parts if part not in ShadowQuestion.OTHER}

        def outputs(s: int) -> dict[str, Arrays]:
            return {part: {name: array[s] for name, array in arrays.items()} for part, arrays in parts.items()}

        more: dict[str, Floats | None] = {
            part: question.read(part)[part] if part in question.parts else None for part in ("norms", "sequence")
        }
        return Shadows(
            self.target.of_records(drawn["member"]),
            [public.answers(outputs(s)) for s in range(len(drawn["member"]))],
            more["norms"],
            drawn["trajectory"],
            more["sequence"],
            vectors.get("shadows"),
        )

    def _rounds(self, texts: bool) -> Rounds | None:
        """The results of reading messages, round by round, about this client's records; None where the adversary sees
        no messages, or the model is everybody's."""
        if not self.heard or self.client is None:
            return None
        heard = [{f"{part}/{n}": a for part in q.parts for n, a in q.read(part).items()} for q in self.heard]
        solved = [] if texts else [q.read("solved") for q in self.solved]
        return Rounds.of(self.client, self.clients, self.way, heard, solved)

    def solved_batch(self) -> SolvedBatch | None:
        """The contents of the target's first message; None where it was not asked, or could not be solved."""
        arrays = [question.read("contents") for question in self.contents]
        return SolvedBatch(**arrays[0]) if arrays and arrays[0] else None

    def _explained(self) -> tuple[Explained, ...]:
        """How these records explain messages of adapters, or changes of broadcasts."""
        messages = []
        for question in self.solved:
            explained = Explained.of(question.read("solved"))
            place = {record: i for i, record in enumerate(question.records[: len(explained.weights)])}
            messages.append(explained.picked(np.array([place.get(record, -1) for record in self.records])))
        return tuple(messages)


def answers_of(public: PublicRecords, question: ModelQuestion) -> Any:
    """A model's outputs on the records, read from disk (`attacks.answers.ModelAnswers`)."""
    return public.answers({part: question.read(part) for part in question.parts if part != "norms"})
