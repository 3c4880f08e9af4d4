"""Doubts about a recorded run void the numbers that they concern, and are heard wherever these stand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fedaudit
from fedaudit.audits.findings import MEASURED_SCORES, RECORDING, Recorded
from fedaudit.command import cli, gates
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline import index
from fedaudit.pipeline.run import Outcome
from fedaudit.reports import notebook
from fedaudit.reports.doubts import DOUBTS, MESSAGES, headline, stated, with_doubts
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.section import Page
from fedaudit.terms.verdicts import DOUBTED
from tests.evidence import built, evidence
from tests.small_run import small_run
from tests.unprinted import nothing_printed

SENTENCE = "Something is odd with {check} in round 3."


def doubted(*checks: str, accepted: tuple[str, ...] = (), method: str = "fedavg") -> Evidence:
    """A run about whose recording these checks raise doubts."""
    plain = evidence(method, 0)
    names = {name: plain.findings[0][name] for name in ("run", "method", "task", "seed")}
    said = [
        dataclasses.asdict(
            Recorded(**names, metric=RECORDING, check=c, doubt=c, sentence=SENTENCE.format(check=c), value=None)
        )
        for c in checks
    ]
    return dataclasses.replace(plain, findings=[*plain.findings, *said], accepted=accepted)


def marked(*checks: str, **more: Any) -> list[dict[str, Any]]:
    return with_doubts([doubted(*checks, **more)])[0].findings


@pytest.mark.parametrize("check", DOUBTS)
def test_a_doubt_voids_what_rests_on_it_and_nothing_else(check: str) -> None:
    voided = {f.get("threat_model") for f in marked(check) if f["metric"] == "auroc" and f["doubt"]}
    assert "server" in voided
    assert ("released-model" in voided) == (not DOUBTS[check].of_messages)
    assert {f["doubt"] for f in marked(check) if f["metric"] == RECORDING} == {check}
    (bound,) = with_doubts([dataclasses.replace(doubted(check), findings=[
        {"metric": MEASURED_SCORES, "threat_model": "prompt-user"}, *doubted(check).findings[-1:],
    ])])[0].findings[:1]  # fmt: skip
    assert bound["doubt"] == check


def test_several_are_named_and_accepted_ones_void_nothing() -> None:
    server = [f for f in marked("members", "losses") if f.get("threat_model") == "server"]
    assert {f["doubt"] for f in server} == {"members, losses"}
    some = marked("members", "losses", accepted=("losses",))
    assert {f["doubt"] for f in some if f.get("threat_model") == "released-model"} == {None}
    assert stated(some) == [SENTENCE.format(check="members")]
    assert stated(marked("members", accepted=("members",))) == []
    assert headline(marked("members", accepted=("members",))) == ""


def test_controls_that_are_off_are_said_once() -> None:
    """They void rows by themselves: no check of the recording states them. A table has NaN where there is no doubt."""
    plain = marked()
    aurocs = [f for f in plain if f["metric"] == "auroc"][:2]
    rows = [f | {"doubt": "controls"} if f in aurocs else f | {"doubt": float("nan")} for f in plain]
    assert stated(rows) == [aurocs[0]["sentence"]]
    assert headline(rows).startswith("Doubted: members and non-members differ without the model; ")
    assert stated([f | {"doubt": float("nan")} for f in plain]) == []


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        (("controls",), "scores that no coin decided say nothing."), (("controls", "members"), f"; {MESSAGES}."),
        (("members", "losses"), "the numbers of this run say nothing."), (("weights", "rounds"), f"; {MESSAGES}."),
    ],
)  # fmt: skip
def test_the_first_sentence_says_what_is_void(checks: tuple[str, ...], said: str) -> None:
    assert headline(marked(*checks)).endswith(said)


def test_verdicts_keep_their_words_in_findings() -> None:
    before, after = doubted("losses").findings, marked("losses")
    assert [f.get("verdict") for f in before] == [f.get("verdict") for f in after]


class TestWhereItIsHeard:
    def test_the_page_begins_with_it_and_its_verdicts_are_doubted(self) -> None:
        with nothing_printed():
            files = built([doubted("losses")])
        page = files["index.html"].decode()
        first = page.partition("<h1>")[2].partition("</h1>")[0]
        assert first == headline(marked("losses"))
        assert SENTENCE.format(check="losses") in page
        assert f"<b>What was found.</b> {headline(marked('losses'))}" in page.replace("&#39;", "'"), "of the assessment"
        assert "Nobody was shown" not in page
        assert 'class="strip doubted"' in page
        assert 'class="strip leak"' not in page
        rows = json.loads(files["findings.json"])
        assert {row["doubt"] for row in rows if row["metric"] == "auroc"} == {"losses"}

    def test_of_messages_the_others_keep_their_verdicts(self) -> None:
        page = Page(with_doubts([doubted("members")]), map)
        verdicts = notebook.verdicts(page).set_index("threat_model").verdict
        assert verdicts["server"] == DOUBTED
        assert verdicts["released-model"] != DOUBTED
        first, *rest = notebook.summary(page)
        assert first == headline(page.findings)
        assert first.startswith("Doubted: messages do not fit their own clients' members; what rests on messages")
        assert any("nothing can be said, as the recording is doubted" in line for line in rest)

    def test_the_index(self, tmp_path: Path) -> None:
        with nothing_printed():
            for name, content in built([doubted("losses")]).items():
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_bytes(content)
        report = mock.Mock(read_json=lambda name: json.loads((tmp_path / name).read_text()))
        assert {row["verdict"] for row in index.summary(report)["verdicts"]} == {DOUBTED}

    @pytest.mark.parametrize("words", ["server auroc.low > 0.6", "server auroc.low > 0.99", "server leak"])
    def test_no_gate_goes_by_a_doubted_number_crossed_or_not(self, words: str) -> None:
        with pytest.raises(InputError) as error:
            gates.parse(words).crossed(marked("members"))
        said = str(error.value)
        assert said.startswith(f"--fail-if '{words}': no gate goes by a number that is doubted (")
        assert "auroc 0." in said
        assert SENTENCE.format(check="members") in said
        assert said.endswith("If you know better: --accept-doubts members")
        gates.parse(words).crossed(marked("members", accepted=("members",)))
        gates.parse(words.replace("server", "released-model")).crossed(marked("members"))

    def test_doubt_is_a_gate(self) -> None:
        assert gates.parse("doubt").crossed(marked()) == []
        assert gates.parse("doubt").crossed(marked("members")) == [f"doubt: {SENTENCE.format(check='members')}"]

    @pytest.mark.parametrize(
        ("gate", "code"), [(None, 0), ("doubt", 1), ("server auroc.low > 0.6", 2), ("released-model leak", 1)]
    )
    def test_the_command_says_it_on_stderr_also_quiet_and_of_a_report_on_disk(
        self, gate: str | None, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        outcome = Outcome(tmp_path / "index.html", marked("members"), ["report"])
        words = [
            "--run",
            str(small_run(tmp_path / "run")),
            "--attack",
            "loss",
            "--quiet",
            "--out",
            str(tmp_path / "out"),
        ]
        with mock.patch("fedaudit.pipeline.run.run", return_value=outcome):
            assert cli.main([*words, *([f"--fail-if={gate}"] if gate else [])]) == code
        assert f"doubt: {SENTENCE.format(check='members')}" in capsys.readouterr().err.splitlines()

    def test_the_library_warns(self, tmp_path: Path) -> None:
        outcome = Outcome(tmp_path / "index.html", marked("members"), [])
        with (
            mock.patch("fedaudit.pipeline.run.run", return_value=outcome),
            pytest.warns(UserWarning, match="doubt: Something is odd with members"),
        ):
            found = fedaudit.audit(run=small_run(tmp_path / "run"), attack="loss", quiet=True, out=tmp_path / "out")
        assert found.doubts == (SENTENCE.format(check="members"),)


@pytest.mark.parametrize("words", ["all", "members,nothing"])
def test_doubts_are_accepted_by_their_names(words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--accept-doubts: .* is no check of a recording; there are losses, "):
        cli.read_command(["--run", str(small_run(tmp_path / "run")), f"--accept-doubts={words}"])


def test_a_round_that_is_open_is_doubted(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    read = cli.read_command(["--run", str(run)]).plan.own
    assert read is not None
    assert [remark for remark in read.remarks if not remark.note] == []
    stage = run / ".recorder" / "round-002" / "uploads"
    stage.mkdir(parents=True)
    (stage / "client-1.safetensors").touch()
    again = cli.read_command(["--run", str(run)]).plan.own
    assert again is not None
    (remark,) = [remark for remark in again.remarks if not remark.note]
    assert remark.check == "open"
    assert remark.sentence.startswith("Round 2 is still open: 1 upload of it")
