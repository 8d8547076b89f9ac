"""Regions that write into their inputs, once for each call, and reads of written memory, for any grouping."""

from dataclasses import replace

import pytest
import thunder
import thunder.torch as ltorch
import torch
from drawn_regions import draw
from in_place_models import InPlaceExecutor, run_counters
from models import compile_plain, compile_with
from thunder.core.symbol import BoundSymbolTag

import fusioncache
from fusioncache.ir import Ref
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.plan import folding_is_bitwise
from fusioncache.transform import executor


def write(value, target):
    return f"copy_({value}, {target}, grad_enabled=False)"


def key(graph):
    return make_key(canonicalize(graph).graph, {})


def test_writes_share_but_for_what_is_written_and_whether_it_leaves():
    into_x, into_y = (write("sub(x, y)", target) for target in "xy")
    both = draw("tanh(sub(x, y))", into_x)
    unread = replace(both, outputs=both.outputs[:1])
    counted = key(draw(f"tanh({into_x})"))
    assert counted == key(draw(f"tanh({into_x})", y=(2, 3), x=(2, 3))) == key(unread)
    others = draw(f"tanh({into_y})"), draw("tanh(sub(x, y))"), draw(into_x)
    assert len({counted, *map(key, others)}) == 4


def test_writes_are_never_dead_never_merged_and_come_last():
    first, second = (write("add(x, y)", target) for target in "xy")
    graph = canonicalize(draw(f"sin(shallow_copy({first}))", "sin(x)", f"cos({second})")).graph
    names = [op.name for op in graph.ops]
    assert names[-2:] == ["prims.copy_", "prims.copy_"]
    results = {
        number + place for op, number in graph.results() for place in range(len(op.outputs)) if op in graph.ops[-2:]
    }
    assert not any(Ref(value) in op.args for op in graph.ops for value in results)
    assert canonicalize(graph).graph == graph


def test_a_residual_add_in_place_keeps_its_target_and_is_never_folded():
    canonical = canonicalize(draw(write("add(add(add(x, a), b), c)", "x")))
    assert (canonical.binding.arities, canonical.binding.slots) == ((3,), (0,))
    assert not folding_is_bitwise(canonical.graph)


@pytest.mark.parametrize(
    ("backend", "layers"), [("eager", 3), ("inductor", 2), pytest.param("nvfuser", 3, marks=pytest.mark.gpu)]
)
def test_each_call_writes_once(backend, layers, monkeypatch):
    on_gpu = backend == "nvfuser"
    if not on_gpu:
        monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: backend)
    device, executors = ("cuda", fusioncache.executors()) if on_gpu else ("cpu", [InPlaceExecutor()])
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend=backend)
    found = run_counters(layers, device, executors, [transform])
    assert all(map(torch.equal, found, run_counters(layers, device, executors)))
    stats = transform.stats()
    assert not stats.bypasses
    assert stats.templates < stats.regions == stats.hits + stats.misses


def reads_both_first(x, y):
    first, other = x + 2, y + 2
    x.mul_(2)
    return first + 1, other + 1, y + 1


def reads_a_view_first(x, y):
    first = x[1:] + 2
    x.mul_(2)
    return first * x[1:] + 1


def writes_into_a_view(x, y):
    first = x * 3
    x[1].add_(y[1])
    return first + x


def reads_between_two_writes(x, y):
    x.add_(1)
    between = x * y
    x.mul_(2)
    return between + x


def writes_what_it_made(x, y):
    made = x + y
    first = made * 2
    made.add_(1)
    return first + made


PROGRAMS = (reads_both_first, reads_a_view_first, writes_into_a_view, reads_between_two_writes, writes_what_it_made)


@pytest.mark.usefixtures("eager_regions")
@pytest.mark.parametrize("compile_program", [lambda program: compile_with(program)[0], compile_plain])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_read_comes_in_front_of_the_write_that_follows_it(program, compile_program):
    compiled = compile_program(program)
    for is_shared in (False, True):
        results = []
        for function in (program, compiled):
            x = torch.arange(1.0, 25.0).reshape(8, 3)
            y = x if is_shared else x + 0.5
            results.append((function(x, y), x, y))
        torch.testing.assert_close(*results, rtol=0, atol=0)


def test_what_meets_the_memory_of_a_write_stays_on_its_side_of_it():
    """Both inputs may share memory. Thunder's grouping keeps this order wherever it was tried."""

    def write_between(x, y):
        view, made = ltorch.transpose(x, 0, 1), y + 1
        read, free = ltorch.exp(view), ltorch.sin(made)
        x.mul_(2)
        return read, free, ltorch.cos(y)

    trace = thunder.trace()(write_between, torch.ones(3, 3), torch.ones(3, 3))
    symbols = trace.bound_symbols
    writer = next(place for place, symbol in enumerate(symbols) if symbol.sym.name == "mul_")
    assert executor.keeps_order(trace, [[symbol] for symbol in symbols])
    bound = []
    for place, symbol in enumerate(symbols):
        order = [*symbols[:place], *symbols[place + 1 :]]
        order.insert(writer, symbol)  # which moves it to the other side
        if not executor.keeps_order(trace, [[each] for each in order]):
            bound.append(symbol.sym.name)
    assert bound == ["transpose", "add", "exp", "cos"]


def test_no_region_has_operations_of_forward_and_of_backward(monkeypatch):
    """Thunder separates the two after the executor, and sorts a trace with writes so that they may alternate."""
    monkeypatch.setattr(executor, "keeps_order", lambda *given: False)
    own = next(each for each in fusioncache.executors() if each.name == "fusioncache")

    def alternate(x, y):
        x.mul_(2)
        return ltorch.exp(x) * 2, ltorch.exp(y) * 2, ltorch.sin(ltorch.exp(y)) * 2

    trace = thunder.trace()(alternate, torch.ones(3), torch.ones(3))
    for symbol in trace.bound_symbols[5:-1:4]:
        symbol.tags.add(BoundSymbolTag.BACKWARD)
    fused = [symbol.subsymbols for symbol in own.fusion_pass(trace).bound_symbols if symbol.sym.is_fusion]
    names = [[each.sym.name for each in region] for region in fused]
    assert names == [["exp", "mul"], ["exp"], ["mul", "exp", "sin"], ["mul"]]
