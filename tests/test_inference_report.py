"""The pages about membership inference on prompts, on synthetic evidence: verdicts first, every number beside its controls, nothing invented."""

import io
import math
import re
from dataclasses import replace
from itertools import product
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedaudit.reports import paper_items
from fedaudit.reports.attack_success import headline_signal, with_leakage
from fedaudit.reports.evidence import TABLES
from fedaudit.reports.figures.against_epsilon import against_epsilon
from fedaudit.reports.papers import dpfpl_figure3
from fedaudit.reports.report import Evidence
from fedaudit.reports.rows import variants
from fedaudit.reports.verdict_cards import SYMBOLS, card
from tests.evidence import WIDTH, built, plain_page
from tests.pages import HOSTILE, Reader, check_drawn, check_files, check_leakage, check_page, figure, words_of
from tests.pages import with_interval as shown
from tests.prompt_evidence import TARGETS, accuracy_of, attacked, leak_of, prompt_evidence, success_of

INF = math.inf
PAIR = [attacked(prompt_evidence("dpfpl", epsilon)) for epsilon in (INF, 0.1)]
PARTS = ("records", "agreement", "attribution", "canaries", "refused", "cells")


def bare(e: Evidence, *tables: str) -> Evidence:
    """Without the tables about the attack, but these: figures take the time."""
    kept = {name: e.tables[name] for name in ("privacy", "noise", *tables) if name in e.tables}
    return replace(e, tables=kept)


@pytest.fixture(scope="module")
def pair() -> dict[str, bytes]:
    """One method with and without noise, all attacks, and everything that an audit leaves."""
    return built(PAIR, printing=True)


@pytest.fixture(scope="module")
def one() -> dict[str, bytes]:
    """A single run, all attacks, hardly a figure."""
    return built([bare(PAIR[0], *PARTS)])


def single(**more: Any) -> dict[str, Any]:
    """The prompt-user's AUROC of the first attack, changed."""
    return PAIR[0].findings[0] | more


def page_of(*findings: dict[str, Any]) -> Reader:
    e = bare(PAIR[0])
    return Reader(plain_page([replace(e, findings=[*findings, *prompt_evidence("dpfpl").findings])]))


def test_files_hold_the_input_and_verdicts_come_first(pair: dict[str, bytes], one: dict[str, bytes]) -> None:
    tables = "accuracy privacy noise records classes agreement attribution canaries cells refused"
    check_files(pair, PAIR, tables, "epsilon roc scores-shadow clients classes trajectories utility")
    check_page(pair)
    check_page(one)
    page = pair["index.html"].decode()
    order = "verdicts leakage utility privacy against figures agreement refused".split()
    assert [part for part in re.findall(r'id="(\w+)"', page) if part in order] == order
    assert "Membership leakage, utility and privacy of DP-FPL" in page


def test_aurocs_controls_non_members_and_the_best_attack(one: dict[str, bytes]) -> None:
    check_leakage(one["index.html"], PAIR[0].findings)  # three populations; attacks by threat model
    reader = Reader(one["index.html"])
    blocks = [row[0] for row in reader.rows if len(row) == 1]
    assert "prompt-user, prompt: own members (142, 2 clients) against held-out records (146)" in blocks
    for block in (
        "prompt-user, prompt: own members (142, 2 clients) against records of other clients (146) · within class where "
        "clients share any, else the class tells them apart: read its controls",
        "server, rebuilt: canaries (142, 2 clients) against left-out canaries (146) · a fair coin before training said "
        "which were inserted",
    ):
        assert block in blocks
    washed = [a for tag, a in reader.elements if tag == "tbody" and a.get("class") == "novel"]
    assert len(washed) == 4  # other clients alone, under four threat models
    value = leak_of("prompt-user", "shadow", INF)
    wide = shown(value, value - 1.5 * WIDTH, value + 1.5 * WIDTH)
    assert f"● Leak: whoever is prompt-user scores AUROC {wide} by shadow, the best of 7 attacks." in reader.text
    alone = "Each of the 7 attacks alone, its interval not corrected for their number: 6 leak, 1 no leak found."
    assert alone in reader.text
    assert "Best of 9 attacks shadow models; corrected for picking it" in [row[0] for row in reader.rows if row]


