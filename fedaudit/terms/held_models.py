"""Kinds of models that an adversary holds: column `way` of findings and tables."""

from fedaudit.terms.term import Term


class HeldModel(Term):
    """A kind of model that an adversary holds, by how it got it."""

    name: str


BASE = HeldModel("base")  # the public state before training: a control
ROUND = HeldModel("round")  # the released model of an earlier round
BEST_UTILITY = HeldModel("best utility")  # the released model of the round that served best
FINAL = HeldModel("final")  # the released model after the last round
PROMPT = HeldModel("prompt")  # a client's released prompt, the sum of its parts
PASSED_ON = HeldModel("passed on")  # the released model with the part of one client that all others are sent
EXACT = HeldModel("exact")  # a client's last message, which was its whole model
LITERAL = HeldModel("literal")  # missing parts from the message before the last one, as in FedRand's paper
NEWEST = HeldModel("newest")  # missing parts from the newest earlier message that had them
SERVER_FILL = HeldModel("server-fill")  # missing parts from the server's aggregate
REBUILT = HeldModel("rebuilt")  # computed from all messages of a client
ESTIMATED = HeldModel("estimated")  # computed from sums over clusters
ANSWER = HeldModel("probe answer")  # what a client sends back to a broadcast of the server's own making
TRUE_STATE = HeldModel("true state")  # the client's own model

REBUILDINGS = (LITERAL, NEWEST, SERVER_FILL)  # ways to rebuild a client whose last message was not its whole model
AT_THE_END = (  # models after the last round, in reading order
    FINAL, PROMPT, PASSED_ON, EXACT, LITERAL, NEWEST, SERVER_FILL, REBUILT, ESTIMATED, ANSWER, TRUE_STATE,
)  # fmt: skip
# order of preference: the first that exists for half of the clients represents the adversary
FRESHEST = (
    PROMPT, FINAL, PASSED_ON, REBUILT, ESTIMATED, EXACT, NEWEST, SERVER_FILL, LITERAL, ANSWER, TRUE_STATE,
)  # fmt: skip
