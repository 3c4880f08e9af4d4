"""Threat models, views and the server's reconstruction of clients."""

import dataclasses
import math

import pytest
import torch

from fedaudit.attacks.attacked_models import state_digest
from fedaudit.attacks.base import View
from fedaudit.attacks.messages.rebuild import rebuild, rebuild_all
from fedaudit.attacks.threats import LacksCapability
from fedaudit.audits.tables.coverage import distance_of
from fedaudit.terms.threat_models import PROMPT_USER, THREAT_MODELS
from fedaudit.trainers.base import Schedule
from fedaudit.trainers.fedavg import FedAvg
from fedaudit.trainers.fedavg import Params as AvgParams
from fedaudit.trainers.fedrand import FedRand, Params
from tests.asking_toy import Candidates, models
from tests.toy import A, B, state, toy_run

SCHEDULE = Schedule(rounds=12, clients=6, per_round=2, seed=1)
RECORDS = {k: [f"{k}-{i}" for i in range(4)] for k in range(6)}
CANDIDATES = Candidates(RECORDS, {k: [f"ref-{k}"] for k in RECORDS}, ["n-0", "n-1"])


@pytest.fixture(scope="module")
def fedrand(tmp_path_factory):
    return toy_run(tmp_path_factory.mktemp("run"), FedRand(Params()), schedule=SCHEDULE, noise=0.5)


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    return toy_run(tmp_path_factory.mktemp("run"), FedAvg(AvgParams()), schedule=SCHEDULE, noise=0.5)


CALLS = {
    "broadcasts": lambda view: view.broadcast(0),
    "uploads": lambda view: view.upload(0, view._transcript.cohort(0)[0]),
    "private states": lambda view: view.private(0),
}


@pytest.mark.parametrize("capability", CALLS)
@pytest.mark.parametrize("threat_model", THREAT_MODELS)
def test_a_view_gives_what_its_threat_model_sees_and_refuses_the_rest_by_name(fedrand, threat_model, capability):
    view = View(fedrand, threat_model)
    if capability in threat_model.sees:
        CALLS[capability](view)
    else:
        with pytest.raises(LacksCapability, match=f"{threat_model} does not see {capability}"):
            CALLS[capability](view)


def test_what_single_clients_sent_is_seen_by_those_whom_it_is_passed_on_to(fedavg):
    run = dataclasses.replace(fedavg, by_client=(B,))
    seen = {name: {*View(run, name).broadcast(1)} for name in ("released-model", "peer", "server")}
    assert seen == {"released-model": {A}, "peer": {A, B}, "server": {A, B}}


def test_who_took_part_is_the_servers_knowledge(fedrand):
    with pytest.raises(LacksCapability, match="uploads"):
        View(fedrand, "released-model").participations(0)
    with pytest.raises(ValueError, match=r"released-model, peer, server, .*, owner, not insider"):
        View(fedrand, "insider")


def test_fedavg_is_rebuilt_exactly(fedavg):
    server, owner = View(fedavg, "server"), View(fedavg, "owner")
    for found in rebuild_all(server, range(6)):
        true = owner.private(found.client)
        assert found.way == "exact"
        assert (found.stale_rounds, found.stale_participations) == (0, 0)
        assert all(torch.equal(found.state[name], true[name]) for name in (A, B))
        assert distance_of(found.state, true, owner.public) == 0


def halves(run, client):
    return [(r, run.round(r)["uploads"][str(client)]["facts"]["half"]) for r in run.participations(client)]


def test_fedrand_newest_against_a_slow_search(fedrand):
    """Walk back by hand to the newest message with the other half."""
    view = View(fedrand, "server")
    seen = set()
    for client in range(6):
        history = halves(fedrand, client)
        found = rebuild(view, client, "newest")
        assert rebuild(view, client, "exact").way == "newest", "what is not exact is not called so"
        last_round, last_half = history[-1]
        hidden = B if last_half == "A" else A
        filled = rebuild(view, client, "server-fill").state[hidden]
        assert torch.equal(filled, fedrand.broadcast(last_round + 1)[hidden]), "the aggregate fills the hidden half"
        other = [(r, i) for i, (r, half) in enumerate(history) if half != last_half]
        if not other:
            assert found.state is None
            assert found.why
            continue
        r, i = other[-1]
        seen.add(client)
        assert (found.stale_rounds, found.stale_participations) == (last_round - r, len(history) - 1 - i)
        sent = fedrand.upload(r, client) | fedrand.upload(last_round, client)
        assert all(torch.equal(found.state[name], t) for name, t in sent.items())
    assert seen


