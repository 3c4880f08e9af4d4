"""The command line: from words to a checked plan, and from findings to a table in the terminal.

Imports nothing heavy: `--help` and `--list` answer at once, a wrong word is refused before a model is loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attacks import settings as adversaries
from attacks.facts import ATTACKS, AttackFacts
from attacks.threats import lacks
from audits.facts import AUDITS
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clip_source import ClipSource, resolve_clip
from fedaudit.backbones.resolve import resolve
from fedaudit.command import compare_runs, exits, gates, nightly, paper, sweeps, unused_flags
from fedaudit.command.argv import LARGEST, LARGEST_SEED, check, fields
from fedaudit.command.config import config_words, preset_words
from fedaudit.command.flags import (
    DEFAULT_PRESET,
    Parser,
    add_backbone,
    add_choices,
    add_fields,
    add_general_options,
    add_linked_files,
    add_schedule,
    make,
)
from fedaudit.command.listing import listing
from fedaudit.command.window import columns_of_window
from fedaudit.external import run as own_run
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.plan import Plan
from fedaudit.privacy.settings import Privacy
from fedaudit.tasks.facts import TASKS, TaskFacts
from trainers.learners import METHODS, USUAL, LearnerFacts, facts, privacy_of, private, trained_by

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.tasks.canaries import Canaries

EXAMPLES = """\
examples:
  audit.py --method fedrand --attack maxrenyi        train FedRand, attack it, write a report
  audit.py --method fedavg,fedper,fedpara,fedrand    four methods, compared in one report
  audit.py --method fedper,fedper:shared_layers=4    variants of a method in one report
  audit.py --method fedrand --no-past --rho 0.3      an ablation of FedRand's Table 3
  audit.py --method fedavg,dpfedavg --epsilon 10,1   DP-SGD on adapters, beside the same without noise
  audit.py --method dpfpl --epsilon 0.1              private prompts on a frozen CLIP: utility, what noise proves
  audit.py --method dpfpl --attack shadow            50 shadow models per target client, with and without noise
  audit.py --method fedotp --attack all --targets 4  every attack on prompts, under every threat model
  audit.py --method dpfpl --attack lira,shadow --canaries 100
  audit.py --method promptfl,fedotp,fedpgp,dpfpl --epsilon none,0.4,0.1 --seeds 3
  audit.py --preset private-demo                     noise from none to so much that the prompt is of no use
  audit.py --preset memorising                       prompts that leak: few pictures, many rounds
  audit.py --method dpfpl --epsilon none,0.4,0.1 --attack loss --audit curves   leakage against utility
  audit.py --audit curves --out fedaudit-runs        the same over all runs on disk; trains nothing
  audit.py --audit cost --out fedaudit-runs          bytes, rounds, seconds, memory of these, at equal utility
  audit.py --paper dpfpl:figure3                     a paper's table or figure, ours beside the print; list, or all
  audit.py --task vqa                                questions instead of captions
  audit.py --task coco --data-root DIR --backbone llava-hf/llava-1.5-7b-hf --dtype bfloat16 --preset paper
  audit.py --run FOLDER                              audit a training that was done elsewhere (docs/own-runs.md)
  audit.py --method fedrand --fail-if "auroc.low > 0.6"   exit code 1 when that much leakage is shown
  audit.py --config run.yaml --dry-run               what a configuration would run, how long, how much disk
  audit.py --nightly matrix.yaml                     a matrix of audits: limits, and what changed since earlier nights
  audit.py --list                                    methods, attacks, audits and tasks
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (`fedaudit.command.exits`)."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exits.ended(lambda: _main(words), debug="--debug" in words)


