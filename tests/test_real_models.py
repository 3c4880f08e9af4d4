"""Models of other families than the embedded one: tiny, with random weights, from folders and from the hub's cache."""

import functools
import hashlib
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from fedaudit.backbones import EMBEDDED, vlm, vlm_batches
from fedaudit.backbones.resolve import display_name, resolve, weights_hash
from fedaudit.backbones.vlm import IGNORE, FrozenVLM, load
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import claim
from fedaudit.tasks.base import Record
from fedaudit.trainers.lora import Learner, Settings
from tests import tiny_models
from tests.bad_data import edited
from tests.minidata import write
from tests.whole_runs import contents

torch.set_num_threads(1)

PROMPT = "USER : <image> describe the picture ASSISTANT :"


def records(n=4, prompt=PROMPT):
    rng = np.random.default_rng(0)
    return [
        Record(
            f"r{i}", "g", rng.integers(0, 255, (20 + 4 * i, 30 - 3 * i, 3), dtype=np.uint8),
            prompt if i != 1 else prompt.replace("the picture", "what is on the table"),
            "a small red cat" + " on the table" * i,
        )
        for i in range(n)
    ]  # fmt: skip


def close(a, b, tolerance=1e-4):
    return (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("models"), {}

    def folder(name):
        if name not in made:
            made[name] = tiny_models.save(root / name, (tiny_models.FAMILIES | tiny_models.REFUSED)[name])
        return made[name]

    return folder


@pytest.fixture(scope="module")
def loaded(folders, tmp_path_factory):
    """By family a model and what it made of the records: once, as nobody changes them."""

    @functools.cache
    def of(family):
        model = load(folders(family))
        return model, model.encode(records(), claim(tmp_path_factory.mktemp("cache")), say=print)

    return of


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
class TestFamilies:
    def test_cached_path_equals_the_whole_model_in_a_padded_batch(self, family, loaded):
        model, data = loaded(family)
        batch = model.batch(list(data.values()))
        with torch.no_grad():
            logits = model.model(**batch.inputs).logits
        for i, record in enumerate(records()):
            ids = data[record.id].ids
            assert close(logits[i, : len(ids)], model.whole(record, ids), 1e-3)
            start, rest = data[record.id].prompt, batch.labels.shape[1] - len(ids)
            assert batch.labels[i].tolist() == [IGNORE] * start + ids[start:].tolist() + [IGNORE] * rest

    def test_the_text_ends_the_sequence_and_images_are_where_the_slice_says(self, family, loaded):
        model, data = loaded(family)
        for record in records():
            found = data[record.id]
            assert model.tokenizer.decode(found.ids[found.prompt :]) == f"{record.text} <eos>"
            places = torch.nonzero(found.ids == model.image_token).flatten()
            assert (found.image.start, found.image.stop - 1) == (places[0], places[-1])
            assert found.features.shape == (len(places), tiny_models.WIDTH)
        assert model.path.name != "llava_next" or len({len(r.features) for r in data.values()}) > 1

    def test_adapters_go_to_the_language_model_only(self, family, loaded):
        model, _ = loaded(family)
        every, attention = model.projections("all"), model.projections("attention")
        assert {model.short(n) for n in attention} == {f"layers.{i}.self_attn.{p}_proj" for i in (0, 1) for p in "qkvo"}
        rest = {f"layers.{i}.mlp.{p}_proj" for i in (0, 1) for p in ("gate", "up", "down")}
        assert set(every) - set(attention) == {f"{model.language_prefix}.{name}" for name in rest}

    def test_answers_in_a_padded_batch_are_those_of_one_by_one_and_the_likeliest_tokens(self, family, loaded):
        """The slow way: the whole model again after every token."""
        model, data = loaded(family)
        answers = model.generate(model.model, list(data.values()), 5)
        assert answers == [model.generate(model.model, [r], 5)[0] for r in data.values()]
        record = records()[2]
        ids = data[record.id].ids[: data[record.id].prompt]
        for _ in range(5):
            ids = torch.cat([ids, model.whole(record, ids)[-1].argmax()[None].cpu()])
            if ids[-1] == model.tokenizer.eos_token_id:
                break
        assert answers[2] == model.tokenizer.decode(ids[data[record.id].prompt :], skip_special_tokens=True)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_adapters_on_every_family(family, folders, tmp_path):
    """The start is the base model; a loss has gradients for every adapter."""
    model = load(folders(family))
    data = model.encode(records(), claim(tmp_path), say=print)
    with torch.no_grad():
        base = model.model(**model.batch(list(data.values())).inputs).logits
    learner = Learner(model, data, Settings())
    start = learner.initial(torch.Generator().manual_seed(0))
    assert len(start) == 2 * 14
    for i, logits in enumerate(tiny_models.logits_of(learner, start, list(data))):
        assert close(logits, base[i, : len(logits)], 1e-3)
    leaves = {name: tensor.requires_grad_() for name, tensor in start.items()}
    learner.loss(leaves, list(data)).backward()
    assert all(leaves[name].grad.abs().max() > 0 for name in leaves if name.endswith(".B"))


def test_projections_by_name(folders):
    model = load(folders("llava"))
    assert {model.short(n) for n in model.projections("q_proj,up_proj")} == {
        f"layers.{i}.{p}" for i in range(2) for p in ("self_attn.q_proj", "mlp.up_proj")
    }
    with pytest.raises(InputError, match=r"--target-modules q_proj,query: .* no query; valid are all, .* of down_proj"):
        model.projections("q_proj,query")


def test_placeholders_are_wrapped_as_the_models_template_says(folders, tmp_path):
    model = load(folders("qwen2_vl"))
    found = model.encode(records(1), claim(tmp_path), say=print)["r0"]
    around = model.tokenizer.convert_ids_to_tokens(found.ids[[found.image.start - 1, found.image.stop]])
    assert around == ["<|vision_start|>", "<|vision_end|>"]


@pytest.mark.parametrize(
    ("family", "changed", "words"),
    [
        *((name, {}, r"cannot be cached as embeddings \(.*\); give --backbone-code") for name in tiny_models.REFUSED),
        ("llava", {"processor": lambda **_: {}}, r"cannot read record r0 \(AttributeError: .*--backbone-code"),
        # as a part of the prompt, which is read in both directions
        ("paligemma", {"text_type": 0}, "what it says of a token depends on later ones"),
    ],
)
def test_models_that_cannot_be_cached_are_refused(family, changed, words, folders, tmp_path):
    model = load(folders(family))
    vars(model).update(changed)
    with pytest.raises(InputError, match=words):
        model.encode(records(2), claim(tmp_path), say=print)
    assert claim(tmp_path).names() == []


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_vl", "idefics3"])
def test_bfloat16(family, folders, tmp_path):
    model = load(folders(family), dtype="bfloat16")
    data = model.encode(records(), claim(tmp_path), say=print)
    assert {r.features.dtype for r in data.values()} == {torch.bfloat16}
    assert {p.dtype for p in model.model.parameters()} == {torch.bfloat16}
    exact = load(folders(family))
    assert exact.encode(records(), claim(tmp_path), say=print)["r0"].features.dtype == torch.float32  # another file
    batch = model.batch(list(data.values()))
    with torch.no_grad():
        logits = model.model(**batch.inputs).logits
    for i, record in enumerate(records()):
        ids = data[record.id].ids
        assert close(logits[i, : len(ids)].float(), model.whole(record, ids).float(), 0.05)


class TestTokens:
    def test_without_a_pad_token_and_with_several_ends(self, tmp_path):
        def build():
            model, processor = tiny_models.llava()
            model.generation_config.eos_token_id = [2, tiny_models.ID["cat"]]
            processor.tokenizer = tiny_models.tokenizer(pad=None)
            processor.tokenizer.padding_side = "left"
            return model, processor

        model = load(tiny_models.save(tmp_path / "model", build))
        assert model.tokenizer.pad_token_id == 2
        data = model.encode(records(), claim(tmp_path / "cache"), say=print)
        assert all(r.ids[-1] == 2 for r in data.values())
        part = list(data.values())
        assert model.generate(model.model, part, 6) == [model.generate(model.model, [r], 6)[0] for r in part]

    def test_text_goes_on_as_in_the_joined_string(self, folders):
        """A tokenizer of the Llama kind marks the start of what it is given; there is none before the text."""
        model = load(folders("llava"))
        words = ["<unk>", "▁", "▁a", "▁cat", "▁ASSISTANT", ":", "\n"]
        built = Tokenizer(models.Unigram([(w, -1.0) for w in words], unk_id=0))
        built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        model._ids = lambda text: built.encode(text, add_special_tokens=False).ids
        record = Record("r", "g", np.zeros((8, 8, 3), np.uint8), "<image>\nASSISTANT:", "a cat")
        joined = built.encode("\nASSISTANT: a cat").tokens
        assert [words[i] for i in model._text(record)] == joined[-2:] == ["▁a", "▁cat"]

    def test_a_text_with_the_image_token_is_refused(self, folders, tmp_path):
        record = Record("r", "g", np.zeros((8, 8, 3), np.uint8), PROMPT, "a <image> cat")
        with pytest.raises(InputError, match="record r: its text holds the model's image token"):
            load(folders("llava")).encode([record], claim(tmp_path), say=print)


class TestCache:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(vlm, "SHARD", 2 * 16 * tiny_models.WIDTH * 4)  # two records of llava

    def test_a_killed_run_goes_on_at_the_last_shard(self, folders, tmp_path, monkeypatch):
        model, plain = load(folders("llava")), claim(tmp_path / "plain")
        expected = model.encode(records(6), plain, say=print)
        assert len(plain.names()) == 3
        see, passes = model.see, []

        def killed(part):
            passes.append([r.id for r in part])
            if part[0].id == "r4":
                raise KeyboardInterrupt
            return see(part)

        monkeypatch.setattr(model, "see", killed)
        with pytest.raises(KeyboardInterrupt):
            model.encode(records(6), claim(tmp_path / "cache"), say=print)
        assert len(claim(tmp_path / "cache").names()) == 2
        passes.clear()
        monkeypatch.setattr(model, "see", lambda part: passes.append([r.id for r in part]) or see(part))
        found = model.encode(records(6), claim(tmp_path / "cache"), say=print)
        assert [p for p in passes if len(p) > 1] == [["r4", "r5"]]
        assert all(torch.equal(found[i].features, expected[i].features) for i in expected)
        files = {name: (tmp_path / "cache" / name).read_bytes() for name in plain.names()}
        assert files == {name: (tmp_path / "plain" / name).read_bytes() for name in plain.names()}

    def test_several_workers_leave_the_same_bytes_and_what_one_refuses_is_named(self, folders, tmp_path, monkeypatch):
        model = load(folders("llava"))
        for n in (1, 2):
            model.encode(records(6), claim(tmp_path / f"{n}"), say=print, workers=n)
        assert len(contents(tmp_path / "1")) > 3
        assert contents(tmp_path / "1") == contents(tmp_path / "2")
        monkeypatch.setattr(model, "see", lambda part: 1 / 0 if part[0].id == "r4" else FrozenVLM.see(model, part))
        with pytest.raises(InputError, match="cannot read one of record r4 to record r5"):
            model.encode(records(6), claim(tmp_path / "3"), say=print, workers=2)

    @pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
    def test_reading_lazily_equals_reading_at_once(self, family, folders, tmp_path, monkeypatch):
        model = load(folders(family))
        eager = model.encode(records(), claim(tmp_path), say=print)
        monkeypatch.setattr(vlm, "IN_MEMORY", 0)
        lazy = model.encode(records(), claim(tmp_path), say=print)
        assert all(isinstance(r.source, vlm_batches.Stored) for r in lazy.values())
        a, b = model.batch(list(eager.values())), model.batch(list(lazy.values()))
        assert a.inputs.keys() == b.inputs.keys()
        assert all(torch.equal(a.inputs[name], b.inputs[name]) for name in a.inputs)

    def test_what_went_in_names_the_files_and_damage_is_named_and_computed_again(self, folders, tmp_path):
        model, cache, said = load(folders("llava")), claim(tmp_path), []
        first = model.encode(records(2), cache, say=print)
        model.encode(records(2), cache, say=print)
        (name,) = cache.names()
        (tmp_path / name).write_bytes(b"damage")
        again = model.encode(records(2), cache, say=said.append)
        assert "is damaged; computing it again" in said[0]
        assert torch.equal(first["r1"].features, again["r1"].features)
        model.encode(records(2, "ASSISTANT : <image>"), cache, say=print)
        assert len(cache.names()) == 2

    def test_picture_files_are_read_and_damaged_ones_named(self, folders, tmp_path):
        pixels, good, bad = records(1)[0].picture, tmp_path / "good.png", tmp_path / "bad.png"
        Image.fromarray(pixels).save(good)
        bad.write_bytes(good.read_bytes()[:60])
        given = [Record(n, "g", p, PROMPT, "a cat") for n, p in (("array", pixels), ("file", good), ("bad", bad))]
        model = load(folders("llava"))
        data = model.encode(given[:2], claim(tmp_path / "cache"), say=print)
        assert torch.equal(data["array"].features, data["file"].features)
        with pytest.raises(InputError, match=r"record bad: .*bad\.png is no readable image"):
            model.encode(given, claim(tmp_path / "cache"), say=print)


def test_chunks_keep_the_logits_small(folders):
    model = load(folders("llava"))
    assert model.chunk(100) == 64
    vocabulary = len(tiny_models.VOCABULARY)
    few = model.chunk(100_000)
    assert 4 * few * 100_000 * vocabulary <= 256_000_000 < 4 * (few + 1) * 100_000 * vocabulary
    assert model.chunk(10**9) == 1
    assert load(EMBEDDED).chunk(128) == 64


class TestResolve:
    def test_a_folder(self, folders, tmp_path, monkeypatch):
        folder = folders("llava")
        assert resolve(str(folder)) == folder
        monkeypatch.chdir(folder.parent)
        assert resolve("llava").samefile(folder)
        monkeypatch.setenv("HOME", str(folder.parent))
        assert resolve("~/llava").samefile(folder)
        assert resolve(str(EMBEDDED)) == EMBEDDED
        assert display_name(EMBEDDED) == "scenes-llava"

    def test_a_folder_that_is_none(self, tmp_path):
        with pytest.raises(InputError, match=r"--backbone \./nothing: there is no folder .*nothing"):
            resolve("./nothing")
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="is a file where a model folder is needed"):
            resolve(str(tmp_path / "file"))
        with pytest.raises(InputError, match="--backbone is empty"):
            resolve(" ")

    @pytest.mark.parametrize(
        ("without", "message"),
        [
            ("config.json", "lacks config.json; it holds model.safetensors, "),
            ("model.safetensors", r"lacks the weights \(\*\.safetensors\); it holds tokenizer.json, "),
            ("p*config.json", "lacks the image processor"),
            ("tokenizer*", "lacks the tokenizer"),
        ],
    )
    def test_what_a_folder_lacks(self, without, message, folders, tmp_path):
        folder = shutil.copytree(folders("llava"), tmp_path / "model")
        for file in folder.glob(without):
            file.unlink()
        with pytest.raises(InputError, match=message) as error:
            resolve(str(folder))
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)

    def test_sharded_weights(self, tmp_path):
        folder = tiny_models.save(tmp_path / "model", tiny_models.llava, shard="50KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
        assert resolve(str(folder)) == folder
        load(folder)
        first = sorted(folder.glob("*.safetensors"))[0]
        first.unlink()
        with pytest.raises(InputError, match=f"lacks 1 of the .* weight files .*, {first.name} first"):
            resolve(str(folder))

    def test_the_hubs_cache(self, folders, tmp_path, monkeypatch):
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        name = "llava-hf/tiny-llava"
        with pytest.raises(InputError) as error:
            resolve(name)
        place = tmp_path / "hub" / "models--llava-hf--tiny-llava"
        for part in (name, str(place), f"hf download {name}", "--backbone the id or the folder"):
            assert part in str(error.value)
        snapshot = hub(folders("llava"), place)
        assert resolve(name) == snapshot
        assert load(snapshot).encode(records(1), claim(tmp_path / "cache"), say=print)
        assert display_name(snapshot) == name
        (place / "refs" / "main").unlink()
        assert resolve(name) == snapshot  # the only one
        (snapshot / "model.safetensors").unlink()
        with pytest.raises(InputError, match=f"lacks the weights.*fetch the rest by `hf download {name}`"):
            resolve(name)
        monkeypatch.chdir(folders("llava").parent)
        assert resolve("llava").samefile(folders("llava"))  # a folder wins


def hub(folder, place):
    """The model in a folder laid out as in the hub's cache: large files under their SHA-256, links with the names."""
    snapshot = place / "snapshots" / "abc123"
    for path in (snapshot, place / "blobs", place / "refs"):
        path.mkdir(parents=True)
    (place / "refs" / "main").write_text("abc123")
    for file in folder.iterdir():
        data = file.read_bytes()
        blob = hashlib.sha256(data).hexdigest() if file.suffix == ".safetensors" else hashlib.sha1(data).hexdigest()
        (place / "blobs" / blob).write_bytes(data)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob}")
    return snapshot


