"""The runs that a page compares: a method with its epsilon and parameters, its accuracies over seeds, and the privacy
that is claimed and proven."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

import pandas as pd

from fedaudit.reports.evidence import Evidence, Finding, concat_table
from fedaudit.terms.splits import LOCAL, NEIGHBOUR, SPLITS
from fedaudit.trainers.learners import METHODS

LINES_SHOWN = 8  # more lines in one panel hide each other
ANSWERS = {"exact_match": "exact match (%)", "cider": "CIDEr"}  # utility of texts: the first one measured is quoted
AS_PRINTED = {"rank": 8, "residual": True, "mu": 0.0, "match": "sum"}  # parameters of DP-FPL's Tables 2 to 4


def as_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dictionaries, with None in place of NaN."""
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return rows


@dataclass(frozen=True)
class Score:
    """A measured number, such as an accuracy in percent, over seeds."""

    value: float  # mean over seeds
    sd: float | None  # over seeds; None for a single seed
    low: float | None  # the first seed's interval
    high: float | None
    before: float | None  # mean over seeds before training
    seeds: Mapping[int, float]  # the number of each seed

    @property
    def reach(self) -> tuple[float, float]:
        """Lengths of an error bar down and up from the value: one standard deviation over seeds, for a single seed to
        the ends of its interval, zero without one."""
        if self.sd is not None:
            return self.sd, self.sd
        return (0.0, 0.0) if self.low is None or self.high is None else (self.value - self.low, self.high - self.value)


@dataclass(frozen=True)
class MethodRow:
    """A method under one setting (a variant), with all its seeds."""

    label: str  # as in the evidence, different for every variant
    method: str  # the learner's name
    epsilon: float  # inf without noise
    parameters: Mapping[str, Any]
    options: Mapping[str, Any]  # those parameters in which variants of the method differ
    scores: Mapping[str, Score]  # accuracies by split; attacks' success where `with_leakage` added it
    ratio: float | None  # noise over signal, the largest of all releases and seeds
    clipped: float | None  # share of gradients longer than C in the release where it is largest, mean over seeds
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]  # by seed

    @property
    def name(self) -> str:
        """The method as readers call it."""
        return method_name(self.method)

    @property
    def private(self) -> bool:
        """Whether training adds noise for a finite epsilon."""
        return math.isfinite(self.epsilon)

    @property
    def trained(self) -> bool:
        """Whether the method trains at all: False only where every claimed and proven epsilon is 0."""
        return not self.claims or any(claim.claimed or claim.provable for claim in self.claims)

    @property
    def noise(self) -> str:
        """The noise in words: "ε 0.4", "no noise" or "untrained"."""
        return f"ε {self.epsilon:g}" if self.private else "no noise" if self.trained else "untrained"

    @property
    def quoted_splits(self) -> list[str]:
        """The splits of test classes that sentences quote: local and neighbour, or all that there are if the run has
        neither."""
        return [split for split in (LOCAL, NEIGHBOUR) if split in self.scores] or list(self.scores)

    @property
    def setting(self) -> str:
        """The options in words, such as "rank 8, with residual"; empty without options."""
        return ", ".join(_option_in_words(name, value) for name, value in self.options.items())

    @property
    def title(self) -> str:
        """The run's name on the page: method, noise (where the learner can have any) and setting."""
        noise = self.noise if self.trained and "privacy" in self.evidence[0].setting else ""
        return ", ".join(filter(None, (self.name, noise, self.setting)))

    def table(self, name: str) -> pd.DataFrame:
        """The table `name` of the first seed; with its columns even if there is no row."""
        return concat_table(self.evidence[:1], name)

    @property
    def final_utility(self) -> tuple[str, float] | None:
        """The utility after training as (title with unit, value): the first split's mean accuracy in percent; for texts
        the global model's first measured metric after the last round, of the first seed. None if neither was
        measured."""
        if self.scores:
            split, score = next(iter(self.scores.items()))
            return f"{split.replace('_', ' ')} accuracy (%)", score.value
        table = self.table("utility")
        last = table[table.model == "global"].sort_values("round").tail(1)
        metrics = [name for name in ANSWERS if name in last and last[name].notna().any()]
        return (ANSWERS[metrics[0]], float(last[metrics[0]].iloc[0])) if metrics else None

    @property
    def sent(self) -> dict[str, float | None] | None:
        """Bytes of one client in one round, {"down", "up"}, mean over all participations of the first seed's run, and
        "share": both together over FedAvg's bytes (None if that is 0). None if bytes were not counted."""
        rounds = self.table("cost")
        if rounds.empty:
            return None
        names = ("bytes_down", "bytes_up", "fedavg_bytes", "messages")
        down, up, whole, messages = (int(rounds[name].sum()) for name in names)
        return {"down": down / messages, "up": up / messages, "share": (down + up) / whole if whole else None}


