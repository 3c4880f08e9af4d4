"""Privacy: what is claimed beside what is provable and what canaries show, and the noise that ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.reports.formats import join_words
from fedaudit.reports.measured import contradictions, count_testable, out_of_reach, rows
from fedaudit.reports.rows import MethodRow
from fedaudit.reports.section import Page, Section
from fedaudit.terms.threat_models import PROMPT_USER, SERVER

ORDER = 30
OWNERS = {("own",): "the client itself", ("other",): "another client", ("own", "other"): "any client"}
ALWAYS, NOISED = "with and without noise", "with any noise"


def section(page: Page) -> Section | None:
    """The section of claimed, proven and measured epsilons, and noise; None if there is none of them."""
    claims = _claim_blocks(page.runs)
    # of every run's first seed; a run without noise has no mechanism
    measured = [row for v in page.runs for row in _with_title(v.title, rows(v.evidence[0].findings))]
    noise = [row for v in page.runs for row in _with_title(v.title, v.table("noise").to_dict("records"))]
    if not claims and not measured and not noise:
        return None
    links = [("privacy", "Claimed and provable"), ("measured", "Measured"), ("noise", "Noise")]
    return Section(
        links=[link for link, there in zip(links, (claims, measured, noise), strict=True) if there],
        context={
            "privacy": {
                "claims": claims,
                "measured": measured,
                "contradictions": contradictions(page.findings),
                "compared": count_testable(page.findings),
                "out_of_reach": out_of_reach(page.findings),
                "noise": noise,
                "noised": any(v.private for v in page.runs),
                "users": any(c.threat_model == PROMPT_USER for v in page.runs for c in v.claims),
            }
        },
        tables=page.files("privacy", "noise"),
    )


def _claim_blocks(runs: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """Blocks of claimed beside provable epsilons, each {"title": methods in words, "rows"}. Methods (with their
    settings) that have equal claims share a block; epsilons and adversaries with equal numbers share a row."""
    families: dict[tuple[str, str], list[MethodRow]] = {}  # the runs of a method and setting, one per epsilon
    for v in (v for v in runs if v.claims):
        families.setdefault((v.method, v.setting), []).append(v)
    blocks: dict[tuple[Any, ...], list[list[MethodRow]]] = {}
    for family in families.values():
        blocks.setdefault(tuple((v.epsilon, v.claims) for v in family), []).append(family)
    total = Counter(method for method, _ in families)
    return [{"title": _method_names(alike, total), "rows": _claim_rows(alike[0])} for alike in blocks.values()]


def _with_title(title: str, some: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one run with its `title`, which the `first` row's cell shows over a `span` of all of them."""
    return [{**row, "title": title, "first": i == 0, "span": len(some)} for i, row in enumerate(some)]


def _method_names(alike: Sequence[Sequence[MethodRow]], total: Mapping[str, int]) -> str:
    """The methods of a block in words, with their settings where the block has not all `total` settings of a method."""
    names = []
    for method in dict.fromkeys(family[0].method for family in alike):
        settings = [family[0] for family in alike if family[0].method == method]
        some = f" ({'; '.join(v.setting for v in settings)})" if len(settings) < total[method] else ""
        names.append(settings[0].name + some)
    return join_words(names)


def _claim_rows(family: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """A row per distinct claim of a method's runs (`family`, one per epsilon): `noise`, `threats` (adversaries) and
    `records` (whose) that it holds for, in words, and the `claim`."""
    levels: dict[tuple[Any, ...], list[MethodRow]] = {}
    for v in family:
        owners_of: dict[tuple[Any, ...], dict[str, list[str]]] = {}  # by numbers and threat model
        for c in v.claims:
            owners_of.setdefault(c.numbers, {}).setdefault(c.threat_model, []).append(c.whose)
        for numbers, by_threat in owners_of.items():
            for owners in dict.fromkeys(map(tuple, by_threat.values())):
                threats = tuple(threat for threat in by_threat if tuple(by_threat[threat]) == owners)
                levels.setdefault((numbers, threats, owners), []).append(v)
    rows = [
        {
            "noise": _noise_in_words(vs, family),
            "threats": _threats_in_words(threats, [c.threat_model for c in vs[0].claims]),
            "records": OWNERS.get(owners, join_words(owners)),
            "claim": next(c for c in vs[0].claims if (c.numbers, c.threat_model) == (numbers, threats[0])),
        }
        for (numbers, threats, owners), vs in levels.items()
    ]
    return sorted(rows, key=lambda row: row["noise"] in (ALWAYS, NOISED))  # claims for every epsilon come last


def _noise_in_words(some: Sequence[MethodRow], family: Sequence[MethodRow]) -> str:
    """The noise of some runs of a family (a method's runs over epsilons) in words: their levels, or a phrase for all,
    or for all with noise."""
    if len(some) > 1 and len(some) == len(family):
        return ALWAYS
    if len(some) > 1 and len(some) == sum(v.private for v in family) and all(v.private for v in some):
        return NOISED
    return join_words([v.noise for v in some])


def _threats_in_words(threats: Sequence[str], everybody: Sequence[str]) -> list[str]:
    """The threat models, or a phrase where they are all of `everybody`, or all but the server."""
    left = [threat for threat in dict.fromkeys(everybody) if threat not in threats]
    if left in ([], [SERVER]) and len(threats) > 1:
        return ["everybody but the server" if left else "everybody"]
    return list(threats)
