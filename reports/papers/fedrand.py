"""FedRand: Tables 1 to 4, ours by method, attacked model and metric beside the printed numbers.

Park et al. 2025. Utility is taken after the last round in which it was measured, for the aggregated model, for clients'
models (their mean), and for the aggregated model on novel objects (NoCaps in the paper). AUROCs, in percent, are those
of MaxRényi of order 2; the paper does not give its order. The paper's non-members come from another data set, NoCaps: a
model that tells the two kinds of records apart reaches its AUROC without having learnt a member. Ours are records with
novel objects and, in columns of their own, held-out records, where a coin decided who is a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import pandas as pd

from fedaudit.audits.statistics.over_seeds import OfTraining, over_seeds
from fedaudit.reports import printed_table
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.formats import join_words, number
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, PrintedCells, checked_tasks, means_and_spreads, printed_cells
from fedaudit.reports.printed_table import CONFIDENCE, Column, OurNumber, Row, Table, printed, seeds_of
from fedaudit.reports.rows import pooled
from fedaudit.reports.templates import Write
from fedaudit.terms.held_models import EXACT, FINAL, LITERAL
from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from fedaudit.terms.populations import ALL_MEMBERS, LAST_ROUND_MEMBERS
from fedaudit.terms.threat_models import RELEASED_MODEL, SERVER


class Items:
    CAPTIONS = partial(
        PaperItem, preset="fedrand-tables", tasks={"captions": ("--task=captions",)}, scale="paper",
        real={"captions": ("--task=coco",)},
    )  # fmt: skip
    FIVE = "fedavg,fedper,fedper:shared_layers=4,fedpara,fedrand"
    TINY = (
        "--seeds 1 --rounds 1 --clients 2 --per-round 2 --records 4 --reference 4 --novel 4 --test 2 --local-epochs 1 "
        "--method"
    )

    table1 = CAPTIONS(
        "answers and captions of the aggregated model and of clients' models, five methods",
        tasks={"captions": ("--task=captions",), "questions": ("--task=vqa",)},
        real={"captions": ("--task=coco",), "questions": ("--task=scienceqa",)},
        method=FIVE, tiny=f"{TINY} fedavg,fedrand",
    )  # fmt: skip
    table2 = CAPTIONS("captions of novel objects by the aggregated model, five methods", method=FIVE)
    table3 = CAPTIONS(
        "FedRand without each of its parts, captions of the aggregated model and MaxRényi-10 % against it",
        method="fedrand,fedrand:rho=0.3,fedrand:rho=0.7,fedrand:past=false,fedrand:normalise=false", attacked=True,
        tiny=f"{TINY} fedrand,fedrand:rho=0.3",
    )  # fmt: skip
    table4 = CAPTIONS(
        "AUROC of MaxRényi against the aggregated model and reconstructed clients, five methods", method=FIVE,
        attacked=True,
    )  # fmt: skip


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
EVALUATED = {"server": ("aggregated model", "global"), "client": ("clients' models", "clients")}  # by the paper's role
VARIANTS = {  # by name in fedrand_table3.csv: the row's name and our method's label
    "FedRand": ("FedRand", "fedrand"),
    "rho_0.3": ("ρ 0.3", "fedrand:rho=0.3"),
    "rho_0.7": ("ρ 0.7", "fedrand:rho=0.7"),
    "without_past_parameters": ("without past parameters", "fedrand:past=false"),
    "without_normalization": ("without normalization", "fedrand:normalise=false"),
}
PARTS = ("image", "caption")
ROLES = {"server": "aggregated model", "client": "reconstructed client"}
UNTRAINED = "untrained model", "aggregated model"
KEY = "caption, K 10 %"  # the column of Table 4 that the paper's text discusses


def table1(evidence: EvidenceByTask, write: Write) -> str:
    """Write Table 1, utility by method, in two halves (levels), one per model; return in words how far the order of our
    rows agrees with the paper's. Our task `questions` stands for ScienceQA, `captions` for MSCOCO. The files are
    tableN.csv, tableN.tex and index.html, written through `write(name, bytes)`, the page last."""
    rows = {(name, words): (label, model) for words, model in EVALUATED.values() for name, label in METHODS.items()}
    paper, spreads = means_and_spreads(
        "fedrand_table1", itemgetter("metric"), lambda row: (row["method"], EVALUATED[row["role"]][0])
    )
    return _write(1, evidence, utility(evidence, rows), paper, write, spreads=spreads, levels_are="Model")


def table2(evidence: EvidenceByTask, write: Write) -> str:
    """Write Table 2, on novel objects, as `table1` does, and return how far the order of our rows agrees. The paper's
    novel objects are those of NoCaps; ours are scenes with objects that neither clients nor pre-training had."""
    ours = utility(evidence, {(name, ""): (label, "novel") for name, label in METHODS.items()})
    paper = printed_cells(printed("fedrand_table2"), itemgetter("metric"), lambda row: (row["method"], ""))
    return _write(2, evidence, ours, paper, write)


def table3(evidence: EvidenceByTask, write: Write) -> str:
    """Write Table 3, variants of FedRand, as `table1` does, and return how far the order of our rows agrees: a row per
    entry of `VARIANTS`."""
    ours = utility(evidence, {(name, ""): (label, "global") for name, label in VARIANTS.values()})
    paper, spreads = means_and_spreads(
        "fedrand_table3",
        lambda row: row["metric"] if row["mia_input"] == "na" else f"AUROC, {row['mia_input']}",
        lambda row: (VARIANTS[row["variant"]][0], ""),
    )
    attacked = {(name, ""): (label, "server") for name, label in VARIANTS.values()}
    for part in PARTS:
        for split, remark in ((NOVEL_OBJECTS, ""), (HELD_OUT, COIN_REMARK)):
            cells = aurocs(evidence, attacked, split, f"renyi/2/10/{part}")
            against = () if remark else (f"AUROC, {part}",)
            ours[f"AUROC, {part}" + (", held-out" if remark else "")] = Column(cells, against, remark)
    return _write(3, evidence, ours, paper, write, spreads=spreads, rows_are="Variant")


def table4(evidence: EvidenceByTask, write: Write) -> str:
    """Write Table 4, AUROCs of attacks by method and attacked model, as `table1` does, with the public base model,
    which learnt no record. The returned words end with that model's AUROC."""
    evidence = dict(checked_tasks(evidence, "table"))
    paper, spreads = means_and_spreads(
        "fedrand_table4",
        lambda row: f"{row['mia_input']}, K {row['max_renyi_k_percent']} %",
        lambda row: (row["method"], ROLES[row["role"]]),
    )
    rows = {(name, words): (label, role) for role, words in ROLES.items() for name, label in METHODS.items()}
    ours = {}
    for ending, split in (("", NOVEL_OBJECTS), (", held-out", HELD_OUT)):
        for column, signal in ((f"{part}, K {k} %", f"renyi/2/{k}/{part}") for part in PARTS for k in ("0", "10")):
            cells = aurocs(evidence, rows, split, signal)
            if (base := untrained(evidence, split, signal)) is not None:
                cells[UNTRAINED] = base
            ours[column + ending] = Column(cells, () if ending else (column,), COIN_REMARK if ending else "")
    sentences = _about_untrained(paper, ours)
    more = {"spreads": spreads, "levels_are": "Attacked model", "sentences": sentences}
    return ". ".join([_write(4, evidence, ours, paper, write, **more), *sentences[1:]])


