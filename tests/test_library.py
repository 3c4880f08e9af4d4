"""The library as Python code meets it: types, names, keywords, and errors that name keywords."""

import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import fedaudit
from fedaudit import api, keywords
from fedaudit.command import option_types
from fedaudit.machinery.errors import Diverged, InputError

ROOT = Path(__file__).parent.parent
KEYWORDS = typing.get_type_hints(fedaudit.Options)
FLAG = re.compile(r"--([a-z][a-z-]*)")

SCRIPT = """\
import math
from pathlib import Path
from typing import Any, Unpack, reveal_type

import fedaudit

found = fedaudit.audit(method=["fedavg", "fedrand"], attack="loss", rounds=1, out=Path("runs"), rank=None, quiet=True)
reveal_type(found.findings)  # DataFrame
reveal_type(found.verdicts)  # DataFrame
reveal_type(found.compare("runs/reports/other"))  # DataFrame
reveal_type(fedaudit.runs("runs"))  # DataFrame
reveal_type(found.summary)  # str
reveal_type(found.report)  # Path
reveal_type(fedaudit.dry_run(method="dpfpl", epsilon=[1, 0.1, "none", math.inf], past=False))  # str
fedaudit.audit(epsilon=0.4, fail_if=["auroc.low > 0.6"], data_root=Path("data"), twin=False)
mine: dict[str, Any] = {"my_rate": 0.1}
fedaudit.audit(method="mine", **mine)


def quietly(**options: Unpack[fedaudit.Options]) -> fedaudit.Audit:
    options["quiet"] = True
    return fedaudit.audit(**options)


quietly(rounds=1)
quietly(ruonds=1)  # error: call-arg
fedaudit.audit(rnak=3)  # error: call-arg
fedaudit.dry_run(per_ronud=3)  # error: call-arg
fedaudit.audit(rounds="five")  # error: arg-type
fedaudit.audit(past="yes")  # error: arg-type
fedaudit.audit(fail_if=[0.6])  # error: list-item
fedaudit.adit()  # error: attr-defined
found.verdict  # error: attr-defined
"""


CONFIGURATION = """\
[mypy]
strict = True
[mypy-fedaudit.*]
follow_imports = skip
[mypy-fedaudit,fedaudit.api,fedaudit.options,fedaudit_recorder]
follow_imports = silent
"""  # what a script sees; what is behind it leads to torch, which takes mypy half a minute


