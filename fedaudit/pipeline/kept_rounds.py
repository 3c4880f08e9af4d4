"""Which rounds of finished trainings stay on disk (`--keep-rounds`), and how the others come back if they are needed.

A round's tensors are removed, its JSON record stays. What needs a round that is gone ends in `Missing`; then the
training counts as unfinished, and its missing rounds are trained again, to the same bytes. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedaudit.machinery.locks import Busy
from fedaudit.machinery.store import Folder, inside
from fedaudit.pipeline.finished import COMPLETE
from fedaudit.pipeline.plan import Cell

Say = Callable[[str], None]
ALL, LAST, EVERY = "all", "last", "every:"


def thin(cells: Sequence[Cell], keep: str, say: Say) -> None:
    """Remove the tensors of the rounds that `keep` ("all", "last" or "every:N") leaves out, of the cells' finished
    trainings and of their adversaries' simulations. What another process works on stays as it is."""
    if keep == ALL:
        return
    removed = 0
    for path in _trainings(cells):
        folder = Folder(path)
        try:
            with folder.lock(say, wait=False):
                gone = _superfluous(keep, folder) if COMPLETE in folder else []
                if gone:  # the list first, so that the training counts as finished at any moment
                    folder.write_json(COMPLETE, [n for n in folder.names() if n not in {COMPLETE, *gone}])
                for name in gone:
                    folder.remove(name)
                removed += len(gone)
        except Busy:
            say(f"{path} is in use: all of its rounds stay")
    if removed:
        say(f"--keep-rounds {keep}: removed {removed} rounds' tensors")


def reopen(cells: Sequence[Cell], say: Say) -> bool:
    """Let the cells' trainings and simulations that lack rounds count as unfinished, so that these rounds are trained
    again; `say` is told so. Returns whether there were any."""
    any_thinned = False
    for path in _trainings(cells):
        if (left := rounds_left(folder := Folder(path))) is not None:
            say(f"{path} kept the tensors of {left} of its rounds (--keep-rounds): the others are trained again")
            with folder.lock(say):
                folder.remove(COMPLETE)
            any_thinned = True
    return any_thinned


def rounds_left(folder: Folder) -> int | None:
    """How many rounds a finished training has the tensors of; None if of all, or if it is not finished."""
    if COMPLETE not in folder:
        return None
    there, records = {*folder.names()}, _records(folder)
    left = sum(_tensors(name) in there for name in records)
    return left if left < len(records) else None


def _trainings(cells: Sequence[Cell]) -> list[Path]:
    """The existing folders of the cells' trainings and of simulated federations, each once."""
    banks = {cell.bank_folder for cell in cells if cell.needs_shadows}
    simulated = [p for bank in sorted(banks) for p in sorted(inside(bank)) if not p.name.startswith("client-")]
    trainings = dict.fromkeys(cell.training_folder for cell in cells)
    return [path for path in (*trainings, *simulated) if path.is_dir()]


def _records(folder: Folder) -> list[str]:
    """The names of the rounds' JSON records, in the order of the rounds."""
    names = [name for name in folder.names() if name.startswith("round-") and name.endswith(".json")]
    return sorted(names, key=lambda name: (len(name), name))  # round-1000 after round-999


def _tensors(record: str) -> str:
    """The name of the file of tensors beside a round's record."""
    return record.removesuffix(".json") + ".safetensors"


def _superfluous(keep: str, folder: Folder) -> list[str]:
    """The names of the files of tensors that `keep` leaves out. Those of models that might be released always stay: of
    the last round, and of the one after which the test loss was least."""
    records = _records(folder)
    losses = [folder.read_json(name)["utility"].get("global", {}).get("loss") for name in records]
    measured = {r: loss for r, loss in enumerate(losses) if loss is not None}
    last = len(records) - 1
    kept = {last, min(measured, key=measured.__getitem__, default=last)}
    if keep.startswith(EVERY):
        every = int(keep.removeprefix(EVERY))
        kept |= {*range(every - 1, len(records), every)}
    there = {*folder.names()}
    return [name for r, record in enumerate(records) if r not in kept and (name := _tensors(record)) in there]
