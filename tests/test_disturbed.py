"""Folders that somebody damages or deletes while the command works on them: one sentence, exit code 2, and the same command puts it right."""

import importlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_damage import Finished, damaged, files

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

RUNS = {
    "LoRA": "--method fedavg --attack maxrenyi --rounds 2 --clients 2 --per-round 1 --records 4 --reference 4 --novel 4 --test 2 --local-steps 1",
    "prompts": "--method promptfl --epsilon none --rounds 2 --clients 2 --train 4 --test 1",
}
ANALYSIS = {"LoRA": "fedaudit.pipeline.attacks:scoring_jobs", "prompts": "fedaudit.audits.epsilon:ledger_of"}
Harm = Callable[[Path], None]


# adapters, whose folders have the same names; quick: prompts
@pytest.fixture(scope="module", params=[pytest.param("LoRA", marks=pytest.mark.slow), "prompts"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(RUNS[kind], tmp_path_factory.mktemp("whole") / "out")


def start(folder: Path) -> None:
    for name in ("initial.safetensors", "initial.json"):
        damaged(folder / name)


# where the harm is done (before the function is called), how often at most, to the only folder of these, how, what is said of it
DISTURBED: dict[str, tuple[str, int, str, Harm, str]] = {
    "a start damaged in training": ("fedaudit.trainers.rounds:_round", 1, "runs", start, "initial.safetensors is damaged"),
    "a training deleted in training": ("fedaudit.trainers.rounds:_round", 1, "runs", shutil.rmtree, "is not there"),
    "a training deleted in analysis, again and again": ("analysis", 9, "runs", shutil.rmtree, "is not there"),
    "an analysis deleted before the report": ("fedaudit.pipeline.compute:read_evidence", 1, "analyses", shutil.rmtree, "is not there"),
}  # fmt: skip
MENDED: dict[str, tuple[str, int, str, Harm]] = {
    "a training deleted after it": ("fedaudit.pipeline.compute:ensure_analysis", 1, "runs", shutil.rmtree),
    "a training deleted in analysis": ("analysis", 1, "runs", shutil.rmtree),
    "a training damaged in analysis": ("analysis", 1, "runs", start),
}


def disturb(place: str, times: int, folder: Path, harm: Harm, patch: pytest.MonkeyPatch) -> None:
    """Harm the only folder in `folder` before each of the first calls of a function, MODULE:NAME, once it is there."""
    module, _, name = place.partition(":")
    real, calls = getattr(importlib.import_module(module), name), itertools.count()

    def harmed(*given: Any, **named: Any) -> Any:
        if next(calls) < times:
            (only,) = folder.iterdir()
            harm(only)
        return real(*given, **named)

    patch.setattr(f"{module}.{name}", harmed)


@pytest.mark.parametrize("what", DISTURBED)
def test_it_is_said_in_a_sentence_and_computed_again(
    what: str, kind: str, whole: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    place, times, below, harm, words = DISTURBED[what]
    out, logs = tmp_path / "out", tmp_path / "logs"
    logs.mkdir()
    capfd.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(logs))
        disturb(ANALYSIS.get(kind, "") if place == "analysis" else place, times, out / below, harm, patch)
        assert whole.again(out) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ")
    assert words in said
    assert f"keep the folder {out / below}/" in said
    assert "run the same command again" in said
    assert not list(logs.glob("fedaudit-*"))
    assert whole.again(out) == 0
    assert files(out) == whole.files


@pytest.mark.parametrize("what", MENDED)
def test_what_is_noticed_in_the_analysis_is_trained_again_at_once(
    what: str, kind: str, whole: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, times, below, harm = MENDED[what]
    disturb(ANALYSIS[kind] if place == "analysis" else place, times, tmp_path / "out" / below, harm, monkeypatch)
    assert whole.again(tmp_path / "out") == 0
    assert files(tmp_path / "out") == whole.files
