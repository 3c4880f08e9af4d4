"""The picture of a night's page: the history that it is made of, kept, and the page made of it anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from docs.pictures.picture import Picture
from fedaudit.audits.statistics.nights import judged
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.nights import Nights, frame
from fedaudit.reports.nightly import CellOfNight, render_files

HISTORY, RECORDS = "history.parquet", "records.json"
SHOWN = 12  # nights that are kept


@dataclass(frozen=True)
class NightPicture(Picture):
    """Of the last night under a folder on which a gate was crossed that the night before held: `command` is what made
    the nights."""

    matrix: str = "tiny"

    def page(self) -> bytes:
        """The page of the nights, by the code as it is now. InputError if that code needs other ones."""
        try:
            records = {int(night): record for night, record in self.kept.read_json(RECORDS).items()}
            history = self.kept.read_table(HISTORY)
            last = max(records)
            cells = [CellOfNight(**cell) for cell in records[last]["cells"]]
            return render_files(self.matrix, last, cells, judged(history), history, records)["index.html"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.kept.path}: no page can be made of it any more ({error})") from error

    def record(self, out: Path, progress: Progress) -> None:
        """Keep the nights that `command` has left in `out`, up to the one that is shown."""
        nights = Nights(out, self.matrix)
        with nights.folder.lock(progress.say):
            records, lines = nights.records(progress.say), nights.lines(progress.say)
        over = {night for night, record in records.items() if any(cell["crossed"] for cell in record["cells"])}
        if not (first := [night for night in over if night - 1 not in over]):
            raise InputError(f"{out}: holds no night on which a gate was crossed; run {' '.join(self.command)}")
        some = range(max(first) - SHOWN + 1, max(first) + 1)
        folder = Folder(self.kept.path)
        folder.write_json(RECORDS, {str(night): records[night] for night in some if night in records})
        folder.write_table(HISTORY, frame([line for line in lines if line["night"] in some]))

    def moves(self) -> list[str]:
        """Nothing: what ran stands in the records."""
        return []


NIGHTS = (NightPicture("nightly", ("python", "-m", "benchmarks.nights", "real", "30"), height=1180),)
