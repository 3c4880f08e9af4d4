"""Faults of privacy that canaries show, planted in trainings that really run, with calibrated noise for epsilon 1.

    python benchmarks/measured_faults.py [--seed 0] [--canaries 1000] [--clients 10] [FAULT ...]
    python benchmarks/measured_faults.py --limit      how far a canary moves what the server sees, if noise is forgotten on u

Ten clients with strange canaries. Every step takes all records of a client, |B| = 128, and nearly every gradient is
longer than C = 0.1, so that the noise meets its worst case: T is the number of steps of a client. PromptFL, two rounds of
one step; for noise that is forgotten on one tensor DP-FPL, two rounds of two steps, whose clients noise u, v and p_G. The
adversary is the server. Its scores:

plain      inner products of each upload's step with a candidate's clipped gradient, added over the rounds.
ridge      the coins by ridge regression of the steps on all candidates' clipped gradients, for a tenth of the noise
           that the ledger names: the others' gradients are taken out.
unclipped  the same for all of the noise on the gradients as they are, times the one number that fits the steps best: for
           faults of clipping.

Three more lines are bounds from a regression of the messages on the coins, without guesses: `messages` as the report has
it, on clipped gradients; `raw` on gradients as they are, for a canary of mean length; and `differences` of a client's
consecutive messages on those of its gradients. They say how much of a coin is there and how much noise, beside the ledger's.

Each line is a bound by itself; whoever looks for a fault fixes one score beforehand. `ledger` is what the ledger proves,
which knows of no fault, `true` what the accountant proves of a ledger that does; `p` is the probability of so many right
guesses under the Gaussian mechanism that the first proves.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from fedaudit.attacks.base import View
from fedaudit.attacks.messages.prompts import ReplayedMessages
from fedaudit.audits.epsilon import ledger_of
from fedaudit.audits.statistics import one_run, trade_off
from fedaudit.audits.statistics.guesses import number_of_guesses, right_guesses
from fedaudit.audits.statistics.regression import Coined, Message, regress
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.privacy.accountant import provable
from fedaudit.privacy.clipping import add_noise, clipped_mean
from fedaudit.privacy.ledger import Ledger, Mechanism
from fedaudit.trainers.prompts import PromptMethod
from fedaudit.trainers.protection import Protection

SCORES = ("plain", "ridge", "unclipped")
EPSILON, DELTA, BATCH, NORM = 1.0, 1e-5, 128, 0.1
PROMPTFL, DPFPL = "--method promptfl", "--method dpfpl --local-steps 2"
SETTING = (
    f"--task glyphs --attack none --rounds 2 --batch {BATCH} --epsilon {EPSILON} --delta {DELTA} --no-twin --clip-norm "
    f"{NORM} --sigma calibrated --canary-kind ood --threads 1 --quiet"
)


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


def all_but(forgotten: str, noise: Callable[..., Tensor], self: Protection, mean: Tensor, release: str, *who: Any,
            **more: Any) -> Tensor:  # fmt: skip
    """Noise on every tensor but one, which the ledger says has it too."""
    noised = noise(self, mean, release, *who, **more)
    return mean if release == forgotten else noised


@dataclass(frozen=True)
class Fault:
    """What is replaced in `trainers.protection`, and what of a mechanism the ledger then should have said; without a
    bound that holds, no noise."""

    method: str = PROMPTFL
    replaced: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    ran: Callable[[Mechanism], Mapping[str, Any]] = lambda _: {}


def forgotten_on(release: str) -> Fault:
    noise = Protection.noise

    def wrong(self: Protection, *what: Any, **more: Any) -> Tensor:
        return all_but(release, noise, self, *what, **more)

    return Fault(DPFPL, {"Protection.noise": wrong}, lambda m: {"std": 0.0} if m.release == release else {})


def nothing_holds(_: Mechanism) -> Mapping[str, Any]:
    return {"std": 0.0}


FAULTS = {
    "none": Fault(),
    "a tenth of the noise": Fault(
        replaced={"add_noise": functools.partial(scaled_noise, 0.1)}, ran=lambda m: {"std": m.std / 10}
    ),
    "noise forgotten": Fault(replaced={"add_noise": functools.partial(scaled_noise, 0.0)}, ran=nothing_holds),
    "clipping off": Fault(replaced={"clipped_mean": unclipped}, ran=nothing_holds),
    "batch clipping": Fault(
        replaced={"clipped_mean": of_batch}, ran=lambda m: {"clip": "batch", "sensitivity": 2 * m.clip_norm}
    ),
    # the difference of two steps has no noise
    "one noise for all steps": Fault(replaced={"add_noise": one_noise}, ran=nothing_holds),
    "none, DP-FPL": Fault(DPFPL),
    "forgotten on p_G": forgotten_on("p_G"),
    "forgotten on u": forgotten_on("u"),
}


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, wrong in fault.replaced.items():
            stack.enter_context(mock.patch(f"fedaudit.trainers.protection.{name}", wrong))
        yield


def as_it_ran(ledger: Ledger, fault: Fault) -> Ledger:
    """The ledger that says what the fault did."""
    steps = tuple(tuple(dataclasses.replace(m, **fault.ran(m)) for m in step) for step in ledger.steps)
    return dataclasses.replace(ledger, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", choices=[*FAULTS, []], help="by default all")
    for name, usual in (("seed", 0), ("canaries", 1000), ("clients", 10)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--limit", action="store_true")
    asked = parser.parse_args()
    if asked.limit:
        show_limit(f"{DPFPL.replace('steps 2', 'steps 4')} {SETTING.replace('rounds 2', 'rounds 1')} --clients {asked.clients} "
                   f"--canaries {asked.canaries} --seed {asked.seed}")  # fmt: skip
        return
    print(
        f"{'fault':<26}{'T':>3}{'ledger':>8}{'true':>8}  {'score':<10}{'right':>12}{'any':>7}{'Gaussian':>10}{'p':>10}"
    )
    for name in asked.faults or FAULTS:
        fault = FAULTS[name]
        words = f"{fault.method} {SETTING} --clients {asked.clients} --canaries {asked.canaries} --seed {asked.seed}"
        with tempfile.TemporaryDirectory() as out:
            show(name, fault, f"{words} --out {out}")


def show(name: str, fault: Fault, words: str) -> None:
    """A line for each score."""
    plan = read_command(shlex.split(words)).plan
    with Workshop(plan, Progress(quiet=True)) as workshop, planted(fault):
        (cell,) = plan.cells
        train_all([cell], workshop, Progress(quiet=True))
        federation = workshop.federation
        method, transcript = method_of(cell, federation.sizes), transcript_of(cell)
        learner = make_bench(plan, federation).learner
    assert isinstance(method, PromptMethod)
    ledger = ledger_of(transcript, method)
    said, true = (
        provable(one, threat_model="server", delta=DELTA).epsilon for one in (ledger, as_it_ran(ledger, fault))
    )
    (steps,) = {sum(exposure.steps) for exposure in ledger.exposures}
    view, found, coins, model, coined = View(transcript, "server"), [], [], [], []
    messages = ReplayedMessages(view, method, learner)
    for k, client in enumerate(federation.clients):
        ids = [r.id for r in (*client.records, *client.canaries)]
        scores, rounds = coin_scores(messages, method, learner, k, ids)
        found.append(scores[:, len(client.records) :])
        coined.append((rounds, np.array([federation.truth[i] for i in ids], float), len(client.records)))
        coins += client.canary_included.tolist()
        model += [client.name] * len(client.canaries)
    m, r = len(coins), number_of_guesses(len(coins))
    for score, values in zip(SCORES, np.concatenate(found, axis=1), strict=True):
        right = right_guesses(values, np.array(coins), np.array(model))
        about = {"correct": right, "guesses": r, "canaries": m}
        bounds = [test.epsilon_lower_bound(**about, delta=DELTA) for test in (one_run, trade_off)]
        p = trade_off.p_value(trade_off.gaussian(trade_off.GAUSSIAN.mu(said, DELTA)), **about)
        print(f"{name:<26}{steps:>3}{said:>8.2f}{true:>8.3g}  {score:<10}{f'{right} of {r}':>12}{bounds[0]:>7.2f}"
              f"{bounds[1]:>10.2f}{p:>10.1g}", flush=True)  # fmt: skip
    each = method.steps(coined[0][2])
    std = method.protection.stds["p_G"]
    for score in ("messages", "raw", "differences"):
        fitted = regress([_coined(*one, each, score) for one in coined])
        if fitted is None:
            continue
        bound = trade_off.GAUSSIAN.epsilon(fitted.mu_lower_bound(), DELTA)
        print(f"{name:<26}{steps:>3}{said:>8.2f}{true:>8.3g}  {score:<11}{'':>11}{'':>7}{bound:>10.2f}"
              f"{fitted.p_value(trade_off.GAUSSIAN.mu(said, DELTA)):>10.1g}  coin {fitted.scale:.3g}, noise "
              f"{fitted.noise / std:.3g} of the ledger's", flush=True)  # fmt: skip


class Neighbour(Workshop):
    """Workers that train with the first canary of the first client if it was left out, and else without it."""

    @property
    def executor(self) -> Executor[Any]:
        if self._executor is None:
            first, *others = self.federation.clients
            included = np.array(first.canary_included)
            included[0] = not included[0]
            trained = dataclasses.replace(
                self.federation, clients=(dataclasses.replace(first, canary_included=included), *others)
            )
            self._executor = Executor(functools.partial(make_bench, self.plan, trained))
        return self._executor


def show_limit(words: str) -> None:
    """How far one canary moves what the server sees of a round of four steps, with equal noise, in standard deviations:
    no test of what the server sees shows a larger mu."""
    print(f"{'fault':<26}{'proven mu':>10}{'moved by':>10}")
    for name in ("none, DP-FPL", "forgotten on u"):
        sums = []
        for made_by in (Workshop, Neighbour):
            with tempfile.TemporaryDirectory() as out, planted(FAULTS[name]):
                plan = read_command(shlex.split(f"{words} --out {out}")).plan
                with made_by(plan, Progress(quiet=True)) as workshop:
                    (cell,) = plan.cells
                    train_all([cell], workshop, Progress(quiet=True))
                    method, transcript = method_of(cell, workshop.federation.sizes), transcript_of(cell)
                    assert isinstance(method, PromptMethod)
                    sums.append(method.messages.gradient_sum(transcript.broadcast(0)["p_G"], transcript.upload(0, 0)))
                    said = provable(ledger_of(transcript, method), threat_model="server", delta=DELTA).epsilon
        moved = float((sums[1] - sums[0]).double().norm()) / (method.protection.stds["p_G"] * 2)
        print(f"{name:<26}{trade_off.GAUSSIAN.mu(said, DELTA):>10.3f}{moved:>10.3f}", flush=True)


def _coined(rounds: Sequence[Round], used: Arrays, candidates: int, steps: int, score: str) -> Coined:
    """A client's messages, of which the first `candidates` records are no canaries, and `used` says who was in; or the
    differences of consecutive messages."""
    canary = np.arange(len(used)) >= candidates
    size, kept, longest = np.sqrt(steps), [(short, sent) for short, _, sent in rounds], NORM * steps / BATCH
    if score == "differences":
        kept = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(kept)]
        size, longest = size * np.sqrt(2), 2 * longest
    elif score == "raw":
        kept = [(gradients, sent) for _, gradients, sent in rounds]
        longest = float(np.sqrt(np.mean([np.square(rows[:, canary]).sum(0).mean() for rows, _ in kept])))
    messages = []
    for gradients, sent in kept:
        basis, sizes, _ = np.linalg.svd(gradients, full_matrices=False)
        basis = basis[:, sizes > 1e-7 * sizes.max()]
        inside = basis.T @ sent
        outside, rank = max(0.0, float(sent @ sent - inside @ inside)), basis.shape[1]
        messages.append(
            Message(
                basis.T @ gradients / size, inside / size, rank, outside / size**2, len(sent) - rank, longest / size
            )
        )
    return Coined(messages, np.where(canary, used - 0.5, 0.0), np.where(canary, 0.5, used))


Arrays = np.ndarray[Any, Any]
Round = tuple[Arrays, Arrays, Arrays]  # gradients [d, n] times steps / |B|, clipped and as they are; the steps' sum [d]


def coin_scores(
    messages: ReplayedMessages, method: PromptMethod, learner: Any, client: int, ids: Sequence[str]
) -> tuple[Arrays, list[Round]]:
    """The `SCORES` [3, n] of a client's candidates, and its messages by round.

    The steps of a round are taken to be at the prompt that the server replays for its start.
    """
    clipped, raw, rounds = Moments(len(ids)), Moments(len(ids)), []
    for exchange in messages.exchanges.values():
        i = exchange.clients.index(client)
        server, own, upload = ({name: t[i] for name, t in state.items()}
                               for state in (exchange.server, exchange.own, exchange.upload))  # fmt: skip
        start, steps = server["p_G"], method.steps(len(ids))

        def text(p_G: Tensor, state: Mapping[str, Tensor] = own | server) -> Tensor:
            return learner.text(method.prompt({**state, "p_G": p_G}))

        sent = method.messages.gradient_sum(start, upload).flatten().double()
        gradients = learner.record_gradients(method, text, start, ids).flatten(1).double()
        gradients *= steps / BATCH
        short = gradients * (NORM * steps / BATCH / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
        rounds.append((short.T.numpy(), gradients.T.numpy(), sent.numpy()))
        clipped.add(short, sent)
        raw.add(gradients, sent)
    noise = steps * method.protection.stds["p_G"] ** 2
    found: Arrays = torch.stack(
        [
            clipped.product,
            clipped.coins(noise / 100, 1.0),
            raw.coins(noise, float(2 * raw.product.sum() / raw.gram.sum())),
        ]
    ).numpy()
    return found, rounds


class Moments:
    """Inner products of n candidates' gradients with each other and with the steps, added over the rounds."""

    def __init__(self, n: int) -> None:
        self.gram, self.product = torch.zeros(n, n, dtype=torch.double), torch.zeros(n, dtype=torch.double)

    def add(self, gradients: Tensor, sent: Tensor) -> None:
        self.gram += gradients @ gradients.T
        self.product += gradients @ sent

    def coins(self, noise: float, scale: float) -> Tensor:
        """Ridge regression [n] of the coins, of mean 1/2 and variance 1/4, where a step is `scale` times the sum of the
        gradients of those that are in, and noise of that variance."""
        others = scale**2 * self.gram + 4 * noise * torch.eye(len(self.product), dtype=torch.double)
        return torch.linalg.solve(others, scale * (self.product - scale * self.gram.sum(1) / 2))


if __name__ == "__main__":
    main()
