"""What a server computes of the messages of a run on prompts: the clients' models round by round, and what records look
like to each of them.

A client's own part never leaves it, but its start is public and the same for all, and what moves it is the gradient
that is uploaded. So the server replays the method's own rule for it (`MethodMessages.replay`), from the first message
to the last. How good that is differs:

- PromptFL, DP2FL: the upload is the client's model, exact.
- FedOTP, FedPGP: exact without noise (and, of FedPGP, without clipping). `fedotp --match ot` uploads only p_G's part of
  the gradient, so that p_L is unknown and stays at its start.
- DP-FPL: the random Q of every round is the client's own. The server takes the expected step: after 100 noise-free
  rounds of rank 8 with a prompt of 16 vectors, p_L is off by .4 to .5 of its length and p_i by a third. At rank 0 it is
  exact.
- SecFPP: the server decodes sums over clusters. The mean of a client's cluster is taken for what the client did, and
  what the other clients put into a sum for what all of their candidates would.
- With noise on the client's own part the replay is that of a run without it, and soon says little.
- Local prompts and zero-shot send nothing: there is nothing to rebuild.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.answers import Arrays, Floats, own_class
from attacks.base import View
from attacks.gradients import directions, mean_gradient
from attacks.knowledge import Mixture
from attacks.messages.mixtures import mixture, of_sum
from attacks.messages.rebuild import Rebuilt
from fedaudit.privacy.ledger import epoch_length
from fedaudit.terms.held_models import ESTIMATED, REBUILT
from trainers.base import Method, Participation, State, generator
from trainers.messages import Sending
from trainers.prompts import Learner, PromptMethod, stack_states
from trainers.protocols import Classifier, Differentiable

EPOCHS = 2  # whose messages are solved


@dataclass(frozen=True, eq=False)
class Exchange:
    """One round as the server saw it. All states lead with the M clients that sent something, in the order of
    `clients`."""

    clients: list[int]
    server: State  # what the round started from
    own: State  # the clients' own parts at its start, as replayed
    upload: State
    after: State  # their own parts at its end


class ReplayedMessages:
    """All messages of a run, read and replayed once. LacksCapability where the threat model does not see them."""

    def __init__(
        self, view: View, method: Method[Any], learner: Classifier, candidates: Sequence[Sequence[str]] = ()
    ) -> None:
        """`candidates`: what each client's list may hold, by which sums over several are taken apart."""
        self.view, self.method, self.learner, self.candidates = view, method, learner, candidates
        self.way = REBUILT if view.gives("uploads") else ESTIMATED
        self._means: dict[tuple[int, int], Tensor] = {}
        self.exchanges = self._exchanges()  # by round; rounds in which nobody sent anything are not there

    def rebuilt(self, client: int) -> Rebuilt:
        """The client's personalised prompt after its last participation, as `View.private` has the true one."""
        rounds = [r for r, exchange in self.exchanges.items() if client in exchange.clients]
        if not rounds:
            return Rebuilt(client, self.way, None, None, None, None, "never sent anything")
        last = self.exchanges[rounds[-1]]
        i = last.clients.index(client)
        server = self.view.broadcast(rounds[-1] + 1) | self.method.messages.model_selector(client)
        state = self.method.model(_of(last.after, i) | server | _of(last.upload, i))
        return Rebuilt(client, self.way, state, rounds[-1], 0, 0)

    def round(
        self, client: int, r: int, records: Sequence[str], parts: Collection[str], own: int, complete: bool
    ) -> Arrays:
        """What round r says about a client's records, by name of the part and of the array.

        `heard`: `loss/WAY` [K, n] under what each client's model is right after its own step, before any other client's
        message is mixed in, and `cosine` [K, n] of what clients sent with the records' gradients in it, where this
        client took its own; nan where one sent nothing, and of the cosines where this client was away. `solved`: its
        message as a mixture of the first `own` records, see `mixtures`.
        """
        shape = len(self.view.clients), len(records)
        loss, cosine = f"heard/loss/{self.way}", "heard/cosine"
        found = {name: np.full(shape, np.nan) for name in (loss, cosine)} if "heard" in parts else {}
        if (exchange := self.exchanges.get(r)) is None:
            return found
        if found:
            found[loss][exchange.clients] = losses(self.method, self.learner, self._stepped(exchange), records)
        if client in exchange.clients:
            i = exchange.clients.index(client)
            ascents = self._gradients(exchange, i, records if found else records[:own])
            if "solved" in parts:
                ascents = [gradients := torch.cat([*ascents])]
                turn = turns(self.view, client).index(r)
                mixture = self._mixture(r, i, gradients[:own], turn, complete)
                found |= {f"solved/{name}": array for name, array in mixture.arrays().items()}
            if "heard" in parts:
                found[cosine][exchange.clients] = self._cosines(exchange, ascents)
        return found

    def _exchanges(self) -> dict[int, Exchange]:
        view = self.view
        own, chance = dict.fromkeys(view.clients, view.public), generator(0, "server", "replay")
        found: dict[int, Exchange] = {}
        for r in range(view.rounds):
            messages = self._messages(r)
            if not messages:
                continue
            server = stack_states([self._sent(r, k, [t for t in found if k in found[t].clients]) for k in messages])
            upload = stack_states(list(messages.values()))
            before = stack_states([own[k] for k in messages])
            sizes = [listed(view, r, k, self.candidates) for k in messages]
            after = self.method.messages.replay(server, before, upload, self.learner, chance, sizes)
            own |= {k: _of(after, i) for i, k in enumerate(messages)}
            found[r] = Exchange(list(messages), server, before, upload, after)
        return found

    def _messages(self, r: int) -> dict[int, State]:
        """By client what it sent in round r; where only sums are seen, the mean of its group in its place."""
        if self.view.gives("uploads"):
            return dict(sorted(self.view.uploads(r).items()))
        groups, means = self.view.sums(r)
        return {k: {"gradient": means[g]} for k, g in sorted((k, g) for g, group in enumerate(groups) for k in group)}

    def _sent(self, r: int, client: int, earlier: Sequence[int]) -> State:
        """What a client that took part in these rounds received in round r, and of a server that sees its messages what
        else all could."""
        server = self.view.broadcast(r)
        own = self.method.download(server, Participation(client, r, 0, (), self.learner, earlier))
        if not self.view.gives("uploads"):
            return own
        return {name: tensor for name, tensor in server.items() if name not in self.method.by_client} | own

    def _stepped(self, exchange: Exchange) -> list[State]:
        """The models of the M clients right after their own steps."""
        messages = self.method.messages
        assert isinstance(messages, Sending)
        stepped = messages.after_local_steps(exchange.server, exchange.after, exchange.upload)
        return [_of(stepped, i) for i in range(len(exchange.clients))]

    def _gradients(self, exchange: Exchange, i: int, records: Sequence[str]) -> Iterable[Tensor]:
        """Of each record [R, ..] in what the i-th client sent, where it took its first step; of some at a time."""
        messages, learner = self.method.messages, self.learner
        assert isinstance(messages, Sending)
        assert isinstance(learner, Differentiable)
        start = messages.round_start(_of(exchange.server, i), _of(exchange.own, i))
        return learner.sent_gradients(self.method, start, records)

    def _cosines(self, exchange: Exchange, ascents: Iterable[Tensor]) -> Floats:
        """Cosines [M, n] of all clients' updates with the direction in which each record's loss falls fastest, against
        its gradient [n, ..]."""
        messages = self.method.messages
        assert isinstance(messages, Sending)
        update = directions(messages.update_vector(exchange.server, exchange.upload))
        return torch.cat([update @ directions(-ascent).T for ascent in ascents], dim=1).numpy()

    def _mixture(self, r: int, i: int, gradients: Tensor, turn: int, complete: bool) -> Mixture:
        exchange, method, learner = self.exchanges[r], self.method, self.learner
        assert isinstance(method, PromptMethod)
        assert isinstance(learner, Learner)
        n = listed(self.view, r, exchange.clients[i], self.candidates)
        states = exchange.server, exchange.own, exchange.upload
        sent = method.messages.data_gradient_sum(*states, learner, method.steps(n))
        if self.view.gives("uploads"):
            return mixture(method, gradients, sent[i], r=r, turn=turn, listed=n, complete=complete)
        group = next(group for group in self.view.sums(r)[0] if exchange.clients[i] in group)
        others = [self._expected(r, k) for k in group if k != exchange.clients[i]]
        own = len(group) * sent[i] - (torch.stack(others).sum(0) if others else 0)
        return of_sum(gradients, own / len(group), r=r, divisor=len(group) * n)

    def _expected(self, r: int, client: int) -> Tensor:
        """What a client may have put into the sum of round r: the mean gradient of all that its list may hold."""
        if (r, client) not in self._means:
            exchange, method, learner = self.exchanges[r], self.method, self.learner
            assert isinstance(method, PromptMethod)
            assert isinstance(learner, Learner)
            i = exchange.clients.index(client)
            prompt = method.prompt(method.messages.round_start(_of(exchange.server, i), _of(exchange.own, i)))
            self._means[r, client] = mean_gradient(method, learner, prompt, self.candidates[client])
        return self._means[r, client]