class TestHash:
    def test_it_is_the_same_wherever_the_folder_lies(self, folders, tmp_path):
        """Of large files in the hub's cache the name is read alone."""
        copy = shutil.copytree(folders("llava"), tmp_path / "elsewhere")
        linked = hub(folders("llava"), tmp_path / "models--a--b")
        (linked / "model.safetensors").resolve().write_bytes(b"")
        assert weights_hash(folders("llava")) == weights_hash(copy) == weights_hash(linked)

    def test_weights_configuration_and_tokenizer_count_and_the_training_record_does_not(self, folders, tmp_path):
        found = {}
        for change in ("nothing", "training.json", "config.json", "model.safetensors", "spiece.model", "merges.txt"):
            copy = shutil.copytree(folders("llava"), tmp_path / change)
            with open(copy / change, "ab") as file:
                file.write(b" ")
            found[change] = weights_hash(copy)
        assert len({*found.values()}) == 5
        assert found["nothing"] == found["training.json"]

    def test_definition(self, tmp_path):
        (tmp_path / "a.json").write_text("{}")
        (tmp_path / "b.safetensors").write_bytes(b"weights")
        (tmp_path / "notes.txt").write_text("")
        digests = {n: hashlib.sha256((tmp_path / n).read_bytes()).digest() for n in ("a.json", "b.safetensors")}
        slow = hashlib.sha256(b"".join(n.encode() + d for n, d in digests.items())).hexdigest()
        assert weights_hash(tmp_path) == slow


