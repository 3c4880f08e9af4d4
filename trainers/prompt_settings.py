"""How prompts are trained: the settings that their learners share. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PromptSettings:
    """Base of the settings of learners that train prompts."""

    prompt_length: int = field(default=16, metadata={"help": "context vectors of a prompt, b"})
    batch: int = field(default=8, metadata={"help": "records of a local step, |B|"})
    local_steps: int = field(default=1, metadata={"help": "local steps per client and round (DP-FPL: 1)"})
    local_epochs: int = field(
        default=0, metadata={"help": "local epochs per client and round; 0 = go by --local-steps"}
    )
    momentum: float = field(default=0.0, metadata={"help": "SGD momentum over the local steps of a round"})
    global_rate: float = field(default=0.1, metadata={"help": "SGD learning rate of the global prompt"})
    local_rate: float = field(default=0.1, metadata={"help": "SGD learning rate of the local prompts"})
    crowd: int = field(default=50, metadata={"help": "clients that train as one batched problem; bounds memory"})

    def __post_init__(self) -> None:
        if not 0 <= self.local_epochs <= 10**6:
            raise ValueError(f"local_epochs must not be negative, and at most 1000000, not {self.local_epochs}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, not {self.momentum}")
        for name, most in (("prompt_length", 1024), ("batch", 10**6), ("local_steps", 10**6), ("crowd", 10**6)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be at least 1 and at most {most}, not {getattr(self, name)}")
        for name in ("global_rate", "local_rate"):
            if not 0 < getattr(self, name) <= 10**6:
                raise ValueError(f"{name} must be positive and at most 1000000, not {getattr(self, name)}")

    @property
    def several(self) -> bool:
        """Whether a client may take more than one step in a round."""
        return bool(self.local_epochs) or self.local_steps > 1
