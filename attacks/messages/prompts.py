"""Server-side analysis of messages on prompts: the clients' models round by round, with records' losses and gradients.

A client's own part is never sent, but its start is public and the same for all, and it moves by the gradient that is
uploaded. So the server replays the method's own rule for it (`MethodMessages.replay`), from the first message to the
last. The quality depends on the method:

- PromptFL, DP2FL: the upload is the client's model, exact.
- FedOTP, FedPGP: exact without noise (and, for FedPGP, without clipping). `fedotp --match ot` uploads only p_G's part
  of the gradient, so that p_L is unknown and stays at its start.
- DP-FPL: the client draws a secret random Q in every round, and the server takes the expected step. After 100
  noise-free rounds of rank 8 with a prompt of 16 vectors, p_L is off by .4 to .5 of its length and p_i by a third. At
  rank 0 it is exact.
- SecFPP: the server decodes sums over clusters. It takes the mean of a client's cluster for the client's own gradient,
  and estimates the other clients' parts of a sum by the mean gradient of all their candidates.
- With noise on the client's own part the server replays a run without noise, and soon drifts.
- Local prompts and zero-shot send nothing, so that nothing can be rebuilt.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaudit.attacks.answers import Arrays, Floats, own_class
from fedaudit.attacks.base import View
from fedaudit.attacks.gradients import directions, mean_gradient, text_products
from fedaudit.attacks.knowledge import Mixture
from fedaudit.attacks.messages.contents import References, Start, solve_contents
from fedaudit.attacks.messages.mixtures import SHORT, mixture, of_sum
from fedaudit.attacks.messages.rebuild import Rebuilt
from fedaudit.machinery.devices import double
from fedaudit.privacy.ledger import epoch_length
from fedaudit.terms.held_models import ESTIMATED, REBUILT
from fedaudit.trainers.base import Method, Participation, State, generator
from fedaudit.trainers.messages import Sending
from fedaudit.trainers.prompts import Learner, PromptMethod, stack_states
from fedaudit.trainers.protocols import Classifier, Differentiable

MOSTLY = 0.9  # a message is solved for what it held if this share of references' gradients is not clipped
EPOCHS = 2  # epochs of a client whose messages are solved by default


@dataclass(frozen=True, eq=False)
class Exchange:
    """One round as the server saw it; tensors have a first axis over the M clients that sent something, see
    `clients`."""

    clients: list[int]
    server: State  # what the clients received
    own: State  # the parts that clients never send, at the round's start, as replayed
    upload: State
    after: State  # the parts that clients never send, at the round's end


class ReplayedMessages:
    """Reader of all messages of a run; LacksCapability unless the threat model sees them or sums of them."""

    def __init__(
        self, view: View, method: Method[Any], learner: Classifier, candidates: Sequence[Sequence[str]] = ()
    ) -> None:
        """Replay all messages that the view sees. `candidates`: the possible training records of each client, which are
        needed if only sums are seen."""
        self.view, self.method, self.learner, self.candidates = view, method, learner, candidates
        self.way = REBUILT if view.gives("uploads") else ESTIMATED
        self._means: dict[tuple[int, int], Tensor] = {}
        self.exchanges = self._exchanges()  # by round, without rounds in which nobody sent anything

    def rebuilt(self, client: int) -> Rebuilt:
        """The client's personalised prompt after its last participation, as rebuilt from messages (the true one is
        `View.private`). `state` is None, with the reason in `why`, if the client never sent anything."""
        rounds = [r for r, exchange in self.exchanges.items() if client in exchange.clients]
        if not rounds:
            return Rebuilt(client, self.way, None, None, None, None, "never sent anything")
        last = self.exchanges[rounds[-1]]
        i = last.clients.index(client)
        server = self.view.broadcast(rounds[-1] + 1) | self.method.messages.model_selector(client)
        state = self.method.model(_of(last.after, i) | server | _of(last.upload, i))
        return Rebuilt(client, self.way, state, rounds[-1], 0, 0)

    def round(
        self, client: int, r: int, records: Sequence[str], parts: Collection[str], solved_for: int, complete: bool
    ) -> Arrays:
        """Compute those arrays of `parts` ("heard", "solved", "contents") about n records of a client that round r
        gives; see `Messages.round`. K is the number of clients. A round without messages leaves all NaN.

        - "heard/loss/WAY" [K, n]: losses under each client's model, rebuilt in that way, right after its own steps,
          before the server aggregates; NaN for clients that sent nothing
        - "heard/cosine" [K, n]: of each client's message with the direction in which the record's loss falls fastest,
          in the model from which this client started; NaN for clients that sent nothing, and if this one did not
        - "contents/FIELD": the fields of a `SolvedBatch`, if the client began the round at the public start, its batch
          was not clipped as a whole, and few references' gradients are clipped; else missing
        - "solved/FIELD": the fields of the client's message as a `Mixture` of the first `solved_for` records; missing
          if it sent nothing. `complete`: it trains on no others
        """
        shape = len(self.view.clients), len(records)
        loss, cosine = f"heard/loss/{self.way}", "heard/cosine"
        arrays = {name: np.full(shape, np.nan) for name in (loss, cosine)} if "heard" in parts else {}
        if (exchange := self.exchanges.get(r)) is None:
            return arrays
        if arrays:
            arrays[loss][exchange.clients] = losses(self.method, self.learner, self._after_steps(exchange), records)
        if client in exchange.clients:
            i = exchange.clients.index(client)
            ascents = self._gradients(exchange, i, records if arrays else records[:solved_for])
            if "solved" in parts:
                ascents = [gradients := torch.cat([*ascents])]
                turn = turns(self.view, client).index(r)
                mixture = self._mixture(r, i, gradients[:solved_for], turn, complete)
                arrays |= {f"solved/{name}": array for name, array in mixture.arrays().items()}
            if "contents" in parts:
                arrays |= self._contents(r, i, records[len(self.candidates[client]) : solved_for])
            if "heard" in parts:
                arrays[cosine][exchange.clients] = self._cosines(exchange, ascents)
        return arrays

    def _exchanges(self) -> dict[int, Exchange]:
        """All rounds as the server saw them, {round: exchange}, replayed in order; rounds in which nobody sent anything
        are left out."""
        view = self.view
        private, chance = dict.fromkeys(view.clients, view.public), generator(0, "server", "replay")
        exchanges: dict[int, Exchange] = {}
        for r in range(view.rounds):
            messages = self._messages(r)
            if not messages:
                continue
            received = [self._received(r, k, [t for t in exchanges if k in exchanges[t].clients]) for k in messages]
            server = stack_states(received)
            upload = stack_states(list(messages.values()))
            before = stack_states([private[k] for k in messages])
            sizes = [listed(view, r, k, self.candidates) for k in messages]
            after = self.method.messages.replay(server, before, upload, self.learner, chance, sizes)
            private |= {k: _of(after, i) for i, k in enumerate(messages)}
            exchanges[r] = Exchange(list(messages), server, before, upload, after)
        return exchanges

    def _messages(self, r: int) -> dict[int, State]:
        """The message of each client that sent one in round r, {client: message}; if only sums are seen, the mean
        gradient of the client's group instead."""
        if self.view.gives("uploads"):
            return dict(sorted(self.view.uploads(r).items()))
        groups, means = self.view.sums(r)
        return {k: {"gradient": means[g]} for k, g in sorted((k, g) for g, group in enumerate(groups) for k in group)}

    def _received(self, r: int, client: int, past: Sequence[int]) -> State:
        """The state that a client received in round r after taking part in the rounds `past`; if uploads are seen, with
        whatever else was broadcast to all."""
        server = self.view.broadcast(r)
        download = self.method.download(server, Participation(client, r, 0, (), self.learner, past))
        if not self.view.gives("uploads"):
            return download
        return {name: tensor for name, tensor in server.items() if name not in self.method.by_client} | download

    def _after_steps(self, exchange: Exchange) -> list[State]:
        """The models of the M clients right after their own steps."""
        models = self._sending.after_local_steps(exchange.server, exchange.after, exchange.upload)
        return [_of(models, i) for i in range(len(exchange.clients))]

    def _gradients(self, exchange: Exchange, i: int, records: Sequence[str]) -> Iterable[Tensor]:
        """Gradients [R, ..] of R records at a time in what the i-th client sends, where it started the round."""
        assert isinstance(self.learner, Differentiable)
        return self.learner.sent_gradients(self.method, self._start(exchange, i), records)

    def _start(self, exchange: Exchange, i: int) -> State:
        """The model from which the i-th client started the round."""
        return self._sending.round_start(_of(exchange.server, i), _of(exchange.own, i))

    @property
    def _sending(self) -> Sending:
        messages = self.method.messages
        assert isinstance(messages, Sending)
        return messages

    def _cosines(self, exchange: Exchange, ascents: Iterable[Tensor]) -> Floats:
        """Cosines [M, n] of the M clients' updates with the direction opposite to each record's gradient; `ascents` are
        the gradients [R, ..] of R records at a time."""
        update = directions(self._sending.update_vector(exchange.server, exchange.upload))
        return torch.cat([update @ directions(-ascent).T for ascent in ascents], dim=1).numpy()

    def _mixture(self, r: int, i: int, gradients: Tensor, turn: int, complete: bool) -> Mixture:
        """The message of the i-th client of round r as a mixture of the records with these gradients [n, ..]; if only
        sums are seen, what is left of its group's sum without the others' expected parts."""
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
        rest = len(group) * sent[i] - (torch.stack(others).sum(0) if others else 0)
        return of_sum(gradients, rest / len(group), r=r, divisor=len(group) * n)

    def _contents(self, r: int, i: int, references: Sequence[str]) -> Arrays:
        """The fields of a `SolvedBatch` of the i-th client's first message, in round r."""
        exchange, method, learner = self.exchanges[r], self.method, self.learner
        assert isinstance(method, PromptMethod)
        assert isinstance(learner, Learner)
        n = listed(self.view, r, exchange.clients[i], self.candidates)
        states = exchange.server, exchange.own, exchange.upload
        sent = method.messages.data_gradient_sum(*states, learner, method.steps(n))[i]
        gradients = torch.cat([*self._gradients(exchange, i, references)]).flatten(1)
        length = gradients.norm(dim=1).quantile(MOSTLY) if method.protection.per_record else sent.norm()
        if method.protection.private and length >= SHORT * method.protection.privacy.clip_norm:
            return {}
        nonmembers = References(
            double(learner.images(references)).cpu().numpy(), learner.labels(references).numpy(),
            gradients.double().numpy(),
        )  # fmt: skip
        start = Start(*text_products(learner, method.prompt(self._start(exchange, i))), learner.scale)
        solved = solve_contents(start, nonmembers, sent.flatten().double().numpy(), min(method.settings.batch, n))
        return {"contents/labels": solved.labels, "contents/embeddings": solved.embeddings}

    def _expected(self, r: int, client: int) -> Tensor:
        """Estimate [b, d] of a client's part of the sum of round r: the mean gradient of all its candidates at the
        prompt from which it started."""
        if (r, client) not in self._means:
            exchange, method, learner = self.exchanges[r], self.method, self.learner
            assert isinstance(method, PromptMethod)
            assert isinstance(learner, Learner)
            i = exchange.clients.index(client)
            prompt = method.prompt(self._start(exchange, i))
            self._means[r, client] = mean_gradient(method, learner, prompt, self.candidates[client])
        return self._means[r, client]


