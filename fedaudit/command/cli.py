"""The command line: reads the words, runs the plan that they ask for, and prints the findings.

Imports nothing heavy: `--help` and `--list` answer at once, a wrong word is refused before a model is loaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedaudit import __version__
from fedaudit.attacks.facts import ATTACKS, AttackFacts
from fedaudit.command import (
    browser,
    choices,
    compare_runs,
    exits,
    flags,
    gates,
    new_plugin,
    nightly,
    paper,
    plans,
    plugin_folders,
    splitting,
    sweeps,
    two_reports,
    unused_flags,
)
from fedaudit.command.argv import check, given_fields
from fedaudit.command.config import config_words, preset_words
from fedaudit.command.following import follow
from fedaudit.command.help_texts import ABOUT, EXAMPLES, Help
from fedaudit.command.listing import listing
from fedaudit.command.owners import is_of_attacks, owners
from fedaudit.command.window import columns_of_window, examples, hanging, tell
from fedaudit.machinery import plugins
from fedaudit.machinery.engines.local import refuse_import
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import index
from fedaudit.pipeline.kept_rounds import thin
from fedaudit.pipeline.plan import Plan
from fedaudit.tasks.facts import TaskFacts, clients_of
from fedaudit.trainers.learners import facts, privacy_of, private

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (`fedaudit.command.exits`). `argv` defaults to sys.argv[1:]."""
    refuse_import()
    words = list(sys.argv[1:] if argv is None else argv)
    return exits.exit_code(lambda: _main(words), debug="--debug" in words)


