"""The command line: from words to a checked plan, and from findings to a table in the terminal.

Imports nothing heavy: `--help` and `--list` answer at once, a wrong word is refused before a model is loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedaudit import plugins
from fedaudit.backbones import EMBEDDED
from fedaudit.errors import InputError
from fedaudit.plan import Plan
from fedaudit.progress import Progress

EXAMPLES = """\
examples:
  audit.py --method fedrand --attack maxrenyi        train FedRand, attack it, write a report
  audit.py --method fedavg,fedrand                   both, compared in one report
  audit.py --method fedrand --no-past --rho 0.3      an ablation of FedRand's Table 3
  audit.py --method fedrand --seeds 3                three trainings: spread over seeds beside the record interval
  audit.py --config nightly.yaml --dry-run           what a configuration would run, how long, how much disk
  audit.py --list                                    methods, attacks, audits and tasks
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 2 for what the user can mend, 1 for a run that failed."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(words)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except RuntimeError as error:
        if type(error).__name__ != "WorkerDied":
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main(words: list[str]) -> int:
    if "--list" in words:
        print(_listing())
        return 0
    plan, dry_run, quiet = read_plan(words)
    progress = Progress(quiet=quiet)
    if dry_run:
        from fedaudit.estimate import estimate

        print(estimate(plan, progress))
        return 0
    from fedaudit.run import run

    outcome = run(plan, progress)
    for what in outcome.reused:
        progress.say(f"reused: {what}")
    from fedaudit.summary import show

    show(outcome.findings, plan.attack)
    print(f"report: {outcome.report}")
    return 0


