"""The examples of CONTRIBUTING.md are whole: written into a copy of the project, they pass its checks and run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.test_keys import copied
from tests.warm import Started
from tests.whole_runs import ROOT

SMALL = "--rounds 2 --clients 3 --test 2 --threads 1"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the examples in it."""
    place = copied(tmp_path_factory.mktemp("copy") / "code")
    for folder in ("tests", "docs"):
        shutil.copytree(ROOT / folder, place / folder)
    shutil.copy(ROOT / "pyproject.toml", place)
    for name, source in EXAMPLES.items():
        (place / name).write_text(source)
    return place


def run(place: Path, words: str, *more: str) -> str:
    done = subprocess.run([sys.executable, *words.split(), *more], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_listed(name: str, place: Path) -> None:
    source = EXAMPLES[name]
    assert len(source.splitlines()) < 60
    assert all(len(line) <= 120 for line in source.splitlines())
    first = source.removeprefix('"""').partition(": ")[2].partition("\n")[0]
    assert first in run(place, "audit.py --list")


def test_there_are_methods_of_both_learners_and_attacks_on_both_kinds_of_records() -> None:
    said = {
        tuple(re.findall(r"^    (?:learner|records) = (.*)$", source, re.MULTILINE)) for source in EXAMPLES.values()
    }
    assert said == {('"lora"',), ('"prompts"',), ('("texts",)',), ('("classes",)',)}


@pytest.mark.slow
def test_a_refusal_is_shown_where_the_attack_did_not_run(place: Path, tmp_path: Path) -> None:
    words = f"--method scaffold --attack decompose,cosine --epsilon none --train 12 {SMALL} --out {tmp_path}"
    done = Started(words.split(), place, printing=False).finish()
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip().rpartition("report: ")[2]).parent
    rows = [line for line in (folder / "refused.csv").read_text().splitlines() if "decompose,server" in line]
    assert rows
    assert all("its control variate plus the server's" in row for row in rows)


@pytest.mark.slow
def test_they_pass_the_projects_checks(place: Path) -> None:
    names = " ".join(EXAMPLES)
    run(place, f"-m ruff check {names}")
    run(place, f"-m ruff format --check {names}")
    tests = " ".join(
        f"tests/test_{name}.py" for name in ("plugins", "method_contracts", "inference_attacks", "text_attacks")
    )
    said = run(place, f"-m pytest -n 0 {tests} -k", " or ".join(Path(name).stem for name in EXAMPLES))
    assert int(re.findall(r"(\d+) passed", said)[0]) >= 60


@pytest.mark.parametrize(
    ("words", "method", "attack"),
    [
        pytest.param(
            "--method fedmedian --records 6 --reference 8 --novel 8 --local-steps 2 --per-round 3",
            "fedmedian",
            "maxrenyi",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "--method fedavgm --attack loss,weakest --records 6 --reference 8 --novel 8 --local-steps 2 --per-round 3",
            "fedavgm",
            "loss,weakest",
            marks=pytest.mark.slow,
        ),
        ("--method promptfl --attack margin --train 12", "promptfl", "margin"),
    ],
)
def test_they_run_from_training_to_report(words: str, method: str, attack: str, place: Path, tmp_path: Path) -> None:
    done = Started([*words.split(), *SMALL.split(), "--out", str(tmp_path)], place, printing=False).finish()
    assert done.returncode == 0, done.stderr
    findings = json.loads((Path(done.stdout.strip().rpartition("report: ")[2]).parent / "findings.json").read_text())
    said = {(f["method"].partition(":")[0], f["attack"]) for f in findings if f["metric"] == "auroc"}
    assert said == {(method, name) for name in attack.split(",")}
