"""A region that shares a template computes the bits that Thunder computes without fusioncache."""

import pytest
import thunder
import torch

import fusioncache


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(x)) * 0.5


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.sigmoid(self.gate(x)) * self.up(x)


def take_step(model, call, x):
    """Returns the output, the gradient of the input and those of all parameters."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    output = call(x)
    output.square().sum().backward()
    return [output.detach(), x.grad, *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("layer", [Scaled, Gated])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_outputs_and_gradients_are_those_of_thunder(layer, dtype):
    """On a CPU plain Thunder runs torch's operations one by one, and so does the backend ``eager``."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[layer() for _ in range(3)]).to(dtype)
    plain = thunder.jit(model)
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    shared = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    for length in (4, 6, 9, 5):
        x = torch.randn(2, length, 16, dtype=dtype)
        expected, found = take_step(model, plain, x), take_step(model, shared, x)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other)
    assert transform.stats().hits > 0
