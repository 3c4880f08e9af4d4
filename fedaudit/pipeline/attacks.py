"""A training under attack: everything asked, scored, and put beside the truth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypedDict

import pandas as pd

from attacks.answers import public_records
from attacks.facts import ATTACKS
from attacks.messages.rebuild import rebuild_all
from audits.blind import blind_controls, blind_scores
from audits.comparisons import ScoredModel, ScoredRun
from audits.tables.coverage import coverage_table
from audits.tables.records import evidence
from audits.tables.tokens import panels, tokens_table
from fedaudit.machinery.progress import Progress
from fedaudit.pipeline.inquiries import Asking, asking_of
from fedaudit.pipeline.inquiry import Inquiry, answers_of
from fedaudit.pipeline.permitted import refused
from fedaudit.pipeline.plan import Cell
from fedaudit.pipeline.scoring import Place, ScoringJob, Tables, score, together
from fedaudit.pipeline.shadow_trainings import train_banks
from fedaudit.pipeline.targets import shared_of, trained_on
from fedaudit.pipeline.workers import Workshop
from fedaudit.tasks.base import Federation, Record, client_name
from fedaudit.terms.nonmembers import HELD_OUT, LEFT_OUT_CANARIES, NOVEL_OBJECTS
from trainers.transcript import Transcript

Blind = Mapping[tuple[int | None, str], Mapping[str, float]]
Row = tuple[tuple[int, str], tuple[tuple[str, bool], ...]]  # client and kind of non-members; record, whether a member


@dataclasses.dataclass(frozen=True)
class UnderAttack:
    """A training and everything that its adversaries asked; `run` is None if no attack could run."""

    cell: Cell
    federation: Federation
    asking: Asking
    inquiries: Sequence[Inquiry]
    run: ScoredRun | None

    def tables(self) -> dict[str, pd.DataFrame]:
        """What a report shows beside the findings."""
        cell, run, asking = self.cell, self.run, self.asking
        found = {"refused": refused(cell)}
        if run is not None:
            found |= evidence(run, self.federation.records, confidence=cell.plan.confidence)
            if words := self._tokens([*panels(found).values()]):
                found["tokens"] = tokens_table(run, found, words)
            exposed = set(found["exposed"].record) if "exposed" in found else set()
            found["trajectories"] = _trajectories(asking, run, exposed)
            solved = {m.client: m.batches for m in run.models if m.client is not None and m.batches is not None}
            rows = [table.assign(client=client_name(k)) for k, table in solved.items()]
            found["batches"] = pd.concat(rows, ignore_index=True)[BATCHES] if rows else pd.DataFrame()
        found["coverage"] = _coverage(asking)
        found = {name: table for name, table in found.items() if len(table)}
        if "clients" not in asking.training.transcript.initial["utility"]:  # of prompts an audit shows it
            found["utility"] = _utility(asking.training.transcript)
            if "rounds" in found and "loss" in found["utility"]:
                whole = found["utility"][found["utility"].model == "global"]
                losses = whole.set_index("round").loss
                found["rounds"]["heldout_loss"] = (found["rounds"]["round"] - 1).map(losses)
        return found

    def _tokens(self, records: Sequence[str]) -> dict[str, Sequence[str]]:
        """The tokens of some records as words."""
        wanted, found = set(records), dict[str, Sequence[str]]()
        for inquiry in self.inquiries:
            if wanted & {*inquiry.records} - found.keys():
                public = public_records(inquiry.public.read("public"))
                found |= dict(zip(inquiry.records, getattr(public, "tokens", ()), strict=False))
        return found


BATCHES = ["client", "round", "residual", "least", "error"]


def under_attack(cell: Cell, workshop: Workshop, progress: Progress) -> UnderAttack:
    """The scores of everything that any adversary holds, with truth and controls; what was asked before is not asked
    again."""
    train_banks([cell], workshop, progress)  # nothing to do, unless it was damaged since
    federation = workshop.federation
    asking = asking_of(cell, federation)
    inquiries = asking.asked(lambda: workshop.attackers, progress)
    jobs = scoring_jobs(asking, inquiries)
    parts = list[tuple[Place, Tables]]()
    with progress.stage(f"attacks on {len(cell.targets)} clients of {cell.method}", len(jobs)) as advance:
        for found in workshop.each(score, jobs):
            parts += found
            advance()
    scored = in_order(together(parts), list(asking.attacks))
    run = with_truth(cell, scored, asking, federation) if scored else None
    return UnderAttack(cell, federation, asking, inquiries, run)


def scoring_jobs(asking: Asking, inquiries: Sequence[Inquiry]) -> list[ScoringJob]:
    """One for each target."""
    of_targets = ([one for one in inquiries if one.target == target] for target in asking.targets)
    alone = asking.kind.over_rounds_alone
    return [ScoringJob(mine, asking.attacks, alone, asking.stand_ins) for mine in of_targets]


def in_order(scored: Mapping[Place, Tables], threat_models: Sequence[str]) -> dict[Place, Tables]:
    """By threat model, then by client."""
    return dict(sorted(scored.items(), key=lambda pair: (threat_models.index(pair[0][0]), pair[0][2] or 0)))


def with_truth(cell: Cell, scored: Mapping[Place, Tables], asking: Asking, federation: Federation) -> ScoredRun:
    """The scores with the truth and the controls beside them."""
    models = [ScoredModel(*place, **tables) for place, tables in scored.items()]
    there = dict.fromkeys(signal for model in models for signal in model.scores)
    own = [target for target in asking.targets if target.client is not None]
    clients = {k: federation.clients[k] for k in cell.targets}
    pooled = any(model.client is None for model in models)
    trained = {k: trained_on(cell, federation, k) for k in clients} if cell.variant else {}
    transcript = asking.training.transcript
    run = ScoredRun(
        models=models,
        **named(cell, there),
        blind={},
        records={k: [r.id for r in client.records] for k, client in clients.items()},
        reference={k: [r.id for r in client.reference] for k, client in clients.items()},
        others={target.client: list(target.others) for target in own if target.client is not None},
        canaries={k: [r.id for r in client.canaries] for k, client in clients.items() if client.canaries},
        # few rounds leave members out of every batch; they stay members, as canaries do: what is guessed is the coin
        unused={k: _unused(federation, k, trained[k]) for k in trained},
        shared={k: sorted(shared_of(cell, federation, k)) for k in trained},
        coins={} if cell.plan.own else federation.coins,
        seed=cell.seed,
        truth=federation.truth,
        group={name: record.group for name, record in federation.records.items()},
        guesses=[s for name in cell.plan.attacks for s in ATTACKS[name].facts.guesses],
        novel=next((target.candidates for target in asking.targets if target.client is None), ()),
        cohorts=[transcript.cohort(r) for r in range(transcript.schedule.rounds)],
        few=not pooled or len(clients) < len(federation.clients),
    )
    if pooled:
        return dataclasses.replace(run, blind=_blind_of_all(federation))
    rows = tuple((place, tuple(row.items())) for place, row in run.rows.items())
    return dataclasses.replace(run, blind=_blind_of_clients(federation, rows))


def _unused(federation: Federation, client: int, trained: Set[str]) -> list[str]:
    """A client's members that were in no batch."""
    holder = federation.clients[client]
    return [r.id for r, used in zip(holder.records, holder.member, strict=True) if used and r.id not in trained]


