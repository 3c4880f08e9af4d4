"""Every audit keeps its contracts, and each contract refuses audits with a planted fault."""

import dataclasses
import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedaudit.audits.facts import AUDITS
from fedaudit.audits.findings import OfRun
from fedaudit.audits.subject import Result, Subject
from fedaudit.contracts import audits
from fedaudit.contracts.audits import AuditOfRun, small_run

pytestmark = pytest.mark.usefixtures("unsafe_but_quick")
OF_ONE_RUN = [p.name for p in AUDITS.values() if not p.facts.across and not {"coins", "texts"} & {*p.facts.needs}]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return small_run("classes", tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def of_run(subject: Subject) -> Callable[[str], AuditOfRun]:
    """Audits of the run, whose first result all contracts read."""
    return functools.cache(lambda name: AuditOfRun(AUDITS[name], subject))


@pytest.mark.parametrize("contract", audits.CONTRACTS, ids=lambda contract: contract.__name__)
@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_every_audit_keeps_it(name: str, contract: audits.Contract, of_run: Callable[[str], AuditOfRun]) -> None:
    contract(of_run(name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(OfRun):
    metric: str
    value: Any


def one(subject: Subject, value: Any = 1.0, metric: str = "mine", **names: Any) -> list[OfRun]:
    return [Mine(**(dict(subject.names) | names), metric=metric, value=value)]


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


def drawn(subject: Subject, params: None) -> Result:
    return Result(one(subject, float(np.random.default_rng().random())))


def shuffled(subject: Subject, params: None) -> Result:
    return Result(tables={"mine": table(a=np.random.default_rng().permutation(50))})


def overwriting(subject: Subject, params: None) -> Result:
    for model in subject.attacked.models:
        model.scores.iloc[0, 0] += 1
    return Result()


def spoiling(subject: Subject, params: None) -> Result:
    """Adds a column to the table of another audit."""
    next(t for result in subject.before.values() for t in result.tables.values())["mine"] = 0.0
    return Result()


def gives(make: Callable[[Subject], Any]) -> Callable[[Subject, None], Any]:
    return lambda subject, params: make(subject)


FAULTS: list[tuple[audits.Contract, str, Callable[[Subject, None], Any]]] = [
    (audits.returns_findings, "a list", gives(one)),
    (audits.returns_findings, "a finding that is a mapping", gives(lambda s: Result([{"metric": "mine"}]))),  # type: ignore[list-item]
    (audits.returns_findings, "of another run", gives(lambda s: Result(one(s, run="0" * 16)))),
    (audits.returns_findings, "another's metric", gives(lambda s: Result(one(s, metric="auroc")))),
    (audits.writes_plain_numbers, "a number of numpy", gives(lambda s: Result(one(s, np.float32(1))))),
    (audits.writes_plain_numbers, "infinity", gives(lambda s: Result(one(s, math.inf)))),
    (audits.writes_plain_numbers, "a kept set", gives(lambda s: Result(kept={"mine": {1, 2}}))),
    (audits.writes_whole_tables, "a wrong column", gives(lambda s: Result(tables={"mine": table(a=[1]).rename(columns={"a": 1})}))),
    (audits.writes_whole_tables, "a column twice", gives(lambda s: Result(tables={"mine": pd.concat([table(a=[1])] * 2, axis=1)}))),
    (audits.writes_whole_tables, "without a column that pages need", gives(lambda s: Result(tables={"tokens": table(panel=[1])}))),
    (audits.writes_whole_tables, "another audit's table", gives(lambda s: Result(tables={"privacy": table(a=[1])}))),
    (audits.writes_whole_tables, "an index", gives(lambda s: Result(tables={"mine": table(a=[1], b=[2]).set_index("a")}))),
    (audits.writes_whole_tables, "a mixed column", gives(lambda s: Result(tables={"mine": table(a=[1, "x"])}))),
    (audits.repeats, "drawn findings", drawn),
    (audits.repeats, "a shuffled table", shuffled),
    (audits.changes_nothing_given, "overwritten scores", overwriting),
    (audits.changes_nothing_given, "a spoilt table", spoiling),
]  # fmt: skip


@pytest.mark.parametrize(("contract", "function"), [pytest.param(c, f, id=f"{c.__name__}: {w}") for c, w, f in FAULTS])
def test_a_planted_fault_is_refused(contract: audits.Contract, function: Any, subject: Subject) -> None:
    own = {"load": lambda: function, "own": lambda params: params, "params": lambda: None}
    plugin: Any = SimpleNamespace(name="mine", foreign=True, **own)
    run = subject.attacked
    models = [dataclasses.replace(model, scores=model.scores.copy()) for model in run.models]
    tables = {name: {n: t.copy() for n, t in result.tables.items()} for name, result in subject.before.items()}
    before = {name: dataclasses.replace(subject.before[name], tables=own) for name, own in tables.items()}
    copied = dataclasses.replace(subject, attacked=dataclasses.replace(run, models=models), before=before)
    with pytest.raises((AssertionError, TypeError, ValueError)):
        contract(AuditOfRun(plugin, copied))


def test_every_contract_is_shown_a_fault() -> None:
    assert {contract for contract, *_ in FAULTS} == {*audits.CONTRACTS}
