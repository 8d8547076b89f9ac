"""Classes identified by Thunder's version: only that of ``x.numel``, which Thunder makes anew for each access."""

from types import FunctionType

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
    """Returns Thunder's object for the number of a tensor's elements."""
    with tracectx(TraceCtx()), langctx(Languages.TORCH):
        device, dtype = thunder.core.devices.cpu, thunder.core.dtypes.float32
        return proxies.TensorProxy("x", shape=(2, 3), device=device, dtype=dtype).numel


def copy(name, code=None, own=None, defaults=None, **attributes):
    """Returns a copy of a method of Thunder's class, or one that differs in the given parts."""
    thunders = getattr(type(count()), name)
    function = FunctionType(code or thunders.__code__, own or vars(proxies), name, defaults)
    function.__qualname__ = thunders.__qualname__
    vars(function).update(attributes)
    return function


def make(base=int, **body):
    """Returns a class like Thunder's except for the given base and parts."""
    own = vars(type(count()))
    since_3_13 = {name: own[name] for name in ("__firstlineno__", "__static_attributes__") if name in own}
    parts = {"__new__": copy("__new__"), "__call__": copy("__call__"), "__module__": proxies.__name__}
    return type("_Numel", (base,), {"__qualname__": PLACE, **since_3_13, **parts, **body})


CALL = (lambda self: int(self) + 1).__code__.replace(co_name="__call__")
OTHER_CONSTANT = type(count()).__new__.__code__.replace(co_consts=(None, "Wanted int, got "))
DIFFERING = {
    "another function's": {"__qualname__": "TensorProxy.__getitem__.<locals>._Numel"},
    "another module": {"__module__": "thunder.core.utils"},
    "another base": {"base": float},
    "one function more": {"__add__": copy("__call__")},
    "a class method": {"__new__": classmethod(copy("__new__"))},
    "a builtin": {"__call__": int},
    "attributes of its own kind": {"__dict__": property(lambda self: {})},
    "another constant": {"__new__": copy("__new__", OTHER_CONSTANT)},
    "another function": {"__call__": copy("__call__", CALL)},
    "a default": {"__call__": copy("__call__", defaults=(3,))},
    "other globals": {"__call__": copy("__call__", own=dict(vars(proxies)))},
    "an attribute of a function": {"__call__": copy("__call__", limit=3)},
}


def test_thunders_own_is_known_and_one_that_differs_in_nothing():
    one, other = count(), count()
    assert type(one) is not type(other)
    assert is_thunders_class(type(one)) and is_numel(one)
    assert is_thunders_class(make())


@pytest.mark.parametrize("what", DIFFERING)
def test_one_that_differs_is_not_known(what):
    assert not is_thunders_class(make(**DIFFERING[what]))