class TestLoad:
    def test_an_unknown_dtype_is_refused(self, folders):
        with pytest.raises(InputError, match="float32, bfloat16"):
            load(folders("llava"), dtype="float16")

    def test_a_model_that_reads_no_images_and_weights_of_another_architecture_are_refused(self, folders, tmp_path):
        copy = shutil.copytree(folders("llava"), tmp_path / "model")
        edited(copy, file="config.json", change=lambda c: c["text_config"].update(num_hidden_layers=3))
        with pytest.raises(InputError, match=r"its weights lack 9 of the tensors .*layers\.2"):
            load(copy)
        write(copy / "config.json", {"model_type": "llama", "vocab_size": 10})
        with pytest.raises(InputError, match="cannot be loaded as an image-text-to-text model"):
            load(copy)


USER_CODE = '''
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from fedaudit.backbones.vlm import FrozenVLM, EmbeddedPrompt


class Backbone(FrozenVLM):
    """A language model behind a picture of four brightnesses."""

    def open(self):
        model = LlamaForCausalLM.from_pretrained(self.path, dtype=self.dtype)
        return model, AutoTokenizer.from_pretrained(self.path)

    def find_image_token(self):
        return self.tokenizer.convert_tokens_to_ids("<image>")

    def see(self, records):
        return [EmbeddedPrompt(self._prompt(r), self._features(r)) for r in records]

    def whole(self, record, ids):
        given = self.model.get_input_embeddings()(ids)
        given[ids == self.image_token] = self._features(record)
        with torch.no_grad():
            return self.model(inputs_embeds=given[None]).logits[0]

    def _prompt(self, record):
        before, after = record.prompt.split("<image>")
        ids = self.tokenizer(before)["input_ids"] + [self.image_token] * 4
        return torch.tensor(ids + self.tokenizer(after, add_special_tokens=False)["input_ids"])

    def _features(self, record):
        pixels = torch.from_numpy(record.image.copy()).float().flatten()
        level = torch.stack([part.mean() / 255 for part in pixels.chunk(4)])
        return level[:, None].expand(-1, self.model.config.hidden_size).to(self.dtype).contiguous()
'''


