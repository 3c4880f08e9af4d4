"""Defines the flags of the command, and makes parameter objects of parsed options. Imports nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fedaudit.command.argv import doubts, kept_rounds, number, seed, size, whole
from fedaudit.command.config import presets
from fedaudit.machinery.errors import InputError
from fedaudit.trainers.learners import facts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Made = TypeVar("Made", bound="DataclassInstance")

OUT = "fedaudit-runs"
ENGINES = ("local", "ray")  # modules of fedaudit.machinery.engines


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are InputErrors of one sentence, which name the flag's owner or the most
    similar flag. `owner_of` says whose a flag is, "" for nobody's."""

    owner_of: Callable[[str], str] = staticmethod(lambda flag: "")

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            if owner := self.owner_of(word.split("=")[0]):
                raise InputError(f"{word}: is of {owner}, and has no place with this method, task and attack")
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            near = difflib.get_close_matches(word.split("=")[0], flags, n=1)
            hint = f" (did you mean {near[0]}?)" if near else "; see --help"
            raise InputError(f"{word}: no such option for this method, task and attack{hint}")
        flag, _, complaint = message.removeprefix("argument ").partition(": ")
        if complaint == "expected one argument":
            raise InputError(f"{flag}: has no value behind it; one that begins with a dash is written {flag}=-VALUE")
        if (value := complaint.removeprefix("ignored explicit argument ")) != complaint:
            raise InputError(f"{flag}: takes no value; leave out {value}")
        raise InputError(message.removeprefix("argument "))


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose what to audit: --method, --attack, --audit, --task, --run, --preset, ..."""
    group = parser.add_argument_group("what to audit")
    group.add_argument(
        "--method", help="one or several, separated by commas, each as NAME or NAME:PARAMETER=VALUE (default: fedrand)"
    )
    text = "one or several, separated by commas, all, or none (default: maxrenyi for LoRA methods, none for prompts)"
    group.add_argument("--attack", help=text)
    group.add_argument(
        "--audit", metavar="NAME[,NAME...]", help="audits beside the usual ones, or all; --list says which there are"
    )
    group.add_argument(
        "--task", help="on which data (default: captions for LoRA methods, glyphs for prompts, both built in)"
    )
    group.add_argument(
        "--run",
        metavar="FOLDER",
        help="audit a training done elsewhere: a folder as docs/guides/own-runs.md says, one peft adapter, or a "
        "checkpoint of CoOp or MaPLe",
    )
    group.add_argument(
        "--preset", default=DEFAULT_PRESET, help=f"settings to start from: {', '.join(presets())} (default: embedded)"
    )
    group.add_argument(
        "--paper",
        metavar="NAME[,NAME...]",
        help="tables and figures of papers beside the print, as dpfpl:table2; all of a paper (secfpp), all, or list",
    )
    group.add_argument(
        "--nightly", metavar="FILE", help="YAML file with a matrix of audits and gates (docs/guides/nightly.md)"
    )
    group.add_argument("--config", metavar="FILE", help="YAML file with any of these options; flags win over it")


def add_own_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only --run has: --linked-files, --members, --nonmembers, --classes, --accept-doubts."""
    text = (
        "files of --run may be links to, or pictures be paths of, files outside of its folder; they can show in "
        "the report"
    )
    parser.add_argument("--linked-files", action=argparse.BooleanOptionalAction, default=False, help=text)
    for flag, words in (("--members", "trained on"), ("--nonmembers", "not trained on")):
        parser.add_argument(
            flag, metavar="LIST", help=f"if --run is one model: JSON lines of the records that it was {words}"
        )
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="if --run is one checkpoint of prompts: its class names, one a line (default: those of the lists, sorted)",
    )
    parser.add_argument(
        "--accept-doubts",
        type=doubts,
        default=(),
        metavar="CHECK[,CHECK...]",
        help="checks of the recording whose doubts you have looked into: they void no number",
    )


DEFAULT_PRESET = "embedded"


def add_schedule(parser: argparse.ArgumentParser, learner: str) -> None:
    """Add the flags for rounds, clients and seeds, with a learner's defaults."""
    group = parser.add_argument_group("the federation")
    usual = facts(learner)
    numbers = {
        "rounds": (usual.rounds, "communication rounds"),
        "clients": (usual.clients, "clients in the federation"),
        "per-round": (usual.per_round, "clients that take part in a round"),
        "newcomers": (0, "the last so many clients come after the last round, where a method says how"),
        "seed": (0, "fixes data and training"),
        "seeds": (1, "trainings with seeds SEED, SEED+1, ... on the same data"),
    }
    for name, (default, text) in numbers.items():
        default_text = "all" if default is None else default
        text = f"{text} (default: {default_text})"
        group.add_argument(f"--{name}", type=seed if name == "seed" else whole, default=default, metavar="N", help=text)


