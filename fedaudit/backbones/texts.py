"""Checks of texts with a language model's tokenizer alone, before any weights are loaded."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedaudit.backbones.model_folders import unloadable
from fedaudit.machinery.errors import InputError
from fedaudit.tasks.base import IMAGE, Record


def check_texts(path: Path, records: Iterable[Record]) -> None:
    """Raise InputError for the first record with more tokens than the language model in folder `path` has positions.

    An image token counts as one here; their real number is known, and checked, once the picture was encoded. InputError
    too if configuration or tokenizer cannot be opened.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        limit = positions(config)
    except Exception as error:  # the user's files can raise anything
        raise unloadable(path, error, "an image-text-to-text model") from error
    for record in records:
        text = f"{record.prompt.replace(IMAGE, '')} {record.text}"
        check_length(record, len(tokenizer(text, add_special_tokens=False)["input_ids"]) + 1, limit, path)


def positions(config: Any) -> int | None:
    """The number of positions of a configuration's language model; None if it does not tell."""
    number = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return number if isinstance(number, int) and number > 0 else None


def check_length(record: Record, tokens: int, limit: int | None, path: Path) -> None:
    """Raise InputError if a record has more tokens than `limit`, the positions of the model in `path` (None:
    unknown)."""
    if limit is not None and tokens > limit:
        raise InputError(
            f"{record.called}: with its prompt the text has {tokens} tokens, and the language model of {path} reads "
            f"{limit}; shorten it"
        )
