"""docs/tutorials/coop.md as it stands, on a checkpoint and data in CoOp's layout that are made here of drawn symbols."""

import json
import pickle
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedaudit.backbones import clip
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.command import cli, exits
from fedaudit.tasks.base import Record
from fedaudit.tasks.drawings import CLASSES, draw
from tests.doc_blocks import BLOCKS, commands, shell_blocks

PAGE = "docs/tutorials/coop.md"
LABELS = [CLASSES.index(name) for name in ("c", "e", "g", "b", "six", "eight", "three", "nine")]
SHOTS, OTHERS, LENGTH = 4, 4, 16  # pictures of a class that train and that do not, context vectors


@dataclass
class Datum:
    """Dassl's, as its pickles name it."""

    impath: str


def write_data(data: Path) -> list[Record]:
    (data / "images").mkdir(parents=True)
    (data / "split_fewshot").mkdir()
    rng = np.random.default_rng(1)
    split, shots = [], []
    for label, symbol in enumerate(LABELS):
        name = f"neon_{CLASSES[symbol]}"
        for i, picture in enumerate(draw("relief", [symbol] * (SHOTS + OTHERS), rng)):
            Image.fromarray(picture).save(data / "images" / f"{name}_{i}.png")
            split.append((f"{name}_{i}.png", label, name))
            if i < SHOTS:
                shots.append(Record(f"{name}_{i}.png", name, picture, "<image>", CLASSES[symbol]))
    (data / "split_zhou_OxfordPets.json").write_text(json.dumps({"train": split, "val": [], "test": []}))
    items = [Datum(f"/elsewhere/oxford_pets/images/{shot.id}") for shot in shots]
    with open(data / "split_fewshot/shot_16-seed_1.pkl", "wb") as file:
        pickle.dump({"train": items, "val": []}, file, protocol=pickle.HIGHEST_PROTOCOL)
    return shots


def write_checkpoint(output: Path, shots: list[Record]) -> None:
    frozen = clip.load(resolve_clip("vit", ""))
    texts = frozen.classes([f"neon {CLASSES[symbol]}" for symbol in LABELS], LENGTH)
    with torch.no_grad():
        images = frozen.model.encode_image(frozen._pixels(shots), normalize=True)
    labels = torch.arange(len(LABELS)).repeat_interleave(SHOTS)
    ctx = torch.nn.Parameter(torch.randn(LENGTH, frozen.width, generator=torch.Generator().manual_seed(0)) * 0.02)
    optimizer = torch.optim.Adam([ctx], lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        logits = frozen.scale * images @ frozen.text(ctx, texts).T
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    state = {"ctx": ctx, "token_prefix": frozen.start_token.repeat(len(LABELS), 1, 1)}
    (output / "prompt_learner").mkdir(parents=True)
    torch.save({"state_dict": state, "epoch": 50}, output / "prompt_learner/model.pth.tar-50")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody who has trained with CoOp, and the modules that a pickle of shots needs."""
    for name in ("dassl", "dassl.data", "dassl.data.datasets"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["dassl.data.datasets"], "Datum", Datum, raising=False)
    monkeypatch.setattr(Datum, "__module__", "dassl.data.datasets")
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "output/oxford_pets", write_data(tmp_path / "data/oxford_pets"))
    return tmp_path


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_page_from_a_checkpoint_to_a_verdict(place: Path, unsafe_but_quick: None, capsys: Any) -> None:
    (script,) = (block.text for block in BLOCKS if (block.page, block.language) == (PAGE, "python"))
    exec(script, {})
    data = place / "data/oxford_pets"
    members, nonmembers = lines(data / "members.jsonl"), lines(data / "nonmembers.jsonl")
    assert {*(data / "names.txt").read_text().split("\n")} == {*(line["class"] for line in members), ""}
    assert len(members) == len(nonmembers) == SHOTS * len(LABELS)
    numbers = [{int(re.split("[_.]", line["image"])[-2]) for line in of} for of in (members, nonmembers)]
    assert numbers == [{*range(SHOTS)}, {*range(SHOTS, SHOTS + OTHERS)}]

    words = [words[2:] for block in shell_blocks() if block.page == PAGE for words in commands(block.text)]
    small = [[*line, "--threads", "1"] for line in words]  # and the embedded CLIP in the place of OpenAI's
    for line in small:
        at = line.index("--backbone")
        assert line[at : at + 4] == ["--backbone", "ViT-B-16", "--weights", "openai"]
        line[at : at + 4] = ["--backbone", "vit"]
    assert [cli.main(line) for line in small] == [exits.DONE, exits.CROSSED]
    said = capsys.readouterr()
    assert "failed: auroc.low > 0.6" in said.err
    (table,) = Path("fedaudit-runs/reports").glob("*/findings.csv")
    findings = pd.read_csv(table)
    assert not (findings.metric == "recording").any()
    rows = findings[(findings.metric == "auroc") & findings.headline & (findings.nonmembers == "held-out")]
    assert {*rows.threat_model} == {"prompt-user", "owner"}
    assert (rows.value > 0.7).all()
    assert {*rows.verdict} <= {"leak", "confounded"}  # of so few pictures the controls say little
