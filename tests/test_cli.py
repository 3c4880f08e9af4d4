"""Bad input: one sentence that names the flag or file, the value and what would be valid; exit code 2; nothing is written."""

import errno
import json
import os
import shutil

import pytest

from fedaudit.command import cli, plans
from fedaudit.machinery import store

TINY = "--rounds 2 --clients 3 --per-round 2 --records 4 --reference 4 --novel 6 --test 3 --local-steps 2 --threads 1".split()

BAD = {
    "unknown method": ("--method fedrnd", ["--method fedrnd", "'fedrand'"]),
    "empty method": ("--method ,", ["--method", "--list"]),
    "method twice": ("--method fedavg,fedavg", ["--method", "once"]),
    "unknown attack": ("--attack maxreny", ["--attack maxreny", "'maxrenyi'"]),
    "unknown task": ("--task caption", ["--task caption", "'captions'"]),
    "unknown option": ("--round 3", ["--round", "--rounds"]),
    "another method's option": ("--method fedavg --rho 0.5", ["--rho", "no such option"]),
    "K above 100": ("--k 101", ["--k", "101", "100"]),
    "K below 0": ("--k=-1", ["--k", "-1", "0"]),
    "K not a number": ("--k ten", ["--k", "ten", "whole number"]),
    "order unknown": ("--order 3", ["--order", "3", "0.5"]),
    "slice unknown": ("--slice picture", ["--slice", "picture", "caption"]),
    "compat unknown": ("--compat v2", ["--compat", "v2", "vlmia"]),
    "rho above 1": ("--rho 2", ["--rho", "2", "at least 0 and at most 1,"]),
    "rho not a number": ("--rho half", ["--rho", "half", "a number"]),
    "rho NaN": ("--rho nan", ["--rho", "nan", "a number"]),
    "no clients": ("--clients 0", ["--clients 0", "at least 1"]),
    "no rounds": ("--rounds 0", ["--rounds 0", "at least 1"]),
    "nobody per round": ("--per-round 0", ["--per-round 0", "at least 1"]),
    "more per round than clients": ("--clients 3 --per-round 4", ["--per-round 4", "3"]),
    "no seeds": ("--seeds 0", ["--seeds 0", "at least 1"]),
    "negative seed": ("--seed=-1", ["--seed -1", "at least 0"]),
    "no threads": ("--threads 0", ["--threads 0", "at least 1"]),
    "rounds not whole": ("--rounds 2.5", ["--rounds", "2.5", "whole number"]),
    "rank 0": ("--rank 0", ["--rank", "0", "at least 1"]),
    "batch 0": ("--batch 0", ["--batch", "0", "at least 1"]),
    "learning rate 0": ("--learning-rate 0", ["--learning-rate", "0", "above 0"]),
    "learning rate infinite": ("--learning-rate inf", ["--learning-rate", "inf", "above 0"]),
    "weight decay negative": ("--weight-decay=-1", ["--weight-decay", "-1", "at least 0"]),
    "target modules unknown": ("--target-modules q-proj", ["--target-modules", "q-proj", "attention"]),
    "epochs negative": ("--local-epochs=-1", ["--local-epochs", "-1", "at least 0"]),
    "preset unknown": ("--preset papers", ["--preset papers", "'paper'"]),
    "dtype unknown": ("--dtype half", ["--dtype", "half", "bfloat16"]),
    "gate unknown": ("--fail-if auroc", ["--fail-if 'auroc'", "auroc.low > 0.6"]),
    "layers 0": ("--method fedper --shared-layers 0", ["--shared-layers", "0", "at least 1"]),
    "form unknown": ("--method fedpara --form sum", ["--form", "sum", "personal"]),
    "own run missing": ("--run no/such/run", ["no/such/run"]),
    "no data": ("--task coco", ["--data-root"]),
    "data nowhere": ("--task scienceqa --data-root no/data", ["--data-root no/data"]),
    "no records": ("--records 0", ["--records", "0", "at least 2"]),
    "dirichlet 0": ("--dirichlet 0", ["--dirichlet", "0", "at least 0.001"]),
    "no test": ("--test 0", ["--test", "0", "at least 1"]),
    "confidence 1": ("--confidence 1", ["--confidence", "1", "at least 0.5 and at most 0.9999"]),
    "device unknown": ("--device tpu", ["--device", "tpu", "cuda"]),
    "value missing": ("--rho", ["--rho", "has no value behind it"]),
    "stray word": ("fedrand", ["fedrand", "no such option"]),
    "backbone missing": ("--backbone no/such/folder", ["--backbone no/such/folder", "no folder"]),
    "backbone empty": ("--backbone {empty}", ["--backbone", "config.json"]),
    "config missing": ("--config nowhere.yaml", ["nowhere.yaml", "cannot be read"]),
    "config broken": ("--config {broken}", ["broken.yaml", "not valid YAML", "line 3"]),
    "config not a mapping": ("--config {list}", ["list.yaml", "mapping"]),
    "config unknown key": ("--config {unknown}", ["unknown.yaml", "--roundz", "--rounds"]),
    "config bad value": ("--config {value}", ["value.yaml", "--rho", "much"]),
    "config nested": ("--config {nested}", ["nested.yaml", "plain value"]),
}
FILES = {
    "broken": "rounds: 3\nmethod: [fedavg\n",
    "list": "- fedavg\n",
    "unknown": "roundz: 3\n",
    "value": "rho: much\n",
    "nested": "rounds: {a: 1}\n",
}


