"""Weights as people have them: Hugging Face's folders against transformers, TorchScript archives, activations."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedaudit.backbones.clip import FrozenCLIP, load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.backbones.weight_files import OPENAI_SIZES, read_weights
from fedaudit.command.cli import main
from fedaudit.contracts import tiny_clip
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import claim
from fedaudit.tasks.base import Record
from tests import tiny_hf_clip, weights
from tests.weights import archive, clip_tokenizer

NAMES = ["cat", "the big mountain lion", "small blue letter nine"]
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # OpenAI's files are what it wrote
SAFE_INDEX, BIN_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
TINY = ["--rounds", "1", "--clients", "4", "--train", "12", "--test", "2", "--threads", "1"]


def activation(clip: FrozenCLIP) -> set[str]:
    towers = (clip.model, clip.model.visual)
    return {type(block.mlp.gelu).__name__ for tower in towers for block in tower.transformer.resblocks}


def pictures(n: int, size: tuple[int, int]) -> list[Record]:
    rng = np.random.default_rng(0)
    return [Record(f"r{i}", "cat", rng.integers(0, 256, (*size, 3), np.uint8), "<image> ?", "cat") for i in range(n)]


def features(model: Any, ids: Tensor, pixels: Tensor) -> list[Tensor]:
    with torch.no_grad():
        text = model.text_projection(model.text_model(ids).pooler_output)
        image = model.visual_projection(model.vision_model(pixels).pooler_output)
    return [F.normalize(one, dim=-1) for one in (text, image)]


@pytest.mark.parametrize(
    ("name", "weights"),
    [("gelu", "model.safetensors"), *(("quick_gelu", file) for file in ("pytorch_model.bin", SAFE_INDEX, BIN_INDEX))],
)
def test_a_hugging_face_folder_gives_the_features_of_transformers(name: str, weights: str, tmp_path: Path) -> None:
    theirs = tiny_hf_clip.model(activation=name)
    folder = tiny_hf_clip.put(theirs, tmp_path / "tiny-hf", 32, shard="100KB" if "index" in weights else "1GB")
    if weights == BIN_INDEX:
        pickled(folder)
    if weights.endswith(".bin"):
        (folder / "model.safetensors").unlink()
        positions = {"text_model.embeddings.position_ids": torch.arange(32)[None]}
        torch.save(theirs.state_dict() | positions, folder / weights)
    clip = load(resolve_clip(str(folder), ""))
    assert clip.name == "tiny-hf"
    assert activation(clip) == {{"gelu": "GELU", "quick_gelu": "QuickGELU"}[name]}
    assert clip.scale == pytest.approx(float(theirs.logit_scale.detach().exp()))
    rows = [tiny_clip.tokenizer().encode(f"a photo of {one} .").ids for one in NAMES]
    ids = torch.tensor([row + [0] * (clip.context_length - len(row)) for row in rows])
    given = pictures(5, (32, 32))
    pixels = torch.stack([torch.from_numpy(r.image).permute(2, 0, 1) / 255 for r in given])
    prepared = (pixels - torch.tensor(tiny_clip.MEAN).view(3, 1, 1)) / torch.tensor(tiny_clip.STD).view(3, 1, 1)
    text, image = features(theirs, ids, prepared)
    prompt = clip.words("a photo of")
    torch.testing.assert_close(clip.text(prompt, clip.classes(NAMES, 3)), text, atol=1e-5, rtol=0)
    found = clip.encode(given, claim(tmp_path / "cache"), say=print, patches=True)
    torch.testing.assert_close(found.rows([r.id for r in given]), image, atol=1e-5, rtol=0)
    assert found.patches(["r0"]).shape == (1, 16, 24)


def pickled(folder: Path) -> None:
    index = json.loads((folder / SAFE_INDEX).read_text())
    names = {old: old.replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
             for old in set(index["weight_map"].values())}  # fmt: skip
    for old, new in names.items():
        torch.save(load_file(folder / old), folder / new)
        (folder / old).unlink()
    index["weight_map"] = {name: names[old] for name, old in index["weight_map"].items()}
    (folder / BIN_INDEX).write_text(json.dumps(index))
    (folder / SAFE_INDEX).unlink()


@pytest.mark.slow  # the real size; quick: tiny models in the same files
def test_a_full_size_folder_of_hugging_face_with_its_own_tokenizer(tmp_path: Path) -> None:
    """clip-vit-base-patch16's architecture with random weights, and open_clip's vocabulary in CLIP's own class."""
    from transformers import CLIPConfig, CLIPModel

    built = CLIPModel(CLIPConfig(vision_config={"patch_size": 16})).eval()
    folder = tiny_hf_clip.put(built, tmp_path / "vit-b-16", 224)
    clip_tokenizer().save_pretrained(folder)
    clip = load(resolve_clip(str(folder), ""))
    given = pictures(2, (240, 320))
    pixels = torch.stack([clip._prepare(Image.fromarray(r.image)) for r in given])
    named = ["golden retriever", "Boeing 747-400", "Abyssinian (cat)"]
    texts = [f"a photo of a {n} ." for n in named]
    ids = clip_tokenizer()(texts, padding="max_length", return_tensors="pt")["input_ids"]
    text, image = features(built, ids, pixels)
    prompt = clip.words("a photo of a")
    torch.testing.assert_close(clip.text(prompt, clip.classes(named, 4)), text, atol=1e-5, rtol=0)
    found = clip.encode(given, claim(tmp_path / "cache"), say=print)
    torch.testing.assert_close(found.rows(["r0", "r1"]), image, atol=1e-5, rtol=0)


