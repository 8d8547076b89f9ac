"""What a class is: each thing that is part of it, changed alone."""

import abc
import dataclasses
import enum
import threading
from typing import Any, ClassVar

import pytest
import torch
from described import described

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined


class Meta(type):
    pass


def make(
    namespace: dict[str, Any] | None = None, base: Any = None, bases: tuple[type, ...] = (), meta: type = type
) -> Any:
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
    body = {"width": 1, "forward": lambda self: self.width, **(namespace or {})}
    return meta("Derived", (Base, *bases), body)


class Mixin:
    pass


OTHERS = {
    "an attribute": lambda: make({"width": 2}),
    "an attribute's type": lambda: make({"width": True}),
    "another attribute": lambda: make({"height": 1}),
    "a method": lambda: make({"forward": lambda self: self.width + 1}),
    "a method's default": lambda: make({"forward": lambda self, x=1: self.width}),
    "a method of any name": lambda: make({"__getattr__": lambda self, name: name}),
    "a base": lambda: make(bases=(Mixin,)),
    "a metaclass": lambda: make(meta=Meta),
    "slots": lambda: make({"__slots__": ("a",)}),
    "an attribute of a base": lambda: make(base={"limit": 4}),
    "a list of a base": lambda: make(base={"sizes": [1, 3]}),
    "a method of a base": lambda: make(base={"scale": lambda self, x: x}),
    "a property of a base": lambda: make(base={"double": property(lambda self: 3)}),
    "a setter": lambda: make(base={"double": property(lambda self: 2 * self.limit, lambda self, value: None)}),
    "a static method": lambda: make(base={"fixed": staticmethod(lambda: 2)}),
    "a class method": lambda: make(base={"made": classmethod(lambda cls: None)}),
    "no longer a lock": lambda: make(base={"lock": None}),
    "another kind of lock": lambda: make(base={"lock": threading.RLock()}),
    "an annotation": lambda: make({"__annotations__": {"width": int}}),
    "another annotation": lambda: make({"__annotations__": {"width": float}}),
    "a module": lambda: make({"__module__": "other"}),
    "a name": lambda: make({"__qualname__": "other"}),
    "a descriptor": lambda: make({"width": Mixin()}),
    "an overridden attribute": lambda: make({"limit": 3}),
}


def test_each_change_is_a_difference():
    texts = {name: described(make_other()) for name, make_other in OTHERS.items()}
    texts["nothing"] = described(make())
    assert len(set(texts.values())) == len(texts)
    assert described(make()) == texts["nothing"]


def test_classes_of_one_name_are_told_apart():
    first, second = make(), make({"width": 2})
    assert described([first, first]) != described([first, second])
    assert described([first, second]) != described([second, first])
    assert described([first, second, first]) != described([first, second, second])
    describer = Describer()
    describer.describe([first, second])
    named = [name for name in describer.classes if "Derived" in name]
    assert len(named) == 2 and named[1] == f"{named[0]}(2)"


def test_documentation_is_left_out_and_said_to_be():
    describer = Describer()
    cls = make({"__doc__": "other"})
    assert describer.describe(cls) == described(make())
    assert describer.find_unknown(cls, "__doc__") is not None


def test_what_has_no_value_is_named_and_does_no_harm():
    describer = Describer()
    cls = make()
    text = describer.describe(cls)
    ((name, attribute),) = [key for key in describer.unknown if key[1] == "lock"]
    assert name.endswith("Base") and attribute == "lock"
    assert describer.find_unknown(cls, "lock") == "a _thread.lock has no value to compare"
    assert describer.find_unknown(cls, "limit") is None
    assert describer.find_unknown(Mixin, "lock") is None
    assert text == described(make())


def test_a_method_without_a_value_is_unknown_and_not_covered():
    def make_method(content):
        return lambda self: content

    method = make_method(threading.Lock())
    describer = Describer()
    cls = make({"locked": method})
    describer.describe(cls)
    assert describer.find_unknown(cls, "locked") is not None
    assert not describer.covers(method.__code__)
    assert describer.covers(cls.forward.__code__)


def test_enumerations_and_data_classes_differ_by_what_is_declared():
    def enumeration(**members):
        return enum.Enum("Kind", members)

    def data(**fields):
        return dataclasses.make_dataclass("Data", [(name, int, value) for name, value in fields.items()])

    for make_class in (enumeration, data):
        texts = {described(make_class(**fields)) for fields in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 2})}
        assert len(texts) == 4
        assert described(make_class(a=1)) == described(make_class(a=1))
    assert described(enumeration(a=1).a) != described(enumeration(a=2).a)


def test_a_registered_class_is_part_of_an_abstract_one():
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def forward(self): ...

    before = described(Abstract)
    issubclass(Mixin, Abstract)
    assert described(Abstract) == before
    Abstract.register(Mixin)
    assert described(Abstract) != before


@pytest.mark.parametrize(
    ("name", "value"), [("new_attribute", 1), ("type", lambda self: self), ("__torch_function__", classmethod(id))]
)
def test_a_change_of_a_class_of_torch_is_a_difference(monkeypatch, name, value):
    model = torch.nn.Linear(1, 1)
    before = {cls: described(cls) for cls in (torch.nn.Module, torch.nn.Linear, torch.nn.Parameter)}
    instance = described(model)
    monkeypatch.setattr(torch.nn.Module, name, value, raising=False)
    assert described(torch.nn.Module) != before[torch.nn.Module]
    assert described(torch.nn.Linear) != before[torch.nn.Linear]
    assert described(torch.nn.Parameter) == before[torch.nn.Parameter]
    assert described(model) != instance
    monkeypatch.undo()
    assert described(model) == instance


def test_a_change_of_the_class_of_tensors_is_a_difference(monkeypatch):
    before = described(torch.nn.Parameter(torch.ones(1)))
    monkeypatch.setattr(torch.Tensor, "silu", lambda self: self, raising=False)
    assert described(torch.nn.Parameter(torch.ones(1))) != before


def test_the_layout_of_what_c_made_is_not_guessed():
    with pytest.raises(Declined, match=r"has no value to compare: it is built on builtins\.ValueError"):
        described(type("Wrong", (ValueError,), {})())
