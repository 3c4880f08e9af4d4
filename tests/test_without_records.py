"""A page about somebody's own data shows no record: not its id, text, picture, path or score; every number follows from the ranks that it shows. The records lie on a second page."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedaudit
from fedaudit.audits.membership import Params, cells, findings
from fedaudit.audits.permutation_test import by_coin
from fedaudit.command.cli import read_command
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline.page import write_page
from fedaudit.pipeline.workers import federation_of
from fedaudit.reports import records_page, without_records
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.without_records import IN_CLIENT
from tests import evidence, minidata, minilayouts, prompt_evidence
from tests.test_membership import NAMES, SIGNALS, claims, made_up
from tests.unprinted import no_pages, nothing_drawn, nothing_printed

FEW = {"rounds": 1, "threads": 1, "quiet": True, "attack": "loss"}
LORA = {"method": "fedavg", "local_steps": 1, "records": 4, "reference": 5, "test": 2}
KEYS = ["threat_model", "way", "client"]
NO_RECORDS = pd.DataFrame({"record": []})
PROSE = " ".join(file.read_text() for file in Path(fedaudit.__file__).parent.glob("reports/*.html"))  # of all pages


def everything_in(report: Path) -> dict[str, str]:
    """What is in a page that is sent on, by name: the page without its archive, and what the archive holds."""
    page = report.read_text()
    packed = re.search(r'href="data:application/zip;base64,([^"]+)"', page)
    assert packed
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(packed[1]))) as archive:
        files = {name: archive.read(name).decode("utf-8", "replace") for name in archive.namelist()}
    return {"index.html": page.replace(packed[0], "")} | files


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Commands of all kinds of own data."""
    place = tmp_path_factory.mktemp("own")
    minilayouts.flat(place / "folder")
    minidata.write(place / "folder/oak/copy.png", minidata.picture(0, "PNG"))
    minilayouts.one_list(place / "pairs")
    lines = (place / "pairs/mine.jsonl").read_text()
    (place / "pairs/mine.jsonl").write_text(lines.replace("text of", "Gertrude walks towards"))
    with no_pages():
        fedaudit.audit(**FEW | LORA, clients=2, per_round=2, novel=3, out=place / "a", export_run=place / "my-run")
        fedaudit.audit(
            **FEW,
            method="promptfl",
            clients=2,
            train=6,
            test=2,
            epsilon="none",
            out=place / "b",
            export_run=place / "prompts",
        )
    return {
        "pairs": {**LORA, "task": "pairs", "data_root": str(place / "pairs/mine.jsonl")},
        "folder": {"method": "promptfl", "task": "folder", "data_root": str(place / "folder"), "epsilon": "none"},
        "a run of adapters": {"run": str(place / "my-run")},
        "a run of prompts": {"run": str(place / "prompts")},
    }


@pytest.mark.parametrize("kind", ["pairs", "folder", "a run of adapters", "a run of prompts"])
def test_nothing_of_a_record_is_in_the_page_or_in_its_archive(kind: str, sources: Any, tmp_path: Path) -> None:
    options = {**FEW, **sources[kind], "out": tmp_path}
    if "run" in options:
        del options["rounds"]
    with nothing_drawn():  # figures: the next test but one
        audit = fedaudit.audit(**options)
    shown = everything_in(audit.report)
    words = [f"--{k.replace('_', '-')}={v}" for k, v in options.items() if k != "quiet"]
    records = federation_of(read_command([*words, "--quiet"]).plan).records.values()
    scores = pd.read_csv(audit.report.parent / "private/records.csv")
    pngs = [base64.b64encode(r.picture if isinstance(r.picture, bytes) else r.content).decode() for r in records]
    for name, text in shown.items():
        for record in records:
            assert record.id not in text, (name, record.id)
            whole = re.compile(rf"(?<![\w-]){re.escape(record.text)}(?![\w-])")
            assert len(record.text) < 4 or whole.search(PROSE) or not whole.search(text), (name, record.text)
            assert not isinstance(record.picture, Path) or record.picture.name not in text, (name, record.picture)
        assert not any(png[:200] in text for png in pngs)
        assert str(sources[kind].get("data_root") or sources[kind]["run"]) not in text
        assert "data:image" not in text
    page = (audit.report.parent / "records.html").read_text()
    assert "This page contains training records." in page
    assert "under every threat model, stand in <code>private/records.csv</code>" in page
    assert any(record.id in page for record in records)
    data = (audit.report.parent / "private/records.csv").read_bytes()
    assert f'<code class="hash">{hashlib.sha256(data).hexdigest()}</code>' in shown["index.html"]
    public = pd.read_csv(io.StringIO(shown["records.csv"]))
    both = scores.merge(public, left_on=["number", *KEYS], right_on=["record", *KEYS], suffixes=("", "_rank"))
    assert len(both) == len(scores) == len(public)
    assert (both.member == both.member_rank).all()
    for _, part in both.groupby(["threat_model", "way"]):
        assert (part.loss.rank() == part.loss_rank).all()
        assert (part.groupby("client").loss.rank() == part[f"loss{IN_CLIENT}"]).all()