def test_the_corrected_best_is_quoted_else_the_gravest_headline() -> None:
    best = single(best_of=3, verdict="no leak found", sentence="No leak found: best of three.")
    text = page_of(single(), best).text
    assert "○ No leak found: best of three." in text
    assert "Each of the 3 attacks alone, its interval not corrected for their number: 1 leak." in text
    assert "○ No leak found: best of three." not in page_of(single(), best | {"nonmembers": "other clients"}).text
    quiet = single(verdict="no leak found", sentence="No leak found: quiet.", signal="loss", attack="loss")
    text = page_of(quiet, single(sentence="Leak: loud.")).text
    assert "● Leak: loud. Gravest of 2 rows of headline scores: 1 leak, 1 no leak found." in text
    sibling = page_of(quiet, single(headline=False, signal="lira/offline", sentence="Leak: sibling.")).text
    assert "○ No leak found: quiet. Gravest of 1 row of headline scores: 1 no leak found." in sibling
    text = page_of(single(nonmembers="left-out canaries", population="canaries")).text
    assert "Not measured: no headline score has a row for this adversary." in text
    assert "Inserted canaries: ● leak, AUROC 0.600 [0.545, 0.655]." in text


def test_what_cannot_be_measured_and_p_values_of_canaries_are_said() -> None:
    small = single(value=None, low=None, high=None, status="not measurable (9)", verdict=None, sentence=None)
    reader = page_of(small)
    assert ["shadow models", "not measurable (9)"] in [row[:2] for row in reader.rows]
    assert "Not measured" in reader.text
    assert card([], [])["verdict"] is None
    tested = {"z": 3.0, "p": 0.001, "p_adjusted": 0.79, "family": "secondary", "family_n": 948}
    canary = single(nonmembers="left-out canaries", population="canaries", verdict="no leak found", **tested)
    said = "Inserted canaries: ○ no leak found, AUROC 0.600 [0.545, 0.655], p 0.001 alone, 0.79 among 948 secondary scores."
    assert said in page_of(canary).text


def test_heads_hold_for_all_of_their_rows() -> None:
    """A score may be of some of the records only: then each row says of how many it is, and the head does not."""
    counts = {"members": 142, "nonmembers_n": 146, "clients": 2}
    every, some = single(**counts), single(**counts, signal="loss", attack="loss")
    heads = [row[0] for row in page_of(every, some).rows if len(row) == 1 and row[0].startswith("prompt-user, prompt:")]
    assert heads == ["prompt-user, prompt: own members (142, 2 clients) against held-out records (146)"]
    for fewer, said in (
        ({"members": 70}, "70 against 146, 2 clients"),
        ({"nonmembers_n": 71}, "142 against 71, 2 clients"),
        ({"clients": 1}, "142 against 146, 1 client"),
    ):
        rows = page_of(every, some | fewer).rows
        assert ["prompt-user, prompt: own members against held-out records"] in rows
        firsts = [row[0] for row in rows if row]
        names = [name for name in firsts if name.startswith(("shadow models", "loss")) and " against " in name]
        assert names[0].endswith("142 against 146, 2 clients")
        assert names[1].endswith(said)


def matrix(rows: list[list[str]], head: str, place: int = 0) -> list[list[str]]:
    """The rows of the first table (or a further one) with this head."""
    start = [i for i, row in enumerate(rows) if row and row[0] == head][place]
    width = len(rows[start])
    end = next((i for i in range(start + 1, len(rows)) if len(rows[i]) != width or rows[i][0] == head), len(rows))
    return rows[start:end]


