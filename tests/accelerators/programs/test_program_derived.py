"""What is not kept of a program, and why."""

import enum
import threading
from dataclasses import dataclass
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
from torch.nn import functional as F

import fusioncache
from fusioncache.accelerators.programs.build import Resolver, resolve_module, resolve_name, write_program
from fusioncache.accelerators.programs.text import ModuleReference, NamedReference, SymbolReference
from fusioncache.ir.errors import Declined
from fusioncache.process.secrets import write_text
from fusioncache.transform.executor import FusionCacheExecutor


@dataclass
class Result:
    value: object


class Color(enum.Enum):
    RED = 1


def helper(x):
    return x


def computation(x):
    return x


def make(name: str, *lines: str, **context):
    """A function as Thunder compiles the text of a trace."""
    return build_callable(name, "\n".join(lines), f"thunder.{name}", context)


def entry_of(computation, *, function=helper, prologue=None, backward=None):
    empty = make("epilogue", "def epilogue():", "  return ()")
    prologue = prologue or make("prologue", "def prologue(*args):", "  return args", __function_obj=function)
    return SimpleNamespace(
        prologue_fn=prologue,
        computation_fn=computation,
        epilogue_fn=empty,
        backward_fn=backward,
        return_none_instead_of_grads=False,
    )


def write_calling(value, *head: str):
    """Writes a program whose forward pass uses this value."""
    computation = make("computation", *head, "def computation(x):", "  return used(x)", used=value)
    return write_program(entry_of(computation), helper, lambda function: None).computation.context


def test_a_text_is_stored_as_a_digest_if_what_the_program_depends_on_has_it():
    lines = "def computation(x):", "  return x.used('Zq a text')"
    with pytest.raises(Declined, match="its computation has a string that is not stored"):
        write_program(entry_of(make("computation", *lines)), helper, lambda function: None)
    digest = write_text("Zq a text")
    written = write_program(entry_of(make("computation", *lines)), helper, lambda function: None)
    assert written.computation.source.splitlines()[1] == f"  return x.used({digest!r})"


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        (torch, ModuleReference("torch")),
        (torch.preserve_format, NamedReference("torch", "preserve_format")),
        (torch.float16, NamedReference("torch", "float16")),
        (torch.strided, NamedReference("torch", "strided")),
        (torch.nn.functional.silu, NamedReference("torch.nn.functional", "silu")),
        (torch.Tensor, NamedReference("torch", "Tensor")),
        (Result, NamedReference(__name__, "Result")),
        (Color.RED, NamedReference(__name__, "Color.RED")),
    ],
)
def test_a_value_is_referred_to_by_its_name(value, reference):
    (found,) = write_calling(value).values()
    if isinstance(reference, ModuleReference):
        assert found == reference
        assert resolve_module(found) is value
    else:
        assert (found.module, found.name) == (reference.module, reference.name)
        assert bool(found.text) == (value in (torch.nn.functional.silu, Result, Color.RED))
        assert Resolver().find_value(found) is value


def test_an_implementation_is_referred_to_by_its_executor():
    lines = ("def computation(x):", "  return check_len(x, 1)")
    (function,) = pythonex.ex.opmap["check_len"].bind([], 0, output=None)._call_ctx.values()
    computation = make("computation", *lines, check_len=function)
    context = write_program(entry_of(computation), helper, lambda function: None).computation.context
    reference = context["check_len"]
    assert (reference.executor, reference.symbol) == ("python", "check_len")
    assert Resolver().find_function(reference) is function
    with mock.patch.dict(pythonex.ex.opmap, check_len=pythonex.ex.opmap["check_empty"]):
        assert_other(Resolver().find_function, reference, "executor python has no function for check_len")
    with mock.patch.object(function, "__kwdefaults__", {"length": 1}):
        assert_other(Resolver().find_function, reference, "check_len of executor python is another one than when")


def assert_other(resolve, reference, reason):
    with pytest.raises(ValueError, match=reason):
        resolve(reference)


def test_what_was_changed_since_is_another_one(monkeypatch):
    """Where nothing else would tell: of classes of one's own, and functions of reviewed packages."""
    silu, result, red = (next(iter(write_calling(value).values())) for value in (F.silu, Result, Color.RED))
    for reference in (silu, result, red):
        Resolver().find_value(reference)
    with monkeypatch.context() as patches:
        patches.setattr(F.silu, "__defaults__", (True,))
        patches.setattr(Result, "more", 1, raising=False)
        patches.setattr(Color, "more", 1, raising=False)
        for reference in (silu, result, red):
            assert_other(Resolver().find_value, reference, "is another one than when the program was made")


def test_an_implementation_without_a_value_is_not_kept():
    executor = OperatorExecutor("holds_a_lock")
    executor.register_operator("locked", meta=helper, fn=partial(helper, threading.Lock()))
    (function,) = executor.opmap["locked"].bind(0, output=None)._call_ctx.values()
    computation = make("computation", "def computation(x):", "  return locked(x)", locked=function)
    register_executor(executor)
    try:
        with pytest.raises(Declined, match=r"it calls locked, which cannot be compared: a _thread\.lock has no value"):
            write_program(entry_of(computation), helper, lambda function: None)
    finally:
        deregister_executor(executor)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (helper, "it calls used, which another process cannot find again"),
        (lambda x: x, "it calls used, which another process cannot find again"),
        (pytest, "it holds a value of type module, which another process cannot find again"),
        (torch.ones(1), "it holds a tensor as a constant, which another process cannot find again"),
        (object(), "it holds a value of type object, which another process cannot find again"),
        (type("Local", (), {}), "it holds a value of type Local, which another process cannot find again"),
    ],
)
def test_what_cannot_be_found_again_is_not_kept(value, reason):
    with pytest.raises(Declined) as refusal:
        write_calling(value)
    assert str(refusal.value) == reason


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            entry_of(make("computation", "import random", "def computation(x):", "  return x")),
            "its computation imports random, which stored programs may not use",
        ),
        (
            entry_of(make("computation", "def computation(x):", "  return __function_obj(x)")),
            "its computation takes values from where another process cannot",
        ),
        (
            entry_of(make("computation", "def computation(x=[]):", "  return x")),
            "its computation has values of its own",
        ),
        (entry_of(helper), "its computation is no function that Thunder compiled"),
        (entry_of(computation), "its computation is no function that Thunder compiled"),
        (entry_of(len), "its computation is no function that Thunder compiled"),
        (
            entry_of(make("computation", "def computation(x):", "  return x"), function=len),
            "its prologue checks another function than the one that was compiled",
        ),
    ],
)
def test_what_has_no_text_is_not_kept(entry, reason):
    with pytest.raises(Declined) as refusal:
        write_program(entry, helper, lambda function: None)
    assert str(refusal.value) == reason


def test_regions_as_thunder_made_them_are_not_kept():
    compiled = compile_plain(Residual(1))
    with mock.patch.object(FusionCacheExecutor, "own_backend", return_value="eager"):
        compiled(torch.randn(10, 10))
    with pytest.raises(Declined, match="it calls Fusion, which another process cannot find again"):
        write(compiled, fusioncache.FusionCache(backend="eager"))


def test_verified_calls_are_not_kept():
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


def without_provenance(source: str) -> str:
    """The text of a trace without what it says of who made it: Thunder compiles a copy of the last one."""
    return "\n".join(line for line in source.split("\n") if not line.startswith("# Constructed by"))


def test_what_is_written_is_what_thunder_compiled():
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
