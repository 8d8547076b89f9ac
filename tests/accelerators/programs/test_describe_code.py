"""Descriptions of functions and classes: each part that they contain, changed alone, and parts that they leave out."""

import abc
import dis
import enum
import functools
import inspect
import sys
import threading
import types
from typing import Any, ClassVar

import pytest
import torch
from described import described

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined

SOURCE = """
def make(shift):
    def scale(x, factor=2, *, offset=0.5):
        def inner(y):
            return y * 3
        try:
            return inner(x) * factor + offset + shift
        except ValueError:
            return {"a", "b", "c"}
    return scale
"""


def make(old: str = "", new: str = "", before: str = "", file: str = "here.py") -> types.FunctionType:
    """Returns the function with one text of its source replaced. Its globals are those of this module."""
    assert old in SOURCE
    found: dict[str, types.FunctionType] = {}
    exec(compile(before + (SOURCE.replace(old, new) if old else SOURCE), file, "exec"), globals(), found)
    return found["make"](1)


SOURCES = [
    ("y * 3", "y * 4"),
    ("y * 3", "y + 3"),
    ("y * 3", "y * 3.0"),
    ("y * 3", "y * True"),
    ("factor=2", "factor=3"),
    ("factor=2", "factor=2.0"),
    ("factor=2", "factor"),
    ("offset=0.5", "offset=-0.5"),
    ("offset=0.5", "offset"),
    ("*, offset", "offset"),
    ("*, offset", "*rest, offset"),
    ("except ValueError", "except KeyError"),
    ('"c"', '"d"'),
    ("inner", "within"),
    ("(y)", "(z)"),
    ("def scale(x", "async def scale(x"),
    ("        try:\n", '        "Scales."\n        try:\n'),
    ("+ shift", ""),
    ("return inner(x) *", "yield inner(x) *"),
]


def test_one_change_of_the_source_is_a_difference():
    texts = [described(make()), *(described(make(old, new)) for old, new in SOURCES)]
    assert len(set(texts)) == len(texts)


def test_where_a_function_stands_and_its_annotations_are_no_part_of_it():
    assert described(make(before="\n" * 7, file="elsewhere/there.py")) == described(make())
    assert described(make("(x, factor", "(x: int, factor")) == described(make())
    assert described(make(before="# a comment\n")) == described(make())


def test_a_cache_that_hides_what_it_wraps_has_no_value():
    hiding = functools.lru_cache(make())
    hiding.__wrapped__ = len
    with pytest.raises(Declined, match="what it wraps is hidden"):
        described(hiding)


def test_code_is_the_same_while_it_runs_often_and_is_watched():
    function = make()
    before = described(function)
    for _ in range(50):
        function(2)  # Python specializes instructions that run often
    assert list(dis.get_instructions(function)) != list(dis.get_instructions(function, adaptive=True))
    assert described(function) == before
    sys.monitoring.use_tool_id(5, "a test")
    sys.monitoring.set_events(5, sys.monitoring.events.LINE | sys.monitoring.events.PY_RETURN)
    try:
        function(2)
        assert described(make()) == described(function) == before
    finally:
        sys.monitoring.set_events(5, 0)
        sys.monitoring.free_tool_id(5)


def test_code_that_was_described_is_covered():
    describer, function = Describer(), make()
    assert not describer.covers(function.__code__)
    describer.describe([function])
    nested = [constant for constant in function.__code__.co_consts if inspect.iscode(constant)]
    assert nested and all(map(describer.covers, [function.__code__, *nested]))
    assert not describer.covers(make("y * 3", "y * 4").__code__)


def loose(**names: object) -> types.FunctionType:
    """Returns a function whose globals belong to no module."""
    namespace: dict[str, object] = dict(names)
    exec("def outer(x):\n    def inner():\n        return len(factor) * x\n    return inner()", namespace)
    return namespace["outer"]


