"""The command line: from words to a checked plan, and from findings to a table in the terminal.

Imports nothing heavy: `--help` and `--list` answer at once, a wrong word is refused before a model is loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit import gates, ownrun, plugins
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.resolve import resolve
from fedaudit.errors import InputError
from fedaudit.executor import WorkerDied
from fedaudit.options import (
    Parser,
    add_choices,
    add_fields,
    add_general_options,
    add_schedule,
    config_words,
    make,
    preset_words,
    words_of,
)
from fedaudit.plan import Plan, Variant
from fedaudit.plugins import Plugin
from fedaudit.progress import Progress

EXAMPLES = """\
examples:
  audit.py --method fedrand --attack maxrenyi        train FedRand, attack it, write a report
  audit.py --method fedavg,fedper,fedpara,fedrand    four methods, compared in one report
  audit.py --method fedper,fedper:shared_layers=4    variants of a method in one report
  audit.py --method fedrand --no-past --rho 0.3      an ablation of FedRand's Table 3
  audit.py --task vqa                                questions instead of captions
  audit.py --task coco --data-root DIR --backbone llava-hf/llava-1.5-7b-hf --dtype bfloat16 --preset paper
  audit.py --run FOLDER                              audit a training that was done elsewhere (docs/own-runs.md)
  audit.py --method fedrand --fail-if "auroc.low > 0.6"   exit code 1 when that much leakage is shown
  audit.py --config nightly.yaml --dry-run           what a configuration would run, how long, how much disk
  audit.py --list                                    methods, attacks, audits and tasks
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 a crossed gate or a failed run, 2 for what the user can mend."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(words)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    except WorkerDied as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main(words: list[str]) -> int:
    if "--list" in words:
        print(_listing())
        return 0
    command = read_command(words)
    progress = Progress(quiet=command.quiet)
    if command.dry_run:
        from fedaudit.estimate import estimate

        print(estimate(command.plan, progress))
        return 0
    from fedaudit.run import export, run

    outcome = run(command.plan, progress)
    for what in outcome.reused:
        progress.say(f"reused: {what}")
    from fedaudit.summary import show

    show(outcome.findings, command.plan.attack)
    export(command.plan, progress, run_to=command.export_run, adapters_to=command.export_adapters)
    print(f"report: {outcome.report}")
    crossed = [sentence for gate in command.gates for sentence in gate.crossed(outcome.findings)]
    for sentence in crossed:
        print(f"failed: {sentence}", file=sys.stderr)
    return 1 if crossed else 0


@dataclass(frozen=True)
class Command:
    """What the words ask for: a plan, and what to do beside running it."""

    plan: Plan
    dry_run: bool
    quiet: bool
    gates: Sequence[gates.Gate]
    export_run: Path | None
    export_adapters: Path | None


