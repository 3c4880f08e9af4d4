"""Shadow models: from them a network per class learns how a member looks (Shokri et al. 2017; DP-FPL, A.3).

For every class an MLP [C -> 32 -> 2] with ReLU is trained on the probabilities that the shadow models give the records
of that class, to predict whether the record was in the shadow's training set. Shokri et al., Membership Inference
Attacks Against Machine Learning Models, S&P 2017; DP-FPL, section A.3. The score is the logit of "member" minus the
other logit: above 0 the attack itself guesses "member", so that no threshold is needed.

Inputs are the square roots of the probabilities, whose distances are Hellinger's; texts have one network, and their
inputs are the change of the answers since training began (`TextAnswers.features`). Inputs are centred over the shadows
and have one scale per class: log-probabilities, or a scale for each input, would amplify the noise of inputs that
hardly vary. All records have equal weight, split equally between the shadows with the record and those without it: so
the identity of a record tells nothing about its membership, and 0 is neutral. All classes are one batched problem:
AdamW on all pairs at once, a fixed number of steps, a seeded generator.

Needs shadow models. Scores are NaN for classes without any record that is in some shadows and not in others.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedaudit.attacks.answers import ModelAnswers
from fedaudit.attacks.facts import AttackFacts
from fedaudit.attacks.knowledge import Floats, Knowledge, Shadows
from fedaudit.machinery.parameters import Parameters, whole

LEARNING_RATE, WEIGHT_DECAY = 0.01, 1.0  # AdamW: weights shrink by 1 % a step
SEED = 0


class Facts(AttackFacts):
    records = ("texts", "classes")
    strength = 1
    shadows = True
    guesses = ("shadow",)
    signals = (("shadow", "shadow models", "the shadow-model attack"),)


@dataclass(frozen=True)
class Params(Parameters):
    hidden: int = whole(32, "units of the attack network's hidden layer (DP-FPL: 32)", least=1, most=10**4)
    steps: int = whole(100, "training steps of the attack network", least=1, most=10**6)


@dataclass(frozen=True, eq=False)
class Networks:
    """K trained networks, one for each kind of records (`ModelAnswers.kinds`), with F inputs and h hidden units."""

    place: NDArray[np.int64]  # by kind of records, the index of its network; -1 if nothing could be learnt
    mean: Tensor  # [K, F], mean input over the shadows
    scale: Tensor  # [K, 1], standard deviation of all inputs of a kind together
    weights: list[Tensor]  # [K, F, h], [K, 1, h], [K, h, 2], [K, 1, 2]


class Shadow:
    def __init__(self, params: Params) -> None:
        self.params = params

    def score(self, knowledge: Knowledge) -> dict[str, Floats]:
        assert knowledge.shadows is not None
        kinds = knowledge.answers.kinds
        networks = fit(knowledge.shadows, knowledge.base, tuple(kinds.tolist()), self.params)
        place = networks.place[kinds]
        features = torch.from_numpy(knowledge.answers.features(knowledge.base)).float()
        score = np.full(len(place), np.nan)
        for k in np.unique(place[place >= 0]):
            of_kind = place == k
            inputs = (features[of_kind] - networks.mean[k]) / networks.scale[k]
            logits = _forward(inputs[None], [weight[k : k + 1] for weight in networks.weights])[0]
            score[of_kind] = (logits[:, 1] - logits[:, 0]).numpy()
        return {"shadow": score}


@functools.lru_cache(maxsize=2)  # the control before training scores with the same shadows
def fit(shadows: Shadows, base: ModelAnswers, kinds: tuple[int, ...], params: Params) -> Networks:
    """Train a network for each kind of records, all at once, and return them. `base`: answers of the public state
    before training about the n records; `kinds` [n]: which kind, that is network, each record belongs to."""
    x, member, weight, taught = _pairs(shadows, base, np.array(kinds))
    mean = torch.einsum("kp,kpc->kc", weight, x)
    scale = torch.einsum("kp,kpc->k", weight, (x - mean[:, None]) ** 2).div(x.shape[-1]).sqrt()[:, None]
    scale = torch.where(scale > 1e-6, scale, 1.0)  # constant inputs
    place = np.full(max(kinds) + 1, -1)
    place[taught] = np.arange(len(taught))
    return Networks(place, mean, scale, _train((x - mean[:, None]) / scale[:, None], member, weight, params))


def _pairs(
    shadows: Shadows, base: ModelAnswers, kinds: NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor, NDArray[np.int64]]:
    """The training data of K networks, one per kind of record, each of P pairs (shadow, record): inputs [K, P, F],
    membership and weights [K, P] (sum 1; padding 0), and the kinds' numbers [K]. Only of records that some but not all
    shadows were trained on; a kind without any is left out."""
    member = shadows.member
    teaches = member.any(0) & ~member.all(0)  # from others a network would learn identities
    taught = np.unique(kinds[teaches])
    groups = [np.flatnonzero(teaches & (kinds == c)) for c in taught]
    width = max(map(len, groups), default=0)
    # kinds with fewer records are padded with copies of weight 0
    filled = np.array([np.resize(group, width) for group in groups], np.int64).reshape(-1, width or 1)
    real = np.arange(filled.shape[1]) < np.array([len(group) for group in groups])[:, None]
    half = np.where(member, 0.5 / np.maximum(member.sum(0), 1), 0.5 / np.maximum((~member).sum(0), 1))  # [S, n]
    weight = half[:, filled] * (real / real.sum(1, keepdims=True))
    inputs = torch.from_numpy(shadows.features(base)[:, filled]).float()
    x, y, w = (
        each.transpose(0, 1).flatten(1, 2)
        for each in (inputs, torch.from_numpy(member[:, filled]), torch.from_numpy(weight))
    )
    return x, y.long(), w.float(), taught


def _train(x: Tensor, member: Tensor, weight: Tensor, params: Params) -> list[Tensor]:
    """Train K networks, each on its own weighted cross-entropy, and return their weights and biases (see
    `Networks.weights`)."""
    K, _, C = x.shape
    generator = torch.Generator().manual_seed(SEED)
    weights: list[Tensor] = []
    for a, b in ((C, params.hidden), (params.hidden, 2)):
        start = torch.randn(a, b, generator=generator) / a**0.5
        weights += [start.repeat(K, 1, 1).requires_grad_(), torch.zeros(K, 1, b, requires_grad=True)]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    with torch.enable_grad():
        for _ in range(params.steps):
            losses = F.cross_entropy(_forward(x, weights).flatten(0, 1), member.flatten(), reduction="none")
            optimizer.zero_grad()
            (losses * weight.flatten()).sum().backward()
            optimizer.step()
    return [each.detach() for each in weights]


def _forward(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Logits [K, P, 2] of "not a member" and "member" for inputs [K, P, F]."""
    first, bias, second, bias_2 = weights
    return torch.baddbmm(bias_2, torch.relu(torch.baddbmm(bias, x, first)), second)
