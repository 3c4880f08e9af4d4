"""Tables and figures of papers by name: which there are, what is asked for together, the index, and what fails."""

import html
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest

from fedaudit.command import cli, exits, paper
from fedaudit.machinery import plugins
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline import papers
from fedaudit.pipeline.papers import DrawnItem
from fedaudit.pipeline.plan import Plan
from fedaudit.reports import paper_items
from fedaudit.reports.templates import contradictions

FOLDER = plugins.package_folder("fedaudit.reports.papers")
NAMES = list(paper_items.items())


def asked(*words: str) -> paper.PaperRequest:
    return paper.read(["--paper", *words], lambda own, scale: cli.read_command(own, scale).plan)


def planned(name: str, *words: str) -> dict[str, Plan]:
    plans = asked(name, *words).items[name]
    assert not isinstance(plans, InputError)
    return plans


class TestNames:
    def test_one_all_of_a_paper_and_all(self) -> None:
        """Tables come first and by their numbers."""
        numbers = [f"table{i}" for i in (2, 3, 4, 6, 7, 8, 9, 10, 11)] + [f"figure{i}" for i in range(2, 7)]
        assert paper_items.matching("dpfpl") == [f"dpfpl:{item}" for item in numbers]
        assert paper_items.matching("fedrand:table4") == ["fedrand:table4"]
        assert paper_items.matching("all") == NAMES
        both = paper_items.matching("dpfpl:table2, dp2fl")
        assert {*both} == {"dpfpl:table2", *(f"dp2fl:table{i}" for i in range(1, 5))}
        assert both == [name for name in NAMES if name in both]
        with pytest.raises(InputError, match="--paper dpfp: no such table or figure"):
            paper_items.matching("dp2fl,dpfp")

    def test_the_list_names_each_with_what_it_shows_and_stands_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--paper", "list"]) == exits.DONE
        said = capsys.readouterr().out
        assert [line.split()[0] for line in said.splitlines()] == NAMES
        assert all(item.summary in said for item in paper_items.items().values())
        for words in ("--rounds 3", "--out x", "--help"):
            with pytest.raises(InputError, match="--paper list: stands alone"):
                asked("list", *words.split())

    def test_help_is_of_what_an_item_takes(self, capsys: pytest.CaptureFixture[str]) -> None:
        """One that is trained has its methods' flags, one that trains nothing and several have the place's only."""
        for name, trains in (("fedrand:table1", True), ("secfpp:figure3", False), ("fedrand", False)):
            with pytest.raises(SystemExit):
                asked(name, "--help")
            said = capsys.readouterr().out
            assert "--out" in said, name
            assert ("--rounds" in said) == trains, name


PLANNED = {  # trainings that an item plans, and the attacks on each; all others plan none
    "dp2fl:table1": (12, "none"), "dp2fl:table2": (3, "none"), "dp2fl:table3": (3, "none"), "dp2fl:table4": (3, "none"),
    "dpfpl:table2": (144, "none"), "dpfpl:table3": (144, "none"), "dpfpl:table4": (48, "none"),
    **{f"dpfpl:table{i}": (10, "none") for i in range(6, 12)},
    "dpfpl:figure3": (3, "shadow,loss"), **{f"dpfpl:figure{i}": (60, "none") for i in (2, 4, 5, 6)},
    "fedrand:table1": (10, "none"), "fedrand:table2": (5, "none"), "fedrand:table3": (5, "maxrenyi"),
    "fedrand:table4": (5, "maxrenyi"), "fedrand:figure2": (5, "maxrenyi"), "fedrand:figure3": (5, "none"),
    "fedrand:figure4": (2, "maxrenyi"), "secfpp:table1": (126, "none"), "secfpp:table2": (144, "none"),
}  # fmt: skip


