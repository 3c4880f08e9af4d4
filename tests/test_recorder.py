"""The recorder: what somebody else's loop writes with it is what our own export writes, whatever interrupts it."""

import ast
import concurrent.futures
import contextlib
import itertools
import json
import multiprocessing
import multiprocessing.process
import os
import runpy
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fedaudit
import fedaudit_recorder
from fedaudit.contracts.method_worlds import CLIENTS, ROUNDS
from fedaudit.external import adapters, reading, round_notes, schema, tensors
from fedaudit.external.names import ClientNames
from fedaudit.external.reading import read
from fedaudit.external.run import OwnRun
from fedaudit.machinery.errors import InputError
from fedaudit.trainers.transcript import Transcript
from fedaudit_recorder import Recorder
from tests import test_prompt_runs as prompt_runs
from tests.recorder_loops import LOOPS, SAID, model, plain, recorder, sent, train_round, uploaded
from tests.small_run import A, B, adapter, line, put
from tests.test_ownrun import ABOUT, EPSILON, METHODS, SCHEDULE, assert_same_transcripts, exported, transcript
from tests.toy import toy_run

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")  # flushing takes most of the time
ROOT = Path(__file__).parents[1]
FILE = ROOT / "fedaudit_recorder.py"
LISTS = ("members.jsonl", "nonmembers.jsonl", "reference.jsonl", "novel.jsonl", "test.jsonl", "novel_test.jsonl")


def with_lists(folder: Path, clients: Any = (0, 1, 2)) -> Path:
    """The lists of records that a run needs, with one member and one non-member of each client."""
    (folder / "images").mkdir(exist_ok=True)
    for word, name in {"m": "members", "o": "nonmembers"}.items():
        lines = [line(f"{word}{k}", k, image=f"images/{word}{i}.png") for i, k in enumerate(clients)]
        put(folder / f"{name}.jsonl", lines)
        for i, _ in enumerate(clients):
            pixels = np.full((2, 2, 3), 2 * i + (word == "m"), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{word}{i}.png")
    return folder


def of_classes(folder: Path, label: str) -> Path:
    """The lists of a folder as those of prompts."""
    for path in (folder / f"{name}.jsonl" for name in ("members", "nonmembers")):
        lines = [json.loads(text) | {"class": label} for text in path.read_text().splitlines()]
        put(path, [{key: value for key, value in one.items() if key != "text"} for one in lines])
    return folder


def test_what_is_moved_to_its_place_is_flushed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    moved: list[bool] = []
    replace = os.replace

    def replacing(source: Any, target: Any) -> None:
        if "temporary-" in str(source):
            moved.append(str(source) in seen)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(os.readlink(f"/proc/self/fd/{handle}")))
    monkeypatch.setattr(os, "replace", replacing)
    plain(tmp_path)
    assert len(moved) > 20
    assert all(moved)


def files_of(folder: Path) -> dict[str, bytes]:
    """Content by name of all files of a run; none of the recorder's own."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths if ".recorder" not in p.parts}


def assert_same_files(one: Path, other: Path) -> None:
    ours, theirs = files_of(one), files_of(other)
    assert ours.keys() == theirs.keys()
    assert [name for name, content in ours.items() if content != theirs[name]] == []


def with_records_of(export: Path, folder: Path) -> Path:
    """The folder with the lists and pictures of an export."""
    for name in LISTS:
        shutil.copy(export / name, folder)
    shutil.copytree(export / "images", folder / "images")
    return folder


def refused(message: str, call: Callable[..., object], *given: Any) -> None:
    with pytest.raises(ValueError, match=message):
        call(*given)


def assert_equal(found: Any, expected: Any) -> None:
    """Tensors, or dicts of them, to the last bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_same_tensors(one: Path, other: Path) -> None:
    ours, theirs = ({n for n in files_of(folder) if n.endswith(".safetensors")} for folder in (one, other))
    assert ours == theirs
    for name in ours:
        assert_equal(load_file(one / name), load_file(other / name))


def record(transcript: Transcript, recording: Recorder) -> None:
    """What a loop does, with a transcript's states."""
    rounds = transcript.schedule.rounds
    recording.utility("initial", transcript.initial["utility"])
    for r in range(rounds):
        recording.broadcast(r, transcript.broadcast(r), bytes_down=transcript.round(r)["bytes_down"])
        said = transcript.round(r)["uploads"]
        for k in transcript.cohort(r):
            note = {key: said[str(k)][key] for key in ("records", "facts", "bytes", "kept")}
            recording.upload(r, k, transcript.upload(r, k), **note)
            own = transcript.own_part(r, k) if recording.kind == "prompts" else transcript.own_model(r, k)
            if own is not None and said[str(k)]["owner"]:
                recording.owner(r, k, own)
        recording.utility(r, transcript.round(r)["utility"])
    recording.close(transcript.broadcast(rounds))


