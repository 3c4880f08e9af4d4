"""Labels of attacks in tables over several runs: the attack's name, then the settings that it uses and that differ.

The metadata of a setting's field says which attacks use it: `used_by` (`attacks/settings.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedaudit.attacks.facts import ATTACKS, AttackFacts
from fedaudit.audits.run_comparison import AuditedRun
from fedaudit.machinery import plugins
from fedaudit.machinery.plugins import Plugin


def attack_labels(runs: Sequence[AuditedRun]) -> dict[tuple[str, str], str]:
    """{(run key, attack): label} for attacks with AUROCs. A label is NAME[:setting=value...] with those settings that
    the attack uses and that differ between the runs."""
    used: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        for attack in {f["attack"] for f in run.findings if "attack" in f and f["metric"] == "auroc"}:
            used.setdefault(attack, {})[run.key] = dict(_used(attack, run.setting))
    labels = {}
    for attack, by_run in used.items():
        names = dict.fromkeys(itertools.chain(*by_run.values()))
        varying = [n for n in names if len({repr(settings.get(n)) for settings in by_run.values()}) > 1]
        for key, settings in by_run.items():
            parts = [attack, *(f"{n.rpartition('.')[2]}={settings[n]}" for n in varying if n in settings)]
            labels[key, attack] = ":".join(parts)
    return labels


def _used(attack: str, setting: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every setting of an attack and of its adversary that can change the attack's scores."""
    plugin = ATTACKS.get(attack)
    users = {} if plugin is None else _users(plugin)
    lone = setting.get("adversary.shadow_kind") == "federations" or setting.get("adversary.trajectory") == "observed"
    for path, value in setting.items():
        if lone and path == "adversary.shadow_trajectories":  # its shadow models share no trajectory
            continue
        user = users.get(path, "")  # "" counts as used: a setting or an attack that the code does not have
        used = not user or (plugin is not None and getattr(plugin.facts, user, False))
        if used and path.startswith((f"attack.{attack}.", "adversary.")):
            yield path, value


def _users(plugin: Plugin[AttackFacts]) -> dict[str, str]:
    """{path of a setting of the attack or adversary: `used_by`}: the name of the fact that attacks using it have;
    "rows" if it changes no score; "" if any attack may use it."""
    adversary = plugins.dataclass_of(plugins.package_folder("fedaudit.attacks") / "settings.py", "Adversary")
    return {
        f"{prefix}.{field.name}": field.metadata.get("used_by", "")
        for prefix, params in ((f"attack.{plugin.name}", plugin.params), ("adversary", adversary))
        for field in dataclasses.fields(params)
    }
