"""What an audit's file says of the audit: its class `Facts`, read without importing it. Imports nothing heavy."""

from __future__ import annotations

from fedaudit.machinery.plugins import Plugins


class AuditFacts:
    """What holds of an audit whose file says nothing else."""

    needs: tuple[str, ...] = ()
    """What a run must have for it: "attacks", "ledger", "several" settings, "texts" or "classes" as records."""
    after: tuple[str, ...] = ()
    """The audits whose results it uses."""
    on_request: bool = False
    """Whether it runs only where --audit names it."""
    across: bool = False
    """Whether it compares all runs of a page instead of looking at one."""


AUDITS = Plugins("audit", "audits", AuditFacts)
