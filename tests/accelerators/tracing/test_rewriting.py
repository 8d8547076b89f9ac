"""A rewritten prologue returns and raises the same as before, and makes the same calls if they are observable."""

import collections
import enum
import itertools
import linecache
import math

import pytest
import thunder
import torch
from hostile_programs.observation import answering
from own_tensors import Own
from thunder.executors import pythonex

from fusioncache.accelerators.steps.prologue import KnownTensors, rewrite
from fusioncache.ir.errors import Declined

COUNT = itertools.count()


def make(*lines, **known):
    """Compiles a prologue of these lines as Thunder does."""
    source = "\n  ".join(["def prologue(*args, **kwargs):", *lines]) + "\n"
    name = f"thunder.prologue_of_a_test_{next(COUNT)}"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    checks = {name[1:-5]: check for name, check in vars(pythonex).items() if name.startswith("_check_")}
    checks["check_tensor_metadata"] = pythonex._check_tensor_shape_and_metadata_impl
    names = {**checks, "torch": torch, "thunder": thunder, "collections": collections, **known}
    exec(compile(source, name, "exec"), names)
    return names.pop("prologue")


def text_of(function):
    return "".join(linecache.getlines(function.__code__.co_filename))


Agreeing = answering(__eq__=True, __len__=1)
Whole = answering(int, __eq__=True, __hash__=int.__hash__)
Text, Listed = answering(str), answering(list, __len__=1)


Color = enum.IntEnum("Color", {"RED": 1})
T = torch.ones(2, 3)
TENSORS = [
    *(T, T[None], T[:1], torch.ones(3, 2).t(), T.double(), T.to("meta"), T.clone().requires_grad_(), torch.ones(())),
    *(torch.nn.Parameter(T), torch.nn.Parameter(T, requires_grad=False), T.as_subclass(Own), T.to_sparse(), T * 2),
]
VALUES = [
    *(0, 1, -1, 256, 257, 2**70, True, False, 0.0, -0.0, 1.0, 0.5, math.nan, math.inf, 1j, None, "", "a", "1", b"a"),
    *((), (1,), [], [1], {}, {1: 1}, {1}, range(1), collections.OrderedDict(a=1), slice(1), int, bool, type(None)),
    *(Agreeing(), Whole(1), Whole(7), Text("a"), Text(""), Listed(), Color.RED, torch.float32, "float32"),
    *(torch.float64, torch.device("cpu"), torch.Size([1]), *TENSORS),
]
NUMBERS = ("1", "-1", "256", "True", "False", "0.0", "1.0", "-0.5", str(2**70))
CALLED = ("float('nan')", "float('inf')", "1e999", "1j")
"""Numbers for which Thunder's check is still called."""
CHECKS = {
    **{f"check_number_type_and_value(x, {value})": value in NUMBERS for value in (*NUMBERS, *CALLED)},
    **{f"check_string_value(x, {value!r})": True for value in ("a", "", "1")},
    **{f"check_type(x, {kind})": True for kind in ("int", "bool", "torch.Tensor", "collections.OrderedDict", "str")},
    **{
        f"check_literal_like(x, {value})": "float32" in value
        for value in ("torch.float32", "torch.device('cpu')", "1", "'a'")
    },
    **dict.fromkeys(["check_none(x)", "check_empty(x)", "check_len(x, 0)", "check_len(x, 1)"], True),
    "check_instance(x, (int, str))": False,
    **{
        f"check_tensor_metadata(x, {wanted})": True
        for wanted in (
            *("(2, 3), 'cpu', torch.float32, True", "(2, 3), 'cpu', torch.float32, False"),
            *("(), 'cpu', torch.float32, False", "(2, 3), 'meta', torch.float32, False"),
            *("(1, 2, 3), 'cpu', torch.float32, False", "(2, 3), 'cpu', torch.float64, False"),
            "(2, 3), 'cpu:0', torch.float32, False",
        )
    },
}
"""Whether each check is inlined, so that nothing is called if it passes."""


def outcome(function, *args):
    try:
        return [*map(id, function(*args))]
    except Exception as error:
        return [type(error), str(error)]


@pytest.mark.parametrize("check", CHECKS)
def test_every_value_passes_or_fails_as_before(check):
    function = make("x = args[0]", check, "return x, ()", int=int, bool=bool, str=str)
    rewritten = rewrite(function)
    assert text_of(rewritten).count("if not") == CHECKS[check]
    outcomes = [outcome(function, value) for value in VALUES]
    assert [outcome(rewritten, value) for value in VALUES] == outcomes
    assert any(isinstance(each[0], type) for each in outcomes)


def test_another_check_is_called():
    called = []
    function = make("x = args[0]", "check_none(x)", "check_len(x)", "return x, ()", check_none=called.append)
    assert outcome(rewrite(function), None) == outcome(function, None)
    assert called == [None, None]


