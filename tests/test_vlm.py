"""The frozen model, the adapters on it, and the embedded weights."""

import contextlib
import dataclasses
import hashlib
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedaudit.backbones import EMBEDDED
from fedaudit.backbones import vlm_prefix as prefix
from fedaudit.backbones.vlm import load
from fedaudit.backbones.vlm_prefix import shared
from fedaudit.machinery.store import claim
from fedaudit.tasks import questions
from fedaudit.tasks.captions import INSTRUCTION, Params, captions
from fedaudit.trainers.lora import Learner, Settings
from recipes import vlm_model, vlm_quality, vlm_training
from recipes.vlm import data_fingerprint
from tests import tiny_models

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def federation():
    return captions(Params(records=4, reference=2, novel=2, test=4), clients=2, seed=0)


@pytest.fixture(scope="module")
def vlm():
    return load(EMBEDDED)


@pytest.fixture(scope="module")
def data(vlm, federation, tmp_path_factory):
    return vlm.encode(list(federation.records.values()), claim(tmp_path_factory.mktemp("cache")), say=print)


@pytest.fixture(scope="module")
def learner(federation, tmp_path_factory):
    vlm = load(EMBEDDED)  # its own: adapters are put on it
    data = vlm.encode(list(federation.records.values()), claim(tmp_path_factory.mktemp("cache")), say=print)
    return Learner(vlm, data, Settings(local_steps=4))


@pytest.fixture(scope="module")
def start(learner):
    return learner.initial(torch.Generator().manual_seed(0))


def train(learner, start, federation):
    ids = [r.id for r in federation.clients[0].training_records]
    return learner.train(start, ids, torch.Generator().manual_seed(1), lambda adapter: adapter)


@pytest.fixture(scope="module")
def trained(learner, start, federation):
    return train(learner, start, federation)


def full_logits(vlm, record):
    """The slow way: processor, pixels, whole model, one record."""
    inputs = vlm.processor(images=[record.image], text=[f"{record.prompt} {record.text}"], return_tensors="pt")
    with torch.no_grad():
        return inputs["input_ids"][0], vlm.model(**inputs).logits[0]


def test_cached_embeddings_equal_the_whole_model(vlm, federation, data):
    records = federation.clients[0].records
    batch = vlm.batch([data[r.id] for r in records])
    with torch.no_grad():
        logits = vlm.model(**batch.inputs).logits
    for i, record in enumerate(records):
        ids, slow = full_logits(vlm, record)
        assert torch.equal(ids, data[record.id].ids[:-1])
        assert torch.allclose(logits[i, : len(ids)], slow, atol=1e-4)


def test_features_are_of_the_picture(vlm, federation):
    one, other = list(federation.records.values())[:2]
    assert vlm._key([one]) != vlm._key([dataclasses.replace(one, picture=other.picture)])


def test_progress_counts_the_files_that_are_missing(vlm, federation, tmp_path):
    records, cache, seen = list(federation.records.values()), claim(tmp_path), []

    @contextlib.contextmanager
    def stage(label, total, step):
        yield lambda: seen.append([label, total])

    vlm.encode(records, cache, say=print, stage=stage)
    assert seen == [["encoding the pictures", len(cache.names())]] * len(cache.names()) != []
    vlm.encode(records, cache, say=print, stage=lambda *_: pytest.fail("nothing is missing"))


def test_a_sample_is_one_file_whose_pictures_stand_for_the_others(vlm, federation, tmp_path, monkeypatch):
    monkeypatch.setattr("fedaudit.backbones.vlm.CHUNK", 4)
    records, cache = list(federation.records.values()), claim(tmp_path / "sample")
    whole = vlm.encode(records, claim(tmp_path / "whole"), say=print)
    sample = vlm.encode(records, cache, say=print, sample=True)
    files = claim(tmp_path / "whole").names()
    assert len(cache.names()) == 1 < len(files)
    assert list(sample) == list(whole)
    size = next(i for i, r in enumerate(records) if not torch.equal(sample[r.id].features, whole[r.id].features))
    for i, record in enumerate(records):
        one, other = sample[record.id], whole[record.id]
        assert torch.equal(one.features, whole[records[i % size].id].features)
        assert torch.equal(one.ids[one.prompt :], other.ids[other.prompt :])


def test_spans_cover_the_parts(vlm, data):
    for encoded in data.values():
        spans = encoded.spans
        assert set(encoded.ids[spans["image"].start : spans["image"].stop + 1].tolist()) == {vlm.image_token}
        assert spans["image"].stop - spans["image"].start == 24  # 25 image tokens, n - 1 rows
        predicted = encoded.ids[1:][spans["caption"]]
        assert torch.equal(predicted, encoded.ids[encoded.prompt :])
        assert predicted[-1] == vlm.tokenizer.eos_token_id
        assert spans["instruction"].stop == spans["caption"].start
        assert spans["caption"].stop == len(encoded.ids) - 1


