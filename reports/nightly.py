"""The pages of a night: what ran, which limits were crossed, what changed beyond its band, and every number over the
nights; as a page that stands alone, as tables, as JUnit XML and as Markdown for a CI job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

import pandas as pd
from markupsafe import Markup, escape

from attacks.score_names import signal_name
from audits.statistics.nights import BASE, BLIND, LEVEL, VALUE, WINDOW, Series
from fedaudit.terms.verdicts import VERDICTS
from reports.formats import number, p_value
from reports.templates import csv, render

COMPUTED, REUSED, FAILED = "computed", "reused", "failed"
LINES = 60  # of the Markdown summary, at most
SHOWN = 12  # lines of each of its lists
NIGHTS = 30  # that the page lists
WIDTH, HEIGHT, EDGE = 150, 30, 4  # of a sparkline, in pixels
Records = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class CellOfNight:
    """What became of a cell: `cell` names it where seeds are repetitions, `report` is its folder below --out, `held`
    and `crossed` are the limits that it answered, those that are crossed with a sentence for each number, `silent`
    those that its numbers could not answer."""

    name: str
    cell: str
    status: str
    seconds: float
    why: str = ""
    report: str = ""
    held: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    crossed: Mapping[str, Sequence[str]] | None = None

    @property
    def record(self) -> dict[str, Any]:
        """In plain types."""
        lists = {"held": list(self.held), "silent": list(self.silent), "crossed": self.over}
        return {**asdict(self), "seconds": round(self.seconds, 1), **lists}

    @property
    def over(self) -> dict[str, list[str]]:
        """The limits that are crossed, each with its sentences."""
        return {limit: list(said) for limit, said in (self.crossed or {}).items()}


def rendered(
    name: str, night: int, cells: Sequence[CellOfNight], told: pd.DataFrame, history: pd.DataFrame, records: Records
) -> dict[str, bytes]:
    """The files of a night by name, the page last. `told` is what `audits.statistics.nights.judged` says of all
    nights."""
    tonight = told[told.night == night]
    rows = tonight[tonight.event != ""].sort_values("alarm", ascending=False, kind="stable")
    changes = [_event(row, history, night) for row in rows.to_dict("records")]
    common = _common([cell.cell for cell in cells])
    limits = stated(cells)
    said = sentence(cells, sum(e["alarm"] for e in changes), limits, first=told.night.nunique() < 2)
    parts = {
        "name": name, "night": night, "ran": records.get(night, {}), "sentence": said,
        "cells": [_cell(cell, history[history.night == night], common) for cell in cells],
        "common": ", ".join(common), "limits": limits, "events": [_shortened(e, common) for e in changes],
        "series": [_shortened(row, common) for row in _series(told, night)], "several": told.night.nunique() > 1,
        "nights": _nights(told, records), "level": round(100 * LEVEL), "window": WINDOW,
    }  # fmt: skip
    return {
        "changes.csv": csv(told),
        "cells.csv": csv(pd.DataFrame([_flat(cell) for cell in cells])),
        "junit.xml": junit(name, cells, changes, str(records.get(night, {}).get("started", ""))),
        "summary.md": summary(f"{name}, night {night}", said, cells, changes, limits),
        "index.html": render("nightly.html", parts),
    }


def events(told: pd.DataFrame, night: int) -> tuple[list[str], list[str]]:
    """A line per change, new or healed leak or drift of a night, and per leak that is shown for the first time."""
    rows = told[(told.night == night) & (told.event != "")].sort_values("alarm", ascending=False, kind="stable")
    said = [(bool(row["alarm"]), _said(row)) for row in rows.to_dict("records")]
    return [line for alarm, line in said if alarm], [line for alarm, line in said if not alarm]


def sentence(cells: Sequence[CellOfNight], changes: int, limits: Sequence[Mapping[str, Any]], *, first: bool) -> str:
    """The night in a sentence; `first`: there is none before it."""
    count = {status: sum(cell.status == status for cell in cells) for status in (COMPUTED, REUSED, FAILED)}
    crossed, silent = (sum(bool(limit[what]) for limit in limits) for what in ("crossed", "silent"))
    told = f"{crossed} of {_count(len(limits), 'limit')} crossed" if crossed else f"{_count(len(limits), 'limit')} held"
    told += f", {silent} without an answer" if silent else ""
    changed = f"{_count(changes, 'change')} beyond the band of earlier nights" if changes else "no change beyond noise"
    failed = f", {count[FAILED]} failed" if count[FAILED] else ""
    ran = f"{_count(len(cells), 'cell')}: {count[COMPUTED]} computed, {count[REUSED]} as before{failed}"
    return f"{ran}; {told if limits else 'no limit stated'}; {'the first night' if first else changed}."


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def stated(cells: Sequence[CellOfNight]) -> list[dict[str, Any]]:
    """Every limit that a cell was to answer: how many held it, and what crossed it, by cell; `silent` where none of
    them could answer."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        for limit in (*cell.held, *cell.silent, *cell.over):
            own = found.setdefault(limit, {"limit": limit, "held": 0, "crossed": []})
            own["held"] += limit in cell.held
            own["crossed"] += [(cell.name, said.removeprefix(f"{limit}: ")) for said in cell.over.get(limit, ())]
    return [{**own, "silent": not own["held"] and not own["crossed"]} for own in found.values()]


