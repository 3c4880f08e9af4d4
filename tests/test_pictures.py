"""The pictures of README and docs say what the code says now."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from PIL import Image

from docs.pictures import __main__ as command
from docs.pictures import architecture, evidence
from docs.pictures.night import HISTORY, NIGHTS, NightPicture
from docs.pictures.paper import EVIDENCE, TABLES, TablePicture
from docs.pictures.photographs import BROWSERS, browser, digest, lines, photograph
from docs.pictures.picture import HERE, PICTURES, WIDTH, Picture
from fedaudit.audits import verdicts
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Damaged
from fedaudit.pipeline.methods import transcript_of
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from fedaudit.reports.corrected_verdicts import with_verdicts
from tests.unprinted import unprinted

ROOT = HERE.parent.parent
NAMES = [picture.name for picture in PICTURES]
BOTH = [pytest.param(PICTURES[0], marks=pytest.mark.slow), PICTURES[1]]  # the same code; quick: the second picture
QUIET = Progress(quiet=True)
SMALL = {
    "report": "--rounds 2 --clients 3 --per-round 2 --records 6 --reference 8 --novel 8 --test 4 --local-steps 2",
    "report-prompts": "--rounds 3 --clients 4 --train 12 --test 2",
}
PAGE = b"<title>no</title><style>no {}</style><h1>One  &amp;\ntwo</h1><p>three <b>four</b> </p><script>no</script><p>five</p>"


@pytest.fixture(params=PICTURES, ids=NAMES)
def picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Picture:
    """Its page without the figures' PDF; of LoRA's report no figure is among the words in the picture."""
    if request.param.name == "report":
        monkeypatch.setattr("fedaudit.reports.figures.drawing.printed", unprinted)
    else:
        monkeypatch.setattr(FigureCanvasPdf, "print_pdf", lambda *_, **__: None)
    return request.param


@functools.cache
def page_of(name: str) -> bytes:
    return next(one for one in PICTURES if one.name == name).page()


@pytest.fixture
def same_page(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where evidence and code are what they are: its page is made once."""
    page = page_of(picture.name)
    monkeypatch.setattr(Picture, "page", lambda _: page)