def _main(words: list[str]) -> int:
    if "--list" in words:
        if len(words) > 1:
            raise InputError("--list: stands alone; leave out the other words")
        print(listing(columns_of_window()))
        return exits.DONE
    if (matrix := nightly.read(words, lambda own: read_command(own).plan)) is not None:
        return nightly.main(matrix)
    if (asked := compare_runs.read(words)) is not None:
        return _compare(asked)
    if (items := paper.read(words, lambda own, scale: read_command(own, scale).plan)) is not None:
        return paper.main(items)
    command = read_command(words)
    progress = Progress(quiet=command.quiet)
    if command.dry_run:
        from fedaudit.command.dry_run import estimate

        print(estimate(command.plan, progress))
        return exits.DONE
    from fedaudit.pipeline.notes import canary_notes, cautions
    from fedaudit.pipeline.run import export, run

    outcome = run(command.plan, progress)
    for what in outcome.reused:
        progress.say(f"reused: {what}")
    from fedaudit.command.terminal import show

    show(outcome.findings, command.plan.attack)
    for line in (*cautions(command.plan), *canary_notes(command.plan), *_about_times(command.plan)):
        print(line)
    export(command.plan, progress, run_to=command.export_run, adapters_to=command.export_adapters)
    print(f"report: {outcome.report}")
    crossed = [sentence for gate in command.gates for sentence in gate.crossed(outcome.findings)]
    for sentence in crossed:
        print(f"failed: {sentence}", file=sys.stderr)
    return exits.CROSSED if crossed else exits.DONE


def _about_times(plan: Plan) -> list[str]:
    """Where what was spent can be seen: a report holds nothing that two equal runs could differ in."""
    return [f"seconds and memory: audit.py --audit cost --out {plan.out}"] if "cost" in plan.across else []


def _compare(asked: compare_runs.Asked) -> int:
    """Compare the runs on disk; nothing is trained."""
    from fedaudit.pipeline import runs_on_disk

    progress = Progress(quiet=asked.quiet)
    if asked.dry_run:
        print(runs_on_disk.describe(asked.out, asked.across, progress))
        return exits.DONE
    found = runs_on_disk.compare(asked.out, asked.across, progress)
    for sentence in found.sentences:
        print(sentence)
    print(f"report: {found.report}")
    return exits.DONE


@dataclass(frozen=True)
class Command:
    """What the words ask for: a plan, and what to do beside running it."""

    plan: Plan
    dry_run: bool
    quiet: bool
    gates: Sequence[gates.Gate]
    export_run: Path | None
    export_adapters: Path | None


def read_command(words: Sequence[str], scale: Sequence[str] = ()) -> Command:
    """The command that the words give, `scale` what a paper's own settings add to its preset. InputError for what is
    wrong."""
    check(words)
    first = Parser(add_help=False, allow_abbrev=False)
    add_choices(first)
    chosen, _ = first.parse_known_args(words)
    from_file = config_words(chosen.config) if chosen.config else []
    chosen, _ = first.parse_known_args([*from_file, *words])
    if chosen.run and chosen.preset != DEFAULT_PRESET:
        raise InputError(
            f"--preset {chosen.preset} does not go with --run {chosen.run}: what was trained is in that folder"
        )
    preset = preset_words(chosen.preset)
    sources = {
        f"--preset {chosen.preset}": preset,
        "the paper's settings": scale,
        f"--config {chosen.config}": from_file,
        "": words,
    }
    chosen, _ = first.parse_known_args([*itertools.chain(*sources.values())])
    if chosen.run:
        options, plan = _own_run(chosen, sources)
    else:
        methods, task, learner = _choice(chosen)
        attacks = _attacks(chosen.attack, learner, ours=True)
        options, made = _trained(methods, task, learner, attacks, chosen.audit, sources)
        plan = _plan(options, made, methods, task, facts(learner))
        plan = _comparable(plan, chosen.audit)
        unused_flags.check(plan, options, unused_flags.Said(fields(words), fields(from_file)), sweeps.unheard(methods))
    _check_exports(plan, options)
    limits = [gates.parse(text) for text in options.fail_if or ()]
    for gate in limits:
        gate.check(plan.learner, [ATTACKS[name] for name in plan.attacks], plan.inserted)
    return Command(
        plan, options.dry_run, options.quiet, limits,
        _empty(options.export_run, "--export-run"), _empty(options.export_adapters, "--export-adapters"),
    )  # fmt: skip