class Named(TypedDict):
    """Fields of `Attacked`."""

    headlines: dict[str, tuple[str, ...]]
    signals: dict[str, str]


def named(cell: Cell, there: Iterable[str]) -> Named:
    """Of the scores that are there, those that were fixed before looking, each attack's own, and those beside them.

    A score that several attacks compute belongs to the one whose file declares it, if that runs.
    """
    known, there = ATTACKS, set(there)
    own = {signal: name for name in cell.plan.attacks for signal in known[name].facts.names() if signal in there}
    shared = [s for plugin in known.values() for s in plugin.facts.names() if s in there and s not in own]
    headlines: dict[str, tuple[str, ...]] = {}
    signals: dict[str, str] = {}
    for name, params in cell.plan.attacks.items():
        standing = (signal.format(**vars(params)) for signal in known[name].facts.headlines(cell.plan.trained.records))
        found = tuple(s for s in standing if s in there and own.get(s, name) == name and s not in signals)
        if found:
            headlines[name] = found
        signals |= dict.fromkeys(found, name) | {s: name for s, of in own.items() if of == name}
    first = next(iter(headlines))
    return {"headlines": headlines, "signals": signals | {s: first for s in shared if s not in signals}}


@functools.lru_cache(maxsize=1)
def _blind_of_clients(federation: Federation, asked: tuple[Row, ...]) -> Blind:
    """The blind control knows no model: the cells of a plan share it."""
    return blind_controls(federation.records, {place: dict(row) for place, row in asked}, seed=0)


