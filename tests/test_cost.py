"""Costs at equal utility by hand, what phases spend and hold, and that times are in no result."""

import json
import math
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedaudit
from fedaudit.audits import cost as audit
from fedaudit.audits.run_comparison import AuditedRun, points, utilities, world_names
from fedaudit.command import cli
from fedaudit.machinery import resource_usage as spending
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.resource_usage import ResourceUsage
from fedaudit.reports.comparison import build
from fedaudit.reports.section import Page
from fedaudit.reports.sections.cost import section
from tests.kept_runs import TINY
from tests.whole_runs import contents

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")


def run(method, accuracies, *, down=100, up=50, seed=0, metric="local", times=None):
    """A training of two clients a round; the first accuracy is before it."""
    rounds = range(len(accuracies) - 1)
    sent = [(r, 2 * down, 2 * up, 400, 2, 2) for r in rounds]
    tables = {"cost": pd.DataFrame(sent, columns="round bytes_down bytes_up fedavg_bytes messages complete".split())}
    if metric == "loss":
        lines = [(r - 1, "global", v) for r, v in enumerate(accuracies)]
        tables["utility"] = pd.DataFrame(lines, columns=["round", "model", "loss"])
    else:
        lines = [(r - 1, "mean", metric, v) for r, v in enumerate(accuracies)]
        tables["accuracy"] = pd.DataFrame(lines, columns=["round", "client", "split", "accuracy"])
    if times is not None:
        tables["times"] = pd.DataFrame(times, columns=["phase", "value"])
    setting = {"task.name": "glyphs", "method.name": method, "data_seed": 0, "seed": seed}
    return AuditedRun(f"{method}{seed}", method, seed, setting, [], tables)


def rows(*runs, **params):
    return audit.cost(runs, audit.Params(**params)).tables["costs"].set_index("method")


class TestEqualUtility:
    def test_by_hand(self):
        """The common utility is 30; the second method is first as good after round 2 and falls back after that."""
        found = rows(run("a", [10, 20, 25, 30]), run("b", [10, 20, 40, 29, 48], down=10, up=5))
        a, b = found.loc["a"], found.loc["b"]
        assert (a.target, a.rounds_to_target, a.sent_to_target, a.sent, a.rounds) == (30, 3, 900, 900, 3)
        assert (b.rounds_to_target, b.sent_to_target, b.sent, b.utility) == (2, 60, 120, 48)
        assert (a.down, a.up, b.down, b.up) == (100, 50, 10, 5)
        assert (a.of_fedavg, b.of_fedavg) == (0.75, 0.075)
        found = rows(run("a", [3, 2, 1.5], metric="loss"), run("b", [3, 1.6, 1.0], metric="loss"))
        assert found.target.tolist() == [1.5, 1.5], "of losses the lower is better"
        assert found.rounds_to_target.tolist() == [2, 2]
        assert found.utility_metric.unique().tolist() == ["loss"]

    @pytest.mark.parametrize(("metric", "turn"), [("local", 1), ("loss", -1)])
    def test_what_noise_ruined_does_not_say_what_is_common(self, metric, turn):
        """Of gains of 40, 19 and -5 the second is less than half of the most."""
        good, poor, ruined = ([turn * v for v in values] for values in ([10, 30, 50], [10, 20, 29], [10, 8, 5]))
        found = rows(run("a", good, metric=metric), run("b", poor, metric=metric), run("c", ruined, metric=metric))
        assert found.target.tolist() == [turn * 50] * 3
        assert found.rounds_to_target.fillna(-1).tolist() == [2, -1, -1]
        found = rows(run("b", poor, metric=metric), run("c", ruined, metric=metric))
        assert found.target.tolist() == [turn * 29] * 2

    def test_utilities_that_are_reached_at_once_or_never(self):
        """Where nothing gets better the worst end is common; what was good before training needs nothing."""
        assert rows(run("a", [20, 10]), run("b", [20, 16])).target.tolist() == [10, 10]
        never = rows(run("a", [10, 20]), run("b", [10, 40]), reach=35)
        assert never.loc["a", ["rounds_to_target", "sent_to_target"]].isna().all()
        assert never.loc["b"].rounds_to_target == 1
        at_once = rows(run("a", [50, 50]), run("b", [10, 40]))
        assert (at_once.loc["a"].rounds_to_target, at_once.loc["a"].sent_to_target) == (0, 0)

    def test_seeds_are_averaged_and_seconds_and_memory(self):
        found = rows(run("a", [0, 10, 30]), run("a", [0, 30, 50], seed=1, up=150), run("b", [0, 20, 40]))
        assert found.loc["a"].utility == 40
        assert found.loc["a"].rounds_to_target == 2
        assert (found.loc["a"].sent, found.loc["a"].up) == (800, 100)
        spent = [("clients", 1.0), ("clients", 3.0), ("server", 0.5), ("peak", 5e6), ("peak", 7e6)]
        found = rows(run("a", [1, 2], times=spent), run("b", [1, 2]))
        assert (found.loc["a"].seconds_clients, found.loc["a"].seconds_server) == (2.0, 0.5)
        assert found.loc["a"].peak_bytes == 7e6
        assert math.isnan(found.loc["b"].peak_bytes)

    def test_page(self):
        found = audit.cost([run("a", [1, 2]), run("b", [1, 2], metric="loss")], audit.Params())
        assert found.tables["costs"].target.isna().all()
        assert found.tables["costs"].down.tolist() == [100, 100]
        assert "no utility of every round" in found.sentences[0]
        assert not section(Page([], map, {"cost": found})).drawn
        timed = run("a", [1, 2], times=[("clients", 1.0), ("peak", 5e6)])
        for runs, shown in (([timed, run("b", [1, 2])], True), ([run("a", [1, 2])], False)):
            files = {}
            build({"cost": audit.cost(runs, audit.Params())}, files.__setitem__, runs=len(runs), asked={})
            assert ("Seconds and memory" in files["index.html"].decode()) == shown
            assert not shown or {"costs.csv", "figures/cost-until.svg"} <= files.keys()

    def test_worlds_are_numbered_task_by_task(self):
        one = run("a", [1, 2])
        tasks = [{"task.name": task, "task.n": n} for task, n in zip("xyxy", (1, 1, 2, 2), strict=True)]
        found = world_names(points(replace(one, setting=one.setting | task) for task in tasks))
        assert list(found.values()) == ["x 1", "y 1", "x 2", "y 2"]

    def test_what_is_missing_is_named(self):
        assert utilities(run("a", [3, 2], metric="loss"))["loss"]["value"] == 2
        assert utilities(run("a", [3], metric="loss")) == {}
        with pytest.raises(InputError, match="no run here has counted bytes"):
            rows(replace(run("a", [1, 2]), tables={}))
        with pytest.raises(ValueError, match="reach must be at least 0"):
            audit.Params(reach=-1)


