"""Write the page of two reports beside each other: what each says, verdicts, epsilon, utility, and their differences.

Verdicts are those of the reports, each corrected for its own scores; only differences are corrected on this page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaudit.attacks.score_names import signal_name
from fedaudit.audits.differences import sentences
from fedaudit.audits.run_comparison import METHOD, UTILITIES, AuditedRun, Compared, utilities
from fedaudit.reports.archive import self_contained
from fedaudit.reports.evidence import Finding, membership_findings
from fedaudit.reports.formats import epsilon
from fedaudit.reports.headline import headline
from fedaudit.reports.rows import method_name
from fedaudit.reports.section import Row
from fedaudit.reports.sections.differences import digits, parts
from fedaudit.reports.templates import Write, csv, render
from fedaudit.reports.verdict_cards import SYMBOLS, gravest, quotable
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.threat_models import THREAT_MODELS


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two reports: its `name` on the page, the name of its folder (`report`), the trainings of each setting
    by the setting's name, and the note on how it was made ({}: not known)."""

    name: str
    report: str
    settings: Mapping[str, Sequence[AuditedRun]]
    note: Mapping[str, Any]

    @property
    def runs(self) -> list[AuditedRun]:
        """All trainings."""
        return [run for runs in self.settings.values() for run in runs]

    @property
    def titles(self) -> dict[str, str]:
        """By setting its name for readers."""
        return {label: _title(label, runs[0]) for label, runs in self.settings.items()}


def build(sides: Sequence[Side], compared: Compared, write: Write) -> None:
    """Write differences.csv and, last, index.html through `write(name, bytes)`. `compared` has the table `differences`,
    whose settings are called "A: LABEL" by the side's name."""
    names = {f"{s.name}: {label}": f"{title} in {s.name}" for s in sides for label, title in s.titles.items()}
    table = compared.tables["differences"]
    lines = sentences(table.replace({"a": names, "b": names}), float(table.confidence.iloc[0]))
    write = self_contained(write)
    write("differences.csv", csv(table))
    context = {
        "title": lines[0] if lines else "Two reports beside each other",
        "sides": [_side(side) for side in sides],
        "threats": [*_verdicts(sides)],
        "epsilons": [row for side in sides for row in _epsilons(side)],
        "utility": _utility(sides),
        "differences": parts(compared, names) | {"sentences": lines[1:]},
        "task": sides[0].runs[0].setting["task"],
        "symbols": SYMBOLS,
    }
    write("index.html", render("two_reports.html", context))


def _title(label: str, run: AuditedRun) -> str:
    """A setting's name in its report with the method's name as readers know it."""
    method = str(run.setting.get(METHOD, ""))
    return label.replace(method, method_name(method), 1) if method else label


def _side(side: Side) -> Row:
    """The template variables of one report: what it says first, of what, and when it was made."""
    quoted = {side.titles[label]: _by_threat(runs) for label, runs in side.settings.items()}
    head = headline(quoted)
    return {
        "name": side.name,
        "report": side.report,
        "sentence": head.sentence if head else "Nothing was attacked.",
        "rest": head.rest if head else [],
        "settings": [*side.titles.values()],
        "attack": side.runs[0].setting.get("attacks"),
        "seeds": sorted({run.seed for run in side.runs}),
        "note": side.note if "finished" in side.note else None,
    }


def _by_threat(runs: Sequence[AuditedRun]) -> dict[str, list[Finding]]:
    """By adversary the findings of the first training that its verdict may quote."""
    findings = membership_findings([dict(f) for f in runs[0].findings])
    return {
        threat: quotable(of) for threat in THREAT_MODELS if (of := [f for f in findings if f["threat_model"] == threat])
    }


def _verdicts(sides: Sequence[Side]) -> Iterator[Row]:
    """Yield a block per adversary with the verdict on each setting of both reports."""
    for threat in THREAT_MODELS:
        rows = [
            {"setting": f"{side.titles[label]} in {side.name}"} | _verdict(gravest(_by_threat(runs)[threat]))
            for side in sides
            for label, runs in side.settings.items()
            if threat in _by_threat(runs)
        ]
        if rows:
            yield {"who": SENTENCES[threat].short, "rows": rows}


def _verdict(f: Finding | None) -> Row:
    """A verdict with its AUROC: `mark` has the places of the interval's ends and of the AUROC, in percent from 0 to
    1."""
    if f is None or f["value"] is None:
        return {"verdict": None, "value": None}
    ends = [round(100 * f[name], 1) for name in ("low", "high", "value")]
    return {name: f[name] for name in ("verdict", "value", "low", "high")} | {
        "mark": ends, "score": signal_name(f["signal"]), "clients": f["clients"], "power": f.get("detectable"),
    }  # fmt: skip


def _epsilons(side: Side) -> Iterator[Row]:
    """Yield a row per setting and distinct claimed, provable and measured epsilon of a client's own record, in words,
    with the adversaries that share them."""
    for label, runs in side.settings.items():
        by_claim: dict[tuple[str, ...], dict[str, None]] = {}
        for threat, three in _claims(runs[0]):
            by_claim.setdefault(three, {})[SENTENCES[threat].short] = None
        for (claimed, provable, measured), threats in by_claim.items():
            yield {
                "setting": f"{side.titles[label]} in {side.name}", "threats": [*threats], "claimed": claimed,
                "provable": provable, "measured": measured,
            }  # fmt: skip


def _claims(run: AuditedRun) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each adversary of a training with the three epsilons in words."""
    proven = [f for f in run.findings if f["metric"] == "epsilon" and f["whose"] == "own"]
    for f in proven:
        claimed = "none" if f["claimed"] == "inf" else epsilon(f["claimed"])
        yield f["threat_model"], (claimed, epsilon(f["provable"]), f["measured"])
    for f in [] if proven else membership_findings([dict(f) for f in run.findings]):
        three = (f["claimed"] or "none", f["provable"] or "none", f["measured"] or "not measured")
        yield f["threat_model"], three


def _utility(sides: Sequence[Side]) -> Row:
    """Rows of settings with the utility of their first training, and the utilities that any of them has."""
    rows = [
        {"setting": f"{side.titles[label]} in {side.name}", "by": utilities(runs[0])}
        for side in sides
        for label, runs in side.settings.items()
    ]
    names = [name for name in UTILITIES if any(name in row["by"] for row in rows)]
    return {"rows": rows, "names": [(name, name.replace("_", " "), digits(name)) for name in names]}
