"""The order of the prompt methods without noise beside DP-FPL's Tables 2 and 3: accuracies over seeds, and Kendall's tau with the printed ones.

    python -m benchmarks.order [FINDINGS ...]

FINDINGS are files `findings.csv` of reports, one table each, so that two versions of the code can stand beside each other. Without any, the four
methods are trained at the embedded settings with three seeds (minutes). FedPGP is the paper's baseline, without the contrastive term.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from fedaudit.command import cli
from fedaudit.reports.beside_dpfpl import METHODS, SPLITS, agreement, printed
from fedaudit.reports.formats import tau

TRAINING = "--method promptfl,fedotp,fedpgp:mu=0,dpfpl --epsilon none --seeds 3 --threads 1"
LABELS = {method: "fedpgp:mu=0" if method == "fedpgp" else method for method in METHODS.values()}


def main(words: list[str] | None = None) -> None:
    paths = [Path(word) for word in (sys.argv[1:] if words is None else words)]
    if paths:
        for path in paths:
            print(f"\n{path}")
            show(pd.read_csv(path))
        return
    with tempfile.TemporaryDirectory() as folder:
        if code := cli.main([*TRAINING.split(), "--out", folder]):
            sys.exit(code)
        (path,) = Path(folder).glob("reports/*/findings.csv")
        show(pd.read_csv(path))


def show(findings: pd.DataFrame) -> None:
    """Print a row for each method and split, and how the order agrees with each of the paper's data sets."""
    for split in SPLITS:
        measured = accuracies(findings, split)
        seeds = [row.to_dict() for _, row in measured.iterrows()]
        means = measured.mean().to_dict()
        for (method, _), value in means.items():
            print(f"{split:<12}{method:<10}{value:6.1f} ± {measured[method, math.inf].std():.1f}")
        for data, theirs in printed(split).items():
            found = agreement(means, theirs, seeds)
            each = ", ".join(map(shown, found.seeds))
            print(f"{split:<12}tau with {data:<14}{shown(found.tau):>6}   p {shown(found.p)}   seeds {each}")


def shown(value: float | None) -> str:
    """With two digits, or a dash where accuracies do not differ at all."""
    return "–" if value is None else tau(value)


def accuracies(findings: pd.DataFrame, split: str) -> pd.DataFrame:
    """Percent [seed, (method, infinity)] of the four methods without noise. ValueError: one of them is missing."""
    rows = findings[(findings.metric == f"accuracy/{split}") & findings.epsilon.map(math.isinf)]
    labels = rows.method.str.replace(":epsilon=none", "")
    found: Mapping[tuple[str, float], pd.Series] = {
        (method, math.inf): rows[labels == label].set_index("seed").value for method, label in LABELS.items()
    }
    if lacking := [LABELS[method] for (method, _), values in found.items() if values.empty]:
        raise ValueError(f"the findings must hold {', '.join(LABELS.values())} without noise; {lacking[0]} is missing")
    return pd.DataFrame(found)


if __name__ == "__main__":
    main()
