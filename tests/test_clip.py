"""Frozen CLIPs: class features against open_clip's and a slow oracle, image features and their cache, refusals."""

import contextlib
import functools
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from fedaudit.backbones import clip_images, clip_text
from fedaudit.backbones.clip import FrozenCLIP, load
from fedaudit.backbones.clip_source import EMBEDDED_CLIP, ClipSource, resolve_clip
from fedaudit.backbones.clip_words import Words
from fedaudit.contracts import tiny_clip
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import Folder, claim
from fedaudit.tasks.base import Record
from tests import weights
from tests.bad_data import Sly
from tests.whole_runs import contents

NAMES = ["cat", "the big mountain lion", "digit seven", "dog", "small blue letter nine", "red dog"]
VARIANTS = {
    "vit": {},
    "custom text": {"custom_text": True, "text": {"proj_bias": True, "proj_type": "linear"}},
    "quick gelu": {"quick_gelu": True},
    "layer scale, other norm": {"text": {"ls_init_value": 0.5, "norm_kwargs": {"eps": 1e-3}, "act_kwargs": {"approximate": "tanh"}}},
    "one layer": {"text": {"layers": 1}},
    "resnet": {"vision": tiny_clip.RESNET},
}  # fmt: skip
TEXTS, IMAGES = list(VARIANTS)[:-1], ["vit", "quick gelu", "resnet"]  # with towers of their own


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], FrozenCLIP]:
    @functools.cache
    def variant(name: str) -> FrozenCLIP:
        folder = tiny_clip.save(tmp_path_factory.mktemp("clip") / "tiny", tiny_clip.config(**VARIANTS[name]))
        return load(resolve_clip(str(folder), ""))

    return variant


@pytest.fixture(params=TEXTS)
def clip(request: Any, made: Any) -> FrozenCLIP:
    return made(request.param)


@pytest.fixture(params=IMAGES)
def seeing(request: Any, made: Any) -> FrozenCLIP:
    return made(request.param)


@pytest.fixture
def vit(made: Callable[[str], FrozenCLIP]) -> FrozenCLIP:
    return made("vit")


@pytest.fixture
def cache(tmp_path: Path) -> Folder:
    return claim(tmp_path / "cache")


def token_ids(text: str) -> list[int]:
    return tiny_clip.tokenizer().encode(text).ids


def encode_text(clip: FrozenCLIP, texts: list[str], tokenize: Any = token_ids) -> Tensor:
    ids = [tokenize(text) for text in texts]
    padded = torch.tensor([i + [0] * (clip.context_length - len(i)) for i in ids])
    with torch.no_grad():
        return clip.model.encode_text(padded, normalize=True)


def oracle(clip: FrozenCLIP, context: Tensor, names: list[str], *, padding: int = 0) -> Tensor:
    """[C, E] of context [b, d]: one prompt after the other, each over the full context with open_clip's own transformer and mask."""
    part = getattr(clip.model, "text", clip.model)
    found = []
    for name in names:
        ids = token_ids(f"{name} .")
        end = len(context) + len(ids) - 1
        tail = [*ids[1:], *[padding] * (clip.context_length - end - 1)]
        x = torch.cat([part.token_embedding(torch.tensor(ids[:1])), context, part.token_embedding(torch.tensor(tail))])
        x = part.transformer((x + part.positional_embedding)[None], attn_mask=part.attn_mask)
        x = part.ln_final(x)[0, end]
        projected = part.text_projection(x) if callable(part.text_projection) else x @ part.text_projection
        found.append(F.normalize(projected, dim=-1))
    return torch.stack(found)


def contexts(*shape: int, seed: int = 0) -> Tensor:
    return 0.3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close_gradients(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-4)


def records(n: int, *, size: tuple[int, int] = (32, 32), seed: int = 0) -> list[Record]:
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (n, *size, 3), dtype=np.uint8)
    return [Record(f"r{seed}-{i}", "cat", picture, "<image> what is this", "cat") for i, picture in enumerate(pictures)]


# --- class features -----------------------------------------------------------------------------------------------


def test_hard_prompts_give_open_clips_own_class_features(clip: FrozenCLIP) -> None:
    prompt = clip.words("a photo of the")
    found = clip.text(prompt, clip.classes(NAMES, len(prompt)))
    torch.testing.assert_close(found, encode_text(clip, [f"a photo of the {n} ." for n in NAMES]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "b"), [("vit", 0), ("vit", 1), ("vit", 16), *((name, 4) for name in TEXTS)])
