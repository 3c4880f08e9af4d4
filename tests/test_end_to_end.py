"""The command as a user runs it, on a tiny setting of the embedded model: same numbers again, after kills and after damage."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent
TINY = (
    "--method fedrand --rounds 3 --clients 4 --per-round 2 --records 6 --reference 12 --novel 8 --test 4 "
    "--local-steps 3 --threads 2"
).split()
pytestmark = pytest.mark.slow


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, str(ROOT / "audit.py"), *TINY, *more, "--out", str(out)]


def audit(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(out, *more), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done


def report(done: subprocess.CompletedProcess[str]) -> Path:
    return Path(re.search(r"^report: (.*)$", done.stdout, re.MULTILINE)[1]).parent


def contents(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    done = audit(out)
    return out, done, report(done)


def test_leaves_a_report_and_findings(whole):
    out, done, folder = whole
    page = (folder / "index.html").read_text()
    assert "fedrand" in page
    findings = pd.read_csv(folder / "findings.csv")
    listed = json.loads((folder / "findings.json").read_text())
    assert len(findings) == len(listed)
    assert set(findings.method) == {"fedrand"}
    assert {"released-model", "server", "owner"} == set(findings.threat_model)
    assert set(findings.verdict.dropna()) <= {"leak", "no leak found", "confounded"}
    assert {p.suffix for p in (folder / "figures").iterdir()} == {".svg", ".pdf", ".csv"}
    assert "AUROC" in done.stdout
    assert "/" not in re.sub(r"renyi/\S+|loss\S+/caption", "", json.dumps(listed[0]["interval"]))
    assert str(out) not in (folder / "findings.json").read_text() + page


def test_the_same_command_again_reuses_everything(whole):
    out, _, folder = whole
    before = contents(out)
    again = audit(out)
    assert "reused: report" in again.stderr
    assert "training" not in again.stderr
    assert report(again) == folder
    assert contents(out) == before


def test_a_new_attack_retrains_nothing(whole):
    out, _, _folder = whole
    other = audit(out, "--attack", "reconstruct", "--ways", "server-fill")
    assert "reused: training of fedrand, seed 0" in other.stderr
    ways = {f["way"] for f in json.loads((report(other) / "findings.json").read_text())}
    assert ways == {"final", "server-fill", "true state"}


def test_two_methods_are_compared_and_what_is_on_disk_is_reused(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    both = audit(tmp_path, "--method", "fedavg,fedrand")
    assert "reused: analysis of fedrand, seed 0" in both.stderr
    listed = json.loads((report(both) / "findings.json").read_text())
    assert {f["method"] for f in listed} == {"fedavg", "fedrand"}
    assert [f for f in listed if f["method"] == "fedrand"] == json.loads((folder / "findings.json").read_text())
    assert {f["way"] for f in listed if f["method"] == "fedavg"} == {"final", "exact", "true state"}


def test_findings_do_not_depend_on_workers_or_place(whole, tmp_path):
    _, _, folder = whole
    alone = report(audit(tmp_path / "elsewhere", "--threads", "1"))
    assert contents(alone) == contents(folder)


def test_another_seed_gives_other_findings_on_the_same_records(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    done = audit(tmp_path, "--seeds", "2")
    listed = [f for f in json.loads((report(done) / "findings.json").read_text()) if f["metric"] == "auroc"]
    whole_run = [f for f in json.loads((folder / "findings.json").read_text()) if f["metric"] == "auroc"]
    assert [f for f in listed if f["seed"] == 0] == whole_run
    assert [f["value"] for f in listed if f["seed"] == 1] != [f["value"] for f in whole_run]
    assert "over 2 seeds" in done.stdout


STAGES = {
    "in the first round": "runs/*/initial.json",
    "in a later round": "runs/*/round-001.safetensors",
    "in the attack": "analyses/*/scores-*.parquet",
    "in the audit": "analyses/*/tokens.parquet",
    "in the report": "reports/*/figures/*",
}


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize("stage", STAGES)
def test_killed_and_repeated_ends_with_the_same_bytes(stage, whole, tmp_path):
    _, _, folder = whole
    running = subprocess.Popen(command(tmp_path), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT)
    while not list(tmp_path.glob(STAGES[stage])):
        assert running.poll() is None, "ended before the stage was seen"
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    again = report(audit(tmp_path))
    assert contents(again) == contents(folder)


def test_a_flipped_byte_in_a_checkpoint_is_named_and_repaired(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    victim = next(tmp_path.glob("runs/*/round-001.safetensors"))
    intact = victim.read_bytes()
    victim.write_bytes(intact[:-5] + bytes([intact[-5] ^ 4]) + intact[-4:])
    for done in [*tmp_path.glob("analyses/*/complete.json"), *tmp_path.glob("reports/*/complete.json")]:
        done.unlink()
    again = audit(tmp_path)
    assert f"{victim} is damaged; computing it again" in again.stderr
    assert victim.read_bytes() == intact
    assert contents(report(again)) == contents(folder)


def test_a_damaged_finding_is_named_and_repaired(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    here = tmp_path / folder.relative_to(out)
    (here / "findings.json").write_text("[]")
    again = audit(tmp_path)
    assert "findings.json is damaged; computing it again" in again.stderr
    assert contents(here) == contents(folder)


def test_two_processes_with_the_same_command_share_the_work(whole, tmp_path):
    _, _, folder = whole
    both = [
        subprocess.Popen(command(tmp_path), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for _ in range(2)
    ]
    said = [p.communicate()[1] for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert any("another process works on" in text for text in said)
    assert sum("training fedrand, seed 0: done" in text for text in said) == 1
    assert contents(next((tmp_path / "reports").iterdir())) == contents(folder)


def test_dry_run_says_what_would_happen_and_trains_nothing(tmp_path):
    done = audit(tmp_path, "--dry-run")
    assert "0 on disk; 1 training to run: " in done.stdout
    assert re.search(r"about \d+ minutes? with \d+ worker", done.stdout)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "reports").exists()