class TestUserCode:
    @pytest.fixture
    def folder(self, tmp_path):
        from transformers import LlamaConfig, LlamaForCausalLM

        LlamaForCausalLM(LlamaConfig(**tiny_models.TEXT)).save_pretrained(tmp_path / "model")
        tiny_models.tokenizer().save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    def test_a_model_with_code_of_its_own(self, folder, tmp_path):
        (code := tmp_path / "own.py").write_text(USER_CODE)
        with pytest.raises(InputError, match="lacks the image processor"):
            resolve(str(folder))
        model, cache = load(resolve(str(folder), processor=False), code=str(code)), claim(tmp_path / "cache")
        data = model.encode(records(), cache, say=print)
        assert model.language_prefix == "model"
        assert len(model.projections("all")) == 14
        assert data["r0"].features.shape == (4, tiny_models.WIDTH)
        part = list(data.values())
        assert model.generate(model.model, part, 6) == [model.generate(model.model, [r], 6)[0] for r in part]
        code.write_text(USER_CODE.replace("/ 255", "/ 128"))
        load(folder, code=str(code)).encode(records(), cache, say=print)
        assert len(cache.names()) == 2, "the code is part of the key"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, r"own\.py: there is no such file"),
            ("import nothing_of_this_name", r"own\.py: cannot be imported \(ModuleNotFoundError"),
            ("def broken(:", r"own\.py: cannot be imported \(SyntaxError"),
            ("class Backbone: pass", r"own\.py: defines no class Backbone that is a FrozenVLM"),
            (USER_CODE.replace("LlamaForCausalLM.from", "Missing.from"), r"cannot be loaded by .*own\.py .*Missing"),
            (USER_CODE.replace("= self._features(record)", "= 0"), "its logits are others"),
        ],
    )
    def test_code_that_is_of_no_use(self, text, message, folder, tmp_path):
        code = tmp_path / "own.py"
        if text is not None:
            code.write_text(text)
        with pytest.raises(InputError, match=rf"--backbone.*{message}"):
            load(folder, code=str(code)).encode(records(), claim(tmp_path / "cache"), say=print)
