"""`--paper dpfpl:table2`, `secfpp`, `all` or `list`: reproduces tables and figures of papers. Imports nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fedaudit.command import browser, exits
from fedaudit.command.argv import check, given_fields
from fedaudit.command.config import preset_words
from fedaudit.command.flags import DEFAULT_PRESET, Parser, add_choices, add_manner, add_place, dests
from fedaudit.command.window import columns_of_window, listed, tell
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import index, papers
from fedaudit.pipeline.kept_rounds import thin
from fedaudit.pipeline.papers import DrawnItem
from fedaudit.pipeline.plan import Plan
from fedaudit.reports import paper_items
from fedaudit.reports.paper_items import PaperItem

LIST = "list"
REAL = "paper"  # name of the preset that stands for each paper's own settings
COMPARED = {"method", "epsilon", "rank", "seeds"}  # parameters that an item compares; paper's settings do not set them

CHOICES = ("method", "task", "attack", "audit", "run", "config")  # flags that do not go with --paper

Read = Callable[[Sequence[str], Sequence[str]], Plan]  # turns words, and words of a paper's settings, into a plan
Plans = Mapping[str, Plan]  # by task


@dataclass(frozen=True)
class PaperRequest:
    """Items of papers to reproduce, and the options of the command."""

    name: str  # value of --paper
    items: Mapping[str, Plans | InputError]  # plans, or why it cannot run, by item
    out: Path
    quiet: bool
    open: bool
    dry_run: bool
    words: Sequence[str] = ()  # of the command


def read(words: Sequence[str], plan: Read) -> PaperRequest | None:
    """The items of papers that --paper asks for, each with its plans by task; None without --paper. --help prints and
    exits. `plan` turns the words of a task into its plan; an item that cannot run has its InputError in `items`.
    InputError: there is no such item, all items that train something cannot run, or a flag does not go with --paper."""
    first = Parser(add_help=False, allow_abbrev=False)
    add_choices(first)
    chosen, others = first.parse_known_args(words)
    if not chosen.paper:
        return None
    check(words)
    if chosen.paper == LIST:
        _read_place(others)
        if given_fields(words) - dests(add_manner) - {"paper"}:
            raise InputError("--paper list: stands alone; leave out the other words")
        return PaperRequest(LIST, {}, Path(), quiet=False, open=False, dry_run=False)
    names = paper_items.matching(chosen.paper)
    if {"--help", "-h"} & {*words} and (names != [chosen.paper] or not paper_items.find(chosen.paper).preset):
        _help(chosen.paper)  # an item that is trained has the help of its methods
    place, training_flags = _read_place(others)
    if not any(paper_items.find(name).preset for name in names):
        training_flags = [f"--{name}" for name in CHOICES if getattr(chosen, name)] + training_flags
        training_flags += ["--preset"] if chosen.preset != DEFAULT_PRESET else []
        _refuse_training(training_flags, chosen.paper)
    _check(chosen, names)
    items: dict[str, Plans | InputError] = {}
    for name in names:
        try:
            items[name] = _plans(name, chosen, others, plan)
        except InputError as error:
            items[name] = error
    errors = [item for item in items.values() if isinstance(item, InputError)]
    if len(errors) == len([name for name in names if paper_items.find(name).preset]) > 0:
        raise errors[0]
    if not any(items.values()):
        _refuse_training(training_flags, chosen.paper)
    return PaperRequest(chosen.paper, items, Path(place.out), place.quiet, place.open, place.dry_run, list(words))


def _refuse_training(flags: Sequence[str], paper: str) -> None:
    """Raise InputError that names the first of these flags; without flags nothing happens."""
    if flags:
        raise InputError(f"{flags[0]}: has no place beside --paper {paper}, which trains nothing; leave it out")


def _help(name: str) -> NoReturn:
    """Print the help of an item that trains nothing, or of several items, and exit."""
    item = paper_items.items().get(name)
    about = item.summary if item else "Tables and figures of papers, and their index."
    parser = Parser(prog="audit.py", usage=f"audit.py --paper {name} [options]", description=about, allow_abbrev=False)
    add_place(parser)
    parser.parse_args(["--help"])
    raise AssertionError("argparse ends the command")


def _check(chosen: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise InputError for a flag or a preset beside --paper that an item chooses itself."""
    for name in CHOICES:
        if getattr(chosen, name):
            raise InputError(f"--{name} does not go with --paper {chosen.paper}, which says what is run")
    of_items = {preset for name in names if (preset := paper_items.find(name).preset)}
    if chosen.preset not in {DEFAULT_PRESET, REAL, *of_items}:
        raise InputError(
            f"--preset {chosen.preset} does not go with --paper {chosen.paper}, which has its own "
            f"({', '.join(sorted(of_items)) or 'none'}), or with {REAL} the paper's settings on its data"
        )


