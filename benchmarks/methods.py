"""All LoRA methods in one command: a row per method with what it costs and what leaks, and the cost of a local step against FedAvg's.

    python benchmarks/methods.py [--task vqa] [any other option of audit.py]

The report is written into a temporary folder unless --out says otherwise. Ratios of steps are medians of alternating trials in one process.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

from fedaudit.command import cli
from fedaudit.trainers import learners

METHODS = "fedavg,fedper,fedpara,fedrand"
TRIALS = 7


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = sys.argv[1:]
        words += [] if "--out" in words else ["--out", folder]
        words += [] if "--method" in words else ["--method", METHODS]
        started = time.perf_counter()
        code = cli.main(words)
        print(f"{time.perf_counter() - started:.0f} seconds for the command, exit code {code}")
        if code == 0:
            show(words)
    steps()


def show(words: list[str]) -> None:
    """Utility, communication and leakage by method, read back from what the command wrote."""
    from fedaudit.machinery.progress import Progress
    from fedaudit.pipeline.methods import transcript_of
    from fedaudit.pipeline.run import run

    plan = cli.read_command(words).plan
    findings = run(plan, Progress(quiet=True)).findings
    whole = None
    for cell in plan.cells:
        transcript = transcript_of(cell)
        rounds = [transcript.round(r) for r in range(plan.rounds)]
        sent = sum(r["bytes_up"] + r["bytes_down"] for r in rounds)
        whole = whole or sent
        last = rounds[-1]["utility"]
        name = next(n for n in ("exact_match", "cider") if n in last["global"])
        print(f"\n{cell.method}: bytes {sent / whole:.2f} of the first method's; server {name} {last['global'][name]:.1f} "
              f"(base {transcript.initial['utility']['global'][name]:.1f}), clients {last['clients'][name]:.1f}")  # fmt: skip
        for f in findings:
            mine = (f["method"], f["seed"]) == (cell.method, cell.seed) and f["nonmembers"] == "held-out"
            if mine and f["metric"] == "auroc" and f["headline"]:
                print(f"  {f['threat_model']:<15}{f['way']:<12}{f['population']:<20}{f['signal']:<22}{line(f)}")


def line(f: dict[str, Any]) -> str:
    return f"{f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}]  {f['verdict']}"


def steps() -> None:
    """Cost of a local step of each method, as a ratio to FedAvg's."""
    from fedaudit.machinery.executor import one_thread
    from fedaudit.pipeline.workers import federation_of, make_bench
    from fedaudit.trainers.base import Participation, generator

    one_thread()
    with tempfile.TemporaryDirectory() as out:
        plan = cli.read_command(["--out", out, "--local-steps", "8"]).plan
        bench = make_bench(plan, federation_of(plan))
    start = bench.learner.initial(generator(0, "initial"))
    client = Participation(0, 0, 0, bench.training[0], bench.learner)
    spent: dict[str, list[float]] = {}
    for _ in range(TRIALS):
        for name, plugin in learners.METHODS.items():
            if plugin.facts.learner == "lora":
                began = time.perf_counter()
                plugin.make(plugin.params()).update(start, start, client)
                spent.setdefault(name, []).append(time.perf_counter() - began)
    print(f"\n{'local training':<16}{'ratio to fedavg':>16}")
    for name, times in spent.items():
        ratios = [a / b for a, b in zip(times, spent["fedavg"], strict=True)]
        print(f"{name:<16}{statistics.median(ratios):>16.2f}")


if __name__ == "__main__":
    main()