@dataclass(frozen=True)
class Claim:
    """The epsilons of one record against one adversary; infinity means that no bound holds."""

    threat_model: str
    whose: str  # whose record: "own" of the client that is attacked, "other" of another client
    claimed: float  # by the method's paper
    provable: float  # from the noise as it ran
    every_step: float  # the same for a record in every step
    replace_one: float | None  # `provable` for a record that is replaced rather than left out
    measured: str  # a lower bound from canaries, in words
    why: str  # reason, such as why nothing is proven

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All fields but adversary and record: claims with equal numbers share a row of the page."""
        return (self.claimed, self.provable, self.every_step, self.replace_one, self.measured, self.why)

    @property
    def unclaimed(self) -> bool:
        """Whether the method claims no epsilon."""
        return math.isinf(self.claimed)

    @property
    def above(self) -> bool:
        """Whether the proven epsilon is above the claimed one, as it ran or for a record in every step."""
        return not self.unclaimed and max(self.provable, self.every_step) > 1.001 * self.claimed

    @property
    def exceeds(self) -> str:
        """How the proven epsilon compares with the claimed one, in words."""
        if self.unclaimed:
            return "nothing is claimed"
        if self.provable > 1.001 * self.claimed:
            return "proven is above claimed"
        if self.every_step > 1.001 * self.claimed:
            more = "" if math.isinf(self.every_step) else f", {self.every_step / self.claimed:.3g} times"
            return f"above claimed if a record is in every step{more}"
        return "proven is within what is claimed"


def _option_in_words(name: str, value: Any) -> str:
    if name == "rank":
        return f"rank {value}" if value else "full rank"
    if name == "residual":
        return "with residual" if value else "without residual"
    return f"{name.replace('_', ' ')} {value}"


def variants(evidence: Sequence[Evidence]) -> list[MethodRow]:
    """One row per setting of a method (label of the evidence), with all its seeds; by method in order of appearance,
    without noise first, then from the largest epsilon down."""
    methods = list(dict.fromkeys(map(_method, evidence)))
    rows = []
    for label in dict.fromkeys(e.method for e in evidence):
        seeds = tuple(sorted((e for e in evidence if e.method == label), key=lambda e: e.seed))
        varying = _varying_names([e for e in evidence if _method(e) == _method(seeds[0])])
        parameters = _parameters(seeds[0])
        ratios, clipped = (
            [float(f[name]) for e in seeds for f in e.findings if f.get(name) is not None]
            for name in ("noise_ratio", "clipped")
        )
        rows.append(
            MethodRow(
                label=label,
                method=_method(seeds[0]),
                epsilon=_epsilon(seeds[0]),
                parameters=parameters,
                options={name: parameters[name] for name in varying if name in parameters},
                scores=_scores(seeds),
                ratio=max(ratios, default=None),
                clipped=mean(clipped) if clipped else None,
                claims=_claims(seeds),
                evidence=seeds,
            )
        )
    return sorted(rows, key=lambda v: (methods.index(v.method), -v.epsilon))


def _method(e: Evidence) -> str:
    return str(e.setting.get("method", {}).get("name", e.method))


def _epsilon(e: Evidence) -> float:
    return float(e.setting.get("privacy", {}).get("epsilon", math.inf))


def _parameters(e: Evidence) -> dict[str, Any]:
    """The parameters {name: value} of the method and, with a finite epsilon, those of clipping and noise, but not
    epsilon."""
    privacy = e.setting.get("privacy", {}) if math.isfinite(_epsilon(e)) else {}
    merged = {**e.setting.get("method", {}), **privacy}
    return {name: value for name, value in merged.items() if name not in ("name", "epsilon")}


def _varying_names(evidence: Sequence[Evidence]) -> list[str]:
    """The names of parameters that have several values in this evidence."""
    values: dict[str, set[str]] = {}
    for name, value in (item for e in evidence for item in _parameters(e).items()):
        values.setdefault(name, set()).add(repr(value))
    return [name for name, distinct in values.items() if len(distinct) > 1]


def _scores(seeds: Sequence[Evidence]) -> dict[str, Score]:
    """The accuracies in percent of one setting by split of test classes, over its `seeds`; splits that were not
    measured are left out."""
    scores: dict[str, Score] = {}
    for split in SPLITS:
        rows = [(e.seed, f) for e in seeds for f in e.findings if f["metric"] == split.metric]
        if rows:
            before, first = [f["before"] for _, f in rows if f["before"] is not None], rows[0][1]
            score = pooled({seed: f["value"] for seed, f in rows}, first["low"], first["high"])
            scores[split] = replace(score, before=mean(before) if before else None)
    return scores


def pooled(seeds: Mapping[int, float], low: float | None, high: float | None) -> Score:
    """The score of several seeds: mean and standard deviation of `seeds`, and the first seed's interval (low, high)."""
    values = list(seeds.values())
    return Score(mean(values), stdev(values) if len(values) > 1 else None, low, high, None, seeds)


