"""What autograd knows of what a captured program is given and returns: all of it as without graphs, errors too."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from fake_graphs import FakeRecorder
from models import are_same

import fusioncache

CALLS = 6


def compile_captured(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model with graphs, and what counts them."""
    cache = fusioncache.Cache(record=False, store=False)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", graphs=True)
    recorder = FakeRecorder()
    monkeypatch.setattr(transform.graphs, "find_recorder", lambda device: recorder)
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), transform


def compile_plain(model: Any) -> Any:
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), backend="eager")
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])


class Layer(torch.nn.Module):
    """Parameters that share one storage, and a buffer."""

    def __init__(self, compute: Callable[..., Any]):
        super().__init__()
        numbers = torch.randn(32, generator=torch.Generator().manual_seed(0))
        self.a, self.w = torch.nn.Parameter(numbers[:16].view(4, 4)), torch.nn.Parameter(torch.empty(4, 4))
        self.w.data = numbers[16:].view(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.compute = compute

    def forward(self, *args: torch.Tensor) -> Any:
        return self.compute(self, *args)


def make_input(call: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(call)).requires_grad_()


def write_into_what_a_saved_view_is_of(compiled, layer, call, state):
    x = make_input(call)
    output = compiled(x)
    with torch.no_grad():
        layer.w.mul_(2)
    output.sum().backward()
    return [x.grad]


def return_parts_of_parameters(compiled, layer, call, state):
    layer.a.requires_grad_(False)
    with torch.no_grad():
        _, *parts = compiled(make_input(call))
    return [*parts, *(part.requires_grad for part in parts), *(part._base is layer.w for part in parts)]


def give_another_leaf_in_the_same_memory(compiled, layer, call, state):
    one = state.setdefault("one", torch.ones(3, 4, requires_grad=True))
    other = state.setdefault("other", one.detach().requires_grad_())
    second = one if call < 3 else other
    one.grad = other.grad = None
    output, same = compiled(one, second)
    (output.sum() + 10 * same.sum()).backward()
    return [one.grad, other.grad, same is second]


def give_the_negative_at_the_same_address(compiled, layer, call, state):
    numbers = state.setdefault("numbers", torch.complex(torch.zeros(3, 4), torch.ones(3, 4)))
    one = state.setdefault("one", torch.imag(numbers))
    other = state.setdefault("other", torch.imag(numbers.conj()))
    return [compiled(one if call != 4 else other)]


def read_what_the_next_call_writes(compiled, layer, call, state):
    x, q = state.setdefault("x", torch.ones(3, 4)), torch.ones(4, requires_grad=True)
    loss = (q * layer.mean).sum()
    compiled(x)
    loss.backward()
    return [q.grad]


def write_into_what_a_result_is_a_view_of(compiled, layer, call, state):
    x = make_input(call)
    whole, part = compiled(x)
    whole.mul_(2)
    part.sum().backward()
    return [x.grad]


def write_into_what_a_result_is_detached_from(compiled, layer, call, state):
    with torch.no_grad():
        _, *others = compiled(make_input(call))
        layer.w.mul_(0.9)
    q = torch.ones(4, requires_grad=True)
    sum((other * q).sum() for other in others).backward()
    return [q.grad, *(other.requires_grad for other in others), *(other._is_view() for other in others)]


def write_into_a_detached_result(compiled, layer, call, state):
    with torch.no_grad():
        whole, detached = compiled(make_input(call))
    q = torch.ones(3, 4, requires_grad=True)
    loss = (whole * q).sum()
    detached.mul_(2)
    loss.backward()
    return [q.grad]


def go_back_from_a_part_of_an_input(compiled, layer, call, state):
    x = make_input(call)
    output, part = compiled(x)
    (0 * output.sum() + part.sum()).backward()
    return [x.grad]


def update(layer, x):
    layer.mean.add_(x.sum(0))
    return x + layer.mean


SCENARIOS = {
    "a saved view of one parameter of several in a storage": (
        lambda layer, x: torch.tanh(x @ (turned := layer.w.t())) * turned[0] + layer.a[0],
        write_into_what_a_saved_view_is_of,
    ),
    "returned views of one parameter of several in a storage": (
        lambda layer, x: (torch.tanh(x + layer.a[0]), layer.w.t(), layer.w[1:]),
        return_parts_of_parameters,
    ),
    "another leaf in the same memory": (
        lambda layer, one, other: (torch.tanh(one), other),
        give_another_leaf_in_the_same_memory,
    ),
    "the negative at the same address": (lambda layer, x: x + 0, give_the_negative_at_the_same_address),
    "a part of an input": (lambda layer, x: (torch.tanh(x @ layer.w), x[:, :2]), go_back_from_a_part_of_an_input),
    "a buffer that is written": (update, read_what_the_next_call_writes),
    "a result and a view of it": (
        lambda layer, x: ((whole := torch.tanh(x @ layer.w)), whole.reshape(-1)),
        write_into_what_a_result_is_a_view_of,
    ),
    "parameters, detached": (
        lambda layer, x: (torch.tanh(x @ layer.w), layer.w.detach(), layer.w.detach()[1:]),
        write_into_what_a_result_is_detached_from,
    ),
    "a result, detached": (
        lambda layer, x: ((whole := torch.tanh(x @ layer.w)), whole.detach()),
        write_into_a_detached_result,
    ),
}


def tell(scenario: Callable[..., list[Any]], compiled: Any, layer: Layer) -> list[Any]:
    """What each call came to: values, or the kind of error."""
    state: dict[str, Any] = {}
    told = []
    for call in range(CALLS):
        try:
            told.append(scenario(compiled, layer, call, state))
        except RuntimeError as error:
            told.append([type(error)])
    return told


@pytest.mark.parametrize("name", SCENARIOS)
def test_calls_come_to_what_they_do_without_graphs(name, monkeypatch):
    compute, scenario = SCENARIOS[name]
    layer, other = Layer(compute), Layer(compute)
    captured, transform = compile_captured(layer, monkeypatch)
    found, expected = tell(scenario, captured, layer), tell(scenario, compile_plain(other), other)
    assert transform.stats().graph_replays > 0
    for one, theirs in zip(found, expected, strict=True):
        assert len(one) == len(theirs)
        for ours, its in zip(one, theirs, strict=True):
            if isinstance(its, torch.Tensor):
                assert are_same([ours], [its])
            else:
                assert ours == its
