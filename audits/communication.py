"""Communication audit: bytes of the tensors really sent, beside what FedAvg sends (FedRand, Figure 3).

FedAvg sends every client of a round the whole model and gets it back: twice the bytes of the public start, or of the
model that it gives if that is smaller (for prompts the personalised prompt, whose parts may be larger).
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from fedaudit.audits.subject import Result, Subject
from fedaudit.trainers.base import size
from fedaudit.trainers.transcript import Transcript

COLUMNS = "round bytes_down bytes_up fedavg_bytes messages complete".split()


@dataclass(frozen=True)
class Params:
    """The communication audit has no parameters."""


def communication(subject: Subject, params: Params) -> Result:
    """No findings; the table `cost` (see `messages`)."""
    return Result(tables={"cost": messages(subject.transcript)})


def messages(transcript: Transcript) -> pd.DataFrame:
    """A row per round with the columns round, bytes_down and bytes_up (of all clients together), fedavg_bytes (what
    FedAvg would send, both ways), messages (uploads), and complete (uploads that held the client's whole model)."""
    start = transcript.broadcast(0)
    whole = min(size(start), size(transcript.model(start)))
    rows = []
    for r in range(transcript.schedule.rounds):
        record = transcript.round(r)
        both = 2 * whole * len(record["cohort"])
        complete = sum(not message["kept"] for message in record["uploads"].values())
        rows.append((r, record["bytes_down"], record["bytes_up"], both, len(record["uploads"]), complete))
    return pd.DataFrame(rows, columns=COLUMNS)
