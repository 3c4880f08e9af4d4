"""Clients that come after a run: what they start from, the round with them, what is measured and said of it."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedaudit.audits.findings import Accuracy
from fedaudit.audits.newcomers import Params as AuditParams
from fedaudit.audits.newcomers import newcomers as audit
from fedaudit.audits.subject import Subject
from fedaudit.command.cli import read_command
from fedaudit.contracts import maple_toy
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.executor import Executor
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline import newcomers
from fedaudit.pipeline.methods import schedule_of
from fedaudit.pipeline.shadow_models import NoEvaluation
from fedaudit.reports.evidence import Evidence
from fedaudit.reports.section import Page
from fedaudit.reports.sections import newcomers as section
from fedaudit.tasks.base import client_name
from fedaudit.trainers.base import Participation, Schedule, Site, State, Upload
from fedaudit.trainers.dp2fl import DP2FL, Params
from fedaudit.trainers.evaluations import Personalisation
from fedaudit.trainers.newcomers import after_a_round, arrivals
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.rounds import train
from fedaudit.trainers.transcript import Transcript
from tests import prompt_toy
from tests.whole_runs import Job, contents, report

METHOD = DP2FL(Params())


def trained_by_two(path: Path) -> Transcript:
    """A run of the small federation before its third client comes."""
    world, learner = prompt_toy.federation(), maple_toy.learner()
    bench = Bench(learner, world.training, world.test)
    with Executor(lambda: bench) as executor:
        return train(
            METHOD, Schedule(3, 3, 2, 1, newcomers=1), NoEvaluation(),
            folder=claim(path), executor=executor, say=print, advance=lambda: None,
        )  # fmt: skip


def test_a_new_client_starts_from_one_of_three_models(tmp_path: Path) -> None:
    run_of_two = trained_by_two(tmp_path)
    first, last, found = run_of_two.broadcast(0), run_of_two.broadcast(3), arrivals(METHOD, run_of_two)
    expected = {"global": (last, last), "init_glo": (last, first), "init": (first, first)}
    assert found.keys() == expected.keys()
    for name, (task, data) in expected.items():
        start, server = found[name].start, found[name].server
        assert start.keys() == {"Pt", "Pd"}
        assert torch.equal(start["Pt"], task["Pt"])
        assert torch.equal(start["Pd"], data["Pd"])
        assert torch.equal(server["Pd"], data["Pd"])  # what its first mixture moves from
        assert all(torch.equal(server[part], last[part]) for part in ("Pt", "personal", "trained"))


def test_a_round_with_a_new_client_from_the_global_model_is_the_loop_s(tmp_path: Path) -> None:
    """As if a cohort of three came after three rounds of two: what the loop's own parts make of it."""
    run_of_two, world, learner = trained_by_two(tmp_path), prompt_toy.federation(), maple_toy.learner()
    models = after_a_round(METHOD, learner, run_of_two, world.training, arrivals(METHOD, run_of_two)["global"])
    server, before = run_of_two.broadcast(3), ((0, 1, 2), (0, 1, 2), ())
    clients = [Participation(k, 3, 1, own, learner, before[k]) for k, own in enumerate(world.training)]
    done = learner.work(METHOD, [METHOD.download(server, one) for one in clients], [{}] * 3, clients)
    uploads = [Upload(k, len(world.training[k]), one.upload, one.facts) for k, one in enumerate(done)]
    after = METHOD.aggregate(server, uploads, Site(1, 3, learner=lambda question: question(learner)))
    for k in range(3):
        expected = METHOD.model(after | done[k].private)
        for name, tensor in expected.items():
            torch.testing.assert_close(models[k][name], tensor, atol=1e-5, rtol=1e-4)
    others = after_a_round(METHOD, learner, run_of_two, world.training, arrivals(METHOD, run_of_two)["init"])
    assert not torch.equal(others[2]["Pd"], models[2]["Pd"])
    assert not torch.equal(others[0]["Pt"], models[0]["Pt"])  # all others hear of it


