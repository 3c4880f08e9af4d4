"""Asks the clients of a finished training the probes of active attacks, and keeps the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attacks.attacked_models import Target, records_digest
from attacks.base import View
from attacks.facts import ATTACKS
from attacks.probes import ProbeFile, solvable
from fedaudit.machinery.store import Folder, claim, key_of
from fedaudit.pipeline import keys
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.permitted import permitted_attacks
from fedaudit.pipeline.questions import ModelWorker, StoredQuestion
from fedaudit.terms.threat_models import ACTIVE_SERVER
from trainers.rounds import answers_to

if TYPE_CHECKING:
    from attacks.answers import Arrays
    from fedaudit.machinery.progress import Progress
    from fedaudit.pipeline.plan import Cell
    from fedaudit.pipeline.workers import Workshop


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
            probe = ATTACKS[name].make(permitted_attacks(cell)[ACTIVE_SERVER][name]).craft(view)
            method = method_of(cell, workshop.federation.sizes)
            with progress.stage(f"{name}: the clients' answers in round {probe.round + 1}", 1) as advance:
                file.write(probe, answers_to(transcript, probe.round, method, probe.state, workshop.executor))
                advance()


@dataclass(frozen=True)
class ProbeQuestion(StoredQuestion):
    """Asks for a target's answer to the probe of `attack` as a mixture of its records: the one part `mixture`."""

    view: View
    attack: str
    target: Target

    @property
    def name(self) -> str:
        probe = self.view.probe(self.attack).name.removesuffix(".safetensors")
        return f"{probe}-{self.target.client:03d}-{records_digest(self.target.records)}"

    def work(self, target_records: int) -> Mapping[str, float]:
        return {"solved": 1.0}

    def answer(self, worker: ModelWorker) -> dict[str, Arrays]:
        assert worker.method is not None
        mixture = solvable(self.view, worker.method, worker.bench.learner, self.attack, self.target)
        return {"mixture": mixture.arrays()}
