"""Membership: who can tell members from non-members, a verdict per adversary, and the leakage tables."""

from __future__ import annotations

from collections.abc import Sequence

from attacks.score_names import signal_name
from audits.verdicts import SHARES
from fedaudit.terms.nonmembers import HELD_OUT, LEFT_OUT_CANARIES
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.threat_models import THREAT_MODELS
from reports.attack_success import single
from reports.evidence import Finding, about_membership, ordered
from reports.judged import family_sizes
from reports.rows import MethodRow
from reports.section import Page, Row, Section
from reports.verdict_cards import blocks, card, counts, freshest, gravest, named

ORDER = 10
FEW = 4  # runs whose verdicts are said in words on the first screen


def section(page: Page) -> Section | None:
    """Where something was attacked."""
    findings = about_membership(page.findings)
    if not findings:
        return None
    threats = ordered((f["threat_model"] for f in findings), THREAT_MODELS)
    found = {
        "threats": threats,
        "runs": [look | _run(v, threats) for v, look in zip(page.runs, page.looks, strict=True)],
        "matrices": _matrices(page.runs, threats),
        "mixed": [threat for threat in threats if len({_model(f) for f in _quotable(findings, threat)}) > 1],
        "corrected": max((f.get("best_of") or 0 for f in findings if f.get("z") is None), default=0),
        "families": _families(page),
        "beside": _beside(page.runs),
        "sees": {threat: SENTENCES[threat].card for threat in threats},
        "few": FEW,
    }
    return Section([("verdicts", "Verdicts"), ("leakage", "Leakage")], {"membership": found})


def _families(page: Page) -> Row | None:
    """What corrected p-values are corrected for: the primary scores by name, and how many scores there are of each
    family in all runs; None where no coin decided."""
    exchanges = [len(e.tables["permutations"]) - 1 for e in page.evidence if len(e.tables.get("permutations", ()))]
    every = [e.tables["cells"] for e in page.evidence if "family" in e.tables.get("cells", ())]
    if not exchanges or not every:
        return None
    primary = [row for table in every for row in table[table.family == "primary"].to_dict("records")]
    return {
        "primary": list(dict.fromkeys(f"{r['threat_model']} {signal_name(r['signal'])}" for r in primary)),
        "n": family_sizes(page.evidence),
        "shares": SHARES,
        "runs": len(every),
        "exchanges": exchanges[0],
        "error": f"{100 * (1 - about_membership(page.findings)[0]['confidence']):g}",
    }


def _model(f: Finding) -> tuple[str, str]:
    return f["way"], f["population"]


def _quotable(findings: Sequence[Finding], threat: str) -> list[Finding]:
    """What a verdict on an adversary may rest on: AUROCs of members against held-out records, of an attack's headline
    scores or of the best of several attacks."""
    return [f for f in findings if f["threat_model"] == threat and (single(f) or _picked(f))]


def _picked(f: Finding) -> bool:
    """Whether this is about the best of several attacks, members against held-out records."""
    return bool(f.get("best_of")) and f["nonmembers"] == HELD_OUT


def _run(v: MethodRow, threats: Sequence[str]) -> Row:
    """What is said about one run: for every threat model a card and its leakage tables; and, where no table says it,
    what is claimed and proven."""
    own, others = (about_membership(f for e in some for f in e.findings) for some in (v.evidence[:1], v.evidence[1:]))
    own = sorted(own, key=lambda f: bool(f.get("best_of")))  # the best comes last
    parts = [_threat(threat, [f for f in own if f["threat_model"] == threat], others) for threat in threats]
    return {"threats": parts, "epsilon": [] if v.claims else _epsilon(own, threats)}


def _threat(threat: str, own: Sequence[Finding], others: Sequence[Finding]) -> Row:
    """A card quotes the gravest row of a headline score. Where coins decided, its corrected p-value allows for picking
    it; elsewhere a card quotes the best of the attacks, whose interval does, if there are several."""
    alone, best = [f for f in own if single(f)], [f for f in own if _picked(f) and f.get("z") is None]
    quoted = best if gravest(best) else alone
    canaries = [f for f in own if f["metric"] == "auroc" and f["nonmembers"] == LEFT_OUT_CANARIES]
    headline = [f for f in own if f["headline"] or f.get("best_of")]
    return {
        "threat": threat,
        "quoted": gravest(quoted),
        "picked": quoted is best,
        "alarms": list(dict.fromkeys(f["alarm"] for f in headline if f.get("alarm"))),
        "alone": counts(alone),
        "canaries": gravest([f for f in canaries if f.get("best_of")])
        or gravest([f for f in canaries if f["headline"]]),
        **card(quoted, others),
        "blocks": blocks(headline, others),
        "siblings": blocks([f for f in own if f not in headline], others),
    }


def _epsilon(findings: Sequence[Finding], threats: Sequence[str]) -> list[Row]:
    """Claimed, provable and measured: threat models with the same three are one line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for threat in threats:
        for three in dict.fromkeys(
            tuple(f[name] or "n/a" for name in ("claimed", "provable", "measured"))
            for f in findings
            if f["threat_model"] == threat and (f["claimed"] or f["provable"] or f["measured"])
        ):
            lines.setdefault(three, []).append(threat)
    return [{"threats": names, "three": three} for three, names in lines.items()]


def _beside(found: Sequence[MethodRow]) -> list[tuple[str, str, list[float | None]]]:
    """Columns beside the verdicts, a number for every run: how good its models are at the end, and what it sends. One
    that no run fills is left out."""
    ends = [v.at_the_end for v in found]
    shares = [None if v.sent is None or v.sent["share"] is None else 100 * v.sent["share"] for v in found]
    name = next((end[0] for end in ends if end), "")
    columns: list[tuple[str, str, list[float | None]]] = [
        (name, "at the end", [end[1] if end else None for end in ends]),
        ("bytes", "% of FedAvg's", shares),
    ]
    return [column for column in columns if any(x is not None for x in column[2])]


def _matrices(found: Sequence[MethodRow], threats: Sequence[str]) -> list[Row]:
    """None for a single run or attack: the verdicts say it all."""
    matrices = [_matrix(found, threat) for threat in threats]
    return matrices if len(found) > 1 and any(len(m["attacks"]) > 1 for m in matrices) else []


def _matrix(found: Sequence[MethodRow], threat: str) -> Row:
    """Runs by attacks under one threat model, of several models of its the freshest."""
    own = [_quotable(about_membership(v.evidence[0].findings), threat) for v in found]
    rows = dict.fromkeys(_attack(f) for some in own for f in some)
    attacks = sorted(rows, key=lambda row: row[0])  # the best comes last
    lines = [[freshest([f for f in some if _attack(f) == attack]) for attack in attacks] for some in own]
    return {"threat": threat, "attacks": [named(*attack) for attack in attacks], "lines": lines}


def _attack(f: Finding) -> tuple[int, str]:
    return (f["best_of"], "") if _picked(f) else (0, f["signal"])
