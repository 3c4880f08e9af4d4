"""Canaries: who becomes one, what it looks like, and that its coin is fair and its own."""

import dataclasses
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binom, chisquare

from fedaudit.command.flags import params_from_values
from fedaudit.machinery.errors import InputError
from fedaudit.tasks import canaries, captions, glyphs, vqa
from fedaudit.tasks.base import IMAGE, Client, Federation, Record
from fedaudit.tasks.canaries import Canaries, insert

KINDS = ("mislabelled", "ood", "natural")
SMALL = {"records": 20, "reference": 5, "novel": 4, "test": 3}
N, CLIENTS = 23, 5


@pytest.fixture(scope="module")
def federations():
    return {
        "captions": captions.captions(captions.Params(**SMALL), clients=CLIENTS, seed=0),
        "vqa": vqa.vqa(vqa.Params(**SMALL), clients=CLIENTS, seed=0),
        "glyphs": glyphs.glyphs(glyphs.Params(train=12, test=1), clients=CLIENTS, seed=0),
    }


@pytest.fixture(params=["captions", "vqa", "glyphs"])
def federation(request, federations):
    return federations[request.param]


def _picture(number, size=(3, 4)):
    return np.full((*size, 3), number, np.uint8)


def _record(name, number, group="a", text=None, picture=None):
    text = text or f"text {number}"
    return Record(name, group, _picture(number) if picture is None else picture, IMAGE, text, (text,))


def _client(name, records, member=None):
    """A client of whose candidates every other one is a member, if nothing else is said."""
    member = np.arange(len(records)) % 2 == 0 if member is None else np.array(member, bool)
    return Client(name, tuple(records), (), member)


def _federation(clients=2, candidates=12, groups=("a", "b", "c")):
    def records(k):
        return [_record(f"{k}-{i}", 50 * k + i, groups[i % len(groups)]) for i in range(candidates)]

    return Federation(tuple(_client(f"client-{k:02d}", records(k)) for k in range(clients)), (), ())


def _natural(federation, canaries, seed=0):
    return insert(federation, Canaries(canaries=canaries, canary_kind="natural"), seed)


def _alone(records, member=None):
    """A federation of one client."""
    return Federation((_client("client-00", records, member),), (), ())


def _shown(record):
    return record.content, record.prompt, record.domain


def test_without_canaries_it_is_the_same_object(federation):
    assert insert(federation, Canaries(), 0) is federation
    assert all(client.canaries == () and len(client.canary_included) == 0 for client in federation.clients)


def test_wrong_values_are_refused_by_their_flag():
    with pytest.raises(InputError, match="--canaries: canaries must be at least 0 and at most 1000000, not -1"):
        params_from_values(Canaries, {"canaries": -1})
    with pytest.raises(InputError, match=r"--canary-kind: .*, not 'dog'"):
        params_from_values(Canaries, {"canary_kind": "dog"})


