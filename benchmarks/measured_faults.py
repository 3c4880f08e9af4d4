"""Faults of privacy that canaries show, planted in trainings that really run: PromptFL with calibrated noise.

    python benchmarks/measured_faults.py [clients, default 10] [canaries of each, default 100] [rounds, default 2] [task]

The ledger goes on proving what it would without the fault. Every step takes all records of a client, |B| = 256, and most
gradients are longer than C = 0.1, so that the noise meets its worst case. The adversary is the server. Its scores:

plain      inner products of each upload's step with a candidate's clipped gradient, added over the rounds.
ridge      the coins by ridge regression of the steps on all candidates' clipped gradients, for a tenth of the noise
           that the ledger names: the others' gradients are taken out.

Each line is a bound by itself; whoever looks for a fault fixes one score beforehand. `p` is the probability of so many
right guesses under the Gaussian mechanism that the ledger proves.
"""

from __future__ import annotations

import contextlib
import functools
import math
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from attacks.base import Candidates, View
from attacks.gradients import record_gradients
from audits.epsilon import ledger_of
from audits.statistics import one_run, trade_off
from audits.statistics.guesses import number_of_guesses, right_guesses
from fedaudit.command.cli import read_command
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.privacy.accountant import provable
from fedaudit.privacy.clipping import add_noise, clipped_mean
from trainers.prompts import PromptMethod

SCORES = ("plain", "ridge")
EPSILON, DELTA, BATCH, NORM = 1.0, 1e-5, 256, 0.1


def scaled_noise(factor: float, mean: Tensor, std: float, generators: Any) -> Tensor:
    return add_noise(mean, factor * std, generators)


def one_noise(mean: Tensor, std: float, generators: Any) -> Tensor:
    """The same noise in every step."""
    return add_noise(mean, std, [torch.Generator().manual_seed(7 + i) for i in range(len(mean))])


def unclipped(gradients: Tensor, weights: Tensor | None = None, *, norm: float, **more: Any) -> Tensor:
    return clipped_mean(gradients, weights, norm=math.inf, **more)


def of_batch(gradients: Tensor, weights: Tensor, *, norm: float, **more: Any) -> Tensor:
    """The batch's mean, clipped once."""
    share = weights / weights.sum(0).clamp(min=1)
    mean = torch.einsum("rn...,rn->n...", gradients, share)
    return clipped_mean(mean[None], None, how="batch", norm=norm, batch=1)


FAULTS: dict[str, Mapping[str, Callable[..., Tensor]]] = {
    "none": {},
    "a tenth of the noise": {"add_noise": functools.partial(scaled_noise, 0.1)},
    "noise forgotten": {"add_noise": functools.partial(scaled_noise, 0.0)},
    "clipping off": {"clipped_mean": unclipped},
    "batch clipping": {"clipped_mean": of_batch},
    "one noise for all steps": {"add_noise": one_noise},
}


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, wrong in FAULTS[fault].items():
            stack.enter_context(mock.patch(f"trainers.protection.{name}", wrong))
        yield


def main() -> None:
    clients, each, rounds, task = (*sys.argv[1:], *("10", "100", "2", "glyphs")[len(sys.argv) - 1 :])
    words = (
        f"--method promptfl --task {task} --attack none --clients {clients} --rounds {rounds} --batch {BATCH} "
        f"--epsilon {EPSILON} --no-twin --clip-norm {NORM} --sigma calibrated --canaries {int(clients) * int(each)} "
        "--canary-kind ood --threads 1 --quiet"
    )
    print(f"{'fault':<26}{'score':<8}{'right':>10}{'any':>7}{'Gaussian':>10}{'provable':>10}{'p':>10}")
    for fault in FAULTS:
        with tempfile.TemporaryDirectory() as out, planted(fault):
            show(fault, f"{words} --out {out}")


def show(fault: str, words: str) -> None:
    """A line for each score."""
    plan = read_command(shlex.split(words)).plan
    with Workshop(plan, Progress(quiet=True)) as workshop:
        (cell,) = plan.cells
        train_all([cell], workshop, Progress(quiet=True))
        method, transcript, federation = (
            method_of(cell, workshop.federation.sizes),
            transcript_of(cell),
            workshop.federation,
        )
        learner = make_bench(plan, federation).learner
    assert isinstance(method, PromptMethod)
    proven = provable(ledger_of(transcript, method), threat_model="server", delta=DELTA).epsilon
    view, found, coins, model = View(transcript, "server", Candidates({}, {}, ())), [], [], []
    for k, client in enumerate(federation.clients):
        ids = [r.id for r in (*client.records, *client.canaries)]
        found.append(coin_scores(view, method, learner, k, ids)[:, len(client.records) :])
        coins += client.canary_included.tolist()
        model += [client.name] * len(client.canaries)
    m = len(coins)
    for name, scores in zip(SCORES, np.concatenate(found, axis=1), strict=True):
        right = right_guesses(scores, np.array(coins), np.array(model))
        about = {"correct": right, "guesses": number_of_guesses(m), "canaries": m}
        bounds = [test.epsilon_lower_bound(**about, delta=DELTA) for test in (one_run, trade_off)]
        p = trade_off.p_value(trade_off.gaussian(trade_off.gaussian_mu(proven, DELTA)), **about)
        said = f"{right} of {number_of_guesses(m)}"
        print(f"{fault:<26}{name:<8}{said:>10}{bounds[0]:>7.2f}{bounds[1]:>10.2f}"
              f"{proven:>10.2f}{p:>10.1g}", flush=True)  # fmt: skip


def coin_scores(view: View, method: PromptMethod, learner: Any, client: int, ids: list[str]) -> np.ndarray[Any, Any]:
    """The `SCORES` [2, n] of a client's candidates."""
    n = len(ids)
    gram, product = torch.zeros(n, n, dtype=torch.double), torch.zeros(n, dtype=torch.double)
    for r in range(view.rounds):
        start, sent = view.broadcast(r)["p_G"], view.uploads(r)[client]["p_G"]
        step = (start - sent).flatten().double() / method.settings.global_rate
        gradients = record_gradients(method, learner, learner.text, start, ids).flatten(1).double()
        gradients *= (NORM / gradients.norm(dim=1, keepdim=True)).clamp(max=1) / BATCH
        gram += gradients @ gradients.T
        product += gradients @ step
    noise = 4 * (method.protection.stds["p_G"] / 10) ** 2 * torch.eye(n, dtype=torch.double)  # a coin's variance is 1/4
    found: np.ndarray[Any, Any] = torch.stack(
        [product, torch.linalg.solve(gram + noise, product - gram.sum(1) / 2)]
    ).numpy()
    return found


if __name__ == "__main__":
    main()
