"""SecFPP: Tables 1 and 2, ours in styles of drawn symbols beside the printed accuracies.

Hou et al. 2025, sections 1 and 5.2. Table 2 has two columns per domain and per pair of domains: accuracy on clients'
own test sets and on all test records. Ours are compared with the paper's means over its single data sets or over its
pairs. Table 1 is computed from the same runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from statistics import mean

from fedaudit.reports.beside_dpfpl import METHODS as BASELINES
from fedaudit.reports.beside_dpfpl import describe_runs
from fedaudit.reports.paper_items import PaperItem
from fedaudit.reports.papers.common import EvidenceByTask, PrintedCells, drowned_note, printed_cells, variants_by_task
from fedaudit.reports.printed_table import Column, Table, builder, over_seeds, printed, seeds_of
from fedaudit.reports.rows import MethodRow, Score, closest_to_paper, pooled
from fedaudit.terms.splits import OVERALL, OWN_TEST


class Items:
    DOMAINS = "print", "neon", "dots", "print+neon", "print+dots", "neon+dots"
    TABLE = partial(PaperItem, preset="secfpp-table2", tasks={name: (f"--domain={name}",) for name in DOMAINS})

    table1 = TABLE(
        "from hard prompts to SecFPP, over single domains and over pairs",
        method="zeroshot,promptfl,fedotp,fedpgp,dpfpl:epsilon=0.1,dpfpl:epsilon=0.01,secfpp",
        tiny="--seeds 1 --rounds 1 --clients 4 --train 8 --test 1 --method dpfpl:epsilon=0.1,secfpp",
    )
    table2 = TABLE(
        "accuracy of five methods on single domains and on pairs",
        method="promptfl,fedotp,fedpgp,dpfpl,dpfpl:epsilon=0.4,dpfpl:epsilon=0.1,dpfpl:epsilon=0.01,secfpp",
        tiny="--seeds 1 --rounds 1 --clients 4 --train 8 --test 1 --method dpfpl,secfpp",
    )


METHODS = {key: name for name, key in BASELINES.items()} | {"secfpp": "SecFPP"}
SPLITS = {OWN_TEST: "own tests", OVERALL: "all records"}
LEVELS = {"none": "no noise", "0.4": "ε 0.4 (loose)", "0.1": "ε 0.1 (default)", "0.01": "ε 0.01 (strict)"}
HARD = ("zeroshot", math.inf)
PAIRS = {"single": False, "multi": True}  # columns of Table 1: whether its tasks are pairs of domains
DEFAULT, STRICT = 0.1, 0.01
OTHER_BUDGET = "DP-FPL, the other budget"
OTHER_FPP = "FPP, FedPGP"
ROWS = {  # of Table 1: for both of its columns (single, multi) our method and its epsilon
    "Hard Prompt": (HARD, HARD),
    "Soft Prompt": (("promptfl", math.inf), ("promptfl", math.inf)),
    "FPP": (("fedotp", math.inf), ("fedotp", math.inf)),
    OTHER_FPP: (("fedpgp", math.inf), ("fedpgp", math.inf)),
    "DP-FPL": (("dpfpl", DEFAULT), ("dpfpl", STRICT)),
    OTHER_BUDGET: (("dpfpl", STRICT), ("dpfpl", DEFAULT)),
    "SecFPP": (("secfpp", math.inf), ("secfpp", math.inf)),
}


def evolution(evidence: EvidenceByTask) -> Table:
    """Table 1, ours beside the printed: accuracy in percent on clients' own test sets, a row per entry of `ROWS`, a
    column for the mean over single domains and one over pairs. A cell needs its row's method, at the column's epsilon,
    on all tasks of the column."""
    theirs = printed_cells(printed("secfpp_table1"), itemgetter("domains"), lambda row: (row["method"], ""))
    by_task = _methods_by_task(evidence)
    ours = {}
    for i, (column, paired) in enumerate(PAIRS.items()):
        tasks = {task: methods for task, methods in by_task.items() if ("+" in task) == paired}
        cells = {
            (name, ""): over_seeds(_mean([methods[keys[i]].scores[OWN_TEST] for methods in tasks.values()]))
            for name, keys in ROWS.items()
            if tasks and all(keys[i] in methods and OWN_TEST in methods[keys[i]].scores for methods in tasks.values())
        }
        quantity = (
            f"mean over {', '.join(tasks)}; DP-FPL has ε {ROWS['DP-FPL'][i][1]:g}, as in the print, its other row "
            f"ε {ROWS[OTHER_BUDGET][i][1]:g}"
        )
        ours[column] = Column(cells, (column,), quantity)
    sentences = [
        "Hard prompt: CLIP's “a photo of a …”, nothing is trained. Soft prompt: PromptFL. FPP: FedOTP, whose printed "
        "number of Table 2 is within 0.1 of the row's (85.4, 85.5); FedPGP stands below it and is not compared.",
        "The column Privacy of the paper's table holds marks, not numbers. Its text: DP-FPL adds noise (differential "
        "privacy), SecFPP computes on secret shares and adds none; of the other rows it names no protection.",
    ]
    return _table(1, evidence, ours, theirs, sentences)


def methods(evidence: EvidenceByTask) -> Table:
    """Table 2: accuracies in percent, a row per method and budget (epsilon), a column per task (a domain or pair) and
    kind of test set."""
    theirs = printed_cells(
        printed("secfpp_table2"), itemgetter("dataset"), lambda row: (row["method"], LEVELS[row["epsilon"]])
    )
    ours = {}
    for split, test_set in SPLITS.items():
        for task, variants in _methods_by_task(evidence).items():
            cells = {
                (METHODS[method], _level(epsilon)): over_seeds(v.scores[split])
                for (method, epsilon), v in variants.items()
                if method in METHODS and split in v.scores
            }
            ours[f"{task}, {test_set}"] = Column(cells, [name for name in theirs if ("+" in name) == ("+" in task)])
    sentences = [
        "The paper does not say which records its accuracies are of: clients' own test sets, or all test records."
    ]
    return _table(2, evidence, ours, theirs, sentences)


def _methods_by_task(evidence: EvidenceByTask) -> dict[str, dict[tuple[str, float], MethodRow]]:
    """The methods of each task, by name and epsilon (inf without noise); of several settings of a method the one
    closest to the paper's."""
    rows = {task: closest_to_paper(methods) for task, methods in variants_by_task(evidence).items()}
    return {task: {(v.method, v.epsilon): v for v in methods} for task, methods in rows.items()}


