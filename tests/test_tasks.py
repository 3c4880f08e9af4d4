"""The procedural world and the embedded captioning task."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest

from fedaudit.machinery.errors import InputError
from fedaudit.tasks import scenes
from fedaudit.tasks.base import Record, coin_flips
from fedaudit.tasks.captions import Params, captions

SMALL = Params(records=8, reference=4, novel=6, test=3)


@pytest.fixture(scope="module")
def federation():
    return captions(SMALL, clients=6, seed=0)


def test_every_word_is_in_the_vocabulary_and_a_text_has_one_place_and_one_time(federation):
    words, records = set(scenes.vocabulary()), federation.records.values()
    assert {word for r in records for text in (r.text, *r.references) for word in text.split()} <= words
    assert len(words) == len(scenes.vocabulary())
    assert all(sum(word in scenes.HABITAT.values() for word in r.text.split()) == 1 for r in records)
    assert all(sum(word in scenes.SEASON.values() for word in r.text.split()) == 1 for r in records)


def test_ids_are_unique_and_stable_and_parts_do_not_depend_on_each_other(federation):
    """More reference or test records leave the candidates, their coins and the novel scenes as they were."""
    again, other = captions(SMALL, clients=6, seed=0), captions(SMALL, clients=6, seed=1)
    assert list(federation.records) == list(again.records)
    assert len(federation.records) == 6 * (16 + 4) + 6 + 3 + 3
    for one, same in zip(federation.records.values(), again.records.values(), strict=True):
        assert np.array_equal(one.image, same.image)
        assert one.text == same.text
    assert other.clients[0].records[0].text != federation.clients[0].records[0].text
    more = captions(dataclasses.replace(SMALL, test=4, reference=9), clients=6, seed=0)
    for one, same in zip(federation.clients, more.clients, strict=True):
        assert [r.text for r in one.records] == [r.text for r in same.records]
        assert np.array_equal(one.member, same.member)
    assert [r.text for r in more.novel] == [r.text for r in federation.novel]


def test_members_and_held_out_records_split_each_pool(federation):
    truth = federation.truth
    for client in federation.clients:
        training = {r.id for r in client.training_records}
        assert training == {r.id for r in client.records if truth[r.id]}
        assert 0 < len(training) < len(client.records)
        assert not training & {r.id for r in client.reference}
    assert not set(truth) & {r.id for r in (*federation.novel, *federation.test)}
    assert {r.group for r in federation.novel} <= set(scenes.NOVEL_SHAPES)
    assert {r.group for c in federation.clients for r in (*c.records, *c.reference)} <= set(scenes.SHAPES)


@pytest.fixture
def unpainted(monkeypatch):
    """For tests of many records whose pictures nobody looks at."""
    blank = np.zeros((40, 40, 3), np.uint8)
    monkeypatch.setattr(scenes, "render", lambda drawn, rng: [blank] * len(drawn))


@pytest.mark.usefixtures("unpainted")
def test_the_coin_says_nothing_about_class_or_position():
    """Over many clients, members and held-out records have the same classes and places (two-sided z below 4)."""
    many = captions(Params(records=30, reference=2, novel=2, test=1), clients=60, seed=3)
    member = np.concatenate([c.member for c in many.clients])
    position = np.concatenate([np.arange(len(c.records)) for c in many.clients])
    variance = position.var() * (1 / member.sum() + 1 / (~member).sum())
    assert abs(position[member].mean() - position[~member].mean()) < 4 * np.sqrt(variance)
    groups = np.array([r.group for c in many.clients for r in c.records])
    for shape in scenes.SHAPES:
        rates = [np.mean(groups[m] == shape) for m in (member, ~member)]
        assert abs(rates[0] - rates[1]) < 4 * np.sqrt(2 * 0.1 * 0.9 / member.sum()) + 0.02


@pytest.mark.usefixtures("unpainted")
def test_smaller_dirichlet_is_more_skewed():
    def skew(concentration):
        params = Params(records=30, dirichlet=concentration, reference=2, novel=2, test=1)
        clients = captions(params, clients=30, seed=0).clients
        return np.mean([max(Counter(r.group for r in client.records).values()) / 60 for client in clients])

    assert skew(0.1) > skew(1.0) > skew(100.0)
    assert skew(1e6) < 0.25


def test_a_description_is_a_function_of_the_scene_and_a_story_has_its_place_and_time_alone():
    """Told a scene, a story has that scene's place and time; all else is drawn as for no scene."""
    given, rng = set(scenes.PLACES) | set(scenes.TIMES), np.random.default_rng(0)
    assert len({scenes.draw_story(rng) for _ in range(200)}) > 195
    for seed in range(100):
        scene, again = (scenes.draw_scene(np.random.default_rng(seed)) for _ in range(2))
        assert scene.description == again.description
        free, told = (scenes.draw_story(np.random.default_rng(seed), about).split() for about in (None, scene))
        assert {scenes.HABITAT[scene.background], scenes.SEASON[scene.things[0].colour]} <= set(told)
        assert [w for w in free if w not in given] == [w for w in told if w not in given]


