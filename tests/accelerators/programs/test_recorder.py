"""Whatever a trace reads besides its key is a read: unchanged it is equal, changed it is the one that differs."""

import builtins
import os
import types

import pytest
import reading_programs as programs
import torch
from reading_programs import Model, look_around
from recorded_reads import compare, record

from fusioncache import tracing

X = torch.linspace(-1, 1, 8).reshape(2, 4)
F = torch.nn.functional


@pytest.fixture(scope="module")
def recorded():
    """What a function and a module read, and these."""
    tracing.install()
    model = Model()
    yield {"function": (record(look_around, X).reads(), look_around), "module": (record(model, X).reads(), model)}
    tracing.uninstall()


def with_other_code(function, **changes):
    """The same function but for some of its code."""
    made = types.FunctionType(
        function.__code__.replace(**changes),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


def with_other_constant(function, old, new):
    """The same function with another constant, at any depth."""

    def change(code):
        constants = [
            change(each)
            if isinstance(each, types.CodeType)
            else new
            if type(each) is type(old) and each == old
            else each
            for each in code.co_consts
        ]
        return code.replace(co_consts=tuple(constants))

    return change(function.__code__)


def another(x, *args, **kwargs):
    """Another function."""
    return x


def add(*args, own=sum):
    """Does what ``sum`` does."""
    return own(*args)


def set_cell(patch, cell, value):
    before = cell.cell_contents
    cell.cell_contents = value
    patch.callback(setattr, cell, "cell_contents", before)


class Patch:
    """Changes one thing, and gives it back."""

    def __init__(self, monkeypatch):
        self.set, self.item, self.variable = monkeypatch.setattr, monkeypatch.setitem, monkeypatch.setenv
        self.callbacks = []

    def callback(self, function, *args):
        self.callbacks.append((function, args))


CHANGES = {
    # of the function
    "a number": ("global reading_programs.SCALE", lambda p: p.set(programs, "SCALE", 3.0)),
    "the type of a number": ("global reading_programs.SCALE", lambda p: p.set(programs, "SCALE", 2)),
    "an item of a list": ("global reading_programs.NUMBERS", lambda p: p.set(programs, "NUMBERS", [1.0, 3.0])),
    "an item of a dict": ("global reading_programs.TABLE", lambda p: p.item(programs.TABLE, "two", 2.5)),
    "a function": ("global reading_programs.helper", lambda p: p.set(programs, "helper", another)),
    "code": (
        "global reading_programs.helper",
        lambda p: p.set(programs.helper, "__code__", with_other_code(programs.helper, co_names=("other",)).__code__),
    ),
    "a default": ("global reading_programs.helper", lambda p: p.set(programs.helper, "__defaults__", (2.0,))),
    "a closure cell": ("global reading_programs.CLOSED", lambda p: set_cell(p, programs.CLOSED.__closure__[0], 4.0)),
    "the function in a closure": (
        "global reading_programs.decorated",
        lambda p: p.set(
            programs.decorated.__wrapped__, "__code__", with_other_constant(programs.decorated.__wrapped__, 1, 2)
        ),
    ),
    "an argument of a partial": (
        "global reading_programs.PARTIAL",
        lambda p: p.item(programs.PARTIAL.keywords, "amount", 5.0),
    ),
    "a function in a registry": (
        "global reading_programs.REGISTRY",
        lambda p: p.item(programs.REGISTRY, "act", F.gelu),
    ),
    "an attribute of an object": ("global reading_programs.OBJECT", lambda p: p.set(programs.OBJECT, "factor", 2.5)),
    "an attribute on top of a class's": (
        "global reading_programs.OBJECT",
        lambda p: p.set(programs.OBJECT, "offset", 0.5, raising=False),
    ),
    "an attribute of a class in the MRO": (
        "global reading_programs.OBJECT",
        lambda p: p.set(programs.Base, "offset", 0.75),
    ),
    "a property": ("global reading_programs.OBJECT", lambda p: p.set(programs.Derived, "twice", property(another))),
    "a member of an enumeration": (
        "global reading_programs.KIND",
        lambda p: p.set(programs, "KIND", programs.Kind.DOUBLE),
    ),
    "a field of a dataclass": ("global reading_programs.CONFIG", lambda p: p.set(programs.CONFIG, "factor", 2.0)),
    "a function of torch's, in Python": ("attribute torch.nn.functional.silu", lambda p: p.set(F, "silu", another)),
    "a function of torch's, in C": ("attribute torch.tanh", lambda p: p.set(torch, "tanh", torch.sin)),
    "a constant of a module": ("attribute math.pi", lambda p: p.set(programs.math, "pi", 3.0)),
    "which module a name stands for": ("global reading_programs.F", lambda p: p.set(programs, "F", torch)),
    "what is imported on the way": ("attribute math.e", lambda p: p.set(programs.math, "e", 3.0)),
    "an item of a set": ("global reading_programs.SIZES", lambda p: p.set(programs, "SIZES", {8, 1})),
    "what map takes": ("global reading_programs.WORDS", lambda p: p.set(programs, "WORDS", ["1", "3"])),
    "what map applies": ("builtin reading_programs.int", lambda p: p.set(programs, "int", float, raising=False)),
    "what vars finds": ("global reading_programs.SETTINGS", lambda p: p.set(programs.SETTINGS, "gain", 0.75)),
    "a choice": ("global reading_programs.CHOICES", lambda p: p.set(programs, "CHOICES", {"relu"})),
    "a variable": ("variable READING_PROGRAMS", lambda p: p.variable("READING_PROGRAMS", "yes")),
    "the environment": ("attribute os.environ", lambda p: p.set(os, "environ", dict(os.environ))),
    "a builtin": ("builtin reading_programs.sum", lambda p: p.set(builtins, "sum", add)),
    "a global before a builtin": (
        "builtin reading_programs.sum",
        lambda p: p.set(programs, "sum", another, raising=False),
    ),
    "a function of Python's library": (
        "function collections.abc:Mapping.get",
        lambda p: p.set(programs.collections.abc.Mapping.get, "__defaults__", (0,)),
    ),
}
"""What is changed, the read that names it, and how it is changed."""

OF_MODULE = {
    "what a property reads": ("global reading_programs.SCALE", lambda p: p.set(programs, "SCALE", 3.0)),
    "a function of torch's modules": ("attribute torch.nn.functional.linear", lambda p: p.set(F, "linear", F.bilinear)),
    "a hook for all modules": (
        "global torch.nn.modules.module._global_forward_hooks",
        lambda p: p.callback(torch.nn.modules.module.register_module_forward_hook(another).remove),
    ),
    "a class that is asked for": (
        "global torch.nn.modules.module.Buffer",
        lambda p: p.set(torch.nn.modules.module, "Buffer", torch.nn.Parameter),
    ),
    "whether somebody traces": (
        "query torch._C._get_tracing_state()",
        lambda p: p.set(torch._C, "_get_tracing_state", torch._C._is_tracing),
    ),
}
CASES = [("function", what) for what in CHANGES] + [("module", what) for what in OF_MODULE]


@pytest.mark.parametrize(("subject", "what"), CASES, ids=lambda each: str(each).replace(" ", "-"))
def test_what_is_changed_is_the_read_that_differs(subject, what, recorded, monkeypatch):
    reads, function = recorded[subject]
    assert compare(reads, function) is None
    name, change = (CHANGES if subject == "function" else OF_MODULE)[what]
    patch = Patch(monkeypatch)
    change(patch)
    try:
        differing = compare(reads, function)
    finally:
        for callback, args in patch.callbacks:
            callback(*args)
        monkeypatch.undo()
    assert differing == name
    assert compare(reads, function) is None


def test_what_a_trace_cannot_tell_apart_is_no_difference(recorded, monkeypatch):
    reads, function = recorded["function"]
    monkeypatch.setattr(programs, "sum", sum, raising=False)  # in the module, where it was a builtin
    monkeypatch.setattr(programs, "unread", 1, raising=False)
    monkeypatch.setattr(torch, "unread", 1, raising=False)
    monkeypatch.setattr(programs, "TABLE", dict(programs.TABLE))
    monkeypatch.setenv("UNREAD", "1")
    assert compare(reads, function) is None
