"""Tables that fit the width of the terminal; names of rows and numbers are never cut. Imports nothing heavy."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 80  # columns: a narrower terminal wraps the lines of tables
UNSEEN = 200  # columns if output goes into a file or a pipe
INDENT = "  "

Groups = Mapping[str, Sequence[Sequence[str]]]  # rows of cells, by the heading above them


@dataclass(frozen=True)
class WindowColumn:
    """A column of a table. Numbers are right-aligned; a text column may be wrapped, to a width of at least `least`."""

    head: str
    least: int | None = None  # None for numbers

    @property
    def is_text(self) -> bool:
        return self.least is not None


def open_console() -> Console:
    """A rich console on stdout, as wide as the terminal, but at least LEAST; UNSEEN if stdout is no terminal."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    wide = max(LEAST, console.width) if console.is_terminal else UNSEEN
    return Console(markup=False, highlight=False, width=wide)


def columns_of_window() -> int | None:
    """Width of the terminal; None if stdout is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print lines of text to stdout, or another stream: in a terminal wrapped between words to its width."""
    stream = stream or sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else None
    for line in text.split("\n"):
        print("\n".join(hanging("", line, width)), file=stream, flush=True)


def print_table(console: Console, title: str, columns: Sequence[WindowColumn], groups: Groups) -> None:
    """Print a table; each group of rows stands below its name, which has a line of its own."""
    console.print(title, style="italic")
    heads, *blocks = lines(columns, groups, console.width)
    for line in (*heads, "─" * max(len(line) for block in (heads, *blocks) for line in block)):
        console.print(line, soft_wrap=True)
    for name, block in zip(groups, blocks, strict=True):
        console.print(name, style="bold")
        for line in block:
            console.print(line, soft_wrap=True)
    console.print()


def fits(columns: Sequence[WindowColumn], groups: Groups, width: int) -> bool:
    """Whether the table fits the width without moving intervals to lines of their own."""
    return _total(_narrowed(columns, _sizes(columns, groups), width), gap=1) <= width


def lines(columns: Sequence[WindowColumn], groups: Groups, width: int) -> list[list[str]]:
    """[lines of the heads, lines of the first group, ...]. If needed to fit the width, text is wrapped and intervals
    "[low, high]" get lines of their own."""
    if not fits(columns, groups, width):
        groups = {name: [[_interval_below(cell) for cell in row] for row in rows] for name, rows in groups.items()}
    sizes = _sizes(columns, groups)
    gap = 2 if _total(sizes, gap=2) <= width else 1
    sizes = _narrowed(columns, sizes, width)
    heads = _row([column.head for column in columns], columns, sizes, gap)
    return [heads, *([line for row in rows for line in _row(row, columns, sizes, gap)] for rows in groups.values())]


def listed(named: Mapping[str, str], width: int | None, indent: str = INDENT) -> list[str]:
    """Lines "NAME  text" of a mapping, with aligned texts; `width` wraps them, None does not."""
    start = len(indent) + max(map(len, named), default=0) + 2
    return [line for name, text in named.items() for line in hanging(f"{f'{indent}{name}':<{start}}", text, width)]


def hanging(start: str, text: str, width: int | None) -> list[str]:
    """Lines of `start` and `text`; if `width` is given, the text is wrapped with a hanging indent."""
    if width:
        text = textwrap.fill(text, max(1, width - len(start)), break_on_hyphens=False, break_long_words=False)
    return f"{start}{text}".replace("\n", "\n" + " " * len(start)).split("\n")


def examples(text: str, width: int) -> str:
    """The lines "  COMMAND   what it does" of a text; in a window too narrow for one of them, what commands do stands
    below them."""
    if max(map(len, text.split("\n"))) <= width:
        return text
    folded: list[str] = []
    for line in text.split("\n"):
        command, *about = re.split(r"(?<=\S)\s{2,}", line)
        folded += [command, *(part for words in about for part in hanging(" " * 6, words, width))]
    return "\n".join(folded)


def _sizes(columns: Sequence[WindowColumn], groups: Groups) -> list[int]:
    """Width of each column without wrapping."""
    every = [[column.head for column in columns], *(row for rows in groups.values() for row in rows)]
    return [max(len(line) for row in every for line in row[i].split("\n")) for i in range(len(columns))]


def _total(sizes: Sequence[int], *, gap: int) -> int:
    return len(INDENT) + sum(sizes) + gap * (len(sizes) - 1)


def _narrowed(columns: Sequence[WindowColumn], sizes: Sequence[int], width: int) -> list[int]:
    """The widths of the columns, in letters, with text columns narrowed, the last one first, until the table fits
    `width` or all have their least."""
    narrowed = list(sizes)
    for i in reversed(range(len(columns))):
        if (least := columns[i].least) is not None:
            narrowed[i] -= min(max(0, _total(narrowed, gap=1) - width), max(0, narrowed[i] - least))
    return narrowed


def _row(cells: Sequence[str], columns: Sequence[WindowColumn], sizes: Sequence[int], gap: int) -> list[str]:
    """One row of a table as lines of text: several where cells are wrapped."""
    parts = [
        _folded(cell, size) if column.is_text else cell.split("\n")
        for cell, column, size in zip(cells, columns, sizes, strict=True)
    ]
    folded = []
    for at in range(max(map(len, parts))):
        pieces = [
            f"{part[at] if at < len(part) else '':{'<' if column.is_text else '>'}{size}}"
            for part, column, size in zip(parts, columns, sizes, strict=True)
        ]
        folded.append((INDENT + (" " * gap).join(pieces)).rstrip())
    return folded


def _folded(text: str, size: int) -> list[str]:
    """Wrap a text to `size` columns, after blanks, slashes and hyphens if possible."""
    folded = [""]
    for part in re.split(r"(?<=[ /-])", text):
        if folded[-1] and len(folded[-1] + part.rstrip()) > size:
            folded.append("")
        folded[-1] += part
        while len(folded[-1].rstrip()) > size:
            folded[-1:] = [folded[-1][:size], folded[-1][size:]]
    return [line.rstrip() for line in folded]


def _interval_below(cell: str) -> str:
    return cell.replace(" [", "\n[")
