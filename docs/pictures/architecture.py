"""Draw docs/pictures/architecture.svg: the rooms of the code, each above all that it imports. `python -m docs.pictures.architecture`

The imports are read from the sources. A line leads from a room to one that it imports; lines that follow from others are left out.
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from fedaudit.machinery import closure

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("architecture.svg")
DOOR = "fedaudit"  # the modules that lie in no room
WORDS = {
    DOOR: "the library, the command",
    "contracts": "what every plugin must keep",
    "command": "flags, gates, nightly matrices",
    "pipeline": "train, ask, score, write",
    "reports": "pages, figures, papers' tables",
    "external": "runs trained elsewhere",
    "audits": "findings, controls, verdicts",
    "attacks": "views, scores; a file per attack",
    "trainers": "rounds; a file per method",
    "backbones": "frozen models",
    "tasks": "clients and their records",
    "privacy": "clipping, noise, ledger",
    "machinery": "store, workers, parameters",
    "terms": "words of findings as values",
}
WIDE, HIGH, BETWEEN, STEP, EDGE = 236, 52, 28, 88, 20  # a box, the room between two, from row to row, the margin
STYLE = """
svg { font: 13px system-ui, sans-serif; }
.page { fill: #fff; } .box { fill: #eef3f8; stroke: #5b7a99; } .name { font-weight: 600; fill: #16202a; }
.words { fill: #33424f; } .line { stroke: #5b7a99; fill: none; }
@media (prefers-color-scheme: dark) {
.page { fill: #14181e; } .box { fill: #22303d; stroke: #7f9db9; } .name { fill: #f2f5f8; }
.words { fill: #c3ced8; } .line { stroke: #7f9db9; }
}"""


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    folders = {path.name for path in (ROOT / "fedaudit").iterdir() if any(path.glob("*.py"))}

    def room(module: str) -> str:
        name = f"{module}.".split(".")[1]
        return name if name in folders else DOOR

    found: dict[str, set[str]] = {name: set() for name in (*sorted(folders), DOOR)}
    for folder in ("", *folders):
        for path in (ROOT / "fedaudit" / folder).glob("**/*.py" if folder else "*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            named = {room(name) for name in closure.imported(module) if name != "fedaudit"}
            found[room(module)] |= named - {room(module)}
    return found


def below(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """All that each room imports, directly or not, the lowest room first."""
    reached: dict[str, set[str]] = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        reached[name] = graph[name].union(*(reached[to] for to in graph[name]))
    return reached


def line(x: int, y: int, to_x: int, to_y: int) -> str:
    """A line down to the last row before its end, which bends there."""
    bend = to_y - (STEP - HIGH)
    middle = (bend + to_y) // 2
    return f'<path class="line" d="M{x} {y} V{bend} C{x} {middle} {to_x} {middle} {to_x} {to_y}"/>'


def drawing() -> str:
    """The figure as SVG."""
    graph = imports()
    reached = below(graph)
    depth = dict.fromkeys(reached, 0)
    for name in reversed(reached):  # every room after those that import it
        depth.update({to: max(depth[to], depth[name] + 1) for to in graph[name]})
    rows = [[name for name in WORDS if depth[name] == row] for row in range(max(depth.values()) + 1)]
    width = max(map(len, rows)) * (WIDE + BETWEEN) - BETWEEN + 2 * EDGE
    place = {
        name: (EDGE + column * (WIDE + BETWEEN), EDGE + i * STEP)
        for i, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    lines, boxes = [], []
    for name, (x, y) in place.items():
        for to in sorted(graph[name]):
            if not any(to in reached[via] for via in graph[name]):
                lines.append(line(x + WIDE // 2, y + HIGH, place[to][0] + WIDE // 2, place[to][1]))
        boxes.append(
            f'<rect class="box" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="6"/>'
            f'<text class="name" x="{x + 12}" y="{y + 21}">{escape(name)}</text>'
            f'<text class="words" x="{x + 12}" y="{y + 40}">{escape(WORDS[name])}</text>'
        )
    size = f'width="{width}" height="{2 * EDGE + (len(rows) - 1) * STEP + HIGH}"'
    view = size.replace('width="', 'viewBox="0 0 ').replace('" height="', " ")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view} {size} role="img" aria-label="The rooms of the code">'
    page = '<rect class="page" width="100%" height="100%"/>'
    return "\n".join([head, f"<style>{STYLE}\n</style>", page, *lines, *boxes, "</svg>"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(drawing(), encoding="utf-8")
    print(FILE)
