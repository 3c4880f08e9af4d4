"""FedMaPLe: MaPLe's dual prompts, trained by all clients on all of their records and averaged (Khattak et al. 2023).

Each client trains the task prompt Pt and the data prompt Pd (`trainers/maple.py`) and sends both; the server averages
them by n_k (FedAvg; McMahan et al. 2017, algorithm 1). Clients keep nothing, and hold no records back.

There is no paper of it that is followed here, and DP2FL's baselines are on soft prompts: it shows what dual prompts
learn and leak without DP2FL's mixtures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedaudit.trainers.base import Site, State, Update, Upload, mean_by_records
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.maple import DualCohort, DualMethod


class Facts(MethodFacts):
    learner = "maple"
    title = "FedMaPLe"


@dataclass(frozen=True)
class Params:
    """FedMaPLe has no parameters of its own."""


@dataclass(frozen=True)
class FedMaPLe(DualMethod):
    params: Params

    shared = ("Pt", "Pd")

    def divided(self, records: Sequence[str], client: int, seed: int) -> tuple[list[str], list[str]]:
        return list(records), []

    def update(self, server: State, own: State, client: DualCohort) -> Update:
        Pt, Pd = server["Pt"], server["Pd"]
        for step in client.steps():
            in_Pt, in_Pd = step.gradients(Pt, Pd)
            Pt, Pd = step.descend(Pt, in_Pt), step.descend(Pd, in_Pd)
        return Update(upload={"Pt": Pt, "Pd": Pd}, private={})

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return mean_by_records(uploads)
