"""Which attacks run against a method under which threat model, and why the others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from attacks.facts import ATTACKS
from attacks.questions.kinds import KINDS
from attacks.threats import refusal
from fedaudit.pipeline.methods import method_of
from fedaudit.pipeline.plan import Cell
from fedaudit.terms.threat_models import PEER, RELEASED_MODEL, SERVER

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def allowed(cell: Cell, threat_model: str) -> dict[str, str | None]:
    """Every attack of the plan with the reason why it does not run against this method under this threat model; None if
    it does."""
    return {name: _refusal(cell, name, threat_model) for name in cell.plan.attacks}


def _refusal(cell: Cell, attack: str, threat_model: str) -> str | None:
    plugin = ATTACKS[attack]
    why = refusal(plugin, threat_model, cell.plan.trained)
    if cell.variant is None:  # somebody's own training
        return why
    method = method_of(cell)
    if not cell.variant.plugin.facts.trains:
        return "this method trains nothing"
    if not method.sends and (threat_model in (RELEASED_MODEL, SERVER) or (plugin.facts.needs and why is None)):
        return "this method sends nothing"
    if threat_model == PEER and not method.by_client:
        return "this method passes no part of a client on to others"
    if plugin.facts.shadows and cell.plan.adversary.trajectory == "observed" and threat_model != SERVER and why is None:
        return "only the server observes the other clients' messages (--trajectory)"
    if plugin.facts.mixtures and why is None:
        return method.messages.nonlinear or None
    return why


def running(cell: Cell) -> dict[str, dict[str, DataclassInstance]]:
    """By threat model the attacks that run, with their parameters."""
    params = {name: ATTACKS[name].own(given) for name, given in cell.plan.attacks.items()}
    able = {view: [n for n, why in allowed(cell, view).items() if why is None] for view in cell.threat_models}
    return {view: {name: params[name] for name in names} for view, names in able.items() if names}


def refused(cell: Cell) -> pd.DataFrame:
    """Every attack that did not run under a threat model, and what no attack asks about such records, each with why."""
    reasons = {view: allowed(cell, view).items() for view in cell.threat_models}
    rows = [(name, view, why) for view, of_view in reasons.items() for name, why in of_view if why]
    rows += [(what, "all", why) for what, why in KINDS[cell.plan.trained.records].unasked.items()]
    return pd.DataFrame(rows, columns=["attack", "threat_model", "why"])
