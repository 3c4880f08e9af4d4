"""Whatever learners of prompts compute is the same on a GPU as on the processor, and no round waits for the device.

A stand-in GPU (tests/standin.py) computes real numbers and refuses what CUDA refuses. It is registered for a whole
process that has not computed anything, so that its programs (tests/on_standin.py) run beside this one.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedaudit.command import plans
from fedaudit.command.cli import read_command
from fedaudit.machinery import devices
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline import provenance
from fedaudit.pipeline.workers import resources_of
from fedaudit.trainers.learners import METHODS
from tests import standin
from tests.on_standin import difference

ROOT = Path(__file__).parents[1]
LEARNERS = ("prompts", "maple")
needs_standin = pytest.mark.skipif(not standin.available() or not hasattr(os, "fork"), reason="needs torch 2.10")

# tensors that are made without a device, and `.numpy()` without `.cpu()`, by where that is right
MAKERS = set("tensor zeros ones empty full arange eye linspace from_numpy".split())
ON_HOST = {
    "attacks/gradients.py": ("gradient_norms", "descents", "change"),  # of gradients in states
    "attacks/questions/classes.py": ("public_records",),  # places among classes
    "attacks/tokens/signals.py": ("_scratch",),
    "fedaudit/backbones/clip_text.py": ("texts",),  # what looks up rows of tables of the device
    "fedaudit/backbones/vlm.py": ("batch", "_inputs", "_encoded"),  # token ids, before they are sent
    "fedaudit/backbones/vlm_batches.py": ("extend_input", "unpack_tensors"),
    "fedaudit/backbones/vlm_loading.py": ("_text",),
    "trainers/rounds.py": ("_round",),  # a client's fact
    "trainers/dp2fl.py": ("update",),  # a client's number
    "trainers/evaluations.py": ("_personal",),  # places among classes
    "trainers/fedotp.py": ("_on_host",),
    "trainers/lora.py": ("initial",),  # a state
    "trainers/maple.py": ("log_probs", "predicted"),  # `logits_for` is on the host
    "trainers/pfedme.py": ("replay",),  # states
    "trainers/prompt_model.py": ("labels", "recognised"),
    "trainers/prompts.py": ("minibatch", "class_gradients"),
    "trainers/secfpp.py": "start update model_selector replay aggregate _on_shares _reduced _inverse_root _carried _clusters".split(),  # shares
}


@pytest.fixture(scope="module")
def on_standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """What a program of tests/on_standin.py writes: all run in forks of one process."""
    folder, command = tmp_path_factory.mktemp("standin"), [sys.executable, "-m", "tests.on_standin", "serve"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(what: str, *words: str) -> Any:
        file = folder / f"{what.replace(':', '-')}.json"
        print(json.dumps([what, str(file), *words]), file=server.stdin, flush=True)
        assert int(server.stdout.readline()) == 0
        return json.loads(file.read_text())

    with server:
        yield run
        server.stdin.close()


@needs_standin
def test_the_stand_in_refuses_what_cuda_refuses_and_counts_what_waits(on_standin: Callable[..., Any]) -> None:
    said = on_standin("faults")
    refused = {
        "two devices": "same device", "a host matrix": "same device", "numpy": "numpy", "a host generator": "generator",
    }  # fmt: skip
    for name, word in refused.items():
        assert word in said.pop(name)
    for here, there, off in (([1, np.nan], [1, np.nan], 0), ([0.0], [-0.0], 5e-324), ([1], [np.nan], np.inf)):
        assert difference({"a": np.array(here)}, {"a": np.array(there)}) == off, "no difference is overlooked"
    waits = {"item": "1 reads", "tolist": "1 reads", "a mask": "1 reads"}
    assert said == {name: waits.get(name, "0 reads") for name in said}
    assert said.keys() >= waits.keys()


@needs_standin
def test_the_stand_in_for_apples_gpu_refuses_double_precision(on_standin: Callable[..., Any]) -> None:
    said = on_standin("apple:faults")
    allowed = {"narrowed on the way", "by a double"}
    assert said.keys() > allowed | {"no kernel"}
    assert said == dict.fromkeys(said, "TypeError") | {"no kernel": "NotImplementedError"} | dict.fromkeys(allowed, "")


@needs_standin
@pytest.mark.parametrize("device", ["", "apple:"])
def test_double_precision_is_the_processors(device: str, on_standin: Callable[..., Any]) -> None:
    off = on_standin(f"{device}doubles")
    assert {off.pop(name) for name in ("double", "residuals", "inner products")} == {0.0}
    # a GPU with float64 takes the logarithms and sums of `signals` itself, and in other chunks
    assert max(off.values()) <= (0.0 if device else 1e-12)


@needs_standin
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(
    ("device", "variants", "of_each"),
    [
        ("", [], {"train", "evaluate"}),
        # quick: every method on the stand-in for CUDA, double precision on both
        pytest.param("apple:", [], {"train", "evaluate"}, marks=pytest.mark.slow),
        # every variant, clipped, noised and attacked by everyone; quick: every method as it is, the four kinds of
        # messages attacked by who sees most
        pytest.param("", ["all"], {"train", "evaluate", "resume"}, marks=pytest.mark.slow),
    ],
)
def test_numbers_are_those_of_the_processor_and_nothing_waits(
    learner: str, device: str, variants: list[str], of_each: set[str], on_standin: Callable[..., Any]
) -> None:
    """Each row is equal to the byte, and every method of the learner has the rows `of_each`, some method all."""
    rows: list[Mapping[str, Any]] = on_standin(f"{device}{learner}", *variants)
    assert [row for row in rows if row["off"] or row["reads"]] == []
    for name in (name for name, plugin in METHODS.items() if plugin.facts.learner == learner):
        assert {row["what"] for row in rows if row["method"] == name} >= of_each, name
    assert {row["what"] for row in rows} >= {"resume", "what attacks ask"}


LORA = "--method fedavg --attack loss,cosine --rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 4 --test 2 --local-steps 1"
DOUBLES = LORA.replace("loss,cosine", "loss,cosine,maxrenyi,projres,decompose")  # what they ask for is in float64
PROMPTS = (
    "--method promptfl --attack loss,cosine,lira --shadows 4 --rounds 2 --clients 2 --train 6 --test 1 --epsilon 1"
)
DUAL = "--method dp2fl --attack loss,cosine --rounds 1 --clients 2 --test 1"


@needs_standin
@pytest.mark.slow  # whole audits; quick: what each learner computes, and the choice of a device
@pytest.mark.parametrize(
    ("what", "device", "words"),
    [
        *(("command", "cuda", words) for words in (LORA, PROMPTS, DUAL)),
        *(("apple:command", "mps", words) for words in (DOUBLES, PROMPTS, DUAL)),
    ],
)
def test_a_command_on_the_device_finds_what_the_processor_finds(
    what: str, device: str, words: str, on_standin: Callable[..., Any]
) -> None:
    """For one method of each learner, from training to the report. Adapters differ in their last digits, so that scores
    of two records may be equal or not, by which permutations are counted."""
    did = on_standin(what, *words.split())
    assert did["chosen"] == [device, "cpu"]
    assert did["findings"] > 10
    assert did["off"].keys() <= ({"p_adjusted", "sentence"} if "fedavg" in words else set())


def test_auto_is_cuda_where_a_driver_and_torch_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(plans, "DRIVERS", (tmp_path / "none",))
    assert read_command(PROMPTS.split()).plan.device == "cpu"
    monkeypatch.setattr(plans, "DRIVERS", (tmp_path / "none", tmp_path))
    found = [read_command(words.split()).plan for words in (LORA, PROMPTS, DUAL)]
    assert [(plan.device, plan.workers) for plan in found] == [("cuda", 1)] * 3


def test_mps_is_where_torch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "DRIVERS", ())

    def planned(platform: str, *more: str) -> Any:
        with monkeypatch.context() as on:
            on.setattr(plans.sys, "platform", platform)
            return read_command([*PROMPTS.split(), *more]).plan

    for available in (False, True):
        monkeypatch.setattr("torch.backends.mps.is_available", lambda available=available: available)
        for platform, device in (("linux", "cpu"), ("darwin", "mps" if available else "cpu")):
            plan = planned(platform)
            assert (plan.device, plan.workers) == (device, 1 if device == "mps" else plan.threads)
    assert planned("darwin", *"--engine ray --worker-gpus 1".split()).device == "cpu"  # its workers may be elsewhere
    named = planned(sys.platform, "--device", "mps")
    assert (named.device, named.workers, resources_of(named).threads) == ("mps", 1, 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert planned("darwin").device == "cuda"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "torch finds no Apple GPU"),
        ("--matmul-precision tf32", "GPU has no TF32"),
        ("--engine ray", "Ray gives work"),
    ],
)
def test_what_apples_gpu_cannot_do(flags: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: bool(flags))
    with pytest.raises(InputError, match=words):
        read_command([*PROMPTS.split(), "--device", "mps", *flags.split()])


def test_apples_gpu_has_a_name_and_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mps.get_name", lambda: "Apple M9", raising=False)
    monkeypatch.setattr("torch.mps.recommended_max_memory", lambda: 3 << 30)
    assert provenance.machine("mps") == provenance.machine("cpu") + ", Apple M9"
    assert [devices.memory(torch.device(kind)) for kind in ("cpu", "mps")] == [None, 3 << 30]
    monkeypatch.delattr("torch.backends.mps.get_name")
    assert devices.name("mps") == "Apple GPU"


def sources() -> Iterator[tuple[str, str, str]]:
    """File, function and code of whatever makes a tensor without a device, or reads one as NumPy without copying it."""
    files = [*ROOT.glob("trainers/*.py"), *ROOT.glob("fedaudit/backbones/*.py"), *(ROOT / file for file in ON_HOST)]
    for path in sorted({*files}):
        tree = ast.parse(path.read_bytes())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and careless(node, node.func):
                inside = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
                yield path.relative_to(ROOT).as_posix(), inside[-1].name if inside else "", ast.unparse(node)


def careless(call: ast.Call, function: ast.Attribute) -> bool:
    of = function.value
    if function.attr == "numpy":
        return not (isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute) and of.func.attr == "cpu")
    makes = isinstance(of, ast.Name) and of.id == "torch" and function.attr in MAKERS
    return makes and not any(word.arg == "device" for word in call.keywords)


def test_code_that_sees_the_device_says_where_its_tensors_are() -> None:
    places = [(file, name, code) for file, name, code in sources() if name not in ON_HOST.get(file, ())]
    assert not places, "say device=, or copy with .cpu(), or allow it in ON_HOST because it is of the host"


def test_nothing_is_allowed_in_vain() -> None:
    allowed = {(file, name) for file, names in ON_HOST.items() for name in names}
    assert allowed <= {(file, name) for file, name, _ in sources()}
