"""--evaluate-every: which rounds are tested, and that the last one is tested as ever."""

from typing import Any

import numpy as np
import pytest

from fedaudit.trainers.base import Schedule
from fedaudit.trainers.evaluations import Answers, Recognition
from fedaudit.trainers.fedavg import FedAvg, Params
from fedaudit.trainers.protocols import clients_per_batch
from tests.toy import toy_run


class Counted(Answers):
    """Tests nothing, and says which models it would have tested."""

    def _utilities(self, executor: Any, server: Any, local_models: Any, *, answers: bool) -> Any:
        return {"global": {"loss": 1.0}} | ({"clients": {"loss": 2.0}} if local_models else {})


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (0, [["global"]] * 4 + [["global", "clients"]]),
        (1, [["global", "clients"]] * 5),
        (2, [[], ["global", "clients"], [], ["global", "clients"], ["global", "clients"]]),
        (9, [[]] * 4 + [["global", "clients"]]),
    ],
)
def test_language_models_by_hand(tmp_path: Any, every: int, expected: list[list[str]]) -> None:
    schedule = Schedule(rounds=5, clients=3, per_round=2)
    run = toy_run(tmp_path, FedAvg(Params()), schedule=schedule, evaluation=Counted([], None, every=every))
    assert [list(run.round(r)["utility"]) for r in range(5)] == expected
    assert run.rounds_at_least_loss == next(r for r, tested in enumerate(expected, 1) if tested)


def test_accuracies_of_every_second_round() -> None:
    asked: list[int] = []

    class Executor:
        def map(self, function: Any, jobs: Any) -> Any:
            if function is clients_per_batch:
                return iter([50])
            asked.append(len(list(jobs)))
            return iter([np.ones((1, 4), bool)])

    evaluation = Recognition(np.ones((1, 4), bool), every=2)
    tested = {}
    for done in range(1, 6):
        tested[done] = evaluation.after(Executor(), None, {}, {0: {}}, done=done, last=done == 5)  # type: ignore[arg-type]
    assert [done for done, found in tested.items() if found] == [2, 4, 5]
    assert asked == [1, 1, 1]
