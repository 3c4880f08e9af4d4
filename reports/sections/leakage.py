"""Membership in trainings on texts: verdicts, leakage tables, figures, exposed records, reconstruction, all cells."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedaudit.machinery.score_names import parts
from reports.figures import drawing
from reports.figures import membership as figures
from reports.inputs import METRICS, TABLES, Evidence, Finding, about_membership, joined
from reports.section import Page, Section
from reports.verdict_cards import PLACE, SEES, SYMBOLS, blocks, card, tint

ORDER = 30
MODELS = {"global": "server", "novel": "server, out of distribution", "clients": "clients, mean"}  # as FedRand's tables


def section(page: Page) -> Section | None:
    """Where something was attacked, and no other section shows it."""
    if not page.attacked or "inference" in page.above:
        return None
    first = page.first
    methods, shown = [e.method for e in first], {name: joined(first, name) for name in TABLES}
    return Section(
        links=[
            ("leakage", "Leakage"), ("figures", "Figures"), ("exposed", "Exposed records"),
            ("reconstruction", "Reconstruction"), ("cells", "All cells"),
        ],
        context=context(page.evidence, first, shown),
        drawn=figures.draw(shown, methods, signals(page.findings), each=page.each),
        tables={"cells": joined(page.evidence, "cells")},
        beside={"exposed": shown["exposed"].drop(columns="png")},
    )  # fmt: skip


def signals(findings: Sequence[Finding]) -> list[str]:
    """The headline's signals, in reading order."""
    return list(dict.fromkeys(f["signal"] for f in about_membership(findings) if f["headline"]))


