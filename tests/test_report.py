"""The report on synthetic evidence: every number arrives, nothing else does, and the same evidence gives the same bytes."""

import io
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedaudit.audits.findings import RECORDING
from fedaudit.reports.figures import membership as figures
from fedaudit.reports.figures import tokens as heatmap
from fedaudit.reports.formats import number, plain
from fedaudit.reports.report import TABLES, Evidence, build, rows_as_json
from tests.evidence import ASKED, ATTACK, CLIENTS, SIBLING, built, evidence, plain_page
from tests.pages import (
    HOSTILE,
    Reader,
    check_drawn,
    check_files,
    check_leakage,
    check_page,
    check_same_bytes,
    shown,
    words_of,
)

ONE = evidence("fedrand", 0)
TWO = [evidence(method, seed) for method in ("fedavg", "fedrand") for seed in (0, 1)]


@pytest.fixture(scope="module")
def one() -> dict[str, bytes]:
    """One method with one seed, and hardly a figure: those take the time."""
    return built([replace(ONE, tables={name: ONE.tables[name] for name in ("tokens", "coverage", "cells")})])


@pytest.fixture(scope="module")
def two() -> dict[str, bytes]:
    """Two methods with two seeds, and everything; figures are plotted and not printed."""
    return built(TWO)


def test_files_hold_the_input_and_the_page_needs_nothing_else(two: dict[str, bytes]) -> None:
    drawn = "roc scores-renyi-2-10-caption scores-loss-base tokens rounds tradeoff clients utility cost"
    check_files(two, TWO, "utility cells", drawn)
    check_page(two)
    reader = Reader(two["index.html"])
    # all but the tokens, which are cells
    assert sum(tag == "svg" and "viewbox" in a for tag, a in reader.elements) == 8
    assert ASKED in reader.text


def all_files() -> dict[str, bytes]:
    """Of a page with everything, and of one with two printed figures: all are printed by the same function."""
    printed = built([replace(ONE, tables={name: ONE.tables[name] for name in ("clients", "cost")})], printing=True)
    return built(TWO) | {f"printed/{name}": data for name, data in printed.items()}


def test_same_bytes_in_another_process_with_other_settings(tmp_path: Path) -> None:
    check_same_bytes(all_files(), "from tests.test_report import all_files", "all_files()", tmp_path)


def test_every_number_stands_in_its_row(one: dict[str, bytes]) -> None:
    check_leakage(one["index.html"], ONE.findings)
    cells = ONE.tables["cells"].query("threat_model == 'owner'")
    shown = {row.signal: f"{row.auroc:.3f}" + "*" * (row.p_adjusted < 0.05) for row in cells.itertuples()}
    rows = Reader(one["index.html"]).rows
    assert ["MaxRényi, order inf", *(shown[f"renyi/inf/{k}/image"] for k in range(0, 101, 10))] in rows
    assert ["Min-K++", "n/a", *(shown[f"minkpp/{k}/caption"] for k in range(10, 101, 10))] in rows
    assert ["probability gap, caption", shown["gap/caption"]] in [row[:2] for row in rows]
    page = Reader(one["index.html"]).text
    caption = ONE.tables["tokens"].query("panel == 'member' and slice == 'caption'")
    expected = " ".join(f"{t.token} {t.entropy:.2f} {t.base_entropy:.2f}" for t in caption.itertuples())
    assert f"caption {expected}" in page
    assert "<image>" not in page  # image tokens have no word
    rows = [row for row in Reader(one["index.html"]).rows if row and row[0] in CLIENTS]
    filled = "distance 0.87 age n/a: not a message of the client"
    assert rows[0] == ["client-00", "not reconstructable took part once", "not reconstructable took part once", filled]
    fresh = "distance 0.31 stale by 1 participation, 2 rounds"
    assert rows[5] == ["client-05", "distance 0.43 stale by 1 participation, 3 rounds", fresh, filled]
    assert "literal: 4 of 6 clients, newest: 4 of 6 clients, server-fill: 6 of 6 clients." in page


