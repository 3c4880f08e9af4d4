"""The table of bad data sets: each is refused in one sentence that names the file or the flag, before anything is written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedaudit.command.cli import main
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.faults import each, sentences
from fedaudit.tasks import coco, images, scienceqa
from fedaudit.tasks.base import Record
from tests import bad_data, bad_images, minidata, miniimages
from tests.bad_data import EACH, Bad


def _coco(root: Path) -> Any:
    params = coco.Params(data_root=str(root), records=2, reference=2, background=1, novel=2, test=2)
    return coco.coco(params, clients=2, seed=0)


def _science(root: Path) -> Any:
    params = scienceqa.Params(data_root=str(root), records=2, reference=2, background=1, test=2)
    return scienceqa.scienceqa(params, clients=2, seed=0)


def _build_coco(root: Path) -> None:
    minidata.coco(root, train=EACH, val=6)
    minidata.nocaps(root / "nocaps", n=15)


def _build_coco_parquet(root: Path) -> None:
    minidata.parquet(root / bad_data.TRAIN, minidata.coco_rows(range(EACH)))
    minidata.parquet(root / "data/val-00000-of-00001.parquet", minidata.coco_rows(range(1000, 1006)))


def _classes(name: str) -> Callable[[Path], Any]:
    return lambda root: images.images(images.Params(dataset=name, data_root=str(root)), clients=2, seed=0)


TABLE = [*bad_data.BAD, *bad_images.BAD]
LAYOUTS: dict[str, tuple[Callable[[Path], object], Callable[[Path], Any]]] = {
    "coco": (_build_coco, _coco),
    "coco-parquet": (_build_coco_parquet, _coco),
    "scienceqa": (lambda root: minidata.scienceqa(root, train=EACH, test=9), _science),
    "scienceqa-parquet": (lambda root: minidata.scienceqa_parquet(root, train=EACH, test=9), _science),
    "food101-coop": (lambda root: miniimages.food101(root, True), _classes("food101")),
    **{
        name: (lambda root, build=build: build(root, False), _classes(name))
        for name, build in miniimages.BUILDERS.items()
        if name in {case.layout for case in TABLE}
    },
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every layout once; nobody may change these files."""
    roots = {layout: tmp_path_factory.mktemp(layout) / "root" for layout in LAYOUTS}
    for layout, root in roots.items():
        LAYOUTS[layout][0](root)
    return roots


def copy(file: str, to: str) -> object:
    """A link to a picture, which is replaced and never written to; else a file of its own."""
    return os.link(file, to) if file.endswith((".jpg", ".png")) else shutil.copyfile(file, to)


@pytest.fixture
def bad(built: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Bad, Path]:
    """A case of the table, done."""
    case: Bad = request.param
    root = shutil.copytree(built[case.layout], tmp_path / "root", copy_function=copy)
    case.damage(root)
    return case, root


def test_undamaged_data_sets_are_used(built: dict[str, Path]) -> None:
    assert all(LAYOUTS[layout][1](root).records for layout, root in built.items())


@pytest.mark.parametrize("bad", TABLE, indirect=True, ids=str)
def test_a_bad_data_set_is_refused_in_one_sentence(bad: tuple[Bad, Path]) -> None:
    case, root = bad
    with pytest.raises(InputError) as refused:
        each(Record.require_image, LAYOUTS[case.layout][1](root).records.values())
    said = sentences(refused.value)
    assert all(sentence.isprintable() and len(sentence) < 1000 for sentence in said)
    assert any(case.named in sentence for sentence in said)


ODD = st.sampled_from(["a\0b", "a\nb", "../x", " ", bad_data.HALF, bad_data.LONG])
LEAF = st.none() | st.booleans() | st.integers(-bad_data.HUGE, bad_data.HUGE) | st.floats() | st.text(max_size=5) | ODD
KEY = st.text(max_size=3)
VALUE = st.recursive(LEAF, lambda part: st.lists(part, max_size=2) | st.dictionaries(KEY, part, max_size=2))


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(bad_data.VALUES), VALUE)
def test_any_value_in_a_field_is_used_or_refused(built: Any, tmp_path: Path, place: Any, value: object) -> None:
    layout, file, key, field, _ = place
    root = tmp_path / layout
    if not root.exists():
        shutil.copytree(built[layout], root, copy_function=copy)
    said = ""
    try:
        bad_data.edited(root, file, bad_data.in_each(key, **{field: value}))
        LAYOUTS[layout][1](root)
    except InputError as error:
        said = "".join(sentences(error))
    finally:
        shutil.copy(built[layout] / file, root / file)
    assert said.isprintable()
    assert len(said) < 1000


def command(case: Bad, root: Path, out: Path) -> list[str]:
    """The command that would audit a data set of the table."""
    words = f"--data-root {root} --rounds 1 --threads 1 --out {out} --clients 2"
    if case in bad_images.BAD:
        words += f" --method promptfl --task images --dataset {case.layout.removesuffix('-coop')}"
    else:
        words += f" --method fedavg --task {case.layout.removesuffix('-parquet')}"
        words += " --records 2 --reference 2 --background 1 --test 2 --per-round 2"
        words += " --novel 2" * case.layout.startswith("coco")
    return words.split()


NAMES = ("captions_train2017.json is a FIFO", "captions are no UTF-8", "pictures: a bomb", "one class only")
SAMPLE = [case for case in TABLE if case.name in NAMES]


@pytest.mark.parametrize("bad", SAMPLE, indirect=True, ids=str)
def test_the_command_says_one_line_and_writes_nothing(bad: tuple[Bad, Path], tmp_path: Path, capsys: Any) -> None:
    case, root = bad
    assert main(command(case, root, tmp_path / "out")) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert all(line.startswith(("error: ", "and ")) for line in lines)
    assert any(case.named in line for line in lines)
    assert said.out == ""
    assert not (tmp_path / "out").exists()