def add_backbone(parser: argparse.ArgumentParser, learner: str) -> None:
    """Add the flags for the frozen model of a learner."""
    group = parser.add_argument_group("the frozen model")
    if facts(learner).backbone == "clip":
        group.add_argument(
            "--backbone",
            metavar="NAME-or-PATH",
            help="vit or resnet (built in), an architecture of open_clip such as ViT-B-16, or a folder (default: vit)",
        )
        text = (
            "weights of an open_clip architecture: a file, a name such as openai that lies in the local cache, or "
            "random"
        )
        group.add_argument("--weights", metavar="NAME-or-PATH", help=text)
        return
    group.add_argument(
        "--backbone",
        metavar="PATH-or-id",
        help="model folder, or id in the local Hugging Face cache (default: embedded)",
    )
    group.add_argument("--backbone-code", metavar="FILE", help="Python file for a model that needs its own code")
    group.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16"), help="of the frozen model (default: float32)"
    )


def add_general_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the device, folders, gates, dry runs and debugging."""
    group = parser.add_argument_group("the run")
    text = "cuda: NVIDIA's or AMD's GPUs; mps: Apple's; auto: a GPU if there is one (default: auto)"
    group.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help=text)
    text = "of float32 products on a GPU: highest, or tf32, which is faster and has ten bits (default: highest)"
    group.add_argument("--matmul-precision", default="highest", choices=("highest", "tf32"), help=text)
    text = (
        "that a worker's pass may hold, as 4GB: how many clients train together (default: 600MB for prompts, 12GB on a "
        "GPU, 2GB on Apple's; for LoRA 2GB, on a GPU 0.8 of what the model leaves)"
    )
    group.add_argument("--memory", type=size, metavar="SIZE", help=text)
    group.add_argument("--out", default=OUT, metavar="FOLDER", help=f"for runs and reports (default: {OUT})")
    group.add_argument(
        "--fail-if",
        action="append",
        metavar="GATE",
        help='exit code 1 if crossed, as in "auroc.low > 0.6"; may be repeated',
    )
    group.add_argument("--export-run", metavar="FOLDER", help="write the training as a folder that --run reads")
    group.add_argument("--export-adapters", metavar="FOLDER", help="write the models as adapters that peft loads")
    add_places_of_work(group)
    switch = argparse.BooleanOptionalAction  # so that --no-NAME can override a configuration file
    text = "ids, texts, pictures and scores of your own records on the page, not only in its folder"
    group.add_argument("--show-records", action=switch, default=False, help=text)
    text = "say what would run, how long and how much disk"
    group.add_argument("--dry-run", action=switch, default=False, help=text)
    text = "say in half a minute whether data, run and frozen model fit and what is missing, and run nothing"
    group.add_argument("--check", action=switch, default=False, help=text)
    group.add_argument("--whole", action=switch, default=False, help="with --check: read all pictures and tensors")
    add_manner(group)
    text = "methods, attacks, audits, tasks and more, or one of these lists, as in --list attacks; stands alone"
    group.add_argument("--list", nargs="?", metavar="KIND", help=text)
    group.add_argument("--version", action="store_true", help="the version of FedAudit; stands alone")


def add_places_of_work(parser: argparse._ActionsContainer) -> None:
    """Add the flags that say where workers run and what stays on disk: they change no number."""
    text = "where workers run: local, or ray for a cluster (RAY_ADDRESS, docs/guides/clusters.md; default: local)"
    parser.add_argument("--engine", choices=ENGINES, default="local", help=text)
    text = "with --engine ray: processors of each worker (default: 1)"
    parser.add_argument("--worker-cpus", type=number, metavar="N", help=text)
    text = "with --engine ray: GPUs of each worker (default: 0)"
    parser.add_argument("--worker-gpus", type=number, metavar="N", help=text)
    text = (
        "whose tensors stay on disk in the end: all, last (and the one of the least test loss), or also every:N; an "
        "attack that needs others trains them again (default: all)"
    )
    parser.add_argument("--keep-rounds", type=kept_rounds, default="all", metavar="ROUNDS", help=text)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add --out, --dry-run and the flags of `add_manner`, for commands that train nothing by themselves."""
    parser.add_argument("--out", default=OUT, metavar="FOLDER", help=f"for runs and pages (default: {OUT})")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--dry-run", action=switch, default=False, help="say what would be done")
    add_manner(parser)