def _cell(cell: CellOfNight, tonight: pd.DataFrame, common: Sequence[str]) -> dict[str, Any]:
    """A row of the table of cells: what its report says in its worst verdict of each adversary."""
    runs = tonight[(tonight.cell == cell.cell) & (tonight.report == cell.report)]
    judged = runs[(runs.metric == "auroc") & (runs.family == "primary")].dropna(subset=["verdict"])
    worst: dict[str, str] = {}
    for row in judged.to_dict("records"):
        before = worst.get(row["threat_model"], VERDICTS[-1])
        worst[row["threat_model"]] = min(before, row["verdict"], key=VERDICTS.index)
    by_verdict: dict[str, list[str]] = {}
    for threat_model, verdict in worst.items():
        by_verdict.setdefault(verdict, []).append(threat_model)
    return {
        "name": _without(cell.name, common), "status": cell.status, "why": cell.why, "seconds": cell.seconds,
        "report": f"../../{cell.report}/index.html" if cell.report else "",
        "verdicts": sorted(by_verdict.items(), key=lambda one: VERDICTS.index(one[0])), "crossed": len(cell.over),
    }  # fmt: skip


def _flat(cell: CellOfNight) -> dict[str, Any]:
    said = [line for lines in cell.over.values() for line in lines]
    listed = {"held": "; ".join(cell.held), "silent": "; ".join(cell.silent), "crossed": "; ".join(said)}
    return cell.record | listed


def _series(told: pd.DataFrame, night: int) -> list[dict[str, Any]]:
    """Every number that is followed, as it is tonight and over all nights."""
    names = list(Series._fields)
    rows = []
    for _, own in told.groupby(names, sort=False):
        last = own.iloc[-1].to_dict()
        if last["night"] == night:
            rows.append({**last, **_words(last), "spark": sparkline(own, _percent(last))})
    return rows


def _event(row: Mapping[str, Any], history: pd.DataFrame, night: int) -> dict[str, Any]:
    return {**row, **_words(row), "said": _said(row), "cause": cause(history, night, row["cell"], row["method"])}


