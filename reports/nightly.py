"""The report of a night of audits, as page, tables, JUnit XML and Markdown: what ran, which gates were crossed, what
changed beyond its band, and every number over the nights. A cell is one audit of the matrix that runs every night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from xml.etree import ElementTree

import pandas as pd
from markupsafe import Markup, escape

from fedaudit.attacks.score_names import signal_name
from fedaudit.audits.findings import BEFOREHAND
from fedaudit.audits.statistics.nights import BASE, BLIND, LEVEL, NEW_LEAK, VALUE, WINDOW, Series
from fedaudit.reports.archive import attach
from fedaudit.reports.doubts import verdict_word
from fedaudit.reports.formats import is_missing, number, p_value
from fedaudit.reports.templates import csv, render
from fedaudit.terms.verdicts import DOUBTED, LEAKS, VERDICTS

COMPUTED, REUSED, FAILED = "computed", "reused", "failed"
LINES = 60  # of the Markdown summary, at most
LISTED = 12  # lines of each of its lists, at most
NIGHTS = 30  # nights that the page lists
WIDTH, HEIGHT, EDGE = 150, 30, 4  # of a sparkline, in pixels
ORDER = (*VERDICTS, DOUBTED)
Records = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class CellOfNight:
    """The result of running one cell in one night."""

    name: str
    cell: str  # the name without the seed: seeds are repetitions of a cell
    status: str  # COMPUTED, REUSED or FAILED
    seconds: float
    why: str = ""  # the error of a failed cell
    report: str = ""  # folder below --out; "" if failed
    held: tuple[str, ...] = ()  # gates that no number crosses
    silent: tuple[str, ...] = ()  # gates for which the cell has no number
    crossed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by gate a sentence per number that crosses it

    @property
    def record(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON."""
        return asdict(self) | {"seconds": round(self.seconds, 1)}


def render_files(
    name: str, night: int, cells: Sequence[CellOfNight], verdicts: pd.DataFrame, history: pd.DataFrame, records: Records
) -> dict[str, bytes]:
    """The files of a night's report, {name: bytes}, the page last.

    `verdicts` is the result of `audits.statistics.nights.judged` for all nights, `history` its input, one row per
    finding and night. `records` holds, by night, when and with which code it ran, and its cells' records.
    """
    changes = [
        {**row, **_in_words(row), "said": _event_line(row), "cause": cause(history, night, row["cell"], row["method"])}
        for row in _event_rows(verdicts, night)
    ]
    common = _common_parts([cell.cell for cell in cells])
    gates = gate_rows(cells)
    by_cell = [_cell(cell, history[history.night == night], common) for cell in cells]
    in_short = sentence(cells, night, verdicts, history)
    parts = {
        "name": name, "night": night, "ran": records.get(night, {}), "sentence": in_short,
        "cells": by_cell,
        "common": ", ".join(common), "gates": gates, "events": [_with_short_name(e, common) for e in changes],
        "series": [_with_short_name(row, common) for row in _series(verdicts, night)],
        "several": verdicts.night.nunique() > 1,
        "nights": _nights(verdicts, records), "level": round(100 * LEVEL), "window": WINDOW,
    }  # fmt: skip
    files = {
        "changes.csv": csv(verdicts),
        "cells.csv": csv(pd.DataFrame([_csv_row(cell) for cell in cells])),
        "junit.xml": junit(name, cells, by_cell, in_short, changes, str(records.get(night, {}).get("started", ""))),
        "summary.md": summary(f"{name}, night {night}", in_short, cells, changes, gates),
    }
    return {**files, "index.html": attach(files, render("nightly.html", parts))}


def events(verdicts: pd.DataFrame, night: int) -> tuple[list[str], list[str]]:
    """Lines on a night's alarms (changes, new or healed leaks, drifts), and on leaks shown for the first time."""
    lines = [(bool(row["alarm"]), _event_line(row)) for row in _event_rows(verdicts, night)]
    return [line for alarm, line in lines if alarm], [line for alarm, line in lines if not alarm]


