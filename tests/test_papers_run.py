"""Contract of a paper's table or figure: a page with the printed numbers as they are printed, its footnotes and files.
All items are drawn from made-up evidence, one of each paper from tiny trainings, all of them in slow tests."""

import functools
import html
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedaudit.command import cli, paper
from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline import papers
from fedaudit.pipeline.page import read_evidence
from fedaudit.pipeline.papers import DrawnItem
from fedaudit.pipeline.plan import Plan
from fedaudit.reports import paper_items
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.figures import drawing
from fedaudit.reports.papers import secfpp_figure2, secfpp_figure3
from fedaudit.reports.papers.common import EvidenceByTask
from fedaudit.reports.printed_table import printed
from fedaudit.reports.templates import contradictions
from tests.pages import held
from tests.prompt_evidence import attacked, of_a_dirichlet_split, prompt_evidence
from tests.test_papers_dp2fl import newcomers, personal
from tests.test_papers_fedrand import CELLS
from tests.test_papers_secfpp import cells as of_secfpp
from tests.unprinted import no_pages, nothing_printed, unprinted

FOLDER = plugins.package_folder("fedaudit.reports.papers")
OTHERWISE = "--seeds 1 --rounds 1"
TRAINED = "dp2fl:table2", "dpfpl:table6", "fedrand:figure4", "secfpp:table1"  # one of each paper
MADE_UP = {name.partition(":")[0] for name in TRAINED}  # papers with made-up evidence here; of a new one all is trained
SIMILAR = "neon", "dots", "print+dots", "neon+dots"  # for which a single domain and a pair stand, but in slow tests
FIGURES = {  # what a paper prints of a figure, in its tables or its text
    **{f"dpfpl:figure{i}": data for i, data in ((2, "Caltech101"), (4, "OxfordPets"), (5, "OxfordFlowers"), (6, "Food101"))},
    "dpfpl:figure3": ["below 50 % at ε 0.2 for Oxford Pets"],
    "fedrand:figure2": ["AUROC 66.61 and 70.22 %", "AUROC 68.51 and 70.69 %"],
    "fedrand:figure3": [" 75 Where the paper", "of FedPer it says 25 %"],  # the row of FedRand is the last
    "fedrand:figure4": ["No numbers are printed."],
    "secfpp:figure2": ["more than 10^4 times"],
    "secfpp:figure3": ["0.4 s at d = 4,000"],
}  # fmt: skip

Draw = Callable[[str, bool], DrawnItem]  # an item, and whether from trainings
PLANS: dict[tuple[Path, str], Mapping[str, Plan]] = {}  # of what was trained, by the page and the item


def of_fedrand(**metrics: float) -> list[Evidence]:
    """FedAvg, FedRand and one of its variants, asked about novel objects too; `metrics` are further ones."""

    def asked(e: Evidence) -> Evidence:
        utility = e.tables["utility"].assign(**metrics)
        novel = utility[utility.model == "global"].assign(model="novel")
        return replace(e, tables=e.tables | {"utility": pd.concat([utility, novel], ignore_index=True)})

    variant = [replace(e, method="fedrand:rho=0.3") for e in CELLS if e.method == "fedrand"]
    return [asked(e) for e in (*CELLS, *variant)]


def of_dpfpl(name: str) -> list[Evidence]:
    found = []
    for variant in filter(None, plan_of(name).methods.values()):
        of_rank = {one: getattr(variant.params, one) for one in ("rank", "residual") if variant.method == "dpfpl"}
        e = prompt_evidence(variant.method, variant.privacy.epsilon if variant.privacy else math.inf, **of_rank)
        e = attacked(e, "shadow", "loss") if name == "dpfpl:figure3" else e
        found.append(of_a_dirichlet_split(e) if name == "dpfpl:table4" else e)
    return found


def plan_of(name: str) -> Plan:
    return next(iter(planned(name, [], lambda own, scale: cli.read_command(own, scale).plan).values()))


def planned(name: str, words: Sequence[str], plan: Callable[[Any, Any], Plan]) -> Mapping[str, Plan]:
    plans = paper.read(["--paper", name, *words], plan).items[name]
    assert not isinstance(plans, Exception), plans
    return plans


