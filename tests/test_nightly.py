"""Nights on disk: only what changed is computed, failures and gates, the history, and the pages; on audits that are
made up, and once on real ones."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import pandas as pd
import pytest

import fedaudit.pipeline.run
from fedaudit.audits.statistics.nights import judged
from fedaudit.command import cli, exits
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim, key_of
from fedaudit.pipeline.finished import finish, intact
from fedaudit.pipeline.nights import Nights, frame
from fedaudit.pipeline.plan import Plan
from fedaudit.pipeline.run import Outcome
from fedaudit.reports.nightly import LINES, CellOfNight
from tests.pages import held

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

MATRIX = """\
base: {rounds: 2}
matrix: {method: [fedavg, fedrand], seed: [0, 1]}
fail_if: [server auroc.low > 0.7]
"""


class Audits:
    """Stands for the pipeline: a report per plan with one AUROC, computed where it is not there yet."""

    def __init__(self) -> None:
        self.value: dict[str, float] = {}  # by method; 0.5 and a little by seed
        self.broken: set[str] = set()
        self.without: set[str] = set()  # methods whose reports have no such row
        self.code = "code 1"
        self.computed: list[str] = []
        self.killed_at = ""

    def __call__(self, plan: Plan, progress: Progress) -> Outcome:
        (cell,) = plan.cells
        if cell.method == self.killed_at:
            raise KeyboardInterrupt
        if cell.method in self.broken:
            raise InputError(f"--method {cell.method}: broken | on purpose <b>")
        run = key_of({"method": cell.method, "seed": cell.seed, "rounds": plan.rounds, "code": self.code})
        folder = claim(plan.out / "reports" / f"{cell.method}-{run}")
        reused = intact(folder.path)
        if not reused:
            self.computed.append(f"{cell.method} {cell.seed}")
            value = self.value.get(cell.method, 0.5) + (cell.seed % 7 - 3) / 300
            names = {"run": run, "method": cell.method, "task": "captions", "seed": cell.seed}
            row = names | {
                "threat_model": "server", "way": "exact", "population": "all members", "nonmembers": "held-out",
                "attack": "loss", "signal": "loss", "headline": True, "metric": "auroc", "value": value, "low": value - 0.06,
                "high": value + 0.06, "confidence": 0.95, "z": (value - 0.5) / 0.03, "family": "primary",
                "verdict": "leak" if value > 0.6 else "no leak found", "p": 0.5, "p_adjusted": 0.5,
                "base_value": 0.5, "base_low": 0.45, "base_high": 0.55, "blind_value": None, "blind_low": None, "blind_high": None,
            }  # fmt: skip
            findings = [] if cell.method in self.without else [row]
            folder.write_json("findings.json", findings)
            setting = {"schedule.rounds": plan.rounds, "data_seed": cell.seed, "keys.training": run}
            folder.write_json("runs.json", [names | {"schema": 3} | setting])
            folder.write("index.html", b"a page")
            finish(folder)
        return Outcome(folder.path / "index.html", folder.read_json("findings.json"), ["report"] if reused else [])


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> Audits:
    made = Audits()
    monkeypatch.setattr(fedaudit.pipeline.run, "run", made)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return made


class House:
    """A matrix file, and its folder."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self.out, self.capsys = tmp_path / "mine.yaml", tmp_path / "out", capsys
        self.file.write_text(MATRIX)
        self.place = self.out / "nightly" / "mine"

    def night(self, text: str | None = None) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a night."""
        if text:
            self.file.write_text(text)
        code = cli.main(["--nightly", str(self.file), "--out", str(self.out)])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def history(self) -> pd.DataFrame:
        return pd.read_json(self.place / "history.jsonl", lines=True)


@pytest.fixture
def house(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> House:
    return House(tmp_path, capsys)


class TestWhatRuns:
    def test_the_same_is_not_computed_again_and_a_seed_or_method_more_alone(self, audits: Audits, house: House) -> None:
        said = [house.night()[1] for _ in range(3)]
        assert audits.computed == ["fedavg 0", "fedavg 1", "fedrand 0", "fedrand 1"]
        first = "night 1: None of 4 cells leaks; the first night. 4 cells: 4 computed, 0 as before; none of 1 gate crossed.\n"
        third = "night 3: None of 4 cells leaks; none new. 4 cells: 0 computed, 4 as before; none of 1 gate crossed; no change"
        assert said[0].startswith(first)
        assert said[2].startswith(third)
        house.night(MATRIX.replace("seed: [0, 1]", "seed: [0, 2]"))
        assert audits.computed[4:] == ["fedavg 2", "fedrand 2"]
        house.night(MATRIX.replace("fedrand]", "fedrand, fedper]"))
        assert audits.computed[6:] == ["fedper 0", "fedper 1"]

    def test_a_dry_run_leaves_nothing(self, audits: Audits, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fedaudit.command.dry_run.estimate", lambda plan, *_: f"{plan.rounds} rounds to go")
        assert cli.main(["--nightly", str(house.file), "--out", str(house.out), "--dry-run"]) == exits.DONE
        said = house.capsys.readouterr().out
        assert said.startswith("4 cells, gates: server auroc.low > 0.7")
        assert said.count("2 rounds to go") == 4
        assert not house.out.exists()


class TestEnds:
    def test_a_failed_cell_is_one_and_the_rest_go_on(self, audits: Audits, house: House) -> None:
        audits.broken = {"fedavg"}
        code, out, err = house.night()
        assert code == exits.FAILED
        assert audits.computed == ["fedrand 0", "fedrand 1"]
        assert err.splitlines()[-1] == "failed: method fedavg, seed 1: --method fedavg: broken | on purpose <b>"
        assert "2 computed, 0 as before, 2 failed" in out
        audits.broken.clear()
        assert house.night()[0] == exits.DONE

    def test_what_breaks_unexpectedly_fails_too(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fedaudit.pipeline.run, "run", Mock(side_effect=ZeroDivisionError("by nothing")))
        code, _, err = house.night()
        assert code == exits.FAILED
        assert "failed: method fedavg, seed 0: unexpected ZeroDivisionError: by nothing" in err

    def test_a_leak_turns_gate_exit_code_and_night(self, audits: Audits, house: House) -> None:
        assert house.night()[0] == exits.DONE
        audits.value, audits.code = {"fedrand": 0.9}, "code 2"
        code, out, err = house.night()
        assert code == exits.CROSSED
        assert err.count("crossed: ") == 2
        assert "crossed: server auroc.low > 0.7: fedrand (seed 0), server, exact" in err
        assert out.count("new leak: ") == 1
        assert re.search("new leak: method fedrand, fedrand, server, exact, .*AUROC 0.892", out)
        assert "1 change beyond the band" in out
        assert out.startswith("night 2: 2 of 4 cells leak; 2 new. 4 cells: ")
        audits.broken = {"fedavg"}
        assert house.night()[0] == exits.CROSSED  # which weighs more than a failed cell

    def test_a_gate_that_no_report_answers(self, audits: Audits, house: House) -> None:
        audits.without = {"fedavg", "fedrand"}
        code, out, err = house.night()
        assert code == exits.FAILED
        assert "unanswered: server auroc.low > 0.7: no cell's report answers it" in err
        assert "1 without an answer" in out

    def test_a_kill_mid_matrix_loses_no_finished_cell(self, audits: Audits, house: House) -> None:
        audits.killed_at = "fedrand"
        assert house.night()[0] == 130
        assert not (house.place / "history.jsonl").exists()
        audits.killed_at = ""
        said = "night 1: None of 4 cells leaks; the first night. 4 cells: 2 computed, 2 as before"
        assert house.night()[1].startswith(said)


class TestHistory:
    def test_a_line_per_finding_and_night_says_what_ran_and_is_appended(self, audits: Audits, house: House) -> None:
        path = house.place / "history.jsonl"
        house.night()
        before, node = path.read_bytes(), path.stat().st_ino
        house.night()
        assert path.read_bytes().startswith(before)
        assert path.stat().st_ino == node
        found = house.history()
        assert found.night.tolist() == [1] * 4 + [2] * 4
        assert {*"schema run commit versions started cell data setting value".split()} <= {*found.columns}
        assert found.versions.str.contains(r"torch \d").all()
        assert found[found.night == 1].run.tolist() == found[found.night == 2].run.tolist()
        assert found.groupby("cell").setting.nunique().tolist() == [1, 1]
        assert found.data.nunique() == 2
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        older = frame([line | {"family": {"primary": "headline"}[line["family"]]} for line in lines])
        assert older.family.tolist() == ["primary"] * 8
        assert len(judged(older)) == len(judged(frame(lines))) > 0

    def test_what_is_lost_is_named_and_made_again(self, audits: Audits, house: House) -> None:
        for _ in range(3):
            house.night()
        path = house.place / "history.jsonl"
        for night, damage in enumerate(("missing", "cut off", "a night less", "changed", "no text"), 4):
            whole = path.read_bytes()
            lines = whole.splitlines(keepends=True)
            path.unlink()
            if damage != "missing":
                path.write_bytes({
                    "cut off": whole[:-40], "a night less": b"".join(lines[:4] + lines[8:]),
                    "changed": whole.replace(b'"value": 0.49', b'"value": 0.94', 1), "no text": b"\x00\xff" * 50 + b"\n",
                }[damage])  # fmt: skip
            _, out, err = house.night()
            assert out.startswith(f"night {night}: ")
            (said,) = [line for line in err.splitlines() if "history.jsonl" in line]
            assert said.endswith("made again from the runs"), damage
            assert path.read_bytes().startswith(whole), damage

    def test_a_kill_between_record_and_lines(self, audits: Audits, house: House, monkeypatch: Any) -> None:
        house.night()
        with monkeypatch.context() as patch:
            patch.setattr(Nights, "_append", Mock(side_effect=KeyboardInterrupt))
            assert house.night()[0] == 130
        _, out, err = house.night()
        assert out.startswith("night 3: ")
        assert "lacks night 2" in err
        assert house.history().night.value_counts().to_dict() == {1: 4, 2: 4, 3: 4}

    def test_reports_that_are_gone_are_named_once(self, audits: Audits, house: House) -> None:
        house.night()
        audits.code = "code 2"
        for report in (house.out / "reports").glob("fedavg-*"):
            shutil.rmtree(report)
        (house.place / "history.jsonl").unlink()
        err = house.night()[2]
        assert err.count("is gone or damaged: night 1 has no findings of method fedavg, seed") == 2
        assert house.history().night.value_counts().to_dict() == {1: 2, 2: 4}
        assert "gone" not in house.night()[2]

    def test_two_nights_at_once_are_two_nights(self, audits: Audits, house: House) -> None:
        house.night()
        record = json.loads((house.place / "nights" / "0001.json").read_text())
        fields = ("name", "cell", "status", "seconds", "report")
        cells = [CellOfNight(**{name: cell[name] for name in fields}) for cell in record["cells"]]
        pid = os.fork()
        nights = Nights(house.out, "mine")
        code = 1
        try:
            for _ in range(4):
                nights.add(cells, pd.Timestamp("2026-01-01").to_pydatetime(), lambda _: None)
            code = 0
        finally:
            if pid == 0:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert house.history().night.value_counts().to_dict() == dict.fromkeys(range(1, 10), 4)
        assert "made again" not in house.night()[2]


class TestPages:
    @pytest.fixture
    def place(self, audits: Audits, house: House) -> Path:
        """After a night as usual, and one with a leak, a failed cell and other code."""
        house.night()
        audits.value, audits.code, audits.broken = {"fedrand": 0.9}, "code 2", {"fedavg"}
        house.night()
        return house.place

    def test_the_page_stands_alone_and_escapes_and_tables_load_in_pandas(self, place: Path) -> None:
        page = (place / "index.html").read_text()
        assert not re.findall(r"<script|(?:src|href)=\"(?:https?:)?//|<b>\n", page)
        assert page.count('<svg class="spark"') >= 2
        for words in ("broken | on purpose &lt;b&gt;", "new leak", "code or library versions"):
            assert words in page
        assert all((place / link).exists() for link in re.findall(r'href="([^"#:]+)"', page))
        for name, data in held(page.encode()).items():
            assert (place / name).read_bytes() == data
        cells, changes = (pd.read_csv(place / name) for name in ("cells.csv", "changes.csv"))
        assert cells.status.tolist() == ["failed", "failed", "computed", "computed"]
        assert changes[changes.event == "new leak"].night.tolist() == [2]

    def test_junit(self, place: Path) -> None:
        top = ElementTree.parse(place / "junit.xml").getroot()
        assert {suite.get("name"): (suite.get("tests"), suite.get("errors"), suite.get("failures")) for suite in top} == {
            "mine: cells": ("4", "2", "0"), "mine: gates": ("2", "0", "2"), "mine: changes": ("1", "0", "0"),
        }  # fmt: skip
        assert (top.get("tests"), top.get("errors"), top.get("failures")) == ("7", "2", "2")
        cells, _, changes = top
        assert cells.findtext("system-out", "").startswith("2 of 2 cells leak; 2 new. 4 cells: ")
        said = [case.findtext("system-out") for case in cells.findall("testcase")]
        assert said == [None, None, "leak: server", "leak: server"]
        assert "new leak: method fedrand" in changes.findtext("testcase/system-out", "")

    def test_markdown_is_short_and_shown_by_the_job(self, audits: Audits, house: House, monkeypatch: Any) -> None:
        shown = house.file.with_name("step.md")
        shown.write_text("before\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(shown))
        seeds = list(range(14))
        house.night(MATRIX.replace("[0, 1]", str(seeds)))
        audits.value, audits.code, audits.broken = {"fedrand": 0.9}, "code 2", {"fedavg"}
        house.night()
        text = (house.place / "summary.md").read_text()
        assert len(text.splitlines()) <= LINES
        assert "and 2 more" in text
        assert r"broken \| on purpose \<b\>" in text
        assert shown.read_text().startswith("before\n# Nightly mine, night 1\n")
        assert shown.read_text().endswith(text)
        assert text.splitlines()[2].startswith("14 of 14 cells leak; 14 new. 28 cells: ")

    def test_a_job_whose_file_cannot_be_written(self, audits: Audits, house: House, monkeypatch: Any) -> None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(house.out / "nowhere" / "step.md"))
        code, _, err = house.night()
        assert code == exits.MENDABLE
        assert "GITHUB_STEP_SUMMARY" in err
        assert (house.place / "index.html").exists()


def test_fresh_seeds_within_their_intervals_are_no_change(audits: Audits, house: House) -> None:
    for night in range(4):
        _, out, _ = house.night(MATRIX.replace("[0, 1]", f"[{2 * night}, {2 * night + 1}]"))
        assert "the first night" in out if night == 0 else "no change beyond noise" in out


TINY = """\
base: {{rounds: 4, clients: 3, shots: 10, prompt_length: 4, task: digits, no_twin: true, threads: 1, attack: "decompose,loss", epsilon: {}}}
matrix: {{method: promptfl, seed: {}}}
fail_if: [server auroc.low > 0.7]
"""


@pytest.mark.slow  # whole runs; quick: nights of made-up audits
def test_noise_that_is_switched_off_is_found_the_same_night(house: House) -> None:
    code, out, _ = house.night(TINY.format(0.1, "[0, 1]"))
    assert code == exits.DONE
    assert "2 computed" in out
    assert house.night(TINY.format(0.1, "[0, 1]"))[1].startswith("night 2: ")
    code, out, err = house.night(TINY.format("none", "[0, 1]"))
    assert code == exits.CROSSED
    assert "new leak: method promptfl" in out
    assert "crossed: server auroc.low > 0.7: promptfl (seed 0), server" in err
    assert "another setting" in (house.place / "index.html").read_text()


def test_a_line_that_cannot_be_read_is_said_and_taken_out(tmp_path: Path) -> None:
    nights, said = Nights(tmp_path, "mine"), []
    nights.path.mkdir(parents=True)
    nights.history.write_text("half a li\n")
    assert nights.lines(said.append) == []
    assert said == [f"{nights.history} is cut off; made again from the runs"]
    assert nights.history.read_bytes() == b""
