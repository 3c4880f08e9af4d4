"""The sentence at the top of a page: who was shown to tell members from others, and how well, or what could have been
shown. It only repeats verdicts; numbers are those of findings, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaudit.attacks.score_names import name_of
from fedaudit.audits.findings import BEFOREHAND, NEAR_CHANCE
from fedaudit.reports.evidence import Finding
from fedaudit.reports.formats import join_words
from fedaudit.reports.verdict_cards import gravest
from fedaudit.terms.sentences import SENTENCES
from fedaudit.terms.threat_models import OWNER
from fedaudit.terms.verdicts import CONFOUNDED, DOUBTED, INCONCLUSIVE, LEAKS, NO_LEAK_FOUND, REVERSED

NOT_MEASURED = "not measured"
FURTHER = {  # what a page says of adversaries or runs that the first sentence leaves out, after their names
    CONFOUNDED: "nothing can be said, as members and non-members differ in more than membership",
    INCONCLUSIVE: "undecided, as these records cannot tell the score from luck or a control, or it is the same for all",
    NOT_MEASURED: "not measured, as no headline score has a number",
    DOUBTED: "nothing can be said, as the recording is doubted",
}

Quotable = Mapping[str, Sequence[Finding]]  # by adversary, the findings that its verdict may quote


@dataclass(frozen=True)
class Headline:
    """The first `sentence` of a page, and further sentences on what it leaves out (`rest`)."""

    sentence: str
    rest: Sequence[str]


@dataclass(frozen=True)
class AdversaryVerdict:
    """The verdict on one adversary in one run (`NOT_MEASURED` without any), with the finding that is put in words."""

    run: str
    threat: str
    verdict: str
    quoted: Finding | None

    @property
    def who(self) -> str:
        return SENTENCES[self.threat].short

    @property
    def leaks(self) -> bool:
        return self.verdict in LEAKS

    @property
    def by_ranking(self) -> bool:
        return by_ranking(self.quoted or {})


def headline(runs: Mapping[str, Quotable], doubts: str = "") -> Headline | None:
    """The headline of a page of `runs` (by name), which begins with a sentence on `doubts`; None if nothing was
    attacked."""
    answers = outcomes(runs)
    if not answers:
        return None
    of_one = len(runs) == 1
    sentences = [(_of_one if of_one else _of_several)(answers), *_rest(answers, of_one=of_one)]
    first, *rest = [doubts, *sentences] if doubts else sentences
    return Headline(first, rest)


def outcomes(runs: Mapping[str, Quotable]) -> list[AdversaryVerdict]:
    """The outcome for every adversary of every run, in order."""
    return [_outcome(run, threat, rows) for run, by in runs.items() for threat, rows in by.items()]


def _outcome(run: str, threat: str, findings: Sequence[Finding]) -> AdversaryVerdict:
    worst = gravest(findings)
    if worst is None:
        return AdversaryVerdict(run, threat, NOT_MEASURED, None)
    same = [f for f in findings if f["verdict"] == worst["verdict"]]
    beforehand = [f for f in same if f.get("family") in BEFOREHAND] or same
    best = min(beforehand, key=_detectable) if worst["verdict"] == NO_LEAK_FOUND else max(beforehand, key=_strength)
    return AdversaryVerdict(run, threat, DOUBTED if best.get("doubt") else worst["verdict"], best)


def _strength(f: Finding | None) -> tuple[bool, float]:
    """How much a finding shows: by its AUROC where the ranking as a whole speaks, else, and less, by its statistic."""
    if f is None:
        return False, 0.0
    whole = by_ranking(f)
    return whole, abs(f["value"] - 0.5) if whole else abs(f["t"])


def by_ranking(f: Mapping[str, Any]) -> bool:
    """Whether the ranking as a whole tells members, not its highest scores alone."""
    return not str(f.get("part") or "").endswith(NEAR_CHANCE)


def _detectable(f: Finding) -> float:
    return 1.0 if f["detectable"] is None else float(f["detectable"])


def _strongest(outcomes: Iterable[AdversaryVerdict]) -> AdversaryVerdict:
    return max(outcomes, key=lambda o: _strength(o.quoted))


def _speakers(outcomes: Sequence[AdversaryVerdict]) -> list[AdversaryVerdict]:
    """The leaks that a headline speaks of: the owner, an upper bound, only where nobody else is shown to tell."""
    leaks = [o for o in outcomes if o.leaks]
    return [o for o in leaks if o.threat != OWNER] or leaks


def _of_one(outcomes: Sequence[AdversaryVerdict]) -> str:
    """The sentence for a page of one run."""
    data = f"{outcomes[0].run}'s training data"
    leaks = _speakers(outcomes)
    if not leaks:
        return _none(outcomes, f"who was in {data}", f"leaks of {outcomes[0].run}")
    strongest = _strongest(leaks)
    who = join_words([o.who for o in leaks])
    if leaks[0].threat == OWNER and len(outcomes) > 1:
        return _sentence(f"only {who} was shown to tell who was in {data}, and {how_well(strongest.quoted)}")
    if not strongest.by_ranking:
        return _sentence(f"{who} can name members of {data}: {how_well(strongest.quoted)}")
    subject = "and" if len(leaks) == 1 else f"and {strongest.who}"
    return _sentence(f"{who} can tell who was in {data}, {subject} {how_well(strongest.quoted)}")


def _of_several(outcomes: Sequence[AdversaryVerdict]) -> str:
    """The sentence for a page of several runs."""
    runs = list(dict.fromkeys(o.run for o in outcomes))
    leaks = _speakers(outcomes)
    if not leaks:
        return _none(outcomes, f"members from others in any of {len(runs)} runs", f"leaks of these {len(runs)} runs")
    leaking, strongest = len({o.run for o in leaks}), _strongest(leaks)
    most = f"in {strongest.run}, {strongest.who} {how_well(strongest.quoted)}"
    if not strongest.by_ranking:
        most = f"in {strongest.run}, {strongest.who} can name members: {how_well(strongest.quoted)}"
    everyone = "both" if len(runs) == 2 else f"all {len(runs)}"
    count = f"{everyone} runs leak" if leaking == len(runs) else f"{leaking} of {len(runs)} runs leak"
    if leaks[0].threat == OWNER:
        return _sentence(f"only {leaks[0].who} was shown to tell members, in {leaking} of {len(runs)} runs; {most}")
    if leaking == 1:
        return _sentence(f"{count}s: {most}")
    return _sentence(f"{count}; at most, {most}")


def _none(outcomes: Sequence[AdversaryVerdict], tell: str, leaks: str) -> str:
    """The sentence where nobody was shown to `tell` something; `leaks` names what is left open."""
    quiet = [o for o in outcomes if o.verdict == NO_LEAK_FOUND]
    if quiet:
        return _sentence(f"nobody was shown to tell {tell}{_could(quiet)}")
    if any(o.verdict == DOUBTED for o in outcomes):
        return f"Nothing can be said about {leaks}: the recording is doubted."
    if any(o.verdict == CONFOUNDED for o in outcomes):
        return f"Nothing can be said about {leaks}: members and non-members differ in more than membership."
    if any(o.verdict == INCONCLUSIVE for o in outcomes):
        return f"Undecided, for {leaks}: no score can be told from luck or a control, or none differs between records."
    return f"Not measured: no headline score has a number for {leaks}."


def how_well(f: Finding | None, *, guessing: str = " (guessing: 50)") -> str:
    """How well a score that leaks tells members, as a predicate, or by how many of the highest were members. `guessing`
    follows the number of pairs."""
    assert f is not None
    if not by_ranking(f):
        return str(f["part"]).partition(";")[0]
    backwards = f["verdict"] == REVERSED
    pair = f"picks the member out of a pair {times(1 - f['value'] if backwards else f['value'])}{guessing}"
    return f"{pair}, by the lower score" if backwards else pair


def times(value: float) -> str:
    """An AUROC as "73 times in 100": with a decimal next to 50, and "over 99" and "under 1" next to the ends."""
    if 0.99 < value < 1 or 0 < value < 0.01:
        return f"{'over 99' if value > 0.5 else 'under 1'} times in 100"
    digits = 1 if 0.49 < value < 0.51 and value != 0.5 else 0
    return f"{100 * value:.{digits}f} times in 100"


def _could(outcomes: Sequence[AdversaryVerdict]) -> str:
    """A clause, behind a semicolon, on what would have been found against each of these adversaries."""
    rows = [o.quoted for o in outcomes if o.quoted and o.quoted["detectable"] is not None]
    if not rows:
        return "; what could have been shown is not known"
    least = max(rows, key=_detectable)
    leak = f"a score that picks the member out of a pair {times(least['detectable'])}"
    if any(f.get("t") is None for f in rows):
        return f"; {leak} would just have been told from guessing"
    named = [f.get("detectable_named") for f in rows]
    or_named = f", or names {max(n for n in named if n)} members," if all(named) else ""
    return f"; {leak}{or_named} would have been found with a power of 80 %"


def _rest(outcomes: Sequence[AdversaryVerdict], *, of_one: bool) -> list[str]:
    """Sentences on the score behind the headline, and on adversaries (of several runs, on runs) that it leaves out."""
    leaks = _speakers(outcomes)
    lines = [_behind(_strongest(leaks).quoted)] if leaks else []
    for bound in (o for o in outcomes if of_one and o.leaks and o not in leaks):
        verb = "" if bound.by_ranking else " can name members:"
        lines.append(_sentence(f"{bound.who}{verb} {how_well(bound.quoted)}"))
    worst = outcomes if of_one else _worst_of_each_run(outcomes)
    quiet = [o for o in worst if o.verdict == NO_LEAK_FOUND]
    if leaks and quiet:
        lines.append(f"No leak found: {_names(quiet, of_one)}{_could(quiet)}.")
    for verdict, why in FURTHER.items():
        same = [o for o in worst if o.verdict == verdict]
        if same and (len(same) < len(worst)):
            lines.append(_sentence(f"{_names(same, of_one)}: {why}"))
    return lines


def _worst_of_each_run(outcomes: Sequence[AdversaryVerdict]) -> list[AdversaryVerdict]:
    """The outcome of each run that stands for it: a leak, else no leak found, else what hindered."""
    rank: dict[Any, int] = {**dict.fromkeys(LEAKS, 0), NO_LEAK_FOUND: 1, CONFOUNDED: 2, INCONCLUSIVE: 3}
    by_run: dict[str, AdversaryVerdict] = {}
    for o in sorted(outcomes, key=lambda o: rank.get(o.verdict, 4)):
        by_run.setdefault(o.run, o)
    return [by_run[run] for run in dict.fromkeys(o.run for o in outcomes)]


def _behind(f: Finding | None) -> str:
    """Which score the headline quotes, and whether it was named before looking."""
    assert f is not None
    score = name_of(f["signal"]).in_sentences
    if f.get("best_of"):
        return f"By {score}, the best of {f['best_of']} attacks, its interval corrected for picking it."
    if f.get("family") in BEFOREHAND:
        return f"By {score}, the strongest score that was named beforehand."
    if f.get("family"):
        return f"By {score}, which was not named beforehand: its p is corrected for all {f['family_n']:,} such scores."
    return f"By {score}, the strongest headline score."


def _names(outcomes: Sequence[AdversaryVerdict], of_one: bool) -> str:
    return join_words([o.who if of_one else o.run for o in outcomes])


def _sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."
