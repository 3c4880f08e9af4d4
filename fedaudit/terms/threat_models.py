"""Threat models: column `threat_model` of findings and tables. `sentences` describes them to readers; it is apart, so
that a change of words makes no training stale."""

from fedaudit.terms.held_models import ANSWER, ESTIMATED, FINAL, PASSED_ON, PROMPT, REBUILT, TRUE_STATE, HeldModel
from fedaudit.terms.term import Term


class ThreatModel(Term):
    """An adversary, by what it sees of a run beside everything public."""

    name: str
    sees: frozenset[str]  # its capabilities, which `attacks.base.View` checks: "broadcasts", "uploads", ...
    attacks: HeldModel  # the kind of model that it attacks of each client, where it is one each
    shared_only: bool = False  # whether it sees nothing if the method shares nothing between clients


PROMPT_USER = ThreatModel("prompt-user", sees=frozenset({"personal prompts"}), attacks=PROMPT)
RELEASED_MODEL = ThreatModel("released-model", sees=frozenset({"broadcasts"}), attacks=FINAL, shared_only=True)
PEER = ThreatModel(  # another client, with methods that send each client the parts of all others
    "peer", sees=frozenset({"broadcasts", "others' parts"}), attacks=PASSED_ON, shared_only=True
)
SERVER = ThreatModel(
    "server", sees=frozenset({"broadcasts", "others' parts", "uploads", "sums of uploads"}), attacks=REBUILT
)
ACTIVE_SERVER = ThreatModel(  # a server that sends one broadcast of its own making; for attacks that do so
    "active-server", sees=SERVER.sees | {"probes"}, attacks=ANSWER
)
CLUSTERING_SERVER = ThreatModel(  # the server of clients that compute on secret shares
    "clustering-server", sees=frozenset({"broadcasts", "sums of uploads", "distances"}), attacks=ESTIMATED
)
COLLUDING_USERS = ThreatModel(  # clients that compute on secret shares and pool those that they receive
    "colluding-users", sees=frozenset({"broadcasts", "shares"}), attacks=FINAL
)
OWNER = ThreatModel(  # holds the client's true model: the upper bound for all others
    "owner", sees=frozenset({"broadcasts", "private states"}), attacks=TRUE_STATE
)

# in reading order
THREAT_MODELS = (PROMPT_USER, RELEASED_MODEL, PEER, SERVER, ACTIVE_SERVER, CLUSTERING_SERVER, COLLUDING_USERS, OWNER)
# order of preference: pages show the records of the first one that a run has
STRONGEST = (SERVER, CLUSTERING_SERVER, PEER, PROMPT_USER, RELEASED_MODEL, COLLUDING_USERS, ACTIVE_SERVER, OWNER)
