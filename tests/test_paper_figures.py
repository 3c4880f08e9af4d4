"""Figures of papers that are drawn from sweeps: FedRand's 2 and 3, DP-FPL's 2, 4, 5 and 6; and one that is computed, SecFPP's 2."""

import io
import math
from dataclasses import replace

import pandas as pd
import pytest

from fedaudit.command import cli, exits
from fedaudit.machinery.errors import InputError
from fedaudit.reports import paper_items
from fedaudit.reports.papers import ablation, fedrand_figure2, secfpp_figure2, secfpp_figure3
from fedaudit.reports.papers.secfpp_table3 import exponent
from tests import prompt_evidence as made_up
from tests.test_report import TWO

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
SHARES = "FedRand sends 75.0 % of FedAvg's bytes, the paper says 75 %"


def drawn(name, cells, say=None):
    """The files of a figure; `say` is how the sentence begins that it returns."""
    files = {}
    said = paper_items.find(name).build({"task": cells}, files.__setitem__)
    assert list(files)[-1] == "index.html"
    assert "Where the paper contradicts itself here" in files["index.html"].decode()
    assert said.startswith(say or "")
    return files


class TestTradeOff:
    def test_ours_are_means_over_seeds_on_both_splits_beside_the_printed_ones(self):
        paper = fedrand_figure2.paper().set_index(["method", "role"])
        assert len(paper) == 7
        assert paper.loc["FedRand", "server"].cider == 110.27
        assert paper.loc["FedRand", "server"].auroc == pytest.approx(66.61)
        assert paper.loc["FedAvg", "client"].auroc == pytest.approx(70.69)
        assert ("FedPara", "client") not in paper.index
        files = drawn("fedrand:figure2", TWO, "ours, against held-out, server: FedRand leaks")
        table = pd.read_csv(io.BytesIO(files["figure2.csv"]))
        assert table.split.value_counts().to_dict() == {"paper": 7, "novel objects": 4, "held-out": 4}
        (row,) = table.query("split == 'held-out' and method == 'FedAvg' and role == 'client'").to_dict("records")
        asked = {"metric": "auroc", "way": "exact", "nonmembers": "held-out", "signal": "renyi/2/10/caption"}
        values = [next(f["value"] for f in e.findings if asked.items() <= f.items()) for e in TWO[:2]]
        assert row["auroc"] == pytest.approx(100 * sum(values) / 2)
        assert row["low"] < row["auroc"] < row["high"]
        assert row["cider"] == pytest.approx(0.9 + 9 / 20)
        assert row["seeds"] == 2
        text = files["index.html"].decode()
        assert text.count("FedRand leaks") == 6  # three splits, two roles
        assert "FedRand leaks less than FedAvg (AUROC 66.61 and 70.22 %) at −0.8 points of CIDEr" in text

    @pytest.mark.parametrize(
        ("value", "high", "word"), [(50, 55, "less"), (60, 68, "not surely less"), (71, 75, "no less")]
    )
    def test_less_is_said_where_intervals_are_apart(self, value, high, word):
        rows = [("held-out", "FedAvg", "server", 9.0, 70.0, 65.0, 75.0)]
        rows += [("held-out", "FedRand", "server", 8.0, value, 2 * value - high, high)]
        points = pd.DataFrame(rows, columns=["split", "method", "role", "cider", "auroc", "low", "high"])
        (said,) = fedrand_figure2.readings(points)
        assert f"FedRand leaks {word} than FedAvg (AUROC {value:.1f} [" in said
        assert said.endswith("70.0 [65.0, 75.0] %) at −1.0 points of CIDEr")


class TestBytes:
    def test_shares_by_hand(self):
        """The made-up FedRand sends half of what FedAvg sends up, and all of it down."""
        table = pd.read_csv(io.BytesIO(drawn("fedrand:figure3", TWO, SHARES)["figure3.csv"])).set_index("method")
        assert table.loc["FedAvg", ["down", "up", "both", "paper"]].tolist() == [0.5, 0.5, 1.0, 1.0]
        assert table.loc["FedRand", ["down", "up", "both", "paper"]].tolist() == [0.5, 0.25, 0.75, 0.75]

    def test_both_figures_are_of_the_same_runs_and_methods(self):
        items = [paper_items.find(f"fedrand:figure{i}") for i in (2, 3)]
        one, other = (cli.read_command([f"--preset={i.preset}", *i.tasks["captions"]]).plan for i in items)
        assert [c.analysis_key for c in one.cells] == [c.analysis_key for c in other.cells]
        assert list(one.methods) == list(fedrand_figure2.TITLES)
        assert one.methods["fedper"].params.shared_layers == 2


class TestAblation:
    def test_ours_beside_the_papers(self):
        paper = ablation.paper("Caltech101").set_index(["epsilon", "rank", "residual", "split"])
        assert paper.loc[(math.inf, 1, False, "local")].accuracy == 86.64
        assert paper.loc[(math.inf, 2, True, "neighbour")].accuracy == 92.79
        said = "τ 0.95 (local classes, p 2.5e-05), 0.17 (neighbour classes, p 0.29)"
        files = drawn("dpfpl:figure2", made_up.ablation(), said)
        assert (pd.read_csv(io.BytesIO(files["figure2.csv"])).whose == "ours").sum() == 4 * 2 * 3 * 2
        text = files["index.html"].decode()
        assert "the residual raises accuracy in 12 of 12 settings (the paper: 12 of 12)" in text
        assert "the next smaller ε lowers it in 16 of 16 steps" in text

    def test_readings_by_hand(self):
        """Two settings of ours: the residual costs a point; a smaller epsilon raises accuracy."""
        cells = [made_up.prompt_evidence("dpfpl", 0.4, rank=8, residual=residual) for residual in (True, False)]
        mine = ablation.ours(cells)
        assert mine.accuracy.diff().dropna().iloc[1] == pytest.approx(-2 + 5)
        swapped = mine.assign(residual=~mine.residual)
        said = ablation.readings(pd.concat([swapped, ablation.paper("Caltech101")]))
        assert "raises accuracy in 0 of 1 settings (the paper: 1 of 1)" in said[0]
        assert "lowers it in 0 of 0 steps" in said[0]
        assert said[0].endswith("at the same ε: τ −1.00, p 1")


