"""How often the checks that need a run's model doubt right recordings, and find wrong ones.

`python -m benchmarks.recorded_checks [--seeds A B]` trains tiny runs of many kinds with seeds A to B - 1, exports them,
and asks the checks of messages (`members`) and of the adapters' scale (`scale`) about each as it is; without noise,
also with two clients' messages exchanged, with all clients' rotated, and with alpha stated at twice its value. It prints
a row a check, with p or the shares of loss of `HalfFit`, and at the end doubts by kind of run. Losses, which would tell
the scale, are taken out of the exports.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.recordings import edit, without_losses
from fedaudit.command.cli import read_command
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.compute import export
from fedaudit.pipeline.recorded import CHANCE, Cells, RecordedRun, exchange
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop

FOUR, TEN = "--clients 4 --per-round 4 --rounds 4", "--clients 10 --per-round 10 --rounds 3"
TEXTS = "--reference 4 --novel 4 --test 4"
NOISE = "--no-twin --epsilon"
KINDS = {  # kinds of runs: words of the command
    "promptfl, noise": f"--method promptfl {NOISE} 4 {FOUR} --train 16 --test 2",
    "promptfl, more noise": f"--method promptfl {NOISE} 0.4 {FOUR} --train 16 --test 2",
    "promptfl, one class a client": f"--method promptfl {NOISE} 4 --clients 10 --per-round 5 --rounds 4 --train 40 "
    "--test 2",
    "dpfpl, noise": f"--method dpfpl {NOISE} 4 {FOUR} --train 16 --test 2",
    "fedotp, noise": f"--method fedotp {NOISE} 1 {TEN} --train 30 --test 2",
    "fedpgp, noise": f"--method fedpgp {NOISE} 1 {FOUR} --train 16 --test 2",
    "promptfl": f"--method promptfl --epsilon none {FOUR} --train 4 --test 2",
    "promptfl, ten clients": f"--method promptfl --epsilon none {TEN} --train 10 --test 2",
    "dpfedavg": f"--method dpfedavg {NOISE} 4 {FOUR} --records 12 {TEXTS}",
    "dpfedavg, one round": f"--method dpfedavg {NOISE} 1 --clients 8 --per-round 8 --rounds 1 --records 12 {TEXTS}",
    "fedavg": f"--method fedavg {FOUR} --records 4 {TEXTS}",
    "fedavg, ten clients": f"--method fedavg {TEN} --records 4 {TEXTS}",
    "fedavg, rate .001": f"--method fedavg {FOUR} --records 8 {TEXTS} --learning-rate 0.001",
    "fedavg, rate .02": f"--method fedavg --clients 3 --per-round 3 --rounds 2 --records 8 {TEXTS} "
    "--learning-rate 0.02",
    "fedavg, one round": f"--method fedavg --clients 4 --per-round 4 --rounds 1 --records 4 {TEXTS}",
    "fedavg, two rounds": f"--method fedavg --clients 3 --per-round 3 --rounds 2 --records 12 {TEXTS}",
    "fedrand": f"--method fedrand {FOUR} --records 8 {TEXTS}",
    "fedper": f"--method fedper {FOUR} --records 4 {TEXTS}",
}
CHANGES = ("right", "two exchanged", "all rotated", "alpha doubled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs=2, type=int, default=[0, 12], metavar=("A", "B"))
    parser.add_argument("--only", default="", help="kinds of runs that begin so")
    options = parser.parse_args()
    counts: dict[tuple[str, str, str], list[bool]] = collections.defaultdict(list)
    for seed in range(*options.seeds):
        for kind, words in ((k, words) for k, words in KINDS.items() if k.startswith(options.only)):
            with tempfile.TemporaryDirectory() as place:
                for change, check, doubted, number in asked_of(f"{words} --seed {seed}", Path(place)):
                    counts[kind, change, check].append(doubted)
                    print(seed, kind, change, check, number, "doubt" * doubted, sep=" · ", flush=True)
    for (kind, change, check), doubts in counts.items():
        print(f"{kind} · {change} · {check}: {sum(doubts)} of {len(doubts)}")


def asked_of(words: str, place: Path) -> Iterator[tuple[str, str, bool, str]]:
    """Ask both checks about a run and its changes: the change, the check, whether it doubts, and by what numbers."""
    right = place / "right"
    quiet = ["--attack", "none", "--quiet", "--workers", "1"]
    command = read_command([*words.split(), *quiet, "--out", f"{place}/out", "--export-run", str(right)])
    with Workshop(command.plan, Progress(quiet=True)) as workshop:
        train_all(command.plan.cells, workshop, Progress(quiet=True))
    export(command.plan, Progress(quiet=True), run_to=right, adapters_to=None)
    without_losses(right)
    noise = "--no-twin" in words
    with opened(right, place) as run:
        cells = run.cells()
        for change, moved in zip(CHANGES, (unmoved, exchanged, rotated)[: 1 if noise else 3], strict=False):
            found = exchange([Cells(one.clients, moved(one.losses)) for one in cells])
            if found is not None:
                yield change, "members", found.p < CHANCE, f"{found.p:.4g}"
        if run.method is None and not noise:
            yield "right", *of_scale(run)
    if run.method is None and not noise:
        edit("run.json", alpha=2 * json.loads((right / "run.json").read_text())["alpha"])(right)
        with opened(right, place) as run:
            yield "alpha doubled", *of_scale(run)


def of_scale(run: RecordedRun) -> tuple[str, bool, str]:
    fit = run.half_fit()
    assert fit is not None
    return "scale", fit.doubted, " ".join(f"{share:.3f}" for share in dataclasses.astuple(fit))


def unmoved(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    return losses


def exchanged(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The losses [messages, clients] if the first two messages had each other's name."""
    return losses[[1, 0, *range(2, len(losses))]]


def rotated(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.roll(losses, 1, axis=0)


@contextlib.contextmanager
def opened(run: Path, place: Path) -> Iterator[RecordedRun]:
    """A run as an audit opens it."""
    with tempfile.TemporaryDirectory(dir=place) as out:
        words = ["--run", str(run), "--attack", "loss", "--quiet", "--workers", "1", "--out", out]
        plan = read_command(words).plan
        with Workshop(plan, Progress(quiet=True)) as workshop:
            train_all(plan.cells, workshop, Progress(quiet=True))
            yield RecordedRun.of(plan.cells[0], workshop)


if __name__ == "__main__":
    main()
