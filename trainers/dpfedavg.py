"""DP-FedAvg: FedAvg whose clients train by record-level DP-SGD on their adapters (Abadi et al. 2016, Algorithm 1).

In each local step the gradient of every record, in all tensors A and B together, is clipped to C; the clipped gradients
are summed and divided by the public |B|, and the client adds Gaussian noise. The step of AdamW or SGD that follows is
post-processing, and so are upload and average. The loss of a record is the mean over its own tokens: with the mean over
a batch's tokens, as in `fedavg`, a record would change its neighbours' divisor. The average is uniform: weights n_i
would raise the sensitivity, and are private.

The unit of privacy is one record of one client, not a whole client as in the server-side method of the same name
(McMahan et al. 2018).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaudit.machinery.parameters import Parameters, choice
from fedaudit.trainers.base import Participation, Site, State, Update, Upload, weighted_mean
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.lora import Settings
from fedaudit.trainers.steps import LocalStep, PrivateMethod, Work

RELEASE = "A and B"  # all tensors, clipped and noised as one vector


class Facts(MethodFacts):
    learner = "lora"
    title = "DP-FedAvg"
    private = True


@dataclass(frozen=True)
class Params(Parameters):
    optimizer: str = choice("adamw", "what goes on from the noised gradients; sgd has no momentum", ("adamw", "sgd"))


@dataclass(frozen=True)
class DPFedAvg(PrivateMethod[Participation]):
    settings: Settings = field(default_factory=Settings)

    shared = (RELEASE,)

    def update(self, server: State, own: State, client: Participation) -> Update:
        work = Descent(client, self, server)
        for step in work.steps():
            work.descend(step.noise(step.clipped_mean(), RELEASE))
        trained = {name: leaf.detach().cpu() for name, leaf in work.adapter.items()}
        return Update(upload=trained, private=trained, noised=work.noised)

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        return weighted_mean([upload.state for upload in uploads], [1 / len(uploads)] * len(uploads))


class Descent(Work["RecordStep"]):
    """A client's local training from `start` with a new optimizer: the adapter, and the steps."""

    method: DPFedAvg

    def __init__(self, client: Participation, method: DPFedAvg, start: State) -> None:
        super().__init__([client], method)
        self.learner, settings = client.learner, method.settings
        # sorted, as noise is drawn for all tensors end to end, and files may hold them in any order
        names, device = sorted(start), self.learner.vlm.device
        self.adapter = {name: start[name].to(device, copy=True).requires_grad_() for name in names}
        self._optimizer: torch.optim.Optimizer
        if method.params.optimizer == "adamw":
            self._optimizer = torch.optim.AdamW(
                self.adapter.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
            )
        else:
            self._optimizer = torch.optim.SGD(self.adapter.values(), lr=settings.learning_rate)

    def step(self, index: int) -> RecordStep:
        return RecordStep(self, index)

    def descend(self, gradient: Tensor) -> None:
        """Take a step of the optimizer with a gradient [1, P], the P numbers of all tensors laid end to end by sorted
        name."""
        leaves = list(self.adapter.values())
        for leaf, part in zip(leaves, gradient[0].split([leaf.numel() for leaf in leaves]), strict=True):
            leaf.grad = part.view_as(leaf)
        self._optimizer.step()


class RecordStep(LocalStep):
    """One step of one client."""

    def __init__(self, work: Descent, index: int) -> None:
        super().__init__(work, index)
        self._work = work

    def clipped_mean(self) -> Tensor:
        """The mean gradient [1, P] of the batch: the sum of the records' gradients over the public |B|, whatever the
        size of this batch. With privacy each record's gradient is clipped if `Protection.per_record`, else the mean.
        The batch is computed in parts that fit into memory."""
        protection, each = self.method.protection, self.method.protection.per_record
        leaves = list(self._work.adapter.values())
        total = leaves[0].new_zeros(1, sum(leaf.numel() for leaf in leaves))
        ((batch,), (client,)) = self.records, self.clients
        records = [record for record in batch if record not in client.left_out]  # of weight 0; |B| does not change
        gradients = self._work.learner.gradients(self._work.adapter, records, each=each)
        if each:
            for part in itertools.chain([total[:0]], gradients):  # an empty batch is noised as any other
                total = total + protection.clip(part[:, None], part.new_ones(len(part), 1), RELEASE, self)
            return total
        mean = sum(gradients, total) / self.method.settings.batch
        return protection.clip(mean[None], mean.new_full((1, 1), len(records) > 0), RELEASE, self)
