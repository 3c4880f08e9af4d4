"""Tables for the window that they are printed in: no name of a row and no number is ever cut. Imports nothing heavy."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 80  # columns: tables are no narrower, and a narrower window wraps their lines
UNSEEN = 200  # columns where output goes into a file or a pipe: nobody can widen that
INDENT = "  "

Groups = Mapping[str, Sequence[Sequence[str]]]  # rows of cells under the name that they share


@dataclass(frozen=True)
class WindowColumn:
    """A column of a table. Numbers stand to the right in one piece; text may go on in further lines, in a narrow window
    of `least` columns."""

    head: str
    least: int | None = None  # of text

    @property
    def is_text(self) -> bool:
        return self.least is not None


def open_console() -> Console:
    """What tables are printed on."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    wide = max(LEAST, console.width) if console.is_terminal else UNSEEN
    return Console(markup=False, highlight=False, width=wide)


def columns_of_window() -> int | None:
    """How wide the window is in which stdout is seen; None where that is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(console: Console, title: str, columns: Sequence[WindowColumn], groups: Groups) -> None:
    """Print rows under the names of their groups: a name has a line of its own, so that a long one takes no column."""
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
    """Whether no interval goes on in a second line."""
    return _wide(_narrowed(columns, _sizes(columns, groups), width), gap=1) <= width


def lines(columns: Sequence[WindowColumn], groups: Groups, width: int) -> list[list[str]]:
    """The lines of the heads, then of each group's rows, none longer than the width if intervals in a line of their own
    make that possible."""
    if not fits(columns, groups, width):
        groups = {name: [[_interval_below(cell) for cell in row] for row in rows] for name, rows in groups.items()}
    sizes = _sizes(columns, groups)
    gap = 2 if _wide(sizes, gap=2) <= width else 1
    sizes = _narrowed(columns, sizes, width)
    heads = _row([column.head for column in columns], columns, sizes, gap)
    return [heads, *([line for row in rows for line in _row(row, columns, sizes, gap)] for rows in groups.values())]


def listed(named: Mapping[str, str], width: int | None, indent: str = INDENT) -> list[str]:
    """Lines of names with a text behind each, which goes on below itself where the window is narrow."""
    start = len(indent) + max(map(len, named)) + 2
    return [line for name, text in named.items() for line in hanging(f"{f'{indent}{name}':<{start}}", text, width)]


def hanging(start: str, text: str, width: int | None) -> list[str]:
    """The text behind a start, in a narrow window in several lines below each other."""
    first, *more = textwrap.wrap(text, max(1, width - len(start)), break_on_hyphens=False) if width else [text]
    return [start + first, *(" " * len(start) + line for line in more)]


def _sizes(columns: Sequence[WindowColumn], groups: Groups) -> list[int]:
    """Columns that each column takes where nothing of it goes on in a second line."""
    every = [[column.head for column in columns], *(row for rows in groups.values() for row in rows)]
    return [max(len(line) for row in every for line in row[i].split("\n")) for i in range(len(columns))]


def _wide(sizes: Sequence[int], *, gap: int) -> int:
    return len(INDENT) + sum(sizes) + gap * (len(sizes) - 1)


def _narrowed(columns: Sequence[WindowColumn], sizes: Sequence[int], width: int) -> list[int]:
    """The sizes, those of text smaller where the table is wider than the window, the last one first."""
    narrowed = list(sizes)
    for i in reversed(range(len(columns))):
        if (least := columns[i].least) is not None:
            narrowed[i] -= min(max(0, _wide(narrowed, gap=1) - width), max(0, narrowed[i] - least))
    return narrowed


def _row(cells: Sequence[str], columns: Sequence[WindowColumn], sizes: Sequence[int], gap: int) -> list[str]:
    parts = [
        _folded(cell, size) if column.is_text else cell.split("\n")
        for cell, column, size in zip(cells, columns, sizes, strict=True)
    ]
    made = []
    for at in range(max(map(len, parts))):
        pieces = [
            f"{part[at] if at < len(part) else '':{'<' if column.is_text else '>'}{size}}"
            for part, column, size in zip(parts, columns, sizes, strict=True)
        ]
        made.append((INDENT + (" " * gap).join(pieces)).rstrip())
    return made


def _folded(text: str, size: int) -> list[str]:
    """The text in lines, which break behind blanks, slashes and hyphens if they can."""
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
