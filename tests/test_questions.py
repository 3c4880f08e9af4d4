"""The embedded questions: right answers by slow reading of the scenes, the template, the federation."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from fedaudit.tasks import scenes
from fedaudit.tasks.metrics import answer_scores
from fedaudit.tasks.questions import CHARACTER, HABITAT, PRIVATE, SEASON, TOPICS, VISUAL, draw_question, question_prompt
from fedaudit.tasks.vqa import Params, vqa
from recipes.vlm_model import CAPTION_WORDS, UNK, WORDS, build_tokenizer

SMALL = Params(records=20, reference=10, novel=12, test=30)


@pytest.fixture(scope="module")
def federation():
    return vqa(SMALL, clients=6, seed=0)


def answer_by_reading(scene, question):
    """The answer from the positions, shapes and colours of the things alone, by the words of the question."""
    words = question.text.rstrip("?").split()
    things = scene.things
    singular = {plural: shape for shape, plural in scenes.PLURAL.items()}
    if question.text.startswith("what colour is the"):
        (found,) = {t.colour for t in things if t.shape == words[-1]}
    elif question.text.startswith("which shape"):
        (found,) = {t.shape for t in things if t.colour == words[-1]}
    elif question.text.startswith("how big"):
        (found,) = {t.size for t in things if t.shape == words[-1]}
    elif question.text.startswith("how many"):
        found = {1: "one", 2: "two", 3: "three"}[sum(t.shape == singular[words[2]] for t in things)]
    elif question.text.startswith("what colour is behind"):
        found = scene.background
    elif question.text.startswith("where does the"):
        one, other = (next(t for t in things if t.shape == words[i]) for i in (3, 7))
        dx, dy = one.x - other.x, one.y - other.y
        found = ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("below" if dy > 0 else "above")
    elif question.text.startswith("where does this"):
        found = HABITAT[scene.background]
    elif question.text.startswith("when"):
        found = SEASON[things[0].colour]
    else:
        found = CHARACTER[{1: "one", 2: "two", 3: "three"}[len(things)]]
    return found


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("shapes", [scenes.SHAPES, scenes.NOVEL_SHAPES], ids=["known", "novel"])
def test_questions_have_one_right_answer_among_their_options(topic, shapes):
    rng = np.random.default_rng(3)
    places = Counter()
    for _ in range(300):
        scene, question = draw_question(rng, topic, shapes)
        assert len(set(question.options)) == len(question.options)
        assert 2 <= len(question.options) <= 4
        assert question.answer in question.options
        if topic not in PRIVATE:
            assert question.answer == answer_by_reading(scene, question)
        places[question.options.index(question.answer), len(question.options)] += 1
    for size in {n for _, n in places}:  # the place of the right option says nothing, within 4.5 standard deviations
        total = sum(count for (_, n), count in places.items() if n == size)
        assert all(abs(places[i, size] - total / size) < 4.5 * (total / size) ** 0.5 + 1 for i in range(size))


def test_facts_tell_things_apart():
    for facts in (HABITAT, SEASON, CHARACTER):
        assert len(set(facts.values())) == len(facts), facts
    assert (HABITAT.keys(), SEASON.keys()) == (scenes.BACKGROUNDS.keys(), scenes.COLOURS.keys())


def test_template():
    """FedRand, appendix A.2, with the question before the context and the context only where there is one."""
    assert question_prompt(question="what is it?", options=("red", "light blue"), context="anna keeps it.") == (
        "Based on the image, respond to the question with a given options.\n"
        "USER: <image>\nQuestion: what is it? Context: anna keeps it. Options: (A) red (B) light blue. Answer:\nASSISTANT:"
    )
    assert "Context" not in question_prompt(question="what is it?", options=("red", "blue"), context=" ")


def test_every_word_is_in_the_vocabulary_and_a_share_of_the_questions_has_a_context(federation):
    tokenizer = build_tokenizer()
    for record in federation.records.values():
        assert UNK not in tokenizer(record.prompt + " " + record.text)["input_ids"], record.prompt
        assert len(tokenizer(record.text, add_special_tokens=False)["input_ids"]) == 1
    assert WORDS[: len(CAPTION_WORDS)] == CAPTION_WORDS
    assert 0.2 < np.mean(["Context:" in record.prompt for record in federation.records.values()]) < 0.4


def test_clients_differ_by_topic_and_members_do_not(federation):
    for client in federation.clients:
        assert {r.group for r in client.records} <= set(TOPICS)
        assert 2 <= client.member.sum() <= len(client.records) - 2
    shares = [Counter(r.group for r in c.records).most_common(1)[0][1] / len(c.records) for c in federation.clients]
    assert max(shares) > 0.35  # Dirichlet 0.5: some client is mostly about one topic
    alike = vqa(dataclasses.replace(SMALL, dirichlet=1e6), clients=6, seed=0)
    assert max(Counter(r.group for r in c.records).most_common(1)[0][1] for c in alike.clients) < 0.35 * 40


def test_is_scored_by_exact_match_and_has_novel_objects(federation):
    assert federation.score is answer_scores
    assert answer_scores(["red ", "blue"], [("red",), ("green",)]) == {"exact_match": 50}
    assert {r.group for r in federation.test} >= set(VISUAL[:3])
    assert len(federation.novel_test) == SMALL.test


def test_same_seed_same_questions(federation):
    again, other = vqa(SMALL, clients=6, seed=0), vqa(SMALL, clients=6, seed=1)
    for one, same in zip(federation.records.values(), again.records.values(), strict=True):
        assert (one.id, one.prompt, one.text) == (same.id, same.prompt, same.text)
        assert np.array_equal(one.image, same.image)
    assert [r.prompt for r in other.test] != [r.prompt for r in federation.test]
