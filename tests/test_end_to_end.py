"""The command as a user runs it, on a tiny setting of the embedded model: same numbers again, after kills and after damage."""

import json
import re
import shutil
import sys

import pandas as pd
import pytest

from fedaudit.terms.verdicts import VERDICTS
from tests.whole_runs import Job, contents, report

JOB = Job(
    (
        "--method fedrand --rounds 3 --clients 3 --per-round 2 --records 4 --reference 6 --novel 4 --test 2 "
        "--local-steps 2 --threads 2"
    ).split()
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    done = JOB.audit(out)
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
    assert set(findings.verdict.dropna()) <= set(VERDICTS)
    assert {p.suffix for p in (folder / "figures").iterdir()} == {".svg", ".pdf", ".csv"}
    assert "AUROC" in done.stdout
    assert "/" not in re.sub(r"renyi/\S+|loss\S+/caption", "", json.dumps(listed[0]["interval"]))
    assert str(out) not in (folder / "findings.json").read_text() + page


def test_the_same_command_again_reuses_everything(whole):
    out, _, folder = whole
    JOB.check_reuse(out, folder)


def test_a_new_attack_retrains_nothing(whole):
    out, _, _folder = whole
    other = JOB.audit(out, "--attack", "reconstruct", "--ways", "server-fill")
    assert "reused: training of fedrand, seed 0" in other.stderr
    ways = {f["way"] for f in json.loads((report(other) / "findings.json").read_text()) if f["metric"] == "auroc"}
    assert ways == {"final", "server-fill", "true state"}


def test_several_attacks_are_views_of_one_pass(whole):
    """Each stands for its own scores, which are to the last digit what one attack alone finds."""
    out, _, folder = whole
    together = JOB.audit(out, "--attack", "loss,entropy,maxrenyi")
    assert "reused: training of fedrand, seed 0" in together.stderr
    alone, several = (
        {
            (f["threat_model"], f["way"], f["population"], f["nonmembers"], f["signal"]): (
                f["attack"],
                f["value"],
                f["p"],  # the verdict depends on what else is on a page
            )
            for f in json.loads((place / "findings.json").read_text())
            if f["metric"] == "auroc" and f["best_of"] is None
        }
        for place in (folder, report(together))
    )
    assert alone.keys() < several.keys()
    assert {place: found[1:] for place, found in several.items() if place in alone} == {
        place: found[1:] for place, found in alone.items()
    }
    assert {(place[-1], found[0]) for place, found in several.items()} == {
        ("loss/base", "loss"),
        ("loss", "loss"),
        ("entropy", "entropy"),
        ("renyi/2/10/caption", "maxrenyi"),
    }


def own(findings):
    """Findings without what depends on the other runs of a report."""
    of_report = {"p_adjusted", "family_n", "verdict", "sentence", "alarm"}
    return [{name: value for name, value in f.items() if name not in of_report} for f in findings]


def test_two_methods_are_compared_and_what_is_on_disk_is_reused(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    both = JOB.audit(tmp_path, "--method", "fedavg,fedrand")
    assert "reused: analysis of fedrand, seed 0" in both.stderr
    listed = json.loads((report(both) / "findings.json").read_text())
    assert {f["method"] for f in listed} == {"fedavg", "fedrand"}
    assert own([f for f in listed if f["method"] == "fedrand"]) == own(
        json.loads((folder / "findings.json").read_text())
    )
    aurocs = [f for f in listed if f["metric"] == "auroc"]
    assert {f["way"] for f in aurocs if f["method"] == "fedavg"} == {"final", "exact", "true state"}


def test_findings_do_not_depend_on_workers_or_place(whole, tmp_path):
    _, _, folder = whole
    alone = report(JOB.audit(tmp_path / "elsewhere", "--threads", "1"))
    assert contents(alone) == contents(folder)


def test_another_seed_gives_other_findings_on_the_same_records(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    done = JOB.audit(tmp_path, "--seeds", "2")
    listed = [f for f in json.loads((report(done) / "findings.json").read_text()) if f["metric"] == "auroc"]
    whole_run = [f for f in json.loads((folder / "findings.json").read_text()) if f["metric"] == "auroc"]
    assert own([f for f in listed if f["seed"] == 0]) == own(whole_run)
    assert [f["value"] for f in listed if f["seed"] == 1] != [f["value"] for f in whole_run]
    assert "over 2 seeds" in done.stdout


STAGES = {
    "in the first round": "runs/*/initial.json",
    "in a later round": "runs/*/round-001.safetensors",
    "in the attack": "answers/*/model-*.safetensors",
    "in the audit": "analyses/*/tokens.parquet",
    "in the report": "reports/*/figures/*",
}


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_in_every_stage_and_repeated_ends_with_the_same_bytes(whole, tmp_path):
    JOB.check_kills(STAGES, whole[2], tmp_path)


def test_a_flipped_byte_in_a_checkpoint_is_named_and_repaired(whole, tmp_path):
    out, _, folder = whole
    JOB.check_repair("runs/*/round-001.safetensors", out, folder, tmp_path)


def test_a_damaged_finding_is_named_and_repaired(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    here = tmp_path / folder.relative_to(out)
    (here / "findings.json").write_text("[]")
    again = JOB.audit(tmp_path)
    assert "findings.json is damaged; computing it again" in again.stderr
    assert contents(here) == contents(folder)


def test_two_processes_with_the_same_command_share_the_work(whole, tmp_path):
    said = JOB.check_two_processes(whole[2], tmp_path)
    assert sum("training fedrand, seed 0: done" in text for text in said) == 1


def test_dry_run_says_what_would_happen_and_trains_nothing(tmp_path):
    JOB.check_dry_run(tmp_path, "1 training to run: ", r"\d+ worker")