def test_globals_that_are_no_modules_are_part_of_the_function():
    different = [
        *(loose(), loose(factor=1), loose(factor=2), loose(factor=[1]), loose(factor=[2])),
        *(loose(__name__="of_none", factor=1), loose(__name__="of_none", factor=2)),
        *(loose(__builtins__={"len": max}), loose(__builtins__={"len": min})),
    ]
    assert len(set(map(described, different))) == len(different)
    assert described(loose(factor=1)) == described(loose(factor=1, unused=2))
    function, describer = loose(factor=1), Describer()
    assert not describer.covers_global(function.__globals__, "factor")
    describer.describe(function)
    assert describer.covers_global(function.__globals__, "factor")
    assert not describer.covers_global(function.__globals__, "unused")


def test_globals_of_a_module_are_no_part_of_the_function_but_whose_they_are(monkeypatch):
    function = make("y * 3", "y * SOURCE")
    before = described(function)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SOURCE", 5)
        assert described(function) == before
        assert not Describer().covers_global(function.__globals__, "SOURCE")
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, __name__)  # so that its globals belong to no module
        assert described(function) != before
    other = types.FunctionType(function.__code__, vars(functools), argdefs=(2,), closure=function.__closure__)
    other.__kwdefaults__, other.__module__ = function.__kwdefaults__, function.__module__
    assert other.__qualname__ == function.__qualname__ and described(other) != before
    monkeypatch.setitem(globals(), "__name__", "other")
    assert described(function) != before


class Meta(type):
    pass


class Mixin:
    pass


def make_class(base: Any = None, bases: tuple[type, ...] = (), meta: type = type, **namespace: Any) -> Any:
    """Makes a class with a base and everything that a class may have."""

    class Base:
        limit = 3

        def scale(self, x):
            return x * self.limit

        @property
        def double(self):
            return 2 * self.limit

        @staticmethod
        def fixed():
            return 1

        @classmethod
        def made(cls):
            return super().__new__(cls)

        sizes: ClassVar[list[int]] = [1, 2]
        lock = threading.Lock()

    for name, value in (base or {}).items():
        setattr(Base, name, value)
    body = {"width": 1, "forward": lambda self: self.width, **namespace}
    return meta("Derived", (Base, *bases), body)


OTHERS = {
    "an attribute": {"width": 2},
    "an attribute's type": {"width": True},
    "another attribute": {"height": 1},
    "a method": {"forward": lambda self: self.width + 1},
    "a method's default": {"forward": lambda self, x=1: self.width},
    "a method of any name": {"__getattr__": lambda self, name: name},
    "a base": {"bases": (Mixin,)},
    "a metaclass": {"meta": Meta},
    "slots": {"__slots__": ("a",)},
    "an attribute of a base": {"base": {"limit": 4}},
    "a list of a base": {"base": {"sizes": [1, 3]}},
    "a method of a base": {"base": {"scale": lambda self, x: x}},
    "a property of a base": {"base": {"double": property(lambda self: 3)}},
    "a setter": {"base": {"double": property(lambda self: 2 * self.limit, lambda self, value: None)}},
    "a static method": {"base": {"fixed": staticmethod(lambda: 2)}},
    "a class method": {"base": {"made": classmethod(lambda cls: None)}},
    "no longer a lock": {"base": {"lock": None}},
    "another kind of lock": {"base": {"lock": threading.RLock()}},
    "an annotation": {"__annotations__": {"width": int}},
    "another annotation": {"__annotations__": {"width": float}},
    "the name of an annotation": {"__annotations__": {"depth": int}},
    "a class in an annotation": {"__annotations__": {"width": Mixin}},
    "the name of a class in an annotation": {"__annotations__": {"width": type("Other", (), {})}},
    "a module": {"__module__": "other"},
    "a name": {"__qualname__": "other"},
    "a descriptor": {"width": Mixin()},
    "an overridden attribute": {"limit": 3},
}


def test_each_change_is_a_difference():
    texts = {name: described(make_class(**other)) for name, other in {"nothing": {}, **OTHERS}.items()}
    assert len(set(texts.values())) == len(texts)
    assert described(make_class()) == texts["nothing"]