def _mean(scores: Sequence[Score]) -> Score:
    """The mean of scores, one per task: computed for each seed that all of them have, then pooled over seeds."""
    seeds = sorted(set.intersection(*(set(score.seeds) for score in scores)))
    return pooled({seed: mean(score.seeds[seed] for score in scores) for seed in seeds}, None, None)


def _level(epsilon: float) -> str:
    return LEVELS["none" if math.isinf(epsilon) else f"{epsilon:g}"]


def _table(
    number: int, evidence: EvidenceByTask, ours: Mapping[str, Column], theirs: PrintedCells, sentences: list[str]
) -> Table:
    rows = [v for methods in _methods_by_task(evidence).values() for v in methods.values()]
    about = (
        "The paper: CLIP ViT-B/16, photographs, 20 users, Dirichlet 0.3, 100 rounds of 10 local epochs and one number "
        "each; of a pair each half of the users has one domain, here too. SecFPP adds no noise, and promises no ε. "
    )
    about += f"Here: {describe_runs(rows)}. Accuracies are not comparable, at most their order is." if rows else ""
    sentences = sentences + drowned_note(rows)
    return Table(f"secfpp:table{number}", ours, theirs, about, sentences=sentences, seeds=seeds_of(evidence))


table1, table2 = map(builder, (evolution, methods))
