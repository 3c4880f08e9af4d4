"""Every method exported and audited again as an external run: `python -m benchmarks.exported_runs [METHOD...]`.

For each method it prints the number of scores of records that both audits have, the largest difference between them,
the largest difference of AUROCs, rows that only one of them has, and what was said of the recording.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import fedaudit
from fedaudit.trainers.learners import METHODS as TRAINERS
from fedaudit.trainers.learners import facts

METHODS = {  # by words of the table: options
    "fedavg": {"method": "fedavg"},
    "fedper": {"method": "fedper"},
    "fedpara": {"method": "fedpara"},
    "fedrand": {"method": "fedrand"},
    "dpfedavg": {"method": "dpfedavg"},
    "promptfl": {"method": "promptfl", "epsilon": "none"},
    "promptfl, noise": {"method": "promptfl", "epsilon": 0.4, "no_twin": True},
    "promptfl, 3 steps": {"method": "promptfl", "epsilon": "none", "local_steps": 3, "momentum": 0.5},
    "fedotp": {"method": "fedotp", "epsilon": "none"},
    "fedotp, transport": {"method": "fedotp:match=ot", "epsilon": "none"},
    "fedpgp": {"method": "fedpgp", "epsilon": "none"},
    "dpfpl": {"method": "dpfpl", "epsilon": "none"},
    "dpfpl, noise": {"method": "dpfpl", "epsilon": 0.4, "no_twin": True},
    "fedprox": {"method": "fedprox", "epsilon": "none"},
    "pfedme": {"method": "pfedme", "epsilon": "none"},
    "local": {"method": "local", "epsilon": "none"},
    "secfpp": {"method": "secfpp"},
    "dp2fl": {"method": "dp2fl", "task": "fewshots"},
    "fedmaple": {"method": "fedmaple", "task": "fewshots"},
    "contexts of classes": {"method": "promptfl", "epsilon": "none", "class_contexts": True},
}
ALL_OF_THEM = "loss,cosine,decompose"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="METHOD", help=f"some of: {', '.join(METHODS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for name in options.names or METHODS:
        with tempfile.TemporaryDirectory() as place:
            print(name, *compared(METHODS[name], options.rounds, Path(place)), sep=" · ", flush=True)


def compared(options: dict[str, object], rounds: int, place: Path) -> Sequence[object]:
    """The cells of a method's row."""
    learner = facts(TRAINERS[str(options["method"]).partition(":")[0]].facts.learner)
    on_texts = learner.records == "texts"
    attack = "maxrenyi,cosine,decompose" if on_texts else "loss,cosine" if learner.nonlinear else ALL_OF_THEM
    shared = {"attack": attack, "quiet": True} | ({"targets": 2} if learner.records == "classes" else {})
    here = fedaudit.audit(**options, **shared, rounds=rounds, clients=4, out=f"{place}/here", export_run=f"{place}/run")
    again = fedaudit.audit(run=f"{place}/run", **shared, out=f"{place}/again")
    scores = [of_records(audit.report.parent) for audit in (here, again)]
    both = pd.concat(scores, axis=1, join="inner").dropna()
    aurocs = [of_models(audit.findings) for audit in (here, again)]
    joined = pd.concat(aurocs, axis=1, join="inner")
    only = sorted({*map(str, aurocs[0].index)} ^ {*map(str, aurocs[1].index)})
    said = again.findings[again.findings.metric == "recording"]
    far = [float((pair.iloc[:, 0] - pair.iloc[:, 1]).abs().max()) for pair in (both, joined)]
    return len(both), *far, only, list(said.sentence) if len(said) else []


def of_records(report: Path) -> pd.Series:
    """The scores of a report's records, by adversary, model, client, record and signal."""
    table = pd.read_csv(report / "records.csv").drop(columns=["method", "seed", "label", "kind", "member"])
    return table.set_index(["threat_model", "way", "client", "record"]).drop(columns=["rank", "percentile"]).stack()


def of_models(findings: pd.DataFrame) -> pd.Series:
    """The AUROCs of findings, by adversary, model, population, non-members and signal."""
    rows = findings[findings.metric == "auroc"]
    keys = ["threat_model", "way", "population", "nonmembers", "signal"]
    return rows.set_index([*keys, rows.groupby(keys, dropna=False).cumcount()])["value"]


if __name__ == "__main__":
    main()