def test_claims_and_whose_split_it_is_are_said(one: dict[str, bytes]) -> None:
    page = Reader(one["index.html"])
    blocks = [row[0] for row in page.rows if len(row) == 1 and "against" in row[0]]
    novel = [block for block in blocks if "novel objects" in block]
    assert len(novel) == 2 * 5  # headline and sibling table; released, three ways of the server, owner
    assert all("the papers' own split" in block and "read its controls" in block for block in novel)
    assert not any("split" in block for block in blocks if block not in novel)
    assert "released-model, final: all members (142, 2 clients) against held-out records (146)" in blocks
    said = "Claimed ε none by the run's own word Provable ε ∞ by the run's own word Measured ε – not measured:"
    assert said in page.text


def test_seeds_are_averaged_beside_the_first(one: dict[str, bytes], two: dict[str, bytes]) -> None:
    first, second = (e.findings for e in TWO[2:])
    rows = [row[1:3] for row in Reader(two["index.html"]).rows]
    for f, g in zip(first, second, strict=True):
        if f["metric"] == "auroc":
            values = [f["value"], g["value"]]
            assert [shown(f), f"{mean(values):.3f} ± {stdev(values):.3f} 2 seeds"] in rows
    assert "over seeds" not in Reader(one["index.html"]).text


CARD = {"signal": ATTACK, "headline": True, "metric": "auroc", "nonmembers": "held-out"}


def cards(found: list[dict[str, Any]]) -> str:
    """The text between a method's heading and its epsilon line."""
    bare = replace(TWO[0], findings=found, tables={})
    return Reader(plain_page([bare])).text.split("Limitations", 1)[1].split("ε", 1)[0]


def test_card_quotes_the_gravest_row_of_a_headline_score() -> None:
    released = next(f for f in TWO[0].findings if CARD.items() <= f.items() and f["threat_model"] == "released-model")
    quiet = released | {"verdict": "no leak found", "value": 0.55, "sentence": "No leak found: quiet 0.55."}
    unclear = quiet | {"way": "a", "verdict": "confounded", "value": 0.9, "sentence": "Confounded: unclear 0.9."}
    weak = quiet | {"way": "b", "verdict": "leak", "value": 0.6, "sentence": "Leak: weak 0.6."}
    reverse = quiet | {"way": "c", "verdict": "leak", "value": 0.2, "sentence": "Leak: reverse 0.2."}
    other = quiet | {"sentence": "Leak: not a headline.", "verdict": "leak", "value": 0.99, "way": "d"}
    others = [other | {"headline": False}, other | {"nonmembers": "novel objects"}]
    text = cards([quiet, unclear, weak, reverse, *others])
    assert "● Leak: reverse 0.2. Gravest of 4 rows of headline scores: 2 leak, 1 confounded, 1 no leak found." in text
    assert "weak 0.6" not in text
    assert "not a headline" not in text
    assert "◐ Confounded: unclear 0.9." in cards([quiet, unclear])
    assert "○ No leak found: quiet 0.55." in cards([quiet])
    assert "Not measured:" in cards([quiet | {"headline": False}])


def test_doubts_about_a_recording_stand_above_every_number(one: dict[str, bytes]) -> None:
    assert b'id="recording"' not in one["index.html"]
    doubted = replace(evidence("fedavg", 0), tables={})
    said = {"metric": RECORDING, "check": "weights", "sentence": "Files <b>were</b> exchanged.", "doubt": "weights"}
    about = {name: doubted.findings[0][name] for name in ("schema", "run", "method", "task", "seed")}
    page = plain_page([replace(doubted, findings=[*doubted.findings, about | said])]).decode()
    assert "<li>Files &lt;b&gt;were&lt;/b&gt; exchanged.</li>" in page[: page.index("<main")]