def test_fedrand_literal_uses_the_second_to_last_participation_or_nothing(fedrand):
    view = View(fedrand, "server")
    kinds = set()
    for client in range(6):
        history = halves(fedrand, client)
        found = rebuild(view, client, "literal")
        possible = len(history) > 1 and history[-1][1] != history[-2][1]
        kinds.add(possible)
        assert (found.state is not None) == possible
        if possible:
            assert found.stale_participations == 1
            newest = rebuild(view, client, "newest")
            assert all(torch.equal(found.state[name], newest.state[name]) for name in (A, B))
        else:
            assert found.stale_rounds is None
            assert found.why in ("its last two messages lack the same part", "took part once")
    assert kinds == {True, False}


def test_a_client_that_never_took_part_is_not_reconstructable(tmp_path):
    run = toy_run(tmp_path, FedRand(Params()), schedule=Schedule(rounds=2, clients=6, per_round=1))
    view = View(run, "server")
    absent = next(k for k in range(6) if not run.participations(k))
    once = run.cohort(0)[0]
    assert {r.why for r in rebuild_all(view, [absent])} == {"never took part"}
    assert all(r.state is None for r in rebuild_all(view, [absent]))
    if len(run.participations(once)) == 1:
        assert rebuild(view, once, "newest").why == "took part once"
    assert View(run, "owner").private(absent) is None


def test_distance_by_hand():
    """B A with A = a (1x2), B = b (2x1) is a b everywhere: the distance of 3 from 2 is 1/2; no update at all is 1."""
    start = state(1, 0)
    assert distance_of(state(1, 3), state(1, 2), start) == pytest.approx(0.5)
    assert distance_of(state(5, 0), state(1, 2), start) == pytest.approx(1.0)
    assert distance_of(state(2, 1), state(1, 2), start) == 0  # another pair with the same product
    assert math.isnan(distance_of(state(1, 3), state(1, 0), start))
    prompt = [{"prompt": torch.full((2, 3), x)} for x in (1.5, 3.0, 1.0)]
    assert distance_of(*prompt) == pytest.approx(0.75)  # what is no pair counts as it is: 1.5 of 2


def test_models_of_each_threat_model(fedrand, fedavg):
    released = [*models(View(fedrand, "released-model"), CANDIDATES)]
    assert [m.way for m in released[:12]] == ["round"] * 11 + ["final"]
    assert released[11].records == ("0-0", "0-1", "0-2", "0-3", "ref-0")
    assert [m.way for m in released] == (["round"] * 11 + ["final", "best utility"]) * 6 + ["final"]
    assert tuple(released[-1].records) == ("n-0", "n-1")
    server, owner = ([*models(View(fedavg, name), CANDIDATES)] for name in ("server", "owner"))
    assert {state_digest(m.read()) for m in server} == {state_digest(m.read()) for m in owner}  # equal weights
    assert {m.way for m in models(View(fedrand, "server"), CANDIDATES)} <= {"literal", "newest", "server-fill"}
    one, true = server[0], View(fedavg, "owner").private(server[0].client)
    assert all(torch.equal(t, one.read()[name]) for name, t in true.items())
    assert one.records == (*CANDIDATES.clients[one.client], *CANDIDATES.reference[one.client])


def test_some_candidates_of_every_round_where_nobody_looks_at_all_states(fedavg, monkeypatch):
    monkeypatch.setattr("fedaudit.attacks.questions.texts.PER_ROUND", 3)
    view = View(fedavg, "released-model")
    for states, asked in ((False, 3), (True, 5)):
        found = [m for m in models(view, CANDIDATES, states=states) if m.way == "round"]
        assert {len(m.records) for m in found} == {asked}
        assert not any(m.over_rounds for m in found)
    # shadows stand beside the last one only
    assert {m.way for m in models(view, CANDIDATES, answers=False)} == {"final"}


