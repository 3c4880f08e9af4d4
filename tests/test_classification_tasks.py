"""Classification tasks: what a client holds, the digits, the drawn symbols, and the real data sets in miniature."""

import collections
import dataclasses
import json
import pickle
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.tasks import digits as digits_task
from fedaudit.tasks import drawings, duplicates, image_layouts, imagesets
from fedaudit.tasks import folder as folder_task
from fedaudit.tasks import glyphs as glyphs_task
from fedaudit.tasks import images as images_task
from fedaudit.tasks.classification import Labelled, federate, split_names
from fedaudit.tasks.digits import digits
from fedaudit.tasks.glyphs import glyphs
from fedaudit.tasks.images import images
from fedaudit.tasks.imagesets import IMAGE_SETS, OF_DOMAINS, load
from fedaudit.trainers.evaluations import own_test_chances
from tests import miniimages
from tests.bad_data import Sly
from tests.minidata import picture, write

PARAMS = digits_task.Params()
WHOLE_SETS = {*OF_DOMAINS, *(name for name in IMAGE_SETS if not name.startswith(tuple(OF_DOMAINS)))}
TASKS = (digits_task, folder_task, glyphs_task, images_task)


def _labelled(classes=9, train=16, test=2, name="toy", first=0):
    """Pixels that number the pictures: training from `first` on, test from 30,000 + `first` on."""

    def pixels(start, n):
        return np.arange(start, start + n, dtype=np.int64).view(np.uint8).reshape(n, 1, 1, 8)[..., :3].copy()

    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(classes), train))
    unseen = np.repeat(np.arange(classes), test)
    names = tuple(f"{name} {c}" for c in range(classes))
    return Labelled(name, names, pixels(first, len(labels)), labels, pixels(30_000 + first, len(unseen)), unseen)


def _number(record):
    low, middle, high = record.image.ravel().tolist()
    return low + 256 * middle + 65536 * high


def _federate(*domains, clients=3, seed=0, **changes):
    return federate(domains, params=dataclasses.replace(PARAMS, **changes), clients=clients, seed=seed)


