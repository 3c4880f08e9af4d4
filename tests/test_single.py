"""One peft adapter with its lists, as `--run ADAPTER --members LIST --nonmembers LIST`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedaudit.command import cli
from fedaudit.external.single import Flags, read_adapter_run
from fedaudit.machinery.errors import InputError
from tests.small_run import put
from tests.test_peft_config import adapted


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An adapter as peft saves it in `adapter`, and lists with a picture each in `lists`."""
    adapted(r=4, lora_alpha=16).save_pretrained(tmp_path / "adapter")
    for name in ("members", "nonmembers"):
        lines = [{"image": f"{name}-{i}.png", "text": f"text {i}", "prompt": "<image> what?"} for i in range(3)]
        put(tmp_path / f"lists/{name}.jsonl", lines)
        for i, entry in enumerate(lines):
            pixels = np.full((2, 2, 3), 10 * i + len(name), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "lists" / entry["image"])
    return tmp_path


def lists(place: Path) -> list[str]:
    return ["--members", f"{place}/lists/members.jsonl", "--nonmembers", f"{place}/lists/nonmembers.jsonl"]


@pytest.mark.parametrize("name", ["adapter", "adapter/adapter_model.safetensors"])
def test_a_run_of_one_client_and_one_round(place: Path, name: str) -> None:
    own = read_adapter_run(place / name, Flags(False, *lists(place)[1::2]))
    assert (own.rounds, own.clients, own.cohorts, own.trained.rank, own.trained.alpha) == (1, 1, ((0,),), 4, 16)
    start, end = (model.load() for model in own.models)
    assert all(torch.equal(start[n], end[n]) if n.endswith("A") else not start[n].any() for n in end)
    assert end.keys() == own.received(0, start)[0].keys()
    assert all(torch.equal(tensor, end[n]) for n, tensor in own.received(0, start)[0].items())
    assert sum(own.federation.truth.values()) == 3
    assert own.remarks == []


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ("", lambda p: [], "one model needs its lists of records; --members is missing"),
        ("", lambda p: lists(p)[:2], "--nonmembers is missing"),
        ("adapter/adapter_config.json", lists, "adapter_config.json is missing; it says how the adapter"),
        ("lists/members.jsonl", lists, "members.jsonl is missing; it lists the members"),
        ("lists/members-1.png", lists, "members.jsonl line 2: image members-1.png is missing"),
    ],
)
def test_what_is_missing_is_named(place: Path, capsys, change: str, words, message: str) -> None:
    if change:
        (place / change).unlink()
    assert cli.main(["--run", str(place / "adapter"), *words(place), "--out", str(place / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (place / "out").exists()


def test_lists_go_with_an_adapter_only(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--run", str(place / "lists"), *lists(place)]) == 2
    assert "goes with one adapter or checkpoint, and --run" in capsys.readouterr().err


def test_untrained_and_shared_records(place: Path) -> None:
    from peft import LoraConfig, get_peft_model

    untrained = place / "untrained"
    model = torch.nn.ModuleDict(
        {"layers": torch.nn.ModuleList([torch.nn.ModuleDict({"q_proj": torch.nn.Linear(8, 8)})])}
    )
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(untrained)
    with pytest.raises(InputError, match="nothing was trained"):
        assert read_adapter_run(untrained, Flags(False, *lists(place)[1::2])).remarks
    path = place / "lists/nonmembers.jsonl"
    copy = json.loads((place / "lists/members.jsonl").read_text().splitlines()[0])
    path.write_text(path.read_text() + json.dumps(copy) + "\n")
    own = read_adapter_run(place / "adapter", Flags(False, *lists(place)[1::2]))
    assert [remark.check for remark in own.remarks] == ["records"]
    assert list(own.federation.truth.values()).count(True) == 2
