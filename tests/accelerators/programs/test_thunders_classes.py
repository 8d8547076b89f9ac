"""Which classes are known by Thunder's version: that of ``x.numel``, which is made anew each time, and none like it."""

import builtins
import typing
from types import CellType, FunctionType, GetSetDescriptorType

import pytest
import thunder.core.devices
import thunder.core.dtypes
from thunder.core import proxies
from thunder.core.langctxs import Languages, langctx
from thunder.core.trace import TraceCtx, tracectx

from fusioncache.accelerators.programs.native import is_thunders_class
from fusioncache.accelerators.sizes.values import is_numel

PLACE = "TensorProxy.__getattr__.<locals>._Numel"


def count():
    """Returns what Thunder has for the number of a tensor's elements."""
    with tracectx(TraceCtx()), langctx(Languages.TORCH):
        device, dtype = thunder.core.devices.cpu, thunder.core.dtypes.float32
        return proxies.TensorProxy("x", shape=(2, 3), device=device, dtype=dtype).numel


def copy(name, code=None, own=None, defaults=None, closure=None, **attributes):
    """Returns a function of Thunder's class, or one that differs in this."""
    thunders = getattr(type(count()), name)
    function = FunctionType(code or thunders.__code__, own or vars(proxies), name, defaults, closure)
    function.__qualname__ = thunders.__qualname__
    for key, value in attributes.items():
        setattr(function, key, value)
    return function


def make(bases=(int,), meta=type, **body):
    """Returns a class like Thunder's but for this. What is None is left out of it."""
    own = vars(type(count()))
    since_3_13 = {name: own[name] for name in ("__firstlineno__", "__static_attributes__") if name in own}
    parts = {"__new__": copy("__new__"), "__call__": copy("__call__"), "__module__": proxies.__name__}
    body = {"__qualname__": PLACE, **since_3_13, **parts, **body}
    return meta("_Numel", bases, {name: value for name, value in body.items() if value is not None})


def derive(base):
    return type("Derived", (base,), {})


def other_code(self):
    return int(self) + 1


CALL = other_code.__code__.replace(co_name="__call__")
CELL = (lambda value: lambda self: int(self) + value)(0).__code__.replace(co_name="__call__")
OF_THE_CLASS = {
    "another function's": {"__qualname__": "TensorProxy.__getitem__.<locals>._Numel"},
    "another module": {"__module__": "thunder.core.utils"},
    "a metaclass": {"meta": derive(type)},
    "another base": {"bases": (float,)},
    "one base more": {"bases": (derive(object), int)},
    "another constant": {
        "__new__": copy("__new__", type(count()).__new__.__code__.replace(co_consts=(None, "Wanted int, got ")))
    },
    "a class method": {"__new__": classmethod(copy("__new__"))},
    "no function": {"__call__": None},
    "a builtin": {"__call__": int},
    "one function more": {"__add__": copy("__call__")},
    "an attribute": {"limit": 3},
    "words about the class": {"__doc__": "A number."},
    "slots": {"__slots__": ()},
    "attributes of its own kind": {"__dict__": property(lambda self: {})},
    "another class's attributes": {"__dict__": vars(derive(int))["__dict__"]},
}
OF_A_FUNCTION = {
    "another function": {"code": CALL},
    "a default": {"defaults": (3,)},
    "a default by keyword": {"__kwdefaults__": {"self": 3}},
    "a cell": {"code": CELL, "closure": (CellType(0),)},
    "other globals": {"own": dict(vars(proxies))},
    "an attribute of a function": {"limit": 3},
    "an annotation": {"__annotations__": {"return": int}},
    "a parameter of types": {"__type_params__": (typing.TypeVar("T"),)},
    "words about it": {"__doc__": "Returns it."},
    "a function's name": {"__name__": "call"},
    "a function's place": {"__qualname__": "call"},
    "a function's module": {"__module__": __name__},
}


def test_thunders_own_is_known_and_one_that_differs_in_nothing():
    one, other = count(), count()
    assert type(one) is not type(other)
    assert is_thunders_class(type(one)) and is_numel(one)
    assert type(vars(type(one))["__dict__"]) is GetSetDescriptorType
    assert is_thunders_class(make())


@pytest.mark.parametrize("what", [*OF_THE_CLASS, *OF_A_FUNCTION])
def test_one_that_differs_is_not_known(what):
    differing = OF_THE_CLASS.get(what) or {"__call__": copy("__call__", **OF_A_FUNCTION[what])}
    assert not is_thunders_class(make(**differing))


def test_one_with_another_name_or_other_builtins_is_not_known(monkeypatch):
    renamed = make()
    renamed.__name__ = "Numel"
    monkeypatch.setitem(vars(proxies), "__builtins__", dict(vars(builtins)))
    made = make(__call__=copy("__call__"))
    monkeypatch.undo()
    assert not is_thunders_class(renamed) and not is_thunders_class(made)
