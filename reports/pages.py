"""How a page is made of a template, and how what it shows is written beside it. The same input gives the same bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reports import figures
from reports.drawing import Drawing
from reports.words import epsilon, number, percent, short, signed, tau

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
    environment.filters |= {"num": number, "signal": figures.signal_name, "percent": percent}
    environment.filters |= {"epsilon": epsilon, "short": short, "signed": signed, "tau": tau}
    return environment


def csv(table: pd.DataFrame) -> bytes:
    data: str = table.to_csv(index=False, lineterminator="\n")
    return data.encode()


def write_drawings(drawings: Iterable[Drawing | None], write: Write, folder: str = "figures/") -> None:
    """Every figure as SVG and PDF, with its rows."""
    for drawing in filter(None, drawings):
        for kind, data in (("svg", drawing.svg), ("pdf", drawing.pdf), ("csv", csv(drawing.data))):
            write(f"{folder}{drawing.name}.{kind}", data)