def judged(value: float, width: float, word: str) -> str:
    return f"{SYMBOLS[word]} {word} {shown(value, value - width, value + width)}"


def test_attacks_by_runs(pair: dict[str, bytes]) -> None:
    rows = Reader(pair["index.html"]).rows
    heads, *lines = matrix(rows, "Run", 1)
    assert heads[:3] == ["Run", "shadow models", "LiRA online"]
    assert heads[8] == "Best of 7 attacks corrected for picking"
    assert [line[0] for line in lines] == ["●DP-FPL, no noise", "■DP-FPL, ε 0.1"]
    for line, epsilon, word in zip(lines, (INF, 0.1), ("leak", "no leak found"), strict=True):
        value = leak_of("prompt-user", "shadow", epsilon)
        assert [line[1], line[8]] == [judged(value, width, word) for width in (WIDTH, 1.5 * WIDTH)]
    verdicts = matrix(rows, "Run")
    assert [cell.split()[0] for cell in verdicts[0][1:5]] == ["prompt-user", "released-model", "server", "owner"]
    assert [cell[0] for cell in verdicts[1][1:5]] == ["●", "◐", "●", "●"]
    assert [cell[0] for cell in verdicts[2][1:5]] == ["○", "◐", "○", "○"]
    assert verdicts[0][5:] == ["local accuracy (%) at the end"]  # what it sends was not counted
    ends = [accuracy_of("dpfpl", epsilon, "local", 0, 8, True) for epsilon in (INF, 0.1)]
    assert [row[5:] for row in verdicts[1:]] == [[f"{end:.1f}"] for end in ends]


def test_many_runs_are_lines_and_one_run_or_attack_needs_none(one: dict[str, bytes]) -> None:
    pairs = product(("promptfl", "dpfpl"), (INF, 0.4, 0.2, 0.1, 0.05))
    cells = [bare(attacked(prompt_evidence(*pair), "shadow", "loss")) for pair in pairs]
    reader = Reader(plain_page(cells))
    heads, *lines = matrix(reader.rows, "Run", 1)
    assert heads == ["Run", "shadow models", "loss", "Best of 2 attacks corrected for picking"]
    value = leak_of("prompt-user", "loss", 0.05)
    assert lines[9][:1] + lines[9][2:3] == ["DP-FPL, ε 0.05", judged(value, WIDTH, "no leak found")]
    assert lines[0][0] == "●PromptFL, no noise"
    assert "Of 10 rows those without noise or with ε 0.4 are shown" in reader.text
    assert sum(row[0].startswith("prompt-user, prompt: own") for row in reader.rows if len(row) == 1) == 2 * 4
    assert "Every attack by itself" not in Reader(one["index.html"]).text
    few = Reader(plain_page([bare(attacked(prompt_evidence("dpfpl", e), "shadow")) for e in (INF, 0.1)])).text
    assert "the gravest row of a headline score" in few
    assert not any(words in few for words in ("Every attack by itself", "Best of"))


def test_seeds_stand_beside_the_first() -> None:
    cells = [bare(attacked(prompt_evidence("dpfpl", 0.1, seed), "shadow", "loss"), "classes") for seed in (0, 1, 2)]
    reader = Reader(plain_page(cells))
    values = [leak_of("server", "loss", 0.1, seed) for seed in (0, 1, 2)]
    best = [leak_of("server", "shadow", 0.1, seed) for seed in (0, 1, 2)]
    means = [f"{mean(some):.3f} ± {stdev(some):.3f} 3 seeds" for some in (values, best)]
    first = shown(values[0], values[0] - WIDTH, values[0] + WIDTH)
    assert [first, means[0]] in [row[1:3] for row in reader.rows]
    assert means[1] in [row[2] for row in reader.rows if row and row[0].startswith("Best of 2")]
    assert "The same verdict in 3 of 3 seeds." in reader.text


