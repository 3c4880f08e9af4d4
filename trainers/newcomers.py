"""Clients that join after a run: the states that they can start from (`Method.arrivals`), and a round with all."""

from collections.abc import Sequence
from typing import Any

from fedaudit.trainers.base import Arrival, Method, Participation, Site, State, Upload
from fedaudit.trainers.transcript import Transcript


def arrivals(method: Method[Any], transcript: Transcript) -> dict[str, Arrival]:
    """Ways for a client to join after this run, by name, see `Method.arrivals`; {} if the method has none."""
    return method.arrivals(transcript.server(transcript.schedule.rounds), transcript.broadcast(0))


def after_a_round(
    method: Method[Any], learner: Any, transcript: Transcript, training: Sequence[Sequence[str]], arrival: Arrival,
    left_out: frozenset[str] = frozenset(),
) -> list[State]:  # fmt: skip
    """The models of all clients, by number and newcomers last, after one more round in which all take part. `training`
    are the records of each client. Every client that never took part, newcomer or not, starts from `arrival`."""
    schedule, public, r = transcript.schedule, transcript.broadcast(0), transcript.schedule.rounds
    clients = [
        Participation(k, r, schedule.seed, ids, learner, tuple(transcript.participations(k)), left_out)
        for k, ids in enumerate(training)
    ]
    private = transcript.holdings({one.client: one.earlier_rounds[-1] for one in clients if one.earlier_rounds})
    sent = method.broadcast(arrival.server)
    received = [method.download(sent, one) if one.earlier_rounds else dict(arrival.start) for one in clients]
    updates = learner.work(method, received, [private.get(one.client, public) for one in clients], clients)
    uploads = [Upload(k, len(training[k]), update.upload, update.facts) for k, update in enumerate(updates)]
    site = Site(schedule.seed, r, learner=lambda question: question(learner))
    server = method.aggregate(arrival.server, uploads, site)
    return [method.model(method.broadcast(server) | update.private) for update in updates]
