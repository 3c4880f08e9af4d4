"""Curves of leakage against utility: intervals over seeds and records, Pareto fronts, points, the best attack, runs on disk."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from scipy.stats import t as student

import fedaudit
from fedaudit.audits import curves as audit
from fedaudit.audits import run_comparison
from fedaudit.audits.attack_labels import attack_labels
from fedaudit.audits.statistics.over_seeds import OfTraining, over_seeds
from fedaudit.audits.statistics.pareto import front_probability, on_front
from fedaudit.command import cli, compare_runs
from fedaudit.machinery.errors import InputError
from fedaudit.pipeline import runs_on_disk
from fedaudit.pipeline.page import audited_run
from fedaudit.reports.comparison import build
from fedaudit.reports.section import Page
from fedaudit.reports.sections.curves import section
from tests.kept_runs import TINY
from tests.prompt_evidence import attacked, prompt_evidence
from tests.unprinted import no_pages
from tests.whole_runs import unnoted

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")

Z = norm.ppf(0.975)


class TestOverSeeds:
    def test_shared_records_add_to_what_seeds_spread(self):
        found = over_seeds([OfTraining(0.6, 0.5, 0.8)], confidence=0.95)
        assert (found.value, found.low, found.high) == pytest.approx((0.6, 0.5, 0.8))
        # by hand: values 1, 2, 3 (s^2 / S = 1/3, two degrees of freedom), half-width 1 by records
        found = over_seeds([OfTraining(v, v - 1, v + 1) for v in (1.0, 2.0, 3.0)], confidence=0.95)
        reach = math.sqrt(student.ppf(0.975, 2) ** 2 / 3 + 1)
        assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach))
        assert found.se == pytest.approx(math.sqrt(1 / 3 + 1 / Z**2))

    def test_trainings_each_on_their_data(self):
        found = over_seeds([OfTraining(v, v - 0.1, v + 0.1, data=v) for v in (1.0, 2.0, 3.0)], confidence=0.95)
        reach = student.ppf(0.975, 2) / math.sqrt(3)
        assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach))
        found = over_seeds([OfTraining(2.0, 1.0, 3.0, data=i) for i in range(4)], confidence=0.95)
        assert (found.low, found.high) == pytest.approx((1.5, 2.5))

    def test_ends_are_cut_and_without_any_interval_seeds_alone_speak(self):
        found = over_seeds([OfTraining(0.98, 0.8, 0.99), OfTraining(0.98, 0.8, 0.99)], confidence=0.9999, most=1.0)
        assert found.high == pytest.approx(0.98 + 0.01 * norm.ppf(0.99995) / Z)
        assert over_seeds([OfTraining(0.98, 0.8, 1.0)], confidence=0.9999, most=1.0).high == 1.0
        assert over_seeds([OfTraining(3.0)], confidence=0.95).low is None
        two = over_seeds([OfTraining(3.0), OfTraining(5.0)], confidence=0.95)
        assert two.high - 4 == pytest.approx(student.ppf(0.975, 1))
        same = over_seeds([OfTraining(3.0), OfTraining(3.0)], confidence=0.95)
        assert (same.low, same.high, same.se) == (3.0, 3.0, 0.0)

    @pytest.mark.parametrize(("seeds", "ratio"), [(2, 0.3), (3, 1.0), (5, 3.0)])  # spread by training over by records
    @pytest.mark.parametrize("shared", [True, False])
    def test_coverage(self, seeds, ratio, shared):
        """Of 200 correct intervals of 95 % at least 179 hold the truth (0.001 of the binomial)."""
        rng, hits = np.random.default_rng([seeds, int(10 * ratio), shared]), 0
        for _ in range(200):
            by_records = rng.standard_normal(1 if shared else seeds)
            values = 7 + by_records + ratio * rng.standard_normal(seeds)
            parts = [OfTraining(v, v - Z, v + Z, data=0 if shared else i) for i, v in enumerate(values)]
            found = over_seeds(parts, confidence=0.95)
            hits += found.low <= 7 <= found.high
        assert hits >= 179


def slow_front(utility, leakage):
    points = list(zip(utility, leakage, strict=True))
    return [not any(a >= u and b <= leak and (a, b) != (u, leak) for a, b in points) for u, leak in points]


class TestFront:
    def test_as_the_slow_one_and_sure_without_errors(self):
        for seed in range(20):
            u, leak = np.random.default_rng(seed).integers(0, 5, (2, 12))  # with ties
            assert on_front(u, leak).tolist() == slow_front(u, leak)
        u, leak = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.7, 0.6])
        assert front_probability(u, np.zeros(3), leak, np.zeros(3)).tolist() == on_front(u, leak).tolist()

    def test_of_two_alike_each_is_off_the_front_a_quarter_of_the_time(self):
        """It is off where the other is better in both, with probability 1/4: 500 of 2,000 draws, sd 19."""
        found = front_probability(np.zeros(2), np.ones(2), np.zeros(2), np.ones(2))
        assert found == pytest.approx([0.75, 0.75], abs=4 * 19 / 2000)


@cache
def cell(method, epsilon, seed, rank, attacks):
    return attacked(prompt_evidence(method, epsilon, seed, rank=rank), *attacks, pictures=False)


def runs(epsilons=(math.inf, 0.4, 0.1), seeds=2, methods=("dpfpl",), ranks=(8,), attacks=("lira", "loss"), z=None):
    """Cells as audits leave them; `z` gives attacks the coins' statistic."""
    found = []
    for method, epsilon, rank, seed in product(methods, epsilons, ranks, range(seeds)):
        e = cell(method, epsilon, seed, rank, attacks)
        rated = [f | {"z": (z or {}).get(f.get("attack"))} for f in e.findings]
        found.append(audited_run(replace(e, findings=rated, setting=e.setting | {"data_seed": 0})))
    return found


