"""Membership: who can tell members from non-members, a verdict per adversary, and the leakage tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedaudit.attacks.score_names import signal_name
from fedaudit.audits.findings import BEFOREHAND
from fedaudit.audits.verdicts import FEW_NAMED, SHARES, few_members
from fedaudit.reports import doubts
from fedaudit.reports.corrected_verdicts import family_sizes
from fedaudit.reports.evidence import Evidence, Finding, membership_findings, ordered
from fedaudit.reports.headline import Quotable, headline
from fedaudit.reports.rows import MethodRow
from fedaudit.reports.section import Page, Row, Section
from fedaudit.reports.strips import legend, place, strips
from fedaudit.reports.verdict_cards import (
    blocks,
    card,
    counts,
    freshest,
    gravest,
    is_best_of_several,
    is_headline_auroc,
    quotable,
    signal_heading,
)
from fedaudit.terms.nonmembers import LEFT_OUT_CANARIES
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.threat_models import THREAT_MODELS
from fedaudit.terms.verdicts import LEAKS

ORDER = 10
FEW = 4  # at most so many runs have strips at the top of the page


def section(page: Page) -> Section | None:
    """The sections with verdict cards and leakage tables; None if nothing was attacked."""
    findings = membership_findings(page.findings)
    if not findings:
        return None
    threats = ordered((f["threat_model"] for f in findings), THREAT_MODELS)
    quoted = {name: quotable_by_threat(v.evidence[0]) for name, v in zip(_names(page), page.runs, strict=True)}
    runs = [look | _run_parts(v, threats) for v, look in zip(page.runs, page.looks, strict=True)]
    drawn = _strips(page, quoted, runs)
    context = {
        "headline": headline(quoted, doubts.headline(page.findings)),
        "strips": drawn,
        "in_strips": len(runs) <= FEW,
        "leaks": any(strip["verdict"] in LEAKS for strip in drawn),
        "legend": legend(drawn),
        "axis": {"guessing": place(0.5), "between": place(0.75), "certain": place(1.0)},
        "threats": threats,
        "runs": runs,
        "matrices": _matrices(page.runs, threats),
        "mixed": [
            t for t in threats if len({(f["way"], f["population"]) for f in _quotable_findings(findings, t)}) > 1
        ],
        "corrected": max((f.get("best_of") or 0 for f in findings if f.get("z") is None), default=0),
        "families": _families_note(page),
        "beside": _further_columns(page.runs),
        "sees": {threat: SENTENCES[threat].card for threat in threats},
    }
    return Section([("verdicts", "Verdicts"), ("leakage", "Leakage")], {"membership": context})


def _strips(page: Page, quoted: Mapping[str, Quotable], runs: Sequence[Row]) -> list[Row]:
    """The strips of all runs, each with its adversary's `card` and, over the first of each of several runs, a `heading`
    (else None)."""
    clients = {
        name: v.evidence[0].setting.get("schedule", {}).get("clients")
        for name, v in zip(quoted, page.runs, strict=True)
    }
    cards = {(name, card["threat"]): card for name, run in zip(quoted, runs, strict=True) for card in run["threats"]}
    drawn, before = [], None
    for strip in strips(quoted, clients):
        heading = strip["run"] if len(runs) > 1 and strip["run"] != before else None
        drawn.append(strip | {"card": cards[strip["run"], strip["threat"]], "heading": heading})
        before = strip["run"]
    return drawn


def _names(page: Page) -> list[str]:
    """The runs' names in the first sentence: with their settings where there are several."""
    return [v.name if len(page.runs) == 1 else v.title for v in page.runs]


def quotable_by_threat(e: Evidence) -> dict[str, list[Finding]]:
    """The findings that verdicts on a run may quote, by adversary, for those with any finding."""
    findings = membership_findings(e.findings)
    threats = ordered((f["threat_model"] for f in findings), THREAT_MODELS)
    return {threat: quotable([f for f in findings if f["threat_model"] == threat]) for threat in threats}


def _families_note(page: Page) -> Row | None:
    """For the note on corrected p-values: the `named` and the `primary` scores by name, `n` scores of each family in
    all runs, number of `exchanges` and `runs`, the `error` in percent, the families' `shares` of it, and the remark
    where a client has `few` members. None where no coin decided who is a member."""
    exchanges = [len(e.tables["permutations"]) - 1 for e in page.evidence if len(e.tables.get("permutations", ()))]
    every = [e.tables["cells"] for e in page.evidence if "family" in e.tables.get("cells", ())]
    if not exchanges or not every:
        return None
    rows = [row for table in every for row in table.to_dict("records")]
    names = {
        family: list(dict.fromkeys(
            f"{r['threat_model']} {signal_name(r['signal'])}" for r in rows if r["family"] == family
        ))
        for family in BEFOREHAND
    }  # fmt: skip
    return names | {
        "n": family_sizes(page.evidence),
        "shares": SHARES,
        "runs": len(every),
        "exchanges": exchanges[0],
        "few": FEW_NAMED if any(few_members(f) for f in membership_findings(page.findings)) else None,
        "error": f"{100 * (1 - membership_findings(page.findings)[0]['confidence']):g}",
    }