def turns(view: View, client: int) -> list[int]:
    """The rounds in which a client sent something, to whoever sees no more than sums too."""
    if view.gives("uploads"):
        return view.participations(client)
    return [r for r in range(view.rounds) if any(client in group for group in view.sums(r)[0])]


def listed(view: View, r: int, client: int, candidates: Sequence[Sequence[str]]) -> int:
    """How many records a client's list holds: it says so, or half of what it may hold (`candidates`, by client)."""
    return view.records(r, client) if view.gives("uploads") else max(1, len(candidates[client]) // 2)


def solved_rounds(
    view: View, method: Method[Any], client: int, candidates: Sequence[Sequence[str]], rounds: int
) -> list[int]:
    """Whose messages are solved for their batches: the client's first so many rounds; 0 = those of its first `EPOCHS`
    epochs, in each of which a record is in one batch."""
    assert isinstance(method, PromptMethod)
    own = turns(view, client)
    if not rounds and own:
        n = listed(view, own[0], client, candidates)
        rounds = math.ceil(EPOCHS * epoch_length(records=n, batch=method.settings.batch) / method.steps(n))
    return own[:rounds]


def losses(method: Method[Any], learner: Classifier, models: Sequence[State], records: Sequence[str]) -> Floats:
    """Cross-entropies [M, n] in nats of records under M models."""
    return -own_class(learner.log_probs(method, models, records), learner.labels(records).numpy())


def _of(state: State, i: int) -> State:
    """One client's of a state that leads with clients."""
    return {name: tensor[i] for name, tensor in state.items()}