KINDS = {
    "pathological": {}, "few-shot": {"shots": 12}, "dirichlet": {"partition": "dirichlet", "dirichlet": 0.5},
    "dominant": {"partition": "dominant", "shots": 8},
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_a_record_shows_an_image_and_says_its_class_and_a_client_owns_those_that_it_holds(kind):
    domain = _labelled(classes=12)
    federation = _federate(domain, clients=4, **kind)
    assert federation.classes == domain.classes
    assert federation.novel == federation.novel_test == ()
    for record in federation.records.values():
        assert record.prompt == "<image>"
        assert record.text == record.group
        assert record.references == (record.text,)
    for client in federation.clients:
        for record in (*client.records, *client.reference):
            assert record.text == domain.classes[domain.labels[_number(record)]]
        held = {record.group for record in (*client.records, *client.reference)}
        assert client.classes == tuple(name for name in federation.classes if name in held)


@pytest.mark.parametrize("kind", [KINDS["pathological"], KINDS["dirichlet"]])
@pytest.mark.parametrize("clients", [1, 2, 5, 9])
def test_no_training_record_is_dropped_or_held_twice(kind, clients):
    domain = _labelled()
    federation = _federate(domain, clients=clients, **kind)
    numbers = [_number(r) for c in federation.clients for r in (*c.records, *c.reference)]
    assert sorted(numbers) == list(range(len(domain.labels)))
    assert [_number(r) for r in federation.test] == list(range(30_000, 30_000 + len(domain.test_labels)))


@pytest.mark.parametrize("share", [0.05, 0.25, 0.9])
def test_the_reference_records_are_a_fixed_share_that_nobody_trains_on(share):
    for client, usual in zip(*(_federate(_labelled(), reference_share=x).clients for x in (share, 0.5)), strict=True):
        one, other = ({(r.id, _number(r)) for r in (*c.records, *c.reference)} for c in (client, usual))
        assert one == other, "the share does not change who holds what"
        n = len(client.records) + len(client.reference)
        assert n == 48
        assert len(client.reference) == max(1, round(share * n))
        assert not {r.id for r in client.training_records} & {r.id for r in client.reference}
        assert 0 < client.member.sum() < len(client.records)


@pytest.mark.parametrize("kind", ["dirichlet", "dominant"])
@pytest.mark.parametrize("holdout", [0, 0.5])
def test_a_clients_own_test_set_has_its_class_proportions(kind, holdout):
    """Against drawing a record that the client holds, then a test record of its class and domain, one pair at a time."""
    even, kept = (
        _labelled(test=9),
        [9 * c + i for c in range(9) for i in range(c + 1)],
    )  # of class c are c + 1 for testing
    first = dataclasses.replace(even, test_pictures=even.test_pictures[kept], test_labels=even.test_labels[kept])
    second = dataclasses.replace(_labelled(first=1000), name="other", classes=first.classes)
    federation = _federate(first, second, clients=6, holdout=holdout, **KINDS[kind])
    found = own_test_chances(federation)
    assert len(found) == 6
    for client, chances in zip(federation.clients, found, strict=True):
        held = [*client.records, *client.reference]
        slow = dict.fromkeys((record.id for record in federation.test), 0.0)
        for mine in held:
            alike = [r for r in federation.test if (r.domain, r.group) == (mine.domain, mine.group)]
            for record in alike:
                slow[record.id] += 1 / len(held) / len(alike)
        assert chances == pytest.approx(list(slow.values()))
        assert sum(chances) == pytest.approx(1)
    for unshared in ("pathological", "few-shot"):  # where no class is shared the local classes are that set
        assert own_test_chances(_federate(first, second, clients=6, **KINDS[unshared])) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("domains", [1, 2])
def test_a_picture_has_one_coin_whoever_holds_it(kind, domains):
    """Every picture is another one: clients that show the same pixels share its coin, and its stratum names them all."""
    names = ["toy", "other"][:domains]
    federation = _federate(*(_labelled(name=n, first=1000 * i) for i, n in enumerate(names)), clients=4, **KINDS[kind])
    holders, coins = {}, federation.coins
    for client in federation.clients:
        for record in client.records:
            holders.setdefault(record.digest, []).append((client.name, record.id))
    several = [found for found in holders.values() if len(found) > 1]
    assert bool(several) == (kind == "dominant")
    for found in holders.values():
        assert {coins[record] for _, record in found} == {(found[0][1], ", ".join(name for name, _ in found))}
        assert len({federation.truth[record] for _, record in found}) == 1
    assert len({coin for coin, _ in coins.values()}) == len(holders)
    assert not {record.digest for client in federation.clients for record in client.reference} & holders.keys()
    assert len(federation.records) == len(federation.test) + sum(
        len(client.records) + len(client.reference) for client in federation.clients
    ), "ids are each client's own"


@each_kind
def test_where_nobody_is_held_out_all_records_are_trained_on(kind):
    """The shares are those of the default, so that only the trained part differs."""
    whole, part = (_federate(_labelled(), holdout=holdout, **kind) for holdout in (0, 0.5))
    for client, other in zip(whole.clients, part.clients, strict=True):
        held = {(r.id, _number(r)) for r in (*other.records, *other.reference)}
        assert {(r.id, _number(r)) for r in client.training_records} == held
        assert client.reference == ()
        assert client.member.all()
        assert client.classes == other.classes


def test_the_default_deals_the_coins_that_it_always_dealt():
    """The roles of the first client's records as they were before there was a choice."""
    first = _federate(_labelled(), clients=9).clients[0]
    assert "".join(map(str, first.member.astype(int))) == "001101100110"
    assert [r.id for r in first.reference] == [f"client-00-{i:04d}" for i in (0, 4, 8, 9)]


def test_ids_are_numbers_within_a_client_and_say_nothing_of_roles():
    """Over many clients, members, held-out and reference records have the same numbers (z below 4) and classes."""
    clients = [c for seed in range(20) for c in _federate(_labelled(), seed=seed).clients]
    numbers, roles, classes = [], [], []
    for client in clients:
        parts = [*zip(client.records, client.member.astype(int), strict=True), *((r, 2) for r in client.reference)]
        own = [int(record.id.removeprefix(f"{client.name}-")) for record, _ in parts]
        assert sorted(own) == list(range(48))
        assert own[: len(client.records)] == sorted(own[: len(client.records)])
        numbers += own
        roles += [role for _, role in parts]
        classes += [record.group for record, _ in parts]
    numbers, roles, classes = np.array(numbers), np.array(roles), np.array(classes)
    for role in range(3):
        mine, others = numbers[roles == role], numbers[roles != role]
        assert abs(mine.mean() - others.mean()) < 4 * numbers.std() * np.sqrt(1 / len(mine) + 1 / len(others))
        for name in np.unique(classes):
            p, q = (classes[roles == role] == name).mean(), (classes[roles != role] == name).mean()
            assert abs(p - q) < 4 * np.sqrt(1 / 9 * (1 / len(mine) + 1 / len(others)))
    assert abs((roles == 1).sum() / (roles < 2).sum() - 0.5) < 4 * 0.5 / np.sqrt((roles < 2).sum())


@each_kind
def test_the_seed_decides_everything(kind):
    made = [_federate(_labelled(), seed=seed, **kind) for seed in (0, 0, 1)]
    one, again, other = ([(r.id, r.group, _number(r), f.truth.get(r.id)) for r in f.records.values()] for f in made)
    assert one == again != other


def test_the_dominant_partition_takes_16_shots_by_default():
    for client in _federate(_labelled(classes=10), clients=4, partition="dominant").clients:
        names = [r.group for r in (*client.records, *client.reference)]
        assert sorted(names.count(name) for name in set(names)) == [4] * 7 + [16]


def test_two_domains_give_each_half_of_the_clients_one():
    print_, neon = _labelled(classes=4), _labelled(classes=4, name="toy", first=1000)
    neon = dataclasses.replace(neon, name="neon")
    other = dataclasses.replace(print_, name="print", classes=("toy 0", "toy 1", "x", "y"))
    federation = _federate(other, neon, clients=5)
    held = [{_number(r) >= 1000 for r in (*c.records, *c.reference)} for c in federation.clients]
    assert held == [{False}] * 3 + [{True}] * 2, "the first half is the larger one"
    assert federation.classes == ("toy 0", "toy 1", "x", "y", "toy 2", "toy 3"), "a name that both have is one class"
    for part, domain in ((slice(3), other), (slice(3, 5), neon)):
        owned = [name for c in federation.clients[part] for name in c.classes]
        assert sorted(owned) == sorted(domain.classes)
    assert len(federation.test) == 16
    assert [r.id for r in federation.test[7:9]] == ["test-print-00007", "test-neon-00000"]
    assert len(federation.records) == 2 * 64 + 16
    with pytest.raises(InputError, match=r"print, for 5 of 10 clients: --clients 5: a pathological split .* 4 classes"):
        _federate(other, neon, clients=10)
    with pytest.raises(InputError, match="--clients 1: 2 domains need at least a client each"):
        _federate(other, neon, clients=1)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("prnt", r"--domain prnt: no 'prnt' \(did you mean 'print'\?\); there are print, neon, dots"),
        ("print+", r"--domain print\+: no ''"),
        ("print+print", r"--domain print\+print: give one name, or different ones as in A\+B"),
    ],
)
def test_domains_that_are_not_there(value, complaint):
    known = ("print", "neon", "dots")
    for given in ("neon", "neon + print", "neon+print+dots"):
        assert split_names(given, known, flag="--domain") == given.replace(" ", "").split("+")
    with pytest.raises(InputError, match=complaint):
        split_names(value, known, flag="--domain")