def _quotable_findings(findings: Sequence[Finding], threat: str) -> list[Finding]:
    """Headline AUROCs, or those of the best of several attacks, of members against held-out records for `threat`."""
    return [f for f in findings if f["threat_model"] == threat and (is_headline_auroc(f) or is_best_of_several(f))]


def _run_parts(v: MethodRow, threats: Sequence[str]) -> Row:
    """Template variables of one run: `threats`, a card and leakage tables for each threat model; `epsilon`, claimed and
    proven, only where the privacy section has no row for the run."""
    first, others = (membership_findings(f for e in es for f in e.findings) for es in (v.evidence[:1], v.evidence[1:]))
    first = sorted(first, key=lambda f: bool(f.get("best_of")))  # the best of several attacks comes last
    parts = [_threat_parts(threat, [f for f in first if f["threat_model"] == threat], others) for threat in threats]
    return {"threats": parts, "epsilon": [] if v.claims else _epsilon_lines(first, threats)}


def _threat_parts(threat: str, first: Sequence[Finding], others: Sequence[Finding]) -> Row:
    """Card and tables of one threat model, from the findings of the `first` and of the `others` seeds. A card quotes
    the gravest of the `quotable` findings."""
    alone, quoted = [f for f in first if is_headline_auroc(f)], quotable(first)
    canaries = [f for f in first if f["metric"] == "auroc" and f["nonmembers"] == LEFT_OUT_CANARIES]
    headline: list[Finding] = []
    siblings: list[Finding] = []
    for f in first:
        (headline if f["headline"] or f.get("best_of") else siblings).append(f)
    return {
        "threat": threat,
        "quoted": gravest(quoted),
        "picked": any(f.get("best_of") for f in quoted),
        "alarms": list(dict.fromkeys(f["alarm"] for f in headline if f.get("alarm"))),
        "alone": counts(alone),
        "canaries": gravest([f for f in canaries if f.get("best_of")])
        or gravest([f for f in canaries if f["headline"]]),
        **card(quoted, others),
        "blocks": blocks(headline, others),
        "siblings": blocks(siblings, others),
    }


def _epsilon_lines(findings: Sequence[Finding], threats: Sequence[str]) -> list[Row]:
    """A line per distinct claimed, provable and measured epsilon (`three`, in words), with the `threats` (adversaries)
    that share them."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for threat in threats:
        for three in dict.fromkeys(
            tuple(f[name] or "n/a" for name in ("claimed", "provable", "measured"))
            for f in findings
            if f["threat_model"] == threat and (f["claimed"] or f["provable"] or f["measured"])
        ):
            lines.setdefault(three, []).append(threat)
    return [{"threats": names, "three": three} for three, names in lines.items()]


def _further_columns(rows: Sequence[MethodRow]) -> list[tuple[str, str, list[float | None]]]:
    """Columns (heading, unit, number per run) of final utility and bytes; one without numbers is left out."""
    ends = [v.final_utility for v in rows]
    shares = [None if v.sent is None or v.sent["share"] is None else 100 * v.sent["share"] for v in rows]
    name = next((end[0] for end in ends if end), "")
    columns: list[tuple[str, str, list[float | None]]] = [
        (name, "at the end", [end[1] if end else None for end in ends]),
        ("bytes", "% of FedAvg's", shares),
    ]
    return [column for column in columns if any(x is not None for x in column[2])]


def _matrices(rows: Sequence[MethodRow], threats: Sequence[str]) -> list[Row]:
    """A matrix per threat model; empty for a single run or attack, where the verdicts show as much."""
    matrices = [_matrix(rows, threat) for threat in threats]
    return matrices if len(rows) > 1 and any(len(m["attacks"]) > 1 for m in matrices) else []


def _matrix(rows: Sequence[MethodRow], threat: str) -> Row:
    """The table of one adversary (`threat`), attacks against runs: headings of `attacks`, and `lines`, one per run,
    with a finding per attack (None: not run), picked by `freshest`."""
    by_run = [_quotable_findings(membership_findings(v.evidence[0].findings), threat) for v in rows]
    distinct = dict.fromkeys(_attack_key(f) for findings in by_run for f in findings)
    attacks = sorted(distinct, key=lambda attack: attack[0])  # the best of several comes last
    lines = [[freshest([f for f in fs if _attack_key(f) == attack]) for attack in attacks] for fs in by_run]
    return {"threat": threat, "attacks": [signal_heading(*attack) for attack in attacks], "lines": lines}


def _attack_key(f: Finding) -> tuple[int, str]:
    """The arguments of `signal_heading` for a finding."""
    return (f["best_of"], "") if is_best_of_several(f) else (0, f["signal"])
