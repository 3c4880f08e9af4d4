"""Probes: a server that acts sends one broadcast of its own making, and solves what each client sends back.

The training itself stays as it was. After it, the honest client's own code answers the probe with the records, batch
and noise of that round (`trainers.rounds.answers_to`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fedaudit.attacks.knowledge import Attack, Mixture
from fedaudit.attacks.messages.mixtures import mixture
from fedaudit.trainers.base import Method, State
from fedaudit.trainers.prompts import Learner, PromptMethod, stack_states

if TYPE_CHECKING:
    from fedaudit.attacks.attacked_models import Target
    from fedaudit.attacks.base import View


@dataclass(frozen=True)
class Probe:
    """A broadcast of the server's own making, in place of that of round `round`, counted from 0."""

    round: int
    state: State


class ActiveAttack(Attack, Protocol):
    """An attack whose file says `needs = ("probes",)`. Its score reads `Knowledge.probed`, by the attack's name."""

    def craft(self, view: View) -> Probe:
        """The probe, from what the server has seen."""
        ...


class Probed(Protocol):
    """A probe, and what came back."""

    @property
    def probe(self) -> Probe: ...

    def answer(self, client: int) -> State:
        """The state that a client sent back; {} if it did not take part in the round, or refused."""


def length(state: State) -> float:
    """The length of all tensors of a state, laid end to end."""
    return float(torch.cat([tensor.flatten() for tensor in state.values()]).double().norm())


def growth(view: View, sent: State, r: int, client: int) -> float:
    """The length of what a client is sent in round r over that of the last broadcast that it was sent before, or of the
    public start: what it could notice."""
    last = max((one for one in view.participations(client) if one < r), default=0)
    return length(sent) / length(view.broadcast(last))


def solvable(view: View, method: Method[Any], learner: Any, attack: str, target: Target) -> Mixture:
    """The answer of a target to an attack's probe as a mixture of its records. The client's own part is taken to be at
    the public start: a probe is made so that it matters little."""
    assert isinstance(method, PromptMethod)
    assert isinstance(learner, Learner)
    assert target.client is not None
    probed, k = view.probe(attack), target.client
    probe, listed = probed.probe, view.records(probed.probe.round, k)
    server, private, answer = (stack_states([state]) for state in (probe.state, view.public, probed.answer(k)))
    start = {name: tensor[0] for name, tensor in method.messages.round_start(server, private).items()}
    return mixture(
        method,
        torch.cat([*learner.sent_gradients(method, start, target.own)]),
        method.messages.data_gradient_sum(server, private, answer, learner, method.steps(listed))[0],
        r=probe.round,
        turn=view.participations(k).index(probe.round),
        listed=listed,
        complete=target.complete,
    )
