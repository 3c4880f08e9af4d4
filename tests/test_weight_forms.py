"""Every form of weights that docs/reference/weights.md lists, as a miniature in the real format: read, or refused by the words of the table. `--check` says the same."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedaudit.backbones import EMBEDDED, clip, clip_source, vlm
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.backbones.resolve import resolve
from fedaudit.command.cli import main
from fedaudit.machinery.errors import InputError
from tests import tiny_hf_clip, weights
from tests.doc_blocks import table
from tests.minidata import write

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::DeprecationWarning")
READ = "read"
ARCHITECTURES = clip_source._architectures  # of open_clip; `state` replaces them
TABLE = table("docs/reference/weights.md", "what you have", "given as")
ROWS = {row[0].replace("`", ""): row[2].replace("`", "") for row in TABLE}
CLIP_SIZES = tiny_hf_clip.TEXT | {"vocab_size": 49408, "max_position_embeddings": 77, "bos_token_id": 49406, "eos_token_id": 49407}  # fmt: skip
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 598516979\n"

State = dict[str, Any]


def saved(name: str, change: Callable[[State], object]) -> Callable[[State, Path], Path]:
    """A file of torch.save whose content is made of the state dict."""

    def build(state: State, folder: Path) -> Path:
        torch.save(change(state), folder / name)
        return folder / name

    return build


def written(name: str, content: bytes) -> Callable[[State, Path], Path]:
    return lambda state, folder: write(folder / name, content)


def in_safetensors(state: State, folder: Path) -> Path:
    save_file(state, folder / "open_clip_model.safetensors")
    return folder / "open_clip_model.safetensors"


def cut(whole: Callable[[State, Path], Path]) -> Callable[[State, Path], Path]:
    def build(state: State, folder: Path) -> Path:
        file = whole(state, folder)
        file.write_bytes(file.read_bytes()[:-5000])
        return file

    return build


def trained(state: State) -> State:
    """A checkpoint of open_clip's training, with its optimizer after a step."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    ours = {f"module.{name}": tensor for name, tensor in state.items()}
    return {"epoch": 3, "state_dict": ours, "optimizer": optimizer.state_dict(), "scaler": {"scale": 1.0}}


def hf_clip(folder: Path, *, shard: str = "1GB", built: Any = None) -> Path:
    tiny_hf_clip.put(built or tiny_hf_clip.model(text=CLIP_SIZES), folder, 32, shard=shard)
    weights.clip_tokenizer().save_pretrained(folder)
    return folder


def with_adapter(model: Any, *targets: str) -> Any:
    """The model with a LoRA adapter of peft that is not zero."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=[*targets], init_lora_weights=False))


def adapter_folder(folder: Path) -> Path:
    with_adapter(tiny_hf_clip.model(), "q_proj").save_pretrained(folder)
    return folder


def merged(model: Any) -> Any:
    return with_adapter(model, "q_proj", "v_proj").merge_and_unload()


def llava(folder: Path, change: Callable[[Any], Any] = lambda model: model) -> Path:
    """The built-in model in several shards, as transformers writes it."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(EMBEDDED, local_files_only=True)
    change(model).save_pretrained(folder, max_shard_size="2MB")
    AutoProcessor.from_pretrained(EMBEDDED, local_files_only=True).save_pretrained(folder)
    assert len([*folder.glob("*.safetensors")]) > 1
    return folder


def pointed(state: State, folder: Path) -> Path:
    place = hf_clip(folder / "cloned")
    (place / "model.safetensors").write_bytes(POINTER)
    return place


def coop_output(state: State, folder: Path) -> Path:
    (folder / "output" / "prompt_learner").mkdir(parents=True)
    torch.save(PROMPT, folder / "output" / "prompt_learner" / "model.pth.tar-50")
    return folder / "output"


PROMPT = {"state_dict": {"ctx": torch.zeros(4, 64), "token_prefix": torch.zeros(2, 1, 64)}, "epoch": 50}
MAPLE = {"prompt_learner.ctx": torch.zeros(2, 64), "prompt_learner.compound_prompts_text.0": torch.zeros(2, 64),
         "image_encoder.conv1.weight": torch.zeros(64, 3, 8, 8)}  # fmt: skip
LLAVA_NAMES = {"model.multi_modal_projector.linear_1.weight": torch.zeros(3), "lm_head.weight": torch.zeros(3)}

