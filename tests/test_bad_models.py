"""The table of bad model folders: each is refused in one sentence that names the flag, and what a folder brings is never run."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import operator
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from fedaudit.backbones import clip, vlm
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.backbones.resolve import resolve, weights_hash
from fedaudit.backbones.texts import check_texts
from fedaudit.command.cli import main
from fedaudit.contracts import tiny_clip
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import claim
from fedaudit.tasks.base import Record
from tests import tiny_hf_clip, tiny_models
from tests.bad_data import DEEP, Bad, Sly, edit, edited, made_to, overwritten
from tests.minidata import write

WEIGHTS, CLIP_WEIGHTS, CLIP_CONFIG = "model.safetensors", "open_clip_model.safetensors", "open_clip_config.json"
PROMPT = "USER : <image> describe the picture ASSISTANT :"
CODE = "import os\nos.mkdir({ran!r})\nclass Own:\n    pass\n"


def _header(file: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    """The header of a safetensors file, changed; the tensors stay."""

    def damage(folder: Path) -> None:
        data = (folder / file).read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:end])
        change(header)
        text = json.dumps(header).encode()
        write(folder / file, struct.pack("<Q", len(text)) + text + data[end:])

    return damage


def _tensors(file: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / file)
        change(tensors)
        save_file(tensors, folder / file, metadata={"format": "pt"})

    return damage


def _first(header: dict[str, Any]) -> Any:
    return next(value for name, value in header.items() if name != "__metadata__")


def _files(layout: str, first: str, *others: str) -> Iterator[Bad]:
    """What can be wrong with any file of JSON; others are read alike."""
    for name, content in {"cut": b'{"a": ', "deep": DEEP, "a number": b"7"}.items():
        yield Bad(f"{first} is {name}", layout, overwritten(first, content))
    yield Bad(f"{first} is a FIFO", layout, made_to(first, "a FIFO"))
    for file in others:
        yield Bad(f"{file} is deep", layout, overwritten(file, DEEP))
    for file in others[-1:]:
        yield Bad(f"{file} is a FIFO", layout, made_to(file, "a FIFO"))


LOADED = ("cut", "of nothing", "of not numbers", "of another model", "of other sizes", "missing")


def _weights(layout: str, file: str, names: tuple[str, ...] = ()) -> Iterator[Bad]:
    """What can be wrong with any file of weights, all of it or by these names."""
    damages: dict[str, Callable[[Path], object]] = {
        "empty": overwritten(file, b""),
        "of a deep header": overwritten(file, struct.pack("<Q", len(DEEP)) + DEEP),
        "of a huge header": overwritten(file, b"\xff" * 100),
        "of an unknown dtype": _header(file, lambda h: _first(h).update(dtype="F7")),
        "of a huge shape": _header(file, lambda h: _first(h).update(shape=[10**23])),
        "of other offsets": _header(file, lambda h: _first(h).update(data_offsets=[0, 10**12])),
        "cut": lambda folder: os.truncate(folder / file, 5000),
        "of nothing": lambda folder: save_file({}, folder / file),
        "of not numbers": _tensors(file, lambda t: [one.fill_(float("nan")) for one in t.values() if one.ndim > 1]),
        "of another model": _tensors(file, lambda t: [t.pop(name) for name in [*t][::2]]),
        "of other sizes": _tensors(file, lambda t: t.update({n: one.new_zeros(3) for n, one in t.items()})),
        "a FIFO": made_to(file, "a FIFO"),
        "missing": made_to(file, "missing"),
    }
    for name in names or damages:
        yield Bad(f"weights: {name}", layout, damages[name])


def _pickled(file: str, weights: str) -> Callable[[Path], object]:
    """Weights as a pickle that makes a folder when it is run."""

    def damage(folder: Path) -> None:
        (folder / weights).unlink()
        write(folder / file, pickle.dumps(Sly(folder / "ran"), 2))

    return damage


def _own(file: str, more: dict[str, Any], name: str) -> Callable[[Path], object]:
    """A folder whose `file` names code, which makes a folder when it is imported."""

    def damage(folder: Path) -> None:
        (folder / "own.py").write_text(CODE.format(ran=str(folder / "ran")))
        content = json.loads((folder / file).read_bytes())
        write(folder / file, content | more | {"auto_map": {name: "own.Own"}})

    return damage


OWN_CODE = {
    "config": _own("config.json", {"model_type": "own"}, "AutoConfig"),
    "model": _own("config.json", {"model_type": "llama"}, "AutoModelForImageTextToText"),
    "processor": _own("processor_config.json", {"processor_class": "OwnProcessor"}, "AutoProcessor"),
    "tokenizer": _own("tokenizer_config.json", {"tokenizer_class": "OwnTokenizer"}, "AutoTokenizer"),
}
CONFIG_CHANGES: dict[str, Callable[[Any], object]] = {
    "no kind": lambda c: c.pop("model_type"),
    "an unknown kind": lambda c: c.update(model_type="llava-of-tomorrow"),
    "a list as its kind": lambda c: c.update(model_type=["llava"]),
    "text as a width": lambda c: c["text_config"].update(hidden_size="wide"),
    "a negative number of layers": lambda c: c["text_config"].update(num_hidden_layers=-1),
    "one layer more": lambda c: c["text_config"].update(num_hidden_layers=3),
    "no patches": lambda c: c["vision_config"].update(patch_size=0),
    "an unknown activation": lambda c: c["text_config"].update(hidden_act="sigh"),
}  # fmt: skip
CLIP_CHANGES: dict[str, Callable[[Any], object]] = {
    "no model_cfg": lambda c: c.pop("model_cfg"),
    "a list as text_cfg": lambda c: c["model_cfg"].update(text_cfg=[1]),
    "text as width": lambda c: c["model_cfg"]["text_cfg"].update(width="wide"),
    "no layers": lambda c: c["model_cfg"]["text_cfg"].update(layers=0),
    "text as vision_cfg": lambda c: c["model_cfg"].update(vision_cfg="ViT"),
    "another size": lambda c: c["model_cfg"].update(embed_dim=7),
    "text as mean": lambda c: c["preprocess_cfg"].update(mean="grey"),
}  # fmt: skip


INDICES = {
    "deep": DEEP, "a list": b"[]", "of numbers": b'{"weight_map": {"a": 1}}',
    "leading outside": b'{"weight_map": {"a": "../model.safetensors"}}',
}  # fmt: skip


def _vlms() -> Iterator[Bad]:
    yield from _files("llava", "config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json")
    yield from _weights("llava", WEIGHTS)
    yield Bad("a pickle", "llava", _pickled("pytorch_model.bin", WEIGHTS))
    for name, change in CONFIG_CHANGES.items():
        yield Bad(f"config.json: {name}", "llava", edit("config.json", change))
    for name, content in INDICES.items():
        yield Bad(f"an index {name}", "llava", overwritten("model.safetensors.index.json", content))
    yield Bad("adapters", "llava", overwritten("adapter_config.json", b'{"base_model_name_or_path": "elsewhere"}'))
    unknown, worded = {"processor_class": "None"}, {"image_mean": "grey"}
    yield Bad("an unknown processor", "llava", edit("processor_config.json", lambda c: c.update(unknown)))
    yield Bad("a mean in words", "llava", edit("processor_config.json", lambda c: c["image_processor"].update(worded)))
    yield Bad("a further FIFO", "llava", lambda folder: os.mkfifo(folder / "chat_template.jinja"))


def _hugging_face_clips() -> Iterator[Bad]:
    yield from _files("hf clip", "config.json", "preprocessor_config.json", "tokenizer.json")
    yield from _weights("hf clip", WEIGHTS, LOADED)
    yield Bad("a pickle", "hf clip", _pickled("pytorch_model.bin", WEIGHTS))
    for name, content in INDICES.items():
        yield Bad(f"an index {name}", "hf clip", functools.partial(_indexed, content))
    one_more: Callable[[Any], object] = lambda c: c["text_config"].update(num_hidden_layers=4)  # noqa: E731
    for name, change in (CONFIG_CHANGES | {"one layer more": one_more}).items():
        yield Bad(f"config.json: {name}", "hf clip", edit("config.json", change))
    for name, value in {"text as mean": "grey", "no mean": None, "two means": [0.5, 0.5]}.items():
        yield Bad(name, "hf clip", edit("preprocessor_config.json", operator.methodcaller("update", image_mean=value)))


def _older_clips() -> Iterator[Bad]:
    yield from _files("older hf clip", "vocab.json")
    contents = {"cut": b"#version: 0.2\nc a\n", "no UTF-8": b"\xff\xfe\x00", "of single words": b"a\nb\n"}
    for name, content in contents.items():
        yield Bad(f"merges.txt is {name}", "older hf clip", overwritten("merges.txt", content))
    words: dict[str, Callable[[Any], object]] = {
        "a word more": lambda c: c.update({"mountain</w>": len(c)}),
        "texts as ids": lambda c: c.update(dict.fromkeys(c, "one")),
        "too large ids": lambda c: c.update({word: i + 10**6 for word, i in c.items()}),
    }
    for name, change in words.items():
        yield Bad(f"vocab.json: {name}", "older hf clip", edit("vocab.json", change))


def _indexed(index: bytes, folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_bytes(index)


def _clips() -> Iterator[Bad]:
    yield from _files("clip", CLIP_CONFIG, "tokenizer.json")
    yield from _weights("clip", CLIP_WEIGHTS, LOADED)
    yield Bad("a pickle", "clip", _pickled("open_clip_pytorch_model.bin", CLIP_WEIGHTS))
    for name, change in CLIP_CHANGES.items():
        yield Bad(f"{CLIP_CONFIG}: {name}", "clip", edit(CLIP_CONFIG, change))


TABLE = [*_vlms(), *_clips(), *_hugging_face_clips(), *_older_clips()]


def record(text: str = "a small red cat", *, size: tuple[int, int] = (20, 30), n: int = 0) -> Record:
    pixels = np.random.default_rng(n).integers(0, 256, (*size, 3), np.uint8)
    return Record(f"r{n}", "cat", pixels, PROMPT, text, where="captions.json, image 7")


def _open_vlm(folder: Path, out: Path) -> object:
    path = resolve(str(folder))
    weights_hash(path)
    check_texts(path, [record()])
    return vlm.load(path).encode([record()], claim(out), say=print)


def _open_clip(folder: Path, out: Path) -> object:
    source = resolve_clip(str(folder), "")
    assert source.sha256
    return clip.load(source).encode([record()], claim(out), say=print)


LAYOUTS: dict[str, tuple[Callable[[Path], object], Callable[[Path, Path], object]]] = {
    "llava": (lambda folder: tiny_models.save(folder, tiny_models.llava), _open_vlm),
    "clip": (tiny_clip.save, _open_clip),
    "hf clip": (tiny_hf_clip.save, _open_clip),
    "older hf clip": (tiny_hf_clip.save_older, _open_clip),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of folder once; nobody may change these files."""
    root = tmp_path_factory.mktemp("models")
    for layout, (build, _) in LAYOUTS.items():
        build(root / layout)
    return {layout: root / layout for layout in LAYOUTS}