def test_records_exposed_agreement_attribution_canaries_and_refused(pair: dict[str, bytes]) -> None:
    reader = Reader(pair["index.html"])
    rows = reader.rows
    records = PAIR[0].tables["records"]
    top = records[records.threat_model == "server"].sort_values("rank").iloc[0]  # as the pictures
    line = next(row for row in rows if row[:2] == ["1", top.record])
    assert line[2:6] == [top.client, top.label, top.kind, f"{top.percentile:.1f}"]
    assert not any("reference" in row for row in rows)  # they rank nowhere
    assert line[6:8] == [f"{top.shadow:.3g}", f"{top['lira/online']:.3g}"]
    assert len(line) == 6 + 11  # every score that a server can have
    shot = PAIR[0].tables["exposed"].iloc[0]
    assert f"{shot.client}, exposure {shot.score:.2f}" in reader.text
    assert f"1. {shot.record}. {shot.reason} Above {shot.percentile:.1f} % of the client's held-out" in reader.text
    agreement = next(row for row in rows if row[0] == "LiRA, online" and len(row) == 8)
    assert agreement[1:4] == ["0.80 55.0 %", "·", "0.80 55.0 %"]
    assert "prompt-user, prompt; by chance the lists share 10.0 %" in reader.text
    assert ["client-00 rebuilt", "held-out", "30.0 % [30.0, 52.0]", "71", "25.0 %"] in rows
    assert ["mislabelled", "17", "16", "100", "20", "3.49", "8.22", "1e-05", "70.0 %"] in rows
    refused = ["fedmia", "owner", "the threat model owner does not see uploads (these do: server)"]
    assert rows.count(refused) == 1  # both runs say the same


def test_canaries_too_few_and_runs_that_differ_are_named() -> None:
    e = bare(PAIR[0], "canaries")
    few = {"number": 2, "guesses": 1, "ceiling": 0.0, "gaussian_ceiling": 0.0, "needed": math.inf}
    e.tables["canaries"] = e.tables["canaries"].head(1).assign(**few)
    row = next(row for row in Reader(plain_page([e])).rows if row[:1] == ["mislabelled"])
    assert row[3:] == ["2", "1", "0.00", "0.00", "1e-05", "out of reach"]
    cells = [bare(e, "refused") for e in PAIR]
    cells[1].tables["refused"] = cells[1].tables["refused"].head(1)
    rows = Reader(plain_page(cells)).rows
    assert ["DP-FPL, ε 0.1", "fedmia", "prompt-user"] in [row[:3] for row in rows]
    assert ["DP-FPL, no noise", "fedmia", "prompt-user"] in [row[:3] for row in rows]


def test_figures_hold_their_rows(pair: dict[str, bytes]) -> None:
    against = figure(pair, "epsilon").set_index(["epsilon", "quantity"])
    for level, epsilon in (("none", INF), ("0.1", 0.1)):
        assert against.value[level, "auroc"] == pytest.approx(leak_of("prompt-user", "shadow", epsilon))
        assert against.value[level, "success"] == pytest.approx(100 * success_of("prompt-user", "shadow", epsilon))
        assert against.value[level, "local"] == pytest.approx(accuracy_of("dpfpl", epsilon, "local", 0, 8, True))
    assert against.down["0.1", "success"] == pytest.approx(7 / math.sqrt(2))  # two clients
    classes = figure(pair, "classes")
    assert set(classes.method) == {"DP-FPL, no noise", "DP-FPL, ε 0.1"}
    assert len(classes) == 2 * len(PAIR[0].tables["classes"])
    assert len(figure(pair, "trajectories")) == sum(len(e.tables["trajectories"]) for e in PAIR)
    ticks = [word for word in words_of(pair, "classes") if " · " in word]
    assert ticks[:2] == ["client-00 · mean", "client-00 · glyph 0"]
    assert words_of(pair, "roc").count("DP-FPL, ε 0.1") == 1  # one legend for all panels
    names = {"most exposed members, one by one", "held-out, mean", "left-out canary, mean"}
    names |= {f"{kind}, mean (DP-FPL, {noise})" for kind in ("member", "canary") for noise in ("no noise", "ε 0.1")}
    assert names <= set(words_of(pair, "trajectories"))


