"""Attacks on trainings whose records are classes: every target attacked, then put beside the truth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Set

import pandas as pd

from attacks.knowledge import Attack
from audits.blind import blind_controls
from audits.comparisons import Attacked, ScoredModel, first_scores
from audits.tables.coverage import coverage_table
from audits.tables.records import evidence
from fedaudit.machinery import plugins
from fedaudit.machinery.progress import Progress
from fedaudit.machinery.store import Folder, Say
from fedaudit.pipeline import attack_jobs
from fedaudit.pipeline.methods import method_of, transcript_of
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.shadow_trainings import train_banks
from fedaudit.pipeline.workers import Attackers, Workshop
from fedaudit.tasks.base import Federation, client_name
from fedaudit.terms.record_kinds import OTHER_CLIENTS_RECORD, REFERENCE
from fedaudit.terms.term import find
from fedaudit.terms.threat_models import CLUSTERING_SERVER, SERVER, THREAT_MODELS
from trainers.base import unpack

Row = tuple[tuple[int, str], tuple[tuple[str, bool], ...]]  # client and kind of non-members; record, whether a member


def attacked(cell: Cell, folder: Folder, workshop: Workshop, progress: Progress) -> Attacked | None:
    """The scores of every target under every adversary, as far as they are not in `folder`, with truth and controls;
    None if no attack could run."""
    train_banks([cell], workshop, progress)  # nothing to do, unless it was damaged since
    scored = _attack(cell, folder, workshop, progress)
    return _run(cell, scored, workshop.federation) if scored else None


def tables(cell: Cell, run: Attacked | None, workshop: Workshop) -> dict[str, pd.DataFrame]:
    """What a report shows beside the findings."""
    refused = attack_jobs.refused(cell)
    found = {"refused": refused} if len(refused) else {}
    if run is None:
        return found
    found |= evidence(run, workshop.federation.records, confidence=cell.plan.confidence)
    shown = set(found["exposed"].record) if "exposed" in found else set()
    found["trajectories"] = _trajectories(cell, run, shown, workshop.federation, workshop.attackers)
    solved = {m.client: m.batches for m in run.models if m.client is not None and m.batches is not None}
    if solved:
        rows = [table.assign(client=client_name(k)) for k, table in solved.items()]
        found["batches"] = pd.concat(rows, ignore_index=True)[["client", "round", "residual", "least", "error"]]
    for server in {model.threat_model for model in run.models} & {SERVER, CLUSTERING_SERVER}:
        found["coverage"] = _coverage(cell, workshop, server)
    return found


def _coverage(cell: Cell, workshop: Workshop, server: str) -> pd.DataFrame:
    """What the server can rebuild of every client, not only of the targets."""
    job = method_of(cell, workshop.federation.sizes), transcript_of(cell), server
    (found,) = workshop.attackers.map(attack_jobs.rebuilt, [job])
    clients = [dataclasses.replace(one, state=unpack(state) if state else None) for one, state in found]
    return coverage_table(clients, transcript_of(cell))


def _attack(
    cell: Cell, folder: Folder, workshop: Workshop, progress: Progress
) -> dict[tuple[str, int], dict[str, pd.DataFrame]]:
    """Tables by threat model and target; what is on disk is not computed again."""
    done = {k: f"scores-{k:03d}.json" for k in cell.targets}
    todo = [k for k in done if not _all_there(folder, k, done[k], progress.say)]
    if todo and (jobs := attack_jobs.jobs_of(cell, workshop.federation, todo)):
        attackers = workshop.attackers
        with progress.stage(f"attacks on {len(todo)} clients of {cell.method}", len(jobs)) as advance:
            for found in attackers.map(attack_jobs.attack, jobs):
                for k, by_view in found.items():
                    for threat_model, tables in by_view.items():
                        for name, table in tables.items():
                            folder.write_table(_file(k, threat_model, name), table)
                    folder.write_json(done[k], {threat_model: list(tables) for threat_model, tables in by_view.items()})
                advance()
    return {
        (threat_model, k): {name: folder.read_table(_file(k, threat_model, name)) for name in names}
        for k in done
        for threat_model, names in folder.read_json(done[k]).items()
    }


def _all_there(folder: Folder, client: int, listed: str, say: Say) -> bool:
    """Whether the file `listed`, which names a target's tables, and all of these can be read."""
    if not folder.usable(listed, say):
        return False
    names = [_file(client, view, name) for view, tables in folder.read_json(listed).items() for name in tables]
    return all(folder.usable(name, say) for name in names)