def test_hostile_text_stays_text() -> None:
    given = TWO[0]
    changed = {name: given.tables[name].copy() for name in ("tokens", "exposed", "clients", "coverage")}
    changed["tokens"]["token"] = HOSTILE
    changed["exposed"][["label", "asked", "record"]] = HOSTILE
    for name in ("clients", "coverage"):
        changed[name]["client"] = changed[name].client.replace("client-00", HOSTILE)
    hostile = replace(given, task=HOSTILE, tables=changed, notes=[HOSTILE], setting={HOSTILE: {"a": HOSTILE}})
    files = built([hostile], printing=True)
    page = Reader(files["index.html"])
    assert not {"script", "frac"} & {tag for tag, _ in page.elements}
    assert page.text.count("<script>alert(1)</script>\"'&amp; $\\frac{a}{$") >= 8 + len(given.tables["tokens"]) - 50
    assert HOSTILE in [(a["alt"] or "").removeprefix("Record ") for tag, a in page.elements if tag == "img"]
    for name in ("clients", "tokens"):
        assert any(word.startswith("<script>") for word in words_of(files, name))


@pytest.mark.parametrize(
    "tables", [{}, {name: pd.DataFrame(columns=columns.split()) for name, columns in TABLES.items()}]
)
def test_a_section_without_rows_is_not_there(tables: dict[str, pd.DataFrame]) -> None:
    files = built([replace(ONE, tables=tables, notes=[], setting={})])
    reader = Reader(files["index.html"])
    ids = [a["id"] for _, a in reader.elements if "id" in a]
    assert ids == ["main", "verdicts", "assessment", "leakage", "setting", "made", "limits"]
    assert "Nothing is shared" in reader.text
    assert "None were stated" in reader.text
    records = {f"{name}.{kind}" for name in ("findings", "runs") for kind in ("json", "csv")}
    assert set(files) == records | {"index.html"}


def test_one_method_may_lack_what_another_has() -> None:
    full = replace(TWO[0], tables={name: TWO[0].tables[name] for name in ("utility", "cost")})
    released = [f for f in ONE.findings if f["threat_model"] == "released-model"]
    bare = replace(ONE, tables={"utility": ONE.tables["utility"]}, findings=released)
    reader = Reader(plain_page([full, bare]))
    assert sum("strip" in (a.get("class") or "").split() for _, a in reader.elements) == 4  # three of FedAvg
    assert any(row[0].endswith("FedRand") and row[2:4] == ["n/a", "n/a"] for row in reader.rows)  # server and owner


def test_configuration_is_shared_or_differs_and_histograms_count_what_is_shown(two: dict[str, bytes]) -> None:
    rows = Reader(two["index.html"]).rows
    assert ["task.dirichlet", "0.5"] in rows
    assert ["method.past", "yes"] in rows
    assert ["Entry", "fedavg, seed 0", "fedavg, seed 1", "fedrand, seed 0", "fedrand, seed 1"] in rows
    assert ["method.rho", "none", "none", "0.5", "0.5"] in rows
    data = pd.read_csv(io.BytesIO(two["figures/scores-loss-base.csv"]))
    scores = ONE.tables["scores"]
    for (threat, kind), part in data[data.method == "fedrand"].groupby(["threat_model", "kind"]):
        freshest = {"released-model": "final", "server": "newest", "owner": "true state"}[threat]
        where = (scores.threat_model == threat) & (scores.way == freshest) & (scores.kind == kind)
        values = scores.loc[where, SIBLING].to_numpy()
        edges = np.append(part.low, part.high.iloc[-1])
        counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
        np.testing.assert_allclose(part.density * np.diff(edges) * len(values), counts, atol=1e-9)
        assert set(part.n) == {len(values)}


