"""Which attacks run against a method under which threat model, and why others do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedaudit.attacks.facts import ATTACKS, AttackFacts
from fedaudit.attacks.messages.contents import refusal as refusal_of_contents
from fedaudit.attacks.questions.kinds import KINDS
from fedaudit.attacks.threats import refusal
from fedaudit.pipeline.methods import method_of
from fedaudit.pipeline.plan import Cell
from fedaudit.terms.threat_models import ACTIVE_SERVER, PEER, RELEASED_MODEL, SERVER

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fedaudit.trainers.base import Method


AS_SERVER = "it scores what a server sees that does not act"


def refusal_reasons(cell: Cell, threat_model: str) -> dict[str, str | None]:
    """By attack of the plan: why it does not run against the cell's method under this threat model, or None if it
    does."""
    return {name: _refusal(cell, name, threat_model) for name in cell.plan.attacks}


def _refusal(cell: Cell, attack: str, threat_model: str) -> str | None:
    plugin = ATTACKS[attack]
    if threat_model == ACTIVE_SERVER and "probes" not in plugin.facts.needs:
        return AS_SERVER
    why = refusal(plugin, threat_model, cell.plan.trained)
    if "probes" in plugin.facts.needs and not cell.trained_here:
        return why or "its clients cannot be asked any more"
    if cell.variant is None:  # somebody's own training
        return why
    method = method_of(cell)
    if untold := _untold(cell, method, plugin.facts, threat_model):
        return untold
    if not cell.variant.plugin.facts.trains:
        return "this method trains nothing"
    of_messages = threat_model in (RELEASED_MODEL, SERVER, ACTIVE_SERVER) or (plugin.facts.needs and why is None)
    if of_messages and not method.sends:
        return "this method sends nothing"
    if threat_model == PEER and not method.by_client:
        return "this method passes no part of a client on to others"
    if plugin.facts.shadows and cell.plan.adversary.trajectory == "observed" and threat_model != SERVER and why is None:
        return "only the server observes the other clients' messages (--trajectory)"
    if plugin.facts.reads and why is None and not {*plugin.facts.reads} & {*method.reveals}:
        return "this method reveals no sums over all clients but the model"
    if plugin.facts.mixtures and why is None:
        return method.messages.nonlinear or None
    if plugin.facts.contents and why is None:
        return refusal_of_contents(method)
    return why


def _untold(cell: Cell, method: Method[Any], attack: AttackFacts, threat_model: str) -> str | None:
    """Why an attack cannot run on somebody's own run that does not tell how it was trained; None if it can."""
    if cell.plan.own is None or not (untold := cell.plan.own.trained.untold):
        return None
    if attack.shadows:
        return f"shadow models are trained as the target was, and {untold}"
    if attack.mixtures or attack.contents:
        return f"messages are solved with the batches and rates of the training, and {untold}"
    if threat_model == SERVER and method.local:
        return f"a server rebuilds what clients keep with the rates of the training, and {untold}"
    return None


def permitted_attacks(cell: Cell) -> dict[str, dict[str, DataclassInstance]]:
    """The attacks that run, {threat model: {attack: its parameters}}; a threat model without attacks is left out."""
    params = {name: ATTACKS[name].own(read) for name, read in cell.plan.attacks.items()}
    able = {view: [n for n, why in refusal_reasons(cell, view).items() if why is None] for view in cell.threat_models}
    return {view: {name: params[name] for name in names} for view, names in able.items() if names}


def never_run(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each attack of the plan that runs under no threat model against a method, with the reason: the
    method's own if there is one, else that the adversaries see too little."""
    sentences: dict[str, None] = {}
    for cell in cells:
        for name in cell.plan.attacks:
            refused = [(view, why) for attack, view, why in _refused(cell) if attack == name]
            if name not in {n for names in permitted_attacks(cell).values() for n in names}:
                sentences[f"not run: {name} on {cell.method}: {refused[0][1]}"] = None
    return list(sentences)


def _refused(cell: Cell) -> list[tuple[str, str, str]]:
    """All attacks that do not run, as (attack, threat model, reason); first the reasons that lie in the method, then
    those of threat models that see too little for the attack."""
    reasons = {view: refusal_reasons(cell, view).items() for view in cell.threat_models}
    rows = [(name, view, why) for view, of_view in reasons.items() for name, why in of_view if why and why != AS_SERVER]
    return sorted(rows, key=lambda row: refusal(ATTACKS[row[0]], row[1], cell.plan.trained) is not None)


def refused_table(cell: Cell) -> pd.DataFrame:
    """A row per attack and threat model under which it did not run, and per question that this kind of records does not
    allow (threat model "all"). Columns attack, threat_model, why."""
    rows = _refused(cell)
    if cell.plan.own is not None and (untold := cell.plan.own.trained.untold):
        rows.append(("attacks by shadow models, decompose", "all", f"they repeat the training, and {untold}"))
    rows += [(what, "all", why) for what, why in KINDS[cell.plan.trained.records].unasked.items()]
    return pd.DataFrame(rows, columns=["attack", "threat_model", "why"])
