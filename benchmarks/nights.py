"""Nightly audits on which nothing changes, and on which something does: how often a night says so.

    python -m benchmarks.nights                      made-up numbers: false alarms of 30 nights, and what is found
    python -m benchmarks.nights real 30 --out DIR    30 real nights of a tiny matrix with fresh seeds, then one with the
                                                     same seeds, one with the noise switched off, and one with a method
                                                     more; about 30 s of one core a night

Made-up numbers are AUROCs whose intervals have as many degrees of freedom as clients less one, and whose runs vary by
`ratio` times the variance of these intervals. A night without a change may say that something changed with a
probability of 5 %: of 30 nights more than 4 do so in 6 of 100 tries at most (the first night has nothing to compare).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from fedaudit.audits.statistics.nights import judged

NIGHTS, CELLS, CLIENTS = 30, 6, 10
ADVERSARIES = ("released-model", "server", "owner")
ERROR = 0.03  # of an AUROC, by its records
JUMP = 20  # the night on which something changes

BASE = "rounds: 4, clients: 3, shots: 10, prompt_length: 4, task: digits, no_twin: true, threads: 1"
TINY = """\
base: {{{base}, epsilon: {epsilon}}}
matrix: {{method: [{methods}], attack: "decompose,loss", seed: [{seeds}]}}
fail_if: [server auroc.low > 0.7]
"""


def made_up(
    rng: np.random.Generator, *, nights: int, seeds: int, ratio: float, jump: float = 0.0, leak: float = 0.0
) -> pd.DataFrame:
    """A history of nights with fresh seeds; from night `JUMP` on the numbers of one cell are higher by `jump`, and
    `leak` is by how much every number is off one half."""
    rows = []
    for night in range(nights):
        for seed in range(seeds):
            for cell in range(CELLS):
                for adversary in ADVERSARIES:
                    error = ERROR * np.sqrt(rng.chisquare(CLIENTS - 1) / (CLIENTS - 1))
                    reach = student.ppf(0.975, CLIENTS - 1) * error
                    shift = leak + (jump if night >= JUMP and cell == 0 else 0.0)
                    spread = ERROR * np.sqrt(ratio)
                    value = 0.5 + shift + spread * rng.standard_normal()
                    rows.append({
                        "night": night, "cell": f"cell {cell}", "method": "fedavg", "threat_model": adversary, "way": "final",
                        "population": "all members", "nonmembers": "held-out", "signal": "loss", "metric": "auroc",
                        "family": "primary", "value": value, "low": value - reach, "high": value + reach,
                        "confidence": 0.95, "z": (value - 0.5) / spread, "run": f"{night}-{cell}-{seed}",
                        "data": f"{night}-{seed}", "base_value": None, "blind_value": None,
                    })  # fmt: skip
    return pd.DataFrame(rows)


def simulate(histories: int) -> None:
    """Print how often nights say that something changed, by what varies; and how often a jump is found that night."""
    print(f"{NIGHTS} nights, {CELLS} cells, {len(ADVERSARIES)} adversaries, {histories} histories a row")
    print(
        f"{'ratio':>6}{'seeds':>6}{'leak':>6}{'jump':>6}{'nights that say so':>20}{'most of 30':>12}{'found that night':>18}"
    )
    for ratio, seeds, leak, jump in (
        (1.0, 1, 0.0, 0.0), (1.5, 1, 0.0, 0.0), (1.5, 3, 0.0, 0.0), (3.0, 1, 0.0, 0.0), (1.5, 1, 0.03, 0.0),
        (1.5, 1, 0.1, 0.0), (1.5, 1, 0.0, 0.1), (1.5, 1, 0.0, 0.2), (1.5, 3, 0.0, 0.1), (1.5, 3, 0.0, 0.2),
    ):  # fmt: skip
        alarms, found = [], []
        for i in range(histories):
            rng = np.random.default_rng((i, seeds))
            told = judged(made_up(rng, nights=NIGHTS, seeds=seeds, ratio=ratio, jump=jump, leak=leak))
            said = told[told.alarm]
            alarms.append(said[said.night < JUMP].night.nunique() if jump else said.night.nunique())
            found.append(bool(((said.night == JUMP) & (said.cell == "cell 0")).any()))
        of = (JUMP - 1 if jump else NIGHTS - 1) * histories
        share = f"{sum(found) / histories:>18.0%}" if jump else f"{'':>18}"
        print(f"{ratio:>6}{seeds:>6}{leak:>6}{jump:>6}{sum(alarms) / of:>20.1%}{max(alarms):>12}{share}", flush=True)


def real(nights: int, out: Path) -> None:
    """Run real nights by the command, and print a line for each."""
    out.mkdir(parents=True, exist_ok=True)
    fresh = [("fresh seeds", "promptfl", f"{2 * n}, {2 * n + 1}", "0.1") for n in range(nights)]
    last = f"{2 * nights - 2}, {2 * nights - 1}"
    told = [
        ("the same again", "promptfl", last, "0.1"),
        ("noise switched off", "promptfl", last, "none"),
        ("a method more", "promptfl, local", last, "none"),
    ]
    alarms = 0
    for what, methods, seeds, epsilon in fresh + told:
        matrix = out / "tiny.yaml"
        matrix.write_text(TINY.format(base=BASE, methods=methods, seeds=seeds, epsilon=epsilon))
        started = time.monotonic()
        words = [sys.executable, "-m", "fedaudit", "--nightly", str(matrix), "--out", str(out), "--quiet"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        alarm = bool(re.search(r"\d+ changes? beyond", lines[0])) if lines else False
        alarms += alarm and what == "fresh seeds"
        crossed = sum(line.startswith("crossed") for line in done.stderr.splitlines())
        print(
            f"{what}: exit {done.returncode}, {crossed} crossings, {time.monotonic() - started:.0f} s, load "
            f"{os.getloadavg()[0]:.1f}: {lines[0] if lines else done.stderr.strip()}", flush=True,
        )  # fmt: skip
        for line in lines[1:-1]:
            print(f"    {line}", flush=True)
    print(f"{alarms} of {nights} nights with fresh seeds say that something changed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("simulate", "real"), default="simulate")
    parser.add_argument("n", nargs="?", type=int, default=0, help="histories (50), or nights (30)")
    parser.add_argument("--out", type=Path, default=Path("fedaudit-runs"))
    chosen = parser.parse_args()
    if chosen.part == "real":
        real(chosen.n or NIGHTS, chosen.out)
    else:
        simulate(chosen.n or 50)


if __name__ == "__main__":
    main()
