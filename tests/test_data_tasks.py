"""The tasks on local files, `coco` and `scienceqa`, on miniature data sets in the real formats."""

import dataclasses
import json
import shutil
from collections import Counter
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFile

from fedaudit.machinery.errors import InputError
from fedaudit.tasks import coco, local_files, scienceqa, tables
from fedaudit.tasks.captions import INSTRUCTION
from fedaudit.tasks.local_files import Item, Pool, federate
from fedaudit.tasks.metrics import answer_scores, caption_scores
from tests import minidata

COCO = coco.Params(records=4, reference=5, background=3, novel=12, test=6)
SCIENCE = scienceqa.Params(records=4, reference=5, background=3, test=6)
CLIENTS = 3
ROW = tables.Row(local_files.Path("x.parquet"), 0)


def _coco(root, seed=0, clients=CLIENTS, **changes):
    return coco.coco(dataclasses.replace(COCO, data_root=str(root), **changes), clients=clients, seed=seed)


def _science(root, seed=0, clients=CLIENTS, **changes):
    return scienceqa.scienceqa(dataclasses.replace(SCIENCE, data_root=str(root), **changes), clients=clients, seed=seed)


def refused(message, draw, root, **changes):
    with pytest.raises(InputError, match=message):
        draw(root, **changes)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Every layout once; nobody may change these files."""
    root = tmp_path_factory.mktemp("data")
    minidata.coco(root / "coco")
    minidata.nocaps(root / "coco/nocaps")
    minidata.parquet(root / "coco-parquet/data/train-00000-of-00001.parquet", minidata.coco_rows(range(1, 91)))
    minidata.parquet(root / "coco-parquet/data/val-00000-of-00001.parquet", minidata.coco_rows(range(1000, 1020)))
    minidata.parquet(root / "coco-parquet/nocaps/data/validation-0.parquet", minidata.nocaps_rows(90))
    minidata.scienceqa(root / "scienceqa")
    minidata.scienceqa_parquet(root / "scienceqa-parquet")
    return root


@pytest.fixture(scope="module")
def drawn(data):
    """The federation of each layout."""
    return {layout: draw(data / layout) for layout, draw in LAYOUTS.items()}


LAYOUTS = {"coco": _coco, "coco-parquet": _coco, "scienceqa": _science, "scienceqa-parquet": _science}
each = pytest.mark.parametrize("layout", LAYOUTS)


def _content(federation):
    return [(r.id, r.group, r.content, r.prompt, r.text, r.references) for r in federation.records.values()]


@each
def test_sizes_and_kinds_and_no_record_belongs_to_two_parts(drawn, layout):
    federation = drawn[layout]
    captions = layout.startswith("coco")
    assert [client.name for client in federation.clients] == ["client-00", "client-01", "client-02"]
    for client in federation.clients:
        assert [len(part) for part in (client.records, client.reference, client.background)] == [8, 5, 3]
        assert set(client.training_records) >= set(client.background)
    assert len(federation.test) == 6
    assert len(federation.novel) == (12 if captions else 0)
    assert len(federation.novel_test) == (6 if captions else 0)
    assert federation.score is (caption_scores if captions else answer_scores)
    for record in federation.records.values():
        assert record.prompt.count("<image>") == 1
        assert record.image.shape == (8, 12, 3)
        assert record.references[0] == record.text
        assert isinstance(record.picture, bytes) == ("parquet" in layout)
    ids = [r.id for c in federation.clients for r in (*c.records, *c.reference, *c.background)]
    ids += [r.id for r in (*federation.test, *federation.novel, *federation.novel_test)]
    assert len(ids) == len(set(ids)) == len(federation.records)
    assert len({r.content for r in federation.records.values()}) == len(ids)


@each
def test_the_same_seed_draws_the_same_and_another_does_not(data, drawn, layout):
    """The number of test records changes neither clients nor novel records."""
    draw = LAYOUTS[layout]
    one, again, other, more = drawn[layout], *(draw(data / layout, **w) for w in ({}, {"seed": 1}, {"test": 9}))
    assert _content(one) == _content(again)
    assert one.truth == again.truth == more.truth != other.truth
    assert [r.id for r in one.novel] == [r.id for r in more.novel]
    assert [r.id for r in one.test] != [r.id for r in other.test]
    assert set(one.clients[0].records) != set(other.clients[0].records)


def test_official_records_say_what_the_files_say(data, drawn):
    federation = drawn["coco"]
    for client in federation.clients:
        for record in (*client.records, *client.reference, *client.background):
            n = int(record.id.removeprefix("coco-"))
            assert record.picture == data / f"coco/train2017/{n:012d}.jpg"
            assert (record.group, record.prompt) == (minidata.coco_class(n), INSTRUCTION)
            assert set(record.references) == {f"caption {i} of {n}" for i in range(5)}
    assert {r.picture.parent.name for r in federation.test} == {"val2017"}
    assert {len(r.references) for r in federation.test} == {5}
    assert {len(r.references) for r in (*federation.novel, *federation.novel_test)} == {10}
    assert {r.text.split()[1] for c in federation.clients for r in c.records} == set("01234"), "the caption is drawn"


def test_parquet_rows_keep_their_own_pictures(drawn):
    """Pictures come from the chosen rows of several row groups: each id with its own bytes, captions and class."""
    federation = drawn["coco-parquet"]
    for client in federation.clients:
        for record in client.records:
            n = int(record.id.removeprefix("coco-train-"))
            assert record.picture == minidata.picture(n)
            assert record.group == minidata.coco_class(n)
            assert record.text in {f"caption {i} of {n}" for i in range(5)}
    for record in federation.novel:
        assert record.picture == minidata.picture(5000 + int(record.id.removeprefix("nocaps-val-")))


@pytest.mark.parametrize("layout", ["scienceqa", "scienceqa-parquet"])
def test_questions_say_what_the_files_say(drawn, layout):
    federation = drawn[layout]
    for record in federation.records.values():
        n = int(record.text.removeprefix("right "))
        asked = minidata.question(n, "")
        assert n % 3, "a question without picture"
        assert (n >= 3000) == (record.id in {r.id for r in federation.test})
        assert record.references == (record.text,)
        assert record.group == asked["topic"]
        assert all(part in record.prompt for part in (asked["question"], f"wrong {n}", f"right {n}", f"other {n}"))
        assert (f"Hint {n}" in record.prompt) == bool(n % 2)
        assert record.content == minidata.picture(n, "PNG")


@pytest.mark.parametrize(("year", "images"), [("2014", "."), ("2014", "images"), ("2017", "images")])
def test_other_places_and_names_of_coco(tmp_path, year, images):
    federation = _coco(minidata.coco(tmp_path, year=year, images=images))
    assert federation.novel == federation.novel_test == ()
    assert {r.picture.parent.name for c in federation.clients for r in c.records} == {f"train{year}"}


def test_only_the_validation_pictures_are_there(tmp_path):
    """The annotations come in one archive: with val2017.zip alone, clients and test share that split, disjointly."""
    minidata.coco(tmp_path, train=3, val=70)
    shutil.rmtree(tmp_path / "train2017")
    federation = _coco(tmp_path)
    assert {r.picture.parent.name for r in federation.records.values()} == {"val2017"}
    assert len(federation.records) == CLIENTS * 16 + 6


def test_a_single_parquet_split_gives_the_test_records_too(tmp_path):
    minidata.parquet(tmp_path / "some.parquet", minidata.coco_rows(range(60)))
    federation = _coco(tmp_path)
    assert len(federation.records) == CLIENTS * 16 + 6
    assert federation.test[0].id.startswith("coco-0")
    minidata.parquet(tmp_path / "some.parquet", minidata.coco_rows(range(50)))
    refused(r"need 54 records .* and 6 test records.* has 50 .*--background, --test or", _coco, tmp_path)


@pytest.mark.parametrize("column", ["answer", "captions", "caption", "sentences", "annotations_captions"])
def test_names_of_the_caption_column(tmp_path, column):
    minidata.parquet(tmp_path / "train.parquet", minidata.coco_rows(range(60), column=column))
    assert all(len(r.references) == 5 for r in _coco(tmp_path).test)


def test_rows_that_show_the_same_picture_are_one_record(tmp_path):
    """One caption per row, two rows per picture: the picture's own path, or a column, tells which belong together."""
    rows = [{"image": (minidata.picture(n), f"{n}.jpg"), "caption": f"{i} of {n}"} for i in range(2) for n in range(60)]
    named = [{"image": row["image"][0], "file_name": row["image"][1], "caption": row["caption"]} for row in rows]
    minidata.parquet(tmp_path / "by-path/train.parquet", rows)
    minidata.parquet(tmp_path / "by-column/train.parquet", named)
    for name in ("by-path", "by-column"):
        records = _coco(tmp_path / name).records.values()
        assert len({r.content for r in records}) == len(records) == CLIENTS * 16 + 6, name
        assert {(len(r.references), r.group) for r in records} == {(2, "all")}, name
    nameless = [{"image": minidata.picture(n % 60), "caption": f"of {n}"} for n in range(120)]
    path = minidata.parquet(tmp_path / "nameless/train.parquet", nameless)
    refused(f"row 0 of {path}: with one caption in a row.* image_id or cocoid", _coco, path.parent)


