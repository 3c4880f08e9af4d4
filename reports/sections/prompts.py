"""Utility and privacy of classifiers: accuracy, claimed beside provable epsilon, and the noise that ran."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports import beside_dpfpl as beside
from reports.figures import prompts as promptfigures
from reports.figures.drawing import PrintedFigure
from reports.formats import epsilon, listed, short, signed
from reports.inputs import SPLITS, Evidence, joined
from reports.rows import Claim, MethodRow, Score, marks, twin, variants
from reports.section import Page, Section

RECORDS = {("own",): "the client itself", ("other",): "another client", ("own", "other"): "any client"}
ORDER = 20
TABLES = ("accuracy", "privacy", "noise")  # that become files
ALWAYS, NOISED = "with and without noise", "with any noise"


@dataclass(frozen=True)
class PromptsPage:
    """The parts of the page about prompts; an empty one is left out."""

    methods: list[str]  # names for readers
    seeds: list[int]
    rounds: int  # last rounds that an accuracy averages
    confidence: float
    cards: list[dict[str, Any]]
    splits: list[str]
    rows: list[dict[str, Any]]
    floor: str | None
    claims: list[dict[str, Any]]
    repeatable: bool  # something is noised
    noise: list[dict[str, Any]]
    beside: beside.Beside | None
    drawn: dict[str, PrintedFigure]
    captions: dict[str, str]
    few: int = 12  # rows of noise that are shown unfolded


def section(page: Page) -> Section | None:
    """Where accuracies were measured."""
    tables = {name: table for name in TABLES if len(table := joined(page.evidence, name))}
    attacked = page.above.get("inference")
    found = made(page.evidence, tables, attacked.drawn if attacked else ())
    if found is None:
        return None
    claimed = ("privacy", "Claimed and provable") if found.claims and not attacked else None
    figures = ("prompt-figures", "Utility figures") if found.drawn else None
    paper, noise = ("paper", "Beside the paper") if found.beside else None, ("noise", "Noise") if found.noise else None
    links = [link for link in (("accuracy", "Accuracy"), claimed, figures, paper, noise) if link]
    return Section(links, {"prompts": found, "names": found.methods}, found.drawn, tables)


def made(
    evidence: Sequence[Evidence], tables: Mapping[str, pd.DataFrame], drawn: Collection[str] = ()
) -> PromptsPage | None:
    """The parts that the evidence fills; None where no accuracies were measured. Accuracy against epsilon is not drawn
    again where `drawn` has it."""
    found = variants(evidence)
    if not found:
        return None
    accuracies = [f for v in found for e in v.evidence for f in e.findings if f["metric"].startswith("accuracy/")]
    figures = promptfigures.draw(found, tables.get("accuracy"))
    if "leakage-epsilon" in drawn:
        figures.pop("epsilon", None)
    return PromptsPage(
        methods=[mark["name"] for mark in marks(found).values()],
        seeds=sorted({e.seed for v in found for e in v.evidence}),
        rounds=max(f["rounds"] for f in accuracies),
        confidence=accuracies[0]["confidence"],
        cards=_cards(found),
        splits=[split for split in SPLITS if any(split in v.scores for v in found)],
        rows=_rows(found),
        floor=_floor(found),
        claims=_claims(found),
        repeatable=any(v.private for v in found),
        noise=_noise(found),
        beside=beside.beside(found),
        drawn={name: drawing for name, (drawing, _) in figures.items()},
        captions={name: caption for name, (_, caption) in figures.items()},
    )


def _cards(found: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """Per method a sentence for every epsilon, and one about the server where that differs."""
    cards = []
    for method, mark in marks(found).items():
        lines: list[dict[str, str]] = []
        server: dict[str, list[str]] = {}
        for level in dict.fromkeys(v.epsilon for v in found if v.method == method):
            mine = [v for v in found if (v.method, v.epsilon) == (method, level)]
            text = sentence(mine[0], twin(mine[0], found)) if len(mine) == 1 else _range(mine)
            lines.append({"noise": mine[0].noise, "text": text})
            for words in dict.fromkeys(filter(None, map(_against_server, mine))):
                server.setdefault(words, []).append(mine[0].noise)
        notes = [f"Against the server, {listed(levels)}: {words}." for words, levels in server.items()]
        cards.append(mark | {"lines": lines, "notes": notes})
    return cards


def sentence(v: MethodRow, without: MethodRow | None) -> str:
    """Accuracy and its change, the noise, and what is claimed and proven, of one method with one epsilon; `without`:
    its noise-free twin."""
    splits = _shown(v)
    text = _on({split: _accuracy(v.scores[split]) for split in splits})
    if not v.trained:
        return f"{text}. Nothing is trained: no record can leak."
    before = {split: v.scores[split].before for split in splits}
    if without is not None:
        before, what = {split: without.scores[split].value for split in splits if split in without.scores}, "no noise"
    else:
        what = "before training"
    changes = [signed(v.scores[split].value - x) for split, x in before.items() if x is not None]
    text += f" ({listed(changes)} points against {what})" if changes else ""
    text += f"; noise is {short(v.ratio)} times the signal." if v.ratio is not None else "."
    return f"{text} {_promise(v)}".strip()


def _range(mine: Sequence[MethodRow]) -> str:
    """The same for several settings of one method and epsilon: from the lowest to the highest."""
    values = {split: [v.scores[split].value for v in mine if split in v.scores] for split in _shown(mine[0])}
    text = (
        _on({split: f"{min(x):.1f} to {max(x):.1f} %" for split, x in values.items()}) + f", over {len(mine)} settings"
    )
    ratios = [v.ratio for v in mine if v.ratio is not None]
    if ratios:
        ends = " to ".join(dict.fromkeys((short(min(ratios)), short(max(ratios)))))
        text += f"; noise is {ends} times the signal"
    promises = list(dict.fromkeys(_promise(v) for v in mine))
    return f"{text}. {promises[0] if len(promises) == 1 else 'What is proven differs between them: see below.'}".strip()


def _shown(v: MethodRow) -> list[str]:
    """Local and neighbour accuracy; overall only where there is no other."""
    return [split for split in SPLITS[:2] if split in v.scores] or list(v.scores)


def _on(values: Mapping[str, str]) -> str:
    """Which accuracy is on which classes."""
    names = {"overall": "all"}
    return " and ".join(f"{text} on {names.get(split, split)}" for split, text in values.items()) + " classes"


def _accuracy(score: Score) -> str:
    if score.sd:
        return f"{score.value:.1f} ± {score.sd:.1f} %"
    spread = "" if score.low is None or score.low == score.high else f" [{score.low:.1f}, {score.high:.1f}]"
    return f"{score.value:.1f} %{spread}"


def _promise(v: MethodRow) -> str:
    """Claimed and proven about a client's own record, against whoever uses its prompt."""
    user = {c.threat_model: c for c in v.claims if c.whose == "own"}.get("prompt-user")
    if user is None:
        return ""
    if user.unclaimed:
        return f"Nothing is claimed; {_proven(user)}."
    return f"Claimed ε {epsilon(user.claimed)}; {_proven(user)}{': above the claim' if user.above else ''}."


