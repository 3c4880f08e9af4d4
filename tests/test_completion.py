"""Completion in a real bash: flags that go with the words before, and names, several with commas."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedaudit.command import cli, completion
from fedaudit.command.completion import words_before

ROOT = Path(__file__).parent.parent
REGISTER = Path(sys.executable).with_name("register-python-argcomplete")
ASK = """
eval "$(register-python-argcomplete fedaudit)"
COMP_LINE="$1"; COMP_POINT=${#1}; COMP_TYPE=9
_python_argcomplete fedaudit
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("argcomplete", reason="argcomplete is not installed")
    if not REGISTER.exists() or shutil.which("bash") is None:
        pytest.skip("there is no bash, or no register-python-argcomplete beside Python")
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "fedaudit"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedaudit "$@"\n')
    command.chmod(0o755)
    return os.pathsep.join([str(folder), str(REGISTER.parent), os.environ["PATH"]])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedaudit --method fedavg,fedpe", {"fedavg,fedper"}),
        ("fedaudit --paper=secfpp:f", {"figure2", "figure3"}),  # bash sets what stands before a colon itself
        ("fedaudit --method dpfpl --epsi", {"--epsilon"}),
    ],
)
def test_bash(line: str, expected: set[str], path: str) -> None:
    words, env = ["bash", "--norc", "-c", ASK, "bash", line], os.environ | {"PATH": path}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert {word.strip() for word in done.stdout.split("\n")} - {""} == expected, done.stderr


def test_names_behind_a_flag() -> None:
    for flag, prefix, expected in (
        ("method", "fedr", {"fedrand"}),
        ("method", "fedavg,fedp", {"fedavg,fedpara", "fedavg,fedper", "fedavg,fedpgp", "fedavg,fedprox"}),
        ("attack", "maxr", {"maxrenyi"}),
        ("attack", "a", {"all"}),
        ("task", "gl", {"glyphs"}),
        ("preset", "memo", {"memorising"}),
        ("list", "thr", {"threat-models"}),
    ):
        complete = completion._completer(completion.NAMES[flag])
        assert complete(prefix, None).keys() == expected, (flag, prefix)


@pytest.mark.parametrize("method", ["", "dpfpl", "fedavg", "nobody"])
def test_flags_go_with_the_words_before(method: str) -> None:
    """Those of the command alone where the words are wrong."""
    flags = completion.parser_of(["--method", method] if method else [], cli.training_parser)._option_string_actions
    assert ("--epsilon" in flags, "--attack" in flags) == (method == "dpfpl", True)


def test_words_before_the_cursor() -> None:
    for line, words in (
        ("fedaudit --method dpfpl --eps", ["--method", "dpfpl"]),
        ("python audit.py --method dpfpl --attack ", ["--method", "dpfpl"]),
        ("fedaudit --method=dpfpl --attack lo", ["--method=dpfpl"]),
        ("fedaudit ", []),
        ("fedaudit --out 'a b", []),
    ):
        assert words_before(line, len(line)) == words, line
        assert words_before(f"{line} and more", len(line)) == words, line
