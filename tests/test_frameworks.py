"""Recording other frameworks: `RecordingGrid` on a made-up grid; slow: the pages' commands on Flower and NVFlare themselves."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from fedaudit.external.reading import read
from fedaudit_recorder import Recorder
from tests.doc_blocks import BLOCKS, ROOT, shell_blocks
from tests.environments import environment

FLOWER, FLARE = "docs/tutorials/flower.md", "docs/guides/frameworks.md"
CODE = ROOT / "examples/flower/fedlora/fedaudit_flower.py"
A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{half}.weight" for half in "AB")


def loaded() -> Any:
    """fedaudit_flower.py, which needs no Flower."""
    spec: Any = importlib.util.spec_from_file_location("fedaudit_flower", CODE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Arrays(dict[str, Any]):
    """Flower's ArrayRecord, as far as it is used."""

    @classmethod
    def of(cls, value: float) -> Arrays:
        tensors = ((A, torch.full((2, 3), value)), (B, torch.full((4, 2), value)))
        return cls({name: SimpleNamespace(tensor=t, data=t.numpy().tobytes()) for name, t in tensors})

    def to_torch_state_dict(self) -> dict[str, torch.Tensor]:
        return {name: array.tensor for name, array in self.items()}


def message(node: int, value: float, *, kind: str = "train", error: bool = False, **metrics: float) -> Any:
    """One to or from a node."""
    content = SimpleNamespace(array_records={"arrays": Arrays.of(value)}, metric_records={"metrics": metrics})
    about = SimpleNamespace(message_type=kind, dst_node_id=node, src_node_id=node)
    return SimpleNamespace(content=content, metadata=about, has_error=lambda: error)


class Grid:
    """Node 100 + k is client k; its upload is the model it was sent plus k + 1. `silent` gives no reply, `broken` one with an error."""

    run_id = 7

    def __init__(self, **metrics: float) -> None:
        self.silent: set[int] = set()
        self.broken: set[int] = set()
        self.metrics = metrics

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Iterator[Any]:
        for m in messages:
            node = m.metadata.dst_node_id
            if node not in self.silent:
                value = float(m.content.array_records["arrays"][A].tensor[0, 0]) + node - 99
                said = {"partition-id": node - 100, "num-examples": 5, "loss": 1.5} | self.metrics
                yield message(node, value, kind=m.metadata.message_type, error=node in self.broken, **said)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "run", method="fedavg", task="toys", backbone="embedded", alpha=4)


def recorded(folder: Path) -> dict[str, float]:
    """The value that each tensor file is full of."""
    from safetensors.torch import load_file

    return {
        str(path.relative_to(folder)).removesuffix(".safetensors"): float(load_file(path)[A][0, 0])
        for path in sorted(folder.rglob("*.safetensors"))
    }


def ask(grid: Any, value: float, *nodes: int, kind: str = "train") -> list[Any]:
    return list(grid.send_and_receive([message(node, value, kind=kind) for node in nodes], timeout=3))


