"""Bad input: one sentence that names the flag or file, the value and what would be valid; exit code 2; nothing is written."""

import errno
import os
from unittest import mock

import pytest

from fedaudit.command import cli

TINY = "--rounds 2 --clients 3 --per-round 2 --records 4 --reference 4 --novel 6 --test 3 --local-steps 2 --threads 1".split()

BAD = {
    "unknown method": ("--method fedrnd", ["--method fedrnd", "'fedrand'"]),
    "unknown option": ("--round 3", ["--round", "--rounds"]),
    "another method's option": ("--method fedavg --rho 0.5", ["--rho", "is of --method fedrand"]),
    "preset unknown": ("--preset papers", ["--preset papers", "'paper'"]),
    "dtype unknown": ("--dtype half", ["--dtype", "half", "bfloat16"]),
    "no data": ("--task coco", ["--data-root"]),
    "data nowhere": ("--task scienceqa --data-root no/data", ["--data-root no/data"]),
    "device unknown": ("--device tpu", ["--device", "tpu", "cuda"]),
    "device not here": ("--device mps", ["--device mps", "no Apple GPU", "cpu or auto"]),
    "backbone missing": ("--backbone no/such/folder", ["--backbone no/such/folder", "no folder"]),
    "backbone empty": ("--backbone {empty}", ["--backbone", "config.json"]),
    "config missing": ("--config nowhere.yaml", ["nowhere.yaml", "cannot be read"]),
    "config broken": ("--config {broken}", ["broken.yaml", "not valid YAML", "line 3"]),
    "config unknown key": ("--config {unknown}", ["unknown.yaml", "--roundz", "--rounds"]),
    "config bad value": ("--config {value}", ["value.yaml", "--rho", "much"]),
    "rank above the prompt's length": ("--method dpfpl --rank 17", ["--rank 17", "--prompt-length", "16"]),
    "noise without clipping": ("--method dpfpl --clip-norm inf", ["--clip-norm", "finite", "inf"]),
    "adapters and prompts": ("--method dpfpl,fedavg", ["dpfpl,fedavg", "different things"]),
    "task of the others": (
        "--method dpfpl --task captions",
        ["--task captions", "digits, fewshots, folder, glyphs, images"],
    ),
    "task of prompts": ("--method fedavg --task digits", ["--task digits", "captions"]),
    "exporting adapters of prompts": (
        "--method dpfpl --no-twin --export-adapters {export}",
        ["--export-adapters", "prompts"],
    ),
    "exporting what trains nothing": ("--method zeroshot --export-run {export}", ["--export-run", "trains nothing"]),
}
FILES = {"broken": "rounds: 3\nmethod: [fedavg\n", "unknown": "roundz: 3\n", "value": "rho: much\n"}


def refuse(capsys, words) -> str:
    """Run the command; it must end with code 2 and one sentence."""
    assert cli.main(words) == 2
    out = capsys.readouterr()
    lines = [line for line in out.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, out.err
    assert "Traceback" not in out.err
    assert "report:" not in out.out
    return lines[0]


def check_bad(case, capsys, tmp_path):
    """A case of a table is refused in one sentence with all its words, and leaves nothing."""
    words, wanted = case
    places = {name: tmp_path / name for name in ("out", "export", "empty")}
    places["empty"].mkdir()
    for name, text in FILES.items():
        places[name] = tmp_path / f"{name}.yaml"
        places[name].write_text(text)
    sentence = refuse(capsys, [*words.format(**places).split(), "--out", str(places["out"])])
    assert all(word in sentence for word in wanted), sentence
    assert not places["out"].exists()
    assert not places["export"].exists()


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, capsys, tmp_path):
    check_bad(BAD[case], capsys, tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_full_or_read_only_disk(code, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", mock.Mock(side_effect=OSError(code, os.strerror(code))))
    sentence = refuse(capsys, [*TINY, "--out", str(tmp_path / "out")])
    assert os.strerror(code) in sentence
    assert "--out" in sentence
    assert [p for p in (tmp_path / "out").rglob("*") if p.is_file() and p.name != ".lock"] == []


def test_flags_win_over_the_configuration_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("method: [fedavg, fedrand]\nrounds: 3\nper_round: 2\nrho: 0.3\npast: false\n")
    command = cli.read_command(["--config", str(file), "--rounds", "5", "--dry-run"])
    assert command.dry_run
    plan = command.plan
    assert list(plan.methods) == ["fedavg", "fedrand"]
    assert (plan.rounds, plan.per_round) == (5, 2)
    assert plan.methods["fedrand"].params.rho == 0.3
    assert plan.methods["fedrand"].params.past is False


def test_defaults_are_the_main_job():
    plan = cli.read_command([]).plan
    assert (list(plan.methods), plan.attack, plan.task) == (["fedrand"], "maxrenyi", "captions")
    assert (plan.rounds, plan.clients, plan.per_round) == (7, 12, 4)


def test_keys_follow_what_matters_and_nothing_else():
    def key(*words):
        plan = cli.read_command(list(words)).plan
        return plan.cells[0].training_key, plan.cells[0].analysis_key

    plain = key()
    assert key("--threads", "1", "--out", "elsewhere") == plain
    assert key("--k", "20")[0] == plain[0]
    assert key("--k", "20")[1] != plain[1]
    for words in ("--rho 0.3", "--rounds 9", "--seed 1", "--rank 4", "--records 20", "--method fedavg"):
        assert key(*words.split())[0] != plain[0], words
