"""The whole pipeline: of what was learnt by heart a report says that it leaks, of a second coin's members nothing.
Over many seeds: `benchmarks/whole_nulls.py`."""

import functools
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.whole_nulls import LEVEL, SMALL, Null, report, second_coin
from fedaudit.command.cli import read_command
from fedaudit.machinery.executor import Executor
from fedaudit.pipeline.workers import Workshop, federation_of, make_bench
from fedaudit.tasks.base import Federation
from fedaudit.trainers.protocols import Bench

BY_HEART = {
    "dp2fl": "--method dp2fl --shots 12 --train 18 --test 1 --clients 3 --rounds 1 --local-epochs 20 --rate 0.1"
    " --targets 2 --canaries 6 --attack loss,lira --shadows 8 --seed 200 --threads 1"
}


def leaking(words: str, out: Path, made_by: type[Workshop]) -> pd.DataFrame:
    """The scores that a report calls a leak where coins decided."""
    (found,) = report(read_command([*words.split(), "--out", str(out)]).plan, made_by)
    cells = found.tables["cells"]
    assert cells.z.notna().any()
    leaks: pd.DataFrame = cells[cells.z.notna() & (cells.p_adjusted <= LEVEL)]
    return leaks


@pytest.mark.slow  # many rounds, through the command; quick: test_inference, up to the findings
@pytest.mark.parametrize("method", BY_HEART)
def test_what_is_learnt_by_heart_is_found_and_a_second_coin_is_not(method: str, tmp_path: Path) -> None:
    """By everybody who holds a client's model as it was trained."""
    found = leaking(BY_HEART[method], tmp_path / "planted", Workshop)
    assert set(found.threat_model) == {"peer", "server", "owner"}
    assert len(leaking(BY_HEART[method], tmp_path / "null", Null)) == 0


class Again(Null):
    """The same second coin is trained on, and all else is told a first coin that was dealt again."""

    @functools.cached_property
    def federation(self) -> Federation:
        return second_coin(federation_of(self.plan), self.plan.seed + 1)

    @property
    def executor(self) -> Executor[Bench]:
        if self._executor is None:
            trained = second_coin(federation_of(self.plan), self.plan.seed)
            self._executor = Executor(functools.partial(make_bench, self.plan, trained))
        return self._executor


@pytest.mark.slow  # whole runs; quick: of one attacked client, test_inference
@pytest.mark.parametrize("learner", ["lora", "prompts"])
def test_no_score_knows_the_first_coin(learner: str, tmp_path: Path) -> None:
    """Of whoever the members are said to be, every score says the same to the last digit."""
    found = []
    for made_by in (Null, Again):
        small = SMALL[learner].replace("--attack all", "--attack loss,lira,rmia")
        words = f"{small} --seed 11 --threads 1 --out {tmp_path / made_by.__name__}"
        plan = read_command(words.split()).plan
        report(plan, made_by)
        kept = pd.read_parquet(plan.cells[0].analysis_folder / "records.parquet")
        named = ["threat_model", "way", "client", "record"]
        truth = ["kind", "member", "rank", "percentile"]  # who is said to be a member, and what follows from it
        found.append(kept.drop(columns=truth).sort_values(named, ignore_index=True))
    assert len(found[0])
    pd.testing.assert_frame_equal(*found, check_exact=True)