@pytest.mark.parametrize(
    ("value", "group"),
    [
        ("dog", "dog"), (7, "7"), (["cat", "dog", "dog"], "dog"), ([], "none"), (None, "all"),
        ({"category": [1, 2, 2], "area": [9.0, 3.0, 4.0]}, "1"), ({"category": [], "area": []}, "none"),
    ],
)  # fmt: skip
def test_class_columns_in_their_usual_forms(value, group):
    assert coco._group(value, "all", ROW) == group


def _numbers(federation):
    return {int(r.id.rsplit("-", 1)[1]) for r in (*federation.novel, *federation.novel_test)}


def test_nocaps_domains(data):
    for layout in ("coco", "coco-parquet"):
        assert {n % 3 for n in _numbers(_coco(data / layout))} == {2}, "out-domain unless told otherwise"
        assert {n % 3 for n in _numbers(_coco(data / layout, nocaps_domain="in-domain"))} == {0}
        assert {n % 3 for n in _numbers(_coco(data / layout, nocaps_domain="all", novel=60))} == {0, 1, 2}


def test_nocaps_elsewhere_and_without_domains(data, tmp_path):
    rows = [{key: value for key, value in row.items() if key != "region"} for row in minidata.nocaps_rows(30)]
    minidata.parquet(tmp_path / "test.parquet", [row | {"annotations_captions": [""]} for row in rows])
    minidata.parquet(tmp_path / "validation.parquet", rows)
    federation = _coco(data / "coco", nocaps_root=str(tmp_path))
    assert {r.id.rsplit("-", 1)[0] for r in federation.novel} == {"nocaps-val"}, "the test split has no captions"
    assert {n % 3 for n in _numbers(federation)} == {0, 1, 2}


