"""Gradients in a graph's memory: each holder of one reads the values that it was given."""

import gc
from functools import partial

import pytest
import torch
from captured_programs import Layer, are_alike, compute_gradients, go_back, make_graphs, make_input, settle, step

from fusioncache.accelerators.graphs import captures, memory
from fusioncache.accelerators.graphs.memory import LENT


class Square(torch.autograd.Function):
    """An autograd function that saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient * x


def read_again(result, gradient):
    return torch.autograd.grad(result.sum(), gradient, retain_graph=True)[0]


def read_memory(storage, shape):
    return torch.empty(0).set_(storage, 0, shape, (shape[1], 1))


HOLDERS = {
    "the tensor": lambda gradient: partial(torch.clone, gradient),
    "a view": lambda gradient: partial(torch.clone, gradient[1:, 2:]),
    "detached": lambda gradient: partial(torch.clone, gradient.detach()),
    "its data": lambda gradient: partial(torch.clone, gradient.data.view(-1)),
    "numpy's": lambda gradient: partial(torch.from_numpy, gradient.numpy()),
    "another package's": lambda gradient: partial(torch.clone, torch.from_dlpack(gradient)),
    "Python's object for the memory": lambda gradient: partial(read_memory, gradient.untyped_storage(), gradient.shape),
    "what autograd saved": lambda gradient: partial(read_again, Square.apply(gradient.requires_grad_()), gradient),
    "another parameter": lambda gradient: partial(torch.clone, torch.nn.Parameter(gradient)),
}
"""Each holds the gradient in one way, and returns a function that reads it later."""


@pytest.mark.parametrize("first", [1, 4], ids=["owned", "not owned"])
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_each_holder_of_a_gradient_finds_it_as_it_was(hold, first):
    graphs, recorder, ledger = make_graphs()
    layer, plain, other = Layer(graphs), Layer(), Layer(graphs)
    settle(layer, first)
    if first > 1:  # memory that the first layer leased is left to the other one
        layer.weight.grad = None
        settle(other, 3)
        other.weight.grad = None
    held = []
    for seed in range(4):
        step(layer, seed)
        step(plain, seed)
        assert recorder.owns(layer.weight.grad)
        reads = hold(layer.weight.grad), hold(plain.weight.grad.clone())
        layer.weight.grad = None
        held.append(reads)
        assert all(torch.equal(given(), expected()) for given, expected in held), seed
    assert not ledger.stats().not_captured
    del held, reads
    captures = ledger.stats().captures
    settle(layer)
    assert ledger.stats().captures == captures
    assert ledger.stats().gradients_copied == 0


def test_gradients_that_are_kept_for_long_are_copied_at_last(captured):
    layers, _, ledger = captured
    kept = []
    for seed in range(30):
        pair = [torch.autograd.grad(each(make_input(seed)).sum(), each.weight)[0] for each in layers]
        kept = [*kept[-10:], pair]
        assert all(torch.equal(*pair) for pair in kept), seed
    stats = ledger.stats()
    # Four steps are replayed; later ones run uncaptured until the first of the four gradients is released.
    assert (stats.captures, dict(stats.not_captured)) == (5, {LENT: 8})
    assert stats.gradients_copied == 2 * (stats.graph_replays - 30 + 1 - 4)


@pytest.mark.parametrize("others", [False, True], ids=["the last one", "with others"])
def test_a_gradient_outlives_model_and_captures(others):
    graphs, recorder, _ = make_graphs()
    layer, plain, other = Layer(graphs), Layer(), Layer(graphs)
    settle(layer, 3)
    settle(plain, 3)
    gradient, expected = layer.weight.grad[1:], plain.weight.grad[1:]
    assert recorder.owns(gradient)
    del layer
    gc.collect()
    if others:
        settle(other, 5)
        other.weight.grad = None
    assert torch.equal(gradient, expected)
    del other, graphs
    gc.collect()
    assert torch.equal(gradient, expected)
    assert len(recorder.replays) == 1
    del gradient
    assert not recorder.replays


def test_another_process_gets_a_copy(settled, monkeypatch):
    (layer, _), recorder, _ = settled
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", lambda storage: storage, raising=False)
    shared = layer.weight.grad._typed_storage()._share_cuda_()
    assert torch.equal(torch.empty(0).set_(shared, 0, layer.weight.shape), layer.weight.grad)
    assert shared.data_ptr() not in recorder.addresses()


def give_saved(saved_for_backward, cotangents):
    """Returns a tensor of the forward program, which the next forward overwrites, and the weight's gradient."""
    hidden = saved_for_backward[0][2]
    _, gradient = compute_gradients(saved_for_backward, cotangents)
    return hidden, gradient


def give_parts(saved_for_backward, cotangents):
    """Returns gradients that share memory."""
    x, gradient = compute_gradients(saved_for_backward, cotangents)
    both = torch.cat([x, gradient])
    return both[: len(x)], both[len(x) :]


@pytest.mark.parametrize(
    ("backward", "captures", "copied"), [(compute_gradients, 4, 0), (give_saved, 2, 18), (give_parts, 4, 0)]
)
def test_gradients_of_inputs_are_lent_but_what_forward_saved_is_not(backward, captures, copied):
    graphs, recorder, ledger = make_graphs()
    layer, plain = Layer(graphs, backward=backward), Layer(backward=backward)
    kept = []
    for seed in range(10):
        pair = [make_input(seed).requires_grad_() for _ in range(2)]
        for each, x in zip((layer, plain), pair, strict=True):
            each.weight.grad = None
            each(x).square().sum().backward()
        kept = [*kept[-1:], pair]  # the input's gradient holds one part of shared memory for two more steps
        assert all(torch.equal(one.grad, other.grad) for one, other in [*kept, (layer.weight, plain.weight)]), seed
    assert recorder.owns(layer.weight.grad) == (not copied)
    assert (ledger.stats().captures, ledger.stats().gradients_copied) == (captures, copied)


class Between(torch.autograd.Function):
    """An autograd function whose backward calls a function, and returns a gradient of its own."""

    @staticmethod
    def forward(ctx, x, call):
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.call()
        return torch.ones_like(gradient), None


def test_while_a_backward_is_under_way_nothing_is_back():
    """Autograd may add a gradient to another one on a stream for which the next replay does not wait."""
    graphs, _, _ = make_graphs()
    layer = Layer(graphs)
    settle(layer, 3)
    layer.weight.grad = torch.zeros_like(layer.weight)
    gradient_leases = graphs.memory_of(torch.device("cpu")).gradient_leases
    seen = []

    def look():  # the layer's gradient was added to another one by now, and nothing else holds it
        gradient_leases.settle()
        seen.append(len(gradient_leases.list_names(1)))

    x = Between.apply(Between.apply(make_input(1).requires_grad_(), look), bool)
    go_back(layer(x))
    gradient_leases.settle()
    assert seen == [1]
    assert not gradient_leases.list_names(1)


@pytest.mark.parametrize("name", ["_storage_Use_Count", "_current_graph_task_id"])
def test_a_torch_that_does_not_say_who_holds_memory(captured, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.delattr(torch._C, name)
        can_lend = memory.can_lend.__wrapped__()
    assert memory.can_lend() and not can_lend
    monkeypatch.setattr(captures, "can_lend", lambda: can_lend)
    layers, recorder, ledger = captured
    for seed in range(4):
        assert are_alike(layers, step, seed)
        assert not recorder.owns(layers[0].weight.grad)
    assert (ledger.stats().captures, ledger.stats().gradients_copied) == (2, 6)
