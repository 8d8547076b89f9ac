"""Programs written and built again: nothing is interpreted, every bit is the same; and why some are not stored."""

import copy
import enum
import threading
from dataclasses import replace
from functools import partial
from importlib.util import MAGIC_NUMBER
from types import SimpleNamespace
from unittest import mock

import pytest
import thunder
import torch
from loaded_programs import build, load, no_interpretation, run, write
from models import Blocks, are_same, compile_with
from thunder.core.baseutils import build_callable
from thunder.core.trace import TraceTag
from thunder.executors import pythonex
from thunder.extend import OperatorExecutor, deregister_executor, register_executor
from torch.nn.functional import silu

import fusioncache
from fusioncache.accelerators.programs import build as building
from fusioncache.accelerators.programs.text import ModuleReference, NamedReference, SymbolReference
from fusioncache.ir.errors import Declined
from fusioncache.process.secrets import write_text

OFFSET = torch.tensor([1.0, 2.0])


def scale(x, factors, *, by=2.0, kind="silu"):
    return silu(x + OFFSET * factors[0]) * by, x.to(torch.float16), torch.rand(2)


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
    "function": (lambda: scale, lambda: (torch.randn(3, 2), [torch.randn(2), "s", 1.5, None])),
}


@pytest.fixture(scope="module", params=CASES)
def written(request):
    """A model that was not called, its inputs, the results of two calls of Thunder's cache entry, and the program."""
    make, make_inputs = CASES[request.param]
    torch.manual_seed(0)
    model, inputs = make(), make_inputs()
    twin = copy.deepcopy(model)
    compiled, transform = compile_with(model, cache=fusioncache.Cache(record=False, store=False))
    results = [run(compiled, model, *inputs) for _ in range(2)]
    return twin, inputs, results, write(compiled, transform)


def test_a_built_program_computes_the_same_bits_and_thunder_shows_its_texts(written):
    model, inputs, expected, program = copy.deepcopy(written)
    compiled = load(model, program)
    with no_interpretation():
        results = [run(compiled, model, *inputs) for _ in range(2)]
    assert all(map(are_same, results, expected))
    stats = thunder.compile_stats(compiled)
    assert (stats.cache_hits, stats.cache_misses) == (2, 0)
    assert stats.last_prologue_execution_stop >= stats.last_prologue_execution_start > 0
    shown = {
        "prologue": (thunder.last_prologue_traces(compiled), set()),
        "computation": (thunder.last_traces(compiled), {TraceTag.AUGMENTED_FORWARD} if program.backward else set()),
        "backward": (thunder.last_backward_traces(compiled), {TraceTag.BACKWARD}),
        "epilogue": (stats.last_epilogue_traces, set()),
    }
    for part, (traces, tags) in shown.items():
        assert len(traces or ()) == (getattr(program, part) is not None)
        for trace in traces or ():
            assert trace.tags == tags
            assert repr(trace) == trace.python() == getattr(program, part).source
            assert trace.python_ctx().keys() >= getattr(program, part).context.keys()
            with pytest.raises(AttributeError, match="a loaded trace has a text and no bound symbols"):
                _ = trace.bound_symbols


@pytest.mark.parametrize("written", ["training"], indirect=True)
def test_a_built_prologue_checks_as_the_first_one_did(written):
    model, inputs, _, program = copy.deepcopy(written)
    compiled = load(model, program)
    for others, is_training in (((torch.randn(5, 16),), True), ((inputs[0].double(),), True), (inputs, False)):
        model.train(is_training)
        with no_interpretation(), pytest.raises(AssertionError, match="interpreted"):
            compiled(*others)


@pytest.mark.parametrize("written", ["training"], indirect=True)
def test_bytecode_is_used_for_the_very_text_and_python_it_was_made_of(written):
    model, inputs, expected, program = copy.deepcopy(written)
    content = building.encode_code(program)
    names = [code.co_filename for code in building.decode_code(content, program)]
    assert names == [*map(building.name_file, program.traces())]
    with mock.patch.object(building, "compile_trace", lambda trace: pytest.fail("compiled")):
        compiled = load(model, program, bytecode=content)
    with no_interpretation():
        assert are_same(run(compiled, model, *inputs), expected[0])
    changed = replace(program, epilogue=replace(program.epilogue, source="def epilogue():\n  ..."))
    wrong = [content[:-1], content + b" ", content.replace(b"0", b"1"), b"", building.encode_code(changed)]
    wrong.append(content.replace(MAGIC_NUMBER.hex().encode(), b"00000000", 1))
    for each in wrong:
        with pytest.raises(ValueError, match="no code of this program for this Python"):
            building.decode_code(each, program)
        build(compiled, program, bytecode=each)
    for body in ("  return (", "  x\x00"):
        no_python = replace(program.computation, source=f"def computation(x):\n{body}")
        with pytest.raises(ValueError, match="the text of computation is no Python"):
            build(compiled, replace(program, computation=no_python))


class Result:
    pass


class Color(enum.Enum):
    RED = 1


def helper(x):
    return x


def computation(x):
    return x


def make(name: str, *lines: str, **context):
    """Returns a function compiled from the text of a trace, as Thunder compiles it."""
    return build_callable(name, "\n".join(lines), f"thunder.{name}", context)


def compute(result: str, head: str = "", args: str = "x", **context):
    """Returns a forward pass that returns this expression."""
    return make("computation", head, f"def computation({args}):", f"  return {result}", **context)


