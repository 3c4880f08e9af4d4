"""What members are told from: column `nonmembers` of findings and tables."""

from __future__ import annotations

from fedaudit.terms.term import Term


class Nonmembers(Term):
    """A kind of records that nothing was trained on."""

    name: str
    words: str  # in sentences
    heading: str  # of a block of the leakage table
    remark: str = ""  # what readers must know, where they are not held-out records
    by_coin: bool = False  # only a fair coin made them so


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
