"""SecFPP's Table 2: columns, intervals over seeds, and the order of methods beside the paper's."""

from __future__ import annotations

import io
import math
from statistics import mean, stdev

import pandas as pd
import pytest

from fedaudit.command import cli
from fedaudit.pipeline import papers
from reports.papers import secfpp_table2
from reports.report import Evidence
from tests.prompt_evidence import of_a_dirichlet_split, prompt_evidence

CLEAR = ("promptfl", "fedotp", "fedpgp", "dpfpl")
SEEDS = (0, 1, 4)  # the made-up accuracies of a seed are its number above those of seed 0


def cells(seeds: tuple[int, ...] = SEEDS) -> list[Evidence]:
    given = [(method, math.inf) for method in CLEAR] + [("dpfpl", 0.1)]
    return [of_a_dirichlet_split(prompt_evidence(method, e, seed)) for method, e in given for seed in seeds]


def drawn(evidence: dict[str, list[Evidence]]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    secfpp_table2.build(evidence, files.__setitem__)
    return files


def test_cells_are_means_with_students_interval() -> None:
    files = drawn({"print": cells(), "print+neon": cells()})
    assert list(files) == ["table2.csv", "index.html"]
    table = pd.read_csv(io.BytesIO(files["table2.csv"]), keep_default_na=False)
    assert len(table) == 2 * 2 * 5
    (row,) = table[
        (table.task == "print") & (table.method == "dpfpl") & (table.epsilon == "0.1") & (table.split == "overall")
    ].to_dict("records")
    values = [
        next(f["value"] for f in e.findings if f["metric"] == "accuracy/overall")
        for e in cells()
        if e.setting["privacy"]["epsilon"] == 0.1
    ]
    assert row["accuracy"] == pytest.approx(mean(values))
    assert row["high"] - row["accuracy"] == pytest.approx(4.302653 * stdev(values) / math.sqrt(3))  # t at 2 degrees
    assert row["seeds"] == 3


def test_one_seed_has_the_interval_over_clients() -> None:
    table = pd.read_csv(io.BytesIO(drawn({"print": cells((0,))})["table2.csv"]))
    assert ((table.high - table.low) == 12.5).all()


def test_the_papers_numbers_are_the_printed_ones() -> None:
    printed = secfpp_table2.paper()
    assert len(printed) == 14
    assert all(len(column) == 8 for column in printed.values())
    assert printed["Caltech101+OxfordPets"]["secfpp", math.inf] == 91.2
    assert printed["DTD"]["dpfpl", 0.01] == 22.0


def test_the_order_is_compared_among_methods_without_noise() -> None:
    """In the made-up accuracies as in the paper's singles FedOTP is first of four; 5 of the 6 pairs agree."""
    ours = {"print": secfpp_table2._cells("print", cells((0,)), "overall")}
    found = secfpp_table2._orders(ours)["print"]
    assert found is not None
    clear = {row: cell.value for row, cell in ours["print"].items() if math.isinf(row[1])}
    theirs = secfpp_table2._paper_means()[False]
    pairs = [(a, b) for i, a in enumerate(clear) for b in list(clear)[i + 1 :]]
    signs = [math.copysign(1, (clear[a] - clear[b]) * (theirs[a] - theirs[b])) for a, b in pairs]
    assert found.tau == pytest.approx(sum(signs) / len(pairs))
    assert found.n == found.methods == 4


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(ValueError, match="evidence is empty"):
        drawn({})
    with pytest.raises(ValueError, match="task 'print' must have accuracies"):
        drawn({"print": [prompt_evidence("zeroshot")]})


def test_its_preset_runs_every_row_of_the_table() -> None:
    figure = papers.find("secfpp:table2")
    for words in figure.tasks.values():
        plan = cli.read_command(["--preset", figure.preset, *words, "--dry-run"]).plan
        rows = {
            (v.method, math.inf if v.privacy is None else v.privacy.epsilon)
            for v in plan.methods.values()
            if v is not None
        }
        assert rows == set(next(iter(secfpp_table2.paper().values())))
        assert (plan.clients, plan.seeds) == (20, 3)
