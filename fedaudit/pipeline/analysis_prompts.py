"""Utility, privacy and leakage of a training of prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd

from audits.epsilon import epsilon, ledger_of, noise_table, privacy_table
from audits.findings import Accuracy, Epsilon
from audits.utility import accuracies, utility
from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder
from fedaudit.pipeline.finished import finish
from fedaudit.pipeline.leakage import leakage
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.trainings import train_together
from fedaudit.pipeline.workers import Workshop


def analyse(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> None:
    """Utility and privacy of a training of prompts, and its attacks; trains it again if it has been damaged since."""
    train_together([cell], workshop, progress)  # nothing to do, unless it was damaged since
    transcript, method, plan = transcript_of(cell), method_of(cell), cell.plan
    assert cell.variant is not None
    ledger = ledger_of(transcript, method)
    tables = {
        "accuracy": accuracies(transcript),
        "privacy": privacy_table(ledger, method, cell.variant.privacy),
        "noise": noise_table(ledger, transcript),
    }
    found: list[Any] = findings(cell, tables)
    if plan.attacks:
        leaks, more = leakage(cell, tables["privacy"], folder, workshop, progress)
        found, tables = [*leaks, *found], tables | more
    for name, table in tables.items():
        folder.write_table(f"{name}.parquet", table)
    folder.write_json("ledger.json", ledger.to_json())
    folder.write_json("findings.json", [dataclasses.asdict(finding) for finding in found])
    finish(folder)


def findings(cell: Cell, tables: Mapping[str, pd.DataFrame]) -> list[Accuracy | Epsilon]:
    """What the audits of utility and epsilon say about the tables accuracy, noise and privacy of a cell."""
    assert cell.variant is not None
    params = {name: plugins.plugins("audit")[name].own(given) for name, given in cell.plan.audits.items()}
    spent = cell.variant.privacy.epsilon
    return [
        *utility(tables["accuracy"], tables["noise"], params["utility"], epsilon=spent, names=cell.names),
        *epsilon(tables["privacy"], params["epsilon"], names=cell.names),
    ]
