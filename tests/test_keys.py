"""Keys know all the code that makes the numbers, and no other."""

import ast
import cProfile
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedaudit.command.cli import read_command
from fedaudit.machinery import closure, places
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import key_of
from fedaudit.pipeline import compute, keys, run
from fedaudit.pipeline.plan import Cell, Plan
from tests.test_rooms import FILES, ROOMS
from tests.warm import Started
from tests.whole_runs import contents

ROOT = Path(__file__).parents[1]
LORA = "--method fedrand --attack maxrenyi --rounds 1 --clients 2 --per-round 1 --records 4 --reference 4 --novel 4 --test 2 --local-steps 1"
PROMPTS = "--method dpfpl --attack lira,cosine --shadows 4 --rounds 2 --clients 3 --train 12 --test 2 --epsilon 1 --no-twin --canaries 3"
COMMANDS = (LORA, LORA.replace("fedrand", "fedper"), PROMPTS, PROMPTS.replace("dpfpl", "promptfl"))
OUTSIDE = [module for module in FILES if closure.why_outside(module)]
KINDS: dict[str, Callable[[Cell], tuple[str, ...]]] = {
    "training": keys.training_modules,
    "bank": keys.bank_modules,
    "analysis": keys.analysis_modules,
    "page": lambda cell: (*keys.analysis_modules(cell), *keys.page_modules()),
}


def plan(words: str) -> Plan:
    return read_command(words.split()).plan


