"""`--keep-rounds`: which tensors stay, and that what is asked later is as if all had stayed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedaudit.command import exits
from fedaudit.command.cli import main, read_command
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import Folder
from fedaudit.pipeline import compute
from fedaudit.pipeline.finished import COMPLETE, finish, intact
from fedaudit.pipeline.kept_rounds import rounds_left, thin
from tests.whole_runs import Job, contents

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
SIZES = "--rounds 4 --clients 2 --train 4 --test 1 --prompt-length 4 --threads 1"
PROMPTS = Job(["--method", "promptfl", "--epsilon", "none", *SIZES.split()], printing=False)


def finished(path: Path, losses: list[float | None], first: int = 0) -> Any:
    folder = Folder(path)
    for r, loss in enumerate(losses, first):
        folder.write(f"round-{r:03d}.safetensors", b"tensors")
        folder.write_json(f"round-{r:03d}.json", {"utility": {"global": {} if loss is None else {"loss": loss}}})
    finish(folder)
    return SimpleNamespace(training_folder=path, needs_shadows=False)


def left(cell: Any) -> list[int]:
    names = Folder(cell.training_folder).names()
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"round-(\d+)\.safetensors", name)))


@pytest.mark.parametrize(
    ("keep", "losses", "kept"),
    [
        ("all", [None] * 6, [0, 1, 2, 3, 4, 5]),
        ("last", [None] * 6, [5]),
        ("last", [3.0, 1.0, 2.0, 1.0, 2.0], [1, 4]),  # the first of the least
        ("last", [1.0], [0]),
        ("every:2", [None] * 5, [1, 3, 4]),
        ("every:2", [0.5, 1.0, 1.0, 1.0], [0, 1, 3]),
        ("every:9", [None] * 4, [3]),
        ("every:1", [None] * 3, [0, 1, 2]),
    ],
)
def test_which_rounds_stay(keep: str, losses: list[float | None], kept: list[int], tmp_path: Path) -> None:
    cell, said = finished(tmp_path / "run", losses), list[str]()
    thin([cell], keep, said.append)
    folder = Folder(cell.training_folder)
    assert intact(folder.path)
    assert sum(name.endswith(".json") for name in folder.names()) == len(losses) + 1
    assert rounds_left(folder) == (len(kept) if len(kept) < len(losses) else None)
    assert bool(said) == (len(kept) < len(losses))
    thin([cell], keep, said.append)
    assert left(cell) == kept


def test_rounds_of_four_digits_come_last(tmp_path: Path) -> None:
    cell = finished(tmp_path / "run", [2.0, 1.0, 2.0, 2.0], first=998)
    thin([cell], "every:3", print)
    assert left(cell) == [999, 1000, 1001]
    Folder(cell.training_folder).remove(COMPLETE)
    thin([cell], "last", print)
    assert left(cell) == [999, 1000, 1001], "what is in use or unfinished stays"


@pytest.mark.slow  # in a whole command; quick: an export needs all rounds too, test_an_export_has_all_rounds
def test_a_later_attack_finds_what_it_needs(tmp_path: Path) -> None:
    """The released model's scores need the last round; messages are sent in all of them."""
    full, thinned = tmp_path / "full", tmp_path / "thinned"
    PROMPTS.audit(full, "--attack", "loss,cosine", "--targets", "1")
    PROMPTS.audit(thinned, "--attack", "loss", "--targets", "1", "--keep-rounds", "last")
    (run,) = (thinned / "runs").iterdir()
    assert sorted(path.name for path in run.glob("round-*.safetensors"))[-1:] == ["round-003.safetensors"]
    assert len([*run.glob("round-*.safetensors")]) <= 2
    assert intact(run)
    dry = PROMPTS.audit(thinned, "--attack", "loss,cosine", "--targets", "1", "--dry-run")
    assert "1 training on disk without all rounds" in dry.stdout + dry.stderr
    both = PROMPTS.audit(thinned, "--attack", "loss,cosine", "--targets", "1")
    assert contents(thinned / "runs") == contents(full / "runs")
    (report,) = (full / "reports").iterdir()
    assert contents(thinned / "reports" / report.name) == contents(report)
    assert "trained again" in both.stderr


def test_an_export_has_all_rounds(tmp_path: Path) -> None:
    def audit(out: str, *more: str) -> None:
        assert main([*PROMPTS.options(tmp_path / out), *more]) == 0

    audit("out", "--keep-rounds", "last")
    audit("out", "--keep-rounds", "last", f"--export-run={tmp_path / 'late'}")
    audit("other", f"--export-run={tmp_path / 'at-once'}")
    assert contents(tmp_path / "late") == contents(tmp_path / "at-once")
    (run,) = (tmp_path / "out" / "runs").iterdir()
    assert len([*run.glob("round-*.safetensors")]) <= 2


def test_rounds_of_a_cell_of_a_night_that_failed_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = compute.write_page

    def failing(evidence: Any, *rest: Any, **more: Any) -> None:
        if evidence[0].method.startswith("local"):
            raise RuntimeError("a page that cannot be written")
        write(evidence, *rest, **more)

    monkeypatch.setattr(compute, "write_page", failing)
    sizes = dict(re.findall(r"--(\S+) (\S+)", SIZES))
    night = tmp_path / "night.yaml"
    night.write_text(json.dumps({"base": {**sizes, "epsilon": "none"}, "matrix": {"method": ["promptfl", "local"]}}))
    words = ["--nightly", str(night), "--out", str(tmp_path / "out"), "--keep-rounds", "last"]
    assert main(words) == exits.FAILED
    runs = (tmp_path / "out/runs").iterdir()
    rounds = {run.name.split("-")[0]: len([*run.glob("round-*.safetensors")]) for run in runs}
    assert rounds["promptfl"] < rounds["local"] == 4


@pytest.mark.parametrize("value", ["some", "every:0", "every:", "every:-1", "last:2"])
def test_other_values_are_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--keep-rounds.*every:N"):
        read_command(PROMPTS.options(tmp_path, "--keep-rounds", value))