class TestSpent:
    def test_phases_add_up(self):
        spent = ResourceUsage()
        for _ in range(2):
            with spent.phase("sleep"):
                time.sleep(0.02)
        with spent.phase("nothing"):
            pass
        assert 0.04 <= spent.seconds["sleep"] < 5
        assert spent.seconds["nothing"] < spent.seconds["sleep"]

    def test_the_peak_is_of_the_phase_and_begins_anew(self):
        spent = ResourceUsage()
        start = spending.peak_memory()
        with spent.phase("much"):
            held = np.ones(30_000_000)  # 240 MB
        assert spent.peak >= start + 200e6
        del held
        again = ResourceUsage()
        with again.phase("little"):
            pass
        if (spending.Path("/proc/self/clear_refs")).exists():
            assert again.peak <= spent.peak - 100e6

    def test_lines_are_kept_and_broken_ones_left_out(self, tmp_path):
        work = tmp_path / "runs" / "one-key"
        work.mkdir(parents=True)
        for r in range(2):
            spending.note(work, {"round": r}, ResourceUsage({"clients": 1.0 + r}, 100))
        file = tmp_path / "times" / "one-key.jsonl"
        with file.open("a") as out:
            out.write('[1]\n{"round": 2, "sec')
        assert [line["round"] for line in spending.read_log(file)] == [0, 1]
        assert spending.read_log(tmp_path / "nothing") == []
        spending.note(tmp_path / "gone" / "x" / "y", {}, ResourceUsage())  # no folder: nothing is kept, nothing fails


class TestRuns:
    def test_times_are_in_no_result(self, kept, tmp_path):
        """Two equal runs have equal files but for their times, which `contents` leaves out."""
        fedaudit.audit(**TINY, method="promptfl", epsilon="none", attack="entropy", out=tmp_path)
        assert contents(tmp_path).items() <= contents(kept.out).items()
        assert {path.name for path in (tmp_path / "times").iterdir()} < {p.name for p in (kept.out / "times").iterdir()}

    def test_times_are_beside_the_results_and_shown_by_the_comparison(self, kept, tmp_path):
        out = kept.copied(tmp_path)
        words = TINY | {"method": ["promptfl", "local"], "epsilon": "none", "attack": "loss"}
        assert "Costs at equal utility" in fedaudit.audit(**words, audit="cost", out=out).report.read_text()
        noted = [[json.loads(line).get("round") for line in p.open()] for p in (out / "times").iterdir()]
        assert sorted(noted, key=len) == [[None], [None], [None], [0, 1], [0, 1]]
        assert cli.main(["--audit", "cost", "--out", str(out), "--quiet"]) == 0
        page = next((out / "comparisons").glob("cost-*"))
        table = pd.read_csv(page / "costs.csv")
        assert set(table.point) == {"promptfl", "local"}
        assert (table.seconds_clients > 0).all()
        assert (table.seconds_attacks_and_audits > 0).all()
        assert (table.peak_bytes > 1e7).all()
        assert "Seconds and memory" in (page / "index.html").read_text()
