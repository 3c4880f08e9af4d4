"""Progress: what is said without a terminal, and that stages never nest."""

import pytest

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
