"""The presets in which numbers move, and what they rest on."""

import csv
import dataclasses
import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import fedaudit
from benchmarks import presets
from fedaudit.command import cli, config, listing
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.plan import Plan
from fedaudit.pipeline.workers import Workshop, make_bench
from fedaudit.reports import paper_items
from fedaudit.trainers.base import generator

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


@pytest.mark.slow  # a number that was chosen by hand; quick: lengths are those of records one by one
def test_the_private_preset_clips_at_the_median(tmp_path: Path) -> None:
    found = plan("--preset", "private-demo", "--out", str(tmp_path))
    noised = (v.privacy for v in found.methods.values() if v is not None and math.isfinite(v.privacy.epsilon))
    (norm,) = {privacy.clip_norm for privacy in noised}
    assert norm == pytest.approx(np.median(presets.record_lengths(found)), rel=0.05)


STATED = Path(__file__).parent / "paper_hyperparameters.csv"
PAPERS = list(csv.DictReader(STATED.read_text(encoding="utf-8").splitlines()))
ROWS = [(preset, row["option"], row["value"]) for row in PAPERS for preset in row["presets"].split()]
NO_PAPERS = {"embedded", "memorising", "private-demo", "canaries"}  # presets that stand for nothing in a paper
AWAY = ("--backbone=", "--weights=", "--task=images", "--dataset=")  # words for weights and pictures that are not here


def text_of(preset: str) -> str:
    return (Path(fedaudit.__file__).parent / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")


@functools.cache
def reasons(preset: str) -> dict[str, str]:
    """{option: reason} of the lines "# differs: OPTION, OPTION: REASON." of the preset's file."""
    found = re.findall(r"^# differs: ([^:]+): (.+)$", text_of(preset), re.MULTILINE)
    every = [(option.replace("_", "-"), why) for options, why in found for option in options.split(", ")]
    assert len(dict(every)) == len(every), f"{preset}: an option has two reasons"
    return dict(every)


@functools.cache
def values(preset: str) -> dict[str, set[Any]]:
    """What a run of the preset has of every option: the values in its file, else the defaults."""
    found = cli.read_command([word for word in config.preset_words(preset) if not word.startswith(AWAY)]).plan
    methods = [v for v in found.methods.values() if v is not None]
    groups = [found.settings, found.task_params, found.adversary, *found.attacks.values(), *found.audits.values()]
    groups += [part for v in methods for part in (v.params, v.privacy)]
    every: dict[str, set[Any]] = {}
    for group in groups:
        for name, value in vars(group).items() if group is not None else ():
            every.setdefault(name.replace("_", "-"), set()).add(value)
    for name in ("rounds", "clients", "newcomers", "seeds"):
        every[name] = {getattr(found, name)}
    every["per-round"] = {"all" if found.per_round == found.clients else found.per_round}
    every["method"] = {v.method for v in methods}
    file = yaml.safe_load(text_of(preset)).items()
    return every | {name.replace("_", "-"): {*(value if isinstance(value, list) else [value])} for name, value in file}


def stated(value: str) -> set[Any]:
    """The paper's value of an option, or its values; of "not stated" something that no preset has."""
    read = yaml.safe_load(value)
    return {*read} if isinstance(read, list) else {read}


def test_a_preset_has_the_papers_value_or_says_why_not() -> None:
    """A reason that no longer holds is as wrong as one that is missing."""
    assert {name for name, _, _ in ROWS} == {*config.presets()} - NO_PAPERS
    assert len({(name, option) for name, option, _ in ROWS}) == len(ROWS)
    for preset, option, value in ROWS:
        ours, papers = values(preset).get(option), stated(value)
        if ours == papers:
            assert option not in reasons(preset), f"{preset}.yaml: {option} is the paper's; its reason is out of date"
        else:
            said = f"{preset}.yaml: {option} is {ours}, the paper's {papers}, without a reason"
            assert option in reasons(preset), said


def test_every_reason_is_of_something_that_a_paper_states() -> None:
    for preset in config.presets():
        assert reasons(preset).keys() <= {option for name, option, _ in ROWS if name == preset}, preset
        assert all(re.fullmatch(r"\S.{10,}[^.]\.", why) for why in reasons(preset).values()), preset


def test_what_a_preset_at_a_papers_scale_sets_is_in_the_table() -> None:
    """So that no value stands there for a paper's that nobody has compared."""
    here = {"method", "weights", "task", "dataset"}  # what is trained, and which files are read
    for preset in (name for name in config.presets() if name == "paper" or "-paper" in name):
        of_paper = {option for name, option, _ in ROWS if name == preset}
        assert {name.replace("_", "-") for name in yaml.safe_load(text_of(preset))} - here <= of_paper, preset


def test_the_list_says_what_each_preset_is() -> None:
    said = listing.listing()
    assert all(re.search(rf"^  {name} +\S.*\.$", said, re.MULTILINE) for name in config.presets())


def test_a_preset_may_speak_of_attacks_that_do_not_run_and_of_nothing_unknown() -> None:
    cli._parse(cli._parser(), {}, {"--preset own": ["--shadows=4"]})
    with pytest.raises(InputError, match=r"^--preset own: .*--nonsense"):
        cli._parse(cli._parser(), {}, {"--preset own": ["--nonsense=4"]})
