"""Tables of the contents of first messages, as a server solved them without candidates, beside the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedaudit.attacks.answers import Arrays
from fedaudit.attacks.attacked_models import records_digest
from fedaudit.attacks.knowledge import Floats, SolvedBatch
from fedaudit.audits.tables.records import picture
from fedaudit.pipeline.questions import ModelWorker, StoredQuestion
from fedaudit.pipeline.targets import batch_of
from fedaudit.tasks.base import client_name
from fedaudit.terms.threat_models import SERVER
from fedaudit.trainers.prompt_model import PromptModel

if TYPE_CHECKING:
    from fedaudit.pipeline.plan import Cell
    from fedaudit.pipeline.question_set import QuestionSet
    from fedaudit.tasks.base import Federation

SHOWN = 4  # records that are shown as pictures


def contents_tables(
    cell: Cell, federation: Federation, question_sets: Iterable[QuestionSet]
) -> dict[str, pd.DataFrame]:
    """Two tables, empty where no attack solves first messages.

    `contents` has a row per record of a client's first batch. Columns: `client`, `round`, `record`; `label_right`,
    whether the solved record that it is matched with has its class; `cosine` of the two pictures' embeddings; `rank`,
    from 1, of its picture among all `pictures` of the data set by the cosine with the solved one; `control`, the rank
    of a record of another client's first batch, matched with the same. All NaN but the first three if the
    message was not solved.

    `contents_shown` has those found first whose cosines are largest, with their picture (`png`), and the public one
    that is nearest to what was solved: `nearest` and `nearest_png`.
    """
    sets = [one for one in question_sets if one.threat_model == SERVER and one.contents and one.pictures]
    if not sets:
        return {}
    names, number = list(federation.records), {name: i for i, name in enumerate(federation.classes)}
    place = {name: i for i, name in enumerate(names)}
    labels = np.array([number[federation.records[name].group] for name in names])
    public = np.array([i for i, name in enumerate(names) if name not in federation.truth])
    assert sets[0].pictures is not None
    pictures = sets[0].pictures.rows(names)
    batches = [_first_batch(cell, federation, one) for one in sets]
    rows = []
    for i, (one, batch) in enumerate(zip(sets, batches, strict=True)):
        table = pd.DataFrame({"client": client_name(one.client or 0), "round": one.contents[0].round, "record": batch})
        if (solved := one.solved_batch()) is not None:
            matched = judged(solved, pictures, labels, [place[record] for record in batch])
            table = table.join(matched.assign(pictures=len(names)))
            near = public[(solved.embeddings @ pictures[public].T).argmax(1)]
            table["nearest"] = [names[near[int(j)]] if j >= 0 else "" for j in matched.solved.fillna(-1)]
            if len(sets) > 1:
                other = [place[record] for record in batches[i - 1]]
                table["control"] = judged(solved, pictures, labels, other)["rank"]
        rows.append(table.drop(columns="solved", errors="ignore"))
    contents = pd.concat(rows, ignore_index=True).reindex(columns=COLUMNS)
    first = contents[contents["rank"] == 1].nlargest(SHOWN, "cosine")
    pngs = first.assign(
        label=[federation.records[record].text for record in first.record],
        png=[picture(federation.records[record]) for record in first.record],
        nearest_png=[picture(federation.records[record]) for record in first.nearest],
    )
    return {"contents": contents, "contents_shown": pngs}


COLUMNS = "client round record label_right cosine rank pictures control nearest".split()


def _first_batch(cell: Cell, federation: Federation, question_set: QuestionSet) -> list[str]:
    assert question_set.client is not None
    return sorted(batch_of(cell, federation, question_set.client, question_set.contents[0].round))


@dataclass(frozen=True)
class EmbeddingQuestion(StoredQuestion):
    """Asks for the embeddings of records' pictures. Its one part, `embeddings`, holds them [n, E]."""

    records: Sequence[str]

    @property
    def name(self) -> str:
        return f"pictures-{records_digest(tuple(self.records))}"

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        assert isinstance(worker.bench.learner, PromptModel)
        return {"embeddings": {"embeddings": worker.bench.learner.images(self.records).cpu().numpy()}}

    def rows(self, records: Sequence[str]) -> Floats:
        """The embeddings [n, E] of some of these records."""
        place = {record: i for i, record in enumerate(self.records)}
        rows: Floats = self.read("embeddings")["embeddings"][[place[record] for record in records]].astype(np.float64)
        return rows


def judged(solved: SolvedBatch, pictures: Floats, labels: NDArray[np.int64], batch: Sequence[int]) -> pd.DataFrame:
    """Rows of a batch, one per record, matched with what was solved so that most classes agree and then the cosines are
    largest: `solved`, the number of the one that it is matched with, `label_right`, `cosine`, and `rank`, from 1, of
    the record's picture among all by its cosine. NaN if it is matched with none. `batch` are places in `pictures` [N,
    E] and `labels` [N]."""
    cosines = solved.embeddings @ pictures.T
    same = solved.labels[:, None] == labels[list(batch)]
    ones, others = linear_sum_assignment(cosines[:, list(batch)] + 2 * len(batch) * same, maximize=True)
    rows = pd.DataFrame(index=range(len(batch)), columns=["solved", "label_right", "cosine", "rank"], dtype=float)
    for i, j in zip(ones, others, strict=True):
        cosine = cosines[i, batch[j]]
        rows.loc[j] = i, same[i, j], cosine, 1 + (cosines[i] > cosine).sum()
    return rows
