"""Membership in trainings on classes: verdicts and the attacks beside each other.

A run is one method with one epsilon and setting; several seeds of it share a line, the tables and figures being those
of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.attack_success import CANARIES, HELD_OUT, headline, single
from reports.figures import drawing
from reports.figures import inference as inferencefigures
from reports.figures import membership as figures
from reports.figures.drawing import PrintedFigure
from reports.figures.prompts import few
from reports.inputs import METRICS, Evidence, Finding, about_membership, joined
from reports.record_tables import Row, alike, data, record_by_record
from reports.rows import MethodRow, variants
from reports.section import Page, Section
from reports.verdict_cards import SEES, SYMBOLS, blocks, card, counts, gravest, named

ORDER = 10
MANY = 6  # runs that fit beside each other as columns
FEW = 4  # runs whose verdicts are said in words on the first screen


@dataclass(frozen=True)
class InferencePage:
    """The parts of the page about membership inference; an empty one is left out."""

    threats: list[str]
    runs: list[Row]
    matrices: list[Row]
    corrected: int  # of so many attacks the best is picked; 0 where nothing is
    several: bool  # seeds
    left_out: str  # which runs are shown record by record, where not all are
    parts: Mapping[str, list[Row]]  # record by record
    canaries: list[Row]
    refused: list[Row]
    drawn: Mapping[str, PrintedFigure]
    captions: Mapping[str, str]
    symbols: Mapping[str, str]
    sees: Mapping[str, str]
    metrics: Sequence[str]
    few: int = FEW


def section(page: Page) -> Section | None:
    """Where classifiers were attacked."""
    found = made(page.evidence)
    if found is None:
        return None
    links = [("verdicts", "Verdicts"), ("leakage", "Leakage")]
    if any(v.claims for v in variants(page.evidence)):
        links.append(("privacy", "Claimed and provable"))
    if "leakage-epsilon" in found.drawn:
        links.append(("against", "Against epsilon"))
    about = {name: getattr(found, name) for name in ("symbols", "several", "metrics")}
    exposed = joined(page.evidence, "exposed")
    return Section(
        links=links,
        context={"inference": found, **about},
        drawn=found.drawn,
        tables=data(page.evidence),
        beside={"exposed": exposed.drop(columns="png")} if len(exposed) else {},
    )


def made(evidence: Sequence[Evidence]) -> InferencePage | None:
    """The parts that the evidence fills; None where no prompts were attacked."""
    found = [v for v in variants(evidence) if _membership(v.evidence)]
    if not found:
        return None
    findings = _membership(evidence)
    threats = figures.ordered([f["threat_model"] for f in findings], figures.THREATS)
    shown, left_out = few(found)
    drawn = inferencefigures.draw(found, shown, headline(found))
    return InferencePage(
        threats=threats,
        runs=[_run(v, threats, look) for v, look in zip(found, _looks(found, shown), strict=True)],
        matrices=_matrices(found, threats),
        corrected=max((f.get("best_of") or 0 for f in findings), default=0),
        several=any(len(v.evidence) > 1 for v in found),
        left_out=left_out,
        parts=record_by_record(shown),
        canaries=alike(found, "canaries"),
        refused=alike(found, "refused"),
        drawn={name: drawing for name, (drawing, _) in drawn.items()},
        captions={name: caption for name, (_, caption) in drawn.items()},
        symbols=SYMBOLS,
        sees=SEES,
        metrics=METRICS,
    )


def _membership(evidence: Sequence[Evidence]) -> list[Finding]:
    return about_membership(f for e in evidence for f in e.findings)


def _looks(found: Sequence[MethodRow], shown: Sequence[MethodRow]) -> list[Row]:
    """Symbol and colour of every run, as figures draw it; none for those that they leave out."""
    n, m = len(drawing.SYMBOLS), len(drawing.COLOURS)
    look = {v.title: {"symbol": drawing.SYMBOLS[i % n], "colour": drawing.COLOURS[i % m]} for i, v in enumerate(shown)}
    return [look.get(v.title, {"symbol": "", "colour": drawing.INK}) for v in found]


def _run(v: MethodRow, threats: Sequence[str], look: Row) -> Row:
    """What is said about one run: for every threat model a card and its leakage tables."""
    own = sorted(_membership(v.evidence[:1]), key=lambda f: bool(f.get("best_of")))  # the best comes last
    others = _membership(v.evidence[1:])
    parts = [_threat(threat, [f for f in own if f["threat_model"] == threat], others) for threat in threats]
    return {"name": v.title, "seed": v.evidence[0].seed, **look, "threats": parts}


def _threat(threat: str, own: Sequence[Finding], others: Sequence[Finding]) -> Row:
    """A card quotes the best of the attacks, whose interval allows for picking it, where there is one; else the gravest
    headline row."""
    aurocs = [f for f in own if f["metric"] == "auroc"]
    alone, best = [f for f in aurocs if single(f)], [f for f in aurocs if _picked(f)]
    quoted = best if gravest(best) else alone
    canaries = [f for f in aurocs if f["nonmembers"] == CANARIES]
    return {
        "threat": threat,
        "quoted": gravest(quoted),
        "picked": quoted is best,
        "alone": counts(alone),
        "canaries": gravest([f for f in canaries if f.get("best_of")])
        or gravest([f for f in canaries if f["headline"]]),
        **card(quoted, others),
        "blocks": blocks(own, others),
    }


def _picked(f: Finding) -> bool:
    """Whether this is about the best of several attacks, members against held-out records."""
    return bool(f.get("best_of")) and f["nonmembers"] == HELD_OUT


def _matrices(found: Sequence[MethodRow], threats: Sequence[str]) -> list[Row]:
    """None for a single run or attack: the verdicts say it all."""
    matrices = [_matrix(found, threat) for threat in threats]
    return matrices if len(found) > 1 and any(len(m["lines"]) > 1 for m in matrices) else []


def _matrix(found: Sequence[MethodRow], threat: str) -> Row:
    """Attacks by runs under one threat model; where there are many runs, each is a line rather than a column."""
    cells: dict[tuple[int, str], dict[str, Finding]] = {}
    for v in found:
        for f in _membership(v.evidence[:1]):
            if f["metric"] == "auroc" and f["threat_model"] == threat and (single(f) or _picked(f)):
                row = (f["best_of"], "") if _picked(f) else (0, f["signal"])
                cells.setdefault(row, {})[v.title] = f
    attacks = sorted(cells, key=lambda row: row[0])
    heads = [_attack(row) for row in attacks]
    lines = [[cells[row].get(v.title) for v in found] for row in attacks]
    return {"threat": threat, "wide": len(found) <= MANY, "attacks": heads, "lines": lines}


def _attack(row: tuple[int, str]) -> Row:
    return named(*row) | ({"detail": "corrected for picking"} if row[0] else {})
