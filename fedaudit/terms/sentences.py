"""Descriptions of each threat model for the terminal, findings and pages."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedaudit.terms import held_models, threat_models


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """Descriptions of one threat model."""

    short: str  # who it is, as the subject of a sentence in the singular
    summary: str  # what it sees, for `--list`
    card: str  # what it sees, as the predicate of a sentence on a page: "holds ..."
    who: Mapping[str, str]  # the subject of verdicts, by kind of model that it holds: "the server, ..."
    lacks: str = "compute nothing on secret shares"  # why methods have no such adversary: "FedAvg methods ..."


SENTENCES: Mapping[str, Sentences] = {
    threat_models.PROMPT_USER: Sentences(
        short="whoever uses a client's prompt",
        summary="whoever uses a client's released prompt: that prompt, the sum of its parts",
        card="holds one client's released prompt",
        who={held_models.PROMPT: "whoever uses a client's released prompt"},
        lacks="release no personal prompt",
    ),
    threat_models.RELEASED_MODEL: Sentences(
        short="anyone with the released model",
        summary="whoever has the released model: every broadcast, as it was sent",
        card="holds every model that the server broadcasts",
        who={
            held_models.FINAL: "whoever holds the released model",
            held_models.BEST_UTILITY: "whoever holds the model of the round that served best",
        },
    ),
    threat_models.PEER: Sentences(
        short="another client",
        summary="another client: every broadcast, and what the server passes on to it of each of the others",
        card="is another client, and is sent the parts of all others",
        who={held_models.PASSED_ON: "another client, from what all are sent of each other,"},
        lacks="pass no part of a client on to others",
    ),
    threat_models.SERVER: Sentences(
        short="the server",
        summary="every broadcast, and every client's messages (uploads) in every round",
        card="also receives every client's upload",
        who={
            held_models.REBUILT: "the server, from the messages that it receives,",
            held_models.EXACT: "the server, from messages that held a whole model,",
            held_models.LITERAL: "the server, rebuilding clients as the paper does,",
            held_models.NEWEST: "the server, rebuilding clients from their newest messages,",
            held_models.SERVER_FILL: "the server, filling what it did not receive with its aggregate,",
        },
    ),
    threat_models.ACTIVE_SERVER: Sentences(
        short="a server that acts",
        summary="a server that in one round sends a broadcast of its own making, and sees what it changes in uploads",
        card="sends one broadcast of its own making, and solves what each client sends back",
        who={held_models.ANSWER: "a server that acts, from one answer of each client,"},
        lacks="are not attacked by a server that acts",
    ),
    threat_models.CLUSTERING_SERVER: Sentences(
        short="the clustering server",
        summary="every broadcast, and of what clients share in secret sums over groups and distances to means",
        card="decodes distances and sums over clusters, and receives no upload",
        who={held_models.ESTIMATED: "the clustering server, from sums over clusters,"},
    ),
    threat_models.COLLUDING_USERS: Sentences(
        short="a group of colluding users",
        summary="every broadcast, and the shares of others' vectors that some users hold",
        card="put together the shares that they hold",
        who={held_models.FINAL: "users who put together what they hold"},
    ),
    threat_models.OWNER: Sentences(
        short="the holder of a client's true model (the upper bound)",
        summary="the client's true model after its last participation: an upper bound for all others",
        card="holds the client's true state: the upper bound",
        who={held_models.TRUE_STATE: "the owner of a client's true model (the upper bound)"},
    ),
}
