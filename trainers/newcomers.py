"""Clients that come after a run: what their method lets them start from (`Method.arrivals`), and one round of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainers.base import Arrival, Method, Participation, Site, State, Upload
from trainers.transcript import Transcript


def arrivals(method: Method[Any], transcript: Transcript) -> dict[str, Arrival]:
    """How a client may come after a run, by name."""
    return method.arrivals(transcript.server(transcript.schedule.rounds), transcript.broadcast(0))


def after_a_round(
    method: Method[Any], learner: Any, transcript: Transcript, training: Sequence[Sequence[str]], arrival: Arrival,
    left_out: frozenset[str] = frozenset(),
) -> list[State]:  # fmt: skip
    """The models of all clients after one further round with those that the run did not have, which come last.

    `training` are the lists of all of them.
    """
    schedule, public, r = transcript.schedule, transcript.broadcast(0), transcript.schedule.rounds
    clients = [
        Participation(k, r, schedule.seed, ids, learner, tuple(transcript.participations(k)), left_out)
        for k, ids in enumerate(training)
    ]
    held = transcript.holdings({one.client: one.earlier[-1] for one in clients if one.earlier})
    sent = method.broadcast(arrival.server)
    received = [method.download(sent, one) if one.earlier else dict(arrival.start) for one in clients]
    done = learner.work(method, received, [held.get(one.client, public) for one in clients], clients)
    uploads = [Upload(k, len(training[k]), update.upload, update.facts) for k, update in enumerate(done)]
    site = Site(schedule.seed, r, learner=lambda question: question(learner))
    server = method.aggregate(arrival.server, uploads, site)
    return [method.model(method.broadcast(server) | update.private) for update in done]
