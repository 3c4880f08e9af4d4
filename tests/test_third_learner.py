"""A third learner is one file: put into a copy of the project with a method of it, it goes from training to report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tests.test_keys import copied
from tests.warm import in_turn
from tests.whole_runs import ROOT

METHOD = '''"""FedHeads: the mean of linear heads that clients train on their own pictures."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.trainers.base import Method, Participation, Site, State, Update, Upload, weighted_mean
from fedaudit.trainers.learners import MethodFacts


class Facts(MethodFacts):
    learner = "heads"


@dataclass(frozen=True)
class Params:
    """FedHeads has no parameters."""


@dataclass(frozen=True)
class FedHeads(Method[Participation]):
    params: Params

    def update(self, server: State, own: State, client: Participation) -> Update:
        return Update(upload=client.train(server), private={})

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return weighted_mean([upload.state for upload in uploads], [1 / len(uploads)] * len(uploads))
'''

SECTION = '''"""Greeting: who is audited."""

from fedaudit.reports.section import Page, Section

ORDER = 50


def section(page: Page) -> Section:
    return Section([("hello", "Greeting")], {"greeting": page.evidence[0].method})
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = copied(tmp_path_factory.mktemp("copy") / "code")
    shutil.copy(ROOT / "tests" / "third_learner.py", place / "trainers" / "heads.py")
    (place / "trainers" / "fedheads.py").write_text(METHOD)
    return place


ATTACKS = "lira cosine gradnorm".split()
RUN = "--method fedheads --attack loss,entropy,maxrenyi --train 12 --test 2 --threads 2 --out {out}"
DRY = "--method fedheads --train 12 --test 2 --threads 2 --dry-run"
SAID = ("--list", "--method fedheads --help", DRY, *(f"--method fedheads --attack {attack}" for attack in ATTACKS))
Said = dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return RUN.format(out=tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def said(place: Path, run: str) -> Said:
    """What commands say, and the run a second time."""
    return dict(zip((*SAID, run, "again"), in_turn([*SAID, run, run], place), strict=True))


def test_it_is_listed_asked_by_its_own_flags_and_estimated(said: Said) -> None:
    assert "FedHeads: the mean of linear heads" in said["--list"].stdout
    assert "--steps" in said["--method fedheads --help"].stdout
    wanted = r"1 training to run: 3 rounds, 3 of 3 clients a round\n0\.\d+ s a round, measured\nabout 1 minute with 2 w"
    assert re.search(wanted, said[DRY].stdout), said[DRY]


def test_attacks_that_need_what_it_has_not_are_refused(said: Said) -> None:
    gradients = "of which gradients of single records are not taken"
    for attack, why in zip(ATTACKS, ("of which no shadow models can be trained", gradients, gradients), strict=True):
        done = said[f"--method fedheads --attack {attack}"]
        valid = "valid there: entropy, loss, maxrenyi, reconstruct"
        assert done.returncode == 2
        assert f"--attack {attack}: does not work on linear heads, {why}; {valid}" in done.stderr


def test_it_goes_from_training_to_report(place: Path, said: Said, run: str) -> None:
    done, again = said[run], said["again"]
    assert done.returncode == 0, done.stderr
    report = Path(done.stdout.strip().rpartition("report: ")[2])
    found = pd.DataFrame(json.loads((report.parent / "findings.json").read_text()))
    aurocs = found[(found.metric == "auroc") & (found.nonmembers == "held-out")]
    assert set(aurocs.attack) == {"loss", "entropy", "maxrenyi"}
    assert set(aurocs.threat_model) == {"released-model", "server", "owner"}
    best = aurocs[aurocs.best_of.isna()].query("attack == 'loss' and threat_model == 'owner'")
    assert best.value.item() > 0.7  # few pictures, many steps
    assert best.verdict.item() == "leak"
    assert set(found[found.metric.str.startswith("accuracy/")].metric) >= {"accuracy/local", "accuracy/overall"}
    assert "linear heads" in report.read_text() or "fedheads" in report.read_text()
    assert "reused: report" in again.stderr
    # a section is one file with its template, and an old page is not shown for one that has it
    (place / "reports" / "sections" / "greeting.py").write_text(SECTION)
    (place / "reports" / "greeting.html").write_text('<h2 id="hello">Greeting</h2><p>{{ greeting }} is audited.</p>')
    (done,) = in_turn([run], place)
    assert "reused: report" not in done.stderr
    page = Path(done.stdout.strip().rpartition("report: ")[2]).read_text()
    assert "<p>fedheads is audited.</p>" in page
    assert '<a href="#hello">Greeting</a>' in page
