"""A training whose numbers are not finite stops before anything of that round is written, and says what to change."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fedaudit.machinery.errors import Diverged
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import claim
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, simulate
from fedaudit.trainers import promptfl
from fedaudit.trainers.base import Schedule, Update
from fedaudit.trainers.fedavg import FedAvg, Params
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train
from tests import prompt_toy
from tests.test_bank import bench_of
from tests.test_cli import TINY, refuse
from tests.toy import EXAM, A, ToyLearner, toy_run
from tests.whole_runs import contents

SCHEDULE = Schedule(rounds=4, clients=3, per_round=3, seed=7)
PROMPTS = "--method promptfl --no-twin --rounds 3 --clients 4 --train 12 --test 2".split()
FAR = {"nan": float("nan"), "inf": float("inf")}


class Sick(FedAvg):
    where, value = "", float("nan")

    def _spoilt(self, state: dict[str, torch.Tensor], here: bool) -> dict[str, torch.Tensor]:
        return state | {A: torch.tensor([[1.0, self.value]])} if here else state

    def update(self, server: Any, own: Any, client: Any) -> Update:
        done, now = super().update(server, own, client), client.round == 2 and client.client == 1
        parts = {"upload": done.upload, "private": done.private}
        return Update(*(self._spoilt(part, now and self.where == name) for name, part in parts.items()))

    def aggregate(self, server: Any, uploads: Any, site: Any) -> Any:
        return self._spoilt(super().aggregate(server, uploads, site), site.round == 2 and self.where == "aggregate")


def sick(where: str, value: float = float("nan")) -> Sick:
    return type("Sick", (Sick,), {"where": where, "value": value})(Params())


@pytest.mark.parametrize("value", FAR.values(), ids=FAR)
@pytest.mark.parametrize(
    ("where", "words"),
    [("upload", "the upload of client-01"), ("private", "the private state of client-01"), ("aggregate", "the server's aggregate")],
)  # fmt: skip
def test_the_round_is_refused_by_name_and_leaves_nothing(where: str, words: str, value: float, tmp_path: Path) -> None:
    method = sick(where, value)
    for _ in range(2):  # resuming says the same again
        with pytest.raises(Diverged) as caught:
            toy_run(tmp_path, method, schedule=SCHEDULE)
        said = f", seed 7, diverged in round 2: {words} holds NaN or infinity; lower the step"
        assert str(caught.value).endswith(said)
        rounds = [name for name in claim(tmp_path).names() if name.startswith("round")]
        assert rounds == [f"round-00{r}.{kind}" for r in range(2) for kind in ("json", "safetensors")]


def test_a_model_that_gives_no_finite_answer_has_diverged(tmp_path: Path) -> None:
    lost = mock.Mock(before=EXAM.before, after=lambda *_, **__: {"global": {"loss": float("inf")}})
    with pytest.raises(Diverged, match=r"in round 0: the utility \(global\)"):
        toy_run(tmp_path, FedAvg(Params()), schedule=SCHEDULE, evaluation=lost)
    assert not [name for name in claim(tmp_path).names() if name.startswith("round")]


def test_the_caller_says_what_the_training_is_called(tmp_path: Path) -> None:
    bench = Bench(ToyLearner(), [["x"], ["y"], ["z"]], ["x", "y"])
    more = {"folder": claim(tmp_path), "say": print, "advance": lambda: None, "name": "fedavg:a=1"}
    with Executor(lambda: bench) as executor, pytest.raises(Diverged, match=r"^fedavg:a=1,"):
        train(sick("upload"), SCHEDULE, EXAM, executor=executor, **more)


def test_a_learning_rate_that_is_too_high_end_to_end(capsys: Any, tmp_path: Path) -> None:
    """Adam moves every weight by the rate in every step: 10 is finite for one round and overflows in the second."""
    words = [*TINY, "--learning-rate", "10", "--out", str(tmp_path)]
    first = refuse(capsys, words)
    assert all(word in first for word in ("fedrand, seed 0", "round 1", "client-0", "--learning-rate (now 10)")), first
    (folder,) = (tmp_path / "runs").iterdir()
    left = contents(folder)
    assert {"round-000.json", "round-000.safetensors"} <= left.keys()
    assert not any(name.startswith("round-001") for name in left)
    assert refuse(capsys, words) == first
    assert contents(folder) == left


def spoil(monkeypatch: pytest.MonkeyPatch, only: Any) -> None:
    """PromptFL's uploads are NaN in round 1 for the clients of a cohort that `only` picks."""
    whole = promptfl.PromptFL.update

    def update(self: Any, server: Any, own: Any, client: Any) -> Update:
        done = whole(self, server, own, client)
        bad = torch.tensor([c.round == 1 and only(c) for c in client.clients])[:, None, None]
        return Update({name: t.masked_fill(bad, float("nan")) for name, t in done.upload.items()}, done.private)

    monkeypatch.setattr(promptfl.PromptFL, "update", update)


@pytest.mark.parametrize("threads", ["1", "2"])  # in this process, and out of a worker
def test_prompts_end_to_end(threads: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda c: c.client == 2)
    words = [*PROMPTS, "--global-rate", "1e6", "--threads", threads, "--out", str(tmp_path)]
    first = refuse(capsys, words)
    wanted = ("promptfl", "seed 0", "round 1", "the upload of client-02", "--global-rate (now 1e+06)", "--epsilon")
    assert all(word in first for word in wanted), first
    (folder,) = (tmp_path / "runs").iterdir()
    assert "round-000.safetensors" in contents(folder)
    assert not any(name.startswith("round-001") for name in contents(folder))
    assert threads != "1" or refuse(capsys, words) == first


def shadowed(folder: Path) -> tuple[Bench, ShadowRecipe]:
    method = prompt_toy.made("promptfl", {}, prompt_toy.NONE, SCHEDULE)
    recipe = ShadowRecipe(method, SCHEDULE, folder, None, False, True, 4, 1, 5, {})
    return bench_of(prompt_toy.federation(), method), recipe


def test_shadow_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The federation that the adversary simulates is well; its shadow models of client 1 are not."""
    bench, recipe = shadowed(tmp_path)
    simulate(bench.attack_bench, (recipe, shadow_models.SIMULATED, True, SCHEDULE.rounds, True))
    (others,) = recipe.others
    spoil(monkeypatch, lambda c: c.seed != others.schedule.seed)
    folder = claim(tmp_path / "client-001")
    asked = {"seed": 5, "shadows": range(4), "until": SCHEDULE.rounds, "say": print}
    said = r"shadow models of promptfl, seed 5, diverged in round 1: the upload of client-01"
    with pytest.raises(Diverged, match=said):
        shadow_models.train_shadows(bench, recipe.method, [others], 1, folder, **asked)
    assert folder.names() == []


def test_the_adversarys_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, recipe = shadowed(tmp_path)
    spoil(monkeypatch, lambda c: c.client == 0)
    with pytest.raises(Diverged, match=r"simulation of promptfl, seed .* the upload of client-00"):
        simulate(bench.attack_bench, (recipe, shadow_models.SIMULATED, True, SCHEDULE.rounds, True))
