"""DP-FPL, Figure 3: accuracy on local and neighbour classes and success of the shadow attack, against epsilon.

Tran et al., ICLR 2025, section A.3. We add the attack's AUROC, and for every attack that ran how much noise lowers its
AUROC. The paper prints no numbers for this figure, only the text of section A.3; the page quotes it beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedaudit.attacks.score_names import signal_name
from fedaudit.reports.attack_success import fall, signals, with_leakage
from fedaudit.reports.beside_dpfpl import trained_share
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.figures.against_epsilon import against_epsilon
from fedaudit.reports.figures.drawing import printed, styled
from fedaudit.reports.formats import join_words, signed
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, checked_tasks
from fedaudit.reports.rows import MethodRow, Score, closest_to_paper, variants
from fedaudit.reports.runs import entries
from fedaudit.reports.templates import Write, render, write_drawings
from fedaudit.terms.splits import LOCAL, NEIGHBOUR


class Items:
    figure3 = PaperItem(
        preset="dpfpl-figure3",
        attacked=True,
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


def figure3(evidence: EvidenceByTask, write: Write) -> str:
    """Write index.html, figure3.svg, figure3.pdf and figure3.csv through `write(name, bytes)`; the page comes last.
    Returns the sentences of `reading` about every task.

    `evidence` holds, by the task's name in the figure, runs of DP-FPL: one per epsilon and seed, attacked with shadow
    models, with the table "classes". Seeds are averaged. Of several variants with the same epsilon the one closest to
    the paper's (rank 8, with residual) is shown. ValueError: there is no task, or one lacks a second epsilon or a
    success rate.
    """
    lines = {task: _line(task, runs) for task, runs in checked_tasks(evidence, "figure")}
    points = [v for line in lines.values() for v in line]
    with styled():
        drawing = printed("figure3", ALT, against_epsilon(points, list(lines), QUANTITIES))
    assert drawing is not None  # there are two epsilons
    data = drawing.data.rename(columns={"method": "task"})
    write_drawings([replace(drawing, data=data)], write, folder="")
    rows = [
        {"task": task, "lines": [_row(v) for v in line], "reading": reading(line), "falls": falls(line)}
        for task, line in lines.items()
    ]
    runs = [e for of_task in evidence.values() for e in of_task]
    parts = {"drawing": drawing, "rows": rows, "scale": _scale(runs), "seeds": any(len(v.evidence) > 1 for v in points)}
    write("index.html", render("papers/dpfpl_figure3.html", parts))
    return " ".join(f"{task}: {reading(line)}" if len(lines) > 1 else reading(line) for task, line in lines.items())


def _line(task: str, runs: Sequence[Evidence]) -> list[MethodRow]:
    """The curve of a task, a row per epsilon from no noise to the smallest: DP-FPL's runs, with the shadow attack's
    success and AUROC among the scores. Method and label of every row are the task's name. ValueError: fewer than two
    rows, or none has a success rate."""
    rows = [with_leakage(v, SIGNAL) for v in closest_to_paper(variants(runs)) if v.method == "dpfpl"]
    if len(rows) < 2 or not any("success" in v.scores for v in rows):
        raise ValueError(f"task {task!r} must have DP-FPL at two epsilons, with success rates of {SIGNAL!r}")
    return [replace(v, method=task, label=task, options={}) for v in rows]


def _row(v: MethodRow) -> dict[str, Any]:
    score = v.scores.get("success")
    return {"noise": v.noise, "scores": v.scores, "reading": "n/a" if score is None else _against_guessing(score)}


def _against_guessing(score: Score) -> str:
    return {1: "above guessing", 0: "guessing", -1: "below guessing"}[_side(score, GUESSING)]


def _side(score: Score, middle: float) -> int:
    """1 if the score is above `middle`, -1 if below: by more than the first seed's interval and by more than one
    standard deviation over seeds. Else 0."""
    first = next(iter(score.seeds.values()))
    down, up = (
        score.sd or 0.0 if end is None else max(abs(first - end), score.sd or 0.0) for end in (score.low, score.high)
    )
    return (score.value - down > middle) - (score.value + up < middle)


@dataclass(frozen=True)
class Fall:
    """How much noise lowers an attack's AUROC."""

    attack: str  # the attack's name for readers
    noise: str  # the smallest epsilon, in words
    clear: Score  # AUROC without noise
    noised: Score  # AUROC at the smallest epsilon
    fall: Score  # `clear` minus `noised`

    @property
    def text(self) -> str:
        """The difference with its interval and the attack's name."""
        ends = "" if self.fall.low is None else f" [{self.fall.low:.3f}, {self.fall.high:.3f}]"
        return f"{self.fall.value:.3f}{ends}".replace("-", "−") + f" ({self.attack})"

    @property
    def reading(self) -> str:
        """Whether the difference is "above 0", "below 0" or "not told from 0"."""
        return {1: "above 0", 0: "not told from 0", -1: "below 0"}[_side(self.fall, 0.0)]


