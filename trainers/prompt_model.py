"""Soft prompts in a frozen CLIP: class features, predictions and gradients of single records.

The prompt of class c is [SOS][b context vectors][name of c]["."][EOS]; the b context vectors are called the prompt, and
all classes share them. With class contexts (`--class-contexts`) every class has b vectors of its own: a prompt is then
[C, b, d] wherever [b, d] is written here and in `prompts`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.backbones.clip import ClassTexts, FrozenCLIP, ImageFeatures
from fedaudit.machinery.devices import double
from fedaudit.machinery.errors import InputError
from fedaudit.trainers.base import State

if TYPE_CHECKING:
    from fedaudit.trainers.prompt_settings import PromptSettings
    from fedaudit.trainers.prompts import PromptMethod

HARD_PROMPT = "a photo of a"  # CLIP's own template is "a photo of a {class}."
TOGETHER = 50  # clients at most that are one batch: more save no time
# bytes that a pass may hold: more are slower on a processor; Apple's GPU shares the machine's memory
MEMORY = {"cpu": 600_000_000, "cuda": 12_000_000_000, "mps": 2_000_000_000}
COPIES = 3  # of text features that are held for each record
BACK = 16  # gradients that go back together take this part of them at most
SCORED = 5  # numbers that are held for each similarity of a patch and a prompt; of an image 3
ROWS = 8  # least number of prompts times records in a backward pass; measured on two kinds of text encoder
EVALUATED = 256  # test images at once
HALF = 2e-3  # relative: what storing a start token in half precision changes

# text features [N, .., C, E] and images [N or 1, B, ..] to similarities [N, B, C]
Scores = Callable[[Tensor, Tensor], Tensor]


class PromptModel:
    """A frozen CLIP, the features of the records' images, and what prompts make of them."""

    def __init__(
        self,
        clip: FrozenCLIP,
        features: ImageFeatures,
        labels: Mapping[str, int],
        classes: Sequence[str],
        settings: PromptSettings,
        memory: int = 0,
    ) -> None:
        self.clip, self.features, self.classes, self.settings = clip, features, tuple(classes), settings
        self.memory = memory or MEMORY.get(clip.device.type, MEMORY["cuda"])
        self.scale = clip.scale
        self._labels = labels
        self._texts: dict[int, ClassTexts] = {}
        self.texts(settings.prompt_length)  # raises at once if prompts are too long for the text encoder

    def clients_per_batch(self, method: Any) -> int:
        """Number of clients that are trained, and of models that are evaluated, as one batch: as many as fit into
        `memory`, at least one. It is a function of `memory` alone, not of what is free: numbers that are added in other
        batches round otherwise."""
        return max(1, min(TOGETHER, self.memory // self.client_bytes(method)))

    def client_bytes(self, method: Any) -> int:
        """Bytes that a client's local step holds: the text encoder's pass, and for each record of the batch a copy of
        the text features, its gradient and the similarities."""
        forward, _ = self.clip.text_memory(
            self.texts(self.settings.prompt_length), by_class=self.settings.class_contexts
        )
        copies = COPIES * 4 * method.prompts * len(self.classes) * self.clip.embed
        return int(method.prompts * forward + self.settings.batch * (copies + self._scores_bytes(method)))

    def _scores_bytes(self, method: PromptMethod) -> int:
        """Bytes that a model's similarities with one image hold."""
        each = SCORED * method.prompts * self._patches if method.patches else 3
        return 4 * len(self.classes) * each

    @functools.cached_property
    def _patches(self) -> int:
        """Number of an image's patches."""
        return self.images([next(iter(self._labels))], patches=True).shape[1]

    def _at_once(self, method: PromptMethod, models: int) -> int:
        """Number of images whose similarities with so many models fit into memory, at least one."""
        return max(1, self.memory // (models * self._scores_bytes(method)))

    def check_start(self, embedding: Tensor) -> None:
        """InputError unless `embedding` [.., d], the start token's where prompts were trained, is this text encoder's:
        prompts of another model mean nothing here."""
        expected = self.clip.start_token
        rows = embedding.reshape(-1, embedding.shape[-1])
        if rows.shape[1] != len(expected):
            raise InputError(f"its text encoder has width {rows.shape[1]}, and this CLIP has width {len(expected)}")
        distance = float((rows - expected).norm(dim=1).max() / expected.norm())
        if distance > HALF:
            raise InputError(
                f"its start token (token_prefix) is {distance:.2g} of its length away from that of this CLIP: the "
                "prompts were trained on another model"
            )

    def check_width(self, state: State) -> None:
        """InputError unless the prompts p_G and p_L of a state, [.., d], have the width of the text encoder."""
        if other := {t.shape[-1] for name, t in state.items() if name in ("p_G", "p_L")} - {self.clip.width}:
            raise InputError(
                f"its prompts are vectors of {other.pop()} numbers, and those of this CLIP have {self.clip.width}"
            )

    def text(self, prompt: Tensor) -> Tensor:
        """Class features [.., C, E], of length 1 and on the model's device, of prompts [.., b, d] on any device; with
        class contexts of prompts [.., C, b, d], class c with the c-th context."""
        encode = self.clip.text_by_class if self.settings.class_contexts else self.clip.text
        return encode(prompt.to(self.clip.device), self.texts(prompt.shape[-2]))

    @property
    def hard(self) -> Tensor:
        """The words [n, d] of the public hard prompt; with class contexts [C, n, d], the same for every class."""
        words = self.clip.words(HARD_PROMPT)
        return words.repeat(len(self.classes), 1, 1) if self.settings.class_contexts else words

    def texts(self, length: int) -> ClassTexts:
        """The tokens that surround a prompt of `length` vectors in the text of every class; computed once per
        length."""
        if length not in self._texts:
            self._texts[length] = self.clip.classes(self.classes, length)
        return self._texts[length]

    def images(self, records: Sequence[str], *, patches: bool = False) -> Tensor:
        """Image features [n, E] of records, or of their M patches [n, M, E], on the model's device."""
        return self.features.patches(records) if patches else self.features.rows(records)

    def labels(self, records: Sequence[str]) -> Tensor:
        """Class indices [n] of records, on the host."""
        return torch.tensor([self._labels[record] for record in records], dtype=torch.int64)

    def summed_loss(self, scores: Scores, text: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy summed over n records. Each has its own copy of the text features [n, .., C, E], so that the
        gradient in its copy is its own."""
        logits = self.scale * scores(text, images[:, None])[:, 0]
        return F.cross_entropy(logits, labels, reduction="sum")

    def record_gradients(
        self, method: PromptMethod, text: Callable[[Tensor], Tensor], at: Tensor, records: Sequence[str]
    ) -> Tensor:
        """Gradients [n, ..] of each record's cross-entropy in the argument of `text`, at the value `at` [..]. `text`
        maps it to class features [.., C, E].

        The text encoder runs forward once; only each record's gradient in the features is taken back through it.
        """
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            features = text(at)
        images = self.images(records, patches=method.patches)
        labels = self.labels(records).to(images.device)
        copies = features.detach().expand(len(records), *features.shape)
        above = torch.func.grad(functools.partial(self.summed_loss, method.scores))(copies, images, labels)
        return self.backward(features, at, above)

    def backward(self, text: Tensor, at: Tensor, above: Tensor) -> Tensor:
        """Gradients [n, ..] in the leaf `at` [..], from n gradients `above` [n, ..] in the text features `text` made of
        it.

        A backward pass through the text encoder takes several of them if `at` holds few prompts, and one if it holds
        ROWS or more, or if several take much memory: they would only spill the cache.
        """
        back = functools.partial(torch.autograd.grad, text, at, retain_graph=True)
        _, each = self.clip.text_memory(self.texts(at.shape[-2]), by_class=self.settings.class_contexts)
        fit = self.memory // BACK // (each * math.prod(text.shape[:-2]))
        together = min(ROWS // math.prod(at.shape[:-2]), fit)
        if together < 2 or len(above) < 2:
            return torch.stack([back(one)[0] for one in above])
        return torch.cat([back(some, is_grads_batched=True)[0] for some in above.split(together)])

    def gradients(self, method: PromptMethod, model: State, records: Sequence[str]) -> Iterator[Tensor]:
        """Yield once the gradients [n, P] of each record's cross-entropy in the model's prompt, laid end to end."""
        yield self.record_gradients(method, self.text, model["prompt"], records).flatten(1)

    def sent_gradients(self, method: PromptMethod, start: State, records: Sequence[str]) -> Iterator[Tensor]:
        """Yield once the gradients [n, b, d] of all n records' cross-entropies in p_G, at the state `start`."""

        def text(p_G: Tensor) -> Tensor:
            return self.text(method.prompt(start | {"p_G": p_G}))

        yield self.record_gradients(method, text, start["p_G"], records)

    @torch.no_grad()
    def log_probs(self, method: PromptMethod, models: Sequence[State], records: Sequence[str]) -> NDArray[np.float64]:
        """Log-probabilities [M, n, C] in nats and float64 that M models give the C classes of n records."""
        images = self.images(records, patches=method.patches)
        prompts = torch.stack([model["prompt"] for model in models])
        logits = []
        for part in prompts.split(self.clients_per_batch(method)):
            text = self.text(part)
            scores = [method.scores(text, some[None]) for some in images.split(self._at_once(method, len(part)))]
            logits.append(self.scale * double(torch.cat(scores, dim=1)))
        logs: NDArray[np.float64] = torch.cat(logits).log_softmax(-1).cpu().numpy()
        return logs

    @torch.no_grad()
    def untrained(self, records: Sequence[str]) -> NDArray[np.float64]:
        """Log-probabilities [n, C] in nats and float64 that the public hard prompt, "a photo of a ...", gives the C
        classes of n records."""
        text = self.text(self.hard[None])
        scores = self.scale * double(cosine_scores(text, self.images(records)[None]))
        logs: NDArray[np.float64] = scores[0].log_softmax(-1).cpu().numpy()
        return logs

    def recognised(self, models: Sequence[State], records: Sequence[str], method: PromptMethod) -> NDArray[np.bool_]:
        """Whether the prompt of each of N clients names the right class of each record, bool [N, n]."""
        right: NDArray[np.bool_] = self.predicted(models, records, method) == self.labels(records).numpy()
        return right

    @torch.no_grad()
    def predicted(self, models: Sequence[State], records: Sequence[str], method: PromptMethod) -> NDArray[np.int64]:
        """Class indices [N, n] that the prompts of N clients predict."""
        prompts = torch.stack([model["prompt"] for model in models])
        if (prompts == prompts[:1]).all():  # a method without personal part
            prompts = prompts[:1]
        text = self.text(prompts)
        text = text.expand(len(models), *text.shape[1:])
        images = self.images(records, patches=method.patches)
        size = min(EVALUATED, self._at_once(method, len(models)))
        classes = [method.scores(text, part[None]).argmax(-1) for part in images.split(size)]
        return torch.cat(classes, dim=1).cpu().numpy()


def cosine_scores(text: Tensor, images: Tensor) -> Tensor:
    """Cosine similarities [N, B, C] of text features [N, C, E] and images [N or 1, B, E]; both have length 1."""
    return images @ text.mT