def _event_rows(verdicts: pd.DataFrame, night: int) -> list[dict[str, Any]]:
    """The verdicts of a night that are events, alarms first."""
    rows = verdicts[(verdicts.night == night) & (verdicts.event != "")]
    return rows.sort_values("alarm", ascending=False, kind="stable").to_dict("records")


def leaks(verdicts: pd.DataFrame, night: int, cells: Sequence[CellOfNight], history: pd.DataFrame) -> str:
    """A clause on how many of the attacked cells leak to anybody, and how many of these are new since earlier nights:
    "6 of 8 cells leak; none new". Cells whose recording is doubted come first, and the first night says that it is."""
    rows = [(cell.cell, _cell(cell, history[history.night == night], ())["verdicts"]) for cell in cells]
    attacked = [(cell, pairs) for cell, pairs in rows if pairs]
    leaking = [cell for cell, pairs in attacked if any(verdict in LEAKS for verdict, _ in pairs)]
    doubted = sum(any(verdict == DOUBTED for verdict, _ in pairs) for _, pairs in attacked)
    first = f"{_plural(doubted, 'cell')} doubted; " if doubted else ""
    if not attacked:
        return "no cell was attacked"
    count = (
        f"{first}{len(leaking) or 'none'} of {_plural(len(attacked), 'cell')} {'leak' if len(leaking) > 1 else 'leaks'}"
    )
    if verdicts.night.nunique() < 2:
        return f"{count}; the first night"
    tonight = verdicts[(verdicts.night == night) & (verdicts.event == NEW_LEAK)]
    new = sum(cell in set(tonight.cell) for cell in leaking)
    return f"{count}; {new or 'none'} new"


def sentence(cells: Sequence[CellOfNight], night: int, verdicts: pd.DataFrame, history: pd.DataFrame) -> str:
    """The night in two sentences: what leaks, and what ran, held and changed. Arguments as in `render_files`."""
    gates, changes = gate_rows(cells), int(sum(e["alarm"] for e in _event_rows(verdicts, night)))
    leak = leaks(verdicts, night, cells, history)
    count = {status: sum(cell.status == status for cell in cells) for status in (COMPUTED, REUSED, FAILED)}
    crossed, silent = (sum(bool(gate[what]) for gate in gates) for what in ("crossed", "silent"))
    kept = f"{crossed or 'none'} of {_plural(len(gates), 'gate')} crossed"
    kept += f", {silent} without an answer" if silent else ""
    changed = f"{_plural(changes, 'change')} beyond the band of earlier nights" if changes else "no change beyond noise"
    failed = f", {count[FAILED]} failed" if count[FAILED] else ""
    ran = f"{_plural(len(cells), 'cell')}: {count[COMPUTED]} computed, {count[REUSED]} as before{failed}"
    since = "" if leak.endswith("the first night") else f"; {changed}"
    return f"{leak[:1].upper()}{leak[1:]}. {ran}; {kept if gates else 'no gate given'}{since}."