def test_attributes_are_read_as_often_and_in_the_same_order():
    read = []

    class Watching(torch.nn.Module):
        def __getattr__(self, name):
            if name not in ("one", "two"):
                return super().__getattr__(name)
            read.append(name)
            return len(read)

    lines = ["x = args[0]", "m = x.get_submodule('')", "a = x.one", "check_number_type_and_value(a, 1)", "b = x.two"]
    function = make(*lines, "c = x.one", "check_number_type_and_value(b, 2)", "check_none(c)", "return x, ()")
    rewritten = rewrite(function)
    assert text_of(rewritten).count("known_x_model.") == 3
    for each, model in itertools.product((function, rewritten), (Watching(), thunder.jit(Watching()))):
        read.clear()
        with pytest.raises(RuntimeError, match="Expected 3 to be None"):
            each(model)
        assert read == ["one", "two", "one"]


def test_attributes_come_from_the_model_that_thunders_module_has_and_as_that_finds_them(monkeypatch):
    function = make("x = args[0]", "m = x.get_submodule('')", "a = x.in_features", "return a, ()")
    rewritten, compiled, found = rewrite(function), thunder.jit(torch.nn.Linear(2, 3)), []
    for change in (
        lambda: None,
        lambda: compiled._modules.update(_model=torch.nn.Linear(4, 3)),
        lambda: monkeypatch.setattr(type(compiled), "__getattr__", lambda module, name: name),
    ):
        change()
        assert rewritten(compiled) == function(compiled)
        found.append(rewritten(compiled)[0])
    assert found == [2, 4, "in_features"]


MODULE = "module = args[0]"
PAIR = [
    MODULE,
    "x = module.get_buffer('x')",
    "y = module.get_parameter('y')",
    "check_tensor_metadata(x, (2, 3), 'cpu', torch.float32, False)",
    "check_tensor_metadata(y, (2, 3), 'cpu', torch.float32, True)",
    "return x, y",
]