def varied(runs, entries, **renamed):
    """Every run with a setting of its own, the entries of `entries(i)`; findings of attacks under other names."""

    def named(f):
        return f | {"attack": renamed.get(f["attack"], f["attack"])} if "attack" in f else f

    changed = [replace(run, findings=[*map(named, run.findings)]) for run in runs]
    return [replace(run, setting=run.setting | entries(i)) for i, run in enumerate(changed)]


def table(found, **params):
    return audit.curves(found, audit.Params(**params)).tables["curves"]


class TestPoints:
    def test_seeds_are_one_point_and_settings_differ(self):
        found = run_comparison.points(runs(ranks=(4, 8)))
        assert [len(p.runs) for p in found] == 6 * [2]
        assert {p.swept for p in found} == {("method.rank", "privacy.epsilon")}
        assert found[0].name == "dpfpl rank=4 epsilon=none"
        found = run_comparison.points(runs(methods=("promptfl", "dpfpl"), epsilons=(math.inf,)))
        assert {p.swept for p in found} == {("method.name",)}
        assert [p.name for p in found] == ["promptfl", "dpfpl"]
        clear, noisy = runs(epsilons=(math.inf, 0.4), seeds=1)
        other = replace(clear, setting=clear.setting | {"privacy.clip_norm": 1.8}, key="x")
        assert len(run_comparison.points([clear, other, noisy])) == 2

    def test_the_last_analysis_counts_and_other_settings_are_other_attacks(self):
        (one,) = runs(epsilons=(math.inf,), seeds=1)
        found = [f | {"value": 0.9} if f["metric"] == "auroc" else f for f in one.findings]
        rows = table([one, *runs(epsilons=(0.4,)), replace(one, key="later", findings=found)])
        first = rows[rows.point == "dpfpl epsilon=none"]
        assert {*zip(first.auroc, first.auroc_seeds, strict=True)} == {(0.9, 1)}
        few, noisy = runs(epsilons=(math.inf, 0.4), seeds=1)
        many = replace(few, key="many", setting=few.setting | {"adversary.shadows": 99})
        found = audit.curves([few, many, noisy], audit.Params())
        rows = found.tables["curves"]
        assert set(rows.attack) == {"lira:shadows=50", "lira:shadows=99", "loss"}
        assert rows.best_of.dropna().unique().tolist() == [2]

    @pytest.mark.parametrize(
        ("entries", "apart"),
        [
            ("adversary.shadows adversary.shadow_kind adversary.trajectory adversary.shadow_trajectories", {"lira"}),
            ("adversary.observed_rounds", {"cosine", "decompose"}),
            ("adversary.solved_rounds", {"decompose"}),
            ("adversary.targets adversary.of_tomorrow", {"lira", "cosine", "decompose", "loss", "maxrenyi"}),
            ("attack.lira.variance", {"lira"}),
            ("attack.maxrenyi.order", {"maxrenyi"}),
            ("attack.loss.of_tomorrow", {"loss"}),
            ("attack.maxrenyi.novel_rows audit.membership.confidence", set()),
        ],
    )
    def test_an_attack_is_another_one_by_what_it_uses_only(self, entries, apart):
        """At every point each of the entries, one after the other, has another value."""
        names = ("lira", "cosine", "decompose", "loss", "maxrenyi")
        made = runs(seeds=1, attacks=("lira", "entropy", "rmia", "loss", "gradnorm"))
        other = {"entropy": "cosine", "rmia": "decompose", "gradnorm": "maxrenyi"}
        for entry in entries.split():
            found = varied(made, lambda i, entry=entry: {entry: f"value {i}"}, **other)
            labels = attack_labels(found)
            assert {a for a in names if len({labels[run.key, a] for run in found}) > 1} == apart, entry
            rows = table(found).dropna(subset="best_of")
            assert rows.empty == (apart == set(names)), entry
            assert set(rows.best_of) <= {len(names) - len(apart)}, entry

    def test_what_labels_of_attacks_leave_out(self):
        for entry in ({"adversary.shadow_kind": "federations"}, {"adversary.trajectory": "observed"}):
            of_run = runs(seeds=1, attacks=("lira",))
            found = varied(of_run, lambda i, entry=entry: entry | {"adversary.shadow_trajectories": i})
            assert set(attack_labels(found).values()) == {"lira"}
        found = varied(runs(seeds=1, attacks=("loss",)), lambda i: {"adversary.shadows": i}, loss="gone")
        assert set(attack_labels(found).values()) == {f"gone:shadows={i}" for i in range(3)}

    def test_the_best_is_of_the_attacks_that_all_points_have(self):
        many = runs(epsilons=(math.inf,), attacks=("lira", "entropy", "loss"), seeds=1)
        found = audit.curves(many + runs(epsilons=(0.4,), attacks=("loss",), seeds=1), audit.Params())
        best = found.tables["curves"].dropna(subset="best_of")
        assert {*zip(best.attack, best.best_of, strict=True)} == {("loss", 1)}
        said = [one for one in found.sentences if "those that ran at all settings" in one]
        assert len(said) == 4
        assert said[0].endswith("of 3 attacks those that ran at all settings are compared: loss")
        apart = audit.curves(many + runs(epsilons=(0.4,), attacks=("rmia",), seeds=1), audit.Params())
        assert apart.tables["curves"].best_of.isna().all()
        assert not section(Page([], map, {"curves": apart})).drawn
        assert "glyphs, server: no attack ran with the same settings at all 2 points, so none are comp" in apart.empty
        assert "entropy lacks 1: dpfpl epsilon=0.4" in apart.empty
        assert not found.empty

    def test_worlds_are_apart(self):
        here = runs(seeds=1)
        rows = table(here + [replace(r, key="x", setting=r.setting | {"task.name": "digits"}) for r in here])
        assert rows.world.unique().tolist() == ["glyphs", "digits"]
        own = rows[rows.world == "digits"].drop(columns="world").reset_index(drop=True)
        pd.testing.assert_frame_equal(own, rows[rows.world == "glyphs"].drop(columns="world"))


