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
from fedaudit.machinery.errors import InputError
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

    def __init__(self, run: Any, noise: float, scale: float = 1.0) -> None:
        received = [run.received(r, run.models[r].load()) for r in range(run.rounds)]  # states by round and client
        self.true = [{k: scaled(state, scale) for k, state in sent.items()} for sent in received]
        self.noise, self.data = noise, Data()

    def losses(self, adapter: State, records: Sequence[str]) -> list[float]:
        return [self.loss(adapter, record) for record in records]

    def loss(self, adapter: State, record: str) -> float:
        client, total = int(record.split("-")[1]), sum(float(tensor.sum()) for tensor in adapter.values())
        jitter = np.random.default_rng(zlib.crc32(f"{record}{total}".encode())).normal()
        nearest = min(sum(float((adapter[n] - t).abs().sum()) for n, t in sent[client].items()) for sent in self.true)
        return nearest + self.noise * float(jitter)

    chunks = words = tokens = gradients = inputs = evaluate = losses


def scaled(adapter: State, scale: float) -> State:
    return {name: tensor * scale if name.endswith(".B") else tensor for name, tensor in adapter.items()}


class Data(dict[str, Any]):
    """Every record has two tokens of text after one of a prompt; records of odd numbers have twelve."""

    def __missing__(self, record: str) -> SimpleNamespace:
        return SimpleNamespace(ids=range(13 if record[-1] in "13579" else 3), prompt=1)


def found(run: Path, folder: Path, noise: float, true: Path | None = None) -> list[recorded.Remark]:
    """The remarks by models whose losses are those of the messages in `true` (else `run`), but for those on scales."""
    checked = of_run(run, folder, noise, true)
    return [*checked.own_members(), *checked.stated_numbers()]


def of_run(run: Path, folder: Path, noise: float, true: Path | None = None, scale: float = 1.0) -> recorded.RecordedRun:
    """The run, with models whose losses are those of the messages in `true` (else `run`) at `scale` times theirs."""
    own, learner = read(run), Losses(read(true or run), noise, scale)
    own.write_transcript(claim(folder))
    transcript = Transcript(claim(folder), Schedule(own.rounds, own.clients, own.clients, 0))
    bench = Bench(learner, [], [])

    def each(function: Callable[[Bench, Any], Any], jobs: Iterator[Any]) -> Iterator[Any]:
        return (function(bench, job) for job in jobs)

    workshop: Any = SimpleNamespace(federation=own.federation, executor=SimpleNamespace(map=each))
    return recorded.RecordedRun(own, None, transcript, workshop)


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


def stated(
    right: Path, place: Path, change: Callable[[list[float], list[int]], float], *, members: bool = False
) -> list[str]:
    """Checks that have a remark if the loss `change(losses, tokens)` is stated for the last model, on test records or
    on six members."""
    run = shutil.copytree(right, place / "run")
    lines = [json.loads(line) for line in (run / "members.jsonl").read_text().splitlines()][:6]
    tests = [{k: v for k, v in line.items() if k != "client"} | {"id": f"test-0-{i}"} for i, line in enumerate(lines)]
    put(run / "test.jsonl", tests)
    truth = read(run)
    asked = [line["id"] for line in (lines if members else tests)]
    losses = Losses(truth, 0.5).losses(truth.models[-1].load(), asked)
    notes = json.loads((run / "rounds.json").read_text())
    value = change(losses, [2, 12] * 3)
    said = {"members": dict.fromkeys(asked, value)} if members else {"utility": {"global": {"loss": value}}}
    notes[str(truth.rounds - 1)] |= said
    put(run / "rounds.json", notes)
    return [remark.check for remark in of_run(run, place / "t", 0.5).stated_numbers()]


