"""FedRand's Tables 1 to 4: ours by method, attacked model and metric beside the printed numbers.

Park et al. 2025. Utility is taken after the last round in which it was measured, for the aggregated model, for clients'
models (their mean), and for the aggregated model on novel objects (NoCaps in the paper). AUROCs, in percent, are those
of MaxRényi of order 2; the paper does not give its order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from audits.statistics.over_seeds import OfTraining, over_seeds
from fedaudit.terms.held_models import EXACT, FINAL, LITERAL
from fedaudit.terms.populations import ALL_MEMBERS, LAST_ROUND_MEMBERS
from fedaudit.terms.threat_models import RELEASED_MODEL, SERVER
from reports import printed_table
from reports.evidence import Evidence
from reports.formats import join_words
from reports.papers.common import EvidenceByTask, PrintedCells, checked_tasks
from reports.printed_table import CONFIDENCE, Column, OurNumber, Row, Table, seeds_of
from reports.rows import pooled
from reports.templates import Write

METHODS = {
    "FedAvg": "fedavg",
    "FedPer (2 layer)": "fedper",
    "FedPer (4 layer)": "fedper:shared_layers=4",
    "FedPara": "fedpara",
    "FedRand": "fedrand",
}
TITLES = {label: name for name, label in METHODS.items()}
ATTACKED = {  # threat model and kind of the model that is attacked, by the paper's role
    "server": [(RELEASED_MODEL, FINAL)],
    "client": [(SERVER, EXACT), (SERVER, LITERAL)],  # clients as the server rebuilds them
}
UTILITY = {
    "accuracy": "exact_match", "BLEU-1": "bleu1", "BLEU-2": "bleu2", "BLEU-3": "bleu3", "BLEU-4": "bleu4",
    "ROUGE": "rouge_l", "CIDEr": "cider",
}  # fmt: skip
QUANTITIES = {"accuracy": "share of answers that are the right one word for word, as the paper has it"}
COIN_REMARK = "against held-out records of the same clients, where a coin decided who is a member; the paper has none"


def write_table(
    number: int, evidence: EvidenceByTask, ours: Mapping[str, Column], paper: PrintedCells, write: Write, **more: Any
) -> str:
    """Write tableN.csv, tableN.tex and index.html through `write(name, bytes)`, the page last. Returns in words how far
    the order of our rows agrees with the paper's. `more` are further fields of `Table`."""
    table = Table(f"fedrand:table{number}", ours, paper, scale(evidence), seeds=seeds_of(evidence), **more)
    return printed_table.build(table, write)


def utility(evidence: EvidenceByTask, rows: Mapping[Row, tuple[str, str]]) -> dict[str, Column]:
    """A column per metric of `UTILITY` that was measured, means over seeds, by the metric's printed name. `rows` gives
    for each row our method's label and the value of the column "model" of the table "utility". ValueError: there is no
    task."""
    by_metric: dict[str, dict[Row, OurNumber]] = {}
    for _, runs in checked_tasks(evidence, "table"):
        for name, metric in UTILITY.items():
            for row, (label, model) in rows.items():
                by_seed = {e.seed: last_utility(e, model, metric) for e in runs if e.method == label}
                if measured := {seed: value for seed, value in by_seed.items() if value is not None}:
                    by_metric.setdefault(name, {})[row] = printed_table.over_seeds(pooled(measured, None, None))
    return {name: Column(cells, (name,), QUANTITIES.get(name, "")) for name, cells in by_metric.items()}


def last_utility(e: Evidence, model: str, metric: str) -> float | None:
    """A column of the table "utility" after the last round in which it was measured for `model` ("global", "clients"
    or "novel"); None if it never was."""
    table = e.tables.get("utility", pd.DataFrame())
    if metric not in table:
        return None
    rounds = table[(table.model == model) & (table["round"] >= 0)].dropna(subset=metric).sort_values("round")
    return None if rounds.empty else float(rounds[metric].iloc[-1])


def aurocs(
    evidence: EvidenceByTask, rows: Mapping[Row, tuple[str, str]], split: str, signal: str
) -> dict[Row, OurNumber]:
    """AUROCs of the attack `signal` against the non-members `split`: means over seeds in percent, with intervals over
    seeds and records. `rows` gives for each row our method's label and the paper's role, a key of `ATTACKED`. Rows
    without the attack are left out."""
    by_row = {row: _auroc(evidence, label, role, split, signal) for row, (label, role) in rows.items()}
    return {row: cell for row, cell in by_row.items() if cell is not None}


def _auroc(evidence: EvidenceByTask, label: str, role: str, split: str, signal: str) -> OurNumber | None:
    trainings = []
    for e in (e for runs in evidence.values() for e in runs if e.method == label):
        rows = e.tables.get("cells", pd.DataFrame())
        if len(rows):
            attacked = pd.MultiIndex.from_frame(rows[["threat_model", "way"]]).isin(ATTACKED[role])
            whole = rows.population != LAST_ROUND_MEMBERS
            matching = rows[attacked & whole & (rows.nonmembers == split) & (rows.signal == signal)]
            first = matching.dropna(subset="auroc").head(1)
            trainings += [OfTraining(r.auroc, r.low, r.high, CONFIDENCE) for r in first.itertuples()]
    return over_trainings(trainings) if trainings else None


def untrained(evidence: EvidenceByTask, split: str, signal: str) -> OurNumber | None:
    """The AUROC of an attack on the public base model, which learnt none of the records: the mean over seeds in
    percent, with an interval over seeds and records; None if it did not run. All methods of a seed attack it with the
    same records, so that one is counted per seed."""
    wanted = ("auroc", RELEASED_MODEL, ALL_MEMBERS, split, signal)
    by_seed = {
        e.seed: OfTraining(f["base_value"], f["base_low"], f["base_high"], CONFIDENCE)
        for runs in evidence.values()
        for e in runs
        for f in e.findings
        if tuple(f.get(name) for name in ("metric", "threat_model", "population", "nonmembers", "signal")) == wanted
        and f["base_value"] is not None
    }
    return over_trainings([*by_seed.values()]) if by_seed else None


def over_trainings(trainings: Sequence[OfTraining]) -> OurNumber:
    """The mean of AUROCs (0 to 1) in percent, with an interval over trainings and records."""
    i = over_seeds(trainings, confidence=CONFIDENCE, least=0.0, most=1.0)
    low, high = (None if end is None else 100 * end for end in (i.low, i.high))
    return OurNumber(100 * i.value, low, high, i.seeds)


def scale(evidence: EvidenceByTask) -> str:
    """Describe in words the scale of the paper's runs and of ours (from the first run of each task)."""
    first = [runs[0] for runs in evidence.values() if runs]
    setting, tasks = first[0].setting, list(dict.fromkeys(e.task for e in first))
    backbone, schedule = setting.get("backbone", {}).get("name", "another model"), setting.get("schedule", {})
    about = [f"{schedule[name]} {name}" for name in ("clients", "rounds") if name in schedule]
    named = f"the task{'s' if len(tasks) > 1 else ''} {' and '.join(tasks)}"
    return (
        "The paper: a TinyLLaVA of 450 million parameters, MSCOCO, NoCaps and ScienceQA, 12 clients, 30 rounds. Here: "
        f"{join_words([str(backbone), named, *about])}. Compare how methods lie to each other, no number."
    )