def _against_server(v: MethodRow) -> str:
    """What is proven about a client's own record against the server, where that is something else."""
    own = {c.threat_model: c for c in v.claims if c.whose == "own"}
    if "server" not in own or "prompt-user" not in own or own["server"].numbers[:3] == own["prompt-user"].numbers[:3]:
        return ""
    return _proven(own["server"])


def _proven(claim: Claim) -> str:
    if math.isinf(claim.provable):
        return "nothing is proven (∞)"
    if claim.provable == claim.every_step:
        return f"proven {epsilon(claim.provable)}"
    return f"proven {epsilon(claim.provable)} as it ran, {epsilon(claim.every_step)} if a record is in every step"


def _rows(found: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """The accuracy table."""
    looks = marks(found)
    return [
        looks[v.method]
        | {
            "noise": v.noise,
            "setting": v.setting,
            "kind": "private" if v.private else "noise-free" if v.trained else "nothing is trained",
            "scores": v.scores,
            "ratio": v.ratio,
            "clipped": v.clipped,
            "new": i == 0 or found[i - 1].method != v.method,
        }
        for i, v in enumerate(found)
    ]


def _floor(found: Sequence[MethodRow]) -> str | None:
    """The least noise over signal that nominal noise leaves, at the report's largest epsilon: a step's signal is at
    most the clip norm."""
    bounds = []
    for v in (v for v in found if v.private):
        privacy, table = v.evidence[0].setting.get("privacy", {}), v.evidence[0].tables.get("noise")
        if privacy.get("sigma") == "nominal" and table is not None:
            for row in table[table.party == "client"].to_dict("records"):
                bound = math.sqrt(row["dimension"] * math.log(1 / privacy["delta"])) / (row["batch"] * v.epsilon)
                bounds.append((v.epsilon, bound, row["dimension"], row["batch"]))
    if not bounds:
        return None
    level, bound, dimension, batch = max(bounds)
    return f"{short(bound)} even at ε {level:g} (d = {dimension}, |B| = {batch})"


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
    if left in ([], ["server"]) and len(threats) > 1:
        return ["everybody but the server" if left else "everybody"]
    return list(threats)


def _noise(found: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """The mechanisms of every noised variant's first seed."""
    rows = []
    for v in found:
        table = v.evidence[0].tables.get("noise")
        for i, row in enumerate([] if table is None else table.to_dict("records")):
            rows.append(row | {"title": v.title, "first": i == 0, "span": len(table) if table is not None else 0})
    return rows
