"""FedRand, Table 4: AUROC of MaxRényi against the aggregated model and reconstructed clients, five methods.

The paper's non-members come from another data set, NoCaps: a model that tells the two kinds of records apart reaches
its AUROC without having learnt a member. We show ours on the same kind of split (novel objects), that of the public
base model, which learnt no record, and ours against held-out records, where a coin decided who is a member.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from reports.formats import number
from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.common import EvidenceByTask, PrintedCells, checked_tasks, means_and_spreads
from reports.papers.fedrand import METHODS
from reports.printed_table import Column, OurNumber, Row
from reports.templates import Write


class Items:
    table4 = PaperItem(
        preset="fedrand-tables",
        tasks={"captions": ("--task=captions",)},
        scale="paper",
        real={"captions": ("--task=coco",)},
    )


MODELS = {"server": "aggregated model", "client": "reconstructed client"}
UNTRAINED = "untrained model", "aggregated model"
KEY = "caption", "10"  # the part of the input and the K that the paper's text discusses


def table4(evidence: EvidenceByTask, write: Write) -> str:
    """Write the table; see `fedrand.write_table`. The returned sentence ends with the untrained model's AUROC. Park et
    al. 2025, section 4.2."""
    evidence = dict(checked_tasks(evidence, "table"))
    paper, spreads = means_and_spreads(
        "fedrand_table4",
        lambda row: _column(row["mia_input"], row["max_renyi_k_percent"]),
        lambda row: (row["method"], MODELS[row["role"]]),
    )
    ours = {}
    for ending, split in (("", NOVEL_OBJECTS), (", held-out", HELD_OUT)):
        for part in ("image", "caption"):
            for k in ("0", "10"):
                against = () if ending else (_column(part, k),)
                cells = _cells(evidence, split, f"renyi/2/{k}/{part}")
                ours[_column(part, k) + ending] = Column(cells, against, fedrand.COIN_REMARK if ending else "")
    sentences = _sentences(paper, ours)
    more = {"spreads": spreads, "levels_are": "Attacked model", "sentences": sentences}
    return ". ".join([fedrand.write_table(4, evidence, ours, paper, write, **more), *sentences[1:]])


def _column(part: str, k: str) -> str:
    return f"{part}, K {k} %"


def _cells(evidence: EvidenceByTask, split: str, signal: str) -> dict[Row, OurNumber]:
    """AUROCs of one attack by method and attacked model, the untrained model's too; those not measured are left out."""
    rows = {(name, words): (label, role) for role, words in MODELS.items() for name, label in METHODS.items()}
    cells = fedrand.aurocs(evidence, rows, split, signal)
    untrained = fedrand.untrained(evidence, split, signal)
    return cells if untrained is None else cells | {UNTRAINED: untrained}


def _sentences(paper: PrintedCells, ours: Mapping[str, Column]) -> list[str]:
    """A sentence on what the printed AUROCs of `KEY` measure and, if it was measured, one on the untrained model's
    AUROC here beside the trained models'."""
    column = _column(*KEY)
    values = [float(value) / 100 for value in paper[column].values()]
    sentences = [
        f"The paper's {number(min(values), 2)} to {number(max(values), 2)} on captions are against records of another "
        "distribution: a model that tells the two kinds of records apart has them without having learnt a member."
    ]
    base = ours[column].cells.get(UNTRAINED)
    trained, held_out = (
        [c.value for row, c in ours[name].cells.items() if row != UNTRAINED] for name in (column, f"{column}, held-out")
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
