"""Folders on disk under kills, bit flips, full disks and several processes.

The subprocesses import this module, so heavy imports stay inside the tests that need them.
"""

import builtins
import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fedaudit.machinery import atomic, manifest, store
from fedaudit.machinery.errors import InputError, nearest
from fedaudit.machinery.store import Damaged, Folder, Missing, claim, key_of

ROOT = Path(__file__).parents[1]
ROUNDS = 2


def quiet(_: object) -> None:
    pass


def work(path: Path, say: Callable[[str], None] = quiet) -> None:
    """A run that resumes: files, a file in a folder, and a name that is rewritten."""
    folder = claim(path)
    with folder.lock(say):
        for r in range(ROUNDS):
            if not folder.usable(f"round-{r}.json", say):
                folder.write_json(f"round-{r}.json", {"round": r, "loss": 1 / (r + 1)})
        if not folder.usable("figures/roc.svg", say):
            folder.write("figures/roc.svg", b"<svg/>")
        folder.write("latest", b"first")
        folder.write("latest", b"second")


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """`code` in another process, with this module as `t` and its arguments in `sys.argv`."""
    command = [sys.executable, "-c", f"import sys, tests.test_store as t\n{code}", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate("\n", timeout=30)
    assert process.returncode == 0
    return out


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """What an uninterrupted run leaves."""
    work(tmp_path / "whole")
    found = contents(tmp_path / "whole")
    assert sorted(found) == [".lock", "figures/roc.svg", "latest", "manifest.json", "round-0.json", "round-1.json"]
    return found


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that never cuts the power needs no fsync, and saves its milliseconds."""
    monkeypatch.setattr(os, "fsync", quiet)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return claim(tmp_path / "run")


def crash_everywhere(root: Path, when: str) -> None:
    """Fork a run for each of its file operations, which dies by SIGKILL before, in the middle of or after it."""
    for point in range(1000):
        child = os.fork()
        if child == 0:
            crash_at(point, when)
            work(root / str(point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


def crash_at(point: int, when: str) -> None:
    """Kill this process at its file operation number `point`; "half" leaves a file half written where one is synced."""
    calls = iter(range(10**6))

    def trapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            here = next(calls) == point
            if here and when == "half" and function is quiet:
                with contextlib.suppress(OSError):  # a folder is synced, too
                    os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
            if here and when != "after":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*args, **kwargs)
            finally:
                if here:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for module in (store, atomic):
        vars(module)["open"] = trapped(builtins.open)
    vars(os).update(fsync=trapped(quiet), replace=trapped(os.replace), open=trapped(os.open), unlink=trapped(os.unlink))


@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_a_kill_at_any_file_operation_resumes(tmp_path: Path, whole: Any, no_sync: None, when: str) -> None:
    finish(start("t.crash_everywhere(t.Path(sys.argv[1]), sys.argv[2])", tmp_path / "killed", when))
    killed = sorted((tmp_path / "killed").iterdir())
    assert len(killed) > 40
    left_half_done = 0
    for path in killed:
        assert all(map(Folder(path).intact, Folder(path).names()))
        left_half_done += any(".fedaudit-tmp" in name for name in contents(path))
        said: list[str] = []
        work(path, said.append)
        assert contents(path) == whole
        assert not said  # a kill damages nothing
    assert left_half_done > 10


def delete_everywhere(root: Path) -> None:
    """A run for each moment at which it opens, lists, renames or removes something; its folder is deleted there."""
    paths: list[Path] = []
    countdown = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not paths or event not in ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir"):
            return
        if not str(arguments[0]).startswith(str(paths[0])):
            return
        countdown[0] -= 1
        if countdown[0] < 0:
            shutil.rmtree(paths.pop(), ignore_errors=True)

    sys.addaudithook(hook)
    for point in range(1000):
        path, countdown[0] = root / str(point), point
        paths[:] = [path]
        try:
            work(path)
            ended = "whole" if Folder(path).read_json("round-0.json") else "empty"
        except (Damaged, Missing, InputError) as error:
            ended = type(error).__name__
        if paths:
            return
        print(ended, flush=True)


def test_a_folder_deleted_at_any_moment_is_said_to_be(tmp_path: Path, whole: dict[str, bytes]) -> None:
    ends = finish(start("t.delete_everywhere(t.Path(sys.argv[1]))", tmp_path / "deleted")).split()
    assert len(ends) > 50
    assert ends.count("InputError") > 20
    for path in (tmp_path / "deleted").iterdir():
        work(path)
        assert contents(path) == whole


def test_tensors_deleted_after_their_hash_was_looked_at_are_missing(folder: Folder, monkeypatch: Any) -> None:
    import torch

    folder.write_tensors("a.safetensors", {"x": torch.ones(4)})
    path = folder._checked("a.safetensors")
    monkeypatch.setattr(Folder, "_checked", lambda self, name: shutil.rmtree(self.path) or path)
    with pytest.raises(Damaged, match=r"a\.safetensors is missing"):
        folder.read_tensors("a.safetensors")


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda path: flip(path, 0), "damaged"),
        (truncate, "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (Path.unlink, "missing"),
    ],
)
def test_a_damaged_or_missing_file_is_named_and_made_usable_by_computing_it_again(
    folder: Folder, harm: Callable[[Path], None], what: str
) -> None:
    folder.write("a.bin", b"right")
    folder.write("b.bin", b"other")
    harm(folder.path / "a.bin")
    reason = r" \(its SHA-256 is not the one in manifest\.json\)" * (what == "damaged")
    with pytest.raises(Damaged, match=rf"a\.bin is {what}{reason}$") as caught:
        folder.read("a.bin")
    assert caught.value.path == folder.path / "a.bin"
    assert not folder.intact("a.bin")
    assert ("a.bin" in folder) == (what == "damaged")

    said: list[str] = []
    assert not folder.usable("a.bin", said.append)
    assert not folder.usable("a.bin", said.append)
    assert said == [f"{folder.path / 'a.bin'} is {what}; computing it again"]
    assert not (folder.path / "a.bin").exists()
    assert folder.names() == ["b.bin"]
    folder.write("a.bin", b"right")
    assert folder.usable("a.bin", pytest.fail)
    assert folder.read("a.bin") == b"right"


def test_an_unreadable_file_is_named(folder: Folder) -> None:
    folder.write("a.bin", b"right")
    (folder.path / "a.bin").unlink()
    (folder.path / "a.bin").mkdir()
    with pytest.raises(Damaged, match=r"a\.bin cannot be read \(Is a directory\)$"):
        folder.read("a.bin")
    assert not folder.intact("a.bin")


def test_damaged_survives_the_way_out_of_a_worker() -> None:
    lost = pickle.loads(pickle.dumps(Missing(Path("x"))))
    assert (lost.path, str(lost)) == (Path("x"), "x is not there: manifest.json does not list it")
    error = pickle.loads(pickle.dumps(Damaged(Path("x"), "is missing")))
    assert (str(error), error.path) == ("x is missing", Path("x"))


def test_a_file_that_the_manifest_does_not_list_is_absent(folder: Folder) -> None:
    folder.write("a.bin", b"right")
    (folder.path / "b.bin").write_bytes(b"between file and manifest")
    assert "b.bin" not in folder
    assert not folder.intact("b.bin")
    assert not folder.usable("b.bin", pytest.fail)
    assert folder.names() == ["a.bin"]
    with pytest.raises(FileNotFoundError, match=r"b\.bin is not there: manifest\.json does not list it"):
        folder.read("b.bin")
    folder.write("b.bin", b"complete")
    assert folder.read("b.bin") == b"complete"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(
            ("manifest.json", text)
            for text in [b"", b"{", b"\xff\xfe", b"[1]", b"3", b'["a.bin"]', b'{"../a.bin": "00"}']
        ),
        *(
            (".manifest", b"%b\n" % text)
            for text in [b"{", b"\xff", b'["../a", "00"]', b'["a.bin"]', b'[["a"], "00"]', b"3"]
        ),
    ],
)
def test_with_a_damaged_manifest_or_journal_every_file_is_absent(folder: Folder, file: str, text: bytes) -> None:
    folder.write("a.bin", b"right")
    (folder.path / file).write_bytes(text)
    assert folder.names() == []
    assert "a.bin" not in folder
    with pytest.raises(Damaged, match=r"manifest\.json is damaged"):
        folder.read("a.bin")
    said: list[str] = []
    with folder.lock(said.append):
        assert not folder.usable("a.bin", said.append)
        folder.write("a.bin", b"right")
    assert said == [f"{folder.path / 'manifest.json'} is damaged; computing again what the folder holds"]
    assert sorted(contents(folder.path)) == [".lock", "a.bin", "manifest.json"]
    assert folder.read("a.bin") == b"right"


def test_a_flipped_bit_anywhere_is_repaired(tmp_path: Path, whole: dict[str, bytes], no_sync: None) -> None:
    path = tmp_path / "whole"
    for name in set(whole) - {".lock"}:
        for position in range(0, len(whole[name]), 5):
            flip(path / name, position)
            said: list[str] = []
            work(path, said.append)
            assert contents(path) == whole, (name, position)
            if name not in {"manifest.json", "latest"}:  # a name that is always rewritten is not asked for
                assert said == [f"{path / name} is damaged; computing it again"]


def test_a_hash_is_computed_once_until_the_file_changes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a.bin", b"right")
    os.utime(folder.path / "a.bin", ns=(0, 10**18))
    monkeypatch.setattr(hashlib, "file_digest", hashed := Mock(wraps=hashlib.file_digest))
    assert folder.read("a.bin") == Folder(folder.path).read("a.bin") == b"right"
    assert folder.intact("a.bin")
    assert hashed.call_count == 1
    flip(folder.path / "a.bin", 0)
    assert not folder.intact("a.bin")
    assert hashed.call_count == 2


def test_a_change_within_the_same_tick_of_the_clock_is_seen(folder: Folder) -> None:
    folder.write("a.bin", b"right")
    before = (folder.path / "a.bin").stat()
    assert folder.intact("a.bin")
    flip(folder.path / "a.bin", 0)
    os.utime(folder.path / "a.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not folder.intact("a.bin")


def test_a_manifest_is_parsed_once_under_the_lock(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest.json, "loads", parsed := Mock(wraps=json.loads))
    names = [f"{i}.bin" for i in range(100)]
    with folder.lock(quiet):
        parsed.reset_mock()
        for name in names:
            folder.write(name, name.encode())
        assert all(folder.usable(name, pytest.fail) for name in names)
        assert all(folder.read(name) == name.encode() for name in names)
    assert parsed.call_count <= 2  # a manifest that is not there
    with folder.lock(quiet):
        assert all(folder.usable(name, pytest.fail) for name in names)
    assert parsed.call_count <= 3
    for path in (folder.path / "manifest.json", *folder.path.glob("*.bin")):
        os.utime(path, ns=(0, 10**18))
    parsed.reset_mock()
    assert all(map(folder.intact, names))  # without the lock, as long as it does not change
    assert not folder.damaged
    assert parsed.call_count == 1


def test_under_the_lock_a_change_is_seen_by_others_and_leaves_no_trace(folder: Folder, tmp_path: Path) -> None:
    code = "folder = t.Folder(t.Path(sys.argv[1])); print(folder.names(), folder.damaged)"
    with folder.lock(quiet):
        folder.write("a.bin", b"first")
        folder.write("b.bin", b"b")
        folder.write("a.bin", b"second")
        folder.remove("b.bin")
        assert (folder.path / ".manifest").read_bytes().count(b"\n") == 5
        assert not (folder.path / "manifest.json").exists()
        assert finish(start(code, folder.path)) == "['a.bin'] False\n"
    claim(tmp_path / "whole").write("a.bin", b"second")
    assert contents(folder.path) == contents(tmp_path / "whole")


def test_what_is_there_is_not_written_again(folder: Folder) -> None:
    folder.write("a.bin", b"right")
    before = {name: (folder.path / name).stat() for name in ["a.bin", "manifest.json"]}
    folder.write("a.bin", b"right")
    assert {name: (folder.path / name).stat() for name in before} == before
    flip(folder.path / "a.bin", 0)
    folder.write("a.bin", b"right")  # a damaged file is
    assert folder.read("a.bin") == b"right"
    folder.write("a.bin", b"new")
    assert folder.read("a.bin") == b"new"


def test_the_manifest_holds_sha256_and_no_order(tmp_path: Path) -> None:
    for path, names in [(tmp_path / "1", "abc"), (tmp_path / "2", "cab")]:
        for name in names:
            claim(path).write(name, name.encode())
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    # printf a | sha256sum
    a = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    assert json.loads((tmp_path / "1" / "manifest.json").read_text())["a"] == a


def test_remove(folder: Folder) -> None:
    folder.write("figures/a.svg", b"a")
    folder.write("b", b"b")
    folder.remove("figures/a.svg")
    folder.remove("never")
    assert folder.names() == ["b"]
    assert sorted(contents(folder.path)) == [".lock", "b", "manifest.json"]


OUTSIDE = ["", ".", "..", "../a", "a/..", "a/../b", "/a", "a/", "a//b", "a/b/c", "a\\b", "c:x", "a\n"]


@pytest.mark.parametrize("name", [*OUTSIDE, ".hidden", "a/.b", "manifest.json"])
def test_names_that_are_not_the_callers_are_refused(folder: Folder, name: str) -> None:
    write = functools.partial(folder.write, data=b"")
    for use in (folder.read, folder.intact, folder.remove, folder.__contains__, write):
        with pytest.raises(ValueError, match=r"^file name .* is not valid"):
            use(name)
    assert contents(folder.path.parent) == {}


@contextlib.contextmanager
def full(number: int, *args: Any) -> Iterator[SimpleNamespace]:
    """A file on a full disk: half of what is written fits."""

    def write(data: bytes) -> None:
        file.write(data[: len(data) // 2])
        raise OSError(number, os.strerror(number))

    with builtins.open(*args) as file:
        yield SimpleNamespace(write=write)


def failing(number: int, *, after: int) -> Mock:
    return Mock(side_effect=[*[None] * after, OSError(number, os.strerror(number)), *[None] * 99])


REFUSING: dict[str, Callable[[int], tuple[Any, str, Any]]] = {  # a module, a name of it, and what stands in its place
    "write": lambda number: (atomic, "open", functools.partial(full, number)),
    "open": lambda number: (atomic, "open", failing(number, after=0)),
    "sync": lambda number: (os, "fsync", failing(number, after=0)),
    "sync of the folder": lambda number: (os, "fsync", failing(number, after=1)),
    "replace": lambda number: (os, "replace", failing(number, after=0)),
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("what", REFUSING)
def test_a_full_or_read_only_disk_leaves_no_half_file(folder: Folder, monkeypatch: Any, what: str, number: int) -> None:
    folder.write("a.bin", b"kept")
    before = contents(folder.path)
    with monkeypatch.context() as patch:
        patch.setattr(*REFUSING[what](number), raising=False)
        with pytest.raises(InputError) as caught:
            folder.write("b.bin", b"new" * 1000)
    reason = os.strerror(number)
    assert str(caught.value) == f"cannot write {folder.path / 'b.bin'}: {reason}; choose another folder with --out"
    left = contents(folder.path)
    assert left.pop("b.bin", b"new" * 1000) == b"new" * 1000  # whole, though not listed, or not there
    assert left == before
    assert "b.bin" not in folder
    folder.write("b.bin", b"new" * 1000)
    assert folder.names() == ["a.bin", "b.bin"]


def test_a_disk_that_fills_up_while_rewriting_leaves_nothing_damaged(folder: Folder, monkeypatch: Any) -> None:
    folder.write("a.bin", b"old")
    for after in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(errno.ENOSPC, after=after))
            with pytest.raises(InputError):
                folder.write("a.bin", b"new")
        assert all(map(folder.intact, folder.names()))
        assert not [name for name in contents(folder.path) if "tmp" in name]
        folder.write("a.bin", b"old")


def test_a_lock_on_a_read_only_disk_is_refused(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", failing(errno.EROFS, after=0))
    with pytest.raises(InputError, match=r"cannot write .*: Read-only file system; choose"), folder.lock(quiet):
        pytest.fail("inside the lock")


def test_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert claim(tmp_path / "a" / "b") == Folder(tmp_path / "a" / "b")
    assert claim(tmp_path / "a" / "b").names() == []
    (tmp_path / "file").write_text("")
    for path in [tmp_path / "file", tmp_path / "file" / "below"]:
        with pytest.raises(InputError, match=f"^{tmp_path / 'file'} is a file where a folder is needed"):
            claim(path)
    monkeypatch.setattr(os, "mkdir", failing(errno.EROFS, after=0))
    with pytest.raises(InputError, match=f"^cannot write {tmp_path / 'c'}: Read-only file system; choose another"):
        claim(tmp_path / "c")


def append(path: Path, prefix: str, outer: bool) -> None:
    folder = Folder(path)
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(20):
        with folder.lock(quiet) if outer else contextlib.nullcontext():
            folder.write(f"{prefix}{i}", prefix.encode())


@pytest.mark.parametrize("outer", [True, False])
def test_two_processes_lose_no_entries(folder: Folder, outer: bool) -> None:
    processes: Any = [start(f"t.append(t.Path(sys.argv[1]), sys.argv[2], {outer})", folder.path, x) for x in "ab"]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        finish(process)
    assert folder.names() == sorted(f"{x}{i}" for x in "ab" for i in range(20))
    assert all(map(folder.intact, folder.names()))


def hold(path: Path) -> None:
    folder = Folder(path)
    with folder.lock(quiet):
        folder.write("a.bin", b"by the other process")
        (path / ".a.bin.1-00.fedaudit-tmp").write_bytes(b"half")
        print("locked", flush=True)
        sys.stdin.readline()


def test_a_second_process_says_once_that_it_waits_and_goes_on_after_a_kill(folder: Folder) -> None:
    holder: Any = start("t.hold(t.Path(sys.argv[1]))", folder.path)
    assert holder.stdout.readline() == "locked\n"
    say = Mock(side_effect=lambda _: holder.kill())
    with folder.lock(say):
        assert folder.read("a.bin") == b"by the other process"
        assert sorted(contents(folder.path)) == [".lock", "a.bin", "manifest.json"]
    holder.communicate()
    say.assert_called_once_with(f"another process works on {folder.path}; waiting")


def test_temporary_files_of_a_folder_below_with_its_own_lock_are_left_alone(folder: Folder) -> None:
    claim(folder.path / "inner").write("a", b"a")
    other = folder.path / "inner" / ".b.1-00.fedaudit-tmp"
    other.write_bytes(b"being written")
    with folder.lock(quiet):
        assert other.exists()


def test_the_lock_may_be_nested_and_ends_with_the_outermost(folder: Folder) -> None:
    def free() -> bool:
        with open(folder.path / ".lock") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    with folder.lock(quiet):
        with Folder(folder.path).lock(pytest.fail), folder.lock(pytest.fail):
            folder.write("a", b"a")
        assert not free()
    assert free()
    with pytest.raises(KeyError), folder.lock(quiet):
        raise KeyError
    assert free()


def fork_under_lock(path: Path) -> None:
    folder = Folder(path)
    with folder.lock(quiet):
        child = os.fork()
        if child == 0:
            try:
                folder.write("a", b"a")
                os.write(1, b"written\n")
            except RuntimeError:
                os.write(1, b"refused\n")  # in one piece: two processes print
            sys.stdin.readline()
            os._exit(0)
    os.write(1, b"released\n")
    os.waitpid(child, 0)


def test_a_forked_worker_can_neither_write_nor_keep_the_lock(folder: Folder) -> None:
    process: Any = start("t.fork_under_lock(t.Path(sys.argv[1]))", folder.path)
    assert {process.stdout.readline(), process.stdout.readline()} == {"refused\n", "released\n"}
    with folder.lock(pytest.fail):
        assert folder.names() == []
    finish(process)


def test_importing_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'torch', 'pandas', 'pyarrow', 'safetensors'}"
    code = f"import sys, fedaudit.machinery.store, fedaudit.machinery.errors; print(sorted({heavy} & set(sys.modules)))"
    assert finish(start(code)) == "[]\n"


def test_some_tensors_are_read_by_the_beginning_of_their_names(folder: Folder) -> None:
    import torch

    tensors = {"upload/1/x": torch.ones(2), "upload/11/x": torch.zeros(2), "x": torch.ones(1)}
    folder.write_tensors("a.safetensors", tensors)
    found = folder.read_tensors("a.safetensors", "upload/1/")
    assert {name: t.tolist() for name, t in found.items()} == {"x": [1.0, 1.0]}
    assert folder.read_tensors("a.safetensors", "private/") == {}
    (folder.path / "a.safetensors").write_bytes(b"other")
    with pytest.raises(Damaged):
        folder.read_tensors("a.safetensors", "upload/1/")


def test_tensors_come_back_and_are_the_same_bytes_in_any_order(folder: Folder) -> None:
    import torch
    from safetensors import safe_open

    stack = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "row": stack[1],
        "same memory": stack[1],
        "transposed": stack.T,
        "expanded": torch.ones(1).expand(3),
        "scalar": torch.tensor(math.pi, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "half": torch.tensor([1.5, math.inf], dtype=torch.bfloat16),
        "counts": torch.tensor([1, -2]),
        "mask": torch.tensor([True, False]),
        "ünïcode/parameter": torch.nn.Parameter(torch.ones(2)),
    }
    metadata = {key: key * 2 for key in "zyxwvutsr"}
    folder.write_tensors("a.safetensors", tensors, metadata)
    # the library orders metadata at random, so that several tries would differ
    for _ in range(3):
        tensors, metadata = dict(reversed(tensors.items())), dict(reversed(metadata.items()))
        folder.write_tensors("b.safetensors", tensors, metadata)
        assert folder.read("a.safetensors") == folder.read("b.safetensors")
        folder.remove("b.safetensors")

    found = folder.read_tensors("a.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with safe_open(folder.path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == metadata
    folder.write_tensors("none.safetensors", {})
    assert folder.read_tensors("none.safetensors") == {}


def test_tensors_are_written_one_by_one_as_the_library_writes_them_at_once(folder: Folder) -> None:
    import torch
    from safetensors.torch import save

    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool]
    dtypes += [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64]
    dtypes += [torch.float8_e4m3fn, torch.float8_e5m2]
    some = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).abs()
    tensors = {f"{i % 3}/{dtype}": some.to(dtype) for i, dtype in enumerate(dtypes)}
    tensors |= {'"quoted"\\': some[0].clone(), "ü": torch.zeros(0, 2), "scalar": torch.tensor(1.5)}
    for metadata in (None, {}, {"format": "pt"}):
        for chosen in (tensors, {}):
            folder.write_tensors("a.safetensors", chosen, metadata)
            assert folder.read("a.safetensors") == save(chosen, metadata or None)


def test_tables_come_back_and_are_the_same_bytes(folder: Folder) -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "record": ["a", "b", "ü"],
            "value": [0.1, math.nan, -math.inf],
            "n": [1, 2, 3],
            "member": [True, False, True],
            "tokens": [[0.5, 0.25], [], [1.0]],
        }
    )
    folder.write_table("a.parquet", frame)
    other = pd.concat([frame, frame]).iloc[3:].set_index("record", drop=False)
    other.attrs["made"] = time.time()
    folder.write_table("b.parquet", other)
    folder.write_table("c.parquet", folder.read_table("a.parquet"))
    assert folder.read("a.parquet") == folder.read("b.parquet") == folder.read("c.parquet")
    found = folder.read_table("a.parquet")
    found["tokens"] = [list(tokens) for tokens in found["tokens"]]
    pd.testing.assert_frame_equal(found, frame)

    folder.write_table("empty.parquet", frame.iloc[:0])
    empty = folder.read_table("empty.parquet")
    assert (list(empty.columns), len(empty)) == (list(frame.columns), 0)


def test_a_table_whose_index_would_be_lost_is_refused(folder: Folder) -> None:
    import pandas as pd

    frame = pd.DataFrame({"record": ["a", "b"], "value": [1.0, 2.0]})
    for lossy in [frame.set_index("record"), pd.DataFrame({"value": [1.0]}, index=["a"])]:
        with pytest.raises(ValueError, match=r"a\.parquet: the frame's index .* would be lost; call reset_index first"):
            folder.write_table("a.parquet", lossy)
    assert folder.names() == []


def test_json_keeps_order_and_writes_nan_as_null(folder: Folder) -> None:
    folder.write_json("a.json", {"z": math.nan, "a": [0.1, ("ü", None)], "n": {"k": True}})
    assert folder.read("a.json").decode() == (
        '{\n "z": null,\n "a": [\n  0.1,\n  [\n   "ü",\n   null\n  ]\n ],\n "n": {\n  "k": true\n }\n}\n'
    )
    assert folder.read_json("a.json") == {"z": None, "a": [0.1, ["ü", None]], "n": {"k": True}}
    with pytest.raises(TypeError, match=r"a\.json\['x'\]\[1\] is inf \(float\), which is not JSON"):
        folder.write_json("a.json", {"x": [0, math.inf]})
    with pytest.raises(TypeError, match=r"a\.json is \{1: 2\} \(dict\), which is not JSON"):
        folder.write_json("a.json", {1: 2})


def test_a_key_is_the_hash_of_canonical_json() -> None:
    text = '{"a":0.1,"b":[1,true,null,"\\u00fc"],"c":{}}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert key_of({"c": {}, "b": (1, True, None, "ü"), "a": 0.1}) == expected
    assert key_of({"a": 0.1, "b": [1, True, None, "ü"], "c": {}}) == expected


def test_a_key_changes_with_every_value() -> None:
    base = {"method": "fedrand", "params": {"rho": 0.5, "rank": 8}, "seed": 0}
    changed: list[dict[str, Any]] = [{}, {"method": "fedavg"}, *({"seed": seed} for seed in (1, "0", None, False))]
    changed += [{"params": {"rho": math.nextafter(0.5, 1), "rank": 8}}, {"params": {"rho": 0.5, "rank": [8]}}]
    changed += [{"params": {"rho": 0.5}}, {"extra": {}}]
    assert len({key_of(base | change) for change in changed}) == len(changed)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, b"x", Path("x"), {1: 2}, 1j, object()])
def test_a_key_of_what_is_not_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"^description\['a'\]\[1\] is .*, which is not JSON; valid are"):
        key_of({"a": [0, value]})


def test_nearest() -> None:
    names = ["fedavg", "fedrand", "zeroshot"]
    assert nearest("fedrnd", names) == nearest("FedRand", names) == " (did you mean 'fedrand'?)"
    assert nearest("xyz", names) == nearest("xyz", []) == ""
    assert isinstance(InputError("--method xyz"), ValueError)