def read_command(words: Sequence[str]) -> Command:
    """The command that the words give. InputError for what is wrong."""
    first = Parser(add_help=False, allow_abbrev=False)
    add_choices(first)
    chosen, _ = first.parse_known_args(words)
    from_file = config_words(chosen.config) if chosen.config else []
    chosen, _ = first.parse_known_args([*from_file, *words])
    before = preset_words(chosen.preset) + from_file
    chosen, _ = first.parse_known_args([*before, *words])
    attack = plugins.find("attack", chosen.attack, flag="--attack")
    audit = plugins.plugins("audit")["membership"]
    groups = {f"attack {attack.name}": attack.params, f"audit {audit.name}": audit.params}
    parser = Parser(
        prog="audit.py",
        description="Train a federated method, attack what each party saw, and report how much leaked.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_choices(parser)
    if chosen.run:
        if chosen.method or chosen.task:
            flag = "--method" if chosen.method else "--task"
            raise InputError(f"{flag} does not go with --run {chosen.run}: what was trained on what is in that folder")
        add_general_options(parser)
        options, made = _parse(parser, groups, before, words, chosen.config)
        plan = _own_plan(options, made, attack, audit)
    else:
        named = _variants(chosen.method or "fedrand")
        task = plugins.find("task", chosen.task or "captions", flag="--task")
        learner = _learner(chosen.method, [plugin for plugin, _ in named.values()])
        trained = {f"method {plugin.name}": plugin.params for plugin, _ in named.values()}
        groups = {**trained, "local training": learner, f"task {task.name}": task.params} | groups
        add_schedule(parser)
        add_general_options(parser)
        options, made = _parse(parser, groups, before, words, chosen.config)
        plan = _plan(options, made, named, task, attack, audit)
    if len(plan.cells) > 1 and (options.export_run or options.export_adapters):
        flag = "--export-run" if options.export_run else "--export-adapters"
        raise InputError(f"{flag}: exports one training, and this command asks for {len(plan.cells)}")
    return Command(
        plan, options.dry_run, options.quiet, [gates.parse(text) for text in options.fail_if or ()],
        _empty(options.export_run, "--export-run"), _empty(options.export_adapters, "--export-adapters"),
    )  # fmt: skip


def _parse(
    parser: Parser, groups: Mapping[str, type[Any]], before: Sequence[str], words: Sequence[str], config: str | None
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options, and the Params object of every group."""
    for title, params in groups.items():
        add_fields(parser, title, params)
    try:
        parser.parse_args(before)
    except InputError as error:
        raise InputError(f"{config}: {error}" if config else str(error)) from None
    options = parser.parse_args([*before, *words])
    return options, {title: make(params, options) for title, params in groups.items()}


def _learner(method: str | None, found: Sequence[Plugin]) -> type[Any]:
    """The Settings of what the methods' clients train."""
    learners = {plugin.learner for plugin in found}
    if len(learners) > 1:
        raise InputError(f"--method {method}: these train different things and cannot share one run")
    return plugins.dataclass_of(plugins.package_folder("trainers") / f"{learners.pop()}.py", "Settings")


def _plan(
    options: argparse.Namespace, made: Mapping[str, Any], named: Mapping[str, tuple[Plugin, dict[str, str]]],
    task: Plugin, attack: Plugin, audit: Plugin,
) -> Plan:  # fmt: skip
    plan = Plan(
        methods={label: _variant(label, plugin, own, options) for label, (plugin, own) in named.items()},
        settings=made["local training"],
        task=task.name,
        task_params=made[f"task {task.name}"],
        rounds=_at_least(options, "rounds", 1),
        clients=_at_least(options, "clients", 1),
        per_round=_at_least(options, "per_round", 1),
        seed=_at_least(options, "seed", 0),
        seeds=_at_least(options, "seeds", 1),
        **_shared(options, made, attack, audit),
        backbone=resolve(options.backbone or str(EMBEDDED), processor=not options.backbone_code),
    )
    if plan.per_round > plan.clients:
        raise InputError(f"--per-round {plan.per_round}: at most as many as there are clients ({plan.clients})")
    return plan


def _own_plan(options: argparse.Namespace, made: Mapping[str, Any], attack: Plugin, audit: Plugin) -> Plan:
    """The plan to audit somebody's own run."""
    own = ownrun.read(Path(options.run))
    settings = plugins.dataclass_of(plugins.package_folder("trainers") / "lora.py", "Settings")
    named = options.backbone or (str(EMBEDDED) if own.backbone == "embedded" else own.backbone)
    return Plan(
        methods={own.method: None},
        settings=settings(rank=own.rank, alpha=own.alpha, targets=",".join(own.targets)),
        task=own.task,
        task_params=None,
        rounds=own.rounds,
        clients=own.clients,
        per_round=max(map(len, own.cohorts)),
        seed=own.seed,
        seeds=1,
        **_shared(options, made, attack, audit),
        backbone=resolve(named, processor=not options.backbone_code),
        own=own,
    )


def _shared(options: argparse.Namespace, made: Mapping[str, Any], attack: Plugin, audit: Plugin) -> dict[str, Any]:
    code = options.backbone_code
    if code and not Path(code).is_file():
        raise InputError(f"--backbone-code {code}: no such file; it takes a Python file (docs/backbones.md)")
    return {
        "attack": attack.name,
        "attack_params": made[f"attack {attack.name}"],
        "audit_params": made[f"audit {audit.name}"],
        "backbone_code": code or "",
        "dtype": options.dtype,
        "device": _device(options.device),
        "threads": _at_least(options, "threads", 1),
        "out": Path(options.out),
    }


def _variants(text: str) -> dict[str, tuple[Plugin, dict[str, Any]]]:
    """Methods by label: "fedper,fedper:shared_layers=4" names one method twice, the second time with a parameter of its own."""
    found: dict[str, tuple[Plugin, dict[str, Any]]] = {}
    for label in (word.strip() for word in text.split(",")):
        if not label:
            continue
        name, *pairs = label.split(":")
        plugin = plugins.find("method", name, flag="--method")
        own: dict[str, Any] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            fields = [field.name for field in dataclasses.fields(plugin.params)]
            if not equals or key.replace("-", "_") not in fields:
                known = ", ".join(fields) or "none"
                raise InputError(
                    f"--method {label}: {pair} must be PARAMETER=VALUE; the parameters of {name} are: {known}"
                )
            own[key.replace("-", "_")] = {"true": True, "false": False}.get(value, value)
        if label in found:
            raise InputError(f"--method {text}: {label} comes twice; name each method once")
        found[label] = plugin, own
    if not found:
        raise InputError("--method: name at least one method; --list shows them")
    return found


def _variant(label: str, plugin: Plugin, own: Mapping[str, Any], options: argparse.Namespace) -> Variant:
    """The method's parameters: the flags' values, and those that the label gives."""
    reader = Parser(add_help=False, allow_abbrev=False)
    add_fields(reader, "", plugin.params)
    try:
        given = reader.parse_args(words_of(own))
    except InputError as error:
        raise InputError(f"--method {label}: {error}") from None
    for field in dataclasses.fields(plugin.params):
        if field.name not in own:
            setattr(given, field.name, getattr(options, field.name))
    return Variant(plugin.name, make(plugin.params, given))


def _empty(text: str | None, flag: str) -> Path | None:
    """A folder to write into. InputError, before anything runs, if there is something in it or in its place."""
    if not text:
        return None
    path = Path(text)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"{flag} {text}: there is something already; name a folder that is empty or not there yet")
    return path


def _at_least(options: argparse.Namespace, name: str, least: int) -> int:
    value: int = getattr(options, name)
    if value < least:
        raise InputError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    return value


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
