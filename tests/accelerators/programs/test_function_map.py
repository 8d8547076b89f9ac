"""Thunder's code in the key of a program: all functions that run, and code of others that replaces some."""

import contextlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

import fake_cuda
import pytest
import thunder
import torch
from program_keys import assert_same, jit, key_of
from stored_programs import compile_anew, counts
from thunder.core import interpreter, utils, vjp_utils
from thunder.extend import ImplInfo, OperatorExecutor

import fusioncache
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.function_map import KeyCache
from fusioncache.ir.keys import read_values

X = torch.zeros(3, 4)


def name_trusted(value):
    definitions = Definitions(Describer())
    with definitions.trusting():
        return definitions.name(value)


def test_names_of_definitions_tell_values_apart():
    cycle = []
    cycle.append(cycle)
    different = [
        *(utils.check, utils.check_type, torch.relu, torch.sin, torch.Tensor.sin, thunder.torch.silu, cycle),
        *(1, 1.0, True, "1", -0.0, 0.0, torch.float32, torch.float64, int | str, int | float, {"a": 1}, {"a": 2}),
        *(type("V", (str,), {})("1"), type("V", (str,), {})("2"), lambda: 1, lambda: 2, lambda x: x, lambda x: -x),
    ]
    half = [torch.autocast("cpu", dtype=each)(cosine) for each in (torch.float16, torch.bfloat16)]
    different += [cosine, *half, torch.no_grad()(cosine), torch.enable_grad()(cosine)]
    names = [*map(name_trusted, different)]
    assert len(set(names)) == len(names) and names == [*map(name_trusted, different)]
    assert name_trusted({"a": 1, "b": 2}) == name_trusted({"b": 2, "a": 1})


def test_generated_code_hides_no_code_of_others():
    namespace: dict[str, Any] = {"__name__": "torch"}
    exec("def wrap(function):\n return lambda x: function(x)", namespace)
    definitions = Definitions(Describer())
    definitions.name(namespace["wrap"](cosine))
    assert len(definitions.foreign) == 1


@contextlib.contextmanager
def note_functions() -> Iterator[set[tuple[str, str]]]:
    """Yields a set that gets the module and name of each function of Thunder that runs in the body.

    A function that is nested in another one, or in a class, has the name of the outermost.
    """
    found: set[tuple[str, str]] = set()
    root, monitoring, run = Path(thunder.__file__).parent, sys.monitoring, interpreter._run_frame
    tool = 2  # which no debugger, profiler, coverage tool or other helper uses

    def note(code: CodeType, *_: Any) -> Any:
        path = Path(code.co_filename)
        if code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED and path.is_relative_to(root):
            parts = ("thunder", *path.relative_to(root).with_suffix("").parts)
            found.add((".".join(parts).removesuffix(".__init__"), code.co_qualname.partition(".")[0]))
        return monitoring.DISABLE

    def interpret(frame: Any, *args: Any, **kwargs: Any) -> Any:
        note(frame.code)
        return run(frame, *args, **kwargs)

    monitoring.use_tool_id(tool, "note_functions")
    monitoring.register_callback(tool, monitoring.events.PY_START, note)
    monitoring.restart_events()
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        with mock.patch.object(interpreter, "_run_frame", interpret):
            yield found
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(tool)


class Mixed(torch.nn.Module):
    """Has a bit of everything: attention, an embedding, a buffer that is written, autocast, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = self.norm(self.embedding(tokens))
        heads = x.reshape(1, 2, -1, 4)
        x = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).reshape(-1, 8)
        with torch.autocast("cpu", torch.bfloat16):
            x = torch.nn.functional.dropout(self.head(x), 0.5)
        return torch.softmax(x.float(), -1).transpose(0, 1) + self.calls


def find_missing(ran: set[tuple[str, str]], listed: set[str]) -> set[str]:
    return {f"{module}.{name}" for module, name in ran if not {module, f"{module}.{name}"} & listed}


@pytest.mark.parametrize("grad", [True, False])
def test_all_of_thunders_code_that_runs_is_in_the_key_and_changes_nothing_in_it(grad, eager_regions):
    compiled, tokens = jit(Mixed()), torch.tensor([1, 2, 3, 5])
    with torch.set_grad_enabled(grad):
        before = key_of(compiled, tokens)
        with note_functions() as ran:
            compiled(tokens)
        assert_same(before, key_of(compiled, tokens))
    assert len({module for module, _ in ran}) > 25
    assert not find_missing(ran, set(read_values(before.texts["function map"])))


def test_all_of_the_code_that_makes_regions_for_nvfuser_is_in_the_key():
    def function(x, weight):
        return torch_like.softmax(torch_like.silu(x @ weight), -1) + x

    import thunder.torch as torch_like

    executor = fake_cuda.find_nvfuser_executor()

    def read() -> dict[str, object]:
        with fake_cuda.pretend_gpu():
            return read_values(KeyCache().find_map([executor]).text)

    before = read()
    with note_functions() as ran:
        fake_cuda.make_traces(function, [(4, 4)] * 2, grad=True)
    assert (type(executor).__module__, "nvFuserExecutor") in ran
    assert not find_missing(ran, set(before))
    assert read() == before


SILU = "torch.nn.functional.silu"


def is_able(*_):
    return False


def cosine(a):
    return OWN_COSINE(a)


OWN_COSINE = thunder.clang.cos


def test_no_program_is_kept_while_thunder_may_run_code_of_others(tmp_path, monkeypatch):
    """Such code is an executor's checker, a replacement of a function of Thunder, or a class."""

    def call(function, silu=None):
        executor = OperatorExecutor("of_others", version="1")
        executor._implmap.update({SILU: ImplInfo(checker=silu)} if silu else {})
        jit = {"executors": [executor, *fusioncache.executors()]}
        compiled, transform = compile_anew(lambda x: function(x), tmp_path, jit=jit)
        compiled(X)
        loaded, kept, reasons = counts(transform)
        return loaded, kept, "".join(re.findall(r"may run test_function_map\.(\w+), and nothing", str(reasons)))

    assert [call(torch.sin) for _ in range(2)] == [(0, 1, ""), (1, 0, "")]
    assert [call(each, is_able) for each in (torch.nn.functional.silu, torch.sin)] == [(0, 0, "is_able")] * 2
    with mock.patch.object(thunder.clang, "cos", cosine):
        assert [call(each) for each in (torch.cos, torch.sin)] == [(0, 0, "cosine")] * 2
    monkeypatch.setattr(utils, "of_others", type("Own", (), {}), raising=False)
    assert call(torch.tan) == (0, 0, "Own")


def test_derivatives_of_earlier_programs_are_derived_again(tmp_path):
    vjp_utils._cache["by code of others"] = None
    compiled, _ = compile_anew(lambda x: x + 1, tmp_path)
    compiled(X)
    assert "by code of others" not in vjp_utils._cache


def test_names_of_executors_that_change_often_do_not_pile_up():
    key_cache, executor, counted = KeyCache(), OperatorExecutor("often_changed", version="1"), []
    for number in range(3):
        executor.number = [number]
        key_cache.find_map([executor])
        counted.append(len(key_cache.names.fingerprints))
    assert len(set(counted)) == 1 and len(key_cache.maps) == 1
