"""FedRand, Table 4: AUROC of MaxRényi against the aggregated model and reconstructed clients, five methods.

The paper's non-members are another data set, NoCaps, so that whoever tells the two kinds of records apart has its
AUROC, whether it learnt the members or not. Ours stands beside it on the same kind of split (novel objects), for the
public base model, which learnt nobody, and against held-out records, where a coin decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from reports import printed_table
from reports.evidence import Evidence, check
from reports.formats import number
from reports.paper_items import PaperItem
from reports.papers import fedrand
from reports.papers.fedrand import METHODS
from reports.printed_table import Column, OurNumber, Table
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
KEY = "caption", "10"  # the slice and K that the paper's text goes by


def table4(evidence: Mapping[str, Sequence[Evidence]], write: Write) -> str:
    """Park et al. 2025, section 4.2; see `reports.papers.fedrand`."""
    if not evidence:
        raise ValueError("evidence is empty; the table needs at least one task")
    for runs in evidence.values():
        check(runs)
    paper: fedrand.Printed = {}
    spreads: fedrand.Printed = {}
    for row in fedrand.printed_rows(4):
        column = _column(row["mia_input"], row["max_renyi_k_percent"])
        place = row["method"], MODELS[row["role"]]
        paper.setdefault(column, {})[place] = row["mean"]
        spreads.setdefault(column, {})[place] = row["std"]
    ours = {}
    for words, split in (("", NOVEL_OBJECTS), (", held-out", HELD_OUT)):
        for where in ("image", "caption"):
            for k in ("0", "10"):
                against = () if words else (_column(where, k),)
                cells = _cells(evidence, split, f"renyi/2/{k}/{where}")
                ours[_column(where, k) + words] = Column(cells, against, fedrand.COIN_REMARK if words else "")
    sentences = _key_sentence(paper, ours)
    table = Table(
        "fedrand:table4", ours, paper, fedrand.scale(evidence), spreads=spreads, levels_are="Attacked model",
        sentences=sentences, seeds=printed_table.seeds_of(evidence),
    )  # fmt: skip
    return ". ".join([printed_table.build(table, write), *sentences[1:]])


def _column(where: str, k: str) -> str:
    return f"{where}, K {k} %"


def _cells(evidence: Mapping[str, Sequence[Evidence]], split: str, signal: str) -> dict[tuple[str, str], OurNumber]:
    known = {
        (name, words): fedrand.auroc(evidence, label, role, split, signal)
        for role, words in MODELS.items()
        for name, label in METHODS.items()
    } | {UNTRAINED: fedrand.untrained(evidence, split, signal)}
    return {row: cell for row, cell in known.items() if cell is not None}


def _key_sentence(paper: fedrand.Printed, ours: Mapping[str, Column]) -> list[str]:
    """What the printed AUROCs are of, and what the untrained model reaches here."""
    column = _column(*KEY)
    values = [float(value) / 100 for value in paper[column].values()]
    said = [
        f"The paper's {number(min(values), 2)} to {number(max(values), 2)} on captions are against records of another "
        "distribution: a model that tells the two kinds of records apart has them without having learnt a member."
    ]
    base, coin = ours[column].cells.get(UNTRAINED), ours[f"{column}, held-out"].cells
    trained = [c.value for row, c in ours[column].cells.items() if row != UNTRAINED]
    if base is not None and trained:
        held = [c.value for row, c in coin.items() if row != UNTRAINED]
        said.append(
            f"Here the untrained model has {_share(base.value)} on such a split, trained ones "
            f"{_share(min(trained))} to {_share(max(trained))}, and against held-out records "
            f"{_share(min(held))} to {_share(max(held))}." if held else
            f"Here the untrained model has {_share(base.value)} on such a split."
        )  # fmt: skip
    return said


def _share(percent: float) -> str:
    return number(percent / 100, 2)
