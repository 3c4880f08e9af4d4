"""The index of all audits under --out, and the notes on how they were made."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedaudit.command import cli
from fedaudit.machinery.store import claim
from fedaudit.pipeline import index, provenance
from fedaudit.pipeline.finished import finish
from fedaudit.pipeline.provenance import portable
from fedaudit.reports.formats import duration
from tests.pages import HOSTILE, Reader

COMMAND = "audit.py --method fedavg --out x"
NOTE = {"command": COMMAND, "started": "2026-01-02 03:04 UTC", "runs": ["fedavg-a", "fedavg-b"]}
DONE = NOTE | {"finished": "2026-01-03 03:05 UTC", "seconds": 60.0}


def finding(run: str, verdict: str, **more: Any) -> dict[str, Any]:
    about = {"metric": "auroc", "headline": True, "nonmembers": "held-out", "threat_model": "server", "value": 0.7}
    return about | {"run": run, "method": run, "verdict": verdict, "p_adjusted": 0.01} | more


def report(out: Path, name: str, note: dict[str, Any] | None, *runs: str, **more: Any) -> None:
    """A finished report, as far as the index reads it; the first run leaks to the server, the others do not."""
    folder = claim(out / "reports" / name)
    findings = [finding(run, "no leak found" if i else "leak") for i, run in enumerate(runs)]
    findings.append(finding(runs[0], "leak", headline=False, threat_model="owner"))
    rows = [{"run": run, "method": run, "task": "captions", "attacks": "loss,rmia", "seed": 3} | more for run in runs]
    folder.write_json("findings.json", findings)
    folder.write_json("runs.json", rows)
    finish(folder)
    if note is not None:
        provenance.write(out, name, note)


def written(out: Path) -> Reader:
    said: list[str] = []
    index.write(out, said.append)
    assert said == []
    return Reader((out / "index.html").read_bytes())


def test_every_audit_has_a_row_the_latest_first(tmp_path: Path) -> None:
    report(tmp_path, "one", DONE | {"finished": "2026-01-02 03:05 UTC"}, "fedavg", "fedrand")
    noised = {"privacy.epsilon": 0.4, "attacks": None}
    report(tmp_path, "two", DONE, "dpfpl", **noised)
    page = written(tmp_path)
    assert page.rows[1:] == [
        ["dpfpl", "captions nothing was attacked", "3", "0.4", "● leak: server", "2026-01-03 03:05 UTC"],
        ["fedavg, fedrand", "captions loss, rmia", "3", "no noise", "● leak: server 1 of 2 runs", "2026-01-02 03:05 UTC"],
    ]  # fmt: skip
    links = [a["href"] for tag, a in page.elements if tag == "a"]
    assert links == ["#main", "reports/two/index.html", "reports/one/index.html"]


def test_a_page_that_is_forwarded_or_read_on_a_phone(tmp_path: Path) -> None:
    """No script, no request, dark mode, rows as blocks; what users typed is escaped."""
    report(tmp_path, "one", DONE, HOSTILE)
    claim(tmp_path / "reports" / "begun")
    provenance.write(tmp_path, "begun", NOTE | {"command": HOSTILE, "started": "2027"})
    page = written(tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert not {"script", "link", "iframe", "img"} & {tag for tag, _ in page.elements}
    assert not re.search(r"https?:|url\(|@import", text)
    assert "alert(1)" in page.text
    assert "prefers-color-scheme: dark" in text
    assert "max-width: 600px" in text


def test_what_was_interrupted_is_named_until_it_ends_under_another_name(tmp_path: Path) -> None:
    for name in ("begun", "of-an-earlier-version"):
        claim(tmp_path / "reports" / name)
    provenance.write(tmp_path, "begun", NOTE)
    finish(claim(tmp_path / "analyses" / "fedavg-a"))
    page = written(tmp_path)
    assert "0 audits, 2 not finished" in page.text
    assert f"begun begun {NOTE['started']}, 1 of 2 runs audited {NOTE['command']}" in page.text
    assert "of-an-earlier-version Its command, run again, goes on with it." in page.text
    report(tmp_path, "later", DONE, "fedavg")
    assert "1 audit, 1 not finished" in (text := written(tmp_path).text)
    assert "begun begun" not in text


def test_of_several_ends_of_a_command_the_last_one_counts() -> None:
    def row(name: str, finished: str = "", started: str = "") -> dict[str, object]:
        return {"name": name, "command": "audit.py", "done": bool(finished), "finished": finished, "started": started}

    ends = [row("z", "2026-01-01"), row("a", "2026-03-01")]
    assert index._without_replaced([*ends, row("m", started="2026-02-01")]) == ends
    later = row("m", started="2026-04-01")
    assert index._without_replaced([*ends, later]) == [*ends, later]


def test_a_report_of_an_earlier_version_has_the_date_of_its_files(tmp_path: Path) -> None:
    report(tmp_path, "old", None, "fedavg")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", written(tmp_path).rows[1][-1])
    assert "seconds" not in provenance.read(tmp_path, "old")  # so that mending it notes how that was done


def test_a_report_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(tmp_path, "one", DONE, "fedavg")
    written(tmp_path)
    monkeypatch.setattr(index, "summary", lambda folder: pytest.fail(f"{folder} is read again"))
    before = (tmp_path / "index.html").stat().st_mtime_ns
    written(tmp_path)
    assert (tmp_path / "index.html").stat().st_mtime_ns == before  # nothing changed
    claim(tmp_path / "nightly" / "mine").path.joinpath("index.html").write_text("a page")
    assert "nightly/mine" in written(tmp_path).text


def test_a_damaged_note_and_a_disk_that_refuses_end_nothing(tmp_path: Path) -> None:
    report(tmp_path, "one", NOTE, "fedavg")
    (tmp_path / "audits" / "one.json").write_text("[")
    assert written(tmp_path).rows[1][0] == "fedavg"
    (tmp_path / "index.html").unlink()
    (tmp_path / "index.html").mkdir()
    said: list[str] = []
    index.write(tmp_path, said.append)
    assert said[0].startswith(f"{tmp_path / 'index.html'} was not written: ")


def test_a_command_for_readers_names_no_folder_of_the_writer() -> None:
    words = "--run /home/me/my-run --out=/home/me/x --data-root /data/coco --fail-if 'a b' --export-run y --no-past"
    assert portable(words.split()) == ["--run", "my-run", "--data-root", "coco", "--fail-if", "'a", "b'", "--no-past"]
    assert portable(["--config=/home/me/run.yaml", "--seeds=3"]) == ["--config=run.yaml", "--seeds=3"]
    assert [duration(s) for s in (0.4, 59.4, 312, 7810)] == ["0 s", "59 s", "5 min 12 s", "2 h 10 min"]


SIZES = "--rounds=2 --clients=3 --train=12 --test=2 --threads=1 --quiet"
WORDS = "--method=promptfl --attack=entropy --epsilon=none"


@pytest.mark.usefixtures("unsafe_but_quick")
def test_a_whole_audit_has_its_note_on_page_and_index(kept: Any, tmp_path: Path) -> None:
    out, folder = kept.copied(tmp_path), tmp_path / kept.audits["entropy"].report.parent.relative_to(kept.out)
    note = json.loads((out / "audits" / f"{folder.name}.json").read_text())
    page, listed = Reader((folder / "index.html").read_bytes()), Reader((out / "index.html").read_bytes())
    assert note["command"] == f"audit.py {WORDS} --out={kept.out} {SIZES}"
    assert f"audit.py {WORDS} {SIZES} " in page.text
    assert f"Made {note['finished']} by FedAudit" in page.text
    assert ["promptfl", note["finished"]] in [[row[0], row[-1]] for row in listed.rows[1:]]
    (folder / "complete.json").unlink()  # mended, it is the same to the last byte
    before = (folder / "index.html").read_bytes()
    assert cli.main([*WORDS.split(), *SIZES.split(), f"--out={out}"]) == 0
    assert (folder / "index.html").read_bytes() == before
