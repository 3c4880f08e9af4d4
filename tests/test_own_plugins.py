"""Plugins from folders and from installed distributions, through the whole pipeline; and the page on them."""

import copy
import functools
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedaudit
from fedaudit import api
from fedaudit.__main__ import main
from fedaudit.attacks.facts import ATTACKS
from fedaudit.audits.facts import AUDITS
from fedaudit.command import config, new_plugin, nightly
from fedaudit.command.cli import read_command
from fedaudit.contracts import attacks as contracts
from fedaudit.machinery import places
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Executor
from fedaudit.trainers.learners import METHODS
from tests.doc_blocks import BLOCKS, commands
from tests.plugin_places import forget, forgotten  # noqa: F401, a fixture

pytestmark = pytest.mark.usefixtures("unsafe_but_quick", "forgotten")
SIZES = "--rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 2 --test 1 --local-steps 1 --threads 1"
RUN = f"--method half_way --attack surprise {SIZES}".split()
KINDS = {"method": "half_way", "attack": "surprise", "audit": "ranks"}
PARTS = {"method": "trainers", "attack": "attacks", "audit": "audits"}
HERE = "\n\n\nclass Facts"  # before it stand the imports of an attack
DOCS = "docs/guides/plugins.md"
PYTHON = [block.text for block in BLOCKS if (block.page, block.language) == (DOCS, "python")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a method, an attack and an audit, as --new writes them."""
    for kind, name in KINDS.items():
        assert main(["--new", kind, name, "--plugins", str(tmp_path / "mine")]) == 0
        forget()
    return tmp_path / "mine"


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def cell(folder: Path, *words: str) -> Any:
    forget()
    (made,) = read_command([*(words or RUN), f"--plugins={folder}"]).plan.cells
    return made


def test_the_page_as_it_stands_to_the_report_and_again_from_another_folder(tmp_path, monkeypatch, capsys) -> None:
    """All blocks in order, the audit at a small size; of the line that audits two methods only the plan."""
    monkeypatch.chdir(tmp_path)
    attack, library = PYTHON
    new, check, use = (commands(block.text) for block in BLOCKS if (block.page, block.language) == (DOCS, ""))
    for words in new:
        assert main(words[1:]) == 0
        forget()
    Path(attack.partition("\n")[0].removeprefix("# ")).write_text(attack.partition("\n")[2])
    assert check == [["fedaudit", "check", "my-plugins"]]
    listing, audit = use
    assert main(listing[1:]) == 0
    assert "Surprise: members surprise a model less" in capsys.readouterr().out
    forget()
    assert [*read_command(audit[1:]).plan.methods] == ["fedavg", "half_way"]
    forget()

    small = {name.replace("-", "_"): int(n) for name, n in re.findall(r"--(\S+) (\d+)", SIZES)}
    monkeypatch.setattr(fedaudit, "audit", functools.partial(fedaudit.audit, **small))  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    exec(library, given)
    assert "surprise" in capsys.readouterr().out
    findings = given["found"].findings
    assert {*findings.method} == {"half_way"}
    assert {*findings[findings.metric == "auroc"].attack} == {"surprise"}
    assert given["ranks"].value.between(0, 1).all()
    assert "Audits of your own" in (page := given["found"].report.read_text())
    assert page.count("ranks</td>") == len(given["ranks"]) > 0
    assert "--plugins=my-plugins" in page
    forget()
    Path("my-plugins").rename("moved")
    assert main([*RUN, "--plugins=moved"]) == 0
    assert "reused: report" in capsys.readouterr().err


def test_what_the_command_says_of_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--plugins", str(folder)]) == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", listed, re.MULTILINE) for name in KINDS.values())
    assert main(["--help", *RUN[:4], "--plugins", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "--server-step" in told
    assert "--surprise-weight" in told
    made = cell(folder, *RUN, "--server-step=0.25", "--surprise-weight=0", "--ranks-level=0.9")
    assert vars(made.variant.params if made.variant else None) == {"server_step": 0.25}
    assert made.plan.audits["ranks"].ranks_level == 0.9  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="--surprise-weight: surprise_weight must be at least 0 and at most 1, not 2"):
        cell(folder, *RUN, "--surprise-weight=2")


def test_the_variable_the_library_a_file_and_a_matrix(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    words = {"method": "half_way", "attack": "surprise", "rounds": 1, "out": tmp_path / "out", "quiet": True}
    with pytest.raises(InputError, match="method='half_way': no such method"):
        fedaudit.dry_run(**words)
    with pytest.raises(InputError, match=r"plugins='/no/where': no such folder"):
        fedaudit.dry_run(plugins="/no/where", **words)
    more: dict[str, Any] = {"server_step": None, "surprise_weight": 0.1}
    forget()
    assert "half_way" in api._command({"plugins": [folder], **words, **more}).plan.methods
    forget()
    (tmp_path / "run.yaml").write_text(f"plugins: {folder}\nmethod: half_way\n")
    assert "half_way" in read_command(["--config", str(tmp_path / "run.yaml")]).plan.methods
    forget()
    (tmp_path / "night.yaml").write_text("matrix: {method: half_way, attack: surprise}\nfail_if: [auroc.low > 0.9]\n")
    nights: list[nightly.NightlyRequest] = []
    monkeypatch.setattr(nightly, "main", lambda night: nights.append(night) or 0)  # type: ignore[func-returns-value]
    assert main(["--nightly", str(tmp_path / "night.yaml"), "--plugins", str(folder)]) == 0
    assert [cell.name for night in nights for cell in night.matrix.cells] == ["method half_way, attack surprise"]
    forget()
    monkeypatch.setenv(places.VARIABLE, str(folder))
    places.places.cache_clear()
    assert "surprise" in ATTACKS
    monkeypatch.setenv(places.VARIABLE, "/no/where")
    forget()
    with pytest.raises(InputError, match=r"FEDAUDIT_PLUGINS /no/where: no such folder$"):
        len(ATTACKS)


def test_without_plugins_nothing_more_is_imported_at_the_start() -> None:
    code = "import sys; from fedaudit.command.listing import listing; listing()\n"
    code += "sys.exit('importlib.metadata' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def told_by_worker(params: Any, name: str) -> tuple[str, float]:
    return ATTACKS[name].load().__module__, params.surprise_weight


def test_workers_know_them(folder: Path) -> None:
    """Forked ones; of spawned ones see test_engines."""
    places.add([folder], "--plugins")
    params = ATTACKS["surprise"].params(surprise_weight=0.125)  # type: ignore[call-arg]
    with Executor(functools.partial(copy.copy, params), workers=2) as executor:
        found = [*executor.map(told_by_worker, ["surprise"] * 2)]
    assert found == [("fedaudit.attacks.surprise", 0.125)] * 2


def test_a_key_holds_a_plugin_and_its_helpers_and_no_path(folder: Path, tmp_path: Path) -> None:
    (folder / "attacks" / "weights.py").write_text('"""A helper."""\n\nHALF = 0.5\n')
    replace(folder / "attacks" / "surprise.py", HERE, f"\nfrom fedaudit.attacks.weights import HALF  # noqa{HERE}")
    (folder / "attacks" / "other.py").write_text('"""A helper of nobody."""\n')

    def keys(place: Path = folder) -> tuple[str, str]:
        made = cell(place)
        return made.training_key, made.analysis_key

    training, analysis = keys()
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "deep")
    (moved / "attacks" / "other.py").write_text('"""Changed."""\n')
    assert keys(moved) == (training, analysis)
    replace(folder / "attacks" / "weights.py", "0.5", "0.25")
    same, changed = keys()
    assert same == training
    assert changed != analysis
    (folder / "audits" / "ranks.py").write_text((folder / "audits" / "ranks.py").read_text() + "\n")
    same, again = keys()
    assert same == training
    assert again not in (changed, analysis)
    before = cell(folder, "--method=fedavg", "--attack=loss").training_key
    (folder / "trainers" / "half_way.py").write_text((folder / "trainers" / "half_way.py").read_text() + "\n")
    assert keys()[0] != training
    assert cell(folder, "--method=fedavg", "--attack=loss").training_key == before


HEAD = '"""Mine: a score that is made up for a test."""\n\nfrom dataclasses import dataclass\n'
PARAMS = "@dataclass(frozen=True)\nclass Params:\n    pass\n"
ATTACK_FACTS = "from fedaudit.attacks.facts import AttackFacts\nclass Facts(AttackFacts):\n    strength = 'x'\n"
METHOD_FACTS = "from fedaudit.trainers.learners import MethodFacts\nclass Facts(MethodFacts):\n    learner = 'heads'\n"
WRONG: list[tuple[str, str, str]] = [
    ("attacks/lira.py", "", r"attacks/lira\.py has the name of .*attacks/lira\.py; rename it"),
    ("attacks/base.py", "", r"mine/attacks/base\.py has the name of .*attacks/base\.py; rename it"),
    ("attacks/mine.py", "def f(:\n", r"mine\.py: is no Python \(.*line 1\)"),
    ("attacks/mine.py", HEAD + "class Mine: ...\n", r"mine\.py: has no class Params, which every attack has"),
    ("attacks/mine.py", HEAD + PARAMS, r"mine\.py: has no class or function that is named as the file"),
    ("audits/mine.py", HEAD + PARAMS + "def mine(): ...\nimport nowhere\n", r"mine\.py: imports nowhere, which is not"),
    ("attacks/mine.py", HEAD + PARAMS + "class Mine: ...\nfrom fedaudit.attacks.lyra import x\n", r"imports fedaudit\.attacks\.lyra\.x, wh"),
    ("attacks/mine.py", HEAD + "class Params(Gone): ...\nclass Mine: ...\n", r"Params must be a dataclass .*Gone"),
    ("attacks/mine.py", HEAD + PARAMS.replace("pass", "a: int") + "class Mine: ...\n", r"Params must be a dataclass whose fields have d"),
    ("attacks/mine.py", HEAD + PARAMS.replace("pass", "a: None = None") + "class Mine: ...\n", r"the default of Params\.a must be a bool"),
    ("attacks/mine.py", HEAD + ATTACK_FACTS + PARAMS + "class Mine: ...\n", r"mine\.py: strength must be int, not 'x'"),
    ("trainers/mine.py", HEAD + METHOD_FACTS + PARAMS + "class Mine: ...\n", "the learner heads of a method or task"),
    ("notes/mine.py", "", "has none of the folders that plugins lie in"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), WRONG, ids=[message[:40] for *_, message in WRONG])
def test_a_wrong_file_is_refused_in_a_sentence(name: str, text: str, message: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    # of a learner that is none `check` says that a contract is broken
    for words in (["--list", "--plugins"], *([["check"]] if "learner" not in message else [])):
        forget()
        assert main([*words, str(tmp_path / "mine")]) == 2
        said = capsys.readouterr().err
        assert re.search(message, said), said
        assert said.count("\n") == 1


def test_two_folders_must_not_share_a_name(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(InputError, match=r"--plugins .*other: .*other/\w+/\w+\.py has the name of .*mine/.*\.py"):
        places.add([folder, tmp_path / "other"], "--plugins")


def test_what_fails_when_it_is_imported_is_a_sentence_too(folder: Path) -> None:
    replace(folder / "attacks" / "surprise.py", "knowledge import Attack,", "knowledge import Attacks,")
    places.add([folder], "--plugins")
    with pytest.raises(InputError, match=r"surprise\.py: cannot be imported \(ImportError: cannot .* 'Attacks'"):
        ATTACKS["surprise"].load()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--new", "--new: needs a kind and a name"),
        ("--new attack", "--new: needs a kind and a name"),
        ("--new atack mine", r"--new atack: no such kind \(did you mean 'attack'\?\); there are method, attack, audit"),
        ("--new attack Mine", "--new attack Mine: must be a name of at most 40 small letters"),
        ("--new attack ../mine", "must be a name"),
        ("--new attack class", "must be a name"),
        ("--new attack all", "must be a name"),
        ("--new attack lira", r"--new attack lira: the name is taken by .*attacks/lira\.py"),
        ("--new attack base", r"the name is taken by .*attacks/base\.py"),
        ("--new attack surprise", r"the name is taken by .*mine/attacks/surprise\.py"),
        ("--new attack mine --rounds 3", "--rounds: has no place beside --new"),
    ],
)
def test_new_refuses(words: str, message: str, folder: Path) -> None:
    with pytest.raises(InputError, match=message):
        new_plugin.read([*words.split(), "--plugins", str(folder)])


def test_new_writes_nothing_over(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_attack_mine.py").write_text("mine")
    with pytest.raises(InputError, match=r"test_attack_mine\.py is there already, and nothing is written over"):
        new_plugin.read(["--new", "attack", "mine", "--plugins", str(tmp_path)])
    assert not (tmp_path / "attacks").exists()


def test_new_is_of_the_command_line_only(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("new: attack\n")
    with pytest.raises(InputError, match="new does not go into a file"):
        config.config_words(str(tmp_path / "run.yaml"))
    with pytest.raises(InputError, match="new: is of the command only"):
        fedaudit.dry_run(new="attack")  # type: ignore[arg-type]


def test_an_attack_that_new_writes_keeps_the_contracts_on_classes(folder: Path) -> None:
    places.add([folder], "--plugins")
    for contract in (*contracts.EACH, *contracts.ON_CLASSES, *contracts.OF_ONE_MODEL):
        contract(ATTACKS["surprise"])


@pytest.mark.slow  # all contracts of three kinds; quick: those of an attack on classes, above
def test_what_new_writes_keeps_all_contracts_and_passes_its_own_tests(folder: Path, capsys: Any) -> None:
    assert main(["check", str(folder)]) == 0
    assert "FAIL" not in capsys.readouterr().out
    words = [sys.executable, "-m", "pytest", "-q", "-n0", str(folder / "tests")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert "6 passed" in done.stdout, done.stdout


def test_what_new_writes_is_formatted_as_our_own(folder: Path) -> None:
    for words in ("check --ignore I", "format --check"):
        place = ["--config", str(Path(__file__).parents[1] / "pyproject.toml"), str(folder)]
        done = subprocess.run([sys.executable, "-m", "ruff", *words.split(), *place], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_check_names_what_is_broken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An attack on classes that says nothing of any record, and whose helper imports what knows the truth."""
    for part in ("trainers", "audits"):
        shutil.rmtree(folder / part)
    changes = {
        '("texts", "classes")': '("classes",)',  # contracts on texts take seconds
        'return {"surprise": ': 'return {"surprise": float("nan") * ',
        HERE: f"\nfrom fedaudit.attacks.peek import LIST  # noqa{HERE}",
    }
    for old, new in changes.items():
        replace(folder / "attacks" / "surprise.py", old, new)
    helper = '"""A helper."""\n\nfrom fedaudit.tasks.base import Record\n\nLIST: list[Record] = []\n'
    (folder / "attacks" / "peek.py").write_text(helper)
    assert main(["check", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "ok    attack surprise  says_what_it_is\n" in printed
    lines = {line.split()[3].rstrip(":"): line for line in printed.splitlines() if line.startswith("FAIL")}
    assert {"learns_no_truth", "finds_a_leak", "bears_certainty"} <= lines.keys()
    assert "fedaudit.attacks.peek imports fedaudit.tasks" in printed
    assert "reaches_the_page" not in printed
    assert printed.splitlines()[-1] == f"1 plugins, {len(lines)} broken contracts"


def test_check_of_nothing_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "attacks").mkdir()
    for words in (["check"], ["check", str(tmp_path)], ["check", str(tmp_path / "gone")]):
        assert main(words) == 2
        assert "check" in capsys.readouterr().err


def installed(place: Path, folder: Path) -> None:
    """The distribution of docs/guides/plugins.md, with the plugins of a folder, as pip would leave it."""
    (block,) = (block for block in BLOCKS if (block.page, block.language) == (DOCS, "toml"))
    about = tomllib.loads(block.text)["project"]
    points = about["entry-points"][places.GROUP]
    (package,) = points.values()
    shutil.copytree(folder, place / package, ignore=shutil.ignore_patterns("tests"))
    (place / package / "__init__.py").write_text("")
    (place / package / "words.py").write_text('"""A helper."""\n\nHALF = 0.5\n')
    for part in PARTS.values():
        (place / package / part / "__init__.py").write_text("")
    replace(place / package / "attacks" / "surprise.py", HERE, f"\nfrom ..words import HALF  # noqa{HERE}")
    info = place / "my_audits-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{places.GROUP}]\n{lines}")


def test_an_installed_distribution_is_found_without_a_flag(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    site = tmp_path / "site"
    installed(site, folder)
    monkeypatch.syspath_prepend(str(site))
    forget()
    attack = ATTACKS["surprise"]
    assert (attack.module, attack.foreign) == ("my_audits.attacks.surprise", True)
    assert attack.load().__module__ == "my_audits.attacks.surprise"
    assert {"half_way"} < METHODS.keys()
    assert {"ranks"} < AUDITS.keys()

    def key() -> str:
        forget()
        return read_command(RUN).plan.cells[0].analysis_key

    before = key()
    replace(site / "my_audits" / "words.py", "0.5", "0.25")
    assert key() != before
    (site / "my_audits" / "attacks" / "lira.py").write_text(HEAD + PARAMS + "class Lira: ...\n")
    forget()
    with pytest.raises(InputError, match=r"my_audits/attacks/lira\.py has the name of .*attacks/lira\.py"):
        len(ATTACKS)
    shutil.rmtree(site / "my_audits")
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_audits"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    forget()
    with pytest.raises(InputError, match="the entry point mine of my-audits: there is no package my_audits"):
        len(ATTACKS)
    monkeypatch.undo()
