"""A server that acts: honest clients answer probes, the training stays as it was, a scaled broadcast names a batch."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedaudit
from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.base import View
from fedaudit.attacks.decompose import solve
from fedaudit.attacks.probes import Probe, solvable
from fedaudit.attacks.scaled import Params, Scaled
from fedaudit.attacks.threats import LacksCapability
from fedaudit.contracts.knowledge_toy import toy_seen
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import claim
from fedaudit.pipeline.probing import ProbeFile
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.base import Participation, Schedule, State
from fedaudit.trainers.prompts import PromptMethod
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import answers_to
from fedaudit.trainers.transcript import Transcript
from tests.prompt_toy import METHODS, NONE, SETTINGS, Federation, federation, made, run, with_noise
from tests.unprinted import no_pages
from tests.whole_runs import contents

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
PARAMS: dict[str, dict[str, Any]] = {"dpfpl": {"rank": 2}, "fedpgp": {"rank": 2}}
SENDING = [n for n, p in METHODS.items() if not p.facts.on_shares and made(n, PARAMS.get(n, {})).sends]
TWO_OF_THREE = Schedule(rounds=4, clients=3, per_round=2, seed=1)
WIDE = (40, 40, 40)  # records of the clients: ten batches of four in an epoch


def asked(transcript: Transcript, r: int, method: PromptMethod, sent: State, world: Federation) -> dict[int, State]:
    bench = Bench(world.learner(method.settings), world.training, world.test, left_out=world.left_out)
    with Executor(lambda: bench) as executor:
        return answers_to(transcript, r, method, sent, executor)


def noised(method: PromptMethod, std: float) -> PromptMethod:
    return with_noise(method, Privacy(epsilon=1, clip_norm=1), dict.fromkeys((*method.local, *method.shared), std))


def probed(path: Path, method: PromptMethod, transcript: Transcript, world: Federation, scale: float, r: int) -> View:
    view = View(transcript, "active-server")
    probe = Scaled(Params(probe_scale=scale, probe_round=r + 1)).craft(view)
    file = ProbeFile(claim(path), "probe.safetensors")
    file.write(probe, asked(transcript, r, method, probe.state, world))
    return View(transcript, "active-server", probes={"scaled": file})


def batch_of(method: PromptMethod, world: Federation, client: int, r: int) -> set[str]:
    return {*method.minibatch(Participation(client, r, 1, world.training[client], None, range(r)), 0)}


def named(view: View, method: PromptMethod, world: Federation, client: int, size: int) -> set[str]:
    own = world.training[client]
    target = Target(client, [*own, *world.test], (), complete=False)
    solved = solve(solvable(view, method, world.learner(method.settings), "scaled", target))
    order = np.argsort(-np.nan_to_num(np.abs(solved.shares)), kind="stable")
    return {target.own[i] for i in order[:size]}


ANSWERED = [*((name, "noise") for name in SENDING), ("promptfl", "none"), ("dpfpl", "none")]


@pytest.mark.parametrize(("name", "kind"), ANSWERED)
def test_the_honest_broadcast_is_answered_as_in_the_training(name: str, kind: str, tmp_path: Path) -> None:
    """To the last bit, by the clients of the round alone; and nothing of the run is touched."""
    world, method = federation(), made(name, PARAMS.get(name, {}), NONE, TWO_OF_THREE)
    if kind == "noise":
        method = noised(method, 0.1)
    transcript = run(tmp_path, method, world, TWO_OF_THREE)
    before = contents(tmp_path)
    for r in range(4):
        answers, honest = asked(transcript, r, method, transcript.broadcast(r), world), transcript.uploads(r)
        assert answers.keys() == honest.keys() == {*transcript.cohort(r)}
        for k, upload in honest.items():
            assert answers[k].keys() == upload.keys()
            assert all(torch.equal(tensor, answers[k][n]) for n, tensor in upload.items())
    asked(transcript, 2, method, {n: 3 * t for n, t in transcript.broadcast(2).items()}, world)
    assert contents(tmp_path) == before


def test_an_answer_is_the_gradient_at_the_probe(tmp_path: Path) -> None:
    """By hand for PromptFL: p' - rate * mean gradient of the round's batch at p'."""
    world, method = federation(), made("promptfl", {}, NONE, TWO_OF_THREE)
    transcript, r = run(tmp_path, method, world, TWO_OF_THREE), 2
    sent = {"p_G": transcript.broadcast(r)["p_G"] + 0.5}
    learner = world.learner(method.settings)
    for k, answer in asked(transcript, r, method, sent, world).items():
        turn = Participation(k, r, 1, world.training[k], learner, transcript.participations(k, before=r))
        gradients = torch.cat([*learner.sent_gradients(method, sent, method.minibatch(turn, 0))])
        expected = sent["p_G"] - SETTINGS.global_rate * gradients.mean(0)
        torch.testing.assert_close(answer["p_G"], expected, atol=1e-6, rtol=1e-4)


def test_it_names_a_batch_that_noise_hides(tmp_path: Path) -> None:
    """Noise moves p_L far away; the server's own on p_G is none to itself. What another client answers names nobody."""
    world, schedule = federation(WIDE), Schedule(rounds=4, clients=3, per_round=3, seed=1)
    method = noised(made("dpfpl", PARAMS["dpfpl"], NONE, schedule), 30.0)
    transcript = run(tmp_path / "run", method, world, schedule)
    batches = [batch_of(method, world, k, 3) for k in range(3)]
    found = {}
    for scale in (1.0, 1e6):
        view = probed(tmp_path / f"{scale:g}", method, transcript, world, scale, r=3)
        found[scale] = [named(view, method, world, k, len(batch)) for k, batch in enumerate(batches)]
    right = {scale: sum(len(by & batch) for by, batch in zip(found[scale], batches, strict=True)) for scale in found}
    assert right[1e6] == 12, "all"
    assert right[1.0] <= 7
    at = [[own.index(name) for name in by if name in own] for own, by in zip(world.training, found[1e6], strict=True)]
    others = [{world.training[k][i] for i in at[(k + 1) % 3]} & batches[k] for k in range(3)]
    assert sum(map(len, others)) <= 4


