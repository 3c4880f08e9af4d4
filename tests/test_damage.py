"""Every file of a finished run may be damaged or deleted: it is named, and computed again to the same bytes."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fedaudit.command import cli
from fedaudit.machinery import user_files
from fedaudit.machinery.resource_usage import FOLDER
from fedaudit.pipeline import index, provenance
from tests.whole_runs import unnoted

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

LORA = "--attack maxrenyi --rounds 2 --clients 2 --per-round 1 --records 4 --reference 4 --novel 4 --test 2 --local-steps 1 --canaries 2"
PROMPTS = "--rounds 2 --clients 3 --train 12 --test 2 --no-twin"
RUNS = {
    "LoRA": f"--method fedper:shared_layers=2 {LORA}",
    "prompts": f"--method dpfpl --epsilon 1 {PROMPTS}",
    "shadow clients": f"--method promptfl --attack lira,cosine --targets 1 --shadows 4 --canaries 3 {PROMPTS}",
    "shadow federations": f"--method fedotp --attack rmia,loss --targets 1 --shadows 4 --shadow-kind federations {PROMPTS}",
}

Harm = Callable[[Path], None]


def damaged(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"\x00damaged" + content[len(content) // 2 :])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def files(out: Path) -> dict[str, bytes]:
    """What counts, by name; `.lock` is nothing but a place to wait at, `times/`, `audits/` and the notes
    of pages say when and how long."""
    found = (path for path in sorted(out.rglob("*")) if path.is_file() and path.name != ".lock")
    notes = (out / FOLDER, out / provenance.FOLDER)
    kept = (path for path in found if path.parent not in notes and path != out / index.PAGE)
    return {path.relative_to(out).as_posix(): unnoted(path) for path in kept}


class Finished:
    """A finished run, and the command that made it."""

    def __init__(self, words: str, out: Path) -> None:
        self.words, self.out = words.split(), out
        assert self.again(out) == 0
        self.files = files(out)

    def again(self, out: Path) -> int:
        user_files._digests.clear()  # as in a new process
        return cli.main([*self.words, "--threads=1", f"--out={out}"])

    def check(self, harms: Mapping[str, Harm], out: Path, said: Callable[[], str]) -> None:
        """Harmed in these files, a copy of the run is mended by the same command, which names what it found."""
        shutil.copytree(self.out, out)
        for name, harm in harms.items():
            harm(out / name)
        said()
        assert self.again(out) == 0
        words = said()
        mended = files(out)
        assert mended.keys() == self.files.keys()
        assert [name for name in mended if mended[name] != self.files[name]] == []
        for name in harms:
            folder = Path(name).parent
            while not (self.out / folder / "manifest.json").exists():
                folder = folder.parent
            left = [p for p in self.files if Path(p).is_relative_to(folder) and harms.get(p) is not Path.unlink]
            # one file without a manifest is what a kill before the first manifest leaves: nothing to name
            if len(left) > 1 or f"{folder.as_posix()}/manifest.json" in left:
                assert str(out / folder) in words, name


@pytest.fixture(scope="module", params=RUNS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(RUNS[request.param], tmp_path_factory.mktemp("whole") / "out")


@pytest.mark.slow  # every file of four runs; quick: a table and answers, test_a_lost_answer_is_asked_again_when_it_is_needed
@pytest.mark.parametrize("turn", range(2))
def test_every_file_there_is(finished: Finished, turn: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Half of the files damaged and half deleted, then the other way round."""
    harms: list[Harm] = [damaged, Path.unlink]
    every = {name: harms[(i + turn) % 2] for i, name in enumerate(finished.files)}
    finished.check(every, tmp_path / "out", lambda: "".join(capfd.readouterr()))


@pytest.mark.slow  # a file of every folder; quick: the same test
def test_one_file_alone(finished: Finished, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is found while the rest is whole, in each folder. (Cache and answers are looked at when something is computed.)"""
    folders: dict[str, list[str]] = {}
    for name in finished.files:
        if not name.startswith(("cache/", "answers/", "reports/")):
            folders.setdefault(Path(name).parent.as_posix(), []).append(name)
    for i, names in enumerate(folders.values()):
        finished.check({names[len(names) // 2]: emptied}, tmp_path / f"out{i}", lambda: "".join(capfd.readouterr()))


def test_a_lost_answer_is_asked_again_when_it_is_needed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "--method promptfl --attack loss --targets 1 --rounds 2 --clients 2 --train 4 --test 1 --no-twin"
    run = Finished(words, tmp_path / "out")
    (table,) = (name for name in run.files if name.startswith("analyses/") and name.endswith("/records.parquet"))
    models = [name for name in run.files if name.startswith("answers/") and "/model-" in name]
    harms: dict[str, Harm] = {table: Path.unlink, models[0]: Path.unlink, models[-1]: damaged}
    run.check(harms, tmp_path / "copy", lambda: "".join(capfd.readouterr()))
