"""Write docs/reference/parameters.md from the files of methods, attacks, audits and tasks: `python -m docs.parameters`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fedaudit.command.listing import KINDS
from fedaudit.machinery.plugins import Plugin

FILE = Path(__file__).with_name("reference") / "parameters.md"
HEAD = """# Parameters of methods, attacks, audits and tasks

Written by `python -m docs.parameters` from the files themselves. A parameter is a flag of the command and a keyword of `fedaudit.audit`, with underscores. `python audit.py --method fedrand --help` shows those of FedRand.
"""


def text() -> str:
    """The page."""
    parts = [HEAD]
    for kind, plugins in KINDS.items():
        parts.append(f"## {kind.title()}s\n")
        parts += map(section, plugins.values())
    return "\n".join(parts)


def section(plugin: Plugin[Any]) -> str:
    """Return what a file says of itself, and a row for each of its parameters."""
    lines = [f"### {plugin.name}", plugin.summary]
    rows = [row(field) for field in dataclasses.fields(plugin.params)]
    if rows:
        lines += ["", "| flag | default | meaning | valid |", "|---|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def row(field: dataclasses.Field[Any]) -> str:
    """A parameter as a row of a table."""
    name, valid = field.name.replace("_", "-"), field.metadata.get("valid")
    flag = f"`--{name}`, `--no-{name}`" if isinstance(field.default, bool) else f"`--{name}`"
    default = {True: "on", False: "off"}[field.default] if isinstance(field.default, bool) else field.default
    cells = [flag, str(default), field.metadata["help"], valid.short if valid else ""]
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(FILE)
