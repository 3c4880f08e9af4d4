"""Names in a run's files: of clients, which are their numbers or what a framework calls them, as 64-bit node ids; and
of tensors, without what wrapped modules in the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from fedaudit.external.schema import CLIENT, Kind

# what wraps modules in a training; names of their tensors contain these
WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "module", "_module", "_fsdp_wrapped_module"}


def unwrapped(name: str) -> str:
    """A tensor's or module's name without the wrappers of its training."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


@dataclass(frozen=True)
class ClientNames:
    """The clients' names, in the order of their numbers; without `names` clients go by their numbers themselves."""

    names: tuple[str, ...] = ()
    numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {name: number for number, name in enumerate(self.names)})

    @property
    def example(self) -> str:
        return self.names[0] if self.names else "03"

    @property
    def kind(self) -> Kind:
        """The values that a client's name may have in JSON: texts, or whole numbers that read as one."""
        if not self.names:
            return CLIENT
        return Kind(
            f"a client of run.json, as {self.names[0]}",
            lambda v: isinstance(v, (str, int)) and not isinstance(v, bool) and str(v) in self.numbers,
        )

    def number(self, name: str | int) -> int | None:
        """A client's number, by its name or by that in the names of its files; None if there is no such client."""
        if self.names:
            return self.numbers.get(str(name), self.numbers.get(unquote(str(name))))
        return int(name) if str(name).isascii() and str(name).isdecimal() else None


NUMBERED = ClientNames()