def test_bars_and_histograms_reach_as_far_as_their_numbers() -> None:
    found = [with_leakage(v, "shadow") for v in variants([bare(e, "classes") for e in PAIR])]
    drawn = against_epsilon(found, ["dpfpl"], ["local", "success"])
    assert drawn is not None
    panel = drawn[0].axes[1]
    bars = [np.ptp(segment[:, 1]) for c in panel.collections for segment in c.get_segments()]
    assert bars == pytest.approx([2 * 7 / math.sqrt(2)] * 2)
    low, high = panel.get_ylim()
    assert low <= 40 < 62 <= high
    assert any(line.get_ydata()[0] == 50 for line in panel.lines)  # guessing
    e = bare(attacked(prompt_evidence("dpfpl"), "shadow"), "scores")
    strange = e.tables["scores"].head(9).assign(kind="other client", shadow=1e9)
    files = built([replace(e, tables=e.tables | {"scores": pd.concat([e.tables["scores"], strange])})])
    assert figure(files, "scores-shadow").high.max() < 10


def test_figures_without_an_attack_and_of_many_classes() -> None:
    plain = built([bare(prompt_evidence("dpfpl", epsilon)) for epsilon in (INF, 0.1)])
    assert set(figure(plain, "epsilon").quantity) == {"local", "neighbour"}
    assert "guessing" not in Reader(plain["index.html"]).text.split("Against epsilon", 2)[2].split("Configuration")[0]
    e = bare(attacked(prompt_evidence("dpfpl"), "shadow"), "classes")
    few = e.tables["classes"].head(1)
    e.tables["classes"] = pd.concat([few.assign(label=f"class {i:02d}") for i in range(50)], ignore_index=True)
    files = built([e])
    assert "Of 50 rows the first 40 are drawn" in Reader(files["index.html"]).text
    assert len(figure(files, "classes")) == 50


@pytest.mark.parametrize("empty", [False, True])
def test_parts_without_rows_are_left_out(empty: bool) -> None:
    tables = {n: pd.DataFrame(columns=c.split()) for n, c in TABLES.items()} if empty else {}
    files = built([replace(e, tables=tables) for e in PAIR])
    drawn = {f"figures/epsilon.{kind}" for kind in ("svg", "pdf", "csv")}
    assert files.keys() == {"index.html", "findings.json", "findings.csv", "runs.json", "runs.csv"} | drawn
    assert set(figure(files, "epsilon").quantity) == {"local", "neighbour", "auroc"}
    parts = ("Most exposed", "Scores of every", "Do the attacks agree", "Whose record", "Canaries", "What was not run")
    assert not [part for part in parts if part in Reader(files["index.html"]).text]


def test_one_run_may_lack_what_another_has() -> None:
    poor = bare(attacked(prompt_evidence("dpfpl", 0.1), "loss"))
    poor = replace(poor, attack="all", findings=[f for f in poor.findings if f.get("way") in (None, "rebuilt")])
    rows = Reader(plain_page([bare(PAIR[0], "records"), poor])).rows
    assert matrix(rows, "Run")[2][1:3] == ["n/a", "n/a"]
    attacks = matrix(rows, "Run", 1)
    assert attacks[1][1] == judged(leak_of("prompt-user", "shadow", INF), WIDTH, "leak")
    assert attacks[2][1] == "n/a"


