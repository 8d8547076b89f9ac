"""Tracing without detours: the same traces, errors and results as Thunder's own, from fewer interpreted frames."""

import inspect
import logging
import sys
from collections import OrderedDict
from unittest import mock

import pytest
import thunder
import torch
from models import Blocks, Residual
from threads_at_once import run_at_once
from thunder.core import interpreter, jit_ext

import fusioncache
from benchmarks.equality.traces import read_texts
from fusioncache import tracing
from fusioncache.thunder_adapter import capabilities, installation
from fusioncache.thunder_adapter.installation import TRACING, find_replacements
from fusioncache.thunder_adapter.shortcuts.calls import describe_one_frame

SCALE = 3
TABLE = {"half": 0.5, 1: 2.0}


@pytest.fixture(autouse=True)
def thunders_own():
    """Every test starts and ends with Thunder's own functions."""

    tracing.uninstall()
    yield
    tracing.uninstall()


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
    return max(x.shape[0], 2) * x + len(x.shape) * min(SCALE, 7)


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
    """The result and the text of every trace."""
    compiled = thunder.jit(made(program))
    result = compiled(*args, **kwargs)
    return result, read_texts(compiled)


@pytest.mark.parametrize(("program", "args", "kwargs"), PROGRAMS)
def test_traces_and_results_stay_the_same(program, args, kwargs):
    result, texts = traced(program, args, kwargs)
    tracing.install()
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
    tracing.install()
    assert raised() == slow
    assert issubclass(slow[0], LookupError | NameError)


def test_fewer_frames_are_interpreted():
    def frames():
        with mock.patch.object(interpreter, "_run_frame", wraps=interpreter._run_frame) as run:
            thunder.jit(Blocks(2, 4))(X)
        return run.call_count

    slow = frames()
    tracing.install()
    assert frames() * 3 < slow


def all_replacements():
    """What may be replaced, of every group."""
    return [each for capability in TRACING for each in find_replacements(capability)]


def in_place():
    """What Thunder finds in each place."""
    return [each.get() for each in all_replacements()]


def all_differ(these, those):
    return all(one is not other for one, other in zip(these, those, strict=True))


def all_same(these, those):
    return all(one is other for one, other in zip(these, those, strict=True))


def test_a_second_installation_does_nothing():
    own = in_place()
    tracing.install()
    once = in_place()
    tracing.install()
    assert all_same(in_place(), once) and all_differ(once, own)


def test_thunder_gets_its_very_own_back():
    own = in_place()
    for _ in range(2):
        fusioncache.tracing.install()
        assert all_differ(in_place(), own)
        fusioncache.tracing.uninstall()
        assert all_same(in_place(), own)
    fusioncache.tracing.uninstall()
    assert all_same(in_place(), own)


def test_what_others_put_over_it_stays(monkeypatch):
    places = all_replacements()
    own = [each.get() for each in places]
    monkeypatch.setattr(interpreter, "globals_lookup", interpreter.globals_lookup)  # to be put back
    tracing.install()
    ours = interpreter.globals_lookup

    def theirs(*args):
        return ours(*args)

    interpreter.globals_lookup = theirs
    tracing.uninstall()
    assert interpreter.globals_lookup is theirs
    others = [(each, before) for each, before in zip(places, own, strict=True) if each.key != "globals_lookup"]
    assert all(each.get() is before for each, before in others)
    assert torch.equal(thunder.jit(globals_and_builtins)(X), globals_and_builtins(X))


def test_threads_install_it_once():
    own = in_place()
    run_at_once(*[tracing.install] * 8)
    assert all_differ(in_place(), own)
    tracing.uninstall()
    assert all_same(in_place(), own)


def no_source(_):
    raise OSError("could not get source code")


def no_file(_):
    raise TypeError("built-in")


def of_another_version(_):
    return "of another version"


@pytest.mark.parametrize("digest", [no_source, no_file, of_another_version])
def test_unknown_source_is_left_alone(monkeypatch, caplog, digest):
    """Python's own library needs no known source, and a probe shows that hooks work; all else stays as it is."""
    places, own = all_replacements(), in_place()
    hooked = [each.key for each in find_replacements("hooks")]
    monkeypatch.setattr(installation, "accepted", set())
    capabilities.find_off.cache_clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("fusioncache.thunder_adapter.") and hasattr(module, "digest_source"):
            monkeypatch.setattr(module, "digest_source", digest)
    caplog.set_level(logging.INFO, "fusioncache")
    fusioncache.FusionCache()
    changed = [each.key for each, before in zip(places, own, strict=True) if each.get() is not before]
    assert set(changed) == {"dis", *hooked}
    assert "thunder.core.interpreter:globals_lookup has another source" in caplog.text
    capabilities.find_off.cache_clear()


def test_a_place_that_is_gone_is_left_alone(monkeypatch):
    monkeypatch.delitem(interpreter._default_opcode_handler_map, "UNPACK_SEQUENCE")
    own = in_place()
    tracing.install()
    changed = [now is not before for now, before in zip(in_place(), own, strict=True)]
    assert all(changed)
    monkeypatch.delattr(interpreter, "_default_lookaside_map")
    tracing.uninstall()
    tracing.install()
    assert "UNPACK_SEQUENCE" not in interpreter._default_opcode_handler_map


def test_the_transform_installs_it_unless_told_not_to():
    own, own_jit = interpreter.globals_lookup, jit_ext.thunder_general_jit
    fusioncache.FusionCache(fast_tracing=False)
    assert interpreter.globals_lookup is own
    fusioncache.FusionCache()
    assert inspect.unwrap(jit_ext.thunder_general_jit) is own_jit is not jit_ext.thunder_general_jit
    assert inspect.unwrap(interpreter.globals_lookup) is own is not interpreter.globals_lookup


def test_who_called_what_is_traced_is_described_as_thunder_does():
    def find_callsite():
        return interpreter.InterpreterRuntimeCtx(False, None)._original_callsite

    def call():
        own = find_callsite()
        tracing.install()
        return own, find_callsite()

    own, ours = call()
    assert own.frame is ours.frame and (own.function, own.filename) == ("call", __file__)
    assert own.code_context == ["        own = find_callsite()\n"]
    assert ours.code_context == ["        return own, find_callsite()\n"]
    assert (ours.lineno, ours.positions.lineno) == (own.lineno + 2,) * 2
    assert [type(each) for each in ours] == [type(each) for each in own]
    with pytest.raises(IndexError):
        describe_one_frame(lambda: inspect.stack()[10_000])()


def test_threads_leave_the_switch_interval_alone(monkeypatch):
    """Nobody sets what belongs to the whole process, however many trace at once and catch exceptions."""
    tracing.install()
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: pytest.fail("the interval was changed"))
    found = []

    run_at_once(*[lambda: found.append(torch.equal(thunder.jit(generators)(X), generators(X)))] * 3)
    assert found == [True] * 3