def made_up(name: str) -> EvidenceByTask:
    if name == "fedrand:table1":
        return {"captions": of_fedrand(), "questions": of_fedrand(exact_match=50.0)}
    of_paper: Mapping[str, Callable[[], list[Evidence]]] = {
        "dp2fl": newcomers if name in ("dp2fl:table3", "dp2fl:table4") else personal, "fedrand": of_fedrand,
        "dpfpl": lambda: of_dpfpl(name), "secfpp": lambda: of_secfpp((0,)),
    }  # fmt: skip
    return dict.fromkeys(paper_items.find(name).tasks, of_paper[name.partition(":")[0]]())


@pytest.mark.parametrize("name", [name for name in paper_items.items() if name.startswith("dpfpl:table")])
def test_what_dpfpls_tables_plan_is_what_they_show(name: str, drawn: Any) -> None:
    item = drawn(name, False)
    assert "τ" in item.agreed
    ours = table_of(item).query("whose == 'ours'")
    assert len({*zip(ours.row, ours.level, strict=True)}) == len([*filter(None, plan_of(name).methods.values())])


def tiny(name: str) -> str:
    """The words with which an item runs in seconds: what its own file says, or another that shares its runs."""
    preset, method = paper_items.find(name).preset, paper_items.find(name).method
    sharing = [i.tiny for i in paper_items.items().values() if preset and (i.preset, i.method) == (preset, method)]
    return next(filter(None, (paper_items.find(name).tiny, *sharing)), OTHERWISE if preset else "")


def drawing_of(out: Path, tiny: Callable[[str], str], left_out: Sequence[str] = ()) -> Callable[[str], DrawnItem]:
    """Draws an item under `out` as the command does, once, with the words that `tiny` says, without some tasks."""

    @functools.cache
    def draw(name: str) -> DrawnItem:
        words, _, methods = tiny(name).partition(" --method ")
        chosen = [f"--method={methods}"] if methods else []

        def plan(own: Sequence[str], scale: Sequence[str]) -> Plan:
            own = [word for word in own if not (chosen and word.startswith("--method="))]
            return cli.read_command([*own, *chosen], scale).plan

        plans = planned(name, ["--out", str(out), "--threads", "1", *words.split()], plan)
        plans = {task: plan for task, plan in plans.items() if task not in left_out}
        item = papers.draw(name, plans, out, Progress(quiet=True))
        assert item.page is not None
        PLANS[item.page, name] = plans
        return item

    return draw


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Files are not flushed, runs have no report of their own, and what is computed is computed of few sizes."""
    information = secfpp_figure2.ours(users=(5, 20), components=(8, 10), size=100)
    costs = secfpp_figure3.ours(users=(20, 30), entries=(150, 200))
    with pytest.MonkeyPatch.context() as patch, no_pages():
        patch.setattr("os.fsync", lambda _: None)
        patch.setattr(secfpp_figure2, "ours", lambda: information)
        patch.setattr(secfpp_figure3, "ours", lambda: costs)
        yield


@pytest.fixture(scope="module")
def drawn(quick: None, tmp_path_factory: pytest.TempPathFactory) -> Draw:
    out = tmp_path_factory.mktemp("papers")
    trained = drawing_of(out, tiny, SIMILAR)

    @functools.cache
    def draw(name: str, from_trainings: bool) -> DrawnItem:
        if from_trainings:
            return trained(name)
        folder, item = out / papers.FOLDER / name.replace(":", "-"), paper_items.find(name)
        folder.mkdir(parents=True)
        with nothing_printed():
            agreed = item.build(made_up(name), lambda file, data: (folder / file).write_bytes(data))
        return DrawnItem(name, 0.0, folder / "index.html", agreed)

    return draw


def ways(names: Iterable[str]) -> pytest.MarkDecorator:
    """Items, each from made-up evidence, and from trainings. What trains nothing is computed."""
    cases = []
    for name in names:
        made = paper_items.find(name).preset and name.partition(":")[0] in MADE_UP
        # slow: all from trainings; quick: one of each paper, and all from made-up evidence
        marks = [pytest.mark.slow] if made and name not in TRAINED else []
        cases += [pytest.param(name, False, id=f"{name}, made up")] if made else []
        cases.append(pytest.param(name, True, id=name, marks=marks))
    return pytest.mark.parametrize(("name", "trained"), cases)


ITEMS = ways(paper_items.items())
TABLE_NAMES = [name for name in paper_items.items() if ":table" in name]


def table_of(item: Any, **more: Any) -> pd.DataFrame:
    return pd.read_csv(item.page.with_name(f"{item.name.partition(':')[2]}.csv"), keep_default_na=False, **more)


def text_of(page: str) -> str:
    seen = re.sub(r"<(style|svg).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", seen)).split())


@ITEMS
def test_runs_and_leaves_its_files(name: str, trained: bool, drawn: Any) -> None:
    item, file = drawn(name, trained), name.partition(":")[2]
    endings = {"csv", "tex"} if file.startswith("table") else {"csv", "svg", "pdf"}
    names = {path.name for path in item.page.parent.iterdir() if not path.name.startswith(".")}
    assert names >= {"index.html", *(f"{file}.{ending}" for ending in endings)}
    assert item.agreed
    assert "nan" not in item.agreed


@ITEMS
def test_the_page_stands_alone_and_says_what_it_is_of(name: str, trained: bool, drawn: Any) -> None:
    """Its footnotes are the paper's contradictions."""
    item = drawn(name, trained)
    page = item.page.read_text("utf-8")
    links = re.findall(r'(?:href|src)="([^"#][^"]*)"', re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL))
    assert [link[:5] for link in links] == ["data:"]
    files = held(page.encode())
    assert {"csv", "svg"} & {name.rpartition(".")[2] for name in files}
    assert all((item.page.parent / file).read_bytes() == data for file, data in files.items())
    assert not re.findall(r"""(?:href|src|url\()\s*=?\s*["']?(?:https?:)?//""", page)
    said = text_of(page)
    assert said.partition("Where the paper contradicts itself here")[2].strip() == " ".join(contradictions(name))
    assert paper_items.find(name).summary.partition(":")[0] in said
    assert not re.search(r"\b(nan|None|inf|Undefined)\b", said)
    assert "Here: " in said or "Ours" in said or "ours" in said or "measured on this machine" in said


