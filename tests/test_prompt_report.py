"""The pages about prompts on synthetic evidence: every number arrives beside its noise, claims beside proofs, and ours beside the paper's."""

import math
import re
from dataclasses import replace
from itertools import pairwise, permutations, product
from statistics import mean, stdev
from typing import Any

import pytest
from scipy.stats import kendalltau

from fedaudit.command.gates import parse
from fedaudit.command.terminal import show
from fedaudit.reports import beside_dpfpl as beside
from fedaudit.reports.formats import epsilon, join_words, short, signed, tau
from fedaudit.reports.report import Evidence
from fedaudit.reports.rows import closest_to_paper, noise_free_twin, variants
from fedaudit.reports.sections.utility import sentence
from tests.evidence import built, plain_page
from tests.evidence import evidence as lora_evidence
from tests.pages import Reader, check_files, check_page, figure, words_of
from tests.prompt_evidence import LEVEL, ablation, accuracy_of, of_a_dirichlet_split, prompt_evidence, sweep

INF = math.inf
FEW = [prompt_evidence("zeroshot"), *(prompt_evidence(name, e) for name in ("promptfl", "dpfpl") for e in (INF, 0.1))]


@pytest.fixture(scope="module")
def few() -> dict[str, bytes]:
    """One seed of two methods with and without noise, and zero-shot."""
    return built(FEW, printing=True)


@pytest.fixture(scope="module")
def seeds() -> dict[str, bytes]:
    """Two seeds of the ranks and the residual of one method."""
    return built(ablation(seeds=2), printing=True)


def test_files_hold_the_input_and_pages_need_nothing_else(few: dict[str, bytes], seeds: dict[str, bytes]) -> None:
    check_files(few, FEW, "accuracy privacy noise", "utility epsilon")
    check_page(few)
    check_page(seeds)


def test_numbers_stand_in_their_rows_and_nothing_about_membership_is_said(few: dict[str, bytes]) -> None:
    reader = Reader(few["index.html"])
    headings = " ".join(re.findall(r"<h\d[^>]*>(.*?)</h\d>", few["index.html"].decode()))
    assert "Utility and privacy of Zero-shot, PromptFL, DP-FPL" in headings
    assert "embership" not in headings
    assert not any(word in reader.text for word in ("AUROC", "Exposed records", "attack maxrenyi"))
    assert "null" in few["findings.json"].decode()  # of what does not apply
    rows = reader.rows
    names = ["●Zero-shot", "■PromptFL, no noise", "▲PromptFL, ε 0.1", "◆DP-FPL, no noise", "▼DP-FPL, ε 0.1"]
    for e, name in zip(FEW, names, strict=True):
        scores = [f for f in e.findings if f["metric"].startswith("accuracy/")]
        expected = [f"{f['value']:.1f} [{f['low']:.1f}, {f['high']:.1f}] from 12.0" for f in scores]
        ratio = scores[0]["noise_ratio"]
        noise = ["none", "none"] if ratio is None else [short(ratio), "87.5"]
        assert [name, *expected, *noise] in rows
    std = 1.25 * math.sqrt(6 * math.log(1e5)) / 0.1
    noise = std * math.sqrt(1536)
    numbers = ["1.25", short(std), "1536", "epochs", "8", "6", short(noise), "1.5", short(noise / 1.5), "77.5"]
    assert ["u", "client", "each record to 10", *numbers] in rows
    first = ["PromptFL, ε 0.1", "p_G", "client", "each record to 10", *numbers[:-3], "0.5", short(noise / 0.5), "87.5"]
    assert first in rows
    # DP-FPL's uploads are clear, PromptFL's noised
    assert reader.text.count("Against the server, ε 0.1: nothing is proven (∞).") == 1
    assert all(a != b for a, b in pairwise(filter(None, rows)))


def test_a_run_without_noise_has_no_noise_anywhere() -> None:
    files = built([prompt_evidence("promptfl"), prompt_evidence("dpfpl")])
    assert "noise.csv" not in files
    assert not any("epsilon" in name for name in files if name.startswith("figures/"))
    text = Reader(files["index.html"]).text
    assert not any(words in text for words in ("Noise as it ran", "repeatable"))
    assert "repeatable" in Reader(plain_page([prompt_evidence("promptfl", 0.1)])).text