def _plural(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def gate_rows(cells: Sequence[CellOfNight]) -> list[dict[str, Any]]:
    """A row per distinct gate of the cells: `gate`, `held`, the number of cells that pass it, `crossed`, pairs of a
    cell's name and a sentence, and `silent`, whether no cell has a number for it."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        for gate in (*cell.held, *cell.silent, *cell.crossed):
            row = rows.setdefault(gate, {"gate": gate, "held": 0, "crossed": []})
            row["held"] += gate in cell.held
            row["crossed"] += [(cell.name, line.removeprefix(f"{gate}: ")) for line in cell.crossed.get(gate, ())]
    return [{**row, "silent": not row["held"] and not row["crossed"]} for row in rows.values()]


def _cell(cell: CellOfNight, tonight: pd.DataFrame, common: Sequence[str]) -> dict[str, Any]:
    """A row of the table of `cells`: name (less the words `common` to all), status, why, seconds, link to the report,
    number of gates `crossed`, and `verdicts`: pairs of a verdict and the adversaries whose gravest verdict it is on an
    AUROC of the primary family."""
    runs = tonight[(tonight.cell == cell.cell) & (tonight.report == cell.report)]
    judged = runs[(runs.metric == "auroc") & runs.family.isin(BEFOREHAND)].dropna(subset=["verdict"])
    worst: dict[str, str] = {}
    for row in judged.to_dict("records"):
        before = worst.get(row["threat_model"], ORDER[-1])
        worst[row["threat_model"]] = min(before, verdict_word(row), key=ORDER.index)
    by_verdict: dict[str, list[str]] = {}
    for threat_model, verdict in worst.items():
        by_verdict.setdefault(verdict, []).append(threat_model)
    return {
        "name": _without(cell.name, common), "status": cell.status, "why": cell.why, "seconds": cell.seconds,
        "report": f"../../{cell.report}/index.html" if cell.report else "",
        "verdicts": sorted(by_verdict.items(), key=lambda one: ORDER.index(one[0])),
        "crossed": len(cell.crossed),
    }  # fmt: skip


def _csv_row(cell: CellOfNight) -> dict[str, Any]:
    """The record of a cell with lists as text, for cells.csv."""
    crossed = [line for lines in cell.crossed.values() for line in lines]
    return cell.record | {"held": "; ".join(cell.held), "silent": "; ".join(cell.silent), "crossed": "; ".join(crossed)}


def _series(verdicts: pd.DataFrame, night: int) -> list[dict[str, Any]]:
    """A row per followed number that was measured in this night: its columns in `verdicts`, in words, and `spark`, a
    sparkline over all nights."""
    rows = []
    for _, nights in verdicts.groupby(list(Series._fields), sort=False):
        last = nights.iloc[-1].to_dict()
        if last["night"] == night:
            rows.append({**last, **_in_words(last), "spark": sparkline(nights, _is_percent(last))})
    return rows


def _in_words(row: Mapping[str, Any]) -> dict[str, str]:
    """A followed number as texts: {"what" it is, "place" (adversary, model, signal), its value "now" and "earlier",
    each with its ends, and its p-value "p_said"}; "" where there is none."""
    digits = 1 if _is_percent(row) else 3

    def ends(low: str, high: str) -> str:
        return "" if is_missing(row[low]) else f" [{number(row[low], digits)}, {number(row[high], digits)}]"

    what = "AUROC" if row["metric"] == "auroc" else row["metric"].replace("/", ", ").replace("_", " ")
    of = {VALUE: "", BASE: "of the untrained model (control)", BLIND: "of a classifier without a model (control)"}
    place = [row["threat_model"], row["way"], signal_name(row["signal"]) if row["signal"] else ""]
    return {
        "what": " ".join(filter(None, [what, of[row["quantity"]]])),
        "place": ", ".join(filter(None, place)),
        "now": f"{number(row['value'], digits)}{ends('low', 'high')}",
        "earlier": ""
        if is_missing(row["before"])
        else f"{number(row['before'], digits)}{ends('band_low', 'band_high')}",
        "p_said": "" if is_missing(row["p_adjusted"]) else p_value(row["p_adjusted"]),
    }


def _is_percent(row: Mapping[str, Any]) -> bool:
    """Whether a number is in percent: all but AUROCs are."""
    return bool(row["metric"] != "auroc")


def _event_line(row: Mapping[str, Any]) -> str:
    """An event in one line of text: which, of which number, its value now and in earlier nights."""
    words = _in_words(row)
    where = ", ".join(filter(None, (row["cell"], row["method"], words["place"])))
    band = f"; earlier nights {words['earlier']}, corrected p {words['p_said']}" if words["earlier"] else ""
    return f"{row['event']}: {where}: {words['what']} {words['now']}{band}"


def cause(history: pd.DataFrame, night: int, cell: str, method: str) -> str:
    """How the runs of a cell and method differ from those of the last night that had them, in a few words: "another
    setting", "code or library versions", "other seeds", "nothing that is known"; "" if no night had them."""
    runs = history[(history.cell == cell) & (history.method == method)]
    now, before = runs[runs.night == night], runs[runs.night < night]
    if now.empty or before.empty:
        return ""
    last = before[before.night == before.night.max()]
    if not set(now.setting) & set(last.setting):
        return "another setting"
    again = now.merge(last, on=["data", "seed"], suffixes=("", "_before"))
    if (again.run != again.run_before).any():
        return "code or library versions"
    return "other seeds" if set(now.run) - set(last.run) else "nothing that is known"


def _nights(verdicts: pd.DataFrame, records: Records) -> list[dict[str, Any]]:
    """A row per night for the last `NIGHTS` of them, the latest first: when and with which code it ran, and how many
    cells were computed, reused or failed, gates were crossed and alarms raised."""
    alarms = verdicts.groupby("night").alarm.sum().to_dict()
    rows = []
    for night, record in sorted(records.items(), reverse=True)[:NIGHTS]:
        statuses = [cell["status"] for cell in record["cells"]]
        rows.append({
            "night": night, "started": record["started"], "commit": record["commit"], "fedaudit": record["fedaudit"],
            **{status: statuses.count(status) for status in (COMPUTED, REUSED, FAILED)},
            "crossed": len({gate for cell in record["cells"] for gate in cell["crossed"]}),
            "events": int(alarms.get(night, 0)),
        })  # fmt: skip
    return rows


def _common_parts(names: Sequence[str]) -> list[str]:
    """The comma-separated parts that the names of all cells share; empty for a single cell."""
    parts = [name.split(", ") for name in dict.fromkeys(names)]
    return [part for part in parts[0] if all(part in other for other in parts)] if len(parts) > 1 else []


def _without(name: str, common: Sequence[str]) -> str:
    """A cell's name without the `common` parts; the whole name if nothing would be left."""
    return ", ".join(part for part in name.split(", ") if part not in common) or name


def _with_short_name(row: Mapping[str, Any], common: Sequence[str]) -> dict[str, Any]:
    return {**row, "short": _without(row["cell"], common)}


def sparkline(nights: pd.DataFrame, percent: bool) -> Markup:
    """A followed number over the nights as a small SVG: a dot for the last one, a ring around alarms. `nights` has the
    columns night, value and alarm, and at least one row. The axis spans at least 4 points where it is `percent`, else
    0.08."""
    first, last = int(nights.night.min()), int(nights.night.max())
    values = nights.value.astype(float)
    least, most = values.min(), values.max()
    room = max(most - least, 4.0 if percent else 0.08) * 1.1
    middle = (least + most) / 2

    def position(night: int, value: float) -> tuple[float, float]:
        x = EDGE + (WIDTH - 2 * EDGE) * ((night - first) / (last - first) if last > first else 1.0)
        return round(x, 1), round(HEIGHT / 2 - (HEIGHT - 2 * EDGE) * (value - middle) / room, 1)

    points = [position(int(n), v) for n, v in zip(nights.night, values, strict=True)]
    line = " ".join(f"{x},{y}" for x, y in points)
    rings = "".join(
        f'<circle cx="{x}" cy="{y}" r="3.5" fill="none" stroke="currentColor"/>'
        for (x, y), alarm in zip(points, nights.alarm, strict=True) if alarm
    )  # fmt: skip
    x, y = points[-1]
    label = f"{len(points)} nights, from {number(values.iloc[0], 3)} to {number(values.iloc[-1], 3)}"
    return Markup(
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(label)}"><polyline points="{line}" fill="none" stroke="var(--soft)" stroke-width="1.3"/>'
        f'{rings}<circle cx="{x}" cy="{y}" r="2.4" fill="currentColor"/></svg>'
    )


