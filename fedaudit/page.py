"""The page of a plan: the evidence that its analyses left on disk, and the limits of what it shows in plain sentences."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaudit import __version__
from fedaudit.backbones import EMBEDDED
from fedaudit.backbones.clipsource import EMBEDDED_CLIP, ClipSource
from fedaudit.banks import bank_parts, targets
from fedaudit.ownrun import warnings
from fedaudit.plan import Cell, Plan
from fedaudit.store import MANIFEST, Folder, claim
from reports.report import Evidence, build


def write_page(evidence: Sequence[Evidence], folder: Folder) -> None:
    """The report of a plan's cells."""
    build(evidence, folder.write)


def read_evidence(cell: Cell) -> Evidence:
    """What the analysis of a cell left on disk, as reports take it."""
    folder = claim(cell.analysis_folder)
    names = [n for n in folder.names() if n.endswith(".parquet") and not n.startswith("scores-")]
    tables = {name.removesuffix(".parquet"): folder.read_table(name) for name in names}
    stored = folder.read_json("findings.json")
    setting = setting_of(cell) | {
        "keys": {"training": cell.training_key, "analysis": cell.analysis_key},
        "manifests": manifests(cell),
        "versions": cell.training_description["versions"],
        "fedaudit": __version__,
    }
    return Evidence(
        cell.method, cell.seed, cell.plan.attack, cell.plan.task, stored, tables, setting, _notes(cell.plan)
    )


def setting_of(cell: Cell) -> dict[str, Any]:
    """Everything that a cell's findings depend on but code and versions."""
    said = cell.analysis_description
    return cell.setting | {name: said[name] for name in ("attack", "audit", "adversary") if name in said}


def manifests(cell: Cell) -> dict[str, str]:
    """SHA-256 of the lists of hashes of what a cell left on disk: whoever keeps these elsewhere can tell whether a file was changed since."""
    folders = {"training": [cell.training_folder], "analysis": [cell.analysis_folder]}
    if parts := bank_parts(cell):
        folders["shadow models"] = parts
    return {name: _digest([place / MANIFEST for place in places]) for name, places in folders.items()}


def _digest(files: Sequence[Path]) -> str:
    """Of one file its SHA-256, of several that of their SHA-256s; "not on disk" if there is none."""
    found = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    if len(found) == 1:
        return found[0]
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else "not on disk"


def canary_notes(plan: Plan) -> list[str]:
    """How many canaries can be guessed, and the largest epsilon that a perfect attack on them all could show; nothing without canaries."""
    if not (n := plan.canaries.canaries):
        return []
    from audits.onerun import ceiling

    whose, delta = "all of them", 0.0
    if plan.learner == "prompts":
        delta = max(v.privacy.delta for v in plan.methods.values() if v is not None)
        if plan.attacks:
            attacked = len(targets(plan.cells[0]))
            share, more = divmod(n, plan.clients)
            n = attacked * share + min(attacked, more)
            whose = f"the {n} of the {attacked} clients that were attacked"
    return [
        f"Canaries: {plan.canaries.canaries} ({plan.canaries.canary_kind}), each inserted by a fair coin. A perfect attack on {whose} could show an "
        f"epsilon of at most {ceiling(n, delta=delta):.2f} (95 %, delta {delta:g})."
    ]


def _notes(plan: Plan) -> list[str]:
    """Limitations of the report, in plain sentences."""
    return [*canary_notes(plan), *_limits(plan)]


def _limits(plan: Plan) -> list[str]:
    small = (
        "The embedded model and task are small: they show how methods compare and that the tools work, not how much a large "
        "model would leak."
    )
    coin = (
        "Membership means that a record was in a client's training set. A coin decided it for every record, so that members "
        "and held-out records are exchangeable."
    )
    own = (
        "This training was done elsewhere: that members and non-members are exchangeable is its authors' word, and the "
        "controls are the only check of it."
    )
    if plan.learner == "prompts":
        assert isinstance(plan.backbone, ClipSource)
        embedded = plan.backbone.folder in EMBEDDED_CLIP.values()
        return [
            *([small] if embedded else []),
            *([plan.backbone.said] if plan.backbone.doubt else []),
            ALL_TRAINED if not getattr(plan.task_params, "holdout", 0.5) else PART_TRAINED,
            "The intervals of accuracy are over the clients of one training; --seeds adds the spread over trainings.",
            *(_attack_notes(plan) if plan.attacks else [UNATTACKED]),
        ]
    return [
        *([small] if plan.backbone == EMBEDDED else []),
        own if plan.own is not None else coin,
        *(warnings(plan.own) if plan.own is not None else []),
        "The intervals are over records and clients of one training; --seeds adds the spread over trainings.",
        *(
            []
            if plan.own is not None
            else ["Nothing is noised: no epsilon is claimed, and the provable epsilon of what is sent is infinity."]
        ),
    ]


ALL_TRAINED = (
    "Clients train on all of their records (--holdout 0), as in the papers: nobody is held out, so that membership cannot be "
    "attacked in this training."
)
PART_TRAINED = (
    "Clients do not train on all of their records: a fixed part is kept for reference (--reference-share), and a coin for each of the others "
    "holds half of them out, so that membership can be attacked later. Accuracies are those of what is left."
)
UNATTACKED = "Nothing was attacked: what is claimed and proven stands without a measured lower bound."


def _attack_notes(plan: Plan) -> list[str]:
    """What attacks on prompts assume."""
    known = (
        "Attackers know the frozen model, the method with its parameters, its start, and the candidate records; not who was in training. Shadow "
        "models are trained on random halves of the same candidates, the strongest case for the attacker."
    )
    few = (
        "The intervals of membership are over the records of the clients that were attacked (--targets): given their prompts, a coin per "
        "record is all that is random if nothing leaks. Other clients and other trainings are --targets and --seeds."
    )
    return [known, few]
