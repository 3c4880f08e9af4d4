"""Utility: accuracy, beside the noise and what is proven, or how good the answers are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedaudit.terms.splits import LOCAL, NEIGHBOUR, OVERALL, SPLITS
from fedaudit.terms.threat_models import PROMPT_USER, SERVER
from reports.figures import utility as figures
from reports.figures.against_epsilon import accuracies
from reports.figures.drawing import draw
from reports.formats import epsilon, listed, short, signed
from reports.rows import Claim, MethodRow, Score, twin
from reports.section import Page, Row, Section

ORDER = 20
MODELS = {"global": "server", "novel": "server, out of distribution", "clients": "clients, mean"}  # as FedRand's tables


def section(page: Page) -> Section | None:
    """Where accuracies or answers were measured."""
    found = [v for v in page.runs if v.scores]
    accuracy, answers = (page.table(name, seeds=None) for name in ("accuracy", "utility"))
    lines = figures.by_round(accuracy, answers, accuracies(found))
    drawn = draw(figures.sketches(found, lines, page.titles))
    rows, metrics = _answers(page.table("utility"))
    if not found and not rows:
        return None
    about = {"accuracy": _accuracies(found, page.looks) if found else None, "answers": rows, "metrics": metrics}
    context = {"utility": about | {"drawn": list(drawn)}}
    return Section([("utility", "Utility")], context, drawn, page.files("accuracy"))


def _accuracies(found: Sequence[MethodRow], looks: Sequence[Row]) -> dict[str, Any]:
    """What is said of runs whose accuracies were measured."""
    measured = [f for v in found for e in v.evidence for f in e.findings if f["metric"].startswith("accuracy/")]
    look = {one["name"]: one for one in looks}
    return {
        "seeds": sorted({e.seed for v in found for e in v.evidence}),
        "rounds": max(f["rounds"] for f in measured),  # the last ones, which an accuracy averages
        "confidence": measured[0]["confidence"],
        "cards": _cards(found),
        "splits": [split for split in SPLITS if any(split in v.scores for v in found)],
        "rows": [look[v.title] | {"scores": v.scores, "ratio": v.ratio, "clipped": v.clipped} for v in found],
        "floor": _floor(found),
        "noised": any(v.private for v in found),
    }


def _cards(found: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """Per method a sentence for every epsilon, and one about the server where that differs."""
    cards = []
    for method, name in {v.method: v.name for v in found}.items():
        lines: list[dict[str, str]] = []
        server: dict[str, list[str]] = {}
        for level in dict.fromkeys(v.epsilon for v in found if v.method == method):
            mine = [v for v in found if (v.method, v.epsilon) == (method, level)]
            text = sentence(mine[0], twin(mine[0], found)) if len(mine) == 1 else _range(mine)
            lines.append({"noise": mine[0].noise, "text": text})
            for words in dict.fromkeys(filter(None, map(_against_server, mine))):
                server.setdefault(words, []).append(mine[0].noise)
        notes = [f"Against the server, {listed(levels)}: {words}." for words, levels in server.items()]
        cards.append({"name": name, "lines": lines, "notes": notes})
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
    return [split for split in (LOCAL, NEIGHBOUR) if split in v.scores] or list(v.scores)


def _on(values: Mapping[str, str]) -> str:
    """Which accuracy is on which classes."""
    said = (f"{text} on {'all' if split == OVERALL else split}" for split, text in values.items())
    return f"{' and '.join(said)} classes"


def _accuracy(score: Score) -> str:
    if score.sd:
        return f"{score.value:.1f} ± {score.sd:.1f} %"
    spread = "" if score.low is None or score.low == score.high else f" [{score.low:.1f}, {score.high:.1f}]"
    return f"{score.value:.1f} %{spread}"


def _promise(v: MethodRow) -> str:
    """Claimed and proven about a client's own record, against whoever uses its prompt."""
    user = {c.threat_model: c for c in v.claims if c.whose == "own"}.get(PROMPT_USER)
    if user is None:
        return ""
    if user.unclaimed:
        return f"Nothing is claimed; {_proven(user)}."
    return f"Claimed ε {epsilon(user.claimed)}; {_proven(user)}{': above the claim' if user.above else ''}."


def _against_server(v: MethodRow) -> str:
    """What is proven about a client's own record against the server, where that is something else."""
    own = {c.threat_model: c for c in v.claims if c.whose == "own"}
    if SERVER not in own or PROMPT_USER not in own or own[SERVER].numbers[:3] == own[PROMPT_USER].numbers[:3]:
        return ""
    return _proven(own[SERVER])


def _proven(claim: Claim) -> str:
    if math.isinf(claim.provable):
        return "nothing is proven (∞)"
    if claim.provable == claim.every_step:
        return f"proven {epsilon(claim.provable)}"
    return f"proven {epsilon(claim.provable)} as it ran, {epsilon(claim.every_step)} if a record is in every step"


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


def _answers(utility: pd.DataFrame) -> tuple[list[Row], list[str]]:
    """Utility before the first and after the last round, a row per run and model; and what it is measured by."""
    about = {"method", "seed", "round", "model"}
    metrics = [name for name in utility if name not in about and utility[name].notna().any()]
    rows = []
    for method, part in utility.groupby("method", sort=False):
        for model, name in MODELS.items():
            mine = part[part.model == model].sort_values("round")
            ends = {"before tuning": mine[mine["round"] < 0], "after the last round": mine[mine["round"] >= 0].tail(1)}
            rows += [
                {"name": method, "model": name, "when": when, "numbers": [float(end[m].iloc[0]) for m in metrics]}
                for when, end in ends.items()
                if len(end)
            ]
    return rows, [figures.METRICS.get(m, m.upper().replace("BLEU", "BLEU-")) for m in metrics]
