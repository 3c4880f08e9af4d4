"""What beats what: every attack on every method under every threat model, beside the calibrated loss on the same records, and what it costs.

    python -m benchmarks.beats found texts prompts memorising    the tables, as Markdown, a run per method and seed; hours on two cores, goes on where it was stopped
    python -m benchmarks.beats seconds texts prompts             each attack alone on a training that is there

A cell of `found` is an AUROC with its 95 % interval; ▲ and ▼: above and below the calibrated loss by an interval that holds for all differences of the run.
With `--seeds` it is the mean over federations that share nothing, data drawn anew, and the interval that of the mean of independent numbers.
`seconds` has a row per attack, with the load average: a whole command (start, attack, audits, page) where the training and the shadow models are there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedaudit.attacks.score_names import signal_name
from fedaudit.command.cli import read_command
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.run import run

FOUND = {
    "texts": [f"--method {name}" for name in ("fedavg", "fedper", "fedpara", "fedrand")],
    "prompts": [f"--method {name} --epsilon none" for name in ("promptfl", "fedotp", "fedpgp", "dpfpl")],
    "memorising": ["--preset memorising --targets 2"],
}
TIMED = {
    "texts": "--method fedavg",
    "prompts": "--method fedotp --epsilon none",
    "memorising": "--preset memorising --targets 2",
}


def found(setting: str, out: str, seeds: int) -> None:
    """The tables of a setting: threat models across, attacks down."""
    for words in FOUND[setting]:
        of_seeds = [_beside_loss(f"{words} --seed {seed}", out) for seed in range(seeds)]
        print(f"\n### `python audit.py {words} --attack all`")
        for method, rows in mean_over(of_seeds).groupby("method", sort=False):
            print(f"\n{as_table(str(method), rows)}", flush=True)
            for (threat_model, way, count), some in rows[rows.runs < seeds].groupby(["threat_model", "way", "runs"]):
                every = ((rows.threat_model == threat_model) & (rows.way == way)).sum() == len(some)
                names = "all scores" if every else "; ".join(some.signal.map(signal_name))
                print(f"\nOf {count} of {seeds} federations: {threat_model}, {way}: {names}")


def _beside_loss(words: str, out: str) -> pd.DataFrame:
    report = run(read_command([*words.split(), "--attack", "all", "--out", out]).plan, Progress()).report
    return pd.read_csv(report.parent / "beside_loss.csv")


def mean_over(of_seeds: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of independent runs as one: means over the runs that have a row (a way of rebuilding may reach no client).

    Each side of an interval is as long as independent errors leave that of a mean. The gains of a run have one factor for
    all of them, and so have their means.
    """
    sides = [("auroc", "low"), ("auroc", "high"), ("gain", "gain_low"), ("gain", "gain_high")]
    rows = pd.concat(of_seeds)
    squares = rows.assign(**{bound: (rows[bound] - rows[middle]) ** 2 for middle, bound in sides})
    together = squares.groupby(["method", "threat_model", "way", "signal"], sort=False)
    found, runs = together[["auroc", "gain"]].mean(), together.size()
    for middle, bound in sides:
        side = np.sqrt(together[bound].sum(min_count=1)) / runs
        found[bound] = found[middle] + (side if bound.endswith("high") else -side)
    return found.assign(runs=runs).reset_index()


def as_table(method: str, rows: pd.DataFrame) -> str:
    """A method's rows of `beside_loss.csv` as Markdown."""
    cells = pd.Series(
        [_cell(row) for row in rows.itertuples()],
        pd.MultiIndex.from_arrays([rows.signal.map(signal_name), rows.threat_model + ", " + rows.way]),
    )
    across = list(dict.fromkeys(cells.index.get_level_values(1)))
    wide = cells.unstack(fill_value="").reindex(index=dict.fromkeys(cells.index.get_level_values(0)), columns=across)
    lines = [f"| {method} | " + " | ".join(across) + " |", "|---" * (len(across) + 1) + "|"]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(row) + " |" for name, row in wide.iterrows())])


def _cell(row: object) -> str:
    """`.734 [.700, .768] ▲`"""
    value, low, high = (f"{getattr(row, name):.3f}".removeprefix("0") for name in ("auroc", "low", "high"))
    sign = " ▲" if row.gain_low > 0 else " ▼" if row.gain_high < 0 else ""
    return f"{value} [{low}, {high}]{sign}"


def seconds(setting: str, out: str) -> None:
    """What each attack takes alone; the training and the shadow models are there."""
    words, place = TIMED[setting], Path(out) / f"seconds-{setting}"
    every = read_command([*words.split(), "--attack", "all"]).plan.attacks

    def timed(attack: str) -> float:
        for folder in ("analyses", "reports"):
            shutil.rmtree(place / folder, ignore_errors=True)
        begun = time.perf_counter()
        run(read_command([*words.split(), "--attack", attack, "--out", str(place)]).plan, Progress(quiet=True))
        return time.perf_counter() - begun

    timed("entropy")  # trains
    with_shadows, without = timed("quantile"), timed("quantile")
    print(f"\n### {setting}: `python audit.py {words} --attack ATTACK`, load {os.getloadavg()[0]:.1f}\n")
    print(f"| attack | seconds |\n|---|---|\n| shadow models, once for all attacks | {with_shadows - without:.0f} |")
    for attack in every:
        print(f"| {attack} | {timed(attack):.0f} |")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("found", "seconds"))
    parser.add_argument("settings", nargs="+", choices=FOUND)
    parser.add_argument("--seeds", type=int, default=1, help="of `found`: federations of each method")
    parser.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "fedaudit-beats"))
    chosen = parser.parse_args(words)
    for setting in chosen.settings:
        if chosen.part == "found":
            found(setting, chosen.out, chosen.seeds)
        else:
            seconds(setting, chosen.out)


if __name__ == "__main__":
    main()