def test_seeds_and_settings_that_differ(seeds: dict[str, bytes], few: dict[str, bytes]) -> None:
    text, rows = (reader := Reader(seeds["index.html"])).text, reader.rows
    values = [accuracy_of("dpfpl", 0.4, "local", seed, 4, False) for seed in (0, 1)]
    low, high = values[0] - 6.25, values[0] + 6.25
    numbers = f"{mean(values):.1f} ± {stdev(values):.1f} [{low:.1f}, {high:.1f}] from 12.0"
    assert ["DP-FPL, ε 0.4, rank 4, without residual", numbers] in [row[:2] for row in rows]
    assert "rank 8" not in Reader(few["index.html"]).text
    names = [row[0] for row in rows if len(row) == 6 and row[0].endswith("residual")]
    assert len(names) == 24
    assert names[:2] == [f"DP-FPL, no noise, rank 1, {full} residual" for full in ("with", "without")]
    settings = product((1, 2, 4, 8), (True, False))
    means = [mean(accuracy_of("dpfpl", 0.4, "local", s, *setting) for s in (0, 1)) for setting in settings]
    assert f"{min(means):.1f} to {max(means):.1f} % on local" in text
    assert text.count("over 8 settings") == 3  # one for every epsilon


def test_sentences() -> None:
    found = variants(FEW)
    of = {(v.method, v.epsilon): v for v in found}
    noisy, clean = of["dpfpl", 0.1], of["promptfl", INF]
    local, other = (accuracy_of("dpfpl", 0.1, split, 0, 8, True) for split in ("local", "neighbour"))
    lost = 20 - 4 * math.log10(10)
    every = 0.09 * math.sqrt(3)
    assert sentence(noisy, noise_free_twin(noisy, found)) == (
        f"{local:.1f} % [{local - 6.25:.1f}, {local + 6.25:.1f}] on local and {other:.1f} % [{other - 6.25:.1f}, {other + 6.25:.1f}] on neighbour "
        f"classes (−{lost:.1f} and −{lost:.1f} points against no noise); noise is {short(noisy.ratio)} times the signal. Claimed ε 0.1; "
        f"proven {every / 3:.3g} as it ran, {every:.3g} if a record is in every step: above the claim."
    )
    assert noise_free_twin(clean, found) is None
    gained = [signed(clean.scores[split].value - 12) for split in ("local", "neighbour")]
    said = f"({gained[0]} and {gained[1]} points against before training). Nothing is claimed; nothing is proven (∞)."
    assert said in sentence(clean, None)
    assert "Nothing is trained: no record can leak." in sentence(of["zeroshot", INF], None)
    assert sentence(of["promptfl", 0.1], None).endswith("0.09 if a record is in every step.")  # within the claim


def test_claims_merge_what_is_the_same(few: dict[str, bytes]) -> None:
    rows = [row for row in Reader(few["index.html"]).rows if len(row) == 9]
    every, unmeasured, within = 0.09 * math.sqrt(3), "not measured needs canaries", "proven is within what is claimed"
    noised = ["0.1", f"{every / 3:.3g}", f"{every:.3g}", f"{2 * every:.3g}"]
    above = "▲ above claimed if a record is in every step, 1.56 times in at most 2 of 6 steps"
    clear = ["none", "∞", "∞", "∞", unmeasured, "nothing is claimed unbounded: p_G carries no noise"]
    for level, adversary, *said in [
        ("ε 0.1", "everybody", "0.1", "0.03", "0.09", "0.18", unmeasured, f"{within} in at most 2 of 6 steps"),
        ("ε 0.1", "everybody but the server", *noised, unmeasured, above),
        ("ε 0.1", "server", *clear),
        ("no noise", "everybody", *clear),  # DP-FPL without noise is unbounded for everybody
        ("untrained", "everybody", *"0000", unmeasured, f"{within} nothing is trained"),
    ]:
        assert [level, adversary, "any client", *said] in rows
    assert ["with and without noise", "server", "any client", *clear] not in rows


