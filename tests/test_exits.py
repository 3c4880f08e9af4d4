"""How the command ends: exit codes, one sentence for what nobody expected, closed streams, other encodings, signals."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fedaudit
from fedaudit.command import cli, exits
from fedaudit.machinery.engines.crew import AGAIN
from fedaudit.machinery.executor import WorkerDied
from tests.whole_runs import ROOT, Job, contents, report

AUDIT = [sys.executable, str(ROOT / "audit.py")]
LONG = 300  # seconds of a whole command that loads its libraries, beside other work
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of POSIX")


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


class TestUnexpected:
    @pytest.fixture(autouse=True)
    def logs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        return tmp_path

    @staticmethod
    def ended(error: BaseException, capsys: Any, *, debug: bool = False) -> tuple[int, str]:
        return exits.exit_code(mock.Mock(side_effect=error), debug=debug), capsys.readouterr().err

    def test_one_sentence_names_the_error_and_the_file_with_its_traceback(self, capsys: Any, logs: Path) -> None:
        code, said = self.ended(ZeroDivisionError("by\nzero"), capsys)
        assert code == 3
        (log,) = logs.iterdir()
        assert said == f"error: unexpected ZeroDivisionError: by zero; its traceback is in {log}\n"
        assert "Traceback (most recent call last)" in log.read_text()

    def test_debug_shows_the_traceback_and_writes_no_file(self, capsys: Any, logs: Path) -> None:
        code, said = self.ended(ZeroDivisionError("by zero"), capsys, debug=True)
        assert code == 3
        assert said.startswith("Traceback (most recent call last)")
        assert said.splitlines()[-1] == "error: unexpected ZeroDivisionError: by zero; its traceback is above"
        assert not list(logs.iterdir())

    def test_no_place_for_the_file(self, capsys: Any, monkeypatch: pytest.MonkeyPatch, logs: Path) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(logs / "nowhere"))
        assert self.ended(ValueError(), capsys) == (3, "error: unexpected ValueError; --debug shows its traceback\n")

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (MemoryError(), "too little memory; lower --threads"),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory: you"), "too little memory; lower --threads"),
            (OutOfMemoryError("CUDA out of memory"), "GPU has too little memory; lower --memory or --batch"),
            (RuntimeError("MPS backend out of memory (MPS allocated"), "GPU has too little memory; lower --memory"),
            (RuntimeError("Invalid buffer size: 9.75 GB"), "GPU has too little memory; lower --memory"),
            (RecursionError("maximum recursion depth exceeded"), "nested deeper"),
            (WorkerDied("a worker process died"), "a worker process died; its traceback"),
            (OSError(5, "Input/output error", "data"), "unexpected OSError: [Errno 5] Input/output error: 'data'"),
            (ValueError("\udcff\x07" + "x" * 9000), "unexpected ValueError: \\udcff\\x07xxx"),
        ],
    )
    def test_every_kind_has_its_sentence(self, error: Exception, words: str, capsys: Any) -> None:
        code, said = self.ended(error, capsys)
        assert code == 3
        assert words in said
        assert len(said.splitlines()) == 1
        assert len(said) < 1500

    def test_a_stop_that_is_no_signal(self, capsys: Any) -> None:
        assert self.ended(KeyboardInterrupt(), capsys) == (130, f"{exits.STOPPED}\n")

    def test_the_caller_keeps_its_handlers(self, capsys: Any) -> None:
        before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        assert exits.exit_code(lambda: 0, debug=False) == 0
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_command_ends_by_its_own_code(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "read_command", mock.Mock(side_effect=TypeError("nobody thought of this")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["--method", "fedavg"]) == 3
    assert cli.main(["--method", "fedavg", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def run(command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Of a shell in whose words `AUDIT` is the program."""
    words = ["bash", "-c", command.replace("AUDIT", " ".join(AUDIT))]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **more)


