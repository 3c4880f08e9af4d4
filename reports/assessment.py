"""A paragraph for a data-protection impact assessment: what was tested, who could do it, what was found, and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clip_source import EMBEDDED_CLIP
from fedaudit.reports.doubts import headline as doubts_of
from fedaudit.reports.formats import join_words
from fedaudit.reports.section import Page
from fedaudit.terms.verdicts import LEAKS

QUESTION = (
    "Asked was whether scores can tell records that a client trained on from others of the same client that it did not."
)
DEMONSTRATION = {folder.name for folder in (EMBEDDED, *EMBEDDED_CLIP.values())}


def is_demonstration(page: Page) -> bool:
    """Whether all runs are of the small models that come with FedAudit."""
    names = {e.setting.get("backbone", {}).get("name") for e in page.evidence}
    return bool(names) and names <= DEMONSTRATION


def paragraphs(
    page: Page, membership: Mapping[str, Any] | None, cards: Sequence[Mapping[str, Any]], notes: Sequence[str]
) -> list[tuple[str, str]]:
    """Pairs of a heading and a text, for the section `membership` (its template variables) and `cards` of epsilon (if
    there are any). `notes` are the page's limitations."""
    strips, doubts = membership["strips"] if membership else [], doubts_of(page.findings)
    error = membership["families"] if membership else None
    parts = [("What was tested", _tested(page, attacked=membership is not None))]
    if strips:
        who = {s["who"]: s["sees"] for s in strips}
        parts.append(("Who could do it", f"{'. '.join(f'{name}: {sees}' for name, sees in who.items())}."))
        sure = f"At most {error['error']} % of such audits call anything a leak that is none." if error else ""
        leaking = [s for s in strips if s["verdict"] in LEAKS]
        nobody = "" if doubts else "Nobody was shown to tell who was trained on."
        parts.append(("What was found", " ".join(filter(None, (doubts, _listed(leaking) or nobody, sure)))))
        if quiet := [s for s in strips if s["verdict"] not in LEAKS]:
            parts.append(("What was not found", _listed(quiet)))
    elif membership and membership["headline"]:
        parts.append(("What was found", " ".join([membership["headline"].sentence, *membership["headline"].rest])))
    if cards:
        parts.append(("Differential privacy", f"{'. '.join(map(_epsilon, cards))}."))
    return [*parts, ("Limits", " ".join(notes))] if notes else parts


def _tested(page: Page, *, attacked: bool) -> str:
    first = page.evidence[0]
    schedule = first.setting.get("schedule", {})
    names = join_words(list(dict.fromkeys(v.title for v in page.runs)))
    size = "".join(f", {schedule[name]} {name}" for name in ("clients", "rounds") if schedule.get(name))
    model = " A small demonstration model stands for the real one." if is_demonstration(page) else ""
    attack = f" Attacks: {first.attack}. {QUESTION}" if attacked else " Nothing was attacked."
    return f"{names} on {first.task}{size}.{model}{attack}"


def _listed(strips: Sequence[Mapping[str, Any]]) -> str:
    several = len({s["run"] for s in strips}) > 1
    return " ".join(
        f"{s['run'] + ': ' if several else ''}{s['who']}: {s['verdict']}, {s['reading']}"
        f"{' (' + s['numbers'] + ')' if s['at'] else ''}."
        for s in strips
    )


def _epsilon(card: Mapping[str, Any]) -> str:
    values = [f"{line['run'] + ': ' if line['run'] else ''}{line['value']}" for line in card["lines"]]
    return f"{card['name']} ε: {'; '.join(values)}"
