"""The traces of a loaded program: as Thunder's own, for whoever looks at them."""

import copy
from unittest import mock

import pytest
import thunder
import thunder.examine
import torch
from loaded_programs import build, load, no_interpretation, run, write
from models import compile_with
from thunder.core.trace import TraceCtx, TraceTag
from thunder.examine.memory_calculation import get_alloc_memory

import fusioncache
from fusioncache.accelerators.programs import traces

PARTS = ("prologue", "computation", "backward", "epilogue")


class Attention(torch.nn.Module):
    """Regions, products, an operation with several results, random numbers, a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens, scale):
        self.calls += 1
        x = torch.nn.functional.silu(self.linear(self.embed(tokens)))[None, None]
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        first, second = torch.split(x, 2, -1)
        return (torch.nn.functional.dropout(first * second, 0.5) * scale).sum() + first.to(torch.float64).sum()


@pytest.fixture(scope="module")
def derived():
    """A model, its inputs, Thunder's entry for them, the entry that was built of it, and the program."""
    torch.manual_seed(0)
    model, inputs = Attention(), (torch.tensor([0, 3, 1]), 2.5)
    twin = copy.deepcopy(model)
    compiled, transform = compile_with(model, cache=fusioncache.Cache(record=False, store=False))
    run(compiled, model, *inputs)
    program = write(compiled, transform)
    (entry,) = thunder.compile_stats(compiled).interpreter_cache
    return twin, inputs, entry, build(compiled, program)[0], program


def find_trace(entry, part):
    return getattr(entry, f"{part}_traces")[-1]


def statements(text: str) -> list[str]:
    """The lines of a trace without comments and what the decorators need."""
    lines = (line.partition("  # ")[0].rstrip() for line in text.split("\n"))
    return [line for line in lines if line and not line.lstrip().startswith("#") and "no_autocast" not in line]


@pytest.mark.parametrize("part", PARTS)
def test_what_is_read_off_a_text_prints_as_the_text(derived, part):
    *_, loaded, _ = derived
    trace = find_trace(loaded, part)
    printed = TraceCtx.python(trace, include_decorators="@torch.no_grad()" in trace.python())
    assert statements(printed) == statements(trace.python())
    assert repr(trace) == trace.python()


@pytest.mark.parametrize("part", PARTS)
def test_operations_have_the_symbols_values_and_tags_of_thunders_own(derived, part):
    _, _, entry, loaded, _ = derived
    one, other = find_trace(entry, part), find_trace(loaded, part)
    assert [str(each.sym.name) for each in one.bound_symbols] == [each.sym.name for each in other.bound_symbols]
    assert [each.sym.id for each in one.bound_symbols] == [each.sym.id for each in other.bound_symbols]
    for mine, theirs in zip(one.bound_symbols, other.bound_symbols, strict=True):
        for values in ("flat_proxy_args", "flat_proxy_outs"):
            assert describe(getattr(mine, values)) == describe(getattr(theirs, values)), str(mine)
    assert other.tags == one.tags
    assert other.siginfo().name == one.siginfo().name
    assert [name for name, _ in other.siginfo().args] == [name for name, _ in one.siginfo().args]


def describe(proxies) -> tuple:
    return tuple((proxy.name, getattr(proxy, "dtype", None), getattr(proxy, "shape", None)) for proxy in proxies)


def test_fusions_and_memory_are_those_of_thunders_own(derived):
    _, _, entry, loaded, program = derived
    one, other = find_trace(entry, "computation"), find_trace(loaded, "computation")
    assert get_alloc_memory(other) == get_alloc_memory(one)
    names = [name for name, _ in thunder.examine.get_fusions(one, warn_if_fusions_unavailable=False)]
    fusions = thunder.examine.get_fusions(other, warn_if_fusions_unavailable=False)
    assert [name for name, _ in fusions] == names != []
    assert all(loaded.computation_fn.__wrapped__.__wrapped__.__globals__[name] is call for name, call in fusions)
    symbols = thunder.examine.get_fusion_symbols(other, warn_if_fusions_unavailable=False)
    assert {symbol.sym.name for symbol in symbols} <= program.templates().keys()


def test_thunder_shows_the_traces_of_a_loaded_program(derived):
    model, inputs, _, _, program = derived
    model = copy.deepcopy(model)
    compiled = load(model, program)
    with no_interpretation(), mock.patch.object(traces, "StatementReader", side_effect=AssertionError("read")):
        run(compiled, model, *inputs)  # nothing is taken apart until it is asked for
    shown = {
        "prologue": thunder.last_prologue_traces(compiled),
        "computation": thunder.last_traces(compiled),
        "backward": thunder.last_backward_traces(compiled),
        "epilogue": thunder.compile_stats(compiled).last_epilogue_traces,
    }
    for part, listed in shown.items():
        assert [trace.python() for trace in listed] == [getattr(program, part).source]
    assert thunder.last_traces(compiled)[-1].tags == {TraceTag.AUGMENTED_FORWARD}
    with pytest.raises(AttributeError, match="LoadedTrace has no attribute missing"):
        _ = thunder.last_traces(compiled)[-1].missing


def test_a_loaded_trace_can_be_made_a_function_again(derived):
    *_, loaded, _ = derived
    trace = find_trace(loaded, "epilogue")
    assert trace.python_callable().__name__ == "epilogue"