def _items(sizes):
    """Items of classes a, b, ... with these sizes; their pictures do not exist."""
    return [
        Item(f"{group}-{n:04d}", group, local_files.Path("nowhere.jpg"), INSTRUCTION, (f"text {group}{n}",))
        for group, size in zip("abcdef", sizes, strict=False)
        for n in range(size)
    ]


@pytest.fixture
def unread(monkeypatch):
    monkeypatch.setattr(local_files, "_pictures", lambda items: {item.id: item.source for item in items})


def test_coins_are_fair_and_independent_of_class_place_and_part(unread):
    """Over many seeds, with a class that runs out while a client draws: two-sided z of each share below 4."""
    params = scienceqa.Params(records=8, reference=16, background=0, test=2, dirichlet=0.5)
    members, first, rare, rare_reference = [], [], [], []
    for seed in range(75):
        federation = federate(_items((12, 60, 60)), (), params=params, clients=3, seed=seed)
        for client in federation.clients:
            members += client.member.tolist()
            first += [i < 8 for i in range(16)]
            rare += [r.group == "a" for r in client.records]
            rare_reference += [r.group == "a" for r in client.reference]
    members, first, rare, rare_reference = map(np.array, (members, first, rare, rare_reference))
    assert abs(members.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(members))
    for trait in (first, rare):
        apart = trait[members].mean() - trait[~members].mean()
        assert abs(apart) < 4 * np.sqrt(trait.var() * 4 / len(members))
    assert rare.mean() > 0.05
    assert abs(rare.mean() - rare_reference.mean()) < 4 * np.sqrt(rare.var() * 2 / len(rare))