def _about_untrained(paper: PrintedCells, ours: Mapping[str, Column]) -> list[str]:
    """A sentence on what the printed AUROCs of `KEY` measure and, if it was measured, one on the untrained model's
    AUROC here beside the trained models'."""
    values = [float(value) / 100 for value in paper[KEY].values()]
    sentences = [
        f"The paper's {number(min(values), 2)} to {number(max(values), 2)} on captions are against records of another "
        "distribution: a model that tells the two kinds of records apart has them without having learnt a member."
    ]
    base = ours[KEY].cells.get(UNTRAINED)
    trained, held_out = (
        [c.value for row, c in ours[name].cells.items() if row != UNTRAINED] for name in (KEY, f"{KEY}, held-out")
    )
    if base is not None and trained:
        sentences.append(
            f"Here the untrained model has {_share(base.value)} on such a split, trained ones "
            f"{_share(min(trained))} to {_share(max(trained))}, and against held-out records "
            f"{_share(min(held_out))} to {_share(max(held_out))}." if held_out else
            f"Here the untrained model has {_share(base.value)} on such a split."
        )  # fmt: skip
    return sentences


def _share(percent: float) -> str:
    return number(percent / 100, 2)


def _write(
    table: int, evidence: EvidenceByTask, ours: Mapping[str, Column], paper: PrintedCells, write: Write, **more: Any
) -> str:
    """Write Table `table`, ours and the `paper`'s, as `table1` does, and return how far the order of our rows agrees;
    `more` are further fields of `Table`."""
    about = scale(evidence)
    return printed_table.build(
        Table(f"fedrand:table{table}", ours, paper, about, seeds=seeds_of(evidence), **more), write
    )


def utility(evidence: EvidenceByTask, rows: Mapping[Row, tuple[str, str]]) -> dict[str, Column]:
    """A column per metric of `UTILITY` that was measured, by the metric's printed name, with means over seeds. `rows`
    gives for each row our method's label and the model ("global", "clients", "novel") of the table "utility".
    ValueError: there is no task."""
    by_metric: dict[str, dict[Row, OurNumber]] = {}
    for _, runs in checked_tasks(evidence, "table"):
        for name, metric in UTILITY.items():
            for row, (label, model) in rows.items():
                by_seed = {e.seed: last_utility(e, model, metric) for e in runs if e.method == label}
                if measured := {seed: value for seed, value in by_seed.items() if value is not None}:
                    by_metric.setdefault(name, {})[row] = printed_table.over_seeds(pooled(measured, None, None))
    return {name: Column(cells, (name,), QUANTITIES.get(name, "")) for name, cells in by_metric.items()}


def last_utility(e: Evidence, model: str, metric: str) -> float | None:
    """The value of `metric` in the table "utility" after the last round in which it was measured for `model` ("global",
    "clients" or "novel"); None if it never was."""
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
    """The mean over seeds in percent, with an interval over seeds and records, of the AUROC of an attack on the public
    base model, which learnt none of the records; None if it did not run. `split` names the non-members, `signal` the
    score. All methods of a seed attack it with the same records, so that one is counted per seed."""
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
