"""The text encoder of a frozen CLIP as a function of learned context vectors, for many clients and classes at once.

The prompt of class c is [SOS][b context vectors][tokens of its name]["."][EOS]; its feature is read at EOS (CoOp, Zhou
et al. 2022). Three facts make the pass cheap without changing a number. The encoder is causal, so tokens after EOS do
not matter. [SOS][context] gives the same for every class, so this prefix is encoded once per client, and the tokens of
the classes attend to it. In the last layer only EOS needs a query. Where each class has a context of its own (CoOp's
CSC), its whole prompt is one row, and the rows of equally long classes are one batch.

One forward pass is followed by many backward passes, one per record. The slopes of the activations, which all of these
need, are computed once, in the forward pass.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaudit.backbones.clip_words import Words, embedded
from fedaudit.machinery.errors import InputError

KEPT = 10  # numbers per token and unit of width that a layer keeps for a backward pass, beside attention; measured
PASSED = 8  # numbers per token and unit of width of a backward pass, at most; measured
SMALL = 400  # multiplications per matrix; below it torch's batched product is an unvectorised loop


@dataclass(frozen=True, eq=False)
class ClassTexts:
    """The part of each class's prompt behind `context` vectors: its name, a full stop and EOS. All T tokens lie in
    one row without padding, classes ordered by length; a group is the classes of one length."""

    names: tuple[str, ...]  # [C]
    context: int  # b
    tokens: Tensor = field(repr=False)  # [T, d], token and positional embedding
    groups: tuple[tuple[int, int], ...]  # (classes, tokens per class), in the row's order
    places: Tensor = field(repr=False)  # [C], position of class c in this order


class TextTower:
    """The weights of an open_clip text encoder (of `CLIP` or `CustomTextCLIP`) and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Words) -> None:
        part = getattr(model, "text", model)
        self.tokenizer = tokenizer
        self.embedding: Tensor = part.token_embedding.weight  # [vocabulary, d]
        self.positions: Tensor = part.positional_embedding  # [context length, d]
        self.blocks = list(part.transformer.resblocks)
        self.ln_final, self.projection = part.ln_final, part.text_projection
        self.start, self.end = tokenizer.start, tokenizer.end

    def words(self, text: str) -> Tensor:
        """Token embeddings [n, d] of a text, without SOS and EOS."""
        return embedded(self.tokenizer.tokens(text, f"the prompt {text!r}"), self.embedding).clone()

    def classes(self, names: Sequence[str], context: int) -> ClassTexts:
        """The texts of class names. InputError names a class that is too long, or holds an end token."""
        suffixes = [[*self.tokenizer.tokens(f"{name} .", f"the class name {name!r}"), self.end] for name in names]
        return self.texts(tuple(names), suffixes, context)

    def texts(self, names: tuple[str, ...], suffixes: Sequence[Sequence[int | str]], context: int) -> ClassTexts:
        """The part of each class's prompt behind `context` vectors, from its tokens, `suffixes` [class], each ending in
        EOS. InputError: one is too long."""
        if not names:
            raise ValueError("names must hold a class")
        longest = max(range(len(names)), key=lambda c: len(suffixes[c]))
        if (length := 1 + context + len(suffixes[longest])) > len(self.positions):
            raise InputError(
                f"the prompt of class {names[longest]!r} has {length} tokens with {context} context vectors; "
                f"this text encoder reads {len(self.positions)}: give --prompt-length (for dual prompts --tokens) "
                f"{max(context - length + len(self.positions), 1)}, or a shorter name"
            )
        order = sorted(range(len(names)), key=lambda c: len(suffixes[c]))
        tokens = embedded([token for c in order for token in suffixes[c]], self.embedding)
        at = torch.tensor([1 + context + i for c in order for i in range(len(suffixes[c]))])
        groups = groupby(len(suffixes[c]) for c in order)
        return ClassTexts(
            names,
            context,
            tokens + self.positions[at],
            tuple((sum(1 for _ in same), n) for n, same in groups),
            torch.tensor(order).argsort().to(self.embedding.device),
        )

    def memory(self, texts: ClassTexts, *, by_class: bool = False) -> tuple[int, int]:
        """Bytes that one prompt's pass holds for a backward pass, and that a gradient takes there. `by_class`: each
        class has context vectors of its own."""
        prefix, width = 1 + texts.context, self.embedding.shape[1]
        names = len(texts.tokens) / len(texts.names)  # tokens of a class
        tokens = len(texts.tokens) + prefix * (len(texts.names) if by_class else 1)
        layer = (KEPT + 2 * by_class) * width + self.blocks[0].attn.num_heads * (prefix + names)
        return int(4 * tokens * layer * len(self.blocks)), 4 * PASSED * tokens * width

    def __call__(self, context: Tensor, texts: ClassTexts, deeper: Tensor | None = None) -> Tensor:
        """L2-normalised class features [..., C, E] for context vectors [..., b, d]; differentiable in both arguments.

        deeper [..., D, b, d]: replaces the outputs of the first D layers at the context positions, before the layers 2
        to D + 1 (MaPLe, Khattak et al. 2023, eq. 2).
        """
        *lead, b, d = context.shape
        _check_length(b, texts)
        flat = context.reshape(math.prod(lead), b, d)
        sos = self.embedding[self.start].expand(len(flat), 1, d)
        prefix = torch.cat([sos, flat], dim=1) + self.positions[: b + 1]  # [L, P, d]
        suffix = texts.tokens[None]  # [1, T, d] and [L, T, d] from the first layer on
        replaced = [] if deeper is None else deeper.reshape(len(flat), -1, b, d).unbind(1)
        for block, below in itertools.zip_longest(self.blocks[:-1], replaced):
            prefix, suffix = _layer(block, prefix, suffix, texts.groups)
            prefix = prefix if below is None else torch.cat([prefix[:, :1], below], dim=1)
        ends = _last_layer(self.blocks[-1], prefix, suffix, texts.groups)  # [L, C, d]
        features = self._project(ends).index_select(1, texts.places)
        return features.reshape(*lead, *features.shape[1:])

    def by_class(self, contexts: Tensor, texts: ClassTexts) -> Tensor:
        """L2-normalised class features [..., C, E] for context vectors [..., C, b, d], in which each class has its own;
        differentiable."""
        *lead, classes, b, d = contexts.shape
        _check_length(b, texts)
        if classes != len(texts.names):
            raise ValueError(f"contexts must be those of {len(texts.names)} classes, not of {classes}")
        ordered = contexts.reshape(math.prod(lead), classes, b, d).index_select(1, texts.places.argsort())
        sos = self.embedding[self.start].expand(*ordered.shape[:2], 1, d)
        prefix = torch.cat([sos, ordered], dim=2) + self.positions[: b + 1]  # [L, C, P, d]
        prefixes = prefix.split([alike for alike, _ in texts.groups], dim=1)
        suffixes = texts.tokens.split([alike * n for alike, n in texts.groups])
        ends = []
        for before, tokens, (alike, n) in zip(prefixes, suffixes, texts.groups, strict=True):
            own = tokens.unflatten(0, (alike, n)).expand(len(before), alike, n, d)
            rows = torch.cat([before, own], dim=2).flatten(0, 1)  # [L * alike, P + n, d]
            for block in self.blocks[:-1]:
                rows = _row_layer(block, rows, rows.shape[1])
            ends.append(_row_layer(self.blocks[-1], rows, 1).reshape(-1, alike, d))
        features = self._project(torch.cat(ends, dim=1)).index_select(1, texts.places)
        return features.reshape(*lead, *features.shape[1:])

    def _project(self, ends: Tensor) -> Tensor:
        """L2-normalised features [.., E] from the last block's outputs [.., d] at EOS."""
        x = self.ln_final(ends)
        if self.projection is not None:
            x = x @ self.projection if isinstance(self.projection, Tensor) else self.projection(x)
        return F.normalize(x, dim=-1)


