"""A message as a mixture of records: the equations and bounds from which a server that knows the method solves for a
client's batches."""

import numpy as np
from torch import Tensor

from fedaudit.attacks.knowledge import Floats, Mixture
from fedaudit.privacy.clipping import clipped
from fedaudit.privacy.ledger import epoch_length
from fedaudit.trainers.prompts import PromptMethod

SHORT = 0.999  # times the clip norm: a shorter mean was not clipped


def mixture(
    method: PromptMethod, gradients: Tensor, sent: Tensor, *, r: int, turn: int, listed: int, complete: bool
) -> Mixture:
    """One client's message of round r as a mixture of records: equations and bounds for the share of each of n records.

    `gradients` [n, ..]: of single records with respect to p_G, in the model from which the client started. `sent` [..]:
    the part of the message that comes from records (`data_gradient_sum`). `turn`: how often the client took part
    before. `listed`: how many records it trains on. `complete`: it trains on these n only, each with a weight above 0.
    """
    protection, coefficients = method.protection, method.messages.step_coefficients(method.steps(listed))
    lengths = gradients.flatten(1).norm(dim=1).double().numpy()
    if protection.per_record:
        gradients = clipped(gradients, protection.privacy.clip_norm)
    std = 0.0 if method.central else protection.stds.get("p_G", 0.0) * float(np.linalg.norm(coefficients))
    by_batch = protection.private and not protection.per_record
    short = len(coefficients) == 1 and std == 0 and float(sent.norm()) < SHORT * protection.privacy.clip_norm
    size = min(method.settings.batch, listed)
    poisson = protection.privacy.sampler == "poisson"
    low, high = (
        _poisson_shares(coefficients) if poisson else _epoch_shares(coefficients, turn, listed, method.settings.batch)
    )
    if poisson and not protection.per_record:  # a mean over a batch that may be one record
        low, high = size * low, size * high
    free = protection.per_record if poisson else low < 0 and not complete  # other records may have negative shares
    rows, target = compress(gradients.flatten(1).double().numpy(), sent.flatten().double().numpy())
    return Mixture(
        round=r,
        gradients=rows,
        sent=target,
        numbers=sent.numel(),
        divisor=float(protection.batch if protection.per_record else size),
        low=low,
        high=high,
        total=size * float(coefficients.sum()),
        known="on average" if free else "equal" if complete else "at most",
        scaled=by_batch and not short,
        std=std,
        lengths=lengths,
        coefficients=coefficients,
    )


def of_sum(gradients: Tensor, sent: Tensor, *, r: int, divisor: int) -> Mixture:
    """One client's part of a sum over several clients in round r as a mixture of its records, with gradients [n, ..];
    `sent` [..] is the sum without the others' estimated parts. A record is in it once or not at all, half of them on
    average."""
    rows, target = compress(gradients.flatten(1).double().numpy(), sent.flatten().double().numpy())
    return Mixture(
        round=r, gradients=rows, sent=target, numbers=sent.numel(), divisor=float(divisor), low=0.0, high=1.0,
        total=len(gradients) / 2, known="on average", scaled=False, std=0.0,
        lengths=gradients.flatten(1).norm(dim=1).double().numpy(), coefficients=np.ones(1),
    )  # fmt: skip


def _poisson_shares(coefficients: Floats) -> tuple[float, float]:
    """Least and largest possible share of a record that may be in any set of steps."""
    return float(np.minimum(coefficients, 0).sum()), float(np.maximum(coefficients, 0).sum())


def _epoch_shares(coefficients: Floats, turn: int, listed: int, batch: int) -> tuple[float, float]:
    """(Least, largest) possible share of a record that is in at most one step of each epoch: sums of the `coefficients`
    [steps] of such steps of one round."""
    step = turn * len(coefficients) + np.arange(len(coefficients))
    epochs = step // epoch_length(records=listed, batch=batch)
    by_epoch = [coefficients[epochs == epoch] for epoch in np.unique(epochs)]
    low, high = (sum(float(extreme(0, *of_epoch)) for of_epoch in by_epoch) for extreme in (min, max))
    return low, high


def compress(gradients: Floats, sent: Floats) -> tuple[Floats, Floats]:
    """Columns [m, n] and vector [m], m <= n + 1, with the inner products of gradients [n, d] and a message [d]."""
    both = np.asarray(np.linalg.qr(np.column_stack([gradients.T, sent]), mode="r"))
    return both[:, :-1], both[:, -1]
