"""SecFPP: Tables 1 and 2, ours in styles of drawn symbols beside the printed accuracies.

Hou et al. 2025, sections 1 and 5.2. Table 2 has a column per domain and pair, on clients' own test sets and on all test
records, ours held against the paper's means over its single data sets or pairs; Table 1 is made of the same runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean

from fedaudit.terms.splits import OVERALL, OWN_TEST
from reports.beside_dpfpl import DROWNED, describe_runs
from reports.beside_dpfpl import METHODS as BASELINES
from reports.evidence import Evidence, check
from reports.paper_items import PaperItem
from reports.printed_table import Column, Row, Table, builder, over_seeds, printed, seeds_of
from reports.rows import MethodRow, Score, pooled, variants


class Items:
    DOMAINS = "print", "neon", "dots", "print+neon", "print+dots", "neon+dots"
    TABLE = partial(PaperItem, preset="secfpp-table2", tasks={name: (f"--domain={name}",) for name in DOMAINS})

    table1 = TABLE(
        "from hard prompts to SecFPP, over single domains and over pairs",
        tiny="--seeds 1 --rounds 1 --clients 4 --train 8 --test 1 --method dpfpl,secfpp",
    )
    table2 = TABLE("accuracy of five methods on single domains and on pairs")


METHODS = {key: name for name, key in BASELINES.items()} | {"secfpp": "SecFPP"}
SPLITS = {OWN_TEST: "own tests", OVERALL: "all records"}
LEVELS = {"none": "no noise", "0.4": "ε 0.4 (loose)", "0.1": "ε 0.1 (default)", "0.01": "ε 0.01 (strict)"}
HARD = ("zeroshot", math.inf)
PAIRS = {"single": False, "multi": True}  # of which tasks a column of Table 1 is
DEFAULT, STRICT = 0.1, 0.01
OTHER_BUDGET = "DP-FPL, the other budget"
OTHER_FPP = "FPP, FedPGP"
ROWS = {  # of Table 1: the method and its epsilon that stand there in each column
    "Hard Prompt": (HARD, HARD),
    "Soft Prompt": (("promptfl", math.inf), ("promptfl", math.inf)),
    "FPP": (("fedotp", math.inf), ("fedotp", math.inf)),
    OTHER_FPP: (("fedpgp", math.inf), ("fedpgp", math.inf)),
    "DP-FPL": (("dpfpl", DEFAULT), ("dpfpl", STRICT)),
    OTHER_BUDGET: (("dpfpl", STRICT), ("dpfpl", DEFAULT)),
    "SecFPP": (("secfpp", math.inf), ("secfpp", math.inf)),
}
Evidences = Mapping[str, Sequence[Evidence]]


def evolution(evidence: Evidences) -> Table:
    """Table 1: means over single domains and over pairs, on clients' own test sets."""
    theirs: dict[str, dict[Row, str]] = {}
    for row in printed("secfpp_table1").itertuples():
        theirs.setdefault(row.domains, {})[row.method, ""] = row.value
    found = _by_task(evidence)
    ours = {}
    for i, (column, paired) in enumerate(PAIRS.items()):
        scores = [own for task, own in found.items() if ("+" in task) == paired]
        cells = {
            (name, ""): over_seeds(_mean([one[which[i]].scores[OWN_TEST] for one in scores]))
            for name, which in ROWS.items()
            if scores and all(which[i] in one and OWN_TEST in one[which[i]].scores for one in scores)
        }
        of = f"mean over {', '.join(t for t in found if ('+' in t) == paired)}; DP-FPL has ε {ROWS['DP-FPL'][i][1]:g}"
        ours[column] = Column(cells, (column,), f"{of}, as in the print, its other row ε {ROWS[OTHER_BUDGET][i][1]:g}")
    said = [
        "Hard prompt: CLIP's “a photo of a …”, nothing is trained. Soft prompt: PromptFL. FPP: FedOTP, whose printed "
        "number of Table 2 is within 0.1 of the row's (85.4, 85.5); FedPGP stands below it and is not compared.",
        "The column Privacy of the paper's table holds marks, not numbers. Its text: DP-FPL adds noise (differential "
        "privacy), SecFPP computes on secret shares and adds none; of the other rows it names no protection.",
    ]
    return _table(1, evidence, ours, theirs, said)


def methods(evidence: Evidences) -> Table:
    """Table 2: a row per method and budget, a column per domain or pair on either kind of test set."""
    theirs: dict[str, dict[Row, str]] = {}
    for row in printed("secfpp_table2").itertuples():
        theirs.setdefault(row.dataset, {})[row.method, LEVELS[row.epsilon]] = row.value
    ours = {}
    for split, place in SPLITS.items():
        for task, found in _by_task(evidence).items():
            cells = {
                (METHODS[method], LEVELS[_printed(epsilon)]): over_seeds(v.scores[split])
                for (method, epsilon), v in found.items()
                if method in METHODS and split in v.scores
            }
            ours[f"{task}, {place}"] = Column(cells, [name for name in theirs if ("+" in name) == ("+" in task)])
    said = ["The paper does not say which records its accuracies are of: clients' own test sets, or all test records."]
    return _table(2, evidence, ours, theirs, said)


def _by_task(evidence: Evidences) -> dict[str, dict[tuple[str, float], MethodRow]]:
    """By task the methods by name and epsilon."""
    for cells in evidence.values():
        check(cells)
    return {task: {(v.method, v.epsilon): v for v in variants(cells)} for task, cells in evidence.items()}


def _mean(scores: Sequence[Score]) -> Score:
    """The mean over tasks within each seed that all of them have."""
    seeds = sorted(set.intersection(*(set(score.seeds) for score in scores)))
    return pooled({seed: mean(score.seeds[seed] for score in scores) for seed in seeds}, None, None)


def _printed(epsilon: float) -> str:
    return "none" if math.isinf(epsilon) else f"{epsilon:g}"


def _table(
    number: int,
    evidence: Evidences,
    ours: Mapping[str, Column],
    theirs: Mapping[str, Mapping[Row, str]],
    said: list[str],
) -> Table:
    found = [v for own in _by_task(evidence).values() for v in own.values()]
    noised = [DROWNED] if any((v.ratio or 0) > 10 for v in found) else []
    about = (
        "The paper: CLIP ViT-B/16, photographs, 20 users, Dirichlet 0.3, 100 rounds of 10 local epochs and one number "
        "each; of a pair each half of the users has one domain, here too. SecFPP adds no noise, and promises no ε. "
    )
    about += f"Here: {describe_runs(found)}. Accuracies are not comparable, at most their order is." if found else ""
    return Table(f"secfpp:table{number}", ours, theirs, about, sentences=said + noised, seeds=seeds_of(evidence))


table1, table2 = map(builder, (evolution, methods))
