"""Whom a server names that solves each message for its batch, at the embedded scale.

    python -m benchmarks.decompose [PART ...] [--clients 10] [--seeds 3]

Parts: `first` (DP-FPL's first message, with and without noise), `exact` (methods whose replay is exact), `replayed` (DP-FPL, whose random factors the
server does not know, and FedPGP), `known` (a part of the client's records among the candidates, the others unknown), `steps` (1, 2 and 5 local steps),
`poisson`, `noise` (of PromptFL's clients). By default all.

named: of the client's first message, how many of its records are among as many records with the largest shares. AUROC and TPR at an FPR of 0 are of
members against held-out records of the same client over the rounds, means over clients and seeds. residual and error: medians over messages
(`attacks.decompose.Solution`). Seconds are the clock's, on one thread: of the client's part of training a round, of the gradients of its candidate and
reference records, and of solving.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fedaudit.attacks.answers import ClassAnswers
from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import Decompose, Params, Solution, solve
from fedaudit.attacks.knowledge import Knowledge, Mixture, Rounds
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import one_thread
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.targets import targets_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.trainers.base import Participation

FREE = "--epsilon=none"
PARTS: dict[str, dict[str, str]] = {
    "first": {
        "DP-FPL, no noise": f"--method=dpfpl {FREE} --rounds=1",
        "DP-FPL, epsilon 0.1": "--method=dpfpl --epsilon=0.1 --no-twin --rounds=1",
        "DP-FPL, 0.1, clip batch": "--method=dpfpl --epsilon=0.1 --no-twin --clip=batch --rounds=1",
    },
    "exact": {"FedOTP": f"--method=fedotp {FREE}", "PromptFL": f"--method=promptfl {FREE}"},
    "replayed": {
        "FedPGP": f"--method=fedpgp {FREE}",
        "DP-FPL": f"--method=dpfpl {FREE}",
        "DP-FPL, no residual": f"--method=dpfpl {FREE} --no-residual",
    },
    "known": {"FedOTP": f"--method=fedotp {FREE}"},
    "steps": {
        f"PromptFL, {steps} steps{rate and ', rate 0.001'}": f"--method=promptfl {FREE} --local-steps={steps} {rate}"
        for steps in (1, 2, 5)
        for rate in ("", "--global-rate=0.001")
    },
    "poisson": {"FedOTP, Poisson": f"--method=fedotp {FREE} --sampler=poisson",
                "DP-FPL, 0.1, Poisson": "--method=dpfpl --epsilon=0.1 --no-twin --sampler=poisson --rounds=1"},
    "noise": {
        f"PromptFL, epsilon {epsilon}": f"--method=promptfl --epsilon={epsilon} --no-twin --clip-norm=1"
        for epsilon in (0.1, 10, 100, 1000)
    },
}  # fmt: skip
SHARES = {"known": (1.0, 0.5, 0.25)}  # of the client's records that are candidates


@dataclass(frozen=True)
class ScoredRun:
    """One client of one seed: its messages, who was a member of its candidates, and who in its first batch."""

    mixtures: Sequence[Mixture]
    member: NDArray[np.bool_]  # [candidates]
    batch: NDArray[np.bool_]  # [columns]
    gradients: float  # seconds a round

    def part(self, share: float) -> ScoredRun:
        """The same for who knows a part of the client's candidates and references, drawn without regard to members."""
        chosen = np.random.default_rng(0).random(len(self.batch)) < share
        fewer = [dataclasses.replace(m, gradients=m.gradients[:, chosen], known="at most") for m in self.mixtures]
        member = self.member[chosen[: len(self.member)]]
        return dataclasses.replace(self, mixtures=fewer, member=member, batch=self.batch[chosen])


def attacked(words: str, clients: int, seeds: int) -> tuple[list[ScoredRun], float]:
    """Every client of every seed, and the seconds of a client's part of a round of training."""
    found, trained = [], 0.0
    with tempfile.TemporaryDirectory() as out:
        plan = read_command(
            [*words.split(), f"--seeds={seeds}", "--attack=decompose", "--threads=1", f"--out={out}"]
        ).plan
        one_thread()
        with Workshop(plan, Progress(quiet=True)) as workshop:
            bench = make_bench(plan, workshop.federation)
            _ = workshop.executor
            for cell in plan.cells:
                began = time.perf_counter()
                train_all([cell], workshop, Progress(quiet=True))
                trained += (time.perf_counter() - began) / cell.plan.rounds / cell.plan.clients / seeds
                found += list(_of_cell(cell, workshop.federation, bench, clients))
    return found, trained


