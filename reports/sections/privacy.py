"""Privacy: what is claimed beside what is provable and what canaries show, and the noise that ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.terms.threat_models import PROMPT_USER, SERVER
from reports.formats import listed
from reports.measured import compared, contradictions, rows
from reports.rows import MethodRow
from reports.section import Page, Section

ORDER = 30
RECORDS = {("own",): "the client itself", ("other",): "another client", ("own", "other"): "any client"}
ALWAYS, NOISED = "with and without noise", "with any noise"
FEW = 12  # rows of noise that are shown unfolded


def section(page: Page) -> Section | None:
    """Where something is proven, measured or was noised."""
    claims, shown, noise = _claims(page.runs), _measured(page.runs), _noise(page.runs)
    if not claims and not shown and not noise:
        return None
    links = [("privacy", "Claimed and provable"), ("measured", "Measured"), ("noise", "Noise")]
    return Section(
        links=[link for link, there in zip(links, (claims, shown, noise), strict=True) if there],
        context={
            "privacy": {
                "claims": claims,
                "measured": shown,
                "contradictions": contradictions(page.findings),
                "compared": compared(page.findings),
                "noise": noise,
                "noised": any(v.private for v in page.runs),
                "users": any(c.threat_model == PROMPT_USER for v in page.runs for c in v.claims),
                "few": FEW,
            }
        },
        tables=page.files("privacy", "noise"),
    )


def _claims(found: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """Claimed beside provable: methods about which the same holds share a block, epsilons and adversaries about which
    it does a row."""
    families: dict[tuple[str, str], list[MethodRow]] = {}
    for v in (v for v in found if v.claims):
        families.setdefault((v.method, v.setting), []).append(v)
    blocks: dict[tuple[Any, ...], list[list[MethodRow]]] = {}
    for family in families.values():
        blocks.setdefault(tuple((v.epsilon, v.claims) for v in family), []).append(family)
    total = Counter(method for method, _ in families)
    return [{"title": _who(alike, total), "rows": _adversaries(alike[0])} for alike in blocks.values()]


def _measured(found: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """The bounds of every run's first seed."""
    return [
        {"title": v.title, "first": i == 0, "span": len(own)} | row
        for v in found
        for own in [rows(v.evidence[0].findings)]
        for i, row in enumerate(own)
    ]


def _who(alike: Sequence[Sequence[MethodRow]], total: Mapping[str, int]) -> str:
    """The methods of a block; their settings where the method has further ones."""
    names = []
    for method in dict.fromkeys(family[0].method for family in alike):
        own = [family[0] for family in alike if family[0].method == method]
        some = f" ({'; '.join(v.setting for v in own)})" if len(own) < total[method] else ""
        names.append(own[0].name + some)
    return listed(names)


def _adversaries(family: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """A row per number: with which epsilons, against whom and for whose record."""
    levels: dict[tuple[Any, ...], list[MethodRow]] = {}
    for v in family:
        same: dict[tuple[Any, ...], dict[str, list[str]]] = {}
        for c in v.claims:
            same.setdefault(c.numbers, {}).setdefault(c.threat_model, []).append(c.whose)
        for numbers, places in same.items():
            for records in dict.fromkeys(tuple(whose) for whose in places.values()):
                threats = tuple(threat for threat, whose in places.items() if tuple(whose) == records)
                levels.setdefault((numbers, threats, records), []).append(v)
    rows = [
        {
            "noise": _levels(vs, family),
            "threats": _against(threats, [c.threat_model for c in vs[0].claims]),
            "records": RECORDS.get(records, listed(records)),
            "claim": next(c for c in vs[0].claims if (c.numbers, c.threat_model) == (numbers, threats[0])),
        }
        for (numbers, threats, records), vs in levels.items()
    ]
    return sorted(rows, key=lambda row: row["noise"] in (ALWAYS, NOISED))  # what holds at every epsilon comes last


def _levels(some: Sequence[MethodRow], family: Sequence[MethodRow]) -> str:
    if len(some) > 1 and len(some) == len(family):
        return ALWAYS
    if len(some) > 1 and len(some) == sum(v.private for v in family) and all(v.private for v in some):
        return NOISED
    return listed([v.noise for v in some])


def _against(threats: Sequence[str], everybody: Sequence[str]) -> list[str]:
    left = [threat for threat in dict.fromkeys(everybody) if threat not in threats]
    if left in ([], [SERVER]) and len(threats) > 1:
        return ["everybody but the server" if left else "everybody"]
    return list(threats)


def _noise(found: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """The mechanisms of every noised variant's first seed."""
    rows = []
    for v in found:
        table = v.table("noise").to_dict("records")
        rows += [row | {"title": v.title, "first": i == 0, "span": len(table)} for i, row in enumerate(table)]
    return rows
