"""Programs of Thunder, captured without a GPU: all that autograd sees is as without graphs, including errors."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_graphs import FakeRecorder
from generating_models import Places, find_caches, generate, make_model, make_prompt
from models import Blocks, are_same, compile_plain, compile_with

import fusioncache
from fusioncache.accelerators.graphs.graph_capture import CudaGraphs
from fusioncache.process.settings import GRAPHS


def compile_model(model, store=False, **options):
    """Returns the compiled model and its transform; captures are recorded without a GPU."""
    compiled, transform = compile_with(model, cache=fusioncache.Cache(record=False, store=store), **options)
    if transform.graphs is not None:
        recorder = FakeRecorder()
        transform.graphs.find_recorder = lambda device: recorder
    return compiled, transform


def step(compiled, model, seed):
    model.zero_grad()
    compiled(torch.randn(3, 16, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("programs", [True, False])
def test_a_model_trains_with_the_same_bits(tmp_path, programs):
    torch.manual_seed(0)
    model = Blocks(1)
    other = copy.deepcopy(model)
    captured, transform = compile_model(model, store=tmp_path, graphs=True, programs=programs)
    plain, _ = compile_model(other)
    optimizers = [torch.optim.AdamW(each.parameters(), 1e-2) for each in (model, other)]
    for seed in range(6):
        assert are_same(step(captured, model, seed), step(plain, other, seed)), seed
        for optimizer in optimizers:
            optimizer.step()
    stats = transform.stats()
    assert (stats.captures, stats.graph_replays, dict(stats.not_captured)) == (2, 8, {})
    # Neither the graphs nor autograd copied a gradient.
    assert stats.gradients_copied == 0
    inside = transform.graphs.find_recorder(None).addresses()
    assert all(each.grad.untyped_storage().data_ptr() in inside for each in model.parameters())


@pytest.mark.parametrize(("value", "captures"), [("1", True), ("0", False), ("", False)])
def test_the_environment_may_ask_for_it(monkeypatch, value, captures):
    monkeypatch.setenv(GRAPHS.name, value)
    assert isinstance(fusioncache.FusionCache(backend="eager").graphs, CudaGraphs) is captures
    plugin = fusioncache.Plugin(backend="eager", graphs=not captures)
    assert isinstance(plugin.transform.graphs, CudaGraphs) is not captures


def test_verify_mode_looks_at_each_call():
    model = Blocks(1)
    compiled, transform = compile_model(model, graphs=True, verify=True)
    step(compiled, model, 0)
    assert transform.stats().not_captured == {"verify mode": 1}


@torch.no_grad()
def test_tokens_that_lie_still_are_replayed_and_write_into_their_caches(eager_regions):
    """The model has a key-value cache; results and caches have the same bits as with Thunder alone."""
    model, module, count = make_model(), make_model(), 8
    compiled, transform = compile_model(model, graphs=True)
    plain = compile_plain(module)
    places, prompt = Places(), make_prompt(7)

    def compare():
        assert are_same(places.generate(compiled, prompt, count), generate(plain, prompt, count))
        assert are_same(list(find_caches(model)), list(find_caches(module)))

    for turn in range(3):
        before = transform.stats().graph_replays
        compare()
        assert turn == 0 or transform.stats().graph_replays == before + count - 1
        for own in (model, module):
            for cache in find_caches(own):
                cache.mul_(0.5)
    assert transform.stats().captures == 1
    for each, own in ((compiled, model), (plain, module)):
        cache = own.transformer.h[0].attn.kv_cache
        cache.k = cache.k * 1.5
        each.set_buffer("transformer.h.0.attn.kv_cache.k", cache.k)
    compare()


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


def go_back_from_a_part_of_an_input(compiled, layer, call, state):
    x = make_input(call)
    output, part = compiled(x)
    (0 * output.sum() + part.sum()).backward()
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


def update(layer, x):
    layer.mean.add_(x.sum(0))
    return x + layer.mean


SCENARIOS = {
    write_into_what_a_saved_view_is_of: lambda layer, x: (
        torch.tanh(x @ (turned := layer.w.t())) * turned[0] + layer.a[0]
    ),
    return_parts_of_parameters: lambda layer, x: (torch.tanh(x + layer.a[0]), layer.w.t(), layer.w[1:]),
    give_another_leaf_in_the_same_memory: lambda layer, one, other: (torch.tanh(one), other),
    give_the_negative_at_the_same_address: lambda layer, x: x + 0,
    read_what_the_next_call_writes: update,
    write_into_what_a_result_is_a_view_of: lambda layer, x: ((y := torch.tanh(x @ layer.w)), y.reshape(-1)),
    go_back_from_a_part_of_an_input: lambda layer, x: (torch.tanh(x @ layer.w), x[:, :2]),
    write_into_what_a_result_is_detached_from: lambda layer, x: (x @ layer.w, layer.w.detach(), layer.w.detach()[1:]),
    write_into_a_detached_result: lambda layer, x: ((y := torch.tanh(x @ layer.w)), y.detach()),
}
"""Actions of users, each with the function that the layer computes."""


def run_scenario(scenario: Callable[..., list[Any]], compiled: Any, layer: Layer) -> list[Any]:
    """Returns the values of each call, or the type of its error."""
    state: dict[str, Any] = {}
    results = []
    for call in range(6):
        try:
            results.append(scenario(compiled, layer, call, state))
        except RuntimeError as error:
            results.append([type(error)])
    return results


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_calls_come_to_what_they_do_without_graphs(scenario):
    layer, other = Layer(SCENARIOS[scenario]), Layer(SCENARIOS[scenario])
    captured, transform = compile_model(layer, graphs=True)
    found, expected = run_scenario(scenario, captured, layer), run_scenario(scenario, compile_model(other)[0], other)
    assert transform.stats().graph_replays > 0
    for one, theirs in zip(found, expected, strict=True):
        for ours, its in zip(one, theirs, strict=True):
            assert are_same([ours], [its]) if isinstance(its, torch.Tensor) else ours == its