def test_a_class_is_drawn_in_proportion_and_the_rest_when_it_is_used_up():
    def taken(pool, number, seed, shares):
        drawn = pool.take(number, np.random.default_rng(seed), np.array(shares))
        assert len({item.id for item in drawn}) == number
        return [sum(item.group == group for item in drawn) for group in "abc"]

    shares = taken(Pool(_items((3000, 3000, 3000)), np.random.default_rng(0)), 1000, 1, [0.7, 0.3, 0.0])
    assert abs(shares[0] - 700) < 4 * np.sqrt(1000 * 0.21)
    assert shares[2] == 0
    few = Pool(_items((5, 40, 40)), np.random.default_rng(0))
    assert taken(few, 30, 1, [0.98, 0.02, 0.0]) == [5, 25, 0]
    assert taken(few, 55, 2, [1.0, 0.0, 0.0]) == [0, 15, 40], "what is left when the client's own classes are used up"


def test_the_draw_does_not_depend_on_the_order_of_the_files(unread):
    params, items = scienceqa.Params(records=4, reference=4, test=3), _items((30, 30, 30))
    one, other = (federate(order, (), params=params, clients=2, seed=0) for order in (items, items[::-1]))
    assert _ids(one) == _ids(other)


def _ids(federation):
    return [[r.id for r in (*c.records, *c.reference)] for c in federation.clients] + [[r.id for r in federation.test]]


def test_smaller_dirichlet_is_more_skewed(unread):
    def skew(concentration):
        params = scienceqa.Params(records=10, reference=2, test=1, dirichlet=concentration)
        federation = federate(_items((400,) * 6), (), params=params, clients=20, seed=0)
        return np.mean([max(Counter(r.group for r in c.records).values()) for c in federation.clients])

    assert skew(0.05) > skew(1.0) > skew(1000.0)


def _chosen(federation):
    return {r.picture for r in federation.records.values()}


def test_a_corrupt_picture_that_nobody_draws_does_no_harm_and_a_drawn_one_is_named(tmp_path):
    root = minidata.coco(tmp_path)
    drawn = _chosen(_coco(root))
    idle = sorted(set((root / "train2017").iterdir()) - drawn)
    assert idle
    for path in idle:
        path.write_bytes(b"no image")
    assert _chosen(_coco(root)) == drawn
    bad = min(drawn)
    for content, complaint in ((b"no image", "no readable image"), (b"", r"empty \(0 bytes\)")):
        bad.write_bytes(content)
        refused(f"{bad}: .*{complaint}", _coco, root)
    bad.unlink()
    refused(f"{bad}: no such file, but the annotations name it", _coco, root)


@pytest.mark.parametrize(("content", "complaint"), [(b"no image", "no readable image"), (None, "empty")])
def test_a_corrupt_picture_in_a_parquet_row_is_named_if_drawn(tmp_path, content, complaint):
    rows = minidata.coco_rows(range(90))
    path = minidata.parquet(tmp_path / "train.parquet", rows)
    drawn = {int(name.removeprefix("coco-train-")) for name in _coco(tmp_path).records}
    rows = [row if n in drawn else row | {"image": (content, None)} for n, row in enumerate(rows)]
    minidata.parquet(path, rows)
    assert len(_coco(tmp_path).records) == len(drawn)
    bad = min(drawn)
    rows[bad]["image"] = (content, None)
    minidata.parquet(path, rows)
    refused(f"row {bad} of {path}: .*{complaint}", _coco, tmp_path)