@ways(TABLE_NAMES)
def test_printed_numbers_of_a_table_stand_unchanged(name: str, trained: bool, drawn: Any) -> None:
    """On the page, and in CSV and LaTeX; no other number stands as the paper's."""
    item = drawn(name, trained)
    _, _, theirs = item.page.read_text("utf-8").partition("<h2>As the paper prints it</h2>")
    shown = re.findall(r'<td class="n">([^<]+?)(?:<small>± ([^<]+)</small>)?</td>', theirs)
    table = table_of(item, dtype=str)
    assert {"ours", "the paper"} == set(table.whose)
    kept = table[table.whose == "the paper"]
    text = item.page.with_name(f"{name.partition(':')[2]}.tex").read_text("utf-8").partition("% the paper")[2]
    if not (FOLDER / f"{name.replace(':', '_')}.csv").exists():  # orders of growth are no numbers
        assert shown
        assert Counter(html.unescape(value) for value, _ in shown) == Counter(kept.value)
        return
    whole = printed(name.replace(":", "_"))
    values = whole["mean" if "mean" in whole else "value"]
    expected = Counter(zip(values, whole.get("std", [""] * len(whole)), strict=True))
    assert Counter(shown) == expected
    assert Counter(zip(kept.value, kept.spread, strict=True)) == expected
    cells = [cell.strip() for line in text.splitlines() if line.endswith(r"\\") for cell in line[:-2].split("&")]
    for (value, spread), count in expected.items():
        assert cells.count(value + (rf" $\pm$ {spread}" if spread else "")) >= count


@ways(FIGURES)
def test_what_a_paper_says_of_a_figure_stands_unchanged(name: str, trained: bool, drawn: Any) -> None:
    page, said = drawn(name, trained).page.read_text("utf-8"), FIGURES[name]
    if isinstance(said, list):
        assert all(words in text_of(page) for words in said)
        return
    tables = [printed(f"dpfpl_table{i}") for i in range(6, 12)]
    values = Counter(value for table in tables for value in table[table.dataset == said]["mean"])
    shown = Counter(re.findall(r'<td class="n">(\d+\.\d\d)</td>', page))
    assert shown == values


def files_of(name: str, evidence: EvidenceByTask) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        paper_items.find(name).build(evidence, files.__setitem__)
    except ValueError:
        return {}
    return {file: data for file, data in files.items() if file.endswith((".csv", ".html"))}


