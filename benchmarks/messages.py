"""What a server finds of members of LoRA clients in their messages, beside the calibrated loss of their last state.

    python -m benchmarks.messages [any option of audit.py]     a training, and two to five minutes of one core a method

Every client's candidates, over all rounds in which it took part: for each way of rebuilding the mean over clients of
the AUROC of members against held-out records, its standard error, and of how many clients there is a number. These are
the attacks of `audit.py`, without its controls, reference records and intervals, which take longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import roc_auc_score

from fedaudit.attacks import facts
from fedaudit.attacks.answers import public_records
from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import Knowledge, Rounds
from fedaudit.attacks.messages.adapters import AdapterMessages
from fedaudit.attacks.messages.rebuild import rebuild
from fedaudit.attacks.questions.kinds import KINDS
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.terms.held_models import REBUILDINGS
from fedaudit.trainers.lora import Learner

ATTACKS = ("loss", "slope", "source", "fedmia", "cosine", "projres")
Found = dict[tuple[str, str], list[float]]  # way and score to AUROCs of clients


def main(words: Sequence[str]) -> None:
    one_thread()
    with tempfile.TemporaryDirectory() as folder:
        out = [] if "--out" in words else ["--out", folder]
        plan = read_command([*words, "--attack", ",".join(ATTACKS), *out]).plan
        with Workshop(plan, Progress()) as workshop:
            train_all(plan.cells, workshop, Progress())
            bench = make_bench(plan, workshop.federation)
            assert isinstance(bench.learner, Learner)
            for cell in plan.cells:
                began = time.process_time()
                found = over_clients(cell, workshop, bench.learner)
                print(f"\n{cell.method}, {time.process_time() - began:.0f} CPU s, load {os.getloadavg()[0]:.1f}")
                for (way, score), aurocs in sorted(found.items()):
                    error = np.std(aurocs, ddof=1) / len(aurocs) ** 0.5 if len(aurocs) > 1 else np.nan
                    print(f"  {way:<12}{score:<14}{np.mean(aurocs):.3f} ± {error:.3f}  ({len(aurocs)})", flush=True)


def over_clients(cell: Cell, workshop: Workshop, learner: Learner) -> Found:
    federation, found, kind = workshop.federation, Found(), KINDS[cell.plan.trained.records]
    view = View(transcript_of(cell), "server")
    attacks = {name: facts.ATTACKS[name] for name in ATTACKS}
    for k in cell.targets:
        records = federation.clients[k].candidates
        member = np.array([federation.truth[r] for r in records])
        turns, messages = (
            kind.heard_rounds(view, k, cell.plan.adversary.observed_rounds),
            AdapterMessages(view, learner),
        )
        heard = [messages.round(k, r, records, ("own", "heard"), 0, False) for r in turns]
        (said,) = kind.answers(learner, None, [view.public], records, ("exact",))
        base = public_records(kind.public_records(learner, records)).answers(said)
        ways = dict.fromkeys(one.way for way in REBUILDINGS for one in [rebuild(view, k, way)] if one.state is not None)
        for way in ways:
            rounds = Rounds.of(k, len(view.clients), way, heard)
            seen = Knowledge(tuple(records), np.zeros(len(records), bool), base, base, rounds=rounds)
            scores = {"loss/base": base.loss - rounds.loss[-1, k]}
            for plugin in attacks.values():
                made = plugin.make(plugin.params()).score(seen)
                scores |= {name: score for name, score in made.items() if name not in ("loss", "loss/base")}
            for name, score in scores.items():
                if not np.isnan(score).any():
                    found.setdefault((way, name), []).append(float(roc_auc_score(member, score)))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