def _claims(seeds: Sequence[Evidence]) -> tuple[Claim, ...]:
    """The epsilons claimed and proven, one `Claim` per adversary and owner of the record: that of the seed with the
    largest proven epsilon."""
    claims: dict[tuple[str, str], list[Claim]] = {}
    for f in (f for e in seeds for f in e.findings if f["metric"] == "epsilon"):
        claims.setdefault((f["threat_model"], f["whose"]), []).append(_claim(f))
    return tuple(max(of_seeds, key=lambda c: c.provable) for of_seeds in claims.values())


def _claim(f: Finding) -> Claim:
    claimed, provable, every_step = (float(f[name]) for name in ("claimed", "provable", "every_step"))
    swapped = None if f["replace_one"] is None else float(f["replace_one"])
    return Claim(f["threat_model"], f["whose"], claimed, provable, every_step, swapped, f["measured"], f["why"])


def noise_free_twin(variant: MethodRow, others: Sequence[MethodRow]) -> MethodRow | None:
    """The run among `others` with the same method and parameters, without noise. None if `variant` has no noise itself,
    or there is no such run."""
    parameters = variant.evidence[0].setting.get("method")
    same = [v for v in others if v.evidence[0].setting.get("method") == parameters and not v.private]
    return same[0] if variant.private and same else None


def method_name(method: str) -> str:
    """The method as readers call it; the given name itself for a training from outside FedAudit."""
    plugin = METHODS.get(method)
    return (plugin and plugin.facts.title) or method


def closest_to_paper(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """One row per method and epsilon: of its settings the one whose parameters are closest to those of DP-FPL's Tables
    2 to 4."""
    best: dict[tuple[str, float], MethodRow] = {}
    for v in rows:
        key = v.method, v.epsilon
        if key not in best or _distance(v) < _distance(best[key]):
            best[key] = v
    return list(best.values())


def _distance(v: MethodRow) -> int:
    return sum(v.parameters[name] != value for name, value in AS_PRINTED.items() if name in v.parameters)


def select_detailed(rows: Sequence[MethodRow]) -> tuple[list[MethodRow], str]:
    """The rows that one figure can show, and a sentence about the others. All if there are at most `LINES_SHOWN` (then
    the sentence is empty), else those without noise and with the largest epsilon, one per method and epsilon."""
    if len(rows) <= LINES_SHOWN:
        return list(rows), ""
    largest = max((v.epsilon for v in rows if v.private), default=math.inf)
    kept = [v for v in closest_to_paper(rows) if not v.private or v.epsilon == largest]
    noised = f" or with ε {largest:g}" if math.isfinite(largest) else ""
    what = f"Of {len(rows)} rows those without noise{noised} are shown; all stand in the data. {note_on_settings(rows)}"
    return kept, what.strip()


def note_on_settings(rows: Sequence[MethodRow]) -> str:
    """A sentence about which setting of each method `closest_to_paper` picks; empty where no method has several."""
    several = [v for v in closest_to_paper(rows) if v.setting]
    names = list(dict.fromkeys(f"{v.name} {v.setting}" for v in several))
    return f"Of several settings one is drawn: {'; '.join(names)}." if names else ""