@pytest.mark.parametrize("name", ["dpfpl:figure2", "fedrand:figure2", "fedrand:figure3", "fedrand:figure4"])
def test_a_figure_of_one_task_refuses_two(name):
    with pytest.raises(ValueError, match="evidence has the tasks a, b; the figure draws one"):
        paper_items.find(name).build({"a": TWO, "b": TWO}, {}.__setitem__)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("fedrand:figure2", replace(TWO[0], tables={}), "task 'task' must have AUROCs"),
        ("fedrand:figure3", replace(TWO[0], tables={}), "task 'task' must have counted bytes"),
        ("dpfpl:figure2", made_up.prompt_evidence("promptfl"), "several settings of DP-FPL"),
    ],
)
def test_what_cannot_be_shown_is_refused(name, given, said):
    with pytest.raises(ValueError, match=said):
        drawn(name, [given])


class TestInformation:
    def test_rows_are_exact_and_estimated_as_the_paper_does(self):
        table = secfpp_figure2.ours(users=(20,), components=(2,), size=400)
        assert table.groupby("panel", sort=False).size().to_dict() == {"users": 6, "dimension": 6}
        at = table[table.panel == "users"].set_index("quantity")
        assert at.exact["distance"] == pytest.approx(1.163, abs=5e-4)
        assert at.exact["distance, as printed"] == pytest.approx(9.523, abs=5e-4)
        assert at.exact["centre, inside"] == pytest.approx(60 * math.log(20 / 19))
        assert at.exact["self-information"] == pytest.approx(60 * math.log(2 * math.pi * math.e))
        assert at.ksg["distance, from the length"] == pytest.approx(1.163, abs=0.3)
        assert abs(at.ksg["distance"]) < 0.2  # of 120 dimensions nothing is seen

    def test_the_command_draws_it_and_trains_nothing(self, tmp_path, monkeypatch, capsys):
        small = secfpp_figure2.ours(users=(5, 20), components=(8, 10), size=100)
        monkeypatch.setattr(secfpp_figure2, "ours", lambda: small)
        assert cli.main(["--paper", "secfpp:figure2", "--out", str(tmp_path), "--quiet"]) == exits.DONE
        (page,) = (tmp_path / "papers").glob("secfpp-figure2-*/index.html")
        assert capsys.readouterr().out.strip().endswith(f"page: {page}")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["audits", "index.html", "papers"]
        assert len(pd.read_csv(page.parent / "figure2.csv")) == len(small)
        said = page.read_text()
        assert "breaks the appendix" in said
        assert "self-information is more than 10^4 times" in said
        assert "Exactly it is 10^2.2 times (170 and 1.16 nats)" in said

    def test_words_that_train_have_no_place(self, tmp_path):
        for words in ("--rounds 3", "--method dpfpl", "--preset secfpp", "--fail-if auroc>0.6"):
            said = f"{words.split()[0]}: has no place beside --paper secfpp:figure2, which trains nothing"
            with pytest.raises(InputError, match=said):
                cli._main(["--paper", "secfpp:figure2", "--out", str(tmp_path), *words.split()])
        assert not list(tmp_path.iterdir())

    def test_its_help_is_its_own_and_a_dry_run_says_that_nothing_is_trained(self, tmp_path, capsys):
        with pytest.raises(SystemExit) as end:
            cli._main(["--paper", "secfpp:figure2", "--help"])
        assert end.value.code in (0, None)
        said = capsys.readouterr().out
        assert "audit.py --paper secfpp:figure2 [options]" in said
        assert "--out FOLDER" in said
        assert "--rounds" not in said
        assert cli.main(["--paper", "secfpp:figure2", "--dry-run", "--out", str(tmp_path)]) == exits.DONE
        assert "nothing is trained" in capsys.readouterr().out
        assert not list(tmp_path.iterdir())


def test_phases_add_up_and_grow_as_they_are_counted(monkeypatch):
    """With a clock that counts: a phase takes one, whatever it does; bytes are exact."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(secfpp_figure3.time, "process_time", lambda: next(ticks))
    table = secfpp_figure3.ours(users=(20, 40), entries=(150, 300))
    assert list(zip(table.users, table.d, strict=True)) == [(20, 150), (40, 150), (20, 300)]
    assert ({*table.user}, {*table.server}) == ({5}, {2})
    row = table.iloc[0]
    assert row.bytes == secfpp_figure3.WIDTH * 20 * (math.ceil(150 / row.ell) + 3 + 60)
    assert exponent(table, "user", "d") == exponent(table, "server", "users") == 0
    assert exponent(table, "bytes", "d") == pytest.approx(math.log2(table.bytes[2] / table.bytes[0]))
