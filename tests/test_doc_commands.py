"""Every command line of README.md, CONTRIBUTING.md, docs/ and `--help` is one that the program takes.

Lines that need data, weights or a file which is not here run to their first refusal, which names what is missing; all
others are read to their plans, and none is run. `--help` and `--list` are shown.
"""

import argparse
import ast
import functools
import itertools
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedaudit.attacks.facts import ATTACKS
from fedaudit.audits import facts
from fedaudit.command import choices, cli, compare_runs, exits, flags, help_texts, new_plugin, nightly, paper
from fedaudit.command.config import presets
from fedaudit.command.listing import KINDS
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.plan import Plan
from fedaudit.reports import paper_items
from fedaudit.tasks.facts import TASKS
from fedaudit.trainers.learners import METHODS, every_learner
from tests.doc_blocks import PAGES, ROOT, anchors, commands, documented, inline, links

OTHERS = {  # programs that are not ours, some in other environments: tests/test_frameworks.py
    ".", "cd", "cp", "echo", "eval", "export", "register-python-argcomplete", "flwr", "git", "hf", "jupytext", "ls", "mail", "mypy",
    "pip", "pytest", "ray", "ruff", "source", "sphinx-build", "unset", "flower/bin/pip", "nvflare/bin/pip", "../../nvflare/bin/python",
}  # fmt: skip
MISSING = ("--backbone", "--weights", "--data-root", "--run", "--config")  # what may name something that is not here
EXAMPLES = commands(re.sub(r"(?<=\S)  +\S.*$", "", help_texts.EXAMPLES, flags=re.MULTILINE))
LINES = documented() + [("--help", tuple(words)) for words in EXAMPLES if len(words) > 1]
LINES += [(".ci/run", tuple(words)) for words in commands((ROOT / ".ci" / "run").read_text()) if "audit.py" in words]


def audit_words(words: Sequence[str]) -> list[str] | None:
    """What a command line gives to the program; None where it starts another one."""
    if words[0] == "python" and words[1] != "-c":
        words = words[1:]
    starts = (["audit.py"], ["fedaudit"], ["-m", "fedaudit"])
    return next(([*words[len(start) :]] for start in starts if [*words[: len(start)]] == start), None)