def test_classes_without_records_are_named():
    whole = _labelled(classes=3)
    for field, kind in (("labels", "training"), ("test_labels", "test")):
        with pytest.raises(InputError, match=f"toy: class 'toy 2' has no {kind} records"):
            dataclasses.replace(whole, **{field: getattr(whole, field) % 2})
        with pytest.raises(InputError, match=f"toy has no {kind} records"):
            dataclasses.replace(whole, **{field: np.array([], np.int64)})


def test_clients_that_would_hold_too_little():
    assert [len(c.training_records) for c in _federate(_labelled(train=1), clients=9, holdout=0).clients] == [1] * 9
    with pytest.raises(InputError, match="--clients 9: a client would hold 3 records of toy and needs 4; lower --cl"):
        _federate(_labelled(train=3), clients=9)
    with pytest.raises(InputError, match=r"--clients 9: a client would hold 2 records"):
        _federate(_labelled(), clients=9, shots=2)
    with pytest.raises(InputError, match=r"--clients 10: a pathological split needs .* there are 9 classes"):
        _federate(_labelled(), clients=10)
    with pytest.raises(InputError, match=r"--clients 50 with --dirichlet 0.3: .* fewer than 4 of the 144 training"):
        _federate(_labelled(), clients=50, partition="dirichlet")
    with pytest.raises(InputError, match=r"--shots 17: class 'toy \d' has only 16 training records"):
        _federate(_labelled(), shots=17)


def test_a_client_that_gets_only_roles_of_earlier_clients_is_refused_if_one_is_missing():
    """With two classes of four pictures, later clients of the dominant split hold only pictures that have a role."""
    outcomes = set()
    for seed in range(30):
        try:
            _federate(_labelled(classes=2, train=4), clients=4, seed=seed, partition="dominant", shots=4)
            outcomes.add("fine")
        except InputError as error:
            outcomes.add(str(error).partition(" has ")[2])
    assert "fine" in outcomes
    complaint = "raise --shots, or lower --clients or --reference-share"
    assert f"5 records, too few for members, held-out and reference records; {complaint}" in outcomes
    with pytest.raises(InputError, match=r"client-00 has 4 records, too few .* --reference-share"):
        _federate(_labelled(train=4), clients=9, reference_share=0.9)


