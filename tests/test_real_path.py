"""The real path as a user runs it: other models, data in the public formats, a run in and out of its folder. One real round each."""

import functools
import json
import shutil

import pandas as pd
import pytest

import fedaudit
from fedaudit.backbones import EMBEDDED as EMBEDDED_MODEL
from fedaudit.command import cli
from tests import minidata, tiny_models

pytestmark = pytest.mark.slow  # from files to a report; quick: test_data_tasks, test_ownrun, test_real_models

ROUND = {"rounds": 1, "clients": 3, "per_round": 2, "local_steps": 2, "threads": 1, "quiet": True}
EMBEDDED = {"records": 6, "reference": 8, "novel": 8, "test": 4}
DATA = {"records": 6, "reference": 6, "test": 4}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return functools.cache(lambda family: tiny_models.save(root / family, tiny_models.FAMILIES[family]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    minidata.coco(root / "coco", train=120)
    minidata.nocaps(root / "coco" / "nocaps")
    minidata.scienceqa(root / "scienceqa", train=150)
    return root


def headline(findings):
    rows = findings[(findings.metric == "auroc") & findings.headline & (findings.nonmembers == "held-out")]
    assert rows.value.between(0, 1).all()
    return rows


OF_COINS = [
    *("z", "t", "p", "part", "best_of", "family", "family_n", "p_adjusted", "base_z", "blind_p"),
    *("detectable", "detectable_named", "alarm", "verdict", "sentence"),
]


def numbers(audit):
    """The findings about members, without the run that they are of, what only coins of ours decide, and doubts about a recording."""
    found = audit.findings[~audit.findings.metric.isin(["epsilon", "recording"])].reset_index(drop=True)
    return found.drop(columns=["run", "measured", *OF_COINS]).dropna(axis="columns", how="all").infer_objects()


@pytest.mark.parametrize(("family", "task"), [("llava_next", "captions"), ("llava_onevision", "vqa")])
def test_a_round_on_the_llava_family(family, task, models, tmp_path):
    found = fedaudit.audit(method="fedrand", backbone=models(family), task=task, out=tmp_path, **EMBEDDED, **ROUND)
    assert set(headline(found.findings).threat_model) == {"released-model", "server", "owner"}
    assert family in found.report.read_text()


def test_a_round_in_bfloat16(models, tmp_path):
    epoch = {name: value for name, value in ROUND.items() if name != "local_steps"}  # of which the preset has one
    given = {"method": "fedpara", "backbone": models("llava"), "dtype": "bfloat16", "preset": "paper"}
    assert len(headline(fedaudit.audit(**given, out=tmp_path, **EMBEDDED, **epoch).findings))


@pytest.mark.parametrize("task", ["coco", "scienceqa"])
def test_a_round_on_real_formats(task, models, data, tmp_path):
    more = {"novel": 20} if task == "coco" else {}
    given = {"task": task, "data_root": data / task, "backbone": models("llava")} | DATA | more | ROUND
    found = fedaudit.audit(out=tmp_path, **given)
    assert len(headline(found.findings))
    utility = json.loads(next((tmp_path / "runs").iterdir()).joinpath("round-000.json").read_text())["utility"]
    metric = "cider" if task == "coco" else "exact_match"
    assert metric in utility["global"]
    assert ("novel" in utility) == (task == "coco")
    assert set(found.findings.nonmembers.dropna()) == {"held-out"} | ({"novel objects"} if task == "coco" else set())


def test_changed_annotations_are_another_training_and_a_moved_folder_is_the_same(data, tmp_path):
    root = shutil.copytree(data / "coco", tmp_path / "one", copy_function=shutil.copy2)
    few = "--task coco --records 3 --reference 3 --novel 4 --test 3 --clients 3 --per-round 2"

    def key(at):
        return cli.read_command([*few.split(), "--data-root", str(at)]).plan.cells[0].training_key

    before = key(root)
    assert key(shutil.move(root, tmp_path / "two")) == before
    captions = tmp_path / "two" / "annotations" / "captions_train2017.json"
    captions.write_text(captions.read_text().replace('"caption 0 of', '"title 0 of'))
    assert key(tmp_path / "two") != before


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory):
    """By method: a run of ours, exported, and its findings."""

    @functools.cache
    def of(method):
        out, settings = tmp_path_factory.mktemp("out"), EMBEDDED | ROUND | {"rounds": 3, "backbone": models("llava")}
        return out / "my-run", fedaudit.audit(method=method, out=out / "a", export_run=out / "my-run", **settings)

    return of


@pytest.mark.parametrize("method", ["fedavg", "fedrand"])  # of all: test_ownrun, up to what adversaries hold
def test_a_run_exported_and_audited_again_gives_the_same_findings(method, exported, tmp_path):
    own, first = exported(method)
    again = fedaudit.audit(run=own, out=tmp_path, quiet=True, threads=1)
    pd.testing.assert_frame_equal(numbers(again), numbers(first), check_dtype=False)
    assert set(again.findings.run).isdisjoint(first.findings.run)
    unchecked = "not checked: no coins decided before the training who is a member"
    assert again.findings.measured.dropna().unique().tolist() == [unchecked]
    assert first.findings.method.unique().tolist() == [method]
    for table in ("cells.csv", "figures/roc.csv", "figures/cost.csv", "figures/utility.csv"):
        shown = [pd.read_csv(found.report.parent / table) for found in (again, first)]
        shown = [rows.drop(columns=["method", *OF_COINS], errors="ignore") for rows in shown]
        pd.testing.assert_frame_equal(*shown, check_exact=True)  # but for what the page calls the run
    assert "done elsewhere" in again.report.read_text()


def test_an_own_run_with_the_least_that_is_asked_for(exported, tmp_path):
    """No owners, no further lists, no rounds.json: the rows that rest on these are left out, the others are the same."""
    source, first = exported("fedavg")
    own = shutil.copytree(source, tmp_path / "my-run")
    shutil.rmtree(own / "owners")
    for name in ("reference.jsonl", "novel.jsonl", "test.jsonl", "novel_test.jsonl", "rounds.json"):
        (own / name).unlink()
    again = fedaudit.audit(run=own, out=tmp_path / "b", quiet=True, threads=1)
    assert set(again.findings.threat_model.dropna()) == {"released-model", "server"}
    assert not again.findings.doubt.any()
    assert not again.findings.metric.str.startswith("tpr").any()
    keys = ["threat_model", "way", "population", "signal"]
    value, before = (headline(found.findings).set_index(keys).value for found in (again, first))
    pd.testing.assert_series_equal(value, before.loc[value.index], rtol=1e-4)


def test_adapters_of_an_own_run_by_worker_processes(exported, tmp_path):
    own, _ = exported("fedavg")
    fedaudit.audit(run=own, out=tmp_path / "b", export_adapters=tmp_path / "adapters", quiet=True, threads=2)
    assert (tmp_path / "adapters" / "global" / "adapter_model.safetensors").is_file()


def test_an_adapter_of_other_layers_is_refused_in_one_sentence(exported, tmp_path, capsys):
    own, _ = exported("fedavg")
    words = f"--run {own} --backbone {EMBEDDED_MODEL} --out {tmp_path} --threads 1"
    assert cli.main(words.split()) == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "does not fit the model" in sentence


def test_the_embedded_model_is_named_so_that_any_installation_finds_it(tmp_path):
    own = tmp_path / "my-run"
    first = fedaudit.audit(method="fedavg", out=tmp_path / "a", export_run=own, **EMBEDDED, **ROUND)
    assert json.loads((own / "run.json").read_text())["backbone"] == "embedded"
    again = fedaudit.audit(run=own, out=tmp_path / "b", quiet=True, threads=1)
    pd.testing.assert_frame_equal(numbers(again), numbers(first), check_dtype=False)


def test_exported_adapters_lie_side_by_side(tmp_path):
    adapters = tmp_path / "adapters"
    fedaudit.audit(method="fedpara", out=tmp_path / "a", export_adapters=adapters, **EMBEDDED, **ROUND)
    first, _, whole = sorted(adapters.iterdir())  # the two clients of the one round
    assert whole.name == "global"
    config, private = (json.loads((place / "adapter_config.json").read_text()) for place in (whole, first))
    assert config["r"] == 8
    assert private["r"] == 8 + 64
    assert private["lora_alpha"] / private["r"] == config["lora_alpha"] / config["r"] == 2
