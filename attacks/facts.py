"""Facts about attacks: the class `Facts` of each attack's file, read without importing it. Imports nothing heavy."""

from fedaudit.machinery.plugins import Plugins


class AttackFacts:
    """Base of an attack's class `Facts`; each field has the value for an attack whose file says nothing else.

    You write a new attack as one file, `attacks/NAME.py`, and register it nowhere. It has a module docstring, whose
    first line `--list` shows, and three classes: `Facts` says what your attack scores and what it needs, `Params` is a
    frozen dataclass of its flags, and a class named as the file has the method `score`. That reads the `Knowledge`
    (its docstring lists what is in it) and returns an array [n] for each name in `signals`; higher = more likely a
    member, NaN = nothing can be said. For example `attacks/surprise.py`, without imports and its empty `Params`:

        '''Surprise: members surprise a model less than its entropy predicts (after Zhang et al. 2025).'''

        class Facts(AttackFacts):
            records = ("texts", "classes")
            signals = (("surprise", "surprise", "the surprise at the record"),)

        class Surprise(Attack):
            def score(self, knowledge: Knowledge) -> dict[str, Floats]:
                signals = knowledge.answers.signals()  # arrays over all tokens of all records
                return {"surprise": knowledge.answers.mean(signals.log_prob + signals.renyi[1])}
    """

    records: tuple[str, ...] = ("texts",)
    """Kinds of records that it can score: "texts" (language models with adapters), "classes" (prompts)."""
    signals: tuple[tuple[str, str, str], ...] = ()
    """Its scores, the headline first: for each its name (NAME or NAME/...), and how tables and sentences call it."""
    on_texts: tuple[str, ...] = ()
    """Headline scores on texts, if not the first of `signals`; parameters in braces: "mink/{k}"."""
    needs: tuple[str, ...] = ()
    """Capabilities of the adversary beyond one model and public things: "uploads" or others (`ThreatModel.sees`)."""
    needs_on_texts: tuple[str, ...] = ()
    """`needs` on texts, if others."""
    shadows: bool = False
    """Whether it needs shadow models: `Knowledge.shadows`."""
    strength: int = 0
    """Rank by published comparisons: of several attacks the strongest come first, and two have primary scores."""
    gradients: bool = False
    """Whether it needs `Knowledge.gradient_norms`."""
    mixtures: bool = False
    """Whether it needs messages as mixtures of records: `Rounds.mixtures`, on texts `Knowledge.explained`."""
    of_noise: bool = False
    """Whether its first score is made for messages with Gaussian noise: by it canaries are guessed about where the
    ledger has such noise."""
    contents: bool = False
    """Whether it needs the first message solved without candidates: `Knowledge.contents`, and `embeddings`."""
    reads: tuple[str, ...] = ()
    """What a protocol on secret shares reveals (`Method.reveals`) that it reads: `Knowledge.pooled`."""
    sequences: bool = False
    """Whether it needs the released models of many rounds: `Knowledge.sequence`, and that of its shadows."""
    vectors: bool = False
    """Whether it needs the attacked parameters themselves: `Knowledge.projections`, and those of its shadows."""
    rounds: bool = False
    """Whether it has a further score, on texts, from the losses over rounds: `Knowledge.states`."""
    guesses: tuple[str, ...] = ()
    """Those of its scores that are above 0 exactly where it guesses "member"."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of its scores, the headline first."""
        return tuple(name for name, _, _ in cls.signals)

    @classmethod
    def needed(cls, records: str) -> tuple[str, ...]:
        """The capabilities beyond one model that it needs on records of a kind, "texts" or "classes"."""
        return cls.needs_on_texts if cls.needs_on_texts and records == "texts" else cls.needs

    @classmethod
    def every_round(cls, records: str) -> bool:
        """Whether it needs tensors of all rounds on records of a kind, "texts" or "classes", against any adversary's
        models."""
        return bool(cls.needed(records)) or cls.rounds or cls.sequences or cls.mixtures or cls.contents

    @classmethod
    def headlines(cls, records: str) -> tuple[str, ...]:
        """Names of the scores that represent it on records of a kind, "texts" or "classes". On texts they may be format
        strings of its parameters: "mink/{k}"."""
        return cls.on_texts if cls.on_texts and records == "texts" else cls.names()[:1]


ATTACKS = Plugins("attack", "fedaudit.attacks", AttackFacts)
