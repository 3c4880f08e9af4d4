"""DP²FL: Tables 1 to 4, ours on few shots of drawn symbols beside the printed numbers.

Chang et al. 2025. Table 1 compares four methods, Table 2 clients' own models of DP²FL with its global one, Tables 3 and
4 what a client that comes after the run may start from. All after the last round, on test sets in clients' own class
proportions. Ours are held against the paper's averages over its eight data sets: drawn symbols are none of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from reports.beside_dpfpl import describe_runs
from reports.evidence import Evidence, check
from reports.formats import number, signed
from reports.paper_items import PaperItem
from reports.printed_table import Column, OurNumber, Row, Table, builder, over_seeds, printed, seeds_of
from reports.rows import MethodRow, closest_to_paper, pooled, variants
from reports.sections.newcomers import STARTS as DIFFERENCES
from reports.sections.newcomers import paper
from reports.sections.personal import PRINTED as METHODS


class Items:
    RUN = partial(PaperItem, preset="dp2fl-tables", tasks={"few shots": ("--task=fewshots",)})
    NEWCOMERS = partial(PaperItem, preset="dp2fl-newcomers", tasks={"few shots": ("--task=fewshots",)})

    table1 = RUN(
        "accuracy and F1 of clients' own models, beside three baselines",
        tiny="--seeds 1 --rounds 1 --clients 2 --shots 4 --test 1 --local-epochs 1 --method dp2fl,local",
    )
    table2 = RUN("the global model on clients' test sets, beside their own models")
    table3 = NEWCOMERS(
        "a new client before it trains, by what it starts from",
        tiny="--seeds 1 --rounds 1 --clients 3 --shots 4 --test 1 --local-epochs 1",
    )
    table4 = NEWCOMERS("a new client after one round, by what it started from")


AVERAGE = "AVG"
NAMES = METHODS | {"dp2fl": "DP²FL"}
METRICS = {"accuracy": "accuracy", "micro_f1": "micro-F1"}  # as printed
OURS = {"accuracy": "personal/accuracy", "macro-F1": "personal/f1"}  # in their places
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

Evidences = Mapping[str, Sequence[Evidence]]
Printed = dict[str, dict[Row, str]]


def methods(evidence: Evidences) -> Table:
    """Table 1: accuracy and F1 of clients' own models, a row per method."""
    names = {theirs: NAMES[ours] for ours, theirs in METHODS.items()}
    theirs: Printed = {}
    for row in printed("dp2fl_table1").sort_values("metric", kind="stable").itertuples():
        theirs.setdefault(f"{row.dataset}, {METRICS[row.metric]}", {})[names[row.method], ""] = row.value
    ours = {}
    for task, found in _variants(evidence).items():
        for (name, metric), place in zip(OURS.items(), METRICS.values(), strict=True):
            cells = {(NAMES[v.method], ""): cell for v in found if (cell := _cell(v, metric))}
            ours[f"{task}, {name}"] = Column(cells, (f"{AVERAGE}, {place}",), QUANTITIES.get(name, ""))
    return _table(1, evidence, ours, theirs, [BASELINES])


def models(evidence: Evidences) -> Table:
    """Table 2: a row per model of DP²FL, and their difference."""
    theirs: Printed = {}
    for row in printed("dp2fl_table2").itertuples():
        theirs.setdefault(row.dataset, {})[MODELS[row.model][0], ""] = row.value
    ours = _columns(evidence, {(name, ""): metric for name, metric in MODELS.values()})
    difference = MODELS["global_minus_local"][0], ""
    average = signed(float(theirs[AVERAGE][difference]), 2)
    said = [_beside("Global model less clients' own", column.cells[difference], average)
            for column in ours.values() if difference in column.cells]  # fmt: skip
    return _table(2, evidence, ours, theirs, said, rows_are="Model", apart=[difference[0]])


