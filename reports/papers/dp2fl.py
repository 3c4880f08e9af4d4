"""DP²FL: Tables 1 to 4, ours on few shots of drawn symbols beside the printed numbers.

Chang et al. 2025. Table 1 compares four methods. Table 2 compares DP²FL's global model with clients' own models. Tables
3 and 4 compare the models from which a client that joins after the run may start. All numbers are taken after the last
round, on test sets with each client's own class proportions. Ours are compared with the paper's averages over its eight
data sets, as drawn symbols are none of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from fedaudit.reports.beside_dpfpl import describe_runs
from fedaudit.reports.formats import number, signed
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, PrintedCells, printed_cells, variants_by_task
from fedaudit.reports.printed_table import Column, OurNumber, Row, Table, builder, over_seeds, printed, seeds_of
from fedaudit.reports.rows import MethodRow, closest_to_paper, pooled
from fedaudit.reports.sections.newcomers import STARTS as DIFFERENCES
from fedaudit.reports.sections.newcomers import paper
from fedaudit.reports.sections.personal import PRINTED as METHODS


class Items:
    RUN = partial(PaperItem, preset="dp2fl-tables", tasks={"few shots": ("--task=fewshots",)})
    NEWCOMERS = partial(PaperItem, preset="dp2fl-newcomers", tasks={"few shots": ("--task=fewshots",)})

    table1 = RUN(
        "accuracy and F1 of clients' own models, beside three baselines",
        tiny="--seeds 1 --rounds 1 --clients 2 --shots 4 --test 1 --local-epochs 1 --method dp2fl,local",
    )
    table2 = RUN(
        "the global model on clients' test sets, beside their own models",
        method="dp2fl",
        tiny="--seeds 1 --rounds 1 --clients 2 --shots 4 --test 1 --local-epochs 1",
    )
    table3 = NEWCOMERS(
        "a new client before it trains, by what it starts from",
        tiny="--seeds 1 --rounds 1 --clients 3 --shots 4 --test 1 --local-epochs 1",
    )
    table4 = NEWCOMERS("a new client after one round, by what it started from")


AVERAGE = "AVG"
NAMES = METHODS | {"dp2fl": "DP²FL"}
METRICS = {"accuracy": "accuracy", "micro_f1": "micro-F1"}  # the paper's, by their name in dp2fl_table1.csv
OURS = {"accuracy": "personal/accuracy", "macro-F1": "personal/f1"}  # our metric beside each of METRICS, in this order
QUANTITIES = {
    "macro-F1": "over the classes that a client holds. The paper prints micro-F1, which for one label per picture is "
    "accuracy; its two columns differ, so that its own is another quantity, and ours is held against an unknown."
}
BASELINES = "FP+P is FedProx, pF+P is pFedMe, both on PromptFL's prompts; Local sends nothing."
MODELS = {
    "local_average": ("clients' own models", "personal/accuracy"),
    "global_model": ("global model", "global/accuracy"),
    "global_minus_local": ("global − own", "global-personal/accuracy"),
}
STARTS = {
    "local_average": ("old clients' models, mean", "personal"),
    "global_model": ("global model", "global"),
    "init": ("Init", "init"),
    "init_glo": ("InitGlo", "init_glo"),
}
COMING = (
    "A client comes after the last round. InitGlo is the global task prompt with the public data prompt, Init the "
    "public start."
)
PLACES = {"new": "New", "local": "Local", "all": "All"}


def methods(evidence: EvidenceByTask) -> Table:
    """Table 1: accuracy and F1 of clients' own models; a row per method, two columns per task."""
    names = {theirs: NAMES[ours] for ours, theirs in METHODS.items()}
    theirs = printed_cells(
        printed("dp2fl_table1").sort_values("metric", kind="stable"),
        lambda row: f"{row['dataset']}, {METRICS[row['metric']]}",
        lambda row: (names[row["method"]], ""),
    )
    ours = {}
    for task, rows in _paper_methods(evidence).items():
        for (name, metric), printed_metric in zip(OURS.items(), METRICS.values(), strict=True):
            cells = {(NAMES[v.method], ""): cell for v in rows if (cell := _cell(v, metric))}
            ours[f"{task}, {name}"] = Column(cells, (f"{AVERAGE}, {printed_metric}",), QUANTITIES.get(name, ""))
    return _table(1, evidence, ours, theirs, sentences=[BASELINES])


def models(evidence: EvidenceByTask) -> Table:
    """Table 2: accuracy of DP²FL's global model and of clients' own models, and their difference, a row each, a column
    per task."""
    theirs = printed_cells(printed("dp2fl_table2"), itemgetter("dataset"), lambda row: (MODELS[row["model"]][0], ""))
    ours = _columns(evidence, {(name, ""): metric for name, metric in MODELS.values()})
    difference = MODELS["global_minus_local"][0], ""
    average = signed(float(theirs[AVERAGE][difference]), 2)
    sentences = [_compare("Global model less clients' own", column.cells[difference], average)
                 for column in ours.values() if difference in column.cells]  # fmt: skip
    return _table(2, evidence, ours, theirs, sentences=sentences, rows_are="Model", apart=[difference[0]])