def refuse(capsys, words) -> str:
    """Run the command; it must end with code 2 and one sentence."""
    assert cli.main(words) == 2
    out = capsys.readouterr()
    lines = [line for line in out.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, out.err
    assert "Traceback" not in out.err
    assert "report:" not in out.out
    return lines[0]


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, capsys, tmp_path):
    words, wanted = BAD[case]
    places = {"empty": tmp_path}
    for name, text in FILES.items():
        places[name] = tmp_path / f"{name}.yaml"
        places[name].write_text(text)
    sentence = refuse(capsys, [*words.format(**places).split(), "--out", str(tmp_path / "out")])
    assert all(word in sentence for word in wanted), sentence
    assert not (tmp_path / "out").exists()


def backbone_copy(tmp_path):
    return shutil.copytree(plans.EMBEDDED, tmp_path / "model")


def test_projections_that_the_model_lacks(capsys, tmp_path):
    sentence = refuse(capsys, [*TINY, "--target-modules", "q_proj,qkv_proj", "--out", str(tmp_path / "out")])
    assert all(word in sentence for word in ("--target-modules", "qkv_proj", "gate_proj", "attention"))


def test_weights_of_another_architecture(capsys, tmp_path):
    model = backbone_copy(tmp_path)
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["hidden_size"] = 96
    (model / "config.json").write_text(json.dumps(config))
    sentence = refuse(capsys, [*TINY, "--backbone", str(model), "--out", str(tmp_path / "out")])
    assert f"--backbone {model}" in sentence


def test_weights_that_lack_layers(capsys, tmp_path):
    model = backbone_copy(tmp_path)
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] += 1
    (model / "config.json").write_text(json.dumps(config))
    sentence = refuse(capsys, [*TINY, "--backbone", str(model), "--out", str(tmp_path / "out")])
    assert "lack" in sentence
    assert "layers.6" in sentence


def test_a_model_without_eyes(capsys, tmp_path):
    model = backbone_copy(tmp_path)
    (model / "config.json").write_text('{"model_type": "llama"}')
    sentence = refuse(capsys, [*TINY, "--backbone", str(model), "--out", str(tmp_path / "out")])
    assert "image-text-to-text" in sentence


def test_out_is_a_file(capsys, tmp_path):
    (tmp_path / "out").write_text("mine")
    sentence = refuse(capsys, [*TINY, "--out", str(tmp_path / "out")])
    assert str(tmp_path / "out") in sentence
    assert "--out" in sentence
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_full_or_read_only_disk(code, capsys, tmp_path, monkeypatch):
    def refuse_to_sync(descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store.os, "fsync", refuse_to_sync)
    sentence = refuse(capsys, [*TINY, "--out", str(tmp_path / "out")])
    assert os.strerror(code) in sentence
    assert "--out" in sentence
    left = [p for p in (tmp_path / "out").rglob("*") if p.is_file() and p.name != ".lock"]
    assert left == []


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
    for words in (
        ["--rho", "0.3"],
        ["--rounds", "9"],
        ["--seed", "1"],
        ["--rank", "4"],
        ["--records", "20"],
        ["--method", "fedavg"],
    ):
        assert key(*words)[0] != plain[0], words
