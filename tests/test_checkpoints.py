"""Checkpoints of CoOp and MaPLe: prompts as they were saved, hostile pickles do nothing, refusals in sentences."""

import collections
import contextlib
import io
import itertools
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaudit.external.checkpoints import DUAL, PROMPTS, Checkpoint, find, read_checkpoint
from fedaudit.external.files import OwnFiles
from fedaudit.external.prompts import read_prompts
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.torch_files import Inert, SavedTensor, read_objects
from fedaudit.trainers.maple import visual_prompts

C, B, D, E, LENGTH = 5, 4, 8, 12, 20  # classes, tokens, widths of text and image, context
NAME = "model.pth.tar-50"


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def buffers(dtype: torch.dtype = torch.float32, classes: int = C) -> dict[str, Tensor]:
    """Parts of one tensor, as Dassl's code registers them: the start token, then class names and ends."""
    embedding = numbers(classes, LENGTH, D, seed=1, dtype=dtype)
    embedding[:, 0] = embedding[0, 0]
    return {"token_prefix": embedding[:, :1], "token_suffix": embedding[:, 1 + B :], "embedding": embedding}


def coop(*, dtype: torch.dtype = torch.float16, csc: bool = False) -> dict[str, Tensor]:
    shape = (C, B, D) if csc else (B, D)
    return {"ctx": torch.nn.Parameter(numbers(*shape, dtype=dtype)), **buffers(dtype)}


def maple(depth: int = 3) -> dict[str, Tensor]:
    """MaPLe's prompt learner in a frozen CLIP; the first coupling and ctx are in half precision."""
    half = torch.float16
    state = {"ctx": numbers(B, D, dtype=half), "proj.weight": numbers(E, D, seed=2, dtype=half)}
    state |= {"proj.bias": numbers(E, seed=3, dtype=half), **buffers(half)}
    for i in range(depth - 1):
        state[f"compound_prompts_text.{i}"] = numbers(B, D, seed=10 + i)
        state[f"compound_prompt_projections.{i}.weight"] = numbers(E, D, seed=20 + i)
        state[f"compound_prompt_projections.{i}.bias"] = numbers(E, seed=30 + i)
    frozen = {"logit_scale": torch.tensor(4.6), "image_encoder.conv1.weight": numbers(3, 3, dtype=half)}
    return {f"prompt_learner.{name}": tensor for name, tensor in state.items()} | frozen


def scheduler() -> Any:
    """An object whose class, as Dassl's warm-up, is known only where it was saved: call `forget` before reading."""
    module = types.ModuleType("dassl_lr_scheduler")
    made = type("ConstantWarmupScheduler", (), {"__module__": module.__name__})
    module.ConstantWarmupScheduler = made  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    warm_up = made()
    warm_up.successor, warm_up.last_epoch = collections.Counter(a=1), 50
    return warm_up


