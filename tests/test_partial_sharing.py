"""FedPer and FedPara: hand calculations on two clients, what travels, what the server can rebuild."""

import numpy as np
import pytest
import torch

from fedaudit.attacks.base import View
from fedaudit.attacks.messages.rebuild import rebuild, rebuild_all
from fedaudit.attacks.threats import LacksCapability
from fedaudit.audits.tables.coverage import distance_of
from fedaudit.machinery.errors import InputError
from fedaudit.trainers.base import Participation, Schedule, Site, Upload, size
from fedaudit.trainers.evaluations import Answers
from fedaudit.trainers.fedavg import FedAvg
from fedaudit.trainers.fedavg import Params as AvgParams
from fedaudit.trainers.fedpara import FedPara, hadamard_factors
from fedaudit.trainers.fedpara import Params as ParaParams
from fedaudit.trainers.fedper import FedPer, Params, layer
from tests.toy import EXAM, ToyLearner, toy_run

LAYERS = ("layers.0.q", "layers.1.q", "layers.2.q")


def model(*pairs):
    """A model of as many layers as there are (A, B) pairs of numbers."""
    found = {}
    for name, (a, b) in zip(LAYERS, pairs, strict=False):
        found |= {f"{name}.A": torch.full((1, 2), float(a)), f"{name}.B": torch.full((2, 1), float(b))}
    return found


def numbers(state):
    assert all(torch.equal(t, t.flatten()[0].expand_as(t)) for t in state.values())
    found = {}
    for name, t in state.items():
        found.setdefault(name[:-2], {})[name[-1]] = round(float(t.flatten()[0]), 4)
    return {name: (pair["A"], pair["B"]) for name, pair in found.items()}


def at(client, r, earlier=(), step=1.0, records=2):
    return Participation(client, r, 0, ["x"] * records, ToyLearner(step=step), tuple(earlier))


class TestFedPerByHand:
    """Three layers, the top one shared; client 0 (1 record) steps by (1, 2), client 1 (3 records) by (10, 20)."""

    method = FedPer(Params(shared_layers=1))

    def round(self, r, server, owns, earlier=((), ())):
        updates = []
        for k, (step, n) in enumerate(((1, 1), (10, 3))):
            client = at(k, r, earlier[k], step, n)
            received = self.method.download(server, client)
            updates.append(self.method.update(received, owns[k], client))
        uploads = [Upload(k, n, u.upload, u.facts) for (k, n), u in zip(((0, 1), (1, 3)), updates, strict=True)]
        return updates, self.method.aggregate(server, uploads, Site(0, 0))

    def test_three_rounds(self):
        start = model((0, 0), (0, 0), (0, 0))
        first, server = self.round(0, start, [start, start])
        # everything is uploaded: (1 * 1 + 3 * 10) / 4 = 7.75, (2 + 60) / 4 = 15.5 in every layer
        assert all(u.upload.keys() == start.keys() for u in first)
        assert numbers(server) == dict.fromkeys(LAYERS, (7.75, 15.5))
        second, server = self.round(1, server, [u.private for u in first], ((0,), (0,)))
        # own layers start from that aggregate, not from the clients' round 0: 7.75 + 1 and 7.75 + 10
        assert numbers(second[0].private) == dict.fromkeys(LAYERS, (8.75, 17.5))
        assert numbers(second[1].private) == dict.fromkeys(LAYERS, (17.75, 35.5))
        assert all(u.upload.keys() == {"layers.2.q.A", "layers.2.q.B"} for u in second)
        # the top: (8.75 + 3 * 17.75) / 4 = 15.5, (17.5 + 3 * 35.5) / 4 = 31; the others stay
        assert numbers(server) == {LAYERS[0]: (7.75, 15.5), LAYERS[1]: (7.75, 15.5), LAYERS[2]: (15.5, 31.0)}
        third, server = self.round(2, server, [u.private for u in second], ((0, 1), (0, 1)))
        # now each goes on from its own lower layers and the common top one
        assert numbers(third[0].private) == {LAYERS[0]: (9.75, 19.5), LAYERS[1]: (9.75, 19.5), LAYERS[2]: (16.5, 33.0)}
        assert numbers(third[1].private)[LAYERS[0]] == (27.75, 55.5)
        # (16.5 + 3 * 25.5) / 4 = 23.25, (33 + 3 * 51) / 4 = 46.5
        assert numbers(server)[LAYERS[2]] == (23.25, 46.5)

    def test_a_newcomer_receives_the_start_of_its_own_layers_too(self):
        server = model((1, 2), (3, 4), (5, 6))
        assert self.method.download(server, at(0, 4)) == server
        assert self.method.download(server, at(0, 4, (0,))) == server
        assert self.method.download(server, at(0, 4, (0, 2))).keys() == {"layers.2.q.A", "layers.2.q.B"}

    def test_all_layers_shared_is_fedavg(self, tmp_path):
        schedule = Schedule(rounds=5, clients=4, per_round=2, seed=1)
        methods = FedPer(Params(shared_layers=3)), FedAvg(AvgParams())
        runs = [toy_run(tmp_path / str(i), m, schedule=schedule, noise=0.3, layers=3) for i, m in enumerate(methods)]
        assert all(torch.equal(t, runs[1].broadcast(5)[name]) for name, t in runs[0].broadcast(5).items())

    def test_more_layers_than_there_are(self):
        assert layer("layers.11.self_attn.q_proj.A") == 11
        with pytest.raises(InputError, match="--shared-layers 4: the language model has 3 layers"):
            FedPer(Params(shared_layers=4)).update(model((0, 0), (0, 0), (0, 0)), {}, at(0, 1))


