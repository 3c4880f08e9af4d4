"""DP2FL's Tables 2, 3 and 4 at embedded scale: the global model beside local ones, and a new client, over seeds.

    python -m benchmarks.newcomers run 5    seeds 0 to 4, a row each in newcomers.jsonl; goes on where it stopped, and
                                            takes about 4 minutes of CPU a row
    python -m benchmarks.newcomers          what the table comes to

A row is a run of `audit.py --method dp2fl --clients 11 --newcomers 1 --seed SEED`: ten clients train, the eleventh
comes afterwards, and every seed draws data and training anew. Accuracy in percent on test sets in clients' own class
proportions; mean [95 %] over seeds, Student's, beside the paper's means over eight data sets.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pandas as pd

from fedaudit.audits.utility import mean_interval
from fedaudit.command.cli import read_command
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.compute import compute
from fedaudit.reports.sections.newcomers import paper
from fedaudit.reports.sections.personal import printed

TABLE = Path(__file__).with_suffix(".jsonl")
WORDS = "--method dp2fl --clients 11 --newcomers 1 --threads 1 --seed"
SHOWN = ("personal/accuracy", "global/accuracy", "global-personal/accuracy", "newcomers/")


def row(seed: int) -> dict[str, float]:
    """Every number of the three tables."""
    with tempfile.TemporaryDirectory() as out:
        plan = read_command([*WORDS.split(), str(seed), "--out", out]).plan
        compute(plan, Progress(quiet=True))
        findings = json.loads((plan.cells[0].analysis_folder / "findings.json").read_text())
    return {"seed": seed} | {f["metric"]: f["value"] for f in findings if f["metric"].startswith(SHOWN)}


def run(seeds: int) -> None:
    """Add to the table what it lacks."""
    known = set(pd.read_json(TABLE, lines=True).seed) if TABLE.exists() else set()
    with TABLE.open("a") as file:
        for seed in range(seeds):
            if seed not in known:
                print(json.dumps(row(seed)), file=file, flush=True)
                print(f"seed {seed}", flush=True)


def theirs(metric: str) -> str:
    """What the paper prints, its mean over data sets."""
    place, _, start = metric.rpartition("/")
    if place.startswith("newcomers/"):
        return paper(*place.split("/")[1:], start)
    ours = printed()["dp2fl"]
    found = {"personal": ours["accuracy"], "global": ours["global"], "global-personal": ours["difference"]}
    return found[place]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", nargs="?", choices=["run"])
    parser.add_argument("seeds", type=int, nargs="?", default=5)
    given = parser.parse_args()
    if given.run:
        run(given.seeds)
    table = pd.read_json(TABLE, lines=True).set_index("seed")
    print(f"{'over ' + str(len(table)) + ' seeds':<42}{'here':>8}   {'[95 %]':<18}the paper")
    for metric in table:
        low, high = mean_interval(table[metric].to_numpy(), 0.95, least=-100.0)
        bounds = "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"
        print(f"{metric:<42}{table[metric].mean():>8.2f}   {bounds:<18}{theirs(metric)}")


if __name__ == "__main__":
    main()
