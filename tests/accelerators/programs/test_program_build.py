"""A program that was written and is built again: nothing is interpreted, and every bit is the same."""

import copy
import dataclasses
from importlib.util import MAGIC_NUMBER

import pytest
import thunder
import torch
from in_place_models import Counters
from loaded_programs import build, load, no_interpretation, run, write
from models import Blocks, are_same, compile_with
from thunder.core.trace import TraceTag

import fusioncache
import fusioncache.accelerators.programs.build as compiler
from fusioncache.accelerators.programs.build import decode_code, encode_code, name_file

OFFSET = torch.tensor([1.0, 2.0])


def scale(x, factors, *, by=2.0, kind="silu"):
    return torch.nn.functional.silu(x + OFFSET * factors[0]) * by, x.to(torch.float16), torch.rand(2)


class Tied(torch.nn.Module):
    """The output's weight is the input's, the norm writes into its buffers, and a buffer is replaced."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens):
        self.calls = self.calls + 1
        return self.head(torch.tanh(self.norm(self.embed(tokens)))), self.calls * 2


CASES = {
    "training": (lambda: Blocks(1), lambda: (torch.randn(3, 16),)),
    "tied": (Tied, lambda: (torch.tensor([1, 5, 2, 2]),)),
    "in place": (lambda: Counters(2), lambda: (torch.randn(4, 6),)),
    "function": (lambda: scale, lambda: (torch.randn(3, 2), [torch.randn(2), "s", 1.5, None])),
}


def write_case(name):
    """Returns a model that was not called, inputs, what Thunder's own entry computes for two calls, and the program."""
    make, make_inputs = CASES[name]
    torch.manual_seed(0)
    model, inputs = make(), make_inputs()
    twin = copy.deepcopy(model)
    compiled, transform = compile_with(model, cache=fusioncache.Cache(record=False, store=False))
    results = [run(compiled, model, *inputs) for _ in range(2)]
    return twin, inputs, results, write(compiled, transform)


@pytest.fixture(scope="module")
def training():
    return write_case("training")


@pytest.mark.parametrize("name", CASES)
def test_a_built_program_computes_the_same_bits_and_nothing_is_interpreted(name):
    model, inputs, expected, program = write_case(name)
    compiled = load(model, program)
    with no_interpretation():
        results = [run(compiled, model, *inputs) for _ in range(2)]
    assert all(map(are_same, results, expected))
    stats = thunder.compile_stats(compiled)
    assert (stats.cache_hits, stats.cache_misses) == (2, 0)
    assert stats.last_prologue_execution_stop >= stats.last_prologue_execution_start > 0


def test_a_built_prologue_checks_as_the_first_one_did(training):
    model, inputs, _, program = training
    model = copy.deepcopy(model)
    compiled = load(model, program)
    for others, is_training in (((torch.randn(5, 16),), True), ((inputs[0].double(),), True), (inputs, False)):
        model.train(is_training)
        with no_interpretation(), pytest.raises(AssertionError, match="interpreted"):
            compiled(*others)


def test_thunder_shows_the_texts_of_a_built_program_as_its_traces_with_its_tags(training):
    model, inputs, _, program = training
    model = copy.deepcopy(model)
    compiled = load(model, program)
    with no_interpretation():
        run(compiled, model, *inputs)
    shown = {
        "prologue": (thunder.last_prologue_traces(compiled), set()),
        "computation": (thunder.last_traces(compiled), {TraceTag.AUGMENTED_FORWARD}),
        "backward": (thunder.last_backward_traces(compiled), {TraceTag.BACKWARD}),
        "epilogue": (thunder.compile_stats(compiled).last_epilogue_traces, set()),
    }
    for part, ((trace,), tags) in shown.items():
        assert trace.tags == tags
        assert repr(trace) == trace.python() == getattr(program, part).source
        with pytest.raises(AttributeError, match="a loaded trace has a text and no bound symbols"):
            _ = trace.bound_symbols


def test_templates_are_called_under_the_names_in_the_text(training):
    model, _, _, program = training
    compiled, _ = compile_with(copy.deepcopy(model))
    entry, calls = build(compiled, program)
    functions = {call.target.function for call in calls.all()}
    assert {entry.computation_traces[-1].python_ctx().get(name) for name in program.computation.context} & functions
    assert len(calls.all()) == len(set(program.templates().values()))


def test_bytecode_is_used_for_the_very_text_and_python_it_was_made_of(training, monkeypatch):
    model, inputs, expected, program = training
    content = encode_code(program)
    assert [code.co_filename for code in decode_code(content, program)] == [
        name_file(each) for each in program.traces()
    ]
    model = copy.deepcopy(model)
    with monkeypatch.context() as nothing_is_compiled:
        nothing_is_compiled.setattr(compiler, "compile_trace", lambda trace: pytest.fail("compiled"))
        compiled = load(model, program, bytecode=content)
    with no_interpretation():
        assert are_same(run(compiled, model, *inputs), expected[0])
    changed = dataclasses.replace(
        program, epilogue=dataclasses.replace(program.epilogue, source="def epilogue():\n  ...")
    )
    wrong = [content[:-1], content + b" ", content.replace(b"0", b"1"), b"", encode_code(changed)]
    wrong.append(content.replace(MAGIC_NUMBER.hex().encode(), b"00000000", 1))
    for each in wrong:
        with pytest.raises(ValueError, match="no code of this program for this Python"):
            decode_code(each, program)
        build(compiled, program, bytecode=each)


def test_what_is_no_python_does_not_fit(training):
    model, _, _, program = training
    compiled, _ = compile_with(copy.deepcopy(model))
    for body in ("  return (", "  x\x00"):
        wrong = dataclasses.replace(program.computation, source=f"def computation(x):\n{body}")
        with pytest.raises(ValueError, match="the text of computation is no Python"):
            build(compiled, dataclasses.replace(program, computation=wrong))
