"""All that a terminal of 80 columns shows fits it: help, lists, checks, estimates, progress and results. Paths and commands
stand in one piece."""

import re
import shlex
from pathlib import Path

import pytest

from tests.real_terminal import in_terminal

COLUMNS = 80
LORA = "--rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 4 --test 2 --threads 1"
PROMPTS = "--rounds 2 --clients 2 --train 8 --test 1 --threads 1"


def shown(words: str, out: Path) -> list[str]:
    """The lines that a terminal shows of a command, stdout and stderr together."""
    code, said = in_terminal(shlex.split(words.format(out=out)), COLUMNS, out, seconds=600)
    assert code in (0, 1), said
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said))


def too_wide(lines: list[str]) -> list[str]:
    """Lines that are wider than the terminal, but for those of a command and those whose last word is a path."""
    wide = [line for line in lines if len(line.rstrip()) > COLUMNS and "audit.py " not in line]
    return [line for line in wide if "/" not in line.split()[-1]]


@pytest.mark.parametrize(
    "words",
    [
        "--help", "--method dpfpl --attack all --help", "--paper dpfpl:table2 --help", "--paper dpfpl --help",
        "--nightly matrix.yaml --help", "--list --threads 2", "--list attacks --quiet", "--version --debug",
        "--paper list --threads 1", f"--method promptfl {PROMPTS} --check",
        pytest.param(f"--method fedavg {LORA} --check", marks=pytest.mark.slow),  # of prompts is quicker
    ],
)  # fmt: skip
def test_what_runs_nothing(words: str, tmp_path: Path) -> None:
    lines = shown(words, tmp_path)
    assert len("".join(lines)) > 5
    assert too_wide(lines) == []


@pytest.mark.slow  # whole runs; quick: what runs nothing, and tables of made-up findings (test_terminal)
@pytest.mark.parametrize(
    "words",
    [
        f"--method fedavg,fedrand {LORA} --out {{out}}/o",
        f"--method promptfl,dpfpl {PROMPTS} --attack loss,shadow --shadow-kind federations --shadows 4 --epsilon none,1 --out {{out}}/o",
        f"--method dpfpl {PROMPTS} --attack whitebox,loss --canaries 20 --epsilon 2 --fail-if measured>0.001 --out {{out}}/o",
        f"--method dpfpl {PROMPTS} --epsilon none,0.1 --dry-run --out {{out}}/o",
        "--paper fedrand --rounds 1 --dry-run --threads 1 --out {out}/o",
    ],
)
def test_runs(words: str, tmp_path: Path) -> None:
    assert too_wide(shown(words, tmp_path)) == []