def _read_place(others: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of `add_place` (such as --out), and the names of all other flags among the words."""
    parser = Parser(add_help=False, allow_abbrev=False)
    add_place(parser)
    place, unknown = parser.parse_known_args(others)
    return place, [word.partition("=")[0] for word in unknown if word.startswith("--")]


def _plans(name: str, chosen: argparse.Namespace, others: Sequence[str], plan: Read) -> Plans:
    """The plans of an item, {task: plan}; {} if it trains nothing. InputError: a word is wrong."""
    item = paper_items.find(name)
    if item.preset is None:
        return {}
    if "--fail-if" in {word.partition("=")[0] for word in others}:
        raise InputError(f"--fail-if does not go with --paper {chosen.paper}, which is a table or figure and no audit")
    tasks, scale = (item.tasks, []) if chosen.preset != REAL else _real(name, item)
    if fixed := given_fields(others) & given_fields(word for words in tasks.values() for word in words):
        flag = f"--{min(fixed).replace('_', '-')}"
        raise InputError(f"{flag} does not go with --paper {chosen.paper}: {name} sets it itself; leave it out")
    shared = [f"--preset={item.preset}", *others]
    return {task: plan([*shared, *item.only, *words], scale) for task, words in tasks.items()}


def _real(name: str, item: PaperItem) -> tuple[paper_items.Words, list[str]]:
    """For --preset paper: the words of each task on the paper's data, {task: words}, and those of the paper's settings
    but for COMPARED, which the item sets. InputError: the item has no such settings."""
    if item.scale is None or item.real is None:
        raise InputError(f"--preset {REAL}: {name} has no settings of its paper; leave it out")
    words = preset_words(item.scale)
    return item.real, [word for word in words if not given_fields([word]) & COMPARED]


def main(request: PaperRequest) -> int:
    """Reproduce the items, or print their list or estimates; return the exit code: `FAILED` if one of several has no
    page, else `DONE`."""
    if request.name == LIST:
        summaries = {name: item.summary for name, item in paper_items.items().items()}
        print("\n".join(listed(summaries, columns_of_window(), indent="")))
        return exits.DONE
    progress = Progress(quiet=request.quiet)
    if request.dry_run:
        for part in _estimates(request, progress):
            tell(f"{part}\n")
        print(f"pages: under {request.out / papers.FOLDER}")
        return exits.DONE
    return (_one if [*request.items] == [request.name] else _several)(request, progress)


def _one(request: PaperRequest, progress: Progress) -> int:
    """Reproduce one item; return the exit code `DONE`."""
    plans = _plans_or_raise(request.items[request.name])
    drawn = papers.draw(request.name, plans, request.out, progress, words=request.words)
    _thin(plans, progress)
    index.write(request.out, progress.say)
    tell(f"agreement: {drawn.agreed}")
    print(f"page: {drawn.page}")
    if request.open and drawn.page:
        browser.show(drawn.page)
    return exits.DONE


def _thin(plans: Plans, progress: Progress) -> None:
    """Remove the rounds that are not to be kept (--keep-rounds)."""
    for plan in plans.values():
        thin(plan.cells, plan.keep_rounds, progress.say)


def _several(request: PaperRequest, progress: Progress) -> int:
    """Reproduce several items and their index; an item that fails is reported and skipped. Return the exit code:
    `FAILED` if any has no page, else `DONE`."""
    done: list[DrawnItem] = []
    for name, plans in request.items.items():
        try:
            drawn = papers.draw(name, _plans_or_raise(plans), request.out, progress, words=request.words)
            tell(f"{name}: {drawn.agreed} ({drawn.seconds:.0f} s)")
        except Exception as error:  # the other items are run whatever happens
            if exits.is_stopping():
                raise
            drawn = DrawnItem(name, 0.0, why=exits.explain(error, debug=False))
            tell(f"failed: {name}: {drawn.why}", sys.stderr)
        done.append(drawn)
        page = papers.write_index(request.name, done, request.out, words=request.words)
    for item in done:  # after the last one, as items may share trainings
        if item.page is not None:
            _thin(_plans_or_raise(request.items[item.name]), progress)
    index.write(request.out, progress.say)
    print(f"index: {page}")
    if request.open:
        browser.show(page)
    return exits.FAILED if any(item.page is None for item in done) else exits.DONE


def _plans_or_raise(plans: Plans | InputError) -> Plans:
    if isinstance(plans, InputError):
        raise plans
    return plans


def _estimates(request: PaperRequest, progress: Progress) -> Iterator[str]:
    """Yield a text per task, or per item that trains nothing or cannot run: what would run, how long and how much disk.
    Trainings and audits that items share are counted once, with the first."""
    from fedaudit.command.dry_run import estimate

    first: dict[Path, str] = {}  # name of the first task with a training or an audit, by its folder
    timings: dict[Hashable, Any] = {}
    for name, plans in request.items.items():
        if isinstance(plans, InputError):
            yield f"{name}: cannot run: {plans}"
        elif not plans:
            yield f"{name}: computed in less than a minute, nothing is trained"
        for task, plan in plans.items() if not isinstance(plans, InputError) else ():
            tasks = dict.fromkeys(first.get(cell.analysis_folder, "") for cell in plan.cells)
            if "" not in tasks:
                yield f"{name}, {task}: the runs of {'; '.join(tasks)}"
                continue
            yield f"{name}, {task}: {estimate(plan, progress, timings, first.keys())}"
            for cell in plan.cells:
                first |= dict.fromkeys({cell.training_folder, cell.analysis_folder} - first.keys(), f"{name}, {task}")
