"""Checks of an external run by its own models: members' losses under messages, and the losses that are stated."""

import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.recordings import both, counts, permuted, plain_mean, served
from fedaudit.external.reading import read
from fedaudit.machinery.store import claim
from fedaudit.pipeline import recorded
from fedaudit.trainers.base import Schedule, State
from fedaudit.trainers.protocols import Bench
from fedaudit.trainers.transcript import Transcript
from tests.small_run import put
from tests.test_recording import right

assert right  # a fixture


class Losses:
    """A learner under which a record of client k fits the states that client k really sent, the nearer the better."""

    def __init__(self, run: Any, noise: float) -> None:
        self.true = [run.received(r, run.models[r].load()) for r in range(run.rounds)]  # states by round and client
        self.noise, self.data = noise, Data()

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        return [self.loss(adapter, record) for record in records]

    def loss(self, adapter: State, record: str) -> float:
        client, total = int(record.split("-")[1]), sum(float(tensor.sum()) for tensor in adapter.values())
        jitter = np.random.default_rng(zlib.crc32(f"{record}{total}".encode())).normal()
        nearest = min(sum(float((adapter[n] - t).abs().sum()) for n, t in sent[client].items()) for sent in self.true)
        return nearest + self.noise * float(jitter)

    chunks = words = tokens = gradients = inputs = evaluate = losses


class Data(dict[str, Any]):
    """Every record has two tokens of text after one of a prompt; records of odd numbers have twelve."""

    def __missing__(self, record: str) -> SimpleNamespace:
        return SimpleNamespace(ids=range(13 if record[-1] in "13579" else 3), prompt=1)


def found(run: Path, folder: Path, noise: float, true: Path | None = None) -> list[recorded.Remark]:
    """The remarks by models whose losses are those of the messages in `true` (else `run`)."""
    own, learner = read(run), Losses(read(true or run), noise)
    own.write_transcript(claim(folder))
    transcript = Transcript(claim(folder), Schedule(own.rounds, own.clients, own.clients, 0))
    bench = Bench(learner, [], [])

    def each(function: Callable[[Bench, Any], Any], jobs: Iterator[Any]) -> Iterator[Any]:
        return (function(bench, job) for job in jobs)

    workshop: Any = SimpleNamespace(federation=own.federation, executor=SimpleNamespace(map=each))
    checked = recorded.RecordedRun(own, None, transcript, workshop)
    return [*checked.own_members(), *checked.stated_numbers()]


EQUAL = (counts(lambda n: [10] * len(n)), served(plain_mean))


def test_files_of_clients_that_were_exchanged_are_found(right: Path, tmp_path: Path) -> None:
    """Though the mean is the same."""
    true, run = (shutil.copytree(right, tmp_path / name) for name in ("true", "run"))
    both(*EQUAL)(true)
    both(*EQUAL, permuted(last=False))(run)
    assert [remark.check for remark in read(run).remarks] == [], "no mean tells"
    (remark,) = found(run, tmp_path / "t", 0.1, true)
    assert (remark.check, remark.note) == ("members", False)
    assert remark.sentence.startswith("Messages fit other clients' members better than their own (p 0.0005 in a right")
    assert "those of client 0 the members of 4, those of client 1 the members of 0" in remark.sentence


class TestExchange:
    """Cells of mean losses: a message's noise moves all that it is asked about, and counts for nothing."""

    def p(self, rng: np.random.Generator, clients: int, rounds: int, fit: float, moved: Sequence[int] = ()) -> float:
        order = np.arange(clients)
        order[list(moved)] = np.roll(order[list(moved)], 1)
        cells = []
        for _ in range(rounds):
            losses = rng.standard_normal((clients, clients)) + 5 * rng.standard_normal((clients, 1))
            losses[np.arange(clients), order] -= fit
            cells.append(recorded.Cells(list(range(clients)), losses))
        relabelled = recorded.exchange(cells)
        assert relabelled is not None
        if relabelled.p < 0.001 and moved:
            assert {*relabelled.moved} == {*moved}
        return relabelled.p

    @pytest.mark.parametrize("fit", [0.0, 1.0])
    def test_right_recordings_are_called_odd_as_seldom_as_p_says(
        self, fit: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recorded, "SIMULATED", 99)
        rng, runs = np.random.default_rng(3), 120
        low = sum(self.p(rng, 5, 2, fit) <= 0.05 for _ in range(runs))
        assert low <= binom.isf(0.0005, runs, 0.05)

    @pytest.mark.parametrize(("clients", "rounds", "moved"), [(4, 4, (0, 2)), (10, 3, (1, 7)), (5, 2, (0, 1, 2, 3, 4))])
    def test_two_exchanged_and_all_rotated_are_found(self, clients: int, rounds: int, moved: tuple[int, ...]) -> None:
        assert self.p(np.random.default_rng(1), clients, rounds, 6.0, moved) < recorded.CHANCE

    def test_too_few_to_tell_is_a_note(self, right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert recorded.exchange([recorded.Cells([0, 1, 2], np.zeros((3, 3)))] * 9) is None
        assert recorded.exchange([recorded.Cells([0, 1, 2, 3], np.zeros((4, 4)))]) is None
        monkeypatch.setattr(recorded, "LEAST", 10**6)
        (remark,) = found(right, tmp_path / "t", 0.1)
        assert (remark.check, remark.note) == ("members", True)
        assert remark.line.startswith("note: Whether messages fit their own clients' members could not be checked")


def stated(right: Path, place: Path, change: Callable[[list[float], list[int]], float]) -> list[str]:
    """Checks that have a remark if the loss `change(losses, tokens)` is stated for the last model."""
    run = shutil.copytree(right, place / "run")
    lines = [json.loads(line) for line in (run / "members.jsonl").read_text().splitlines()][:6]
    tests = [{k: v for k, v in line.items() if k != "client"} | {"id": f"test-0-{i}"} for i, line in enumerate(lines)]
    put(run / "test.jsonl", tests)
    truth = read(run)
    losses = Losses(truth, 0.5).losses(truth.models[-1].load(), [line["id"] for line in tests])
    notes = json.loads((run / "rounds.json").read_text())
    notes[str(truth.rounds - 1)]["utility"] = {"global": {"loss": change(losses, [2, 12] * 3)}}
    put(run / "rounds.json", notes)
    return [remark.check for remark in found(run, place / "t", 0.5)]


def test_a_mean_over_records_or_tokens_is_right_and_another_number_is_said(right: Path, tmp_path: Path) -> None:
    assert found(right, tmp_path / "as it is", 0.1) == []
    assert stated(right, tmp_path / "by tokens", lambda losses, tokens: float(np.average(losses, weights=tokens))) == []
    for times, said in ((1, []), (0.9, ["losses"]), (1.1, ["losses"])):
        found_of = stated(right, tmp_path / f"{times}", lambda losses, _, x=times: x * float(np.mean(losses)))
        assert found_of == said, times


@pytest.mark.parametrize(("n", "most"), [(1, 5), (4, 5), (5, 5), (30, 5), (100, 20)])
def test_rounds_are_spread_from_the_first_to_the_last(n: int, most: int) -> None:
    chosen = recorded.spread(list(range(n)), most)
    assert len(chosen) == min(n, most)
    assert (chosen[0], chosen[-1]) == (0, n - 1)
    assert max(np.diff(chosen), default=1) - min(np.diff(chosen), default=1) <= 1