def found(cell: Cell) -> dict[str, str]:
    """The keys of a cell, computed anew."""
    fresh = dataclasses.replace(cell)
    bank, page = key_of(fresh.bank_description), key_of(keys.page([fresh]))
    return {"training": fresh.training_key, "bank": bank, "analysis": fresh.analysis_key, "page": page}


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes source files look changed, and all others as they are."""
    read = keys._sha256
    return lambda *files: monkeypatch.setattr(keys, "_sha256", lambda at: "changed" if at in files else read(at))


@pytest.mark.parametrize("words", [LORA, PROMPTS])
def test_a_changed_file_moves_the_keys_whose_closure_holds_it_and_no_other(
    words: str, changed: Callable[..., None]
) -> None:
    (cell,) = plan(words).cells
    before = found(cell)
    reached = {kind: set(closure.closure(*modules(cell)).values()) for kind, modules in KINDS.items()}
    inside = set.union(*reached.values()) & {*FILES.values()}
    assert len(inside) > 100
    for file in sorted(inside):
        changed(file)
        moved = {kind for kind, key in found(cell).items() if key != before[kind]}
        assert moved == {kind for kind, held in reached.items() if file in held}, file
    changed(*{*FILES.values()} - inside)
    assert found(cell) == before


def test_the_pipeline_that_writes_a_page_decides_its_key_and_no_other(changed: Callable[..., None]) -> None:
    (cell,) = plan(PROMPTS).cells
    before = found(cell)
    paper = key_of(keys.page([cell], figure="dpfpl_figure3"))
    changed(ROOT / "fedaudit/pipeline/compute.py")
    assert {kind for kind, key in found(cell).items() if key != before[kind]} == {"page"}
    changed(ROOT / "fedaudit/pipeline/papers.py")
    assert found(cell) == before
    assert key_of(keys.page([cell], figure="dpfpl_figure3")) != paper
    compared = keys.page_of(["a", "b"], keys.COMPARISON)
    changed(ROOT / "fedaudit/pipeline/runs_on_disk.py")
    assert keys.page_of(["a", "b"], keys.COMPARISON) != compared


@pytest.mark.parametrize("words", COMMANDS)
def test_a_training_reaches_no_audit_and_no_page(words: str) -> None:
    """What a page says or shows, where its sections stand excepted, retrains nothing."""
    (cell,) = plan(words).cells
    reached = closure.closure(*keys.training_modules(cell))
    of_pages = {name for name in reached if name.split("/")[1] in ("audits", "reports")}
    assert {n for n in of_pages if not n.endswith("__init__.py")} == {"fedaudit/reports/section_files.py"}
    assert "fedaudit/terms/sentences.py" not in reached


def test_a_changed_template_moves_the_page_alone(changed: Callable[..., None]) -> None:
    (cell,) = plan(LORA).cells
    before = found(cell)
    for name, file in keys.templates().items():
        changed(file)
        assert {kind for kind, key in found(cell).items() if key != before[kind]} == {"page"}, name


def test_every_template_and_table_of_reports_counts() -> None:
    figures = [path.stem for path in (ROOT / "reports/papers").glob("*.html")]
    counted = {path.resolve() for figure in ("", *figures) for path in keys.templates(figure).values()}
    assert counted == {*ROOT.glob("reports/**/*.html"), *ROOT.glob("reports/**/*.csv")}


class Executed:
    """The source files of ours whose functions ran in it and in no other within it."""

    _on: ClassVar[list[cProfile.Profile]] = []

    def __init__(self) -> None:
        self._profile = cProfile.Profile(builtins=False)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any, **named: Any) -> Any:
            for outer in self._on[-1:]:
                outer.disable()
            self._on.append(self._profile)
            self._profile.enable()
            try:
                return function(*args, **named)
            finally:
                self._profile.disable()
                self._on.pop()
                for outer in self._on[-1:]:
                    outer.enable()

        return traced

    @property
    def files(self) -> set[str]:
        codes = [entry.code for entry in self._profile.getstats() if not isinstance(entry.code, str)]
        found = (Path(code.co_filename) for code in codes)
        return {file.relative_to(ROOT).as_posix() for file in found if file.is_relative_to(ROOT)}


@pytest.mark.slow  # what really runs; quick: the closure of imports, test_what_a_module_reaches
@pytest.mark.parametrize("words", [LORA, PROMPTS])
def test_no_file_that_makes_a_number_is_outside(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what really runs, not by what a parser of imports believes."""
    asked = plan(f"{words} --threads 1 --out {tmp_path}")
    (cell,) = asked.cells
    parts = {kind: Executed() for kind in KINDS}
    for name, part in (("train_all", "training"), ("train_banks", "bank"), ("ensure_analysis", "analysis")):
        monkeypatch.setattr(compute, name, parts[part](getattr(compute, name)))
    for name in ("read_evidence", "write_page"):
        monkeypatch.setattr(compute, name, parts["page"](getattr(compute, name)))
    run.run(asked, Progress(quiet=True))
    outside = {FILES[module].relative_to(ROOT).as_posix() for module in OUTSIDE}
    for kind, executed in parts.items():
        ran = {name for name in executed.files if name.split("/")[0] == "fedaudit"}
        ran -= {"fedaudit/reports/sections/__init__.py"}  # is empty
        assert (kind == "bank" and "lira" not in words) or len(ran) > 5
        assert ran <= outside | closure.closure(*KINDS[kind](cell)).keys() | keys.templates().keys(), kind


STUBS = {  # in the place of modules that say of themselves that they make no number
    "fedaudit": '__version__ = "0.1.0"\nOUTSIDE_KEYS = "stub"\n',
    "fedaudit.machinery.errors": """
OUTSIDE_KEYS = "stub"

class InputError(ValueError):
    pass

class Diverged(InputError):
    pass

def nearest(name, options):
    return ""
""",
    "fedaudit.machinery.progress": """
from contextlib import nullcontext
from typing import Any

OUTSIDE_KEYS = "stub"
Stage = Any
LOG_SECONDS = 0.0
ENCODING = "a stage"

def nothing(*given, **more):
    pass

def unseen(*given, **more):
    return nullcontext(nothing)

class Progress:
    quiet = True
    __init__ = say = require_idle = nothing
    stage = unseen
""",
}


def test_every_module_outside_the_keys_says_why_and_has_a_stub() -> None:
    assert STUBS.keys() == set(OUTSIDE)
    assert all(len(closure.why_outside(module)) > 20 for module in OUTSIDE)


