"""Sets of members that are compared with non-members: column `population` of findings and tables."""

from fedaudit.terms.term import Term


class Population(Term):
    """A set of members."""

    name: str
    descriptive: bool = False  # if true it has no verdict, as training decided who is in it, not only the coins


ALL_MEMBERS = Population("all members")  # of all clients that took part, under a model of the whole federation
LAST_ROUND_MEMBERS = Population("last-round members")  # of those that took part in the last round
OWN_MEMBERS = Population("own members")  # of each client, under a model of its own
CANARIES = Population("canaries")
MEMBERS_THAT_TRAINED = Population("members that trained", descriptive=True)  # those that were in some batch
MEMBERS_GIVEN_AWAY = Population("members given to others", descriptive=True)  # those that clients sent to others

WHOLE = (ALL_MEMBERS, OWN_MEMBERS)  # contain every member
