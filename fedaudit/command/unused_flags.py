"""Refuses numbers that would be cut down and flags that would change nothing, before anything runs. Imports nothing
heavy."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from fedaudit.attacks.facts import ATTACKS
from fedaudit.machinery import user_files
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.plan import Plan, Variant
from fedaudit.trainers.learners import facts


@dataclass(frozen=True)
class GivenFields:
    """Names of the parameters that the user set; presets do not count."""

    line: Set[str]  # on the command line
    file: Set[str]  # in a configuration file

    def meant(self, name: str, deciders: Set[str]) -> bool:
        """Whether the user meant parameter `name` to take effect: set on the command line, or set in a file while the
        command line sets none of the `deciders`."""
        return name in self.line or (name in self.file and not deciders & self.line)


def check(plan: Plan, options: argparse.Namespace, given: GivenFields, ignored: Set[str]) -> None:
    """Raise InputError for a number that would be cut down, or for a flag that the user gave without effect; `ignored`:
    parameters that no method uses."""
    _check_holdout(plan)
    _check_limits(plan, options)
    _check_layers(plan)
    _check_shadow_kind(plan)
    if options.show_records and not plan.own_files:
        raise InputError("--show-records: has no effect, since records of built-in and public data are always shown")
    if getattr(options, "epsilon", None) == (math.inf,):
        ignored = ignored - {"epsilon"}  # --epsilon none asks for what happens anyway
    for names, deciders, why in _idle(plan, ignored):
        if name := next((name for name in names if given.meant(name, deciders)), None):
            raise InputError(f"--{name.replace('_', '-')}: has no effect, since {why}")


def _check_holdout(plan: Plan) -> None:
    """Raise InputError if there are attacks or canaries, and no records are held out (--holdout 0)."""
    flag = f"--attack {plan.attack}" if plan.attacks else f"--canaries {plan.canaries.canaries}"
    if not getattr(plan.task_params, "holdout", 0.5) and (plan.attacks or plan.canaries.canaries):
        raise InputError(
            f"--holdout 0: all records are trained on, and {flag} needs some that are not; take --holdout 0.5"
        )


def _check_shadow_kind(plan: Plan) -> None:
    """Raise InputError for shadow clients of a method on secret shares: they need the uploads of others, which it
    hides."""
    on_shares = next((name for name, v in plan.methods.items() if v and v.plugin.facts.on_shares), None)
    if on_shares and plan.cells[0].needs_shadows and plan.adversary.shadow_kind != "federations":
        raise InputError(
            f"--attack {plan.attack}: no client of {on_shares} can be trained alone; take --shadow-kind federations"
        )


def _check_limits(plan: Plan, options: argparse.Namespace) -> None:
    """Raise InputError if an option asks for more rounds or clients than the plan has."""
    rounds = "rounds", plan.rounds
    limits = {"observed_rounds": rounds, "solved_rounds": rounds, "last": rounds}
    if plan.trained.shadows:
        limits["targets"] = "clients", plan.clients
    for name, (what, most) in limits.items():
        value = getattr(options, name, None)
        if value is not None and value > most:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} {value}: at most as many as there are {what} ({most})")


def _check_layers(plan: Plan) -> None:
    """Raise InputError if a method shares more layers than the model has, where its configuration tells their
    number."""
    if not isinstance(plan.backbone, Path):
        return
    for label, variant in plan.methods.items():
        wanted = getattr(variant.params, "shared_layers", 0) if variant else 0
        if wanted and (depth := _depth(plan.backbone)) and wanted > depth:
            flag = f"--method {label}" if "shared" in label else f"--shared-layers {wanted}"
            raise InputError(f"{flag}: the language model has {depth} layers")


def _depth(model: Path) -> int | None:
    """Number of layers of the language model in a folder; None if config.json does not tell it as usual."""
    try:
        config = json.loads(user_files.read_bytes(model / "config.json"))
    except (OSError, ValueError, RecursionError):  # loading the model will report the reason
        return None
    text = config.get("text_config", config) if isinstance(config, dict) else None
    layers = text.get("num_hidden_layers") if isinstance(text, Mapping) else None
    return layers if isinstance(layers, int) else None


def _idle(plan: Plan, ignored: Set[str]) -> Iterator[tuple[Set[str], Set[str], str]]:
    """Yield (parameters without effect in this plan, the parameters that decide so, the reason)."""
    yield ignored, {"method"}, f"no method here goes by it ({', '.join(plan.methods)})"
    methods = [variant.plugin.facts for variant in plan.methods.values() if variant]
    if not any(method.trains and facts(method.learner).contexts for method in methods):
        yield {"class_contexts"}, {"method"}, f"no method here trains soft prompts ({', '.join(plan.methods)})"
    if not plan.canaries.canaries:
        yield {"canary_kind"}, {"canaries"}, "there are no canaries; add --canaries"
    if plan.trained.shadows and plan.attacks:
        attacks = [ATTACKS[name].facts for name in plan.attacks]
        if not any(attack.shadows for attack in attacks):
            why = f"no shadow models are trained for {plan.attack}"
            yield {"shadows", "shadow_trajectories", "shadow_kind", "trajectory"}, {"attack"}, why
        if plan.adversary.shadow_kind == "federations":
            yield {"shadow_trajectories"}, {"shadow_kind"}, "whole federations are simulated, each a trajectory"
        if plan.adversary.trajectory == "observed":
            yield {"shadow_trajectories"}, {"trajectory"}, "the server has observed one trajectory, its own"
        if not any(attack.needs for attack in attacks):
            yield {"observed_rounds"}, {"attack"}, f"{plan.attack} observes no messages"
        if not any(attack.mixtures for attack in attacks):
            yield {"solved_rounds"}, {"attack"}, f"{plan.attack} solves no messages"
    if plan.trained.records != "texts":
        yield {"k", "slice", "compat", "novel_rows", "ways"}, {"attack"}, "a record here is one token, a class"
    if all(_noise_free(variant) for variant in plan.methods.values()):
        yield (
            {"delta", "clip", "clip_norm", "sigma"},
            {"epsilon", "method"},
            "nothing is noised; give --epsilon a number",
        )
    partition = getattr(plan.task_params, "partition", "dirichlet")
    if partition != "dirichlet":
        yield {"dirichlet"}, {"partition"}, f"the partition is {partition}; add --partition dirichlet"
    if not getattr(plan.task_params, "holdout", 0.5):
        yield {"reference_share"}, {"holdout"}, "--holdout 0 trains on all records and keeps none for reference"
    if not getattr(plan.settings, "several", True):
        yield {"momentum"}, {"local_steps", "local_epochs"}, "a round is one step; add --local-steps or --local-epochs"
    if epochs := getattr(plan.settings, "local_epochs", 0):
        yield {"local_steps"}, {"local_epochs"}, f"--local-epochs {epochs} decides; 0 would go by --local-steps"


def _noise_free(variant: Variant | None) -> bool:
    return variant is None or variant.privacy is None or math.isinf(variant.privacy.epsilon)