def test_a_newcomer_is_in_no_round_and_no_target(tmp_path: Path) -> None:
    cell = read_command(["--method", "dp2fl", "--clients", "11", "--newcomers", "1", "--attack", "loss"]).plan.cells[0]
    assert schedule_of(cell) == Schedule(10, 11, 10, 0, newcomers=1)
    assert cell.targets == list(range(10))
    assert cell.plan.canary_holders == 10
    seen = trained_by_two(tmp_path)
    assert [seen.cohort(r) for r in range(3)] == [[0, 1]] * 3
    first, last = seen.broadcast(0), seen.broadcast(3)
    assert all(torch.equal(seen.released(2)[name], last[name]) for name in first)  # what it may use till then


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--method fedprox --newcomers 1", "none of these methods says what a new client starts from; dp2fl does"),
        ("--method dp2fl --clients 3 --newcomers 3", r"must be fewer than there are clients \(3\)"),
        ("--method dp2fl --newcomers -1", "must be at least 0"),
        ("--method dp2fl --clients 3 --newcomers 1 --per-round 3", r"as there are clients without newcomers \(2\)"),
    ],
)
def test_what_cannot_be_is_refused(words: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_command(words.split())


TESTED = [record for own in prompt_toy.federation().training for record in own]  # of these some are recognised


WEIGHTS = np.random.default_rng(0).random((3, len(TESTED)))  # of test images in the clients' own test sets
WEIGHTS /= WEIGHTS.sum(1, keepdims=True)


def test_accuracies_by_one_model_and_test_set_at_a_time(tmp_path: Path) -> None:
    run, world, learner = trained_by_two(tmp_path), prompt_toy.federation(), maple_toy.learner()
    bench = Bench(learner, world.training, TESTED)

    def accuracy(model: State, own: np.ndarray) -> float:
        named = learner.log_probs(METHOD, [model], TESTED)[0].argmax(1)
        return sum(100 * w for w, said, t in zip(own, named, TESTED, strict=True) if said == world.labels[t])

    expected = {("personal", "before", "new", k): accuracy(run.released(k), WEIGHTS[2]) for k in range(2)}
    for name, arrival in arrivals(METHOD, run).items():
        models = after_a_round(METHOD, learner, run, world.training, arrival)
        expected[name, "before", "new", 2] = accuracy(arrival.start, WEIGHTS[2])
        expected[name, "after", "new", 2] = accuracy(models[2], WEIGHTS[2])
        for k in range(3):
            expected[name, "after", "local", k] = accuracy(models[k], WEIGHTS[k])
            expected[name, "after", "all", k] = sum(accuracy(models[k], own) for own in WEIGHTS) / 3
    starts = ("personal", "global", "init_glo", "init")
    rows = [row for name in starts for row in newcomers.measure(bench, (METHOD, run, name, WEIGHTS))]
    found = {tuple(place): value for *place, value in rows}
    assert found == pytest.approx({(*place, client_name(k)): value for (*place, k), value in expected.items()})
    assert len({round(value, 3) for value in found.values()}) > 6


def test_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    """A way to start is a job, and its table a file."""
    run, world = trained_by_two(tmp_path / "run"), prompt_toy.federation()
    plan = read_command("--method dp2fl --clients 3 --rounds 3 --newcomers 1".split()).plan
    cell: Any = SimpleNamespace(plan=plan, variant=plan.cells[0].variant, method="dp2fl")
    bench, asked, folder = Bench(maple_toy.learner(), world.training, TESTED), [], claim(tmp_path / "analysis")

    class Watched(Executor[Bench]):
        def map(self, function: Any, jobs: Any) -> Any:
            asked.extend(job[2] for job in jobs)
            return super().map(function, jobs)

    with Watched(lambda: bench) as executor, pytest.MonkeyPatch.context() as patch:
        patch.setattr(newcomers, "method_of", lambda *_: METHOD)
        patch.setattr(newcomers, "transcript_of", lambda _: run)
        evaluation = Personalisation([[]] * 3, WEIGHTS.tolist())
        shop: Any = SimpleNamespace(federation=SimpleNamespace(sizes=()), evaluation=evaluation, executor=executor)
        first = newcomers.newcomer_accuracies(cell, folder, shop, Progress(quiet=True))
        assert asked == ["personal", "global", "init_glo", "init"]
        folder.remove("newcomers-init_glo.parquet")
        again = newcomers.newcomer_accuracies(cell, folder, shop, Progress(quiet=True))
        assert asked[4:] == ["init_glo"]
        pd.testing.assert_frame_equal(first, again)
        cell.plan = read_command("--method dp2fl --clients 3".split()).plan
        assert newcomers.newcomer_accuracies(cell, folder, shop, Progress(quiet=True)) is None


def evidence(seed: int, better: float) -> Evidence:
    """The audit of a made-up table: Init has 40 and 60 after a round, InitGlo 5 more, the global model `better` more."""
    rows = [("personal", "before", "new", client_name(k), 30.0 + k) for k in range(2)]
    for start, more in (("global", better), ("init_glo", 5.0), ("init", 0.0)):
        rows += [(start, "before", "new", "client-2", 50 + more), (start, "after", "new", "client-2", 70 + more)]
        rows += [
            (start, "after", test, client_name(k), 40 + 20 * k + more) for test in ("local", "all") for k in range(2)
        ]
    table = pd.DataFrame(rows, columns=newcomers.COLUMNS)
    names = {"run": "key", "method": "dp2fl", "task": "fewshots", "seed": seed}
    transcript = Transcript(claim(Path()), Schedule(2, 3, 2, newcomers=1))
    about: Any = {"method": METHOD, "privacy": None, "threat_models": (), "names": names, "attacked": None}
    subject = Subject(transcript=transcript, newcomers=table, **about)
    result = audit(subject, AuditParams())
    assert audit(dataclasses.replace(subject, newcomers=None), AuditParams()).findings == ()
    found = {f.metric: f for f in result.findings if isinstance(f, Accuracy)}
    local = found["newcomers/after/local/init"]
    assert local.value == 50
    assert (local.low, local.high) == (0, 100)  # of two clients
    assert found["newcomers/before/new/init"].low is None  # of a single one
    order = found["newcomers/after/all/global-init_glo"]
    assert (order.value, order.low, order.high) == pytest.approx((better - 5,) * 3)
    assert found["newcomers/before/new/personal"].value == 30.5
    findings = [dataclasses.asdict(finding) for finding in result.findings]
    return Evidence("dp2fl", seed, None, "fewshots", findings, dict(result.tables), {}, [])


def test_the_page_has_all_seeds_beside_the_paper() -> None:
    one = section._row(Page([evidence(0, 7)], map), "dp2fl", "global")
    assert [cell["value"] for cell in one["cells"]] == [57, 77, 57, 57]
    assert one["paper"] == ["81.34", "82.02", "82.15", "79.39"]
    several = Page([evidence(0, 7), evidence(1, 9)], map)
    order = section._row(several, "dp2fl", "global-init_glo")
    assert [cell["value"] for cell in order["cells"]] == [3] * 4
    half = 12.706 * 1  # Student's quantile of one degree times sd / sqrt(2)
    for cell in order["cells"]:
        assert (cell["low"], cell["high"]) == pytest.approx((3 - half, 3 + half), abs=1e-2)
    assert order["paper"] == ["+1.96", "+0.63", "+0.11", "+0.04"]
    personal = section._row(several, "dp2fl", "personal")
    assert [cell is None for cell in personal["cells"]] == [False, True, True, True]
    assert personal["paper"] == ["81.28", "", "", ""]


@pytest.mark.slow  # dual prompts; quick: every part of it, above
def test_in_a_whole_run(tmp_path: Path) -> None:
    """From training to page; a run that lost a way to start computes that one again and ends with the same bytes."""
    words = "--method dp2fl,fedprox --rounds 1 --clients 4 --newcomers 1 --shots 4 --train 4 --test 1 --local-epochs 1"
    job = Job([*words.split(), "--threads", "1"], printing=False)
    page = report(job.audit(tmp_path))
    whole = contents(tmp_path)
    assert "old clients&#39; models" in (page / "index.html").read_text()
    assert set(pd.read_csv(page / "newcomers.csv").method) == {"dp2fl"}
    (lost,) = tmp_path.glob("analyses/dp2fl*/newcomers-init.parquet")
    lost.unlink()
    for done in (*tmp_path.glob("analyses/dp2fl*/complete.json"), *tmp_path.glob("reports/*/complete.json")):
        done.unlink()
    again = job.audit(tmp_path)
    assert f"{lost} is missing; computing it again" in again.stderr
    assert "training" not in again.stderr.replace("training of", "")
    assert contents(tmp_path) == whole
