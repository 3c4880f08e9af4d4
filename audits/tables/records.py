"""Tables about records: their scores and ranks, success by class, agreement of attacks, the most exposed members.

The exposure of a record is the share of its client's candidates (and canaries) that an attack ranks no higher, as a
mean over the headline scores of all attacks of an adversary, without the truth: 1 = the most likely member by every
attack.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fedaudit.audits.comparisons import ScoredModel, ScoredRun, comparisons
from fedaudit.audits.membership import cells
from fedaudit.audits.statistics.arrays import Floats
from fedaudit.audits.statistics.classification import accuracy_at
from fedaudit.audits.tables.attribution import attribution_table
from fedaudit.audits.tables.beside_loss import beside_loss_table
from fedaudit.audits.tables.curves import clients_table, curve, rounds_table
from fedaudit.tasks.base import IMAGE, Record, client_name
from fedaudit.terms.held_models import AT_THE_END, FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from fedaudit.terms.record_kinds import CANDIDATES, FLIPPED, HELD_OUT_RECORD, MEMBER, NOVEL_RECORD, REFERENCE, TRAINED
from fedaudit.terms.threat_models import STRONGEST

TOP = 10  # one of so many records is in an attack's top
EXPOSED = 8  # number of records shown as pictures
PIXELS = 256  # longest side of a picture
CLASSES = "threat_model way client label signal success low high members nonmembers".split()
AGREEMENT = "threat_model way signal_a signal_b spearman overlap chance".split()
SHOWN = "threat_model way rank record client score percentile asked label reason png".split()


def evidence(run: ScoredRun, records: Mapping[str, Record], *, confidence: float) -> dict[str, pd.DataFrame]:
    """All tables about records and attacks of a run, by name, without empty ones; `records` by id have the pictures."""
    table = records_table(run)
    held_out = [c for c in comparisons(run) if c.nonmembers == HELD_OUT and not c.descriptive]
    measured = [
        (c, s) for c in held_out for s in run.headline if s in c.scores and c.with_values(c.scores[s]).measurable
    ]
    tables = {
        "records": table.drop(columns="exposure"),
        "scores": scores_table(run, table),
        "rounds": rounds_table(run, confidence),
        "clients": clients_table(held_out, run.headline),
        "curves": pd.concat([curve(c, s, confidence) for c, s in measured]) if measured else pd.DataFrame(),
        "classes": classes_table(table, run.guesses, confidence),
        "beside_loss": beside_loss_table(run, confidence),
        "attribution": attribution_table(run, confidence),
        "agreement": agreement_table(table, run.headline),
        "exposed": exposed_table(run, table, records),
        "cells": cells(run, confidence),
    }
    return {name: one.reset_index(drop=True) for name, one in tables.items() if len(one)}


def records_table(run: ScoredRun) -> pd.DataFrame:
    """A row per record of every client and model at the end of training: its kind, whether it is a member, every score,
    and its rank among the records whose membership a coin decided.

    `rank` 1 is the most exposed of its client (ties share the better rank), `percentile` the percentage of held-out
    records that are less exposed; both are NaN for records without a coin.
    """
    models = [
        (model, k)
        for model in run.models
        if model.way in AT_THE_END
        for k in (run.participants(model.round) if model.client is None else [model.client])
    ]
    table = pd.concat([_records(run, model, k) for model, k in models], ignore_index=True)
    return table[[c for c in table if c not in run.signals] + [s for s in run.signals if s in table]]


def _records(run: ScoredRun, model: ScoredModel, client: int) -> pd.DataFrame:
    """The rows of `records_table` for one client's records that one model has scores of."""
    kinds = run.kinds(client)
    scores = model.scores[model.scores.index.isin(list(kinds))]
    kind = pd.Series([kinds[r] for r in scores.index], scores.index)
    signals = [s for s in run.signals if s in scores]
    flipped = scores[kind.isin(FLIPPED)]
    share = flipped[[s for s in run.headline if s in signals]].rank(pct=True).mean(axis=1)
    held_out = share[kind == HELD_OUT_RECORD].dropna().to_numpy()
    below = np.searchsorted(np.sort(held_out), share, "left") / max(1, len(held_out))
    table = pd.DataFrame(
        {
            "threat_model": model.threat_model,
            "way": model.way,
            "client": client_name(client),
            "record": scores.index,
            "label": [run.group[r] for r in scores.index],
            "kind": kind.to_numpy(),
            "member": kind.isin(TRAINED).to_numpy(),
            "rank": share.rank(ascending=False, method="min").reindex(kind.index).to_numpy(),
            "percentile": pd.Series(100 * below, share.index).where(share.notna()).reindex(kind.index).to_numpy(),
            "exposure": share.reindex(kind.index).to_numpy(),
        }
    )
    return pd.concat([table, scores[signals].reset_index(drop=True)], axis=1)


