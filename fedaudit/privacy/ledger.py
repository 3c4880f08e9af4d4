"""The ledger of a run's noise: which releases were noised, how, how often, and who saw them.

Trainers make a `RoundNoise` per round, a `Ledger` collects them, the accountant reads it. Imports nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedaudit.terms.term import find
from fedaudit.terms.threat_models import ACTIVE_SERVER, SERVER, THREAT_MODELS

Json = dict[str, Any]

_WORDS = {
    "party": ("client", "server"),
    "clip": ("record", "batch"),
    "sampler": ("epochs", "poisson"),
    "relation": ("zero-out",),
}


def sensitivity(*, clip: str, norm: float, batch: int, clients: int = 1) -> float:
    """L2 sensitivity of a clipped mean gradient, averaged over `clients`, to replacing one record's contribution by
    zero.

    clip "record": norm / (clients * batch), DP-FPL's S_L and S_G (theorem 3.3). "batch": a record can reverse the whole
    mean, 2 norm / clients.
    """
    return norm / (clients * batch) if clip == "record" else 2 * norm / clients


def epoch_length(*, records: int, batch: int) -> int:
    """Steps of an epoch in batches of fixed size, at least 1; records that fill no batch wait for the next shuffle."""
    return max(1, records // batch)


def participations(*, steps: int, records: int, batch: int) -> int:
    """The largest number of `steps` that one record can be in: one per epoch begun, as epochs continue over rounds."""
    return math.ceil(steps / epoch_length(records=records, batch=batch))


def sampling_rate(*, records: int, batch: int) -> float:
    """The probability of each record to be in a Poisson batch of `batch` records on average."""
    return min(1.0, batch / records)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One Gaussian mechanism, as it ran in each step of a round."""

    release: str  # the tensor: "u", "v", "p_L", "p_G", ...
    party: str  # "client": before upload; "server": on the aggregate, so the server sees uploads without noise
    clip: str  # "record" or "batch"
    clip_norm: float
    sensitivity: float  # L2, of one record of one client, as implemented
    std: float  # of the noise, per coordinate
    dimension: int  # entries noised
    sampler: str  # "epochs" or "poisson"
    batch: int  # the public |B|
    relation: str = "zero-out"  # one record's contribution is replaced by nothing

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be {' or '.join(words)}, not {getattr(self, name)}")
        for name in ("clip_norm", "sensitivity", "dimension", "batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if not 0 <= self.std < math.inf:
            raise ValueError(f"std must be finite and not negative, not {self.std}")

    def shift(self, relation: str) -> float:
        """How far one record moves the release, in standard deviations: the mu of Gaussian differential privacy.

        Replacing a record moves a sum of clipped gradients twice as far as zeroing it; a clipped batch mean can only
        move from one side of its ball to the other, which its sensitivity covers already. Infinite without noise.
        """
        far = self.sensitivity * (2 if relation == "replace" and self.clip == "record" else 1)
        return far / self.std if self.std else math.inf


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One client's training in one round."""

    client: int
    records: int  # n_i, public
    steps: int  # noised steps
    shuffles: int  # "epochs": epochs begun in this round (a record is used once in each); "poisson": 0


@dataclass(frozen=True, kw_only=True)
class RoundNoise:
    """The noise of one round: the mechanisms that ran in each step of each participating client."""

    mechanisms: tuple[Mechanism, ...]
    turns: tuple[Turn, ...]

    def to_json(self) -> Json:
        """Strict JSON: no infinity, no nan."""
        return {"mechanisms": [_strict(m) for m in self.mechanisms], "turns": [asdict(turn) for turn in self.turns]}

    @classmethod
    def from_json(cls, about: Json) -> RoundNoise:
        return cls(mechanisms=_mechanisms(about["mechanisms"]), turns=tuple(Turn(**turn) for turn in about["turns"]))


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """How the records of one client were used over the whole run."""

    client: int
    records: int  # n_i
    steps: tuple[int, ...]  # per joint step of the ledger, how often it ran on this client
    times: int  # one record was in at most this many of these steps


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The noised releases that a threat model's view of a record depends on."""

    releases: tuple[str, ...]  # they count jointly; empty: no record reaches the view
    clear: str = ""  # a sentence on what reaches the view without noise; empty: nothing does
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All noise of a run. Mechanisms of the same step form a joint step; equal joint steps of several rounds are one.

    Tensors by name, from the method: `shared` are uploaded and broadcast, `local` stay with the client as part of its
    released prompt, `clear` are uploaded without noise beside or instead of the noised form.
    """

    steps: tuple[tuple[Mechanism, ...], ...]
    exposures: tuple[Exposure, ...]
    shared: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    clear: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("sampler", "batch"):
            values = sorted({str(getattr(m, name)) for step in self.steps for m in step})
            if len(values) > 1:
                raise ValueError(f"{name} must be the same for every mechanism of a run, not {' and '.join(values)}")
        for step in self.steps:
            names = [m.release for m in step]
            unknown = sorted(set(names) - {*self.shared, *self.local})
            if unknown:
                raise ValueError(f"releases must be shared or local, not neither: {', '.join(unknown)}")
            if len(set(names)) < len(names):
                raise ValueError(f"a step must noise each release once, not {', '.join(names)}")

    @classmethod
    def of(
        cls,
        rounds: Iterable[RoundNoise],
        *,
        shared: Sequence[str] = (),
        local: Sequence[str] = (),
        clear: Sequence[str] = (),
    ) -> Ledger:
        """The ledger of a run from the noise of its rounds. shared, local, clear: names of tensors, as the class
        describes them."""
        joint: dict[tuple[Mechanism, ...], int] = {}
        ran: dict[int, list[tuple[int, Turn]]] = {}
        for noise in rounds:
            step = tuple(sorted(noise.mechanisms, key=lambda m: m.release))
            kind = joint.setdefault(step, len(joint))
            for turn in noise.turns:
                ran.setdefault(turn.client, []).append((kind, turn))
        return cls(
            steps=tuple(joint),
            exposures=tuple(_exposure(client, ran[client], list(joint)) for client in sorted(ran)),
            shared=tuple(shared),
            local=tuple(local),
            clear=tuple(clear),
        )

    @property
    def sampler(self) -> str:
        """The sampler that ran; "epochs" if nothing is noised."""
        return next((m.sampler for step in self.steps for m in step), "epochs")

    @property
    def batch(self) -> int:
        """The public batch size; 1 if nothing is noised."""
        return next((m.batch for step in self.steps for m in step), 1)

    def view(self, threat_model: str, *, whose: str) -> Observed:
        """The releases that the view of `threat_model` depends on, for a record of the attacked client ("own") or of
        another ("other").

        A shared tensor was computed at the client's local prompt, which earlier steps moved: so a client's later
        uploads depend on its record through the local releases too, although these are hidden. Therefore shared and
        local releases count jointly in every view that a record reaches at all (adaptive composition, then
        post-processing); the shared ones alone would not bound it.
        """
        if whose not in ("own", "other"):
            raise ValueError(f"whose must be own or other, not {whose}")
        adversary = find(THREAT_MODELS, threat_model, "threat_model")
        if adversary in (SERVER, ACTIVE_SERVER):  # noise counts whatever the broadcast was
            return self._uploads()
        if not self.shared and (adversary.shared_only or whose == "other"):
            return Observed(releases=(), why="nothing is shared between clients")
        return self._jointly()

    def _uploads(self) -> Observed:
        if self.clear:
            return Observed(releases=self.shared, clear=f"the server receives {_and(self.clear)} without noise")
        if not self.shared:
            return Observed(releases=(), why="nothing is uploaded")
        late = {m.release for step in self.steps for m in step if m.party == "server"}
        if late:
            return Observed(releases=self.shared, clear=f"the server adds the noise of {_and(sorted(late))} itself")
        return self._jointly()

    def _jointly(self) -> Observed:
        releases = (*self.local, *self.shared)
        bare = [name for name in releases if not all(_noised(step, name) for step in self.steps)]
        if bare or not self.steps:
            return Observed(releases=releases, clear=f"no noise is added to {_and(bare or releases)}")
        return Observed(releases=releases, why=f"{_and(releases)}{' jointly' if len(releases) > 1 else ''}")

    def to_json(self) -> Json:
        """The ledger as JSON values, which hold no infinity and no NaN."""
        return {
            "steps": [[_strict(m) for m in step] for step in self.steps],
            "exposures": [asdict(exposure) for exposure in self.exposures],
            "shared": list(self.shared),
            "local": list(self.local),
            "clear": list(self.clear),
        }

    @classmethod
    def from_json(cls, about: Json) -> Ledger:
        return cls(
            steps=tuple(_mechanisms(step) for step in about["steps"]),
            exposures=tuple(Exposure(**{**e, "steps": tuple(e["steps"])}) for e in about["exposures"]),
            shared=tuple(about["shared"]),
            local=tuple(about["local"]),
            clear=tuple(about["clear"]),
        )


def strict(value: float) -> float | str:
    """A number for strict JSON: infinity and nan become the strings that float() reads."""
    return value if math.isfinite(value) else str(value)


def _strict(mechanism: Mechanism) -> Json:
    return {name: strict(v) if isinstance(v, float) else v for name, v in asdict(mechanism).items()}


def _mechanisms(listed: Iterable[Mapping[str, Any]]) -> tuple[Mechanism, ...]:
    numbers = ("clip_norm", "sensitivity", "std")
    return tuple(Mechanism(**{**about, **{name: float(about[name]) for name in numbers}}) for about in listed)


def _noised(step: Sequence[Mechanism], release: str) -> bool:
    return any(m.release == release and m.std > 0 for m in step)


def _exposure(client: int, ran: Sequence[tuple[int, Turn]], joint: Sequence[tuple[Mechanism, ...]]) -> Exposure:
    """The exposure of one client (how often its records were used in each joint step), from its turns, as (index in
    `joint`, turn). ValueError: they cannot be the schedule of a run."""
    counts = [sum(turn.steps for kind, turn in ran if kind == k) for k in range(len(joint))]
    total, shuffles = sum(counts), sum(turn.shuffles for _, turn in ran)
    sizes = {turn.records for _, turn in ran}
    if len(sizes) > 1:
        raise ValueError(f"records of client {client} must stay the same over the rounds, not {sorted(sizes)}")
    records = sizes.pop()
    first = next((m for step in joint for m in step), None)
    times = total
    if first is not None and first.sampler == "epochs":
        longest = math.ceil(records / first.batch)
        if total > shuffles * longest:
            raise ValueError(
                f"shuffles of client {client} must be at least {math.ceil(total / longest)} for {total} steps, not "
                f"{shuffles}"
            )
        times = min(total, shuffles)
    return Exposure(client=client, records=records, steps=tuple(counts), times=times)


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