Sources = Mapping[str, Sequence[str]]  # words by where they stand, the command line's under ""; the later ones win


def _parser() -> Parser:
    parser = Parser(
        prog="audit.py",
        description="Train a federated method, attack what each party saw, and report how much leaked.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_choices(parser)
    return parser


def _own_run(chosen: argparse.Namespace, sources: Sources) -> tuple[argparse.Namespace, Plan]:
    """The options and the plan to audit a training done elsewhere."""
    if chosen.method or chosen.task:
        flag = "--method" if chosen.method else "--task"
        raise InputError(f"{flag} does not go with --run {chosen.run}: what was trained on what is in that folder")
    learner = own_run.OwnRun.learner
    attacks, parser = _attacks(chosen.attack, learner, ours=False), _parser()
    add_linked_files(parser)
    add_backbone(parser, learner)
    add_general_options(parser)
    options, made = _parse(
        parser, _attack_groups(attacks) | _audits(chosen.audit, attacks, learner, ours=False), sources
    )
    return options, _own_plan(options, made)


def _choice(chosen: argparse.Namespace) -> tuple[sweeps.Named, Plugin[TaskFacts], str]:
    """The methods, the task, and what the methods train. InputError if they do not fit together."""
    task = TASKS.find(chosen.task, flag="--task") if chosen.task else None
    methods = sweeps.named(chosen.method or facts(task.facts.learner if task else USUAL).method)
    learner = trained_by(plugin.facts for plugin, _ in methods.values())
    if learner is None:
        raise InputError(f"--method {chosen.method}: these train different things and cannot share one run")
    if task is None:
        task = TASKS.find(facts(learner).task, flag="--task")
    kind = facts(learner).records
    if facts(task.facts.learner).records != kind:
        fitting = [name for name, p in TASKS.items() if facts(p.facts.learner).records == kind]
        raise InputError(f"--task {task.name}: is not for {', '.join(methods)}, which take {', '.join(fitting)}")
    return methods, task, learner


def _attacks(text: str | None, learner: str, *, ours: bool) -> list[Plugin[AttackFacts]]:
    """The attacks as they are named, of `all` the strongest first; none where nothing is to be attacked. InputError if
    one cannot work on what is trained; `ours`: we train it, and so shadow models of it can be trained."""
    trained = facts(learner)
    able = {name: p for name, p in ATTACKS.items() if lacks(p, trained) is None}
    fitting = {name: p for name, p in able.items() if ours or not p.facts.shadows}
    words = [word.strip() for word in (text or trained.attack).split(",")]
    if words == ["all"]:
        together = [p for name, p in fitting.items() if name not in trained.alone[1:]]
        return sorted(together, key=lambda p: -p.facts.strength)
    if words == ["none"] and trained.unattacked:
        return []
    known = [*fitting, "all", *(["none"] if trained.unattacked else [])]
    for word in words:
        if word in known and word not in fitting:
            raise InputError(f"--attack {text}: {word} stands alone")
        attack = ATTACKS.find(word, flag="--attack")
        if why := lacks(attack, trained):
            raise InputError(
                f"--attack {word}: does not work on {trained.noun}, {why}; valid there: {', '.join(known)}"
            )
        if attack.name not in fitting:
            raise InputError(
                f"--attack {word}: needs shadow models, which are trained as the target was, and how the run in --run "
                f"was trained is not known; valid there: {', '.join(known)}"
            )
    if len(set(words)) < len(words):
        raise InputError(f"--attack {text}: name each attack once")
    if len(set(words) & set(trained.alone)) > 1:
        names = " or ".join(trained.alone)
        raise InputError(f"--attack {text}: {names}, not both; {trained.alone[0]} does all that the other does")
    return [fitting[word] for word in words]


def _attack_groups(attacks: Sequence[Plugin[AttackFacts]]) -> dict[str, type[DataclassInstance]]:
    return {f"attack {attack.name}": attack.params for attack in attacks}


def _canaries() -> type[Canaries]:
    found: type[Any] = plugins.dataclass_of(plugins.package_folder("fedaudit.tasks") / "canaries.py", "Canaries")
    return found


def _audits(
    text: str | None, attacks: Sequence[Plugin[AttackFacts]], learner: str, *, ours: bool
) -> dict[str, type[DataclassInstance]]:
    """The parameters of the audits whose needs a run has, of those on request the ones in `text`; `ours`: we train it,
    and so it has a ledger. InputError if one that is asked for cannot work on it."""
    trained = facts(learner)
    there = {trained.records, *(["attacks"] if attacks else []), *(["ledger", SEVERAL] if ours else [])}
    able = {name: plugin for name, plugin in AUDITS.items() if there.issuperset(plugin.facts.needs)}
    asked = [word.strip() for word in text.split(",")] if text else []
    if asked == ["all"]:
        asked = list(able)
    for word in asked:
        audit = AUDITS.find(word, flag="--audit")
        if missing := sorted({*audit.facts.needs} - there):
            raise InputError(f"--audit {word}: {_LACKS[missing[0]]}; valid here: {', '.join(able)}, all")
    wanted = {name: plugin for name, plugin in able.items() if name in asked or not plugin.facts.on_request}
    return {f"audit {name}": plugin.params for name, plugin in wanted.items()}


_LACKS = {
    "attacks": "needs an attack, and nothing is attacked; name one with --attack",
    "ledger": "needs a training of ours, and the run in --run was done elsewhere",
    "texts": "needs records that are texts",
    "classes": "needs records that are classes",
    "several": "compares settings, and the run in --run is one",
}
SEVERAL = "several"  # what an audit needs that compares settings: more than one


def _comparable(plan: Plan, asked: str | None) -> Plan:
    """The plan; of one setting `all` asks for no audit that compares settings. InputError: such an audit was named."""
    lonely = [name for name in plan.across if SEVERAL in AUDITS[name].facts.needs and len(plan.methods) < 2]
    if lonely and asked != "all":
        raise InputError(
            f"--audit {lonely[0]}: compares settings, and here is one, {next(iter(plan.methods))}; sweep one "
            "(--epsilon none,0.4,0.1), name several methods, or give --audit and --out alone to compare what is on disk"
        )
    return dataclasses.replace(plan, across={name: p for name, p in plan.across.items() if name not in lonely})


def _trained(
    methods: sweeps.Named,
    task: Plugin[TaskFacts],
    learner: str,
    attacks: Sequence[Plugin[AttackFacts]],
    audits: str | None,
    sources: Sources,
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options of a training and what comes after it, and the Params object of every group."""
    trained = facts(learner)
    swept = {f"method {p.name}": cls for p, _ in methods.values() for cls in sweeps.classes(p)[:1]}
    if noised := trained.private or any(private(plugin.facts) for plugin, _ in methods.values()):
        swept["privacy"] = privacy_of(learner)
    else:
        _check_noise(methods, learner, sources)
    settings = plugins.dataclass_of(plugins.package_folder("trainers") / f"{learner}.py", "Settings")
    groups = {"local training": settings, f"task {task.name}": task.params, "canaries": _canaries()}
    groups |= {"the adversary": _adversary(trained)} if attacks and trained.shadows else {}
    groups |= _attack_groups(attacks) | _audits(audits, attacks, learner, ours=True)
    parser = _parser()
    add_schedule(parser, learner)
    add_backbone(parser, learner)
    add_general_options(parser)
    if noised:
        parser.add_argument("--no-twin", action="store_true", help="without the noise-free twin beside what is noised")
    return _parse(parser, groups, sources, swept=swept)


def _adversary(trained: LearnerFacts) -> type[adversaries.Adversary]:
    """Whose defaults are usual for a learner."""
    found: type[adversaries.Adversary] = getattr(adversaries, trained.adversary)
    return found


def _check_noise(methods: sweeps.Named, learner: str, sources: Sources) -> None:
    """InputError: noise is asked for, none of the methods adds any, and another one of their learner could."""
    known = {"twin", *(field.name for field in dataclasses.fields(Privacy))}
    able = [name for name, p in METHODS.items() if p.facts.learner == learner and private(p.facts)]
    for source, words in sources.items():
        for name in sorted(fields(words) & known if able else ()):
            where, flag = f"{source}: " if source else "", f"--{'no-' * (name == 'twin')}{name.replace('_', '-')}"
            raise InputError(
                f"{where}{flag}: {', '.join(methods)} adds no noise; of the {facts(learner).title} methods "
                f"{', '.join(able)} can"
            )


def _parse(
    parser: Parser,
    groups: Mapping[str, type[DataclassInstance]],
    sources: Sources,
    swept: Mapping[str, type[DataclassInstance]] = MappingProxyType({}),
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The options, and the Params object of every group; `swept` groups have parameters that may have several values.

    InputError names the source of what is wrong, if it is not the command line.
    """
    for title, params in {**swept, **groups}.items():
        add_fields(parser, title, params)
    for source, words in sources.items():
        try:
            parser.parse_args(words)
        except InputError as error:
            raise InputError(f"{source}: {error}" if source else str(error)) from None
    options = parser.parse_args([*itertools.chain(*sources.values())])
    return options, {title: make(params, options) for title, params in groups.items()}


def _check_exports(plan: Plan, options: argparse.Namespace) -> None:
    """InputError if what is asked for cannot be exported."""
    flags = [flag for flag in ("--export-run", "--export-adapters") if getattr(options, flag[2:].replace("-", "_"))]
    if flags and len(plan.cells) > 1:
        raise InputError(f"{flags[0]}: exports one training, and this command asks for {len(plan.cells)}")
    if flags and plan.learner != own_run.OwnRun.learner:
        raise InputError(
            f"{flags[0]}: exports LoRA trainings, and {next(iter(plan.methods))} trains {plan.trained.noun}"
        )
    if options.export_run and plan.canaries.canaries:
        raise InputError("--export-run: the format of docs/own-runs.md knows no canaries; leave out --canaries")
    if len(flags) == 2 and Path(options.export_run).absolute() == Path(options.export_adapters).absolute():
        raise InputError(f"--export-adapters {options.export_adapters}: --export-run writes there; name another folder")


def _plan(
    options: argparse.Namespace,
    made: Mapping[str, Any],
    methods: sweeps.Named,
    task: Plugin[TaskFacts],
    trained: LearnerFacts,
) -> Plan:
    clients = _within(options, "clients", 1, 10_000)
    newcomers = _newcomers(options, methods)
    present = clients - newcomers
    plan = Plan(
        methods=sweeps.variants(methods, options, twins=not getattr(options, "no_twin", True)),
        settings=made["local training"],
        task=task.name,
        task_params=made[f"task {task.name}"],
        rounds=_within(options, "rounds", 1, 100_000),
        clients=clients,
        per_round=present if options.per_round is None else _within(options, "per_round", 1, LARGEST),
        seed=_within(options, "seed", 0, LARGEST_SEED),
        seeds=_within(options, "seeds", 1, 1000),
        **_shared(options, made),
        adversary=made.get("the adversary") or _adversary(trained)(),
        canaries=made["canaries"],
        backbone=_backbone(options, trained.backbone),
        newcomers=newcomers,
    )
    if plan.per_round > plan.present:
        without = " without newcomers" if newcomers else ""
        raise InputError(
            f"--per-round {plan.per_round}: at most as many as there are clients{without} ({plan.present})"
        )
    return plan


def _newcomers(options: argparse.Namespace, methods: sweeps.Named) -> int:
    """How many clients come after the run. InputError where no method says how, or where none is there before."""
    found = _within(options, "newcomers", 0, LARGEST)
    if found and not any(plugin.facts.newcomers for plugin, _ in methods.values()):
        able = ", ".join(name for name, plugin in METHODS.items() if plugin.facts.newcomers)
        raise InputError(f"--newcomers {found}: none of these methods says what a new client starts from; {able} does")
    if found >= options.clients:
        raise InputError(f"--newcomers {found}: must be fewer than there are clients ({options.clients})")
    return found


def _backbone(options: argparse.Namespace, kind: str) -> Path | ClipSource:
    if kind == "clip":
        return resolve_clip(options.backbone or "", options.weights or "")
    return resolve(options.backbone or str(EMBEDDED), processor=not options.backbone_code)


def _own_plan(options: argparse.Namespace, made: Mapping[str, Any]) -> Plan:
    """The plan to audit somebody's own run."""
    own = own_run.read(Path(options.run), linked=options.linked_files)
    folder = plugins.package_folder("trainers")
    settings: Callable[..., DataclassInstance] = plugins.dataclass_of(folder / f"{own.learner}.py", "Settings")
    named = options.backbone or (str(EMBEDDED) if own.backbone == "embedded" else own.backbone)
    return Plan(
        methods={own.method: None},
        settings=settings(rank=own.rank, alpha=own.alpha, target_modules=",".join(own.targets)),
        task=own.task,
        task_params=None,
        rounds=own.rounds,
        clients=own.clients,
        per_round=max(map(len, own.cohorts)),
        seed=own.seed,
        seeds=1,
        **_shared(options, made),
        adversary=adversaries.Adversary(),
        canaries=_canaries()(),
        backbone=resolve(named, processor=not options.backbone_code),
        own=own,
    )


def _shared(options: argparse.Namespace, made: Mapping[str, Any]) -> dict[str, Any]:
    code = getattr(options, "backbone_code", None)
    if code is not None and not Path(code).is_file():
        raise InputError(f"--backbone-code {code}: no such file; it takes a Python file (docs/backbones.md)")
    own = {
        kind: {name.removeprefix(f"{kind} "): p for name, p in made.items() if name.startswith(f"{kind} ")}
        for kind in ("attack", "audit")
    }
    across = {name for name in own["audit"] if AUDITS[name].facts.across}
    return {
        "attacks": own["attack"],
        "audits": {name: p for name, p in own["audit"].items() if name not in across},
        "across": {name: p for name, p in own["audit"].items() if name in across},
        "backbone_code": code or "",
        "dtype": getattr(options, "dtype", "float32"),
        "device": _device(options.device),
        "threads": _within(options, "threads", 1, max(64, os.cpu_count() or 1)),
        "out": Path(options.out),
    }


def _empty(text: str | None, flag: str) -> Path | None:
    """A folder to write into. InputError, before anything runs, if there is something in it or in its place."""
    if text is None:
        return None
    path = Path(text)
    file = next((p for p in (path, *path.parents) if p.is_file()), None)
    if file is not None or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"{flag} {text}: there is something already; name a folder that is empty or not there yet")
    return path


def _within(options: argparse.Namespace, name: str, least: int, most: int) -> int:
    value: int = getattr(options, name)
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InputError(f"--{name.replace('_', '-')} {value}: must be {limit}")
    return value


DRIVER = Path("/dev/nvidiactl")


def _device(name: str) -> str:
    """cpu or cuda; torch is asked only where a GPU's driver is."""
    if name == "auto" and not DRIVER.exists():
        return "cpu"
    if name != "cpu":
        import torch

        if torch.cuda.is_available():
            return "cuda"
        if name == "cuda":
            raise InputError("--device cuda: torch finds no CUDA device here; use cpu or auto")
    return "cpu"
