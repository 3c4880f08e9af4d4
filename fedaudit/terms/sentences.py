"""What terminal, findings and pages say of each threat model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedaudit.terms.held_models import (
    BEST_UTILITY,
    ESTIMATED,
    EXACT,
    FINAL,
    LITERAL,
    NEWEST,
    PASSED_ON,
    PROMPT,
    REBUILT,
    SERVER_FILL,
    TRUE_STATE,
)
from fedaudit.terms.threat_models import (
    CLUSTERING_SERVER,
    COLLUDING_USERS,
    OWNER,
    PEER,
    PROMPT_USER,
    RELEASED_MODEL,
    SERVER,
)


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """Of one threat model."""

    summary: str  # what it sees, for `--list`
    card: str  # the same on its card of a page, after its name
    who: Mapping[str, str]  # in a verdict, who can tell members: by the model that it holds
    lacks: str = "compute nothing on secret shares"  # what methods do not do that have no such adversary


SAID: Mapping[str, Sentences] = {
    PROMPT_USER: Sentences(
        summary="whoever uses a client's released prompt: that prompt, the sum of its parts",
        card="holds one client's released prompt",
        who={PROMPT: "whoever uses a client's released prompt"},
        lacks="release no personal prompt",
    ),
    RELEASED_MODEL: Sentences(
        summary="whoever has the released model: every broadcast, as it was sent",
        card="holds every model that the server broadcasts",
        who={
            FINAL: "whoever holds the released model",
            BEST_UTILITY: "whoever holds the model of the round that served best",
        },
    ),
    PEER: Sentences(
        summary="another client: every broadcast, and what the server passes on to it of each of the others",
        card="is another client, and is sent the parts of all others",
        who={PASSED_ON: "another client, from what all are sent of each other,"},
        lacks="pass no part of a client on to others",
    ),
    SERVER: Sentences(
        summary="every broadcast, and every client's messages (uploads) in every round",
        card="also receives every client's upload",
        who={
            REBUILT: "the server, from the messages that it receives,",
            EXACT: "the server, from messages that held a whole model,",
            LITERAL: "the server, rebuilding clients as the paper does,",
            NEWEST: "the server, rebuilding clients from their newest messages,",
            SERVER_FILL: "the server, filling what it did not receive with its aggregate,",
        },
    ),
    CLUSTERING_SERVER: Sentences(
        summary="every broadcast, and of what clients share in secret sums over groups and distances to means",
        card="decodes distances and sums over clusters, and receives no upload",
        who={ESTIMATED: "the clustering server, from sums over clusters,"},
    ),
    COLLUDING_USERS: Sentences(
        summary="every broadcast, and the shares of others' vectors that some users hold",
        card="put together the shares that they hold",
        who={FINAL: "users who put together what they hold"},
    ),
    OWNER: Sentences(
        summary="the client's true model after its last participation: an upper bound for all others",
        card="holds the client's true state: the upper bound",
        who={TRUE_STATE: "the owner of a client's true model (the upper bound)"},
    ),
}