def classes_table(table: pd.DataFrame, guesses: Sequence[str], confidence: float) -> pd.DataFrame:
    """Success rate of scores that are guesses, a row per client and class, and one for the mean over a client's classes
    (label "mean"): success with low and high, beside threat_model, way (kind of model), client, label, signal, members,
    nonmembers.

    A positive guess says member (DP-FPL's attack, section A.3). Success is the share of right guesses, members and
    held-out records weighing the same; classes without both are left out.
    """
    table_rows = []
    candidates = table[table.kind.isin(CANDIDATES)]
    for signal in (s for s in guesses if s in candidates):
        guessed = candidates.dropna(subset=[signal])
        for model, part in guessed.groupby(["threat_model", "way", "client"], sort=False):
            both = part[part.groupby("label").member.transform("nunique") == 2]
            groups = [*both.groupby("label"), ("mean", both)] if len(both) else []
            for label, group in groups:
                cuts = dict.fromkeys(group.label, 0.0)
                i = accuracy_at(group[signal], group.member, group.label.to_numpy(), cuts, confidence=confidence)
                table_rows.append((*model, label, signal, i.value, i.low, i.high, i.members, i.nonmembers))
    return pd.DataFrame(table_rows, columns=CLASSES)


def agreement_table(table: pd.DataFrame, headline: list[str]) -> pd.DataFrame:
    """Whether two headline scores of an adversary expose the same records: a row per kind of model and pair of scores,
    with means over the attacked clients.

    Columns: threat_model, way (kind of model), signal_a, signal_b; spearman, their rank correlation; overlap, the share
    of their top tenths in common; chance, that share for two independent scores. NaN if no client has two records with
    both.
    """
    table_rows = []
    flipped = table[table.kind.isin(FLIPPED)]
    for model, part in flipped.groupby(["threat_model", "way"], sort=False):
        signals = [s for s in headline if s in part and part[s].notna().any()]
        clients = [{s: rows[s].to_numpy() for s in signals} for _, rows in part.groupby("client", sort=False)]
        for a, b in itertools.combinations(signals, 2):
            each = [_agreement(scores[a], scores[b]) for scores in clients]
            by_client = pd.DataFrame([one for one in each if one is not None], columns=AGREEMENT[-3:])
            table_rows.append((*model, a, b, *by_client.mean()))
    return pd.DataFrame(table_rows, columns=AGREEMENT)


def _agreement(a: Floats, b: Floats) -> tuple[float, float, float] | None:
    """(Spearman's rank correlation of two scores [n], the share of their top tenths in common, that share by chance),
    from records with both scores; NaN for the first if a score is constant; None: fewer than two records have both."""
    both = ~(np.isnan(a) | np.isnan(b))
    n = int(both.sum())
    if n < 2:
        return None
    ranks = [rankdata(s[both]) for s in (a, b)]
    spearman = float(np.corrcoef(ranks)[0, 1]) if all(np.ptp(r) > 0 for r in ranks) else float("nan")
    return spearman, float(np.prod([_in_top(r) for r in ranks], axis=0).sum() / tenth(n)), tenth(n) / n


def _in_top(scores: Floats) -> Floats:
    """Probability [n] that each record is in the top tenth if ties are broken at random."""
    rising = np.sort(scores)
    below, up_to = (np.searchsorted(rising, scores, side) for side in ("left", "right"))
    return np.clip((tenth(len(scores)) - (len(scores) - up_to)) / (up_to - below), 0, 1)


