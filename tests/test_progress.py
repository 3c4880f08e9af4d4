"""Progress: what is said without a terminal and in a narrow one, and that stages never nest."""

import functools
import io
import re
import sys
import threading

import pytest
import rich.console

from fedaudit.machinery import progress as progress_module
from fedaudit.machinery.progress import Progress


def test_a_stage_is_announced_and_ended_on_stderr_and_quiet_says_nothing(capsys):
    progress = Progress()
    with progress.stage("training fedrand, seed 0", 2, "round") as advance:
        advance()
        advance()
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.splitlines()[0] == "training fedrand, seed 0: round 1 of 2"
    assert out.err.splitlines()[1].startswith("training fedrand, seed 0: done in")
    with Progress(quiet=True).stage("work", 1) as advance:
        advance()
    assert capsys.readouterr().err == ""


def test_a_line_tells_what_is_done_now_and_the_time_elapsed_and_left(capsys, monkeypatch):
    seconds = iter([0.0, 30.0, 3661.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(seconds))
    with Progress().stage("attacking fedrand", 12, "client") as advance:
        advance(4)
        advance(8)
    assert capsys.readouterr().err.splitlines() == [
        "attacking fedrand: client 1 of 12", "attacking fedrand: client 5 of 12, 30 s elapsed, about 1 min 0 s left",
        "attacking fedrand: done in 1 h 1 min",
    ]  # fmt: skip


def test_one_step_has_no_number_and_a_long_one_says_that_it_goes_on(capsys, monkeypatch):
    said, reminded = [], threading.Event()

    def say(self, line):
        said.append(line)
        if "elapsed" in line:
            reminded.set()

    monkeypatch.setattr(progress_module, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(Progress, "say", say)
    with Progress().stage("writing the report", 1) as advance:
        assert reminded.wait(600)
        advance()
    assert said[:2] == ["writing the report", "writing the report, 0 s elapsed"]
    assert said[-1] == "writing the report: done in 0 s"


def test_a_stage_within_a_stage_is_refused_and_leaves_no_trace():
    progress = Progress(quiet=True)
    with pytest.raises(RuntimeError, match="'inner' began within stage 'outer'"), progress.stage("outer", 1):
        progress.stage("inner", 1).__enter__()
    with progress.stage("next", 1) as advance:
        advance()


def test_a_bar_in_a_narrow_window_breaks_its_label_and_cuts_no_time(monkeypatch):
    shown = io.StringIO()
    shown.isatty = lambda: True
    narrow = functools.partial(rich.console.Console, width=80, file=shown, force_terminal=True, color_system=None)
    monkeypatch.setattr(rich.console, "Console", lambda *, stderr: narrow())
    monkeypatch.setattr(sys, "stderr", shown)
    with Progress().stage("timing a few rounds of each method on this machine", 3, "measurement") as advance:
        for _ in range(3):
            advance()
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", shown.getvalue()))
    assert re.search(r"0:00:00 elapsed, 0:00:00 left *$", "\n".join(lines[-4:]), re.MULTILINE), lines
    assert max(map(len, lines)) <= 80
    text = " ".join("".join(line.split("━")[0] for line in lines[-4:]).split())
    assert text.endswith("on this machine: measurement 3 of 3")
    assert "…" not in shown.getvalue()
