"""What is written of a program that Thunder derived, and why one is not kept."""

import enum
import threading
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import thunder
import torch
from loaded_programs import write
from models import Residual, compile_plain, compile_with
from thunder.core.baseutils import build_callable
from thunder.executors import pythonex
from thunder.extend import OperatorExecutor, deregister_executor, register_executor
from torch.nn.functional import silu

import fusioncache
from fusioncache.accelerators.programs.build import Resolver, resolve_module, resolve_name, write_program
from fusioncache.accelerators.programs.text import ModuleReference, NamedReference, SymbolReference
from fusioncache.ir.errors import Declined
from fusioncache.process.secrets import write_text
from fusioncache.transform.executor import FusionCacheExecutor


class Result:
    pass


class Color(enum.Enum):
    RED = 1


def helper(x):
    return x


def computation(x):
    return x


def make(name: str, *lines: str, **context):
    """A function as Thunder compiles the text of a trace."""
    return build_callable(name, "\n".join(lines), f"thunder.{name}", context)


def write_lines(*lines: str, **context):
    """Returns the forward pass of a program that has these lines, as it is written."""
    return write_forward(make("computation", *lines, **context))


def write_forward(forward, function=helper):
    entry = SimpleNamespace(
        prologue_fn=make("prologue", "def prologue(*args):", "  return args", __function_obj=function),
        computation_fn=forward,
        epilogue_fn=make("epilogue", "def epilogue():", "  return ()"),
        backward_fn=None,
        return_none_instead_of_grads=False,
    )
    return write_program(entry, helper, lambda function: None).computation


def write_calling(value, name="used"):
    """Returns the reference to a value that a forward pass uses by this name."""
    return write_lines("def computation(x):", f"  return {name}(x)", **{name: value}).context[name]


def test_a_text_is_stored_as_a_digest_if_what_the_program_depends_on_has_it():
    lines = "def computation(x):", "  return x.used('Zq a text')"
    with pytest.raises(Declined, match="its computation has a string that is not stored"):
        write_lines(*lines)
    digest = write_text("Zq a text")
    assert write_lines(*lines).source.splitlines()[1] == f"  return x.used({digest!r})"


@pytest.mark.parametrize(
    ("value", "module", "name"),
    [
        (torch.preserve_format, "torch", "preserve_format"),
        (torch.float16, "torch", "float16"),
        (torch.strided, "torch", "strided"),
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
    assert Resolver().find_value(found) is value
    if found.text:  # where nothing else would tell of a change
        changed = Color if value is Color.RED else value
        monkeypatch.setattr(changed, *(("__defaults__", (True,)) if value is silu else ("more", 1)), raising=False)
        with pytest.raises(ValueError, match="is another one than when the program was made"):
            Resolver().find_value(found)


def test_a_module_is_referred_to_by_its_name():
    found = write_calling(torch)
    assert found == ModuleReference("torch") and resolve_module(found) is torch


def test_an_implementation_is_referred_to_by_its_executor():
    (function,) = pythonex.ex.opmap["check_len"].bind([], 0, output=None)._call_ctx.values()
    reference = write_calling(function, "check_len")
    assert (reference.executor, reference.symbol) == ("python", "check_len")
    assert Resolver().find_function(reference) is function
    with (
        mock.patch.dict(pythonex.ex.opmap, check_len=pythonex.ex.opmap["check_empty"]),
        pytest.raises(ValueError, match="executor python has no function for check_len"),
    ):
        Resolver().find_function(reference)
    with (
        mock.patch.object(function, "__kwdefaults__", {"length": 1}),
        pytest.raises(ValueError, match="check_len of executor python is another one than when"),
    ):
        Resolver().find_function(reference)


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


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (helper, "it calls used"),
        (lambda x: x, "it calls used"),
        (pytest, "it holds a value of type module"),
        (torch.ones(1), "it holds a tensor as a constant"),
        (object(), "it holds a value of type object"),
        (type("Local", (), {}), "it holds a value of type Local"),
    ],
)
def test_what_cannot_be_found_again_is_not_kept(value, what):
    with pytest.raises(Declined) as refusal:
        write_calling(value)
    assert str(refusal.value) == f"{what}, which another process cannot find again"


IDENTITY = make("computation", "def computation(x):", "  return x")


@pytest.mark.parametrize(
    ("forward", "function", "reason"),
    [
        (
            make("computation", "import random", "def computation(x):", "  return x"),
            helper,
            "its computation imports random, which stored programs may not use",
        ),
        (
            make("computation", "def computation(x):", "  return __function_obj(x)"),
            helper,
            "its computation takes values from where another process cannot",
        ),
        (make("computation", "def computation(x=[]):", "  return x"), helper, "its computation has values of its own"),
        (helper, helper, "its computation is no function that Thunder compiled"),
        (computation, helper, "its computation is no function that Thunder compiled"),
        (len, helper, "its computation is no function that Thunder compiled"),
        (IDENTITY, len, "its prologue checks another function than the one that was compiled"),
    ],
)
def test_what_has_no_text_is_not_kept(forward, function, reason):
    assert write_forward(IDENTITY).source.startswith("def computation")
    with pytest.raises(Declined) as refusal:
        write_forward(forward, function)
    assert str(refusal.value) == reason


def test_regions_as_thunder_made_them_and_verified_calls_are_not_kept():
    compiled = compile_plain(Residual(1))
    with mock.patch.object(FusionCacheExecutor, "own_backend", return_value="eager"):
        compiled(torch.randn(10, 10))
    with pytest.raises(Declined, match="it calls Fusion, which another process cannot find again"):
        write(compiled, fusioncache.FusionCache(backend="eager"))
    compiled, transform = compile_with(Residual(1), verify=True)
    compiled(torch.randn(10, 10))
    with pytest.raises(Declined, match="cannot find again"):
        write(compiled, transform)


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
        (Resolver().find_function if isinstance(reference, SymbolReference) else resolve_name)(reference)


def test_what_is_written_is_what_thunder_compiled():
    def without_provenance(source: str) -> list[str]:
        """The text without what it says of its maker: Thunder compiles a copy of the last trace."""
        return [line for line in source.split("\n") if not line.startswith("# Constructed by")]

    compiled, transform = compile_with(Residual(1))
    compiled(torch.randn(10, 10))
    program = write(compiled, transform)
    prologue, forward, backward = (
        last(compiled)[-1] for last in (thunder.last_prologue_traces, thunder.last_traces, thunder.last_backward_traces)
    )
    assert program.backward is not None
    assert program.prologue.source == prologue.python(include_decorators=False)
    assert without_provenance(program.computation.source) == without_provenance(forward.python())
    assert program.backward.source == backward.python()
