"""DP²FL's Tables 1 to 4: ours on few shots of drawn symbols beside the printed numbers.

Chang et al. 2025. Table 1 compares four methods, Table 2 clients' own models of DP²FL with its global one, Tables 3 and
4 what a client that comes after the run may start from. All after the last round, on test sets in clients' own class
proportions. Ours are held against the paper's averages over its eight data sets: drawn symbols are none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reports.beside_dpfpl import here
from reports.formats import number, signed
from reports.inputs import Evidence, check
from reports.printed_table import Cell, Column, Row, Table, over_seeds, printed, seeds_of
from reports.rows import MethodRow, as_printed, pooled, variants
from reports.sections.newcomers import STARTS, paper
from reports.sections.personal import PRINTED as METHODS
from reports.sections.personal import averages

AVERAGE = "AVG"
METRICS = {"accuracy": "accuracy", "micro_f1": "micro-F1"}  # as printed
NAMES = {method: name.replace("DP2FL", "DP²FL") for method, name in METHODS.items()}
MODELS = {
    "local_average": ("clients' own models", "personal/accuracy"),
    "global_model": ("global model", "global/accuracy"),
    "global_minus_local": ("global − own", "global-personal/accuracy"),
}
ARRIVALS = {"local_average": "personal", "global_model": "global", "init": "init", "init_glo": "init_glo"}
BEGINS = {"personal": "old clients' models, mean", "global": "global model", "init": "Init", "init_glo": "InitGlo"}
PLACES = {"new": "New", "local": "Local", "all": "All"}
STEPS = ("global-init_glo", "init_glo-init")  # a start less the supposedly next best

Evidences = Mapping[str, Sequence[Evidence]]


def methods(evidence: Evidences) -> Table:
    """Table 1: accuracy and F1 of clients' own models, a row per method."""
    theirs: dict[str, dict[Row, str]] = {}
    table = printed("dp2fl_table1")
    for metric, name in METRICS.items():
        for row in table[table.metric == metric].itertuples():
            theirs.setdefault(f"{row.dataset}, {name}", {})[_name(row.method), ""] = row.value
    ours = {}
    for task, found in _variants(evidence).items():
        for metric, name, other in (("accuracy", "accuracy", ""), ("f1", "micro-F1", OTHER_F1)):
            called = "macro-F1" if other else name
            cells = {(NAMES[v.method], ""): cell for v in found if (cell := _cell(v, f"personal/{metric}"))}
            ours[f"{task}, {called}"] = Column(cells, (f"{AVERAGE}, {name}",), other)
    return _table(1, evidence, ours, theirs)


OTHER_F1 = (
    "F1 is macro, over the classes that a client holds. The paper prints micro-F1, which for one label per picture is "
    "accuracy; its two columns differ, so that its own must be another quantity, and ours is held against an unknown."
)


def models(evidence: Evidences) -> Table:
    """Table 2: a row per model of DP²FL, and their difference."""
    rows = {model: name for model, (name, _) in MODELS.items()}
    theirs: dict[str, dict[Row, str]] = {}
    for row in printed("dp2fl_table2").itertuples():
        theirs.setdefault(row.dataset, {})[rows[row.model], ""] = row.value
    ours = {task: Column(_cells(found, {(name, ""): metric for name, metric in MODELS.values()}), (AVERAGE,))
            for task, found in _variants(evidence).items()}  # fmt: skip
    difference = MODELS["global_minus_local"][0]
    (average,) = (row["value"] for row in averages(2) if row["model"] == "global_minus_local")
    said = [_beside("Global model less clients' own", c.cells[difference, ""], f"{float(average):+.2f}")
            for c in ours.values() if (difference, "") in c.cells]  # fmt: skip
    return _table(2, evidence, ours, theirs, said, rows_are="Model", apart=[difference])


