"""A frozen CLIP of open_clip: image features computed once, class features as a function of learned context vectors.

`fedaudit.backbones.clip_source` decides which one; the embedded one is `symbols-clip`.
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from fedaudit.backbones import clip_images
from fedaudit.backbones.clip_images import ImageFeatures
from fedaudit.backbones.clip_loading import open_model
from fedaudit.backbones.clip_source import ClipSource
from fedaudit.backbones.clip_text import ClassTexts, TextTower
from fedaudit.backbones.clip_vision import VisionTower
from fedaudit.backbones.clip_words import Words
from fedaudit.backbones.model_folders import needs_packages, on_one_line
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Stage, unseen
from fedaudit.machinery.store import Folder
from fedaudit.tasks.base import Record

__all__ = ["ClassTexts", "FrozenCLIP", "ImageFeatures", "load", "outline"]

TOLERANCE = {"highest": 1e-4, "high": 1e-2}  # between features computed here and by open_clip, by torch's precision


def prepare(model: Any, record: Record) -> Tensor:
    """A record's picture as the model takes it, [3, H, W]. InputError: the picture cannot be read."""
    from PIL import Image

    pixels: Tensor = preparation(model)[1](Image.fromarray(record.image))
    return pixels


def preparation(model: Any) -> tuple[Any, Callable[[Any], Tensor]]:
    """How an open_clip model prepares pictures: its configuration, and the function of a picture of Pillow's."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    configuration = PreprocessCfg(**model.visual.preprocess_cfg)
    return configuration, image_transform_v2(configuration, is_train=False)


def strange_words(source: ClipSource, classes: Iterable[str]) -> list[str]:
    """The words in class names for which the tokenizer of a source has no token, each once."""
    return Words(*_tokenizer(source)).strange(classes)


class FrozenCLIP:
    """A CLIP in float32 whose weights are never trained."""

    def __init__(self, source: ClipSource, model: Any, tower: TextTower, device: str) -> None:
        self.source, self.model, self._tower = source, model, tower
        self.name = source.name
        self.device = torch.device(device)
        self.width = tower.embedding.shape[1]  # d, of a token embedding
        self.context_length = len(tower.positions)
        self.scale = float(model.logit_scale.exp())
        self._preprocessing, self._prepare = preparation(model)
        self.embed = self._check()  # E, of a feature

    def encode(
        self,
        records: Sequence[Record],
        cache: Folder,
        *,
        say: Callable[[str], None],
        stage: Stage = unseen,
        patches: bool = False,
        threads: int = 1,
        sample: bool = False,
    ) -> ImageFeatures:
        """Image features of records, from `cache`; missing ones are computed and stored there first. say: called
        with a sentence about each damaged file. patches: patch features too. threads: how many batches of pictures are
        prepared and seen at once. sample: as in `clip_images.encode`. InputError: the encoder has no patch features."""
        if patches:
            self._check_patches()
        see = functools.partial(self._see, patches=patches)
        return self._stored(
            records,
            see,
            {"patches": patches},
            cache,
            self.embed,
            say=say,
            stage=stage,
            patches=patches,
            threads=threads,
            sample=sample,
        )

    def _stored(
        self,
        records: Sequence[Record],
        see: Callable[[Sequence[Record]], Tensor],
        what: dict[str, bool],
        cache: Folder,
        width: int,
        *,
        say: Callable[[str], None],
        stage: Stage,
        patches: bool,
        threads: int,
        sample: bool,
    ) -> ImageFeatures:
        """Results of `see` for records, as features by record id, once per picture, from `cache`; `what` distinguishes
        kinds of results there."""
        digests = [record.digest for record in records]
        row = {digest: i for i, digest in enumerate(dict.fromkeys(digests))}
        pictures = dict(zip(digests, records, strict=True))
        stored = clip_images.encode(
            {digest: pictures[digest] for digest in row},
            see,
            self._identity() | what,
            cache,
            say=say,
            stage=stage,
            threads=threads,
            sample=sample,
        )
        return clip_images.gather_features(
            {r.id: row[d] for r, d in zip(records, digests, strict=True)},
            [stored[digest] for digest in row],
            torch.empty(0, width, device=self.device),
            patches=patches,
        )

    def classes(self, names: Sequence[str], context: int) -> ClassTexts:
        """The part of each class's prompt that follows `context` vectors: "name ." and EOS. InputError names a class
        whose prompt is too long, or holds an end token."""
        return self._tower.classes(names, context)

    @functools.cached_property
    def vision(self) -> VisionTower:
        """The image encoder as a function of visual prompts. InputError: it is no vision transformer, or its
        features without prompts differ from open_clip's."""
        tower = VisionTower(self.model, self.name)
        height, width = self.model.visual.image_size
        pixels = torch.linspace(-1, 1, 3 * height * width, device=self.device).view(1, 3, height, width)
        with torch.no_grad():
            off = tower(tower.tokens(pixels)[None])[0] - self.model.encode_image(pixels, normalize=True)
        if not off.abs().max() <= TOLERANCE[torch.get_float32_matmul_precision()]:
            raise InputError(
                f"--backbone {self.name}: its image features computed token by token are not open_clip's, so that "
                "visual prompts cannot be learned; take a model such as ViT-B-16"
            )
        return tower

    @property
    def picture_bytes(self) -> int:
        """Bytes of a picture at the model's input size, one per pixel and colour."""
        height, width = self.model.visual.image_size
        return int(3 * height * width)

    @property
    def depth(self) -> int:
        """The number of layers of the text or image encoder, whichever has fewer. InputError as in `vision`."""
        return min(len(self._tower.blocks), len(self.vision.blocks))

    def tokens(
        self,
        records: Sequence[Record],
        cache: Folder,
        *,
        say: Callable[[str], None],
        stage: Stage = unseen,
        threads: int = 1,
        sample: bool = False,
    ) -> ImageFeatures:
        """Input tokens of the image encoder's first layer for records, from `cache` as in `encode`: `rows` gives the
        class token [n, d], equal for all pictures; `patches` gives the patch tokens [n, M, d]."""
        return self._stored(
            records, self._cut, {"tokens": True}, cache, self.vision.width, say=say, stage=stage, patches=True,
            threads=threads, sample=sample,
        )  # fmt: skip

    def text(self, context: Tensor, texts: ClassTexts, deeper: Tensor | None = None) -> Tensor:
        """L2-normalised class features [..., C, E] for context vectors [..., b, d]. deeper [..., D, b, d]: context
        vectors put in before layers 2 to D + 1. ValueError: b is not that of `texts`.

        Differentiable once in the vectors; NotImplementedError on a second derivative. Per-record gradients reuse this
        pass (`trainers.prompt_model.PromptModel.backward`).
        """
        return self._tower(context, texts, deeper)

    def text_memory(self, texts: ClassTexts, *, by_class: bool = False) -> tuple[int, int]:
        """Bytes that one prompt's pass through the text encoder holds for a backward pass, and that a gradient takes
        there. `by_class`: each class has context vectors of its own."""
        return self._tower.memory(texts, by_class=by_class)

    @property
    def start_token(self) -> Tensor:
        """The embedding [d] of the token that begins every text, on the CPU."""
        return self._tower.embedding[self._tower.start].cpu()

    def text_by_class(self, contexts: Tensor, texts: ClassTexts) -> Tensor:
        """L2-normalised class features [..., C, E] for context vectors [..., C, b, d], each class with its own (CoOp's
        class-specific contexts); otherwise as `text`."""
        return self._tower.by_class(contexts, texts)

    def words(self, text: str) -> Tensor:
        """Token embeddings [n, d] of a hard prompt such as "a photo of a", without SOS and EOS, on the CPU."""
        return self._tower.words(text).cpu()

    @torch.no_grad()
    def _see(self, records: Sequence[Record], *, patches: bool) -> Tensor:
        return clip_images.see(self.model, self._pixels(records), patches=patches)

    @torch.no_grad()
    def _cut(self, records: Sequence[Record]) -> Tensor:
        return self.vision.tokens(self._pixels(records))

    def _pixels(self, records: Sequence[Record]) -> Tensor:
        from PIL import Image

        return torch.stack([self._prepare(Image.fromarray(record.image)) for record in records]).to(self.device)

    def _identity(self) -> dict[str, Any]:
        """All but the picture that decides its features, as JSON values: model, preprocessing, package versions, kind
        of device, precision of products."""
        return {
            "model": self.source.sha256,
            "preprocessing": asdict(self._preprocessing),
            "versions": [version(package) for package in ("open_clip_torch", "torch", "torchvision", "pillow")],
            "device": self.device.type,
            "precision": torch.get_float32_matmul_precision(),
        }

    def _check_patches(self) -> None:
        from open_clip.modified_resnet import ModifiedResNet
        from open_clip.transformer import VisionTransformer

        visual = self.model.visual
        pooled = getattr(visual, "attn_pool", None) is not None
        if pooled or not isinstance(visual, ModifiedResNet | VisionTransformer):
            raise InputError(
                f"--backbone {self.name}: its image encoder "
                f"({'attention pooling' if pooled else type(visual).__name__}) has no patch "
                "features in the space of the texts; take a model such as ViT-B-16 or RN50"
            )

    @torch.no_grad()
    def _check(self) -> int:
        """The size E of a feature. InputError unless class features computed here equal open_clip's on two hard
        prompts, and are finite."""
        from PIL import Image

        self._prepare(Image.new("RGB", (2, 2)))  # its configuration may hold no numbers
        tower = self._tower
        plain = [i for i in range(tower.end) if i != tower.start][-3:]
        if len(plain) < 3 or self.context_length < 6:
            raise InputError(f"--backbone {self.name}: its text encoder is too small to learn prompts")
        suffixes = [[plain[2], plain[1], tower.end], [plain[0], tower.end]]
        ours = self.text(tower.embedding[plain[:2]], tower.texts(("", ""), suffixes, 2))
        prompts = [[tower.start, *plain[:2], *suffix] for suffix in suffixes]
        ids = torch.tensor([p + [0] * (self.context_length - len(p)) for p in prompts], device=self.device)
        theirs = self.model.encode_text(ids, normalize=True)
        if not theirs.isfinite().all():
            raise InputError(f"--backbone {self.name}: its features are not finite: its weights hold NaN or infinities")
        if not (ours - theirs).abs().max() <= TOLERANCE[torch.get_float32_matmul_precision()]:
            raise InputError(
                f"--backbone {self.name}: its class features computed token by token are not open_clip's, so that "
                "prompts cannot be learned; take a model such as ViT-B-16 or RN50"
            )
        return int(ours.shape[-1])