def _main(words: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may stand at its cursor
        from fedaudit.command.completion import answer

        answer(training_parser)
    if (to_write := new_plugin.read(words)) is not None:
        return new_plugin.main(to_write)
    plugin_folders.use(words)
    if (text := _told(words)) is not None:
        print(text)
        return exits.DONE
    if (to_split := splitting.read(words)) is not None:
        return splitting.main(to_split)
    if (night := nightly.read(words, lambda cell_words: _guarded(read_command(cell_words)).plan)) is not None:
        return nightly.main(night)
    if (reports := two_reports.read(words)) is not None:
        return two_reports.main(reports)
    if (comparison := compare_runs.read(words)) is not None:
        return _compare(comparison)
    if (
        items := paper.read(words, lambda task_words, scale: _guarded(read_command(task_words, scale)).plan)
    ) is not None:
        return paper.main(items)
    if "--check" in words:
        from fedaudit.command.checking import in_time

        with in_time(words):
            return _checked(read_command(words))
    command = _guarded(read_command(words))
    progress = Progress(quiet=command.quiet)
    if command.check:
        return _checked(command)
    from fedaudit.pipeline.permitted import never_run

    if command.dry_run:
        from fedaudit.command.dry_run import estimate

        tell("\n".join([estimate(command.plan, progress), *never_run(command.plan.cells)]))
        return exits.DONE
    from fedaudit.pipeline.notes import canary_notes, cautions
    from fedaudit.pipeline.run import run
    from fedaudit.reports.doubts import stated

    outcome = run(command.plan, progress)
    for what in outcome.reused:
        progress.say(f"reused: {what}")
    from fedaudit.command.terminal import show

    show(outcome.findings, command.plan.attack)
    plan = command.plan
    for line in (*never_run(plan.cells), *cautions(plan), *canary_notes(plan)):
        tell(line)
    if "cost" in plan.across:  # reports leave out what differs between equal runs
        print(f"seconds and memory: audit.py --audit cost --out {plan.out}")
    command.finish(progress)
    index.write(plan.out, progress.say)
    print(f"report: {outcome.report}")
    if command.open:
        browser.show(outcome.report)
    for sentence in stated(outcome.findings):
        tell(f"doubt: {sentence}", sys.stderr)
    crossed = [sentence for gate in command.gates for sentence in gate.crossed(outcome.findings)]
    for sentence in crossed:
        tell(f"failed: {sentence}", sys.stderr)
    return exits.CROSSED if crossed else exits.DONE


def _checked(command: Command) -> int:
    """Check what the command names; return the exit code."""
    from fedaudit.command.checking import check

    return check(command.plan, command.faults, whole=command.whole)


def _guarded(command: Command) -> Command:
    """The command, from here on in a process of its own if it uses Ray, which may end its process without a word."""
    if command.plan.engine == "ray":
        exits.guard()
    return command


def _told(words: Sequence[str]) -> str | None:
    """The text of --version or --list; None if the words ask for neither. InputError: other words are beside it."""
    flags_given = [word.partition("=")[0] for word in words]
    flag = next((flag for flag in ("--version", "--list") if flag in flags_given), None)
    if flag is None:
        return None
    check(words)
    first = flags.Parser(add_help=False, allow_abbrev=False)
    first.add_argument("--version", action="store_true")
    first.add_argument("--list", nargs="?", const="")
    flags.add_manner(first)
    chosen, others = first.parse_known_args(words)
    if others or (chosen.version and chosen.list is not None):
        raise InputError(f"{flag}: stands alone; leave out the other words")
    return f"FedAudit {__version__}" if chosen.version else listing(columns_of_window(), chosen.list)


def _compare(request: compare_runs.ComparisonRequest) -> int:
    """Compare the runs on disk, print the result and return the exit code; nothing is trained."""
    from fedaudit.pipeline import runs_on_disk

    progress = Progress(quiet=request.quiet)
    if request.dry_run:
        tell(runs_on_disk.describe(request.out, request.across, progress))
        return exits.DONE
    comparison = runs_on_disk.compare(request.out, request.across, progress, words=request.words)
    index.write(request.out, progress.say)
    for sentence in comparison.sentences:
        tell(sentence)
    print(f"report: {comparison.report}")
    if request.open:
        browser.show(comparison.report)
    return exits.DONE


@dataclass(frozen=True)
class Command:
    """A checked command: its plan, the gates of --fail-if, and the folders to export to, which are empty or absent."""

    plan: Plan
    dry_run: bool
    check: bool
    whole: bool  # with `check`: all is read
    faults: Sequence[str]  # with `check`: why the frozen model cannot be used, for which the embedded one stands
    quiet: bool
    open: bool  # the page in a browser at the end
    gates: Sequence[gates.Gate]
    export_run: Path | None
    export_adapters: Path | None

    def finish(self, progress: Progress) -> None:
        """Write the finished training into the folders to export to, if there are any; remove rounds that are not to be
        kept."""
        if self.export_run or self.export_adapters:
            from fedaudit.pipeline.compute import export

            export(self.plan, progress, run_to=self.export_run, adapters_to=self.export_adapters)
        thin(self.plan.cells, self.plan.keep_rounds, progress.say)


def read_command(words: Sequence[str], scale: Sequence[str] = ()) -> Command:
    """Parse and check command-line words. InputError: they are wrong. Later sources win: the preset, `scale` (a paper's
    own settings, as words), the file of --config, `words`."""
    check(words)
    first = flags.Parser(add_help=False, allow_abbrev=False)
    flags.add_choices(first)
    chosen, _ = first.parse_known_args(words)
    from_file = config_words(chosen.config) if chosen.config else []
    chosen, _ = first.parse_known_args([*from_file, *words])
    plugin_folders.use([*from_file, *words])
    if chosen.run and chosen.preset != flags.DEFAULT_PRESET:
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
    faults: list[str] = []
    if chosen.run:
        options, plan = _read_own_run(chosen, sources, faults)
    else:
        methods, task, learner = choices.read_methods(chosen)
        attacks = choices.read_attacks(chosen.attack, learner)
        options, made = _read_training(methods, task, learner, attacks, chosen.audit, sources)
        plan = plans.training_plan(options, made, methods, task, facts(learner), faults)
        plan = choices.without_comparisons(plan, chosen.audit)
        given = unused_flags.GivenFields(given_fields(words), given_fields(from_file))
        unused_flags.check(plan, options, given, sweeps.ignored_parameters(methods))
    own_words = given_fields(words)
    plan = dataclasses.replace(plan, words=[*(w for w in scale if not given_fields([w]) & own_words), *words])
    plans.check_exports(plan, options)
    limits = [gates.parse(text) for text in options.fail_if or ()]
    for gate in limits:
        gate.check(plan.learner, [ATTACKS[name] for name in plan.attacks], plan.inserted, plan.noised)
    if options.whole and not options.check:
        raise InputError("--whole: goes with --check; an audit reads all pictures and tensors")
    return Command(
        plan, options.dry_run, options.check, options.whole, faults, options.quiet, options.open, limits,
        plans.empty_folder(options.export_run, "--export-run"),
        plans.empty_folder(options.export_adapters, "--export-adapters"),
    )  # fmt: skip


def _parser() -> flags.Parser:
    width = shutil.get_terminal_size().columns
    parser = flags.Parser(
        prog="audit.py",
        usage="audit.py [--method NAME] [--attack NAME] [--task NAME] [options]",
        description="\n".join(hanging("", ABOUT, width)),
        epilog=examples(EXAMPLES, width),
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.owner_of = owners
    flags.add_choices(parser)
    splitting.add_help(parser)
    two_reports.add_help(parser)
    new_plugin.add_help(parser)
    return parser


def _read_own_run(
    chosen: argparse.Namespace, sources: choices.Sources, faults: list[str]
) -> tuple[argparse.Namespace, Plan]:
    """The options and the plan to audit a training done elsewhere (--run)."""
    if chosen.method or chosen.task:
        flag = "--method" if chosen.method else "--task"
        raise InputError(f"{flag} does not go with --run {chosen.run}: what was trained on what is in that folder")
    first = flags.Parser(add_help=False, allow_abbrev=False)
    flags.add_own_run(first)
    lists, _ = first.parse_known_args([*itertools.chain(*sources.values())])
    external = plans.external_run(chosen.run, lists)
    learner, repeatable = external.learner, external.repeatable
    attacks, parser = choices.read_attacks(chosen.attack, learner, of_own_run=True, shadows=repeatable), _parser()
    flags.add_own_run(parser)
    flags.add_backbone(parser, learner)
    flags.add_general_options(parser)
    groups = choices.attack_groups(attacks)
    if attacks and repeatable:
        groups["the adversary"] = choices.adversary_class(facts(learner))
    coins = external.coins is not None
    groups |= choices.audit_groups(chosen.audit, attacks, learner, trained_here=False, coins=coins)
    options, made = _parse(parser, groups, sources)
    return options, plans.own_run_plan(options, made, external, faults)


def _read_training(
    methods: sweeps.Named, task: Plugin[TaskFacts], learner: str, attacks: Sequence[Plugin[AttackFacts]],
    audits: str | None, sources: choices.Sources,
) -> tuple[argparse.Namespace, dict[str, Any]]:  # fmt: skip
    """The options of a training with its attacks and audits, and the parameter object of each group, by title."""
    parser, groups, swept = training_parser(methods, task, learner, attacks, audits)
    if "privacy" not in swept:
        choices.check_noise(methods, learner, sources)
    on_shares = any(plugin.facts.on_shares for plugin, _ in methods.values())
    options, made = _parse(parser, groups, sources, swept=swept, on_shares=on_shares)
    if "clients" not in given_fields(itertools.chain(*sources.values())):
        fitting = clients_of(task, made[f"task {task.name}"], options.clients)
        if fitting != options.clients:
            options.clients = fitting
            follow(options, {**sources, "own files": ["--clients"]}, (), on_shares=on_shares)
    return options, made


Classes = dict[str, "type[DataclassInstance]"]  # parameter classes by the title of their group of flags


def training_parser(
    methods: sweeps.Named, task: Plugin[TaskFacts], learner: str, attacks: Sequence[Plugin[AttackFacts]],
    audits: str | None,
) -> tuple[flags.Parser, Classes, Classes]:  # fmt: skip
    """A parser of all flags of a training with its attacks and audits but those of parameter classes; these classes,
    and those whose parameters can be swept."""
    trained = facts(learner)
    swept: Classes = {f"method {p.name}": cls for p, _ in methods.values() for cls in sweeps.classes(p)[:1]}
    if noised := trained.private or any(private(plugin.facts) for plugin, _ in methods.values()):
        swept["privacy"] = privacy_of(learner)
    settings = plugins.dataclass_of(plugins.package_folder("fedaudit.trainers") / f"{learner}.py", "Settings")
    groups: Classes = {
        "local training": settings,
        f"task {task.name}": task.params,
        "canaries": choices.canaries_class(),
    }
    groups |= {"the adversary": choices.adversary_class(trained)} if attacks and trained.shadows else {}
    groups |= choices.attack_groups(attacks) | choices.audit_groups(audits, attacks, learner, trained_here=True)
    parser = _parser()
    flags.add_schedule(parser, learner)
    flags.add_backbone(parser, learner)
    flags.add_general_options(parser)
    if noised:
        flags.add_twin(parser)
    return parser, groups, swept


def _parse(
    parser: flags.Parser,
    groups: Mapping[str, type[DataclassInstance]],
    sources: choices.Sources,
    swept: Mapping[str, type[DataclassInstance]] = MappingProxyType({}),
    on_shares: bool = False,
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse the words of all sources. Return the options, and the parameter object of each of the `groups`, by title.

    `groups` and `swept` map titles to parameter classes; those in `swept` get flags, but no object, since a sweep
    makes several. `on_shares` as in `follow`. InputError names the source that is wrong, unless it is the command line.
    """
    for title, params in {**swept, **groups}.items():
        flags.add_fields(parser, title, params)
    sources = dict(sources)
    for source, words in sources.items():
        try:
            if source.startswith("--preset "):  # it may say something about attacks that do not run
                _, unknown = parser.parse_known_args(words)
                idle = {word for word in unknown if is_of_attacks(word.partition("=")[0])}
                sources[source] = words = [word for word in words if word not in idle]
            parser.parse_args(words)
        except InputError as error:
            raise InputError(f"{source}: {error}" if source else str(error)) from None
    options = parser.parse_args([*itertools.chain(*sources.values())])
    follow(options, sources, [*groups.values(), *swept.values()], on_shares=on_shares)
    return options, {title: flags.params_from_options(params, options) for title, params in groups.items()}