def test_soft_prompts_equal_the_whole_pass_prompt_by_prompt(name: str, b: int, made: Any) -> None:
    """Given once for all classes, or for each class."""
    clip = made(name)
    context, texts = contexts(2, 3, b, clip.width), clip.classes(NAMES, b)
    found = clip.text(context, texts)
    assert found.shape == (2, 3, len(NAMES), clip.embed)
    for i, j in np.ndindex(2, 3):
        torch.testing.assert_close(found[i, j], oracle(clip, context[i, j], NAMES), atol=1e-5, rtol=0)
    repeated = context[:, :, None].expand(2, 3, len(NAMES), b, clip.width)
    torch.testing.assert_close(clip.text_by_class(repeated, texts), found, atol=1e-5, rtol=0)


SIZES = [("vit", 0), ("vit", 10**9), ("custom text", 10**9), *((name, clip_text.SMALL) for name in TEXTS)]


@pytest.mark.parametrize(("name", "small"), SIZES)
def test_gradients_equal_those_of_the_whole_pass(name: str, small: int, made: Any, monkeypatch: Any) -> None:
    clip = made(name)
    monkeypatch.setattr(clip_text, "SMALL", small)  # which matrix products are written out
    weight = contexts(2, len(NAMES), clip.embed, seed=1)
    fast, slow = (contexts(2, 4, clip.width).requires_grad_() for _ in range(2))
    (clip.text(fast, clip.classes(NAMES, 4)) * weight).sum().backward()
    (torch.stack([oracle(clip, slow[i], NAMES) for i in range(2)]) * weight).sum().backward()
    close_gradients(fast.grad, slow.grad)


def test_one_forward_pass_gives_the_gradient_of_every_record(clip: FrozenCLIP) -> None:
    texts, context = clip.classes(NAMES, 4), contexts(3, 4, clip.width)
    cotangents = contexts(5, 3, len(NAMES), clip.embed, seed=1)
    _, pull = torch.func.vjp(lambda c: clip.text(c, texts), context)
    found = torch.func.vmap(lambda g: pull(g)[0])(cotangents)
    for record, cotangent in enumerate(cotangents):
        leaf = context.clone().requires_grad_()
        (expected,) = torch.autograd.grad(clip.text(leaf, texts), leaf, cotangent)
        close_gradients(found[record], expected)


def test_contexts_of_classes_equal_the_whole_pass_class_by_class(clip: FrozenCLIP) -> None:
    """The names have four lengths; forward and backward."""
    C, texts = len(NAMES), clip.classes(NAMES, 4)
    weight = contexts(2, 3, C, clip.embed, seed=1)
    fast, slow, shared = (contexts(2, 3, C, 4, clip.width).requires_grad_() for _ in range(3))
    found = clip.text_by_class(fast, texts)
    one_by_one = [oracle(clip, slow[i, j, c], [NAMES[c]]) for i, j, c in np.ndindex(2, 3, C)]
    expected = torch.cat(one_by_one).unflatten(0, (2, 3, C))
    alone = torch.cat([clip.text(shared[:, :, c], clip.classes([NAMES[c]], 4)) for c in range(C)], dim=2)
    for features, leaf in ((expected, slow), (alone, shared)):
        torch.testing.assert_close(found, features, atol=1e-5, rtol=0)
        (own,) = torch.autograd.grad((found * weight).sum(), fast, retain_graph=True)
        (theirs,) = torch.autograd.grad((features * weight).sum(), leaf)
        close_gradients(own, theirs)


def test_no_weight_takes_a_gradient_and_the_model_is_in_eval_mode(seeing: FrozenCLIP) -> None:
    assert {(p.requires_grad, p.dtype) for p in seeing.model.parameters()} == {(False, torch.float32)}
    assert not seeing.model.training
    assert seeing.scale == pytest.approx(float(seeing.model.logit_scale.detach().exp()))


def test_the_longest_prompt_that_fits_is_read_and_one_token_more_is_refused(vit: FrozenCLIP) -> None:
    b = tiny_clip.CONTEXT_LENGTH - len(token_ids("the big mountain lion ."))
    context = contexts(b, vit.width)
    torch.testing.assert_close(vit.text(context, vit.classes(NAMES, b)), oracle(vit, context, NAMES), atol=1e-5, rtol=0)
    with pytest.raises(InputError, match=r"class 'the big mountain lion' has 33 tokens with 26 context vectors; .* 32"):
        vit.classes(NAMES, b + 1)


