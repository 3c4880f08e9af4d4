"""The models that an adversary holds: column `way` of findings and tables."""

from __future__ import annotations

from fedaudit.terms.term import Term


class HeldModel(Term):
    """A model in an adversary's hands, by how it came there."""

    name: str


BASE = HeldModel("base")  # the public start, which learnt nothing: a control
BEFORE = HeldModel("before")  # the released model before a client's first round: a control
ROUND = HeldModel("round")  # the released model of an earlier round
BEST_UTILITY = HeldModel("best utility")  # the released model of the round that served best
FINAL = HeldModel("final")  # the released model after the last round
PROMPT = HeldModel("prompt")  # what a client releases, the sum of its parts
PASSED_ON = HeldModel("passed on")  # put together from what all are sent of a client
EXACT = HeldModel("exact")  # a client's last message held all of it
LITERAL = HeldModel(
    "literal"
)  # missing parts are its message of its second-to-last participation, as FedRand's paper says
NEWEST = HeldModel("newest")  # missing parts are those of the newest earlier message that held them
SERVER_FILL = HeldModel("server-fill")  # missing parts are the aggregate's
REBUILT = HeldModel("rebuilt")  # put together from all messages of a client
ESTIMATED = HeldModel("estimated")  # put together from sums over clusters
TRUE_STATE = HeldModel("true state")  # what the client really had

REBUILDINGS = (LITERAL, NEWEST, SERVER_FILL)  # where the last message was not all
AT_THE_END = (  # those of the end of training, in reading order
    FINAL, PROMPT, PASSED_ON, EXACT, LITERAL, NEWEST, SERVER_FILL, REBUILT, ESTIMATED, TRUE_STATE,
)  # fmt: skip
# of several that an adversary holds, the first that reaches half of the clients stands for it
FRESHEST = (
    PROMPT, FINAL, PASSED_ON, REBUILT, ESTIMATED, EXACT, NEWEST, SERVER_FILL, LITERAL, TRUE_STATE,
)  # fmt: skip
