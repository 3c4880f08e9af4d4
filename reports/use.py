"""A sentence on utility before and after training, in words where a model has become worse than untrained."""

from __future__ import annotations

import pandas as pd

from fedaudit.reports.formats import join_words
from fedaudit.reports.rows import ANSWERS, MethodRow
from fedaudit.terms.splits import OVERALL

WORSE = "worse than untrained"
LOSS = "loss"


def before_and_after(v: MethodRow) -> dict[str, str] | None:
    """`text`, the utility of a run before and after training, and `worse`, a clause where it has fallen (else empty);
    None where one of both was not measured."""
    numbers = _accuracies(v) if v.scores else _answers(v.table("utility"))
    if not numbers:
        return None
    text = "; ".join(f"{name} {before} before training, {after} after" for name, before, after, _ in numbers)
    fallen = [name for name, _, _, worse in numbers if worse]
    if not v.trained or not fallen:
        return {"text": text, "worse": ""}
    where = "" if len(fallen) == len(numbers) else f" in {join_words(fallen)}"
    return {"text": text, "worse": f"the trained model is {WORSE}{where}"}


def _accuracies(v: MethodRow) -> list[tuple[str, str, str, bool]]:
    """Name, number before, number after and whether it fell, of the accuracies that pages quote."""
    return [
        (f"accuracy on {'all' if split == OVERALL else split.replace('_', ' ')} classes", f"{s.before:.1f} %",
         f"{s.value:.1f} %", s.value < s.before)
        for split, s in v.scores.items() if s.before is not None and split in v.quoted_splits
    ]  # fmt: skip


def _answers(utility: pd.DataFrame) -> list[tuple[str, str, str, bool]]:
    """Name, number before, number after and whether it got worse: the first measured metric of the global model's
    answers, and its loss."""
    rounds = utility[utility.model == "global"].sort_values("round")
    first, last = rounds[rounds["round"] < 0].tail(1), rounds[rounds["round"] >= 0].tail(1)
    if first.empty or last.empty:
        return []
    numbers: list[tuple[str, str, str, bool]] = []
    for name, title in [*ANSWERS.items(), (LOSS, "loss")]:
        if name in utility and first[name].notna().all() and last[name].notna().all() and (name == LOSS or not numbers):
            before, after = float(first[name].iloc[0]), float(last[name].iloc[0])
            digits = 2 if name == LOSS else 1
            fell = after > before if name == LOSS else after < before
            numbers.append((title, f"{before:.{digits}f}", f"{after:.{digits}f}", fell))
    return numbers