class TestRecordingGrid:
    def test_it_writes_what_was_sent_and_received(self, recorder: Recorder) -> None:
        grid = loaded().RecordingGrid(Grid(), recorder)
        assert grid.run_id == 7
        for value in (0.0, 10.0):
            replies = ask(grid, value, 100, 101)
            assert [reply.metadata.src_node_id for reply in replies] == [100, 101]
            for reply in replies:  # as strategies for differential privacy do
                reply.content.array_records["arrays"][A].tensor.zero_()
            ask(grid, 99.0, 100, 101, kind="evaluate")
        grid.close(Arrays.of(20.0))
        assert recorded(Path(recorder.folder)) == {
            "models/round-000": 0, "models/round-001": 10, "models/round-002": 20,
            "uploads/round-000/client-00": 1, "uploads/round-000/client-01": 2,
            "uploads/round-001/client-00": 11, "uploads/round-001/client-01": 12,
        }  # fmt: skip

    def test_clients_that_fail_and_rounds_in_which_all_do(self, recorder: Recorder, caplog: Any) -> None:
        inner = Grid()
        grid = loaded().RecordingGrid(inner, recorder)
        inner.broken = {100, 101}
        ask(grid, 0.0, 100, 101)  # nobody knows who: round 0 is recorded over
        inner.broken, inner.silent = {101}, set()
        ask(grid, 0.0, 100, 101)
        assert [record.args[:2] for record in caplog.records] == [(0, 100), (0, 101), (0, 101)]
        inner.broken = set()
        ask(grid, 1.0, 100, 101)
        inner.silent, inner.broken = {100}, {101}
        ask(grid, 2.0, 100, 101)
        grid.close(None)
        folder = Path(recorder.folder)
        said = pd.read_json(folder / "rounds.json", orient="index")
        assert said.failed[2] == [0, 1]
        assert recorded(folder) == {
            "models/round-000": 0, "models/round-001": 1, "models/round-002": 2, "models/round-003": 2,
            "uploads/round-000/client-00": 1,
            "uploads/round-001/client-00": 2, "uploads/round-001/client-01": 3,
        }  # fmt: skip

    def test_a_last_round_of_which_nothing_can_be_told(self, recorder: Recorder) -> None:
        inner = Grid()
        grid = loaded().RecordingGrid(inner, recorder)
        ask(grid, 0.0, 100)
        inner.broken = {101}
        ask(grid, 1.0, 101)
        grid.close(None)
        files = {"models/round-000", "models/round-001", "uploads/round-000/client-00"}
        assert recorded(Path(recorder.folder)).keys() == files

    def test_what_is_refused(self, recorder: Recorder) -> None:
        make = loaded().RecordingGrid
        with pytest.raises(ValueError, match="round 0: clients are sent different models"):
            make(Grid(), recorder).send_and_receive([message(100, 0.0), message(101, 1.0)])
        with pytest.raises(ValueError, match="has no metric 'site'"):
            ask(make(Grid(), recorder, client="site"), 0.0, 100)
        with pytest.raises(ValueError, match=r"two replies have the same partition-id: \[3, 3\]"):
            ask(make(Grid(**{"partition-id": 3}), recorder), 0.0, 100, 101)


@pytest.mark.parametrize("page", [FLOWER, FLARE])
def test_python_of_a_page_is_part_of_the_example(page: str) -> None:
    files = [path.read_text() for path in ROOT.glob("examples/**/*.py")]
    for block in (block for block in BLOCKS if (block.page, block.language) == (page, "python")):
        bare = textwrap.dedent(block.text)
        assert any(bare in textwrap.dedent(text) or block.text in text for text in files), block.first


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("audit.py", "fedaudit", "fedaudit_recorder.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def shell(script: str, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script of a page, with this project's `python` before all others."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        ["bash", "-ec", script], cwd=place, env=given, capture_output=True, text=True, check=False, timeout=900
    )


def scripts(page: str) -> list[str]:
    return [block.text for block in shell_blocks() if block.page == page]


def installed(script: str, name: str) -> str:
    """The requirement of the framework that a script installs."""
    words = script.replace('"', "").split()
    return next(word for word in words if word.startswith(name))


def no_word_of_the_recording(place: Path) -> pd.DataFrame:
    """The findings of the one audit, which doubted nothing."""
    (table,) = (place / "fedaudit-runs/reports").glob("*/findings.csv")
    findings = pd.read_csv(table)
    assert [*findings[findings.metric == "recording"].check] == ["members"]  # a note: three clients are too few
    assert findings.doubt.isna().all()
    own = read(place / "my-run")
    assert own.remarks == []
    assert (own.rounds, own.clients, own.cohorts) == (3, 3, ((0, 1, 2),) * 3)
    rows = findings[(findings.metric == "auroc") & findings.headline & (findings.nonmembers == "held-out")]
    assert {*rows.threat_model} == {"released-model", "server"}
    assert rows[rows.threat_model == "server"].value.max() > 0.7
    return findings