@POSIX
class TestStreams:
    @pytest.mark.parametrize(("words", "reader"), [("--list", "head -1"), ("--help", "(exec 0<&-)")])
    def test_nobody_reads_on(self, words: str, reader: str) -> None:
        done = run(f"AUDIT {words} | {reader}; echo ${{PIPESTATUS[0]}}")
        *read, code = done.stdout.splitlines()
        assert done.stderr == ""
        assert code in ("0", "141")  # argparse passes over what its help meets
        assert read == (["methods (--method):"] if words == "--list" else [])

    def test_a_reader_that_leaves_before_the_last_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gone = io.StringIO()
        monkeypatch.setattr(gone, "flush", mock.Mock(side_effect=BrokenPipeError))
        monkeypatch.setattr(exits, "_close", lambda _: None)
        with contextlib.redirect_stdout(gone):
            assert exits._flushed() == exits.CLOSED == 141

    @pytest.mark.parametrize("command", ["AUDIT --list >&- 2>&- <&-", "AUDIT --list >&-", "AUDIT --method nobody 2>&-"])
    def test_streams_that_are_closed(self, command: str) -> None:
        done = run(command)
        assert (done.returncode, done.stdout, done.stderr) == (2 if "nobody" in command else 0, "", "")

    def test_a_file_does_not_take_the_place_of_a_closed_stream(self, tmp_path: Path) -> None:
        done = run(
            f"cd {ROOT}; {sys.executable} -c 'import os, sys; from fedaudit.command import exits; "
            f'exits.exit_code(lambda: open("{tmp_path}/file", "w").fileno() < 3, debug=False) and os._exit(9)\' >&- 2>&-'
        )
        assert done.returncode == 0

    @pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
    def test_other_encodings(self, encoding: str) -> None:
        """Of what is said; ascii as in a locale of plain letters, in which arguments are bytes."""
        plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"} if encoding == "ascii" else {}
        environment = os.environ | plain | {"PYTHONIOENCODING": encoding}
        command = [*AUDIT, "--out", "fédé", "--method", "fédé𝕏"]
        done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
        assert done.returncode == 2
        assert done.stderr.startswith(b"error: --out: " if plain else b"error: --method f")
        assert len(done.stderr.splitlines()) == 1


