"""What a server computes of the messages of a run on prompts: the clients' models round by round, and what records look
like to each of them.

A client's own part never leaves it, but its start is public and the same for all, and what moves it is the gradient
that is uploaded. So the server replays the method's own rule for it (`PromptMethod.replay`), from the first message to
the last. How good that is differs:

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.base import View
from attacks.gradients import directions, mean_gradient
from attacks.knowledge import Floats, Mixture, Rounds, own_class
from attacks.mixtures import mixture, of_sum
from attacks.rebuild import Rebuilt
from fedaudit.privacy.ledger import epoch_length
from fedaudit.terms.held_models import ESTIMATED, REBUILT
from trainers.base import Classifier, Differentiable, Method, Participation, Sending, State, generator
from trainers.prompts import Learner, PromptMethod, stacked

EPOCHS = 2  # whose messages are solved: in each a record is in one batch


@dataclass(frozen=True)
class Solved:
    """Which messages of a client are solved for the records of their batches."""

    rounds: int  # the client's first ones; 0 = those of its first `EPOCHS` epochs
    own: int  # the first so many of the records asked about could be its own
    complete: bool  # whether its list holds no other ones, and each of them with weight


@dataclass(frozen=True, eq=False)
class Exchange:
    """One round as the server saw it. All states lead with the M clients that sent something, in the order of
    `clients`."""

    clients: list[int]
    server: State  # what the round started from
    own: State  # the clients' own parts at its start, as replayed
    upload: State
    after: State  # their own parts at its end


class Messages:
    """All messages of a run, read and replayed once. LacksCapability where the threat model does not see them."""

    def __init__(
        self, view: View, method: Method[Any], learner: Classifier, candidates: Sequence[Sequence[str]] = ()
    ) -> None:
        """`candidates`: what each client's list may hold, by which sums over several are taken apart."""
        self.view, self.method, self.learner, self.candidates = view, method, learner, candidates
        self._means: dict[tuple[int, int], Tensor] = {}
        self.exchanges = self._exchanges()  # by round; rounds in which nobody sent anything are not there

    def rebuilt(self, client: int) -> Rebuilt:
        """The client's personalised prompt after its last participation, as `View.private` has the true one."""
        rounds = [r for r, exchange in self.exchanges.items() if client in exchange.clients]
        way = REBUILT if self.view.gives("uploads") else ESTIMATED
        if not rounds:
            return Rebuilt(client, way, None, None, None, None, "never sent anything")
        last = self.exchanges[rounds[-1]]
        i = last.clients.index(client)
        server = self.view.broadcast(rounds[-1] + 1) | self.method.place(client)
        state = self.method.model(_of(last.after, i) | server | _of(last.upload, i))
        return Rebuilt(client, way, state, rounds[-1], 0, 0)

    def rounds(
        self, client: int, records: Sequence[str], rounds: Sequence[int], *, solved: Solved | None = None
    ) -> Rounds:
        """What the messages of T rounds say about a client's records; `solved`: whose messages are solved for their
        batches.

        Losses are under what each client's model is right after its own step, before any other client's message is
        mixed in. Cosines take the records' gradients in what is sent, where this client took its own; if it was away,
        the round has none.
        """
        shape = len(rounds), len(self.view.clients), len(records)
        loss, cosine = np.full(shape, np.nan), np.full(shape, np.nan)
        turns = [r for r, exchange in self.exchanges.items() if client in exchange.clients]
        first = set(self._first(client, turns, solved.rounds)) if solved else set()
        mixtures = []
        for r in sorted({*rounds, *first} & self.exchanges.keys()):
            exchange, at = self.exchanges[r], [t for t, observed in enumerate(rounds) if observed == r]
            if at:
                models = self._stepped(exchange)
                loss[at, exchange.clients] = losses(self.method, self.learner, models, records)
            if client in exchange.clients:
                i = exchange.clients.index(client)
                parts = self._gradients(exchange, i, records if at or not solved else records[: solved.own])
                if solved and r in first:
                    parts = [gradients := torch.cat([*parts])]
                    mixtures.append(self._mixture(r, i, gradients[: solved.own], turns.index(r), solved.complete))
                if at:
                    cosine[at, exchange.clients] = self._cosines(exchange, parts)
        return Rounds(client, loss, cosine, tuple(mixtures))

    def _exchanges(self) -> dict[int, Exchange]:
        view = self.view
        own, chance = dict.fromkeys(view.clients, view.public), generator(0, "server", "replay")
        found: dict[int, Exchange] = {}
        for r in range(view.rounds):
            messages = self._messages(r)
            if not messages:
                continue
            server = stacked([self._sent(r, k, [t for t in found if k in found[t].clients]) for k in messages])
            upload = stacked(list(messages.values()))
            before = stacked([own[k] for k in messages])
            sizes = [self._listed(r, k) for k in messages]
            after = self.method.replay(server, before, upload, self.learner, chance, sizes)
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

    def _listed(self, r: int, client: int) -> int:
        """How many records a client's list holds: it says so, or half of what it may hold."""
        return self.view.records(r, client) if self.view.gives("uploads") else max(1, len(self.candidates[client]) // 2)

    def _stepped(self, exchange: Exchange) -> list[State]:
        """The models of the M clients right after their own steps."""
        assert isinstance(self.method, Sending)
        stepped = self.method.stepped(exchange.server, exchange.after, exchange.upload)
        return [_of(stepped, i) for i in range(len(exchange.clients))]

    def _first(self, client: int, turns: Sequence[int], rounds: int) -> Sequence[int]:
        """The first so many rounds of a client, by default those of its first epochs."""
        assert isinstance(self.method, PromptMethod)
        if not rounds and turns:
            listed = self._listed(turns[0], client)
            epoch = epoch_length(records=listed, batch=self.method.settings.batch)
            rounds = math.ceil(EPOCHS * epoch / self.method.steps(listed))
        return turns[:rounds]

    def _gradients(self, exchange: Exchange, i: int, records: Sequence[str]) -> Iterable[Tensor]:
        """Of each record [R, ..] in what the i-th client sent, where it took its first step; of some at a time."""
        method, learner = self.method, self.learner
        assert isinstance(method, Sending)
        assert isinstance(learner, Differentiable)
        began = method.began(_of(exchange.server, i), _of(exchange.own, i))
        return learner.sent_gradients(method, began, records)

    def _cosines(self, exchange: Exchange, ascents: Iterable[Tensor]) -> Floats:
        """Cosines [M, n] of all clients' updates with the direction in which each record's loss falls fastest, against
        its gradient [n, ..]."""
        assert isinstance(self.method, Sending)
        update = directions(self.method.moved(exchange.server, exchange.upload))
        return torch.cat([update @ directions(-ascent).T for ascent in ascents], dim=1).numpy()

    def _mixture(self, r: int, i: int, gradients: Tensor, turn: int, complete: bool) -> Mixture:
        exchange, method, learner = self.exchanges[r], self.method, self.learner
        assert isinstance(method, PromptMethod)
        assert isinstance(learner, Learner)
        listed = self._listed(r, exchange.clients[i])
        sent = method.of_records(exchange.server, exchange.own, exchange.upload, learner, method.steps(listed))
        if self.view.gives("uploads"):
            return mixture(method, gradients, sent[i], r=r, turn=turn, listed=listed, complete=complete)
        group = next(group for group in self.view.sums(r)[0] if exchange.clients[i] in group)
        others = [self._expected(r, k) for k in group if k != exchange.clients[i]]
        own = len(group) * sent[i] - (torch.stack(others).sum(0) if others else 0)
        return of_sum(gradients, own / len(group), r=r, divisor=len(group) * listed)

    def _expected(self, r: int, client: int) -> Tensor:
        """What a client may have put into the sum of round r: the mean gradient of all that its list may hold."""
        if (r, client) not in self._means:
            exchange, method, learner = self.exchanges[r], self.method, self.learner
            assert isinstance(method, PromptMethod)
            assert isinstance(learner, Learner)
            i = exchange.clients.index(client)
            prompt = method.prompt(method.began(_of(exchange.server, i), _of(exchange.own, i)))
            self._means[r, client] = mean_gradient(method, learner, prompt, self.candidates[client])
        return self._means[r, client]


def history_of(
    view: View, method: Method[Any], learner: Classifier, records: Sequence[str], rounds: Sequence[int], client: int
) -> Floats:
    """Losses [T, n] under the global states that T rounds started from, with the public start for a client's own
    part."""
    states = [view.public | view.broadcast(r) | method.place(client) for r in rounds]
    return losses(method, learner, [method.model(state) for state in states], records)


def losses(method: Method[Any], learner: Classifier, models: Sequence[State], records: Sequence[str]) -> Floats:
    """Cross-entropies [M, n] in nats of records under M models."""
    return -own_class(learner.log_probs(method, models, records), learner.labels(records).numpy())


def _of(state: State, i: int) -> State:
    """One client's of a state that leads with clients."""
    return {name: tensor[i] for name, tensor in state.items()}
