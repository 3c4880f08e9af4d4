"""The runs that a page compares: each a method with its epsilon and parameters, what its seeds measured, and what is
claimed and proven."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

import pandas as pd

from fedaudit.terms.splits import SPLITS
from reports.evidence import Evidence, Finding, joined
from trainers.learners import METHODS

LINES_SHOWN = 8  # more lines in one panel hide each other
ANSWERS = {"exact_match": "exact match (%)", "cider": "CIDEr"}  # of the metrics of answers the first is quoted
AS_PRINTED = {"rank": 8, "residual": True, "mu": 0.0, "match": "sum"}  # of DP-FPL's Tables 2 to 4


def as_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table for a template; None where there is no number."""
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return rows


@dataclass(frozen=True)
class Score:
    """A number such as an accuracy in percent: the mean over seeds, its spread, and the first seed's interval over
    clients."""

    value: float
    sd: float | None  # None for a single seed
    low: float | None
    high: float | None
    before: float | None
    seeds: Mapping[int, float]

    @property
    def reach(self) -> tuple[float, float]:
        """Down and up from the value: one standard deviation over seeds if there are several, else to the ends of the
        interval."""
        if self.sd is not None:
            return self.sd, self.sd
        return (0.0, 0.0) if self.low is None or self.high is None else (self.value - self.low, self.high - self.value)


@dataclass(frozen=True)
class MethodRow:
    """One row: `options` are the parameters that differ between variants of the same method, by name."""

    label: str
    method: str
    epsilon: float
    parameters: Mapping[str, Any]
    options: Mapping[str, Any]
    scores: Mapping[str, Score]  # by split
    ratio: float | None  # largest noise over signal of any release and seed
    clipped: float | None  # largest share of gradients longer than C of any release, mean over seeds
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]  # by seed

    @property
    def name(self) -> str:
        return method_name(self.method)

    @property
    def private(self) -> bool:
        return math.isfinite(self.epsilon)

    @property
    def trained(self) -> bool:
        return not self.claims or any(claim.claimed or claim.provable for claim in self.claims)

    @property
    def noise(self) -> str:
        return f"ε {self.epsilon:g}" if self.private else "no noise" if self.trained else "untrained"

    @property
    def setting(self) -> str:
        """Its options in words."""
        return ", ".join(_option(name, value) for name, value in self.options.items())

    @property
    def title(self) -> str:
        """What it is called beside the others; of noise nothing is said where the learner has none."""
        noise = self.noise if self.trained and "privacy" in self.evidence[0].setting else ""
        return ", ".join(filter(None, (self.name, noise, self.setting)))

    def table(self, name: str) -> pd.DataFrame:
        """A table of the first seed; with its columns even if there is no row."""
        return joined(self.evidence[:1], name)

    @property
    def at_the_end(self) -> tuple[str, float] | None:
        """How good its models are: what is measured, and the number; None where nothing was."""
        if self.scores:
            split, score = next(iter(self.scores.items()))
            return f"{split.replace('_', ' ')} accuracy (%)", score.value
        table = self.table("utility")
        last = table[table.model == "global"].sort_values("round").tail(1)
        asked = [name for name in ANSWERS if name in last and last[name].notna().any()]
        return (ANSWERS[asked[0]], float(last[asked[0]].iloc[0])) if asked else None

    @property
    def sent(self) -> dict[str, float | None] | None:
        """Bytes of a client in a round, mean over all that took part, and the share of FedAvg's; None where nothing was
        counted."""
        rounds = self.table("cost")
        if rounds.empty:
            return None
        names = ("bytes_down", "bytes_up", "fedavg_bytes", "messages")
        down, up, whole, messages = (int(rounds[name].sum()) for name in names)
        return {"down": down / messages, "up": up / messages, "share": (down + up) / whole if whole else None}


@dataclass(frozen=True)
class Claim:
    """What holds about a record of `whose` ("own", "other") against an adversary; an infinite epsilon is unbounded."""

    threat_model: str
    whose: str
    claimed: float
    provable: float
    every_step: float
    replace_one: float | None
    measured: str
    why: str

    @property
    def numbers(self) -> tuple[Any, ...]:
        return (self.claimed, self.provable, self.every_step, self.replace_one, self.measured, self.why)

    @property
    def unclaimed(self) -> bool:
        return math.isinf(self.claimed)

    @property
    def above(self) -> bool:
        """Whether more is lost than claimed, at least for a record that is in every step."""
        return not self.unclaimed and max(self.provable, self.every_step) > 1.001 * self.claimed

    @property
    def exceeds(self) -> str:
        """In words whether more is lost than claimed."""
        if self.unclaimed:
            return "nothing is claimed"
        if self.provable > 1.001 * self.claimed:
            return "proven is above claimed"
        if self.every_step > 1.001 * self.claimed:
            more = "" if math.isinf(self.every_step) else f", {self.every_step / self.claimed:.3g} times"
            return f"above claimed if a record is in every step{more}"
        return "proven is within what is claimed"


def _option(name: str, value: Any) -> str:
    if name == "rank":
        return f"rank {value}" if value else "full rank"
    if name == "residual":
        return "with residual" if value else "without residual"
    return f"{name.replace('_', ' ')} {value}"