def _file(client: int, threat_model: str, name: str) -> str:
    return f"scores-{client:03d}-{threat_model}-{name}.parquet"


def _run(cell: Cell, scored: Mapping[tuple[str, int], Mapping[str, pd.DataFrame]], federation: Federation) -> Attacked:
    """The scores with the truth and the controls beside them."""
    rounds = cell.plan.rounds
    models = []
    for (threat_model, k), tables in scored.items():
        indexed = {n: t if n == "batches" else t.set_index("record") for n, t in tables.items()}
        way = find(THREAT_MODELS, threat_model, "threat model").attacks
        models.append(ScoredModel(threat_model, way, k, rounds, indexed.pop("scores"), **indexed))
    asked = {q.client: q for q in attack_jobs.questions(cell, federation)}
    made: dict[str, Attack] = {n: plugins.plugins("attack")[n].make(given) for n, given in cell.plan.attacks.items()}
    signals = {signal: name for name, attack in made.items() for signal in attack.signals}
    clients = {k: federation.clients[k] for k in asked}
    trained = {k: attack_jobs.trained_on(cell, federation, k) for k in clients}
    there = {s: a for s, a in signals.items() if any(s in m.scores for m in models)}
    # few rounds leave members out of every batch; they stay members, as canaries do: what is guessed is the coin
    unused = {
        k: [r.id for r, used in zip(client.records, client.member, strict=True) if used and r.id not in trained[k]]
        for k, client in clients.items()
    }
    run = Attacked(
        models=models,
        headlines=first_scores(there),
        signals=there,
        blind={},
        records={k: [r.id for r in client.records] for k, client in clients.items()},
        reference={k: [r.id for r in client.reference] for k, client in clients.items()},
        others={k: list(question.others) for k, question in asked.items()},
        canaries={k: [r.id for r in client.canaries] for k, client in clients.items()},
        unused=unused,
        shared={k: sorted(attack_jobs.shared_of(cell, federation, k)) for k in clients},
        coins=federation.coins,
        seed=cell.seed,
        truth=federation.truth,
        group={name: record.group for name, record in federation.records.items()},
        guesses=[s for name in cell.plan.attacks for s in plugins.plugins("attack")[name].guesses],
        few=True,
    )
    rows = tuple((place, tuple(row.items())) for place, row in run.rows.items())
    return dataclasses.replace(run, blind=_blind(federation, rows))


@functools.lru_cache(maxsize=1)
def _blind(federation: Federation, asked: tuple[Row, ...]) -> Mapping[tuple[int | None, str], Mapping[str, float]]:
    """The blind control knows no model: the cells of a plan share it."""
    return blind_controls(federation.records, {place: dict(row) for place, row in asked}, seed=0)


def _trajectories(
    cell: Cell, run: Attacked, exposed: Set[str], federation: Federation, attackers: Attackers
) -> pd.DataFrame:
    """Loss by round: the mean of each kind of a target's records, and of every exposed record itself."""
    kinds = {
        k: {r: kind for r, kind in run.kinds(k).items() if kind not in (REFERENCE, OTHER_CLIENTS_RECORD)}
        for k in run.records
    }
    jobs = [(method_of(cell, federation.sizes), transcript_of(cell), k, list(kinds[k])) for k in kinds]
    found = pd.concat(list(attackers.map(attack_jobs.trajectory, jobs)), ignore_index=True)
    found["kind"] = [kinds[k][r] for k, r in zip(found.client, found.record, strict=True)]
    found["client"] = found.client.map(client_name)
    mean = found.groupby(["client", "kind", "round"], as_index=False).loss.mean().assign(record="mean")
    own = found[found.record.isin(exposed)]
    return pd.concat([mean, own], ignore_index=True)[["record", "client", "kind", "round", "loss"]]