QUICK = "--method promptfl --epsilon none --attack loss --rounds 1 --clients 2 --train 4 --test 1"
LONGER = [pytest.param(words, marks=pytest.mark.slow) for words in (LORA, PROMPTS)]  # quick: the first


@pytest.mark.parametrize("words", [QUICK, *LONGER])
def test_no_number_comes_from_modules_outside_the_keys(words: str, tmp_path: Path) -> None:
    """A run of the project and one of a copy with stubs for these leave the same bytes under the same names."""
    stubbed = copied(tmp_path / "code")
    for module, source in STUBS.items():
        (stubbed / FILES[module].relative_to(ROOT)).write_text(source)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    places = ((ours, ROOT), (theirs, stubbed))
    runs = [Started(f"{words} --threads 1 --out {out}".split(), code, printing=False) for out, code in places]
    assert [run.finish().returncode for run in runs] == [0, 0]
    assert len(contents(ours)) > 10
    assert contents(theirs) == contents(ours)


def copied(place: Path) -> Path:
    """The project's code elsewhere; with what Python compiled of it, which it need not do again."""
    for top in ("fedaudit", *ROOMS):
        shutil.copytree(ROOT / top, place / top, symlinks=True)
    for file in ("audit.py", "fedaudit_recorder.py"):
        shutil.copy(ROOT / file, place)
    return place


def keys_in(place: Path) -> list[str]:
    """The keys that the code in a folder gives to the commands."""
    script = (
        "import json, sys; from fedaudit.command.cli import read_command\n"
        "cells = [read_command(words.split()).plan.cells[0] for words in json.loads(sys.argv[1])]\n"
        "print(json.dumps([[c.training_key, str(c.bank_folder), c.analysis_key, str(c.plan.report_folder)] for c in cells]))"
    )
    words = [sys.executable, "-c", script, json.dumps(COMMANDS)]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_new_method_attack_or_task_moves_no_key(tmp_path: Path) -> None:
    place = copied(tmp_path)
    before = keys_in(place)
    for folder, model in (("trainers", "fedavg"), ("attacks", "loss"), ("fedaudit/tasks", "digits")):
        shutil.copy(place / folder / f"{model}.py", place / folder / f"my{model}.py")
    assert keys_in(place) == before
    source = (place / "audits/communication.py").read_text()
    (place / "audits/mycount.py").write_text(source.replace("def communication(", "def mycount("))
    audited = keys_in(place)  # every run that has what it needs is audited by it, and none is trained again
    assert [one[:2] for one in audited] == [one[:2] for one in before]
    assert all(new[2:] != old[2:] for new, old in zip(audited, before, strict=True))
    (place / "trainers/base.py").write_text((place / "trainers/base.py").read_text() + "\n# changed\n")
    assert all(new != old for pair in zip(keys_in(place), before, strict=True) for new, old in zip(*pair, strict=True))


@pytest.mark.slow  # a changed file in a whole run; quick: test_a_changed_file_moves_the_keys_whose_closure_holds_it...
def test_with_the_truth_upside_down_the_old_page_is_not_current(tmp_path: Path) -> None:
    place = copied(tmp_path / "code")
    words = f"--method promptfl --epsilon none --attack loss --rounds 3 --clients 3 --train 12 --test 2 --threads 1 --out {tmp_path / 'out'}"

    def audited() -> tuple[str, float]:
        done = Started(words.split(), place).finish()
        assert done.returncode == 0, done.stderr
        report = Path(done.stdout.strip().rpartition("report: ")[2])
        rows = json.loads((report.with_name("findings.json")).read_text())
        return done.stderr, next(f["value"] for f in rows if f["metric"] == "auroc" and f["headline"])

    _, value = audited()
    assert "reused: report" in audited()[0]
    file = place / "fedaudit/pipeline/attacks.py"
    source = file.read_text()
    assert "truth=federation.truth," in source
    file.write_text(source.replace("truth=federation.truth,", "truth={r: not m for r, m in federation.truth.items()},"))
    said, upside_down = audited()
    assert "reused: report" not in said
    assert "reused: training" in said
    assert upside_down != value


