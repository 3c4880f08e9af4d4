"""Settings that all learners of prompts share. Imports nothing heavy."""

from dataclasses import dataclass

from fedaudit.machinery.parameters import Parameters, flag, number, whole


@dataclass(frozen=True)
class PromptSettings(Parameters):
    """Base of the settings of learners that train prompts."""

    prompt_length: int = whole(16, "context vectors of a prompt, b", least=1, most=1024)
    class_contexts: bool = flag(False, "a context of its own for every class (CoOp's CSC)")
    batch: int = whole(8, "records of a local step, |B|", least=1, most=10**6)
    local_steps: int = whole(1, "local steps per client and round (DP-FPL: 1)", least=1, most=10**6)
    local_epochs: int = whole(0, "local epochs per client and round; 0 = go by --local-steps", least=0, most=10**6)
    momentum: float = number(0.0, "SGD momentum over the local steps of a round", least=0, below=1)
    global_rate: float = number(0.1, "SGD learning rate of the global prompt", above=0, most=10**6)
    local_rate: float = number(0.1, "SGD learning rate of the local prompts", above=0, most=10**6)
    evaluate_every: int = whole(1, "test the clients' models every N rounds, and at the end", least=1, most=10**6)

    @property
    def several(self) -> bool:
        """Whether a client may take more than one step in a round."""
        return bool(self.local_epochs) or self.local_steps > 1