TINY = Job(
    "--method fedrand --rounds 3 --clients 3 --per-round 2 --records 6 --reference 8 --novel 8 --test 4 --local-steps 4 --threads 2".split()
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports of a run that nobody stopped."""
    return report(TINY.audit(tmp_path_factory.mktemp("undisturbed")))


def of_group(group: int) -> list[int]:
    """The processes of a group that are still alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its = stat.read_text().rsplit(")", 1)[1].split()[:3]
            found += [int(stat.parent.name)] if int(its) == group and state != "Z" else []
    return found


def training(out: Path, hangup: Any = signal.SIG_DFL) -> subprocess.Popen[str]:
    """The tiny run, in a process group of its own, with the first round on disk, and SIGHUP as it is or ignored."""
    running = subprocess.Popen(
        TINY.command(out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
    )  # fmt: skip
    late = time.monotonic() + LONG
    while not list(out.glob("runs/*/round-000.safetensors")):
        assert running.poll() is None, "ended before its first round"
        assert time.monotonic() < late, "hangs before its first round"
        time.sleep(0.01)
    return running


def gone(group: int) -> bool:
    """Whether nothing is left of a process group, soon."""
    late = time.monotonic() + 10
    while of_group(group) and time.monotonic() < late:
        time.sleep(0.1)
    return not of_group(group)


# the whole command, from nothing; quick: signals of the quickest run, test_end_to_end, and TestUnexpected
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_ends_with_one_sentence_and_goes_on(self, number: int, tmp_path: Path, undisturbed: Path) -> None:
        """Sent to all processes by Ctrl-C and by a service manager, and to one as the terminal closes."""
        running = training(tmp_path)
        (os.kill if number == signal.SIGHUP else os.killpg)(running.pid, number)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 128 + number
        assert said.splitlines()[-1] == "stopped; the same command goes on from here"
        assert said.count("stopped") == 1
        assert "Traceback" not in said
        assert gone(running.pid)
        assert not list(tmp_path.rglob("*.tmp"))
        again = TINY.audit(tmp_path)
        assert contents(report(again)) == contents(undisturbed)

    @pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
    def test_a_second_one_ends_at_once(self, second: int, tmp_path: Path) -> None:
        running = training(tmp_path)
        os.killpg(running.pid, signal.SIGINT)
        os.killpg(running.pid, second)
        running.communicate(timeout=60)
        # the threads of a process may hear two signals of the same moment in either order
        assert running.returncode in {code for number in (signal.SIGINT, second) for code in (128 + number, -number)}
        assert gone(running.pid)

    def test_a_second_one_in_the_middle_of_ending(self) -> None:
        """Where leaving hangs for ever."""
        code = (
            "import os, signal, time; from fedaudit.command import exits\n"
            "def work():\n"
            "    try: os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
            "    finally: print('leaving', flush=True); time.sleep(3600)\n"
            "exits.exit_code(work, debug=False)\n"
        )
        running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert running.stdout is not None
        assert running.stdout.readline() == "leaving\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == -signal.SIGINT

    def test_what_is_ignored_stays_ignored(self, tmp_path: Path) -> None:
        """As under nohup."""
        running = training(tmp_path, hangup=signal.SIG_IGN)
        os.killpg(running.pid, signal.SIGHUP)
        running.communicate(timeout=LONG)
        assert running.returncode == 0

    def test_a_killed_worker_is_no_crossed_gate(self, tmp_path: Path) -> None:
        running = training(tmp_path)
        worker = next(pid for pid in of_group(running.pid) if pid != running.pid)
        os.kill(worker, signal.SIGKILL)
        _, said = running.communicate(timeout=LONG)
        assert running.returncode == 0
        assert said.count(AGAIN) == 1
        assert gone(running.pid)


@pytest.mark.slow  # workers ended; quick: test_the_caller_keeps_its_handlers
def test_the_library_leaves_signals_alone_and_ends_its_workers(tmp_path: Path) -> None:
    """A KeyboardInterrupt of the caller's, in a process with a handler and a child of its own."""
    names = [word.removeprefix("--").replace("-", "_") for word in TINY.words[::2]]
    options = dict(zip(names, TINY.words[1::2], strict=True))
    code = (
        "import multiprocessing, os, signal, subprocess, sys, threading, time; from pathlib import Path; import fedaudit\n"
        "handler = lambda *_: sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, handler)\n"
        "own = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)); own.start()\n"
        f"out = Path({str(tmp_path)!r})\n"
        "def interrupt():\n"
        "    while not list(out.glob('runs/*/round-000.safetensors')): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        f"try: fedaudit.audit(out=out, **{options!r})\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "assert signal.getsignal(signal.SIGTERM) is handler\n"
        "assert multiprocessing.active_children() == [own]\n"
        "own.kill()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"


@pytest.mark.parametrize("call", [fedaudit.audit, fedaudit.dry_run])
@pytest.mark.parametrize("name", ["list", "help", "debug"])
def test_what_only_the_command_can_do(call: Callable[..., Any], name: str) -> None:
    with pytest.raises(fedaudit.InputError, match=rf"{name}: is of the command only, audit.py --{name}"):
        call(**{name: True})


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a library's exit cannot be heard")
@pytest.mark.parametrize("way", ["ctypes.CDLL(None).exit(1)", "os._exit(1)"])
def test_a_library_that_ends_the_process_crosses_no_gate(way: str) -> None:
    """exit(1) of C, as OpenBLAS calls it without memory; Python's own end passes by."""
    code = f"import ctypes, os; from fedaudit.command.exits import hear_libraries; hear_libraries(); {way}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    heard = "exit(1)" in way and "_exit" not in way
    assert done.returncode == (exits.BROKEN if heard else 1)
    assert ("error: a library ended this process" in done.stderr) == heard


@pytest.mark.skipif(os.name != "posix", reason="elsewhere there is no fork")
@pytest.mark.parametrize(
    ("way", "code", "said"),
    [
        ("os._exit(1)", exits.BROKEN, "error: a library ended"), ("exits.end(1)", 1, ""), ("exits.end(0)", 0, ""),
        ("os.kill(os.getpid(), 9)", 137, ""), ("os.kill(os.getppid(), 15); time.sleep(60)", 143, exits.STOPPED),
        ("exits.guard(); exits.end(4)", 4, ""), ("ctypes.CDLL(None).exit(1)", exits.BROKEN, "error: a library ended"),
    ],
)  # fmt: skip
def test_a_guarded_child_says_how_it_ends(way: str, code: int, said: str) -> None:
    """_Exit(1) of C, as Ray calls it where its node is gone, is 3; all else is what it was."""
    script = (
        "import ctypes, os, time; from fedaudit.command import exits; exits.hear_libraries()\n"
        f"def work():\n    exits.guard()\n    {way}\n"
        "exits.end(exits.exit_code(work, debug=False))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=LONG)
    assert (done.returncode, done.stderr.startswith(said), bool(done.stderr)) == (code, True, bool(said))
    assert done.stderr.count("error: a library ended") <= 1


def test_every_command_with_ray_is_guarded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "night.yaml").write_text("{matrix: [{method: fedavg, engine: ray}]}")
    commands = (["--engine", "ray"], ["--nightly", str(tmp_path / "night.yaml")], ["--paper", "all", "--engine", "ray"])
    for words in commands:
        with mock.patch.object(exits, "guard", side_effect=fedaudit.InputError("guarded")):
            assert cli.main([*words, "--out", str(tmp_path)]) == exits.MENDABLE, words
        assert "guarded" in capsys.readouterr().err, words


def test_a_process_that_is_not_the_command_is_not_forked() -> None:
    exits.guard()
    assert not exits._told
