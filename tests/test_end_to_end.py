"""The command as a user runs it, on tiny settings: every kind of run ends with the same bytes after whatever happens to it, and reuses
what is on disk. The quickest kind is the short version of the others, which are slow."""

import functools
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from fedaudit.terms.threat_models import ACTIVE_SERVER
from fedaudit.terms.verdicts import VERDICTS
from fedaudit.trainers.prompts import Facts
from tests.warm import PATIENCE
from tests.whole_runs import Job, contents, report

ADVERSARIES = tuple(t for t in Facts().threat_models if t != ACTIVE_SERVER)  # none of the attacks here acts
SHADOWS = (
    "--method dpfpl --epsilon none --train 3 --test 1 --clients 3 --rounds 11 --shadows 4 --canaries 12 --threads 2"
)
CANARIES = (
    "--method fedrand --rounds 1 --clients 3 --per-round 2 --records 6 --reference 4 --novel 2 --test 2 --local-steps 2 "
    "--canaries 12 --threads 2"
)


@dataclass(frozen=True)
class Kind:
    """A setting of the command, and what a run of it leaves on the way."""

    words: str
    # the first, in which it is stopped, and those in which it is killed: a file that is there by then
    stages: Mapping[str, str]
    checkpoints: tuple[str, ...]  # which are damaged and repaired
    to_run: str = ""  # what a dry run says of it, and of its workers
    workers: str = "2 workers"
    once: str = ""  # what one of two processes says alone
    printing: bool = True
    patience: float = 10 * PATIENCE

    @property
    def job(self) -> Job:
        return Job(self.words.split(), printing=self.printing, patience=self.patience)


KINDS = {
    "quickest": Kind(
        "--method promptfl --epsilon none --rounds 2 --clients 2 --train 4 --test 1 --threads 2",
        {"at the start": "runs/*/initial.json", "in the first round": "runs/*/round-000.safetensors"},
        ("runs/*/round-001.safetensors",),
        "1 training to run: 2 rounds, 2 of 2 clients a round",
        printing=False,
        patience=PATIENCE,
    ),
    "LoRA": Kind(
        "--method fedrand --rounds 3 --clients 3 --per-round 2 --records 4 --reference 6 --novel 4 --test 2 --local-steps 2 --threads 2",
        {
            "at the start": "runs/*/initial.json",
            "in the first round": "runs/*/round-000.safetensors",
            "in a later round": "runs/*/round-001.safetensors",
            "in the attack": "answers/*/model-*.safetensors",
            "in the audit": "analyses/*/tokens.parquet",
            "in the report": "reports/*/figures/*",
        },
        ("runs/*/round-001.safetensors",),
        "1 training to run: ",
        r"\d+ worker",
        once="training fedrand, seed 0: done",
    ),
    "prompts": Kind(
        "--method dpfpl,promptfl --rounds 14 --clients 3 --train 12 --test 2 --threads 2",
        {
            "at the start": "runs/*/initial.json",
            "in a later round": "runs/*/round-007.safetensors",
            "in a later block": "runs/*/round-013.json",
            "in the audit": "analyses/*/accuracy.parquet",
            "in the report": "reports/*/figures/*",
        },
        ("runs/dpfpl-epsilon-0.1*/round-011.safetensors",),
        "4 trainings to run: 14 rounds, 3 of 3 clients a round",
    ),
    "attacks on prompts": Kind(
        f"{SHADOWS} --attack shadow,cosine --targets 2 --observed-rounds 2",
        {
            "at the start": "runs/*/initial.json",
            "in the shadow training": "shadows/*/client-000-from-000/shadows-0010.safetensors",
            "in the attacks": "answers/*/shadows-*.safetensors",
        },
        ("shadows/*/client-001-from-000/shadows-*", "shadows/*/simulated-000/round-005.json"),
    ),
}
QUICKEST = "quickest"
each = pytest.mark.parametrize(  # every kind; quick: the quickest
    "kind", [pytest.param(k, marks=() if k == QUICKEST else pytest.mark.slow) for k in KINDS]
)
each_estimated = pytest.mark.parametrize("kind", [mark for mark in each.args[1] if KINDS[mark.values[0]].to_run])
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


class Whole(NamedTuple):
    """A run that nobody disturbed: where it lies, what it said, and its report."""

    out: Path
    done: subprocess.CompletedProcess[str]
    folder: Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """Runs of each kind, made once."""

    @functools.cache
    def made(kind: str) -> Whole:
        out = tmp_path_factory.mktemp("whole")
        done = KINDS[kind].job.audit(out)
        return Whole(out, done, report(done))

    return made


def findings(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "findings.json").read_text())


