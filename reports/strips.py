"""Strips: an adversary's score on the scale from guessing to certain, beside its verdict in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.attacks.score_names import name_of
from fedaudit.audits.findings import BEFOREHAND
from fedaudit.reports.evidence import Finding
from fedaudit.reports.formats import number, p_value
from fedaudit.reports.headline import FURTHER, AdversaryVerdict, Quotable, how_well, outcomes
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.verdicts import NO_LEAK_FOUND, REVERSED

LEFT, RIGHT = 0.4, 1.0  # ends of the scale; an AUROC further below is drawn at its left end
MARGIN = 2.0  # percent of a strip that stay free at both ends


def strips(runs: Mapping[str, Quotable], clients: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """Template variables of a strip per run and adversary; `clients` are the runs' numbers of clients."""
    return [_strip(o, clients.get(o.run)) for o in outcomes(runs)]


def _strip(o: AdversaryVerdict, clients: int | None) -> dict[str, Any]:
    """Template variables: `run`, `who`, what it `sees`, `verdict`; `reading`, the verdict in plain words, of no leak
    what would have been found; `at`, percent of the strip's width by mark (None: no number). With a number also
    `numbers` and `score` in words, how many `clients` stand behind it, and `label`, the strip in words."""
    about = {"run": o.run, "threat": o.threat, "who": _capital(o.who), "sees": SENTENCES[o.threat].card,
             "verdict": o.verdict, "reading": reading(o), "at": None}  # fmt: skip
    f = o.quoted
    if f is None or f["value"] is None:
        return about
    return about | {
        "numbers": _numbers(f),
        "score": _score(f),
        "clients": _clients(f["clients"], clients),
        "at": _marks(f, o.verdict),
        "label": _label(o.verdict, f),
    }


def reading(o: AdversaryVerdict) -> str:
    """The verdict in plain words; where no leak was found, what would have been."""
    if o.leaks:
        return how_well(o.quoted, guessing="")
    return could_have(o.quoted) if o.verdict == NO_LEAK_FOUND and o.quoted else FURTHER[o.verdict]


def could_have(f: Finding) -> str:
    """A clause on the leak that would have been found, for a finding that shows none."""
    if f["detectable"] is None:
        return "what could have been shown is not known"
    if f.get("t") is None:  # no coins: without a family and its power
        return f"an AUROC of {f['detectable']:.2f} would just have been told from guessing"
    leaks = [f"an AUROC of {f['detectable']:.2f}"]
    if f.get("detectable_named"):
        leaks.append(f"{f['detectable_named']} named records")
    return f"{' or '.join(leaks)} would have been found with a power of 80 %"


def _numbers(f: Finding) -> str:
    p = f.get("p_adjusted")
    corrected = "" if p is None else f", p {p_value(p)} corrected"
    return f"AUROC {f['value']:.3f} [{number(f['low'])}, {number(f['high'])}]{corrected}"


def _score(f: Finding) -> str:
    """The score's name, and whether it was named before looking."""
    name = name_of(f["signal"]).in_sentences
    if f.get("best_of"):
        return f"{name}, the best of {f['best_of']} attacks, corrected for picking it"
    if f.get("family") in BEFOREHAND:
        return f"{name}, named beforehand"
    return f"{name}, one of {f['family_n']:,} not named beforehand" if f.get("family") else name


def _clients(some: int, of: int | None) -> str:
    if of is None or of < some:
        return f"{some} client{'s' if some != 1 else ''}"
    return f"{some} of {of} clients"


def _marks(f: Finding, verdict: str) -> dict[str, float | None]:
    """Percent of the strip's width at which each mark is drawn; None: it is not. Where the lower score tells members,
    the scale is turned round; `detectable` is drawn where no leak was found."""
    turned = verdict == REVERSED
    ends = ("high", "low") if turned else ("low", "high")
    values = {"value": f["value"], "low": f[ends[0]], "high": f[ends[1]], "base": f.get("base_value")}
    marks = {mark: None if x is None else place(1 - x if turned else x) for mark, x in values.items()}
    detectable = f["detectable"] if verdict == NO_LEAK_FOUND else None
    return marks | {
        "detectable": None if detectable is None else place(detectable),
        "guessing": place(0.5),
        "certain": place(1.0),
    }


def place(auroc: float) -> float:
    """Where an AUROC stands on a strip, in percent of its width."""
    share = (min(max(auroc, LEFT), RIGHT) - LEFT) / (RIGHT - LEFT)
    return round(MARGIN + (100 - 2 * MARGIN) * share, 2)


def _label(verdict: str, f: Finding) -> str:
    base = "" if f.get("base_value") is None else f"; on the untrained model {f['base_value']:.2f}"
    ends = "" if f["low"] is None else f", {100 * f['confidence']:g} % interval {f['low']:.2f} to {f['high']:.2f}"
    return f"{_capital(verdict)}: AUROC {f['value']:.2f}{ends}{base}; guessing is 0.50, certain 1.00"


def legend(drawn: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Which marks a legend must explain: `any` at all, the `untrained` model, and what was `detectable`."""
    at = [strip["at"] for strip in drawn if strip["at"]]
    return {
        "any": bool(at),
        "untrained": any(marks["base"] is not None for marks in at),
        "detectable": any(marks["detectable"] is not None for marks in at),
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
