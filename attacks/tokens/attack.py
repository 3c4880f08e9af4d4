"""What the token attacks share: one forward pass per record and model gives every score; slices and orders are views of
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from attacks.attacked_models import Model, models
from attacks.base import View
from attacks.tokens.scores import record_scores, spans_of
from attacks.tokens.signals import TokenSignals, row_signals
from trainers.base import State


class TokenAttack:
    """Scores records by the next-token distributions of a model that the adversary holds. Higher = more likely a
    member."""

    signal: str  # the score that the attack stands for
    compat = "exact"
    novel_rows = "released"  # which rows are measured against records of another distribution too

    def models(self, view: View) -> list[Model]:
        """The models to ask, with the records to ask about."""
        return models(view, novel_of_clients=self.novel_rows == "all")

    def ask(self, learner: Any, state: State, records: Sequence[str]) -> pd.DataFrame:
        """A row per record: every cell of `record_scores`, and per token the slice, the Rényi-2 entropy and log p
        (nats)."""
        rows: dict[int, dict[str, Any]] = {}
        for part in learner.chunks(state, records):
            encoded = [learner.data[records[i]] for i, _ in part]
            targets = torch.cat([e.ids[1:] for e in encoded])
            signals = row_signals(torch.cat([logits[:-1] for _, logits in part]), targets, compat=self.compat)
            start = 0
            for (i, _), e in zip(part, encoded, strict=True):
                own = signals[start : start + len(e.ids) - 1]
                start += len(own)
                rows[i] = self._row(own, e, learner.vlm.tokenizer.decode(e.ids[e.prompt : -1]))
        return pd.DataFrame([rows[i] for i in range(len(records))])

    def _row(self, signals: TokenSignals, encoded: Any, text: str) -> dict[str, Any]:
        part = np.full(len(signals), "instruction", dtype=object)
        for name, span in encoded.spans.items():
            part[span] = name
        cells = record_scores(signals, spans_of(encoded.spans, self.compat), text, compat=self.compat)
        tokens = {"token_entropy": signals.renyi[2], "token_log_prob": signals.log_prob}
        return {"record": encoded.id, **cells, "token_slice": part.tolist()} | {
            name: values.astype(np.float32) for name, values in tokens.items()
        }

    def calibrate(self, scores: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
        """Add the score that the public base model calibrates: mean log p - log p_base over the caption."""
        reference = base["loss/caption"].reindex(scores.index)
        return scores.assign(**{"loss-base/caption": scores["loss/caption"] - reference})