def before(evidence: Evidences) -> Table:
    """Table 3: a row per model that a new client may start from, on its own test set before it trains."""
    theirs: dict[str, dict[Row, str]] = {}
    for row in printed("dp2fl_table3").itertuples():
        theirs.setdefault(row.dataset, {})[BEGINS[ARRIVALS[row.model]], ""] = row.value
    metrics = {(name, ""): f"newcomers/before/new/{start}" for start, name in BEGINS.items()}
    return _newcomers(3, evidence, metrics, theirs, [("before", "new")])


def after(evidence: Evidences) -> Table:
    """Table 4: a row per start and test set, after one round of all clients."""
    theirs: dict[str, dict[Row, str]] = {}
    for row in printed("dp2fl_table4").itertuples():
        place = BEGINS[ARRIVALS[row.initialization]], PLACES[row.test_set]
        theirs.setdefault(row.dataset, {})[place] = row.value
    metrics = {(name, place): f"newcomers/after/{test}/{start}"
               for test, place in PLACES.items() for start, name in BEGINS.items() if start != "personal"}  # fmt: skip
    return _newcomers(4, evidence, metrics, theirs, [("after", test) for test in PLACES])


def _newcomers(
    table: int,
    evidence: Evidences,
    metrics: Mapping[Row, str],
    theirs: Mapping[str, Mapping[Row, str]],
    places: Sequence[tuple[str, str]],
) -> Table:
    found = _variants(evidence)
    ours = {task: Column(_cells(own, metrics), (AVERAGE,)) for task, own in found.items()}
    said = [sentence for own in found.values() for place in places for sentence in _steps(own, *place)]
    return _table(table, evidence, ours, theirs, said, rows_are="Starts from", levels_are="Tested on")


def _steps(found: Sequence[MethodRow], when: str, test: str) -> Iterator[str]:
    """What a start is worth more than the supposedly next best, ours paired within seeds."""
    for step in STEPS:
        for v in found:
            if v.method == "dp2fl" and (cell := _cell(v, f"newcomers/{when}/{test}/{step}")):
                where = f", on {PLACES[test]}" if when == "after" else ""
                yield _beside(f"{STARTS[step]}{where}", cell, paper(when, test, step))


def _beside(what: str, cell: Cell, average: str) -> str:
    bounds = "" if cell.low is None else f" [{number(cell.low, 1)}, {number(cell.high, 1)}]"
    return f"{what}: {signed(cell.value)}{bounds} points; the paper's averages {average.replace('-', '−')}."


def _cells(found: Sequence[MethodRow], metrics: Mapping[Row, str]) -> dict[Row, Cell]:
    """Of DP²FL the number of every row."""
    own = [v for v in found if v.method == "dp2fl"]
    return {row: cell for v in own for row, metric in metrics.items() if (cell := _cell(v, metric))}


def _cell(v: MethodRow, metric: str) -> Cell | None:
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
    found = {task: [v for v in as_printed(variants(cells)) if not v.private] for task, cells in evidence.items()}
    return {task: [v for name in METHODS for v in own if v.method == name] for task, own in found.items()}


def _name(method: str) -> str:
    return method.replace("DP2FL", "DP²FL")


def _table(
    table: int,
    evidence: Evidences,
    ours: Mapping[str, Column],
    theirs: Mapping[str, Mapping[Row, str]],
    said: Sequence[str] = (),
    *,
    rows_are: str = "Method",
    levels_are: str = "",
    apart: Sequence[str] = (),
) -> Table:
    found = [v for own in _variants(evidence).values() for v in own]
    about = (
        "The paper: CLIP ViT-B/16, eight data sets of photographs, 10 clients, 10 rounds of 5 epochs, batches of 4 and "
        f"one number each. Here: {here(found)}. Levels are not comparable, at most the order is."
        if found
        else ""
    )
    return Table(
        f"dp2fl:table{table}", ours, theirs, about, digits=2, sentences=said, seeds=seeds_of(evidence),
        rows_are=rows_are, levels_are=levels_are, apart=apart,
    )  # fmt: skip
