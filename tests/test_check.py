"""`--check`: what it finds in data, models and runs, held against the files; a sentence and exit code 2 for what is missing and for doubts on a recording; nothing is encoded, loaded or written. Forms of weights: tests/test_weight_forms.py."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import safetensors.torch
import torch

from fedaudit.backbones import EMBEDDED, vlm
from fedaudit.command import checking
from fedaudit.command.cli import main
from fedaudit.contracts import tiny_clip
from fedaudit.contracts.check import _why
from fedaudit.machinery.samples import Sample
from tests import miniimages, small_run
from tests.small_run import UPLOAD

PETS = "--method promptfl --task images --dataset oxford_pets --clients 3 --prompt-length 4".split()
FEW = ["--train", "4", "--test", "1"]  # drawn symbols
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No model's weights are read but for their headers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(safetensors.torch, "load_file", lambda *args, **more: pytest.fail("weights were loaded"))


def check(words: list[str], capsys: Capture) -> tuple[int, list[str], list[str]]:
    capsys.readouterr()
    code = main([*words, "--check"])
    said = capsys.readouterr()
    assert not Path("fedaudit-runs").exists()
    return code, said.out.splitlines(), said.err.splitlines()


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    miniimages.oxford_pets(tmp_path / "data", coop=False)
    return tmp_path / "data"


def test_what_is_found_in_a_folder_is_what_lies_in_it(pets: Path, capsys: Capture) -> None:
    code, out, err = check([*PETS, "--data-root", str(pets)], capsys)
    assert (code, err) == (0, [])
    data, model, read, last = out
    pictures = len([*pets.rglob("*.jpg")])
    counts = dict(reversed(part.split(" ", 1)) for part in data.rpartition("; ")[2].split(", "))
    assert data.startswith(f"data: images: {pictures} records in 3 classes, 3 clients with ")
    assert sum(map(int, counts.values())) == pictures == 33
    assert counts["test"] == "9"
    assert model == (
        "model: symbols-clip, activation GELU: a CLIP of 1.4 million parameters, float16 in the files, used as float32 (0.01 GB); "
        "pictures of 32 x 32"
    )
    assert read == "read: 33 pictures"
    assert last == "fits: nothing is missing"


def test_what_half_a_minute_does_not_suffice_for_is_said(
    pets: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "SECONDS", 0)
    words = [*PETS, "--data-root", str(pets)]
    code, out, err = check(words, capsys)
    assert (code, err) == (0, [])
    assert out[-2:] == [
        "read: 1 of 33 pictures; the audit reads all, and so does --check --whole",
        "fits: nothing is missing in what was read",
    ]
    assert check([*words, "--whole"], capsys)[1][-2:] == ["read: 33 pictures", "fits: nothing is missing"]
    assert main([*words, "--whole"]) == 2
    assert "--whole: goes with --check" in capsys.readouterr().err


def test_what_is_read_is_spread_over_all() -> None:
    sample = Sample(seconds=60)
    assert [*sample(range(9))] == [0, 8, 4, 2, 6, 1, 5, 3, 7]
    assert (sample.read, sample.of, sample.partial) == (9, 9, False)
    assert [*Sample()("abc")] == [*"abc"]


def damaged(root: Path) -> object:
    return [file.write_bytes(b"<html>") for file in [*sorted(root.rglob("*.jpg"))][1:]]


DATA: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "no folder": (shutil.rmtree, [], "--data-root {root}: no such folder"),
    "a picture is missing": (lambda root: next(root.rglob("*.jpg")).unlink(), [], "no such file, but the lists of"),
    "pictures that are none": (damaged, [], "is no readable image (damaged?"),
    "too many clients": (lambda root: None, ["--clients", "1000"], "1000"),
}


@pytest.mark.parametrize("case", DATA)
def test_what_is_missing_in_a_folder_is_said(case: str, pets: Path, capsys: Capture) -> None:
    change, words, sentence = DATA[case]
    change(pets)
    given = [*PETS[:6], *(words or ["--clients", "3"]), *PETS[8:]]
    code, out, err = check([*given, "--data-root", str(pets)], capsys)
    assert code == 2
    assert all(line.startswith("error: ") for line in err)
    assert sentence.format(root=pets) in err[0]
    assert any(line.startswith("model: ") for line in out)  # the model is looked at all the same
    assert len(err) == (32 if change is damaged else 1)  # all files at once


def test_each_thing_that_is_missing_has_its_sentence(tmp_path: Path, capsys: Capture) -> None:
    words = [*PETS, "--data-root", str(tmp_path / "nowhere"), "--backbone", "ViT-B-16", "--weights", "gone.pt"]
    code, out, err = check(words, capsys)
    assert (code, out) == (2, [])
    assert err[0].startswith("error: --weights gone.pt: there is no file ")
    assert err[1].startswith(f"error: --data-root {tmp_path / 'nowhere'}: no such folder")


def test_class_names_must_fit_the_text_encoder(pets: Path, tmp_path: Path, capsys: Capture) -> None:
    """The tiny model's text encoder reads 32 tokens."""
    folder = tiny_clip.save(tmp_path / "tiny")
    words = [*PETS[:-2], "--data-root", str(pets), "--backbone", str(folder)]
    code, out, (said,) = check([*words, "--prompt-length", "30"], capsys)
    assert code == 2
    assert (
        "the prompt of class 'american bulldog' has 35 tokens with 30 context vectors; this text encoder reads 32: give --prompt-length"
        in said
    )
    assert out[-2].startswith("model: tiny, ")
    assert check([*words, "--prompt-length", said.rpartition("--tokens) ")[2].partition(",")[0]], capsys)[0] == 0


