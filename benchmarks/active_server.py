"""Whom a server that acts reads with one scaled broadcast: `python -m benchmarks.active_server [--seeds 3]`.

For each method, with and without noise, and each factor: of a client's batch, how many of its |B| records are among the
|B| largest shares of its answer, as means over 10 clients, the seeds, and rounds 2, 6 and 10 of 10. Factor 1 is the
honest broadcast. `second` counts records that were drawn anew from the client's candidates in place of its batch,
`other` those whose places the answer of another client names: both are chance. `length`: of the answer, over that of the honest one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.probes import Probe, solvable
from fedaudit.command.cli import read_command
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.probing import ProbeFile
from fedaudit.pipeline.targets import batch_of, targets_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.terms.threat_models import ACTIVE_SERVER
from fedaudit.trainers.rounds import answers_to

ROUNDS = (1, 5, 9)  # counted from 0: in round 0 the honest broadcast names everybody
FACTORS = (1, 2, 10, 100, 1e3, 1e4)
RUNS = {
    "DP-FPL, epsilon 0.1": "--method=dpfpl --epsilon=0.1",
    "DP-FPL, no noise": "--method=dpfpl --epsilon=none",
    "FedPGP, epsilon 0.1": "--method=fedpgp --epsilon=0.1",
    "FedPGP, no noise": "--method=fedpgp --epsilon=none",
    "FedOTP, epsilon 0.1": "--method=fedotp --epsilon=0.1",
    "PromptFL, epsilon 0.1": "--method=promptfl --epsilon=0.1",
}


@dataclass(frozen=True)
class Answered:
    """One client's answer: how many records of its batch, of a second coin's, and of another client's are named."""

    named: int
    second: int
    other: int
    batch: int
    length: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':<24}{'factor':>8}{'named':>8}{'of':>4}{'second':>8}{'other':>7}{'length':>10}")
    for name in options.runs or RUNS:
        found = [*answered(RUNS[name], options.seeds)]
        for factor in FACTORS:
            of_factor = [one for f, one in found if f == factor]
            mean = np.mean([(a.named, a.second, a.other, a.batch, a.length) for a in of_factor], axis=0)
            print(f"{name:<24}{factor:>8g}{mean[0]:>8.2f}{mean[3]:>4.0f}{mean[1]:>8.2f}{mean[2]:>7.2f}{mean[4]:>10.2g}",
                  flush=True)  # fmt: skip


def answered(words: str, seeds: int) -> Iterator[tuple[float, Answered]]:
    """Every (factor, answer of a client) of a run."""
    with tempfile.TemporaryDirectory() as out:
        flags = [*words.split(), "--no-twin", "--rounds=10", "--clients=10", f"--seeds={seeds}", f"--out={out}"]
        plan, quiet = read_command(flags).plan, Progress(quiet=True)
        with Workshop(plan, quiet) as workshop:
            train_all(plan.cells, workshop, quiet)
            bench = make_bench(plan, workshop.federation)
            for cell in plan.cells:
                for r in ROUNDS:
                    for factor in FACTORS:
                        for one in _of_round(cell, workshop, bench, Path(out) / "probes", r, factor):
                            yield factor, one


def _of_round(cell: Cell, workshop: Workshop, bench: Any, out: Path, r: int, factor: float) -> Iterator[Answered]:
    method, transcript = method_of(cell, workshop.federation.sizes), transcript_of(cell)
    probe = Probe(r, {name: factor * tensor for name, tensor in transcript.broadcast(r).items()})
    answers, honest = answers_to(transcript, r, method, probe.state, workshop.executor), transcript.uploads(r)
    assert factor != 1 or all(torch.equal(t, honest[k][n]) for k, answer in answers.items() for n, t in answer.items())
    file = ProbeFile(claim(out), f"{cell.seed}-{r}-{factor:g}.safetensors")
    file.write(probe, answers)
    view = View(transcript, ACTIVE_SERVER, probes={"scaled": file})
    targets = targets_of(cell, workshop.federation)
    shares = [_shares(view, method, bench.learner, target) for target in targets]
    for i, target in enumerate(targets):
        batch = batch_of(cell, workshop.federation, target.client, r)
        named = {target.own[j] for j in np.argsort(-shares[i], kind="stable")[: len(batch)]}
        drawn = set(np.random.default_rng((cell.seed, r, i)).choice(target.own, len(batch), False))
        others = targets[i - 1]
        chance = np.argsort(-shares[i - 1], kind="stable")[: len(batch)]  # places in another client's list
        there = {target.own[j] for j in chance if j < len(target.own)}
        sent, own = answers[target.client], honest[target.client]
        length = float(np.mean([float(t.norm() / own[name].norm()) for name, t in sent.items()]))
        assert others.client != target.client
        yield Answered(len(named & batch), len(named & drawn), len(there & batch), len(batch), length)


def _shares(view: View, method: Any, learner: Any, target: Target) -> np.ndarray:
    return np.nan_to_num(np.abs(solve(solvable(view, method, learner, "scaled", target)).shares))


if __name__ == "__main__":
    main()
