"""What the defaults of LoRA training rest on, and what a local step costs.

    python -m benchmarks.lora choose [any option of audit.py]   held-out loss by round for several numbers of steps and rates, and what then leaks
    python -m benchmarks.lora step                              a step with the update inside the weight, and as peft computes it
    python -m benchmarks.lora each                              gradients of single records: one pass, and a loop over them

`choose` sees reference records only: nobody trains on them, and no report is about them. Minutes for each of the settings.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedaudit.command import cli
from fedaudit.machinery.executor import Executor, one_thread
from fedaudit.machinery.progress import nothing
from fedaudit.machinery.store import claim
from fedaudit.pipeline.methods import method_of, schedule_of
from fedaudit.pipeline.workers import federation_of, make_bench
from fedaudit.trainers.base import Method, Schedule, State, generator, plain
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train

SETTINGS = ((8, 4e-3), (4, 4e-3), (8, 2e-3), (8, 8e-3), (16, 4e-3), (32, 4e-3))  # local steps and learning rate
EVERY, OF_CLIENTS = (
    6,
    3,
)  # of the reference records every sixth is asked of the global model, of those every third of the clients'
TRIALS = 15
RECORDS = (8, 32)  # of a batch whose gradients are taken one by one


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    chosen, more = parser.parse_known_args(sys.argv[1:] if words is None else words)
    PARTS[chosen.part](more)


def choose(more: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = cli.read_command([*more, f"--out={folder}"]).plan
        federation = federation_of(plan)
        reference = [record for client in federation.clients for record in client.reference]
        federation = dataclasses.replace(federation, test=tuple(reference[::EVERY]), novel_test=())
        what = method_of(plan.cells[0]), schedule_of(plan.cells[0])
        jobs = [(*what, steps, rate) for steps, rate in SETTINGS]
        with Executor(lambda: make_bench(plan, federation), workers=plan.threads) as executor:
            print(f"{plan.cells[0].method}: loss of {len(federation.test)} reference records by round")
            for (*_, steps, rate), (curves, leaks) in zip(jobs, executor.map(_trained, jobs), strict=True):
                print(f"\n{steps} steps at {rate:g}: members against reference records by calibrated loss: "
                      f"owner {leaks['owner']:.3f}, released model {leaks['released']:.3f}")  # fmt: skip
                for who, losses in curves.items():
                    print(f"  {who:<8}" + "".join(f"{loss:7.3f}" for loss in losses), flush=True)


class HeldOut:
    """The loss of the bench's test records, as the evaluation of a training."""

    def before(self, executor: Executor[Bench], method: Method[Any], start: State) -> dict[str, dict[str, float]]:
        return {"global": {"loss": self._loss(executor, start, 1)}}

    def after(
        self,
        executor: Executor[Bench],
        method: Method[Any],
        server: State,
        clients: Mapping[int, State],
        *,
        done: int,
        last: bool,
    ) -> dict[str, dict[str, float]]:
        own = [self._loss(executor, method.model(state), OF_CLIENTS) for state in clients.values()]
        return {"global": {"loss": self._loss(executor, server, 1)}, "clients": {"loss": float(np.mean(own))}}

    def _loss(self, executor: Executor[Bench], state: State, every: int) -> float:
        return next(executor.map(_loss, [(state, every)]))


def _loss(bench: Bench, job: tuple[State, int]) -> float:
    state, every = job
    return float(np.mean(bench.learner.losses(state, bench.test[::every])))