class TestCurves:
    def test_a_row_is_the_mean_of_its_seeds(self):
        row = table(runs()).iloc[0]
        e = [attacked(prompt_evidence("dpfpl", seed=s), "lira", pictures=False) for s in range(2)]
        for metric, mean in (("auroc", row.auroc), ("accuracy/local", row.utility)):
            values = [next(f["value"] for f in one.findings if f["metric"] == metric) for one in e]
            assert mean == pytest.approx(np.mean(values)), metric
        assert (row.auroc_seeds, row.utility_seeds, row.utility_metric) == (2, 2, "local")
        unknown = {"value": None, "low": None, "high": None, "status": "not measurable (96)"}
        few = [replace(r, findings=[f | unknown if f["metric"] == "tpr@1%" else f for f in r.findings]) for r in runs()]
        assert set(table(few).tpr_1_status) == {"not measurable"}
        rest = [replace(r, findings=[f for f in r.findings if f["metric"] != "tpr@1%"]) for r in runs()]
        assert set(table(rest).tpr_1_seeds) == {0}
        assert set(table(runs(), utility="neighbour").utility_metric) == {"neighbour"}

    def test_the_best_by_the_coins_has_an_interval_for_all(self):
        """The second attack has the lower AUROC and the larger statistic."""
        rows = table(runs(seeds=1, z={"lira": 1.0, "loss": 3.0}))
        some = rows[(rows.threat_model == "server") & (rows.point == "dpfpl epsilon=none")]
        lira, loss, best = some.to_dict("records")
        assert (best["attack"], best["best_of"]) == ("loss", 2)
        assert best["auroc"] == loss["auroc"] < lira["auroc"]
        wider = norm.ppf(1 - 0.025 / 2) / Z
        assert best["auroc_high"] - best["auroc"] == pytest.approx(wider * (loss["auroc_high"] - loss["auroc"]))
        rows = table(runs(seeds=1, z={"lira": -9.0, "loss": 0.1}))
        assert set(rows[rows.best_of.notna()].attack) == {"loss"}
        assert set(table(runs(seeds=1)).dropna(subset="best_of").attack) == {"lira"}

    def test_the_front_is_of_each_adversary(self):
        rows = table(runs(methods=("promptfl", "dpfpl")))
        for _, part in rows[rows.best_of.notna()].groupby("threat_model"):
            assert part.front.tolist() == slow_front(part.utility, part.auroc)
            assert part.front_p.between(0, 1).all()

    def test_more_noise_may_not_leak_more(self):
        noisy = runs(seeds=1)
        usual = audit.curves(noisy, audit.Params()).sentences
        assert ["in none of 2 steps" in said for said in usual] == 4 * [True]
        high = {"value": 0.95, "low": 0.9, "high": 0.99}
        worse = [f | high if f["metric"] == "auroc" else f for f in noisy[-1].findings]
        said = audit.curves([*noisy[:-1], replace(noisy[-1], findings=worse)], audit.Params()).sentences
        assert all("leakage FALLS where noise does, from dpfpl epsilon=0.1 (0.950)" in one for one in said)

    def test_what_is_missing_is_named(self):
        def only(metric):
            return [replace(r, findings=[f for f in r.findings if f["metric"] == metric]) for r in runs()]

        for given, params, message in (
            (runs(epsilons=(0.4,)), {}, "no two points.*single setting was attacked, dpfpl"),
            (runs(), {"utility": "cider"}, "--utility cider: the runs on glyphs have local, neighbour, overall"),
            (only("epsilon"), {}, "nothing was attacked"),
            (only("auroc"), {}, "no utility in common"),
        ):
            with pytest.raises(InputError, match=message):
                table(given, **params)
        with pytest.raises(ValueError, match="utility must be local, neighbour,"):
            audit.Params(utility="taste")

    def test_loss_counts_downwards(self):
        """Of two settings that leak alike the one with the lower loss is on the front."""
        both = runs(epsilons=(math.inf, 0.4), seeds=1, attacks=("loss",))
        losses = pd.DataFrame([(-1, "global", 9.0), (0, "global", 1.0)], columns=["round", "model", "loss"])
        alike = [replace(r, findings=[f | {"value": 0.6} for f in r.findings if f["metric"] == "auroc"]) for r in both]
        of_run = zip(alike, (losses.assign(loss=2.0), losses), strict=True)
        rows = table([replace(run, tables={"utility": own}) for run, own in of_run])
        assert rows.utility.unique().tolist() == [2.0, 1.0]
        fronts = dict(zip(rows.point, rows.front, strict=True))
        assert fronts == {"dpfpl epsilon=none": False, "dpfpl epsilon=0.4": True}


