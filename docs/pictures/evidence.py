"""What a picture's page is made of, kept in the repository: what a training and its attack left before anything was judged.

Of LoRA these are scores, who was a member and the controls' scores, of prompts accuracies, of both the ledger of the noise. Whenever a page is built the
audits, their verdicts and the page itself are made again, by the code as it is now.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from fedaudit.audits import epsilon, membership, utility
from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.audits.epsilon import ledger_of, privacy_table
from fedaudit.audits.subject import in_words
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, claim
from fedaudit.pipeline import attacks
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.notes import limits
from fedaudit.pipeline.page import read_evidence, setting_of
from fedaudit.pipeline.plan import Cell, Plan
from fedaudit.pipeline.workers import Workshop
from fedaudit.privacy.ledger import Ledger
from fedaudit.privacy.settings import Privacy
from fedaudit.reports.report import Evidence, flatten_setting

PLACES = ["threat_model", "way", "client", "round"]  # of a model
NOBODY = -1  # the client of what is no single client's
SHOWN = "shown-"  # what the names of tables begin with that are shown as they are
JUDGED = ("accuracy", "noise", "privacy")  # those that are made anew; permutations need every score of a run
BLIND = "blind/"  # what the columns of the blind classifier's scores begin with


def keep(plan: Plan, folder: Folder, progress: Progress) -> None:
    """Write into `folder` what the page of a finished plan is made of: of each cell its setting and first round as JSON, and tables."""
    with Workshop(plan, progress) as workshop:
        for i, cell in enumerate(plan.cells):
            about, tables = _scored(cell, workshop, progress) if plan.attacks else _measured(cell)
            whole = read_evidence(cell)
            shared = {
                "setting": whole.setting,
                "first_round": transcript_of(cell).round(0)["utility"],
            }
            folder.write_json(f"{i}.json", shared | about)
            tables |= {SHOWN + name: table for name, table in whole.tables.items() if name not in JUDGED}
            for name, table in tables.items():
                folder.write_table(f"{i}-{name}.parquet", table)


def evidence(plan: Plan, folder: Folder) -> list[Evidence]:
    """What `keep` wrote, as reports take it: judged anew, under the settings that the training really had."""
    return [_judged(cell, folder, str(i)) for i, cell in enumerate(plan.cells)]


def _judged(cell: Cell, folder: Folder, name: str) -> Evidence:
    about, tables = folder.read_json(f"{name}.json"), dict[str, pd.DataFrame]()
    params = {audit: asdict(given) for audit, given in cell.plan.audits.items()}
    assert cell.variant is not None
    privacy, threats = cell.variant.privacy or Privacy(epsilon=math.inf), cell.threat_models
    tables["privacy"] = privacy_table(Ledger.from_json(about["ledger"]), method_of(cell), privacy, threats)
    found: Sequence[Any]
    if cell.plan.attacks:
        scores, records = (folder.read_table(f"{name}-{kind}.parquet") for kind in ("scores", "records"))
        run = _attacked(cell, scores, records, about["cohorts"])
        words = functools.partial(in_words, tables["privacy"])
        found = membership.findings(run, membership.Params(**params["membership"]), names=cell.names, epsilon=words)
    else:
        tables |= {kind: folder.read_table(f"{name}-{kind}.parquet") for kind in ("accuracy", "noise")}
        found = utility.findings(
            tables["accuracy"],
            tables["noise"],
            utility.Params(**params["utility"]),
            epsilon=privacy.epsilon,
            names=cell.names,
        )
    found = [*found, *epsilon.findings(tables["privacy"], names=cell.names)]
    shown = [kept for kept in folder.names() if kept.startswith(f"{name}-{SHOWN}")]
    tables |= {kept.removeprefix(f"{name}-{SHOWN}").removesuffix(".parquet"): folder.read_table(kept) for kept in shown}
    plan = cell.plan
    return Evidence(
        cell.method,
        cell.seed,
        plan.attack,
        plan.task,
        [asdict(f) for f in found],
        tables,
        about["setting"],
        notes=limits(plan),
    )


def moved(plan: Plan, folder: Folder) -> list[str]:
    """The settings that differ between what the evidence comes from and what the same command has now, in words."""
    found = []
    for i, cell in enumerate(plan.cells):
        setting, now = folder.read_json(f"{i}.json")["setting"], flatten_setting(setting_of(cell))
        before = flatten_setting(
            {name: setting.get(name, {}) for name in setting_of(cell)}
        )  # code and versions are no settings
        names = [name for name in before | now if before.get(name) != now.get(name)]
        found += [
            f"{cell.method}: {name} was {before.get(name, 'absent')}, is {now.get(name, 'absent')}" for name in names
        ]
    return found


def _measured(cell: Cell) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    analysis = claim(cell.analysis_folder)
    tables = {name: analysis.read_table(f"{name}.parquet") for name in ("accuracy", "noise")}
    return {"ledger": analysis.read_json("ledger.json")}, tables


def _scored(cell: Cell, workshop: Workshop, progress: Progress) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    transcript = transcript_of(cell)
    run = attacks.attack_training(cell, workshop, progress).run
    assert run is not None
    cohorts = [transcript.cohort(r) for r in range(cell.plan.rounds)]
    signals = list(run.signals)
    ledger = ledger_of(transcript, method_of(cell)).to_json()
    return {"cohorts": cohorts, "ledger": ledger}, {"scores": _scores(run, signals), "records": _records(run)}


def _scores(run: ScoredRun, signals: Sequence[str]) -> pd.DataFrame:
    """A row per record and model that a verdict is about, the controls first; models of single rounds are for figures only."""
    controls = {}
    for way, part in (("base", "base"), ("earlier", "before_first_round")):
        of_models = [table for model in run.models if (table := getattr(model, part)) is not None]
        if of_models:  # each holds the records that its model was asked about
            both = pd.concat(of_models)
            controls[way] = both[~both.index.duplicated()]
    models = [ScoredModel("", way, None, 0, table) for way, table in controls.items()]
    models += [model for model in run.models if model.way != "round"]
    return pd.concat([_rows(model, signals) for model in models], ignore_index=True)


def _rows(model: ScoredModel, signals: Sequence[str]) -> pd.DataFrame:
    client = NOBODY if model.client is None else model.client
    places = {"threat_model": model.threat_model, "way": model.way, "client": client, "round": model.round}
    scores = model.scores.reindex(columns=[*signals])  # a control has fewer, where only these need it
    return scores.rename_axis("record").reset_index().assign(**places)


def _records(run: ScoredRun) -> pd.DataFrame:
    """A row per record: whose, of which kind, whether it was trained on, and what a classifier that sees no model says of it."""
    rows = [(record, k, "candidate") for k, records in run.records.items() for record in records]
    rows += [(record, k, "reference") for k, records in run.reference.items() for record in records]
    rows += [(record, NOBODY, "novel") for record in run.novel]
    found = pd.DataFrame(rows, columns=["record", "client", "kind"])
    found["member"] = [bool(run.truth.get(record, False)) for record in found.record]
    return found.assign(**{BLIND + name: found.record.map(dict(scores)) for (_, name), scores in run.blind.items()})


def _attacked(cell: Cell, scores: pd.DataFrame, records: pd.DataFrame, cohorts: Sequence[Sequence[int]]) -> ScoredRun:
    """What `_scores` and `_records` were made of."""
    signals = [name for name in scores if name not in ("record", *PLACES)]
    tables = {
        place: part.set_index("record", drop=False)[signals] for place, part in scores.groupby(PLACES, sort=False)
    }
    base, before_first_round = (
        next((table for (_, way, *_), table in tables.items() if way == name), None) for name in ("base", "earlier")
    )
    candidates = records[records.kind == "candidate"]
    own = records.set_index("record")
    return ScoredRun(
        models=[
            ScoredModel(
                threat_model,
                way,
                None if client == NOBODY else client,
                r,
                table,
                base,
                before_first_round=before_first_round,
            )
            for (threat_model, way, client, r), table in tables.items()
            if way not in ("base", "earlier")
        ],
        **attacks.assign_signals(cell, signals),
        blind={(None, n.removeprefix(BLIND)): own[n].dropna().to_dict() for n in records if n.startswith(BLIND)},
        records=_of_clients(candidates),
        reference=_of_clients(records[records.kind == "reference"]),
        truth=dict(zip(candidates.record, candidates.member, strict=True)),
        novel=records.record[records.kind == "novel"].tolist(),
        cohorts=cohorts,
        coins={r: (r, str(k)) for r, k in zip(candidates.record, candidates.client, strict=True)},
        seed=cell.seed,
    )


def _of_clients(records: pd.DataFrame) -> Mapping[int, list[str]]:
    return {int(k): part.record.tolist() for k, part in records.groupby("client", sort=False)}
