"""Turns `--method dpfpl,fedper:shared_layers=4 --rank 1,8 --epsilon none,0.1` into methods with parameter objects.
Imports nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.command.argv import words_of
from fedaudit.command.flags import Parser, add_fields, params_from_values
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin
from fedaudit.pipeline.plan import Variant
from fedaudit.privacy.settings import Privacy
from fedaudit.trainers.learners import METHODS, MethodFacts, facts, privacy_of, private, trained_by

Named = dict[str, tuple[Plugin[MethodFacts], dict[str, Any]]]  # method and parameters in its label, by label
LONGEST = 150  # characters of a label, which is part of the names of folders


def classes(plugin: Plugin[MethodFacts], privacy: type[Privacy] | None = None) -> list[type[Any]]:
    """The parameter classes of a method: its `Params`, and, if it can be private, `privacy` (default: the
    learner's)."""
    return [plugin.params, *([privacy or privacy_of(plugin.facts.learner)] if private(plugin.facts) else [])]


def named(text: str) -> Named:
    """The methods in the value of --method, {label: (method, {parameter: value})}; labels NAME or
    NAME:PARAMETER=VALUE:... are separated by commas. InputError: one is wrong or comes twice."""
    methods: Named = {}
    for label in (word.strip() for word in text.split(",")):
        if not label:
            raise InputError(f"--method {text}: a name is missing beside a comma; --list shows the methods")
        if label in methods:
            raise InputError(f"--method {text}: {label} comes twice; name each method once")
        name, *pairs = label.split(":")
        plugin = METHODS.find(name, flag="--method")
        if len(label) > LONGEST:
            raise InputError(f"--method {label}: a method with its parameters must have at most {LONGEST} letters")
        methods[label] = plugin, _label_values(label, plugin, pairs)
    return methods


def _label_values(label: str, plugin: Plugin[MethodFacts], pairs: Sequence[str]) -> dict[str, Any]:
    """{parameter: value} of the pairs PARAMETER=VALUE of a label; values are texts, or True and False. InputError: a
    pair is wrong, or a parameter comes twice."""
    fields = [field.name for cls in classes(plugin) for field in dataclasses.fields(cls)]
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        name = key.replace("-", "_")
        if not equals or not value or name not in fields:
            valid = ", ".join(fields) or "none"
            raise InputError(
                f"--method {label}: {pair!r} must be PARAMETER=VALUE; the parameters of {plugin.name} are: {valid}"
            )
        if name in values:
            raise InputError(f"--method {label}: {name} comes twice; give it one value")
        values[name] = {"true": True, "false": False}.get(value, value)
    return values


def ignored_parameters(methods: Named) -> set[str]:
    """Names of the parameters whose flags change nothing: no method has them, or each method that does sets them in its
    label."""
    of_any = {
        f.name for plugin, _ in methods.values() for cls in (plugin.params, Privacy) for f in dataclasses.fields(cls)
    }
    return of_any - {
        field.name
        for plugin, label_values in methods.values()
        for cls in classes(plugin)
        for field in dataclasses.fields(cls)
        if field.name not in label_values
    }


def variants(methods: Named, options: argparse.Namespace, *, twins: bool) -> dict[str, Variant]:
    """The methods with parameter objects, {label: method}, one for each combination of parameters with several values.
    Those parameters are appended to the label. With `twins`, each method with noise is also run without noise."""
    learner = trained_by(plugin.facts for plugin, _ in methods.values())
    assert learner is not None
    by_label: dict[str, Variant] = {}
    for label, (plugin, label_values) in methods.items():
        param_classes = classes(plugin, privacy_of(learner))
        axes = _axes(label, param_classes, label_values, options)
        if twins and "epsilon" in axes and math.inf not in axes["epsilon"]:
            axes["epsilon"] = (math.inf, *axes["epsilon"])
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            several = [f":{name}={_word(value)}" for name, value in values.items() if len(axes[name]) > 1]
            by_label[label + "".join(several)] = _variant(plugin, param_classes, values)
    return by_label


def _axes(
    label: str, param_classes: Sequence[type[Any]], label_values: Mapping[str, Any], options: argparse.Namespace
) -> dict[str, tuple[Any, ...]]:
    """{parameter: tuple of its values} for all parameters that the label or a flag sets, and those that can be
    swept."""
    reader = Parser(add_help=False, allow_abbrev=False)
    for cls in param_classes:
        add_fields(reader, "", cls)
    try:
        of_label = reader.parse_args(words_of(label_values))
    except InputError as error:
        raise InputError(f"--method {label}: {error}") from None
    axes: dict[str, tuple[Any, ...]] = {}
    for field in (field for cls in param_classes for field in dataclasses.fields(cls)):
        value = getattr(of_label if field.name in label_values else options, field.name)
        if value is None and field.metadata.get("sweep"):
            value = field.default
        if value is not None:
            axes[field.name] = tuple(dict.fromkeys(value)) if isinstance(value, tuple) else (value,)
    return axes


def _variant(plugin: Plugin[MethodFacts], param_classes: Sequence[type[Any]], values: Mapping[str, Any]) -> Variant:
    """The method with one value for each parameter, and its privacy settings: None if neither it nor its learner can be
    private."""
    parts = [
        params_from_values(cls, {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values})
        for cls in param_classes
    ]
    if len(parts) == 1:
        # a method that trains nothing may stand beside methods with noise
        silent = Privacy(epsilon=math.inf) if facts(plugin.facts.learner).private else None
        return Variant(plugin.name, parts[0], silent)
    params, privacy = parts
    if math.isinf(privacy.epsilon):
        # without noise nothing is clipped: the training is the same for all clipping parameters
        privacy = Privacy(epsilon=math.inf, sampler=privacy.sampler)
    return Variant(plugin.name, params, privacy)


def _word(value: Any) -> str:
    return "none" if value == math.inf else f"{value:g}" if isinstance(value, float) else str(value).lower()