def _words(row: Mapping[str, Any]) -> dict[str, str]:
    """How a row's number and its place are written."""
    digits = 1 if _percent(row) else 3

    def ends(low: str, high: str) -> str:
        return "" if _missing(row[low]) else f" [{number(row[low], digits)}, {number(row[high], digits)}]"

    what = "AUROC" if row["metric"] == "auroc" else row["metric"].replace("/", ", ").replace("_", " ")
    of = {VALUE: "", BASE: "of the untrained model (control)", BLIND: "of a classifier without a model (control)"}
    place = [row["threat_model"], row["way"], signal_name(row["signal"]) if row["signal"] else ""]
    return {
        "what": " ".join(filter(None, [what, of[row["quantity"]]])),
        "place": ", ".join(filter(None, place)),
        "now": f"{number(row['value'], digits)}{ends('low', 'high')}",
        "earlier": "" if _missing(row["before"]) else f"{number(row['before'], digits)}{ends('band_low', 'band_high')}",
        "p_said": "" if _missing(row["p_adjusted"]) else p_value(row["p_adjusted"]),
    }


def _percent(row: Mapping[str, Any]) -> bool:
    return bool(row["metric"] != "auroc")


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _said(row: Mapping[str, Any]) -> str:
    """An event in a line."""
    words = _words(row)
    where = ", ".join(filter(None, (row["cell"], row["method"], words["place"])))
    band = f"; earlier nights {words['earlier']}, corrected p {words['p_said']}" if words["earlier"] else ""
    return f"{row['event']}: {where}: {words['what']} {words['now']}{band}"


def cause(history: pd.DataFrame, night: int, cell: str, method: str) -> str:
    """What the runs of a cell differ in from those of the night before that had it, in words."""
    own = history[(history.cell == cell) & (history.method == method)]
    now, before = own[own.night == night], own[own.night < night]
    if now.empty or before.empty:
        return ""
    last = before[before.night == before.night.max()]
    if not set(now.setting) & set(last.setting):
        return "another setting"
    again = now.merge(last, on=["data", "seed"], suffixes=("", "_before"))
    if (again.run != again.run_before).any():
        return "code or library versions"
    return "other seeds" if set(now.run) - set(last.run) else "nothing that is known"


def _nights(told: pd.DataFrame, records: Records) -> list[dict[str, Any]]:
    """The last nights, the latest first."""
    alarms = told.groupby("night").alarm.sum().to_dict()
    rows = []
    for night, record in sorted(records.items(), reverse=True)[:NIGHTS]:
        statuses = [cell["status"] for cell in record["cells"]]
        rows.append({
            "night": night, "started": record["started"], "commit": record["commit"], "fedaudit": record["fedaudit"],
            **{status: statuses.count(status) for status in (COMPUTED, REUSED, FAILED)},
            "crossed": len({limit for cell in record["cells"] for limit in cell["crossed"]}),
            "events": int(alarms.get(night, 0)),
        })  # fmt: skip
    return rows


def _common(names: Sequence[str]) -> list[str]:
    """What the names of all cells share, of several cells."""
    parts = [name.split(", ") for name in dict.fromkeys(names)]
    return [part for part in parts[0] if all(part in other for other in parts)] if len(parts) > 1 else []


def _without(name: str, common: Sequence[str]) -> str:
    return ", ".join(part for part in name.split(", ") if part not in common) or name


def _shortened(row: Mapping[str, Any], common: Sequence[str]) -> dict[str, Any]:
    return {**row, "short": _without(row["cell"], common)}


def sparkline(nights: pd.DataFrame, percent: bool) -> Markup:
    """A number over the nights as a small SVG: a dot for tonight, a ring where it changed."""
    first, last = int(nights.night.min()), int(nights.night.max())
    values = nights.value.astype(float)
    least, most = values.min(), values.max()
    room = max(most - least, 4.0 if percent else 0.08) * 1.1
    middle = (least + most) / 2

    def place(night: int, value: float) -> tuple[float, float]:
        x = EDGE + (WIDTH - 2 * EDGE) * ((night - first) / (last - first) if last > first else 1.0)
        return round(x, 1), round(HEIGHT / 2 - (HEIGHT - 2 * EDGE) * (value - middle) / room, 1)

    points = [place(int(n), v) for n, v in zip(nights.night, values, strict=True)]
    line = " ".join(f"{x},{y}" for x, y in points)
    rings = "".join(
        f'<circle cx="{x}" cy="{y}" r="3.5" fill="none" stroke="currentColor"/>'
        for (x, y), alarm in zip(points, nights.alarm, strict=True) if alarm
    )  # fmt: skip
    x, y = points[-1]
    said = f"{len(points)} nights, from {number(values.iloc[0], 3)} to {number(values.iloc[-1], 3)}"
    return Markup(
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(said)}"><polyline points="{line}" fill="none" stroke="#5a6672" stroke-width="1.3"/>'
        f'{rings}<circle cx="{x}" cy="{y}" r="2.4" fill="currentColor"/></svg>'
    )


