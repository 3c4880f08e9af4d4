"""Shadow models of adapters: a shadow in the target's place does what the target did, takes part when it did, and only its own records are compared."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedaudit.command import cli
from fedaudit.command.argv import words_of
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import shadow_models
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.run import run
from fedaudit.pipeline.shadow_trainings import ShadowRecipe, simulate
from fedaudit.trainers import fedavg, fedpara, fedper, fedrand
from fedaudit.trainers.base import Schedule, generator
from fedaudit.trainers.protocols import Bench
from tests.kept_runs import LORA, KeptRuns
from tests.toy import ToyLearner

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

SEED = 5
METHODS: dict[str, Any] = {
    "fedavg": fedavg.FedAvg(fedavg.Params()), "fedper": fedper.FedPer(fedper.Params(shared_layers=1)),
    "fedpara": fedpara.FedPara(fedpara.Params()), "fedrand": fedrand.FedRand(fedrand.Params()),
}  # fmt: skip
SCHEDULE = Schedule(rounds=6, clients=4, per_round=2, seed=1)
CANARIES = frozenset({"0-8", "0-9"})
CANDIDATES = [[f"{k}-{i}" for i in range(10)] for k in range(4)]


def simulated(path: Path, method: Any, schedule: Schedule = SCHEDULE) -> tuple[Bench, Any]:
    bench = Bench(ToyLearner(0.5, layers=2), CANDIDATES, [], candidates=CANDIDATES, canaries=CANARIES)
    recipe = ShadowRecipe(method, schedule, path, None, True, True, 3, 1, SEED, {})
    simulate(bench.attack_bench, (recipe, shadow_models.SIMULATED, True, schedule.rounds, True))
    return bench, recipe.simulated(shadow_models.SIMULATED)


@pytest.mark.parametrize("name", METHODS)
def test_a_shadow_with_the_targets_members_and_chance_is_the_target(name: str, tmp_path: Path) -> None:
    method, client = METHODS[name], 0
    bench, others = simulated(tmp_path, method)
    drawn = shadow_models.coins(SEED, shadow_models.SIMULATED, client, 10)
    listed = [r for r, kept in zip(CANDIDATES[client], drawn, strict=True) if kept or r in CANARIES]
    left_out = frozenset(r for r, kept in zip(CANDIDATES[client], drawn, strict=True) if not kept and r in CANARIES)
    servers: list[Any] = [others.broadcast(0)]
    owns: list[Any] = [{}]
    for r in range(SCHEDULE.rounds):
        own = others.schedule.seed
        servers, owns = shadow_models._round(
            bench, method, [others], client, r, servers, owns, [(listed, left_out)], [own]
        )
        for key, tensor in others.broadcast(r + 1).items():
            torch.testing.assert_close(servers[0][key], tensor)
    assert others.participations(client)
    expected = others.own_model(others.participations(client)[-1], client)
    found = method.model(others.broadcast(0) | servers[0] | owns[0])
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor)


def test_shadows_take_part_when_the_target_did_and_start_where_it_did(tmp_path: Path) -> None:
    """Where some take part: who, and the public start, are the training's own; where all do, only the adversary's chance is left."""
    cohorts = []
    for seed in (1, 2):
        schedule = Schedule(rounds=6, clients=4, per_round=2, seed=seed)
        bench, others = simulated(tmp_path / str(seed), METHODS["fedavg"], schedule)
        start = bench.learner.initial(generator(seed, "initial"))
        assert all(torch.equal(start[name], tensor) for name, tensor in others.broadcast(0).items())
        order = [torch.randperm(4, generator=generator(seed, "cohort", r))[:2].sort().values.tolist() for r in range(6)]
        assert [others.cohort(r) for r in range(6)] == order
        cohorts.append(order)
        assert others.schedule.seed not in (1, 2)
    assert cohorts[0] != cohorts[1]
    everybody = shadow_models.simulated_schedule(Schedule(rounds=6, clients=4, per_round=4, seed=1), SEED)
    assert everybody.public_seed == everybody.seed


@pytest.fixture(scope="module")
def finished(kept_lora: KeptRuns) -> Any:
    plan = cli.read_command(words_of(LORA | {"out": kept_lora.out})).plan
    return plan, run(plan, Progress(quiet=True)).findings


def test_whose_records_are_compared_and_who_may_own_one(finished: Any) -> None:
    plan, found = finished
    rows = [f for f in found if f["metric"] == "auroc"]
    of = {attack: [f for f in rows if f["attack"] == attack] for attack in ("loss", "lira")}
    assert {f["threat_model"] for f in of["lira"]} == {"released-model", "server", "owner"}
    assert {f["clients"] for findings in of.values() for f in findings} <= {0, 1}
    assert all(of.values())
    table = pd.read_parquet(plan.cells[0].analysis_folder / "records.parquet")
    assert set(table.client) == {"client-00"}
    parts = {path.name for path in plan.cells[0].bank_folder.glob("client-*")}
    assert parts == {"client-000-from-000", "client-000-from-002"}  # as many jobs as trajectories
    known = table[table.kind == "reference"]
    assert known["lira/online"].isna().all()  # no shadow was ever trained on them
    assert known["lira/offline"].notna().all()
    # two take part in a round, the other one in the other round, if at all
    table = pd.read_parquet(plan.cells[0].analysis_folder / "attribution.parquet")
    assert list(zip(table.way, table.client, table.kind, strict=True)) == [
        ("exact", "client-00", "member"), ("exact", "client-00", "held-out"),
    ]  # fmt: skip
    transcript = transcript_of(plan.cells[0])
    heard = {k for r in transcript.participations(0) for k in transcript.cohort(r)}
    assert list(table.chance) == [1 / len(heard)] * 2


def test_when_shadows_are_trained_and_whom_a_bank_serves(tmp_path: Path) -> None:
    """Who takes part is the training's: another seed has other shadows; where all do, seeds share them."""
    folders = {}
    for per_round in (2, 4):
        words = f"--method fedavg --attack lira --clients 4 --per-round {per_round} --seeds 2 --out"
        cells = cli.read_command([*words.split(), str(tmp_path)]).plan.cells
        folders[per_round] = len({cell.bank_folder for cell in cells})
    assert folders == {2: 2, 4: 1}
    plan = cli.read_command(["--method", "fedavg", "--attack", "loss", "--out", str(tmp_path)]).plan
    assert not plan.cells[0].needs_shadows
    assert plan.cells[0].targets == list(range(12))
