"""FedRand's Tables 1 to 4: ours by method, attacked model and metric beside the printed numbers.

Park et al. 2025. Utility is that after the last round in which answers were asked for: of the aggregated model, the
mean over clients' models, and of the aggregated model on novel objects (the paper's NoCaps). AUROCs are of MaxRényi of
order 2, in percent; the paper does not give its order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from audits.statistics.over_seeds import OfTraining, over_seeds
from fedaudit.terms.held_models import EXACT, FINAL, LITERAL
from fedaudit.terms.populations import ALL_MEMBERS, LAST_ROUND_MEMBERS
from fedaudit.terms.threat_models import RELEASED_MODEL, SERVER
from reports.evidence import Evidence, check
from reports.formats import join_words
from reports.printed_table import CONFIDENCE, OurNumber, Row, printed
from reports.printed_table import over_seeds as mean_over_seeds
from reports.rows import pooled

METHODS = {
    "FedAvg": "fedavg",
    "FedPer (2 layer)": "fedper",
    "FedPer (4 layer)": "fedper:shared_layers=4",
    "FedPara": "fedpara",
    "FedRand": "fedrand",
}
TITLES = {label: name for name, label in METHODS.items()}
CLIENT_WAYS = (EXACT, LITERAL)  # how the paper rebuilds clients
UTILITY = {
    "accuracy": "exact_match", "BLEU-1": "bleu1", "BLEU-2": "bleu2", "BLEU-3": "bleu3", "BLEU-4": "bleu4",
    "ROUGE": "rouge_l", "CIDEr": "cider",
}  # fmt: skip
COIN_REMARK = "against held-out records of the same clients, where a coin decided who is a member; the paper has none"

Tasks = Mapping[str, Sequence[Evidence]]
Cells = dict[str, dict[Row, OurNumber]]  # by column and row
Printed = dict[str, dict[Row, str]]


def utility(evidence: Tasks, rows: Mapping[Row, tuple[str, str]]) -> Cells:
    """By the printed name of a metric its cells; `rows` says the label and the model of each. ValueError: no task."""
    if not evidence:
        raise ValueError("evidence is empty; the table needs at least one task")
    found: Cells = {}
    for cells in evidence.values():
        check(cells)
        for name, metric in UTILITY.items():
            for row, (label, model) in rows.items():
                every = {e.seed: _last(e, model, metric) for e in cells if e.method == label}
                if seeds := {seed: value for seed, value in every.items() if value is not None}:
                    found.setdefault(name, {})[row] = mean_over_seeds(pooled(seeds, None, None))
    return found


def _last(e: Evidence, model: str, metric: str) -> float | None:
    """After the last round in which it was asked for."""
    found = e.tables.get("utility", pd.DataFrame())
    if metric not in found:
        return None
    known = found[(found.model == model) & (found["round"] >= 0)].dropna(subset=metric).sort_values("round")
    return None if known.empty else float(known[metric].iloc[-1])


def auroc(evidence: Tasks, label: str, role: str, split: str, signal: str) -> OurNumber | None:
    """The AUROC of one attack on the aggregated model (role server) or on rebuilt clients, mean over seeds with an
    interval over seeds and records; None where it did not run."""
    places = [(RELEASED_MODEL, FINAL)] if role == "server" else [(SERVER, way) for way in CLIENT_WAYS]
    found = []
    for e in (e for cells in evidence.values() for e in cells if e.method == label):
        rows = e.tables.get("cells", pd.DataFrame())
        if len(rows):
            here = pd.MultiIndex.from_frame(rows[["threat_model", "way"]]).isin(places)
            whole = rows.population != LAST_ROUND_MEMBERS
            own = rows[here & whole & (rows.nonmembers == split) & (rows.signal == signal)].dropna(subset="auroc")
            found += [OfTraining(r.auroc, r.low, r.high, CONFIDENCE) for r in own.head(1).itertuples()]
    return over_trainings(found) if found else None


def untrained(evidence: Tasks, split: str, signal: str) -> OurNumber | None:
    """The AUROC of the same attack on the public base model, which learnt none of the records, mean over seeds with an
    interval over seeds and records. The methods of a seed ask it about the same ones."""
    wanted = ("auroc", RELEASED_MODEL, ALL_MEMBERS, split, signal)
    found = {
        e.seed: OfTraining(f["base_value"], f["base_low"], f["base_high"], CONFIDENCE)
        for cells in evidence.values()
        for e in cells
        for f in e.findings
        if tuple(f.get(name) for name in ("metric", "threat_model", "population", "nonmembers", "signal")) == wanted
        and f["base_value"] is not None
    }
    return over_trainings([*found.values()]) if found else None


def over_trainings(found: Sequence[OfTraining]) -> OurNumber:
    """The mean of AUROCs in percent, with an interval over trainings and records."""
    i = over_seeds(found, confidence=CONFIDENCE, least=0.0, most=1.0)
    low, high = (None if end is None else 100 * end for end in (i.low, i.high))
    return OurNumber(100 * i.value, low, high, i.seeds)


def scale(evidence: Tasks) -> str:
    """What differs between the paper's runs and these."""
    first = [cells[0] for cells in evidence.values() if cells]
    setting, tasks = first[0].setting, list(dict.fromkeys(e.task for e in first))
    backbone, schedule = setting.get("backbone", {}).get("name", "another model"), setting.get("schedule", {})
    about = [f"{schedule[name]} {name}" for name in ("clients", "rounds") if name in schedule]
    named = f"the task{'s' if len(tasks) > 1 else ''} {' and '.join(tasks)}"
    return (
        "The paper: a TinyLLaVA of 450 million parameters, MSCOCO, NoCaps and ScienceQA, 12 clients, 30 rounds. Here: "
        f"{join_words([str(backbone), named, *about])}. Compare how methods lie to each other, no number."
    )


def printed_rows(number: int) -> list[dict[str, str]]:
    """The rows of a printed table, all strings."""
    rows: list[dict[str, str]] = printed(f"fedrand_table{number}").to_dict("records")
    return rows