def junit(name: str, cells: Sequence[CellOfNight], events: Sequence[Mapping[str, Any]], started: str) -> bytes:
    """JUnit XML: a case per cell, and one per limit that a cell answers; changes are told in the output of a case that
    passes, as the exit code goes by limits alone."""
    top = ElementTree.Element("testsuites", name=f"nightly {name}")
    ran, held, changed = (
        ElementTree.SubElement(top, "testsuite", name=f"{name}: {part}", timestamp=started)
        for part in ("cells", "limits", "changes")
    )
    for cell in cells:
        case = ElementTree.SubElement(
            ran, "testcase", classname=f"{name}.cells", name=_xml(cell.name), time=f"{cell.seconds:.1f}"
        )
        if cell.status == FAILED:
            ElementTree.SubElement(case, "error", message=_xml(cell.why)).text = _xml(cell.why)
        for limit in (*cell.held, *cell.silent, *cell.over):
            case = ElementTree.SubElement(
                held, "testcase", classname=f"{name}.limits", name=_xml(f"{limit} [{cell.name}]")
            )
            if limit in cell.silent:
                ElementTree.SubElement(case, "skipped", message="nothing in this cell's report answers it")
            if said := cell.over.get(limit):
                ElementTree.SubElement(case, "failure", message=_xml(said[0])).text = _xml("\n".join(said))
    case = ElementTree.SubElement(changed, "testcase", classname=f"{name}.changes", name="changes beyond the band")
    ElementTree.SubElement(case, "system-out").text = _xml("\n".join(event["said"] for event in events) or "none")
    for suite in (ran, held, changed):
        for attribute, tag in (("errors", "error"), ("failures", "failure")):
            suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite)))
    for attribute in ("tests", "errors", "failures"):
        top.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in (ran, held, changed))))
    ElementTree.indent(top)
    found: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return found + b"\n"


def _xml(text: str) -> str:
    """Without the letters that XML has no place for."""
    return "".join(c for c in text if c in "\n\t" or (c.isprintable() and ord(c) < 0xFFFE) or ord(c) > 0xFFFF)


def summary(
    title: str,
    said: str,
    cells: Sequence[CellOfNight],
    events: Sequence[Mapping[str, Any]],
    limits: Sequence[Mapping[str, Any]],
) -> bytes:
    """At most `LINES` lines of Markdown for the summary of a CI job."""
    failed = [f"**{_md(cell.name)}**: {_md(cell.why)}" for cell in cells if cell.status == FAILED]
    crossed = [f"**{_md(limit['limit'])}**: {_md(said)}" for limit in limits for _, said in limit["crossed"]]
    lines = [f"# Nightly {_md(title)}", "", _md(said), ""]
    for heading, rows in (
        ("Limits crossed", crossed),
        ("Cells failed", failed),
        ("Changes", [_md(e["said"]) for e in events]),
    ):
        if rows:
            more = [f"- and {len(rows) - SHOWN} more: index.html"] if len(rows) > SHOWN else []
            lines += [f"## {heading}", "", *(f"- {row}" for row in rows[:SHOWN]), *more, ""]
    lines.append("Page: `index.html`, tables: `cells.csv`, `changes.csv`, `history.jsonl`.")
    assert len(lines) <= LINES
    return ("\n".join(lines) + "\n").encode()


def _md(text: str) -> str:
    """On one line, and nothing that Markdown would read."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#" else c for c in flat)