def tenth(n: int) -> int:
    """The number of records in the top tenth of n, at least one."""
    return max(1, n // TOP)


def scores_table(run: ScoredRun, table: pd.DataFrame) -> pd.DataFrame:
    """The headline scores for histograms: a row per model, client and record, with the record's kind; all records but
    reference ones, also those of another distribution."""
    names = ["threat_model", "way", "client", "record", "kind"]
    frames = [table.loc[table.kind != REFERENCE, [*names, *(s for s in run.headline if s in table)]]]
    for c in (c for c in comparisons(run) if c.nonmembers == NOVEL_OBJECTS):
        headline = c.scores[[s for s in run.headline if s in c.scores]]
        columns = {"threat_model": c.threat_model, "way": c.way, "client": c.client, "record": c.record}
        frames.append(headline.assign(**columns, kind=NOVEL_RECORD)[~c.member])
    return pd.concat(frames)


def exposed_table(run: ScoredRun, table: pd.DataFrame, records: Mapping[str, Record]) -> pd.DataFrame:
    """The EXPOSED most exposed members under the strongest adversary, a row each, by rank (of equally exposed ones the
    higher first headline score leads): ids; score and percentile of exposure; question and answer (`asked`, `label`),
    `reason`, a sentence, and the picture `png` as bytes. Empty if nothing was scored."""
    strongest = _strongest(table)
    headline = [s for s in run.headline if s in strongest and strongest[s].notna().any()]
    if not headline:
        return pd.DataFrame(columns=SHOWN)
    flipped = strongest[strongest.kind.isin(FLIPPED)]
    tops = flipped.groupby("client")[headline].transform(_is_top).sum(axis=1)
    order = ["exposure", *headline[:1], "record"]
    members = flipped[flipped.kind == MEMBER].sort_values(order, ascending=[*[False] * (len(order) - 1), True])
    several = (
        len({record.prompt for record in records.values()}) > 1
    )  # one instruction for all says nothing about a record
    rows = []
    for rank, (at, row) in enumerate(members.head(EXPOSED).iterrows(), 1):
        record = records[row.record]
        question = record.prompt.partition(IMAGE)[2].strip() if several else ""
        reason = _reason(int(tops[at]), len(headline), _facts(run, row))
        exposure = (row.threat_model, row.way, rank, row.record, row.client, row.exposure, row.percentile)
        rows.append((*exposure, question, record.text, reason, picture(record)))
    return pd.DataFrame(rows, columns=SHOWN)


def _strongest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the strongest adversary (first in STRONGEST) under one kind of its models: the first in FRESHEST, an
    order of preference, that reaches at least half as many clients as any."""
    rows = table[table.threat_model == next(name for name in STRONGEST if (table.threat_model == name).any())]
    clients = rows.groupby("way", sort=False).client.nunique()
    wide = [way for way in clients.index if 2 * clients[way] >= clients.max()]
    return rows[rows.way == min(wide, key=FRESHEST.index)]


def _facts(run: ScoredRun, row: pd.Series) -> dict[str, float]:
    """The facts {name: number} (see `ScoredModel.facts`) about the record of a row under the row's model; empty: there
    are none."""
    for m in run.models:
        is_holder = m.client is None or client_name(m.client) == row.client
        if is_holder and (m.threat_model, m.way) == (row.threat_model, row.way) and m.facts is not None:
            return {str(name): value for name, value in m.facts.loc[row.record].items()}
    return {}


def _is_top(scores: pd.Series) -> pd.Series:
    """Whether each of a client's records is in the top tenth by a score; equal scores are only if all of them fit."""
    return scores.rank(ascending=False, method="max") <= tenth(int(scores.notna().sum()))


def _reason(tops: int, scores: int, facts: Mapping[str, float]) -> str:
    """Why a record is exposed, in a sentence: it is in the top tenth by `tops` of `scores` scores, its losses, whether
    the hard prompt fails on it."""
    parts = [f"in the top tenth by {tops} of {scores} scores" if scores > 1 else "by its score"]
    if facts:
        parts.append(_losses(facts))
        if not facts.get("hard_right", True):
            parts.append("the hard prompt gets it wrong")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _losses(facts: Mapping[str, float]) -> str:
    """Part of a sentence: the loss of a record beside its mean losses under shadow models with and without it or,
    without these, beside that before training."""
    loss, trained, without = (facts.get(name, np.nan) for name in ("loss", "loss_in", "loss_out"))
    if np.isfinite([trained, without]).all():
        return (
            f"loss {loss:.2f}, where models trained with it have {trained:.2f} and models trained without it "
            f"{without:.2f}"
        )
    before = facts.get("base_loss", np.nan)
    return f"loss {loss:.2f}" + (f", {before:.2f} before training" if np.isfinite(before) else "")


def picture(record: Record) -> bytes:
    """The record's image as bytes of a PNG of at most PIXELS per side."""
    from PIL import Image

    png = io.BytesIO()
    image = Image.fromarray(record.image)
    image.thumbnail((PIXELS, PIXELS))
    image.save(png, "PNG")
    return png.getvalue()
