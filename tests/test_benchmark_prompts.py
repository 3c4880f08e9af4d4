"""The benchmark of prompt learning: what it times computes the same numbers, and its check would notice if not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from benchmarks import prompts
from benchmarks.prompts import KINDS, World
from fedaudit.backbones.clip import load
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.contracts import tiny_clip
from fedaudit.machinery.store import claim
from fedaudit.trainers.base import generator

NAMES = ("cat", "the big mountain lion", "digit seven", "dog", "small blue letter")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    clip = load(resolve_clip(str(tiny_clip.save(folder / "tiny")), ""))
    return prompts.world(clip, NAMES, 3, 2, claim(folder / "cache"))


@pytest.fixture(scope="module")
def variants(world: World) -> list[prompts.Variant]:
    prompt = world.learner.initial(generator(0, "initial"))["p_G"]
    return list(prompts.variants(world, 10 * prompt))  # large enough that prompts matter


def test_all_variants_compute_the_same(variants: list[prompts.Variant]) -> None:
    assert len(variants) == 7
    assert variants[0].step().abs().max() > 1e-3
    found = prompts.differences(variants)
    assert found["evaluation"] == 0
    assert max(found.values()) < prompts.AGREEMENT


@pytest.mark.parametrize("kind", KINDS)
def test_a_variant_that_computes_something_else_is_noticed(variants: list[prompts.Variant], kind: str) -> None:
    right = dict(zip(KINDS, ("step", "private", "evaluation"), strict=True))[kind]
    compute = getattr(variants[-1], right)
    spoilt = {right: lambda: ~compute() if kind == "evaluation" else 1.01 * compute()}
    wrong = dataclasses.replace(variants[-1], **spoilt)
    found = prompts.differences([*variants[:2], wrong])
    assert [name for name in KINDS if found[name] > prompts.AGREEMENT] == [kind]


def test_seconds_of_one_client(variants: list[prompts.Variant]) -> None:
    """Loops time two of eight records of one client, the project all records of one client or of three."""
    spent = prompts.Spent()
    spent.least = {(variant.name, kind): (12.0, 24.0) for variant in variants for kind in KINDS}
    assert [spent.of(variants[0], kind) for kind in KINDS] == [12, 48, 12]
    assert [spent.of(variants[-2], kind) for kind in KINDS] == [12, 12, 12]
    assert [spent.of(variants[-1], kind, 1) for kind in KINDS] == [8, 8, 8]


def test_the_tables_are_printed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    prompts.speed(world, 1)
    printed = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in printed if line.startswith(("straightforward loop", "+"))]
    assert len(rows) == 7
    assert rows[0][-8:] == ["1.0", "1.0", rows[0][-6], "1.0", "1.0", rows[0][-3], "1.0", "1.0"]
    rounds = [line for line in printed if line.startswith(tuple(name for *_, name in prompts.ROUND_ROWS))]
    assert len(rounds) == 3
    private = zip(rounds[1:], prompts.ROUND_ROWS[1:], strict=True)
    clipped, mean = (line.removeprefix(name).split() for line, (*_, name) in private)
    assert clipped[1] == mean[1]  # the project's private round, beside two loops
    assert rounds[0].split()[2] == mean[0]  # the loop of the first row


def test_the_transport_row_would_notice_another_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = load(resolve_clip(str(tiny_clip.save(tmp_path / "tiny")), ""))
    world = prompts.world(clip, NAMES, 3, 2, claim(tmp_path / "cache"), patches=True)
    prompts.transport(world, 1)
    assert f"{3 * len(world.test) * len(NAMES)} problems of 16 patches" in capsys.readouterr().out
    monkeypatch.setattr(prompts.fedotp, "STILL", 0.5)
    with pytest.raises(SystemExit, match="of a patch's mass off"):
        prompts.transport(world, 1)


def test_clients_of_the_scale_part_hold_records(tmp_path: Path) -> None:
    settings = prompts.Settings(prompt_length=4, batch=2)
    bench = prompts.crowded(30, settings, claim(tmp_path), pictures=2, records=6)
    assert [len(ids) for ids in bench.training] == [6] * 30
    classes = [len(set(bench.learner.labels(ids).tolist())) for ids in bench.training]
    assert sum(classes) / 30 < 5.5  # Dirichlet 0.3 over 40 classes: fewer than six different ones in six draws
    assert torch.equal(bench.learner.labels(bench.test).bincount(), torch.full((40,), 5))
