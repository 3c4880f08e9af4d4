"""Render templates, and write tables and figures as files. Equal input gives equal bytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pandas.api.types import is_numeric_dtype

from fedaudit.attacks.score_names import signal_name
from fedaudit.audits.verdicts import among
from fedaudit.reports.doubts import verdict_word
from fedaudit.reports.figures.drawing import PrintedFigure
from fedaudit.reports.formats import duration, epsilon, kind, number, p_value, percent, short, signed, tau

Write = Callable[[str, bytes], None]  # name, content


def render(template: str, parts: dict[str, Any]) -> bytes:
    """Render a template of this folder with the variables `parts`. Text is escaped; an undefined variable raises."""
    return _environment().get_template(template).render(parts).encode()


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["contradictions"] = contradictions
    environment.filters |= {"num": number, "signal": signal_name, "percent": percent}
    environment.filters |= {"kind": kind, "p": p_value, "among": among, "shown": verdict_word}
    environment.filters |= {"epsilon": epsilon, "short": short, "signed": signed, "tau": tau, "duration": duration}
    return environment


def csv(table: pd.DataFrame) -> bytes:
    """A table as CSV (UTF-8), in which text that a spreadsheet would compute as a formula begins with an apostrophe."""
    text = {name: column.map(_escape_formula) for name, column in table.items() if not is_numeric_dtype(column)}
    data: str = table.assign(**text).rename(columns=_escape_formula).to_csv(index=False, lineterminator="\n")
    return data.encode()


@functools.cache
def contradictions(name: str) -> list[str]:
    """Sentences on where a paper contradicts itself in an item such as dpfpl:table2; empty without such a file."""
    paper, _, item = name.partition(":")
    path = Path(__file__).parent / "papers" / f"{paper}_contradictions.csv"
    if not path.exists():
        return []
    table = pd.read_csv(path, dtype=str)
    return [str(text) for items, text in zip(table["items"], table.text, strict=True) if item in items.split()]


NUMBER = re.compile(r"-?\d+(\.\d+)?")
FORMULA = tuple("=+-@\t\n\uff1d\uff0b\uff0d\uff20")  # how formulas begin (OWASP, "CSV injection")


def _escape_formula(cell: Any) -> Any:
    """A cell with carriage returns, which would end it, as line feeds, and with an apostrophe before a formula."""
    if not isinstance(cell, str) or not (cell.startswith(FORMULA) or "\r" in cell) or NUMBER.fullmatch(cell):
        return cell
    cell = cell.replace("\r", "\n")
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def write_drawings(drawings: Iterable[PrintedFigure], write: Write, *, folder: str = "figures/") -> None:
    """Write every figure as NAME.svg, NAME.pdf and its data as NAME.csv; `folder` is put before the names."""
    for drawing in drawings:
        for end, data in (("svg", drawing.svg), ("pdf", drawing.pdf), ("csv", csv(drawing.data))):
            write(f"{folder}{drawing.name}.{end}", data)
