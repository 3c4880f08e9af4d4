"""The presets in which numbers move, and what they rest on."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import presets
from fedaudit.command import cli
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.plan import Plan
from fedaudit.pipeline.workers import Workshop, make_bench
from reports import paper_items
from trainers.base import generator

SMALL = "--clients=3 --train=8 --test=1 --rounds=3 --threads=1".split()


def plan(*words: str) -> Plan:
    return cli.read_command([*words, "--dry-run"]).plan


def test_the_memorising_preset_attacks_every_client_without_noise() -> None:
    found = plan("--preset", "memorising")
    assert all(math.isinf(v.privacy.epsilon) for v in found.methods.values() if v is not None)
    assert list(found.attacks) == ["loss"]
    assert found.adversary.targets == found.clients


def test_the_figure_takes_prompts_that_memorise() -> None:
    """As many pictures, rounds and rates as the preset that was chosen for it; the paper's attack first."""
    memorising = plan("--preset", "memorising")
    for words in paper_items.find("dpfpl:figure3").tasks.values():
        found = plan("--preset", "dpfpl-figure3", *words)
        assert found.task_params == memorising.task_params
        assert (found.rounds, found.settings) == (memorising.rounds, memorising.settings)
        assert next(iter(found.attacks)) == "shadow"


def test_lengths_are_those_of_records_one_by_one(tmp_path: Path) -> None:
    """Of reference records only, each by plain autograd at the public start."""
    found = plan("--preset", "private-demo", *SMALL, "--out", str(tmp_path))
    lengths = presets.record_lengths(found)
    federation = Workshop(found, Progress(quiet=True)).federation
    learner = make_bench(found, federation).learner
    start = learner.initial(generator(0, "initial"))
    reference = [record.id for client in federation.clients for record in client.reference]
    assert len(lengths) == len(reference)
    slow = []
    for record in reference[::8]:
        prompt = (start["p_G"] + start["p_L"]).requires_grad_()
        logits = learner.scale * learner.images([record]) @ learner.text(prompt).T
        loss = torch.nn.functional.cross_entropy(logits, learner.labels([record]))
        slow.append(float(torch.autograd.grad(loss, prompt)[0].norm()))
    near = np.abs(np.sort(lengths)[None] - np.array(slow)[:, None]).min(1)
    assert (near < 1e-3 * np.array(slow)).all()
    other = dataclasses.replace(found, seed=1)
    assert not np.allclose(np.sort(presets.record_lengths(other))[:5], np.sort(lengths)[:5])


def test_trainings_are_examined_on_reference_records() -> None:
    with presets.trained("private-demo", "--epsilon=none", *SMALL) as (cells, workshop):
        federation = workshop.federation
        kept = {record.id for client in federation.clients for record in client.reference}
        assert {record.id for record in federation.test} == kept
        trained_records = {record.id for client in federation.clients for record in client.training_records}
        assert not trained_records & kept
        loss = presets.losses(cells[0], workshop)
    assert set(loss.record[~loss.member]) == kept
    assert set(loss.record[loss.member]) <= trained_records


@pytest.mark.slow
def test_the_private_preset_clips_at_the_median(tmp_path: Path) -> None:
    found = plan("--preset", "private-demo", "--out", str(tmp_path))
    (norm,) = {
        v.privacy.clip_norm for v in found.methods.values() if v is not None and math.isfinite(v.privacy.epsilon)
    }
    assert norm == pytest.approx(np.median(presets.record_lengths(found)), rel=0.05)
