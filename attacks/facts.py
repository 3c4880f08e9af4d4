"""What an attack's file says of the attack: its class `Facts`, read without importing it. Imports nothing heavy."""

from __future__ import annotations

from fedaudit.machinery.plugins import Plugins


class AttackFacts:
    """What holds of an attack whose file says nothing else."""

    records: tuple[str, ...] = ("texts",)
    """The kinds of records that it can score: "texts", "classes"."""
    signals: tuple[tuple[str, str, str], ...] = ()
    """Its scores, the headline first: the name of each, what it is called in tables, and in sentences."""
    on_texts: tuple[str, ...] = ()
    """The scores that stand for it where records are texts, parameters in braces; by default its first."""
    needs: tuple[str, ...] = ()
    """What it must see beyond a model and public things: capabilities of `attacks.threats`."""
    shadows: bool = False
    """Whether it needs shadow models."""
    strength: int = 0
    """How strong it is known to be beforehand, by published comparisons: where all run, the strongest come first, and
    the first two have primary scores."""
    gradients: bool = False
    """Whether it needs the lengths of single records' gradients."""
    mixtures: bool = False
    """Whether it needs messages as mixtures of records (`attacks.messages.mixtures`)."""
    sequences: bool = False
    """Whether it needs what the released models of many rounds say, those of the shadows too."""
    vectors: bool = False
    """Whether it needs the attacked vectors themselves, beside gradients of single records at the shadows' mean."""
    rounds: bool = False
    """Whether it also has a score of all states that an adversary sees of one model; they are computed of texts."""
    guesses: tuple[str, ...] = ()
    """Those of its scores whose sign says member or not."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Of its scores."""
        return tuple(name for name, _, _ in cls.signals)

    @classmethod
    def headlines(cls, records: str) -> tuple[str, ...]:
        """The scores that stand for it where records are of a kind."""
        return cls.on_texts if cls.on_texts and records == "texts" else cls.names()[:1]


ATTACKS = Plugins("attack", "attacks", AttackFacts)