def test_section_figures_and_files():
    some = runs(methods=("promptfl", "dpfpl"), epsilons=(math.inf, 0.4), ranks=(4, 8), seeds=1)
    found = audit.curves(some, audit.Params())
    drawn = section(Page([], map, {"curves": found})).drawn
    assert set(drawn) == {"front", "over-method-name", "over-privacy-epsilon", "over-method-rank"}
    files = {}
    build({"curves": found}, files.__setitem__, runs=8, asked={"curves": {}})
    text = files["index.html"].decode()
    assert list(files)[-1] == "index.html"
    assert text.count("<figure") == 4
    assert "in none of" in text
    assert len(json.loads(files["curves.json"])) == len(found.tables["curves"])
    assert section(Page([], map)) is None


class TestCommand:
    def test_refused_before_anything_trains(self):
        for words, said in (
            ("promptfl --epsilon none --attack loss", "compares settings, and here is one, promptfl"),
            ("dpfpl --epsilon none,1", "needs an attack"),
        ):
            with pytest.raises(InputError, match=said):
                cli.read_command(["--audit", "curves", "--method", *words.split()])

    def test_it_is_in_no_analysis_but_in_the_page_of_several_settings(self):
        words = "--method dpfpl --epsilon none,1 --attack loss".split()
        plain, asked = (cli.read_command([*words, *more]).plan for more in ([], ["--audit", "curves"]))
        assert [c.analysis_key for c in plain.cells] == [c.analysis_key for c in asked.cells]
        assert plain.report_folder != asked.report_folder
        assert list(asked.across) == ["curves", "differences"]
        assert list(plain.across) == ["differences"]  # by default
        assert "curves" not in asked.audits
        for words, across in (("dpfpl --epsilon none", False), ("dpfpl,promptfl", True)):
            plan = cli.read_command(f"--method {words} --attack loss --audit all".split()).plan
            assert ("curves" in plan.across) == across

    def test_which_words_ask_for_runs_on_disk(self):
        assert compare_runs.read("--audit curves --out x --utility local".split()).across["curves"].utility == "local"
        for words in ("--audit membership", "--method dpfpl --audit curves", "--audit curves --help", "--out x"):
            assert compare_runs.read(words.split()) is None
        with pytest.raises(InputError, match="--rounds: has no place"):
            compare_runs.read("--audit curves --rounds 3".split())