def write_forward(forward, function=helper):
    entry = SimpleNamespace(
        prologue_fn=make("prologue", "def prologue(*args):", "  return args", __function_obj=function),
        computation_fn=forward,
        epilogue_fn=make("epilogue", "def epilogue():", "  return ()"),
        backward_fn=None,
        return_none_instead_of_grads=False,
    )
    return building.write_program(entry, helper, lambda function: None).computation


def write_calling(value, name="used"):
    """Returns the reference to a value that a forward pass uses by this name."""
    return write_forward(compute(f"{name}(x)", **{name: value})).context[name]


def test_a_text_is_stored_as_a_digest_if_what_the_program_depends_on_has_it():
    forward = compute("x.used('Zq a text')")
    with pytest.raises(Declined, match="its computation has a string that is not stored"):
        write_forward(forward)
    digest = write_text("Zq a text")
    assert write_forward(forward).source.endswith(f"  return x.used({digest!r})")


@pytest.mark.parametrize(
    ("value", "module", "name"),
    [
        (torch.float16, "torch", "float16"),
        (torch.Tensor, "torch", "Tensor"),
        (silu, "torch.nn.functional", "silu"),
        (Result, __name__, "Result"),
        (Color.RED, __name__, "Color.RED"),
    ],
)
def test_a_value_is_referred_to_by_its_name(value, module, name, monkeypatch):
    found = write_calling(value)
    assert (found.module, found.name) == (module, name)
    assert bool(found.text) == (value in (silu, Result, Color.RED))
    assert building.Resolver().find_value(found) is value
    if found.text:  # if nothing else would show a change
        changed = Color if value is Color.RED else value
        monkeypatch.setattr(changed, *(("__defaults__", (True,)) if value is silu else ("more", 1)), raising=False)
        with pytest.raises(ValueError, match="is another one than when the program was made"):
            building.Resolver().find_value(found)
    whole = write_calling(torch)
    assert whole == ModuleReference("torch") and building.resolve_module(whole) is torch


def test_an_implementation_is_referred_to_by_its_executor():
    (function,) = pythonex.ex.opmap["check_len"].bind([], 0, output=None)._call_ctx.values()
    reference = write_calling(function, "check_len")
    assert (reference.executor, reference.symbol) == ("python", "check_len")
    assert building.Resolver().find_function(reference) is function
    with (
        mock.patch.dict(pythonex.ex.opmap, check_len=pythonex.ex.opmap["check_empty"]),
        pytest.raises(ValueError, match="executor python has no function for check_len"),
    ):
        building.Resolver().find_function(reference)
    with (
        mock.patch.object(function, "__kwdefaults__", {"length": 1}),
        pytest.raises(ValueError, match="check_len of executor python is another one than when"),
    ):
        building.Resolver().find_function(reference)


def test_an_implementation_without_a_value_is_not_kept():
    executor = OperatorExecutor("holds_a_lock")
    executor.register_operator("locked", meta=helper, fn=partial(helper, threading.Lock()))
    (function,) = executor.opmap["locked"].bind(0, output=None)._call_ctx.values()
    register_executor(executor)
    try:
        with pytest.raises(Declined, match=r"it calls locked, which cannot be compared: a _thread\.lock has no value"):
            write_calling(function, "locked")
    finally:
        deregister_executor(executor)


LOST = [
    (helper, "it calls used"),
    (lambda x: x, "it calls used"),
    (pytest, "it holds a value of type module"),
    (torch.ones(1), "it holds a tensor as a constant"),
    (object(), "it holds a value of type object"),
    (type("Local", (), {}), "it holds a value of type Local"),
]
WITHOUT_TEXT = [
    (compute("x", head="import random"), "imports random, which stored programs may not use"),
    (compute("__function_obj(x)"), "takes values from where another process cannot"),
    (compute("x", args="x=[]"), "has values of its own"),
    (helper, "is no function that Thunder compiled"),
    (computation, "is no function that Thunder compiled"),
    (len, "is no function that Thunder compiled"),
]


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        *((compute("used(x)", used=value), f"{what}, which another process cannot find again") for value, what in LOST),
        *((forward, f"its computation {what}") for forward, what in WITHOUT_TEXT),
    ],
)
def test_what_cannot_be_found_again_or_has_no_text_is_not_kept(forward, reason):
    with pytest.raises(Declined) as refusal:
        write_forward(forward)
    assert str(refusal.value) == reason


def test_the_prologue_of_another_function_is_not_kept():
    assert write_forward(compute("x")).source == "\ndef computation(x):\n  return x"
    with pytest.raises(Declined, match="its prologue checks another function than the one that was compiled"):
        write_forward(compute("x"), function=len)


@pytest.mark.parametrize(
    "reference",
    [
        NamedReference("torch", "os.system"),
        NamedReference("torch", "nn"),
        NamedReference("torch", "nothing"),
        NamedReference("torch.nn.functional", "torch.rsqrt"),
        NamedReference("pytest", "raises"),
        NamedReference("not_imported_anywhere", "Result"),
        NamedReference("thunder.not_there", "Result"),
        SymbolReference("python", "not_there"),
        SymbolReference("not there", "check_len"),
    ],
)
def test_a_reference_leads_to_nothing_else(reference):
    with pytest.raises(ValueError, match=r"not there|has no|may use|cannot be imported"):
        (building.Resolver().find_function if isinstance(reference, SymbolReference) else building.resolve_name)(
            reference
        )
