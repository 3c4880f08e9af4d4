"""Kills, pairs of processes and failing disks: a tiny run of each kind of training, with its attack, ends with the same bytes whatever happened.

    python -m benchmarks.trials [kills|pairs|disks|all] [--seed 0] [--kills 20] [--pairs 10]

A kill ends all processes of a run by SIGKILL, at a random moment after a random file appeared. What was complete then must stay as it was, and the
same command must end with the bytes of an undisturbed run. Of two processes with one command at once both must. On a disk that fails the command
exits with 2 and one sentence, or succeeds; when the disk works again, the same command must end with the same bytes. Disks are small ones in
memory where this process may mount (root on Linux), else folders without permission. Nothing asserts on seconds. Exit code 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedaudit.pipeline import index

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ("runs", "shadows", "analyses", "reports")  # folders of a run whose bytes are promised
LIMIT = 1500  # KiB of one file: the rounds of the adapters are larger, all files before them smaller
DELETED = "folder deleted meanwhile"
DISK = "size=3m"  # cache and start of the adapters fit in, the first round does not

Contents = Mapping[str, bytes]
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Job:
    """A tiny setting of the command."""

    name: str
    words: str

    def command(self, out: Path) -> list[str]:
        return [sys.executable, str(ROOT / "audit.py"), *self.words.split(), "--out", str(out)]

    def start(self, out: Path) -> subprocess.Popen[str]:
        """The command in a process group of its own."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(out), stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def finish(self, out: Path, *, largest: int | None = None) -> Done:
        """The command to its end; no file may get larger than `largest` KiB."""
        limit = [] if largest is None else ["bash", "-c", f'ulimit -f {largest}; exec "$@"', "bash"]
        return subprocess.run([*limit, *self.command(out)], capture_output=True, text=True)


ADAPTERS = Job(
    "adapters",
    "--method fedrand --attack maxrenyi --rounds 3 --clients 3 --per-round 2 --records 6 --reference 8 --novel 8 --test 4 "
    "--local-steps 2 --threads 1",
)
PROMPTS = Job(
    "prompts",
    "--method promptfl,dpfpl --epsilon 0.4 --no-twin --attack lira --shadows 4 --targets 1 --rounds 12 --clients 3 "
    "--train 12 --test 1 --threads 2",
)
JOBS = (ADAPTERS, PROMPTS)


@dataclass(frozen=True)
class Trial:
    """What was done to a run, what came of it, and whether that is what is promised."""

    kind: str
    job: str
    what: str
    found: str
    kept: bool


def whole(job: Job, out: Path) -> Contents:
    """What an undisturbed run leaves. RuntimeError if it fails."""
    done = job.finish(out)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return contents(out)


def contents(out: Path) -> Contents:
    """The promised files by their path below `out`."""
    files = (path for folder in RESULTS for path in (out / folder).rglob("*"))
    return {str(path.relative_to(out)): unnoted(path) for path in files if path.is_file() and path.name != ".lock"}


def unnoted(path: Path) -> bytes:
    """A file's content; that of a report's page without the note on how it was made, of a manifest without that page."""
    data = path.read_bytes()
    if path.name == index.PAGE:
        return re.sub(rb"<!-- note -->.*?<!-- /note -->", b"", data, flags=re.DOTALL)
    if path.name == "manifest.json" and (path.parent / index.PAGE).exists():
        return json.dumps({name: digest for name, digest in json.loads(data).items() if name != index.PAGE}).encode()
    return data


def kill(job: Job, expected: Contents, out: Path, file: str, delay: float) -> Trial:
    """A SIGKILL of all its processes a moment after `file` appeared; then the same command."""
    running = job.start(out)
    while running.poll() is None and not (out / file).exists():
        time.sleep(0.002)
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    before = complete(out)
    again = job.finish(out)
    stayed = all(stamp(out / name) == mark for name, mark in before.items() if not _passing(name))
    same = contents(out) == expected
    rounds = sum("/round-" in name and name.endswith(".json") for name in before)
    state = "killed" if running.returncode == -signal.SIGKILL else f"ENDED with {running.returncode}"
    found = f"{state}, {rounds} rounds and {len(before)} files complete; {_after(again, same)}{'' if stayed else ', files WRITTEN AGAIN'}"
    kept = state == "killed" and stayed and same and not _complaints(again)
    return Trial("kill", job.name, f"{1000 * delay:.0f} ms after {_short(file)}", found, kept)


def some_file(expected: Contents, rng: random.Random) -> str:
    """One that appears in a random stage of a run."""
    stage = rng.choice(sorted({name.partition("/")[0] for name in expected}))
    return rng.choice(sorted(name for name in expected if name.startswith(f"{stage}/")))


def _short(file: str) -> str:
    """A file's stage and name, without the keys between."""
    return f"{file.partition('/')[0]}/…/{file.rpartition('/')[2]}"


def complete(out: Path) -> dict[str, tuple[int, int]]:
    """The files that the manifests list, with what tells whether one is written again."""
    manifests = [path for folder in RESULTS for path in (out / folder).rglob("manifest.json")]
    listed = [path.parent / name for path in manifests for name in json.loads(path.read_bytes())]
    return {str(path.relative_to(out)): stamp(path) for path in listed}


