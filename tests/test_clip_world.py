"""The world of symbols, the pictures of the classification tasks, and the two embedded CLIP models."""

import hashlib
import itertools
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer

from fedaudit.backbones import EMBEDDED
from fedaudit.tasks import drawings
from recipes import clip, clip_model, clip_quality, clip_training, symbol_captions, symbol_pictures, symbols

torch.set_num_threads(1)
FOLDERS = {"vit": EMBEDDED.parent / "symbols-clip", "resnet": EMBEDDED.parent / "symbols-clip-resnet"}
EVERY_CLASS = range(len(drawings.CLASSES))


def gap(one, other):
    """Mean absolute difference of two uint8 arrays, in grey levels."""
    return np.abs(one.astype(float) - other).mean()


class TestDrawings:
    @pytest.mark.parametrize("domain", drawings.DOMAINS)
    def test_follows_the_generator_and_nothing_else(self, domain):
        classes = list(EVERY_CLASS)
        first = drawings.draw(domain, classes, np.random.default_rng(3))
        assert first.shape == (len(classes), 32, 32, 3)
        assert first.dtype == np.uint8
        torch.manual_seed(99)
        assert np.array_equal(first, drawings.draw(domain, classes, np.random.default_rng(3)))
        assert gap(first, drawings.draw(domain, classes, np.random.default_rng(4))) > 5
        alike = drawings.draw(domain, [7] * 12, np.random.default_rng(0))  # records of a class differ
        assert min(gap(a, b) for a, b in itertools.combinations(alike, 2)) > 2
        rng = np.random.default_rng(0)
        assert not np.array_equal(drawings.draw(domain, [5], rng), drawings.draw(domain, [5], rng))  # it goes on

    def test_more_than_one_chunk_and_none_and_domains_differ(self):
        rng = np.random.default_rng(0)
        for n in (drawings.CHUNK + 3, 0):
            assert drawings.draw("dots", [1] * n, rng).shape == (n, 32, 32, 3)
        looks = {d: drawings.draw(d, list(EVERY_CLASS), np.random.default_rng(1)) for d in drawings.DOMAINS}
        assert len(looks) >= 5
        assert min(gap(looks[a], looks[b]) for a, b in itertools.combinations(looks, 2)) > 15

    def test_classes_have_forms_of_their_own(self):
        """In no font do two classes cover the same points: at least 3 % of the field tells them apart."""
        assert len(set(drawings.CLASSES)) == len(drawings.CLASSES) >= 36
        masks = {}
        for name in drawings.CLASSES:
            if name in drawings.SHAPES:
                masks[name] = drawings.polygon(drawings.shape(name, np.random.default_rng(0))) > 0
            else:
                masks[name] = drawings.glyph(drawings.character(name), "STIXGeneralBol") > 0
        closest = min((masks[a] ^ masks[b]).float().mean().item() for a, b in itertools.combinations(masks, 2))
        assert closest > 0.03

    def test_every_glyph_is_in_its_font(self):
        """A missing character would be drawn as the font's box."""
        for font in drawings.TASK_FONTS:
            box = drawings.glyph("\ufffe", font)
            for name in drawings.CLASSES:
                latin = len(name) == 1 or name in drawings.DIGITS
                if name not in drawings.SHAPES and (latin or font not in drawings.LATIN_FONTS):
                    assert not torch.equal(drawings.glyph(drawings.character(name), font), box)

    def test_distance_field_of_a_square(self):
        """A square of half-side 0.5 in [-1, 1] reaches 90 / 128 of that: its centre lies 0.5 * 90 / 128 * 32 samples inside."""
        field = drawings.polygon(np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)]))
        assert field[31:33, 31:33].mean() == pytest.approx(0.5 * 90 / 128 * 32, abs=1)
        assert (field > 0).float().mean() == pytest.approx((0.5 * 90 / 128) ** 2, abs=0.01)
        corner = math.dist((0, 0), (32 - 0.5 * 90 / 128 * 32,) * 2)
        assert -field[0, 0] == pytest.approx(corner, abs=1)

    def test_placing_without_variation_only_enlarges_the_grid(self):
        still = drawings.Placing((1.0, 1.0), 0, 0, 0, 0, 0)
        field = drawings.glyph("K", "cmb10")[None]
        assert torch.allclose(still.place(field, np.random.default_rng(0)), field, atol=1e-3)