def test_a_word_without_a_token_is_an_embedding_of_its_letters(vit: FrozenCLIP) -> None:
    cat, zebra, again, other = (vit.classes([name], 4).tokens[0] for name in ("cat", "zebra", "Zebra", "zebras"))
    assert torch.equal(zebra, again)
    assert not torch.equal(zebra, other)
    table = vit.model.text.token_embedding.weight if hasattr(vit.model, "text") else vit.model.token_embedding.weight
    spread = torch.stack([vit.words(f"zebra{chr(97 + i)}")[0] for i in range(26)])
    assert (spread - table.mean(0)).pow(2).mean().sqrt() == pytest.approx(
        table.std(0).pow(2).mean().sqrt().item(), rel=0.2
    )
    both = vit.classes(["the big zebra"], 4).tokens
    assert torch.equal(both[:2], vit.classes(["the big cat"], 4).tokens[:2])  # known words as before
    assert torch.equal(vit.classes(["cat", "zebra"], 4).tokens[:3], vit.classes(["cat"], 4).tokens[:3])
    assert cat.shape == zebra.shape


EMBEDDED_NAMES = ["Äpfel", "golden retriever", "eastern screech-owl (juvenile)", "猫", "b2b", "12", "<end> it"]


def test_the_embedded_model_reads_any_name_as_a_token_a_word() -> None:
    words = load(resolve_clip("", ""))._tower.tokenizer
    assert [words.tokens(name, "it") for name in EMBEDDED_NAMES[:2]] == [["Äpfel"], ["golden", "retriever"]]
    assert words.strange(EMBEDDED_NAMES) == [
        "Äpfel",
        "golden",
        "retriever",
        "eastern",
        "screech",
        "owl",
        "(",
        "juvenile",
        ")",
        "猫",
        "<",
        "end",
        ">",
    ]
    for known in ("a photo of a good arrow .", "12", "b2b", "the number 3", "it's"):
        assert words.tokens(known, "it") == words.encode(known)[1:-1]
    assert (
        max(token for name in EMBEDDED_NAMES for token in words.tokens(name, "it") if isinstance(token, int))
        < words.end
    )


def test_a_token_that_ends_a_text_is_refused() -> None:
    simple = open_clip.get_tokenizer("ViT-B-16")
    words = Words(lambda text: [simple.sot_token_id, *simple.encode(text), simple.eot_token_id], None)
    assert words.tokens("äpfel .", "it") == simple.encode("äpfel .")
    with pytest.raises(InputError, match="the class name holds a token that begins or ends a text"):
        words.tokens("a <end_of_text> .", "the class name")


