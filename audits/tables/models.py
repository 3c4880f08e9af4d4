"""The tables behind a report: what the figures show, one row per point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from audits.comparisons import Attacked, Comparison, by_round, comparisons
from audits.membership import LOSS, STRONGEST, measure
from audits.tables.curves import EXPOSED, clients_table, curve, picture
from fedaudit.tasks.base import IMAGE, Federation, client_name
from trainers.base import State, Transcript

if TYPE_CHECKING:
    from attacks.rebuild import Rebuilt


def evidence(
    run: Attacked, transcript: Transcript, rebuilt: Sequence[Rebuilt], federation: Federation,
    words: Mapping[str, Sequence[str]], *, confidence: float,
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """All tables by name; `rebuilt` are the clients as the server rebuilds them, `words` the tokens of the records in
    `panels(run)`."""
    signals = list(dict.fromkeys((*run.headline, LOSS)))
    rows = comparisons(run)
    return {
        "rounds": _rounds(run, transcript, signals, confidence),
        "clients": clients_table(rows, signals),
        "curves": pd.concat([curve(c, s, confidence) for c in rows if c.nonmembers == "held-out" for s in signals[:2]]),
        "scores": _scores(run, rows, signals),
        "tokens": _tokens(run, words),
        "exposed": _exposed(run, federation),
        "utility": _utility(transcript),
        "coverage": _coverage(rebuilt, transcript),
    }


def panels(run: Attacked) -> list[tuple[str, str]]:
    """The records of the token heatmap: the most exposed member, and the typical held-out record of its client."""
    ranked = _ranked(run)
    top = ranked[ranked.member].iloc[0]
    others = ranked[~ranked.member & (ranked.client == top.client)]
    return [("member", top.record), ("non-member", others.iloc[len(others) // 2].record)]


def _strongest(run: Attacked) -> Comparison:
    """The row whose records are shown: the server's clients, rebuilt as freshly as it can for half of them, or else the
    released model."""
    held_out = [c for c in comparisons(run) if c.nonmembers == "held-out"]
    reached = {id(c): len(set(c.client)) for c in held_out}
    order = {"exact": 0, "newest": 1, "server-fill": 2, "final": 3}
    wide = [c for c in held_out if 2 * reached[id(c)] >= max(reached.values())]
    return min(wide, key=lambda c: order.get(c.way, 9))


def _ranked(run: Attacked) -> pd.DataFrame:
    """Candidates by falling score of the strongest signal under the strongest row."""
    row = _strongest(run)
    scored = row.scores.assign(client=row.client, member=row.member, record=row.record)
    return scored.sort_values([STRONGEST, "record"], ascending=[False, True])


def _rounds(run: Attacked, transcript: Transcript, signals: Sequence[str], confidence: float) -> pd.DataFrame:
    rows = []
    for comparison in by_round(run):
        loss = transcript.round(comparison.round - 1)["utility"].get("global", {}).get("loss")
        for signal in signals:
            found = measure(comparison, comparison.scores[signal], confidence)
            rows.append(
                {
                    "round": comparison.round,
                    "population": comparison.population,
                    "signal": signal,
                    "auroc": found.value,
                    "low": found.low,
                    "high": found.high,
                    "heldout_loss": loss,
                    "members": found.members,
                }
            )
    return pd.DataFrame(rows)


def _scores(run: Attacked, rows: Sequence[Comparison], signals: Sequence[str]) -> pd.DataFrame:
    """Scores of candidates, with the truth: for histograms and for the reader's own analysis."""
    frames = []
    kinds = {
        "held-out": ("member", "held-out"), "novel objects": ("member", "novel"),
        "left-out canaries": ("canary", "left-out canary"),
    }  # fmt: skip
    for c in rows:
        if c.population == "last-round members":
            continue
        keep = ~c.member if c.nonmembers == "novel objects" else np.full(len(c.member), True)
        kind = np.where(c.member, *kinds[c.nonmembers])
        shown = c.scores[list(signals)].assign(
            threat_model=c.threat_model, way=c.way, client=c.client, record=c.record, kind=kind
        )
        frames.append(shown[keep])
    return pd.concat(frames, ignore_index=True)


def _tokens(run: Attacked, words: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    row = _strongest(run)
    frames = []
    for panel, record in panels(run):
        at = int(np.flatnonzero(row.record == record)[0])
        now, before = row.scores.iloc[at], row.base.iloc[at]
        frames.append(
            pd.DataFrame(
                {
                    "panel": panel,
                    "record": record,
                    "position": range(len(now.token_entropy)),
                    "token": words[record][1:],
                    "slice": now.token_slice,
                    "entropy": now.token_entropy,
                    "base_entropy": before.token_entropy,
                    "log_prob": np.where(np.array(now.token_slice) == "image", np.nan, now.token_log_prob),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def _exposed(run: Attacked, federation: Federation) -> pd.DataFrame:
    ranked = _ranked(run)
    others = ranked[~ranked.member][STRONGEST].to_numpy()
    records = federation.records
    several = len({r.prompt for r in records.values()}) > 1  # else the instruction says nothing about a record
    rows = []
    for rank, (_, row) in enumerate(ranked[ranked.member].head(EXPOSED).iterrows(), 1):
        score = float(row[STRONGEST])
        percentile = 100 * float(np.mean(others < score))
        record = records[row.record]
        asked = record.prompt.partition(IMAGE)[2].strip() if several else ""
        rows.append((rank, record.id, row.client, score, score, percentile, asked, record.text, picture(record)))
    names = ["rank", "record", "client", "score", "gain", "percentile", "asked", "caption", "png"]
    return pd.DataFrame(rows, columns=names)


def _utility(transcript: Transcript) -> pd.DataFrame:
    rows = [{"round": -1, "model": model} | found for model, found in transcript.initial["utility"].items()]
    for r in range(transcript.schedule.rounds):
        for model, utility in transcript.round(r)["utility"].items():
            rows.append({"round": r, "model": model} | utility)
    return pd.DataFrame(rows, columns=None if rows else ["round", "model"])


def _coverage(rebuilt: Sequence[Rebuilt], transcript: Transcript) -> pd.DataFrame:
    """What the server can rebuild, and how far it is from the owner's true state."""
    rows = []
    for found in rebuilt:
        distance = None
        if found.state is not None and found.seen is not None:
            true = transcript.own_model(found.seen, found.client)
            distance = None if true is None else update_distance(found.state, true)
        possible = found.state is not None
        rows.append((found.way, client_name(found.client), possible, found.why, found.stale_rounds,
                     found.stale_participations, distance))  # fmt: skip
    names = ["way", "client", "reconstructable", "why", "stale_rounds", "stale_participations", "distance"]
    return pd.DataFrame(rows, columns=names)


def update_distance(rebuilt: State, true: State) -> float:
    """Relative Frobenius distance of the weight updates B A: 0 is exact, 1 is as far as no update at all."""
    names = sorted(name[:-2] for name in true if name.endswith(".A"))
    squared, norm = 0.0, 0.0
    for name in names:
        product = true[f"{name}.B"].double() @ true[f"{name}.A"].double()
        guess = rebuilt[f"{name}.B"].double() @ rebuilt[f"{name}.A"].double()
        squared += float((guess - product).square().sum())
        norm += float(product.square().sum())
    return (squared / norm) ** 0.5 if norm else float("nan")
