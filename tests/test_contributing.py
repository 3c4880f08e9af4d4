"""The examples of CONTRIBUTING.md are whole: written into a copy of the project, they pass its checks and run."""

import csv
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
from tests.whole_runs import ROOT, report

SMALL = "--rounds 2 --clients 3 --test 2 --threads 1"
CODE = [name for name in EXAMPLES if name.endswith(".py")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project's code with the examples in it."""
    place = copied(tmp_path_factory.mktemp("copy") / "code")
    for name, source in EXAMPLES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(source)
    return place


def run(place: Path, words: str, *more: str) -> str:
    done = subprocess.run([sys.executable, *words.split(), *more], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_examples_are_short_and_listed(place: Path) -> None:
    listing = run(place, "audit.py --list")
    for name in CODE:
        source = EXAMPLES[name]
        assert len(source.splitlines()) < 60, name
        assert all(len(line) <= 120 for line in source.splitlines()), name
        first = source.removeprefix('"""').partition(": ")[2].partition("\n")[0].removesuffix('"""')
        assert first in listing, name


def test_there_are_methods_of_both_learners_and_attacks_on_both_kinds_of_records() -> None:
    facts = re.compile(r"^    (?:learner|records) = (.*)$", re.MULTILINE)
    said = {tuple(facts.findall(source)) for source in EXAMPLES.values()}
    assert said == {('"lora"',), ('"prompts"',), ('("texts",)',), ('("classes",)',), ()}


def audit(place: Path, words: str, out: Path) -> Path:
    """The folder of the report of a run of the command in `place`."""
    done = Started([*words.split(), *SMALL.split(), "--out", str(out)], place, printing=False).finish()
    assert done.returncode == 0, done.stderr
    return report(done)


@pytest.mark.slow  # in a whole run of an example; quick: what a method refuses (test_method_contracts)
def test_a_refusal_is_shown_where_the_attack_did_not_run(place: Path, tmp_path: Path) -> None:
    folder = audit(place, "--method scaffold --attack decompose,cosine --epsilon none --train 12", tmp_path)
    rows = [line for line in (folder / "refused.csv").read_text().splitlines() if "decompose,server" in line]
    assert rows
    assert all("its control variate plus the server's" in row for row in rows)


@pytest.mark.slow  # contracts and tests of all examples; quick: that of a prompt attack runs, below
def test_they_pass_the_projects_checks(place: Path) -> None:
    unused = shutil.ignore_patterns("node_modules")
    for folder in ("tests", "docs"):
        shutil.copytree(ROOT / folder, place / folder, ignore=unused, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", place)
    names = " ".join(CODE)
    run(place, f"-m ruff check {names}")
    run(place, f"-m ruff format --check {names}")
    run(place, "-m mypy " + " ".join(name for name in CODE if name.startswith(("audits", "reports"))))
    kinds = "plugins method_contracts inference_attacks text_attacks sections papers papers_run rooms".split()
    tests = [f"tests/test_{name}.py" for name in kinds]
    stems = " or ".join(Path(name).stem.replace("_table", ":table") for name in CODE)
    said = run(place, "-m pytest -n 0 -m", "not slow", *tests, "-k", f"({stems}) and not trained_and_attacked")
    assert int(re.findall(r"(\d+) passed", said)[0]) >= 60


LORA = "--novel 8 --reference 8 --local-steps 2 --per-round 3"


@pytest.mark.parametrize(
    ("method", "attack", "words"),
    [  # slow: the examples on adapters; quick: the one on prompts
        pytest.param("fedmedian", "maxrenyi", f"--records 6 {LORA}", marks=pytest.mark.slow),
        pytest.param("fedavgm", "loss,weakest", f"--records 6 {LORA}", marks=pytest.mark.slow),
        ("promptfl", "margin", "--epsilon none --train 12 --prompt-length 4"),
    ],
)
def test_they_run_from_training_to_report(method: str, attack: str, words: str, place: Path, tmp_path: Path) -> None:
    folder = audit(place, f"--method {method} --attack {attack} {words}", tmp_path)
    findings = json.loads((folder / "findings.json").read_text())
    said = {(f["method"].partition(":")[0], f["attack"]) for f in findings if f["metric"] == "auroc"}
    assert said == {(method, name) for name in attack.split(",")}


@pytest.mark.slow  # in a whole run of an example; quick: sections of made-up findings (test_sections)
def test_an_audit_shows_its_table_by_its_section(place: Path, tmp_path: Path) -> None:
    folder = audit(place, f"--method fedavg --attack loss --records 10 {LORA}", tmp_path)
    (found,) = [f for f in json.loads((folder / "findings.json").read_text()) if f["metric"] == "members/top_tenth"]
    with (folder / "top_tenth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["members"]) for row in rows) == found["value"]
    assert sum(int(row["records"]) for row in rows) == 6  # of 3 clients with 20 candidates each
    assert "Whose records rank first?" in (folder / "index.html").read_text()


@pytest.mark.slow  # of an example; quick: papers' tables with few methods (test_papers_run)
def test_a_table_of_a_paper_is_drawn(place: Path, tmp_path: Path) -> None:
    words = f"--paper fifth --rounds 1 --clients 2 --train 4 --test 1 --threads 1 --out {tmp_path}"
    done = Started(words.split(), place, printing=False).finish()
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "papers" / "fifth.html").read_text()
    (link,) = re.findall(r'href="([^"]+)">Fifth, Table 1<', index)
    assert "Where the paper contradicts itself here" not in (tmp_path / "papers" / link).read_text()