def changed(e: Evidence, threat: str, whose: str, **more: Any) -> Evidence:
    """The evidence with other numbers for one adversary and record."""
    findings = [f | more if (f.get("threat_model"), f.get("whose")) == (threat, whose) else f for f in e.findings]
    return replace(e, findings=findings)


def test_adversaries_that_differ_stand_apart() -> None:
    nothing = {"provable": 0.0, "every_step": 0.0, "replace_one": 0.0, "why": "not reached"}
    other = changed(prompt_evidence("promptfl", 0.1), "owner", "other", **nothing)
    worse = changed(other, "prompt-user", "own", provable=0.2, every_step=0.3, replace_one=None)
    rows = [row for row in Reader(plain_page([worse])).rows if len(row) == 9]
    assert ["ε 0.1", "owner", "another client", "0.1", "0", "0", "0"] in [row[:7] for row in rows]
    assert ["ε 0.1", "owner", "the client itself", "0.1", "0.03"] in [row[:5] for row in rows]
    found = next(row for row in rows if row[1:3] == ["prompt-user", "the client itself"])
    assert found[4:7] == ["0.2", "0.3", "n/a"]
    assert found[8].startswith("▲ proven is above claimed")


def test_the_worst_proof_counts_and_noise_over_no_signal_is_infinite() -> None:
    worse = changed(prompt_evidence("promptfl", 0.1, 1), "server", "own", provable=0.07)
    v = variants([prompt_evidence("promptfl", 0.1, 0), worse])[0]
    assert {(c.threat_model, c.whose): round(c.provable, 6) for c in v.claims}["server", "own"] == 0.07
    e = prompt_evidence("promptfl", 0.1)
    silent = replace(e, findings=[f | {"noise_ratio": "inf"} if "noise_ratio" in f else f for f in e.findings])
    assert "noise is ∞ times the signal" in Reader(plain_page([silent])).text


def test_the_floor_of_the_noise_is_that_of_the_largest_epsilon(few: dict[str, bytes]) -> None:
    bound = math.sqrt(1536) * math.sqrt(math.log(1e5)) / (8 * 0.1)
    assert f"{bound:.0f} even at ε 0.1 (d = 1536, |B| = 8)" in Reader(few["index.html"]).text
    ratios = [row["ratio"] for e in FEW for row in e.tables["noise"].to_dict("records") if row["party"] == "client"]
    assert min(ratios) >= bound
    calibrated = with_privacy(prompt_evidence("promptfl", 0.1), sigma="calibrated")
    assert "even at" not in Reader(plain_page([calibrated])).text


def with_privacy(e: Evidence, **more: Any) -> Evidence:
    """The same cell with other settings of privacy."""
    return replace(e, setting=e.setting | {"privacy": e.setting["privacy"] | more})


def test_variants_are_read_from_the_setting() -> None:
    found = variants([prompt_evidence("dpfpl", e, rank=r) for r in (1, 8) for e in (0.1, INF, 0.4)])
    assert [v.epsilon for v in found] == [INF, INF, 0.4, 0.4, 0.1, 0.1]
    assert [v.setting for v in found[:2]] == ["rank 1", "rank 8"]
    assert found[0].title == "DP-FPL, no noise, rank 1"
    bare = replace(prompt_evidence("dpfpl", 0.1), setting={})
    assert (variants([bare])[0].method, variants([bare])[0].private) == (bare.method, False)
    record = prompt_evidence("promptfl", 0.1)
    batch = replace(with_privacy(record, clip="batch"), method="promptfl:clip=batch")
    found = variants([prompt_evidence("promptfl"), record, batch])
    assert [v.setting for v in found] == ["", "clip record", "clip batch"]
    assert all(noise_free_twin(v, found) is found[0] for v in found[1:])
    assert [v.title for v in found[1:]] == ["PromptFL, ε 0.1, clip record", "PromptFL, ε 0.1, clip batch"]
    found = closest_to_paper(variants(ablation()))
    assert [(v.epsilon, v.setting) for v in found] == [(e, "rank 8, with residual") for e in (INF, 0.4, 0.1)]