def _blind_of_all(federation: Federation) -> Blind:
    """The blind classifier's scores of all clients' records together, by kind of non-members."""
    truth = federation.truth
    owners = [(client.name, record) for client in federation.clients for record in client.records]
    found = {HELD_OUT: _blind(owners, [truth[r.id] for _, r in owners])}
    if federation.novel:
        against = [(name, record) for name, record in owners if truth[record.id]]
        against += [("novel", record) for record in federation.novel]
        found[NOVEL_OBJECTS] = _blind(against, [name != "novel" for name, _ in against])
    canaries = [(client.name, record) for client in federation.clients for record in client.canaries]
    if canaries:
        found[LEFT_OUT_CANARIES] = _blind(canaries, [truth[r.id] for _, r in canaries])
    return {(None, nonmembers): scores for nonmembers, scores in found.items()}


def _blind(pairs: list[tuple[str, Record]], member: list[bool]) -> dict[str, float]:
    return blind_scores([record for _, record in pairs], member, [name for name, _ in pairs], seed=0)


def _coverage(asking: Asking) -> pd.DataFrame:
    """What a server can rebuild of every client, not only of the targets."""
    source = asking.training
    if asking.kind.replays:
        clients = next(iter(source.rebuilt.values()), [])
    else:
        view = next((view for view in source.views.values() if view.gives("uploads")), None)
        clients = rebuild_all(view, view.clients) if view else []
    return coverage_table(clients, source.transcript)


def _utility(transcript: Transcript) -> pd.DataFrame:
    """How good models are, by round (-1 = before training)."""
    rows = [{"round": -1, "model": model} | found for model, found in transcript.initial["utility"].items()]
    for r in range(transcript.schedule.rounds):
        for model, utility in transcript.round(r)["utility"].items():
            rows.append({"round": r, "model": model} | utility)
    return pd.DataFrame(rows, columns=None if rows else ["round", "model"])


def _trajectories(asking: Asking, run: ScoredRun, exposed: Set[str]) -> pd.DataFrame:
    """Loss by round of the clients' true models: the mean of each kind of a target's records, and of every exposed
    record itself."""
    frames = []
    for target in asking.targets:
        for r, question in asking.curve(target):
            assert target.client is not None
            kinds = run.kinds(target.client)
            public = public_records(asking.public(asking.training, target.records).read("public"))
            loss = pd.Series(answers_of(public, question).loss, list(target.records))[list(target.candidates)]
            place = {"client": target.client, "record": loss.index, "round": r, "loss": loss.to_numpy()}
            frames.append(pd.DataFrame(place | {"kind": [kinds[record] for record in loss.index]}))
    if not frames:
        return pd.DataFrame()
    found = pd.concat(frames, ignore_index=True)
    found["client"] = found.client.map(client_name)
    mean = found.groupby(["client", "kind", "round"], as_index=False).loss.mean().assign(record="mean")
    own = found[found.record.isin(exposed)]
    return pd.concat([mean, own], ignore_index=True)[["record", "client", "kind", "round", "loss"]]
