"""Dual prompts: injection layer by layer, the plain CLIP without them, what has gradients, clients together and one by one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.audits.findings import Accuracy
from fedaudit.audits.personal import Params as PersonalParams
from fedaudit.audits.personal import personal
from fedaudit.audits.subject import Subject
from fedaudit.backbones import clip as clips
from fedaudit.backbones.clip import FrozenCLIP
from fedaudit.backbones.clip_source import resolve_clip
from fedaudit.contracts import maple_toy, tiny_clip
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.store import claim
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.section import Page
from fedaudit.reports.sections import personal as personal_section
from fedaudit.tasks.base import IMAGE, Record, client_name
from fedaudit.trainers.base import Participation, Schedule, generator
from fedaudit.trainers.dp2fl import DP2FL, Params
from fedaudit.trainers.evaluations import Personalisation
from fedaudit.trainers.maple import Learner, Settings, visual_prompts
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests import prompt_toy

METHOD = DP2FL(Params())


def random_model(learner: Learner, seed: int = 0, n: int = 1) -> tuple[Tensor, Tensor]:
    """Pt [n, D, b, d] and Pd [n, D, e, d + 1], none of them small."""
    g = torch.Generator().manual_seed(seed)
    start = learner.initial(g)
    return tuple(t + 0.3 * torch.randn(n, *t.shape, generator=g) for t in (start["Pt"], start["Pd"]))  # type: ignore


def slow_text(clip: FrozenCLIP, Pt: Tensor, suffixes: list[list[int]]) -> Tensor:
    """Class features [C, E] with open_clip's own blocks, class by class, padded to the full context (MaPLe's code)."""
    model, found = clip.model, []
    length, b = clip.context_length, Pt.shape[1]
    for suffix in suffixes:
        ids = [clip._tower.start, *[0] * b, *suffix]
        ids += [0] * (length - len(ids))
        x = model.token_embedding.weight[ids]
        x = torch.cat([x[:1], Pt[0], x[1 + b :]]) + model.positional_embedding
        mask = torch.full((length, length), -torch.inf).triu(1)
        for i, block in enumerate(model.transformer.resblocks):
            if 0 < i < len(Pt):
                x = torch.cat([x[:1], Pt[i], x[1 + b :]])
            x = block(x[None], attn_mask=mask)[0]
        end = ids.index(clip._tower.end)
        found.append(model.ln_final(x)[end] @ model.text_projection)
    return F.normalize(torch.stack(found), dim=-1)


def slow_image(clip: FrozenCLIP, visual: Tensor, pixels: Tensor) -> Tensor:
    """Features [n, E] with open_clip's own blocks and visual prompts [D, b, e] (MaPLe's code)."""
    tower, b, found = clip.model.visual, visual.shape[1], []
    for picture in pixels:
        patches = tower.conv1(picture[None]).flatten(2).mT[0]
        x = torch.cat([tower.class_embedding[None], patches]) + tower.positional_embedding
        x = tower.ln_pre(torch.cat([x, visual[0]]))
        for i, block in enumerate(tower.transformer.resblocks):
            if 0 < i < len(visual):
                x = torch.cat([x[:-b], visual[i]])
            x = block(x[None])[0]
        found.append(tower.ln_post(x)[0] @ tower.proj)
    return F.normalize(torch.stack(found), dim=-1)


def slow_loss(learner: Learner, leaves: Sequence[Tensor], pixels: Tensor, records: Sequence[str]) -> Tensor:
    """Mean cross-entropy of pictures under Pt and Pd."""
    visual = torch.stack([p @ f[:, :-1].T + f[:, -1] for p, f in zip(*leaves, strict=True)])
    image, text = slow_image(learner.clip, visual, pixels), slow_text(learner.clip, leaves[0], suffixes(learner.clip))
    return F.cross_entropy(learner.scale * image @ text.T, learner.labels(records))


def suffixes(clip: FrozenCLIP) -> list[list[int]]:
    tower = clip._tower
    return [[*tower.tokenizer.tokens(f"{name} .", name), tower.end] for name in prompt_toy.NAMES]


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_prompts_are_injected_as_layer_by_layer(depth: int) -> None:
    learner = maple_toy.learner(dataclasses.replace(maple_toy.SETTINGS, depth=depth))
    Pt, Pd = random_model(learner)
    assert Pt.shape[1] == learner.depth == min(depth, 2)  # two layers in both encoders
    clip, pixels = learner.clip, maple_toy.pictures(prompt_toy.SIZES)
    text = slow_text(clip, Pt[0], suffixes(clip))
    visual = torch.stack([Pt[0, j] @ Pd[0, j, :, :-1].T + Pd[0, j, :, -1] for j in range(learner.depth)])
    image = slow_image(clip, visual, pixels)
    records = tuple(learner._labels)
    torch.testing.assert_close(visual_prompts(Pt, Pd)[0], visual)
    torch.testing.assert_close(learner.class_features(Pt)[0], text, atol=2e-6, rtol=0)
    images = clip.vision(learner.pictures(records)[None], visual[None])[0]
    torch.testing.assert_close(images, image, atol=2e-6, rtol=0)
    answers = learner.log_probs(METHOD, [{"Pt": Pt[0], "Pd": Pd[0]}], records)[0]
    expected = (clip.scale * image @ text.T).double().log_softmax(-1).numpy()
    np.testing.assert_allclose(answers, expected, atol=1e-4)


def test_without_visual_prompts_an_image_is_plain_clips() -> None:
    clip, pixels = prompt_toy.clip(), maple_toy.pictures(prompt_toy.SIZES)
    with torch.no_grad():
        plain = clip.model.encode_image(pixels, normalize=True)
        ours = clip.vision(clip.vision.tokens(pixels)[None])[0]
        texts = clip.classes(prompt_toy.NAMES, 4)
        words = clip.words("a photo of a")
        cosines = ours @ clip.text(words, texts).T
        ids = torch.tensor([[clip._tower.start, *clip._tower.tokenizer.tokens("a photo of a", ""), *s, *[0] * 9][: clip.context_length]
                            for s in suffixes(clip)])  # fmt: skip
        theirs = plain @ clip.model.encode_text(ids, normalize=True).T
    torch.testing.assert_close(ours, plain, atol=1e-6, rtol=0)
    torch.testing.assert_close(cosines, theirs, atol=1e-6, rtol=0)


def test_the_first_layer_starts_at_a_photo_and_what_has_no_word_at_random() -> None:
    learner = maple_toy.learner()
    start = learner.initial(generator(0, "initial"))
    torch.testing.assert_close(start["Pt"][0], learner.clip.words("a photo"))
    assert 0.01 < start["Pt"][1:].std() < 0.03
    assert start["Pd"].abs().max() <= learner.clip.width**-0.5
    soft = prompt_toy.federation().learner().initial(generator(0, "initial"))
    assert all(torch.equal(start[name], tensor) for name, tensor in soft.items())  # baselines start as they do alone
    six = maple_toy.learner(dataclasses.replace(maple_toy.SETTINGS, tokens=6)).initial(generator(0, "initial"))["Pt"]
    torch.testing.assert_close(six[0, :4], learner.clip.words("a photo of a"))
    assert 0 < six[0, 4:].abs().max() < 0.2


@pytest.mark.parametrize("clients_per_batch", [1, 50])
def test_gradients_of_single_records_are_autograd_s_record_by_record(clients_per_batch: int) -> None:
    """Through the slow encoders; of some records at a time and of all together."""
    learner, world = (prompt_toy.taking(clients_per_batch, maple_toy.learner(), METHOD), prompt_toy.federation())
    Pt, Pd = (tensor[0] for tensor in random_model(learner))
    pixels = dict(zip(world.ids, maple_toy.pictures(prompt_toy.SIZES), strict=True))
    parts = [*learner.gradients(METHOD, {"Pt": Pt, "Pd": Pd}, world.ids[:11])]
    assert [len(part) for part in parts] == ([4, 4, 3] if clients_per_batch == 1 else [11])
    for record, found in zip(world.ids, torch.cat(parts), strict=False):
        leaves = [Pt.clone().requires_grad_(), Pd.clone().requires_grad_()]
        loss = slow_loss(learner, leaves, pixels[record][None], [record])
        slow = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, leaves)])
        torch.testing.assert_close(found, slow, atol=1e-4, rtol=1e-3)
        assert float((found - slow).norm() / slow.norm()) < 1e-4


def test_batched_clients_equal_clients_one_by_one() -> None:
    """Clients of 10, 6 and 3 records: as many steps for all, batches of different sizes."""
    learner, world = maple_toy.learner(), prompt_toy.federation()
    clients = [Participation(k, 0, 1, ids, learner) for k, ids in enumerate(world.training)]
    models = [{"Pt": Pt[0], "Pd": Pd[0]} for Pt, Pd in (random_model(learner, seed) for seed in range(3))]
    together = learner.work(METHOD, models, models, clients)
    for k in range(3):
        (alone,) = learner.work(METHOD, [models[k]], [models[k]], [clients[k]])
        assert alone.facts == together[k].facts
        for name, tensor in alone.upload.items():
            torch.testing.assert_close(together[k].upload[name], tensor, atol=2e-6, rtol=1e-5)


def test_a_round_is_plain_descent() -> None:
    """Against autograd on the slow encoders: two epochs on one client's batches."""
    settings = dataclasses.replace(maple_toy.SETTINGS, local_epochs=2, batch=3, rate=0.05)
    learner, world = maple_toy.learner(settings), prompt_toy.federation()
    client = Participation(0, 0, 1, world.training[0], learner)
    Pt, Pd = random_model(learner)
    (update,) = learner.work(METHOD, [{"Pt": Pt[0], "Pd": Pd[0]}], [{}], [client])
    own, _ = METHOD.divided(client.records, 0, 1)
    pixels = dict(zip(world.ids, maple_toy.pictures(prompt_toy.SIZES), strict=True))
    leaves = [Pt[0].clone().requires_grad_(), Pd[0].clone().requires_grad_()]
    for epoch in range(2):
        order = torch.randperm(len(own), generator=generator(1, "client", 0, "epoch", epoch)).tolist()
        for place in range(len(own) // 3):
            batch = [own[i] for i in order[3 * place : 3 * place + 3]]
            slow_loss(learner, leaves, torch.stack([pixels[r] for r in batch]), batch).backward()
            with torch.no_grad():
                for leaf in leaves:
                    leaf -= 0.05 * leaf.grad
                    leaf.grad = None
    for name, leaf in zip(("Pt", "Pd"), leaves, strict=True):
        torch.testing.assert_close(update.upload[name], leaf.detach(), atol=1e-4, rtol=1e-3)


def test_models_together_answer_as_alone() -> None:
    learner, ids = (prompt_toy.taking(2, maple_toy.learner(), METHOD), prompt_toy.federation().ids)
    models = [{"Pt": Pt[0], "Pd": Pd[0]} for Pt, Pd in (random_model(learner, seed) for seed in range(3))]
    together = learner.log_probs(METHOD, models, ids)
    for k in range(3):
        np.testing.assert_allclose(together[k], learner.log_probs(METHOD, [models[k]], ids)[0], atol=1e-5)
    right = learner.recognised(models, ids, METHOD)
    assert np.array_equal(right, together.argmax(-1) == learner.labels(ids).numpy())
    assert learner.losses(*random_model(learner), [((), 0)]).tolist() == [[0]]


def built(folder: Path, vision: dict[str, object]) -> FrozenCLIP:
    return clips.load(resolve_clip(str(tiny_clip.save(folder / "model", tiny_clip.config(vision=vision))), ""))


def test_an_image_encoder_without_place_for_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no place for visual prompts; take a vision transformer"):
        assert built(tmp_path / "resnet", tiny_clip.RESNET).vision
    with pytest.raises(InputError, match="one with attention pooling"):
        assert built(tmp_path / "pooled", tiny_clip.VIT | {"attentional_pool": True, "attn_pooler_heads": 4}).vision


def test_another_pooling_is_the_models_own(tmp_path: Path) -> None:
    clip = built(tmp_path, tiny_clip.VIT | {"pool_type": "avg"})
    pixels = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        ours = clip.vision(clip.vision.tokens(pixels)[None])[0]
        torch.testing.assert_close(ours, clip.model.encode_image(pixels, normalize=True), atol=1e-6, rtol=0)


def test_patch_embeddings_are_computed_once(tmp_path: Path) -> None:
    clip, cache, rng = built(tmp_path, tiny_clip.VIT), tmp_path / "cache", np.random.default_rng(0)
    drawn = rng.integers(0, 255, (20, 32, 32, 3), dtype=np.uint8)
    records = [Record(f"r{i}", "cat", image, IMAGE, "cat") for i, image in enumerate(drawn)]
    first, again = (clip.tokens(records, claim(cache), say=print) for _ in range(2))
    ids = [record.id for record in records]
    assert torch.equal(first.patches(ids), again.patches(ids))
    with torch.no_grad():
        direct = clip.vision.tokens(clip._pixels(records))
    torch.testing.assert_close(torch.cat([again.rows(ids)[:, None], again.patches(ids)], dim=1), direct)
    assert len(list(cache.glob("clip-*.safetensors"))) == 1


def check_steps(architecture: str, weights: str = "") -> None:
    """A client's round and its answers on a randomly initialised model of open_clip."""
    clip = clips.load(resolve_clip(architecture, weights))
    names, labels = ("cat", "dog", "small lion"), {str(i): i % 3 for i in range(6)}
    with torch.no_grad():
        pixels = torch.randn(6, 3, *clip.model.visual.image_size, generator=torch.Generator().manual_seed(0))
        tokens = clip.vision.tokens(pixels)
        features = clip.model.encode_image(pixels, normalize=True)
    row = {record: i for i, record in enumerate(labels)}
    images = clips.ImageFeatures(row, features, None), clips.ImageFeatures(row, tokens[:, 0], list(tokens))
    learner = Learner(clip, *images, labels, names, Settings(batch=2, local_epochs=1))
    start = learner.initial(generator(0, "initial"))
    clients = [Participation(k, 0, 0, ids, learner) for k, ids in enumerate((("0", "1", "2"), ("3", "4", "5")))]
    for update in learner.work(METHOD, [METHOD.start(start)] * 2, [{}] * 2, clients):
        assert all(tensor.isfinite().all() and tensor.dtype == torch.float32 for tensor in update.upload.values())
        assert not torch.equal(update.upload["Pd"], start["Pd"])
        assert not torch.equal(update.upload["Pt"], start["Pt"])
    answers = learner.log_probs(METHOD, [start], list(labels))
    np.testing.assert_allclose(np.exp(answers).sum(-1), 1)


def test_any_vit(tmp_path: Path) -> None:
    check_steps(str(tiny_clip.save(tmp_path / "tiny", tiny_clip.config(vision=tiny_clip.VIT | {"layers": 4}))))


@pytest.mark.slow  # a model of full size; quick: a tiny one, in test_any_vit
def test_vit_b_16() -> None:
    check_steps("ViT-B-16", "random")


def slow_f1(right: Sequence[int], named: Sequence[int], weights: Sequence[float]) -> float:
    """Macro-F1 in percent over the classes that have weight, by counting."""
    found, pairs = [], list(zip(right, named, weights, strict=True))
    for c in {y for y, _, w in pairs if w > 0}:
        hit = sum(w for y, said, w in pairs if y == said == c)
        wrong = sum(w for y, said, w in pairs if (y == c) != (said == c))
        found.append(2 * hit / (2 * hit + wrong))
    return 100 * sum(found) / len(found)


@pytest.mark.parametrize("shared", [True, False])
def test_personal_and_global_models_on_each_clients_own_test_set(shared: bool) -> None:
    learner, world = maple_toy.learner(test=30), prompt_toy.federation(test=30)
    g = np.random.default_rng(0)
    local = [[world.labels[t] in own for t in world.test] for own in ((0, 1), (1, 2, 3), (4,))]
    chances = [row / row.sum() for row in g.random((3, 30)) * np.array(local)] if shared else None
    Pt, Pd = random_model(learner)
    rows = torch.stack([random_model(learner, k)[1][0] for k in range(3)])
    server = {"Pt": Pt[0], "Pd": Pd[0], "personal": rows}
    own = {k: {"number": torch.tensor(k + 1)} for k in range(3)}
    bench = Bench(learner, world.training, world.test)
    evaluation = Personalisation(np.array(local), chances)
    with Executor(lambda: bench) as executor:
        found = evaluation.after(executor, METHOD, server, own, done=1, last=True)
        assert "personal/f1" not in evaluation.after(executor, METHOD, server, own, done=1, last=False)[client_name(0)]
    right = learner.labels(world.test).tolist()
    for k in range(3):
        weights = (chances[k] if shared else np.array(local[k]) / sum(local[k])).tolist()
        models = {"personal": {"Pt": Pt[0], "Pd": rows[k]}, "global": {"Pt": Pt[0], "Pd": Pd[0]}}
        for who, model in models.items():
            named = learner.log_probs(METHOD, [model], world.test)[0].argmax(1).tolist()
            hits = sum(w for y, said, w in zip(right, named, weights, strict=True) if y == said)
            mine = found[client_name(k)]
            assert mine[f"{who}/accuracy"] == pytest.approx(100 * hits)
            assert mine[f"{who}/f1"] == pytest.approx(slow_f1(right, named, weights))
        assert mine["personal/accuracy"] == pytest.approx(mine["own_test" if shared else "local"])


def test_what_is_reported_of_them(tmp_path: Path) -> None:
    """Means over clients, the difference within each, and the paper's numbers beside."""
    utility = {
        "clients": {"own_test": 50.0},
        "client-0": {"personal/accuracy": 40.0, "personal/f1": 30.0, "global/accuracy": 50.0, "global/f1": 20.0},
        "client-1": {"personal/accuracy": 60.0, "personal/f1": 50.0, "global/accuracy": 40.0, "global/f1": 60.0},
    }
    folder = claim(tmp_path)
    for r, found in enumerate(({}, utility)):
        folder.write_json(f"round-{r:03d}.json", {"utility": found})
    names = {"run": "key", "method": "dp2fl", "task": "fewshots", "seed": 0}
    about: Any = {"method": METHOD, "privacy": None, "threat_models": (), "names": names, "attacked": None}
    subject = Subject(transcript=Transcript(folder, Schedule(2, 2, 2)), **about)
    result = personal(subject, PersonalParams())
    values = {finding.metric: finding.value for finding in result.findings}
    of_models = {"personal/accuracy": 50, "personal/f1": 40, "global/accuracy": 45, "global/f1": 40}
    assert values == of_models | {"global-personal/accuracy": -5, "global-personal/f1": 0}
    bounds = {f.metric: (f.low, f.high) for f in result.findings if isinstance(f, Accuracy)}
    assert bounds["global-personal/accuracy"] == (-100, 100)  # of two clients
    findings = [dataclasses.asdict(finding) for finding in result.findings]
    row = personal_section._row(Page([Evidence("dp2fl", 0, None, "fewshots", findings, {}, {}, [])], map), "dp2fl")
    assert [cell["value"] for cell in row["cells"]] == [50, 40, 45, -5]
    assert row["paper"] == ["82.13", "80.59", "-0.33"]
    folder.write_json("round-001.json", {"utility": {"clients": {"own_test": 50.0}}})
    assert personal(subject, PersonalParams()).findings == ()