def before(evidence: Evidences) -> Table:
    """Table 3: a row per model that a new client may use, on its own test set before it trains."""
    theirs: Printed = {}
    for row in printed("dp2fl_table3").itertuples():
        theirs.setdefault(row.dataset, {})[STARTS[row.model][0], ""] = row.value
    ours = _columns(evidence, {(name, ""): f"newcomers/before/new/{start}" for name, start in STARTS.values()})
    return _table(3, evidence, ours, theirs, [COMING, *_steps(evidence, "before", ["new"])], rows_are="Model")


def after(evidence: Evidences) -> Table:
    """Table 4: a row per start and test set, after one round of all clients."""
    theirs: Printed = {}
    for row in printed("dp2fl_table4").itertuples():
        theirs.setdefault(row.dataset, {})[STARTS[row.initialization][0], PLACES[row.test_set]] = row.value
    ours = _columns(evidence, {
        (name, place): f"newcomers/after/{test}/{start}"
        for test, place in PLACES.items() for name, start in STARTS.values()
    })  # fmt: skip
    said = [COMING, *_steps(evidence, "after", list(PLACES))]
    return _table(4, evidence, ours, theirs, said, rows_are="Starts from", levels_are="Tested on")


def _steps(evidence: Evidences, when: str, tests: Sequence[str]) -> Iterator[str]:
    """What a start is worth more than the supposedly next best, ours paired within seeds."""
    for test, step in itertools.product(tests, (start for start in DIFFERENCES if "-" in start)):
        what = DIFFERENCES[step] if when == "before" else f"{PLACES[test]}, {DIFFERENCES[step]}"
        for column in _columns(evidence, {("", ""): f"newcomers/{when}/{test}/{step}"}).values():
            yield from (_beside(what, cell, paper(when, test, step)) for cell in column.cells.values())


def _beside(what: str, cell: OurNumber, average: str) -> str:
    bounds = "" if cell.low is None else f" [{number(cell.low, 1)}, {number(cell.high, 1)}]".replace("-", "−")
    return f"{what}: {signed(cell.value)}{bounds} points; the paper's averages {average}."


def _columns(evidence: Evidences, metrics: Mapping[Row, str]) -> dict[str, Column]:
    """By task the numbers of DP²FL."""
    found = {}
    for task, own in _variants(evidence).items():
        cells = {row: _cell(v, metric) for v in own if v.method == "dp2fl" for row, metric in metrics.items()}
        found[task] = Column({row: cell for row, cell in cells.items() if cell}, (AVERAGE,))
    return found


def _cell(v: MethodRow, metric: str) -> OurNumber | None:
    """The mean over seeds with its interval; None where nothing of the kind was measured."""
    found = {e.seed: f for e in v.evidence for f in e.findings if f["metric"] == metric}
    if not found:
        return None
    first = next(iter(found.values()))
    return over_seeds(pooled({seed: f["value"] for seed, f in found.items()}, first["low"], first["high"]))


def _variants(evidence: Evidences) -> dict[str, list[MethodRow]]:
    """By task the methods of the paper without noise, in its order."""
    for cells in evidence.values():
        check(cells)
    found = {task: [v for v in closest_to_paper(variants(cells)) if not v.private] for task, cells in evidence.items()}
    return {task: [v for name in METHODS for v in own if v.method == name] for task, own in found.items()}


def _table(
    table: int,
    evidence: Evidences,
    ours: Mapping[str, Column],
    theirs: Printed,
    said: Sequence[str],
    *,
    rows_are: str = "Method",
    levels_are: str = "",
    apart: Sequence[str] = (),
) -> Table:
    found = [v for own in _variants(evidence).values() for v in own]
    about = (
        "The paper: CLIP ViT-B/16, eight data sets of photographs, 10 clients, 10 rounds of 5 epochs, batches of 4 and "
        f"one number each. Here: {describe_runs(found)}. Levels are not comparable, at most the order is."
        if found
        else ""
    )
    return Table(
        f"dp2fl:table{table}", ours, theirs, about, digits=2, sentences=said, seeds=seeds_of(evidence),
        rows_are=rows_are, levels_are=levels_are, apart=apart,
    )  # fmt: skip


table1, table2, table3, table4 = map(builder, (methods, models, before, after))