@contextlib.contextmanager
def superlink(flower: Path, place: Path) -> Iterator[dict[str, str]]:
    """Variables with which `flwr run` finds a SuperLink of this test, which ends with all that it started."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(2):
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            ports.append(str(taken.getsockname()[1]))
    variables = {
        "FLWR_HOME": str(place / "flwr"), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": ports[0],
        "FLWR_LOCAL_CONTROL_API_PORT": ports[1], "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1", "RAY_TMPDIR": "/tmp", "PATH": f"{flower / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    elsewhere = place / "elsewhere"  # as where somebody started it days ago
    elsewhere.mkdir()
    command = [
        str(flower / "bin/flower-superlink"), "--insecure", "--simulation", "--disable-runtime-dependency-installation",
        "--host", "127.0.0.1", "--port", ports[0], "--control-api-address", f"127.0.0.1:{ports[1]}",
    ]  # fmt: skip
    with (elsewhere / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=elsewhere, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in range(120):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(ports[0]))):
                break
            time.sleep(0.5)
        yield variables
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow  # Flower itself, in an environment that pip makes; quick: a made-up grid, above
def test_flower(checkout: Path) -> None:
    """The tutorial, a client that fails in a simulation, and the workflow's audit."""
    install, copy, data, train, audit, gate = scripts(FLOWER)
    flower = environment("flower", installed(install, "flwr"))
    for script in (copy, data):
        assert shell(script, checkout).returncode == 0
    with superlink(flower, checkout) as variables:
        run = shell(train, checkout, **variables)
        assert (checkout / "my-run/models/round-003.safetensors").is_file(), run.stdout + run.stderr
        result = shell(audit, checkout)
        assert result.returncode == 0, result.stderr
        no_word_of_the_recording(checkout)
        result = shell(gate, checkout)
        assert (result.returncode, "failed: server auroc.low > 0.6" in result.stderr) == (1, True)

        client = checkout / "examples/flower/fedlora/client_app.py"
        head, line, tail = client.read_text().partition("    model = load_model(")
        failure = '    if client == 2 and message.content["config"]["server-round"] > 1:\n        raise RuntimeError("failed")\n'
        client.write_text(head + failure + line + tail)
        server = checkout / "examples/flower/fedlora/server_app.py"
        plain = "FedAvg(fraction_evaluate=0.0, min_available_nodes=3)"
        clipping = f"DifferentialPrivacyServerSideFixedClipping({plain}, 0.01, 0.1, 3)"
        text = server.read_text().replace(plain, clipping)
        text = text.replace("FedAvg\n", f"FedAvg, {clipping.partition('(')[0]}\n")
        server.write_text(text.replace('method="fedavg"', 'method="fedavg", aggregation="noise"'))
        train = train.replace("/my-run'\"", "/noised'\"").replace("photos=", "local-epochs=1 photos=")
        run = shell(train, checkout, **variables)
        assert (checkout / "noised/models/round-003.safetensors").is_file(), run.stdout + run.stderr
    for name in ("members.jsonl", "nonmembers.jsonl", "reference.jsonl", "coins.json"):
        shutil.copy(checkout / "my-run" / name, checkout / "noised")
    shutil.copytree(checkout / "my-run/images", checkout / "noised/images")
    own = read(checkout / "noised")
    assert own.cohorts == ((0, 1, 2), (0, 1), (0, 1))
    assert "failed" in (checkout / "noised/rounds.json").read_text()
    assert [remark.check for remark in own.remarks] == ["aggregation", "models"]
    assert "does not change in rounds 1 and 2" in own.remarks[1].sentence  # Flower's wrapper waits for all replies


@pytest.mark.slow  # NVFlare itself, in an environment that pip makes; quick: its Python is the example's, above
def test_nvflare(checkout: Path) -> None:
    (script,) = scripts(FLARE)
    flare = environment("nvflare", installed(script, "nvflare="))
    *_, third = script.split("peft pillow safetensors torch transformers\n")
    (checkout / "nvflare").symlink_to(flare)
    workspace = {"NVFLARE_SIMULATOR_WORKSPACE_ROOT": str(checkout / "workspace")}
    result = shell(third, checkout, **workspace)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr
    assert "processing error in task" not in result.stdout + result.stderr
    no_word_of_the_recording(checkout)