def test_a_mean_over_records_or_tokens_is_right_and_another_number_is_said(right: Path, tmp_path: Path) -> None:
    assert found(right, tmp_path / "as it is", 0.1) == []
    assert stated(right, tmp_path / "by tokens", lambda losses, tokens: float(np.average(losses, weights=tokens))) == []
    for times, said in ((1, []), (0.9, ["losses"]), (1.1, ["losses"])):
        found_of = stated(right, tmp_path / f"{times}", lambda losses, _, x=times: x * float(np.mean(losses)))
        assert found_of == said, times
        of_members = stated(
            right, tmp_path / f"members {times}", lambda losses, _, x=times: x * float(np.mean(losses)), members=True
        )
        assert of_members == said, times


class TestScale:
    """Whether adapters fit better at half the scale that is stated."""

    def said(self, run: Path, place: Path, scale: float) -> list[recorded.Remark]:
        """The remarks if the scale of the training was `scale` times the stated one."""
        checked = of_run(run, place, 0.1, scale=scale)
        return [*checked.half_the_scale()]

    def test_half_the_scale_is_a_doubt_and_twice_is_none(self, right: Path, tmp_path: Path) -> None:
        (remark,) = self.said(right, tmp_path / "half", 0.5)
        assert (remark.check, remark.note) == ("scale", False)
        assert remark.sentence.startswith("At half the stated scale, alpha / rank = 0.5, the last global model has ")
        for scale in (1.0, 2.0):
            (remark,) = self.said(right, tmp_path / f"{scale}", scale)
            assert (remark.check, remark.note) == ("scale", True), scale

    @pytest.mark.parametrize(
        "about", [{"claimed": "8 at delta 1e-5"}, {"aggregation": "noise"}, {"claim": {
            "epsilon": 8, "delta": 1e-5, "unit": "record", "neighbours": "add or remove"}}],
    )  # fmt: skip
    def test_with_noise_it_is_a_note(self, about: dict[str, Any], right: Path, tmp_path: Path) -> None:
        run = shutil.copytree(right, tmp_path / "run")
        put(run / "run.json", json.loads((run / "run.json").read_text()) | {"format": 2} | about)
        assert [remark.note for remark in self.said(run, tmp_path / "t", 0.5)] == [True]

    def test_what_tells_the_scale_ends_the_question(self, right: Path, tmp_path: Path) -> None:
        run = shutil.copytree(right, tmp_path / "run")
        layers = {name[:-2] for name in read(run).models[0].shapes}
        about = json.loads((run / "run.json").read_text())
        put(run / "run.json", about | {"format": 2, "scaling": dict.fromkeys(layers, 0.5)})
        assert self.said(run, tmp_path / "of modules", 0.5) == []
        notes = json.loads((right / "rounds.json").read_text())
        (member, *_) = (run / "members.jsonl").read_text().splitlines()
        for r, expected in (("initial", 1), ("0", 0)):
            stated = {r: notes.get(r, {}) | {"members": {json.loads(member)["id"]: 1.0}}}
            put(run / "rounds.json", notes | stated)
            put(run / "run.json", about)
            assert len(self.said(run, tmp_path / r, 0.5)) == expected, "the untrained model has no scale"

    def test_members_that_are_no_members_are_refused(self, right: Path, tmp_path: Path) -> None:
        run = shutil.copytree(right, tmp_path / "run")
        put(run / "rounds.json", {"0": {"members": {"nobody": 1.0}}})
        with pytest.raises(InputError, match=r"rounds.json, 0, members: nobody is no id in members.jsonl"):
            read(run)


@pytest.mark.parametrize(("n", "most"), [(1, 5), (4, 5), (5, 5), (30, 5), (100, 20)])
def test_rounds_are_spread_from_the_first_to_the_last(n: int, most: int) -> None:
    chosen = recorded.spread(list(range(n)), most)
    assert len(chosen) == min(n, most)
    assert (chosen[0], chosen[-1]) == (0, n - 1)
    assert max(np.diff(chosen), default=1) - min(np.diff(chosen), default=1) <= 1
