"""The suite as a library: `fedaudit.audit(method="fedrand", attack="maxrenyi")`, `fedaudit.findings("fedaudit-runs")`.

Importing this imports nothing heavy.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedaudit.command import browser
from fedaudit.command.cli import Command, read_command
from fedaudit.command.flags import OUT
from fedaudit.keywords import command_only, errors_in_python, words
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.options import Options
from fedaudit.pipeline import index
from fedaudit.pipeline.collected import collect

if TYPE_CHECKING:
    import pandas as pd

    from fedaudit.reports.section import Page


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of `audit`. In a notebook it shows the first screen of its page."""

    findings: pd.DataFrame  # a row per number, see docs/reference/audits.md
    report: Path  # its page
    crossed: tuple[str, ...]  # a sentence per finding that crossed a gate of `fail_if`

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence per doubt about the recording of the run; findings that it voids name its check in `doubt`."""
        from fedaudit.reports.doubts import stated

        return tuple(stated(self.findings.to_dict("records")))

    @property
    def summary(self) -> str:
        """The first sentences of the page: who was shown to tell members from others, and how well. InputError: the
        report is not there any more, here and below."""
        from fedaudit.reports import notebook

        return "\n".join(notebook.summary(self._page))

    @property
    def verdicts(self) -> pd.DataFrame:
        """A row per run and adversary: its `verdict`, and of the strongest score with that verdict, one named
        beforehand where there is any, the AUROC (`value`), its interval (`low`, `high`), its p-value corrected for all
        scores, and what would have been found (`detectable`, `detectable_named`). `reading` is the verdict in words."""
        from fedaudit.reports import notebook

        return notebook.verdicts(self._page)

    def open(self) -> None:
        """Show the page in the browser, as --open does."""
        browser.show(self.report, "Audit.open")

    def compare(self, other: Audit | str | Path) -> pd.DataFrame:
        """The differences of `other`, an audit or the folder of a report, less this one: a row per two settings and
        quantity, see docs/reference/audits.md.

        Settings of one name are compared, or all if no name is in both; a setting of this audit is called "A: NAME",
        of the other "B: NAME". InputError: `other` is no report, is this one, is of another task, or has nothing in
        common with this one.
        """
        from fedaudit.pipeline import two_reports

        folders = self.report, other.report if isinstance(other, Audit) else Path(other)
        with errors_in_python():
            return two_reports.differences(*(two_reports.read(folder, "compare") for folder in folders)).tables[
                "differences"
            ]

    @functools.cached_property
    def _page(self) -> Page:
        from fedaudit.pipeline import two_reports

        return two_reports.read(self.report, "report").page

    def __repr__(self) -> str:
        try:
            first = self.summary.partition("\n")[0]
        except InputError as error:  # what shows an object must not raise
            return f"Audit: {error}"
        return f"Audit: {first} Report: {self.report}"

    def _repr_html_(self) -> str | None:
        from fedaudit.reports import notebook

        try:
            return notebook.picture(self._page, self.report)
        except InputError:
            return None


def audit(**options: Unpack[Options]) -> Audit:
    """Train, attack and audit as the command does, and return findings, report and crossed gates; the options are the
    command's flags with underscores, `None` is as good as not given.

    Example: `audit(method=["fedavg", "fedrand"], rounds=5, out="runs", fail_if=["auroc.low > 0.6"])`. Lists stand for
    comma-separated values. Results on disk under `out` are reused. Parameters of plugins from elsewhere have no types:
    `audit(method="mine", **more)` with `more: dict[str, Any]`. InputError (a ValueError): an option does not exist or
    does not fit.
    """
    import pandas as pd

    from fedaudit.machinery.engines.local import refuse_import
    from fedaudit.machinery.executor import restored_settings
    from fedaudit.pipeline.run import run
    from fedaudit.reports.doubts import stated

    refuse_import()
    with errors_in_python(options):
        command = _command(options)
        if command.dry_run:
            raise InputError("dry_run: fedaudit.audit trains; fedaudit.dry_run(...) says what would run")
        progress = Progress(quiet=command.quiet)
        with restored_settings():
            outcome = run(command.plan, progress)
            command.finish(progress)
            index.write(command.plan.out, progress.say)
        crossed = tuple(sentence for gate in command.gates for sentence in gate.crossed(outcome.findings))
    for doubt in stated(outcome.findings):
        warnings.warn(f"doubt: {doubt}", stacklevel=2)
    return Audit(pd.DataFrame(outcome.findings), outcome.report, crossed)


def dry_run(**options: Unpack[Options]) -> str:
    """A few lines on what `audit` with these options would run, with its time and disk space. Nothing is trained.
    InputError as `audit`."""
    from fedaudit.command.dry_run import estimate
    from fedaudit.machinery.executor import restored_settings

    with errors_in_python(options):
        command = _command(options)
        with restored_settings():
            return estimate(command.plan, Progress(quiet=command.quiet))


def findings(out: str | Path = OUT) -> pd.DataFrame:
    """The findings of all finished reports under `out`, a row per number. A run in several reports comes once.

    Column `run` names the run of a row: `fedaudit.findings(out).merge(fedaudit.runs(out))` adds each run's
    configuration. A report that is unfinished, damaged or of another schema is left out with a warning. InputError:
    `out` is no folder, or no report in it can be read.
    """
    import pandas as pd

    with errors_in_python():
        return pd.DataFrame(collect(Path(out)).findings)


def runs(out: str | Path = OUT) -> pd.DataFrame:
    """The runs of `findings(out)`, a row each. Warnings and InputError as there.

    Columns are schema, run, method, task, seed, attacks, and every entry of the report's configuration by its path,
    such as `schedule.rounds`, `method.rho` or `versions.torch`; entries that a run does not have are missing values.
    """
    import pandas as pd

    with errors_in_python():
        return pd.DataFrame(list(collect(Path(out)).runs.values()))


def _command(options: Mapping[str, Any]) -> Command:
    """The options as a checked command. InputError: an option is wrong, or is of the command line only."""
    command = read_command(words(options))
    if command.check:
        raise InputError(command_only("check"))
    return command
