"""`--paper dpfpl:table2`, `--paper secfpp`, `--paper all`, `--paper list`: tables and figures of papers by name.

Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fedaudit.command import exits
from fedaudit.command.argv import check, fields
from fedaudit.command.config import preset_words
from fedaudit.command.flags import DEFAULT_PRESET, Parser, add_choices, add_place
from fedaudit.command.window import columns_of_window, listed
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import papers
from fedaudit.pipeline.papers import DrawnItem, PaperItem
from fedaudit.pipeline.plan import Plan

LIST = "list"
REAL = "paper"  # the preset that takes every paper's own
COMPARED = {"method", "epsilon", "rank", "seeds"}  # what an item sweeps, whatever the scale

CHOICES = ("method", "task", "attack", "audit", "run", "config")  # that an item makes by itself

Read = Callable[[Sequence[str], Sequence[str]], Plan]  # of words, and of words that a preset adds
Plans = Mapping[str, Plan]


@dataclass(frozen=True)
class AskedItems:
    """Which items, each with the plans of its tasks or with why it cannot run; and where pages go."""

    name: str
    items: Mapping[str, Plans | InputError]
    out: Path
    quiet: bool
    dry_run: bool


def read(words: Sequence[str], plan: Read) -> AskedItems | None:
    """What the words ask for; None where they ask for no paper, or for help. `plan` reads the words of a task.

    InputError: no such item, a word that has no place, or one that no item takes.
    """
    first = Parser(add_help=False, allow_abbrev=False)
    add_choices(first)
    chosen, others = first.parse_known_args(words)
    if not chosen.paper:
        return None
    check(words)
    if chosen.paper == LIST:
        if len(words) > 2:
            raise InputError("--paper list: stands alone; leave out the other words")
        return AskedItems(LIST, {}, Path(), quiet=False, dry_run=False)
    names = papers.item_names(chosen.paper)
    if {"--help", "-h"} & {*words} and (names != [chosen.paper] or not papers.find(chosen.paper).preset):
        _help(chosen.paper)  # that of an item that is trained has the flags of its methods
    place, trained = _place(others)
    if not any(papers.find(name).preset for name in names):
        trained = [f"--{name}" for name in CHOICES if getattr(chosen, name)] + trained
        trained += ["--preset"] if chosen.preset != DEFAULT_PRESET else []
        if trained:
            raise InputError(
                f"{trained[0]}: has no place beside --paper {chosen.paper}, which trains nothing; leave it out"
            )
    _check(chosen, names)
    found: dict[str, Plans | InputError] = {}
    for name in names:
        try:
            found[name] = _plans(name, chosen, others, plan)
        except InputError as error:
            found[name] = error
    errors = [one for one in found.values() if isinstance(one, InputError)]
    if len(errors) == len([name for name in names if papers.find(name).preset]) > 0:
        raise errors[0]
    if trained and not any(one for one in found.values()):
        raise InputError(
            f"{trained[0]}: has no place beside --paper {chosen.paper}, which trains nothing; leave it out"
        )
    return AskedItems(chosen.paper, found, Path(place.out), place.quiet, place.dry_run)


def _help(name: str) -> NoReturn:
    """Show what goes with an item that trains nothing, or with several."""
    about = papers.items()[name].summary if name in papers.items() else "Tables and figures of papers, and their index."
    parser = Parser(prog="audit.py", usage=f"audit.py --paper {name} [options]", description=about, allow_abbrev=False)
    add_place(parser)
    parser.parse_args(["--help"])
    raise AssertionError("argparse ends the command")


def _check(chosen: argparse.Namespace, names: Sequence[str]) -> None:
    """InputError: a choice that an item makes by itself."""
    for name in CHOICES:
        if getattr(chosen, name):
            raise InputError(f"--{name} does not go with --paper {chosen.paper}, which says what is run")
    own = {preset for name in names if (preset := papers.find(name).preset)}
    if chosen.preset not in {DEFAULT_PRESET, REAL, *own}:
        raise InputError(
            f"--preset {chosen.preset} does not go with --paper {chosen.paper}, which has its own "
            f"({', '.join(sorted(own)) or 'none'}), or with {REAL} the paper's settings on its data"
        )


def _place(others: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Where pages go, and the words that say something else."""
    parser = Parser(add_help=False, allow_abbrev=False)
    add_place(parser)
    place, left = parser.parse_known_args(others)
    return place, [word.partition("=")[0] for word in left if word.startswith("--")]


