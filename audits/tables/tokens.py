"""The table of a report behind the token heatmap: the most exposed member beside a typical held-out record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedaudit.audits.comparisons import ScoredModel, ScoredRun
from fedaudit.tasks.base import client_name
from fedaudit.terms.record_kinds import HELD_OUT_RECORD


def panels(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """The ids of the heatmap's records: "member", the most exposed member, and "non-member", the held-out record of its
    client with the median rank (if there is one). Empty without the table `exposed`."""
    if "exposed" not in tables:
        return {}
    top, records = tables["exposed"].iloc[0], tables["records"]
    model = ["threat_model", "way", "client"]
    others = records[(records[model] == top[model]).all(axis=1) & (records.kind == HELD_OUT_RECORD)]
    ranked = others.sort_values(["rank", "record"])
    return {"member": top.record} | ({"non-member": ranked.record.iloc[len(ranked) // 2]} if len(ranked) else {})


def tokens_table(
    run: ScoredRun, tables: Mapping[str, pd.DataFrame], words: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """A row per token but the first of the two records of `panels(tables)`: panel, record, position, token, slice (part
    of the text), entropy and base_entropy, Rényi-2 in nats under the attacked model and under the public start, and
    log_prob (NaN for image tokens). `words` by record are all tokens. Empty without exposed records."""
    frames = []
    for panel, record in panels(tables).items():
        model = _model(run, tables["exposed"].iloc[0])
        assert model.facts is not None
        tokens = model.facts.loc[record]
        parts = np.array(tokens.token_slice)
        columns = {
            "panel": panel, "record": record, "position": range(len(parts)), "token": words[record][1:], "slice": parts,
            "entropy": tokens.token_entropy, "base_entropy": tokens.base_token_entropy,
            "log_prob": np.where(parts == "image", np.nan, tokens.token_log_prob),
        }  # fmt: skip
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _model(run: ScoredRun, exposed: pd.Series) -> ScoredModel:
    """The model under which a row of the table `exposed` was attacked, with its scores."""
    return next(
        m
        for m in run.models
        if (m.threat_model, m.way) == (exposed.threat_model, exposed.way)
        and (m.client is None or client_name(m.client) == exposed.client)
    )
