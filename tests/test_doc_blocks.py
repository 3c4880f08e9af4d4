"""Every block of README.md, CONTRIBUTING.md and docs/ works as it stands: Python runs, page by page and in order, command lines are
read (`test_doc_commands`), files of an own run are one (`test_ownrun`), the examples of a plugin are whole (`test_contributing`).

What would train for minutes runs at `SMALL`: the block's own call, with fewer clients, records and steps beside its words.
"""

import inspect
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from PIL import Image

import fedaudit
from fedaudit.attacks.maxrenyi import max_renyi
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.vlm import FrozenVLM
from fedaudit.command import exits, nightly
from fedaudit.external.reading import read
from fedaudit.machinery.errors import InputError
from tests.doc_blocks import BLOCKS, PAGES, ROOT, Block, commands, shell_blocks
from tests.examples import EXAMPLES
from tests.kept_runs import KeptRuns
from tests.minidata import write
from tests.small_run import adapter, put, small_run
from tests.test_doc_commands import plan
from tests.test_doc_commands import read as read_words
from tests.test_tutorials import NOTEBOOKS

AUDIT = fedaudit.audit
SMALL = {"clients": 4, "per_round": 4, "records": 4, "reference": 4, "novel": 2, "threads": 1, "quiet": True}
SMALL |= {"rounds": 1, "test": 1, "local_steps": 1}
PYTHON = {  # all of whose blocks run here
    *("README.md", "docs/reference/attacks-outputs.md", "docs/reference/attacks-shadow-models.md"),
    *("docs/reference/backbones.md", "docs/guides/own-runs.md", "docs/guides/library.md"),
}
EXAMPLE_PAGES = (
    "docs/guides/frameworks.md",
    "docs/tutorials/flower.md",
)  # parts of examples/: tests/test_frameworks.py
FILES = {"docs/reference/data.md": ("coco/", "scienceqa/"), "docs/reference/run-folder.md": ("my-run/",)}  # of a folder


def python_blocks(page: str) -> list[str]:
    return [block.text for block in BLOCKS if (block.page, block.language) == (page, "python")]


def has_a_test(block: Block) -> bool:
    """Whether some test runs or reads it."""
    if block.page == "CONTRIBUTING.md" and block.language:
        return block.first.split()[1] in EXAMPLES
    if block.page == "docs/guides/plugins.md" and block.language:
        return True  # tests/test_own_plugins.py runs them
    if block.page in NOTEBOOKS:
        return block.language in ("python", "bash")  # tests/test_tutorials.py executes them
    if block.language == "python":
        return block.page in PYTHON or block.page in EXAMPLE_PAGES or block.page == "docs/tutorials/coop.md"
    if block.language in ("json", "jsonl"):
        return block.page == "docs/reference/run-folder.md"
    if block.language == "yaml":
        return block.page in ("docs/guides/ci.md", "docs/guides/nightly.md")
    return not block.language and (block in shell_blocks() or block.first in FILES.get(block.page, ()))