def variants(evidence: Sequence[Evidence]) -> list[MethodRow]:
    """The variants of every method, a method's together: first without noise, then from the largest epsilon down."""
    methods = list(dict.fromkeys(map(_method, evidence)))
    found = []
    for label in dict.fromkeys(e.method for e in evidence):
        seeds = tuple(sorted((e for e in evidence if e.method == label), key=lambda e: e.seed))
        varying = _varying([e for e in evidence if _method(e) == _method(seeds[0])])
        own = _parameters(seeds[0])
        ratios, clipped = (
            [float(f[name]) for e in seeds for f in e.findings if f.get(name) is not None]
            for name in ("noise_ratio", "clipped")
        )
        found.append(
            MethodRow(
                label=label,
                method=_method(seeds[0]),
                epsilon=_epsilon(seeds[0]),
                parameters=own,
                options={name: own[name] for name in varying if name in own},
                scores=_scores(seeds),
                ratio=max(ratios, default=None),
                clipped=mean(clipped) if clipped else None,
                claims=_claims(seeds),
                evidence=seeds,
            )
        )
    return sorted(found, key=lambda v: (methods.index(v.method), -v.epsilon))


def _method(e: Evidence) -> str:
    return str(e.setting.get("method", {}).get("name", e.method))


def _epsilon(e: Evidence) -> float:
    return float(e.setting.get("privacy", {}).get("epsilon", math.inf))


def _parameters(e: Evidence) -> dict[str, Any]:
    """A method's own parameters and, where it is noised, those of clipping and noise."""
    parts = ["method", "privacy"] if math.isfinite(_epsilon(e)) else ["method"]
    return {
        name: value
        for part in parts
        for name, value in e.setting.get(part, {}).items()
        if name not in ("name", "epsilon")
    }


def _varying(evidence: Sequence[Evidence]) -> list[str]:
    given = [_parameters(e) for e in evidence]
    names = dict.fromkeys(name for one in given for name in one)
    return [name for name in names if len({repr(one[name]) for one in given if name in one}) > 1]


def _scores(seeds: Sequence[Evidence]) -> dict[str, Score]:
    found: dict[str, Score] = {}
    for split in SPLITS:
        rows = [(e.seed, f) for e in seeds for f in e.findings if f["metric"] == split.metric]
        if rows:
            before, first = [f["before"] for _, f in rows if f["before"] is not None], rows[0][1]
            score = pooled({seed: f["value"] for seed, f in rows}, first["low"], first["high"])
            found[split] = replace(score, before=mean(before) if before else None)
    return found


def pooled(seeds: Mapping[int, float], low: float | None, high: float | None) -> Score:
    """What several seeds measured: their mean and spread, with the interval of the first."""
    values = list(seeds.values())
    return Score(mean(values), stdev(values) if len(values) > 1 else None, low, high, None, seeds)


def _claims(seeds: Sequence[Evidence]) -> tuple[Claim, ...]:
    """A claim per adversary and whose record; of several seeds the one with the largest proven epsilon."""
    by_place: dict[tuple[str, str], list[Claim]] = {}
    for f in (f for e in seeds for f in e.findings if f["metric"] == "epsilon"):
        by_place.setdefault((f["threat_model"], f["whose"]), []).append(_claim(f))
    return tuple(max(claims, key=lambda c: c.provable) for claims in by_place.values())


def _claim(f: Finding) -> Claim:
    claimed, provable, every_step = (float(f[name]) for name in ("claimed", "provable", "every_step"))
    swapped = None if f["replace_one"] is None else float(f["replace_one"])
    return Claim(f["threat_model"], f["whose"], claimed, provable, every_step, swapped, f["measured"], f["why"])


def twin(variant: MethodRow, others: Sequence[MethodRow]) -> MethodRow | None:
    """The same method with the same parameters, without noise."""
    own = variant.evidence[0].setting.get("method")
    same = [v for v in others if v.evidence[0].setting.get("method") == own and not v.private]
    return same[0] if variant.private and same else None


def method_name(method: str) -> str:
    """What readers call a method; a training done elsewhere is called what its folder calls it."""
    plugin = METHODS.get(method)
    return (plugin and plugin.facts.title) or method


def as_printed(found: Sequence[MethodRow]) -> list[MethodRow]:
    """Of every method and epsilon the one variant whose parameters are closest to those of DP-FPL's main tables."""
    best: dict[tuple[str, float], MethodRow] = {}
    for v in found:
        key = v.method, v.epsilon
        if key not in best or _distance(v) < _distance(best[key]):
            best[key] = v
    return list(best.values())


def _distance(v: MethodRow) -> int:
    return sum(v.parameters[name] != value for name, value in AS_PRINTED.items() if name in v.parameters)


def few(found: Sequence[MethodRow]) -> tuple[list[MethodRow], str]:
    """The variants that one figure can show, and in words which were left out."""
    if len(found) <= LINES_SHOWN:
        return list(found), ""
    least = max((v.epsilon for v in found if v.private), default=math.inf)
    kept = [v for v in as_printed(found) if not v.private or v.epsilon == least]
    noised = f" or with ε {least:g}" if math.isfinite(least) else ""
    what = f"Of {len(found)} rows those without noise{noised} are shown; all stand in the data. {one_of_several(found)}"
    return kept, what.strip()


def one_of_several(found: Sequence[MethodRow]) -> str:
    """In words which settings `as_printed` takes."""
    several = [v for v in as_printed(found) if v.setting]
    names = list(dict.fromkeys(f"{v.name} {v.setting}" for v in several))
    return f"Of several settings one is drawn: {'; '.join(names)}." if names else ""