def load(source: ClipSource, device: str = "cpu") -> FrozenCLIP:
    """Load the model of a source on `device`, in eval mode, without gradients to its weights. InputError: the
    weights are damaged, belong to another architecture, or would have to be unpickled."""
    with _refused(source) as where:
        model = open_model(where, source).to(device).eval().requires_grad_(False)
        return FrozenCLIP(source, model, _text_tower(where, source, model), device)


def outline(source: ClipSource) -> tuple[Any, TextTower]:
    """The model of a source on the device "meta", and its text encoder with the tokenizer: of the weights names and
    shapes are read only. InputError as in `load`, but for what only numbers tell."""
    with _refused(source) as where:
        model = open_model(where, source, numbers=False)
        return model, _text_tower(where, source, model)


@contextmanager
def _refused(source: ClipSource) -> Iterator[str]:
    """Turn what opening a source raises into an InputError; yields how its message begins."""
    where = f"--backbone {source.folder}" if source.folder else f"--weights {source.weights or source.name}"
    try:
        with _silence_logging():
            yield where
    except InputError:
        raise
    except Exception as error:  # the user's files can raise anything
        kind = source.architecture or "a CLIP of open_clip"
        reason = needs_packages(error) or f"cannot be loaded as {kind} ({on_one_line(error)})"
        raise InputError(f"{where}: {reason}") from error


