"""`fedaudit check FOLDER`: holds plugins from elsewhere against the contracts that ours keep, a line each."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedaudit.command import exits
from fedaudit.command.argv import check as check_words
from fedaudit.command.flags import Parser
from fedaudit.command.listing import KINDS
from fedaudit.command.window import tell
from fedaudit.contracts import files
from fedaudit.machinery import places
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin

Check = tuple[str, str, Callable[[], None]]  # name of a contract, what it says, and the test of one plugin


def main(words: Sequence[str]) -> int:
    """Run the command with the words after `check`; return its exit code: 1 if a contract is broken."""
    return exits.exit_code(lambda: _main(words), debug="--debug" in words)


def _main(words: Sequence[str]) -> int:
    parser = Parser(
        prog="fedaudit check",
        description="Hold plugins against contracts of methods, attacks, audits and tasks (docs/guides/plugins.md).",
        epilog="Exit code 1: a contract is broken; 2: a file cannot be read as a plugin.",
        allow_abbrev=False,
    )
    text = "folders with trainers/, attacks/, audits/ or tasks/ in them; without one: all plugins from elsewhere"
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=text)
    parser.add_argument("--debug", action="store_true", help="the traceback of an unexpected error on stderr")
    check_words(words)
    folders = [Path(folder).expanduser() for folder in parser.parse_args(words).folders]
    plugins = found_in(folders)
    broken = sum(not kept for plugin in plugins for kept in _told(plugin))
    tell(f"{len(plugins)} plugins, {broken} broken contracts" if broken else f"{len(plugins)} plugins keep them all")
    return exits.CROSSED if broken else exits.DONE


def found_in(folders: Sequence[Path]) -> list[Plugin[Any]]:
    """The plugins in these folders; without one, all from elsewhere. InputError: there are none, or a file is wrong."""
    places.add(folders, "check")
    foreign = [plugin for kind in KINDS.values() for plugin in kind.values() if plugin.foreign]
    inside = [folder.absolute() for folder in folders]
    matching = [plugin for plugin in foreign if not inside or any(plugin.path.is_relative_to(one) for one in inside)]
    if not matching:
        where = " ".join(map(str, folders)) or "no FOLDER is given, and no variable or distribution names one"
        raise InputError(f"check: {where}: no plugin is there; see docs/guides/plugins.md")
    return matching


def load(folder: Path, kind: str, name: str) -> Any:
    """The class or function of the plugin `name` in a folder, for its tests. InputError: it is not there."""
    places.add([folder], "load")
    return KINDS[kind].find(name, flag=f"load {folder}: {kind}").load()


def broken_contracts(folder: Path, kind: str, name: str) -> list[str]:
    """The contracts that the plugin `name` in a folder breaks, and why, for its tests. InputError as `load`."""
    places.add([folder], "check")
    plugin = KINDS[kind].find(name, flag=f"check {folder}: {kind}")
    return [f"{contract}: {why}" for contract, why in _judged(plugin) if why]


def _told(plugin: Plugin[Any]) -> Iterator[bool]:
    """Print a line for each contract of a plugin; yield whether it is kept."""
    for contract, why in _judged(plugin):
        line = f"{'FAIL' if why else 'ok':<5} {plugin.kind} {plugin.name}  {contract}{f': {why}' if why else ''}"
        tell(line, sys.stdout)
        yield not why


def _judged(plugin: Plugin[Any]) -> Iterator[tuple[str, str]]:
    """Yield each contract of a plugin with the reason why it is broken, "" if it is kept; those about what the plugin
    does only if its file is as it must be."""
    with tempfile.TemporaryDirectory() as place:
        parts: list[Callable[[], Iterator[Check]]] = [
            lambda: _of_files(plugin), lambda: OF_KIND[plugin.kind](plugin, Path(place)),
            lambda: _whole(plugin, Path(place)),
        ]  # fmt: skip
        for checks in parts:
            broken = False
            for name, why in _each(checks):
                yield name, why
                broken = broken or bool(why)
            if broken:
                return


def _each(checks: Callable[[], Iterator[Check]]) -> Iterator[tuple[str, str]]:
    """Yield each contract with the reason why it is broken; what cannot even be prepared is broken too."""
    prepared = checks()
    while True:
        try:
            with _silence():
                name, about, check = next(prepared)
        except StopIteration:
            return
        except Exception as error:
            yield "can_be_tried", f"{type(error).__name__}: {_short(error)}"
            return
        yield name, _why(about, check)


def _why(about: str, check: Callable[[], None]) -> str:
    """Why a contract is broken; "" if it is kept. It begins with the contract's sentence; what was seen follows."""
    try:
        with _silence(), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            check()
    except AssertionError as error:
        return f"{about} Here: {_short(error)}" if str(error).strip() else about
    except Exception as error:
        return f"{about} Here: {type(error).__name__}: {_short(error)}"
    return ""


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Inside the `with` block nothing is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]} ..."


def _says(contract: Callable[..., None]) -> str:
    return " ".join((contract.__doc__ or "").partition("\n\n")[0].split())


def _of_files(plugin: Plugin[Any]) -> Iterator[Check]:
    for contract in files.CONTRACTS:
        yield contract.__name__, _says(contract), functools.partial(contract, plugin)


def _of_method(plugin: Plugin[Any], place: Path) -> Iterator[Check]:
    from fedaudit.contracts import methods

    subject = methods.subject_of(plugin, place / "rounds")
    refused = subject.method.refuses
    yield "refuses", _says(methods.refuses_with_a_reason), functools.partial(methods.refuses_with_a_reason, subject)
    for contract in methods.CONTRACTS:
        if contract.__name__ not in refused:
            yield contract.__name__, _says(contract), functools.partial(contract, subject)
        else:
            about = f"it is refused ({refused[contract.__name__]}), and kept: take the refusal away."
            yield contract.__name__, about, functools.partial(methods.breaks, contract, subject)


def _of_attack(plugin: Plugin[Any], place: Path) -> Iterator[Check]:
    from fedaudit.contracts import attacks

    for contract in attacks.contracts_of(plugin):
        yield contract.__name__, _says(contract), functools.partial(contract, plugin)


def _of_audit(plugin: Plugin[Any], place: Path) -> Iterator[Check]:
    from fedaudit.contracts import audits

    if plugin.facts.across or "coins" in plugin.facts.needs:  # of several runs, or of runs from elsewhere
        return
    kind = "texts" if "texts" in plugin.facts.needs else "classes"
    subject = audits.AuditOfRun(plugin, audits.small_run(kind, place / "audited"))
    for contract in audits.CONTRACTS:
        yield contract.__name__, _says(contract), functools.partial(contract, subject)


def _of_task(plugin: Plugin[Any], place: Path) -> Iterator[Check]:
    yield from ()


OF_KIND: dict[str, Callable[[Plugin[Any], Path], Iterator[Check]]] = {
    "method": _of_method,
    "attack": _of_attack,
    "audit": _of_audit,
    "task": _of_task,
}


def _whole(plugin: Plugin[Any], place: Path) -> Iterator[Check]:
    from fedaudit.contracts.whole_runs import reaches_the_page

    if plugin.kind != "audit" or "coins" not in plugin.facts.needs:
        yield "reaches_the_page", _says(reaches_the_page), functools.partial(reaches_the_page, plugin, place / "runs")