def test_pretraining_shows_no_look_of_a_task_and_captions_name_none():
    """Zero-shot accuracy is honest only if it has not."""
    assert not set(drawings.TASK_FONTS) & set(symbols.FONTS)
    assert drawings.CONTOUR[1] < symbol_pictures.CONTOUR[0]
    assert not {*symbol_pictures.STYLES, *symbol_pictures.GROUNDS, *symbol_pictures.DAMAGES} & {*drawings.DOMAINS}
    assert set(drawings.DOMAINS) == set(drawings.LOOKS)
    rng = np.random.default_rng(0)
    drawn = symbol_pictures.draw_chunk(50, 1.0, rng, 0)[1]
    words = " ".join(symbol_captions.describing_caption(d, rng) for d in drawn * 10).split()
    assert not set(words) & set(drawings.DOMAINS)
    assert "worn" in words  # they do name those of pre-training


class TestCaptions:
    @pytest.mark.parametrize("language", [symbols.FIRST, symbols.SECOND], ids=["first", "second"])
    def test_what_a_naming_caption_claims_is_true(self, language):
        rng = np.random.default_rng(1)
        spoken = [s for s in symbols.SYMBOLS + symbols.SENSES if s.kind in language.shares]
        for symbol in spoken * 4:
            drawing = symbol_pictures.Drawing(symbol, ("bold",), "red", "black", "plain")
            text, (name, kinds) = symbol_captions.naming_caption(drawing, rng, language)
            words = set(text.rstrip(".").split())
            assert {name, drawings.character(name)} & words
            assert symbol.kind in kinds
            claims = {"georgian": "georgian", "arabic": "arabic", "uppercase": "capital", "sign": "sign"}
            for word, kind in claims.items():
                assert (kinds == {kind}) if word in words and kind in kinds else True
            if "latin" in words:
                assert not {"georgian", "arabic", "greek"} & kinds

    def test_every_word_is_known_and_the_second_stage_keeps_the_ids_of_the_first(self):
        rng = np.random.default_rng(2)
        known = {stage: symbol_captions.vocabulary(stage) for stage in (1, 2)}
        for stage, language in ((1, symbols.FIRST), (2, symbols.SECOND)):
            drawn = symbol_pictures.draw_chunk(100, 0.9, rng, 0, language)[1]
            texts = [symbol_captions.describing_caption(d, rng, language).split(" by ")[0] for d in drawn * 3]
            assert {word for text in texts for word in text.rstrip(".").split()} <= {*known[stage]}
        assert known[2][: len(known[1]) - 1] == known[1][:-1]
        assert known[1][-1] == known[2][-1] == "<end>"

    def test_naming_loss_by_hand(self):
        """Two pictures, B and b; the captions say "capital b" and "b": the second is true of both."""
        capital, small = (
            symbol_pictures.Drawing(symbols.Symbol("b", kind), (), "", "", "") for kind in ("capital", "lowercase")
        )
        logits = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
        lse = [math.log(math.e + 1), math.log(math.exp(2) + math.exp(3))]
        rows = ((lse[0] - 1 + lse[0] - 0) / 2 + lse[1] - 3) / 2
        lse = [math.log(math.e + math.exp(2)), math.log(1 + math.exp(3))]
        columns = (lse[0] - 1 + (lse[1] - 0 + lse[1] - 3) / 2) / 2
        claims = [("b", {"capital"}), ("b", {"capital", "lowercase"})]
        found = clip_training.naming_loss(logits, [capital, small], claims)
        assert found.item() == pytest.approx((rows + columns) / 2)

    def test_describing_loss_without_repeats_is_clips_own(self):
        logits = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
        label = torch.arange(5)
        plain = (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label)) / 2
        assert torch.allclose(clip_training.describing_loss(logits, list("abcde")), plain)
        assert clip_training.describing_loss(logits, list("aaaaa")) > 0
        flat = clip_training.describing_loss(torch.zeros(5, 5), list("aabcd"))
        assert flat.item() == pytest.approx(math.log(5))

    def test_rounded_strokes_pass_through_their_corners(self):
        corners = np.array([(0.0, 0.0), (3.0, 1.0), (2.0, 5.0)])
        path = symbols.rounded(corners, between=4)
        assert len(path) == 2 * 4 + 1
        assert np.allclose(path[::4], corners)


