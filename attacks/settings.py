"""Settings of the adversary of a run: which clients it attacks, and with how many shadow models. Imports nothing heavy.

`used_by` in a field's metadata names the fact (shadows, needs, mixtures) of the attacks whose scores the value can
change; "rows" means none: it only selects which rows tables have. Without `used_by` it can change any attack's scores.
"""

from dataclasses import dataclass

from fedaudit.machinery.parameters import Parameters, choice, like, number, whole
from fedaudit.terms.held_models import EXACT, REBUILDINGS


@dataclass(frozen=True)
class Adversary(Parameters):
    """Settings of every attack of a run, with their flags' help texts."""

    targets: int = whole(
        0, "clients that are attacked, 0 = two where shadow models are trained, else all", least=0, most=10**6
    )
    shadows: int = whole(50, "shadow models of each target client (DP-FPL: 50)", least=4, most=10**4, used_by="shadows")
    shadow_trajectories: int = whole(
        0,
        "simulated federations that the shadow clients share, at most --shadows, 0 = one for every ten of them",
        least=0,
        most=10**4,
        used_by="shadows",
    )
    shadow_kind: str = choice(
        "clients",
        "clients: shadow clients in a few simulated federations; federations: as many whole ones",
        ("clients", "federations"),
        used_by="shadows",
    )
    trajectory: str = choice(
        "simulated",
        "messages of the other clients; only the server can have observed them",
        ("simulated", "observed"),
        used_by="shadows",
    )
    observed_rounds: int = whole(
        20, "rounds, evenly spaced, whose messages are attacked", least=2, most=10**6, used_by="needs"
    )
    solved_rounds: int = whole(
        0,
        "first messages of a target that are solved, 0 = those of two epochs (of adapters all)",
        least=0,
        most=10**6,
        used_by="mixtures",
    )

    def check(self) -> None:
        if self.shadow_trajectories > self.shadows:
            raise ValueError(
                f"shadow_trajectories must be at most the number of shadows, {self.shadows}, not "
                f"{self.shadow_trajectories}"
            )
        if self.trajectory == "observed" and self.shadow_kind == "federations":
            raise ValueError("trajectory must be simulated for whole federations (--shadow-kind), not 'observed'")

    @property
    def trajectories(self) -> int:
        """Number of simulated federations over which a target's shadow clients are spread."""
        return self.shadow_trajectories or max(1, self.shadows // 10)


@dataclass(frozen=True)
class ThriftyAdversary(Adversary):
    """`Adversary` with 30 shadow models by default, for learners that encode every picture in each step."""

    shadows: int = like(Adversary, "shadows", 30)


@dataclass(frozen=True)
class NovelRows(Parameters):
    """Parameter of attacks that select which models are compared with records of another distribution."""

    novel_rows: str = choice(
        "released",
        "rows against records of another distribution too: the released model's, or all",
        ("released", "all"),
        used_by="rows",
    )


@dataclass(frozen=True)
class Probing(Parameters):
    """Parameters of attacks that send a probe (`attacks.probes`)."""

    probe_round: int = whole(0, "round in which an active server acts, from 1; 0 = the last", least=0, most=10**6)
    growth_check: float = number(
        0.0,
        "clients refuse a broadcast longer than this many times the last one that they were sent; 0 = none refuses",
        least=0.0,
        most=1e8,
    )


@dataclass(frozen=True)
class RebuiltWays(NovelRows):
    """Parameters of attacks that select by which ways clients are rebuilt (`attacks.messages.rebuild`)."""

    ways: str = choice("all", f"{EXACT} where nothing is hidden", ("all", *REBUILDINGS), used_by="rows")