def test_figures_and_tables_take_degenerate_rows() -> None:
    e = attacked(prompt_evidence("dpfpl", 0.1), "shadow", "loss")
    names = "records scores classes agreement curves trajectories attribution privacy noise".split()
    odd = {name: e.tables[name].copy() for name in names}
    odd |= {n: t[t.threat_model == "prompt-user"] for n, t in odd.items() if n != "privacy" and "threat_model" in t}
    odd["records"]["loss"] = np.nan
    odd["scores"]["shadow"] = 1.0
    odd["classes"].loc[::2, ["success", "low", "high"]] = np.nan
    odd["agreement"]["spearman"] = np.nan
    odd["curves"][["low", "high"]] = np.nan
    odd["trajectories"]["loss"] = np.nan
    odd["attribution"][["low", "high"]] = np.nan
    files = built([replace(e, tables=odd)], printing=True)
    check_drawn(files)
    reader = Reader(files["index.html"])
    assert not re.search(r"\bnan\b", reader.text)
    assert {"40.0 % [n/a, n/a]", "n/a 55.0 %"} <= {cell for row in reader.rows for cell in row}
    heads = [row for row in reader.rows if row[:2] == ["rank", "Record"]]
    assert not any("loss" in row for row in heads)  # it says nothing of any record
    assert figure(files, "classes").success.notna().all()


def test_hostile_text_stays_text() -> None:
    e = bare(attacked(prompt_evidence("dpfpl"), "shadow"), "records", "exposed", "refused", "canaries", "classes")
    tables = {name: table.copy() for name, table in e.tables.items()}
    for name, column in (("records", "label"), ("exposed", "reason"), ("canaries", "kind"), ("classes", "label")):
        tables[name][column] = HOSTILE
    tables["refused"] = pd.DataFrame([("x", "owner", HOSTILE)], columns=TABLES["refused"].split())
    files = built([replace(e, tables=tables)], printing=True)
    reader = Reader(files["index.html"])
    assert "script" not in {tag for tag, _ in reader.elements}
    assert reader.text.count("<script>alert(1)</script>") >= 20 + 6 + 3 + 1 + 1
    check_drawn(files)


def test_leakage_as_scores_of_variants() -> None:
    cells = [attacked(prompt_evidence("dpfpl", 0.1, seed)) for seed in (0, 1)]
    (v,) = variants(cells)
    assert headline_signal([v]) == "shadow"
    leaking = with_leakage(v, "shadow").scores
    rates = [100 * success_of("prompt-user", "shadow", 0.1, seed) for seed in (0, 1)]
    assert leaking["success"].value == pytest.approx(mean(rates))
    assert leaking["success"].sd == pytest.approx(stdev(rates))
    width = 7 / math.sqrt(2)  # that of two clients with 7 each, joined by square-and-add
    assert leaking["success"].low == pytest.approx(rates[0] - width)
    assert leaking["success"].high == pytest.approx(rates[0] + width)
    assert leaking["auroc"].seeds == {s: pytest.approx(leak_of("prompt-user", "shadow", 0.1, s)) for s in (0, 1)}
    assert set(with_leakage(v, "cosine").scores) == set(v.scores)
    each = cells[0].tables["classes"]
    alone = replace(cells[0], tables={"classes": each[each.client == TARGETS[0]]})
    assert with_leakage(variants([alone])[0], "shadow").scores["success"].low == pytest.approx(rates[0] - 7)
    unknown = replace(cells[0], tables={"classes": each.assign(success=math.nan)})
    assert "success" not in with_leakage(variants([unknown])[0], "shadow").scores


def sweep(seeds: int = 1) -> list[Evidence]:
    levels = (INF, 0.4, 0.1, 0.01)
    return [bare(attacked(prompt_evidence("dpfpl", e, s), "shadow"), "classes") for e in levels for s in range(seeds)]


