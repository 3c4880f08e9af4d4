"""A message as a mixture of records: what a server that knows a method can say of a client's batches before it solves
for them."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from attacks.knowledge import Floats, Mixture
from fedaudit.privacy.clipping import clipped
from fedaudit.privacy.ledger import epoch_length
from trainers.prompts import PromptMethod

SHORT = 0.999  # of the clip norm: a mean that is shorter was not clipped


def mixture(
    method: PromptMethod, gradients: Tensor, sent: Tensor, *, r: int, turn: int, listed: int, complete: bool
) -> Mixture:
    """One client's message of round r.

    `gradients` [n, ..] are of single records in p_G, where the client began; `sent` [..] is what its records made of
    the message (`data_gradient_sum`); `turn` counts its rounds, from 0; `listed` is how many records its list holds;
    `complete`: it holds none but these n, each with weight.
    """
    protection, counts = method.protection, method.messages.step_coefficients(method.steps(listed))
    if protection.per_record:
        gradients = clipped(gradients, protection.privacy.clip_norm)
    std = 0.0 if method.central else protection.stds.get("p_G", 0.0) * float(np.linalg.norm(counts))
    by_batch = protection.private and not protection.per_record
    short = len(counts) == 1 and std == 0 and float(sent.norm()) < SHORT * protection.privacy.clip_norm
    size = min(method.settings.batch, listed)
    poisson = protection.privacy.sampler == "poisson"
    low, high = _poisson_shares(counts) if poisson else _epoch_shares(counts, turn, listed, method.settings.batch)
    if poisson and not protection.per_record:  # a mean over a batch that may hold one record alone
        low, high = size * low, size * high
    free = protection.per_record if poisson else low < 0 and not complete  # others may have less than nothing
    rows, target = _reduced(gradients.flatten(1).double().numpy(), sent.flatten().double().numpy())
    return Mixture(
        round=r,
        gradients=rows,
        sent=target,
        numbers=sent.numel(),
        divisor=float(protection.batch if protection.per_record else size),
        low=low,
        high=high,
        total=size * float(counts.sum()),
        known="on average" if free else "equal" if complete else "at most",
        scaled=by_batch and not short,
        std=std,
    )


def of_sum(gradients: Tensor, sent: Tensor, *, r: int, divisor: int) -> Mixture:
    """One client's part of a sum of round r over several: gradients [n, ..] of single records, and what is left of the
    sum for them [..]. Each is in it once or not at all, and how many are is known on average only."""
    rows, target = _reduced(gradients.flatten(1).double().numpy(), sent.flatten().double().numpy())
    return Mixture(
        round=r, gradients=rows, sent=target, numbers=sent.numel(), divisor=float(divisor), low=0.0, high=1.0,
        total=len(gradients) / 2, known="on average", scaled=False, std=0.0,
    )  # fmt: skip


def _poisson_shares(counts: Floats) -> tuple[float, float]:
    """Least and largest share of a record that may be in any of the steps."""
    return float(np.minimum(counts, 0).sum()), float(np.maximum(counts, 0).sum())


def _epoch_shares(counts: Floats, turn: int, listed: int, batch: int) -> tuple[float, float]:
    """The same of a record that is in one step of each epoch at most."""
    step = turn * len(counts) + np.arange(len(counts))
    epochs = step // epoch_length(records=listed, batch=batch)
    of_epochs = [counts[epochs == epoch] for epoch in np.unique(epochs)]
    low, high = (sum(float(cut(0, *own)) for own in of_epochs) for cut in (min, max))
    return low, high


def _reduced(gradients: Floats, sent: Floats) -> tuple[Floats, Floats]:
    """Rows [m, n] and numbers [m], m <= n + 1, with the products of gradients [n, d] and an upload [d]: what least
    squares are solved by."""
    both = np.asarray(np.linalg.qr(np.column_stack([gradients.T, sent]), mode="r"))
    return both[:, :-1], both[:, -1]
