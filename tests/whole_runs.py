"""The command as a user runs it, and what every job of it promises: the same bytes after kills, damage and a second process."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.trials import unnoted
from fedaudit.machinery.resource_usage import FOLDER
from fedaudit.pipeline import index, provenance
from tests.warm import PATIENCE, Started

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Job:
    """One tiny setting of the command."""

    words: Sequence[str]
    printing: bool = True  # of figures
    patience: float = PATIENCE  # seconds after which it hangs

    def command(self, out: Path) -> list[str]:
        """For a process that starts from nothing."""
        return [sys.executable, str(ROOT / "audit.py"), *self.options(out)]

    def options(self, out: Path, *more: str) -> list[str]:
        """The words, with `more` in the place of those that give the same flags."""
        words = list(self.words)
        for flag in (word for word in more if word in words and word.startswith("--")):
            start = words.index(flag)
            stop = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
            del words[start:stop]
        return [*words, *more, "--out", str(out)]

    def start(self, out: Path, *more: str, held: str = "") -> Started:
        return Started(self.options(out, *more), ROOT, printing=self.printing, held=held, patience=self.patience)

    def audit(self, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
        done = self.start(out, *more).finish()
        assert done.returncode == 0, done.stderr
        return done

    def check_reuse(self, out: Path, folder: Path) -> None:
        """The same command again only shows its report, `folder`."""
        before = contents(out)
        again = self.audit(out)
        assert "reused: report" in again.stderr
        assert "training" not in again.stderr
        assert report(again) == folder
        assert contents(out) == before

    def disturbed(self, out: Path, seen: str, how: signal.Signals) -> subprocess.CompletedProcess[str]:
        """Stopped or killed at work, when a file (a pattern) is there: whoever writes it waits for that."""
        running = self.start(out, held=seen)
        running.wait_for(lambda: any(out.glob(seen)), seen)
        assert running.process.pid is not None
        os.kill(running.process.pid, how)
        return running.finish()

    def check_repair(self, checkpoints: Sequence[str], whole: Path, folder: Path, out: Path) -> None:
        """A flipped byte in each checkpoint (a pattern) of a copy of the finished run `whole` is named and repaired."""
        shutil.copytree(whole, out, dirs_exist_ok=True)
        intact = {victim: victim.read_bytes() for victim in (next(out.glob(name)) for name in checkpoints)}
        for victim, data in intact.items():
            victim.write_bytes(data[:-5] + bytes([data[-5] ^ 4]) + data[-4:])
        for done in [*out.glob("analyses/*/complete.json"), *out.glob("reports/*/complete.json")]:
            done.unlink()
        again = self.audit(out)
        for victim, data in intact.items():
            assert f"{victim} is damaged; computing it again" in again.stderr
            assert victim.read_bytes() == data
        assert contents(report(again)) == contents(folder)

    def check_two_processes(self, folder: Path, out: Path) -> list[str]:
        """Two processes at once end with the bytes of the report `folder`; returns what each said."""
        both = [running.finish() for running in (self.start(out), self.start(out))]
        said = [done.stderr for done in both]
        assert [done.returncode for done in both] == [0, 0], said
        assert any("another process works on" in text for text in said)
        assert contents(next((out / "reports").iterdir())) == contents(folder)
        return said

    def check_dry_run(self, out: Path, to_run: str, workers: str) -> None:
        done = self.audit(out, "--dry-run")
        assert f"0 on disk; {to_run}" in done.stdout
        assert re.search(rf"about \d+ minutes? with {workers}", done.stdout)
        assert not (out / "runs").exists()
        assert not (out / "reports").exists()


def report(done: subprocess.CompletedProcess[str]) -> Path:
    """The folder of the report that a command named."""
    found = re.search(r"^report: (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return Path(found[1]).parent


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but those of when and how (`unnoted`): of whole files pytest on a CI machine would look for hours where they differ."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    if not (folder / "runs.json").exists():  # else it is a report's folder
        notes = (folder / FOLDER, folder / provenance.FOLDER)
        files = (p for p in files if p.parent not in notes and p != folder / index.PAGE)
    return {str(p.relative_to(folder)): hashlib.sha256(unnoted(p)).hexdigest() for p in files}
