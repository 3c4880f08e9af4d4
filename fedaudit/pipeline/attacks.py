"""Attacks a finished training: answers all questions, runs the attacks, and joins their scores with the truth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import pandas as pd

from fedaudit.attacks.answers import public_records
from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.messages.rebuild import rebuild_all
from fedaudit.audits.blind import blind_controls, blind_scores
from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.audits.tables.coverage import coverage_table
from fedaudit.audits.tables.records import evidence
from fedaudit.audits.tables.tokens import panels, tokens_table
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.contents import contents_tables
from fedaudit.pipeline.noised_messages import noised_messages
from fedaudit.pipeline.permitted import refused_table
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.probing import ask_probes, probes_table
from fedaudit.pipeline.question_plan import QuestionPlan
from fedaudit.pipeline.question_set import QuestionSet, answers_of
from fedaudit.pipeline.scoring import ModelKey, ScoringJob, Tables, concatenate_targets, score
from fedaudit.pipeline.shadow_trainings import train_banks
from fedaudit.pipeline.targets import shared_of, trained_records
from fedaudit.pipeline.workers import Workshop
from fedaudit.tasks.base import Federation, Record, client_name
from fedaudit.terms.nonmembers import HELD_OUT, LEFT_OUT_CANARIES, NOVEL_OBJECTS
from fedaudit.trainers.transcript import Transcript

Blind = Mapping[
    tuple[int | None, str], Mapping[str, float]
]  # scores by client (None: all), kind of non-members; record
Row = tuple[tuple[int, str], tuple[tuple[str, bool], ...]]  # client and kind of non-members; record, whether a member


@dataclasses.dataclass(frozen=True)
class AttackedTraining:
    """A training with all questions of its adversaries, answered, and the attacks' scores."""

    cell: Cell
    federation: Federation
    question_plan: QuestionPlan
    question_sets: Sequence[QuestionSet]
    run: ScoredRun | None  # None: no attack could run

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables that a report shows beside the findings, by name; empty ones are left out."""
        cell, run, question_plan = self.cell, self.run, self.question_plan
        tables = {"refused": refused_table(cell)}
        if run is not None:
            tables |= evidence(run, self.federation.records, confidence=cell.plan.confidence)
            if words := self._tokens([*panels(tables).values()]):
                tables["tokens"] = tokens_table(run, tables, words)
            exposed = set(tables["exposed"].record) if "exposed" in tables else set()
            tables["trajectories"] = _trajectories(question_plan, run, exposed)
            solved = {m.client: m.batches for m in run.models if m.client is not None and m.batches is not None}
            rows = [table.assign(client=client_name(k)) for k, table in solved.items()]
            tables["batches"] = pd.concat(rows, ignore_index=True)[BATCHES] if rows else pd.DataFrame()
        tables["probes"] = probes_table(cell, self.federation, self.question_sets)
        tables |= contents_tables(cell, self.federation, self.question_sets)
        tables["coverage"] = _coverage(question_plan)
        tables = {name: table for name, table in tables.items() if len(table)}
        utility = utility_of_texts(question_plan.training.transcript)
        if "rounds" in tables and "loss" in utility:
            losses = utility[utility.model == "global"].set_index("round").loss
            tables["rounds"]["heldout_loss"] = (tables["rounds"]["round"] - 1).map(losses)
        return tables

    def _tokens(self, records: Sequence[str]) -> dict[str, Sequence[str]]:
        """The tokens of some records as words, {record id: words}; others of the same question sets may be there too.
        {} where records have no tokens."""
        wanted, tokens = set(records), dict[str, Sequence[str]]()
        for question_set in self.question_sets:
            if wanted & {*question_set.records} - tokens.keys():
                public = public_records(question_set.public.read("public"))
                tokens |= dict(zip(question_set.records, getattr(public, "tokens", ()), strict=False))
        return tokens


BATCHES = ["client", "round", "residual", "least", "error", "skipped"]


def attack_training(cell: Cell, workshop: Workshop, progress: Progress) -> AttackedTraining:
    """Run all attacks of the plan on a cell's finished training, and return it with their scores. Shadow models and
    outputs of models that are on disk are read, the others computed first."""
    train_banks([cell], workshop, progress)  # nothing to do, unless it was damaged since
    federation = workshop.federation
    ask_probes(cell, workshop, progress)
    question_plan = QuestionPlan.of(cell, federation)
    question_sets = question_plan.answer_all(lambda: workshop.attackers, progress)
    jobs = scoring_jobs(question_plan, question_sets)
    parts = list[tuple[ModelKey, Tables]]()
    with progress.stage(f"attacking {cell.method}", len(jobs), "client") as advance:
        for tables_by_model in workshop.each(score, jobs):
            parts += tables_by_model
            advance()
    order = list(question_plan.attacks)  # of threat models, then of clients; a model of all clients counts as client 0
    models = sorted(concatenate_targets(parts).items(), key=lambda pair: (order.index(pair[0][0]), pair[0][2] or 0))
    scored = dict(models)
    run = _scored_run(cell, scored, question_plan, question_sets, federation) if scored else None
    return AttackedTraining(cell, federation, question_plan, question_sets, run)


def scoring_jobs(question_plan: QuestionPlan, question_sets: Sequence[QuestionSet]) -> list[ScoringJob]:
    """One job per target (attacked client), in the order of `question_plan.targets`, with the questions about it."""
    by_target = ([one for one in question_sets if one.target == target] for target in question_plan.targets)
    alone = question_plan.kind.over_rounds_alone
    return [ScoringJob(some, question_plan.attacks, alone, question_plan.stand_ins) for some in by_target]


def _scored_run(
    cell: Cell,
    scored: Mapping[ModelKey, Tables],
    question_plan: QuestionPlan,
    question_sets: Sequence[QuestionSet],
    federation: Federation,
) -> ScoredRun:
    """The scores and controls of all models, joined with the truth about members, for audits."""
    read = noised_messages(question_plan, question_sets)
    models = [ScoredModel(*key, **tables, messages=read.get(key)) for key, tables in scored.items()]
    signals = dict.fromkeys(signal for model in models for signal in model.scores)
    clients = {k: federation.clients[k] for k in cell.targets}
    pooled = any(model.client is None for model in models)
    trained = {k: trained_records(cell, federation, k) for k in clients} if cell.trained_here else {}
    transcript = question_plan.training.transcript
    run = ScoredRun(
        models=models,
        **assign_signals(cell, signals),
        blind={},
        records={k: [r.id for r in client.records] for k, client in clients.items()},
        reference={k: [r.id for r in client.reference] for k, client in clients.items()},
        others={target.client: list(target.others) for target in question_plan.targets if target.client is not None},
        canaries={k: [r.id for r in client.canaries] for k, client in clients.items() if client.canaries},
        # few rounds leave members out of every batch; they stay members, as canaries do: what is guessed is the coin
        unused={k: _unused(federation, k, trained[k]) for k in trained},
        shared={k: sorted(shared_of(cell, federation, k)) for k in trained},
        coins=federation.coins if cell.coined else {},
        seed=cell.seed,
        truth=federation.truth,
        group={name: record.group for name, record in federation.records.items()},
        guesses=[s for name in cell.plan.attacks for s in ATTACKS[name].facts.guesses],
        novel=question_plan.out_of_distribution,
        cohorts=[transcript.cohort(r) for r in range(transcript.schedule.rounds)],
        few=not pooled or len(clients) < len(federation.clients),
    )
    if pooled:
        return dataclasses.replace(run, blind=_blind_of_all(federation))
    rows = tuple((key, tuple(row.items())) for key, row in run.rows.items())
    return dataclasses.replace(run, blind=_blind_of_clients(federation, rows))


def _unused(federation: Federation, client: int, trained: Set[str]) -> list[str]:
    """A client's members that were in no batch; `trained` are those that were in one."""
    holder = federation.clients[client]
    return [r.id for r, used in zip(holder.records, holder.member, strict=True) if used and r.id not in trained]


