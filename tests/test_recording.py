"""Runs that were recorded wrongly elsewhere: every recording of `benchmarks.recordings` is refused or said, and right
ones are read without a word."""

import contextlib
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize

from benchmarks.recordings import RECORDINGS, REFUSED, RIGHT
from fedaudit.external import explain
from fedaudit.external.reading import read
from fedaudit.machinery.errors import InputError
from tests.small_run import RUN, line, put

NAMES = [f"layers.{i}.q_proj.{half}" for i in range(2) for half in "AB"]
ROUNDS = 4


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedAvg as `--export-run` writes it, with numbers drawn at random for what clients learn."""
    run, rng = tmp_path_factory.mktemp("right") / "run", torch.Generator().manual_seed(0)
    model = {n: torch.randn(4, 8, generator=rng) if n.endswith("A") else torch.zeros(6, 4) for n in NAMES}
    put(run / "models/round-000.safetensors", model)
    notes = {}
    for r in range(ROUNDS):
        drift = {n: torch.randn(t.shape, generator=rng) for n, t in model.items()}
        sent = {}
        for k in range(5):
            sent[k] = {n: t + 0.1 * (drift[n] + torch.randn(t.shape, generator=rng)) for n, t in model.items()}
            put(run / f"uploads/round-{r:03d}/client-{k:02d}.safetensors", sent[k])
        model = {n: sum((k + 1) / 15 * sent[k][n] for k in sent) for n in NAMES}
        put(run / f"models/round-{r + 1:03d}.safetensors", model)
        notes[str(r)] = {"uploads": {str(k): {"records": k + 1} for k in sent}}
    put(run / "rounds.json", notes)
    put(run / "run.json", RUN | {"format": 2})
    (run / "images").mkdir()
    for name in ("members", "nonmembers"):
        lines = [line(f"{name}-{k}-{i}", k, image=f"images/{name}-{k}-{i}.png") for k in range(5) for i in range(4)]
        put(run / f"{name}.jsonl", lines)
        for entry in lines:
            pixels = np.random.default_rng(zlib.crc32(str(entry["id"]).encode())).integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(pixels).save(run / str(entry["image"]))
    return run


@pytest.mark.parametrize("name", [name for name, recording in RECORDINGS.items() if not recording.by_model])
def test_each_recording_is_right_said_or_refused(right: Path, tmp_path: Path, name: str) -> None:
    recording, run = RECORDINGS[name], shutil.copytree(right, tmp_path / "run")
    recording.change(run)
    said = what_is_said(run)
    if recording.expected == RIGHT:
        assert said == {}
    else:
        (check,) = said.keys() & set(recording.expected.split(" or "))
        assert recording.words in said[check]


def what_is_said(run: Path) -> dict[str, str]:
    """Sentences by the check that says them, or {REFUSED: the sentence}."""
    with contextlib.suppress(InputError):
        return {remark.check: remark.sentence for remark in read(run).remarks}
    with pytest.raises(InputError, match=re.escape(str(run))) as refused:
        assert read(run).remarks
    return {REFUSED: str(refused.value)}


class TestWeights:
    """The smallest w' G w over w >= 0 with sum 1."""

    @pytest.mark.parametrize("seed", range(20))
    def test_against_a_general_optimiser(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(rng.integers(1, 7), rng.integers(1, 9))) + rng.normal()
        gram = rows @ rows.T
        found = explain.simplex_weights(gram)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1)
        n = len(gram)
        constraint = {"type": "eq", "fun": lambda w: w.sum() - 1}
        other = minimize(
            lambda w: w @ gram @ w, np.full(n, 1 / n), jac=lambda w: 2 * gram @ w, bounds=[(0, 1)] * n,
            constraints=constraint, tol=1e-14,
        )  # fmt: skip
        assert found @ gram @ found <= other.fun + 1e-7 * np.trace(gram)

    def test_true_weights_and_files_of_other_clients_are_found(self) -> None:
        rows = np.random.default_rng(0).normal(size=(6, 500))
        true = np.array([0.1, 0.0, 0.25, 0.3, 0.05, 0.3])
        rest = rows - true @ rows
        assert explain.simplex_weights(rest @ rest.T) == pytest.approx(true, abs=1e-6)
        stated = {0: 10, 1: 20, 2: 30, 3: 40}
        assert explain.permutation({0: 0.4, 1: 0.2, 2: 0.3, 3: 0.1}, stated) == {0: 3, 1: 1, 2: 2, 3: 0}


class TestFit:
    def round(self, **changes: torch.Tensor) -> explain.Fit:
        """One tensor of 3 numbers, two clients that moved by (3, 0, 0) and (0, 4, 0), and the next model."""
        before, one = torch.tensor([1.0, 1.0, 1.0]), {"w": torch.tensor([4.0, 1.0, 1.0])}
        other = {"w": torch.tensor([1.0, 5.0, 1.0])}
        tensors = explain.tensors_of({"w": before}, {"w": changes["after"]}, {0: one, 1: other}, 2**-24)
        return explain.fit(tensors)

    def test_by_hand(self) -> None:
        """The mean of both, and 1 in the third number that neither has: a client's root mean square step is
        sqrt(12.5)."""
        assert self.round(after=torch.tensor([2.5, 3.0, 1.0])).explained
        found = self.round(after=torch.tensor([2.5, 3.0, 2.0]))
        assert found.unexplained == pytest.approx(1 / 12.5**0.5)
        assert found.weights == pytest.approx({0: 0.5, 1: 0.5})
        assert found.tensor == "w"
        found = self.round(after=torch.tensor([7.0, 1.0, 1.0]))
        assert found.weights == pytest.approx({0: 1.0, 1: 0.0}, abs=1e-9)
        assert found.unexplained == pytest.approx(3 / 12.5**0.5)
