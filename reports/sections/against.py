"""Against epsilon: what noise does to accuracy and, where runs were attacked, to what an attack finds."""

from __future__ import annotations

from fedaudit.attacks.score_names import signal_name
from fedaudit.reports.attack_success import headline_signal, with_leakage
from fedaudit.reports.figures.against_epsilon import BARS, accuracies, against_epsilon
from fedaudit.reports.figures.drawing import Sketch, draw
from fedaudit.reports.rows import closest_to_paper, note_on_settings
from fedaudit.reports.section import Page, Section

ORDER = 40
CAPTION = "Privacy grows to the left, on a logarithmic axis; what is not noised stands at the right end."
SUCCESS = (
    "Success is the share of correct guesses, the mean over classes (DP-FPL, section A.3): an attack that only guesses "
    "is right half the time, and one that is right less often has learnt nothing either."
)


def section(page: Page) -> Section | None:
    """The section with a figure of accuracy and leakage against epsilon; None without two epsilons (no noise is
    one)."""
    signal = headline_signal(page.runs)
    rows = [with_leakage(v, signal) if signal else v for v in closest_to_paper(page.runs)]
    leaked = [name for name in ("success", "auroc") if any(name in v.scores for v in rows)]
    quantities, methods = [*accuracies(rows), *leaked], list(dict.fromkeys(v.method for v in rows))
    if not quantities:
        return None
    attack = f"The attack's score is {signal_name(signal)}, the grey line is guessing." if signal and leaked else ""
    caption = [CAPTION, attack, SUCCESS if "success" in leaked else "", BARS, note_on_settings(page.runs)]
    alt = f"Accuracy{', and success of the attack,' if leaked else ''} against epsilon"
    sketch = Sketch("epsilon", alt, " ".join(filter(None, caption)), against_epsilon, (rows, methods, quantities))
    drawn = draw([sketch])
    return Section([("against", "Against epsilon")], drawn=drawn) if drawn else None