FORMS: dict[str, Callable[[State, Path], Path]] = {
    "OpenAI's ViT-B-16.pt": lambda state, folder: weights.archive(
        {name: one.half() if one.is_floating_point() else one for name, one in state.items()}, folder / "ViT-B-16.pt"
    ),
    "a state dict in a .pt, .pth or .bin": saved("weights.pt", dict),
    "open_clip_model.safetensors": in_safetensors,
    "open_clip's epoch_latest.pt, optimizer included": saved("epoch_latest.pt", trained),
    "names behind module. or _orig_mod.": saved(
        "compiled.pt", lambda state: {f"_orig_mod.module.{name}": tensor for name, tensor in state.items()}
    ),
    "model_state_dict or model inside": saved("last.pt", lambda state: {"model_state_dict": state, "step": 7}),
    "a folder of Hugging Face's CLIPModel, sharded": lambda state, folder: hf_clip(folder / "hf", shard="1MB"),
    "a CLIP with an adapter that peft merged": lambda state, folder: hf_clip(
        folder / "merged", built=merged(tiny_hf_clip.model(text=CLIP_SIZES))
    ),
    "a LLaVA, sharded": lambda state, folder: llava(folder / "llava"),
    "a LLaVA with an adapter that peft merged": lambda state, folder: llava(folder / "merged", merged),
    "CoOp's model.pth.tar-50": saved("model.pth.tar-50", lambda state: PROMPT),
    "MaPLe's model.pth.tar-5": saved("model.pth.tar-5", lambda state: {"state_dict": MAPLE}),
    "CoOp's output folder": coop_output,
    "peft's adapter_model.safetensors": lambda state, folder: adapter_folder(folder / "a") / "adapter_model.safetensors",
    "peft's adapter folder": lambda state, folder: adapter_folder(folder / "adapter"),
    "optimizer.pt": saved("optimizer.pt", lambda state: trained(state)["optimizer"]),
    "a LLaVA for a prompt method": lambda state, folder: llava(folder / "llava"),
    "a LLaVA's file for a prompt method": saved("llava.bin", lambda state: LLAVA_NAMES),
    "a CLIP for a LoRA method": lambda state, folder: hf_clip(folder / "hf"),
    "Hugging Face's file without its folder": saved("pytorch_model.bin", lambda _: tiny_hf_clip.model().state_dict()),
    "weights of another architecture": saved("other.pt", lambda state: state | {"ln_final.bias": torch.zeros(3)}),
    "a model saved whole, torch.save(model)": saved("whole.pt", lambda state: nn.Linear(2, 2)),
    "a git-lfs pointer": written("ViT-B-16.safetensors", POINTER),
    "a pointer in a cloned folder": pointed,
    "a web page saved as .pt": written("ViT-B-16.pt", b"<!DOCTYPE html>\n<html><title>Sign in</title></html>"),
    "a .pt that is cut": cut(saved("cut.pt", dict)),
    "a .safetensors that is cut": cut(in_safetensors),
    "an empty file": written("empty.pt", b""),
    "a packed file": written("ViT-B-16.pt", gzip.compress(b"weights")),
    "a GGUF": written("model.bin", b"GGUF\x03\x00\x00\x00"),
}  # fmt: skip
WRITERS = {
    "a LLaVA, sharded", "a LLaVA with an adapter that peft merged", "a CLIP for a LoRA method", "peft's adapter folder",
}  # fmt: skip
RENAMED = {"open_clip's epoch_latest.pt, optimizer included", "names behind module. or _orig_mod."}


def test_every_form_of_the_table_is_tried() -> None:
    assert [*ROWS] == [*FORMS]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    """Of a tiny architecture, which open_clip knows in this file's tests; nobody may change it."""
    with pytest.MonkeyPatch.context() as patch:
        yield load_file(weights.two_architectures(tmp_path_factory.mktemp("state"), patch))


def flags_of(place: Path) -> list[str]:
    return ["--backbone", str(place)] if place.is_dir() else ["--backbone", "ViT-tiny", "--weights", str(place)]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read_or_refused_as_documented(form: str, state: State, tmp_path: Path, capsys: Any) -> None:
    place = FORMS[form](state, tmp_path)
    given = flags_of(place)

    def opened() -> Any:
        if form in WRITERS:
            return vlm.load(resolve(str(place)))
        return clip.load(resolve_clip(given[1], given[-1] if len(given) > 2 else ""))

    capsys.readouterr()  # the bars of transformers
    lora = "--method fedavg --per-round 2 --records 2 --reference 2 --novel 2"
    words = f"{lora if form in WRITERS else '--method promptfl --train 4'} --clients 2 --test 1 --check --out {tmp_path / 'out'}"
    code = main([*words.split(), *given])
    said = capsys.readouterr()
    assert not (tmp_path / "out").exists()
    assert said.out.startswith("data: ")
    if ROWS[form] == READ:
        assert (code, said.err) == (0, "")
        assert "model: " in said.out
        assert said.out.endswith("fits: nothing is missing\n")
        model = opened()
        if form in RENAMED:
            found = model.model.state_dict()
            assert found.keys() == state.keys()
            assert all(torch.equal(found[name], state[name]) for name in state)
        return
    with pytest.raises(InputError) as refused:
        opened()
    assert ROWS[form] in str(refused.value)
    assert str(refused.value).startswith((f"--weights {place}: ", f"--backbone {place}: "))
    assert (code, said.err) == (2, f"error: {refused.value}\n")
    assert "fits" not in said.out


def test_a_merged_adapter_moves_the_weights(tmp_path: Path) -> None:
    plain, moved = tiny_hf_clip.model(text=CLIP_SIZES), merged(tiny_hf_clip.model(text=CLIP_SIZES))
    folder = hf_clip(tmp_path / "merged", built=moved)
    found = clip.load(resolve_clip(str(folder), "")).model.state_dict()["transformer.resblocks.0.attn.in_proj_weight"]
    rows = [tower.text_model.encoder.layers[0].self_attn for tower in (moved, plain)]
    ours, theirs = (torch.cat([one.q_proj.weight, one.k_proj.weight, one.v_proj.weight]) for one in rows)
    assert torch.equal(found, ours)
    assert not torch.equal(ours, theirs)
    assert not json.loads((folder / "config.json").read_text()).get("peft_type")


def test_weights_of_another_architecture_are_told_by_their_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    import open_clip

    monkeypatch.setattr(clip_source, "_architectures", ARCHITECTURES)
    for name in ("ViT-B-16", "ViT-L-14-336", "RN50x4"):
        with torch.device("meta"):
            model = open_clip.create_model(name, load_weights=False, device="meta")
        shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
        assert clip_source.architectures_of(shapes)[0] == name
    assert clip_source.architectures_of({"a": (1,)}) == []