class Held:
    """A minimal module with two tensors."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def get_buffer(self, name):
        return getattr(self, name)

    get_parameter = get_buffer


def make_pair():
    return torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(2, 3))


def count_shapes(function, *args):
    """Returns how often the function reads a shape, which only separate checks do."""
    found = []

    class Reading(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            found.append(function)
            return function(*args, **(kwargs or {}))

    with Reading():
        function(Held(*args[:2]), *args[2:])
    return found.count(torch.Tensor.shape.__get__)


def settle(function, args):
    """Calls the function until its guard accepts the tensors."""
    for _ in range(3):
        function(Held(*args))


def test_tensors_that_passed_are_not_looked_at_again():
    rewritten, args = rewrite(make(*PAIR)), make_pair()
    assert [count_shapes(rewritten, *args) for _ in range(4)] == [2, 2, 0, 0]
    assert count_shapes(rewritten, *make_pair()) == 0  # other tensors with equal properties pass as well


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("other", [*TENSORS, None, 2, "a"], ids=lambda each: type(each).__name__)
def test_another_tensor_in_the_place_of_one_that_passed(place, other):
    function = make(*PAIR)
    rewritten, args = rewrite(function), [*make_pair()]
    settle(rewritten, args)
    args[place] = other
    assert outcome(rewritten, Held(*args)) == outcome(function, Held(*args))
    assert outcome(rewritten, Held(*make_pair()))[0] is not AssertionError


CHANGES = {
    "shape": lambda x, y: setattr(y, "data", torch.zeros(3, 2)),
    "number of dimensions": lambda x, y: setattr(x, "data", torch.zeros(2, 3, 1)),
    "dtype": lambda x, y: setattr(x, "data", torch.zeros(2, 3, dtype=torch.float64)),
    "wants a gradient": lambda x, y: x.requires_grad_(),
    "wants none": lambda x, y: y.requires_grad_(False),
    "in place": lambda x, y: x.unsqueeze_(0),
    "class": lambda x, y: setattr(x, "__class__", Own),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("grad", [True, False])
def test_a_tensor_that_passed_and_was_changed(name, grad):
    function = make(*PAIR)
    rewritten, args = rewrite(function), make_pair()
    settle(rewritten, args)
    CHANGES[name](*args)
    with torch.set_grad_enabled(grad):
        found = outcome(rewritten, Held(*args))
        assert found == outcome(function, Held(*args))
    assert (found[0] is AssertionError) is (name != "class"), found


class Changing:
    """An object with an attribute that has a side effect when it is read."""

    def __init__(self, change=lambda: None):
        self.change, self.read = change, 0

    @property
    def value(self):
        self.read += 1
        self.change()
        return 1


def test_a_tensor_that_an_attribute_changes_before_its_check():
    """The guard reads tensors in the place of the last of the original checks."""
    function = make(*PAIR[:-2], "i0 = args[1].value", "check_number_type_and_value(i0, 1)", *PAIR[-2:])
    rewritten = rewrite(function)
    for _ in range(3):
        rewritten(Held(*make_pair()), Changing())
    for each in (rewritten, function):
        x, y = make_pair()
        changing = Changing(lambda y=y: y.requires_grad_(False))
        assert outcome(each, Held(x, y), changing)[0] is AssertionError and changing.read == 1


def test_an_input_is_checked_before_attributes_are_read():
    lines = ["z = args[1]", "check_tensor_metadata(z, (1,), 'cpu', torch.float32, False)"]
    rewritten, changing = rewrite(make(*PAIR[:3], *lines, "i0 = args[2].value", *PAIR[3:])), Changing()
    with pytest.raises(AssertionError):
        rewritten(Held(*make_pair()), torch.zeros(2), changing)
    assert not changing.read


def test_what_another_thread_changes_is_not_learned():
    """Such a guard may describe tensors that did not pass, or hold before checks that then fail."""
    known, (x, y) = KnownTensors(), make_pair()

    def turn():
        x.data = x.data.t() if x.shape == (2, 3) else torch.zeros(2, 3)

    for number in range(3):
        expected = known.expect(x, y)
        assert expected is not None or number == 0
        turn()
        known.learn(expected, x, y)
        assert not known.check(x, y)
    turn()
    for is_known in (False, False, True, True):
        assert known.check(x, y) is is_known
        if not is_known:
            known.learn(known.expect(x, y), x, y)
    turn()
    assert not known.check(x, y)


def test_tensors_of_a_users_class_are_looked_at_in_each_call():
    """Their attributes can have any value, and another one at each read."""
    told = []

    class Telling(torch.Tensor):
        @property
        def shape(self):
            return told.pop()

    rewritten, (x, y) = rewrite(make(*PAIR)), make_pair()
    x = x.as_subclass(Telling)
    for _ in range(4):
        told[:] = [torch.Size((2, 3))] * 9
        rewritten(Held(x, y))
    told[:] = [torch.Size((3, 3))] * 9
    with pytest.raises(AssertionError):
        rewritten(Held(x, y))


def of_source(text):
    function = make("x = args[0]", "return x, ()")
    linecache.cache[function.__code__.co_filename] = len(text), None, text.splitlines(keepends=True), ""
    return function


UNKNOWN = {
    "another function": of_source("def prologue(*args, **kwargs):\n  return args\n"),
    "is none": of_source("def f("),
    "written in C": len,
    "a lambda": (lambda: lambda: COUNT)(),
    "two statements in a line": make("x = args[0]; y = x", "return x, ()"),
    "a text over two lines": make("x = args[0]", "check_string_value(x, 'a\x0cb')", "return x, ()"),
}


@pytest.mark.parametrize("reason", UNKNOWN)
def test_what_is_not_all_known_stays_as_it_is(reason):
    with pytest.raises(Declined, match=reason if "is none" in reason or "function" in reason else None):
        rewrite(UNKNOWN[reason])


LEFT = {
    "one tensor": ("expect", PAIR[:4] + PAIR[5:]),
    "one of two that is bound twice": ("expect", [*PAIR[:3], "x = args[1]", *PAIR[3:]]),
    "another that is": ("expect", [*PAIR[:3], "y = args[1]", *PAIR[3:]]),
    "inputs": ("expect", ["x = args[0]", "y = args[1]", *PAIR[3:]]),
    "a module that is bound twice": ("known_", [MODULE, MODULE, "w = module.get_parameter('w')", "return w, ()"]),
    "an argument by name": ("known_", [MODULE, "w = module.get_parameter(name='w')", "return w, ()"]),
    "a tuple of names": ("known_", [MODULE, "w, = module.get_parameter('w')", "return w, ()"]),
}
"""Prologues without a guard or without a shortened lookup, with the word that their rewritten text must lack."""


@pytest.mark.parametrize(("word", "lines"), LEFT.values(), ids=LEFT)
def test_lookups_that_thunder_does_not_write_are_left(word, lines):
    assert word not in text_of(rewrite(make(*lines)))


NAMES = {
    "ours": ["known_0 = args[0]", "check_none(known_0)", "known_1 = 3", "check_len(args, 2)", "return known_1, ()"],
    "one that is assigned": ["x = args[0]", "kind = args[1]", "check_type(x, kind)", "return x, ()"],
}


@pytest.mark.parametrize("lines", NAMES.values(), ids=NAMES)
def test_names_are_those_of_the_prologue(lines):
    function = make(*lines, kind=int)
    rewritten = rewrite(function)
    for args in ((1, int), (1, str), ("a", str), (None, int)):
        assert outcome(rewritten, *args) == outcome(function, *args)
