"""The control of a score that is constant on the public start: the released model before a client first took part, of prompts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedaudit.attacks import loss
from fedaudit.attacks.attacked_models import Target
from fedaudit.attacks.knowledge import own_class
from fedaudit.trainers.base import Schedule
from tests import prompt_toy
from tests.asking_toy import asking, attacked
from tests.test_bank import bench_of, simulated

SCHEDULE = Schedule(rounds=6, clients=3, per_round=1, seed=1)


@pytest.mark.parametrize("name", ["promptfl", "fedotp"])
def test_it_is_asked_about_the_clients_own_records(name: str, tmp_path: Path) -> None:
    method, world = prompt_toy.made(name, {}, schedule=SCHEDULE), prompt_toy.federation()
    bench = bench_of(world, method)
    transcript = simulated(tmp_path, method, SCHEDULE, bench)
    asked = [Target(k, bench.candidates[k], (), bench.candidates[(k + 1) % 3][:2]) for k in range(3)]
    attacks = {"released-model": {"loss": loss.Params()}}
    found = attacked(bench, asking(tmp_path, "classes", method, transcript, asked, attacks))
    first = {k: transcript.participations(k)[0] for k in range(3)}
    assert sorted(first.values())[0] == 0
    assert len(set(first.values())) == 3
    for target in asked:
        tables = found[target.client]["released-model"]
        if not (r := first[target.client]):  # it began with the public start itself
            assert "before_first_round" not in tables
            continue
        before = _loss(bench, method, transcript.broadcast(0) | transcript.broadcast(r), target.records)
        start = _loss(bench, method, transcript.broadcast(0), target.records)
        table = tables["before_first_round"]
        assert list(table) == ["loss/base"]  # the plain loss varies on the start, which is its control
        np.testing.assert_allclose(table["loss/base"], start - before, rtol=0, atol=2e-5)
        assert table["loss/base"].nunique() > 1


def _loss(bench: Any, method: Any, state: Any, records: Any) -> Any:
    (log_probs,) = bench.learner.log_probs(method, [method.model(state)], records)
    return -own_class(log_probs, bench.learner.labels(records).numpy())
