"""Pictures that a server finds by first messages, without candidates: `python -m benchmarks.contents [--clients 9] [--seeds 1]`.

For each method: records whose class is right; the mean cosine of the pictures' embeddings with the solved ones; for how
many the true picture comes first among all of the data set, and among the first ten; the same counts and the median
rank for the batch of another client, judged by the same solved embeddings (`other`), which is chance. Records whose
message is not solved, as clipping hides it, count as not found. Seconds are the processor's for a message.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedaudit.attacks.base import View
from fedaudit.attacks.knowledge import SolvedBatch
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.contents import judged
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.targets import batch_of, targets_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.tasks.base import Federation
from fedaudit.terms.threat_models import SERVER

RUNS = {
    "PromptFL, no noise": "--method=promptfl --epsilon=none",
    "DP-FPL, no noise": "--method=dpfpl --epsilon=none",
    "DP-FPL, epsilon 0.1": "--method=dpfpl --epsilon=0.1",
    "FedOTP, no noise": "--method=fedotp --epsilon=none",
}


@dataclass(frozen=True)
class Message:
    """One message: its batch and those of another batch, as `judged`, and the seconds of solving it."""

    batch: pd.DataFrame
    other: pd.DataFrame
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--clients", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    one_thread()
    print(f"{'':<22}{'records':>8}{'class':>7}{'cosine':>8}{'first':>7}{'ten':>5}{'median':>8}"
          f"{'other: first':>14}{'ten':>5}{'median':>8}{'seconds':>9}")  # fmt: skip
    for name in options.runs or RUNS:
        found = [*messages(RUNS[name], options.clients, options.seeds)]
        mine, other = pd.concat([m.batch for m in found]), pd.concat([m.other for m in found])
        seconds = np.mean([m.seconds for m in found])
        print(f"{name:<22}{len(mine):>8}{mine.label_right.sum():>7.0f}{mine.cosine.mean():>8.3f}{_ranks(mine)}"
              f"{'':>7}{_ranks(other)}{seconds:>9.1f}", flush=True)  # fmt: skip


def _ranks(rows: pd.DataFrame) -> str:
    ranks = rows["rank"]
    return f"{(ranks == 1).sum():>7}{(ranks <= 10).sum():>5}{ranks.median():>8.0f}"


def messages(words: str, clients: int, seeds: int) -> Iterator[Message]:
    """The first messages of all clients of a run."""
    with tempfile.TemporaryDirectory() as out:
        flags = [*words.split(), "--no-twin", "--rounds=1", f"--clients={clients}", f"--seeds={seeds}", f"--out={out}"]
        plan, quiet = read_command(flags).plan, Progress(quiet=True)
        with Workshop(plan, quiet) as workshop:
            train_all(plan.cells, workshop, quiet)
            bench = make_bench(plan, workshop.federation)
            for cell in plan.cells:
                yield from _of_cell(cell, workshop.federation, bench)


def _of_cell(cell: Cell, federation: Federation, bench: Any) -> Iterator[Message]:
    method, view, names = method_of(cell, federation.sizes), View(transcript_of(cell), SERVER), [*federation.records]
    read = ReplayedMessages(view, method, bench.learner, bench.candidates)
    place = {name: i for i, name in enumerate(names)}
    pictures, labels = bench.learner.images(names).double().numpy(), bench.learner.labels(names).numpy()
    targets = targets_of(cell, federation)
    batches = [[place[r] for r in sorted(batch_of(cell, federation, t.client or 0, 0))] for t in targets]
    for i, target in enumerate(targets):
        began = time.process_time()
        arrays = read.round(target.client or 0, 0, target.records, ("contents",), len(target.own), target.complete)
        seconds = time.process_time() - began
        nothing = SolvedBatch(np.zeros(0, np.int64), np.zeros((0, pictures.shape[1])))
        solved = SolvedBatch(arrays["contents/labels"], arrays["contents/embeddings"]) if arrays else nothing
        mine, other = (judged(solved, pictures, labels, batches[j]) for j in (i, i - 1))
        yield Message(mine, other, seconds)


if __name__ == "__main__":
    main()
