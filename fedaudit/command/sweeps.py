"""From `--method dpfpl,fedper:shared_layers=4 --rank 1,8 --epsilon none,0.1` to methods with their parameters. Imports
nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.command.argv import words_of
from fedaudit.command.flags import Parser, add_fields, made
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.plugins import Plugin
from fedaudit.pipeline.plan import Variant
from fedaudit.privacy.settings import Privacy
from trainers.learners import METHODS, MethodFacts, facts, privacy_of, private, trained_by

Named = dict[str, tuple[Plugin[MethodFacts], dict[str, Any]]]
LONGEST = 150  # letters of a label, which is part of folders' names


def classes(plugin: Plugin[MethodFacts], privacy: type[Privacy] | None = None) -> list[type[Any]]:
    """The dataclasses that hold a method's parameters: its own, and how it is made private where it can be, by default
    as is usual for what it trains."""
    return [plugin.params, *([privacy or privacy_of(plugin.facts.learner)] if private(plugin.facts) else [])]


def named(text: str) -> Named:
    """Methods by label: "fedper,fedper:shared_layers=4" names one method twice, the second time with a parameter of its
    own."""
    found: Named = {}
    for label in (word.strip() for word in text.split(",")):
        if not label:
            raise InputError(f"--method {text}: a name is missing beside a comma; --list shows the methods")
        if label in found:
            raise InputError(f"--method {text}: {label} comes twice; name each method once")
        name, *pairs = label.split(":")
        plugin = METHODS.find(name, flag="--method")
        if len(label) > LONGEST:
            raise InputError(f"--method {label}: a method with its parameters must have at most {LONGEST} letters")
        found[label] = plugin, _own(label, plugin, pairs)
    return found


def _own(label: str, plugin: Plugin[MethodFacts], pairs: Sequence[str]) -> dict[str, Any]:
    """The parameters that a label gives a value, each once."""
    fields = [field.name for cls in classes(plugin) for field in dataclasses.fields(cls)]
    own: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        name = key.replace("-", "_")
        if not equals or not value or name not in fields:
            known = ", ".join(fields) or "none"
            raise InputError(
                f"--method {label}: {pair!r} must be PARAMETER=VALUE; the parameters of {plugin.name} are: {known}"
            )
        if name in own:
            raise InputError(f"--method {label}: {name} comes twice; give it one value")
        own[name] = {"true": True, "false": False}.get(value, value)
    return own


def unheard(methods: Named) -> set[str]:
    """Parameters whose flags change nothing: no method has them, or each that has them is given its own value by its
    label."""
    known = {
        f.name for plugin, _ in methods.values() for cls in (plugin.params, Privacy) for f in dataclasses.fields(cls)
    }
    return known - {
        field.name
        for plugin, own in methods.values()
        for cls in classes(plugin)
        for field in dataclasses.fields(cls)
        if field.name not in own
    }


def variants(methods: Named, options: argparse.Namespace, *, twins: bool) -> dict[str, Variant]:
    """Every method with every combination of the parameters that have several values, by what tables call it.

    `twins`: beside each that is noised stands the same without noise.
    """
    learner = trained_by(plugin.facts for plugin, _ in methods.values())
    assert learner is not None
    found: dict[str, Variant] = {}
    for label, (plugin, own) in methods.items():
        known = classes(plugin, privacy_of(learner))
        axes = _axes(label, known, own, options)
        if twins and "epsilon" in axes and math.inf not in axes["epsilon"]:
            axes["epsilon"] = (math.inf, *axes["epsilon"])
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            several = [f":{name}={_word(value)}" for name, value in values.items() if len(axes[name]) > 1]
            found[label + "".join(several)] = _variant(plugin, known, values)
    return found


def _axes(
    label: str, known: Sequence[type[Any]], own: Mapping[str, Any], options: argparse.Namespace
) -> dict[str, tuple[Any, ...]]:
    """Every parameter that a label or a flag gives a value, with its values."""
    reader = Parser(add_help=False, allow_abbrev=False)
    for cls in known:
        add_fields(reader, "", cls)
    try:
        given = reader.parse_args(words_of(own))
    except InputError as error:
        raise InputError(f"--method {label}: {error}") from None
    found: dict[str, tuple[Any, ...]] = {}
    for field in (field for cls in known for field in dataclasses.fields(cls)):
        value = getattr(given if field.name in own else options, field.name)
        if value is None and field.metadata.get("sweep"):
            value = field.default
        if value is not None:
            several = tuple(dict.fromkeys(value)) if isinstance(value, tuple) else (value,)
            found[field.name] = several
    return found


def _variant(plugin: Plugin[MethodFacts], known: Sequence[type[Any]], values: Mapping[str, Any]) -> Variant:
    parts = [made(cls, {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}) for cls in known]
    if len(parts) == 1:
        # what trains nothing stands beside what can be noised
        silent = Privacy(epsilon=math.inf) if facts(plugin.facts.learner).private else None
        return Variant(plugin.name, parts[0], silent)
    params, privacy = parts
    if math.isinf(privacy.epsilon):
        # without noise nothing is clipped: one training, whatever the noisy ones beside it do
        privacy = Privacy(epsilon=math.inf, sampler=privacy.sampler)
    return Variant(plugin.name, params, privacy)


def _word(value: Any) -> str:
    return "none" if value == math.inf else f"{value:g}" if isinstance(value, float) else str(value).lower()