@pytest.mark.parametrize(("clients", "share"), [(4, 0.9), (36, 0.25)])
def test_the_least_a_client_may_hold_has_every_role(clients, share):
    for client in _federate(_labelled(classes=36, train=4), clients=clients, reference_share=share).clients:
        assert client.reference
        assert 0 < client.member.sum() < len(client.records)


def test_the_shared_parameters_are_the_same_in_every_task_and_the_help_names_every_choice():
    shared = {field.name: (field.default, field.metadata) for field in dataclasses.fields(digits_task.Params)}
    for module in TASKS:
        own = {field.name: (field.default, field.metadata) for field in dataclasses.fields(module.Params)}
        assert shared.items() <= own.items()
    for module, name, known in ((glyphs_task, "domain", drawings.DOMAINS), (images_task, "dataset", WHOLE_SETS)):
        told = next(field for field in dataclasses.fields(module.Params) if field.name == name)
        assert set(known) <= set(told.metadata["help"].replace(",", " ").split()), name
        assert told.default in known


def test_digits_are_scikit_learns_enlarged():
    from sklearn.datasets import load_digits

    data, (pictures, labels) = load_digits(), digits_task._load()
    assert pictures.shape == (1797, 32, 32, 3)
    assert np.array_equal(labels, data.target)
    assert not pictures[:, :4].any(), "a frame of four pixels"
    assert not pictures[:, :, -4:].any()
    means = pictures[:, 4:28, 4:28, 0].reshape(1797, 8, 3, 8, 3).mean(axis=(2, 4))
    assert np.corrcoef(means.ravel(), data.images.ravel())[0, 1] > 0.98
    for one in (0, 1000):
        assert np.ptp(pictures[one], axis=-1).max() == 0, "grey"
        assert pictures[one, 5 + 3 * 2, 5 + 3 * 4, 0] == pytest.approx(255 / 16 * data.images[one, 2, 4], abs=1)


