"""The suite as a library: `fedaudit.audit(method="fedrand", attack="maxrenyi")`, `fedaudit.findings("fedaudit-runs")`.

Importing this imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.command.argv import words_of
from fedaudit.command.cli import Command, read_command
from fedaudit.command.flags import OUT
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.collected import collected

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Audit:
    """What an audit found: a row per number (see docs/audits.md), and the report's page."""

    findings: pd.DataFrame
    report: Path
    crossed: tuple[str, ...]  # a sentence per finding that crossed a limit of `fail_if`


def audit(**options: Any) -> Audit:
    """Train, attack and audit as the command does; the options are its flags with underscores.

    `audit(method=["fedavg", "fedrand"], rounds=5, out="runs", fail_if=["auroc.low > 0.6"])`. Lists stand for
    comma-separated values. InputError (a ValueError): an option that does not exist or does not fit. What is on disk
    under `out` is reused.
    """
    import pandas as pd

    from fedaudit.machinery.executor import restored_threads
    from fedaudit.pipeline.run import export, run

    command = _command(options)
    if command.dry_run:
        raise InputError("dry_run: fedaudit.audit trains; fedaudit.dry_run(...) says what would run")
    progress = Progress(quiet=command.quiet)
    with restored_threads():
        outcome = run(command.plan, progress)
        export(command.plan, progress, run_to=command.export_run, adapters_to=command.export_adapters)
    crossed = tuple(sentence for gate in command.gates for sentence in gate.crossed(outcome.findings))
    return Audit(pd.DataFrame(outcome.findings), outcome.report, crossed)


def dry_run(**options: Any) -> str:
    """What `audit` with these options would run, how long and how much disk: a few lines. Nothing is trained.
    InputError as of `audit`."""
    from fedaudit.command.dry_run import estimate
    from fedaudit.machinery.executor import restored_threads

    command = _command(options)
    with restored_threads():
        return estimate(command.plan, Progress(quiet=command.quiet))


def findings(out: str | Path = OUT) -> pd.DataFrame:
    """All findings of the finished reports under `out`, a row per number; a run that several reports show comes once.

    `run` says which run a row is of; `fedaudit.findings(out).merge(fedaudit.runs(out))` has beside each what it was
    made of. A report that is not finished, was damaged or is of another schema is left out with a warning. InputError:
    `out` is no folder, or no report in it can be read.
    """
    import pandas as pd

    return pd.DataFrame(collected(Path(out)).findings)


def runs(out: str | Path = OUT) -> pd.DataFrame:
    """The runs that `findings(out)` are of, a row each. Warnings and InputError as there.

    Columns are schema, run, method, task, seed, attacks, and every entry of the report's configuration by its path, as
    `schedule.rounds`, `method.rho` or `versions.torch`; what a run does not have is missing.
    """
    import pandas as pd

    return pd.DataFrame(list(collected(Path(out)).runs.values()))


def _command(options: dict[str, Any]) -> Command:
    """InputError for what only the command can do, and for what is wrong."""
    if own := next((name for name in ("list", "help", "debug", "paper", "nightly") if name in options), None):
        raise InputError(f"{own}: is of the command only, audit.py --{own}")
    return read_command(words_of(options))