def test_figures_hold_their_rows(few: dict[str, bytes], seeds: dict[str, bytes]) -> None:
    rounds = figure(few, "utility")
    local = rounds.metric == "local classes, accuracy (%)"
    last = rounds[(rounds.rounds_completed == 6) & local].set_index("method").value
    assert last["DP-FPL, no noise"] == pytest.approx(LEVEL["dpfpl"] + 2)
    assert rounds.rounds_completed.min() == 0
    by_epsilon = figure(few, "epsilon")
    assert set(by_epsilon.epsilon) == {"none", "0.1"}
    assert set(by_epsilon.up) == {6.25}
    ranks = figure(seeds, "rank")
    assert len(ranks) == 24 * 2
    assert ranks.up.to_numpy() == pytest.approx(stdev([0, 1]))
    residual = figure(seeds, "residual")
    assert residual.difference.to_numpy() == pytest.approx(2)
    assert residual.sd.to_numpy() == pytest.approx(0)
    assert len(residual) == 4 * 3 * 2
    files = built([prompt_evidence("dpfpl", rank=rank) for rank in (0, 1, 8)], printing=True)
    ticks = [word for word in words_of(files, "rank") if word in ("1", "8", "full")]
    assert ticks == ["1", "8", "full"] * 2


def test_a_dirichlet_split_has_overall_accuracy_alone() -> None:
    cells = []
    for e in (prompt_evidence("promptfl"), prompt_evidence("promptfl", 0.4)):
        table = e.tables["accuracy"]
        kept = [f for f in e.findings if f["metric"] not in ("accuracy/local", "accuracy/neighbour")]
        cells.append(replace(e, findings=kept, tables=e.tables | {"accuracy": table[table.split == "overall"]}))
    files = built(cells)
    assert "on all classes" in Reader(files["index.html"]).text
    assert set(figure(files, "epsilon").quantity) == {"overall"}
    assert set(figure(files, "utility").metric) == {"all classes, accuracy (%)"}


def test_a_large_sweep_stays_small() -> None:
    cells = sweep(seeds=3)
    files = built(cells)
    reader = Reader(files["index.html"])
    assert len(cells) == 72
    assert len(files["index.html"]) < 400_000
    assert len([row for row in reader.rows if len(row) == 6 and row[1].endswith("from 12.0")]) == 24
    assert "Of 24 rows those without noise or with ε 0.4 are shown" in reader.text
    runs = [row for row in reader.rows if row and row[:2] == ["Run", "method.name"]]
    assert len(runs) == 1  # what differs has a row per run, not a column


def test_the_papers_tables() -> None:
    assert [len(beside.table(n)) for n in range(2, 12)] == [96, 96, 48, 31, 64, 64, 64, 64, 64, 64]
    local, other = beside.printed("local"), beside.printed("neighbour")
    assert local["Caltech101"]["promptfl", INF] == 94.45
    assert other["OxfordFlowers"]["dpfpl", 0.01] == 43.21
    datasets = ("Caltech101", "OxfordPets", "OxfordFlowers", "Food101")
    assert set(local) == {"mean", *datasets}
    assert local["mean"]["fedotp", 0.1] == pytest.approx(mean(local[name]["fedotp", 0.1] for name in datasets))
    with pytest.raises(ValueError, match="2 to 11"):
        beside.table(1)


def test_agreement_is_kendalls_tau_with_all_relabellings() -> None:
    paper = beside.printed("local")["mean"]
    cells = {key: value for key, value in paper.items() if key[1] in (INF, 0.1)}
    same = beside.agreement(cells, cells)
    assert (same.tau, same.p, same.n, same.methods) == (1.0, 1 / 24, 8, 4)
    assert beside.agreement({key: -value for key, value in cells.items()}, cells).tau == -1
    ours = {key: round(value, -1) for key, value in cells.items()}  # with ties
    found = beside.agreement(ours, cells)
    methods = ("promptfl", "fedotp", "fedpgp", "dpfpl")

    def slow(names: tuple[str, ...]) -> float:
        new = dict(zip(methods, names, strict=True))
        mine = {(new[m], e): x for (m, e), x in ours.items()}
        return float(kendalltau([mine[key] for key in cells], list(cells.values())).statistic)

    taus = [slow(names) for names in permutations(methods)]
    assert found.tau == pytest.approx(slow(methods))
    assert found.p == sum(t >= slow(methods) - 1e-9 for t in taus) / 24
    flat = {("a", 0.1): 1.0, ("b", 0.1): 1.0}
    steep = {("a", 0.1): 1.0, ("b", 0.1): 2.0}
    assert beside.agreement(flat, steep).tau is None
    assert beside.agreement(steep, steep).p == 0.5
    missing = steep | {("a", 0.4): 3.0}
    assert beside.agreement(missing, missing) == beside.Agreement(1.0, None, 3, 2)


