"""The facts that an audit's file states about the audit, read without importing it, and how to write a new audit."""

from __future__ import annotations

from fedaudit.machinery.plugins import Plugins


class AuditFacts:
    '''Base of the class `Facts` in an audit's file; the values below hold where the file says nothing else.

    To add an audit you write one file in `audits/`, whose name is the audit's on the command line. You write there:

    1. a docstring whose first line is what `--list` shows;
    2. a frozen dataclass `Params` with your parameters (see `fedaudit.machinery.parameters`);
    3. a class `Facts` below this one, if your audit needs attacks, a ledger, or the results of other audits;
    4. a function named as the file. You get the finished training, a `Subject` (`audits/subject.py`), and your
       `Params`; you return a `Result` with findings and tables. Each finding is a frozen dataclass below `OfRun`
       (`audits/findings.py`), recognised by its `metric`.

    For example, `audits/attacked_members.py`::

        """Attacked members: how many of the records under attack were trained on."""

        class Facts(AuditFacts):
            needs = ("attacks",)

        @dataclass(frozen=True)
        class Params:
            """This audit has no parameters."""

        @dataclass(frozen=True, kw_only=True)
        class AttackedMembers(OfRun):
            metric: str
            value: int

        def attacked_members(subject: Subject, params: Params) -> Result:
            if subject.attacked is None:
                return Result()
            members = sum(subject.attacked.truth.values())
            return Result([AttackedMembers(**subject.names, metric="attacked_members", value=members)])

    To compare several runs, set `across` and write a function of `audits.run_comparison.AuditedRun`s and `Params` that
    returns a `Compared`. CONTRIBUTING.md continues with tables, sections of the page, and what a merged audit must
    have.'''

    needs: tuple[str, ...] = ()
    """Conditions on the run: "attacks", "ledger" (trained here), "coins" (trained elsewhere, with coins), "several"
    settings, "texts" or "classes" as records."""
    after: tuple[str, ...] = ()
    """Names of the audits whose results this one uses."""
    on_request: bool = False
    """Whether it runs only if --audit names it."""
    across: bool = False
    """Whether it compares all runs of a page instead of looking at one."""


AUDITS = Plugins("audit", "fedaudit.audits", AuditFacts)