def test_generation_in_a_padded_batch_equals_one_by_one(vlm, data, federation):
    records = [data[r.id] for r in federation.test]
    together = vlm.generate(vlm.model, records, 12)
    assert together == [vlm.generate(vlm.model, [r], 12)[0] for r in records]


def test_untrained_adapters_change_nothing(vlm, learner, start, data, federation):
    """B is zero at the start: the broadcast of round 0 is the public base model."""
    ids = [r.id for r in federation.clients[0].records]
    for record, logits in zip(ids, tiny_models.logits_of(learner, start, ids), strict=True):
        batch = vlm.batch([data[record]])
        with torch.no_grad():
            base = vlm.model(**batch.inputs).logits[0]
        assert torch.allclose(logits, base, atol=1e-4)


class TestPrefix:
    """The words before the image are the same for all records, so that they are computed once per model."""

    def test_trained_logits_are_those_of_whole_records_one_by_one(self, vlm, learner, start, data, federation):
        ids = [r.id for r in federation.clients[0].records]
        state = {
            name: t + 0.05 * torch.randn(t.shape, generator=torch.Generator().manual_seed(i))
            for i, (name, t) in enumerate(start.items())
        }
        found = tiny_models.logits_of(learner, state, ids)
        with torch.no_grad(), learner._at(state):
            for record, logits in zip(ids, found, strict=True):
                whole = learner.model(**vlm.batch([data[record]]).inputs).logits[0]
                assert torch.allclose(logits, whole, atol=1e-4)

    def test_it_is_the_words_before_the_image_where_records_begin_alike_and_bring_tokens_alone(self, learner, data):
        one, *others = data.values()
        assert learner._shared == shared(data.values()) == one.image.start == 8
        assert shared([]) == 0
        assert shared([dataclasses.replace(one, extra={"token_type_ids": one.ids}), *others]) == 0
        other = dataclasses.replace(one, ids=one.ids.clone())
        other.ids[3] += 1
        assert shared([other, *others]) == 3

    def test_a_model_that_keeps_more_or_does_not_go_on_from_it_reads_whole_records(self, learner, monkeypatch):
        exact = prefix.Prefix.logits
        with monkeypatch.context() as patch:
            patch.setattr(prefix.Prefix, "logits", lambda self, inputs: 1.1 * exact(self, inputs))
            assert learner._usable_prefix() == 0
        monkeypatch.setattr(prefix, "DynamicLayer", dict)
        assert learner._usable_prefix() == 0


def test_adapters_are_where_the_paper_has_them(learner):
    """All seven projections of all six layers; W = W0 + alpha / rank * B A, with A [rank, in] and B [out, rank]."""
    assert len(learner.parameters) == 6 * 7 * 2
    settings = learner.settings
    layer = learner.model.base_model.model.model.language_model.layers[2].self_attn.q_proj
    a, b = learner.parameters["layers.2.self_attn.q_proj.A"], learner.parameters["layers.2.self_attn.q_proj.B"]
    assert a.shape == (settings.rank, layer.in_features)
    assert b.shape == (layer.out_features, settings.rank)
    with torch.no_grad():
        b.normal_(generator=torch.Generator().manual_seed(1))
        x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(2))
        weight = layer.base_layer.weight + settings.alpha / settings.rank * b @ a
        assert torch.allclose(layer(x), x @ weight.T, atol=1e-4)


def test_attention_only_and_a_state_of_another_adapter(learner):
    small = Learner(load(EMBEDDED), {}, Settings(target_modules="attention"))
    assert len(small.parameters) == 6 * 4 * 2
    assert all(".self_attn." in name for name in small.parameters)
    with pytest.raises(ValueError, match="of 3 tensors does not fit the model, whose all projections take 84"):
        learner.load_adapter({name: torch.zeros(1) for name in "abc"})


def frozen(learner):
    return {n: p.clone() for n, p in learner.model.named_parameters() if ".lora_" not in n}


def test_training_learns_repeats_and_changes_every_adapter_and_nothing_else(learner, start, trained, federation):
    ids, before = [r.id for r in federation.clients[0].training_records], frozen(learner)
    losses = [np.mean(learner.evaluate(s, ids)[0]) for s in (start, trained)]
    assert losses[1] < losses[0]
    again = train(learner, start, federation)  # whatever happened between
    assert all(torch.equal(trained[name], again[name]) for name in trained)
    assert all(not torch.equal(trained[name], start[name]) for name in start)
    assert all(torch.equal(p, before[n]) for n, p in frozen(learner).items())