def test_the_flags_can_be_read_without_anything_heavy():
    code = (
        "import sys; from fedaudit.machinery import plugins; "
        "cls = plugins.dataclass_of(plugins.package_folder('fedaudit.tasks') / 'canaries.py', 'Canaries'); "
        "assert cls().canary_kind == 'mislabelled'; assert not {'numpy', 'torch', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_canaries_leave_the_candidates(federation, kind):
    found = insert(federation, Canaries(canaries=N, canary_kind=kind), 0)
    assert [len(c.canaries) for c in found.clients] == [5, 5, 5, 4, 4]
    for before, after in zip(federation.clients, found.clients, strict=True):
        role = dict(zip(before.records, before.member, strict=True))
        assert len(after.records) == len(before.records) - len(after.canaries)
        assert [role[r] for r in after.records] == after.member.tolist(), "whoever stays keeps its role"
        assert [r for r in before.records if r in set(after.records)] == list(after.records), "and its place"
        assert all(getattr(after, n) == getattr(before, n) for n in ("name", "reference", "background", "classes"))
        assert [r.id for r in after.canaries] == [f"{after.name}-canary-{i:04d}" for i in range(len(after.canaries))]
    assert all(getattr(found, n) is getattr(federation, n) for n in ("novel", "test", "novel_test", "classes", "score"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_canary_is_in_the_list_whatever_its_coin_and_the_left_out_ones_weigh_nothing(federation, kind):
    """So that n_k, batches, sampling rates, epochs and the mean over clients do not depend on coins."""
    found = insert(federation, Canaries(canaries=N, canary_kind=kind), 0)
    truth, records = found.truth, found.records
    assert len(records) == len(federation.records)
    for client in found.clients:
        training = [r.id for r in client.training_records]
        assert len(training) == len(set(training)) == client.member.sum() + len(client.canaries)
        for record, used in client.labelled_candidates:
            assert records[record.id] is record
            assert (record.id in training and record.id not in client.left_out) == used == truth[record.id]
            assert isinstance(truth[record.id], bool)
        flipped = dataclasses.replace(client, canary_included=~client.canary_included)
        assert flipped.training_records == client.training_records
        assert flipped.left_out == {r.id for r in client.canaries} - client.left_out
    assert 0 < sum(used for client in found.clients for used in client.canary_included) < N
    assert set(truth) == {r.id for c in found.clients for r in (*c.records, *c.canaries)}


def _left(before, after):
    """The candidates of a client that became canaries."""
    return [r for r in before.records if r not in set(after.records)]


def test_natural_canaries_are_candidates_as_they_were(federation):
    def looks(records):
        return {r.content: [getattr(r, f.name) for f in fields if f.name not in ("id", "picture")] for r in records}

    fields, found = dataclasses.fields(Record), _natural(federation, N)
    for before, after in zip(federation.clients, found.clients, strict=True):
        assert looks(after.canaries) == looks(_left(before, after))


def test_mislabelled_pictures_say_another_class(federations):
    federation = federations["glyphs"]
    found = insert(federation, Canaries(canaries=200), 0)
    shift = []
    for before, after in zip(federation.clients, found.clients, strict=True):
        was = {_shown(r): r.group for r in _left(before, after)}
        assert {_shown(r) for r in after.canaries} == set(was)
        for canary in after.canaries:
            assert (canary.text, canary.references) == (canary.group, (canary.group,))
            shift.append((federation.classes.index(canary.group) - federation.classes.index(was[_shown(canary)])) % 40)
    assert 0 not in shift
    assert chisquare(np.bincount(np.array(shift) // 8, minlength=5), 200 * np.array([7, 8, 8, 8, 8]) / 39).pvalue > 1e-3


@pytest.mark.parametrize("task", ["captions", "vqa"])
def test_mislabelled_pictures_say_a_text_of_another_group(federations, task):
    federation = federations[task]
    found = insert(federation, Canaries(canaries=60), 0)
    pairs = zip(federation.clients, found.clients, strict=True)
    was = {_shown(r): r for before, after in pairs for r in _left(before, after)}
    canaries = [r for client in found.clients for r in client.canaries]
    for canary in canaries:
        own = was[_shown(canary)]
        assert canary.text not in (own.text, *own.references)
        assert canary.group != own.group
        assert (canary.text, canary.references, canary.group) in [(r.text, r.references, r.group) for r in was.values()]
    if task == "captions":
        assert not {r.text for r in canaries} & {r.text for c in found.clients for r in (*c.records, *c.reference)}
        assert len({r.text for r in canaries}) >= 55, "hardly a text is said by two canaries"


@pytest.mark.parametrize(("groups", "canaries"), [("abc", 1), (("all",), 8)])
def test_texts_of_candidates_serve_where_canaries_are_too_few_or_of_one_group(groups, canaries):
    found = insert(_federation(groups=groups), Canaries(canaries=canaries), 0)
    texts = [(r.picture[0, 0, 0], int(r.text.split()[1])) for client in found.clients for r in client.canaries]
    assert len(texts) == canaries
    assert all(own != said for own, said in texts)


def test_a_text_that_is_right_is_no_wrong_one():
    """All say the same; and every record of the other group says what is among the right answers of the first."""
    same = _alone([_record(f"{i}", i, text="yes") for i in range(12)])
    with pytest.raises(InputError, match=r"--canary-kind mislabelled: .*'yes'.*ood and natural"):
        insert(same, Canaries(canaries=2), 0)
    either = [dataclasses.replace(_record(f"{i}", i, text="red"), references=("red", "crimson")) for i in range(6)]
    also = [_record(f"{i}", i, "b", text="crimson") for i in range(6, 12)]
    with pytest.raises(InputError, match="no other text is wrong"):
        insert(_alone(either + also), Canaries(canaries=7), 0)


def test_ood_canaries_are_pictures_of_nothing(federation):
    found = insert(federation, Canaries(canaries=N, canary_kind="ood"), 0)
    known = {r.content for r in federation.records.values()}
    seen = set()
    for before, after in zip(federation.clients, found.clients, strict=True):
        left = _left(before, after)
        for canary in after.canaries:
            assert (canary.image.dtype, canary.image.shape) == (np.uint8, left[0].image.shape)
            assert len(np.unique(canary.image.reshape(-1, 3), axis=0)) >= 4
            seen.add(canary.content)
        if not federation.classes:
            assert Counter(r.text for r in after.canaries) == Counter(r.text for r in left)
    assert len(seen - known) == N


def test_labels_of_ood_canaries_are_drawn_from_all_classes(federations):
    found = insert(federations["glyphs"], Canaries(canaries=200, canary_kind="ood"), 0)
    canaries = [(c, r) for c in found.clients for r in c.canaries]
    assert all(r.text == r.group and r.references == (r.group,) for _, r in canaries)
    place = np.array([found.classes.index(r.group) for _, r in canaries])
    assert chisquare(np.bincount(place // 8, minlength=5)).pvalue > 1e-3
    own = sum(r.group in c.classes for c, r in canaries)  # a client owns 8 of 40
    assert binom.ppf(1e-3, 200, 0.2) <= own <= binom.ppf(1 - 1e-3, 200, 0.2)


def test_coins_are_fair_and_independent():
    """Of each other, of the role before, and without a flip taken back: all 16 patterns of four coins occur alike."""
    federation = _federation()
    role = {_shown(r): used for c in federation.clients for r, used in c.labelled_candidates}
    found = [_natural(federation, 4, seed).clients for seed in range(800)]
    coins = np.array([np.concatenate([c.canary_included for c in clients]) for clients in found])
    before = np.array([[role[_shown(r)] for c in clients for r in c.canaries] for clients in found])
    assert chisquare(np.bincount(coins @ [8, 4, 2, 1], minlength=16)).pvalue > 1e-3
    for agree in ((coins == before).ravel(), (coins[1:] == coins[:-1]).ravel()):
        assert binom.ppf(5e-4, agree.size, 0.5) <= agree.sum() <= binom.ppf(1 - 5e-4, agree.size, 0.5)


def test_what_a_canary_looks_like_is_drawn_apart_from_its_coin(monkeypatch):
    looks = []
    monkeypatch.setattr(canaries, "_make_canary", lambda kind, record, texts, rng: looks.append(rng.random()) or record)
    runs = [_natural(_federation(), 4, seed) for seed in range(40)]
    coins = np.concatenate([client.canary_included for found in runs for client in found.clients])
    same = (np.array(looks) < 0.5) == coins
    assert binom.ppf(5e-4, same.size, 0.5) <= same.sum() <= binom.ppf(1 - 5e-4, same.size, 0.5)


def test_every_candidate_is_as_likely_to_become_a_canary():
    federation = _federation(clients=1)
    chosen = [r for seed in range(400) for r in _natural(federation, 3, seed).clients[0].canaries]
    counts = Counter(r.picture[0, 0, 0] for r in chosen)
    assert chisquare([counts[i] for i in range(12)]).pvalue > 1e-3


def test_kind_and_other_clients_change_neither_choice_nor_coins(federation):
    found = {kind: insert(federation, Canaries(canaries=20, canary_kind=kind), 3) for kind in KINDS}
    fewer = _natural(dataclasses.replace(federation, clients=federation.clients[:2]), 8, 3)
    for other in (found["ood"], found["mislabelled"], fewer):
        for client, same in zip(found["natural"].clients, other.clients, strict=False):
            assert client.records == same.records
            assert np.array_equal(client.canary_included, same.canary_included)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides_everything(federation, kind):
    def content(seed):
        found = insert(federation, Canaries(canaries=N, canary_kind=kind), seed)
        return [(r.content, r.text, used) for c in found.clients for r, used in c.labelled_candidates]

    assert content(1) == content(1) != content(2)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_as_many_as_the_message_says_are_accepted(clients):
    """The last client has 9 candidates and can give 5; the others give one more."""
    last = _client("client-99", [_record(f"z-{i}", 200 + i) for i in range(9)])
    federation = Federation((*_federation(clients).clients[:-1], last), (), ())
    limit = 5 * clients + clients - 1
    words = f"--canaries {limit + 1}: client-99 would give 6 of its 9 .*valid here are 0 to {limit}"
    for seed in range(20):
        with pytest.raises(InputError, match=words):
            _natural(federation, limit + 1, seed)
        found = _natural(federation, limit, seed)
        assert [int(c.member.sum()) for c in found.clients][-1] == 2 == len(found.clients[-1].records) - 2


@pytest.mark.parametrize(("members", "most"), [(2, 8), (10, 8), (6, 8), (1, 0), (0, 0), (11, 0), (12, 0)])
def test_a_client_keeps_two_members_and_two_held_out_records(members, most):
    federation = _alone([_record(f"{i}", i) for i in range(12)], np.arange(12) < members)
    for seed in range(20):
        if most:
            (found,) = _natural(federation, most, seed).clients
            assert (found.member.sum(), (~found.member).sum()) == (2, 2)
        with pytest.raises(InputError, match=f"valid here are 0 to {most}"):
            _natural(federation, most + 1, seed)


def test_roles_of_those_who_stay_say_nothing_about_their_place():
    """Each of 12 candidates, of which any 6 are members, stays as often as a member as any other."""
    stayed = np.zeros(12, int)
    for seed in range(800):
        member = np.random.default_rng(seed).permutation(12) < 6
        (found,) = _natural(_alone([_record(f"{i}", i) for i in range(12)], member), 6, seed).clients
        stayed[[r.picture[0, 0, 0] for r, used in zip(found.records, found.member, strict=True) if used]] += 1
    assert chisquare(stayed).pvalue > 1e-3


def test_a_picture_that_another_record_shows_becomes_no_canary():
    one, other = _federation(candidates=20).clients
    shared = [dataclasses.replace(r, id=f"again-{i}") for i, r in enumerate(one.records[:7])]
    reference = (dataclasses.replace(one.records[8], id="kept"),)
    other = dataclasses.replace(other, records=(*shared, *other.records[7:]), reference=reference)
    alone = {r.content for r in (*one.records[7:], *other.records[7:])} - {one.records[8].content}
    for seed in range(30):
        found = _natural(Federation((one, other), (), ()), 10, seed)
        assert {r.content for c in found.clients for r in c.canaries} <= alone
    with pytest.raises(InputError, match=r"client-00 .* its 20 .*, and 12 show a picture that no other record shows"):
        insert(Federation((one, other), (), ()), Canaries(canaries=25), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["path", "bytes", "one pixel"])
def test_pictures_in_files_and_of_one_pixel(tmp_path, kind, form):
    size = (1, 1) if form == "one pixel" else (5, 7)
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for i, path in enumerate(paths):
        Image.fromarray(_picture(i, size)).save(path)
    pictures = [path.read_bytes() for path in paths] if form == "bytes" else paths
    records = [_record(f"{i}", i, "ab"[i % 2], picture=picture) for i, picture in enumerate(pictures)]
    for canary in insert(_alone(records), Canaries(canaries=4, canary_kind=kind), 0).clients[0].canaries:
        assert canary.image.shape == (*size, 3)
        assert isinstance(canary.picture, np.ndarray) == (kind == "ood")