def _plans(name: str, chosen: argparse.Namespace, others: Sequence[str], plan: Read) -> Plans:
    """The plans of an item by task: its preset and tasks, with the words that choose nothing. InputError."""
    item = papers.find(name)
    if item.preset is None:
        return {}
    if "--fail-if" in {word.partition("=")[0] for word in others}:
        raise InputError(f"--fail-if does not go with --paper {chosen.paper}, which is a table or figure and no audit")
    tasks, scale = (item.tasks, []) if chosen.preset != REAL else _real(name, item)
    shared = [f"--preset={item.preset}", *others]
    return {task: plan([*shared, *own], scale) for task, own in tasks.items()}


def _real(name: str, item: PaperItem) -> tuple[papers.Words, list[str]]:
    """The tasks of an item on its paper's data, and the words of the paper's settings without what is compared.
    InputError: there are none."""
    if item.scale is None or item.real is None:
        raise InputError(f"--preset {REAL}: {name} has no settings of its paper; leave it out")
    words = preset_words(item.scale)
    return item.real, [word for word in words if not fields([word]) & COMPARED]


def main(asked: AskedItems) -> int:
    """Run what is asked for, or say what would run; the exit code."""
    if asked.name == LIST:
        named = {name: item.summary for name, item in papers.items().items()}
        print("\n".join(listed(named, columns_of_window(), indent="")))
        return exits.DONE
    progress = Progress(quiet=asked.quiet)
    if asked.dry_run:
        for part in _estimated(asked, progress):
            print(f"{part}\n", flush=True)
        print(f"pages: under {asked.out / papers.FOLDER}")
        return exits.DONE
    if [*asked.items] == [asked.name]:
        drawn = papers.draw(asked.name, _sound(asked.items[asked.name]), asked.out, progress)
        print(f"agreement: {drawn.agreed}\npage: {drawn.page}")
        return exits.DONE
    return _several(asked, progress)


def _several(asked: AskedItems, progress: Progress) -> int:
    """One after the other; what fails is said, and the others go on. The index is written after each."""
    done: list[DrawnItem] = []
    for name, plans in asked.items.items():
        try:
            drawn = papers.draw(name, _sound(plans), asked.out, progress)
            print(f"{name}: {drawn.agreed} ({drawn.seconds:.0f} s)", flush=True)
        except Exception as error:  # whatever it is, the other items are still wanted
            if exits.stopping():
                raise
            drawn = DrawnItem(name, 0.0, why=exits.explained(error, debug=False))
            print(f"failed: {name}: {drawn.why}", file=sys.stderr, flush=True)
        done.append(drawn)
        index = papers.write_index(asked.name, done, asked.out)
    print(f"index: {index}")
    return exits.FAILED if any(one.page is None for one in done) else exits.DONE


def _sound(plans: Plans | InputError) -> Plans:
    if isinstance(plans, InputError):
        raise plans
    return plans


def _estimated(asked: AskedItems, progress: Progress) -> Iterator[str]:
    """What would run, how long and how much disk, of one task after the other, since each takes a while to time; a plan
    that several items share is counted once, and what costs the same timed once."""
    from fedaudit.command.dry_run import estimate

    seen: dict[tuple[str, ...], str] = {}
    timed: dict[Hashable, Any] = {}
    for name, plans in asked.items.items():
        if isinstance(plans, InputError):
            yield f"{name}: cannot run: {plans}"
        elif not plans:
            yield f"{name}: computed in less than a minute, nothing is trained"
        for task, plan in plans.items() if not isinstance(plans, InputError) else ():
            key = tuple(cell.analysis_key for cell in plan.cells)
            if key in seen:
                yield f"{name}, {task}: the runs of {seen[key]}"
                continue
            seen[key] = f"{name}, {task}"
            yield f"{name}, {task}: {estimate(plan, progress, timed)}"