def before(evidence: EvidenceByTask) -> Table:
    """Table 3: accuracy of a new client on its own test set before it trains; a row per model that it may use, a column
    per task."""
    theirs = printed_cells(printed("dp2fl_table3"), itemgetter("dataset"), lambda row: (STARTS[row["model"]][0], ""))
    ours = _columns(evidence, {(name, ""): f"newcomers/before/new/{start}" for name, start in STARTS.values()})
    sentences = [COMING, *_gains(evidence, "before", ["new"])]
    return _table(3, evidence, ours, theirs, sentences=sentences, rows_are="Model")


def after(evidence: EvidenceByTask) -> Table:
    """Table 4: accuracy after one round of all clients; a row per test set and model that the new client started
    from."""
    theirs = printed_cells(
        printed("dp2fl_table4"),
        itemgetter("dataset"),
        lambda row: (STARTS[row["initialization"]][0], PLACES[row["test_set"]]),
    )
    ours = _columns(evidence, {
        (name, place): f"newcomers/after/{test}/{start}"
        for test, place in PLACES.items() for name, start in STARTS.values()
    })  # fmt: skip
    sentences = [COMING, *_gains(evidence, "after", list(PLACES))]
    return _table(4, evidence, ours, theirs, sentences=sentences, rows_are="Starts from", levels_are="Tested on")


def _gains(evidence: EvidenceByTask, when: str, tests: Sequence[str]) -> Iterator[str]:
    """Yield a sentence per test set, difference of two starts (such as global model − InitGlo) and task: ours, paired
    within seeds, beside the paper's. `when` is "before" or "after" the new client's first round."""
    for test, difference in itertools.product(tests, (start for start in DIFFERENCES if "-" in start)):
        name = DIFFERENCES[difference] if when == "before" else f"{PLACES[test]}, {DIFFERENCES[difference]}"
        for column in _columns(evidence, {("", ""): f"newcomers/{when}/{test}/{difference}"}).values():
            yield from (_compare(name, cell, paper(when, test, difference)) for cell in column.cells.values())


def _compare(name: str, cell: OurNumber, average: str) -> str:
    """The sentence on a difference called `name`: ours with its interval, and the paper's `average`, as printed."""
    bounds = "" if cell.low is None else f" [{number(cell.low, 1)}, {number(cell.high, 1)}]".replace("-", "−")
    return f"{name}: {signed(cell.value)}{bounds} points; the paper's averages {average}."


def _columns(evidence: EvidenceByTask, metrics: Mapping[Row, str]) -> dict[str, Column]:
    """A column per task with DP²FL's metric in each row, `metrics` by row; rows that were not measured are left out."""
    columns = {}
    for task, rows in _paper_methods(evidence).items():
        cells = {row: _cell(v, metric) for v in rows if v.method == "dp2fl" for row, metric in metrics.items()}
        columns[task] = Column({row: cell for row, cell in cells.items() if cell}, (AVERAGE,))
    return columns


def _cell(v: MethodRow, metric: str) -> OurNumber | None:
    """A metric's mean over seeds, in percent, with its interval; None if no seed has it."""
    by_seed = {e.seed: f for e in v.evidence for f in e.findings if f["metric"] == metric}
    if not by_seed:
        return None
    first = next(iter(by_seed.values()))
    return over_seeds(pooled({seed: f["value"] for seed, f in by_seed.items()}, first["low"], first["high"]))


def _paper_methods(evidence: EvidenceByTask) -> dict[str, list[MethodRow]]:
    """By task, the runs of the paper's methods without noise, in the order of `METHODS`; of several settings of a
    method the one closest to the paper's."""
    rows = {task: closest_to_paper(methods) for task, methods in variants_by_task(evidence).items()}
    return {
        task: [v for name in METHODS for v in methods if v.method == name and not v.private]
        for task, methods in rows.items()
    }


def _table(
    number: int, evidence: EvidenceByTask, ours: Mapping[str, Column], theirs: PrintedCells, **more: Any
) -> Table:
    """The paper's Table `number`: our columns, `theirs` as printed; `more` are further fields of `Table`."""
    methods = [v for rows in _paper_methods(evidence).values() for v in rows]
    about = (
        "The paper: CLIP ViT-B/16, eight data sets of photographs, 10 clients, 10 rounds of 5 epochs, batches of 4 and "
        f"one number each. Here: {describe_runs(methods)}. Levels are not comparable, at most the order is."
        if methods
        else ""
    )
    return Table(f"dp2fl:table{number}", ours, theirs, about, digits=2, seeds=seeds_of(evidence), **more)


table1, table2, table3, table4 = map(builder, (methods, models, before, after))
