"""Ways to train a model whose gradients lie in a graph's memory: few captures, no copies, and the same bits."""

import random

import pytest
import torch
from captured_programs import Layer, add_gradient, make_graphs, make_input

from fusioncache.accelerators.graphs.memory import LENT

STEPS = 10


@pytest.fixture
def captured():
    """A layer that is captured, one that is not, what captures, and the counts."""
    graphs, recorder, ledger = make_graphs()
    return Layer(graphs), Layer(), recorder, ledger


def zero_in_place(layer, optimizer, seed):
    optimizer.zero_grad(set_to_none=seed == 3)
    add_gradient(layer, seed)
    optimizer.step()


def add_up_in_one_backward(layer, optimizer, seed):
    optimizer.zero_grad()
    outputs = [layer(make_input(4 * seed + part)) for part in range(3)]
    torch.stack(outputs).square().sum().backward()
    optimizer.step()


def step_in_a_hook(layer, optimizer, seed):
    def take(weight):
        optimizer.step()
        weight.grad = None

    handle = layer.weight.register_post_accumulate_grad_hook(take)
    add_gradient(layer, seed)
    handle.remove()


STYLES = {
    zero_in_place: 3,
    add_up_in_one_backward: 11,
    step_in_a_hook: 2,
}
"""Ways to train, and how many captures each needs."""


@pytest.mark.parametrize("train", STYLES)
def test_ways_to_train_settle_on_a_few_captures(captured, train):
    layer, plain, _, ledger = captured
    optimizers = [torch.optim.SGD([each.weight], 0.01, momentum=0.9) for each in (layer, plain)]
    for seed in range(STEPS):
        for each, optimizer in zip((layer, plain), optimizers, strict=True):
            train(each, optimizer, seed)
        assert torch.equal(layer.weight, plain.weight), seed
    stats = ledger.stats()
    assert (stats.captures, stats.gradients_copied) == (STYLES[train], 0)
    assert LENT not in stats.not_captured


def test_gradients_of_inputs(captured):
    layer, plain, _, ledger = captured
    kept = []
    for seed in range(STEPS):
        inputs = [make_input(seed).requires_grad_() for _ in range(2)]
        for each, x in zip((layer, plain), inputs, strict=True):
            each.weight.grad = None
            each(x * 1.0 if seed % 2 else x).square().sum().backward()
        kept = [*kept[-1:], inputs]
        assert all(torch.equal(one.grad, other.grad) for one, other in kept), seed
        assert torch.equal(layer.weight.grad, plain.weight.grad)
    assert ledger.stats().gradients_copied == 0
    assert not ledger.stats().not_captured


def test_models_one_after_the_other_whose_gradients_are_added_up():
    """In a backward each of them is replayed while what those after it lent is not back."""
    graphs, _, ledger = make_graphs()
    ones, others = [Layer(graphs) for _ in range(3)], [Layer() for _ in range(3)]
    for seed in range(STEPS):
        for layers in (ones, others):
            for part in range(3):
                x = make_input(3 * seed + part)
                for layer in layers:
                    x = layer(x)
                x.square().sum().backward()
        for one, other in zip(ones, others, strict=True):
            assert torch.equal(one.weight.grad, other.weight.grad), seed
            one.weight.grad = other.weight.grad = None
    stats = ledger.stats()
    assert (stats.captures, stats.gradients_copied, dict(stats.not_captured)) == (9, 0, {})


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_held_in_whatever_order(seed):
    """Steps of two models, whose outputs wait for their backward and whose gradients are held for a while."""
    graphs, _, ledger = make_graphs()
    draw = random.Random(seed)
    pairs = [(Layer(graphs), Layer()) for _ in range(2)]
    waiting, held = [], []
    for number in range(200):
        pair = draw.choice(pairs)
        act = draw.choice(["forward", "backward", "backward", "none", "zero", "hold", "drop"])
        if act == "forward" or not waiting:
            waiting.append([layer(make_input(number)) for layer in pair])
        elif act == "backward" or len(waiting) > 3:
            for output in waiting.pop(draw.randrange(len(waiting))):
                output.backward(torch.ones_like(output))
        elif act == "drop":
            del held[: draw.randrange(3)]
        elif pair[0].weight.grad is not None:
            if act == "hold":
                held.append([layer.weight.grad.detach()[1:] for layer in pair])
            for layer in pair:
                if act == "zero":
                    layer.weight.grad.zero_()
                else:
                    layer.weight.grad = None
        there = [[layer.weight.grad for layer in pair] for pair in pairs if pair[0].weight.grad is not None]
        assert all(torch.equal(one, other) for one, other in held + there), (number, act)
    assert ledger.stats().graph_replays > 40
