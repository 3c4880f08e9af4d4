"""The tables about prompts behind a report: what the attacks say of every record, of every class, and whether they
agree.

Exposure of a record is the share of its client's candidates (and canaries) that an attack ranks no higher, as a mean
over the headline scores of all attacks of an adversary: 1 = the most likely member by every attack. It is computed
without the truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from audits.comparisons import Attacked, ScoredModel, client_of, comparisons
from audits.statistics.stratified import accuracy_at
from audits.tables.curves import EXPOSED, clients_table, curve, picture
from fedaudit.tasks.base import Record, client_name

Floats = NDArray[np.float64]
COIN_FLIPPED = ("member", "held-out", "canary", "left-out canary")  # what a rank is among
TOP = 10  # one in so many records is in an attack's top
STRONGEST = ("server", "prompt-user", "released-model", "owner")  # of the adversaries the first one's records are shown
CLASSES = "threat_model way client label signal success low high members nonmembers".split()
AGREEMENT = "threat_model way signal_a signal_b spearman overlap chance".split()
SHOWN = "rank record client score percentile label reason png".split()


def exposure(run: Attacked, records: Mapping[str, Record], *, confidence: float) -> dict[str, pd.DataFrame]:
    """All tables by name; `records` have the pictures."""
    table = records_table(run)
    held_out = [c for c in comparisons(run) if c.nonmembers == "held-out"]
    headline = run.headline
    measured = [(c, s) for c in held_out for s in headline if s in c.scores and c.having(c.scores[s]).measurable]
    score_names = ["threat_model", "way", "client", "record", "kind", *(s for s in headline if s in table)]
    return {
        "records": table.drop(columns="exposure"),
        "scores": table.loc[table.kind != "reference", score_names].reset_index(drop=True),
        "clients": clients_table(held_out, headline),
        "curves": pd.concat([curve(c, s, confidence) for c, s in measured], ignore_index=True)
        if measured
        else pd.DataFrame(),
        "classes": classes_table(table, run.guesses, confidence),
        "agreement": agreement_table(table, headline),
        "exposed": exposed_table(run, table, records),
    }


def records_table(run: Attacked) -> pd.DataFrame:
    """Every record of every model: what it is, every score, and where it stands among the records that a coin decided
    about.

    `rank` 1 is the most exposed of its client (ties share the better rank), `percentile` the percentage of held-out
    records that are less exposed; NaN for the other records.
    """
    table = pd.concat([_records(run, model) for model in run.models], ignore_index=True)
    return table[[c for c in table if c not in run.signals] + [s for s in run.signals if s in table]]


def _records(run: Attacked, model: ScoredModel) -> pd.DataFrame:
    kinds = run.kinds(client_of(model))
    scores = model.scores[model.scores.index.isin(list(kinds))]
    kind = pd.Series([kinds[r] for r in scores.index], scores.index)
    signals = [s for s in run.signals if s in scores]
    flipped = scores[kind.isin(COIN_FLIPPED)]
    share = flipped[[s for s in run.headline if s in signals]].rank(pct=True).mean(axis=1)
    held_out = share[kind == "held-out"].dropna().to_numpy()
    below = np.searchsorted(np.sort(held_out), share, "left") / max(1, len(held_out))
    table = pd.DataFrame(
        {
            "threat_model": model.threat_model,
            "way": model.way,
            "client": client_name(client_of(model)),
            "record": scores.index,
            "label": [run.group[r] for r in scores.index],
            "kind": kind.to_numpy(),
            "member": kind.isin(("member", "canary")).to_numpy(),
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
    candidates = table[table.kind.isin(("member", "held-out"))]
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
    flipped = table[table.kind.isin(COIN_FLIPPED)]
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


def exposed_table(run: Attacked, table: pd.DataFrame, records: Mapping[str, Record]) -> pd.DataFrame:
    """The most exposed members under the strongest adversary, as pictures and with the reason in plain words."""
    held = next((name for name in STRONGEST if (table.threat_model == name).any()), None)
    mine = table[table.threat_model == held]
    headline = [s for s in run.headline if s in mine and mine[s].notna().any()]
    flipped = mine[mine.kind.isin(COIN_FLIPPED)]
    tops = flipped.groupby("client")[headline].transform(_is_top).sum(axis=1)
    facts = {client_name(client_of(m)): m.facts for m in run.models if m.threat_model == held}
    members = flipped[flipped.kind == "member"].sort_values(["exposure", "record"], ascending=[False, True])
    rows = []
    for rank, (at, row) in enumerate(members.head(EXPOSED).iterrows(), 1):
        known = facts[row.client]
        reason = _reason(int(tops[at]), len(headline), None if known is None else known.loc[row.record])
        shown = picture(records[row.record])
        rows.append((rank, row.record, row.client, row.exposure, row.percentile, row.label, reason, shown))
    return pd.DataFrame(rows, columns=SHOWN)


def _is_top(scores: pd.Series) -> pd.Series:
    """Whether each of a client's records is in the top tenth, together with its ties."""
    return scores.rank(ascending=False, method="max") <= tenth(int(scores.notna().sum()))


def _reason(tops: int, attacks: int, facts: pd.Series | None) -> str:
    """Why a record is exposed, from numbers: by how many attacks, its loss beside the loss of shadow models, and what
    the hard prompt says."""
    said = [f"in the top tenth of {tops} of {attacks} attacks" if attacks > 1 else "by its score"]
    if facts is not None:
        said.append(_losses(facts.to_dict()))
        if not facts.get("hard_right", True):
            said.append("the hard prompt gets it wrong")
    text = "; ".join(said)
    return text[0].upper() + text[1:] + "."


def _losses(facts: dict[str, float]) -> str:
    loss, trained, without = (facts.get(name, np.nan) for name in ("loss", "loss_in", "loss_out"))
    if np.isfinite([trained, without]).all():
        return (
            f"loss {loss:.2f}, where models trained with it have {trained:.2f} and models trained without it "
            f"{without:.2f}"
        )
    before = facts.get("base_loss", np.nan)
    return f"loss {loss:.2f}" + (f", {before:.2f} before training" if np.isfinite(before) else "")