def test_folding_adapters_into_the_weights_changes_nothing_and_leaves_no_trace(learner, trained, federation):
    ids, before = [r.id for r in federation.clients[0].records], frozen(learner)
    folded = tiny_models.logits_of(learner, trained, ids)
    assert all(torch.equal(p, before[n]) for n, p in frozen(learner).items())
    kept, learner._folded = learner._folded, {}
    try:
        slow = tiny_models.logits_of(learner, trained, ids)
    finally:
        learner._folded = kept
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(folded, slow, strict=True))


def test_the_loss_is_the_mean_over_caption_tokens(learner, start, vlm, federation):
    record = federation.test[0]
    (loss,), (answer,) = learner.evaluate(start, [record.id])
    ids, logits = full_logits(vlm, record)
    encoded = learner.data[record.id]
    slow = F.cross_entropy(logits[encoded.prompt - 1 :], encoded.ids[encoded.prompt :])
    assert loss == pytest.approx(slow.item(), abs=1e-4)
    assert len(ids) == len(encoded.ids) - 1
    assert isinstance(answer, str)


@pytest.fixture(scope="module")
def record():
    return json.loads((EMBEDDED / "training.json").read_text())


class TestShippedWeights:
    """The weights in the repository are what the recipe's code and configuration describe."""

    def test_recipe_files_and_data_are_the_ones_of_its_training(self, record):
        assert vlm_model.VLMRecipe(**record["recipe"]) == vlm_model.VLMRecipe()
        assert data_fingerprint(vlm_model.VLMRecipe()) == record["data_sha256"]
        weights = (EMBEDDED / "model.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() == record["weights_sha256"]
        assert len(weights) < 10_000_000

    def test_architecture_and_words_are_the_recipes(self, vlm):
        built = vlm_model.build_model(vlm_model.VLMRecipe())
        shapes = {name: tuple(t.shape) for name, t in built.state_dict().items()}
        assert {name: tuple(t.shape) for name, t in vlm.model.state_dict().items()} == shapes
        assert vlm.model.config.text_config.num_hidden_layers >= 6
        assert vlm_model.TEMPLATE == INSTRUCTION
        assert vlm_model.UNK not in vlm.tokenizer(INSTRUCTION)["input_ids"]

    def test_first_steps_repeat(self, record):
        losses = [loss for loss, _ in vlm_training.train_captioner(vlm_model.VLMRecipe(), stop_after=3)]
        assert losses == pytest.approx(record["first_losses"], abs=2e-3)

    def test_quality_is_what_the_card_says(self, vlm, record):
        found = vlm_quality.evaluate(vlm.model, vlm_model.VLMRecipe(), n=64)
        assert found["exact"] >= 0.5
        assert found["tokens"] >= 0.85
        assert abs(found["exact"] - record["held_out"]["exact"]) < 4 * (0.25 / 64) ** 0.5
        nats = "description_nats_per_token"
        assert found[nats] == pytest.approx(record["held_out"][nats], abs=0.05)

    @pytest.mark.slow  # questions; quick: captions, test_quality_is_what_the_card_says
    def test_visual_questions_are_answered_as_the_card_says_and_others_are_not(self, vlm, record):
        found = vlm_quality.evaluate_questions(vlm.model, vlm_model.VLMRecipe(), n=48)
        for topic, share in record["questions"].items():
            assert abs(found[topic] - share) <= 4 * (0.25 / 48) ** 0.5
        assert min(found[topic] for topic in questions.VISUAL) > 0.3
        assert max(found[topic] for topic in questions.KNOWLEDGE) < 0.1

    def test_the_last_stage_keeps_the_captioners_words_and_learns(self, vlm):
        """A short last stage from a smaller captioner: the vocabulary grows, old embeddings stay, the loss falls."""
        recipe = vlm_model.VLMRecipe(question_steps=30, batch=4)
        captioner = vlm_model.build_model(recipe, vlm_model.CAPTION_WORDS)
        old = captioner.get_input_embeddings().weight.detach().half().float().clone()
        steps = vlm_training.teach_questions(recipe, captioner, stop_after=8)
        first, model = next(steps)
        new = model.get_input_embeddings().weight
        assert new.shape[0] == len(vlm_model.WORDS)
        assert (new[: len(old)] - old).abs().max() < 2 * recipe.question_learning_rate
        assert np.mean([loss for loss, _ in steps][-4:]) < first
