"""The tables of a report about records: what the attacks say of every one, of every class, whether they agree, and who
is exposed the most.

Exposure of a record is the share of its client's candidates (and canaries) that an attack ranks no higher, as a mean
over the headline scores of all attacks of an adversary: 1 = the most likely member by every attack. It is computed
without the truth.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from audits.comparisons import ScoredModel, ScoredRun, comparisons
from audits.membership import cells
from audits.statistics.classification import accuracy_at
from audits.tables.attribution import attribution_table
from audits.tables.beside_loss import beside_loss_table
from audits.tables.curves import clients_table, curve, rounds_table
from fedaudit.tasks.base import IMAGE, Record, client_name
from fedaudit.terms.held_models import AT_THE_END, FRESHEST
from fedaudit.terms.nonmembers import HELD_OUT, NOVEL_OBJECTS
from fedaudit.terms.record_kinds import CANDIDATES, FLIPPED, HELD_OUT_RECORD, MEMBER, NOVEL_RECORD, REFERENCE, TRAINED
from fedaudit.terms.threat_models import STRONGEST

Floats = NDArray[np.float64]
TOP = 10  # one in so many records is in an attack's top
EXPOSED = 8  # records shown as pictures
PIXELS = 256  # a side of a picture, at most
CLASSES = "threat_model way client label signal success low high members nonmembers".split()
AGREEMENT = "threat_model way signal_a signal_b spearman overlap chance".split()
SHOWN = "threat_model way rank record client score percentile asked label reason png".split()


def evidence(run: ScoredRun, records: Mapping[str, Record], *, confidence: float) -> dict[str, pd.DataFrame]:
    """All tables about a run by name, without those that have no row; `records` have the pictures."""
    table = records_table(run)
    held_out = [c for c in comparisons(run) if c.nonmembers == HELD_OUT and not c.descriptive]
    measured = [(c, s) for c in held_out for s in run.headline if s in c.scores and c.having(c.scores[s]).measurable]
    found = {
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
    return {name: one.reset_index(drop=True) for name, one in found.items() if len(one)}


def records_table(run: ScoredRun) -> pd.DataFrame:
    """Every record of every model at the end of training: what it is, every score, and where it stands among the
    records that a coin decided about.

    `rank` 1 is the most exposed of its client (ties share the better rank), `percentile` the percentage of held-out
    records that are less exposed; NaN for the other records.
    """
    asked = [
        (model, k)
        for model in run.models
        if model.way in AT_THE_END
        for k in (run.participants(model.round) if model.client is None else [model.client])
    ]
    table = pd.concat([_records(run, model, k) for model, k in asked], ignore_index=True)
    return table[[c for c in table if c not in run.signals] + [s for s in run.signals if s in table]]


def _records(run: ScoredRun, model: ScoredModel, client: int) -> pd.DataFrame:
    """The same of one client under one model."""
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
    """Success rate of scores that are guesses, by client and class and as a mean over a client's classes ("mean").

    A positive guess says member (DP-FPL's attack, section A.3). Success is the share of right ones, members and
    held-out records weighing the same; classes without both are left out.
    """
    found = []
    candidates = table[table.kind.isin(CANDIDATES)]
    for signal in (s for s in guesses if s in candidates):
        guessed = candidates.dropna(subset=[signal])
        for place, part in guessed.groupby(["threat_model", "way", "client"], sort=False):
            both = part[part.groupby("label").member.transform("nunique") == 2]
            groups = [*both.groupby("label"), ("mean", both)] if len(both) else []
            for label, group in groups:
                cuts = dict.fromkeys(group.label, 0.0)
                i = accuracy_at(group[signal], group.member, group.label.to_numpy(), cuts, confidence=confidence)
                found.append((*place, label, signal, i.value, i.low, i.high, i.members, i.nonmembers))
    return pd.DataFrame(found, columns=CLASSES)


def agreement_table(table: pd.DataFrame, headline: list[str]) -> pd.DataFrame:
    """Whether two attacks of an adversary expose the same records: rank correlation, and what their top tenths have in
    common.

    Means over the targets; `chance` is the common share of two attacks that know nothing of each other.
    """
    found = []
    flipped = table[table.kind.isin(FLIPPED)]
    for place, part in flipped.groupby(["threat_model", "way"], sort=False):
        signals = [s for s in headline if s in part and part[s].notna().any()]
        clients = [{s: own[s].to_numpy() for s in signals} for _, own in part.groupby("client", sort=False)]
        for a, b in itertools.combinations(signals, 2):
            each = [_agreement(own[a], own[b]) for own in clients]
            known = pd.DataFrame([one for one in each if one is not None], columns=AGREEMENT[-3:])
            found.append((*place, a, b, *known.mean()))
    return pd.DataFrame(found, columns=AGREEMENT)


def _agreement(a: Floats, b: Floats) -> tuple[float, float, float] | None:
    """Rank correlation of two scores [n], common share of their top tenths, and that share by chance; None for fewer
    than two records."""
    known = ~(np.isnan(a) | np.isnan(b))
    n = int(known.sum())
    if n < 2:
        return None
    ranks = [rankdata(s[known]) for s in (a, b)]
    spearman = float(np.corrcoef(ranks)[0, 1]) if all(np.ptp(r) > 0 for r in ranks) else float("nan")
    return spearman, float(np.prod([_in_top(r) for r in ranks], axis=0).sum() / tenth(n)), tenth(n) / n


def _in_top(scores: Floats) -> Floats:
    """Probability [n] that a record is in the top tenth if ties are broken at random."""
    rising = np.sort(scores)
    below, up_to = (np.searchsorted(rising, scores, side) for side in ("left", "right"))
    return np.clip((tenth(len(scores)) - (len(scores) - up_to)) / (up_to - below), 0, 1)


def tenth(n: int) -> int:
    """How many of n records are the top tenth."""
    return max(1, n // TOP)


def scores_table(run: ScoredRun, table: pd.DataFrame) -> pd.DataFrame:
    """The headline scores of candidates and of records of another distribution, with the truth, for histograms."""
    place = ["threat_model", "way", "client", "record", "kind"]
    frames = [table.loc[table.kind != REFERENCE, [*place, *(s for s in run.headline if s in table)]]]
    for c in (c for c in comparisons(run) if c.nonmembers == NOVEL_OBJECTS):
        shown = c.scores[[s for s in run.headline if s in c.scores]]
        where = {"threat_model": c.threat_model, "way": c.way, "client": c.client, "record": c.record}
        frames.append(shown.assign(**where, kind=NOVEL_RECORD)[~c.member])
    return pd.concat(frames)


def exposed_table(run: ScoredRun, table: pd.DataFrame, records: Mapping[str, Record]) -> pd.DataFrame:
    """The most exposed members under the strongest adversary, as pictures and with the reason in plain words.

    Of equally exposed ones, the first headline's higher score comes first.
    """
    mine = _strongest(table)
    headline = [s for s in run.headline if s in mine and mine[s].notna().any()]
    flipped = mine[mine.kind.isin(FLIPPED)]
    tops = flipped.groupby("client")[headline].transform(_is_top).sum(axis=1)
    order = ["exposure", *headline[:1], "record"]
    members = flipped[flipped.kind == MEMBER].sort_values(order, ascending=[*[False] * (len(order) - 1), True])
    several = len({record.prompt for record in records.values()}) > 1  # else the instruction says nothing about one
    rows = []
    for rank, (at, row) in enumerate(members.head(EXPOSED).iterrows(), 1):
        record = records[row.record]
        asked = record.prompt.partition(IMAGE)[2].strip() if several else ""
        reason = _reason(int(tops[at]), len(headline), _facts(run, row))
        place = (row.threat_model, row.way, rank, row.record, row.client, row.exposure, row.percentile)
        rows.append((*place, asked, record.text, reason, picture(record)))
    return pd.DataFrame(rows, columns=SHOWN)


def _strongest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first adversary and, of the ways that reach half of its clients, of the freshest one."""
    mine = table[table.threat_model == next(name for name in STRONGEST if (table.threat_model == name).any())]
    reached = mine.groupby("way", sort=False).client.nunique()
    wide = [way for way in reached.index if 2 * reached[way] >= reached.max()]
    return mine[mine.way == min(wide, key=FRESHEST.index)]


def _facts(run: ScoredRun, row: pd.Series) -> dict[str, float]:
    """What is known for readers about a record under the model that attacks it."""
    for m in run.models:
        whose = m.client is None or client_name(m.client) == row.client
        if whose and (m.threat_model, m.way) == (row.threat_model, row.way) and m.facts is not None:
            return {str(name): value for name, value in m.facts.loc[row.record].items()}
    return {}


def _is_top(scores: pd.Series) -> pd.Series:
    """Whether each of a client's records is in the top tenth, together with its ties."""
    return scores.rank(ascending=False, method="max") <= tenth(int(scores.notna().sum()))


def _reason(tops: int, scores: int, facts: Mapping[str, float]) -> str:
    """Why a record is exposed, from numbers: by how many scores, its loss beside the loss of shadow models, and what
    the hard prompt says."""
    said = [f"in the top tenth by {tops} of {scores} scores" if scores > 1 else "by its score"]
    if facts:
        said.append(_losses(facts))
        if not facts.get("hard_right", True):
            said.append("the hard prompt gets it wrong")
    text = "; ".join(said)
    return text[0].upper() + text[1:] + "."


def _losses(facts: Mapping[str, float]) -> str:
    loss, trained, without = (facts.get(name, np.nan) for name in ("loss", "loss_in", "loss_out"))
    if np.isfinite([trained, without]).all():
        return (
            f"loss {loss:.2f}, where models trained with it have {trained:.2f} and models trained without it "
            f"{without:.2f}"
        )
    before = facts.get("base_loss", np.nan)
    return f"loss {loss:.2f}" + (f", {before:.2f} before training" if np.isfinite(before) else "")


def picture(record: Record) -> bytes:
    """The record's image as a PNG of at most `PIXELS` a side."""
    from PIL import Image

    png = io.BytesIO()
    image = Image.fromarray(record.image)
    image.thumbnail((PIXELS, PIXELS))
    image.save(png, "PNG")
    return png.getvalue()