@pytest.mark.parametrize(("words", "model"), [
    (["--method", "promptfl", *FEW, "--backbone", "ViT-B-16", "--weights", "random"], "ViT-B-16 (random), activation GELU: a CLIP of 149.6 million parameters, random, "),
    (["--method", "fedavg", "--records", "2", "--reference", "2", "--novel", "2", "--test", "1"], "scenes-llava: LlavaForConditionalGeneration of 3.5 million parameters, float16 in the files, used as float32 (0.01 GB)"),
])  # fmt: skip
def test_a_model_is_described(words: list[str], model: str, tmp_path: Path, capsys: Capture) -> None:
    code, out, err = check(words, capsys)
    assert (code, err) == (0, [])
    assert out[1].startswith(f"model: {model}")
    assert [*tmp_path.iterdir()] == []


def run_of_adapters(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A run whose adapters have the layers of the built-in model and the numbers of a small run, but for a change."""
    small_run.small_run(folder)
    model = vlm.load(EMBEDDED, "meta")
    shapes = {model.short(name): model.model.get_submodule(name).weight.shape for name in model.projections("q_proj")}
    for file in [*folder.rglob("*.safetensors")]:
        numbers = {
            name[-1]: tensor.flatten()[0].item() for name, tensor in safetensors.torch.load(file.read_bytes()).items()
        }
        tensors = {f"{n}.A": torch.full((1, s[1]), numbers["A"]) for n, s in shapes.items() if "A" in numbers}
        tensors |= {f"{n}.B": torch.full((s[0], 1), numbers["B"]) for n, s in shapes.items() if "B" in numbers}
        change(tensors)
        file.unlink()
        safetensors.torch.save_file(tensors, file)
    return folder


def test_a_run_of_adapters_is_held_against_the_model(tmp_path: Path, capsys: Capture) -> None:
    folder = run_of_adapters(tmp_path / "run", lambda tensors: None)
    code, out, err = check(["--run", str(folder)], capsys)
    assert (code, err) == (0, [])
    tensors = 2 * len(vlm.load(EMBEDDED, "meta").projections("q_proj"))
    said = f"run: {folder}: mine on photos, 2 rounds, 3 clients; 3 global models of {tensors} tensors ("
    assert out[0].startswith(said)
    assert out[0].endswith(", 3 uploads")
    assert "3 members, 2 held out" in out[1]
    assert "note: 2 non-members have the picture of a member" in out[2]
    assert out[-2:] == [
        "read: 1 picture and 2 rounds",
        "fits: nothing is missing; losses, members and scale are checked by the audit",
    ]
    first = "layers.0.self_attn.q_proj.A"
    other = run_of_adapters(tmp_path / "other", lambda tensors: tensors.update({first: torch.ones(1, 7)}))
    code, _, err = check(["--run", str(other)], capsys)
    assert (code, err) == (2, [f"error: --run {other}: {first} has shape [1, 7], and the layer has 192 features"])
    small = small_run.small_run(tmp_path / "small")
    code, _, err = check(["--run", str(small)], capsys)
    assert code == 2
    assert err == [f"error: --run {small}: its adapters of 2 tensors do not fit the model, whose layers take {tensors} ("
                   "layers.0.q_proj.A is in one of them only)"]  # fmt: skip


def test_adapters_of_another_part_of_the_model_are_refused_by_name(tmp_path: Path, capsys: Capture) -> None:
    tower = "base_model.model.model.vision_tower.encoder."
    folder = run_of_adapters(
        tmp_path / "run",
        lambda tensors: [tensors.update({f"{tower}{n[:-2]}.lora_{n[-1]}.weight": tensors.pop(n)}) for n in [*tensors]],
    )
    said = f"error: --run {folder}: model.vision_tower.encoder.layers.0.self_attn.q_proj is no layer of the language model (model.language_model)"
    code, _, (line,) = check(["--run", str(folder)], capsys)
    assert (code, line.startswith(said)) == (2, True)
    assert main(["--run", str(folder), "--attack", "none", "--out", str(tmp_path / "out"), "--quiet"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)


def test_a_run_that_is_damaged_or_names_no_model_of_here(tmp_path: Path, capsys: Capture) -> None:
    folder = run_of_adapters(tmp_path / "run", lambda tensors: None)
    code, out, err = check(["--run", str(folder), "--backbone", str(tmp_path / "gone")], capsys)
    assert code == 2
    assert err[0].startswith(f"error: --backbone {tmp_path / 'gone'}: there is no folder")
    assert out[0].startswith("run: ")
    small_run.delete("members.jsonl")(folder)
    code, out, err = check(["--run", str(folder)], capsys)
    assert (code, out) == (2, [])
    assert "members.jsonl" in err[0]


ROUND = "uploads/round-000/client-00.safetensors"
NEXT = "models/round-001.safetensors"
Files = Callable[[Path], object]


def changed(*names: str, by: Callable[[torch.Tensor], torch.Tensor]) -> Files:
    """A change of all numbers in files of a run."""

    def change(folder: Path) -> None:
        for name in names:
            tensors = {key: by(tensor) for key, tensor in safetensors.torch.load((folder / name).read_bytes()).items()}
            safetensors.torch.save_file(tensors, folder / name)

    return change


def exchanged(folder: Path) -> None:
    """Equal parts of the round's mean become parts by numbers of records that the files contradict."""
    one, other = folder / ROUND, folder / "uploads/round-000/client-02.safetensors"
    shutil.copy(one, other)


def copied(source: str, target: str) -> Files:
    return lambda folder: shutil.copy(folder / source, folder / target)


WRONG: dict[str, tuple[Files, str]] = {
    "changes": (changed(UPLOAD, by=lambda tensor: tensor - 10), "error: --run "),
    "a lost upload": (lambda folder: (folder / ROUND).unlink(), "doubt: "),
    "in place": (exchanged, "doubt: "),
    "not finite": (changed(ROUND, UPLOAD, by=lambda tensor: tensor * torch.nan), "error: "),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_the_files_of_a_recording_tell_is_said(what: str, tmp_path: Path, capsys: Capture) -> None:
    folder = run_of_adapters(tmp_path / "run", lambda tensors: None)
    change, begins = WRONG[what]
    change(folder)
    code, out, err = check(["--run", str(folder)], capsys)
    assert code == 2
    assert err
    assert all(line.startswith(begins) for line in err), err
    assert not any(line.startswith("fits: nothing") for line in out)
    assert len(err) == (2 if what == "not finite" else len(err))  # both files


def test_an_accepted_doubt_is_not_said_again(tmp_path: Path, capsys: Capture) -> None:
    folder = run_of_adapters(tmp_path / "run", lambda tensors: None)
    exchanged(folder)
    words = ["--run", str(folder), "--accept-doubts", "aggregation,uploads,weights"]
    assert check(words, capsys)[::2] == (0, [])


def test_one_record_goes_through_the_preprocessing_of_the_model(tmp_path: Path, capsys: Capture) -> None:
    words = ["--method", "fedavg", "--records", "2", "--reference", "2", "--novel", "2", "--test", "1"]
    assert re.search(r"; record .*: 25 tokens of the picture, \d\d of texts$", check(words, capsys)[1][1])
    with mock.patch.object(vlm.FrozenVLM, "_processed", side_effect=ValueError("no such mode")):
        code, _, (said,) = check(words, capsys)
    assert (code, "no such mode" in said) == (2, True)


def test_a_broken_contract_says_why() -> None:
    assert _why("It holds.", lambda: None) == ""
    assert _why("It holds.", mock.Mock(side_effect=AssertionError("1 > 2"))) == "It holds. Here: 1 > 2"
    assert _why("It holds.", mock.Mock(side_effect=AssertionError)) == "It holds."
    assert _why("It holds.", mock.Mock(side_effect=KeyError("x"))).startswith("It holds. Here: KeyError: ")
