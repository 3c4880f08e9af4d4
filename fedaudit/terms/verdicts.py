"""What a row of findings comes to: column `verdict`. When which is given says `audits.verdicts`."""

from __future__ import annotations

from fedaudit.terms.term import Term


class Verdict(Term):
    """What is said of a score on one comparison."""

    name: str


LEAK = Verdict("leak")
REVERSED = Verdict("leak, score reversed")  # members have the lower scores
CONFOUNDED = Verdict("confounded")  # something else than membership tells them apart
INCONCLUSIVE = Verdict("inconclusive")
NO_LEAK_FOUND = Verdict("no leak found")

VERDICTS = (LEAK, REVERSED, CONFOUNDED, INCONCLUSIVE, NO_LEAK_FOUND)  # the gravest first
LEAKS = (LEAK, REVERSED)
