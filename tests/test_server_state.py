"""What a server keeps to itself, such as the momentum of its steps: it goes on with it, and nobody is sent it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedaudit.attacks.base import View
from fedaudit.machinery.store import claim
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, simulate
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.trainers.base import Schedule, State
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests.asking_toy import Candidates, models
from tests.examples import loaded
from tests.toy import A, B, ToyLearner, toy_run

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

FEDAVGM = loaded("trainers/fedavgm.py")
BETA = 0.5
METHOD = FEDAVGM.FedAvgM(FEDAVGM.Params(beta=BETA))
SCHEDULE = Schedule(rounds=3, clients=3, per_round=3)
STATE = {A, B}


class Seen:
    """An evaluation that looks at the names of what it is shown."""

    def __init__(self) -> None:
        self.shown: list[set[str]] = []

    def before(self, executor: Any, method: Any, server: State, **more: Any) -> dict[str, dict[str, float]]:
        self.shown.append({*server})
        return {}

    def after(self, executor: Any, method: Any, server: State, clients: Any, **more: Any) -> Any:
        return self.before(executor, method, server)


@pytest.fixture(scope="module")
def evaluation() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def run(evaluation: Seen, tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    return toy_run(tmp_path_factory.mktemp("run"), METHOD, schedule=SCHEDULE, evaluation=evaluation)


def test_the_server_goes_on_with_its_momentum(run: Transcript) -> None:
    """The toy's clients all move A by 1: v is 1, 1 + beta, 1 + beta + beta^2."""
    start, v, moved = run.broadcast(0)[A], 0.0, 0.0
    for r in range(SCHEDULE.rounds):
        v = BETA * v + 1
        moved += v
        torch.testing.assert_close(run.broadcast(r + 1)[A], start + moved)
        torch.testing.assert_close(run.server(r + 1)[FEDAVGM.V + A], torch.full((1, 2), v))


def test_a_run_that_was_stopped_goes_on_with_it(run: Transcript, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        toy_run(tmp_path, METHOD, schedule=SCHEDULE, stop_after=2)
    again = toy_run(tmp_path, METHOD, schedule=SCHEDULE)
    torch.testing.assert_close(again.server(3), run.server(3), rtol=0, atol=0)


def test_nobody_is_sent_it(run: Transcript, evaluation: Seen) -> None:
    assert all(set(run.server(r)) == STATE | {FEDAVGM.V + name for name in STATE} for r in range(1, 4))
    assert all(set(state) == STATE for r in range(4) for state in (run.broadcast(r), run.sent_to_all(r)))
    assert evaluation.shown == [STATE] * 4
    numbers = sum(t.numel() * t.element_size() for t in run.broadcast(0).values())
    assert all(run.round(r)["bytes_down"] == 3 * numbers for r in range(3))
    for r in range(3):
        assert all({*run.upload(r, k)} == {*run.private(r, k)} == {*run.own_model(r, k)} == STATE for k in range(3))


@pytest.mark.parametrize("threat_model", [one for one in THREAT_MODELS if "broadcasts" in one.sees])
def test_no_adversary_holds_it(run: Transcript, threat_model: str) -> None:
    """Not the server either: it follows from the messages, and no model is made of it."""
    view, asked = View(run, threat_model), Candidates({k: ["x"] for k in range(3)}, {k: [] for k in range(3)}, [])
    assert {*view.public} == STATE
    assert all({*view.broadcast(r)} == STATE for r in range(4))
    if threat_model in ("released-model", "server", "owner"):
        assert all({*model.read()} == STATE for model in models(view, asked) if model.records)


def test_shadow_models_go_on_with_it_and_are_without(tmp_path: Path) -> None:
    candidates = [[f"{k}-{i}" for i in range(4)] for k in range(3)]
    bench = Bench(ToyLearner(0.01), candidates, [], candidates=candidates).attack_bench
    recipe = ShadowRecipe(METHOD, SCHEDULE, tmp_path / "federations", None, True, True, 3, 1, 5, {})
    simulate(bench, (recipe, shadow_models.SIMULATED, True, SCHEDULE.rounds, True))
    others, folder = [recipe.simulated(shadow_models.SIMULATED)], claim(tmp_path / "client")
    asked = {"seed": 5, "shadows": range(2), "until": SCHEDULE.rounds, "say": print}
    shadow_models.train_shadows(bench, METHOD, others, 0, folder, **asked)
    along = shadow_models.shadows_of(bench, METHOD, others, 0, {range(2): folder}, seed=5)
    whole = shadow_models.shadows_of_federations(bench, METHOD, others, 0, seed=5)
    for found in (along, whole):
        assert all({*model} == STATE for model in (*found.start, *found.personal, *found.released))
    with_momentum = whole.released[0][A] - whole.start[0][A]
    torch.testing.assert_close(along.released[0][A] - along.start[0][A], with_momentum, atol=0.1, rtol=0)