@pytest.fixture(scope="module", params=["vit", "resnet"])
def tower(request):
    return request.param


@pytest.fixture(scope="module")
def chalk():
    """For both towers, which are shown the same pictures, drawn once; those for training are not encoded."""
    rng = np.random.default_rng((0, list(drawings.DOMAINS).index("chalk")))
    sizes = (clip_quality.TRAIN_PER_CLASS, clip_quality.TEST_PER_CLASS)
    drawn = [drawings.draw("chalk", np.repeat(EVERY_CLASS, n).tolist(), rng) for n in sizes]
    return {len(EVERY_CLASS) * sizes[0]: drawn[0][:1], len(EVERY_CLASS) * sizes[1]: drawn[1]}


@pytest.fixture(scope="module")
def record(tower):
    return json.loads((FOLDERS[tower] / "training.json").read_text())


@pytest.fixture(scope="module")
def model(tower):
    return clip.read(FOLDERS[tower]).eval()


class TestShipped:
    """The weights in the repository are what the recipe's code and configuration describe."""

    def test_recipe_weights_and_data_are_the_ones_of_its_training(self, tower, record):
        assert clip_model.CLIPRecipe(**record["recipe"]) == clip_model.SHIPPED[tower]
        weights = (FOLDERS[tower] / "open_clip_model.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() == record["weights_sha256"]
        assert 1e6 < len(weights) < 5e6
        found = clip.data_fingerprint(clip_model.SHIPPED[tower])
        assert found["sha256"] == record["data"]["sha256"]
        assert np.abs(np.subtract(found["brightness"], record["data"]["brightness"])).max() <= 2
        assert list(record["accuracy"]) == ["digits", *drawings.DOMAINS]
        for task in record["accuracy"].values():
            assert task["zero_shot"] < task["tuned"] < task["linear_probe"]

    def test_configuration_and_architecture_are_the_recipes(self, tower, model):
        config = json.loads((FOLDERS[tower] / "open_clip_config.json").read_text())
        assert config["model_cfg"] == json.loads(json.dumps(clip_model.model_config(clip_model.SHIPPED[tower])))
        assert config["preprocess_cfg"] == clip.preprocessing()
        built = clip_model.build_model(clip_model.SHIPPED[tower]).state_dict()
        assert {n: t.shape for n, t in built.items()} == {n: t.shape for n, t in model.state_dict().items()}

    def test_tokenizer_is_the_recipes(self, tower):
        stored = AutoTokenizer.from_pretrained(FOLDERS[tower])
        texts = ["A photo of a Zebra.", "the digit 7", "neon psi"]
        assert stored(texts)["input_ids"] == symbol_captions.build_tokenizer()(texts)["input_ids"]
        ids = stored("a zebra")["input_ids"]
        assert ids[-1] == max(stored.get_vocab().values()) == stored.eos_token_id
        assert stored.convert_ids_to_tokens(ids)[1:-1] == ["a", "z", "##e", "##b", "##r", "##a"]
        assert stored.pad_token_id == 0

    def test_short_text_pass_equals_open_clips(self, model):
        ids = clip_model.tokenize(symbol_captions.build_tokenizer(), ["a photo of a k.", "psi"])
        full = F.pad(ids, (0, symbol_captions.CONTEXT - ids.shape[1]))
        with torch.no_grad():
            ours, theirs = clip_model.encode_text(model, ids), model.encode_text(full, normalize=True)
        assert torch.allclose(ours, theirs, atol=1e-5)

    def test_names_real_digits_without_an_example(self, model, record):
        found = zero_shot(model, clip_quality.digits(model))
        assert found == pytest.approx(record["accuracy"]["digits"]["zero_shot"], abs=1)
        assert found > 50

    def test_leaves_room_on_an_unseen_style(self, model, record, chalk, monkeypatch):
        monkeypatch.setattr(drawings, "draw", lambda domain, classes, rng: chalk[len(classes)])
        found = zero_shot(model, clip_quality.styled(model, "chalk"))
        assert found == pytest.approx(record["accuracy"]["chalk"]["zero_shot"], abs=2)
        assert 35 < found < 80


def zero_shot(model, examples):
    prompts = [clip_quality.PROMPT.format(name) for name in examples.names]
    with torch.no_grad():
        text = clip_model.encode_text(model, clip_model.tokenize(symbol_captions.build_tokenizer(), prompts))
    return clip_quality.accuracy(text, examples)


class TestTraining:
    def test_learns_and_repeats(self):
        recipe = clip_model.CLIPRecipe(tower="resnet", pool=256, batch=32, learning_rate=3e-3, warm_up=5)
        runs = [[loss for _, loss, _ in clip_training.train(recipe, stop_after=9)] for _ in range(2)]
        assert runs[0] == runs[1]
        assert np.mean(runs[0][-3:]) < np.mean(runs[0][:3]) - 0.3

    def test_second_stage_leaves_the_image_tower_alone(self):
        recipe = clip_model.CLIPRecipe(tower="resnet", pool=64, sense_pool=500, sense_batch=32, warm_up=2)
        untrained = clip_model.build_model(recipe, stage=1)
        before = {n: t.clone() for n, t in untrained.state_dict().items()}
        *_, (_, _, model) = clip_training.teach_senses(recipe, untrained, stop_after=3)
        after = model.state_dict()
        assert all(torch.equal(after[n], t) for n, t in before.items() if n.startswith("visual."))
        assert not torch.equal(after["text_projection"], before["text_projection"])

    def test_grown_vocabulary_reads_old_prompts_as_before(self):
        recipe, read = clip_model.CLIPRecipe(), []
        small = clip_model.build_model(recipe, stage=1).eval()
        for model, stage in ((small, 1), (clip_training.grow_vocabulary(recipe, small).eval(), 2)):
            ids = clip_model.tokenize(symbol_captions.build_tokenizer(stage), ["a photo of a k."])
            read.append(clip_model.encode_text(model, ids))
        assert torch.allclose(*read, atol=1e-6)

    def test_recipes_of_another_seed_or_of_no_tower(self):
        one, other = (clip_model.build_model(clip_model.CLIPRecipe(seed=seed)).text_projection for seed in (0, 1))
        assert not torch.equal(one, other)
        with pytest.raises(ValueError, match="tower must be one of vit, resnet, not mlp"):
            clip_model.CLIPRecipe(tower="mlp")

    @pytest.mark.slow  # recorded numbers; quick: the hash of weights
    def test_first_losses_are_the_recorded_ones(self, tower, record, monkeypatch):
        """The first steps take from the mildest sixth of the pool: what is wilder is left blank, and shows nothing."""
        draw, blank = symbol_pictures.draw_chunk, torch.zeros(1, 3, drawings.SIZE, drawings.SIZE, dtype=torch.uint8)

        def mild(n, severity, *more):
            return draw(n, severity, *more) if severity < 1 / 6 else (blank.expand(n, -1, -1, -1), [None] * n)

        monkeypatch.setattr(symbol_pictures, "draw_chunk", mild)
        losses = [loss for _, loss, _ in clip_training.train(clip_model.SHIPPED[tower], stop_after=3)]
        assert losses == pytest.approx(record["first_losses"], abs=2e-3)