def test_figures_take_degenerate_tables() -> None:
    given = ONE.tables
    odd = {
        "scores": given["scores"].assign(**{ATTACK: -1.0, SIBLING: -np.inf}),
        "rounds": given["rounds"].iloc[:2].assign(low=np.nan, high=np.nan),
        "curves": given["curves"].assign(tpr=0.0, low=np.nan, high=np.nan),
        "tokens": given["tokens"].assign(entropy=None, base_entropy=np.nan),
        "cost": given["cost"].assign(bytes_down=0, bytes_up=0, fedavg_bytes=0),
    }
    files = built([replace(ONE, tables=odd)], printing=True)
    assert "figures/scores-renyi-2-10-caption.svg" in files
    assert "figures/scores-loss-base.svg" not in files  # no finite score
    check_drawn(files)


NARROW = {"cost": ONE.tables["cost"].drop(columns="round")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "evidence is empty"),
        ([TWO[0], TWO[0]], "holds fedavg with seed 0 more than once"),
        ([TWO[0], replace(ONE, task="other")], r"mixes tasks \(captions, other\)"),
        ([TWO[0], replace(ONE, attack="other")], r"mixes attacks \(maxrenyi, other\)"),
        ([TWO[0], replace(ONE, findings=[])], "fedrand, seed 0 has no findings"),
        ([replace(ONE, findings=[ONE.findings[0] | {"low": np.nan}])], "fedrand, seed 0 has low = nan"),
        ([replace(ONE, tables=NARROW)], "'cost' of fedrand, seed 0 lacks the column 'round'"),
    ],
)
def test_bad_evidence_is_refused_before_anything_is_written(given: list[Evidence], message: str) -> None:
    written: list[str] = []
    with pytest.raises(ValueError, match=message):
        build(given, lambda name, data: written.append(name))
    assert written == []


def test_figures_show_the_freshest_model_of_most_clients() -> None:
    held = [("a", "server", "literal"), ("a", "server", "newest"), ("a", "owner", "true state")]
    held += [("b", "server", "server-fill"), ("b", "server", "literal")]
    ways = pd.DataFrame(held, columns=["method", "threat_model", "way"]).assign(client="client-00")
    assert list(figures.primary(ways).way) == ["newest", "true state", "server-fill"]
    # `exact` reaches one client of four, `newest` two: half is enough
    clients = [("exact", "0"), *(("newest", str(k)) for k in range(2)), *(("server-fill", str(k)) for k in range(4))]
    table = pd.DataFrame(clients, columns=["way", "client"]).assign(method="fedper", threat_model="server")
    assert set(figures.primary(table).way) == {"newest"}
    assert set(figures.primary(table.drop(index=2)).way) == {"server-fill"}


def test_shades_and_small_words() -> None:
    assert heatmap.shade(0.0, 2.0) == (heatmap.CONFIDENT, heatmap.ON_DARK)
    assert heatmap.shade(2.0, 2.0) == heatmap.shade(9.0, 2.0) == (heatmap.UNCERTAIN, heatmap.ON_LIGHT)
    assert heatmap.shade(1.0, 2.0)[0] == "#7f99ab"  # (0b + f3) / 2, (3c + f6) / 2, (5d + f9) / 2
    assert heatmap.shade(np.nan, 2.0)[0] == "#ffffff"
    assert [number(x) for x in (0.6125, 1.0, None, np.nan, np.inf)] == ["0.613", "1.000", "n/a", "n/a", "n/a"]
    given = (None, True, False, [1, None], [], 0.5, "x", "inf")
    assert [plain(x) for x in given] == ["none", "yes", "no", "1, none", "empty", "0.5", "x", "∞"]


@pytest.mark.parametrize(
    "rows", [ONE.findings, [], [{}], [{"a": 'x,\n{é"', "b": None, "c": 1e-9}], [{"a": [1, {"b": 2}]}]]
)
def test_rows_are_written_as_json_writes_them(rows: list[dict[str, Any]]) -> None:
    assert rows_as_json(rows) == (json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
