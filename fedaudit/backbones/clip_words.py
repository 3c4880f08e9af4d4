"""Texts as tokens of a CLIP's text encoder, also where a small tokenizer has no token for a word."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedaudit.machinery.errors import InputError

_WORD = re.compile(r"\w+|[^\w\s]")


class Words:
    """The tokenizer of a text encoder: `encode` puts a start and an end token around a text; `unknown` is the id of
    words without a token, None for a tokenizer that has none."""

    def __init__(self, encode: Callable[[str], list[int]], unknown: int | None) -> None:
        self.encode, self.unknown = encode, unknown
        self.start, self.end = encode("")

    def tokens(self, text: str, what: str) -> list[int | str]:
        """Token ids of a text without start and end; words without a token as they are. InputError: it holds a start
        or end token; `what` names the text."""
        if self.strange([text]):
            parts = [[word] if self._is_strange(word) else self.encode(word)[1:-1] for word in _WORD.findall(text)]
            return [token for part in parts for token in part]
        ids = self.encode(text)[1:-1]
        if any(i >= self.end for i in ids):  # EOS is found as the highest id
            raise InputError(f"{what} holds a token that begins or ends a text; say it in other words")
        return [*ids]

    def strange(self, texts: Iterable[str]) -> list[str]:
        """The words of texts for which there is no token, each once."""
        if self.unknown is None:
            return []
        return [
            word for word in dict.fromkeys(w for text in texts for w in _WORD.findall(text)) if self._is_strange(word)
        ]

    def _is_strange(self, word: str) -> bool:
        """Whether a word has no token, or is spelled by tokens of letters inside a word, of which a model knows
        nothing."""
        ids = self.encode(word)[1:-1]
        spelled = 1 < len(word) == len(ids) and ids != [self.encode(letter)[1] for letter in word]
        return self.unknown in ids or spelled


def embedded(tokens: Sequence[int | str], table: Tensor) -> Tensor:
    """Embeddings [n, d] of tokens, from a `table` [vocabulary, d]. That of a word without a token follows from its
    letters alone: normal, with mean and spread of the table."""
    if not any(isinstance(token, str) for token in tokens):
        return table[torch.tensor(tokens, dtype=torch.int64, device=table.device)]
    return torch.stack([_of_letters(token, table) if isinstance(token, str) else table[token] for token in tokens])


def _of_letters(word: str, table: Tensor) -> Tensor:
    letters = unicodedata.normalize("NFC", word).casefold().encode()
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(letters).digest()))
    drawn = torch.tensor(rng.standard_normal(table.shape[1]), dtype=table.dtype, device=table.device)
    return table.mean(0) + table.std(0) * drawn
