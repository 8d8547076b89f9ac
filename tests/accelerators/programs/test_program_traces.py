"""The traces of a loaded program: the texts that run, listed where Thunder lists its own."""

import copy

import pytest
import thunder
import torch
from loaded_programs import build, load, no_interpretation, run, write
from models import compile_with
from thunder.core.trace import TraceTag

import fusioncache

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


@pytest.mark.parametrize("part", PARTS)
def test_a_loaded_trace_is_its_text_and_has_the_tags_of_thunders_own(derived, part):
    _, _, entry, loaded, program = derived
    one, other = find_trace(entry, part), find_trace(loaded, part)
    assert repr(other) == other.python() == getattr(program, part).source
    assert other.tags == one.tags
    with pytest.raises(AttributeError, match="a loaded trace has a text and no bound symbols"):
        _ = other.bound_symbols


def test_thunder_shows_the_traces_of_a_loaded_program(derived):
    model, inputs, _, _, program = derived
    model = copy.deepcopy(model)
    compiled = load(model, program)
    with no_interpretation():
        run(compiled, model, *inputs)
    shown = {
        "prologue": thunder.last_prologue_traces(compiled),
        "computation": thunder.last_traces(compiled),
        "backward": thunder.last_backward_traces(compiled),
        "epilogue": thunder.compile_stats(compiled).last_epilogue_traces,
    }
    for part, listed in shown.items():
        assert [trace.python() for trace in listed] == [getattr(program, part).source]
    assert thunder.last_traces(compiled)[-1].tags == {TraceTag.AUGMENTED_FORWARD}
