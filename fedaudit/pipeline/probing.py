"""Asks the clients of a finished training the probes of active attacks, and keeps the answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from fedaudit.attacks.attacked_models import Target, records_digest
from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.knowledge import Mixture
from fedaudit.attacks.probes import Probe, growth, length, solvable
from fedaudit.machinery.store import Folder, claim, key_of
from fedaudit.pipeline import keys
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.permitted import permitted_attacks
from fedaudit.pipeline.questions import ModelWorker, StoredQuestion
from fedaudit.pipeline.targets import batch_of
from fedaudit.tasks.base import client_name
from fedaudit.terms.threat_models import ACTIVE_SERVER
from fedaudit.trainers.base import State
from fedaudit.trainers.rounds import answers_to

if TYPE_CHECKING:
    from fedaudit.attacks.answers import Arrays
    from fedaudit.machinery.progress import Progress
    from fedaudit.pipeline.plan import Cell
    from fedaudit.pipeline.question_set import QuestionSet
    from fedaudit.pipeline.workers import Workshop
    from fedaudit.tasks.base import Federation


@dataclass(frozen=True)
class ProbeFile:
    """A probe and its answers on disk (`attacks.probes.Probed`); `write` is called once, all else reads."""

    folder: Folder
    name: str

    def write(self, probe: Probe, answers: Mapping[int, State]) -> None:
        tensors = {"round": torch.tensor(probe.round)} | {f"sent/{name}": t for name, t in probe.state.items()}
        for client, answer in answers.items():
            tensors |= {f"answer/{client}/{name}": t for name, t in answer.items()}
        self.folder.write_tensors(self.name, tensors)

    @property
    def probe(self) -> Probe:
        return Probe(
            int(self.folder.read_tensors(self.name, "round")[""]), self.folder.read_tensors(self.name, "sent/")
        )

    def answer(self, client: int) -> State:
        """As `attacks.probes.Probed`; {} too if nobody was asked yet."""
        return {} if self.name not in self.folder else self.folder.read_tensors(self.name, f"answer/{client}/")


def probe_files(cell: Cell) -> dict[str, ProbeFile]:
    """The files of the probes of a cell's active attacks, by attack."""
    active = permitted_attacks(cell).get(ACTIVE_SERVER, {})
    return {
        name: ProbeFile(Folder(cell.answers_folder), f"probe-{name}-{key_of(keys.fields(params))}.safetensors")
        for name, params in active.items()
    }


def ask_probes(cell: Cell, workshop: Workshop, progress: Progress) -> None:
    """Compute and write the answers to a cell's probes that are not on disk. The training is not changed."""
    files = probe_files(cell)
    if not files:
        return
    with claim(cell.answers_folder).lock(progress.say):
        todo = {name: file for name, file in files.items() if not file.folder.usable(file.name, progress.say)}
        view, transcript = View(transcript_of(cell), ACTIVE_SERVER), transcript_of(cell)
        for name, file in todo.items():
            params = permitted_attacks(cell)[ACTIVE_SERVER][name]
            probe, check = ATTACKS[name].make(params).craft(view), getattr(params, "growth_check", 0.0)
            method, executor = method_of(cell, workshop.federation.sizes), workshop.executor  # outside of the stage
            with progress.stage(f"{name}: clients answer the server in round {probe.round + 1}", 1) as advance:
                answers = answers_to(transcript, probe.round, method, probe.state, executor)
                grown = {k: growth(view, probe.state, probe.round, k) for k in answers}
                file.write(probe, {k: answer for k, answer in answers.items() if not check or grown[k] <= check})
                advance()


def probes_table(cell: Cell, federation: Federation, question_sets: Iterable[QuestionSet]) -> pd.DataFrame:
    """A row per active attack and client that answered or refused. Columns: `attack`, `client`, `round`; `batch`, how
    many records the client's batch of that round had; `named`, how many of them are among as many records with the
    largest shares, and `chance`, how many would be by chance (NaN if it refused); and what the client could notice:
    `growth` of the broadcast, `honest_growth` of the training's, and `answer`, the length of what it sent over that of
    its honest message. `refused_honest` is the share of the training's broadcasts that the same check refuses."""
    view, transcript, rows = View(transcript_of(cell), ACTIVE_SERVER), transcript_of(cell), []
    targets = {q.client: q for q in question_sets if q.threat_model == ACTIVE_SERVER and q.client is not None}
    for name, file in probe_files(cell).items():
        probe, check = file.probe, getattr(permitted_attacks(cell)[ACTIVE_SERVER][name], "growth_check", 0.0)
        for k, question_set in targets.items():
            if probe.round not in (rounds := view.participations(k)):
                continue
            honest = [growth(view, view.broadcast(r), r, k) for r in rounds]
            batch = batch_of(cell, federation, k, probe.round)
            answer, records = file.answer(k), question_set.target.own
            rows.append({
                "attack": name, "client": client_name(k), "round": probe.round, "batch": len(batch),
                "named": _named(question_set.probed[name], records, batch) if answer else math.nan,
                "chance": len(batch) ** 2 / len(records) if answer else math.nan,
                "growth": growth(view, probe.state, probe.round, k), "honest_growth": honest[rounds.index(probe.round)],
                "answer": length(answer) / length(transcript.upload(probe.round, k)) if answer else math.nan,
                "refused_honest": float(np.mean([bool(check) and one > check for one in honest])),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _named(question: ProbeQuestion, own: Sequence[str], batch: set[str]) -> int:
    """How many records of a batch are among as many with the largest shares of a client's answer."""
    shares = np.nan_to_num(np.abs(solve(Mixture.of(question.read("mixture"))).shares))
    return len({own[i] for i in np.argsort(-shares, kind="stable")[: len(batch)]} & batch)


@dataclass(frozen=True)
class ProbeQuestion(StoredQuestion):
    """Asks for a target's answer to the probe of `attack` as a mixture of its records: the one part `mixture`."""

    view: View
    attack: str
    kept: ProbeFile
    target: Target

    @property
    def name(self) -> str:
        probe = self.kept.name.removesuffix(".safetensors")
        return f"{probe}-{self.target.client:03d}-{records_digest(self.target.records)}"

    def work(self, target_records: int) -> Mapping[str, float]:
        return {"solved": 1.0}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        assert worker.method is not None
        mixture = solvable(self.view, worker.method, worker.bench.learner, self.attack, self.target)
        return {"mixture": mixture.arrays()}
