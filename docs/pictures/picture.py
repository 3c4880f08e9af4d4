"""A picture: the command whose report it shows, what that report is made of, and whether it still shows what the command says."""

from __future__ import annotations

import difflib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from docs.pictures.evidence import evidence, keep, moved
from docs.pictures.photographs import WORDS, digest, lines, photograph
from fedaudit.command.cli import read_command
from fedaudit.machinery.atomic import write_atomic
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.page import audited_run, compare_all
from fedaudit.pipeline.plan import Plan
from fedaudit.pipeline.run import run
from fedaudit.reports.report import build

HERE = Path(__file__).parent
WIDTH = 1180
AGAIN = "python -m docs.pictures"


@dataclass(frozen=True)
class Picture:
    """`home` holds NAME.png, the words that it shows as NAME.txt, and the evidence of its report in a folder NAME."""

    name: str
    command: tuple[str, ...]
    height: int
    home: Path = HERE

    @property
    def file(self) -> Path:
        return self.home / f"{self.name}.png"

    @property
    def words_file(self) -> Path:
        return self.home / f"{self.name}.txt"

    @property
    def words(self) -> list[str]:
        """What the picture shows, line by line."""
        return self.words_file.read_text(encoding="utf-8").splitlines()

    @property
    def kept(self) -> Folder:
        """The evidence."""
        return Folder(self.home / self.name)

    def plan(self, *more: str) -> Plan:
        """What the command runs, on whatever machine, with `more` words behind it."""
        return read_command([*self.command, "--device", "cpu", *more]).plan

    def page(self) -> bytes:
        """The report of the evidence, by the code as it is now. InputError if that code needs other evidence."""
        files: dict[str, bytes] = {}
        try:
            shown = evidence(plan := self.plan(), self.kept)
            build(shown, files.__setitem__, across=compare_all([audited_run(e) for e in shown], plan.across))
        except (AttributeError, FileNotFoundError, KeyError, ValueError) as error:  # as where a table lacks a column
            raise InputError(f"{self.kept.path}: no report can be made of it any more ({error})") from error
        return files["index.html"]

    def record(self, out: Path, progress: Progress) -> None:
        """Run the command as far as its results are not in `out`, and keep what its report is made of."""
        plan = self.plan("--out", str(out))
        run(plan, progress)
        with tempfile.TemporaryDirectory(dir=self.home) as made:
            keep(plan, Folder(Path(made, self.name)), progress)
            shutil.rmtree(self.kept.path, ignore_errors=True)
            Path(made, self.name).rename(self.kept.path)

    def take(self) -> None:
        """Photograph the page of the evidence and write down what is to be read on it. InputError without a browser."""
        png, words = photograph(self.page(), WIDTH, self.height)
        write_atomic(self.words_file, "".join(f"{line}\n" for line in words).encode())
        write_atomic(self.file, png)

    def stale(self) -> list[str]:
        """A sentence for everything in which the picture is not what the command would show now; none if it is up to date."""
        try:
            moves, changes = self.moves(), self._changes()
        except (FileNotFoundError, InputError) as error:
            return [f"{self.name}: {error}; run {AGAIN} --record OUT"]
        found = [f"{self.name}: {what}; run {AGAIN} --record OUT" for what in moves]
        if changes:
            found.append(f"{self.name}: its page now says {'; '.join(changes)}; run {AGAIN}")
        with Image.open(self.file) as picture:
            if picture.size != (WIDTH, self.height) or picture.info.get(WORDS) != digest(self.words):
                found.append(f"{self.name}: {self.file} is not the picture of {self.words_file}; run {AGAIN}")
        return found

    def moves(self) -> list[str]:
        """The settings that the command has now, where they are not those of the evidence."""
        return moved(self.plan(), self.kept)

    def _changes(self) -> list[str]:
        """How the page's first words differ from those on the picture."""
        now = lines(self.page())[: len(self.words)]
        return [
            line for line in difflib.unified_diff(self.words, now, lineterm="", n=0) if line[:3] not in ("---", "+++")
        ]


PICTURES = (
    Picture("report", ("--method", "fedrand", "--attack", "maxrenyi"), height=1340),
    Picture("report-prompts", ("--method", "dpfpl"), height=1400),
)