def _check_length(vectors: int, texts: ClassTexts) -> None:
    """Raise ValueError unless the class texts were made for contexts of so many vectors."""
    if vectors != texts.context:
        raise ValueError(
            f"context must hold {texts.context} vectors, for which the class texts were made, not {vectors}"
        )


def _row_layer(block: Any, rows: Tensor, last: int) -> Tensor:
    """Outputs [R, last, d] of a residual block at the last tokens of R whole prompts [R, n, d]."""
    normed = block.ln_1(rows)
    (q,) = heads(block, normed[:, -last:], 0, 1)
    k, v = heads(block, normed, 1, 3)
    scores = q @ k.mT + _causal(rows.shape[1], rows)[-last:]
    return after_attention(block, rows[:, -last:], torch.softmax(scores, dim=-1) @ v)


def _layer(block: Any, prefix: Tensor, suffix: Tensor, groups: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """(Prefix [L, P, d], suffix tokens [L, T, d]) after one residual block, for prefix [L, P, d] and suffix tokens [1
    or L, T, d] of L contexts; `groups` are (classes, tokens of each) in the suffix."""
    q, k, v = heads(block, block.ln_1(prefix), 0, 3)
    own_q, own_k, own_v = heads(block, block.ln_1(suffix), 0, 3)
    attended = torch.softmax(q @ k.mT + _causal(q.shape[2], q), dim=-1) @ v
    own_attended = _attend(own_q, own_k, own_v, k, v, [(classes, n, n) for classes, n in groups])
    return after_attention(block, prefix, attended), after_attention(block, suffix, own_attended)


def _last_layer(block: Any, prefix: Tensor, suffix: Tensor, groups: Sequence[tuple[int, int]]) -> Tensor:
    """Outputs [L, C, d] of the last residual block at the EOS of each of C classes, for prefix [L, P, d] and suffix
    tokens [1 or L, T, d] of L contexts."""
    k, v = heads(block, block.ln_1(prefix), 1, 3)
    normed = block.ln_1(suffix)
    own_k, own_v = heads(block, normed, 1, 3)
    (own_q,) = heads(block, _ends(normed, groups), 0, 1)
    attended = _attend(own_q, own_k, own_v, k, v, [(classes, 1, n) for classes, n in groups])
    return after_attention(block, _ends(suffix, groups), attended)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, groups: Sequence[tuple[int, int, int]]
) -> Tensor:
    """Attention output [L, heads, rows, e] of suffix tokens [1 or L, heads, rows, e] over the prefix [L, heads, P, e]
    and the tokens of their own class.

    groups: (classes, queries per class, keys per class); the queries are the last tokens of a class.
    """
    by_query = [classes * queries for classes, queries, _ in groups]
    by_key = [classes * keys for classes, _, keys in groups]
    shared = (q @ prefix_k.mT).split(by_query, 2)  # [L, heads, rows, P]
    parts = zip(groups, shared, q.split(by_query, 2), k.split(by_key, 2), v.split(by_key, 2), strict=True)
    outputs = []
    for (classes, queries_each, keys_each), before, queries, keys, values in parts:
        own_scores = _own_scores(queries, keys, classes, queries_each, keys_each).flatten(2, 3)
        scores = torch.cat([before, own_scores.expand(len(before), -1, -1, -1)], dim=-1)
        weights, own_scores = scores.softmax(-1).split([before.shape[-1], keys_each], dim=-1)
        own_values = _product(
            own_scores.unflatten(2, (classes, queries_each)), values.unflatten(2, (classes, keys_each))
        )
        outputs.append(weights @ prefix_v + own_values.flatten(2, 3))
    return torch.cat(outputs, dim=2)