def test_ours_stand_beside_the_papers() -> None:
    text, rows = (reader := Reader(plain_page(sweep(seeds=2)))).text, reader.rows
    assert "On local classes, with no noise, the paper's order" in text
    assert "On neighbour classes, over all cells, the paper's order" in text
    ours = [accuracy_of("fedotp", 0.1, "local", s, 8, True) for s in (0, 1)]
    theirs = f"{beside.printed('local')['mean']['fedotp', 0.1]:.1f}"
    assert ["ε 0.1", "FedOTP", f"{mean(ours):.1f} ± {stdev(ours):.1f}", theirs] in [row[:4] for row in rows]
    assert ["all cells", "24 4 methods"] in [row[:2] for row in rows]
    paper = beside.printed("local")
    cells = {(m, INF): accuracy_of(m, INF, "local", 0, 8, True) for m in ("promptfl", "fedotp", "fedpgp", "dpfpl")}
    a = beside.agreement(cells, paper["Food101"])
    assert f"{tau(a.tau)} p {a.p:.2f}" in next(row for row in rows if row[:2] == ["no noise", "4 4 methods"])[6]


def test_clients_own_test_sets_have_a_column_of_their_own(few: dict[str, bytes]) -> None:
    shared = built(list(map(of_a_dirichlet_split, FEW)), printing=True)
    after = Reader(shared["index.html"])
    assert "own test" not in Reader(few["index.html"]).text
    assert "a test set in the client's own class proportions" in after.text
    for e in FEW:
        named = e.setting["method"]["name"], float(e.setting["privacy"]["epsilon"])
        cells = [f"{f['value']:.1f}" for f in e.findings if f["metric"].startswith("accuracy/")]
        cells.append(f"{accuracy_of(*named, 'overall', 0, 8, True) + 0.5:.1f}")
        assert cells in [[cell.split()[0] for cell in row[1:5]] for row in after.rows if len(row) == 7]
    before_svg, after_svg = ({n: data for n, data in files.items() if n.endswith(".svg")} for files in (few, shared))
    assert before_svg == after_svg


def test_a_dirichlet_split_stands_beside_table_4() -> None:
    paper = beside.printed("own_test")
    assert set(paper) == {"mean", "25 clients", "50 clients"}
    assert paper["25 clients"]["promptfl", INF] == 71.20
    assert paper["50 clients"]["dpfpl", 0.01] == 56.09
    assert paper["mean"]["fedotp", 0.1] == pytest.approx((46.95 + 57.05) / 2)
    assert beside.printed("overall") == paper
    reader = Reader(plain_page(list(map(of_a_dirichlet_split, sweep(seeds=2)))))
    assert "On the clients' own test sets, over all cells, the paper's order" in reader.text
    assert "Table 4, mean over 25 and 50 clients" in reader.text
    assert "On local classes" not in reader.text  # Tables 2 and 3 are of a pathological split
    ours = [accuracy_of("fedotp", 0.1, "overall", s, 8, True) for s in (0, 1)]
    row = next(row for row in reader.rows if row[:2] == ["ε 0.1", "FedOTP"] and len(row) == 6)
    spread = f"± {stdev(ours):.1f}"
    assert row[2:] == [f"{mean(ours) + 0.5:.1f} {spread}", "52.0", f"{mean(ours):.1f} {spread}", "52.0"]