@pytest.fixture(scope="module", params=METHODS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return toy_run(tmp_path_factory.mktemp("toy"), METHODS[request.param], schedule=SCHEDULE, noise=0.1, layers=2)


class TestSameAsExport:
    def test_of_adapters(self, original: Transcript, tmp_path: Path) -> None:
        export = exported(original, tmp_path / "export")
        record(original, Recorder(tmp_path / "run", **ABOUT, **EPSILON, score="captions"))
        assert_same_tensors(export, with_records_of(export, tmp_path / "run"))
        assert_same_transcripts(original, transcript(tmp_path / "run", tmp_path / "again"))
        ours, theirs = read(tmp_path / "run"), read(export)
        for field in ("method", "task", "seed", "backbone", "score", "claimed", "provable", "numbers", "names"):
            assert getattr(ours, field) == getattr(theirs, field)
        assert ours.trained == theirs.trained
        assert list(ours.federation.truth.items()) == list(theirs.federation.truth.items())
        assert {remark.check for remark in ours.remarks} <= {"uploads"}

    @pytest.mark.parametrize("name", ["promptfl", "fedotp", "fedpgp", "local", "fedmaple"])  # other tensors each
    def test_of_prompts(self, name: str, tmp_path: Path) -> None:
        export, transcript = prompt_runs.exported(name, tmp_path)
        about = json.loads((export / "run.json").read_text())
        about = {key: value for key, value in about.items() if key not in ("format", "gaps")}
        record(transcript, Recorder(tmp_path / "mine", **about))
        assert_same_tensors(export, with_records_of(export, tmp_path / "mine"))
        _, method = prompt_runs.trained(name)
        again = prompt_runs.transcript_of(tmp_path / "mine", tmp_path / "again", method)
        assert_same_transcripts(transcript, again)
        for r, k in itertools.product(range(ROUNDS), range(CLIENTS)):
            assert_equal(again.own_part(r, k), transcript.own_part(r, k))


def test_several_clients_in_one_peft_model(tmp_path: Path) -> None:
    """peft hands out the model's own tensors."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    model = adapted()
    server = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}
    assert torch.count_nonzero(next(t for n, t in server.items() if "lora_B" in n)) == 0
    sent: dict[int, dict[str, torch.Tensor]] = {}
    with Recorder(tmp_path / "run", **SAID) as recording:
        for r in range(2):
            set_peft_model_state_dict(model, server)
            recording.broadcast(r, get_peft_model_state_dict(model))
            for k in (0, 2):
                set_peft_model_state_dict(model, server)
                with torch.no_grad():
                    for name, weight in model.named_parameters():
                        if "lora" in name:
                            weight += 0.1 * (k + 1) * torch.rand_like(weight)
                recording.upload(r, k, get_peft_model_state_dict(model), records=5)
                recording.owner(r, k, get_peft_model_state_dict(model))
                sent[k] = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}
            server = {name: (sent[0][name] + sent[2][name]) / 2 for name in server}
        recording.close(server)
    for k, state in sent.items():
        for file in (f"uploads/round-001/client-0{k}.safetensors", f"owners/client-0{k}.safetensors"):
            assert_equal(load_file(tmp_path / "run" / file), state)
    own = read(with_lists(tmp_path / "run"))
    assert own.cohorts == ((0, 2), (0, 2))
    assert [remark.check for remark in own.remarks] == []


def adapted(layers: int = 1, **config: Any) -> Any:
    """A peft model of adapted linear layers."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    frozen = torch.nn.ModuleList([torch.nn.ModuleDict({"q_proj": torch.nn.Linear(4, 3)}) for _ in range(layers)])
    settings = {"r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]} | config
    return get_peft_model(torch.nn.ModuleDict({"layers": frozen}), LoraConfig(**settings))


def recorded_of(model: Any, place: Path, **about: Any) -> OwnRun:
    """The run of a recorder that was given the model, as it is read."""
    from peft import get_peft_model_state_dict

    with Recorder(
        place, method="m", task="t", backbone="embedded", model=model, **{"prompt": "<image>"} | about
    ) as recording:
        recording.broadcast(0, get_peft_model_state_dict(model))
        trained = {name: tensor + 0.5 for name, tensor in get_peft_model_state_dict(model).items()}
        recording.upload(0, 0, trained)
        recording.close(trained)
    return read(with_lists(place))


class TestScale:
    """alpha is read of the modules of the model, and attacks ask each layer at its own scale."""

    def test_it_is_read_of_the_model(self, tmp_path: Path) -> None:
        model = adapted(2, alpha_pattern={"layers.1.q_proj": 6})
        own = recorded_of(model, tmp_path / "run")
        assert own.trained.alpha / own.trained.rank == 1.0, "of the first layer"
        before, after = (own.models[1].load()[f"layers.{i}.q_proj.B"] for i in range(2))
        assert_equal({"B": after}, {"B": 3 * before})

    @pytest.mark.parametrize("config", [{}, {"use_rslora": True}, {"lora_alpha": 7}])
    def test_as_peft_has_it(self, config: dict[str, Any], tmp_path: Path) -> None:
        model = adapted(**config)
        (scale,) = {m.scaling["default"] for m in model.modules() if hasattr(m, "scaling")}
        own = recorded_of(model, tmp_path / "run")
        assert own.trained.alpha / own.trained.rank == pytest.approx(scale)
        assert own.trained.scale_read

    def test_what_contradicts_it_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="alpha is 4, and the model's adapters make it 2; leave alpha out"):
            recorded_of(adapted(), tmp_path / "run", alpha=4)
        with pytest.raises(ValueError, match="model holds no LoRA of peft"):
            Recorder(tmp_path / "run", method="m", task="t", backbone="b", model=torch.nn.Linear(2, 2))
        recorded_of(adapted(), tmp_path / "run")
        for change, message in (
            ({"alpha": 4}, "alpha is 4, and scaling makes it 2"),
            ({"scaling": {"layers.1.q_proj": 1.0}}, "has the layer layers"),
            ({"scaling": {"layers.0.q_proj": 0}}, "an object with a number above 0 for each layer"),
        ):
            run = shutil.copytree(tmp_path / "run", tmp_path / "other", dirs_exist_ok=True)
            put(run / "run.json", json.loads((run / "run.json").read_text()) | change)
            with pytest.raises(InputError, match=message):
                read(run)
        put(run / "run.json", json.loads((tmp_path / "run" / "run.json").read_text()))
        put(run / "adapter_config.json", {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj"]})
        with pytest.raises(InputError, match=r"scaling of layers.0.q_proj is 1, and .* makes it 4"):
            read(run)


class PromptLearner(torch.nn.Module):
    """As CoOp's: a context, and buffers of the classes' names in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.ctx = torch.nn.Parameter(torch.zeros(4, 8))
        self.register_buffer("token_prefix", torch.ones(2, 1, 8, dtype=torch.float16))
        self.register_buffer("token_suffix", torch.full((2, 70, 8), 3, dtype=torch.float16))


@pytest.mark.parametrize("own", [False, True])
def test_a_loop_of_coop(own: bool, tmp_path: Path) -> None:
    learner = PromptLearner()
    server = {"ctx": learner.ctx.detach().clone()}
    about = {"method": "coop", "task": "pets", "backbone": "ViT-B-16", "weights": "openai", "classes": ["cat", "dog"]}
    recording = Recorder(tmp_path / "run", kind="prompts", **about)
    for r in range(3):
        learner.load_state_dict(server, strict=False)
        recording.broadcast(r, learner.state_dict())
        states = []
        for k in range(2):
            learner.load_state_dict(server, strict=False)
            with torch.no_grad():
                learner.ctx += k + r + 1.0
            recording.upload(r, k, learner.state_dict(), records=7)
            if own:
                recording.owner(r, k, {"ctx": learner.ctx * 2})
            states.append(learner.ctx.detach().clone())
        server = {"ctx": sum(states) / 2}
    learner.load_state_dict(server, strict=False)
    recording.close(learner.state_dict())
    run = of_classes(with_lists(tmp_path / "run", (0, 1)), "cat")
    found = read(run)
    assert (found.trained.rule, found.rounds) == ("fedotp" if own else "promptfl", 3)
    assert found.trained.start_token is not None
    assert torch.equal(found.uploads[2][1].load()["p_G"], states[1])
    assert "token_suffix" not in load_file(run / "models" / "round-000.safetensors")
    if own:
        assert torch.equal(found.private[2][0].load()["p_L"], states[0] * 2)
    else:
        assert [remark.check for remark in found.remarks] == []


def test_states_of_any_kind(tmp_path: Path) -> None:
    """Parameters, views that are not contiguous, shared memory, numpy's arrays, a mixture of dtypes."""
    a, b = torch.arange(2.0).reshape(1, 2), torch.arange(3.0).reshape(3, 1)
    shared, wide = torch.arange(8.0), torch.arange(12.0).reshape(3, 4)
    backwards = np.arange(3.0, dtype=np.float32).reshape(3, 1)[::-1]
    backwards.flags.writeable = False
    states = [
        OrderedDict({A: torch.nn.Parameter(a), B: torch.nn.Parameter(b)}),
        {A: shared[:2].reshape(1, 2), B: shared[1:4].reshape(3, 1)}, {A: wide.t()[:2, :1].t(), B: wide[:, 2:3]},
        {A: a.numpy().astype(np.float64), B: backwards}, {A: a[:, :1].expand(1, 2), B: b.half()},
        {A: a.bfloat16(), B: b.double()},
    ]  # fmt: skip
    recording = recorder(tmp_path)
    recording.broadcast(0, states[0])
    for k, state in enumerate(states):
        recording.upload(0, k, state)
    recording.close(states[0])
    for k, state in enumerate(states):
        kept = load_file(tmp_path / f"uploads/round-000/client-{k:02d}.safetensors")
        for name, given in state.items():
            given = torch.from_numpy(given.copy()) if isinstance(given, np.ndarray) else given.detach()
            assert_equal(kept[name], given)


def test_it_imports_nothing_of_the_suite_and_holds_no_state_twice(tmp_path: Path) -> None:
    """48 MB in six tensors: the process grows by less than one state, however many rounds there are."""
    script = """
        import resource, sys, torch
        from fedaudit_recorder import Recorder
        print(*{"fedaudit", "trainers", "attacks", "audits", "reports"} & set(sys.modules))
        state = {f"layers.{i}.q.{h}": torch.rand(s) for i in range(3) for h, s in (("A", (2, 10**6)), ("B", (10**6, 2)))}
        recording = Recorder(sys.argv[1], method="m", task="t", backbone="b")
        grown = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        before = grown()
        for r in range(3):
            recording.broadcast(r, state)
            recording.upload(r, 0, state)
        print(grown() - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "run")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    imported, megabytes = done.stdout.splitlines()
    assert imported == ""
    assert float(megabytes) < 30


@pytest.fixture
def begun(tmp_path: Path) -> Recorder:
    recording = recorder(tmp_path / "run")
    recording.broadcast(0, adapter(0))
    return recording


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({A: torch.tensor([[1.0, NAN]])}, rf"upload of client 4 in round 0: {A} \[1, 2\] holds nan at \[0, 1\]"),
        ({B: torch.tensor([[0.0], [-INF], [0]])}, rf"{B} \[3, 1\] holds -inf at \[1, 0\]"),
        ({A: torch.tensor([[1e5, 0]])}, r"holds 100000 at \[0, 0\].*between -10000 and 10000"),
        ({A: torch.tensor([[6e4, 0]]).half()}, "holds 6.*between"),
        ({A: torch.tensor([[NAN, 0]]).bfloat16()}, "holds nan"),
        ({A: torch.tensor([[1e300, 0]], dtype=torch.float64)}, r"holds 1e\+300"),
        ({A: torch.ones(2, 2)}, r"has shape \[2, 2\], where the first model has \[1, 2\]"),
        ({A: torch.ones(1, 2).int()}, rf"{A} \[1, 2\] is torch.int32; valid are torch.float64"),
        ({A: np.ones((1, 2), np.int64)}, "is torch.int64"),
        ({A: np.array([["a", "b"]])}, "can't convert np.ndarray"),
        ({A: [[1.0, 2.0]]}, "is no tensor but list"),
        ({A: torch.ones(1, 0)}, "holds no numbers"),
        ({A: torch.ones(1, 2).to_sparse()}, "no dense tensor"),
        ({A: torch.ones(1, 2, device="meta")}, "no dense tensor"),
        ({A: torch.ones(2)}, "a factor of an adapter is a matrix"),
        ({"layers.1.q_proj.A": torch.ones(1, 2)}, r"layers.1.q_proj.A \[1, 2\] is not in the first model, which has"),
        ({"layers.0.q_proj.weight": torch.ones(1, 2)}, r"is no factor.*get_peft_model_state_dict\(model\)"),
        ({"vision_tower.layers.0.q_proj.A": torch.ones(1, 2)}, "adapts what reads pictures"),
        ({3: torch.ones(1, 2)}, "3 is no name of a tensor"),
        ([torch.ones(1, 2)], "must be a dict of tensors by name, not list"),
    ],
)
def test_uploads_that_could_not_be_audited(state: Any, message: str, begun: Recorder) -> None:
    before = files_of(Path(begun.folder))
    with pytest.raises(ValueError, match=message):
        begun.upload(0, 4, state)
    assert files_of(Path(begun.folder)) == before
    stage = Path(begun.folder, ".recorder", "round-000")
    assert [path for path in stage.rglob("*") if path.is_file()] == [], "nothing is recorded"


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (-1, "numbers of clients are 0 to 99999"), (100_000, r"pass larger ones as texts, str\(100000\)"),
        (1.5, "a client is a whole number or a text, not 1.5"), (None, "a whole number or a text"),
        ("", "a name is one line"), ("a\nb", "a name is one line"), (" a", "a name is one line"),
        ("a" * 101, "at most 100 bytes"),
    ],
)  # fmt: skip
def test_clients_that_could_not_be_named(client: Any, message: str, begun: Recorder) -> None:
    refused(message, begun.upload, 0, client, adapter(1))
    refused(message, begun.owner, 0, client, adapter(1))
    refused(message, begun.failed, 0, client)


@pytest.mark.parametrize("client", ["ward 2/ICU", "50 %", "a\\b", "../a", "a%2Fb"])
def test_any_line_names_a_client(client: str, begun: Recorder) -> None:
    begun.upload(0, client, adapter(1), records=5)
    begun.close(adapter(1))
    (file,) = Path(begun.folder, "uploads/round-000").iterdir()
    names = ClientNames((client,))
    assert names.number(file.stem.removeprefix("client-")) == names.number(client) == 0
    assert json.loads(Path(begun.folder, "rounds.json").read_text()) == {"0": {"uploads": {client: {"records": 5}}}}


def test_numbers_of_numpy_are_numbers_and_texts_do_not_stand_beside_numbers(begun: Recorder) -> None:
    begun.upload(np.int64(0), np.int32(1), adapter(1), records=np.int64(5))
    refused("clients before it were named by numbers", begun.upload, 0, "a", adapter(1))
    begun.close(adapter(1))
    assert json.loads(Path(begun.folder, "rounds.json").read_text()) == {"0": {"uploads": {"1": {"records": 5}}}}


def test_rounds_come_in_their_order(tmp_path: Path) -> None:
    recording = recorder(tmp_path / "run")
    refused("the model of round 1: the next is round 0; rounds are counted from 0", recording.broadcast, 1, adapter(0))
    refused("no round is open", recording.upload, 0, 0, adapter(0))
    refused("no round is open", recording.close, adapter(0))
    recording.broadcast(0, adapter(0))
    refused("round 0 is open; broadcast", recording.upload, 1, 0, adapter(0))
    refused("round 0 has no upload and no failed client", recording.broadcast, 1, adapter(0))
    recording.upload(0, 0, adapter(1))
    refused("the next is round 1", recording.broadcast, 2, adapter(1))
    recording.broadcast(1, adapter(1))
    refused("round 1 is open", recording.upload, 0, 1, adapter(1))
    recording.failed(1, 0)
    recording.close(adapter(1))
    refused("the recording is closed", recording.broadcast, 2, adapter(1))
    refused("the recording is closed", recording.failed, 1, 1)
    recording.close(adapter(1))  # again: nothing
    assert read(with_lists(tmp_path / "run")).rounds == 2


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "holds no tensors"),
        ({A: torch.ones(1, 2)}, f"{A} is there without the other factor"),
        ({A: torch.ones(1, 2), B: torch.full((3, 1), NAN)}, "the model of round 0: .*holds nan"),
    ],
)
def test_first_models_that_could_not_be_audited(state: Any, message: str, tmp_path: Path) -> None:
    recording = recorder(tmp_path / "run")
    refused(message, recording.broadcast, 0, state)
    recording.broadcast(0, adapter(0))
    recording.upload(0, 0, adapter(1))
    refused(f"the model of round 1 lacks {B}", recording.broadcast, 1, {A: adapter(1)[A]})
    after = {A: adapter(1)[A], B: torch.full((3, 1), NAN)}
    refused("the model after round 0: .*holds nan", recording.close, after)
    recording.close(adapter(1))
    assert read(with_lists(tmp_path / "run")).rounds == 1


def test_an_owner_fits_the_first_model_but_for_its_rank_and_must_have_sent_something(begun: Recorder) -> None:
    more = adapter(1) | {"layers.1.q_proj.A": torch.ones(1, 2)}
    refused(f"lacks {B}, which the first model has", begun.owner, 0, 0, {A: torch.ones(1, 2)})
    refused("holds layers.1.q_proj.A, which is not in the first model", begun.owner, 0, 0, more)
    refused(r"has shape \[5, 7\]", begun.owner, 0, 0, {A: torch.ones(5, 7), B: torch.ones(3, 5)})
    begun.owner(0, 0, {A: torch.ones(5, 2), B: torch.ones(3, 5)})
    begun.upload(0, 1, adapter(1))
    refused(r"round 0: owner\(\) of client-00 without its upload", begun.close, adapter(1))
    begun.upload(0, 0, adapter(1))
    begun.close(adapter(1))
    assert read(with_lists(Path(begun.folder))).private[0].keys() == {0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "lora"}, "kind must be 'adapters' or 'prompts', not 'lora'"),
        ({"every": 0}, "every must be a whole number, 1 or more, not 0"),
        ({"method": ""}, "method: a name is one line"), ({"task": 3}, "task: a name is one line"),
        ({"alhpa": 3}, r"run.json of adapters has no key 'alhpa'.*valid are aggregation, alpha"),
        ({"format": 2}, "has no key 'format'"), ({"kind": "prompts"}, "run.json of prompts has no key 'alpha'"),
        ({"clients": ["a", "b/c\n"]}, "clients: a name"), ({"alpha": NAN}, "alpha"), ({"recipe": object()}, "recipe"),
    ],
)  # fmt: skip
def test_what_is_said_wrongly(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        recorder(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_prompts_need_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="prompts need classes="):
        Recorder(tmp_path / "run", method="m", task="t", backbone="b", kind="prompts")


def test_the_recorder_and_the_reader_know_the_same(tmp_path: Path) -> None:
    """Keys of run.json and rounds.json, names of adapters' tensors, limits."""
    assert fedaudit.Recorder is Recorder
    known = fedaudit_recorder._ABOUT | set().union(*fedaudit_recorder._ABOUT_KIND.values())
    ours = {"format", "method", "task", "backbone", "kind", "gaps"}
    assert known | ours == {
        *reading._NEEDED, *reading._OPTIONAL, *reading._SINCE_2, *reading._OF_ADAPTERS, *reading._OF_PROMPTS,
        *reading._NEEDED_OF_PROMPTS,
    }  # fmt: skip
    assert fedaudit_recorder._ABOUT_KIND["adapters"] == set(reading._OF_ADAPTERS)
    assert set(round_notes.UPLOAD) == fedaudit_recorder._NOTES
    assert set(schema._COLUMNS) == fedaudit_recorder._COLUMNS
    assert (fedaudit_recorder.LARGEST, fedaudit_recorder.CLIENTS) == (tensors.LARGEST, schema.CLIENTS)
    for name in (
        A, "layers.0.A", "h.0.attn.c_attn.lora_B.weight", "q_proj.A", "layers.x.q.A", "layers.0.q.lora_A",
        "base_model.model.layers.3.q_proj.lora_A.default.weight", "layers.0.q.C", "layers.0.q.lora_A.a.b.weight",
        "layers.0.q.A\n", "lm_head.lora_A.weight", "layers.0.q_proj.lora_magnitude_vector.weight",
    ):  # fmt: skip
        with pytest.raises(ValueError) if adapters.canonical(name) is None else contextlib.nullcontext(name):
            fedaudit_recorder._half(name, "")


def test_clients_by_texts(tmp_path: Path) -> None:
    names = ["8842903345701", "a b", "é"]
    recording = recorder(tmp_path / "run")
    for r in range(2):
        recording.broadcast(r, adapter(r))
        for i, name in enumerate(names[: r + 1]):
            recording.upload(r, name, adapter(r + i), records=i + 1)
            recording.owner(r, name, adapter(r + i))
        recording.failed(r, names[2])
    recording.close(adapter(2))
    assert set(json.loads((tmp_path / "run" / "run.json").read_text())["clients"]) == set(names)
    own = read(with_lists(tmp_path / "run", names))
    first, second, _ = (own.names.numbers[name] for name in names)
    assert own.cohorts == ((first,), tuple(sorted([first, second])))
    assert own.record_counts(1) == {first: 1, second: 2}


def test_clients_that_were_said_at_the_start(tmp_path: Path) -> None:
    recording = recorder(tmp_path / "run", clients=["b", "a"])
    recording.broadcast(0, adapter(0))
    refused("not among the clients given", recording.upload, 0, "c", adapter(1))
    recording.upload(0, "a", adapter(1))
    recording.close(adapter(1))
    assert read(with_lists(tmp_path / "run", "ab")).cohorts == ((1,),)


def test_failures(tmp_path: Path) -> None:
    recording = recorder(tmp_path / "run")
    recording.broadcast(0, adapter(0))
    recording.failed(0, 2)
    recording.upload(0, 0, adapter(1), records=3)
    recording.upload(0, 1, adapter(1), records=3)
    recording.failed(0, 1)  # its upload was given up
    recording.broadcast(1, adapter(1))
    recording.failed(1, 0)  # nobody sent anything
    recording.broadcast(2, adapter(1))
    recording.failed(2, 0)
    recording.upload(2, 0, adapter(2), records=4)  # on its second try
    recording.close(adapter(2))
    notes = json.loads((tmp_path / "run" / "rounds.json").read_text())
    first, last = ({"uploads": {"0": {"records": n}}} for n in (3, 4))
    assert notes == {"0": first | {"failed": [1, 2]}, "1": {"failed": [0]}, "2": last}
    assert read(with_lists(tmp_path / "run")).cohorts == ((0,), (), (0,))


def test_utility(tmp_path: Path) -> None:
    recording = recorder(tmp_path / "run")
    recording.utility("initial", {"global": {"loss": 3}})
    for r in range(2):
        recording.broadcast(r, adapter(r))
        if r:
            recording.utility(r - 1, {"novel": {"loss": None}})  # of a round that is over
        recording.upload(r, 0, adapter(r + 1))
        recording.utility(r, {"global": {"loss": np.float32(0.5), "cider": torch.tensor(2.0)}})
        recording.utility(r, members={"m0": torch.tensor(0.25)})
    refused("the utility of round 2: that round was not broadcast", recording.utility, 2, {"global": {"loss": 1}})
    for wrong in ({"global": {"loss": NAN}}, {"global": {"loss": "a"}}, {"global": {"seed": 1}}, {"global": 1.5}, 3):
        refused("the utility of round 1", recording.utility, 1, wrong)
    for members in ({"m": -1}, {"m": NAN}, {"m": "a"}, [1.0]):
        with pytest.raises(ValueError, match="the utility of round 1"):
            recording.utility(1, members=members)
    recording.close(adapter(2))
    said, loss = {"global": {"loss": 0.5, "cider": 2.0}}, {"m0": 0.25}
    assert read(with_lists(tmp_path / "run")).notes == {
        "initial": {"utility": {"global": {"loss": 3.0}}},
        "0": {"utility": said | {"novel": {"loss": None}}, "members": loss, "uploads": {}},
        "1": {"utility": said, "members": loss, "uploads": {}},
    }


def test_an_owner_of_an_earlier_round_is_no_owner(tmp_path: Path) -> None:
    """owners/ holds what clients had after their last participation."""
    recording = recorder(tmp_path / "run")
    for r in range(2):
        recording.broadcast(r, adapter(r))
        for k in (0, 1):
            recording.upload(r, k, adapter(r + 1))
            if r == 0 or k == 0:
                recording.owner(r, k, adapter(10 * r + k))
    recording.close(adapter(2))
    assert [path.name for path in (tmp_path / "run/owners").iterdir()] == ["client-00.safetensors"]
    assert float(load_file(tmp_path / "run/owners/client-00.safetensors")[A][0, 0]) == 10


@pytest.mark.parametrize(("rounds", "kept"), [(1, [0]), (3, [0, 2]), (7, [0, 3, 6]), (9, [0, 3, 6, 8])])
def test_some_rounds_are_kept(rounds: int, kept: list[int], tmp_path: Path) -> None:
    recording = recorder(tmp_path / "run", every=3)
    for r in range(rounds):
        train_round(recording, r)
        recording.utility(r, {"global": {"loss": r + 0.5}})
    recording.close(model(rounds))
    own = read(with_lists(tmp_path / "run"))
    models = sorted({r + i for r in kept for i in (0, 1)})
    assert own.numbers == models
    assert [own.numbers[i] for i, cohort in enumerate(own.cohorts) if cohort] == kept
    for i, r in enumerate(models[:-1]):
        assert torch.equal(own.models[i].load()[A], model(r)[A])
        assert not own.cohorts[i] or float(own.uploads[i][0].load()[A][0, 0]) == sent(r, 0)[A][0, 0]
    notes = json.loads((tmp_path / "run/rounds.json").read_text())
    assert [notes[str(r)]["utility"]["global"]["loss"] for r in range(rounds)] == [r + 0.5 for r in range(rounds)]
    assert {remark.check for remark in own.remarks} <= {"gaps"}
    owner = float(load_file(tmp_path / "run/owners/client-00.safetensors")[A][0, 0])
    assert owner == sent(kept[-1], 0)[A][0, 0] + 100, "after the last round that is kept"


def test_rounds_that_are_recorded_again_replace_all_later_ones(tmp_path: Path) -> None:
    trained(tmp_path / "run", range(5)).close(model(5))
    assert len(list((tmp_path / "run/models").iterdir())) == 6
    again = recorder(tmp_path / "run")
    again.broadcast(2, {name: tensor + 1 for name, tensor in model(2).items()})
    again.upload(2, 1, model(9))
    again.close(model(9))
    own = read(with_lists(tmp_path / "run"))
    assert own.cohorts == ((0, 1), (0, 1), (1,))
    assert float(own.models[2].load()[A][0, 0]) == 3
    assert [sorted(held) for held in own.private] == [[], [], []], "what owners held is of rounds that are gone"
    assert own.notes.keys() == {"0", "1"}


def test_a_closed_recording_goes_on(tmp_path: Path) -> None:
    for folder, rounds in (("whole", range(3)), ("parts", range(1)), ("parts", range(1, 3))):
        trained(tmp_path / folder, rounds).close(model(rounds.stop))
    assert_same_files(tmp_path / "whole", tmp_path / "parts")


def test_another_run_is_not_mixed_in(tmp_path: Path) -> None:
    recorder(tmp_path / "run")
    for changes, message in (
        ({"alpha": 3}, "holds a recording with alpha=2, not 3; name another folder"),
        ({"seed": 1}, "with seed=None, not 1"),
        ({"every": 2}, "with every=1, not 2"),
    ):
        with pytest.raises(ValueError, match=message):
            recorder(tmp_path / "run", **changes)
    recorder(tmp_path / "run")
    put(tmp_path / "other/run.json", {})
    with pytest.raises(ValueError, match="holds a run that no recorder wrote"):
        recorder(tmp_path / "other")


def test_it_says_that_it_was_not_closed(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"close\(state\) was not called"), recorder(tmp_path / "run") as recording:
        recording.broadcast(0, adapter(0))
    with pytest.raises(ValueError, match="the next is round 1"), recorder(tmp_path / "run") as recording:
        recording.broadcast(2, adapter(0))
    with recorder(tmp_path / "run"):
        pass  # a process that uploads only


# kills

FORK = multiprocessing.get_context("fork") if hasattr(os, "fork") else None  # torch is not loaded again
forks = pytest.mark.skipif(FORK is None, reason="forks")
STEPS = [(os, n) for n in ("replace", "rename", "remove", "link", "makedirs", "fsync")] + [(shutil, "rmtree")]


def killed_before(step: int, loop: Callable[[Path], None], folder: Path) -> None:
    """Run a loop until the disk is about to be changed for that time."""
    taken = itertools.count()

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*words: Any, **more: Any) -> Any:
            if next(taken) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*words, **more)

        return called

    for module, name in STEPS:
        setattr(module, name, counted(getattr(module, name)))
    loop(folder)


def forked(target: Callable[..., None], *given: Any) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=target, args=given)
    process.start()
    return process


