"""The suite as a library, variants and presets of the command, on a tiny setting of the built-in model."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

import fedaudit
from fedaudit.backbones import EMBEDDED
from fedaudit.command import cli
from fedaudit.command.argv import words_of
from fedaudit.machinery.errors import InputError
from fedaudit.reports.figures import drawing
from fedaudit.terms.verdicts import VERDICTS
from tests.kept_runs import TINY
from tests.pages import Reader
from tests.unprinted import unprinted
from tests.warm import exit_code

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

OF_ALL = TINY | {"epsilon": "none", "attack": "loss"}
TWO = OF_ALL | {"method": ["promptfl", "local"]}


def plan_of(*words):
    return cli.read_command(list(words)).plan


class TestVariants:
    def test_each_has_its_own_parameters_and_the_flags_for_the_rest(self):
        plan = plan_of("--method", "fedrand,fedrand:rho=0.3,fedrand:past=false:normalise=false", "--rho", "0.7")
        found = {label: dataclasses.asdict(variant.params) for label, variant in plan.methods.items()}
        assert found == {
            "fedrand": {"rho": 0.7, "past": True, "normalise": True},
            "fedrand:rho=0.3": {"rho": 0.3, "past": True, "normalise": True},
            "fedrand:past=false:normalise=false": {"rho": 0.7, "past": False, "normalise": False},
        }

    def test_a_variant_trains_the_same_run_as_the_flag(self):
        one = plan_of("--method", "fedper:shared_layers=4").cells[0]
        other = plan_of("--method", "fedper", "--shared-layers", "4").cells[0]
        assert one.training_key == other.training_key
        assert one.training_folder.name != other.training_folder.name  # the label is part of what a reader sees
        assert not set("=:") & set(one.training_folder.name)

    @pytest.mark.parametrize(
        ("method", "words"),
        [
            ("fedper:layers=4", "parameters of fedper are: shared_layers"),
            ("fedper:shared_layers=many", "fedper:shared_layers=many.*many"),
            ("fedrand:past=perhaps", "fedrand:past=perhaps"),
        ],
    )
    def test_what_is_no_variant(self, method, words):
        with pytest.raises(InputError, match=words):
            plan_of("--method", method)


class TestPresets:
    def test_paper_and_flags_and_files_that_win(self, tmp_path):
        """FedRand, section 4.1."""
        plan = plan_of("--preset", "paper")
        assert (plan.rounds, plan.clients, plan.per_round) == (30, 12, 4)
        s = plan.settings
        assert (s.rank, s.learning_rate, s.weight_decay, s.batch, s.local_epochs) == (8, 3e-4, 1e-6, 8, 1)
        assert s.target_modules == "attention"
        (tmp_path / "mine.yaml").write_text("preset: paper\nrounds: 5\nrank: 4\n")
        plan = plan_of("--config", str(tmp_path / "mine.yaml"), "--rank", "2")
        assert (plan.rounds, plan.settings.rank, plan.settings.local_epochs) == (5, 2, 1)

    def test_embedded_changes_nothing_and_fedrands_tables_have_every_row(self):
        assert plan_of("--preset", "embedded").cells[0].training_key == plan_of().cells[0].training_key
        assert plan_of(*words_of({})).backbone == EMBEDDED
        plan = plan_of("--preset", "fedrand-tables", "--task", "vqa")
        assert len(plan.cells) == len({cell.training_key for cell in plan.cells}) == 9
        assert plan.task == "vqa"
        assert list(plan_of("--preset", "fedrand-tables", "--method", "fedavg").methods) == ["fedavg"]


class TestAudit:
    def test_findings_are_a_frame_of_the_runs_beside_them(self, kept):
        found = kept.audits["both"]
        assert found.report.is_file()
        assert found.report.is_relative_to(kept.out)
        rows = found.findings.query("metric == 'auroc' and headline")
        assert rows.value.between(0, 1).all()
        assert (rows.low <= rows.value).all()
        runs = fedaudit.runs(kept.out).set_index("run").loc[found.findings.run.unique()]
        assert runs.method.to_dict() == dict(found.findings[["run", "method"]].drop_duplicates().to_numpy().tolist())
        assert {*runs.method} == {"promptfl", "local"}
        assert all(list(kept.out.glob(f"analyses/{row.method}-seed0-loss-{run}")) for run, row in runs.iterrows())
        tiny = {"schedule.rounds": 2, "schedule.clients": 3, "task.train": 12, "training.batch": 8}
        assert all(row[name] == value for name, value in tiny.items() for _, row in runs.iterrows())

    def test_it_says_what_its_page_says_first(self, kept, monkeypatch):
        found = kept.audits["both"]
        sentence = found.summary.splitlines()[0]
        assert sentence in Reader(found.report.read_bytes()).text
        assert repr(found) == str(found) == f"Audit: {sentence} Report: {found.report}"
        assert sentence in Reader(found._repr_html_().encode()).text
        opened = []
        monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
        found.open()
        assert opened == [found.report.resolve().as_uri()]

    def test_verdicts_are_of_its_runs_and_findings(self, kept, tmp_path):
        found = kept.audits["both"]
        verdicts = found.verdicts
        assert {*verdicts.run} == {*found.findings.run}
        values = verdicts.merge(found.findings, on=["run", "threat_model", "signal", "value", "verdict"])
        assert {*verdicts.verdict} <= {*VERDICTS}
        assert len(values) >= len(verdicts) > 2
        lost = dataclasses.replace(found, report=tmp_path / "none" / "index.html")
        assert repr(lost) == f"Audit: report {lost.report}: no such folder; name one as fedaudit-runs/reports/NAME"
        assert lost._repr_html_() is None
        with pytest.raises(InputError, match="no such folder"):
            _ = lost.verdicts

    def test_gates_are_answered_and_said_by_the_command_with_its_exit_code(self, kept, capsys):
        crossed = fedaudit.audit(fail_if=["auroc >= 0", "auroc > 1"], out=kept.out, **TWO).crossed
        assert crossed
        assert all(sentence.startswith("auroc >= 0: ") for sentence in crossed)
        words = words_of({name: word for name, word in TWO.items() if name != "quiet"} | {"out": kept.out})
        assert cli.main([*words, "--fail-if", "server auroc.high >= 0"]) == 1
        said = capsys.readouterr()
        assert f"report: {kept.audits['both'].report}" in said.out
        assert "reused: report" in said.err
        assert "failed: server auroc.high >= 0: promptfl (seed 0), server, " in said.err
        assert cli.main([*words, "--fail-if", "auroc > 1"]) == 0
        assert cli.main([*words, "--fail-if", "tpr@0.1% > 0.5"]) == 2
        assert "nothing in this run can answer it (not measurable" in capsys.readouterr().err

    def test_what_is_dry_trains_nothing(self, tmp_path):
        said = fedaudit.dry_run(method="promptfl", out=tmp_path / "new", **OF_ALL)
        assert "1 training to run" in said
        assert "report: " in said
        assert not list((tmp_path / "new").glob("r*"))
        file = tmp_path / "dry.yaml"
        file.write_text("dry_run: true\n")
        for options in ({"dry_run": True}, {"config": file}):
            with pytest.raises(InputError, match=r"dry_run: fedaudit.audit trains; fedaudit.dry_run"):
                fedaudit.audit(method="promptfl", out=tmp_path / "out", **options, **OF_ALL)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"fail_if": []}, "fail_if is an empty list"),
            ({"method": {"fedavg", "fedrand"}}, "method must be a plain value"),
            ({"seed": 10**5000}, "seed.*too large"),
            ({"targets": 99, "method": "dpfpl", "attack": "lira"}, "targets=99: at most"),
        ],
    )
    def test_values_that_say_nothing_or_too_much(self, options, words, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match=words):
            fedaudit.audit(**options)
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow  # with workers; quick: threads given back in one process (test_executor)
    def test_the_callers_threads_are_given_back(self, tmp_path):
        """In a process that has computed with several threads before, with workers."""
        assert exit_code(_audits_after_computing, tmp_path) == 0


def _audits_after_computing(out: Path) -> None:
    torch.set_num_threads(2)
    _ = torch.randn(600, 600) @ torch.randn(600, 600), np.ones((300, 300)) @ np.ones((300, 300))
    pools = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    drawing.printed = unprinted
    assert fedaudit.audit(method="promptfl", out=out, **(OF_ALL | {"threads": 2})).report.exists()
    assert torch.get_num_threads() == 2
    assert pools.items() <= {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}.items()


@pytest.mark.parametrize("flag", ["--export-run", "--export-adapters"])
def test_exports_mix_with_nothing_and_say_so_before_anything_runs(flag, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError, match=f"{flag} .*: there is something already"):
            plan_of(flag, str(place))
    assert plan_of(flag, str(tmp_path / "new"))
    with pytest.raises(InputError, match="--export-run: exports one training, and this command asks for 2"):
        plan_of("--method", "fedavg,fedrand", "--export-run", "somewhere")


@pytest.mark.parametrize("flag", ["--method", "--task"])
def test_an_own_run_brings_its_own_method_and_task(flag):
    with pytest.raises(InputError, match=f"{flag} does not go with --run"):
        plan_of("--run", "somewhere", flag, "fedavg")
