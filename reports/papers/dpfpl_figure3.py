"""DP-FPL, Figure 3: accuracy on local and neighbour classes and success of the shadow attack, against epsilon.

Tran et al., ICLR 2025, section A.3. The attack's AUROC stands beside them, and by how much noise lowers that of every
attack which ran.

The paper prints no numbers for this figure, only what section A.3 says of it; that stands beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attacks.score_names import signal_name
from fedaudit.terms.splits import LOCAL, NEIGHBOUR
from reports.attack_success import fall, signals, with_leakage
from reports.beside_dpfpl import trained_share
from reports.evidence import Evidence, check
from reports.figures.against_epsilon import against_epsilon
from reports.figures.drawing import printed, styled
from reports.formats import join_words, signed
from reports.paper_items import PaperItem
from reports.rows import MethodRow, Score, closest_to_paper, variants
from reports.templates import Write, csv, render


class Items:
    figure3 = PaperItem(
        preset="dpfpl-figure3",
        tasks={"symbols in relief": ("--task=glyphs", "--domain=relief")},
        tiny="--seeds 1 --rounds 1 --clients 2 --train 8 --test 1 --targets 1 --shadows 4 --epsilon none,1",
    )


QUANTITIES = (LOCAL, NEIGHBOUR, "success", "auroc")
ALT = (
    "DP-FPL, Figure 3: accuracy on local and neighbour classes, success and AUROC of the attack, against epsilon, "
    "by task"
)
SIGNAL = "shadow"
GUESSING = 50.0  # percent


def figure3(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Write index.html, figure3.svg, figure3.pdf and figure3.csv through `write(name, bytes)`; the page comes last.
    Returns what the curves say.

    `evidence` holds, by what a task is called in the figure, the cells of DP-FPL: one per epsilon and seed, attacked by
    shadow models, with the table "classes". Seeds are averaged; of several variants with one epsilon that of the paper
    (rank 8, with residual) is shown. ValueError: no task, or one without two epsilons and a success rate.
    """
    if not evidence:
        raise ValueError("evidence is empty; the figure needs at least one task")
    lines = {task: _line(task, cells) for task, cells in evidence.items()}
    shown = [v for line in lines.values() for v in line]
    with styled():
        drawing = printed("figure3", ALT, against_epsilon(shown, list(lines), QUANTITIES))
    assert drawing is not None  # there are two epsilons
    write("figure3.svg", drawing.svg)
    write("figure3.pdf", drawing.pdf)
    write("figure3.csv", csv(drawing.data.rename(columns={"method": "task"})))
    rows = [
        {"task": task, "lines": [_row(v) for v in line], "reading": reading(line), "falls": falls(line)}
        for task, line in lines.items()
    ]
    cells = [e for own in evidence.values() for e in own]
    parts = {"drawing": drawing, "rows": rows, "scale": _scale(cells), "seeds": any(len(v.evidence) > 1 for v in shown)}
    write("index.html", render("papers/dpfpl_figure3.html", parts))
    return " ".join(f"{task}: {reading(line)}" if len(lines) > 1 else reading(line) for task, line in lines.items())


def _line(task: str, cells: Sequence[Evidence]) -> list[MethodRow]:
    """The variants of one task, from no noise to the smallest epsilon, called by the task."""
    check(cells)
    found = [with_leakage(v, SIGNAL) for v in closest_to_paper(variants(cells)) if v.method == "dpfpl"]
    if len(found) < 2 or not any("success" in v.scores for v in found):
        raise ValueError(f"task {task!r} must have DP-FPL at two epsilons, with success rates of {SIGNAL!r}")
    return [replace(v, method=task, label=task, options={}) for v in found]


def _row(v: MethodRow) -> dict[str, Any]:
    score = v.scores.get("success")
    return {"noise": v.noise, "scores": v.scores, "reading": "n/a" if score is None else _against_guessing(score)}


def _against_guessing(score: Score) -> str:
    return {1: "above guessing", 0: "guessing", -1: "below guessing"}[_side(score, GUESSING)]


def _side(score: Score, middle: float) -> int:
    """On which side of a number (1 above, -1 below), by more than the interval of one seed and the spread over seeds;
    else 0."""
    first = next(iter(score.seeds.values()))
    down, up = (
        score.sd or 0.0 if end is None else max(abs(first - end), score.sd or 0.0) for end in (score.low, score.high)
    )
    return (score.value - down > middle) - (score.value + up < middle)