def junit(
    name: str,
    cells: Sequence[CellOfNight],
    by_cell: Sequence[Mapping[str, Any]],
    in_short: str,
    events: Sequence[Mapping[str, Any]],
    started: str,
) -> bytes:
    """JUnit XML: a case per cell, its verdicts (of its row `by_cell`) as output, and one per cell and gate. Changes
    are the output of a case that always passes, since only gates decide the exit code; `in_short` is the output of the
    cells' suite. `started` is the time stamp of all suites."""
    top = ElementTree.Element("testsuites", name=f"nightly {name}")
    ran, gates, changed = (
        ElementTree.SubElement(top, "testsuite", name=f"{name}: {part}", timestamp=started)
        for part in ("cells", "gates", "changes")
    )
    for cell, row in zip(cells, by_cell, strict=True):
        case = ElementTree.SubElement(
            ran, "testcase", classname=f"{name}.cells", name=_xml_text(cell.name), time=f"{cell.seconds:.1f}"
        )
        if cell.status == FAILED:
            ElementTree.SubElement(case, "error", message=_xml_text(cell.why)).text = _xml_text(cell.why)
        if row["verdicts"]:
            lines = [f"{verdict}: {', '.join(adversaries)}" for verdict, adversaries in row["verdicts"]]
            ElementTree.SubElement(case, "system-out").text = _xml_text("\n".join(lines))
        for gate in (*cell.held, *cell.silent, *cell.crossed):
            label = _xml_text(f"{gate} [{cell.name}]")
            case = ElementTree.SubElement(gates, "testcase", classname=f"{name}.gates", name=label)
            if gate in cell.silent:
                ElementTree.SubElement(case, "skipped", message="nothing in this cell's report answers it")
            if crossed := cell.crossed.get(gate):
                ElementTree.SubElement(case, "failure", message=_xml_text(crossed[0])).text = _xml_text(
                    "\n".join(crossed)
                )
    ElementTree.SubElement(ran, "system-out").text = _xml_text(in_short)
    case = ElementTree.SubElement(changed, "testcase", classname=f"{name}.changes", name="changes beyond the band")
    ElementTree.SubElement(case, "system-out").text = _xml_text("\n".join(event["said"] for event in events) or "none")
    for suite in (ran, gates, changed):
        for attribute, path in {"errors": "*/error", "failures": "*/failure", "tests": "testcase"}.items():
            suite.set(attribute, str(len(suite.findall(path))))
    for attribute in ("tests", "errors", "failures"):
        top.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in (ran, gates, changed))))
    ElementTree.indent(top)
    xml: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"


