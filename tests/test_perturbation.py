"""The benchmark of how far a moved start is carried: by hand without steps, small below the edge of stability, large beyond."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import perturbation
from fedaudit.command import cli
from fedaudit.pipeline.workers import federation_of

SMALL = "--method=promptfl --epsilon=none --task=digits --shots=4 --clients=2 --prompt-length=4 --rounds=10 --threads=1".split()
RATES = (1e-12, 0.01, 3)


def test_how_far_a_moved_start_is_carried(tmp_path: Path) -> None:
    """A training that takes no steps worth the name keeps the start's distance, and float32 its start to the last digit but one bit."""
    cells = [cli.read_command([*SMALL, f"--global-rate={rate}", f"--out={tmp_path}"]).plan.cells[0] for rate in RATES]
    federation = federation_of(cells[0].plan)
    benches = perturbation.both(cells[0].plan, federation)  # methods have the rates
    still, stable, unstable = (perturbation.row(cell, federation, *benches) for cell in cells)
    assert still.moved == pytest.approx(perturbation.MOVED, rel=1e-3)
    assert still.float32 <= 2 * torch.finfo(torch.float32).eps
    assert stable.moved < 1e-6
    assert 1e-9 < stable.float32 < 1e-5
    assert min(unstable.moved, unstable.float32) > 2e-5
    assert torch.get_default_dtype() == torch.float32


def test_double_precision_draws_the_numbers_of_single() -> None:
    draw = [torch.randn(4, generator=torch.Generator().manual_seed(0)), torch.ones(3).float() / 3]
    with perturbation.in_double():
        wide = [torch.randn(4, generator=torch.Generator().manual_seed(0)), torch.ones(3).float() / 3]
    assert {one.dtype for one in wide} == {torch.float64}
    assert torch.equal(wide[0], draw[0].double())
    assert not torch.equal(wide[1], draw[1].double())


def test_every_tensor_is_moved_by_a_share_of_its_largest_entry() -> None:
    state = {"a": torch.tensor([[4.0, -8.0]]).double(), "zero": torch.zeros(3).double()}
    other = perturbation.move(state, 0)
    assert float((other["a"] - state["a"]).abs().max()) == pytest.approx(8 * perturbation.MOVED, rel=1e-6)
    assert torch.equal(other["zero"], state["zero"])