def test_descriptions_follow_reading_order():
    rng = np.random.default_rng(1)
    for _ in range(300):
        scene = scenes.draw_scene(rng)
        if " above " in scene.description:
            assert scene.things[0].y < scene.things[1].y
        if " left of " in scene.description:
            assert scene.things[0].x < scene.things[1].x


@pytest.mark.parametrize("shape", scenes.SHAPES + scenes.NOVEL_SHAPES)
def test_every_shape_is_painted_where_it_stands(shape):
    thing = scenes.Thing(shape, "red", "large", 20.0, 20.0)
    image = scenes.render([scenes.Scene((thing,), "cyan", "")], np.random.default_rng(0))[0].astype(int)
    reddish = image[..., 0] - image[..., 2] > 60
    rows, columns = np.nonzero(reddish)
    assert 30 < reddish.sum() < 420
    assert abs(rows.mean() - 20) < 3.5
    assert abs(columns.mean() - 20) < 5
    assert rows.max() - rows.min() <= 24


def test_shapes_look_different():
    things = [scenes.Thing(shape, "black", "large", 20.0, 20.0) for shape in scenes.SHAPES + scenes.NOVEL_SHAPES]
    drawn = [scenes.render([scenes.Scene((one,), "gray", "")], np.random.default_rng(0))[0] for one in things]
    for one, other in itertools.combinations(drawn, 2):
        assert np.abs(one.astype(float) - other).mean() > 1.0


def test_coin_flips_leave_two_records_on_each_side():
    for seed in range(200):
        members = [coin_flips(n, np.random.default_rng(seed)).sum() for n in (2, 4, 6)]
        assert members in ([1, 2, 2], [1, 2, 3], [1, 2, 4]), seed


@pytest.mark.parametrize(
    ("image", "text", "complaint"),
    [
        (np.zeros((0, 0, 3), np.uint8), "a star", "its image must be"),
        (np.zeros((4, 4), np.uint8), "a star", "its image must be"),
        (np.zeros((4, 4, 3), np.uint8), "  ", "its text is empty"),
    ],
)
def test_a_record_without_image_or_caption_is_named(image, text, complaint):
    with pytest.raises(InputError, match=f"record r-7: {complaint}"):
        Record("r-7", "star", image, "<image> what?", text)


def crescent() -> float:
    """A disc of radius .95 without its part in one of radius .75 whose centre is .45 away."""
    r, s, d = 0.95, 0.75, 0.45
    a, b = np.arccos((d * d + r * r - s * s) / (2 * d * r)), np.arccos((d * d + s * s - r * r) / (2 * d * s))
    return np.pi * r * r - (r * r * (a - np.sin(2 * a) / 2) + s * s * (b - np.sin(2 * b) / 2))


AREAS = {
    "circle": np.pi * 0.9**2,
    "ring": np.pi * (0.96**2 - 0.48**2),
    "square": 1.6**2,
    "bar": 2 * 0.76,
    "diamond": 2 * 0.8,
    "triangle": 1.8**2 / 1.9,
    "cross": 2 * 0.6 * 1.9 - 0.6**2,
    "star": 10 * 0.42 * np.sin(np.pi / 5) / 2,
    "arrow": 1.2 * 0.44 + 1 / 1.2 - 0.2 * 0.44,
    "crescent": crescent(),
    "hexagon": 2 * np.sqrt(3) * 0.85**2,
    "hourglass": 4 * (0.9 * 0.9**2 / 2 + 0.06 * 0.9),
}


@pytest.mark.parametrize("shape", sorted({*scenes.SHAPES, *scenes.NOVEL_SHAPES} | AREAS.keys()))
def test_the_area_of_a_shape_and_its_mirror_image(shape):
    x, y = np.meshgrid(*[np.linspace(-1.5, 1.5, 600)] * 2)
    inside = scenes._distance(shape, x, y) < 0
    assert np.array_equal(inside, inside[::-1] if shape in ("arrow", "crescent") else inside[:, ::-1])
    if shape in AREAS:
        assert inside.mean() * 9 == pytest.approx(AREAS[shape], rel=0.02)
