"""What the adversary of a run does: whom it attacks, and with how many models of its own. Imports nothing heavy.

`used_by` in a field's metadata says which attacks its value can change: those whose file declares so (SHADOWS, NEEDS,
MIXTURES), or `rows`, none: it picks which rows there are. Without it any attack.
"""

from dataclasses import dataclass, field

from fedaudit.terms.held_models import EXACT, LITERAL, NEWEST, REBUILDINGS, SERVER_FILL

WAYS = f"all, {LITERAL}, {NEWEST} or {SERVER_FILL}"


@dataclass(frozen=True)
class Adversary:
    targets: int = field(
        default=0, metadata={"help": "clients that are attacked, 0 = two where shadow models are trained, else all"}
    )
    shadows: int = field(
        default=50, metadata={"help": "shadow models of each target client (DP-FPL: 50)", "used_by": "shadows"}
    )
    shadow_trajectories: int = field(
        default=0,
        metadata={
            "help": "simulated federations that the shadow clients share, 0 = one for every ten of them",
            "used_by": "shadows",
        },
    )
    shadow_kind: str = field(
        default="clients",
        metadata={
            "help": "clients: shadow clients in a few simulated federations; federations: as many whole ones",
            "used_by": "shadows",
        },
    )
    trajectory: str = field(
        default="simulated",
        metadata={
            "help": "messages of the other clients: simulated, or observed by the server, the only one who sees them",
            "used_by": "shadows",
        },
    )
    observed_rounds: int = field(
        default=20, metadata={"help": "rounds, evenly spaced, whose messages are attacked", "used_by": "needs"}
    )
    solved_rounds: int = field(
        default=0,
        metadata={
            "help": "first messages of a target that are solved for their batches, 0 = those of two epochs",
            "used_by": "mixtures",
        },
    )

    def __post_init__(self) -> None:
        if not 0 <= self.targets <= 10**6:
            raise ValueError(
                f"targets must be at least 1 and at most 1000000, or 0 for the usual number, not {self.targets}"
            )
        if not 4 <= self.shadows <= 10**4:
            raise ValueError(f"shadows must be at least 4 and at most 10000, not {self.shadows}")
        if not 0 <= self.shadow_trajectories <= self.shadows:
            raise ValueError(
                f"shadow_trajectories must be at least 1 and at most the number of shadows, {self.shadows}, or 0 for "
                f"the usual number, not {self.shadow_trajectories}"
            )
        if self.shadow_kind not in ("clients", "federations"):
            raise ValueError(f"shadow_kind must be clients or federations, not {self.shadow_kind!r}")
        if self.trajectory not in ("simulated", "observed"):
            raise ValueError(f"trajectory must be simulated or observed, not {self.trajectory!r}")
        if self.trajectory == "observed" and self.shadow_kind == "federations":
            raise ValueError("trajectory must be simulated for whole federations (--shadow-kind), not 'observed'")
        if not 2 <= self.observed_rounds <= 10**6:
            raise ValueError(f"observed_rounds must be at least 2 and at most 1000000, not {self.observed_rounds}")
        if not 0 <= self.solved_rounds <= 10**6:
            raise ValueError(f"solved_rounds must not be negative, and at most 1000000, not {self.solved_rounds}")

    @property
    def trajectories(self) -> int:
        """Simulated federations that the shadow clients of a target share."""
        return self.shadow_trajectories or max(1, self.shadows // 10)


@dataclass(frozen=True)
class ThriftyAdversary(Adversary):
    """The same with fewer shadow models: for learners that pass every picture through an encoder in each step."""

    shadows: int = field(default=30, metadata=Adversary.__dataclass_fields__["shadows"].metadata)


@dataclass(frozen=True)
class NovelRows:
    novel_rows: str = field(
        default="released",
        metadata={
            "help": "rows against records of another distribution too: the released model's (released), or all",
            "used_by": "rows",
        },
    )

    def __post_init__(self) -> None:
        if self.novel_rows not in ("released", "all"):
            raise ValueError(f"novel_rows must be released or all, not {self.novel_rows!r}")


@dataclass(frozen=True)
class RebuiltWays(NovelRows):
    ways: str = field(
        default="all",
        metadata={"help": f"{WAYS} ({EXACT} where nothing is hidden)", "used_by": "rows"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ways not in ("all", *REBUILDINGS):
            raise ValueError(f"ways must be {WAYS}, not {self.ways!r}")
