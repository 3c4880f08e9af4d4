"""How a page is made of a template, and how what it shows is written beside it. The same input gives the same bytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pandas.api.types import is_numeric_dtype

from attacks.score_names import signal_name
from audits.verdicts import among
from reports.figures.drawing import PrintedFigure
from reports.formats import epsilon, kind, number, p_value, percent, short, signed, tau

Write = Callable[[str, bytes], None]  # name, content


def render(template: str, parts: dict[str, Any]) -> bytes:
    """A template of this folder, filled. Text is escaped; a name that is missing is an error."""
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
    environment.filters |= {"kind": kind, "p": p_value, "among": among}
    environment.filters |= {"epsilon": epsilon, "short": short, "signed": signed, "tau": tau}
    return environment


def csv(table: pd.DataFrame) -> bytes:
    """A table as CSV that a spreadsheet shows and does not compute; numbers stay as they are."""
    text = {name: column.map(_harmless) for name, column in table.items() if not is_numeric_dtype(column)}
    data: str = table.assign(**text).rename(columns=_harmless).to_csv(index=False, lineterminator="\n")
    return data.encode()


@functools.cache
def contradictions(name: str) -> list[str]:
    """Where a paper contradicts itself in its table or figure of that name (as dpfpl:table2), a sentence each; none
    where its file of contradictions is not there."""
    paper, _, item = name.partition(":")
    path = Path(__file__).parent / "papers" / f"{paper}_contradictions.csv"
    if not path.exists():
        return []
    table = pd.read_csv(path, dtype=str)
    return [str(text) for items, text in zip(table["items"], table.text, strict=True) if item in items.split()]


NUMBER = re.compile(r"-?\d+(\.\d+)?")
FORMULA = tuple(
    "=+-@\t\n\uff1d\uff0b\uff0d\uff20"
)  # how text begins that is computed, the last four in full width (OWASP, "CSV injection")


def _harmless(cell: Any) -> Any:
    """Text that would be computed behind an apostrophe, and without carriage returns, at which a cell would end."""
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    cell = cell.replace("\r", "\n")
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def write_drawings(drawings: Iterable[PrintedFigure], write: Write, *, folder: str = "figures/") -> None:
    """Every figure as SVG and PDF, with its rows; `folder` is what stands before their names."""
    for drawing in drawings:
        for end, data in (("svg", drawing.svg), ("pdf", drawing.pdf), ("csv", csv(drawing.data))):
            write(f"{folder}{drawing.name}.{end}", data)