TEXTS = [
    "", " ", "cat", "A Photo of the CAT.", "cats, dogs", "the cat's dog isn't  big", "it's\ta\ncat", "café cafe\u0301 CAFÉ", "naïve", "日本 の cat",
    "cat!?!?", "1701 cats", "Boeing 747-400", "a (big) cat", "dog_cat-dog", "🐱 cat", "ſtraße Ǆ İ", "x" * 50, "cat <|endoftext|> dog", "\u00a0cat\u200bdog",
    "...", "'s 't 're 've 'm 'll 'd", "İstanbul ﬁ", "a\u0300\u0301b",
]  # fmt: skip


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return tiny_hf_clip.save_older(tmp_path / "older")


def test_a_folder_with_vocabulary_and_merges_is_read_as_by_transformers(older: Path, tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    theirs = CLIPTokenizer.from_pretrained(older, local_files_only=True)
    clip = load(resolve_clip(str(older), ""))
    encoded = [clip._tower.tokenizer.encode(text) for text in TEXTS]
    assert encoded == [theirs(text)["input_ids"] for text in TEXTS]
    assert len({tuple(ids) for ids in encoded}) > 20
    assert len(clip._tower.tokenizer.encode("the big cat")) == 5  # a token for each word, and two ends
    theirs.save_pretrained(tmp_path / "saved")
    shutil.copy(tmp_path / "saved" / "tokenizer.json", older)
    again = load(resolve_clip(str(older), ""))
    assert [again._tower.tokenizer.encode(text) for text in TEXTS] == encoded
    assert torch.equal(clip.classes(["cat", "big dog"], 3).tokens, again.classes(["cat", "big dog"], 3).tokens)


def test_the_whole_vocabulary_in_two_files_is_that_of_open_clip(tmp_path: Path) -> None:
    """Of a text that needs no cleaning, which only open_clip does."""
    from open_clip.tokenizer import SimpleTokenizer

    from fedaudit.backbones.clip import _byte_pairs

    simple = SimpleTokenizer()
    tiny_hf_clip.put_older(tmp_path, list(simple.bpe_ranks))
    ours = _byte_pairs(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    texts = "a photo of a golden retriever.", "Boeing 747-400", "the cat's dog isn't  big", "日本 café"
    for text in (*texts, *tiny_hf_clip.MINIATURE):
        assert ours.encode(text).ids == [simple.sot_token_id, *simple.encode(text), simple.eot_token_id], text


def test_an_id_is_looked_up_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="--backbone someone/clip: there is no folder"):
        resolve_clip("someone/clip", "")
    tiny_hf_clip.save(tmp_path / "models--someone--clip" / "snapshots" / "a")
    assert resolve_clip("someone/clip", "").name == "someone/clip"
    tiny_clip.save(tmp_path / "models--else--clip" / "snapshots" / "b")
    assert resolve_clip("else/clip", "").name == "else/clip"
    with pytest.raises(InputError, match="--weights openai: someone/clip holds its own weights"):
        resolve_clip("someone/clip", "openai")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with one file of weights, and one with many; nobody may change them."""
    place, model = tmp_path_factory.mktemp("kept"), tiny_hf_clip.model()
    return {
        "whole": tiny_hf_clip.put(model, place / "whole" / "tiny-hf", 32),
        "shards": tiny_hf_clip.put(model, place / "shards" / "tiny-hf", 32, shard="100KB"),
    }


def _broken(folder: Path, what: str) -> None:
    weights, images, about = (folder / n for n in ("model.safetensors", "preprocessor_config.json", "config.json"))
    config, tensors = json.loads(about.read_text()), load_file(weights)
    match what:
        case "no model.safetensors" | "no preprocessor_config.json" | "no tokenizer.json":
            (folder / what.removeprefix("no ")).unlink()
        case "siglip":
            tiny_hf_clip.edit(about, model_type="siglip")
        case "two activations":
            tiny_hf_clip.edit(about, text_config=config["text_config"] | {"hidden_act": "gelu"})
        case "another activation":
            acts = {name: config[name] | {"hidden_act": "relu"} for name in ("text_config", "vision_config")}
            tiny_hf_clip.edit(about, **acts)
        case "other sizes":
            tiny_hf_clip.edit(about, text_config=config["text_config"] | {"hidden_size": 16})
        case "text only":
            save_file({name: one for name, one in tensors.items() if not name.startswith("vis")}, weights)
        case "without k":
            tensors.pop("text_model.encoder.layers.1.self_attn.k_proj.weight")
            save_file(tensors, weights)
        case "one layer more":
            more = tensors["text_model.encoder.layers.0.layer_norm1.bias"]
            save_file(tensors | {"text_model.encoder.layers.3.layer_norm1.bias": more.clone()}, weights)
        case "no cut":
            tiny_hf_clip.edit(images, do_center_crop=False)
        case "another size":
            tiny_hf_clip.edit(images, size={"shortest_edge": 40})
        case "nearest":
            tiny_hf_clip.edit(images, resample=0)


BROKEN = {
    "no model.safetensors": "lacks model.safetensors; it holds tokenizer.json, ",
    "no preprocessor_config.json": "lacks preprocessor_config.json; it holds model.safetensors, ",
    "no tokenizer.json": "lacks tokenizer.json; it holds model.safetensors, ",
    "siglip": "its config.json is of model_type 'siglip', and of Hugging Face's models only clip is read",
    "two activations": "its hidden_act is gelu and quick_gelu, and gelu or quick_gelu, in both towers, is valid",
    "another activation": "its hidden_act is relu, and",
    "other sizes": r"model.safetensors does not hold the model in its configuration: \d+ of \d+ tensors have another size, .* first: \(32, 32\), not",
    "text only": r"it lacks \d+ of \d+ tensors, visual.class_embedding first",
    "without k": r"it lacks 1 of \d+ tensors, transformer.resblocks.1.attn.in_proj_weight first",
    "one layer more": "it has 1 tensors that this model has not, transformer.resblocks.3.ln_1.bias first",
    "no cut": "preprocessor_config.json must resize the shorter side to 32",
    "another size": "preprocessor_config.json must resize the shorter side to 32",
    "nearest": r"\(bilinear or bicubic\), cut out 32 x 32",
}


def check_refused(folder: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        load(resolve_clip(str(folder), ""))
    assert str(refused.value).startswith(f"--backbone {folder}: ")
    assert len(str(refused.value).splitlines()) == 1


SHARDS = {
    "a missing shard": rf"lacks 1 of the \d+ weight files that {SAFE_INDEX} lists, model-00002-of-\d+.safetensors first$",
    "a cut shard": r"has a damaged model-00002-of-\d+.safetensors \(",
    "a shard elsewhere": rf"lacks 1 of the \d+ weight files that {SAFE_INDEX} lists, \.\./outside\.safetensors first$",
    "an absolute shard": rf"lacks 1 of the \d+ weight files that {SAFE_INDEX} lists, /.*/outside\.safetensors first$",
    "a pickled shard": rf"lacks 1 of the \d+ weight files that {SAFE_INDEX} lists, outside\.bin first$",
    "a folder as a shard": rf"lacks 1 of the \d+ weight files that {SAFE_INDEX} lists, folder\.safetensors first$",
    "an index of nothing": f"has a damaged {SAFE_INDEX}$",
    "a tensor of no shard": rf"{SAFE_INDEX} does not hold the model in its configuration: it lacks 1 of \d+ tensors, logit_scale first$",
    "a tensor of two shards": rf"{SAFE_INDEX} cannot be loaded: ",
}


def _broken_shards(folder: Path, what: str) -> None:
    index = json.loads((folder / SAFE_INDEX).read_text())["weight_map"]
    second = folder / sorted(set(index.values()))[1]
    holder, other = folder / index["logit_scale"], folder / next(n for n in index.values() if n != index["logit_scale"])
    moved = {"a shard elsewhere": "../outside.safetensors", "an absolute shard": str(folder.parent / "outside.safetensors"),
             "a pickled shard": "outside.bin", "a folder as a shard": "folder.safetensors"}  # fmt: skip
    held = load_file(holder)
    match what:
        case "a missing shard":
            second.unlink()
        case "a cut shard":
            second.write_bytes(second.read_bytes()[:-4])
        case "an index of nothing":
            tiny_hf_clip.edit(folder / SAFE_INDEX, weight_map={})
        case "a tensor of no shard":
            save_file({name: one for name, one in held.items() if name != "logit_scale"}, holder)
        case "a tensor of two shards":
            save_file(load_file(other) | {"logit_scale": held["logit_scale"]}, other)
        case _:
            for place in (folder.parent / "outside.safetensors", folder / "outside.bin"):
                shutil.copy(second, place)
            (folder / "folder.safetensors").mkdir()
            named = {name: moved[what] if file == second.name else file for name, file in index.items()}
            tiny_hf_clip.edit(folder / SAFE_INDEX, weight_map=named)


@pytest.mark.parametrize("what", BROKEN | SHARDS)
def test_what_is_wrong_with_a_folder_is_said_in_a_sentence(what: str, tmp_path: Path, kept: dict[str, Path]) -> None:
    kind, damage = ("shards", _broken_shards) if what in SHARDS else ("whole", _broken)
    folder = shutil.copytree(kept[kind], tmp_path / "tiny-hf")
    damage(folder, what)
    check_refused(folder, (BROKEN | SHARDS)[what])


FILES = {
    "open_clip": ["open_clip_config.json", "open_clip_model.safetensors", "tokenizer.json"],
    "whole": ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"],
    "older": ["vocab.json", "merges.txt"],
    "shards": ["model-00001", "model-00002", "model-00003"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FILES.items() for name in names])
def test_every_file_of_a_folder_counts_and_its_place_does_not(kind: str, name: str, older: Path, kept: Any) -> None:
    folder = {"open_clip": tiny_clip.save(older.parent / "tiny"), "older": older, **kept}[kind]
    whole = resolve_clip(str(folder), "").sha256
    other = shutil.copytree(folder, older.parent / "other")
    assert resolve_clip(str(other), "").sha256 == whole
    (file,) = other.glob(f"{name}*")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"\1" if file.suffix == ".safetensors" else data + b"\n")
    assert resolve_clip(str(other), "").sha256 != whole
    if kind == "older":
        file.unlink()
        check_refused(other, f".* lacks {name}; it holds ")


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return weights.two_architectures(tmp_path, monkeypatch)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_state_dict_is_run_with_the_activation_that_is_said(suffix: str, twins: Path) -> None:
    name, used, other = "ViT-tiny", "GELU", "ViT-tiny-quickgelu"
    if suffix == ".safetensors":
        name, used, other = other, "QuickGELU", name
    file = twins.parent / f"weights{suffix}"
    shutil.copy(twins, file) if suffix == ".safetensors" else torch.save(load_file(twins), file)
    source = resolve_clip(name, str(file))
    assert activation(load(source)) == {used}
    assert f"Backbone: {name} ({file.name}), activation {used}; nothing in {file.name} tells" in source.summary
    assert source.summary.endswith(f", take --backbone {other}.")
    assert source.sha256 != resolve_clip(other, str(file)).sha256


def test_a_name_that_tells_the_activation_is_believed(twins: Path) -> None:
    torch.save(load_file(twins), saved := twins.parent / "saved.pt")
    for name in ("ViT-B-16-openai.safetensors", "rn50-quickgelu-cc12m.pt", "vit_quick_gelu.pth", "OpenAI.bin"):
        file = Path(shutil.copy(twins if name.endswith(".safetensors") else saved, twins.parent / name))
        source = resolve_clip("ViT-tiny", str(file))
        assert (source.activation, source.doubt) == ("QuickGELU", "")
        assert source.summary == f"Backbone: ViT-tiny ({name}), activation QuickGELU."
    assert activation(load(source)) == {"QuickGELU"}


def test_the_configuration_beside_a_file_tells_its_activation(twins: Path) -> None:
    plain = resolve_clip("ViT-tiny", str(twins))
    assert (plain.activation, plain.doubt) == ("GELU", "")
    words = "--backbone ViT-tiny-quickgelu: open_clip_config.json beside .* with GELU; take --backbone ViT-tiny$"
    with pytest.raises(InputError, match=words):
        resolve_clip("ViT-tiny-quickgelu", str(twins))
    file = twins.parent / "open_clip_config.json"
    tiny_hf_clip.edit(file, model_cfg=json.loads(file.read_text())["model_cfg"] | {"quick_gelu": True})
    quick = resolve_clip("ViT-tiny", str(twins))
    assert activation(load(quick)) == {"QuickGELU"}
    assert (quick.doubt, resolve_clip(str(twins.parent), "").activation) == ("", "QuickGELU")
    assert quick.sha256 != plain.sha256


def test_folders_and_random_weights_have_the_activation_of_their_configuration(tmp_path: Path) -> None:
    for quick in (False, True):
        folder = tiny_clip.save(tmp_path / str(quick), tiny_clip.config(quick_gelu=quick))
        source = resolve_clip(str(folder), "")
        assert (source.activation, source.doubt) == ("QuickGELU" if quick else "GELU", "")
    assert resolve_clip("ViT-B-16", "random").activation == "GELU"
    assert resolve_clip("ViT-B-16-quickgelu", "random").activation == "QuickGELU"


def test_the_tensors_of_a_torchscript_archive_are_read_and_it_is_not_run(twins: Path, monkeypatch: Any) -> None:
    """As torch.jit.load, which runs it, gives them. OpenAI's archives hold halves, and tell of QuickGELU themselves."""
    state = {name: one.half() if one.is_floating_point() else one for name, one in load_file(twins).items()}
    file = archive(state, twins.parent / "ViT-B-16.pt")
    theirs, held = torch.jit.load(file).state_dict(), read_weights(file)
    assert held.openai
    assert held.load().keys() | OPENAI_SIZES == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in held.load().items())
    for module in (torch, torch.jit):
        monkeypatch.setattr(module, "load", lambda *args, **more: pytest.fail("something was loaded"))
    for name in ("weights.pth", "weights.bin", "downloaded", file.name):
        source = resolve_clip("ViT-tiny", str(file.replace(file := twins.parent / name)))
        assert (source.activation, source.doubt) == ("QuickGELU", "")
    found = load(source)
    assert activation(found) == {"QuickGELU"}
    assert found.model.state_dict().keys() == state.keys()
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(tensor, state[name].float())