def _own_scores(q: Tensor, k: Tensor, classes: int, queries: int, keys: int) -> Tensor:
    """Scores [1 or L, heads, classes, queries, keys] within each class; minus infinity for later tokens."""
    scores = _product(q.unflatten(2, (classes, queries)), k.unflatten(2, (classes, keys)).mT)
    return scores + _causal(keys, q)[-queries:]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of many matrices [.., n, m] and [.., m, k]; small ones entry by entry, the longer of m and k in rows."""
    (n, m), k = a.shape[-2:], b.shape[-1]
    if n * m * k >= SMALL:
        return a @ b
    if m > k:
        return (a[..., :, None, :] * b.mT[..., None, :, :]).sum(-1)
    return (a[..., None] * b[..., None, :, :]).sum(-2)


def heads(block: Any, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
    """The projections of x [L, n, d] to queries (0), keys (1) and values (2), from `first` up to but without `last`:
    each [L, heads, n, e]. Queries are scaled by 1 / sqrt(e)."""
    attention = block.attn
    maps = [*zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)][first:last]
    projections = [
        F.linear(x, weight, bias).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for weight, bias in maps
    ]
    return tuple(projections) if first else (projections[0] / math.sqrt(attention.head_dim), *projections[1:])


def after_attention(block: Any, x: Tensor, attended: Tensor) -> Tensor:
    """The rest of a residual block after attention. x: [1 or L, n, d]; attended: attention output [L, heads, n, e]."""
    x = x + block.ls_1(block.attn.out_proj(attended.transpose(1, 2).flatten(2)))
    inner = block.ln_2(x)
    for part in block.mlp:
        inner = _activated(part, inner) if part is block.mlp.gelu else part(inner)
    output: Tensor = x + block.ls_2(inner)
    return output


def _activated(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x), entry by entry; with gradients enabled its slope is computed at once."""
    if not torch.is_grad_enabled():
        return function(x)
    output: Tensor = _Activation.apply(x, function)[0]
    return output


class _Activation(torch.autograd.Function):
    """An activation that stores its slope, so that a backward pass only multiplies. Differentiable once."""

    @staticmethod
    def forward(x: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            y = function(at)
        (slope,) = torch.autograd.grad(y, at, torch.ones_like(y))
        return y.detach(), slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, above: Tensor, above_slope: Tensor | None) -> tuple[Tensor, None]:
        if above_slope is not None:
            raise NotImplementedError("the text encoder has no second derivative in the prompt")
        (slope,) = ctx.saved_tensors
        return above * slope, None


def _ends(x: Tensor, groups: Sequence[tuple[int, int]]) -> Tensor:
    """The last token of every class: [L, T, d] to [L, C, d]."""
    parts = x.split([classes * n for classes, n in groups], dim=1)
    return torch.cat([part.unflatten(1, (-1, n))[:, :, -1] for part, (_, n) in zip(parts, groups, strict=True)], dim=1)


def _causal(n: int, like: Tensor) -> Tensor:
    """The causal mask [n, n]: minus infinity for later tokens."""
    return torch.full((n, n), -math.inf, dtype=like.dtype, device=like.device).triu(1)
