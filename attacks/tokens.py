"""What the token attacks share: one forward pass per record and model gives every score; slices and orders are views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attacks.base import View
from attacks.models import Model, models
from attacks.signals import token_signals
from trainers.base import State


class TokenAttack:
    """Scores records by the next-token distributions of a model that the adversary holds. Higher = more likely a member."""

    signal: str  # the score that the attack stands for
    compat = "exact"

    def models(self, view: View) -> list[Model]:
        """The models to ask, with the records to ask about."""
        return models(view)

    def score(self, learner: Any, state: State, records: Sequence[str]) -> pd.DataFrame:
        """A row per record: every cell of `record_scores`, and per token the slice, the Rényi-2 entropy and log p (nats)."""
        from attacks.maxrenyi import record_scores

        compat = None if self.compat == "exact" else self.compat
        learner.put(state)
        rows = []
        for record, logits in zip(records, learner.logits(records), strict=True):
            encoded = learner.data[record]
            signals = token_signals(logits, encoded.ids, compat=compat)
            text = learner.vlm.tokenizer.decode(encoded.ids[encoded.prompt : -1])
            part = np.full(len(encoded.ids) - 1, "instruction", dtype=object)
            for name, span in encoded.spans.items():
                part[span] = name
            rows.append(
                {"record": record}
                | record_scores(signals, encoded.spans, text, compat=self.compat)
                | {
                    "token_slice": part.tolist(),
                    "token_entropy": signals.renyi[2].astype(np.float32),
                    "token_log_prob": signals.log_prob.astype(np.float32),
                }
            )
        return pd.DataFrame(rows)

    def calibrate(self, scores: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
        """Add the score that the public base model calibrates: mean log p - log p_base over the caption."""
        reference = base["loss/caption"].reindex(scores.index)
        return scores.assign(**{"loss-base/caption": scores["loss/caption"] - reference})