def copied(run: Whole, to: Path) -> Path:
    return shutil.copytree(run.out, to, dirs_exist_ok=True)


@each
def test_leaves_a_report_that_says_where_nothing_lies(kind: str, whole: Any) -> None:
    out, _, folder = whole(kind)
    page = (folder / "index.html").read_text()
    assert str(out) not in page + (folder / "findings.json").read_text()
    assert "None" not in page or kind == "LoRA"
    assert len(pd.read_csv(folder / "findings.csv")) == len(findings(folder))
    assert {p.suffix for p in (folder / "figures").iterdir()} == {".svg", ".pdf", ".csv"}


@each
def test_the_same_command_again_reuses_everything(kind: str, whole: Any) -> None:
    out, _, folder = whole(kind)
    KINDS[kind].job.check_reuse(out, folder)


@POSIX
@each
def test_stopped_killed_in_every_stage_and_repeated_ends_with_the_same_bytes(
    kind: str, whole: Any, tmp_path: Path
) -> None:
    job, (start, *later) = KINDS[kind].job, KINDS[kind].stages.values()
    stopped = job.disturbed(tmp_path, start, signal.SIGINT)
    assert stopped.returncode == 130
    assert stopped.stderr.splitlines()[-1] == "stopped; the same command goes on from here"
    assert not list(tmp_path.rglob("*.tmp"))
    for seen in later:
        assert job.disturbed(tmp_path, seen, signal.SIGKILL).returncode == -signal.SIGKILL, seen
    assert contents(report(job.audit(tmp_path))) == contents(whole(kind).folder)


@each
def test_a_flipped_byte_in_a_checkpoint_is_named_and_repaired(kind: str, whole: Any, tmp_path: Path) -> None:
    KINDS[kind].job.check_repair(KINDS[kind].checkpoints, whole(kind).out, whole(kind).folder, tmp_path)


@each_estimated
def test_findings_do_not_depend_on_workers_or_place(kind: str, whole: Any, tmp_path: Path) -> None:
    alone = report(KINDS[kind].job.audit(tmp_path / "elsewhere", "--threads", "1"))
    assert contents(alone) == contents(whole(kind).folder)


@each_estimated
def test_two_processes_with_the_same_command_share_the_work(kind: str, whole: Any, tmp_path: Path) -> None:
    said = KINDS[kind].job.check_two_processes(whole(kind).folder, tmp_path)
    assert not (once := KINDS[kind].once) or sum(once in text for text in said) == 1


@each_estimated
def test_a_dry_run_says_what_would_happen_and_trains_nothing(kind: str, tmp_path: Path) -> None:
    KINDS[kind].job.check_dry_run(tmp_path, KINDS[kind].to_run, KINDS[kind].workers)


def test_the_quickest_has_utility_and_epsilon(whole: Any) -> None:
    run = whole(QUICKEST)
    assert {f["metric"] for f in findings(run.folder)} >= {"accuracy/local", "epsilon"}
    assert "local" in run.done.stdout


