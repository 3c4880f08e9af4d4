"""Writes `fedaudit/options.py`: the keywords of `fedaudit.audit` with their types, from the command's own flags.

`python -m fedaudit.command.option_types` after a change of flags, or with a new plugin; a test says when it is needed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path

from fedaudit.attacks.facts import ATTACKS
from fedaudit.audits.facts import AUDITS
from fedaudit.command import choices, flags
from fedaudit.command.argv import number, seed, size, whole
from fedaudit.machinery import plugins
from fedaudit.tasks.facts import TASKS
from fedaudit.trainers.learners import METHODS, every_learner, facts, privacy_of

FILE = Path(__file__).parent.parent / "options.py"
OF_THE_COMMAND = {*"check compare debug dry_run help list new nightly open paper split version whole".split()}
SEVERAL = ("attack", "audit", "fail_if", "method")  # texts of which a list may be given

HEAD = '''\
"""The keywords of `fedaudit.audit` and `fedaudit.dry_run`, for type checkers and editors. Which of them go together
depends on method, attack and task.

Written by `python -m fedaudit.command.option_types` from the command's flags: do not edit it. Parameters of plugins
from elsewhere are not here; give them as a dictionary, `fedaudit.audit(method="mine", **{"my_rate": 0.1})`.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TypedDict

Texts = str | Sequence[str]
Numbers = float | str | Sequence[float | str]  # "none" and math.inf: no limit
Wholes = int | str | Sequence[int]
Place = str | PathLike[str]
Places = Place | Sequence[Place]


class Options(TypedDict, total=False):
    """The command's flags with underscores; None is as good as not given."""

'''


def text() -> str:
    """The text of `fedaudit/options.py` as it should be."""
    types: dict[str, dict[str, None]] = {}
    for action in _actions():
        types.setdefault(action.dest, {})[_type(action)] = None
    return HEAD + "".join(
        f"    {name}: {' | '.join(types[name])} | None\n" for name in sorted(types.keys() - OF_THE_COMMAND)
    )


def _actions() -> Iterator[argparse.Action]:
    """Yield every flag of an audit, whatever is chosen; those that several parsers have come several times."""
    kinds = [plugin for kind in (METHODS, TASKS, ATTACKS, AUDITS) for plugin in kind.values()]
    ours = [plugin.params for plugin in kinds if not plugin.foreign]
    for learner in every_learner():
        parsers = [flags.Parser(add_help=False) for _ in range(2)]
        flags.add_choices(parsers[0])
        flags.add_schedule(parsers[0], learner)
        flags.add_backbone(parsers[0], learner)
        flags.add_own_run(parsers[0])
        flags.add_general_options(parsers[0])
        flags.add_twin(parsers[0])
        trained = facts(learner)
        settings = plugins.dataclass_of(plugins.package_folder("fedaudit.trainers") / f"{learner}.py", "Settings")
        for params in (settings, choices.adversary_class(trained), privacy_of(learner), choices.canaries_class()):
            flags.add_fields(parsers[1], "", params)
        yield from (action for parser in parsers for action in parser._actions)
    for params in ours:
        parser = flags.Parser(add_help=False)
        flags.add_fields(parser, "", params)
        yield from parser._actions


def _type(action: argparse.Action) -> str:
    """The type of a flag's value in Python, without None."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "bool"
    if action.dest in SEVERAL:
        return "Texts"
    if isinstance(action.type, functools.partial):  # several values, of a type
        return {int: "Wholes", float: "Numbers", str: "Texts"}[action.type.args[0]]
    if action.type in (whole, seed):
        return "int"
    if action.type is size:
        return "int | str"
    if action.type is number:
        return "float"
    metavar = str(action.metavar)
    if metavar.startswith("FOLDER["):
        return "Places"
    place = metavar in ("FOLDER", "FILE", "LIST") or "PATH" in metavar or action.dest.endswith("_root")
    return "Place" if place else "str"


if __name__ == "__main__":
    argparse.ArgumentParser(description=f"Write {FILE.name}, the types of the keywords of fedaudit.audit.").parse_args()
    FILE.write_text(text())
    print(f"written: {FILE}")
