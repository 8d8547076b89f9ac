"""With ``graphs=True`` later steps are replayed from CUDA graphs, with the same bits."""

import pytest
import thunder
import torch

import fusioncache

pytestmark = pytest.mark.gpu


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return x + torch.nn.functional.gelu(self.linear(x))


def compile_model(model, **options):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), **options)
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), transform


def take_step(model, compiled, x):
    """Returns the output and the gradients of all parameters."""
    model.zero_grad()
    output = compiled(x)
    output.sum().backward()
    return [output.detach().clone(), *(parameter.grad.clone() for parameter in model.parameters())]


def test_replayed_steps_have_the_bits_of_launched_ones():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Block() for _ in range(3)]).cuda()
    launched, _ = compile_model(model)
    replayed, transform = compile_model(model, graphs=True)
    for _ in range(8):
        x = torch.randn(4, 64, device="cuda")
        for one, other in zip(take_step(model, launched, x), take_step(model, replayed, x), strict=True):
            assert torch.equal(one, other)
    assert transform.stats().captures == 2
    assert transform.stats().graph_replays > 0


def test_weights_may_change_in_place_between_replays():
    model = Block().cuda()
    compiled, _ = compile_model(model, graphs=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, losses = torch.randn(4, 64, device="cuda"), []
    for _ in range(8):
        optimizer.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)


def test_each_length_has_a_graph_of_its_own():
    model = Block().cuda()
    launched, _ = compile_model(model)
    replayed, _ = compile_model(model, graphs=True)
    for length in (2, 3, 5) * 6:
        x = torch.randn(length, 64, device="cuda")
        assert torch.equal(take_step(model, launched, x)[0], take_step(model, replayed, x)[0])
