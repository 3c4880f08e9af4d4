"""Contracts of every audit: each is a function of an audit and of a small finished run that it is given."""

from __future__ import annotations

import copy
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedaudit.audits.facts import AUDITS, AuditFacts
from fedaudit.audits.findings import OfRun
from fedaudit.audits.subject import Result, Subject
from fedaudit.command.cli import read_command
from fedaudit.machinery.canonical import plain_json
from fedaudit.machinery.plugins import Plugin
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import claim
from fedaudit.pipeline.analysis import audit, sort_audits, subject_of
from fedaudit.pipeline.attacks import attack_training
from fedaudit.pipeline.trainings import train_all
from fedaudit.pipeline.workers import Workshop
from fedaudit.reports.evidence import TABLES

PROMPTS = "--method dpfpl --epsilon 1 --no-twin --train 12 --test 2 --canaries 3".split()
TEXTS = "--method fedavg --records 6 --reference 8 --novel 8 --local-steps 2 --per-round 3 --test 2".split()
SMALL = "--rounds 2 --clients 3 --threads 1 --quiet".split()


@dataclass(frozen=True, eq=False)
class AuditOfRun:
    """An audit, and the subject that it looks at."""

    plugin: Plugin[AuditFacts]
    subject: Subject

    def result(self) -> Any:
        """The result of the audit with its default parameters."""
        return self.plugin.load()(self.subject, self.plugin.own(self.plugin.params()))

    @functools.cached_property
    def first(self) -> Any:
        """Its first result, which contracts read."""
        return self.result()


Contract = Callable[[AuditOfRun], None]


def small_run(kind: str, folder: Path) -> Subject:
    """A small run of records of a kind, "texts" or "classes", attacked and audited by our usual audits; `folder` holds
    it."""
    words = [*(TEXTS if kind == "texts" else PROMPTS), *SMALL, "--attack", "loss", "--out", str(folder)]
    plan, quiet = read_command(words).plan, Progress(quiet=True)
    ours = {name: params for name, params in plan.audits.items() if not AUDITS[name].foreign}
    plan = dataclasses.replace(plan, audits=ours)
    (cell,) = plan.cells
    with Workshop(plan, quiet) as workshop:
        train_all([cell], workshop, quiet)
        subject = subject_of(cell, attack_training(cell, workshop, quiet).run, workshop)
        for name in sort_audits(cell):
            subject = dataclasses.replace(subject, before={**subject.before, name: audit(cell, name, subject)})
    return subject


def returns_findings(one: AuditOfRun) -> None:
    """It returns a Result, whose findings are frozen dataclasses below OfRun about this run; of an audit from
    elsewhere, metrics begin with its name."""
    result = one.first
    assert isinstance(result, Result), f"it returns {type(result).__name__}"
    for finding in result.findings:
        assert isinstance(finding, OfRun), f"{type(finding).__name__} is not below OfRun"
        fields = dataclasses.asdict(finding)
        assert {name: fields[name] for name in one.subject.names} == one.subject.names, "a finding names another run"
        metric = fields.get("metric")
        assert isinstance(metric, str), f"{type(finding).__name__} has no metric"
        named_so = metric.partition("/")[0] == one.plugin.name or not one.plugin.foreign
        assert named_so, f"the metric {metric} does not begin with {one.plugin.name}"


def writes_plain_numbers(one: AuditOfRun) -> None:
    """Findings and what is kept can be written as JSON: numbers are Python's own, and finite or None."""
    result = one.first
    for finding in result.findings:
        plain_json(dataclasses.asdict(finding), type(finding).__name__, nan_as_null=True)
    for name, kept in result.kept.items():
        plain_json(kept, name, nan_as_null=True)


def writes_whole_tables(one: AuditOfRun) -> None:
    """Tables come back from disk as they were, have the columns that pages rely on, and take no other table's name."""
    taken = {name for before in one.subject.before.values() for name in before.tables} if one.plugin.foreign else set()
    with tempfile.TemporaryDirectory() as place:
        folder = claim(Path(place) / "tables")
        for name, table in one.first.tables.items():
            assert isinstance(table, pd.DataFrame), f"{name} is no DataFrame"
            assert name not in taken, f"{name} is the table of another audit"
            assert all(isinstance(column, str) for column in table), f"{name} has a column whose name is no text"
            assert table.columns.is_unique, f"{name} has two columns of one name"
            lacking = [column for column in TABLES.get(name, "").split() if len(table) and column not in table]
            assert not lacking, f"{name} lacks the column {lacking[0]}, on which pages rely"
            folder.write_table(f"{name}.parquet", table)
            read = folder.read_table(f"{name}.parquet")
            pd.testing.assert_frame_equal(read, table.reset_index(drop=True), check_dtype=False)


def repeats(one: AuditOfRun) -> None:
    """Asked twice about one run, it gives equal findings and tables."""
    first, again = one.first, one.result()
    assert [*map(dataclasses.asdict, first.findings)] == [*map(dataclasses.asdict, again.findings)], "findings differ"
    _check_same(first.tables, again.tables)


def changes_nothing_given(one: AuditOfRun) -> None:
    """Scores, truth and other audits' tables are afterwards as they were."""
    subject = one.subject
    run = subject.attacked
    scores = {str(i): model.scores for i, model in enumerate(run.models)} if run else {}
    tables_given = scores | {f"{audit}: {n}": t for audit, r in subject.before.items() for n, t in r.tables.items()}
    before = {name: table.copy(deep=True) for name, table in tables_given.items()}
    truth = copy.deepcopy(run and run.truth)
    one.result()
    _check_same(before, tables_given)
    assert truth == (run and run.truth), "who is a member has changed"


def _check_same(one: Mapping[str, pd.DataFrame], other: Mapping[str, pd.DataFrame]) -> None:
    assert one.keys() == other.keys(), f"the tables are {[*one]}, then {[*other]}"
    for name, table in one.items():
        try:
            pd.testing.assert_frame_equal(table, other[name])
        except AssertionError as error:
            raise AssertionError(f"the table {name} differs") from error


CONTRACTS: tuple[Contract, ...] = (
    returns_findings, writes_plain_numbers, writes_whole_tables, repeats, changes_nothing_given,
)  # fmt: skip