def without(run: Evidence, attack: str) -> Evidence:
    found = [f for f in run.findings if f.get("attack") == attack]
    others = [f for f in run.findings if f.get("attack") != attack]
    signals = {f["signal"] for f in found}
    if run.attack == attack:  # there is no other one
        of_training = {"accuracy", "cost", "noise", "privacy", "utility"}
        return replace(run, findings=others, tables={n: t for n, t in run.tables.items() if n in of_training})
    tables = {n: t[~t.signal.isin(signals)] if "signal" in t else t for n, t in run.tables.items()}
    kept = {n: t.drop(columns=[*signals & {*t.columns}]) for n, t in tables.items()}
    return replace(run, findings=others, tables=kept)


TRAINING = [name for name, item in paper_items.items().items() if item.preset]
SLOW = {name for name in TRAINING if name.partition(":")[0] in MADE_UP} - {*TRAINED}  # quick: one of each paper


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in TRAINING])
def test_all_that_is_trained_and_attacked_is_shown(name: str, drawn: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of the trainings its data are others, without what an attack found its page is."""
    page, item = drawn(name, True).page, paper_items.find(name)
    monkeypatch.setattr(drawing, "printed", unprinted)
    evidence = {task: [read_evidence(cell) for cell in plan.cells] for task, plan in PLANS[page, name].items()}
    whole, file = files_of(name, evidence), f"{name.partition(':')[2]}.csv"
    for task, runs in evidence.items():
        for run in runs:
            some = {task: [other for other in runs if other is not run]}
            assert files_of(name, evidence | some).get(file) != whole[file], f"{run.run} is trained, and not shown"
    attacks = {attack for runs in evidence.values() for run in runs if run.attack for attack in run.attack.split(",")}
    for attack in attacks:
        fewer = {task: [without(run, attack) for run in runs] for task, runs in evidence.items()}
        assert files_of(name, fewer) != whole, f"{attack} runs, and is not shown"
    assert item.attacked == bool(attacks)


def test_nothing_to_show_is_refused() -> None:
    for name, nothing in itertools.product(TRAINING, ({}, {"task": []})):
        with pytest.raises(ValueError, match=r"must|needs"):
            paper_items.find(name).build(nothing, {}.__setitem__)


def test_the_index_links_all_that_was_drawn(drawn: Any) -> None:
    done = [drawn(name, not item.preset) for name, item in paper_items.items().items()]
    index = papers.write_index("all", done, done[0].page.parent.parent.parent)
    page = index.read_text(encoding="utf-8")
    links = [index.parent / link for link in re.findall(r'href="([^"]+/index\.html)"', page)]
    assert links == [item.page for item in done]
    assert all(html.escape(item.agreed, quote=False) in page.replace("&#39;", "'") for item in done)
    table = pd.read_csv(io.BytesIO(index.with_suffix(".csv").read_bytes()))
    assert table.item.tolist() == list(paper_items.items())
    assert table.why.isna().all()


@pytest.fixture(scope="module")
def whole(quick: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], DrawnItem]:
    """With all methods, ranks and budgets of a preset, and two seeds."""

    def larger(name: str) -> str:
        words = re.sub(r"(^| )--(seeds|epsilon|rank|method) [\w.,:=]+", "", tiny(name))
        if paper_items.find(name).preset == "fedrand-tables":  # of whose clients both halves must have been sent
            words = words.replace("--rounds 1", "--rounds 4")
        return f"{words} --seeds 2" if words else ""

    return drawing_of(tmp_path_factory.mktemp("whole"), larger)


@pytest.mark.slow  # all methods and budgets, two seeds; quick: few of them
@pytest.mark.parametrize("name", TABLE_NAMES)
def test_every_printed_row_has_ours(name: str, whole: Any) -> None:
    table = table_of(whole(name))
    ours, theirs = (table[table.whose == whose] for whose in ("ours", "the paper"))
    assert set(zip(theirs.row, theirs.level, strict=True)) <= set(zip(ours.row, ours.level, strict=True))
    if paper_items.find(name).preset:
        assert (ours.seeds.astype(float) == 2).all()
        assert ours.value.astype(float).between(-100, 1000).all()