def own(several: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings without what depends on the other runs of a report."""
    of_report = {"p_adjusted", "family_n", "verdict", "sentence", "alarm"}
    return [{name: value for name, value in f.items() if name not in of_report} for f in several]


def aurocs(folder: Path) -> list[dict[str, Any]]:
    return [f for f in findings(folder) if f["metric"] == "auroc"]


@pytest.mark.slow  # whole commands; quick: test_api, test_findings, test_finished
class TestLoRA:
    job = KINDS["LoRA"].job

    @pytest.fixture
    def run(self, whole: Any) -> Whole:
        return whole("LoRA")

    def test_findings(self, run: Whole) -> None:
        listed, table = findings(run.folder), pd.read_csv(run.folder / "findings.csv")
        assert set(table.method) == {"fedrand"}
        assert {"released-model", "server", "owner"} == set(table.threat_model)
        assert set(table.verdict.dropna()) <= set(VERDICTS)
        assert "AUROC" in run.done.stdout
        assert "fedrand" in (run.folder / "index.html").read_text()
        assert "/" not in re.sub(r"renyi/\S+|loss\S+/caption", "", json.dumps(listed[0]["interval"]))

    def test_a_new_attack_retrains_nothing(self, run: Whole) -> None:
        other = self.job.audit(run.out, "--attack", "reconstruct", "--ways", "server-fill")
        assert "reused: training of fedrand, seed 0" in other.stderr
        assert {f["way"] for f in aurocs(report(other))} == {"final", "server-fill", "true state"}

    def test_several_attacks_are_views_of_one_pass(self, run: Whole) -> None:
        """Each stands for its own scores, which are to the last digit what one attack alone finds."""
        together = self.job.audit(run.out, "--attack", "loss,entropy,maxrenyi")
        assert "reused: training of fedrand, seed 0" in together.stderr
        place = ("threat_model", "way", "population", "nonmembers", "signal")
        alone, several = (
            # the verdict depends on what else is on a page
            {
                tuple(f[p] for p in place): (f["attack"], f["value"], f["p"])
                for f in aurocs(folder)
                if f["best_of"] is None
            }
            for folder in (run.folder, report(together))
        )
        assert alone.keys() < several.keys()
        assert {at: several[at][1:] for at in alone} == {at: found[1:] for at, found in alone.items()}
        assert {(at[-1], found[0]) for at, found in several.items()} == {
            ("loss/base", "loss"), ("loss", "loss"), ("entropy", "entropy"), ("renyi/2/10/caption", "maxrenyi"),
        }  # fmt: skip

    def test_two_methods_are_compared_and_what_is_on_disk_is_reused(self, run: Whole, tmp_path: Path) -> None:
        both = self.job.audit(copied(run, tmp_path), "--method", "fedavg,fedrand")
        assert "reused: analysis of fedrand, seed 0" in both.stderr
        listed = findings(report(both))
        assert {f["method"] for f in listed} == {"fedavg", "fedrand"}
        assert own([f for f in listed if f["method"] == "fedrand"]) == own(findings(run.folder))
        assert {f["way"] for f in aurocs(report(both)) if f["method"] == "fedavg"} == {"final", "exact", "true state"}

    def test_another_seed_gives_other_findings_on_the_same_records(self, run: Whole, tmp_path: Path) -> None:
        done = self.job.audit(copied(run, tmp_path), "--seeds", "2")
        listed, before = aurocs(report(done)), aurocs(run.folder)
        assert own([f for f in listed if f["seed"] == 0]) == own(before)
        assert [f["value"] for f in listed if f["seed"] == 1] != [f["value"] for f in before]
        assert "over 2 seeds" in done.stdout

    def test_canaries(self, tmp_path: Path) -> None:
        done = Job(CANARIES.split()).audit(tmp_path)
        folder = report(done)
        rows = [f for f in aurocs(folder) if f["nonmembers"] == "left-out canaries"]
        bounds = [f for f in findings(folder) if f["metric"] == "measured"]
        for some in (rows, bounds):
            assert {f["threat_model"] for f in some} == {"released-model", "server", "owner"}
        assert all(f["population"] == "canaries" for f in rows)
        assert {(f["canaries"], f["guesses"], f["provable"]) for f in bounds} == {(12, 3, "inf")}
        said = r"at least [\d.]+: of at most [\d.]+ with 12 coins, 3 guessed about"
        assert all(re.match(said, f["measured"]) for f in rows), {f["measured"] for f in rows}
        (analysis,) = (tmp_path / "analyses").iterdir()
        (table,) = pd.read_parquet(analysis / "canaries.parquet").to_dict("records")
        assert table["inserted"] + table["left_out"] == table["number"] == 12
        assert table["ceiling"] == pytest.approx(1.26, abs=0.005)  # log(q / (1 - q)), q = 0.05 ** (1 / 12)
        assert "at most 1.26" in done.stdout
        assert "canaries" in (folder / "index.html").read_text()


@pytest.mark.slow  # whole commands; quick: test_api, test_findings, test_finished
class TestPrompts:
    @pytest.fixture
    def run(self, whole: Any) -> Whole:
        return whole("prompts")

    def test_utility_and_privacy(self, run: Whole) -> None:
        table = pd.read_csv(run.folder / "findings.csv")
        assert set(table.method) == {f"{m}:epsilon={e}" for m in ("dpfpl", "promptfl") for e in ("none", "0.1")}
        assert set(table.metric) == {"accuracy/local", "accuracy/neighbour", "accuracy/overall", "epsilon"}
        proven = table[table.metric == "epsilon"].set_index(["method", "threat_model", "whose"])
        server = proven.loc[("dpfpl:epsilon=0.1", "server", "own")]
        assert (float(server.claimed), float(server.provable)) == (float("inf"), float("inf"))
        assert float(proven.loc[("promptfl:epsilon=0.1", "server", "own")].provable) < float("inf")
        private = table[(table.metric == "accuracy/local") & (table.method == "dpfpl:epsilon=0.1")].iloc[0]
        assert private.noise_ratio > 1
        assert "dpfpl" in (run.folder / "index.html").read_text()
        assert "local" in run.done.stdout

    def test_a_larger_sweep_trains_only_what_is_new(self, run: Whole, tmp_path: Path) -> None:
        done = KINDS["prompts"].job.audit(copied(run, tmp_path), "--method", "dpfpl", "--epsilon", "0.1,0.4")
        assert "reused: analysis of dpfpl:epsilon=0.1, seed 0" in done.stderr
        assert "training dpfpl:epsilon=0.4, seed 0" in done.stderr
        assert "training dpfpl:epsilon=0.1" not in done.stderr
        before, after = (
            [f for f in findings(folder) if f["method"] == "dpfpl:epsilon=0.1"] for folder in (run.folder, report(done))
        )
        assert before == after

    @pytest.mark.parametrize("words", ["--method fedotp --match ot --rounds 2", "--method zeroshot,local,fedpgp --rounds 3",
                                       "--method dpfpl:rank=0,dpfpl:rank=1:residual=false --rounds 3",
                                       "--method dpfpl --sampler poisson --sigma calibrated --rounds 3",
                                       "--method promptfl --clip batch --per-round 2 --rounds 4",
                                       "--method promptfl --domain print+neon --backbone resnet --rounds 2",
                                       "--task digits --method dpfpl --partition dirichlet --rounds 2"])  # fmt: skip
    def test_every_way_of_training_ends_with_a_report(self, words: str, tmp_path: Path) -> None:
        small = "--clients 4 --threads 2" + ("" if "digits" in words else " --train 12 --test 2")
        done = Job([*small.split(), *words.split()]).audit(tmp_path)
        assert (report(done) / "index.html").exists()


@pytest.mark.slow  # whole commands; quick: test_api, test_findings, test_finished
class TestAttacksOnPrompts:
    @pytest.fixture
    def run(self, whole: Any) -> Whole:
        return whole("attacks on prompts")

    @staticmethod
    def refused(folder: Path, why: str) -> None:
        """Everybody but the server, for that reason."""
        table = pd.read_csv(folder / "refused.csv").query("threat_model != 'all'")
        assert set(table.threat_model) == set(ADVERSARIES) - {"server"}
        assert all(why in said for said in table.why)

    def test_every_adversary(self, run: Whole) -> None:
        table = pd.read_csv(run.folder / "findings.csv").query("metric == 'auroc'")
        assert set(table.threat_model) == set(ADVERSARIES)
        assert set(table.attack) == {"shadow", "cosine"}
        assert set(table[table.attack == "cosine"].threat_model) == {"server"}
        assert set(table.nonmembers) >= {"held-out", "left-out canaries"}
        assert set(table.verdict.dropna()) <= set(VERDICTS)
        self.refused(run.folder, "does not see sums of uploads")
        page = (run.folder / "index.html").read_text()
        assert all(threat_model in page for threat_model in ADVERSARIES)
        assert "AUROC" in run.done.stdout
        # 12 canaries, all of the two targets': all right with probability at most 0.05 if epsilon is at most log(q / (1 - q)), q = 0.05 ** (1 / 12)
        assert "at most 1.26" in run.done.stdout

    def test_another_attack_and_another_seed_share_the_shadow_models(self, run: Whole, tmp_path: Path) -> None:
        """All that is trained is the new seed, and nothing of what was there is written again."""
        copied(run, tmp_path)

        def written(part: str) -> dict[str, tuple[str, int]]:
            """Every file with its content and when it was written."""
            of = contents(tmp_path / part).items()
            return {name: (digest, (tmp_path / part / name).stat().st_mtime_ns) for name, digest in of}

        runs, shadows = written("runs"), written("shadows")
        done = Job([*SHADOWS.split(), *"--attack lira --targets 2 --seeds 2".split()]).audit(tmp_path)
        assert "training dpfpl, seed 1" in done.stderr
        assert "reused: training of dpfpl, seed 0" in done.stderr
        assert "shadow models" not in done.stderr
        assert written("shadows") == shadows
        after = written("runs")
        assert {name: after[name] for name in runs} == runs
        assert {name.split("-")[1] for name in after.keys() - runs.keys()} == {"seed1"}
        assert {f["seed"] for f in findings(report(done))} == {0, 1}

    def test_only_the_server_observes_the_others_messages(self, run: Whole, tmp_path: Path) -> None:
        """No federation is simulated, and every other adversary is refused."""
        for part in ("cache", "runs"):
            shutil.copytree(run.out / part, tmp_path / part)
        words = [*SHADOWS.split(), "--attack", "lira", "--trajectory", "observed", "--targets", "2"]
        done = Job(words).audit(tmp_path)
        assert "reused: training of dpfpl, seed 0" in done.stderr
        assert "8 shadow models: done" in done.stderr
        (bank,) = (tmp_path / "shadows").iterdir()
        assert {path.name for path in bank.iterdir()} == {f"client-00{k}-from-000" for k in (0, 1)}
        assert {f["threat_model"] for f in aurocs(report(done))} == {"server"}
        self.refused(report(done), "only the server observes")