@pytest.mark.parametrize("layout", ["coco", "scienceqa-parquet"])
def test_drawing_decodes_no_pixels_where_each_text_is_its_own(data, layout, monkeypatch):
    refuse = mock.Mock(side_effect=AssertionError("pixels were decoded"))
    for place, name in ((Image.Image, "load"), (Image.Image, "convert"), (ImageFile.ImageFile, "load")):
        monkeypatch.setattr(place, name, refuse)
    federation = LAYOUTS[layout](data / layout)
    with pytest.raises(AssertionError, match="pixels were decoded"):
        _ = federation.test[0].image


def test_row_groups_without_a_drawn_row_are_not_read(tmp_path, monkeypatch):
    path = minidata.parquet(tmp_path / "x.parquet", minidata.coco_rows(range(64)), group=16)
    read, original = [], pq.ParquetFile.read_row_group

    def watched(file, i, **more):
        read.append(i)
        return original(file, i, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    assert dict(tables._contents(path, {17, 30, 63})) == {n: minidata.picture(n) for n in (17, 30, 63)}
    assert read == [1, 3]


@pytest.mark.parametrize("draw", [_coco, _science])
def test_a_data_root_that_is_not_given_not_there_or_empty(tmp_path, draw):
    source = "MSCOCO site" if draw is _coco else "ScienceQA project"
    refused(f"--data-root is not given: name the folder that holds .*{source}", draw, "")
    refused(f"--data-root {tmp_path}/none: no such folder; it should hold .*{source}", draw, tmp_path / "none")
    refused(rf"--data-root {tmp_path}: no data set recognised; looked for .*\.json.*parquet", draw, tmp_path)


def test_nocaps_roots_that_are_wrong(data, tmp_path):
    root, empty = data / "coco", str(tmp_path)
    refused(f"--nocaps-root {empty}/none: no such folder", _coco, root, nocaps_root=f"{empty}/none")
    none = f"--nocaps-root {empty}: no picture with captions recognised.*nocaps_val_4500"
    refused(none, _coco, root, nocaps_root=empty)
    minidata.parquet(tmp_path / "x.parquet", minidata.nocaps_rows(2))
    refused("--nocaps-domain out-domain: .* has only in-domain, near-domain", _coco, root, nocaps_root=empty)
    refused("--novel 25: with 6 for utility .* more than the 30 records", _coco, root, novel=25)


def test_blank_captions_are_skipped_and_pictures_without_any_left_out(tmp_path):
    root = minidata.coco(tmp_path)
    path = root / "annotations/captions_train2017.json"
    content = json.loads(path.read_text())
    for note in content["annotations"]:
        if note["image_id"] <= 20 or note["caption"].startswith("caption 0"):
            note["caption"] = " \n"
    minidata.write(path, content)
    records = [r for c in _coco(root, clients=4).clients for r in (*c.records, *c.reference, *c.background)]
    assert min(int(r.id.removeprefix("coco-")) for r in records) > 20
    assert {len(r.references) for r in records} == {4}
    refused("need 80 records .* has 70", _coco, root, clients=5)


def test_settings_that_need_more_than_there_is(data):
    few = r"need 96 records \(6 clients with 2 x 4 candidates \+ 5 .* has 90 .*--clients"
    refused(few, _coco, data / "coco", clients=6)
    refused("--test 50: the data set has 20 test records", _coco, data / "coco", test=50)


def test_parquet_files_that_are_wrong(tmp_path):
    path = minidata.parquet(tmp_path / "train.parquet", [{"image": b"", "text": "a"}])
    refused(f"{path} has no column answer or captions or .*; it has image, text", _coco, tmp_path)
    refused(f"{path} has no column question; it has image, text", _science, tmp_path)
    minidata.parquet(path, [{"caption": "a"}])
    refused(f"{path} has no column image or img; it has caption", _coco, tmp_path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(f"{path} is no readable parquet file", _coco, tmp_path)
    whole = minidata.parquet(path, minidata.coco_rows(range(60))).read_bytes()
    for where in range(200, len(whole) - 5000, 40):  # pages are damaged, the footer is not
        whole = whole[:where] + b"\xff" * 20 + whole[where + 20 :]
    path.write_bytes(whole)
    refused(f"{path}", _coco, tmp_path)


def test_two_copies_of_a_split_are_not_mixed(tmp_path):
    """The hub's repository has each question with a picture twice: with and without those that have none."""
    for name in ("ScienceQA-FULL", "ScienceQA-IMG"):
        minidata.parquet(tmp_path / name / "train-0.parquet", minidata.scienceqa_rows(range(9)))
    refused("train files lie in several folders .*ScienceQA-FULL, .*ScienceQA-IMG", _science, tmp_path)


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00002.parquet", "train"), ("data/validation-0.parquet", "val"),
        ("coco_val2014.parquet", "val"), ("no_caps-test-00000.parquet", "test"), ("default/test/0000.parquet", "test"),
        ("train/extra_test.parquet", "test"), ("latest-values.parquet", ""), (".cache/train.parquet", None),
    ],
)  # fmt: skip
def test_the_split_that_a_parquet_files_name_tells(tmp_path, path, split):
    minidata.write(tmp_path / path, b"")
    assert list(tables.table_files(tmp_path)) == ([] if split is None else [split])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"answer": 3}, "answer 3 must be the index of one of its choices"),
        ({"answer": -1}, "answer -1 must be the index of one of its choices"),
        ({"choices": []}, "answer 1 must be the index of one of its choices"),
        ({"choices": ["a", " "]}, r"the right choice \(1\) is empty"),
    ],
)
def test_questions_whose_answer_is_wrong_are_named(tmp_path, change, complaint):
    root = minidata.scienceqa(tmp_path / "official", train=20, test=3)
    problems = json.loads((root / "problems.json").read_text())
    problems["10"] |= change
    minidata.write(root / "problems.json", problems)
    refused(f"problems.json, question 10: {complaint}", _science, root)
    rows = minidata.scienceqa_rows(range(20))
    rows[10] |= change
    path = minidata.parquet(tmp_path / "parquet/train.parquet", rows)
    refused(f"row 10 of {path}: {complaint}", _science, tmp_path / "parquet")


