"""Sets of test images on which accuracy is measured: column `split` of tables."""

from fedaudit.terms.term import Term


class Split(Term):
    """A set of test images, relative to one client (DP-FPL, section 4.1)."""

    name: str

    @property
    def metric(self) -> str:
        """Name of the accuracy on it in findings: "accuracy/local"."""
        return f"accuracy/{self}"


LOCAL = Split("local")  # images of the client's own classes
NEIGHBOUR = Split("neighbour")  # images of other clients' classes
OVERALL = Split("overall")  # all images
OWN_TEST = Split("own_test")  # images in the proportions of classes in the client's own data

SPLITS = (LOCAL, NEIGHBOUR, OVERALL, OWN_TEST)
