"""Completes command lines in bash, zsh and fish by argcomplete: flags, which depend on the words before, and names.
Imports nothing heavy."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedaudit.attacks.facts import ATTACKS
from fedaudit.audits.facts import AUDITS
from fedaudit.command import choices, flags, plugin_folders
from fedaudit.command.config import preset_summaries, preset_words
from fedaudit.command.listing import PARTS
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugins
from fedaudit.reports import paper_items
from fedaudit.tasks.facts import TASKS
from fedaudit.trainers.learners import METHODS

Names = Mapping[str, str]  # what stands for each name beside it, where a shell shows that
TrainingParser = Callable[..., tuple[flags.Parser, Mapping[str, type[Any]], Mapping[str, type[Any]]]]


def answer(training_parser: TrainingParser) -> None:
    """Write what may stand at the cursor of the shell's line for argcomplete, and end the process. `training_parser` is
    that of `fedaudit.command.cli`."""
    import argcomplete

    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", "0"))
    parser = parser_of(words_before(line, point), training_parser)
    for action in parser._actions:
        if names := NAMES.get(action.dest):
            action.completer = _completer(names)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def words_before(line: str, point: int) -> list[str]:
    """The whole words of the command before the word at the cursor, without a flag whose value that is."""
    before = line[:point]
    try:
        words = shlex.split(before)
    except ValueError:  # within quotes
        return []
    words = words if before.endswith(" ") else words[:-1]
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    words = words[first:]
    return words[:-1] if words and words[-1].startswith("--") and "=" not in words[-1] else words


def parser_of(words: Sequence[str], training_parser: TrainingParser) -> flags.Parser:
    """A parser of the flags that go with these words; with those of the command alone where they are wrong."""
    first = flags.Parser(add_help=False, allow_abbrev=False)
    flags.add_choices(first)
    try:
        plugin_folders.use(words)
        chosen, _ = first.parse_known_args(words)
        chosen, _ = first.parse_known_args([*preset_words(chosen.preset), *words])
        methods, task, learner = choices.read_methods(chosen)
        attacks = choices.read_attacks(chosen.attack, learner)
        parser, groups, swept = training_parser(methods, task, learner, attacks, chosen.audit)
    except InputError:
        return parser_of([], training_parser) if words else first
    for title, params in {**swept, **groups}.items():
        flags.add_fields(parser, title, params)
    return parser


def _of_kind(of_kind: Plugins[Any], *others: str) -> Callable[[], Names]:
    return lambda: {name: plugin.summary for name, plugin in of_kind.items()} | dict.fromkeys(others, "")


def _papers() -> Names:
    items = {name: item.summary for name, item in paper_items.items().items()}
    return items | dict.fromkeys([*paper_items.papers(), paper_items.ALL, "list"], "")


NAMES: dict[str, Callable[[], Names]] = {
    "method": _of_kind(METHODS),
    "attack": _of_kind(ATTACKS, "all", "none"),
    "audit": _of_kind(AUDITS, "all"),
    "task": _of_kind(TASKS),
    "preset": preset_summaries,
    "paper": _papers,
    "list": lambda: dict.fromkeys(PARTS, ""),
}  # what a flag names, by its field


def _completer(names: Callable[[], Names]) -> Callable[..., Names]:
    """A completer of argcomplete: the names behind what stands before the last comma."""

    def complete(prefix: str, parsed_args: argparse.Namespace, **others: object) -> Names:
        head, comma, last = prefix.rpartition(",")
        chosen = {*head.split(",")}
        return {f"{head}{comma}{n}": about for n, about in names().items() if n.startswith(last) and n not in chosen}

    return complete