def test_half_of_each_digit_is_for_testing():
    pictures, labels = digits_task._load()
    federation = digits(digits_task.Params(), clients=10, seed=0)
    assert federation.classes == digits_task.CLASSES
    held = [(r.group, r.content) for c in federation.clients for r in (*c.records, *c.reference)]
    seen = [(r.group, r.content) for r in federation.test]
    shown = (f"{pixels.shape}".encode() + pixels.tobytes() for pixels in pictures)
    everything = zip((federation.classes[k] for k in labels), shown, strict=True)
    assert sorted(held + seen) == sorted(everything)
    for k, name in enumerate(federation.classes):
        n = int((labels == k).sum())
        assert [sum(group == name for group, _ in part) for part in (held, seen)] == [n - n // 2, n // 2]
    assert sorted(c.classes for c in federation.clients) == sorted((name,) for name in federation.classes)
    other = digits(digits_task.Params(), clients=10, seed=1)
    assert {r.content for r in other.test} != {content for _, content in seen}


def test_glyphs_have_train_and_test_pictures_of_every_class():
    params = glyphs_task.Params(train=5, test=2)
    federation = glyphs(params, clients=10, seed=0)
    assert federation.classes == drawings.CLASSES
    held = [r for c in federation.clients for r in (*c.records, *c.reference)]
    for part, each in ((held, 5), (federation.test, 2)):
        names = [r.text for r in part]
        assert {name: names.count(name) for name in drawings.CLASSES} == dict.fromkeys(drawings.CLASSES, each)
        assert {r.image.shape for r in part} == {(32, 32, 3)}
    assert len({r.content for r in (*held, *federation.test)}) == 7 * len(drawings.CLASSES)
    more, again = (glyphs(dataclasses.replace(params, test=n), clients=10, seed=0) for n in (3, 2))
    one, other = ([r.content for c in it.clients for r in c.records] for it in (federation, more))
    assert one == other
    assert [r.content for r in again.test] == [r.content for r in federation.test]


def test_glyphs_of_two_styles_share_their_classes():
    federation = glyphs(glyphs_task.Params(domain="print+neon", train=4, test=1), clients=6, seed=0)
    assert federation.classes == drawings.CLASSES
    for half in (federation.clients[:3], federation.clients[3:]):
        assert sorted(name for c in half for name in c.classes) == sorted(drawings.CLASSES)
    bright = [np.mean([r.image.mean() for r in (*c.records, *c.reference)]) for c in federation.clients]
    assert min(bright[:3]) > max(bright[3:]) + 40, "paper is light, a wall at night is dark"


LAYOUTS = [(name, coop) for name in miniimages.BUILDERS for coop in (True, False)]
# a split file, lists of a flat folder, no lists, lists of a domain, arrays: what is done alike for all data sets
SOME = [
    ("caltech101", True), ("oxford_pets", False), ("eurosat", False), ("domainnet_clipart", True), ("cifar100", False),
]  # fmt: skip
some_layouts = pytest.mark.parametrize(("name", "coop"), SOME)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Every data set in both layouts: root and what is to be found; nobody may change these files."""
    made = {}
    for name, coop in LAYOUTS:
        root = tmp_path_factory.mktemp(f"{name}-{coop}")
        made[name, coop] = root, miniimages.BUILDERS[name](root, coop)
    return made


def _load(name, root, seed=0):
    return load(name, root, np.random.default_rng(seed))


def _images(name, root, clients=3, seed=0, **changes):
    return images(images_task.Params(dataset=name, data_root=str(root), **changes), clients=clients, seed=seed)


def _base(name, root):
    return imagesets._base(name, IMAGE_SETS[name], root)


def _rows(found, base):
    """{"train" or "test": {file: class name}} of a Labelled; arrays go by their number."""
    numbers = {miniimages.cifar_pixels(n).tobytes(): str(n) for n in range(110)}

    def key(one):
        return numbers[one.tobytes()] if isinstance(one, np.ndarray) else one.relative_to(base).as_posix()

    parts = {"train": (found.pictures, found.labels), "test": (found.test_pictures, found.test_labels)}
    return {
        split: {key(one): found.classes[label] for one, label in zip(pictures, labels, strict=True)}
        for split, (pictures, labels) in parts.items()
    }


@pytest.mark.parametrize(("name", "coop"), LAYOUTS)
def test_each_data_set_has_its_classes_labels_and_split(data, name, coop):
    root, expected = data[name, coop]
    base, found = _base(name, root), _load(name, root)
    assert _base(name, base) == base, "the data root may be the data set's own folder"
    rows = _rows(found, base)
    assert found.classes == tuple(sorted({said for part in expected.values() for said in part.values()}))
    if "all" in expected:
        assert rows["train"] | rows["test"] == expected["all"]
        assert collections.Counter(rows["test"].values()) == dict.fromkeys(found.classes, 3)
        assert _rows(_load(name, root, seed=1), base) != rows, "the seed draws the test pictures"
    else:
        assert rows == expected


def _torchvision(name, root):
    """What torchvision's reader says of the layout, as in `_rows`; its validation pictures join the training."""
    from torchvision import datasets

    if name == "eurosat":
        made = datasets.EuroSAT(root)
        return {"all": {str(path): made.classes[label] for path, label in made.samples}}
    reader, splits = {
        "oxford_pets": (datasets.OxfordIIITPet, ("trainval", "test")),
        "oxford_flowers": (datasets.Flowers102, ("train", "val", "test")),
        "food101": (datasets.Food101, ("train", "test")),
        "dtd": (datasets.DTD, ("train", "val", "test")),
        "fgvc_aircraft": (datasets.FGVCAircraft, ("train", "test")),
        "stanford_cars": (datasets.StanfordCars, ("train", "test")),
    }[name]
    rows = {"train": {}, "test": {}}
    for split in splits:
        made = reader(root, split)
        paths = getattr(made, "_image_files", None) or getattr(made, "_images", None)
        found = made._samples if paths is None else zip(paths, made._labels, strict=True)
        rows["test" if split == "test" else "train"] |= {str(path): made.classes[label] for path, label in found}
    return rows


def _plain(said):
    """A class name without what torchvision's readers and ours write differently."""
    long = {"Annual Crop Land": "AnnualCrop", "Sea or Lake": "SeaLake"}
    said = re.sub(r"^(\d{4}) (.*)$", r"\2 \1", said)  # the year of a car
    return long.get(said, said).lower().replace("_", " ").rstrip("?")


@pytest.mark.parametrize(
    "name", ["oxford_pets", "oxford_flowers", "food101", "dtd", "fgvc_aircraft", "eurosat", "stanford_cars"]
)
def test_the_official_layouts_are_those_that_torchvision_reads(data, name, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.flowers102.check_integrity", lambda *_: True)  # of the full-size files
    root, _ = data[name, False]
    found = _load(name, root)
    rows = _rows(found, root)
    ours = {"all": rows["train"] | rows["test"]} if name == "eurosat" else rows
    theirs = _torchvision(name, str(root))
    assert {s: {str(root / f): _plain(said) for f, said in part.items()} for s, part in ours.items()} == {
        s: {f: _plain(said) for f, said in part.items()} for s, part in theirs.items()
    }


@pytest.mark.parametrize(("name", "kind"), [("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
def test_cifar_is_read_as_torchvision_reads_it(data, name, kind, monkeypatch):
    from torchvision import datasets

    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    root, _ = data[name, False]
    found = _load(name, root)
    parts = {True: (found.pictures, found.labels), False: (found.test_pictures, found.test_labels)}
    for train, (pictures, labels) in parts.items():
        theirs = getattr(datasets, kind)(str(root), train=train)
        assert np.array_equal(np.stack(pictures), theirs.data)
        names = [theirs.classes[label].replace("_", " ") for label in theirs.targets]
        assert [found.classes[label] for label in labels] == names


def test_names_of_classes_are_torchvisions(data):
    """But for Caltech's cropped faces."""
    from torchvision import datasets

    root, _ = data["caltech101", False]
    theirs = [name for name in datasets.Caltech101(str(root)).categories if name != "__MACOSX"]
    assert theirs == ["Faces", "Faces_easy", "airplanes", "water_lilly"]
    assert _load("caltech101", root).classes == ("airplane", "face", "water lilly")
    assert list(image_layouts.FLOWERS) == datasets.Flowers102.classes
    assert len(set(image_layouts.FLOWERS)) == 102


def test_a_data_set_of_domains_stands_for_each(data, tmp_path):
    base = tmp_path / "office_caltech_10"
    for domain in OF_DOMAINS["office_caltech10"][1]:
        miniimages._domain(base, domain, ("back_pack", "bike", "mug"))
    federation = _images("office_caltech10", tmp_path, clients=8)
    assert federation.classes == ("back pack", "bike", "mug")
    found = {r.domain: r.picture.relative_to(base).parts[0] for c in federation.clients for r in c.records}
    assert found == {f"office_caltech10_{domain}": domain for domain in OF_DOMAINS["office_caltech10"][1]}


def test_eurosat_of_2023(data, tmp_path):
    root, _ = data["eurosat", False]
    (tmp_path / "eurosat").mkdir()
    shutil.copytree(root / "eurosat/2750", tmp_path / "eurosat/EuroSAT_RGB")
    other, first = (_load("eurosat", one) for one in (tmp_path, root))
    assert [p.name for p in other.pictures] == [p.name for p in first.pictures]
    assert {p.parent.parent for p in other.pictures} == {tmp_path / "eurosat/EuroSAT_RGB"}
    assert _load("eurosat", tmp_path / "eurosat/EuroSAT_RGB").pictures == other.pictures
    miniimages.eurosat(tmp_path / "coop", True)
    (tmp_path / "coop/eurosat/2750").rename(tmp_path / "coop/eurosat/EuroSAT_RGB")
    assert len(_load("eurosat", tmp_path / "coop").pictures) == len(_load("eurosat", data["eurosat", True][0]).pictures)


@some_layouts
def test_building_a_federation_decodes_a_picture_once_and_again_none(data, name, coop, monkeypatch):
    """All miniatures have one height and width, so that any could be a copy."""
    from PIL import ImageFile

    decoded, original = collections.Counter(), ImageFile.ImageFile.load
    monkeypatch.setattr(
        ImageFile.ImageFile, "load", lambda self: decoded.update([self.fp.name] if self.tile else []) or original(self)
    )
    monkeypatch.setattr(duplicates, "_known", {})
    monkeypatch.setattr(user_files, "GRAIN_NS", 0)  # the files are new
    for again in (False, True):
        federation = _images(name, data[name, coop][0])
        assert sum(decoded.values()) == (0 if again or name.startswith("cifar") else len(federation.records))
        decoded.clear()
    found, held = _load(name, data[name, coop][0]), [r for c in federation.clients for r in (*c.records, *c.reference)]
    assert (len(held), len(federation.test)) == (len(found.labels), len(found.test_labels))
    assert [len(c.classes) for c in federation.clients] == [1, 1, 1]
    for record in (*held[:4], *federation.test[:4]):
        assert isinstance(record.picture, np.ndarray) == name.startswith("cifar")
        assert record.image.shape == ((32, 32, 3) if name.startswith("cifar") else (8, 12, 3))


def test_two_data_sets_are_a_federation_of_two_domains(data, tmp_path):
    for name in ("caltech101", "oxford_pets"):
        shutil.copytree(data[name, True][0], tmp_path, dirs_exist_ok=True)
    federation = _images("caltech101+oxford_pets", tmp_path, clients=4)
    assert federation.classes == ("airplane", "face", "water lilly", "abyssinian", "american bulldog", "egyptian mau")
    owned = [set(c.classes) for c in federation.clients]
    assert owned[0] | owned[1] == set(federation.classes[:3])
    assert owned[2] | owned[3] == set(federation.classes[3:])


def test_a_data_root_or_a_data_set_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="--data-root is not given: name the folder that holds caltech-101 and oxfo"):
        _images("caltech101+oxford_pets", "")
    with pytest.raises(InputError, match=f"--data-root {tmp_path}/none: no such folder; it should hold dtd"):
        _images("dtd", tmp_path / "none")
    with pytest.raises(InputError, match=r"--dataset caltech: no 'caltech' \(did you mean 'caltech101'\?\); there are"):
        _images("caltech", tmp_path)
    for name in miniimages.BUILDERS:
        with pytest.raises(InputError) as error:
            _images(name, tmp_path)
        kind, said = IMAGE_SETS[name], str(error.value)
        assert all(f"{tmp_path}/{folder}/{kind.images}" in said for folder in kind.folders)
        assert said.startswith(f"--data-root {tmp_path}: {name} is not there (looked for ")
        assert said.endswith(f"; get it from {kind.origin}")
    assert not list(tmp_path.iterdir()), "looking makes no folders"


@pytest.mark.parametrize(("name", "images"), [("caltech101", "101_ObjectCategories"), ("eurosat", "2750")])
def test_folders_without_images(tmp_path, name, images):
    folder = tmp_path / IMAGE_SETS[name].folders[0] / images
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match=f"{folder} holds no folders with images, it .*; unpack"):
        _images(name, tmp_path)
    write(folder / "anchor/notes.txt", b"")
    with pytest.raises(InputError, match=rf"{folder}/anchor holds no images \(.jpg, .jpeg, .*\), it .*; unpack"):
        _images(name, tmp_path)


@pytest.mark.parametrize(("name", "coop"), SOME[:-1])
def test_damaged_pictures_are_named_when_they_are_read(data, tmp_path, name, coop):
    shutil.copytree(data[name, coop][0], tmp_path, dirs_exist_ok=True)
    found = load(name, tmp_path, np.random.default_rng((0, 5, 0)))
    last = found.pictures[-1]
    good = last.read_bytes()
    last.write_bytes(good[: len(good) // 2])
    bad = next(r for c in _images(name, tmp_path).clients for r in (*c.records, *c.reference) if r.picture == last)
    with pytest.raises(InputError, match=f"record {bad.id}: {last} is no readable image"):
        _ = bad.image


@pytest.mark.parametrize(("name", "coop"), [SOME[0], SOME[1], SOME[3], ("food101", False), ("ucf101", False)])
def test_pictures_that_the_lists_name_and_that_are_not_there(data, tmp_path, name, coop):
    shutil.copytree(data[name, coop][0], tmp_path, dirs_exist_ok=True)
    gone = _load(name, tmp_path).test_pictures[-1]
    gone.unlink()
    with pytest.raises(InputError, match=f"{gone}: no such file, but the lists of {_base(name, tmp_path)} name it"):
        _load(name, tmp_path)
    if gone.parent != _base(name, tmp_path) / IMAGE_SETS[name].images:
        shutil.rmtree(gone.parent)
        with pytest.raises(InputError, match="no such file, but the lists of"):
            _load(name, tmp_path)


SPLIT = "split_zhou_Food101.json"  # of CoOp's layout


def _pickled(**content):
    return miniimages.python2_pickle({name: np.array(values, np.uint8) for name, values in content.items()})


@pytest.mark.parametrize(
    ("name", "file", "content", "complaint"),
    [
        ("oxford_pets", "annotations/trainval.txt", b"Abyssinian_1\n", "line 1: 'Abyssinian_1' must have 4 parts"),
        ("dtd", "labels/train1.txt", b"banded\n", "line 1: 'banded' must have 2 parts"),
        ("fgvc_aircraft", "images_variant_test.txt", b"\n0034958\n", "line 2: '0034958' must have 2 parts"),
        ("ucf101", "ucfTrainTestlist/testlist01.txt", b"x.avi\n", "line 1: 'x.avi' must have 2 parts"),
        ("food101", SPLIT, lambda c: ["x"], "lacks the key 'train'"),
        ("food101", SPLIT, lambda c: c | {"train": {}}, "'train' must hold a list"),
        ("food101", SPLIT, lambda c: c | {"test": []}, r"'test' must list \[picture, label, class name\], not \[\]"),
        ("food101", SPLIT, lambda c: c | {"test": [[p, 0, n] for p, _, n in c["test"]]}, "'test' a label has two"),
        ("food101", SPLIT, lambda c: c | {"train": [[p, k, "x"] for p, k, _ in c["train"]]}, "'train' a label has two"),
        ("food101", "meta/train.json", b"[]", "must hold one JSON object, not list"),
        ("food101", "meta/train.json", b'{"waffles": 3}', "'waffles' must hold a list, not 3"),
        ("oxford_flowers", "imagelabels.mat", b"no matrix", r"is no readable MATLAB file with labels"),
        ("cifar10", "data_batch_3", None, r"cannot be read \(No such file .*unpack CIFAR's Python version again"),
        ("cifar10", "data_batch_3", b"", r"is no batch of CIFAR's Python version \(data, labels\)"),
        ("cifar10", "batches.meta", pickle.dumps({"x": 1}), r"is no batch of CIFAR's Python version \(label_names\)"),
        ("cifar100", "test", pickle.dumps([1]), r"is no batch of CIFAR's Python version \(data, fine_labels\)"),
        ("cifar100", "test", _pickled(data=[[1]], fine_labels=[0]), "pictures and labels do not fit"),
        ("cifar100", "train", _pickled(data=[[0] * 3072] * 9, fine_labels=[*range(9)]), "and labels do not fit"),
    ],
)  # fmt: skip
def test_lists_that_are_damaged(data, tmp_path, name, file, content, complaint):
    shutil.copytree(data[name, file == SPLIT][0], tmp_path, dirs_exist_ok=True)
    path = _base(name, tmp_path) / file
    if content is None:
        path.unlink()
    else:
        write(path, content(json.loads(path.read_text())) if callable(content) else content)
    with pytest.raises(InputError, match=complaint) as error:
        _load(name, tmp_path)
    assert str(path) in str(error.value)


def test_flower_labels_and_numbers_that_do_not_fit(data, tmp_path):
    shutil.copytree(data["oxford_flowers", False][0], tmp_path, dirs_exist_ok=True)
    base = tmp_path / "flowers-102"
    savemat(base / "setid.mat", {"trnid": [[1]], "valid": [[2]], "tstid": [[0]]})
    with pytest.raises(InputError, match=r"setid.mat: a picture has none of the 33 labels of imagelabels.mat"):
        _load("oxford_flowers", tmp_path)
    savemat(base / "imagelabels.mat", {"labels": [[1, 103]]})
    with pytest.raises(InputError, match=r"imagelabels\.mat: labels must lie between 1 and 102"):
        _load("oxford_flowers", tmp_path)


def test_a_batch_that_would_run_code_is_refused(data, tmp_path):
    shutil.copytree(data["cifar10", False][0], tmp_path, dirs_exist_ok=True)
    path, made = tmp_path / "cifar-10-batches-py/data_batch_2", tmp_path / "made"
    write(path, pickle.dumps({"data": Sly(made), "labels": [0]}))
    with pytest.raises(InputError, match=f"{path} is no batch of CIFAR's Python version"):
        _load("cifar10", tmp_path)
    assert not made.exists()


def test_batches_pickled_by_todays_python_are_read_too(data, tmp_path):
    shutil.copytree(data["cifar100", False][0], tmp_path, dirs_exist_ok=True)
    path, before = tmp_path / "cifar-100-python/test", _load("cifar100", tmp_path)
    pixels = np.stack([one.transpose(2, 0, 1).ravel() for one in before.test_pictures])
    labels = before.test_labels.tolist()
    for protocol in (2, 4):
        write(path, pickle.dumps({"data": pixels, "fine_labels": labels}, protocol))
        assert np.array_equal(np.stack(_load("cifar100", tmp_path).test_pictures), np.stack(before.test_pictures))


def test_png_pictures_and_grey_ones_count_as_well(tmp_path):
    folder = tmp_path / "eurosat/2750"
    for name in ("Forest", "River"):
        for n in range(8):
            write(folder / name / f"{name}_{n}.PNG", picture(n + 10 * len(name), "PNG"))
        Image.fromarray(np.full((8, 12), 20 * len(name), np.uint8)).save(folder / name / "grey.jpeg")
    federation = _images("eurosat", tmp_path, clients=2)
    assert len(federation.records) == 18
    assert {r.image.shape for r in federation.records.values()} == {(8, 12, 3)}
