"""The command on prompt methods as a user runs it, on a tiny setting: same numbers again, after kills and after damage."""

import json
import shutil
import sys

import pandas as pd
import pytest

from tests.whole_runs import Job, contents, report

JOB = Job("--method dpfpl,promptfl --rounds 14 --clients 3 --train 12 --test 2 --threads 2".split())
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    done = JOB.audit(out)
    return out, done, report(done)


def test_leaves_a_report_with_utility_and_privacy(whole):
    out, done, folder = whole
    findings = pd.read_csv(folder / "findings.csv")
    assert set(findings.method) == {
        "dpfpl:epsilon=none", "dpfpl:epsilon=0.1", "promptfl:epsilon=none", "promptfl:epsilon=0.1",
    }  # fmt: skip
    assert set(findings.metric) == {"accuracy/local", "accuracy/neighbour", "accuracy/overall", "epsilon"}
    proven = findings[findings.metric == "epsilon"].set_index(["method", "threat_model", "whose"])
    server = proven.loc[("dpfpl:epsilon=0.1", "server", "own")]
    assert (float(server.claimed), float(server.provable)) == (float("inf"), float("inf"))
    assert float(proven.loc[("promptfl:epsilon=0.1", "server", "own")].provable) < float("inf")
    private = findings[(findings.metric == "accuracy/local") & (findings.method == "dpfpl:epsilon=0.1")].iloc[0]
    assert private.noise_ratio > 1
    page = (folder / "index.html").read_text()
    assert "dpfpl" in page
    assert "None" not in page
    assert str(out) not in page + (folder / "findings.json").read_text()
    assert "local" in done.stdout


def test_the_same_command_again_reuses_everything(whole):
    out, _, folder = whole
    JOB.check_reuse(out, folder)


def test_a_larger_sweep_trains_only_what_is_new(whole, tmp_path):
    out, _, folder = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    done = JOB.audit(tmp_path, "--method", "dpfpl", "--epsilon", "0.1,0.4")
    assert "reused: analysis of dpfpl:epsilon=0.1, seed 0" in done.stderr
    assert "training 1 of 1 runs" in done.stderr
    before = json.loads((folder / "findings.json").read_text())
    after = json.loads((report(done) / "findings.json").read_text())
    same = [f for f in before if f["method"] == "dpfpl:epsilon=0.1"]
    assert same == [f for f in after if f["method"] == "dpfpl:epsilon=0.1"]


def test_findings_do_not_depend_on_workers_or_place(whole, tmp_path):
    _, _, folder = whole
    alone = report(JOB.audit(tmp_path / "elsewhere", "--threads", "1"))
    assert contents(alone) == contents(folder)


STAGES = {
    "in the first round": "runs/*/initial.json",
    "in a later round": "runs/*/round-007.safetensors",
    "in a later block": "runs/*/round-013.json",
    "in the audit": "analyses/*/accuracy.parquet",
    "in the report": "reports/*/figures/*",
}


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_in_every_stage_and_repeated_ends_with_the_same_bytes(whole, tmp_path):
    JOB.check_kills(STAGES, whole[2], tmp_path)


def test_a_flipped_byte_in_a_checkpoint_is_named_and_repaired(whole, tmp_path):
    out, _, folder = whole
    JOB.check_repair("runs/dpfpl-epsilon-0.1*/round-011.safetensors", out, folder, tmp_path)


def test_two_processes_with_the_same_command_share_the_work(whole, tmp_path):
    JOB.check_two_processes(whole[2], tmp_path)


def test_dry_run_says_what_would_happen_and_trains_nothing(tmp_path):
    JOB.check_dry_run(tmp_path, "4 trainings to run: 14 rounds, 3 of 3 clients a round", "2 workers")


@pytest.mark.parametrize("words", ["--method fedotp --match ot --rounds 2", "--method zeroshot,local,fedpgp --rounds 3",
                                   "--method dpfpl:rank=0,dpfpl:rank=1:residual=false --rounds 3",
                                   "--method dpfpl --sampler poisson --sigma calibrated --rounds 3",
                                   "--method promptfl --clip batch --per-round 2 --rounds 4",
                                   "--method promptfl --domain print+neon --backbone resnet --rounds 2",
                                   "--task digits --method dpfpl --partition dirichlet --rounds 2"])  # fmt: skip
def test_every_way_of_training_ends_with_a_report(words, tmp_path):
    small = "--clients 4 --threads 2" + ("" if "digits" in words else " --train 12 --test 2")
    done = Job([*small.split(), *words.split()]).audit(tmp_path)
    assert (report(done) / "index.html").exists()
