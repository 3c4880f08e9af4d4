"""Utility: accuracy, beside the noise and what is proven, or how good the answers are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedaudit.reports.figures import utility as figures
from fedaudit.reports.figures.against_epsilon import accuracies
from fedaudit.reports.figures.drawing import draw
from fedaudit.reports.formats import epsilon, join_words, short, signed
from fedaudit.reports.rows import Claim, MethodRow, Score, noise_free_twin
from fedaudit.reports.section import Page, Row, Section
from fedaudit.terms.splits import OVERALL, SPLITS
from fedaudit.terms.threat_models import PROMPT_USER, SERVER

ORDER = 20
MODELS = {
    "global": "server",
    "novel": "server, out of distribution",
    "clients": "clients, mean",
}  # as in FedRand's tables


def section(page: Page) -> Section | None:
    """The section with tables of accuracies, of the utility of texts, or both, and figures; None if neither was
    measured."""
    runs = [v for v in page.runs if v.scores]
    accuracy, answers = (page.table(name, seeds=None) for name in ("accuracy", "utility"))
    lines = figures.by_round(accuracy, answers, accuracies(runs))
    drawn = draw(figures.sketches(runs, lines, page.titles))
    rows, metrics = _answers(page.table("utility"))
    if not runs and not rows:
        return None
    tables = {"accuracy": _accuracies(runs, page.looks) if runs else None, "answers": rows, "metrics": metrics}
    context = {"utility": tables | {"drawn": list(drawn)}}
    return Section([("utility", "Utility")], context, drawn, page.files("accuracy", "utility"))


def _accuracies(runs: Sequence[MethodRow], looks: Sequence[Row]) -> dict[str, Any]:
    """Template variables of the cards and the table of accuracies of `runs`: one or more, each with accuracies.
    looks: `name` (the run's title), `symbol` and `colour` of at least these runs."""
    measured = [f for v in runs for e in v.evidence for f in e.findings if f["metric"].startswith("accuracy/")]
    look = {one["name"]: one for one in looks}
    return {
        "seeds": sorted({e.seed for v in runs for e in v.evidence}),
        "rounds": max(f["rounds"] for f in measured),  # an accuracy is the mean over so many last rounds
        "confidence": measured[0]["confidence"],
        "cards": _cards(runs),
        "splits": [split for split in SPLITS if any(split in v.scores for v in runs)],
        "rows": [look[v.title] | {"scores": v.scores, "ratio": v.ratio, "clipped": v.clipped} for v in runs],
        "floor": _noise_floor(runs),
        "noised": any(v.private for v in runs),
    }


def _cards(runs: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """A card per method with its `name`: `lines`, a sentence per epsilon, and `notes` on the epsilon proven against the
    server where it differs from that against a user."""
    cards = []
    for method, name in {v.method: v.name for v in runs}.items():
        lines: list[dict[str, str]] = []
        server: dict[str, list[str]] = {}
        for level in dict.fromkeys(v.epsilon for v in runs if v.method == method):
            same = [v for v in runs if (v.method, v.epsilon) == (method, level)]
            text = sentence(same[0], noise_free_twin(same[0], runs)) if len(same) == 1 else _describe_settings(same)
            lines.append({"noise": same[0].noise, "text": text})
            for words in dict.fromkeys(filter(None, map(_against_server, same))):
                server.setdefault(words, []).append(same[0].noise)
        notes = [f"Against the server, {join_words(levels)}: {words}." for words, levels in server.items()]
        cards.append({"name": name, "lines": lines, "notes": notes})
    return cards


def sentence(v: MethodRow, without: MethodRow | None) -> str:
    """Sentences on one run: accuracy and its change, the noise, and the claimed and proven epsilon. The change is
    against the run `without` noise, or against before training if that is None."""
    splits = v.quoted_splits
    text = _join_accuracies({split: _accuracy_in_words(v.scores[split]) for split in splits})
    if not v.trained:
        return f"{text}. Nothing is trained: no record can leak."
    before = {split: v.scores[split].before for split in splits}
    if without is not None:
        before, what = {split: without.scores[split].value for split in splits if split in without.scores}, "no noise"
    else:
        what = "before training"
    changes = [signed(v.scores[split].value - x) for split, x in before.items() if x is not None]
    text += f" ({join_words(changes)} points against {what})" if changes else ""
    text += f"; noise is {short(v.ratio)} times the signal." if v.ratio is not None else "."
    return f"{text} {_claim_in_words(v)}".strip()


def _describe_settings(runs: Sequence[MethodRow]) -> str:
    """Describe several settings of one method and epsilon: accuracy and noise from the lowest to the highest."""
    values = {split: [v.scores[split].value for v in runs if split in v.scores] for split in runs[0].quoted_splits}
    text = _join_accuracies({split: f"{min(x):.1f} to {max(x):.1f} %" for split, x in values.items()})
    text += f", over {len(runs)} settings"
    ratios = [v.ratio for v in runs if v.ratio is not None]
    if ratios:
        ends = " to ".join(dict.fromkeys((short(min(ratios)), short(max(ratios)))))
        text += f"; noise is {ends} times the signal"
    promises = list(dict.fromkeys(map(_claim_in_words, runs)))
    return f"{text}. {promises[0] if len(promises) == 1 else 'What is proven differs between them: see below.'}".strip()


def _join_accuracies(values: Mapping[str, str]) -> str:
    """Accuracies (already text, by split) joined: "61.0 % on local and 40.2 % on neighbour classes"."""
    parts = (f"{text} on {'all' if split == OVERALL else split}" for split, text in values.items())
    return f"{' and '.join(parts)} classes"


def _accuracy_in_words(score: Score) -> str:
    """An accuracy with its standard deviation over seeds, or its interval unless that has no width."""
    if score.sd:
        return f"{score.value:.1f} ± {score.sd:.1f} %"
    spread = "" if score.low is None or score.low == score.high else f" [{score.low:.1f}, {score.high:.1f}]"
    return f"{score.value:.1f} %{spread}"


def _claim_in_words(v: MethodRow) -> str:
    """The claimed and proven epsilon of a client's own record against the prompt-user, in words; "" without a claim."""
    user = {c.threat_model: c for c in v.claims if c.whose == "own"}.get(PROMPT_USER)
    if user is None:
        return ""
    if user.unclaimed:
        return f"Nothing is claimed; {_proven_in_words(user)}."
    return f"Claimed ε {epsilon(user.claimed)}; {_proven_in_words(user)}{': above the claim' if user.above else ''}."


def _against_server(v: MethodRow) -> str:
    """The proven epsilon of a client's own record against the server, in words; "" if it is that against the
    prompt-user, or either is missing."""
    claims = {c.threat_model: c for c in v.claims if c.whose == "own"}
    server, user = claims.get(SERVER), claims.get(PROMPT_USER)
    if server is None or user is None or server.numbers[:3] == user.numbers[:3]:
        return ""
    return _proven_in_words(server)


def _proven_in_words(claim: Claim) -> str:
    """The proven epsilon of a claim in words, as the run was and, where this differs, if a record is in every step."""
    if math.isinf(claim.provable):
        return "nothing is proven (∞)"
    if claim.provable == claim.every_step:
        return f"proven {epsilon(claim.provable)}"
    return f"proven {epsilon(claim.provable)} as it ran, {epsilon(claim.every_step)} if a record is in every step"


def _noise_floor(runs: Sequence[MethodRow]) -> str | None:
    """A lower bound on noise over signal with nominal noise, in words, at the report's largest epsilon: a step's signal
    is at most the clip norm. None without nominal noise."""
    bounds = []
    for v in (v for v in runs if v.private):
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
    """Rows of the table of texts' utility, before the first and after the last round, per run and model, each with its
    `numbers`; and the names of their metrics, in order."""
    about = {"method", "seed", "round", "model"}
    metrics = [name for name in utility if name not in about and utility[name].notna().any()]
    rows = []
    for method, part in utility.groupby("method", sort=False):
        for model, name in MODELS.items():
            rounds = part[part.model == model].sort_values("round")
            last = rounds[rounds["round"] >= 0].tail(1)
            ends = {"before tuning": rounds[rounds["round"] < 0], "after the last round": last}
            rows += [
                {"name": method, "model": name, "when": when, "numbers": [float(end[m].iloc[0]) for m in metrics]}
                for when, end in ends.items()
                if len(end)
            ]
    return rows, [figures.METRICS.get(m, m.upper().replace("BLEU", "BLEU-")) for m in metrics]
