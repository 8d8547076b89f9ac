"""Which classes are known by Thunder's version: that of ``x.numel``, which is made anew each time, and none like it."""

import builtins
import typing
from types import CellType, CodeType, FunctionType, GetSetDescriptorType

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
    parts = {"__new__": copy("__new__"), "__call__": copy("__call__"), "__module__": proxies.__name__}
    since_3_13 = {
        name: value
        for name, value in vars(type(count())).items()
        if name in ("__firstlineno__", "__static_attributes__")
    }
    body = {"__qualname__": PLACE, **since_3_13, **parts, **body}
    return meta("_Numel", bases, {name: value for name, value in body.items() if value is not None})


def changed(made, name, value):
    setattr(made, name, value)
    return made


def calling(**body):
    return make(__call__=copy("__call__", **body))


def with_cell():
    def outer(value):
        def __call__(self):
            return int(self) + value

        return __call__

    return outer(0).__code__


def code_of(name):
    return getattr(type(count()), name).__code__


def other_code(self):
    return int(self) + 1


class Meta(type):
    pass


class Whole(int):
    pass


class Mixin:
    pass


OTHERS = {
    "another function's": lambda: make(__qualname__="TensorProxy.__getitem__.<locals>._Numel"),
    "another module": lambda: make(__module__="thunder.core.utils"),
    "another name": lambda: changed(make(), "__name__", "Numel"),
    "a metaclass": lambda: make(meta=Meta),
    "another base": lambda: make(bases=(float,)),
    "one base more": lambda: make(bases=(Mixin, int)),
    "another function": lambda: calling(code=other_code.__code__.replace(co_name="__call__")),
    "another constant": lambda: make(
        __new__=copy("__new__", code_of("__new__").replace(co_consts=(None, "Wanted int, got ")))
    ),
    "a default": lambda: calling(defaults=(3,)),
    "a default by keyword": lambda: calling(__kwdefaults__={"self": 3}),
    "a cell": lambda: calling(code=with_cell(), closure=(CellType(0),)),
    "other globals": lambda: calling(own=dict(vars(proxies))),
    "an attribute of a function": lambda: calling(limit=3),
    "an annotation": lambda: calling(__annotations__={"return": int}),
    "a parameter of types": lambda: calling(__type_params__=(typing.TypeVar("T"),)),
    "words about it": lambda: calling(__doc__="Returns it."),
    "a function's name": lambda: calling(__name__="call"),
    "a function's place": lambda: calling(__qualname__="call"),
    "a function's module": lambda: calling(__module__=__name__),
    "no function": lambda: make(__call__=None),
    "a class method": lambda: make(__new__=classmethod(copy("__new__"))),
    "a builtin": lambda: make(__call__=int),
    "one function more": lambda: make(__add__=copy("__call__")),
    "an attribute": lambda: make(limit=3),
    "words about the class": lambda: make(__doc__="A number."),
    "slots": lambda: make(__slots__=()),
    "attributes of its own kind": lambda: make(__dict__=property(lambda self: {})),
    "another class's attributes": lambda: make(__dict__=vars(Whole)["__dict__"]),
}


def test_thunders_own_is_known():
    one, other = count(), count()
    assert type(one) is not type(other)
    assert is_thunders_class(type(one)) and is_numel(one)
    assert type(vars(type(one))["__dict__"]) is GetSetDescriptorType


def test_one_that_differs_in_nothing_is_known():
    assert is_thunders_class(make())


@pytest.mark.parametrize("what", OTHERS)
def test_one_that_differs_is_not_known(what):
    assert not is_thunders_class(OTHERS[what]())


def test_one_with_other_builtins_is_not_known(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(vars(proxies), "__builtins__", dict(vars(builtins)))
        made = calling()
    assert not is_thunders_class(made)


def test_what_another_function_in_place_of_thunders_makes_is_not_known(monkeypatch):
    def exchange(code):
        if code.co_name == "__call__":
            return other_code.__code__.replace(co_name="__call__", co_qualname=code.co_qualname)
        parts = (exchange(each) if isinstance(each, CodeType) else each for each in code.co_consts)
        return code.replace(co_consts=tuple(parts))

    getter = proxies.TensorProxy.__getattr__
    monkeypatch.setattr(getter, "__code__", exchange(getter.__code__))
    assert count()() == 7
    assert not is_thunders_class(type(count()))
    assert not is_numel(count())