def _text_tower(where: str, source: ClipSource, model: Any) -> TextTower:
    """The text encoder of `model` with the tokenizer of its source. InputError: the tokenizer does not fit it."""
    encode, unknown = _tokenizer(source)
    if len(ids := encode("")) != 2 or ids[0] >= ids[1]:
        raise InputError(
            f"{where}: its tokenizer must put a start token and then an end token with the highest id around a text, "
            f"not {ids}"
        )
    tower = TextTower(model, Words(encode, unknown))
    if tower.end >= len(tower.embedding):
        raise InputError(
            f"{where}: its tokenizer has {tower.end + 1} tokens, and its text encoder knows {len(tower.embedding)} of "
            f"them"
        )
    return tower


def _tokenizer(source: ClipSource) -> tuple[Callable[[str], list[int]], int | None]:
    """A function from text to token ids with SOS and EOS; and the id of unknown words, or None if the tokenizer has
    none."""
    if source.folder is None:
        import open_clip

        simple = open_clip.get_tokenizer(source.architecture)
        return lambda text: [simple.sot_token_id, *simple.encode(text), simple.eot_token_id], None
    from tokenizers import Tokenizer

    names = [str(file) for file in source.tokenizer]
    fast = Tokenizer.from_file(*names) if len(names) == 1 else _byte_pairs(*names)
    fast.no_padding()
    fast.no_truncation()
    unknown = getattr(fast.model, "unk_token", None)
    return lambda text: list(fast.encode(text).ids), None if unknown is None else fast.token_to_id(unknown)


def _byte_pairs(vocabulary: str, merges: str) -> Any:
    """CLIP's tokenizer from vocab.json and merges.txt. ValueError: they do not belong together, or one is truncated."""
    from tokenizers.models import BPE
    from transformers import CLIPTokenizer

    words, pairs = BPE.read_file(vocabulary, merges)
    joined = {first + second for first, second in pairs}
    single = re.compile(r".(</w>)?|<\|.*\|>")  # a byte, or a special token
    if unmade := [word for word in words if word not in joined and not single.fullmatch(word)]:
        raise ValueError(f"merges.txt makes none of {len(unmade)} words in vocab.json, {min(unmade)!r} first")
    return CLIPTokenizer(vocab=words, merges=pairs).backend_tokenizer


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Keep open_clip's log messages off the terminal, and its handler off the root logger."""
    root, handler, level = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
        root.removeHandler(handler)