WRONG = {
    "another model": r"does not hold ViT-tiny: it lacks \d+ of \d+ tensors, .* first$",
    "Hugging Face's names": "holds tensors by Hugging Face's names; give the folder with its config.json as --backbone$",
    "more tensors": r"it has 1 tensors that this model has not, 'a\\n" r"b' first$",
    "other sizes": r"1 of \d+ tensors have another size, ln_final.bias first: \(3,\), not \(64,\)$",
    "noise": r"other.pt holds no weights: it begins with b'\\x00\\x01",
    "cut": "other.pt is truncated",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_of_another_model_is_refused_in_our_own_words(what: str, twins: Path) -> None:
    state = load_file(twins)
    file = twins.parent / "other.pt"
    given: dict[str, object] = {
        "noise": bytes(range(256)) * 9,
        "cut": b"PK\x03\x04",
        "another model": {name: one for name, one in state.items() if "resblocks" not in name},
        "Hugging Face's names": tiny_hf_clip.model().state_dict(),
        "more tensors": state | {"a\nb": torch.ones(1)},
        "other sizes": state | {"ln_final.bias": torch.ones(3)},
    }
    content = given[what]
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(InputError, match=WRONG[what]) as refused:
        load(resolve_clip("ViT-tiny", str(file)))
    said = str(refused.value)
    assert said.startswith(f"--weights {file}: other.pt ")
    assert not re.search(r"\.\.\.|state_dict for CLIP", said)


@pytest.mark.usefixtures("unsafe_but_quick")
def test_the_command_says_the_activation_and_writes_it_down(twins: Path, tmp_path: Path, capsys: Any) -> None:
    file, out = twins.parent / "weights.safetensors", tmp_path / "out"
    shutil.copy(twins, file)
    given = ["--method", "zeroshot", "--backbone", "ViT-tiny", "--weights", str(file), *TINY, "--out", str(out)]
    assert main(given) == 0
    said = capsys.readouterr().err
    assert "Backbone: ViT-tiny (weights.safetensors), activation GELU; nothing in weights.safetensors tells" in said
    (page,) = out.glob("reports/*/index.html")
    text = page.read_text()
    assert "backbone.activation" in text
    assert "take --backbone ViT-tiny-quickgelu" in text