def random_pairs(rank, rank2, width, height, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((rank, width), (height, rank), (rank2, width), (height, rank2))
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize(("rank", "rank2"), [(1, 1), (2, 3), (8, 8)])
def test_hadamard_factors_give_the_product_of_the_matrices(rank, rank2):
    a, b, a2, b2 = random_pairs(rank, rank2, 5, 7)
    star_a, star_b = hadamard_factors(a, b, a2, b2)
    assert star_a.shape == (rank * rank2, 5)
    assert star_b.shape == (7, rank * rank2)
    assert torch.allclose(star_b @ star_a, (b @ a) * (b2 @ a2))


class TestFedPara:
    method = FedPara(ParaParams())

    def test_both_forms_against_the_dense_formula(self):
        a, b, a2, b2 = random_pairs(2, 2, 3, 4)
        state = {"layers.0.q.A": a, "layers.0.q.B": b, "layers.0.q.own.A": a2, "layers.0.q.own.B": b2}
        for form, factor in (("personal", 1 + b2 @ a2), ("product", b2 @ a2)):
            plain = FedPara(ParaParams(form=form)).model(state)
            assert torch.allclose(plain["layers.0.q.B"] @ plain["layers.0.q.A"], (b @ a) * factor)

        shared = {n: t for n, t in state.items() if ".own" not in n}
        assert self.method.model(shared) == shared, "the server's model is the shared pair"

    def test_two_clients_two_rounds_by_hand(self):
        """Shared pairs are averaged by 1 : 3, private pairs go on from their own last value and never leave."""
        server = model((0, 0))
        updates = [self.method.update(server, server, at(k, 0, step=s)) for k, s in ((0, 1), (1, 10))]
        assert all(u.upload.keys() == server.keys() for u in updates)
        uploads = [Upload(0, 1, updates[0].upload), Upload(1, 3, updates[1].upload)]
        server = self.method.aggregate(server, uploads, Site(0, 0))
        assert numbers(server) == {LAYERS[0]: (7.75, 15.5)}
        again = self.method.update(server, updates[0].private, at(0, 1, (0,)))
        assert numbers(again.upload) == {LAYERS[0]: (8.75, 17.5)}
        for half, step in (("A", 1), ("B", 2)):
            name = f"{LAYERS[0]}.own.{half}"
            first = self.method.private_pair(model((0, 0)), at(0, 0))[name]
            assert torch.allclose(updates[0].private[name], first + step)
            assert torch.allclose(again.private[name], first + 2 * step)

    def test_each_client_draws_a_private_pair_of_its_own(self):
        server = {"layers.0.q.A": torch.zeros(4, 400), "layers.0.q.B": torch.zeros(400, 4)}
        one, other = (self.method.private_pair(server, at(k, 0)) for k in (0, 1))
        assert not torch.equal(one["layers.0.q.own.A"], other["layers.0.q.own.A"])
        assert one["layers.0.q.own.A"].abs().max() <= 1 / 400**0.5
        assert one["layers.0.q.own.B"].abs().max() <= 1 / 4**0.5
        assert one["layers.0.q.own.B"].std() > 0.2
        literal = FedPara(ParaParams(form="product")).private_pair(server, at(0, 0))
        assert not literal["layers.0.q.own.B"].any()


SCHEDULE = Schedule(rounds=8, clients=5, per_round=2, seed=2)


@pytest.fixture(scope="module")
def fedper(tmp_path_factory):
    method = FedPer(Params(shared_layers=1))
    return toy_run(tmp_path_factory.mktemp("run"), method, schedule=SCHEDULE, noise=0.5, layers=3)


@pytest.fixture(scope="module")
def fedpara(tmp_path_factory):
    return toy_run(tmp_path_factory.mktemp("run"), FedPara(ParaParams()), schedule=SCHEDULE, noise=0.5, layers=3)


@pytest.mark.parametrize("name", ["fedper", "fedpara"])
def test_what_the_server_holds_is_what_the_transcript_says_was_uploaded(name, request):
    run = request.getfixturevalue(name)
    server = View(run, "server")
    for r in range(SCHEDULE.rounds):
        for client, message in ((k, run.round(r)["uploads"][str(k)]) for k in run.cohort(r)):
            sent, private = server.upload(r, client), run.private(r, client)
            assert message["bytes"] == size(sent)
            assert set(message["kept"]) == private.keys() - sent.keys()
            assert all(torch.equal(t, private[n]) for n, t in sent.items())
        assert run.round(r)["bytes_up"] == sum(size(server.upload(r, k)) for k in run.cohort(r))


def test_fedper_first_round_is_recorded_as_a_full_leak_and_later_ones_are_not(fedper):
    """One layer is a third of the whole; a client without layers of its own yet receives all three."""
    whole = size(fedper.broadcast(0))
    for r in range(SCHEDULE.rounds):
        found = fedper.round(r)
        assert {m["kept"] == [] for m in found["uploads"].values()} == {r == 0}
        assert {m["facts"]["layers"] for m in found["uploads"].values()} == {"all" if r == 0 else "shared"}
        own = [any(x > 0 for x in fedper.participations(k, before=r)) for k in fedper.cohort(r)]
        assert found["bytes_down"] == sum(whole // 3 if has else whole for has in own)
        assert found["bytes_up"] == 2 * (whole // 3 if r else whole)


def test_fedper_can_only_be_rebuilt_in_part(fedper):
    """Slow reading of the messages: exact only for a client whose last message was in the first round."""
    server, owner = View(fedper, "server"), View(fedper, "owner")
    kinds = set()
    for client in range(5):
        rounds = fedper.participations(client)
        found = {r.way: r for r in rebuild_all(server, [client])}
        if rounds == [0]:
            assert set(found) == {"exact"}
            kinds.add("exact")
            continue
        assert set(found) == {"literal", "newest", "server-fill"}
        assert (found["newest"].state is not None) == (0 in rounds)
        assert (found["literal"].state is not None) == (rounds[-2:-1] == [0])
        fill, true = found["server-fill"].state, owner.private(client)
        assert all(torch.equal(t, true[n]) == (layer(n) == 2) for n, t in fill.items())
        kinds.add("newest" if 0 in rounds else "fill")
    assert {"newest", "fill"} <= kinds


def test_fedpara_is_never_rebuilt_but_for_its_shared_pair(fedpara):
    server = View(fedpara, "server")
    for client in range(5):
        found = {r.way: r for r in rebuild_all(server, [client])}
        assert set(found) == {"literal", "newest", "server-fill"}
        assert found["newest"].state is None
        last = fedpara.participations(client)[-1]
        sent, fill = server.upload(last, client), found["server-fill"].state
        assert all(torch.equal(t, sent[n]) for n, t in fill.items())
        assert distance_of(fill, fedpara.own_model(last, client), server.public) > 0
        assert rebuild(server, client, "newest").why in ("took part once", "never sent what its last message lacks")


def test_owner_of_a_fedpara_client_holds_the_product_as_a_plain_adapter(fedpara):
    owner = View(fedpara, "owner")
    client = fedpara.cohort(7)[0]
    plain, everything = owner.private(client), fedpara.private(7, client)
    assert plain.keys() == fedpara.broadcast(0).keys()
    a, b, a2, b2 = (everything[f"layers.1.q.{x}"] for x in ("A", "B", "own.A", "own.B"))
    assert torch.allclose(plain["layers.1.q.B"] @ plain["layers.1.q.A"], (b @ a) * (1 + b2 @ a2))
    with pytest.raises(LacksCapability):
        View(fedpara, "server").private(client)


def test_utility_out_of_distribution_before_and_after(tmp_path):
    evaluation = Answers(EXAM.references, EXAM.score, [("a red circle",)])
    schedule = Schedule(rounds=3, clients=3, per_round=1)
    run = toy_run(tmp_path, FedAvg(AvgParams()), schedule=schedule, evaluation=evaluation)
    assert run.initial["utility"].keys() == {"global", "novel"}
    assert ["novel" in run.round(r)["utility"] for r in range(3)] == [False, False, True]
    assert np.isclose(run.round(2)["utility"]["novel"]["bleu1"], 100)