def listed(folder: Path, loop: str) -> Path:
    """The folder with the lists that a loop's clients need."""
    with_lists(folder, [f"node-{k}" for k in (0, 1)] if loop == "by_texts" else (0, 1))
    return of_classes(folder, "a") if loop == "of_prompts" else folder


@forks
@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.slow)])  # slow: every change; quick: some
@pytest.mark.parametrize("name", LOOPS)
def test_a_kill_before_any_change_of_the_disk(name: str, stride: int, tmp_path: Path) -> None:
    """What is left is read up to the last whole round, if need be after one call that the error names; and the training
    goes on as if nothing had been."""
    LOOPS[name](tmp_path / "whole")
    run = read(listed(tmp_path / "whole", name))
    for steps in itertools.count(0, stride):
        process = forked(killed_before, steps, LOOPS[name], tmp_path / str(steps))
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), steps
        if process.exitcode == 0:
            break
    assert steps > 50
    repaired, before, highest = 0, 0, 0
    for step in range(0, steps, stride):
        folder = tmp_path / str(step)
        folder.mkdir(exist_ok=True)
        listed(folder, name)
        models = len(list((folder / "models").glob("*"))) if (folder / "models").exists() else 0
        try:
            own = read(folder)
        except InputError as error:
            own = None
            if "the recorder was stopped while it moved files" in str(error):
                repaired += 1
                Recorder.repair(folder)
                models = len(list((folder / "models").glob("*")))
                own = read(folder) if models > 1 else None
            elif models > 1:
                raise
        if own is not None:
            for i, r in enumerate(own.numbers[:-1]):
                at = run.numbers.index(r)
                assert own.models[i].load().keys() == run.models[at].load().keys()
                assert own.cohorts[i] == run.cohorts[at] or own.numbers[i + 1] > r + 1
                for k, file in own.uploads[i].items():
                    assert_equal(file.load(), run.uploads[at][k].load())
            whole = max(own.numbers)
            assert name == "gone_back" or whole >= before
            before, highest = whole, max(highest, whole)
        numbers = [int(path.stem[6:]) for path in (folder / "models").glob("*")] if models else [0]
        LOOPS[name](folder, max(numbers) if max(numbers) < max(run.numbers) else max(run.numbers) - 1)
        assert_same_files(tmp_path / "whole", folder)
        assert sorted(path.name for path in (folder / ".recorder").glob("temporary*")) == []
    assert highest == max(run.numbers) or stride > 1
    assert repaired < steps / stride / 2