def test_every_block_has_a_test_and_a_fence_that_is_paired_and_not_indented() -> None:
    without = [f"{block.page}: {block.first}" for block in BLOCKS if not has_a_test(block)]
    assert not without, "write one, or add the page to PYTHON"
    for page, text in PAGES.items():
        assert text.count("```") == 2 * sum(block.page == page for block in BLOCKS), page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, kept: KeptRuns, unsafe_but_quick: None) -> Iterator[Path]:
    """A folder of somebody who works through the pages: runs on prompts, those of README.md, exported adapters."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("place")
        patch.chdir(folder)
        (folder / "fedaudit" / "backbones").mkdir(parents=True)
        (folder / "fedaudit" / "backbones" / "scenes-llava").symlink_to(EMBEDDED)
        kept.copied(folder / "fedaudit-runs")

        patch.setattr("fedaudit.audit", lambda **words: AUDIT(**(words | SMALL)))
        patch.setattr("fedaudit.dry_run", lambda dry_run=fedaudit.dry_run, **words: dry_run(**(words | SMALL)))
        auditing, _ = python_blocks("README.md")
        given: dict[str, Any] = {}
        exec(auditing, given)
        assert given["audit"].report.is_file()
        assert {*given["audit"].findings.method} == {"fedavg", "fedrand"}
        fedaudit.audit(method="fedrand", attack="maxrenyi", export_adapters="FOLDER")
        shutil.copytree("fedaudit-runs", "runs")  # so that what the next page trains is there
        yield folder


def test_library_md(place: Path) -> None:
    *runs, tables = python_blocks("docs/guides/library.md")
    for name in ("reports/.../findings.csv", "analyses/.../scores.parquet", "reports/.../accuracy.csv"):
        (file, *_) = sorted((place / "fedaudit-runs").glob(name.replace("...", "*")))
        assert name in tables
        tables = tables.replace(f"fedaudit-runs/{name}", str(file))
    given: dict[str, Any] = {}
    for text in (*runs, tables):
        exec(text, given)
    assert given["audit"].report.is_file()
    assert {*given["leakage"].nonmembers} == {"held-out"}
    assert {*given["differences"].part} == {"leakage", "utility"}
    assert given["differences"].paired.all()
    assert len(given["tuned"].peft_config) == 1
    assert {"threat_model", "record", "signal"} & {*given["scores"]} >= {"record"}
    assert {"split", "accuracy"} <= {*given["accuracy"]}


def test_attacks_md() -> None:
    rng = np.random.default_rng(0)
    n, c, s = 30, 4, 8
    start, target, *shadows = np.log(rng.dirichlet(np.ones(c), (s + 2, n)))
    given: dict[str, Any] = {
        "logits": rng.normal(size=(6, 9)), "ids": rng.integers(0, 9, 6),
        "in_shadow": rng.random((s, n)) < 0.5, "shadow_log_probs": np.stack(shadows), "log_probs": target, "before": start,
        "labels": rng.integers(0, c, n), "reference": np.zeros(n, bool),
    }  # fmt: skip
    (tokens,) = python_blocks("docs/reference/attacks-outputs.md")
    (own,) = python_blocks("docs/reference/attacks-shadow-models.md")
    exec(tokens, given)
    assert max_renyi(given["signals"].renyi[2], k_percent=10) == given["signals"].renyi[2].max()
    *lines, last = own.strip().splitlines()
    given["ids"] = tuple(map(str, range(n)))
    exec("\n".join(lines), given)
    scores = eval(last, given)
    assert scores.shape == (n,)
    assert np.isfinite(scores).all()


def test_backbones_md() -> None:
    """The sketch overrides what there is, with the parameters that there are."""
    given: dict[str, Any] = {}
    for text in python_blocks("docs/reference/backbones.md"):
        exec(text, given)
    own = vars(given["Backbone"])
    assert issubclass(given["Backbone"], FrozenVLM)
    for name in ("open", "language_model", "find_image_token", "see", "whole"):
        assert [*inspect.signature(own[name]).parameters] == [*inspect.signature(getattr(FrozenVLM, name)).parameters]


def test_canaries_md(capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints of 10 and of 100 canaries is what the page's tables say."""
    (words,) = (words for block in shell_blocks() for words in commands(block.text) if words[:2] == ["python", "-c"])
    exec(words[2], {})
    ceilings = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert ceilings == pytest.approx([1.05, 3.49, 5.78], abs=0.006)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, unsafe_but_quick: None) -> Path:
    """A run by the script of docs/guides/own-runs.md, of clients that train the adapters of the built-in model."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(EMBEDDED)
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=16, target_modules=r".*language_model.*q_proj"))
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("own")
    (folder / "my-run").mkdir()
    for i in range(16):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / "my-run" / f"{i}.png")

    def train_client(server: dict[str, torch.Tensor], k: int) -> dict[str, torch.Tensor]:
        return {name: tensor + 0.01 * (k + 1) for name, tensor in server.items()}

    records = [(f"r{i}", i % 2, f"{i}.png", f"{i} small bars") for i in range(16)]
    given = {
        "model": adapted, "rounds": 2, "cohort": lambda r: [0, 1], "train_client": train_client,
        "aggregate": lambda sent: next(iter(sent.values())), "trained_on": records[:8], "held_out": records[8:],
    }  # fmt: skip
    (script,) = python_blocks("docs/guides/own-runs.md")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(script, given)
    return folder / "my-run"


def test_what_readme_records_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, (_, recording) = small_run(tmp_path / "my-run"), python_blocks("README.md")
    for name in ("models", "uploads"):
        shutil.rmtree(run / name)
    (run / "run.json").unlink()
    received = [{0: adapter(2), 2: adapter(4)}, {2: adapter(5)}]
    exec(recording, {"rounds": [(adapter(0), received[0]), (adapter(3), received[1])], "final": adapter(5)})
    own = read(run)
    assert own.cohorts == ((0, 2), (2,))
    assert {remark.check for remark in own.remarks} == {"pictures"}, "the lists of the small run"


class TestOwnRuns:
    def audit(self, run: Path, **words: Any) -> Any:
        return AUDIT(run=run, out=run.parent / "out", threads=1, quiet=True, **words)

    def test_what_the_script_saves_is_audited(self, run: Path) -> None:
        """Its prompt ends with the image: all of an instruction's cells are empty, and no other."""
        audit = self.audit(run)
        (measured,) = {*audit.findings.measured.dropna()}
        assert measured == "not checked: no coins decided before the training who is a member"
        cells = pd.read_csv(audit.report.parent / "cells.csv")
        assert len({*cells.signal}) > 100
        assert {name.rpartition("/")[2] for name in cells.signal[cells.auroc.isna()]} == {"instruction"}

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"slice": "instruction"}, "^slice='instruction': no record has two tokens.*valid here: image, caption$"),
            ({"fail_if": ["measured > 1"]}, r"can answer it .*trained elsewhere, without coins \(fedaudit\.split\)"),
        ],
        ids=["a slice that no record has", "canaries"],
    )
    def test_what_it_cannot_have_is_refused(self, asked: dict[str, Any], said: str, run: Path) -> None:
        with pytest.raises(InputError, match=said):
            self.audit(run, **asked)

    def test_a_slice_that_some_records_have_is_measured_on_these(self, run: Path, tmp_path: Path) -> None:
        shutil.copytree(run, tmp_path / "my-run")
        for name in ("members", "nonmembers"):
            path = tmp_path / "my-run" / f"{name}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            asked = [{"prompt": "<image> what is it ?"} if int(line["id"][1:]) % 4 > 1 else {} for line in lines]
            put(path, [line | more for line, more in zip(lines, asked, strict=True)])
        findings = self.audit(tmp_path / "my-run", slice="instruction").findings
        rows = findings[(findings.metric == "auroc") & (findings.signal == "renyi/2/10/instruction")]
        assert rows.value.notna().all()
        assert {*rows.members, *rows.nonmembers_n} == {4}


