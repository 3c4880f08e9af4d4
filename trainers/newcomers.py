"""A new client of DP2FL: what it can start from, before it trains and after a round with all others (its Tables 3, 4).

global      the global model, PT and PD of the last round
init_glo    the global task prompt, and the data prompt of the public start
init        the public start, PT and PD
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from trainers.base import Participation, Site, State, Transcript, Upload
from trainers.dp2fl import DP2FL
from trainers.maple import Learner

STARTS = ("global", "init_glo", "init")


def starts(transcript: Transcript) -> dict[str, State]:
    """The models {"Pt", "Pd"} that a new client may start from after a run."""
    first, last = transcript.broadcast(0), transcript.broadcast(transcript.schedule.rounds)
    pairs = {"global": (last, last), "init_glo": (last, first), "init": (first, first)}
    return {name: {"Pt": task["Pt"], "Pd": data["Pd"]} for name, (task, data) in pairs.items()}


def after_a_round(
    method: DP2FL,
    learner: Learner,
    transcript: Transcript,
    training: Sequence[Sequence[str]],
    start: Mapping[str, Tensor],
) -> list[State]:
    """The models of all clients after one further round with a new one, which comes last, from `start`.

    `training` are the clients' lists, one more than the run had. The new one's mixture moves from the data prompt that
    it began at (eq. 9), as an old client's does from its own.
    """
    schedule, r = transcript.schedule, transcript.schedule.rounds
    server = transcript.broadcast(r) | {"Pd": start["Pd"]}  # which is what clients without a mixture of their own get
    clients = [
        Participation(k, r, schedule.seed, own, learner, tuple(transcript.participations(k)))
        for k, own in enumerate(training)
    ]
    received = [method.download(server, one) for one in clients[:-1]] + [dict(start)]
    done = learner.work(method, received, [{}] * len(clients), clients)
    uploads = [Upload(k, len(training[k]), update.upload, update.facts) for k, update in enumerate(done)]
    site = Site(schedule.seed, r, learner=lambda question: question(learner))
    aggregate = method.aggregate(server, uploads, site)
    return [method.model(aggregate | update.private) for update in done]