def test_classes_of_one_name_are_told_apart():
    first, second = make_class(), make_class(width=2)
    assert described([first, first]) != described([first, second])
    assert described([first, second]) != described([second, first])
    assert described([first, second, first]) != described([first, second, second])
    describer = Describer()
    describer.describe([first, second])
    named = [name for name, _ in describer.list_classes() if "Derived" in name and ":" not in name]
    assert len(named) == 2 and named[1] == f"{named[0]}(2)"


def test_what_is_left_out_of_a_class_is_unknown_and_not_covered():
    lock, describer = threading.Lock(), Describer()
    cls = make_class(__doc__="other", locked=lambda self: lock)
    describer.describe(cls)
    assert described(make_class(__doc__="other")) == described(make_class())
    unknown = describer.list_unknown(cls)
    assert [name in unknown for name in ("__doc__", "locked", "limit")] == [True, True, False]
    assert unknown["lock"] == "a _thread.lock has no value to compare"
    assert "lock" not in describer.list_unknown(Mixin)
    assert not describer.covers(cls.locked.__code__) and describer.covers(cls.forward.__code__)


def test_a_registered_class_is_part_of_an_abstract_one():
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def forward(self): ...

    before = described(Abstract)
    issubclass(Mixin, Abstract)
    assert described(Abstract) == before
    Abstract.register(Mixin)
    assert described(Abstract) != before


def test_a_class_registered_with_a_derived_one_is_part_of_an_abstract_one():
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def forward(self): ...

    class Derived(Abstract): ...

    before = described(Abstract)
    Derived.register(Mixin)
    assert issubclass(Mixin, Abstract) and described(Abstract) != before


class Base: ...


class Middle(Base): ...


def make_bases(*bases):
    return type("Made", bases, {})


def make_slots(*slots):
    made = type("Made", (), {"__slots__": slots})
    made.__slots__ = ()
    return made


def make_function(defaults, named):
    made = types.FunctionType(make_bases.__code__, globals())
    made.__defaults__, made.__kwdefaults__ = defaults, named
    return made


class WithOthers(enum.Enum):
    def __new__(cls, value, *others):
        made = object.__new__(cls)
        made._value_ = value
        cls._value2member_map_.update(dict.fromkeys(others, made))
        return made


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (make_bases, (Middle,), (Middle, Base)),  # which have one MRO
        (make_slots, ("__weakref__",), ()),
        (make_function, (None, None), ((), None)),
        (make_function, (None, None), (None, {})),
        (lambda *values: WithOthers("Made", dict(zip("AB", values, strict=True))), ((2, 9), (3,)), ((2,), (3, 9))),
    ],
)
def test_what_code_can_ask_of_a_definition_is_a_difference(make, one, other):
    assert described(make(*one)) == described(make(*one)) != described(make(*other))


def test_a_copy_of_a_function_is_told_apart_from_the_one_under_its_name():
    copies = [types.FunctionType(described.__code__, globals(), "described") for _ in range(2)]
    first, second, own = map(described, (*copies, described))
    assert first == second != own


@pytest.mark.parametrize(
    ("name", "value"), [("new_attribute", 1), ("type", lambda self: self), ("__torch_function__", classmethod(id))]
)
def test_a_change_of_a_class_of_torch_is_a_difference(monkeypatch, name, value):
    values = torch.nn.Module, torch.nn.Linear, torch.nn.Linear(1, 1), torch.nn.Parameter
    before = [*map(described, values)]
    monkeypatch.setattr(torch.nn.Module, name, value, raising=False)
    assert [described(each) == text for each, text in zip(values, before, strict=True)] == [False, False, False, True]
    monkeypatch.undo()
    assert [*map(described, values)] == before


def test_a_change_of_the_class_of_tensors_is_a_difference(monkeypatch):
    before = described(torch.nn.Parameter(torch.ones(1)))
    monkeypatch.setattr(torch.Tensor, "silu", lambda self: self, raising=False)
    assert described(torch.nn.Parameter(torch.ones(1))) != before