def _sentence(error: BaseException) -> str:
    said = str(error)
    assert said.isprintable()
    assert len(said) < 1000
    return said


@pytest.mark.parametrize("layout", LAYOUTS)
def test_undamaged_folders_are_used(built: dict[str, Path], tmp_path: Path, layout: str) -> None:
    assert LAYOUTS[layout][1](built[layout], tmp_path / "out")


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_a_bad_folder_is_refused_in_one_sentence(
    case: Bad, built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(built[case.layout], tmp_path / "downloaded")
    case.damage(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(InputError) as refused:
        LAYOUTS[case.layout][1](folder, tmp_path / "out")
    assert "--backbone" in _sentence(refused.value)
    assert folder.name in str(refused.value)
    assert not (folder / "ran").exists()


LATE = "hf clip: a pickle"  # what a pytorch_model.bin holds is seen when it is loaded
SAMPLE = [case for case in TABLE if str(case) in ("llava: adapters", "clip: open_clip_config.json is cut", LATE)]


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_the_command_says_one_line_and_writes_nothing(
    case: Bad, built: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(built[case.layout], tmp_path / "downloaded")
    case.damage(folder)
    method = "fedavg" if case.layout == "llava" else "promptfl"
    out = tmp_path / "out"
    words = f"--method {method} --backbone {folder} --rounds 1 --threads 1 --out {out}"
    assert main(words.split()) == 2
    said = capsys.readouterr()
    *progress, line = said.err.splitlines()
    assert progress == [] or str(case) == LATE
    assert line.startswith("error: ")
    assert "--backbone" in line
    assert said.out == ""
    assert not out.exists()


@pytest.mark.parametrize("part", OWN_CODE)
def test_code_of_a_folder_is_not_run_whatever_is_answered(
    part: str, built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(built["llava"], tmp_path / "downloaded")
    OWN_CODE[part](folder)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    if part == "tokenizer":  # needs none
        assert _open_vlm(folder, tmp_path / "out")
    else:
        with pytest.raises(InputError, match=r"needs code of its own \(.*\.json\), .* never run.*--backbone-code"):
            _open_vlm(folder, tmp_path / "out")
    assert not (folder / "ran").exists()


def backend(name: str) -> Callable[..., Any]:
    """Fails as transformers does where an optional package is not installed."""
    from transformers.utils import import_utils

    def failing(*args: object, **named: object) -> Any:
        raise ImportError(import_utils.BACKENDS_MAPPING[name][1].format("ThisProcessor"))

    return failing


def without_num2words(*args: object, **named: object) -> Any:
    """As SmolVLM's processor fails."""
    try:
        raise ImportError("Package `num2words` is required. Install it with `pip install num2words`.")
    except ImportError as error:
        raise OSError("Can't load the processor. " + "If it is from the hub, go there. " * 5) from error


def without_a_module(*args: object, **named: object) -> Any:
    import nothing_of_this_name  # noqa: F401


PACKAGES = {
    "num2words": without_num2words, "nothing_of_this_name": without_a_module, "opencv-python": backend("cv2"),
    "sentencepiece": backend("sentencepiece"), "protobuf": backend("protobuf"), "torchvision": backend("torchvision"),
    "timm": backend("timm"),
}  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_named_wherever_a_model_is_opened(
    package: str, built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip
    import transformers

    model = vlm.load(built["llava"])
    places: list[tuple[Any, str, Callable[[], object]]] = [
        (model, "see", lambda: model.encode([record()], claim(tmp_path), say=print)),
        (transformers.AutoModelForImageTextToText, "from_pretrained", lambda: vlm.load(built["llava"])),
        (transformers.AutoProcessor, "from_pretrained", lambda: vlm.load(built["llava"])),
        (transformers.AutoConfig, "from_pretrained", lambda: check_texts(built["llava"], [record()])),
        (transformers.AutoTokenizer, "from_pretrained", lambda: check_texts(built["llava"], [record()])),
        (open_clip, "create_model", lambda: clip.load(resolve_clip(str(built["clip"]), ""))),
        (transformers.CLIPConfig, "from_pretrained", lambda: clip.load(resolve_clip(str(built["hf clip"]), ""))),
    ]
    for owner, name, opening in places:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, PACKAGES[package])
            with pytest.raises(InputError, match=rf"--backbone .*: it needs packages that .* `pip install {package}`$"):
                opening()


def test_a_smolvlm_without_num2words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose processor is SmolVLM's, as it is published."""
    from transformers.models.smolvlm import processing_smolvlm

    monkeypatch.setattr(processing_smolvlm, "num2words", None)
    folder = tiny_models.save(tmp_path / "model", tiny_models.FAMILIES["idefics3"])
    video = {"video_processor_type": "SmolVLMVideoProcessor", "size": {"longest_edge": 16}}
    video |= {"max_image_size": {"longest_edge": 16}, "video_sampling": {"fps": 1, "max_frames": 4}}
    edited(folder, file="config.json", change=lambda c: c.update(model_type="smolvlm"))
    edited(folder, file="config.json", change=lambda c: c["vision_config"].update(model_type="smolvlm_vision"))
    smolvlm = {"processor_class": "SmolVLMProcessor", "video_processor": video}
    edited(folder, file="processor_config.json", change=lambda c: c.update(smolvlm))
    with pytest.raises(InputError, match=r"needs packages .* `pip install num2words`$"):
        vlm.load(folder)


@pytest.mark.skipif(importlib.util.find_spec("sentencepiece") is not None, reason="sentencepiece is installed")
def test_a_tokenizer_of_sentencepiece_without_that_package(built: dict[str, Path], tmp_path: Path) -> None:
    """transformers then tries it as one of tiktoken's, and names that."""
    folder = shutil.copytree(built["llava"], tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    edited(folder, file="tokenizer_config.json", change=lambda c: c.update(tokenizer_class="LlamaTokenizer"))
    with pytest.raises(InputError, match=r"needs packages .* `pip install sentencepiece protobuf`$"):
        check_texts(folder, [record()])


LIMIT = tiny_models.TEXT["max_position_embeddings"]


def test_a_text_beyond_the_positions_is_refused_with_the_tokenizer_alone(
    built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vlm, "load", None)
    folder = shutil.copytree(built["llava"], tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    check_texts(folder, [record(n=0), record(n=1)])
    said = r"record r2 \(captions.json, image 7\): .* has 500\d\d tokens, .* reads 256"
    with pytest.raises(InputError, match=said) as refused:
        check_texts(folder, [record(), record("cat " * 50_000, n=2)])  # 200 kB
    _sentence(refused.value)


def test_the_last_text_that_fits_is_read_and_one_word_more_is_refused(built: dict[str, Path], tmp_path: Path) -> None:
    """Also where the record's picture and prompt are cached."""
    model, cache = vlm.load(built["llava"]), claim(tmp_path / "cache")
    (one,) = model.encode([record("cat")], cache, say=print).values()
    rest = LIMIT - len(one.ids)
    (found,) = model.encode([record("cat" + " cat" * rest)], cache, say=print).values()
    assert len(found.ids) == LIMIT
    with pytest.raises(InputError, match=rf"record r0 .* {LIMIT + 1} tokens"):
        model.encode([record("cat" + " cat" * (rest + 1))], cache, say=print)
    assert len(cache.names()) == 1


def test_a_long_text_is_refused_before_the_vision_pass_and_with_image_tokens(
    built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache = vlm.load(built["llava"]), claim(tmp_path / "cache")
    short, long = record(n=0), record("cat " * 245, n=1)
    check_texts(built["llava"], [short, long])  # fits without its 16 image tokens
    seen: list[int] = []
    reached = model._reached
    monkeypatch.setattr(model, "_reached", lambda given: seen.append(len(given["input_ids"])) or reached(given))
    with pytest.raises(InputError, match="record r1 "):
        model.encode([short, long], cache, say=print)
    assert set(seen) <= {1}, "the batch with the long text was never looked at"
    assert not cache.names()


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_pictures_of_any_size_are_read_together_or_named(family: str, tmp_path: Path) -> None:
    """Pixtral's processor (mistral3) keeps the shape, and cannot make anything of a stripe."""
    model = vlm.load(tiny_models.save(tmp_path / "model", tiny_models.FAMILIES[family]))
    sizes, stripes = [(20, 30), (1, 1), (3, 3), (3, 50)], [(1, 40), (40, 1), (300, 2)]
    if family == "mistral3":
        for i, size in enumerate(stripes):
            with pytest.raises(InputError, match=r"one of record r0 .* to record r1 ") as refused:
                model.encode([record(n=0), record(size=size, n=1)], claim(tmp_path / f"cache-{i}"), say=print)
            _sentence(refused.value)
    else:
        sizes += stripes
    records = [record(size=size, n=i) for i, size in enumerate(sizes)]
    found = model.encode(records, claim(tmp_path / "cache"), say=print)
    assert all(one.features.isfinite().all() for one in found.values())
    assert len(found) == len(sizes)