def test_clients_models_are_asked_about_novel_records_where_that_is_wanted(fedavg):
    for view in (View(fedavg, name) for name in ("server", "owner")):
        without, wanted = ([*models(view, CANDIDATES, novel_of_clients=rows)] for rows in (False, True))
        assert [m.way for m in wanted] == [m.way for m in without for _ in range(2)]
        assert {tuple(m.records) for m in wanted} - {tuple(m.records) for m in without} == {("n-0", "n-1")}
        assert not any(m.of_target or m.role for m in wanted if tuple(m.records) == ("n-0", "n-1"))


@pytest.mark.parametrize("way", ["literal", "newest", "server-fill"])
def test_one_way_of_rebuilding(fedrand, fedavg, way):
    ways = frozenset([way])
    assert {m.way for m in models(View(fedrand, "server"), CANDIDATES, ways=ways)} == {way}
    assert {m.way for m in models(View(fedavg, "server"), CANDIDATES, ways=ways)} == {"exact"}
    assert {m.way for m in models(View(fedavg, "released-model"), CANDIDATES, ways=ways)} == {"final", "best utility"}


@pytest.mark.parametrize(("losses", "best"), [([3, 1, 2], 2), ([3, 2, 1], 3), ([1, 1, 2], 1), ([], None)])
def test_the_model_of_the_round_that_served_best(fedavg, monkeypatch, losses, best):
    """The first of equals; the last where nothing was measured. It has a row of its own unless it is released."""
    utility = [{"global": {"loss": float(loss)}} for loss in losses] or [{}] * 3
    short = dataclasses.replace(fedavg, schedule=dataclasses.replace(fedavg.schedule, rounds=3))
    read = type(fedavg).round
    monkeypatch.setattr(type(fedavg), "round", lambda self, r: read(self, r) | {"utility": utility[r]})
    view = View(short, "released-model")
    assert view.rounds_at_least_loss == (best or 3)
    found = [m for m in models(view, CANDIDATES) if m.way == "best utility"]
    assert [m.round for m in found] == ([] if best in (None, 3) else [best] * len(CANDIDATES.clients))
    for model in found:
        assert all(torch.equal(t, view.broadcast(best)[name]) for name, t in model.read().items())
        assert not set(CANDIDATES.novel) & set(model.records)
    assert "broadcasts" not in PROMPT_USER.sees
    with pytest.raises(LacksCapability, match="broadcasts"):
        View(short, "prompt-user").rounds_at_least_loss  # noqa: B018


def test_the_distance_of_adapters_is_that_of_their_products():
    """Against the products themselves, over random adapters, near and equal ones, and one of another rank."""
    generator = torch.Generator().manual_seed(0)

    def adapter(rank: int) -> dict[str, torch.Tensor]:
        drawn = {"q.B": torch.randn(20, rank, generator=generator), "q.A": torch.randn(rank, 30, generator=generator)}
        return drawn | {"head": torch.randn(7, generator=generator)}

    def dense(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
        pairs = [(s["q.B"].double() @ s["q.A"].double(), s["head"].double()) for s in (one, other)]
        return float(sum((a - b).square().sum() for a, b in zip(*pairs, strict=True)))

    true, start, other_rank = adapter(3), adapter(3), adapter(5)
    near = {name: tensor + 1e-5 * torch.randn(tensor.shape, generator=generator) for name, tensor in true.items()}
    for rebuilt in (start, near, other_rank):
        expected = (dense(rebuilt, true) / dense(start, true)) ** 0.5
        assert distance_of(rebuilt, true, start) == pytest.approx(expected, rel=1e-6)
    assert distance_of(dict(true), true, start) == 0
    turned = true | {"q.B": 2 * true["q.B"], "q.A": true["q.A"] / 2}  # another pair of the same product
    assert distance_of(turned, true, start) < 1e-7