def context(evidence: Sequence[Evidence], first: Sequence[Evidence], tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """What the template needs; `first` holds every method's first seed, `tables` are theirs."""
    findings = about_membership(f for e in evidence for f in e.findings)
    return {
        "methods": [_method(i, e, findings) for i, e in enumerate(first)],
        "several": len(evidence) > len(first),
        "overview": _overview(first, tables) if len(first) > 1 else None,
        "tokens": _tokens(tables["tokens"]),
        "exposed": _exposed(tables["exposed"]),
        "utility": _utility(tables["utility"]),
        "coverage": _coverage(tables["coverage"]),
        "complete": _complete(tables["cost"]),
        "cells": _cells(tables["cells"]),
        "symbols": SYMBOLS,
        "sees": SEES,
        "metrics": METRICS,
    }


def _overview(first: Sequence[Evidence], tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """A line per method: its last headline signal under each threat model, utility at the end, and bytes."""
    found = {e.method: about_membership(e.findings) for e in first}
    everything = [f for rows in found.values() for f in rows]
    signal = [f["signal"] for f in everything if f["headline"]][-1]
    threats = figures.ordered([f["threat_model"] for f in everything], figures.THREATS)
    utility, cost = tables["utility"], tables["cost"]
    metric = next((m for m in ("exact_match", "cider") if m in utility), None)
    rows = []
    for e in first:
        last = utility[(utility.method == e.method) & (utility.model == "global")].sort_values("round").tail(1)
        part = cost[cost.method == e.method]
        rows.append(
            {
                "found": [_representative(found[e.method], threat, signal) for threat in threats],
                "utility": float(last[metric].iloc[0]) if metric and len(last) else None,
                "bytes": (part.bytes_down + part.bytes_up).sum() / part.fedavg_bytes.sum() if len(part) else None,
            }
        )
    return {"signal": signal, "threats": threats, "metric": figures.METRICS.get(metric or "", metric), "rows": rows}


def _representative(findings: Sequence[Finding], threat: str, signal: str) -> Finding | None:
    """Of the AUROCs of a signal under a threat model, all or own members, the freshest way that reaches half of the
    clients."""
    rows = [
        f
        for f in findings
        if (f["threat_model"], f["signal"], f["metric"], f["nonmembers"]) == (threat, signal, "auroc", "held-out")
        and f["population"] != "last-round members"
    ]
    wide = [f for f in rows if 2 * f["clients"] >= max(g["clients"] for g in rows)]
    known = [f for f in wide if f["way"] in figures.WAYS] or wide
    return min(
        known, key=lambda f: figures.ordered([g["way"] for g in known], figures.WAYS).index(f["way"]), default=None
    )


def _method(i: int, e: Evidence, findings: Sequence[Finding]) -> dict[str, Any]:
    """What the first screen says about one method."""
    threats = figures.ordered([f["threat_model"] for f in findings], figures.THREATS)
    own = about_membership(e.findings)
    others = [f for f in findings if f["method"] == e.method and f["seed"] != e.seed]
    return {
        "name": e.method,
        "seed": e.seed,
        "symbol": drawing.SYMBOLS[i % len(drawing.SYMBOLS)],
        "colour": drawing.COLOURS[i % len(drawing.COLOURS)],
        "cards": [{"threat": threat, **_card(own, threat, others)} for threat in threats],
        "blocks": blocks([f for f in own if f["headline"]], others),
        "siblings": blocks([f for f in own if not f["headline"]], others),
        "epsilon": _epsilon(own, threats),
    }


def _card(findings: Sequence[Finding], threat: str, others: Sequence[Finding]) -> dict[str, Any]:
    """The gravest of the headline rows against held-out records."""
    rows = [f for f in findings if f["threat_model"] == threat and f["headline"] and f["nonmembers"] == "held-out"]
    return card(rows, others)


def _epsilon(findings: Sequence[Finding], threats: Sequence[str]) -> list[dict[str, Any]]:
    """Claimed, provable and measured: threat models with the same three are one line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for threat in threats:
        for f in findings:
            three = tuple(f[name] for name in ("claimed", "provable", "measured"))
            if f["threat_model"] == threat and any(three) and threat not in lines.setdefault(three, []):
                lines[three].append(threat)
    return [{"threats": names, "three": [x or "n/a" for x in three]} for three, names in lines.items()]


def _tokens(tokens: pd.DataFrame) -> dict[str, Any]:
    """Per method and panel the runs of tokens of one slice, with colours; and the end of the common scale in nats."""
    tokens = tokens.astype({"entropy": float, "base_entropy": float})
    top = figures.scale(tokens)
    panels = []
    for (method, panel), part in tokens.groupby(["method", "panel"], sort=False):
        cells = [
            {"slice": t.slice, "word": t.token}
            | {name: (x, *figures.shade(x, top)) for name, x in (("now", t.entropy), ("base", t.base_entropy))}
            for t in part.sort_values("position").itertuples()
        ]
        runs = [(name, list(run)) for name, run in itertools.groupby(cells, key=lambda cell: cell["slice"])]
        panels.append({"method": method, "panel": panel, "record": part.record.iloc[0], "runs": runs})
    return {"top": top, "panels": panels, "ends": (figures.CONFIDENT, figures.UNCERTAIN)}


def _exposed(exposed: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The most exposed records by method, pictures as data."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in exposed.to_dict("records"):
        found.setdefault(row["method"], []).append(row | {"png": base64.b64encode(row["png"]).decode()})
    return found


def _utility(utility: pd.DataFrame) -> dict[str, Any]:
    """Utility before the first and after the last round, a row per method and model."""
    metrics = [c for c in utility if c not in ("method", "seed", "round", "model") and utility[c].notna().any()]
    rows = []
    for method, part in utility.groupby("method", sort=False):
        for model, name in MODELS.items():
            mine = part[part.model == model].sort_values("round")
            ends = [
                ("before tuning", mine[mine["round"] < 0]),
                ("after the last round", mine[mine["round"] >= 0].tail(1)),
            ]
            rows += [(method, name, when, [float(end[m].iloc[0]) for m in metrics]) for when, end in ends if len(end)]
    return {"metrics": [figures.METRICS.get(m, m.upper().replace("BLEU", "BLEU-")) for m in metrics], "rows": rows}


def _complete(cost: pd.DataFrame) -> list[tuple[str, int, int, list[int]]]:
    """By method: how many messages held a client's whole model, of how many, and in which rounds (from 1)."""
    return [
        (method, int(part.complete.sum()), int(part.messages.sum()), (part["round"][part.complete > 0] + 1).tolist())
        for method, part in cost.groupby("method", sort=False)
    ]


def _coverage(coverage: pd.DataFrame) -> list[dict[str, Any]]:
    """By method: the ways, how many clients each rebuilds, and client by way what was rebuilt (None where the way does
    not apply)."""
    found = []
    for method, part in coverage.groupby("method", sort=False):
        ways = list(dict.fromkeys(part.way))
        rows = {(r["client"], r["way"]): r for r in part.to_dict("records")}
        clients = sorted(set(part.client))
        found.append(
            {
                "method": method,
                "ways": [(way, int(part.reconstructable[part.way == way].astype(bool).sum())) for way in ways],
                "total": len(clients),
                "clients": [(client, [rows.get((client, way)) for way in ways]) for client in clients],
            }
        )
    return found


def _cells(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """By method and comparison: a heat table per slice (rows: kind and order, columns: K) and the signals without a
    K."""
    found = []
    for place, part in cells.groupby(["method", *PLACE], sort=False):
        grids: dict[str, dict[str, dict[int, Any]]] = {}
        single = []
        for row in part.to_dict("records"):
            cell = row | {"shade": tint(row["auroc"])}
            name, share, piece = parts(row["signal"])
            if share is None:
                single.append(cell)
            else:
                grids.setdefault(piece, {}).setdefault(name, {})[share] = cell
        tables = [(piece, sorted({k for row in rows.values() for k in row}), rows) for piece, rows in grids.items()]
        found.append({"method": place[0], "place": place[1:], "n": len(part), "grids": tables, "single": single})
    return found
