"""Calibration of the controls: over many data draws, how often their 95 % intervals cover 0.5.

    python -m benchmarks.controls [number of draws, default 20] [captions or vqa]

The base model and the blind classifier know nothing of membership: each should cover 0.5 in about 95 % of the draws.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from fedaudit.attacks.answers import public_records
from fedaudit.attacks.knowledge import Knowledge
from fedaudit.attacks.maxrenyi import MaxRenyi, Params
from fedaudit.attacks.questions.kinds import KINDS
from fedaudit.audits.blind import blind_scores
from fedaudit.audits.statistics.ranking import auroc
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.vlm import load
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.store import claim
from fedaudit.tasks.facts import TASKS
from fedaudit.trainers.base import generator
from fedaudit.trainers.lora import Learner, Settings

SIGNALS = ("loss", "renyi/2/10/caption")


def main() -> None:
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    task = TASKS[sys.argv[2] if len(sys.argv) > 2 else "captions"]
    one_thread()
    learner = Learner(load(EMBEDDED), {}, Settings())
    start = learner.initial(generator(0, "controls"))
    covered = dict.fromkeys((*SIGNALS, "blind"), 0)
    print(f"{'draw':<6}" + "".join(f"{name:<26}" for name in covered))
    for seed in range(draws):
        params = task.params(reference=2, novel=2, test=1)
        federation = task.make(params, clients=12, seed=seed)
        pairs = [(client.name, record) for client in federation.clients for record in client.records]
        records = [record for _, record in pairs]
        member = [federation.truth[record.id] for record in records]
        names = [name for name, _ in pairs]
        with tempfile.TemporaryDirectory() as cache:
            learner.data = learner.vlm.encode(records, claim(Path(cache)), say=print)
        ids = tuple(record.id for record in records)
        kind = KINDS["texts"]
        (said,) = kind.answers(learner, None, [start], ids, ("exact",))
        answers = public_records(kind.public_records(learner, ids)).answers(said)
        table = MaxRenyi(Params()).score(Knowledge(ids, np.zeros(len(ids), bool), answers, answers))
        blind = blind_scores(records, member, names, seed=0)
        scores = {name: table[name] for name in SIGNALS} | {"blind": [blind[record.id] for record in records]}
        found = {name: auroc(values, member, names) for name, values in scores.items()}
        for name, interval in found.items():
            covered[name] += interval.low <= 0.5 <= interval.high
        row = (f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for i in found.values())
        print(f"{seed:<6}" + "".join(f"{text:<26}" for text in row), flush=True)
    print(f"{'covers':<6}" + "".join(f"{f'{n} of {draws}':<26}" for n in covered.values()))


if __name__ == "__main__":
    main()