def assign_signals(cell: Cell, signals: Iterable[str]) -> dict[str, Any]:
    """Assign scores, given by their names, to attacks. Returns two fields of `ScoredRun`: `signals` has the attack by
    score, `headlines` each attack's headline scores as its file declares them, without attacks that have none.

    A score that several attacks compute belongs to the one whose file declares it; if that does not run, to the one
    whose headline it is, else to the first attack with headlines.
    """
    present = set(signals)
    owner_of = {
        signal: name for name in cell.plan.attacks for signal in ATTACKS[name].facts.names() if signal in present
    }
    shared = [s for plugin in ATTACKS.values() for s in plugin.facts.names() if s in present and s not in owner_of]
    headlines: dict[str, tuple[str, ...]] = {}
    attack_of: dict[str, str] = {}
    for name, params in cell.plan.attacks.items():
        declared = (s.format(**vars(params)) for s in ATTACKS[name].facts.headlines(cell.plan.trained.records))
        of_attack = tuple(s for s in declared if s in present and owner_of.get(s, name) == name and s not in attack_of)
        if of_attack:
            headlines[name] = of_attack
        attack_of |= dict.fromkeys(of_attack, name) | {s: name for s, owner in owner_of.items() if owner == name}
    first = next(iter(headlines))
    return {"headlines": headlines, "signals": attack_of | {s: first for s in shared if s not in attack_of}}