class TestPlans:
    """That each of these is shown is tested where items are drawn (`test_papers_run`)."""

    @pytest.mark.parametrize("name", NAMES)
    def test_what_is_trained_and_attacked(self, name: str) -> None:
        plans = planned(name).values()
        trainings, attacks = PLANNED.get(name, (0, None))
        assert len({cell.training_key for plan in plans for cell in plan.cells}) == trainings
        assert {plan.attack or "none" for plan in plans} == ({attacks} - {None})

    @pytest.mark.parametrize(("some", "every"), [
        *((f"dpfpl:table{i}", "dpfpl:figure2") for i in range(6, 12)), ("dp2fl:table2", "dp2fl:table1"),
        ("fedrand:figure3", "fedrand:figure2"), ("fedrand:table4", "fedrand:table1"), ("fedrand:figure4", "fedrand:table2"),
    ])  # fmt: skip
    def test_items_share_trainings_on_disk(self, some: str, every: str) -> None:
        plans = [planned(name).values() for name in (some, every)]
        few, all_of_them = ({cell.training_folder for plan in own for cell in plan.cells} for own in plans)
        assert few <= all_of_them


def test_every_printed_table_and_contradiction_is_that_of_an_item() -> None:
    """But for DP-FPL's Table 5, which is its set-up."""
    there = {path.stem.replace("_", ":", 1) for path in FOLDER.glob("*_table*.csv")} - {"dpfpl:table5"}
    assert there <= set(NAMES)
    assert {name for name in NAMES if ":table" in name} - there == {"secfpp:table3"}  # formulas
    assert {path.stem.partition("_")[0] for path in FOLDER.glob("*_contradictions.csv")} <= {*paper_items.papers()}
    assert contradictions("dp2fl:table1")
    assert contradictions("nobody:table1") == []


