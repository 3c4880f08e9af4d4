"""FedMaPLe: a round against plain steps of each client on its own, alone with one record, what attacks run on it."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.threats import lacks
from fedaudit.command.cli import read_command
from fedaudit.contracts import maple_toy
from fedaudit.pipeline import permitted
from fedaudit.trainers import dp2fl
from fedaudit.trainers.base import Participation, Schedule, State
from fedaudit.trainers.fedmaple import FedMaPLe, Params
from fedaudit.trainers.learners import facts
from fedaudit.trainers.maple import Learner, Settings, visual_prompts
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.steps import epoch_batch, steps_of_round
from fedaudit.trainers.transcript import Transcript
from tests import prompt_toy
from tests.toy import trained

METHOD = FedMaPLe(Params())
SIZES = (5, 3, 1)


def run(path: Path, settings: Settings, *, rounds: int = 2, per_round: int = 3) -> Transcript:
    """A small federation by the real loop, whose last client has a single record."""
    world, learner = prompt_toy.federation(SIZES), maple_toy.learner(settings, SIZES)
    return trained(path, METHOD, Schedule(rounds, 3, per_round, 1), Bench(learner, world.training, world.test))


def slow_client(learner: Learner, start: State, client: Participation) -> State:
    """Plain SGD on one client's minibatches."""
    settings = learner.settings
    Pt, Pd = (start[name].clone().requires_grad_() for name in ("Pt", "Pd"))
    steps = steps_of_round(settings, len(client.records))
    for step in range(steps):
        rows = epoch_batch(client, settings.batch, len(client.earlier_rounds) * steps + step)
        records = [client.records[i] for i in rows]
        logits = learner.logits(Pt[None], Pd[None], learner.pictures(records)[None])[0]
        in_Pt, in_Pd = torch.autograd.grad(F.cross_entropy(logits, learner.labels(records)), (Pt, Pd))
        Pt, Pd = ((p - settings.rate * g).detach().requires_grad_() for p, g in ((Pt, in_Pt), (Pd, in_Pd)))
    return {"Pt": Pt.detach(), "Pd": Pd.detach()}


@pytest.mark.parametrize("local_epochs", [0, 2])
@pytest.mark.parametrize("per_round", [2, 3])
def test_a_round_is_plain_steps_and_a_mean_by_records(tmp_path: Path, local_epochs: int, per_round: int) -> None:
    settings = Settings(prompt_length=4, batch=2, local_epochs=local_epochs, rate=0.1)
    seen, world = run(tmp_path, settings, per_round=per_round), prompt_toy.federation(SIZES)
    learner = maple_toy.learner(settings, SIZES)
    for r in range(2):
        server, total, mean = seen.broadcast(r), 0, {"Pt": torch.zeros(()), "Pd": torch.zeros(())}
        assert server.keys() == mean.keys()
        for k, sent in seen.uploads(r).items():
            client = Participation(k, r, 1, world.training[k], learner, tuple(seen.participations(k, r)))
            expected = slow_client(learner, server, client)
            assert sent.keys() == mean.keys()
            for name, tensor in expected.items():
                torch.testing.assert_close(sent[name], tensor, atol=1e-5, rtol=1e-4)
                mean[name] = mean[name] + SIZES[k] * tensor
            assert not torch.equal(sent["Pt"], server["Pt"])  # with a single record, too
            total += SIZES[k]
        for name, tensor in seen.broadcast(r + 1).items():
            torch.testing.assert_close(tensor, mean[name] / total, atol=1e-5, rtol=1e-4)


def test_clients_release_the_global_model_and_owners_hold_what_they_sent(tmp_path: Path) -> None:
    seen = run(tmp_path, Settings(prompt_length=4, batch=2, local_epochs=1, rate=0.1))
    for k in range(3):
        torch.testing.assert_close(seen.released(k), seen.broadcast(2), rtol=0, atol=0)
        torch.testing.assert_close(seen.own_model(1, k), seen.upload(1, k), rtol=0, atol=0)


def test_everything_is_trained_on_and_nothing_is_given_away_and_the_model_of_a_state_is_its_prompts() -> None:
    """In layers of their own, with the coupling that `visual_prompts` applies."""
    records = [f"r{i}" for i in range(7)]
    assert METHOD.divided(records, 2, 0) == (records, [])
    assert METHOD.messages.shared_records(records, client=2, seed=0) == set()
    used = METHOD.messages.used_records(records, client=2, seed=0, rounds=[1], settings=Settings(batch=1))
    assert used == set(records)
    start = METHOD.start(maple_toy.learner().initial(torch.Generator().manual_seed(0)))
    Pt, Pd = (METHOD.model(start)[name] for name in ("Pt", "Pd"))
    one: Tensor = visual_prompts(Pt[None], Pd[None])[0, 1, 0]
    torch.testing.assert_close(one, Pd[1, :, :-1] @ Pt[1, 0] + Pd[1, :, -1])


def test_the_attacks_on_dp2fl_run_on_it() -> None:
    """By whom they do, but that no client is sent a part of another; a command trains it beside soft prompts."""
    able = [p for p in ATTACKS.values() if "classes" in p.facts.records and not lacks(p, facts("maple"))]
    for attack in (plugin.name for plugin in able):
        dual, mean = read_command(["--method", "dp2fl,fedmaple", "--attack", attack]).plan.cells
        for threat_model in ("prompt-user", "released-model", "server", "owner"):
            reasons = [permitted.refusal_reasons(cell, threat_model)[attack] for cell in (mean, dual)]
            assert reasons[0] == reasons[1]
        assert permitted.refusal_reasons(mean, "peer")[attack]
    plan = read_command(["--method", "fedmaple,dp2fl,promptfl"]).plan
    assert (plan.learner, list(plan.methods)) == ("maple", ["fedmaple", "dp2fl", "promptfl"])
    assert not METHOD.by_client
    assert dp2fl.DP2FL(dp2fl.Params()).by_client
