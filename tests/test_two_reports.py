"""Two reports beside each other, from made-up reports on disk: the page, its table, `found.compare`, and what is refused."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedaudit.api import Audit
from fedaudit.command import cli
from fedaudit.command.two_reports import read
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline import two_reports
from fedaudit.pipeline.finished import finish
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.made import noting
from tests.evidence import SIBLING, built, evidence
from tests.pages import HOSTILE, Reader

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def report(place: Path, *given: Evidence) -> Path:
    folder = claim(place)
    for name, data in built(list(given)).items():
        folder.write(name, data)
    finish(folder)
    return place


def scored(method: str, strength: float) -> Evidence:
    """A run whose server tells members by a score that is higher for them by `strength`: the same records and coins in
    every run."""
    rng, noise = np.random.default_rng(3), np.random.default_rng([len(method), int(10 * strength)])
    tables = []
    for k in range(6):
        coins = rng.permutation(np.arange(40) % 2 == 0)
        own = {
            "client": f"client-{k:02d}", "record": [f"r{k}-{i}" for i in range(40)], "label": "star",
            "kind": np.where(coins, "member", "held-out"), "member": coins, "rank": 1.0, "percentile": 50.0,
        }  # fmt: skip
        for way in ("exact", "literal", "newest", "server-fill"):
            scores = {SIBLING: strength * coins + noise.normal(size=40)}
            tables.append(pd.DataFrame({"threat_model": "server", "way": way} | own | scores))
    e = evidence(method, 0)
    records = pd.concat(tables, ignore_index=True)
    return replace(e, tables={"utility": e.tables["utility"], "records": records})


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("two") / "reports"
    return report(folder / "weak", scored("fedrand", 0.2)), report(folder / "strong", scored("fedavg", 1.5))


def test_the_page_has_both_reports_and_their_differences(two, tmp_path, capsys):
    assert cli.main(["--compare", *map(str, two), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    page = Path(re.findall(r"^report: (.*)$", said, re.MULTILINE)[0])
    assert page.parent.parent == tmp_path / "comparisons"
    reader = Reader(page.read_bytes())
    assert sum(tag == "circle" and at.get("class") == "mark" for tag, at in reader.elements) == 2 * 3  # adversaries
    assert "A: FedRand" in reader.text
    assert "B: FedAvg" in reader.text
    assert "B: fedavg leaks more than A: fedrand to the server: AUROC" in said
    assert "FedAvg in B leaks more than FedRand in A to the server: AUROC" in reader.text
    rows = {row[0] for row in reader.rows if row}
    assert rows >= {"FedRand in A", "FedAvg in B", "the server by calibrated loss · 120 members, 120 others, 6 clients"}
    assert all("" not in row for row in reader.rows)
    table = pd.read_csv(page.parent / "differences.csv")
    assert table.p_adjusted[table.metric == "auroc"].min() < 0.01
    assert table[table.threat_model == "server"].paired.tolist()[0]
    assert "Made 20" in reader.text  # the note
    assert f"audit.py --compare {two[0].name} {two[1].name}" in reader.text
    assert not re.search(r"\bnan\b|None|https?:|True\b", reader.text)


def test_found_compare_gives_the_same_table(two, tmp_path):
    page, _ = two_reports.write(two, tmp_path, ["--compare", *map(str, two)], Progress(quiet=True))
    first, second = (Audit(pd.DataFrame(), folder / "index.html", ()) for folder in two)
    found = first.compare(second)
    given = {"keep_default_na": False, "na_values": [""]}
    on_disk = pd.read_csv(page.parent / "differences.csv", **given)
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(found.to_csv(index=False)), **given), on_disk)
    assert set(found.a) == {"A: fedrand"}
    pd.testing.assert_frame_equal(found, first.compare(two[1]))


def test_settings_of_one_name_are_compared_and_a_table_on_disk_is_the_one_that_was_given(tmp_path, two):
    first = report(tmp_path / "a", scored("fedrand", 0.2), scored("fedavg", 0.4))
    second = report(tmp_path / "b", scored("fedavg", 1.5))
    table = two_reports.differences(*(two_reports.read(f, "--compare") for f in (first, second))).tables["differences"]
    assert set(zip(table.a, table.b, strict=True)) == {("A: fedavg", "B: fedavg")}
    (run,) = two_reports.read(two[0], "--compare").settings["fedrand"]
    given = scored("fedrand", 0.2).tables["records"]
    pd.testing.assert_frame_equal(run.tables["records"].reset_index(drop=True), given, check_dtype=False)
    assert "utility" in run.tables
    assert len(run.tables) == len([*run.tables]) == 2
    with pytest.raises(KeyError):
        run.tables["accuracy"]


def test_what_is_no_report_is_said_in_a_sentence(two, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    damaged = report(tmp_path / "damaged", scored("fedrand", 0.2))
    (damaged / "findings.csv").write_text("x")
    other = replace(scored("fedavg", 1.0), task="vqa")
    other = replace(other, findings=[f | {"task": "vqa"} for f in other.findings])
    vqa = report(tmp_path / "vqa", other)
    for words, sentence in (
        ([two[0], tmp_path / "absent"], "no such folder"),
        ([two[0], tmp_path / "empty"], "is no report of an audit"),
        ([two[0], damaged], "was damaged since it was written"),
        ([two[0], two[0]], "this is one report"),
        ([two[0], vqa], "the first is of the task captions, the second of vqa"),
        ([two[0]], "takes the folders of two reports"),
        ([*two, two[0]], "takes the folders of two reports"),
        ([*two, "--method", "fedavg"], "--method: has no place beside --compare"),
    ):
        assert cli.main(["--compare", *map(str, words), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.startswith("error: --")
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_other_words_ask_for_something_else():
    assert read(["--method", "fedavg"]) is None
    assert read(["--compare", "a", "b", "--help"]) is None
    request = read(["--compare", "~/a", "b", "--open"])
    assert request.open
    assert "~" not in str(request.folders[0])
    with pytest.raises(InputError, match="given twice"):
        read(["--compare", "a", "b", "--out", "x", "--out", "y"])


def test_every_page_says_at_the_end_of_its_header_how_it_was_made():
    files: dict[str, bytes] = {}
    note = {
        "finished": "2027-01-02 03:04 UTC", "fedaudit": "9.9", "commit": "abc", "seconds": 61.0, "machine": HOSTILE,
        "shown": HOSTILE, "reused": 0,
    }  # fmt: skip
    write = noting(files.__setitem__, note, "Nothing ran.")
    write("index.html", b"<header><h1>x</h1></header><main></main>")
    write("table.csv", b"</header>")
    text = Reader(files["index.html"]).text
    assert "Made 2027-01-02 03:04 UTC by FedAudit 9.9, commit abc, in 1 min 1 s" in text
    assert "Nothing ran." in text
    assert b"<script>" not in files["index.html"]
    assert files["index.html"].endswith(b"<!-- /note --></header><main></main>")
    assert files["table.csv"] == b"</header>"
