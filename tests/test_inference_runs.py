"""Attacks on prompts as a user runs them, on a tiny setting: same numbers again, after kills and after damage, and what is shared is kept."""

import json
import shutil
import sys

import pandas as pd
import pytest

from fedaudit.terms.verdicts import VERDICTS
from tests.whole_runs import Job, contents, report
from trainers.prompts import Facts

ADVERSARIES = Facts().threat_models
PROMPTS = (
    "--method dpfpl --epsilon none --train 3 --test 1 --clients 3 --rounds 11 --shadows 4 --canaries 12 --threads 2"
)
JOB = Job([*PROMPTS.split(), *"--attack shadow,cosine --targets 2 --observed-rounds 2".split()])
LORA = Job(
    (
        "--method fedrand --rounds 1 --clients 3 --per-round 2 --records 6 --reference 4 --novel 2 --test 2 --local-steps 2 "
        "--canaries 12 --threads 2"
    ).split()
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    done = JOB.audit(out)
    return out, done, report(done)


def findings(folder):
    return json.loads((folder / "findings.json").read_text())


def written(folder):
    """Every file with its content and when it was written."""
    return {name: (digest, (folder / name).stat().st_mtime_ns) for name, digest in contents(folder).items()}


def test_leaves_a_report_on_every_adversary(whole):
    out, done, folder = whole
    table = pd.read_csv(folder / "findings.csv")
    assert len(table) == len(findings(folder))
    aurocs = table[table.metric == "auroc"]
    assert set(aurocs.threat_model) == set(ADVERSARIES)
    assert set(aurocs.attack) == {"shadow", "cosine"}
    assert set(aurocs[aurocs.attack == "cosine"].threat_model) == {"server"}
    assert set(aurocs.nonmembers) >= {"held-out", "left-out canaries"}
    assert set(aurocs.verdict.dropna()) <= set(VERDICTS)
    refused = pd.read_csv(folder / "refused.csv").query("threat_model != 'all'")
    assert set(refused.threat_model) == set(ADVERSARIES) - {"server"}
    assert all("does not see sums of uploads" in why for why in refused.why)
    page = (folder / "index.html").read_text()
    assert all(threat_model in page for threat_model in ADVERSARIES)
    assert "None" not in page
    assert str(out) not in page + (folder / "findings.json").read_text()
    assert "AUROC" in done.stdout
    # 12 canaries, all of the two targets': all right with probability at most 0.05 if epsilon is at most log(q / (1 - q)), q = 0.05 ** (1 / 12)
    assert "at most 1.26" in done.stdout


def test_the_same_command_again_reuses_everything(whole):
    out, _, folder = whole
    JOB.check_reuse(out, folder)


def test_another_attack_and_another_seed_share_the_shadow_models(whole, tmp_path):
    """All that is trained is the new seed, and nothing of what was there is written again."""
    out, _, _ = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    before = {part: written(tmp_path / part) for part in ("runs", "shadows")}
    done = Job([*PROMPTS.split(), *"--attack lira --targets 2 --seeds 2".split()]).audit(tmp_path)
    assert "training 1 of 2 runs" in done.stderr
    assert "reused: training of dpfpl, seed 0" in done.stderr
    assert "shadow models" not in done.stderr
    assert written(tmp_path / "shadows") == before["shadows"]
    after = written(tmp_path / "runs")
    assert {name: after[name] for name in before["runs"]} == before["runs"]
    assert {name.split("-")[1] for name in after.keys() - before["runs"].keys()} == {"seed1"}
    assert {f["seed"] for f in findings(report(done))} == {0, 1}


STAGES = {
    "in the shadow training": "shadows/*/client-000-from-000/shadows-0010.safetensors",
    "in the attacks": "answers/*/shadows-*.safetensors",
}


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_in_every_stage_and_repeated_ends_with_the_same_bytes(whole, tmp_path):
    JOB.check_kills(STAGES, whole[2], tmp_path)


def test_flipped_bytes_in_shadows_and_in_the_simulation_are_named_and_repaired(whole, tmp_path):
    out, _, folder = whole
    victims = [
        next(out.glob(f"shadows/*/{name}"))
        for name in ("client-001-from-000/shadows-*", "simulated-000/round-005.json")
    ]
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    for victim in victims:
        here, intact = tmp_path / victim.relative_to(out), victim.read_bytes()
        here.write_bytes(intact[:-5] + bytes([intact[-5] ^ 4]) + intact[-4:])
    shutil.rmtree(tmp_path / "analyses")
    shutil.rmtree(tmp_path / "reports")
    again = JOB.audit(tmp_path)
    for victim in victims:
        assert f"{tmp_path / victim.relative_to(out)} is damaged; computing it again" in again.stderr
    assert contents(tmp_path / "shadows") == contents(out / "shadows")
    assert contents(report(again)) == contents(folder)


def test_only_the_server_observes_the_others_messages(whole, tmp_path):
    """No federation is simulated, and every other adversary is refused."""
    out, _, _ = whole
    for part in ("cache", "runs"):
        shutil.copytree(out / part, tmp_path / part)
    words = [*PROMPTS.split(), "--attack", "lira", "--trajectory", "observed", "--targets", "2"]
    done = Job(words).audit(tmp_path)
    assert "reused: training of dpfpl, seed 0" in done.stderr
    assert "8 shadow models: done" in done.stderr
    assert {path.name for path in next((tmp_path / "shadows").iterdir()).iterdir()} == {
        "client-000-from-000",
        "client-001-from-000",
    }
    assert {f["threat_model"] for f in findings(report(done)) if f["metric"] == "auroc"} == {"server"}
    refused = pd.read_csv(report(done) / "refused.csv").query("threat_model != 'all'")
    assert set(refused.threat_model) == set(ADVERSARIES) - {"server"}
    assert all("only the server observes" in why for why in refused.why)


def test_canaries_of_lora_end_to_end(tmp_path):
    done = LORA.audit(tmp_path)
    folder = report(done)
    rows = [f for f in findings(folder) if f["metric"] == "auroc" and f["nonmembers"] == "left-out canaries"]
    assert {f["threat_model"] for f in rows} == {"released-model", "server", "owner"}
    assert all(f["population"] == "canaries" for f in rows)
    bounds = [f for f in findings(folder) if f["metric"] == "measured"]
    assert {f["threat_model"] for f in bounds} == {"released-model", "server", "owner"}
    assert {(f["canaries"], f["guesses"], f["provable"]) for f in bounds} == {(12, 3, "inf")}
    assert all(f["measured"].startswith("at least 0: of at most 0 with 12 canaries") for f in rows)
    (analysis,) = (tmp_path / "analyses").iterdir()
    (table,) = pd.read_parquet(analysis / "canaries.parquet").to_dict("records")
    assert table["inserted"] + table["left_out"] == table["number"] == 12
    assert table["ceiling"] == pytest.approx(1.26, abs=0.005)  # log(q / (1 - q)), q = 0.05 ** (1 / 12)
    assert "at most 1.26" in done.stdout
    assert "canaries" in (folder / "index.html").read_text()
