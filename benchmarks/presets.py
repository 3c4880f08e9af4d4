"""What the presets `private-demo` and `memorising` rest on, measured on reference records: nobody trains on them, and no report is about them.

    python -m benchmarks.presets clip            lengths of the records' gradients at the public start of private-demo
    python -m benchmarks.presets private-demo    accuracy against the learning rate, for three of its epsilons and their mean
    python -m benchmarks.presets memorising      AUROC of the loss, members against reference records, against rate and rounds

The first preset clips at the median and takes the rate with the best mean on local classes, the second the middle of rates that differ by less
than their intervals. Further words are flags of the command, as `--threads=1`. Minutes each on two idle cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedaudit.attacks.answers import Floats, public_records
from fedaudit.attacks.attacked_models import Target
from fedaudit.audits.statistics.stratified import stratified_auroc
from fedaudit.audits.utility import accuracies
from fedaudit.command import cli
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell, Plan
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.question_set import answers_of
from fedaudit.pipeline.targets import trained_records
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Participation, generator
from fedaudit.trainers.prompts import Cohort
from fedaudit.trainers.protection import Protection

RATES = {"private-demo": (0.003, 0.01, 0.03), "memorising": (0.1, 0.3, 1.0)}
EPSILONS = "none,10,1"
LAST = 10  # rounds that an accuracy averages


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    chosen, more = parser.parse_known_args(sys.argv[1:] if words is None else words)  # more: flags of the command
    PARTS[chosen.part](more)


def clip(more: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lengths = record_lengths(planned("private-demo", *more, f"--out={folder}"))
    low, median, high = np.quantile(lengths, (0.25, 0.5, 0.75))
    print(f"gradients of {len(lengths)} reference records at the public start: median {median:.3g}, quartiles {low:.3g} and {high:.3g}")  # fmt: skip


def record_lengths(plan: Plan) -> NDArray[np.float64]:
    """L2 norms of the gradients in p_G + p_L of all reference records, each by its client's loss."""
    federation = Workshop(plan, Progress(quiet=True)).federation
    reference = [[record.id for record in client.reference] for client in federation.clients]
    learner = make_bench(plan, federation).learner
    method = method_of(plan.cells[0])
    size = max(map(len, reference))  # every record alone, all of them in one batch
    settings, protection = dataclasses.replace(method.settings, batch=size), Protection(Privacy(epsilon=1), batch=size)
    method = dataclasses.replace(method, settings=settings, protection=protection)
    cohort = Cohort(learner, [Participation(k, 0, 0, ids, learner) for k, ids in enumerate(reference)], method)
    (step,) = cohort.steps()
    start = method.prompt(method.start(learner.initial(generator(plan.seed, "initial"))))
    gradients = step.gradient(start.expand(len(reference), *start.shape))
    norms = torch.linalg.vector_norm(gradients.flatten(2), dim=2)[step.batch.weights > 0]
    return norms.double().numpy()


def private_demo(more: Sequence[str]) -> None:
    print(f"{'rate':>6}{'epsilon':>10}{'local':>8}{'overall':>9}")
    for rate in RATES["private-demo"]:
        local = []
        with trained("private-demo", f"--epsilon={EPSILONS}", *at(rate), *more) as (cells, _):
            for cell in cells:
                found = accuracies(transcript_of(cell))
                found = found[(found.client == "mean") & (found["round"] >= cell.plan.rounds - LAST)]
                mean = found.groupby("split").accuracy.mean()
                local.append(mean.local)
                assert cell.variant is not None
                level = cell.variant.privacy.epsilon
                shown = f"{level:g}" if math.isfinite(level) else "none"
                print(f"{rate:>6g}{shown:>10}{mean.local:>8.1f}{mean.overall:>9.1f}", flush=True)
        print(f"{rate:>6g}{'mean':>10}{np.mean(local):>8.1f}", flush=True)


def memorising(more: Sequence[str]) -> None:
    print(f"{'rate':>6}  {'method':<24}AUROC of the loss after so many rounds")
    for rate in RATES["memorising"]:
        with trained("memorising", *at(rate), *more) as (cells, workshop):
            for cell in cells:
                loss = losses(cell, workshop)
                each = {r: part for r, part in loss.groupby("round") if r}
                found = {r: stratified_auroc(-p.loss, p.member, p.client.to_numpy()) for r, p in each.items()}
                shown = "  ".join(f"{r}: {i.value:.3f}" for r, i in found.items())
                last = found[max(found)]
                print(f"{rate:>6g}  {cell.method:<24}{shown}  [{last.low:.3f}, {last.high:.3f}]", flush=True)


def losses(cell: Cell, workshop: Workshop) -> pd.DataFrame:
    """Loss of every client's own members and reference records by its own prompt, by round."""
    federation, frames, asking = workshop.federation, [], QuestionPlan.of(cell, workshop.federation)
    for k, client in enumerate(federation.clients):
        members = sorted(trained_records(cell, federation, k))
        reference = [record.id for record in client.reference]
        member = dict.fromkeys(members, True) | dict.fromkeys(reference, False)
        for r, loss in curve(asking, Target(k, [*member], []), workshop):
            place = {"client": k, "round": r, "record": [*member], "member": [*member.values()]}
            frames.append(pd.DataFrame(place | {"loss": loss}))
    return pd.concat(frames, ignore_index=True)


def curve(asking: QuestionPlan, target: Target, workshop: Workshop) -> list[tuple[int, Floats]]:
    """A client's losses on some records by round."""
    asked, public = asking.curve(target), asking.public(asking.training, target.records)
    asking.answer([public, *(question for _, question in asked)], lambda: workshop.attackers, workshop.progress)
    records = public_records(public.read("public"))
    return [(r, answers_of(records, question).loss) for r, question in asked]


@contextmanager
def trained(preset: str, *more: str) -> Iterator[tuple[list[Cell], Workshop]]:
    """The trainings of a preset, examined on reference records instead of test pictures; they are gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        plan, progress = planned(preset, *more, f"--out={folder}"), Progress()
        with Workshop(plan, progress) as workshop:
            everything = workshop.federation
            reference = tuple(record for client in everything.clients for record in client.reference)
            workshop.federation = dataclasses.replace(everything, test=reference)
            train_all(plan.cells, workshop, progress)
            yield plan.cells, workshop


def planned(preset: str, *more: str) -> Plan:
    return cli.read_command([f"--preset={preset}", *more]).plan


def at(rate: float) -> tuple[str, str]:
    return f"--local-rate={rate:g}", f"--global-rate={rate:g}"


PARTS = {"clip": clip, "private-demo": private_demo, "memorising": memorising}

if __name__ == "__main__":
    main()