def falls(line: Sequence[MethodRow]) -> list[Fall]:
    """How much noise lowers the AUROC of each attack on this curve that ran both without noise and at the smallest
    epsilon; empty if either training is missing."""
    clear, noised = _ends(line)
    if clear is None or noised is None:
        return []
    by_attack = []
    for signal in signals(line):
        before, after = (with_leakage(v, signal).scores.get("auroc") for v in (clear, noised))
        difference = fall(clear, noised, signal)
        if before and after and difference:
            by_attack.append(Fall(signal_name(signal), noised.noise, before, after, difference))
    return by_attack


def _ends(line: Sequence[MethodRow]) -> tuple[MethodRow | None, MethodRow | None]:
    """The training without noise and the one with the smallest epsilon; None if there is none."""
    clear = next((v for v in line if not v.private), None)
    return clear, min((v for v in line if v.private), key=lambda v: v.epsilon, default=None)


def reading(line: Sequence[MethodRow]) -> str:
    """Describe the curve of a task in sentences: at which epsilons the attack beats guessing, how much noise lowers
    each attack's AUROC, and how the smallest epsilon changes accuracy."""
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
    return " ".join([text, *_leakage_sentences(line), *_accuracy_sentences(line)])


def _leakage_sentences(line: Sequence[MethodRow]) -> Iterator[str]:
    """Yield two sentences: how much the smallest epsilon lowers each attack's AUROC, and for which attacks this is more
    than chance; nothing if no attack ran both there and without noise."""
    if by_attack := falls(line):
        falls_in_words = join_words([fall.text for fall in by_attack])
        yield f"AUROC without noise minus AUROC with {by_attack[0].noise}: {falls_in_words}."
        above = [fall.attack for fall in by_attack if fall.reading == "above 0"]
        yield (
            f"Noise lowers leakage as measured by {join_words(above)}."
            if above
            else "No attack shows that noise lowers leakage."
        )


def _accuracy_sentences(line: Sequence[MethodRow]) -> Iterator[str]:
    """Yield a sentence on how accuracies differ between the smallest epsilon and no noise, if both have any."""
    clear, noised = _ends(line)
    if clear and noised:
        both = [split for split in (LOCAL, NEIGHBOUR) if split in clear.scores and split in noised.scores]
        changes = [f"{signed(noised.scores[s].value - clear.scores[s].value)} points on {s} classes" for s in both]
        if changes:
            yield f"{noised.noise} changes accuracy by {join_words(changes)}."


def _scale(runs: Sequence[Evidence]) -> str:
    """The size of our runs in words, from their configurations: model, clients, rounds, batches, shadow models,
    attacked clients, share of records trained on, seeds."""
    names = {"backbone.name": "{}", "schedule.clients": "{} clients", "schedule.rounds": "{} rounds"}
    names |= {"training.batch": "batches of {}", "adversary.shadows": "{} shadow models"}
    settings = [entries(e.setting) for e in runs]
    sizes = []
    for name, text in names.items():
        values = [str(v) for setting in settings for key, v in setting.items() if f".{key}".endswith(f".{name}")]
        sizes += [text.format(" or ".join(dict.fromkeys(values)))] if values else []
    targets = {e.tables["classes"].client.nunique() for e in runs if len(e.tables.get("classes", ()))}
    sizes.append(f"{' or '.join(map(str, sorted(targets)))} attacked clients")
    seeds = {e.seed for e in runs}
    sizes += dict.fromkeys(filter(None, (trained_share(e.setting.get("task", {})) for e in runs)))
    return join_words([*sizes, f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"])
