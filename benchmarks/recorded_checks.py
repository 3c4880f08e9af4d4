"""How often the checks that need a run's model doubt right recordings, and find wrong ones.

`python -m benchmarks.recorded_checks [--seeds A B]` trains tiny runs of many kinds with seeds A to B - 1, exports them,
and asks the checks of messages (`members`) and of the adapters' scale (`scale`) about each as it is, about clients
exchanged, and about alpha stated at twice its value. It prints a row a run, and at the end doubts by kind of run.
Losses are taken out of the exports, which would tell the scale.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recordings import edit, permuted, rounds
from fedaudit.command.cli import read_command
from fedaudit.external.recording import Remark
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.compute import export
from fedaudit.pipeline.recorded import model_remarks
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


@dataclass(frozen=True)
class Asked:
    """What the checks said of one recording."""

    kind: str
    change: str
    said: list[Remark]

    def doubted(self, check: str) -> bool:
        return any(remark.check == check and not remark.note for remark in self.said)

    def __str__(self) -> str:
        numbers = [(r.check, r.value if r.p is None else r.p) for r in self.said]
        marks = [f"{check} {number:.3g}" for check, number in numbers if number is not None]
        return f"{self.kind} · {self.change} · {', '.join(marks) or '-'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs=2, type=int, default=[0, 1], metavar=("A", "B"))
    parser.add_argument("--only", default="", help="kinds of runs that begin so")
    options = parser.parse_args()
    counts: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for kind, words in KINDS.items():
        for seed in range(*options.seeds) if kind.startswith(options.only) else ():
            with tempfile.TemporaryDirectory() as place:
                for asked in asked_of(kind, f"{words} --seed {seed}", Path(place)):
                    print(seed, asked, sep=" · ", flush=True)
                    found = counts[asked.kind, asked.change]
                    for i, more in enumerate((1, asked.doubted("members"), asked.doubted("scale"))):
                        found[i] += more
    for (kind, change), (n, members, scale) in counts.items():
        print(f"{kind} · {change}: of {n} members {members}, scale {scale}")


def asked_of(kind: str, words: str, place: Path) -> Iterator[Asked]:
    """What is said of a run of some kind, of exchanged clients and of another scale."""
    right = place / "right"
    quiet = ["--attack", "none", "--quiet", "--workers", "1"]
    command = read_command([*words.split(), *quiet, "--out", f"{place}/out", "--export-run", str(right)])
    with Workshop(command.plan, Progress(quiet=True)) as workshop:
        train_all(command.plan.cells, workshop, Progress(quiet=True))
    export(command.plan, Progress(quiet=True), run_to=right, adapters_to=None)
    told = json.loads((right / "rounds.json").read_text())
    for note in told.values():
        note.pop("utility", None)
        for message in note.get("uploads", {}).values():
            message.pop("kept")  # which tensors clients hold back differs after an exchange
    (right / "rounds.json").write_text(json.dumps(told))
    yield Asked(kind, "right", said_of(right, place))
    if "--epsilon" in words and "none" not in words:
        return
    alpha = json.loads((right / "run.json").read_text()).get("alpha")
    changes = {"two exchanged": exchanged, "all rotated": permuted()}
    for change, apply in (changes | ({"alpha doubled": edit("run.json", alpha=2 * alpha)} if alpha else {})).items():
        wrong = place / change.replace(" ", "-")
        shutil.copytree(right, wrong)
        apply(wrong)
        yield Asked(kind, change, said_of(wrong, place))


def exchanged(run: Path) -> None:
    """The files of the first two clients change their names, in all rounds."""
    for paths in rounds(run):
        (one, first), (two, second) = ((path, path.read_bytes()) for path in paths[:2])
        one.write_bytes(second)
        two.write_bytes(first)


def said_of(run: Path, place: Path) -> list[Remark]:
    words = ["--run", str(run), "--attack", "loss", "--quiet", "--workers", "1", "--out", f"{place}/audit-{run.name}"]
    plan = read_command(words).plan
    with Workshop(plan, Progress(quiet=True)) as workshop:
        train_all(plan.cells, workshop, Progress(quiet=True))
        return model_remarks(plan.cells[0], workshop)


if __name__ == "__main__":
    main()