def trained(folder: Path, rounds: Iterable[int] | None = None) -> Recorder:
    recording = recorder(folder)
    for r in itertools.count() if rounds is None else rounds:
        train_round(recording, r)
    return recording


@forks
@pytest.mark.slow  # by the clock, in one loop; quick: before some changes of the disk, in every loop
@pytest.mark.parametrize("seconds", [0.0, 0.07, 0.13])
def test_a_kill_at_any_time(seconds: float, tmp_path: Path) -> None:
    """What is recorded round after round is read, if need be after one call."""
    process = forked(trained, with_lists(tmp_path, (0, 1)))
    while not (tmp_path / "models" / "round-003.safetensors").exists() and process.is_alive():
        time.sleep(0.005)
    time.sleep(seconds)
    process.kill()
    process.join()
    try:
        own = read(tmp_path)
    except InputError as error:
        if "the recorder was stopped while it moved files" not in str(error):
            raise
        Recorder.repair(tmp_path)
        own = read(tmp_path)
    assert own.cohorts == ((0, 1),) * own.rounds
    assert {remark.check for remark in own.remarks} <= {"open"}, "uploads of the round that was killed"


def test_the_reader_names_what_finishes_it(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    plain(tmp_path)
    put(tmp_path / ".recorder" / "rewind.json", {"round": 1})
    with pytest.raises(InputError, match="the recorder was stopped while it moved files; python -m fedaudit_recorder"):
        read(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedaudit_recorder.py", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(FILE), run_name="__main__")
    assert (end.value.code, capsys.readouterr().out) == (0, f"{tmp_path}: 1 rounds\n")
    assert read(with_lists(tmp_path)).rounds == 1
    for words in ([str(tmp_path / "models")], [], ["a", "b"]):
        assert fedaudit_recorder._main(words) == 2
        assert capsys.readouterr().err


@forks
def test_several_processes_upload_at_once(tmp_path: Path) -> None:
    server = recorder(tmp_path)
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=FORK) as workers:
        for r in range(3):
            server.broadcast(r, model(r))
            list(workers.map(uploaded, [tmp_path] * 3, [r] * 3, [list(range(i, 30, 3)) for i in range(3)]))
        server.close(model(3))
        with pytest.raises(ValueError, match="no round is open"):
            workers.submit(uploaded, tmp_path, 2, [0]).result()
    own = read(with_lists(tmp_path, range(30)))
    assert own.cohorts == (tuple(range(30)),) * 3
    assert own.record_counts(1) == {k: k + 1 for k in range(30)}
    assert own.notes["1"]["failed"] == [90, 91, 92]
    assert all(torch.equal(file.load()[A], model(2)[A] + k) for k, file in own.uploads[2].items())


@forks
def test_processes_that_start_at_once(tmp_path: Path) -> None:
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=FORK) as workers:
        for folder in (tmp_path / str(i) for i in range(10)):
            list(workers.map(recorder, [folder] * 3))
            assert json.loads((folder / "run.json").read_text())["format"] == 2
            assert sorted(p.name for p in (folder / ".recorder").iterdir()) == ["recorder.json"]


def test_it_is_one_file_for_old_pythons() -> None:
    """Syntax of 3.8, imports of the standard library, numpy and torch; nothing at its top that 3.8 could not evaluate."""
    tree = ast.parse(FILE.read_text(), feature_version=(3, 8))
    names = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names
    }  # fmt: skip
    assert names - sys.stdlib_module_names == {"numpy", "torch"}
    assert isinstance(tree.body[1], ast.ImportFrom)
    assert tree.body[1].module == "__future__"
    newer = {"removeprefix", "removesuffix", "zip_strict", "bit_count", "hardlink_to", "is_relative_to"}
    assert {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & newer == set()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [node for node in calls if any(word.arg == "strict" for word in node.keywords)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu(tmp_path: Path) -> None:
    state = {name: tensor.cuda() for name, tensor in adapter(1).items()}
    recording = recorder(tmp_path)
    recording.broadcast(0, state)
    recording.upload(0, 0, {name: tensor.to(torch.bfloat16) for name, tensor in state.items()})
    recording.close(state)
    assert torch.equal(load_file(tmp_path / "models/round-001.safetensors")[A], adapter(1)[A])
