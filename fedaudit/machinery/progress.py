"""Progress of long work: bars with the time left in a terminal, a bar below the cell in a notebook, elsewhere a line
every few seconds."""

from __future__ import annotations

import html
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

OUTSIDE_KEYS = "writes to the terminal only"

ENCODING = "encoding the pictures"  # the name of this stage, whose steps are batches; a dry run measures it
LOG_SECONDS = 10.0  # between two log lines of one stage, at least
CELL_SECONDS = 0.3  # between two pictures of one stage in a notebook, at least
SILENT_SECONDS = 20.0  # after which a stage without a finished step says that it goes on


class Advance(Protocol):
    """The function that a stage yields, to call after each step, or after several at once."""

    def __call__(self, steps: int = 1) -> None: ...


class Stage(Protocol):
    """Shows the progress of long work: "WHAT: STEP 3 of 7", STEP is a noun such as "round"; of one step only "WHAT".
    Every `parts` steps that `total` and `advance` count make one that is shown."""

    def __call__(
        self, what: str, total: int, step: str = "step", parts: int = 1
    ) -> AbstractContextManager[Advance]: ...


class Progress:
    """Prints progress to stderr, so that stdout holds results only; `quiet` prints nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._terminal = sys.stderr.isatty() and not quiet
        self._notebook = in_notebook() and not quiet
        self._inside = ""

    def say(self, line: str) -> None:
        """Print a line to stderr unless quiet; in a terminal wrapped between words to its width."""
        if self._terminal:
            width = shutil.get_terminal_size().columns
            line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def require_idle(self, label: str) -> None:
        """RuntimeError if a stage is running. Call it before processes are forked: a stage has a thread."""
        if self._inside:
            raise RuntimeError(f"{label!r} began within stage {self._inside!r}")

    @contextmanager
    def stage(self, what: str, total: int, step: str = "step", parts: int = 1) -> Iterator[Advance]:
        """Show the progress of work of `total` steps, as `Stage` says. Stages must not be nested."""
        self.require_idle(what)
        self._inside = what

        def label(done: int) -> str:
            steps = total // parts
            return what if steps == 1 else f"{what}: {step} {min(done // parts + 1, steps)} of {steps}"

        try:
            show = self._bar if self._terminal else self._cell if self._notebook else self._log
            with show(what, total, label) as advance:
                yield advance
        finally:
            self._inside = ""

    @contextmanager
    def _bar(self, what: str, total: int, label: Callable[[int], str]) -> Iterator[Advance]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        # in a narrow window the label is wrapped, so that no number is cut
        label_column = TextColumn("{task.description}", table_column=Column(overflow="fold"))
        columns = (label_column, BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("elapsed,"))
        with Rich(*columns, TimeRemainingColumn(), TextColumn("left"), console=Console(stderr=True)) as bars:
            task = bars.add_task(label(0), total=total)
            done = 0

            def advance(steps: int = 1) -> None:
                nonlocal done
                done += steps
                bars.update(task, completed=done, description=label(done))

            yield advance

    @contextmanager
    def _cell(self, what: str, total: int, label: Callable[[int], str]) -> Iterator[Advance]:
        from IPython.display import DisplayHandle

        below = DisplayHandle()  # not rich's bar, which shows nothing where ipywidgets is not installed
        below.display({"text/plain": label(0)}, raw=True)

        def tell(line: str, done: int) -> None:
            bar = f'<progress value="{done}" max="{total}"></progress> {html.escape(line)}'
            below.update({"text/plain": line, "text/html": bar}, raw=True)

        with self._lines(what, total, label, tell, CELL_SECONDS) as advance:
            yield advance

    def _log(self, what: str, total: int, label: Callable[[int], str]) -> AbstractContextManager[Advance]:
        return self._lines(what, total, label, lambda line, done: self.say(line), LOG_SECONDS)

    @contextmanager
    def _lines(
        self, what: str, total: int, label: Callable[[int], str], tell: Callable[[str, int], None], seconds: float
    ) -> Iterator[Advance]:
        """Call `tell(line, done)` at the start and the end of a stage, and between them at least `seconds` apart."""
        started = last = time.monotonic()
        done = 0
        ended = threading.Event()
        tell(label(0), 0)

        def remind() -> None:
            nonlocal last
            while not ended.wait(SILENT_SECONDS):
                if (now := time.monotonic()) - last >= SILENT_SECONDS:
                    last = now
                    tell(f"{label(done)}, {in_words(now - started)} elapsed", done)

        def advance(steps: int = 1) -> None:
            nonlocal done, last
            done += steps
            now = time.monotonic()
            if done == total:
                tell(f"{what}: done in {in_words(now - started)}", done)
            elif now - last >= seconds:
                last = now
                left = (now - started) / done * (total - done)
                tell(f"{label(done)}, {in_words(now - started)} elapsed, about {in_words(left)} left", done)

        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            yield advance
        finally:
            ended.set()
            reminder.join()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. IPython is not imported for the answer."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def in_words(seconds: float) -> str:
    """ "41 s", "3 min 5 s" or "2 h 4 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def nothing(steps: int = 1) -> None:
    """Do nothing: an `advance` function where steps are not counted."""


@contextmanager
def unseen(what: str, total: int, step: str = "step", parts: int = 1) -> Iterator[Advance]:
    """A `Stage` that shows nothing."""
    yield nothing