def test_shown_if_asked_for(sources: Any, tmp_path: Path) -> None:
    options = {**FEW, **sources["pairs"], "out": tmp_path}
    with nothing_drawn():
        hidden, shown = fedaudit.audit(**options), fedaudit.audit(**options, show_records=True)
    assert hidden.report != shown.report
    files = everything_in(shown.report)
    assert "<b>Contains training records.</b>" in files["index.html"]
    assert "Gertrude walks towards" in files["index.html"]
    assert "pairs-train-0000" in files["records.csv"]
    assert not (shown.report.parent / "records.html").exists()
    pd.testing.assert_frame_equal(hidden.findings, shown.findings)
    with pytest.raises(InputError, match=r"show_records.* has no effect, since records of built-in and public data"):
        fedaudit.audit(**FEW, method="fedavg", show_records=True, out=tmp_path)


def distorted(table: pd.DataFrame) -> pd.DataFrame:
    """With the same order of all numbers."""
    return table.assign(
        **{c: np.sinh(3 * table[c]) + 5 for c in table.select_dtypes(float) if c not in ("rank", "percentile")}
    )


KINDS = {
    "adapters": lambda: [evidence.evidence(method, 0) for method in ("fedavg", "fedrand")],
    "prompts": lambda: [prompt_evidence.attacked(prompt_evidence.prompt_evidence("dpfpl", 0.4, 0), "loss", "lira")],
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_page_depends_on_scores_by_their_order_alone(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other scores, ids, texts and pictures in the same order give the same bytes, but for the checksum: none is in any section."""
    monkeypatch.setattr(without_records, "numbers_of", numbered)
    first = make()
    others = [dataclasses.replace(e, tables={name: changed(name, t) for name, t in e.tables.items()}) for e in first]
    pages = [public(found) for found in (first, others)]
    assert pages[0].keys() == pages[1].keys()
    assert ("records.csv" in pages[0]) == ("records" in first[0].tables)
    for name, data in pages[0].items():
        assert data == pages[1][name], name
    private = [written(found) for found in (first, others)]
    assert private[0][records_page.NAME] != private[1][records_page.NAME]


def numbered(found: list[Evidence]) -> dict[str, int]:
    """The same numbers whatever the scores and ids are."""
    records = [str(record) for e in found for record in e.tables.get("records", NO_RECORDS).record]
    return {record: i for i, record in enumerate(dict.fromkeys(records))}


def changed(name: str, table: pd.DataFrame) -> pd.DataFrame:
    if name in ("records", "scores") and len(table):
        return distorted(table).assign(
            record="another " + table.record.astype(str), **({"label": "of another class"} if "label" in table else {})
        )
    if name in without_records.LEFT_OUT and len(table):
        return table.map(
            lambda value: f"another {value}" if isinstance(value, str) and value.startswith("client") else value
        )
    return table


def written(found: list[Evidence]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    folder = type("Folder", (), {"write": staticmethod(files.__setitem__)})
    with nothing_printed():
        write_page(found, folder, map, own_files=True)
    return files


def public(found: list[Evidence]) -> dict[str, bytes]:
    files = {
        name: data
        for name, data in written(found).items()
        if not name.startswith("private/") and name != records_page.NAME
    }
    files["index.html"] = re.sub(rb'<code class="hash">\w+</code>|base64,[^"]+', b"", files["index.html"])
    return files


@pytest.mark.parametrize("leak", [0.0, 0.7])
def test_every_interval_and_p_follows_from_ranks_to_the_bit(leak: float) -> None:
    run = made_up(3, leak=leak)
    together: dict[tuple[str, str], list[Any]] = {}
    for model in run.models:
        together.setdefault((model.threat_model, model.way), []).append(model.scores)
    ranks = {key: pd.concat(frames)[[*SIGNALS]].rank() for key, frames in together.items()}
    taken = dict.fromkeys(ranks, 0)
    models = []
    for model in run.models:
        key, n = (model.threat_model, model.way), len(model.scores)
        part = ranks[key].iloc[taken[key] : taken[key] + n]
        taken[key] += n
        models.append(
            dataclasses.replace(model, scores=model.scores.assign(**{s: part[s].to_numpy() for s in SIGNALS}))
        )
    ranked = dataclasses.replace(run, models=models)
    assert by_coin(ranked).scores == by_coin(run).scores
    kept = [
        "threat_model",
        "way",
        "population",
        "nonmembers",
        "signal",
        "auroc",
        "low",
        "high",
        "z",
        "t",
        "p",
        "p_adjusted",
    ]
    pd.testing.assert_frame_equal(cells(ranked, 0.95)[kept], cells(run, 0.95)[kept], check_exact=True)
    fields = ("value", "low", "high", "p", "p_adjusted", "verdict", "detectable")
    both = [
        [f for f in findings(one, Params(), names=NAMES, epsilon=claims) if f.metric == "auroc"]
        for one in (run, ranked)
    ]
    assert len(both[0]) == len(both[1]) > 10
    for ours, theirs in zip(*both, strict=True):
        assert [getattr(ours, f) for f in fields] == [getattr(theirs, f) for f in fields]