AUDITS = list(dict.fromkeys(tuple(own) for _, words in LINES if (own := audit_words(words)) is not None))
MODULES = list(dict.fromkeys(
    words[2:] if words[1] == "-m" else (words[1].removesuffix(".py").replace("/", "."), *words[2:])
    for _, words in LINES
    if words[0] == "python" and words[1] != "-c" and audit_words(words) is None
))  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as somebody's who has no data, and no weights but those that are embedded."""
    for name in ("HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "docs" / "nightly" / "matrix.yaml", tmp_path)
    return tmp_path


def plan(words: Sequence[str], scale: Sequence[str] = ()) -> Plan:
    return cli.read_command(words, scale).plan


def test_every_line_starts_a_program_that_is_known() -> None:
    for _, words in LINES:
        ours = words[0] == "python" or words[:2] == ("python3", "-m") or audit_words(words) is not None
        assert ours or words[0] in OTHERS or words[0].startswith("#"), words
    assert len(AUDITS) > 100
    assert len(MODULES) > 40


def read(words: Sequence[str]) -> object:
    """What a command line asks for, or the InputError that refuses it."""
    try:
        night = nightly.read(words, plan)
        return night or compare_runs.read(words) or paper.read(words, plan) or cli.read_command(words)
    except InputError as error:
        return error


def test_lines_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert {shlex.join(words): why for words in AUDITS if (why := wrong_line([*words], capsys))} == {}


def wrong_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Why a line is none that the program takes; "" where it is one."""
    if words[:1] == ["check"] or {"--new", "--plugins"} & {*words}:  # test_own_plugins runs them
        return ""
    if {"--help", "--list"} & {*words} or words == ["--paper", "list"]:
        return "" if cli.main(words) == exits.DONE else "shows nothing"
    absent = [words[words.index(flag) + 1] for flag in MISSING if flag in words]
    asked = read(words)
    refused = str(asked) if isinstance(asked, InputError) else ""
    if isinstance(asked, compare_runs.ComparisonRequest):  # of what lies in a folder that is empty here
        absent = [str(asked.out)]
    if absent and not refused:  # found out when it begins
        capsys.readouterr()
        assert cli.main(words) == exits.MENDABLE
        refused = capsys.readouterr().err
    if isinstance(asked, paper.PaperRequest):
        refused += "".join(str(error) for error in asked.items.values() if isinstance(error, InputError))
    if not absent:
        return refused
    named = refused.startswith(MISSING) or any(name in refused for name in absent)
    return "" if named else f"does not name what is missing: {refused}"


TO_THE_PROGRAM = ("benchmarks.main_job", "benchmarks.messages", "benchmarks.methods")


def test_lines_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {shlex.join(words): why for words in MODULES if (why := wrong_words(*words, patch=monkeypatch))} == {}


def wrong_words(name: str, *words: str, patch: pytest.MonkeyPatch) -> list[str]:
    """The words that the parser of a module, and the program where some are left to it, do not take; of a module without a
    parser those that its docstring does not say."""
    source = ROOT.joinpath(*name.split("."))
    source = source / "__main__.py" if source.is_dir() else source.with_suffix(".py")
    text = source.read_text(encoding="utf-8")
    if name in TO_THE_PROGRAM:  # whose words are those of audit.py
        assert plan(words)
        return []
    if "Parser(" not in text:
        usage = ast.get_docstring(ast.parse(text)) or ""
        assert name in usage or f"{name.replace('.', '/')}.py" in usage
        said = [word for word in words if not word.isdecimal() and not word.isupper()]
        return [word for word in said if not re.search(rf"\b{word}\b", usage, re.IGNORECASE)]
    known, left = argparse.ArgumentParser.parse_known_args, []

    def parse_known_args(parser: argparse.ArgumentParser, given: Sequence[str] | None = None) -> None:
        """Ends the module, which would begin to work, with what its parser leaves for the program."""
        left.extend(known(parser, given)[1])
        raise SystemExit

    def parse_args(parser: argparse.ArgumentParser, given: Sequence[str] | None = None) -> None:
        left.extend(f"no {word}" for word in known(parser, given)[1])
        raise SystemExit

    with patch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patched.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
        patched.setattr(sys, "argv", [name, *words])
        patched.delitem(sys.modules, name, raising=False)  # imported by another test: runpy would warn
        with pytest.raises(SystemExit):
            runpy.run_module(name, run_name="__main__")
    return [word for word in left if word.startswith(("--", "no ")) and word.partition("=")[0] not in known_flags()]


@functools.cache
def known_flags() -> set[str]:
    """Every flag that some command of the program takes."""
    parser = flags.Parser(add_help=True, allow_abbrev=False, conflict_handler="resolve")
    flags.add_choices(parser)
    flags.add_own_run(parser)
    flags.add_general_options(parser)
    new_plugin.add_help(parser)
    for learner in every_learner():
        flags.add_schedule(parser, learner)
        flags.add_backbone(parser, learner)
    names = {flag for action in parser._actions for flag in action.option_strings} | {"--no-twin", "--split"}
    folders = [plugins.package_folder("fedaudit.trainers") / f"{learner}.py" for learner in every_learner()]
    params = [plugins.dataclass_of(path, "Settings") for path in folders]
    params += [plugin.params for kind in KINDS.values() for plugin in kind.values()]
    params += [choices.canaries_class(), choices.Privacy, choices.adversaries.Adversary]
    for field in (field for own in params for field in own.__dataclass_fields__.values()):
        flag = field.name.replace("_", "-")
        names |= {f"--{flag}", *([f"--no-{flag}"] if isinstance(field.default, bool) else [])}
    return names


def said_flags(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z][\w-]*", text)


def test_every_flag_of_a_page_is_one() -> None:
    """Of the program, of benchmarks, pictures and recipes, of pip and Sphinx."""
    paths = [*ROOT.glob("benchmarks/*.py"), ROOT / "docs/pictures/__main__.py", *ROOT.glob("recipes/*.py")]
    sources = " ".join(path.read_text(encoding="utf-8") for path in paths)
    known = known_flags() | {*re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", sources)}
    known |= {"--compare", "--index-url", "--keep-going"}
    for page, text in PAGES.items():
        own = re.findall(r"^ {4}(\w+): \w+ = (?:number|whole|text)\(", text, re.MULTILINE)  # of a method written there
        said = {flag for code in inline(page) for flag in said_flags(code)}
        assert said - known - {f"--{name.replace('_', '-')}" for name in own} == set(), page


def test_every_flag_of_a_files_help_and_docstring_is_one() -> None:
    for plugin in (plugin for kind in KINDS.values() for plugin in kind.values()):
        texts = [ast.get_docstring(ast.parse(plugin.path.read_text(encoding="utf-8"))) or ""]
        texts += [field.metadata.get("help", "") for field in plugin.params.__dataclass_fields__.values()]
        assert {flag for text in texts for flag in said_flags(text)} <= known_flags(), plugin.name


CHOICES = {
    "--preset": presets,
    "--method": lambda: METHODS,
    "--attack": lambda: (*ATTACKS, "all", "none"),
    "--audit": lambda: facts.AUDITS,
    "--task": lambda: TASKS,
    "--paper": lambda: (*paper_items.items(), "all", "list"),
}


def test_what_a_page_gives_a_flag_is_there() -> None:
    """In pieces of a command, as `--preset memorising`; of names in capitals nothing is asked."""
    choices = {flag: {*names()} for flag, names in CHOICES.items()}
    for code in (code for page in PAGES for code in inline(page) if code.startswith("--")):
        for words in commands(code):
            for flag, value in itertools.pairwise(words):
                names = {name.partition(":")[0] if flag == "--method" else name for name in value.split(",")}
                if flag in choices:
                    assert {name for name in names if not re.search("[A-Z]", name)} <= choices[flag], code


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in links(page):
            file, _, anchor = link.partition("#")
            target = ((ROOT / page).parent / file).resolve() if file else ROOT / page
            assert target.exists(), (page, link)
            assert not anchor or anchor in anchors(target.relative_to(ROOT).as_posix()), (page, link)


def linked(page: str) -> set[str]:
    """The pages that a page links to."""
    targets = ((ROOT / page).parent / link.partition("#")[0] for link in links(page) if not link.startswith("#"))
    return {target.resolve().relative_to(ROOT).as_posix() for target in targets} & {*PAGES}


def test_the_readme_leads_to_every_page_by_the_indexes() -> None:
    """README, docs/index.md, a folder's index, the page."""
    assert "docs/index.md" in linked("README.md")
    indexes = {page for page in PAGES if page.endswith("/index.md")}
    assert indexes - {"docs/index.md"} <= linked("docs/index.md")
    for page in {page for page in PAGES if page.startswith("docs/")} - indexes:
        assert page in linked(f"{Path(page).parent.as_posix()}/index.md"), page


def test_pages_that_code_names_are_there() -> None:
    """In messages, help and docstrings."""
    for folder in ("attacks", "audits", "benchmarks", "fedaudit", "recipes", "reports", "tasks", "trainers"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml"):
                for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8")):
                    assert page in PAGES, path


def test_modules_and_files_that_pages_name_are_there() -> None:
    """`tests/test_x.py`, `fedaudit/command/`, but for what a reader is to write."""
    for page in PAGES:
        for code in inline(page):
            if re.fullmatch(r"(attacks|audits|benchmarks|docs|fedaudit|reports|tests|trainers)/[a-z\d_./-]*", code):
                assert (ROOT / code).exists(), (page, code)