def turns(view: View, client: int) -> list[int]:
    """Rounds in which a client took part, or, if the view sees only sums of uploads, was in a group that was summed."""
    if view.gives("uploads"):
        return view.participations(client)
    return [r for r in range(view.rounds) if any(client in group for group in view.sums(r)[0])]


def listed(view: View, r: int, client: int, candidates: Sequence[Sequence[str]]) -> int:
    """Number of records that a client trains on: as it says, or half of its candidates if only sums are seen."""
    return view.records(r, client) if view.gives("uploads") else max(1, len(candidates[client]) // 2)


def solved_rounds(
    view: View, method: Method[Any], client: int, candidates: Sequence[Sequence[str]], rounds: int
) -> list[int]:
    """The client's first `rounds` rounds, whose messages are solved for their batches; with `rounds` 0 those of its
    first `EPOCHS` epochs, in each of which a record is in at most one batch. [] if it never took part."""
    assert isinstance(method, PromptMethod)
    participations = turns(view, client)
    if not rounds and participations:
        n = listed(view, participations[0], client, candidates)
        rounds = math.ceil(EPOCHS * epoch_length(records=n, batch=method.settings.batch) / method.steps(n))
    return participations[:rounds]


def losses(method: Method[Any], learner: Classifier, models: Sequence[State], records: Sequence[str]) -> Floats:
    """Cross-entropies [M, n] in nats of n records under M models."""
    return -own_class(learner.log_probs(method, models, records), learner.labels(records).numpy())


def _of(state: State, i: int) -> State:
    """The i-th client's part of a state whose tensors have a first axis over clients."""
    return {name: tensor[i] for name, tensor in state.items()}
