"""Threat models: column `threat_model` of findings and tables. What readers are told of them is in `sentences`, which
no training reaches."""

from __future__ import annotations

from fedaudit.terms.held_models import ESTIMATED, FINAL, PASSED_ON, PROMPT, REBUILT, TRUE_STATE, HeldModel
from fedaudit.terms.term import Term


class ThreatModel(Term):
    """An adversary, which knows the public things and what it sees of a run."""

    name: str
    sees: frozenset[str]  # capabilities, those of a view (`attacks.base`)
    attacks: HeldModel  # of each client, where it attacks one model of each
    shared_only: bool = False  # of methods that share nothing between clients it sees nothing


PROMPT_USER = ThreatModel("prompt-user", sees=frozenset({"personal prompts"}), attacks=PROMPT)
RELEASED_MODEL = ThreatModel("released-model", sees=frozenset({"broadcasts"}), attacks=FINAL, shared_only=True)
PEER = ThreatModel(  # where each client is sent the parts of all others
    "peer", sees=frozenset({"broadcasts", "others' parts"}), attacks=PASSED_ON, shared_only=True
)
SERVER = ThreatModel(
    "server", sees=frozenset({"broadcasts", "others' parts", "uploads", "sums of uploads"}), attacks=REBUILT
)
CLUSTERING_SERVER = ThreatModel(  # of clients that compute on secret shares
    "clustering-server", sees=frozenset({"broadcasts", "sums of uploads", "distances"}), attacks=ESTIMATED
)
COLLUDING_USERS = ThreatModel(  # some of the same clients, which put shares together
    "colluding-users", sees=frozenset({"broadcasts", "shares"}), attacks=FINAL
)
OWNER = ThreatModel(  # the upper bound that every other row is compared with
    "owner", sees=frozenset({"broadcasts", "private states"}), attacks=TRUE_STATE
)

# in reading order
THREAT_MODELS = (PROMPT_USER, RELEASED_MODEL, PEER, SERVER, CLUSTERING_SERVER, COLLUDING_USERS, OWNER)
# of the adversaries that there are, the first one's records are shown
STRONGEST = (SERVER, CLUSTERING_SERVER, PEER, PROMPT_USER, RELEASED_MODEL, COLLUDING_USERS, OWNER)
