"""Progress: what is said without a terminal and in a narrow one, and that stages never nest."""

import functools
import io
import re
import sys

import pytest
import rich.console

from fedaudit.machinery.progress import Progress


def test_a_stage_is_announced_and_ended_on_stderr(capsys):
    progress = Progress()
    with progress.stage("work", 2) as advance:
        advance()
        advance()
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.splitlines()[0] == "work: 2 steps"
    assert out.err.splitlines()[1].startswith("work: done in")


def test_quiet_says_nothing(capsys):
    with Progress(quiet=True).stage("work", 1) as advance:
        advance()
    assert capsys.readouterr().err == ""


def test_a_stage_within_a_stage_is_refused_and_leaves_no_trace():
    progress = Progress(quiet=True)
    with pytest.raises(RuntimeError, match="'inner' began within stage 'outer'"), progress.stage("outer", 1):
        progress.stage("inner", 1).__enter__()
    with progress.stage("next", 1) as advance:
        advance()


def test_a_bar_in_a_narrow_window_breaks_its_label_and_cuts_no_time(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    narrow = functools.partial(rich.console.Console, width=80, file=shown, force_terminal=True, color_system=None)
    monkeypatch.setattr(rich.console, "Console", lambda *, stderr: narrow())
    monkeypatch.setattr(sys, "stderr", shown)
    with Progress().stage("timing a few rounds of each method on this machine", 3) as advance:
        for _ in range(3):
            advance()
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", shown.getvalue()))
    said = [line for line in lines if "3/3" in line]
    assert said
    assert all(re.search(r"3/3 0:00:00 left 0:00:00 *$", line) and len(line) <= 80 for line in said)
    assert "".join(line.split("━")[0] for line in lines[-3:]).split()[-3:] == ["on", "this", "machine"]
    assert "…" not in shown.getvalue()