def add_manner(parser: argparse._ActionsContainer) -> None:
    """Add the flags that change no result by themselves, which every command takes: --plugins, --threads, --quiet,
    --open, --debug."""
    add_plugins(parser)
    workers = min(os.cpu_count() or 1, 4)
    text = f"worker processes, one thread each; results do not depend on it (default: {workers})"
    parser.add_argument("--threads", "--workers", type=whole, default=workers, metavar="N", help=text)
    switch = argparse.BooleanOptionalAction  # so that --no-NAME can override a configuration file
    parser.add_argument("--quiet", action=switch, default=False, help="no progress, results only")
    parser.add_argument("--open", action=switch, default=False, help="show the finished page in the browser")
    text = "the traceback of an unexpected error on stderr"
    parser.add_argument("--debug", action=switch, default=False, help=text)


def add_plugins(parser: argparse._ActionsContainer) -> None:
    """Add --plugins. Whoever reads a command's words has made its plugins known before."""
    text = "methods, attacks, audits and tasks of your own, in folders as ours (docs/guides/plugins.md)"
    parser.add_argument("--plugins", metavar="FOLDER[,FOLDER...]", help=text)


def add_twin(parser: argparse.ArgumentParser) -> None:
    """Add --twin, for methods that add noise."""
    text = "the same training without noise beside what is noised (default: True)"
    parser.add_argument("--twin", action=argparse.BooleanOptionalAction, default=True, help=text)


def dests(add: Callable[[argparse.ArgumentParser], None]) -> set[str]:
    """Names of the options that such a function of this module adds to a parser."""
    parser = argparse.ArgumentParser(add_help=False)
    add(parser)
    return {action.dest for action in parser._actions}


def add_fields(parser: argparse.ArgumentParser, title: str, params: type[DataclassInstance]) -> None:
    """Add a flag for each field of a parameter class, in a group `title`; flags that the parser has are left out.
    Parameters that can be swept take several values, separated by commas. Defaults are None: not given."""
    existing = {flag for action in parser._actions for flag in action.option_strings}
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(params):
        flag = f"--{field.name.replace('_', '-')}"
        if flag in existing:
            continue
        default = "none" if field.default == math.inf else field.default
        valid = f"{valid.short}; " if (valid := field.metadata.get("valid")) and valid.short else ""
        text = f"{field.metadata.get('help', '')} ({valid}default: {default})"
        if isinstance(field.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif field.metadata.get("sweep"):
            reader = functools.partial(_values, type(field.default))
            group.add_argument(flag, type=reader, default=None, metavar="X[,X...]", help=text)
        else:
            kind = type(field.default)
            metavar = {int: "N", float: "X"}.get(kind, "WORD")
            group.add_argument(flag, type=_READERS[kind], default=None, metavar=metavar, help=text)


_READERS: dict[type[Any], Callable[[str], Any]] = {int: whole, float: number, str: str}


def _values(kind: type[Any], text: str) -> tuple[Any, ...]:
    """Parse values of a type, separated by commas; "none" is infinity for floats. ArgumentTypeError: one is wrong."""
    try:
        return tuple(math.inf if word == "none" and kind is float else _READERS[kind](word) for word in text.split(","))
    except argparse.ArgumentTypeError as error:
        limit = ", none for no limit" if kind is float else ""
        raise argparse.ArgumentTypeError(f"{error} (several are separated by commas{limit})") from None


def params_from_options(params: type[Made], options: argparse.Namespace) -> Made:
    """The parameter object with the values of `options`; None means the default. InputError as in
    `params_from_values`."""
    values = {f.name: getattr(options, f.name) for f in dataclasses.fields(params)}
    return params_from_values(params, {name: value for name, value in values.items() if value is not None})


def params_from_values(params: type[Made], values: Mapping[str, Any]) -> Made:
    """The parameter object with these values, and defaults for others. InputError names the flag of a value that the
    class refuses."""
    try:
        return params(**values)
    except ValueError as error:
        name = str(error).split()[0]
        names = {field.name for field in dataclasses.fields(params)}
        flag = f"--{name.replace('_', '-')}: " if name in names else ""
        raise InputError(f"{flag}{error}") from error
