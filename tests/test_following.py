"""Defaults follow the values that were given: no command is refused for a number that nobody gave."""

from pathlib import Path
from typing import Any

import pytest

from fedaudit.command.cli import read_command
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.methods import method_of
from fedaudit.pipeline.workers import federation_of
from tests import minilayouts

PROMPTS = ["--method", "dpfpl", "--epsilon", "none", "--train", "4", "--test", "1"]


def plan(*words: str) -> Any:
    return read_command(words).plan


FOLLOWED: dict[str, tuple[list[str], str, object]] = {
    "clients a round": (["--clients", "3"], "per_round", 3),
    "clients a round of a preset": (["--preset", "paper", "--clients", "3"], "per_round", 3),
    "clients a round, as many as usual": (["--clients", "20"], "per_round", 4),
    "rank of a prompt": ([*PROMPTS, "--prompt-length", "2"], "methods.dpfpl.params.rank", 2),
    "rank of a longer prompt": ([*PROMPTS, "--prompt-length", "20"], "methods.dpfpl.params.rank", 8),
    "ranks of a preset": (["--preset", "dpfpl-table4", "--prompt-length", "3"], "ranks", [3]),
    "steps": (["--method", "dp2fl", "--local-steps", "3"], "settings.local_epochs", 0),
    "epochs": (["--method", "dp2fl"], "settings.local_epochs", 5),
    "a partition": ([*PROMPTS, "--dirichlet", "2"], "task_params.partition", "dirichlet"),
    "shots of a task": (["--method", "dp2fl", "--partition", "dirichlet"], "task_params.shots", 0),
    "shadow models": (["--method", "secfpp", "--attack", "lira"], "adversary.shadow_kind", "federations"),
    "rounds that are solved": (["--preset", "private-demo", "--rounds", "1", "--attack", "decompose"], "adversary.solved_rounds", 0),
    "newcomers of a preset": (["--preset", "dp2fl-newcomers", "--clients", "1"], "newcomers", 0),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLLOWED)
def test_a_default_follows_what_was_given(what: str) -> None:
    words, path, expected = FOLLOWED[what]
    made = plan(*words)
    if path == "ranks":
        assert sorted({v.params.rank for v in made.methods.values() if hasattr(v.params, "rank")}) == expected
        return
    value: Any = made
    for part in path.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    assert value == expected


@pytest.mark.parametrize(("words", "sentence"), [
    (["--clients", "3", "--per-round", "4"], "--per-round 4: at most as many as there are clients"),
    ([*PROMPTS, "--prompt-length", "2", "--rank", "4"], "--rank 4: a prompt of 2 vectors"),
    (["--method", "dp2fl", "--local-steps", "3", "--local-epochs", "2"], "--local-steps: has no effect"),
    ([*PROMPTS, "--dirichlet", "2", "--partition", "pathological"], "--dirichlet: has no effect"),
    (["--method", "secfpp", "--attack", "lira", "--shadow-kind", "clients"], "take --shadow-kind federations"),
])  # fmt: skip
def test_what_was_given_is_never_changed(words: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        [method_of(cell, [50] * cell.plan.clients) for cell in plan(*words).cells]


def test_what_a_file_gives_follows_the_command_line_alone(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("per-round: 4\n")
    assert plan("--config", str(config), "--clients", "3").per_round == 3
    config.write_text("per-round: 4\nclients: 3\n")
    with pytest.raises(InputError, match="--per-round 4: at most"):
        plan("--config", str(config))


def test_the_number_of_clients_follows_own_files(tmp_path: Path) -> None:
    minilayouts.one_list(tmp_path / "pairs")
    few = ["--method", "fedavg", "--records", "4", "--reference", "5", "--test", "6"]
    assert plan("--task", "pairs", "--data-root", str(tmp_path / "pairs"), *few).clients == 2
    with pytest.raises(InputError, match="give --clients 2"):
        federation_of(plan("--task", "pairs", "--data-root", str(tmp_path / "pairs"), *few, "--clients", "5"))
    for i, layout in enumerate((minilayouts.flat, minilayouts.labels_beside_images, minilayouts.parquet)):
        layout(tmp_path / str(i))
        made = plan("--task", "folder", "--data-root", str(tmp_path / str(i)))
        assert made.clients == len(federation_of(made).clients) == 3
        assert plan("--task", "folder", "--data-root", str(tmp_path / str(i)), "--partition", "dirichlet").clients == 10
    assert plan("--task", "folder", "--data-root", str(tmp_path / "nowhere")).clients == 10
