"""The test images that accuracies are of: column `split` of tables."""

from __future__ import annotations

from fedaudit.terms.term import Term


class Split(Term):
    """Test images, from the view of one client (DP-FPL, section 4.1)."""

    name: str

    @property
    def metric(self) -> str:
        """What findings call the accuracy on it."""
        return f"accuracy/{self}"


LOCAL = Split("local")  # of the client's own classes
NEIGHBOUR = Split("neighbour")  # of classes that other clients own
OVERALL = Split("overall")  # all
OWN_TEST = Split("own_test")  # those that a test set in the client's own class proportions would hold

SPLITS = (LOCAL, NEIGHBOUR, OVERALL, OWN_TEST)