class TestSeveral:
    @pytest.fixture
    def drawn(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Items are drawn by nobody; those of dp2fl fail."""
        seen: list[str] = []

        def draw(name: str, plans: object, out: Path, progress: object, words: object) -> DrawnItem:
            seen.append(name)
            if name.startswith("dp2fl"):
                raise RuntimeError("a <bad> day")
            return DrawnItem(name, 2.0, out / "papers" / name.replace(":", "-") / "index.html", "τ 1.00")

        monkeypatch.setattr(papers, "draw", draw)
        return seen

    def test_all_of_a_paper_with_an_index(self, drawn: list[str], tmp_path: Path, capsys: Any) -> None:
        assert cli.main(["--paper", "secfpp", "--quiet", "--out", str(tmp_path)]) == exits.DONE
        assert drawn == paper_items.matching("secfpp")
        page = (tmp_path / "papers" / "secfpp.html").read_text()
        table = pd.read_csv(tmp_path / "papers" / "secfpp.csv")
        assert table.item.tolist() == drawn
        assert (table.agreement == "τ 1.00").all()
        assert all(f'href="{name.replace(":", "-")}/index.html"' in page for name in drawn)
        assert capsys.readouterr().out.count("τ 1.00") == len(drawn)

    def test_items_of_two_papers_have_their_own_index(self, drawn: list[str], tmp_path: Path, capsys: Any) -> None:
        assert cli.main(["--paper", "secfpp:table1,dpfpl:figure3", "--quiet", "--out", str(tmp_path)]) == exits.DONE
        assert drawn == ["dpfpl:figure3", "secfpp:table1"]
        index = Path(capsys.readouterr().out.splitlines()[-1].removeprefix("index: "))
        assert index.parent == tmp_path / "papers"
        assert re.fullmatch("several-[0-9a-f]{8}.html", index.name)
        assert "DP-FPL, SecFPP" in index.read_text()

    def test_what_fails_is_said_and_the_rest_go_on(self, drawn: list[str], tmp_path: Path, capsys: Any) -> None:
        assert cli.main(["--paper", "all", "--quiet", "--out", str(tmp_path)]) == exits.FAILED
        assert drawn == paper_items.matching("all")
        table = pd.read_csv(tmp_path / "papers" / "all.csv").set_index("item")
        assert table.why.notna().sum() == len(paper_items.matching("dp2fl"))
        assert "unexpected RuntimeError: a <bad> day" in table.why["dp2fl:table1"]
        assert "a &lt;bad&gt; day" in (tmp_path / "papers" / "all.html").read_text()
        assert "failed: dp2fl:table1: unexpected RuntimeError" in capsys.readouterr().err

    def test_the_index_is_there_after_each_item(self, drawn: list[str], tmp_path: Path) -> None:
        done = [DrawnItem("secfpp:table1", 1.0, tmp_path / "papers" / "x" / "index.html", "τ")]
        page = papers.write_index("secfpp", done, tmp_path)
        text = re.sub(r"<[^>]+>", " ", html.unescape(page.read_text()))
        assert text.count("not run yet") == len(paper_items.matching("secfpp")) - 1
        assert f"1 of {len(paper_items.matching('secfpp'))} items" in text

    def test_a_dry_run_says_each_at_once(self, drawn: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
        said: list[str] = []

        def estimate(*_: object) -> str:
            said.append(capsys.readouterr().out)
            return "an hour"

        monkeypatch.setattr("fedaudit.command.dry_run.estimate", estimate)
        assert cli.main(["--paper", "dp2fl", "--dry-run", "--quiet", "--out", str(tmp_path)]) == exits.DONE
        first = "dp2fl:table1, few shots: an hour\n\ndp2fl:table2, few shots: the runs of dp2fl:table1, few shots\n\n"
        assert said == ["", first]
        assert capsys.readouterr().out.endswith(f"pages: under {tmp_path / papers.FOLDER}\n")
        assert drawn == []

    def test_a_signal_ends_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(papers, "draw", mock.Mock(side_effect=exits.Stopped))
        with pytest.raises(KeyboardInterrupt):
            cli._main(["--paper", "secfpp", "--quiet", "--out", str(tmp_path)])

    def test_words_that_some_items_do_not_take_are_why_these_cannot_run(self) -> None:
        found = asked("dpfpl", "--targets", "2").items
        assert isinstance(found["dpfpl:table2"], InputError)
        assert not isinstance(found["dpfpl:figure3"], InputError)
        assert planned("fedrand:figure2", "--k", "0")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("all --nonsense 2", "--nonsense: no such option"),
            ("all --preset memorising", "--preset memorising does not go with --paper all"),
            ("dpfpl --method promptfl", "--method does not go with --paper dpfpl"),
            (
                "dpfpl:table4 --clients 3",
                "--clients does not go with --paper dpfpl:table4: dpfpl:table4 sets it itself",
            ),
            ("dp", "--paper dp: no such table or figure"),
            ("nonsense --help", "--paper nonsense: no such table or figure"),
            ("secfpp:figure2 --preset paper", "--preset: has no place beside --paper secfpp:figure2"),
            ("dpfpl:figure3 --preset paper", "--preset paper: dpfpl:figure3 has no settings of its paper"),
            ("fedrand:figure3 --k 0", "--k"),
        ],
    )
    def test_words_that_none_takes_are_refused(self, words: str, said: str, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=said):
            asked(*words.split(), "--out", str(tmp_path / "out"))
        assert not (tmp_path / "out").exists()


def test_the_papers_settings_leave_what_is_compared(tmp_path: Path) -> None:
    """The real thing needs weights; random ones of the full architecture have the same settings."""
    (tmp_path / "weights.pt").touch()
    item = paper_items.find("dpfpl:table6")
    words = [f"--preset={item.preset}", *item.real["Food101"]]
    scale = [w for w in paper._real("dpfpl:table6", item)[1] if not w.startswith(("--backbone", "--weights"))]
    plan = cli.read_command([*words, "--data-root", str(tmp_path)], scale).plan
    assert (plan.task, plan.task_params.dataset, plan.rounds) == ("images", "food101", 100)
    assert len({(v.method, v.params.rank, v.params.residual) for v in plan.methods.values() if v}) == 10
    assert plan.settings.batch == 32
