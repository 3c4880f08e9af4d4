"""Verdicts on rows of findings: column `verdict`. `audits.verdicts` has the rules."""

from fedaudit.terms.term import Term


class Verdict(Term):
    """A verdict on one score in one comparison of members with non-members."""

    name: str


LEAK = Verdict("leak")
REVERSED = Verdict("leak, score reversed")  # members have the lower scores
CONFOUNDED = Verdict("confounded")  # something other than membership separates them
INCONCLUSIVE = Verdict("inconclusive")
NO_LEAK_FOUND = Verdict("no leak found")

DOUBTED = Verdict("doubted")  # shown instead of a verdict whose number a doubt about the recording voids

VERDICTS = (LEAK, REVERSED, CONFOUNDED, INCONCLUSIVE, NO_LEAK_FOUND)  # the gravest first
LEAKS = (LEAK, REVERSED)