@dataclass(frozen=True)
class Fall:
    """An attack's AUROC without noise, at the least epsilon, and the difference."""

    attack: str
    noise: str
    clear: Score
    noised: Score
    fall: Score

    @property
    def text(self) -> str:
        ends = "" if self.fall.low is None else f" [{self.fall.low:.3f}, {self.fall.high:.3f}]"
        return f"{self.fall.value:.3f}{ends}".replace("-", "−") + f" ({self.attack})"

    @property
    def reading(self) -> str:
        return {1: "above 0", 0: "not told from 0", -1: "below 0"}[_side(self.fall, 0.0)]


def falls(line: Sequence[MethodRow]) -> list[Fall]:
    """Of every attack how much lower its AUROC is at the least epsilon than without noise; those that both trainings
    were attacked by."""
    clear, noised = _ends(line)
    if clear is None or noised is None:
        return []
    found = []
    for signal in signals(line):
        before, after = (with_leakage(v, signal).scores.get("auroc") for v in (clear, noised))
        difference = fall(clear, noised, signal)
        if before and after and difference:
            found.append(Fall(signal_name(signal), noised.noise, before, after, difference))
    return found


def _ends(line: Sequence[MethodRow]) -> tuple[MethodRow | None, MethodRow | None]:
    """Without noise, and at the least epsilon."""
    clear = next((v for v in line if not v.private), None)
    return clear, min((v for v in line if v.private), key=lambda v: v.epsilon, default=None)


def reading(line: Sequence[MethodRow]) -> str:
    """What the curve of one task says, in words: where the attack beats guessing, and what noise takes from leakage and
    accuracy."""
    rated = [v for v in line if "success" in v.scores]
    above = [v for v in rated if _against_guessing(v.scores["success"]) == "above guessing"]
    clear, noised = [v for v in above if not v.private], [v for v in above if v.private]
    unnoised = any(not v.private for v in rated)
    if noised:
        without = " and without noise" if clear else ", though not without noise: read it as chance" if unnoised else ""
        text = f"The attack beats guessing with {join_words([v.noise for v in noised])}{without}."
    elif clear:
        text = "The attack beats guessing without noise, and with none of the epsilons."
    elif unnoised:
        text = "The attack beats guessing nowhere, not even without noise: its success cannot show what noise does."
    else:
        text = "The attack beats guessing nowhere."
    return " ".join([text, *_fallen(line), *_cost(line)])


def _fallen(line: Sequence[MethodRow]) -> Iterator[str]:
    """By how much noise lowers the AUROC, and by which attacks that is told from chance."""
    found = falls(line)
    if found:
        yield f"AUROC without noise minus AUROC with {found[0].noise}: {join_words([one.text for one in found])}."
        above = [one.attack for one in found if one.reading == "above 0"]
        yield (
            f"Noise lowers leakage as measured by {join_words(above)}."
            if above
            else "No attack shows that noise lowers leakage."
        )


def _cost(line: Sequence[MethodRow]) -> Iterator[str]:
    """What the least epsilon takes from the accuracies."""
    clear, noised = _ends(line)
    if clear and noised:
        both = [split for split in (LOCAL, NEIGHBOUR) if split in clear.scores and split in noised.scores]
        lost = [f"{signed(noised.scores[s].value - clear.scores[s].value)} points on {s} classes" for s in both]
        yield from [f"{noised.noise} changes accuracy by {join_words(lost)}."] if lost else []


def _scale(cells: Sequence[Evidence]) -> str:
    """The size of what ran, from the configurations."""
    names = {"backbone.name": "{}", "schedule.clients": "{} clients", "schedule.rounds": "{} rounds"}
    names |= {"training.batch": "batches of {}", "adversary.shadows": "{} shadow models"}
    flat = [dict(_flat(e.setting)) for e in cells]
    found = []
    for name, text in names.items():
        values = [v for one in flat for key, v in one.items() if key == name or key.endswith(f".{name}")]
        found += [text.format(" or ".join(dict.fromkeys(values)))] if values else []
    targets = {e.tables["classes"].client.nunique() for e in cells if len(e.tables.get("classes", ()))}
    found.append(f"{' or '.join(map(str, sorted(targets)))} attacked clients")
    seeds = {e.seed for e in cells}
    found += dict.fromkeys(filter(None, (trained_share(e.setting.get("task", {})) for e in cells)))
    return join_words([*found, f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"])


def _flat(setting: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in setting.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
