"""Tracing without detours: the same traces, errors and results as Thunder's own, from fewer interpreted frames."""

from __future__ import annotations

import inspect
import logging
import re
from collections import OrderedDict
from dataclasses import replace
from unittest import mock

import pytest
import thunder
import torch
from models import Blocks, Residual
from thunder.core import interpreter

import fusioncache
from fusioncache.trace import fast_tracing

SCALE = 3
TABLE = {"half": 0.5, 1: 2.0}


@pytest.fixture(autouse=True)
def thunders_own():
    """Every test starts and ends with Thunder's own functions."""

    def restore():
        for replacement in fast_tracing.replacements():
            replacement.put(inspect.unwrap(replacement.original))

    restore()
    yield restore
    restore()


class Containers(torch.nn.Module):
    """Attributes, containers of modules, hooks, and what Python code does around operations."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.named = torch.nn.ModuleDict({"last": torch.nn.Linear(4, 4)})
        self.sizes = [1, 2, (3, 4)]

    def forward(self, x, *others, scale=1.0, **named):
        for layer in self.layers:
            x = layer(x)
        for other in others:
            x = x + other
        return self.named["last"](x) * scale * self.sizes[-1][0] + sum(named[name] for name in sorted(named))


def globals_and_builtins(x):
    return max(x.shape) * x + len(x.shape) * min(SCALE, 7)


def subscripts(x):
    pair = (x, {"y": [x + 1, x + 2]})
    ordered = OrderedDict(a=x)
    return pair[0] * TABLE["half"] + pair[1]["y"][-1] * TABLE[1] + ordered["a"] + x[0] + x[..., 1:2]


def caught_errors(x):
    for container, key in (([1], 3), ({"a": 1}, "b"), ((1,), -2), ([1], "a")):
        try:
            container[key]
        except LookupError as error:
            x = x + len(str(error))
        except TypeError:
            x = x * 2
    try:
        return x + missing_name
    except NameError as error:
        return x + len(str(error))


def generators(x):
    return sum(i * x for i in range(3)) + [x * j for j in (1, 2)][1]


def truths(x, empty, full):
    found = [bool(each) for each in (empty, full, (), (x,), [], {}, {"a": 1}, OrderedDict(), OrderedDict(a=1), "", 0)]
    x = x + sum(found) + len(empty) * len(full) + ("a" in full) + ("b" not in full) + (3 in [1, 3])
    while full:
        x, full = x * 2, None
    return x if not empty else -x


def no_such_global(x):
    return x + missing_name  # noqa: F821


def no_such_item(x):
    return x + {"a": 1}["b"]


def no_such_index(x):
    return x + [1, 2][2]


X = torch.linspace(-1, 1, 16).reshape(4, 4)
PROGRAMS = [
    *((function, (X,), {}) for function in (globals_and_builtins, subscripts, caught_errors, generators)),
    (truths, (X, {}, {"a": X}), {}),
    (truths, (X, {"b": 1}, {}), {}),
    (Containers, (X, X, X), {"scale": 2.0, "b": X, "a": X}),
    (lambda: Blocks(2, 4), (X,), {}),
    (lambda: Residual(2, 4), (X,), {}),
]


def made(program):
    """The program itself, or the model that it makes, the same one every time."""
    if inspect.isfunction(program) and inspect.signature(program).parameters:
        return program
    torch.manual_seed(0)
    return program()


def traced(program, args, kwargs):
    """The result and the text of every trace, prologue and backward pass included."""
    compiled = thunder.jit(made(program))
    result = compiled(*args, **kwargs)
    of_all = (thunder.last_prologue_traces, thunder.last_traces, thunder.last_backward_traces)
    texts = [str(trace) for traces in of_all for trace in traces(compiled) or ()]
    return result, [re.sub(r"took \d+ milliseconds", "", text) for text in texts]


@pytest.mark.parametrize(("program", "args", "kwargs"), PROGRAMS)
def test_traces_and_results_stay_the_same(program, args, kwargs):
    result, texts = traced(program, args, kwargs)
    fast_tracing.install()
    fast_result, fast_texts = traced(program, args, kwargs)
    assert torch.equal(result, fast_result)
    assert texts == fast_texts


@pytest.mark.parametrize("function", [no_such_global, no_such_item, no_such_index])
def test_errors_stay_the_same(function):
    def raised():
        with pytest.raises(Exception) as caught:
            thunder.jit(function)(X)
        return caught.type, str(caught.value)

    slow = raised()
    fast_tracing.install()
    assert raised() == slow
    assert issubclass(slow[0], LookupError | NameError)


def test_fewer_frames_are_interpreted():
    def frames():
        with mock.patch.object(interpreter, "_run_frame", wraps=interpreter._run_frame) as run:
            thunder.jit(Blocks(2, 4))(X)
        return run.call_count

    slow = frames()
    fast_tracing.install()
    assert frames() * 3 < slow


def test_a_second_installation_does_nothing():
    fast_tracing.install()
    once = [replacement.original for replacement in fast_tracing.replacements()]
    fast_tracing.install()
    assert [replacement.original for replacement in fast_tracing.replacements()] == once
    assert all(inspect.unwrap(function) is not function for function in once)


def test_unknown_source_is_left_alone(monkeypatch, caplog):
    changed = tuple(replace(one, source="of another version") for one in fast_tracing.replacements())
    monkeypatch.setattr(fast_tracing, "replacements", lambda: changed)
    caplog.set_level(logging.INFO, "fusioncache")
    fast_tracing.install()
    assert interpreter.globals_lookup is changed[0].original
    assert "keeps Thunder's own globals_lookup" in caplog.text


def test_the_transform_installs_it_unless_told_not_to():
    own = interpreter.globals_lookup
    fusioncache.FusionCache(fast_tracing=False)
    assert interpreter.globals_lookup is own
    fusioncache.FusionCache()
    assert inspect.unwrap(interpreter.globals_lookup) is own is not interpreter.globals_lookup
