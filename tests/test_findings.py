"""Findings that say what they are of: of several reports under each other, told apart, and joined with their runs."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedaudit
from fedaudit.audits.findings import SCHEMA, Accuracy, Epsilon, Finding
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline.finished import COMPLETE, finish
from fedaudit.reports.report import build
from fedaudit.reports.runs import entries, runs
from tests.judged_rows import contradictory
from tests.kept_runs import KeptRuns
from tests.pages import held
from tests.prompt_evidence import prompt_evidence
from tests.whole_runs import contents

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

FIELDS = {  # of schema 5: who takes one away or renames it raises SCHEMA, and lists what is left
    Finding: "attack threat_model way population nonmembers signal headline metric value low high confidence members "
    "nonmembers_n clients interval status base_value base_low base_high base_note blind_value blind_low blind_high "
    "detectable realised_fpr realised_low realised_high verdict sentence claimed provable measured best_of "
    "z t p part detectable_named family family_n p_adjusted base_z blind_p alarm doubt",
    Accuracy: "metric value low high confidence before clients rounds epsilon noise_ratio clipped interval",
    Epsilon: "metric threat_model whose claimed provable every_step replace_one delta why sentence measured",
}


@pytest.fixture
def copy(kept: KeptRuns, tmp_path: Path) -> Path:
    shutil.copytree(kept.out / "reports", tmp_path / "reports")
    return tmp_path


def lines(found: pd.DataFrame) -> list[str]:
    """Every row as text, without what is missing, in an order of its own."""
    rows = json.loads(found.to_json(orient="records", double_precision=15))
    return sorted(json.dumps({k: v for k, v in row.items() if v is not None}, sort_keys=True) for row in rows)


class TestEveryFinding:
    def test_says_schema_and_run_wherever_it_stands(self, kept: KeptRuns) -> None:
        keys = {path.name.rpartition("-")[2] for path in (kept.out / "analyses").iterdir()}
        assert len(keys) == 3
        seen = set()
        for one in kept.audits.values():
            folder = one.report.parent
            table = pd.read_csv(folder / "findings.csv", dtype={"run": str})
            listed = pd.DataFrame(json.loads((folder / "findings.json").read_text()))
            for rows in (one.findings, table, listed):
                assert (rows.schema == SCHEMA).all()
                assert list(rows)[:2] == ["schema", "run"]
                assert rows.run.tolist() == one.findings.run.tolist()
            assert set(one.findings.metric) > {"auroc"}
            seen |= set(one.findings.run)
        assert seen == keys

    def test_keeps_its_fields_within_a_schema(self) -> None:
        assert SCHEMA == 5
        for kind, names in FIELDS.items():
            assert {"schema", "run", "method", "task", "seed", *names.split()} <= {f.name for f in fields(kind)}

    def test_does_not_contradict_itself(self, kept: KeptRuns) -> None:
        for one in kept.audits.values():
            rows = json.loads((one.report.parent / "findings.json").read_text())
            assert contradictory([row for row in rows if row["metric"] == "auroc"]) == []
            cells = pd.read_csv(one.report.parent / "cells.csv")
            told = {row["family"]: row["family_n"] for row in rows if row.get("z") is not None}
            assert told.items() <= cells.family.value_counts().to_dict().items()
            assert "named" in told


class TestRuns:
    def test_a_row_per_run_says_what_it_was_made_of(self, kept: KeptRuns) -> None:
        table = fedaudit.runs(kept.out).set_index("run")
        assert table.index.is_unique
        assert sorted(table.method) == ["local", "promptfl", "promptfl"]
        two = table[table.method == "promptfl"]  # attacks on one training
        assert (sorted(two.attacks), two["keys.training"].nunique()) == (["entropy", "loss"], 1)
        row = table.loc[kept.audits["entropy"].findings.run[0]]
        plain = {"schema": SCHEMA, "task": "glyphs", "seed": 0, "attacks": "entropy", "fedaudit": fedaudit.__version__}
        plain |= {"task.train": 12, "schedule.rounds": 2, "schedule.clients": 3, "schedule.per_round": 3}
        plain |= {"method.name": "promptfl", "privacy.epsilon": "inf", "backbone.name": "symbols-clip"}
        plain["adversary.targets"] = 0
        assert {name: row[name] for name in plain} == plain
        assert row["versions.pandas"] == pd.__version__
        assert (kept.out / "runs" / f"promptfl-seed0-{row['keys.training']}").is_dir()
        assert row["keys.analysis"] == row.name
        assert re.fullmatch("[0-9a-f]{16}", row.code)
        nested = {"a": 1, "b": {"c": [2, 3], "d": {"e": None}}, "f": {}}
        assert entries(nested) == {"a": 1, "b.c": [2, 3], "b.d.e": None}

    def test_the_files_of_a_report_hold_its_runs_and_no_path(self, kept: KeptRuns) -> None:
        page = kept.audits["both"].report
        folder = page.parent
        listed = json.loads((folder / "runs.json").read_text())
        assert [row["method"] for row in listed] == ["promptfl", "local"]
        table = pd.read_csv(folder / "runs.csv", dtype={"run": str})
        assert list(table) == list(dict.fromkeys(name for row in listed for name in row))
        assert table.run.tolist() == [row["run"] for row in listed]
        assert str(kept.out) not in (folder / "runs.json").read_text() + (folder / "findings.json").read_text()
        assert {"findings.json", "findings.csv", "runs.json", "runs.csv"} <= held(page.read_bytes()).keys()


class TestAllFindings:
    def test_are_those_of_every_report_once(self, kept: KeptRuns) -> None:
        """Read file by file; what is the same row of the same run is one, but for the words of the report."""
        out = kept.out
        said = dict.fromkeys(("p_adjusted", "family_n", "verdict", "sentence", "alarm"))
        rows = [row | said for path in out.glob("reports/*/findings.json") for row in json.loads(path.read_text())]
        once = {json.dumps(row, sort_keys=True): row for row in rows}
        assert len(once) < len(rows)
        assert lines(fedaudit.findings(out).assign(**said)) == lines(pd.DataFrame(list(once.values())))
        assert lines(fedaudit.findings(str(out))) == lines(fedaudit.findings(out))

    def test_joined_with_runs_have_one_row_each(self, kept: KeptRuns) -> None:
        found, table = fedaudit.findings(kept.out), fedaudit.runs(kept.out)
        for on in ("run", None):
            joined = found.merge(table, on=on, how="left", validate="many_to_one", indicator=True)
            assert len(joined) == len(found)
            assert (joined._merge == "both").all()
            attacked = joined.dropna(subset="attack")
            assert (attacked.attack == attacked.attacks).all()
            assert set(attacked.attack) == {"loss", "entropy"}
        assert set(found) & set(table) == {"schema", "run", "method", "task", "seed"}  # and mean the same in both

    def test_are_joined_as_the_docs_do(self, kept: KeptRuns) -> None:
        text = (Path(__file__).parent.parent / "docs" / "guides" / "library.md").read_text("utf-8")
        (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "fedaudit.runs(" in block)
        *lines, last = block.replace('"fedaudit-runs"', repr(str(kept.out))).strip().splitlines()
        given: dict[str, Any] = {"fedaudit": fedaudit}
        exec("\n".join(lines), given)
        means = eval(last, given)
        own = pd.concat([kept.audits[name].findings for name in ("both", "entropy")])
        own = own[own.headline.eq(True)].query("metric == 'auroc' and threat_model == 'owner' and method == 'promptfl'")
        assert {*own.nonmembers} > {"held-out"}, "there are rows to leave out"
        shown = own[(own.nonmembers == "held-out") & (own.signal == "loss")]
        place = ("owner", "true state", "own members", "loss", 2, "promptfl")
        assert means[place] == pytest.approx(shown.value.mean())

    def test_of_two_folders_are_those_of_one_and_reading_changes_nothing(self, kept: KeptRuns, copy: Path) -> None:
        both = pd.concat([fedaudit.findings(kept.out), fedaudit.findings(copy)]).drop_duplicates()
        assert lines(both) == lines(fedaudit.findings(copy))
        before = contents(copy)
        fedaudit.findings(copy)
        assert contents(copy) == before

    def test_of_a_run_under_two_labels_have_the_first(self, tmp_path: Path) -> None:
        first = prompt_evidence("dpfpl", 0.1)
        second = replace(first, method="other", findings=[f | {"method": "other"} for f in first.findings])
        assert [row["method"] for row in runs([first, second])] == [first.method]
        folder = claim(tmp_path / "reports" / "a")
        build([first, second], folder.write)
        finish(folder)
        assert len(json.loads(folder.read("findings.json"))) == 2 * len(first.findings)
        assert fedaudit.findings(tmp_path).method.tolist() == [first.method] * len(first.findings)


def test_a_report_has_findings_of_one_run_for_each_method_and_seed() -> None:
    one = prompt_evidence("dpfpl", 0.1)
    for harm in ({"run": "another"}, {"schema": SCHEMA + 1}):
        mixed = replace(one, findings=[one.findings[0] | harm, *one.findings[1:]])
        with pytest.raises(ValueError, match="are of several runs or schemas"):
            build([mixed], lambda *_: pytest.fail("written"))


def flipped(report: Folder) -> None:
    path = report.path / "findings.json"
    path.write_bytes(path.read_bytes().replace(b'"value": 0.', b'"value": 1.', 1))


def another_schema(report: Folder) -> None:
    report.write_json("runs.json", [row | {"schema": SCHEMA + 1} for row in report.read_json("runs.json")])


def before_schemas(report: Folder) -> None:
    report.remove("runs.json")
    finish(report)


BAD: dict[str, Any] = {
    "unfinished": (lambda report: report.remove(COMPLETE), "is not finished"),
    "flipped": (flipped, "was damaged since it was written"),
    "lost": (lambda report: (report.path / "runs.json").unlink(), "was damaged since it was written"),
    "another schema": (another_schema, f"findings of schema {SCHEMA + 1}, not {SCHEMA}"),
    "before schemas": (before_schemas, f"findings of schema none, not {SCHEMA}"),
}


class TestBadFolders:
    @pytest.mark.parametrize(("harm", "words"), BAD.values(), ids=BAD)
    def test_a_report_that_cannot_be_read_is_left_out(self, harm: Any, words: str, kept: Any, copy: Path) -> None:
        """It is named; if all are such that is an error."""
        victim = Folder(copy / kept.audits["entropy"].report.parent.relative_to(kept.out))
        before = fedaudit.findings(copy)
        harm(victim)
        for read in (fedaudit.findings, fedaudit.runs):
            with pytest.warns(UserWarning, match=words) as said:
                found = read(copy)
            (warning,) = said
            assert str(victim.path) in str(warning.message)
            assert warning.filename == __file__
            assert set(before.run) - set(found.run) == set(kept.audits["entropy"].findings.run)
        for place in {*(copy / "reports").iterdir()} - {victim.path}:
            harm(Folder(place))
        all_bad = pytest.raises(InputError, match=f"no finished report.*{words}")
        with warnings.catch_warnings(record=True) as said, all_bad:
            fedaudit.findings(copy)
        assert not said

    def test_a_folder_without_reports(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("no folder")
        for read in (fedaudit.findings, fedaudit.runs):
            for name in ("nowhere", "file"):
                with pytest.raises(InputError, match=f"{name}: no such folder; name the one that was out="):
                    read(tmp_path / name)
            with pytest.raises(InputError, match="no finished report of this version lies here; name the folder"):
                read(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match="fedaudit-runs: no such folder"):
            fedaudit.findings()


def test_importing_is_light() -> None:
    heavy = {"torch", "transformers", "numpy", "pandas", "matplotlib", "sklearn", "scipy"}
    code = f"import sys, fedaudit; fedaudit.findings, fedaudit.runs; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "set()\n", done.stderr
