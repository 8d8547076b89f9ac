"""A handwritten program in the form that Thunder compiles, whose captures can be observed without a GPU."""

import torch
from fake_graphs import FakeRecorder
from thunder.executors.torch_autograd import connect_to_autograd

from fusioncache.accelerators.graphs.captures import ForwardFunction
from fusioncache.accelerators.graphs.graph_capture import CudaGraphs
from fusioncache.observe.record.ledger import Ledger

WIDTH = 4


@torch.no_grad()
def compute(x, weight):
    hidden = torch.tanh(x @ weight)
    output = hidden * 2.0
    return {"output": (output,), "flat_args": [x, weight], "flat_output": (output,)}, ((x, weight, hidden), (2.0,))


@torch.no_grad()
def compute_gradients(saved_for_backward, cotangents):
    saved, (factor,) = saved_for_backward
    saved_for_backward.clear()
    (gradient,) = cotangents
    cotangents.clear()
    x, weight, hidden = saved
    saved.clear()
    gradient = gradient * factor * (1 - hidden * hidden)
    del hidden
    return gradient @ weight.T, x.T @ gradient


def make_graphs():
    recorder, ledger = FakeRecorder(), Ledger()
    return CudaGraphs(ledger, lambda device: recorder), recorder, ledger


def capture(function, writes=False):
    graphs, recorder, ledger = make_graphs()
    return graphs.capture(ForwardFunction(function, False, writes=writes), None)[0], recorder, ledger


class Layer:
    """A layer that calls its functions as Thunder does; ``graphs``, if given, captures them."""

    def __init__(self, graphs=None, forward=compute, backward=compute_gradients):
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)))
        self.forward, self.backward = forward, backward
        if graphs is not None:
            self.forward, self.backward = graphs.capture(ForwardFunction(forward, True), backward)

    def __call__(self, x):
        data, (saved, others) = self.forward(x, self.weight)
        given = {"backward_fn": self.backward, "flat_args": data["flat_args"], "flat_output": data["flat_output"]}
        given |= {"saved_tensors": saved, "saved_other": others, "is_differentiable_outputs": None}
        connect_to_autograd(**given, return_none_instead_of_grads=False, disable_split_autograd=False)
        return data["output"][0]


def make_input(seed, rows=3):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def go_back(output, **options):
    output.backward(torch.ones_like(output), **options)


def step(layer, seed):
    """Goes forward and backward; returns the output and the weight's gradient."""
    layer.weight.grad = None
    output = layer(make_input(seed))
    go_back(output)
    return output.detach().clone(), layer.weight.grad


def settle(layer, steps=3):
    for seed in range(steps):
        step(layer, seed)


def are_equal(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def are_alike(layers, act=step, *given):
    """True if a function gives equal outputs and an equal gradient of the weight for all of these layers."""
    results = []
    for each in layers:
        each.weight.grad = None
        outputs = act(each, *given)
        results.append((*[output.detach() for output in outputs], each.weight.grad))
    return are_equal(*results)