def test_types_of_a_users_script(tmp_path: Path) -> None:
    """With a stub of pandas, which has no types of its own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.pyi").write_text("class DataFrame: ...\n")
    words, env = [sys.executable, "-m", "mypy", "script.py"], os.environ | {"MYPYPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    said: dict[int, str] = {}
    for number, text in re.findall(r"^script\.py:(\d+): (.*)$", done.stdout, re.MULTILINE):
        said.setdefault(int(number), text)
    for number, line in enumerate(SCRIPT.splitlines(), start=1):
        expected = line.partition("  # ")[2]
        if expected.startswith("error: "):
            assert said.pop(number, "nothing").endswith(f"[{expected.removeprefix('error: ')}]"), line
        elif expected:
            assert re.fullmatch(rf'note: Revealed type is "(\w+\.)*{expected}"', said.pop(number, "nothing")), line
    assert said == {}, done.stdout + done.stderr


def test_the_types_are_those_of_the_flags() -> None:
    assert option_types.FILE.read_text() == option_types.text(), "run python -m fedaudit.command.option_types"


def test_all_names_are_listed_before_they_are_imported() -> None:
    text = "import fedaudit, sys; print(*dir(fedaudit)); print([m for m in sys.modules if m.startswith('fedaudit.')])"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    names, imported = done.stdout.splitlines()
    assert {*fedaudit.__all__, "__version__"} <= {*names.split()}
    assert imported == "[]"
    assert all(getattr(fedaudit, name) is not None for name in fedaudit.__all__)
    with pytest.raises(AttributeError, match="'fedaudit' has no attribute 'adit'"):
        _ = fedaudit.adit  # type: ignore[attr-defined]


def test_none_is_not_given() -> None:
    assert keywords.words(dict.fromkeys(KEYWORDS)) == []
    assert keywords.words({"rank": None, "rounds": 5, "out": None, "twin": False}) == ["--rounds=5", "--no-twin"]


def said_of(options: dict[str, Any]) -> str:
    try:
        with keywords.errors_in_python(options):
            api._command(options)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({"rnak": 3}, "rnak=3: no such option for this method, task and attack (did you mean rank=...?)"),
        ({"rnak": None}, "rnak=None: no such keyword (did you mean 'rank'?)"),
        ({"method": "fedavg", "past": False}, "past=False: is of method='fedrand', and has no place with"),
        ({"per_round": 99}, "per_round=99: at most as many as there are clients"),
        ({"rounds": 5.0}, "rounds=5.0: '5.0' must be a whole number"),
        ({"method": ["fedavg", "fedrnd"]}, "method='fedrnd': no such method (did you mean 'fedrand'?)"),
        ({"method": ["fedavg", ""]}, "method=['fedavg', '']: one of its values is empty"),
        ({"method": ""}, "method='': its value is empty, as of a variable that is not set; give one, or leave method=... out"),
        ({"attack": ["loss", "tokens"]}, "attack='tokens': no such attack"),
        ({"fail_if": ["auroc >"]}, "fail_if='auroc >'"),
        ({"audit": ["curves"]}, "audit=['curves']: compares settings, and here is one"),
        ({"method": "dpfpl", "epsilon": "none", "clip": "batch"}, "clip='batch': has no effect, since nothing is noised; give epsilon=... a number"),
        ({"holdout": 0, "method": "promptfl", "attack": "loss"}, "holdout=0: "),
        ({"run": "/none", "method": "fedavg"}, "method=... does not go with run='/none'"),
        ({"epsilon": [1, -1], "method": "dpfpl"}, "epsilon=[1, -1]: epsilon must be at least"),
        ({"past": "yes"}, "past='yes': must be True or False"),
        ({"preset": "papr"}, "preset='papr': no such preset (did you mean 'paper'?)"),
        ({"config": Path("/none.yaml")}, "config='/none.yaml': cannot be read"),
        ({"canary_kind": "odd"}, "canary_kind='odd': "),
        ({"list": "attacks"}, "list: is of the command only, audit.py --list"),
        ({"split": "a.jsonl"}, "split: is of the command only, audit.py --split; in Python it is fedaudit.split"),
        ({"compare": "a"}, "compare: is of the command only, audit.py --compare; in Python it is Audit.compare"),
        ({"open": True}, "open: is of the command only, audit.py --open; in Python it is Audit.open"),
        ({"check": True}, "check: is of the command only, audit.py --check"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_said_in_python(options: dict[str, Any], begins: str) -> None:
    assert said_of(options).startswith(begins)


def test_no_message_has_the_flag_of_a_keyword() -> None:
    named = {
        (name, repr(value), flag)
        for name in [*KEYWORDS, "my_rate", "rnak"]
        for value in ("nonsense", "", -5, 0.123, False, [1, "x"], 10**30)
        for flag in FLAG.findall(said_of({name: value}))
        if flag.replace("-", "_").removeprefix("no_") in {*KEYWORDS, name}
    }
    assert not named


def test_flags_in_python() -> None:
    for message, options, said in (
        ("--per-round 9: at most 3", {}, "per_round=9: at most 3"),
        ("--config a b.yaml: --rounds: must", {"config": "a b.yaml"}, "config='a b.yaml': rounds=...: must"),
        ("give --audit and --out alone", {}, "give audit=... and out=... alone"),
        ("one of (--epsilon none,0.4,0.1), or more", {}, "one of (epsilon='none,0.4,0.1'), or more"),
        ("the run in --run was trained with --no-past", {}, "the run in run=... was trained with past=False"),
        ("only --linked-files allows that", {}, "only linked_files=True allows that"),
        ("--backbone /a/--out/b: none", {"backbone": "/a/--out/b"}, "backbone='/a/--out/b': none"),
        ("an --attack on prompts, or --attack lira, shadow", {}, "an attack=... on prompts, or attack='lira', shadow"),
        ("--mine 3: is of --method fedper", {"mine": 3}, "mine=3: is of method='fedper'"),
        ("audit.py --list says which; pip --user", {}, "audit.py --list says which; pip --user"),
        ("nothing here", {}, "nothing here"),
    ):
        assert keywords.in_python(message, options) == said


def test_a_training_that_diverged_names_keywords() -> None:
    with pytest.raises(Diverged) as caught, keywords.errors_in_python({}):
        raise Diverged("fedavg", 0, 3, "the loss", "lower --learning-rate")
    assert str(caught.value).endswith("holds NaN or infinity; lower learning_rate=...")
    assert caught.value.round == 3
