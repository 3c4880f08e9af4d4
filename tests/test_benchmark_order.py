"""The benchmark of the methods' order, on findings whose order is known."""

import math
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import order
from fedaudit.reports.beside_dpfpl import printed

METHODS = ("promptfl", "fedotp", "fedpgp:mu=0", "dpfpl")


def findings(path: Path, *, sign: int, lacks: str = "") -> Path:
    """Accuracies in the order of the paper's means (sign 1) or its reverse; rows with noise and of mu 1 would spoil it."""
    rows = [
        {"method": label, "seed": seed, "metric": f"accuracy/{split}", "epsilon": epsilon, "value": value}
        for split in ("local", "neighbour") for method in METHODS for seed in range(3)
        for label, epsilon, value in (
            (method, math.inf, 50 + sign * printed(split)["mean"][method.split(":")[0], math.inf] / 4),
            (f"{method}:epsilon=0.1", 0.1, 0.0), ("fedpgp", math.inf, 0.0),
        )
        if label != lacks
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(("sign", "expected"), [(1, "1.00"), (-1, "−1.00")])
def test_tau_of_a_known_order(tmp_path: Path, capsys: pytest.CaptureFixture[str], sign: int, expected: str) -> None:
    order.main([str(findings(tmp_path / "findings.csv", sign=sign))])
    means = [line for line in capsys.readouterr().out.splitlines() if "tau with mean" in line]
    assert [line.split()[4] for line in means] == [expected] * 2
    assert all(line.endswith(f"seeds {expected}, {expected}, {expected}") for line in means)


def test_a_method_that_is_missing_is_named(tmp_path: Path) -> None:
    found = pd.read_csv(findings(tmp_path / "findings.csv", sign=1, lacks="fedpgp:mu=0"))
    with pytest.raises(ValueError, match="fedpgp:mu=0 is missing"):
        order.accuracies(found, "local")
