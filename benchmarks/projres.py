"""What the projection residual on the change of A finds after one step of SGD and after a few of AdamW.

    python -m benchmarks.projres [clients]     two minutes of one core with 6 clients

Each client of the embedded task takes its steps from one of two starts: adapters that were trained on other records (8
steps on reference records), or the public start, where B is zero. The records that it took them on are told from as
many of its held-out ones: AUROC, mean and standard error over clients, and mean residuals of both. With one record a
step the batch has about as many tokens as the rank of 8 can hold directions of; with 8 it has ten times as many.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.messages.adapters import projections
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.pipeline.workers import federation_of, make_bench
from fedaudit.trainers.base import State, generator, plain
from fedaudit.trainers.lora import Learner

CLIENTS, BATCH = 6, 8
# optimiser, steps, records of the client that are trained on (0: all)
RUNS = (("SGD", 1, 1), ("SGD", 1, BATCH), ("AdamW", 1, BATCH), ("AdamW", 4, 0), ("AdamW", 8, 0))


def main(words: Sequence[str]) -> None:
    one_thread()
    clients = int(words[0]) if words else CLIENTS
    with tempfile.TemporaryDirectory() as out:
        plan = read_command(["--method", "fedavg", "--attack", "projres", "--out", out]).plan
        federation = federation_of(plan)
        learner = make_bench(plan, federation).learner
    assert isinstance(learner, Learner)
    public = learner.initial(generator(0, "initial"))
    others = [r.id for r in federation.clients[-1].reference]
    starts = {"trained": adamw(learner, public, others, 8), "public": public}
    print(f"{'start':<10}{'steps':<12}{'batch':>6}{'AUROC':>16}{'residual: trained on':>22}{'held out':>10}")
    for name, start in starts.items():
        for optimiser, steps, few in RUNS:
            found = []
            for client in federation.clients[:clients]:
                candidates = np.array(client.candidates)
                truth = np.array([federation.truth[r] for r in candidates])
                members, held_out = candidates[truth][: few or None], candidates[~truth]
                batch = members.tolist()
                after = sgd(learner, start, batch) if optimiser == "SGD" else adamw(learner, start, batch, steps)
                asked = [*batch, *held_out.tolist()]
                left = projections(learner, start, {n: t - start[n] for n, t in after.items()}, asked)
                found.append((-left, np.arange(len(asked)) < len(batch)))
            line = f"{name:<10}{f'{steps} {optimiser}':<12}{few if few == 1 else BATCH:>6}"
            print(line + shown(found), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


def sgd(learner: Learner, start: State, batch: Sequence[str]) -> State:
    """One step on the mean over all tokens, by a rate that does not matter: the rows' span is the same."""
    leaves = {name: t.clone().requires_grad_() for name, t in start.items()}
    learner.loss(plain(leaves), batch).backward()
    return {name: start[name] if t.grad is None else start[name] - t.grad for name, t in leaves.items()}


def adamw(learner: Learner, start: State, records: Sequence[str], steps: int) -> State:
    kept = learner.settings
    learner.settings = dataclasses.replace(kept, local_steps=steps, batch=BATCH)
    try:
        return learner.train(start, records, torch.Generator().manual_seed(0), plain)
    finally:
        learner.settings = kept


def shown(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    if any(np.isnan(score).any() for score, _ in found):
        return f"{'A did not move':>16}"
    aurocs = [roc_auc_score(member, score) for score, member in found]
    error = np.std(aurocs, ddof=1) / len(aurocs) ** 0.5
    inside, outside = (np.mean([-score[member == kind].mean() for score, member in found]) for kind in (True, False))
    return f"{f'{np.mean(aurocs):.3f} ± {error:.3f}':>16}{inside:>22.3f}{outside:>10.3f}"


if __name__ == "__main__":
    main(sys.argv[1:])