def test_the_section_beside_the_paper_needs_two_methods_at_one_epsilon() -> None:
    def compared(*cells: tuple[str, float]) -> beside.PaperComparison | None:
        return beside.compare_with_paper(variants([prompt_evidence(*cell) for cell in cells]))

    assert compared(("dpfpl", INF), ("promptfl", 0.1)) is None
    assert compared(("dpfpl", 0.3), ("promptfl", 0.3)) is None  # the paper has no such epsilon
    assert compared(("zeroshot", INF), ("promptfl", INF)) is None
    found = compared(("dpfpl", INF), ("promptfl", INF))
    assert found is not None
    assert any("too few orders" in sentence for sentence in found.sentences)


def test_the_trained_share_stands_beside_the_papers() -> None:
    shares = {(0.5, 0.25): "about 37.5 % of the", (0.5, 0.5): "about 25 % of the", (0.0, 0.25): "all"}
    for (holdout, reference), said in shares.items():
        task = {"name": "glyphs", "holdout": holdout, "reference_share": reference}
        both = [prompt_evidence(name) for name in ("dpfpl", "promptfl")]
        found = beside.compare_with_paper(variants([replace(e, setting=e.setting | {"task": task}) for e in both]))
        assert found is not None
        theirs, ours = found.scale.split("Here:")
        assert f"{said} records trained on" in ours
        assert "all records trained on" in theirs


def test_summary_in_the_terminal_and_gates_on_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [f for e in FEW for f in e.findings]
    show(findings, None)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]

    def words(method: str, level: str) -> list[str]:
        """The row of a level below the name of its method."""
        below = lines[lines.index([method]) :]
        return next(line for line in below if line[:1] == [level])

    ratio = FEW[4].findings[0]["noise_ratio"]
    row = words("dpfpl:rank=8:residual=true", "0.1")
    local = accuracy_of("dpfpl", 0.1, "local", 0, 8, True)
    assert row[1:4] == [f"{local:.1f}", f"[{local - 6.25:.1f},", f"{local + 6.25:.1f}]"]
    assert row[-4:] == [short(ratio), "0.1", f"{0.03 * math.sqrt(3):.3g}", "∞"]
    assert words("promptfl", "none")[-4:] == ["none", "none", "∞", "same"]
    (reason,) = parse(f"accuracy/local < {local + 0.1}").crossed([f for f in findings if f["method"] == FEW[4].method])
    assert f"accuracy/local {local:.1f} [{local - 6.25:.1f}, {local + 6.25:.1f}]" in reason
    assert len(parse("accuracy/neighbour.low < 100").crossed(findings)) == len(FEW)


def test_summaries_in_the_terminal_of_own_test_sets_and_of_both_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    e = of_a_dirichlet_split(FEW[3])
    show(e.findings, None)
    out = capsys.readouterr().out
    value = accuracy_of("dpfpl", INF, "overall", 0, 8, True) + 0.5
    assert "own test" in out
    assert f"{value:.1f} [" in out
    assert parse(f"accuracy/own_test < {value + 0.1}").crossed(e.findings)
    cells = [prompt_evidence("promptfl", 0.1, 0), prompt_evidence("promptfl", 0.1, 1), lora_evidence("fedrand", 0)]
    show([f for e in cells for f in e.findings], "maxrenyi")
    out = capsys.readouterr().out
    values = [accuracy_of("promptfl", 0.1, "local", s, 8, True) for s in (0, 1)]
    assert f"{mean(values):.1f} ± {stdev(values):.1f}" in out
    assert "maxrenyi: members against held-out records" in out


def test_small_words() -> None:
    given = (0.0334, 0.0, INF, "inf", "0.5", None, math.nan)
    assert [epsilon(x) for x in given] == "0.0334 0 ∞ ∞ 0.5 n/a n/a".split()
    assert [short(x) for x in (11567.0, 99.94, 0.12345, INF, None, math.nan)] == "11,600 99.9 0.123 ∞ n/a n/a".split()
    assert [signed(x) for x in (1.25, -0.31, 0.0)] == ["+1.2", "−0.3", "+0.0"]
    assert [tau(x) for x in (-0.001, 0.333, -1.0)] == ["0.00", "0.33", "−1.00"]
    assert [join_words(x) for x in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
