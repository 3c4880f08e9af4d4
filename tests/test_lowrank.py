"""The fused low-rank layer is peft's own, in value and gradient."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from trainers.lowrank import train_as_one, train_beside


def adapted(*, bias: bool):
    torch.manual_seed(0)
    model = get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(5, 7, bias=bias)).double(),
        LoraConfig(r=3, lora_alpha=4.5, target_modules=["0"], init_lora_weights=False),
    )
    return model, model.base_model.model[0]


def passed(layer, x, factors):
    """Output and all gradients of a pass."""
    x = x.clone().requires_grad_()
    out = layer(x)
    return out, torch.autograd.grad((out**2).sum(), [x, *factors])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [3, 6])
def test_value_and_gradients_are_those_of_peft(bias, rank):
    model, layer = adapted(bias=bias)
    factors = [layer.lora_A["default"].weight, layer.lora_B["default"].weight]
    factors[0].data, factors[1].data = torch.randn(rank, 5).double(), torch.randn(7, rank).double()
    x = torch.randn(2, 4, 5).double()
    out, gradients = passed(layer, x, factors)
    train_as_one(layer)
    fused, again = passed(layer, x, factors)
    assert torch.allclose(fused, out, rtol=1e-12)
    for one, other in zip(again, gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
    assert torch.autograd.gradcheck(layer, x.requires_grad_())
    with model.disable_adapter():
        assert torch.equal(layer(x), layer.base_layer(x))


def test_factors_that_are_put_in_from_outside_get_the_gradient():
    _, layer = adapted(bias=False)
    train_as_one(layer)
    leaf = torch.randn(6, 5).double().requires_grad_()
    names = {"lora_A.default.weight": leaf, "lora_B.default.weight": torch.randn(7, 6).double()}
    torch.func.functional_call(layer, names, torch.randn(4, 5).double()).sum().backward()
    assert leaf.grad.abs().max() > 0


@pytest.mark.parametrize("train", [train_as_one, train_beside])
def test_copies_of_the_factors_get_the_gradients_of_single_records(train):
    """Of x [R, T, in] with A [R, r, in] and B [R, out, r]; one record with factors [r, in] and [out, r] at a time."""
    _, layer = adapted(bias=True)
    train(layer)
    x, factors = torch.randn(3, 4, 5).double(), (torch.randn(3, 5).double(), torch.randn(7, 3).double())
    copies = [factor.expand(3, *factor.shape).detach().requires_grad_() for factor in factors]
    names = ("lora_A.default.weight", "lora_B.default.weight")
    out = torch.func.functional_call(layer, dict(zip(names, copies, strict=True)), x)
    gradients = torch.autograd.grad((out**2).sum(), copies)
    for i in range(3):
        own = [factor.clone().requires_grad_() for factor in factors]
        alone = torch.func.functional_call(layer, dict(zip(names, own, strict=True)), x[i : i + 1])
        assert torch.allclose(out[i : i + 1], alone, rtol=1e-10)
        for several, one in zip(gradients, torch.autograd.grad((alone**2).sum(), own), strict=True):
            assert torch.allclose(several[i], one, rtol=1e-10)