def test_the_workflow_of_ci_md() -> None:
    """It installs what it checked out, trains as the tutorial does, and gives the program what it takes."""
    (block,) = (block for block in BLOCKS if (block.page, block.language) == ("docs/guides/ci.md", "yaml"))
    job = yaml.safe_load(block.text)
    steps = job["jobs"]["audit"]["steps"]
    scripts = [words for step in steps for words in commands(step.get("run", ""))]
    (there,) = (step["with"]["path"] for step in steps if {"path", "repository"} <= step.get("with", {}).keys())
    installs = [words for words in scripts if words[0].endswith("pip")]
    assert {words[words.index("-e") + 1] for words in installs if "-e" in words} == {there}
    assert [words[-1] for words in installs if "--index-url" in words] == ["$CPU_INDEX"] * 2
    assert job["env"].keys() == {"CPU_INDEX"}
    tutorial = (block.text for block in shell_blocks() if block.page == "docs/tutorials/flower.md")
    taught = [words for text in tutorial for words in commands(text)]
    names = {"app": "examples/flower", f"{there}/fedaudit_recorder.py": "fedaudit_recorder.py"}
    mine = [[names.get(word, word).replace(f"$PWD/{there}/", "$PWD/") for word in words] for words in scripts]
    shared, expected = ([words for words in some if words[0] in ("cp", "flwr")] for some in (mine, taught))
    assert shared == expected
    coins, audit = (words[1:] for words in scripts if words[0] == "fedaudit")
    assert ["python", "audit.py", *coins] in taught
    assert "my-run" in str(read_words(audit))  # it is not there
    assert {"--fail-if", "--out"} <= {*audit}
    (kept,) = (step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", ""))
    assert kept == f"{audit[audit.index('--out') + 1]}/reports"


class TestNightly:
    def test_the_matrix_of_the_page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (block,) = (block for block in BLOCKS if (block.page, block.language) == ("docs/guides/nightly.md", "yaml"))
        (tmp_path / "matrix.yaml").write_text(block.text)
        monkeypatch.chdir(tmp_path)
        asked = nightly.read(["--nightly", "matrix.yaml"], plan)
        assert asked is not None
        assert len(asked.matrix.cells) == 4 + 8 - 2
        assert len(asked.matrix.gates) == 2

    @pytest.mark.parametrize("code", [exits.DONE, exits.CROSSED, exits.MENDABLE, exits.BROKEN, exits.FAILED])
    def test_the_line_for_cron_mails_what_tonight_said(self, code: int, tmp_path: Path) -> None:
        """Whatever an earlier night left behind; nothing where all is well."""
        programs = tmp_path / "bin"
        files = {"nightly.log": "an earlier night", "fedaudit-runs/nightly/matrix/summary.md": "an earlier night"}
        files |= {".venv/bin/activate": "", "bin/mail": "#!/bin/sh\ncat > mailed\n"}
        files |= {"bin/fedaudit": f"#!/bin/sh\necho tonight >&2; exit {code}\n"}
        for name, text in files.items():
            write(tmp_path / name, text.encode()).chmod(0o755)
        (line,) = (block.text for block in BLOCKS if block.text.startswith("17 2 * * * "))
        script = line.removeprefix("17 2 * * * ").replace("/srv/audits", shlex.quote(str(tmp_path)))
        subprocess.run(["sh", "-c", script], env={"PATH": f"{programs}:{os.environ['PATH']}"}, check=True)
        mailed = tmp_path / "mailed"
        assert mailed.exists() == (code != exits.DONE)
        assert code == exits.DONE or mailed.read_text() == "tonight\n"

    def test_the_workflow_installs_what_it_checked_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        job = yaml.safe_load((ROOT / "docs/nightly/workflow.yml").read_text())
        steps = job["jobs"]["audit"]["steps"]
        scripts = [words for step in steps for words in commands(step.get("run", ""))]
        there = {step["with"]["path"] for step in steps if "checkout" in step.get("uses", "") and "with" in step}
        installs = [words for words in scripts if words[:2] == ["pip", "install"]]
        assert {words[words.index("-e") + 1] for words in installs if "-e" in words} == there
        assert "torch" in installs[0], "before what would bring the one for GPUs"
        assert installs[0][-2:] == ["--index-url", "$CPU_INDEX"]
        assert job["env"].keys() == {"CPU_INDEX"}
        first = next(i for i, step in enumerate(steps) if "pip install" in step.get("run", ""))
        assert all("checkout" not in step.get("uses", "") for step in steps[first:])
        (audit,) = (words[1:] for words in scripts if words[0] == "fedaudit")
        shutil.copy(ROOT / "docs/nightly/matrix.yaml", tmp_path)
        monkeypatch.chdir(tmp_path)
        asked = nightly.read(audit, plan)
        assert asked is not None
        kept = [step["with"]["path"] for step in steps if "cache" in step.get("uses", "")]
        assert kept == [str(asked.out)] * 2