def test_noise_of_the_client_on_what_it_sends_protects(tmp_path: Path) -> None:
    world, schedule = federation(WIDE), Schedule(rounds=2, clients=3, per_round=3, seed=1)
    method = noised(made("promptfl", {}, NONE, schedule), 30.0)
    transcript = run(tmp_path / "run", method, world, schedule)
    view = probed(tmp_path / "probe", method, transcript, world, 1e6, r=1)
    assert sum(len(named(view, method, world, k, 4) & batch_of(method, world, k, 1)) for k in range(3)) <= 5


@pytest.fixture(scope="module")
def promptfl(tmp_path_factory: pytest.TempPathFactory) -> Transcript:
    method = made("promptfl", {}, NONE, TWO_OF_THREE)
    return run(tmp_path_factory.mktemp("promptfl"), method, federation(), TWO_OF_THREE)


class TestProbes:
    def test_they_are_kept_as_they_were(self, tmp_path: Path) -> None:
        file = ProbeFile(claim(tmp_path), "p.safetensors")
        file.write(Probe(3, {"p_G": torch.arange(4.0)}), {2: {"gradient": torch.ones(2)}, 5: {"p_G": torch.zeros(1)}})
        assert file.probe.round == 3
        assert torch.equal(file.probe.state["p_G"], torch.arange(4.0))
        assert torch.equal(file.answer(2)["gradient"], torch.ones(2))
        assert file.answer(4) == {}

    def test_only_a_server_that_acts_has_them(self, promptfl: Transcript) -> None:
        with pytest.raises(LacksCapability, match="server does not see probes"):
            View(promptfl, "server").probe("scaled")

    @pytest.mark.parametrize(("asked_for", "r"), [(0, 3), (1, 0), (4, 3)])
    def test_the_round(self, asked_for: int, r: int, promptfl: Transcript) -> None:
        probe = Scaled(Params(probe_scale=2.0, probe_round=asked_for)).craft(View(promptfl, "active-server"))
        assert probe.round == r
        assert torch.equal(probe.state["p_G"], 2 * promptfl.broadcast(r)["p_G"])

    def test_a_round_that_never_comes_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="probe_round=9: the training has 2 rounds"):
            audited(tmp_path, method="promptfl", attack="scaled", probe_round=9)
        assert not list(tmp_path.rglob("round-*"))

    def test_who_did_not_answer_has_no_score(self) -> None:
        seen = dataclasses.replace(toy_seen(leak=1.0)[0], probed={})
        assert np.isnan(Scaled(Params()).score(seen)["scaled"]).all()


def audited(out: Path, **words: Any) -> fedaudit.Audit:
    quick = {"rounds": 2, "clients": 2, "train": 4, "test": 1, "batch": 16, "twin": False, "threads": 1, "quiet": True}
    return fedaudit.audit(out=str(out), **({"epsilon": "none"} | quick | words))


def test_through_the_whole_door(tmp_path: Path) -> None:
    """A training that is there already is attacked by a server that acts: it reads batches at epsilon .1."""
    with no_pages():
        audited(tmp_path, method="dpfpl", epsilon="0.1")
        found = audited(tmp_path, method="dpfpl", epsilon="0.1", attack="scaled,decompose").findings
    rows = found[(found.metric == "auroc") & (found.nonmembers == "held-out") & found.headline]
    row = rows[rows.population == "own members"].set_index("threat_model").loc["active-server"]
    assert (row.signal, row.way, row.verdict) == ("scaled", "probe answer", "leak")
    assert {*found.threat_model.dropna()} >= {"server", "active-server"}
    assert not ((found.threat_model == "active-server") & (found.signal == "decompose")).any()


def test_clients_that_refuse_are_not_read(tmp_path: Path) -> None:
    """All of them here: nothing is scored, and the table says so."""
    done = audited(tmp_path, method="dpfpl", attack="scaled", growth_check=2.0)
    rows = done.findings[(done.findings.metric == "auroc") & (done.findings.threat_model == "active-server")]
    assert rows.status.str.startswith("not measurable").all()
    probes = pd.read_csv(done.report.parent / "probes.csv")
    assert probes.named.isna().all()
    assert (probes.growth > 2).all()
    assert (probes.refused_honest == 0).all()


@pytest.mark.slow  # an answer where the growth is checked; quick: that it is refused, test_clients_that_refuse_are_not_read
def test_a_probe_that_is_not_larger_is_answered(tmp_path: Path) -> None:
    left = audited(tmp_path, method="dpfpl", attack="scaled", growth_check=2.0, probe_scale=1.0)
    assert pd.read_csv(left.report.parent / "probes.csv").named.notna().all()


def test_runs_without_such_an_attack_have_no_such_adversary_and_adapters_none(kept: Any, tmp_path: Path) -> None:
    assert "active-server" not in {*kept.audits["loss"].findings.threat_model.dropna()}
    with pytest.raises(InputError, match="scaled"):
        fedaudit.audit(method="fedavg", attack="scaled", out=str(tmp_path), quiet=True)