def test_misuse_of_the_text_pass_is_loud(vit: FrozenCLIP) -> None:
    texts = vit.classes(NAMES, 4)
    for call, context, message in (
        (vit.text, contexts(5, vit.width), "context must hold 4 vectors, .*, not 5"),
        (vit.text_by_class, contexts(len(NAMES), 5, vit.width), "context must hold 4 vectors, .*, not 5"),
        (vit.text_by_class, contexts(2, 4, vit.width), "contexts must be those of 6 classes, not of 2"),
    ):
        with pytest.raises(ValueError, match=message):
            call(context, texts)
    with pytest.raises(ValueError, match="names must hold a class"):
        vit.classes([], 4)
    context = contexts(4, vit.width).requires_grad_()
    (first,) = torch.autograd.grad(vit.text(context, texts).sum(), context, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative in the prompt"):
        torch.autograd.grad(first.sum(), context)


# --- image features -----------------------------------------------------------------------------------------------


def encoded(clip: FrozenCLIP, given: list[Record], cache: Folder, **more: Any) -> Any:
    said: list[str] = []
    found = clip.encode(given, cache, say=said.append, **more)
    assert said == []
    return found


@pytest.mark.parametrize("patches", [False, True])
def test_image_features_are_those_of_open_clip(seeing: FrozenCLIP, cache: Folder, patches: bool) -> None:
    given, clip = records(21), seeing
    size = clip.model.visual.image_size
    if size == 32 or size == (32, 32):  # nothing to resize: the preprocessing by hand
        pixels = torch.stack([torch.from_numpy(r.image).permute(2, 0, 1) / 255 for r in given])
        prepared = (pixels - torch.tensor(tiny_clip.MEAN).view(3, 1, 1)) / torch.tensor(tiny_clip.STD).view(3, 1, 1)
    else:
        transform = open_clip.image_transform(size, is_train=False, mean=tiny_clip.MEAN, std=tiny_clip.STD)
        prepared = torch.stack([transform(Image.fromarray(r.image)) for r in given])
    with torch.no_grad():
        expected = clip.model.encode_image(prepared, normalize=True)
    found = encoded(clip, given, cache, patches=patches).rows([r.id for r in given][::-1])
    torch.testing.assert_close(found, expected.flip(0), atol=1e-5, rtol=0)


def test_pictures_of_other_sizes_are_resized_at_the_shorter_side_and_cut_at_the_centre(vit: Any, cache: Any) -> None:
    wide = Record("wide", "cat", np.zeros((32, 96, 3), np.uint8), "<image> ?", "cat")
    wide.image[:, 32:64] = records(1)[0].image
    found = encoded(vit, [wide, *records(1)], cache)
    torch.testing.assert_close(found.rows(["wide"]), found.rows(["r0-0"]), atol=1e-6, rtol=0)


def test_features_do_not_depend_on_what_is_encoded_beside_them(seeing: FrozenCLIP, tmp_path: Path) -> None:
    given = records(37)
    together = encoded(seeing, given, claim(tmp_path / "a"), patches=True)
    for part in (given[5:6], given[3:30][::-1]):
        alone = encoded(seeing, part, claim(tmp_path / f"b{len(part)}"), patches=True)
        ids = [r.id for r in part]
        assert torch.equal(alone.rows(ids), together.rows(ids))
        assert torch.equal(alone.patches(ids), together.patches(ids))


@pytest.fixture
def newly_seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    see = mock.Mock(wraps=clip_images.see)
    monkeypatch.setattr(clip_images, "see", see)

    def since() -> int:
        pictures = sum(len(call.args[1]) for call in see.call_args_list)
        see.reset_mock()
        return pictures

    return since


def test_what_was_seen_once_is_read_back(vit: FrozenCLIP, cache: Folder, newly_seen: Callable[[], int]) -> None:
    batch = clip_images.BATCH
    given = records(batch + 3)
    ids = [r.id for r in given]
    first = encoded(vit, given, cache)
    assert newly_seen() == 2 * batch  # the last batch is filled up
    assert torch.equal(first.rows(ids), encoded(vit, given[::-1], cache).rows(ids))
    assert newly_seen() == 0
    encoded(vit, [*given, *records(1, seed=1)], cache)
    assert newly_seen() == batch
    twin = Record("twin", "dog", given[0].image.copy(), "<image> and this?", "dog")  # what is asked does not matter
    assert torch.equal(encoded(vit, [twin, given[0]], cache).rows(["twin"]), first.rows(ids[:1]))
    assert newly_seen() == 0
    encoded(vit, given, cache, patches=True)
    assert newly_seen() == 2 * batch


def test_other_weights_and_other_preprocessing_share_no_features(vit: Any, cache: Folder, tmp_path: Path) -> None:
    given = records(2)
    encoded(vit, given, cache)
    for seed in (1, 0):
        folder = tiny_clip.save(tmp_path / str(seed), seed=seed)
        if not seed:  # the same weights
            config = folder / "open_clip_config.json"
            config.write_text(config.read_text().replace(json.dumps(tiny_clip.MEAN), "[0.5, 0.5, 0.5]"))
        other = load(resolve_clip(str(folder), ""))
        before = len(cache.names())
        found = encoded(other, given, cache)
        assert len(cache.names()) == before + 1
        assert not torch.allclose(found.rows(["r0-0"]), encoded(vit, given, cache).rows(["r0-0"]), atol=1e-3)


def test_a_damaged_file_is_named_and_computed_again(vit: Any, cache: Any, monkeypatch: Any, newly_seen: Any) -> None:
    monkeypatch.setattr(clip_images, "SHARD", 1)  # a file per batch
    given = records(2 * clip_images.BATCH)
    ids = [r.id for r in given]
    first = encoded(vit, given, cache).rows(ids)
    names = cache.names()
    assert (len(names), newly_seen()) == (2, 2 * clip_images.BATCH)
    file, said = cache.path / names[0], []
    file.write_bytes(file.read_bytes()[:-5] + b"wrong")
    found = vit.encode(given, cache, say=said.append)
    assert said == [f"{file} is damaged; computing it again"]
    assert newly_seen() == clip_images.BATCH
    assert torch.equal(found.rows(ids), first)
    assert cache.names() == names


def test_progress_counts_the_batches_that_are_missing(vit: FrozenCLIP, cache: Folder) -> None:
    advanced: list[mock.Mock] = []

    def stage(label: str, total: int, step: str) -> Any:
        advanced.append(mock.Mock(spec=[], label=label, total=total))
        return contextlib.nullcontext(advanced[-1])

    for n in (clip_images.BATCH, 3 * clip_images.BATCH + 1, 3 * clip_images.BATCH + 1):
        encoded(vit, records(n), cache, stage=stage)
    assert {one.label for one in advanced} == {"encoding the pictures"}
    assert [(one.total, one.call_count) for one in advanced] == [(1, 1), (3, 3)]


def test_threads_change_no_byte_and_a_sample_is_one_batch(vit: FrozenCLIP, tmp_path: Path) -> None:
    given = records(5 * clip_images.BATCH + 3)
    ids = [r.id for r in given]
    folders = [claim(tmp_path / name) for name in ("one", "four", "sample")]
    one, four = (encoded(vit, given, f, threads=n).rows(ids) for f, n in zip(folders, (1, 4), strict=False))
    assert torch.equal(one, four)
    assert contents(folders[0].path) == contents(folders[1].path)
    for _ in range(2):  # what a sample computed is not missing in the next one
        sample = encoded(vit, given, folders[2], threads=4, sample=True).rows(ids)
    computed = 2 * clip_images.BATCH
    assert torch.equal(sample[:computed], one[:computed])
    assert torch.equal(sample[computed:], one[clip_images.BATCH : clip_images.BATCH + 1].expand_as(sample[computed:]))


def test_patches_of_a_vit_are_its_last_tokens_projected(vit: FrozenCLIP, cache: Folder, monkeypatch: Any) -> None:
    """In memory or on disk."""
    given = records(3)
    kept: list[Tensor] = []
    hook = vit.model.visual.transformer.register_forward_hook(lambda module, args, out: kept.append(out))
    with torch.no_grad():
        vit.model.encode_image(torch.stack([vit._prepare(Image.fromarray(r.image)) for r in given]))
        expected = vit.model.visual.ln_post(kept[0])[:, 1:] @ vit.model.visual.proj
    hook.remove()
    held = encoded(vit, given, cache, patches=True).patches([r.id for r in given])
    assert held.shape == (3, (32 // 8) ** 2, vit.embed)
    torch.testing.assert_close(held, F.normalize(expected, dim=-1), atol=1e-5, rtol=0)
    monkeypatch.setattr(clip_images, "IN_MEMORY", 0)
    stored = encoded(vit, given, cache, patches=True).patches([r.id for r in given][::-1])
    assert torch.equal(stored, held.flip(0))


def test_patches_of_a_resnet_are_its_attention_pools_output_at_every_position(made: Any, cache: Folder) -> None:
    """open_clip's pool gives the output at position 0, the mean: with position m moved there, it must give patch m."""
    resnet, given = made("resnet"), records(2, size=(64, 64))
    ids = [r.id for r in given]
    features = encoded(resnet, given, cache, patches=True)
    visual = resnet.model.visual
    pool = visual.attnpool
    kept: list[Tensor] = []
    hook = pool.register_forward_hook(lambda module, args, out: kept.append(args[0]))
    with torch.no_grad():
        resnet.model.encode_image(torch.stack([resnet._prepare(Image.fromarray(r.image)) for r in given]))
        hook.remove()
        x = kept[0].flatten(2).mT  # [B, H W, channels]
        x = torch.cat([x.mean(1, keepdim=True), x], dim=1) + pool.positional_embedding
        for m in range(x.shape[1]):
            turned = x.roll(-m, dims=1)  # attention does not know an order
            weights = torch.stack([
                (q[:, :1] @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
                for q, k, v in zip(*(p(turned).chunk(pool.num_heads, dim=-1) for p in (pool.q_proj, pool.k_proj, pool.v_proj)), strict=True)
            ], dim=-2)  # fmt: skip
            expected = F.normalize(pool.c_proj(weights.flatten(1)), dim=-1)
            found = features.rows(ids) if m == 0 else features.patches(ids)[:, m - 1]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert features.patches(ids).shape == (2, 4, resnet.embed)


def test_patches_that_are_not_there_are_an_error(vit: FrozenCLIP, cache: Folder, tmp_path: Path) -> None:
    assert encoded(vit, [], cache).rows([]).shape == (0, vit.embed)
    with pytest.raises(ValueError, match="call encode with patches=True"):
        encoded(vit, records(1), cache).patches(["r0-0"])
    pooling = tiny_clip.VIT | {"attentional_pool": True, "attn_pooler_heads": 2, "attn_pooler_queries": 4}
    clip = load(resolve_clip(str(tiny_clip.save(tmp_path / "pooling", tiny_clip.config(vision=pooling))), ""))
    assert encoded(clip, records(1), cache).rows(["r0-0"]).shape == (1, clip.embed)
    with pytest.raises(InputError, match=r"--backbone pooling: its image encoder \(.*\) has no patch features"):
        encoded(clip, records(1), cache, patches=True)


# --- where a model comes from -------------------------------------------------------------------------------------


def test_the_embedded_models_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EMBEDDED_CLIP[""] == EMBEDDED_CLIP["vit"] != EMBEDDED_CLIP["resnet"]
    folder = tiny_clip.save(tmp_path / "symbols-clip")
    monkeypatch.setitem(EMBEDDED_CLIP, "", folder)
    assert resolve_clip("", "") == ClipSource("symbols-clip", "", folder, folder / "open_clip_model.safetensors")
    monkeypatch.setitem(EMBEDDED_CLIP, "vit", tmp_path)
    with pytest.raises(InputError, match=rf"--backbone vit: {tmp_path} lacks open_clip_config.json and .*tokenizer"):
        resolve_clip("vit", "")


def test_folders_are_checked(tmp_path: Path) -> None:
    folder = tiny_clip.save(tmp_path / "tiny")
    assert resolve_clip(str(folder), "") == ClipSource("tiny", "", folder, folder / "open_clip_model.safetensors")
    with pytest.raises(InputError, match="--weights openai: tiny holds its own weights"):
        resolve_clip(str(folder), "openai")
    with pytest.raises(InputError, match=rf"{tmp_path} is no CLIP: it lacks open_clip_config.json .* and config.json"):
        resolve_clip(str(tmp_path), "")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=rf"--backbone {folder}: {folder} lacks tokenizer.json"):
        resolve_clip(str(folder), "")


def test_architectures_are_known_without_importing_open_clip(tmp_path: Path) -> None:
    code = (
        "import sys; from fedaudit.backbones.clip_source import resolve_clip;"
        "print(resolve_clip('ViT-B-16', 'random').sha256);"
        f"resolve_clip({str(tiny_clip.save(tmp_path / 'tiny'))!r}, '').sha256;"
        "assert not {'torch', 'open_clip', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    hashes = [resolve_clip(name, "random").sha256 for name in ("ViT-B-16", "ViT-B-32", "ViT-B-16-quickgelu")]
    assert done.stdout.strip() == hashes[0]
    assert len({*hashes}) == 3


NAMES_REFUSED = {
    ("ViT-B/16", "openai"): r"no architecture of this name \(did you mean 'ViT-B-16'\?\)",
    ("nowhere", ""): "there is no folder {folder}/nowhere, and open_clip has no architecture",
    ("RN50", ""): "--backbone RN50 needs --weights: a file of weights, openai, yfcc15m, cc12m, or r",
    ("ViT-B-32", ""): "needs --weights: a file of weights, openai, .*, 18 more tags of open_clip, or r",
    ("RN50", "openia"): r"--weights openia: .* no such weights for RN50 \(did you mean 'openai'\?\)",
    # whose text encoders do not fit: before anything is read
    ("ViT-B-16-SigLIP", "random"): "--backbone ViT-B-16-SigLIP: its text encoder .*both directions",
    ("coca_ViT-B-32", "random"): "its text encoder .*CoCa",
    ("roberta-ViT-B-32", "random"): "its text encoder .*Hugging Face",
    ("MobileCLIP-S1", "random"): "its text encoder .*both",
    ("ViT-H-14-worldwide", "random"): "its text encoder .*pool_type eos",
    ("ViT-L-14-CLIPA", "random"): "its text encoder .*both",
    ("nllb-clip-base", "random"): "its text encoder .*Hugging Face",
}


@pytest.mark.parametrize(("backbone", "tag"), NAMES_REFUSED)
def test_names_that_will_not_do_are_refused(backbone: str, tag: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=NAMES_REFUSED[backbone, tag].replace("{folder}", str(tmp_path))):
        resolve_clip(backbone, tag)


def test_weights_of_a_tag_come_from_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--timm--resnet50_clip.openai"
    with pytest.raises(InputError) as refused:
        resolve_clip("RN50", "openai")
    assert str(refused.value) == (
        f"--weights openai: open_clip_model.safetensors is not in the local cache ({place}); fetch it on a machine with internet by "
        "`hf download timm/resnet50_clip.openai open_clip_model.safetensors` (older repositories hold open_clip_pytorch_model.bin instead)"
    )
    for commit in "abc":
        name = "open_clip_model.safetensors" if commit == "b" else "open_clip_pytorch_model.bin"
        (place / "snapshots" / commit).mkdir(parents=True)
        (place / "snapshots" / commit / name).write_bytes(b"weights")
    assert resolve_clip("RN50", "openai").weights == place / "snapshots" / "a" / "open_clip_pytorch_model.bin"
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("b")
    file = place / "snapshots" / "b" / "open_clip_model.safetensors"
    found = ClipSource("RN50 (openai)", "RN50", None, file, "openai", "QuickGELU")
    assert resolve_clip("RN50", "openai") == found
    with pytest.raises(InputError, match=r"`hf download jienengchen/ViTamin-S pytorch_model.bin`$"):
        resolve_clip("ViTamin-S", "datacomp1b")


def _made(file: Path, what: Any) -> Path:
    """A file of bytes or of what torch saves, a folder, or a link that leads nowhere."""
    if what == "folder":
        file.mkdir()
    elif what == "link":
        file.symlink_to(file.with_name("nothing"))
    elif isinstance(what, bytes):
        file.write_bytes(what)
    elif what is not None:
        torch.save(what, file)
    return file


LEARNED = {"state_dict": {"ctx": torch.zeros(4, 8), "token_prefix": torch.zeros(2, 1, 8)}, "epoch": 50}
OTHER_FILES = {
    "absent.safetensors": (None, "there is no file {file}; the folder {folder} is there, and it holds beside.txt; weights end in .safetensors"),
    "folder": ("folder", "{file} is a folder, and folders are given as --backbone; it is empty"),
    "link.pt": ("link", "{file} is no regular file, or a link that leads nowhere"),
    "there.npz": (b"PK", "there.npz holds no weights: it begins with b'PK'; weights are files of safetensors, torch.save or torch.jit.save"),
    "model.pth.tar-50": (LEARNED, "model.pth.tar-50 is a prompt that was learned for a CLIP (ctx, as CoOp and MaPLe save it), not a CLIP; give the CLIP that it was learned for"),
    "model.pth.tar": (b"", "model.pth.tar is empty"),
    "clip.pth.tar-1": ({"epoch": 3, "lr": 0.1}, "clip.pth.tar-1 holds no tensors by name, but epoch, lr; save the model's state_dict"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FILES)
def test_of_a_file_that_is_no_weights_it_is_said_what_it_is(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    what, said = OTHER_FILES[name]
    (tmp_path / "beside.txt").write_text("")
    file = _made(tmp_path / name, what)
    monkeypatch.chdir(tmp_path)
    for given in (str(file), f"./{name}", *([name] if file.exists() else [])):
        with pytest.raises(InputError) as refused:
            resolve_clip("RN50", given)
        assert str(refused.value).startswith(f"--weights {given}: ")
        assert said.format(file=file, folder=tmp_path) in str(refused.value)


TEXTS = {
    "reads the text in both directions": {"text": {"no_causal_mask": True}},
    "reads its feature by pool_type last": {"text": {"pool_type": "last"}},
    "comes from Hugging Face": {"text": {"hf_model_name": "roberta-base"}},
    r"puts a class token at the end \(CoCa\)": {"text": {"embed_cls": True}},
    "is built of blocks with further norms or scales": {"text": {"qk_norm": True}},
}


@pytest.mark.parametrize("reason", TEXTS)
def test_text_encoders_that_do_not_fit_are_refused(reason: str, tmp_path: Path) -> None:
    folder = tiny_clip.save(tmp_path / "tiny")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": tiny_clip.config(**TEXTS[reason])}))
    with pytest.raises(InputError, match=f"--backbone {folder}: its text encoder {reason}"):
        resolve_clip(str(folder), "")


def test_a_text_encoder_that_is_computed_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration does not show: here, that the model's own pass adds something."""
    from open_clip.model import CLIP

    whole = CLIP.encode_text
    monkeypatch.setattr(CLIP, "encode_text", lambda self, text, normalize: F.normalize(whole(self, text) + 1, dim=-1))
    with pytest.raises(InputError, match="its class features computed token by token are not open_clip's"):
        load(resolve_clip(str(tiny_clip.save(tmp_path / "tiny")), ""))


def test_tokenizers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from tokenizers import processors

    folder = tiny_clip.save(tmp_path / "tiny")
    bare = tiny_clip.tokenizer()
    bare.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    bare.save(str(folder / "tokenizer.json"))
    with pytest.raises(InputError, match="its tokenizer must put a start token and then an end token"):
        load(resolve_clip(str(folder), ""))
    small = tiny_clip.save(tmp_path / "small", tiny_clip.config(text={"vocab_size": 12}))
    words = f"its tokenizer has {len(tiny_clip.VOCABULARY)} tokens, and its text encoder knows 12"
    with pytest.raises(InputError, match=words):
        load(resolve_clip(str(small), ""))


def test_half_precision_weights_are_read_as_float32(tmp_path: Path) -> None:
    whole, half = (load(resolve_clip(str(tiny_clip.save(tmp_path / str(h), half=h)), "")) for h in (False, True))
    context = contexts(4, whole.width)
    found = half.text(context, half.classes(NAMES, 4))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, whole.text(context, whole.classes(NAMES, 4)), atol=2e-2, rtol=0)


# --- an architecture of open_clip, made tiny ----------------------------------------------------------------------


@pytest.fixture
def tiny_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An architecture with open_clip's own tokenizer and a tag whose weights are in the local cache."""
    saved = weights.two_architectures(tmp_path, monkeypatch)
    shutil.copytree(saved.parent, tmp_path / "models--someone--tiny" / "snapshots" / "a")
    tag = {"hf_hub": "someone/tiny/", "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    tag |= {"quick_gelu": True, "resize_mode": "squash"}
    monkeypatch.setattr("open_clip.pretrained._PRETRAINED", {"ViT-tiny": {"openai": tag}})
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return "ViT-tiny"


def clip_tokens(text: str) -> list[int]:
    tokenizer = open_clip.get_tokenizer("ViT-B-16")
    return [tokenizer.sot_token_id, *tokenizer.encode(text), tokenizer.eot_token_id]


def test_a_tag_says_which_gelu_and_how_images_are_prepared(tiny_architecture: str, tmp_path: Path) -> None:
    clip = load(resolve_clip(tiny_architecture, "openai"))
    assert type(clip.model.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert clip._preprocessing.mean == (0.1, 0.2, 0.3)
    assert clip._preprocessing.resize_mode == "squash"
    prompt, names = clip.words("a photo of a"), ["golden retriever", "Abyssinian (cat)", "tv-monitor"]
    found = clip.text(prompt, clip.classes(names, 4))
    texts = [f"a photo of a {n} ." for n in names]
    torch.testing.assert_close(found, encode_text(clip, texts, clip_tokens), atol=1e-5, rtol=0)
    plain = load(resolve_clip(tiny_architecture, str(clip.source.weights)))
    assert type(plain.model.transformer.resblocks[0].mlp.gelu).__name__ == "GELU"
    assert plain.source.sha256 != clip.source.sha256


def test_weights_are_never_unpickled(tiny_architecture: str, tmp_path: Path) -> None:
    state = load_file(resolve_clip(tiny_architecture, "openai").weights)
    torch.save(state, tmp_path / "plain.pt")
    found = load(resolve_clip(tiny_architecture, str(tmp_path / "plain.pt")))
    assert torch.equal(found.model.positional_embedding, state["positional_embedding"])
    for name in ("evil.pt", "model.pth.tar-50"):
        (tmp_path / name).write_bytes(pickle.dumps(Sly(tmp_path / "was here"), protocol=2))
        with pytest.raises(InputError, match=rf"--weights {tmp_path / name}: {name} is truncated or damaged"):
            load(resolve_clip(tiny_architecture, str(tmp_path / name)))
        assert not (tmp_path / "was here").exists()


def test_random_weights_are_the_same_every_time_and_leave_no_trace(tiny_architecture: str, capfd: Any) -> None:
    """They say nothing, and the global generator stays as it is."""
    state = torch.get_rng_state()
    first, second = (load(resolve_clip(tiny_architecture, "random")) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.name == "ViT-tiny (random)"
    assert capfd.readouterr() == ("", "")


# --- the real sizes -----------------------------------------------------------------------------------------------


@pytest.mark.slow  # the real sizes; quick: tiny models of the same towers
@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B-32-quickgelu", "RN50"])
def test_full_size_models_give_open_clips_own_features(name: str, cache: Folder) -> None:
    clip = load(resolve_clip(name, "random"))
    prompt = clip.words("a photo of a")
    names = ["cat", "golden retriever", "Boeing 747-400", "car side"]
    found = clip.text(prompt, clip.classes(names, 4))
    texts = [f"a photo of a {n} ." for n in names]
    torch.testing.assert_close(found, encode_text(clip, texts, clip_tokens), atol=1e-5, rtol=0)
    given = records(2, size=(240, 320))
    features = encoded(clip, given, cache, patches=True)
    transform = open_clip.image_transform(224, is_train=False)
    with torch.no_grad():
        prepared = torch.stack([transform(Image.fromarray(r.image)) for r in given])
        expected = clip.model.encode_image(prepared, normalize=True)
    torch.testing.assert_close(features.rows([r.id for r in given]), expected, atol=1e-5, rtol=0)
    assert features.patches(["r0-0"]).shape == (1, 196 if name == "ViT-B-16" else 49, clip.embed)


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_the_embedded_models_load(name: str, cache: Folder) -> None:
    clip = load(resolve_clip(name, ""))
    features = encoded(clip, records(3), cache, patches=True)
    assert features.rows(["r0-0"]).shape == (1, clip.embed)
    assert features.patches(["r0-0"]).shape[2] == clip.embed
    assert clip.text(contexts(10, 16, clip.width), clip.classes(["seven", "square"], 16)).shape == (10, 2, clip.embed)
