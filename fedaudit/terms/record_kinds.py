"""Kinds of records, relative to the attacked client: column `kind` of the tables of records."""

from fedaudit.terms.term import Term


class RecordKind(Term):
    """A kind of record, by its role in the training of the attacked client."""

    name: str
    trained: bool = False  # whether the client was trained on it
    by_coin: bool = False  # whether a fair coin decided that


MEMBER = RecordKind("member", trained=True, by_coin=True)
HELD_OUT_RECORD = RecordKind("held-out", by_coin=True)
CANARY = RecordKind("canary", trained=True, by_coin=True)
LEFT_OUT_CANARY = RecordKind("left-out canary", by_coin=True)
REFERENCE = RecordKind("reference")  # known non-members of the same distribution
OTHER_CLIENTS_RECORD = RecordKind("other client")
NOVEL_RECORD = RecordKind("novel")  # of another distribution

RECORD_KINDS = (MEMBER, HELD_OUT_RECORD, CANARY, LEFT_OUT_CANARY, REFERENCE, OTHER_CLIENTS_RECORD, NOVEL_RECORD)
CANDIDATES = (MEMBER, HELD_OUT_RECORD)
TRAINED = tuple(kind for kind in RECORD_KINDS if kind.trained)
FLIPPED = tuple(kind for kind in RECORD_KINDS if kind.by_coin)  # the records among which a record is ranked