def copied(original: Any, folder: Path) -> Any:
    """A picture with all that belongs to it in a folder where it may be changed."""
    shutil.copytree(HERE, folder / "copy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return dataclasses.replace(original, home=folder / "copy")


@pytest.fixture
def copy(picture: Picture, tmp_path: Path) -> Any:
    return copied(picture, tmp_path)


@pytest.mark.usefixtures("same_page")
def test_a_picture_shows_what_its_command_says_now(picture: Picture) -> None:
    assert picture.stale() == []
    assert sum(path.stat().st_size for path in (picture.file, *picture.kept.path.iterdir())) < 800_000


def test_pages_show_these_pictures_and_no_others() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    image = r"!\[[^\]]*\]\(([^)]+)\)"
    shown = {(page.parent / name).resolve() for page in pages for name in re.findall(image, page.read_text("utf-8"))}
    assert shown == {*(picture.file for picture in command.EVERY), architecture.FILE}
    assert not list(ROOT.glob("docs/*.png"))


def test_the_architecture_is_that_of_the_code() -> None:
    """`python -m docs.pictures.architecture` draws it anew."""
    assert {*architecture.WORDS} == {*architecture.imports()}
    assert architecture.FILE.read_text(encoding="utf-8") == architecture.drawing()


@pytest.mark.parametrize("picture", BOTH, ids=NAMES, indirect=True)
@pytest.mark.usefixtures("same_page")
def test_another_word_than_the_page_says_is_found(copy: Picture) -> None:
    words = copy.words
    at = next(i for i, line in enumerate(words) if re.search(r"\d\.\d", line))
    changed = re.sub(r"(\d\.)\d", r"\g<1>x", words[at], count=1)
    copy.words_file.write_text("\n".join([*words[:at], changed, *words[at + 1 :]]) + "\n", "utf-8")
    found = " ".join(copy.stale())
    assert f"-{changed}; +{words[at]}" in found
    assert "run python -m docs.pictures" in found


@pytest.mark.parametrize("picture", PICTURES[:1], ids=NAMES[:1], indirect=True)
def test_another_verdict_rule_is_found(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is scores: the rule of today judges them."""
    rule, other = verdicts.by_the_coin, {"leak": "no leak found", "no leak found": "leak"}

    def turned(*args: object, **more: object) -> str:
        return other.get(verdict := rule(*args, **more), verdict)

    monkeypatch.setattr(verdicts, "by_the_coin", turned)
    (found,) = picture.stale()
    assert "-Anyone with" in found or "+no leak found" in found or "+leak" in found


@pytest.mark.parametrize("picture", PICTURES[1:], ids=NAMES[1:], indirect=True)
def test_other_evidence_and_another_accountant_are_found(copy: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept are accuracies, which count as they are, and the ledger, of which the accountant of today proves something."""
    table, name = evidence.privacy_table, "0-accuracy.parquet"
    monkeypatch.setattr(evidence, "privacy_table", lambda *args: table(*args).assign(every_step=0.0987))
    accuracy = copy.kept.read_table(name)
    copy.kept.write_table(name, accuracy.assign(accuracy=accuracy.accuracy.to_numpy()[::-1]))
    (found,) = copy.stale()
    assert "its page now says" in found
    assert "0.0987 if a record is in every step" in found
    assert re.search(r"\+\d+\.\d %", found)
    (copy.kept.path / name).write_bytes(b"by hand")
    with pytest.raises(Damaged, match=re.escape(name)):
        copy.stale()


@pytest.mark.slow  # scores; quick: accuracies, and scores that another rule judges
@pytest.mark.parametrize("picture", PICTURES[:1], ids=NAMES[:1], indirect=True)
def test_other_scores_are_found(copy: Picture) -> None:
    scores = copy.kept.read_table("0-scores.parquet")
    copy.kept.write_table("0-scores.parquet", scores.assign(**{"loss/base": scores["loss/base"].to_numpy()[::-1]}))
    assert any("its page now says" in sentence for sentence in copy.stale())


@pytest.mark.parametrize("picture", BOTH, ids=NAMES, indirect=True)
@pytest.mark.usefixtures("same_page")
def test_another_default_is_found(copy: Picture) -> None:
    """The evidence was made under settings that the command has no longer."""
    about = copy.kept.read_json("0.json")
    about["setting"]["training"] |= {"batch": 3}
    copy.kept.write_json("0.json", about)
    (found,) = copy.stale()
    assert re.match(rf"{copy.name}: .*: training.batch was 3, is 8; run python -m docs.pictures --record OUT$", found)
    other = dataclasses.replace(copy, command=(*copy.command, "--rounds", "6"))
    assert any(re.search(r": schedule.rounds was \d+, is 6$", m) for m in evidence.moved(other.plan(), other.kept))


def test_evidence_that_the_code_can_no_longer_read_is_found(copy: Picture) -> None:
    """As where an audit needs another table, or the command has one more method."""
    name, column = ("0-scores.parquet", "way") if "0-scores.parquet" in copy.kept else ("1-noise.parquet", "ratio")
    copy.kept.write_table(name, copy.kept.read_table(name).drop(columns=column))
    (found,) = copy.stale()
    assert re.search(r"no report can be made of it any more .*; run python -m docs.pictures --record OUT", found)
    with pytest.raises(InputError, match="no report can be made"):
        copy.take()
    copy.kept.remove("0.json")
    assert "--record" in copy.stale()[0]


@pytest.mark.parametrize("picture", BOTH, ids=NAMES, indirect=True)
@pytest.mark.usefixtures("same_page")
def test_a_file_that_is_not_the_picture_of_the_words_is_found(copy: Picture) -> None:
    Image.open(copy.file).save(copy.file)  # Pillow leaves out what the picture says of itself
    assert "is not the picture of" in " ".join(copy.stale())
    shutil.copy(next(p for p in PICTURES if p.name != copy.name).file, copy.file)
    (found,) = copy.stale()
    assert "is not the picture of" in found


@pytest.mark.slow  # recorded numbers; quick: what is kept, test_a_picture_shows_what_its_command_says_now
def test_the_first_round_of_the_command_has_the_numbers_of_the_picture(picture: Picture, tmp_path: Path) -> None:
    """Code that trains otherwise than it did is found, without the minutes of a whole training."""
    plan = picture.plan("--rounds", "1", "--threads", "1", "--out", str(tmp_path))
    with Workshop(plan, QUIET) as workshop:
        train_all(plan.cells[:1], workshop, QUIET)  # noise, of the second one of prompts, depends on the rounds
    now = _flat(transcript_of(plan.cells[0]).round(0)["utility"])
    before = _flat(picture.kept.read_json("0.json")["first_round"])
    measured, close = ("overall", 0.5) if plan.learner == "prompts" else ("loss", 2e-3)
    names = [name for name in before.keys() & now.keys() if name.endswith(measured)]
    assert names
    expected = pytest.approx({name: before[name] for name in names}, abs=close)
    mend = f"run python -m docs.pictures --record OUT --only {picture.name}"
    assert {name: now[name] for name in names} == expected, mend


def _flat(utility: dict[str, dict[str, float]]) -> dict[str, float]:
    return {f"{model} {metric}": value for model, found in utility.items() for metric, value in found.items()}


def named(value: Any) -> str:
    return value.name


@pytest.mark.parametrize("kept", [*TABLES, *NIGHTS], ids=named)
def test_a_table_and_a_night_show_what_is_kept(kept: TablePicture | NightPicture) -> None:
    assert kept.stale() == []
    assert sum(path.stat().st_size for path in (kept.file, *kept.kept.path.iterdir())) < 400_000
    assert kept not in NIGHTS or any("new leak" in line for line in kept.words)


@pytest.mark.parametrize("original", TABLES, ids=named)
def test_other_findings_words_or_settings_of_a_table_are_found(original: TablePicture, tmp_path: Path) -> None:
    table = copied(original, tmp_path)
    kept = table.kept.read_json(EVIDENCE)
    (cells,) = kept.values()
    (number,) = (f for f in cells[0]["findings"] if f["metric"] == "personal/accuracy")
    number["value"] += 3
    table.kept.write_json(EVIDENCE, kept)
    (found,) = table.stale()
    assert re.search(r"its page now says @@ .* -\d+\.\d\d; \+\d+\.\d\d", found)
    number["value"] -= 3
    cells[0]["setting"]["training"]["batch"] = 3
    table.kept.write_json(EVIDENCE, kept)
    assert "training.batch was 3, is 4; run python -m docs.pictures --record OUT" in table.stale()[0]
    table.kept.write_json(EVIDENCE, {"few shots": []})
    assert "--record" in table.stale()[0]


@pytest.mark.parametrize("original", NIGHTS, ids=named)
def test_another_history_of_a_night_is_found(original: NightPicture, tmp_path: Path) -> None:
    night = copied(original, tmp_path)
    history = night.kept.read_table(HISTORY)
    calm = history.assign(value=history.value.where(history.signal != "decompose", 0.5), z=0.0)
    night.kept.write_table(HISTORY, calm)
    (found,) = night.stale()
    assert "-new leak" in found
    night.kept.write_table(HISTORY, history.drop(columns="value"))
    assert "no page can be made of it any more" in night.stale()[0]


@pytest.mark.slow  # from a run on; quick: from what is kept on, test_another_verdict_rule_is_found
def test_what_is_kept_is_judged_as_the_run_was(picture: Picture, tmp_path: Path) -> None:
    """From record to page: the same findings and the same first words as in the run's own report."""
    command = (*picture.command, *SMALL[picture.name].split(), "--threads", "1")
    small = dataclasses.replace(picture, command=command, home=tmp_path)
    small.record(tmp_path / "runs", QUIET)
    report = small.plan("--out", str(tmp_path / "runs")).report_folder
    found = [f for e in with_verdicts(evidence.evidence(small.plan(), small.kept)) for f in e.findings]
    assert comparable(json.dumps(found)) == comparable((report / "findings.json").read_text())
    first = lines((report / "index.html").read_bytes())
    made = next(i for i, line in enumerate(first) if line.startswith("Made "))  # when and how, up to "Configuration."
    del first[made : first.index("Configuration", made) + 2]
    assert (words := lines(small.page()))[:100] == first[:100]
    assert evidence.moved(small.plan(), small.kept) == []
    assert len(words) > 100


def comparable(findings: str) -> Any:
    """Findings without digits that differ with the shape of a matrix product, and without what would be found of
    secondary scores: that depends on all of these, of which a picture keeps the few that it shows."""
    rows = json.loads(findings, parse_float=lambda number: round(float(number), 9))
    for row in rows:
        if row.get("family") == "secondary":
            row |= {"detectable": None, "detectable_named": None}
            row["sentence"] = row["sentence"].partition("; an AUROC")[0]
    return rows


def test_without_a_browser_one_sentence_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = {picture.file: picture.file.stat().st_mtime_ns for picture in PICTURES}
    assert command.main(["--record", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(name in said for name in ("PATH", *BROWSERS))
    assert not list(tmp_path.iterdir())
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_the_picture_is_cut_and_knows_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert lines(PAGE) == ["One & two", "three", "four", "five"]
    _browser(tmp_path, monkeypatch, _photographer(tmp_path, 40, 400))
    png, words = photograph(PAGE, 40, 300)
    opened = Image.open(io.BytesIO(png))
    assert opened.size == (40, 300)
    assert words == ["One & two", "three", "four"]
    assert opened.info["words"] == digest(words)
    for does in ("echo no page", "exit 3"):
        _browser(tmp_path, monkeypatch, does)
        with pytest.raises(InputError, match=r"chromium: took no picture, its exit code is [03]$"):
            photograph(PAGE, 10, 10)


@pytest.mark.parametrize("picture", PICTURES[1:], ids=NAMES[1:], indirect=True)
@pytest.mark.usefixtures("same_page")
def test_the_command_mends_words_and_says_what_only_a_record_mends(
    copy: Picture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy.words_file.write_text("old words\n")
    _browser(tmp_path, monkeypatch, _photographer(tmp_path, WIDTH, copy.height + 200))
    monkeypatch.setattr(command, "EVERY", (copy,))
    assert command.main([]) == 0
    assert copy.words == lines(copy.page())[:3]
    assert capsys.readouterr() == (f"{copy.file}\n", "")
    other = dataclasses.replace(copy, command=(*copy.command, "--rounds", "6"))
    monkeypatch.setattr(command, "EVERY", (other,))
    assert command.main(["--only", copy.name]) == 0
    said = r"stale: .*schedule.rounds was 100, is 6; run python -m docs.pictures --record OUT\n"
    assert re.search(said, capsys.readouterr().err)


def _photographer(folder: Path, width: int, height: int) -> str:
    """What a chromium does that always sees three lines on a red page."""
    Image.new("RGB", (width, height), "red").save(folder / "big.png")
    copied = f'for w; do case "$w" in --screenshot=*) cp {folder}/big.png "${{w#*=}}";; esac; done'
    return f'{copied}; echo "<title>lines: 3</title>"'


def _browser(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """A chromium that does something else, in front of every other one."""
    (folder / "chromium").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "chromium").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no Chromium")
def test_a_real_browser_sees_the_words_at_the_top_only() -> None:
    assert browser()
    page = b"<body><p>first <b>bold</b></p><p hidden>hidden</p><p style='margin-top:900px'>below</p>"
    _, words = photograph(page, WIDTH, 300)
    assert words == ["first", "bold"]