def _of_cell(cell: Cell, federation: Any, bench: Any, clients: int) -> Iterator[ScoredRun]:
    method, transcript = method_of(cell, federation.sizes), transcript_of(cell)
    messages = ReplayedMessages(View(transcript, "server"), method, bench.learner)
    for asked in targets_of(cell, federation)[:clients]:
        assert asked.client is not None
        began = time.perf_counter()
        own, turns = (asked.client, asked.own), transcript.participations(asked.client)
        said = [messages.round(own[0], r, own[1], ("solved",), len(own[1]), asked.complete) for r in turns]
        mixtures = [Mixture.of({name.removeprefix("solved/"): a for name, a in one.items()}) for one in said]
        seconds = (time.perf_counter() - began) / len(mixtures)
        member = np.array([federation.truth[record] for record in asked.candidates])
        yield ScoredRun(mixtures, member, _first_batch(asked, cell, federation, method), seconds)


def _first_batch(asked: Target, cell: Cell, federation: Any, method: Any) -> NDArray[np.bool_]:
    listed = [record.id for record in federation.clients[asked.client].training_records]
    client = Participation(asked.client, 0, cell.seed, listed, None)
    held = {record for step in range(method.steps(len(listed))) for record in method.minibatch(client, step)}
    return np.isin(asked.own, list(held))


def row(found: Sequence[ScoredRun]) -> tuple[list[float], list[Solution]]:
    """Named, batch, AUROC, TPR and the seconds of solving a message: means; and all solutions."""
    rows, solutions = [], []
    for one in found:
        began = time.perf_counter()
        solved = [solve(mixture) for mixture in one.mixtures]
        seconds = (time.perf_counter() - began) / len(solved)
        score = _score(one)[: len(one.member)]
        named = np.argsort(-np.nan_to_num(np.abs(solved[0].shares)), kind="stable")[: one.batch.sum()]
        auroc = roc_auc_score(one.member, score)
        tpr = (score[one.member] > score[~one.member].max()).mean()
        rows.append((one.batch[named].sum(), one.batch.sum(), auroc, tpr, seconds))
        solutions += solved
    return np.mean(rows, axis=0).tolist(), solutions


def _score(one: ScoredRun) -> NDArray[np.float64]:
    n = len(one.batch)
    nothing = ClassAnswers(np.zeros((n, 2)), np.zeros(n, np.int64))
    seen = Knowledge(
        tuple(map(str, range(n))), np.zeros(n, bool), nothing, nothing,
        rounds=Rounds(0, np.zeros((0, 1, n)), np.zeros((0, 1, n)), tuple(one.mixtures)),
    )  # fmt: skip
    return np.nan_to_num(Decompose(Params()).score(seen)["decompose"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--clients", type=int, default=10, help="clients that are attacked")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10, help="of parts that look at more than one message")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    print(
        f"{'':<34}{'named':>12}{'AUROC':>8}{'TPR':>7}{'residual':>10}{'error':>9}"
        f"{'train s':>9}{'gradients':>11}{'solve':>8}   load"
    )
    for part in chosen.parts or PARTS:
        for name, words in PARTS[part].items():
            rounds = [] if "--rounds" in words else [f"--rounds={chosen.rounds}"]
            found, trained = attacked(" ".join([words, *rounds]), chosen.clients, chosen.seeds)
            for share in SHARES.get(part, (1.0,)):
                some = [one.part(share) for one in found] if part in SHARES else found
                (named, batch, auroc, tpr, seconds), solutions = row(some)
                label = name if part not in SHARES else f"{name}, {share:.0%} known"
                residual, error = (np.median([getattr(s, what) for s in solutions]) for what in ("residual", "error"))
                of = f"{named:.1f} of {batch:.1f}"
                print(
                    f"{label:<34}{of:>12}{auroc:>8.3f}{tpr:>7.2f}{residual:>10.1e}{error:>9.1e}{trained:>9.2f}"
                    f"{np.mean([one.gradients for one in found]):>11.2f}{seconds:>8.2f}   {os.getloadavg()[0]:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