def _trained(
    bench: Bench, job: tuple[Method[Any], Schedule, int, float]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Losses by round (the public model first), and how well calibrated loss tells a client's members from reference records."""
    method, schedule, steps, rate = job
    learner = bench.learner
    learner.settings = dataclasses.replace(learner.settings, local_steps=steps, learning_rate=rate)
    with tempfile.TemporaryDirectory() as folder, Executor(lambda: bench) as here:
        transcript = train(
            method, schedule, HeldOut(), folder=claim(Path(folder)), executor=here, say=print, advance=nothing
        )
        rounds = [transcript.round(r)["utility"] for r in range(schedule.rounds)]
        curves = {"global": [transcript.initial["utility"]["global"]["loss"], *(u["global"]["loss"] for u in rounds)]}
        curves["clients"] = [float("nan"), *(u["clients"]["loss"] for u in rounds)]
        clients = [k for k in range(schedule.clients) if transcript.participations(k)]
        states = {"owner": {}, "released": dict.fromkeys(clients, transcript.broadcast(schedule.rounds))}
        for k in clients:
            states["owner"][k] = transcript.own_model(transcript.participations(k)[-1], k)
        public = transcript.broadcast(0)
        return curves, {who: _auroc(bench, public, models) for who, models in states.items()}


def _auroc(bench: Bench, public: State, models: Mapping[int, State]) -> float:
    """Mean over clients; a test record is of the client whose name its id begins with."""
    found = []
    for k, state in models.items():
        members, others = list(bench.training[k]), [r for r in bench.test if r.startswith(f"client-{k:02d}-")]
        gains = np.subtract(*(bench.learner.losses(s, [*members, *others]) for s in (public, state)))
        found.append(roc_auc_score([1] * len(members) + [0] * len(others), gains))
    return float(np.mean(found))


def step(more: Sequence[str]) -> None:
    one_thread()
    with tempfile.TemporaryDirectory() as folder:
        plan = cli.read_command([*more, f"--out={folder}"]).plan
        bench = make_bench(plan, federation_of(plan))
    learner, batch = bench.learner, list(bench.training[0][: plan.settings.batch])
    layers = [layer for layer, _ in learner._folded.values()]
    fused, start = [layer.forward for layer in layers], learner.initial(generator(0, "initial"))
    ways = {"as peft": [type(layer).forward.__get__(layer) for layer in layers], "in the weight": fused}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TRIALS):
        for name, forwards in ways.items():
            for layer, forward in zip(layers, forwards, strict=True):
                layer.forward = forward
            began = time.perf_counter()
            leaves = {n: t.clone().requires_grad_() for n, t in start.items()}
            learner.loss(plain(leaves), batch).backward()
            spent[name].append(time.perf_counter() - began)
    print(f"{'the update':<16}{'ms a step':>10}{'ratio':>8}   (load {os.getloadavg()[0]:.1f})")
    for name, times in spent.items():
        ratio = statistics.median(a / b for a, b in zip(times, spent["as peft"], strict=True))
        print(f"{name:<16}{1000 * statistics.median(times):>10.0f}{ratio:>8.2f}")


def each(more: Sequence[str]) -> None:
    one_thread()
    with tempfile.TemporaryDirectory() as folder:
        plan = cli.read_command([*more, f"--out={folder}"]).plan
        bench = make_bench(plan, federation_of(plan))
    learner, g = bench.learner, generator(0, "benchmark")
    start = {n: t + 0.02 * torch.randn(t.shape, generator=g) for n, t in learner.initial(g).items()}
    layers = [layer for layer, _ in learner._folded.values()]
    fused, plainly = [layer.forward for layer in layers], [type(layer).forward.__get__(layer) for layer in layers]
    ways = {
        "a loop, as peft": (plainly, _looped),
        "a loop, in the weight": (fused, _looped),
        "one pass": (fused, _at_once),
    }
    print(f"{'records':>8}  {'gradients of each':<24}{'ms':>8}{'ratio':>8}{'off by':>10}")
    for n in RECORDS:
        batch, spent, found = list(bench.training[0])[:n], dict[str, list[float]](), dict[str, Tensor]()
        for _ in range(TRIALS):
            for name, (forwards, way) in ways.items():
                for layer, forward in zip(layers, forwards, strict=True):
                    layer.forward = forward
                began = time.perf_counter()
                found[name] = way(learner, start, batch)
                spent.setdefault(name, []).append(time.perf_counter() - began)
        for name, times in spent.items():
            ratio = statistics.median(a / b for a, b in zip(times, spent["one pass"], strict=True))
            off = float((found[name] - found["one pass"]).norm() / found["one pass"].norm())
            print(
                f"{len(batch):>8}  {name:<24}{1000 * statistics.median(times):>8.0f}{ratio:>8.2f}{off:>10.1e}",
                flush=True,
            )
    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} thread")


def _looped(learner: Any, state: State, records: Sequence[str]) -> Tensor:
    rows = []
    for record in records:
        leaves = {name: t.clone().requires_grad_() for name, t in state.items()}
        found = torch.autograd.grad(learner.loss(plain(leaves), [record]), list(leaves.values()))
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def _at_once(learner: Any, state: State, records: Sequence[str]) -> Tensor:
    return torch.cat(list(learner.gradients(state, records, each=True)))


PARTS = {"choose": choose, "step": step, "each": each}

if __name__ == "__main__":
    main()