def test_scienceqa_in_its_other_places(tmp_path):
    root = minidata.scienceqa(tmp_path / "a", images=".")
    problems = json.loads((root / "problems.json").read_text())
    expected = _ids(_science(root))
    for one in problems.values():
        del one["split"]
    minidata.write(root / "problems.json", problems)
    assert _ids(_science(root)) == expected, "pid_splits.json tells the splits"
    (root / "pid_splits.json").unlink()
    refused("pid_splits.json cannot be read", _science, root)
    minidata.scienceqa(tmp_path / "b/data/scienceqa")
    assert _ids(_science(tmp_path / "b")) == expected
    minidata.write(tmp_path / "c/problems.json", problems | {"1": minidata.question(1, "train")})
    minidata.write(tmp_path / "c/pid_splits.json", {"train": list(problems), "val": [], "test": []})
    refused("there is no images/train/ and no train/; unpack train.zip", _science, tmp_path / "c")
    minidata.write(tmp_path / "c/problems.json", {"1": {"question": "?"}})
    refused("problems.json, question 1: an object lacks the key 'image'", _science, tmp_path / "c")
    minidata.write(tmp_path / "c/problems.json", [1])
    refused("problems.json must hold one JSON object, not list", _science, tmp_path / "c")


def test_the_defaults_are_the_papers_numbers():
    """FedRand, appendix A: 12 clients, 300 members and 300 NoCaps pictures."""
    params = coco.Params()
    assert (12 * params.records, params.novel, params.dirichlet) == (300, 300, 0.5)