def forget() -> None:
    """Let the next closure be found anew."""
    for cached in (closure.closure, closure.imported, closure.source_file, closure.why_outside, closure._parsed):
        cached.cache_clear()
    places.ours.cache_clear()
    places.places.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `house` that stands for all of ours."""
    monkeypatch.setattr(places, "OURS", "house")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    place = tmp_path / "house"
    (place / "attic").mkdir(parents=True)
    for name in ("__init__", "attic/__init__", "cellar", "stairs", "door", "attic/box"):
        (place / f"{name}.py").write_text("")
    yield place
    forget()


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("import house.cellar", {"cellar"}),
        ("from house import cellar", {"cellar"}),
        ("from house.cellar import wine", {"cellar"}),
        ("def f():\n    from house import cellar", {"cellar"}),
        ("class A:\n    def f(self):\n        import house.attic.box as b", {"attic/__init__", "attic/box"}),
        ("from . import cellar", {"cellar"}),
        ("from .attic.box import lid", {"attic/__init__", "attic/box"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house import cellar", set()),
        ("try:\n    from house import cellar\nexcept ImportError:\n    cellar = None", {"cellar"}),
        ("import json\nfrom pathlib import Path", set()),
        ("text = 'import house.cellar'", set()),
        ('text = """\nimport house.cellar\n"""\nfrom house import stairs', {"stairs"}),
        ("text = '''\nimport house.cellar\n'''\nfrom house import stairs", {"stairs"}),
        ('def f():\n    """\nimport house.cellar\n    """\n    import house.stairs', {"stairs"}),
        ("x = 1\nif x:\n    pass\nelse:\n    import house.cellar", {"cellar"}),
        ("try:\n    pass\nfinally:\n    import house.cellar", {"cellar"}),
        ("@print\ndef f():\n    import house.cellar", {"cellar"}),
        ("from house import (\n    cellar,\n    stairs,\n)", {"cellar", "stairs"}),
        ("x = 1; from house import cellar", {"cellar"}),
        ("from house \\\nimport cellar", {"cellar"}),
    ],
)
def test_what_a_module_reaches(package: Path, source: str, reached: set[str]) -> None:
    (package / "door.py").write_text(source)
    expected = {f"house/{name}.py" for name in {"door"} | reached | ({"__init__"} if reached else set())}
    assert closure.closure("house.door").keys() == expected


def test_statements_that_import_nothing_need_not_be_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unparsed() -> dict[str, Any]:
        """The imports of each module, and why it says that it is outside."""
        parsed = {name: closure._parse.__wrapped__(source) for name, source in sources.items()}
        nodes = {name: [*one.imports, *filter(None, [one.outside])] for name, one in parsed.items()}
        return {name: [*map(ast.unparse, found)] for name, found in nodes.items()}

    sources = {module: path.read_bytes() for module in FILES if (path := closure.source_file(module))}
    assert sources.keys() == FILES.keys()
    less = unparsed()
    monkeypatch.setattr(closure, "_tree", ast.parse)
    assert less == unparsed()


def test_a_module_that_says_so_is_in_no_closure_and_its_imports_are_not_followed(package: Path) -> None:
    (package / "door.py").write_text("import house.stairs\nimport house.cellar")
    (package / "stairs.py").write_text("import house.attic.box\nOUTSIDE_KEYS = 'it only creaks'")
    (package / "cellar.py").write_text("def f():\n    OUTSIDE_KEYS = 'not at module level'")
    assert closure.closure("house.door").keys() == {f"house/{n}.py" for n in ("__init__", "door", "cellar")}


def test_imports_are_followed_in_circles_and_a_module_that_is_not_there_is_an_error(package: Path) -> None:
    (package / "door.py").write_text("from house import stairs")
    (package / "stairs.py").write_text("import house.door\nimport house.cellar")
    assert closure.closure("house.door").keys() == {f"house/{n}.py" for n in ("__init__", "door", "stairs", "cellar")}
    with pytest.raises(ModuleNotFoundError, match=r"house\.roof"):
        closure.closure("house.roof")