def drawn(evidence: dict[str, list[Evidence]]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    said = paper_items.find("dpfpl:figure3").build(evidence, files.__setitem__)
    assert all(said.count(f"{task}: The attack") == (len(evidence) > 1) for task in evidence)
    assert "Where the paper contradicts itself here" in files["index.html"].decode()
    return files


def test_figure_3_over_tasks() -> None:
    given = {"symbols in neon": sweep(2), "symbols in dots": sweep(2)}
    files = drawn(given)
    assert list(files) == ["figure3.svg", "figure3.pdf", "figure3.csv", "index.html"]
    assert files == drawn(given)
    data = pd.read_csv(io.BytesIO(files["figure3.csv"]), keep_default_na=False)
    data = data.set_index(["task", "epsilon", "quantity"])
    assert len(data) == 2 * 4 * 4
    success = [100 * success_of("prompt-user", "shadow", 0.1, seed) for seed in (0, 1)]
    assert data.value["symbols in dots", "0.1", "success"] == pytest.approx(mean(success))
    assert data.up["symbols in dots", "0.1", "success"] == pytest.approx(stdev(success))
    neighbour = accuracy_of("dpfpl", INF, "neighbour", 0, 8, True) + 0.5
    assert data.value["symbols in neon", "none", "neighbour"] == pytest.approx(neighbour)
    reader = Reader(files["index.html"])
    auroc = [leak_of("prompt-user", "shadow", 0.1, seed) for seed in (0, 1)]
    local = [accuracy_of("dpfpl", 0.1, "local", seed, 8, True) for seed in (0, 1)]
    shown = [f"{mean(of):.{digits}f} ± {stdev(of):.{digits}f}" for of, digits in ((local, 1), (success, 1), (auroc, 3))]
    row = next(row for row in reader.rows if row[0] == "ε 0.1")
    assert [row[1], row[3], row[4], row[5]] == [*shown, "○ guessing"]
    assert "below 50 % at ε 0.2 for Oxford Pets and at ε 0.1 for Caltech101 and Oxford Flowers" in reader.text
    scale = "4 clients, 6 rounds, batches of 8, 50 shadow models, 2 attacked clients and 2 seeds."
    assert f"Here: symbols-clip, {scale}" in reader.text
    check_page(files)


def rated(*successes: tuple[float, float]) -> str:
    """What is read from success rates (in percent) with half their interval over both clients, at no noise, epsilon 0.4 and 0.1."""
    cells = []
    for epsilon, (value, width) in zip((INF, 0.4, 0.1), successes, strict=True):
        e = bare(attacked(prompt_evidence("dpfpl", epsilon), "shadow"), "classes")
        each = width * math.sqrt(2)
        numbers = {"success": value / 100, "low": (value - each) / 100, "high": (value + each) / 100}
        cells.append(replace(e, tables={"classes": e.tables["classes"].assign(**numbers)}))
    return dpfpl_figure3.reading([with_leakage(v, "shadow") for v in variants(cells)])


def test_figure_3_in_words_and_what_it_refuses() -> None:
    for clear, some, much, said in [
        (80, 60, 49, "with ε 0.4 and without noise."),
        (80, 54, 49, "without noise, and with none of the epsilons."),
        (52, 60, 49, "with ε 0.4, though not without noise: read it as chance."),
        (52, 51, 30, "nowhere, not even without noise"),
    ]:
        assert rated((clear, 5), (some, 5), (much, 5)).startswith(f"The attack beats guessing {said}")
    local = accuracy_of("dpfpl", 0.1, "local", 0, 8, True) - accuracy_of("dpfpl", INF, "local", 0, 8, True)
    assert f"ε 0.1 changes accuracy by −{-local:.1f} points on local classes and" in rated((80, 5), (54, 5), (49, 5))
    cells, others = sweep(), [attacked(prompt_evidence("promptfl", e), "shadow") for e in (INF, 0.1)]
    for given, said in [
        ({}, "at least one task"),
        ({"glyphs": cells[:1]}, "'glyphs' must have DP-FPL at two epsilons"),
        ({"glyphs": [replace(e, tables={}) for e in cells]}, "with success rates of 'shadow'"),
        ({"glyphs": others}, "'glyphs' must have DP-FPL"),
    ]:
        with pytest.raises(ValueError, match=said):
            drawn(given)
