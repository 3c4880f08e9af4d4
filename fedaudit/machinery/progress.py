"""Progress of long work: bars with the time left in a terminal, a log line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

OUTSIDE_KEYS = "writes to the terminal only"

# takes a label and the number of steps; yields the function to call after each step
Stage = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
LOG_SECONDS = 10.0  # between two log lines of one stage


class Progress:
    """Prints progress to stderr, so that stdout holds results only; `quiet` prints nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._terminal = sys.stderr.isatty() and not quiet
        self._inside = ""

    def say(self, line: str) -> None:
        """Print a line to stderr unless quiet."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def require_idle(self, label: str) -> None:
        """RuntimeError if a stage is running. Call it before processes are forked: a progress bar has a thread."""
        if self._inside:
            raise RuntimeError(f"{label!r} began within stage {self._inside!r}")

    @contextmanager
    def stage(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        """Show progress of `total` steps; yields the function to call after each step. Stages must not be nested."""
        self.require_idle(label)
        self._inside = label
        try:
            with (self._bar if self._terminal else self._log)(label, total) as advance:
                yield advance
        finally:
            self._inside = ""

    @contextmanager
    def _bar(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        # in a narrow window the label is wrapped, so that no number is cut
        label_column = TextColumn("{task.description}", table_column=Column(overflow="fold"))
        columns = (label_column, BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        with Rich(*columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True)) as bars:
            task = bars.add_task(label, total=total)
            yield lambda: bars.advance(task)

    @contextmanager
    def _log(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        started = last = time.monotonic()
        done = 0
        self.say(f"{label}: {total} steps")

        def advance() -> None:
            nonlocal done, last
            done += 1
            now = time.monotonic()
            if done == total:
                self.say(f"{label}: done in {now - started:.0f} s")
            elif now - last >= LOG_SECONDS:
                last = now
                left = (now - started) / done * (total - done)
                self.say(f"{label}: {done} of {total}, about {left:.0f} s left")

        yield advance


def nothing() -> None:
    """Do nothing: an `advance` function where steps are not counted."""


@contextmanager
def unseen(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A `Stage` that shows nothing."""
    yield nothing