@pytest.fixture(scope="module")
def out(kept, tmp_path_factory):
    """Two methods without noise, and one of them with it."""
    out = kept.copied(tmp_path_factory.mktemp("runs"))
    with no_pages():
        fedaudit.audit(**TINY, method="promptfl", epsilon=5, no_twin=True, attack="loss", out=out)
    return out


def compared(out, *words):
    return cli.main(["--audit", "curves", "--out", str(out), *words])


def without_reports(kept, place):
    """The trainings and analyses of kept runs elsewhere."""
    return shutil.copytree(kept.out, place, ignore=shutil.ignore_patterns("reports"), dirs_exist_ok=True)


class TestOnDisk:
    def test_over_several_commands_without_training(self, out, capsys, monkeypatch):
        from fedaudit.pipeline import compute

        monkeypatch.setattr(compute, "compute", None)  # whatever trains would need it
        assert compared(out, "--quiet") == 0
        first = capsys.readouterr().out.splitlines()
        page = next(out.glob("comparisons/curves-*/index.html"))
        assert first[-1] == f"report: {page}"
        rows = pd.read_csv(page.with_name("curves.csv"))
        assert set(rows.point) == {"promptfl epsilon=none", "promptfl epsilon=5", "local epsilon=none"}
        before = {p: unnoted(p) for p in page.parent.rglob("*") if p.is_file()}
        broken = out / "reports" / "broken"
        broken.mkdir()
        assert compared(out) == 0
        broken.rmdir()
        assert f"left out: {broken} is not finished" in capsys.readouterr().err
        assert {p: unnoted(p) for p in page.parent.rglob("*") if p.is_file()} == before
        assert compared(out, "--dry-run") == 0
        assert "4 runs of 3 settings" in capsys.readouterr().out

    def test_every_table_of_an_analysis_can_be_asked_for(self, out):
        for run in runs_on_disk.read(out, print):
            (place,) = (out / "analyses").glob(f"*-{run.key}")
            assert {*run.tables} == {"times", *(path.stem for path in place.glob("*.parquet"))}
            assert len(run.tables["permutations"]) > 0
            assert run.tables.get("nonsense") is None

    def test_in_one_command_after_another_that_trained(self, out, capsys):
        words = TINY | {"method": ["promptfl", "local"], "epsilon": "none", "attack": "loss"}
        found = fedaudit.audit(**words, audit="curves", out=out)
        assert "Leakage against utility" in found.report.read_text()
        assert (found.report.parent / "curves.csv").is_file()
        assert len(list((out / "analyses").glob("promptfl*"))) == 3  # none was analysed again

    def test_nothing_to_compare_ends_with_2_and_no_page(self, kept, tmp_path, capsys):
        """Of one method only the losses were attacked, of another only the entropies."""
        few = {**TINY, "epsilon": "none", "out": without_reports(kept, tmp_path)}
        with no_pages():
            fedaudit.audit(**few, method="promptfl", attack="entropy")
            fedaudit.audit(**few, method="local", attack="loss")
        assert compared(tmp_path, "--quiet") == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("error: --audit curves: glyphs, ")
        assert "no attack ran with the same settings at all 2 points, so none are compared; entropy lacks 1: " in said
        assert not (tmp_path / "comparisons").exists()
        with no_pages():
            fedaudit.audit(**few, method="promptfl", attack="loss")
        assert compared(tmp_path, "--quiet") == 0

    def test_what_is_missing_ends_with_2(self, kept, tmp_path, capsys):
        assert compared(tmp_path) == 2
        assert "no finished report" in capsys.readouterr().err
        without_reports(kept, tmp_path)
        with no_pages():
            fedaudit.audit(**TINY, method="local", epsilon="none", out=tmp_path)
        assert compared(tmp_path) == 2
        assert "no run under" in capsys.readouterr().err