def stamp(path: Path) -> tuple[int, int]:
    """Of a file that is replaced the number changes, of one that is written to the time; zeros where there is none."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else (0, 0)


def _passing(name: str) -> bool:
    """Checkpoints of shadow models make room for the next."""
    return Path(name).name.startswith("shadows-")


def pair(job: Job, expected: Contents, out: Path, delay: float) -> Trial:
    """Two processes with one command, the second a little later."""
    first = job.start(out)
    time.sleep(delay)
    both = [(p, p.communicate()[1]) for p in (first, job.start(out))]
    codes = [p.returncode for p, _ in both]
    waited = "one waited" if any("another process works on" in said for _, said in both) else "none waited"
    same = contents(out) == expected
    found = f"exit codes {codes[0]} and {codes[1]}, {waited}, {'same' if same else 'OTHER'} bytes"
    return Trial("pair", job.name, f"{delay:.1f} s apart", found, codes == [0, 0] and same)


def disk(name: str, job: Job, expected: Contents, out: Path) -> Trial:
    """A run on a disk that fails, and the same command when it works again."""
    with DISKS[name](job, out) as first:
        again = job.finish(out)
        same = contents(out) == expected
    told = "succeeds" if not first.returncode else _sentence(first).replace(str(out), "OUT")
    # what was written while a deletion went on is found to lack the rest, and said to
    lost = name == DELETED and not again.returncode
    kept = (first.returncode == 0 or _refused(first)) and (lost or not _complaints(again)) and same
    return Trial("disk", job.name, name, f"exit code {first.returncode}: {told}; then {_after(again, same)}", kept)


def _refused(done: Done) -> bool:
    """Exit code 2 and one sentence."""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr


def _complaints(done: Done) -> bool:
    return bool(done.returncode) or "damaged" in done.stderr or "missing" in done.stderr


def _sentence(done: Done) -> str:
    return next(iter(done.stderr.splitlines()[-1:]), "nothing said")


def _after(again: Done, same: bool) -> str:
    code = "" if not again.returncode else f"exit code {again.returncode} ({_sentence(again)}), "
    return f"again: {code}{'same' if same else 'OTHER'} bytes{', files called damaged' if 'damaged' in again.stderr else ''}"


@contextmanager
def full(job: Job, out: Path) -> Iterator[Done]:
    """A disk that is full in the middle of the first round."""
    with _disk(out, DISK):
        done = job.finish(out) if _can_mount() else job.finish(out, largest=LIMIT)
        _again(out, "size=1g")
        yield done


@contextmanager
def read_only(job: Job, out: Path) -> Iterator[Done]:
    """A folder that may only be read."""
    with _disk(out, "ro"):
        done = job.finish(out)
        _again(out, "rw")
        yield done


@contextmanager
def deleted(job: Job, out: Path) -> Iterator[Done]:
    """A run's folder is deleted while it is worked on."""
    running = job.start(out)
    while running.poll() is None and not list(out.glob("runs/*/round-000.json")):
        time.sleep(0.01)
    shutil.rmtree(out / "runs", ignore_errors=True)
    _, said = running.communicate()
    yield subprocess.CompletedProcess([], running.returncode, "", said)


@contextmanager
def occupied(job: Job, out: Path) -> Iterator[Done]:
    """A file lies where a folder is due."""
    (out / "runs").write_text("")
    done = job.finish(out)
    (out / "runs").unlink()
    yield done


@contextmanager
def refused_write(job: Job, out: Path) -> Iterator[Done]:
    """Large files are refused, as by a quota: the round's tensors, after the small ones were written."""
    yield job.finish(out, largest=LIMIT)


@contextmanager
def read_only_cache(job: Job, out: Path) -> Iterator[Done]:
    """The cache may only be read, all else may be written."""
    (out / "cache").mkdir()
    with _disk(out / "cache", "ro"):
        done = job.finish(out)
        _again(out / "cache", "rw")
        yield done


DISKS: dict[str, Callable[[Job, Path], AbstractContextManager[Done]]] = {
    "full disk": full,
    "read-only folder": read_only,
    DELETED: deleted,
    "file in a folder's place": occupied,
    "large writes refused": refused_write,
    "read-only cache": read_only_cache,
}


def _can_mount() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


@contextmanager
def _disk(folder: Path, option: str) -> Iterator[None]:
    """A small disk in memory at `folder`, read-only or of a size."""
    if not _can_mount():
        folder.chmod(0o555 if option == "ro" else 0o755)
        try:
            yield
        finally:
            folder.chmod(0o755)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _again(folder: Path, option: str) -> None:
    """The disk works again."""
    if _can_mount():
        subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)
    else:
        folder.chmod(0o755)


def trials(kinds: Sequence[str], *, kills: int, pairs: int, disks: Sequence[str], seed: int) -> Iterator[Trial]:
    """The trials one by one, each in a folder of its own; jobs take turns."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:

        @functools.cache
        def undisturbed(job: Job) -> Contents:
            return whole(job, Path(place) / job.name)

        def fresh() -> Path:
            return Path(tempfile.mkdtemp(dir=place))

        for i in range(kills if "kills" in kinds else 0):
            job = JOBS[i % len(JOBS)]
            yield kill(job, undisturbed(job), fresh(), some_file(undisturbed(job), rng), rng.uniform(0, 0.5))
        for i in range(pairs if "pairs" in kinds else 0):
            job = JOBS[i % len(JOBS)]
            yield pair(job, undisturbed(job), fresh(), rng.uniform(0, 1))
        for name in disks if "disks" in kinds else ():
            yield disk(name, ADAPTERS, undisturbed(ADAPTERS), fresh())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", default="all", choices=("kills", "pairs", "disks", "all"))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10)
    given = parser.parse_args()
    kinds = ("kills", "pairs", "disks") if given.kind == "all" else (given.kind,)
    broken = done = 0
    for trial in trials(kinds, kills=given.kills, pairs=given.pairs, disks=list(DISKS), seed=given.seed):
        done, broken = done + 1, broken + (not trial.kept)
        print(
            f"{'ok' if trial.kept else 'BROKEN':<8}{trial.kind:<6}{trial.job:<10}{trial.what:<50} {trial.found}",
            flush=True,
        )
    print(f"{done - broken} of {done} trials as promised")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
