"""Records as a language model reads them, one by one and in padded batches; image embeddings in memory or on disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.machinery.store import Folder
from fedaudit.tasks.base import Record

IGNORE = -100  # label of a token that is no target
POSITIONS = "position_ids"


@dataclass(frozen=True, eq=False)
class EmbeddedPrompt:
    """A prompt and its picture as the language model gets them."""

    ids: Tensor  # [T_p], with one image token per image embedding
    features: Tensor  # [P, width], outputs of vision tower and connector at the image tokens
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # further inputs of the model, [T_p] or [3, T_p]


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file, read on demand."""

    file: Path
    key: str

    def read(self) -> Tensor:
        from safetensors import safe_open

        with safe_open(self.file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(self.key).clone()  # a mapped file that changes would crash the process
        return tensor


@dataclass(frozen=True, eq=False)
class Encoded:
    """One record for the language model: instruction with image tokens, then the text and the end token."""

    id: str
    ids: Tensor  # [T]
    prompt: int  # number of tokens before the text
    image: slice  # from the first image token to the last
    source: Tensor | Stored = field(repr=False)
    extra: Mapping[str, Tensor] = field(default_factory=dict, repr=False)  # further inputs, [T] or [3, T]

    @property
    def features(self) -> Tensor:
        """Outputs [P, width] of the frozen vision tower and connector at the image tokens."""
        return self.source.read() if isinstance(self.source, Stored) else self.source

    @property
    def spans(self) -> dict[str, slice]:
        """Rows of the token signals for "image", "instruction" and "caption"; row i predicts token i + 1.

        The instruction is the part behind the image: the words before it are the same for everybody and do not see the
        image. A part of n tokens has n - 1 rows, as in Li et al. (2024); the caption's rows start at the last token of
        the prompt, so that every token of the caption is predicted once.
        """
        return {
            "image": slice(self.image.start, self.image.stop - 1),
            "instruction": slice(self.image.stop, self.prompt - 1),
            "caption": slice(self.prompt - 1, len(self.ids) - 1),
        }


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded records: keyword arguments of the model's forward, and labels [B, T] (IGNORE outside the text).
    `inputs` has inputs_embeds [B, T, width], attention_mask [B, T], and other entries that the model needs."""

    inputs: dict[str, Tensor]
    labels: Tensor


def extend_input(name: str, values: Tensor, n: int, text_type: int) -> Tensor:
    """An input [..., T_p + n] of the prompt continued over `n` text tokens; positions count on, others get
    `text_type`."""
    if name != POSITIONS:
        return F.pad(values, (0, n), value=text_type)
    # text counts on from the largest position, which with three-dimensional positions is not the length
    return torch.cat([values, (values.max() + 1 + torch.arange(n)).expand(*values.shape[:-1], n)], dim=-1)


def pad_rows(rows: Sequence[Tensor], value: int = 0, *, left: bool = False) -> Tensor:
    """Rows [..., T_i], B of them, as one tensor [..., B, T], padded with `value` on the right, or on the left."""
    longest = max(row.shape[-1] for row in rows)
    gaps = [longest - row.shape[-1] for row in rows]
    return torch.stack(
        [F.pad(row, (gap, 0) if left else (0, gap), value=value) for row, gap in zip(rows, gaps, strict=True)], dim=-2
    )


def pack_tensors(records: Sequence[Record], prompts: Sequence[EmbeddedPrompt]) -> dict[str, Tensor]:
    """The embedded prompts of records as tensors, {"ids/ID", "features/ID", ...: tensor}, for one file;
    `unpack_tensors` reads it."""
    tensors: dict[str, Tensor] = {}
    for record, prompt in zip(records, prompts, strict=True):
        tensors |= {f"ids/{record.id}": prompt.ids, f"features/{record.id}": prompt.features}
        tensors |= {f"{name}/{record.id}": values for name, values in prompt.extra.items()}
    return tensors


def unpack_tensors(
    records: Sequence[Record], cache: Folder, name: str, *, in_memory: bool
) -> Iterator[tuple[EmbeddedPrompt, Tensor | Stored]]:
    """Yield from a file of `pack_tensors` each record's embedded prompt (features empty), and its image embeddings
    (`in_memory`) or where these are."""
    from safetensors import safe_open

    file = (cache.path / name).absolute()
    with safe_open(file, framework="pt") as stored:
        names = {key.partition("/")[0] for key in stored.keys()} - {"ids", "features"}  # noqa: SIM118, no mapping
        for record in records:
            ids, *rest = (stored.get_tensor(f"{n}/{record.id}").clone() for n in ("ids", *sorted(names)))
            key = f"features/{record.id}"
            source = stored.get_tensor(key).clone() if in_memory else Stored(file, key)
            yield EmbeddedPrompt(ids, torch.empty(0), dict(zip(sorted(names), rest, strict=True))), source