def saved(path: Path, state: Any, *, legacy: bool = False, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = {
        "epoch": 50, "optimizer": {"state": {0: {"momentum_buffer": numbers(B, D)}}, "param_groups": [{"lr": 0.002}]},
        "scheduler": {"successor": scheduler(), "last_epoch": 50}, "val_result": np.float64(81.5),
    }  # fmt: skip
    ordered = collections.OrderedDict(state) if isinstance(state, dict) else state
    if isinstance(state, dict):
        ordered._metadata = collections.OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    torch.save({"state_dict": ordered, **beside, **more}, path, _use_new_zipfile_serialization=not legacy)
    sys.modules.pop("dassl_lr_scheduler", None)
    return path


def read(path: Path, *, linked: bool = False) -> Checkpoint:
    return read_checkpoint(OwnFiles(path.parent, linked), path)


def refused(path: Path) -> str:
    """What is said of a file: one sentence that begins with its path."""
    with pytest.raises(InputError) as error:
        read(path)
    assert re.fullmatch(rf"{re.escape(str(path))}.*[^.]", str(error.value))
    return str(error.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("dtype", "csc", "legacy"),
    [
        (torch.float16, False, False), (torch.bfloat16, True, True), (torch.float32, True, False),
        (torch.float64, False, True),
    ],
)  # fmt: skip
def test_a_prompt_of_coop_is_read_as_it_was_saved(tmp_path: Path, dtype: torch.dtype, csc: bool, legacy: bool) -> None:
    state = coop(dtype=dtype, csc=csc)
    path = saved(tmp_path / NAME, state, legacy=legacy)
    with pytest.raises((pickle.UnpicklingError, ModuleNotFoundError)):
        torch.load(path, weights_only=True)
    found = read(path)
    assert (found.path, found.kind, found.state.keys()) == (path, PROMPTS, {"ctx"})
    ctx, start = found.state["ctx"], found.start_token
    assert torch.equal(ctx, state["ctx"].detach().float())
    assert torch.equal(start, state["token_prefix"][0, 0].float())
    assert read_prompts(OwnFiles(tmp_path, linked=False), path).size == 4 * ctx.numel()
    for tensor in (ctx, start):
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad
        assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()  # nothing of the class names is kept


@pytest.mark.parametrize(("depth", "legacy"), [(1, False), (3, True)])
def test_prompts_of_maple_are_those_of_its_code(tmp_path: Path, depth: int, legacy: bool) -> None:
    state = maple(depth)
    found = read(saved(tmp_path / NAME, state, legacy=legacy))
    assert (found.kind, found.state.keys()) == (DUAL, {"Pt", "Pd"})
    Pt, Pd = found.state["Pt"], found.state["Pd"]
    assert Pt.shape == (depth, B, D)
    assert Pd.shape == (depth, E, D + 1)
    ours = visual_prompts(Pt[None], Pd[None])[0]
    own = {name.removeprefix("prompt_learner."): tensor.float() for name, tensor in state.items()}
    for i in range(depth):
        text = own["ctx"] if i == 0 else own[f"compound_prompts_text.{i - 1}"]
        layer = torch.nn.Linear(D, E)
        name = "proj" if i == 0 else f"compound_prompt_projections.{i - 1}"
        layer.load_state_dict({part: own[f"{name}.{part}"] for part in ("weight", "bias")})
        assert torch.equal(Pt[i], text)
        torch.testing.assert_close(ours[i], layer(text))
    assert torch.equal(found.start_token, own["token_prefix"][0, 0])


def test_why_a_file_cannot_be_opened_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system gives no words of its own."""
    path = saved(tmp_path / NAME, coop())
    for error, said in (OSError(5, "Input/output error"), "Input/output error"), (OSError("worn out"), "worn out"):
        monkeypatch.setattr("fedaudit.external.files.user_files.opened", mock.Mock(side_effect=error))
        assert refused(path) == f" cannot be read ({said})"


def test_prompts_of_federated_codes(tmp_path: Path) -> None:
    """FedPGP's sigma + U V; in DP-FPL's code global_ctx, what is local added."""
    low, high, whole = numbers(B, 2), numbers(2, D, seed=1), numbers(B, D, seed=2)
    forms = {
        "fedpgp": ({"sigma": whole[None], "U": low[None], "V": high[None]}, whole + low @ high),
        "global": ({"global_ctx": whole}, whole),
        "sum": ({"global_ctx": whole, "local_ctx": -2 * whole}, -whole),
        "factors": ({"global_ctx": whole, "local_u_ctx": low, "local_v_ctx": high}, whole + low @ high),
    }
    for name, (state, expected) in forms.items():
        found = read(saved(tmp_path / name / NAME, {f"prompt_learner.{n}": t for n, t in (state | buffers()).items()}))
        assert found.kind == PROMPTS
        torch.testing.assert_close(found.state["ctx"], expected)


@pytest.mark.parametrize("prefix", ["", "module.", "prompt_learner.", "module.prompt_learner."])
def test_names_may_have_prefixes_and_there_may_be_no_start_token(tmp_path: Path, prefix: str) -> None:
    state = coop()
    found = read(saved(tmp_path / NAME, {prefix + name: tensor for name, tensor in state.items()}))
    assert torch.equal(found.state["ctx"], state["ctx"].detach().float())
    alone = read(saved(tmp_path / NAME, {f"{prefix}ctx": state["ctx"]}))
    assert alone.start_token is None
    assert torch.equal(alone.state["ctx"], found.state["ctx"])


def test_a_tensor_that_is_a_part_of_another_is_read_alone(tmp_path: Path) -> None:
    whole = numbers(B, 2 * D)
    for legacy, part in itertools.product((False, True), (whole[:, D:], whole.T)):
        found = read(saved(tmp_path / NAME, {"ctx": part}, legacy=legacy))
        assert torch.equal(found.state["ctx"], part), (legacy, part.stride())


def test_what_is_not_needed_is_not_read(tmp_path: Path) -> None:
    """Neither the momentum, which is NaN, nor the frozen CLIP."""
    nan = torch.full((B, D), torch.nan)
    state = maple() | {"text_encoder.ln_final.weight": nan, "prompt_learner.token_suffix": nan}
    assert read(saved(tmp_path / NAME, state, optimizer={"state": {0: nan}})).kind == DUAL


def test_the_checkpoint_of_a_folder(tmp_path: Path) -> None:
    assert find(tmp_path) is find(tmp_path / "nowhere") is None
    folder = tmp_path / "prompt_learner"
    best = saved(folder / "model-best.pth.tar", coop())
    (folder / "checkpoint").write_text("model.pth.tar-5\n")
    assert find(tmp_path) == find(folder) == find(best) == best
    paths = {n: saved(folder / f"model.pth.tar-{n}", coop()) for n in (5, 100, 20)}
    assert find(tmp_path) == find(folder) == paths[100]
    assert find(paths[5]) == paths[5]
    (folder / "model.pth.tar-200.tmp").write_bytes(b"")
    assert find(folder) == paths[100]
    shutil.move(folder, tmp_path / "MultiModalPromptLearner")
    assert find(tmp_path) == tmp_path / "MultiModalPromptLearner" / "model.pth.tar-100"


def test_a_file_goes_by_its_name(tmp_path: Path) -> None:
    for name in ("adapter_model.safetensors", "run.json", "model.tar", "pth", "checkpoint"):
        (tmp_path / name).write_bytes(b"")
        assert find(tmp_path / name) is find(tmp_path) is None
    for name in ("a.pth", "a.pt", "model-best.pth.tar", "dpfpl_8_0.0_1.pth.tar", NAME):
        (tmp_path / name).write_bytes(b"")
        assert find(tmp_path / name) == tmp_path / name


def test_a_file_is_a_regular_one_and_a_link_out_of_the_folder_needs_the_flag(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (link := tmp_path / "run" / NAME).symlink_to(saved(tmp_path / "there" / NAME, coop()))
    assert "only --linked-files allows that" in refused(link)
    assert read(link, linked=True).kind == PROMPTS
    os.mkfifo(pipe := tmp_path / "pipe")
    for path, words in (
        (tmp_path / "run", "not a regular file"),
        (pipe, "not a regular file"),
        (tmp_path / "a", "is missing"),
    ):
        assert words in refused(path)


class Bomb:
    """Calls a function when it is unpickled, and whatever else is done to what that returns."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None, items: Any = (), pairs: Any = ()) -> None:
        self.parts = (function, arguments, state, iter(items), iter(pairs))

    def __reduce__(self) -> Any:
        return self.parts

    def __call__(self) -> None:
        """A bomb may make the function of another one."""


both_forms = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


@both_forms
def test_nothing_in_a_file_is_executed(tmp_path: Path, legacy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "executed"
    touch = f"open({str(mark)!r}, 'w').close()"
    shell = f"touch '{mark}'"
    bombs = [
        Bomb(os.system, shell), Bomb(eval, touch), Bomb(exec, touch), Bomb(subprocess.Popen, ["touch", str(mark)]),
        Bomb(getattr, Bomb(__import__, "os"), "system", state={"x": 1}), Bomb(open, str(mark), "w"),
        Bomb(os.system, shell, state={"a": 1}, items=[1, 2], pairs=[(1, 2)]), Bomb(Bomb(eval, touch), 1),
        Bomb(torch.load, str(mark)), Bomb(torch.storage._load_from_bytes, b"x"), Bomb(type, "x", (), {}),
    ]  # fmt: skip
    more = {f"more {i}": bomb for i, bomb in enumerate(bombs)}
    path = saved(tmp_path / NAME, coop(), legacy=legacy, optimizer=bombs, **more)
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("was called"))
    assert torch.equal(read(path).state["ctx"], coop()["ctx"].detach().float())
    assert not mark.exists()


def raw(path: Path, pickled: bytes, **entries: bytes) -> Path:
    """A zip of torch.save with these objects and storages, whatever they are."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, data in entries.items():
            archive.writestr(f"archive/data/{key.removeprefix('_')}", data)
    return path


def objects(path: Path) -> Any:
    found, _ = read_objects(path, io.BytesIO(path.read_bytes()))
    return found


def test_the_classes_of_a_file_are_inert(tmp_path: Path) -> None:
    """Every opcode that makes an object or changes one; functions that are known change for one file alone."""
    system = b"cposix\nsystem\n"
    made = {
        "REDUCE": system + b"(S'x'\ntR", "INST": b"(S'x'\niposix\nsystem\n", "OBJ": b"(" + system + b"S'x'\no",
        "NEWOBJ": system + b"(S'x'\nt\x81", "NEWOBJ_EX": system + b"(S'x'\nt}\x92",
    }  # fmt: skip
    changes = {"BUILD": b"}S'a'\nI1\nsb", "APPEND": b"I1\na", "APPENDS": b"(I1\nI2\ne", "ADDITEMS": b"(I1\nI2\n\x90"}
    changes |= {"SETITEM": b"I1\nI2\ns", "SETITEMS": b"(I1\nI2\nu", "": b""}
    for opcode, what in itertools.product(made, changes):
        assert isinstance(objects(raw(tmp_path / "a", made[opcode] + changes[what] + b".")), Inert), (opcode, what)
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n"
    spoilt = rebuild + b"(N}S'__defaults__'\n(I1\nI2\nI3\nI4\nI5\nttsbs" + b"."
    for pickled in (spoilt, rebuild + b"}S'x'\nI1\nsb.", b"ccollections\nOrderedDict\n}S'items'\nI1\nsb."):
        with contextlib.suppress(InputError):
            objects(raw(tmp_path / "b", pickled))
    one, two = (objects(raw(tmp_path / "c", rebuild + b".")) for _ in "ab")
    assert one is not two
    assert one.__defaults__ is None
    assert not hasattr(two, "x")
    assert not hasattr(torch._utils._rebuild_tensor_v2, "x")


TENSOR = "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n{kind}Storage\nS'0'\nS'cpu'\nI{size}\ntQI{offset}\n({shape}t({strides}tI00\nNtR"


def hostile(path: Path, *, kind: str = "Float", size: int = 12, offset: int = 0, shape: str = "I3\nI4\n",
            strides: str = "I4\nI1\n", data: bytes = bytes(48), after: str = "") -> Path:  # fmt: skip
    tensor = TENSOR.format(kind=kind, size=size, offset=offset, shape=shape, strides=strides)
    return raw(path, f"}}S'state_dict'\n}}S'ctx'\n{tensor}{after}ss.".encode(), _0=data)


@pytest.mark.parametrize(
    "lie",
    [
        {"size": 10**15}, {"size": -12}, {"size": 11}, {"size": 13}, {"offset": 1}, {"offset": -1}, {"shape": "I4\nI4\n"},
        {"shape": "I-3\nI4\n"}, {"strides": "I0\nI0\n", "shape": "I100000\nI1000000\n"}, {"strides": "I-1\nI1\n"},
        {"strides": "I5\nI1\n"}, {"shape": "I12\n"}, {"shape": "S'x'\nI4\n"}, {"shape": "F3.0\nI4\n"}, {"data": bytes(44)},
        {"shape": "I1\n" * 9, "strides": "I1\n" * 9}, {"after": "}S'shape'\nI3\nsb"}, {"data": b""},
        {"after": "}S'storage'\nI3\nsb"}, {"size": 2**63}, {"shape": "I01\nI01\n"},
    ],
    ids=str,
)  # fmt: skip
def test_a_tensor_that_lies_is_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    true = read(hostile(tmp_path / "true.pth", data=np.arange(12, dtype="<f4").tobytes()))
    assert torch.equal(true.state["ctx"], torch.arange(12.0).reshape(3, 4))
    said = refused(hostile(tmp_path / NAME, **lie))
    assert "damaged" in said or "no plain tensor" in said


@pytest.mark.parametrize(
    "pickled",
    [
        b"", b".", b"}", b"\x80\x09.", b"(" * 10_000 + b".", b"]" * 5000 + b"a" * 4999 + b".", b"r\xff\xff\xff\xff.",
        b"N\x8f.", b"\x8d" + struct.pack("<Q", 2**60) + b".", b"\x96" + struct.pack("<Q", 2**60) + b".",
        b"\x95" + struct.pack("<Q", 2**60) + b".", b"h\x05.", b"Pxy\n.", b"N}Q.", b"\x82\x01.", b"}]I1\ns.", b"I1\nI1\nR.",
        b"cposix\nsystem\nI1\nR.", b"\xff", b"X\xff\xff\xff\xff.", b"}(((I1\ntttI1\nI1\ns.",
    ],
    ids=lambda pickled: repr(pickled[:12]),
)  # fmt: skip
def test_a_pickle_that_is_none_is_refused(tmp_path: Path, pickled: bytes) -> None:
    said = refused(raw(tmp_path / NAME, pickled))
    assert "damaged" in said or "where a checkpoint of Dassl has" in said


def test_attributes_of_a_dictionary_hide_nothing(tmp_path: Path) -> None:
    """An OrderedDict that was unpickled may have `items` of its own."""
    tensor = TENSOR.format(kind="Float", size=12, offset=0, shape="I3\nI4\n", strides="I4\nI1\n")
    ordered = "ccollections\nOrderedDict\n)R"
    hidden = "}S'items'\nI1\nsS'keys'\nI1\nsS'get'\nI1\nsb"
    state = f"{ordered}S'ctx'\n{tensor}s{hidden}"
    path = raw(tmp_path / NAME, f"{ordered}S'state_dict'\n{state}s{hidden}.".encode(), _0=bytes(48))
    assert read(path).kind == PROMPTS
    nothing = raw(tmp_path / NAME, f"{ordered}S'epoch'\nI1\ns{hidden}.".encode())
    assert refused(nothing).startswith(" holds epoch, where")


@both_forms
def test_a_truncated_file_is_refused(tmp_path: Path, legacy: bool) -> None:
    whole = saved(tmp_path / NAME, coop(), legacy=legacy).read_bytes()
    path = tmp_path / "cut" / NAME
    path.parent.mkdir()
    for length in [*range(12), *range(12, len(whole) - 1, max(1, len(whole) // 30)), len(whole) - 1]:
        path.write_bytes(whole[:length])
        said = refused(path)
        assert "truncated or damaged?" in said or "begins with" in said


@both_forms
def test_damage_anywhere_ends_in_a_sentence_or_in_numbers(tmp_path: Path, legacy: bool) -> None:
    whole = saved(tmp_path / NAME, coop(), legacy=legacy).read_bytes()
    path, g = tmp_path / NAME, np.random.default_rng(0)
    for _ in range(80):
        changed = bytearray(whole)
        changed[int(g.integers(len(whole)))] = int(g.integers(256))
        path.write_bytes(changed)
        with contextlib.suppress(InputError):  # any other error fails
            assert read(path).state["ctx"].isfinite().all()


def test_a_file_of_something_else(tmp_path: Path) -> None:
    for content, words in (
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "begins with b'vers', where a file of torch.save begins with",
        ),
        (b"", "begins with b''"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{}", "begins with"),
        (pickle.dumps({"state_dict": {}}), "no complete file of torch.save"),
        (b"PK\x03\x04", "no complete file of torch.save"),
    ):
        (tmp_path / NAME).write_bytes(content)
        assert words in refused(tmp_path / NAME), content


def test_zip_files_that_torch_does_not_write(tmp_path: Path) -> None:
    good = saved(tmp_path / NAME, coop())
    with zipfile.ZipFile(good) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}

    def written(change: Any, compression: int = zipfile.ZIP_STORED) -> Path:
        with zipfile.ZipFile(tmp_path / "model.pth.tar-1", "w", compression) as archive:
            for name, data in change(dict(entries)).items():
                archive.writestr(name, data)
        return tmp_path / "model.pth.tar-1"

    assert read(written(lambda e: e)).kind == PROMPTS
    for path in (
        written(lambda e: e, zipfile.ZIP_DEFLATED),  # little that becomes much
        written(lambda e: {n: d for n, d in e.items() if not n.endswith("data.pkl")}),
        written(lambda e: {"b/data.pkl": next(d for n, d in e.items() if n.endswith("data.pkl")), **e}),
        written(lambda e: {n: b"big" if n.endswith("byteorder") else d for n, d in e.items()}),
        written(lambda e: {n: d for n, d in e.items() if "/data/" not in n}),
    ):
        assert "damaged" in refused(path)


def altered(change: dict[str, Tensor | None], state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in (state | change).items() if tensor is not None}


def of_maple(**change: Tensor | None) -> dict[str, Tensor]:
    return altered({f"prompt_learner.{name.replace('__', '.')}": t for name, t in change.items()}, maple())


def of_coop(**change: Tensor | None) -> dict[str, Tensor]:
    return altered(change, coop())


VPT = {"text_encoder.transformer.resblocks.1.VPT_shallow": numbers(B, D)}
SHAPES = {"global_ctx": (B, D), "local_ctx": (B, D), "local_u_ctx": (B, 2), "local_v_ctx": (2, D)}
ALL_FOUR = {name: numbers(*shape) for name, shape in SHAPES.items()}
FEDPGP = {"sigma": numbers(1, B, D), "U": numbers(1, B, 2), "V": numbers(1, 2, D)}
PLACE, LISTED = "where a prompt's tensor ctx, as CoOp saves it, or MaPLe's", "its state_dict holds "

REFUSED: list[tuple[Any, str]] = [
    (None, 'holds state_dict, epoch, optimizer, scheduler, val_result, where a checkpoint of Dassl has "state_dict"'),
    ([numbers(B, D)], 'where a checkpoint of Dassl has "state_dict"'),
    ({}, f"{LISTED}nothing, {PLACE}"),
    (buffers(), f"{LISTED}nothing, {PLACE}"),
    ({"weight": numbers(2), "bias": numbers(2)}, f"{LISTED}bias, weight, {PLACE}"),
    ({f"layer{i}\n.weight": numbers(2) for i in range(9)}, r"'layer0\n.weight', 'layer1\n.weight'"),
    (coop() | {"meta_net.linear1.weight": numbers(2, D)}, f"{LISTED}ctx, meta_net.linear1.weight, {PLACE}"),
    (ALL_FOUR | buffers(), f"{LISTED}global_ctx, local_ctx, local_u_ctx, local_v_ctx, {PLACE}"),
    (of_coop(ctx=numbers(B)), "has ctx [4] and token_prefix [5, 1, 8]; valid is one prompt [tokens, width]"),
    (of_coop(ctx=numbers(2, B, D)), "has ctx [2, 4, 8] and token_prefix [5, 1, 8]; valid is one prompt"),
    (of_coop(ctx=numbers(1, B, D)), "several prompts for all classes are not read"),
    # codes with N prompts repeat the start token for each of these
    (buffers(classes=2 * C) | {"ctx": numbers(2, B, D)}, "several prompts for all classes are not read"),
    ({"ctx": numbers(C, B, D)}, "has ctx [5, 4, 8] and no token_prefix; valid is one prompt"),
    (of_coop(ctx=numbers(1, C, B, D)), "has ctx [1, 5, 4, 8]"),
    (of_coop(ctx=numbers(0, D)), "ctx has shape [0, 8], which holds nothing"),
    (of_coop(ctx=torch.ones(B, D, dtype=torch.int64)), ": ctx is of int64, where a dense tensor of float64, float32, float16"),
    (of_coop(ctx=numbers(B, D).to_sparse()), ": ctx is no plain tensor, where"),
    (of_coop(ctx=torch.full((B, D), torch.nan)), ": ctx holds NaN or infinite values, where a model holds finite"),
    (of_coop(ctx=torch.full((B, D), 1e300, dtype=torch.float64)), ": ctx holds NaN or infinite values"),
    (of_coop(ctx=torch.full((B, D), -20_000.0)), ": ctx holds -20000, where a model's numbers lie between"),
    (of_coop(token_prefix=numbers(C, 1, D)), ": token_prefix has rows that differ, where it is the same start token"),
    (of_coop(token_prefix=numbers(C, 1, D + 1)), ": token_prefix has shape [5, 1, 9], where [classes, 1, 8] would fit"),
    (of_coop(token_prefix=numbers(C, 2, D)), ": token_prefix has shape [5, 2, 8]"),
    (of_coop(token_prefix=torch.tensor(1.0)), ": token_prefix has shape []"),
    (of_coop(token_prefix=torch.full((C, 1, D), torch.inf)), ": token_prefix holds NaN or infinite values"),
    (FEDPGP | {"sigma": numbers(2, B, D), "U": numbers(2, B, 2), "V": numbers(2, 2, D)}, "several prompts for all classes"),
    (FEDPGP | {"U": numbers(1, B, 3)}, "shapes do not fit together, of U [1, 4, 3], V [1, 2, 8], sigma [1, 4, 8]"),
    (FEDPGP | {"V": numbers(2)}, "shapes do not fit together"),
    (FEDPGP | {"V": numbers(1, 2, 1)}, "shapes do not fit together"),
    (FEDPGP | {"U": numbers(2, B, 2)}, "shapes do not fit together"),
    ({"global_ctx": numbers(B, D), "local_ctx": numbers(1, D)}, "shapes do not fit together"),
    (maple() | VPT, "holds text_encoder.transformer.resblocks.1.VPT_shallow beside its prompt learner; valid are prompts"),
    (maple() | {"adapter.fc.weight": numbers(2, 2)}, "holds adapter.fc.weight beside its prompt learner"),
    (maple() | {"image_encoder.0.lora_A": numbers(2, 2)}, "holds image_encoder.0.lora_A beside its prompt learner"),
    (of_maple(proj__bias=None), "lacks proj.bias; MaPLe's prompts with 2 compound_prompts_text have ctx, and weight and"),
    (of_maple(ctx=None), "lacks ctx; MaPLe's prompts"),
    (of_maple(compound_prompts_text__0=None), "with 1 compound_prompts_text have"),
    (of_maple(compound_prompt_projections__5__weight=numbers(E, D)), "also holds compound_prompt_projections.5.weight"),
    (of_maple(more=numbers(2)), "also holds more; MaPLe's prompts"),
    (of_maple(ctx=numbers(B + 1, D)), ": compound_prompts_text.0 has shape [4, 8], where [5, 8] would fit ctx [5, 8]"),
    (of_maple(ctx=numbers(C, B, D)), "would fit ctx [5, 4, 8], which is [tokens, width]"),
    (of_maple(proj__weight=numbers(D, E)), ": proj.weight has shape [8, 12], where [12, 8] would fit ctx [4, 8]"),
    (of_maple(proj__bias=numbers(E + 1)), "has shape [12], where [13] would fit"),
    (of_maple(proj__bias=torch.tensor(1.0)), "would fit"),
    (of_maple(proj__bias=numbers(1, E)), "would fit"),
    (of_maple(compound_prompts_text__1=torch.full((B, D), torch.inf)), ": compound_prompts_text.1 holds NaN or infinite"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_no_prompt_is_refused_by_name(tmp_path: Path, state: Any, words: str) -> None:
    assert words in refused(saved(tmp_path / NAME, state))


def test_the_prompts_of_several_clients_are_refused_by_what_is_there(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "local_weights": [ALL_FOUR], "local_acc": [0.5]}, tmp_path / NAME)
    said = refused(tmp_path / NAME)
    assert said.startswith(" holds epoch, local_weights, local_acc, where a checkpoint of Dassl has")
    torch.save(numbers(B, D), tmp_path / NAME)
    assert refused(tmp_path / NAME).startswith(" holds no dictionary, where")


def test_a_stored_tensor_is_read_only_when_it_is_asked_for(tmp_path: Path) -> None:
    content = objects(saved(tmp_path / NAME, coop()))
    assert all(isinstance(tensor, SavedTensor) for tensor in content["state_dict"].values())
    assert isinstance(content["scheduler"]["successor"], Inert)
    assert isinstance(content["val_result"], Inert)