@functools.lru_cache(maxsize=1)
def _blind_of_clients(federation: Federation, rows: tuple[Row, ...]) -> Blind:
    """Scores of the blind control, a classifier that sees no model, by (client, kind of non-members) and record. As
    they need no model, the cells of a plan share them."""
    return blind_controls(federation.records, {key: dict(row) for key, row in rows}, seed=0)


def _blind_of_all(federation: Federation) -> Blind:
    """Scores of the blind control, a classifier that sees no model, for the records of all clients together, {(None,
    kind of non-members): {record id: score}}."""
    truth = federation.truth
    owners = [(client.name, record) for client in federation.clients for record in client.records]
    by_nonmembers = {HELD_OUT: _blind(owners, [truth[r.id] for _, r in owners])}
    if federation.novel:
        pairs = [(name, record) for name, record in owners if truth[record.id]]
        pairs += [("novel", record) for record in federation.novel]
        by_nonmembers[NOVEL_OBJECTS] = _blind(pairs, [name != "novel" for name, _ in pairs])
    canaries = [(client.name, record) for client in federation.clients for record in client.canaries]
    if canaries:
        by_nonmembers[LEFT_OUT_CANARIES] = _blind(canaries, [truth[r.id] for _, r in canaries])
    return {(None, nonmembers): scores for nonmembers, scores in by_nonmembers.items()}


def _blind(pairs: list[tuple[str, Record]], member: list[bool]) -> dict[str, float]:
    """The blind classifier's scores by record; `pairs` are (client, record)."""
    return blind_scores([record for _, record in pairs], member, [name for name, _ in pairs], seed=0)


def _coverage(question_plan: QuestionPlan) -> pd.DataFrame:
    """How much of each client's model a server can rebuild from messages (`coverage_table`): a row per client and way
    of rebuilding, also of clients that are no targets; empty if no adversary sees messages."""
    source = question_plan.training
    if question_plan.kind.replays:
        clients = next(iter(source.rebuilt.values()), [])
    else:
        view = next((view for view in source.views.values() if view.gives("uploads")), None)
        clients = rebuild_all(view, view.clients) if view else []
    return coverage_table(clients, source.transcript)


def utility_of_texts(transcript: Transcript) -> pd.DataFrame:
    """The utility of models by round: a row per round (-1 = before training) and model ("global", "clients", ...); the
    other columns are metrics. Without rows and columns where clients have accuracies, which an audit shows."""
    if "clients" in transcript.initial["utility"]:
        return pd.DataFrame()
    rows = [{"round": -1, "model": model} | utility for model, utility in transcript.initial["utility"].items()]
    for r in range(transcript.schedule.rounds):
        for model, utility in transcript.round(r)["utility"].items():
            rows.append({"round": r, "model": model} | utility)
    return pd.DataFrame(rows, columns=None if rows else ["round", "model"])


def _trajectories(question_plan: QuestionPlan, run: ScoredRun, exposed: Set[str]) -> pd.DataFrame:
    """Loss in nats of the targets' true models by `round` (how many have passed, 0 before training): the mean over each
    kind of the target's records (`record` is "mean"), and that of every exposed record. Columns record, client (name),
    kind, round, loss; an empty table, without columns, where there are no curves."""
    frames = []
    for target in question_plan.targets:
        for r, question in question_plan.curve(target):
            assert target.client is not None
            kinds = run.kinds(target.client)
            public = public_records(question_plan.public(question_plan.training, target.records).read("public"))
            loss = pd.Series(answers_of(public, question).loss, list(target.records))[list(target.candidates)]
            columns = {"client": target.client, "record": loss.index, "round": r, "loss": loss.to_numpy()}
            frames.append(pd.DataFrame(columns | {"kind": [kinds[record] for record in loss.index]}))
    if not frames:
        return pd.DataFrame()
    losses = pd.concat(frames, ignore_index=True)
    losses["client"] = losses.client.map(client_name)
    mean = losses.groupby(["client", "kind", "round"], as_index=False).loss.mean().assign(record="mean")
    single = losses[losses.record.isin(exposed)]
    return pd.concat([mean, single], ignore_index=True)[["record", "client", "kind", "round", "loss"]]