def read_plan(words: Sequence[str]) -> tuple[Plan, bool, bool]:
    """The plan that the words ask for, and whether it is only to be shown, and quietly. InputError for what is wrong."""
    first = _Parser(add_help=False, allow_abbrev=False)
    _add_choices(first)
    chosen, _ = first.parse_known_args(words)
    from_file = _config_words(chosen.config) if chosen.config else []
    chosen, _ = first.parse_known_args([*from_file, *words])
    methods = _names(chosen.method)
    found = [plugins.find("method", name, flag="--method") for name in methods]
    attack = plugins.find("attack", chosen.attack, flag="--attack")
    task = plugins.find("task", chosen.task, flag="--task")
    learners = {plugin.learner for plugin in found}
    if len(learners) > 1:
        raise InputError(f"--method {chosen.method}: these train different things and cannot share one run")
    settings = plugins.dataclass_of(plugins.package_folder("trainers") / f"{learners.pop()}.py", "Settings")
    audit = plugins.plugins("audit")["membership"]
    groups = {
        **{f"method {plugin.name}": plugin.params for plugin in found},
        "local training": settings,
        f"task {task.name}": task.params,
        f"attack {attack.name}": attack.params,
        f"audit {audit.name}": audit.params,
    }
    parser = _Parser(
        prog="audit.py",
        description="Train a federated method, attack what each party saw, and report how much leaked.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_choices(parser)
    _add_run_options(parser)
    for title, params in groups.items():
        _add_fields(parser, title, params)
    if from_file:
        try:
            parser.parse_args(from_file)
        except InputError as error:
            raise InputError(f"{chosen.config}: {error}") from None
    options = parser.parse_args([*from_file, *words])
    made = {title: _make(params, options) for title, params in groups.items()}
    plan = Plan(
        methods={plugin.name: made[f"method {plugin.name}"] for plugin in found},
        settings=made["local training"],
        task=task.name,
        task_params=made[f"task {task.name}"],
        attack=attack.name,
        attack_params=made[f"attack {attack.name}"],
        audit_params=made[f"audit {audit.name}"],
        rounds=_at_least(options, "rounds", 1),
        clients=_at_least(options, "clients", 1),
        per_round=_at_least(options, "per_round", 1),
        seed=_at_least(options, "seed", 0),
        seeds=_at_least(options, "seeds", 1),
        backbone=_backbone(options.backbone),
        device=_device(options.device),
        threads=_at_least(options, "threads", 1),
        out=Path(options.out),
    )
    if plan.per_round > plan.clients:
        raise InputError(f"--per-round {plan.per_round}: at most as many as there are clients ({plan.clients})")
    if len(plan.methods) < len(methods):
        raise InputError(f"--method {chosen.method}: each method once")
    return plan, options.dry_run, options.quiet


class _Parser(argparse.ArgumentParser):
    """argparse whose complaint is one sentence with the nearest right flag."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            near = difflib.get_close_matches(word.split("=")[0], flags, n=1)
            hint = f" (did you mean {near[0]}?)" if near else "; see --help"
            raise InputError(f"{word}: no such option for this method, task and attack{hint}")
        raise InputError(message.removeprefix("argument "))


def _add_choices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to audit")
    group.add_argument("--method", default="fedrand", help="one or several, separated by commas (default: fedrand)")
    group.add_argument("--attack", default="maxrenyi", help="how to attack (default: maxrenyi)")
    group.add_argument("--task", default="captions", help="on which data (default: captions, embedded)")
    group.add_argument("--config", metavar="FILE", help="YAML file with any of these options; flags win over it")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the run")
    numbers = {
        "rounds": (10, "communication rounds"),
        "clients": (12, "clients in the federation"),
        "per-round": (4, "clients that take part in a round"),
        "seed": (0, "fixes data and training"),
        "seeds": (1, "trainings with seeds SEED, SEED+1, ... on the same data"),
        "threads": (min(os.cpu_count() or 1, 4), "worker processes, one thread each; results do not depend on it"),
    }
    for name, (default, text) in numbers.items():
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    group.add_argument(
        "--backbone", default=str(EMBEDDED), metavar="FOLDER", help="model folder (default: the embedded)"
    )
    group.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="(default: auto)")
    group.add_argument(
        "--out", default="fedaudit-runs", metavar="FOLDER", help="for runs and reports (default: fedaudit-runs)"
    )
    group.add_argument("--dry-run", action="store_true", help="say what would run, how long and how much disk")
    group.add_argument("--quiet", action="store_true", help="no progress, results only")
    group.add_argument("--list", action="store_true", help="show methods, attacks, audits and tasks")


def _add_fields(parser: argparse.ArgumentParser, title: str, params: type[Any]) -> None:
    """A flag per field of a Params class; a flag that two classes share sets both."""
    known = {flag for action in parser._actions for flag in action.option_strings}
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(params):
        flag = f"--{field.name.replace('_', '-')}"
        if flag in known:
            continue
        text = f"{field.metadata.get('help', '')} (default: {field.default})"
        if isinstance(field.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            kind = type(field.default)
            metavar = {int: "N", float: "X"}.get(kind, "WORD")
            group.add_argument(flag, type=kind, default=None, metavar=metavar, help=text)


def _make(params: type[Any], options: argparse.Namespace) -> Any:
    """The Params object that the options ask for; what its own check refuses is named by its flag."""
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(params)}
    try:
        return params(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        name = str(error).split()[0]
        flag = f"--{name.replace('_', '-')}: " if name in given else ""
        raise InputError(f"{flag}{error}") from error


def _config_words(path: str) -> list[str]:
    """A YAML mapping as command-line words."""
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise InputError(f"--config {path}: not valid YAML{line}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InputError(f"--config {path}: must be a mapping of option names to values, as in 'rounds: 10'")
    words = []
    for key, value in found.items():
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, dict) or value is None:
            raise InputError(f"--config {path}: {key} must be a plain value, not {value!r}")
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words.append(f"{flag}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return words


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--method: name at least one method; --list shows them")
    return names


def _at_least(options: argparse.Namespace, name: str, least: int) -> int:
    value: int = getattr(options, name)
    if value < least:
        raise InputError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    return value


def _backbone(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise InputError(f"--backbone {path}: no such folder; it must hold config.json and model weights (safetensors)")
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        raise InputError(f"--backbone {path}: holds no config.json with model weights (safetensors)")
    return path


def _device(name: str) -> str:
    """cpu or cuda; torch is asked only where a GPU's driver is."""
    if name == "auto" and not Path("/dev/nvidiactl").exists():
        return "cpu"
    if name != "cpu":
        import torch

        if torch.cuda.is_available():
            return "cuda"
        if name == "cuda":
            raise InputError("--device cuda: torch finds no CUDA device here; use cpu or auto")
    return "cpu"


def _listing() -> str:
    """Methods, attacks, audits and tasks with one line each."""
    lines = []
    for kind, title in (("method", "methods"), ("attack", "attacks"), ("audit", "audits"), ("task", "tasks")):
        lines.append(f"{title} (--{kind}):" if kind != "audit" else f"{title}:")
        lines += [f"  {plugin.name:<14}{plugin.summary}" for plugin in plugins.plugins(kind).values()]
    return "\n".join(lines)
