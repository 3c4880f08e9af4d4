"""Write a report: one page that holds findings, runs, figures and tables as an archive, with the same files beside it.

Equal evidence gives equal bytes: no times, no paths, no random identifiers, but for the note on how a page was made.
Numbers are shown as the audits left them. Computed here are only p-values corrected over all runs and their verdicts,
means over seeds, differences, and which row a card quotes. The page consists of sections (`reports.section`); one
without findings or tables is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from fedaudit.audits.run_comparison import Compared
from fedaudit.reports.archive import self_contained
from fedaudit.reports.assessment import is_demonstration, paragraphs
from fedaudit.reports.corrected_verdicts import with_verdicts
from fedaudit.reports.doubts import stated, with_doubts
from fedaudit.reports.epsilon_cards import cards
from fedaudit.reports.evidence import METRICS, TABLES, Evidence, Finding, check
from fedaudit.reports.figures.drawing import Each
from fedaudit.reports.formats import join_words, plain
from fedaudit.reports.runs import entries, runs
from fedaudit.reports.section import Page, Section, sections, template_parts
from fedaudit.reports.section_files import section_files
from fedaudit.reports.templates import Write, csv, render, write_drawings
from fedaudit.reports.use import before_and_after
from fedaudit.reports.verdict_cards import SYMBOLS

__all__ = ["TABLES", "Evidence", "build"]


@dataclass(frozen=True)
class Records:
    """Statements of a page on single records: whether they are somebody's own and it shows them (`own_shown`), or,
    where it hides them (`hidden`), the SHA-256 of their table."""

    own_shown: bool = False
    hidden: bool = False
    sha256: str = ""


AS_USUAL = Records()  # of built-in and public data
MANY = 6  # runs that fit side by side as columns
FEW = 4  # runs whose epsilons and utility stand in words at the top of the page


def build(
    evidence: Sequence[Evidence],
    write: Write,
    *,
    each: Each = map,
    across: Mapping[str, Compared] = MappingProxyType({}),
    note: Mapping[str, Any] | None = None,
    single: Records = AS_USUAL,
) -> None:
    """Write the report of one or more methods and seeds under one task and attack, through `write(name, bytes)`.

    `each` works as `map` and may draw figures in parallel. `across` holds, by audit, the results of audits that compare
    runs, `note` how and when the report was made (`fedaudit.pipeline.provenance`), `single` what the page says of
    single records. `index.html` is written last, after all files that it holds. ValueError as in `check`, before any
    writing.
    """
    check(evidence)
    write = self_contained(write)
    evidence = with_doubts(with_verdicts(evidence))
    findings = [finding for e in evidence for finding in e.findings]
    records = {"findings": findings, "runs": runs(evidence)}
    for name, rows in records.items():
        write(f"{name}.json", rows_as_json(rows))
    page = Page(evidence, each, across)
    filled = sections(page)
    tables = {name: pd.DataFrame(rows) for name, rows in records.items()}
    for section in filled.values():
        tables |= section.tables
    for name, table in tables.items():
        write(f"{name}.csv", csv(table))
    for section in filled.values():
        for name, table in section.figure_tables.items():
            write(f"figures/{name}.csv", csv(table))
        write_drawings(section.drawn.values(), write)
    write("index.html", _render_page(page, filled, note, single))


def rows_as_json(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The rows as `json.dumps(rows, indent=1)` writes them. With an indent it takes its slow encoder, a quarter of the
    time of a page of 10,000 findings, so that only a row with a list or a table inside is left to it."""
    if (
        not rows
        or not all(rows)
        or any(isinstance(value, (list, tuple, dict)) for row in rows for value in row.values())
    ):
        return (json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    flat = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",\n  ", ": ")).encode
    return ("[\n " + ",\n ".join(f"{{\n  {flat(row)[1:-1]}\n }}" for row in rows) + "\n]\n").encode()


def _render_page(page: Page, filled: Mapping[str, Section], note: Mapping[str, Any] | None, single: Records) -> bytes:
    """The bytes of index.html with the `filled` sections."""
    evidence = page.evidence
    subjects = {"membership": "membership leakage", "utility": "utility", "privacy": "privacy"}
    notes = list(dict.fromkeys(note for e in evidence for note in e.notes))
    about = join_words([words for name, words in subjects.items() if name in filled])
    parts: dict[str, Any] = {
        "task": evidence[0].task,
        "attack": evidence[0].attack,
        "seeds": sorted({e.seed for e in evidence}),
        "about": about[:1].upper() + about[1:],
        "names": list(dict.fromkeys(v.name for v in page.runs)),
        "setting": _setting(evidence),
        "intervals": _intervals(page.findings),
        "doubts": stated(page.findings),
        "notes": notes,
        "first": _first_screen(page, filled, notes),
        "demonstration": is_demonstration(page),
        "note": note,
        "single": single,
        "left_out": page.left_out,
        "several": any(len(v.evidence) > 1 for v in page.runs),
        "symbols": SYMBOLS,
        "metrics": METRICS,
        **dict.fromkeys(section_files()),  # None: templates ask whether a section is there
    }
    return render("report.html", parts | template_parts(filled))


def _first_screen(page: Page, filled: Mapping[str, Section], notes: Sequence[str]) -> dict[str, Any]:
    """Template variables of the first screen: `cards` of epsilon and sentences on the `use` of each run's model, both
    empty where there are many runs, and the `assessment`."""
    few = page.runs if len(page.runs) <= FEW else []
    membership = filled["membership"].context["membership"] if "membership" in filled else None
    three = cards(few) if few and (membership or "privacy" in filled) else []
    use = [(v.title, sentence) for v in few if (sentence := before_and_after(v))]
    return {"cards": three, "use": use, "assessment": paragraphs(page, membership, three, notes)}


def _setting(evidence: Sequence[Evidence]) -> dict[str, Any]:
    """The runs' configuration as tables: `shared`, pairs of an entry that all have and its value; `head` and
    `differing`, heading and rows about the other entries, a row per entry, or per run where there are more than `MANY`
    runs."""
    settings = [flatten_setting(e.setting) for e in evidence]
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    rows = [(name, [setting.get(name, "n/a") for setting in settings]) for name in names]
    differing = [(name, values) for name, values in rows if len(set(values)) > 1]
    runs = [e.run for e in evidence]
    head, body = ["Entry", *runs], differing
    if len(runs) > MANY:
        head = ["Run", *(name for name, _ in differing)]
        body = [(run, [values[i] for _, values in differing]) for i, run in enumerate(runs)]
    shared = [(name, values[0]) for name, values in rows if len(set(values)) == 1]
    return {"shared": shared, "head": head, "differing": body if differing else []}


def flatten_setting(value: dict[str, Any]) -> dict[str, str]:
    """A nested configuration as text by dotted path: {"privacy.epsilon": "1.0"}."""
    return {path: plain(entry) for path, entry in entries(value).items()}


def _intervals(findings: Sequence[Finding]) -> list[tuple[str, list[str]]]:
    """Every metric of findings with intervals, and the distinct descriptions of how its intervals were made."""
    descriptions: dict[str, dict[str, None]] = {}
    for f in (f for f in findings if "interval" in f):
        descriptions.setdefault(f["metric"], {})[f["interval"]] = None
    return [(metric, list(distinct)) for metric, distinct in descriptions.items()]
