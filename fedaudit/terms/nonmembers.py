"""Kinds of records with which members are compared: column `nonmembers` of findings and tables."""

from fedaudit.terms.term import Term


class Nonmembers(Term):
    """A kind of records on which the attacked model was not trained."""

    name: str
    words: str  # its name in sentences
    heading: str  # its name as a heading in the leakage table
    remark: str = ""  # caution for readers; "" for held-out records
    by_coin: bool = False  # whether a fair coin before training decided that they are no members


HELD_OUT = Nonmembers(
    "held-out", words="held-out records of the same clients", heading="held-out records", by_coin=True
)
NOVEL_OBJECTS = Nonmembers(
    "novel objects",
    words="records with novel objects",
    heading="novel objects",
    remark="the papers' own split: another distribution, read its controls",
)
OTHER_CLIENTS = Nonmembers(
    "other clients",
    words="other clients' records",
    heading="records of other clients",
    remark="within class where clients share any, else the class tells them apart: read its controls",
)
LEFT_OUT_CANARIES = Nonmembers(
    "left-out canaries",
    words="canaries that a coin left out",
    heading="left-out canaries",
    remark="a fair coin before training said which were inserted",
    by_coin=True,
)

NONMEMBERS = (HELD_OUT, NOVEL_OBJECTS, OTHER_CLIENTS, LEFT_OUT_CANARIES)
BY_COIN = tuple(kind for kind in NONMEMBERS if kind.by_coin)