def _xml_text(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return "".join(c for c in text if c in "\n\t" or (c.isprintable() and ord(c) < 0xFFFE) or ord(c) > 0xFFFF)


def summary(
    title: str,
    in_short: str,
    cells: Sequence[CellOfNight],
    events: Sequence[Mapping[str, Any]],
    gates: Sequence[Mapping[str, Any]],
) -> bytes:
    """Markdown for a CI job, at most `LINES` lines: `in_short`, crossed gates, failed cells and changes."""
    failed = [
        f"**{_escape_markdown(cell.name)}**: {_escape_markdown(cell.why)}" for cell in cells if cell.status == FAILED
    ]
    crossed = [
        f"**{_escape_markdown(gate['gate'])}**: {_escape_markdown(line)}"
        for gate in gates
        for _, line in gate["crossed"]
    ]
    lines = [f"# Nightly {_escape_markdown(title)}", "", _escape_markdown(in_short), ""]
    for heading, rows in (
        ("Gates crossed", crossed),
        ("Cells failed", failed),
        ("Changes", [_escape_markdown(e["said"]) for e in events]),
    ):
        if rows:
            more = [f"- and {len(rows) - LISTED} more: index.html"] if len(rows) > LISTED else []
            lines += [f"## {heading}", "", *(f"- {row}" for row in rows[:LISTED]), *more, ""]
    lines.append("Page: `index.html`, tables: `cells.csv`, `changes.csv`, `history.jsonl`.")
    assert len(lines) <= LINES
    return ("\n".join(lines) + "\n").encode()


def _escape_markdown(text: str) -> str:
    """The text on one line, with Markdown's special characters escaped."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#" else c for c in flat)
